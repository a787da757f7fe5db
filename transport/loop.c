/* The one thread of transport: deadlines, deferred calls, and the guard against fork.
 *
 * Why deadlines of our own. NNG 1.5.2 loses the time-out of a TLS send or receive while the handshake waits for the other
 * direction, and the expiry of an operation that has just ended may hit its successor. Here a deadline that passes only
 * calls its owner, who closes the stream.
 *
 * The thread starts with the first listener or dialer, is never stopped, and sleeps when there is nothing to do. It is only
 * woken for a deadline that comes before the moment it would wake anyway: as time-outs are mostly alike, operations that
 * succeed do not wake it. */
#include <stdlib.h>
#include <unistd.h>

#include "transport/internal.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, fired;
    atomic_int owner; /* process id, 0 before the first use */
    bool started;
    pthread_t thread;
    tni_task *head, **tail;
    tni_timer **heap; /* the earliest first, from 1 */
    size_t count, cap;
    tni_timer *firing;
    int64_t asleep_until; /* INT64_MIN: awake */
} loop = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void heap_put(size_t at, tni_timer *t) {
    loop.heap[at] = t;
    t->pos = at;
}

static void heap_up(size_t at, tni_timer *t) {
    for (; at > 1 && loop.heap[at / 2]->deadline > t->deadline; at /= 2)
        heap_put(at, loop.heap[at / 2]);
    heap_put(at, t);
}

static void heap_down(size_t at, tni_timer *t) {
    for (size_t child; (child = 2 * at) <= loop.count; at = child) {
        if (child < loop.count && loop.heap[child + 1]->deadline < loop.heap[child]->deadline)
            child++;
        if (t->deadline <= loop.heap[child]->deadline)
            break;
        heap_put(at, loop.heap[child]);
    }
    heap_put(at, t);
}

static void heap_remove(tni_timer *t) {
    size_t at = t->pos;
    tni_timer *last = loop.heap[loop.count--];

    t->pos = 0;
    if (last == t)
        return;
    if (at > 1 && loop.heap[at / 2]->deadline > last->deadline)
        heap_up(at, last);
    else
        heap_down(at, last);
}

static void *loop_main(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "tn-transport");
    pthread_mutex_lock(&loop.lock);
    for (;;) {
        tni_timer *first = loop.count > 0 ? loop.heap[1] : NULL;
        tni_task *t = loop.head;

        if (first != NULL && first->deadline <= tn_now()) {
            heap_remove(first);
            loop.firing = first;
            pthread_mutex_unlock(&loop.lock);
            first->fire(first->arg);
            pthread_mutex_lock(&loop.lock);
            loop.firing = NULL;
            pthread_cond_broadcast(&loop.fired);
        } else if (t != NULL) {
            loop.head = t->next;
            if (loop.head == NULL)
                loop.tail = &loop.head;
            pthread_mutex_unlock(&loop.lock);
            t->run(t->arg);
            pthread_mutex_lock(&loop.lock);
        } else {
            loop.asleep_until = first != NULL ? first->deadline : TN_FOREVER;
            tn_cond_wait_until(&loop.wake, &loop.lock, loop.asleep_until);
            loop.asleep_until = INT64_MIN;
        }
    }
    return NULL;
}

bool tni_loop_forked(void) {
    int owner = atomic_load_explicit(&loop.owner, memory_order_acquire);

    return owner != 0 && owner != (int)getpid();
}

tn_code tni_loop_enter(tn_err *err) {
    int rc = 0;

    if (tni_loop_forked())
        return tn_fail(err, TN_EUNSUPPORTED,
                       "transport: process %d was forked from one that uses connections already and cannot have any "
                       "of its own: start it with exec (in Python: the \"spawn\" method)",
                       (int)getpid());
    pthread_mutex_lock(&loop.lock);
    if (!loop.started) {
        tn_cond_init(&loop.wake);
        tn_cond_init(&loop.fired);
        loop.tail = &loop.head;
        loop.asleep_until = INT64_MIN;
        rc = pthread_create(&loop.thread, NULL, loop_main, NULL);
        if (rc == 0) {
            loop.started = true;
            atomic_store_explicit(&loop.owner, (int)getpid(), memory_order_release);
        }
    }
    pthread_mutex_unlock(&loop.lock);
    return rc == 0 ? TN_OK : tn_fail_sys(err, TN_EIO, rc, "transport: cannot start a thread");
}

void tni_loop_post(tni_task *t) {
    t->next = NULL;
    pthread_mutex_lock(&loop.lock);
    *loop.tail = t;
    loop.tail = &t->next;
    if (loop.asleep_until != INT64_MIN)
        pthread_cond_signal(&loop.wake);
    pthread_mutex_unlock(&loop.lock);
}

tn_code tni_timer_set(tni_timer *t, int64_t deadline) {
    tn_code code = TN_OK;

    if (deadline == TN_FOREVER)
        return TN_OK;
    pthread_mutex_lock(&loop.lock);
    if (loop.count + 2 > loop.cap) {
        size_t cap = loop.cap > 0 ? 2 * loop.cap : 64;
        tni_timer **grown = realloc(loop.heap, cap * sizeof(*grown));

        if (grown == NULL) {
            code = TN_ENOMEM;
            goto out;
        }
        loop.heap = grown;
        loop.cap = cap;
    }
    t->deadline = deadline;
    heap_up(++loop.count, t);
    if (deadline < loop.asleep_until)
        pthread_cond_signal(&loop.wake);
out:
    pthread_mutex_unlock(&loop.lock);
    return code;
}

void tni_timer_cancel(tni_timer *t) {
    pthread_mutex_lock(&loop.lock);
    if (t->pos != 0)
        heap_remove(t);
    while (loop.firing == t && !pthread_equal(pthread_self(), loop.thread))
        pthread_cond_wait(&loop.fired, &loop.lock);
    pthread_mutex_unlock(&loop.lock);
}

/* Operations under way: a small state machine behind one lock, with a reference count beside it.
 *
 * w->lock guards every field but refs. It is a leaf: no other lock is taken under it, and neither the cancel
 * function nor the completion callback is called under it, so both may call back into the work. */
#include "core/work.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/clock.h"

typedef enum work_state { WORK_PENDING, WORK_RUNNING, WORK_DONE } work_state;

struct tn_work {
    atomic_uint refs;
    pthread_mutex_t lock;
    pthread_cond_t done; /* state became WORK_DONE */
    work_state state;
    bool abort_asked; /* cancel has been called, or is about to be */
    tn_err result;    /* meaningful once WORK_DONE */
    tn_cancel_fn cancel;
    void *cancel_arg;
    tn_work_fn on_done;
    void *on_done_arg;
};

tn_work *tn_work_new(void) {
    tn_work *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return NULL;
    if (pthread_mutex_init(&w->lock, NULL) != 0) {
        free(w);
        return NULL;
    }
    tn_cond_init(&w->done);
    atomic_init(&w->refs, 1);
    return w;
}

tn_work *tn_work_ref(tn_work *w) {
    atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    return w;
}

void tn_work_unref(tn_work *w) {
    if (w == NULL || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Enters WORK_DONE and lets go of the lock, then runs the callback. The caller holds the lock and a
 * reference. */
static void complete_and_unlock(tn_work *w, const tn_err *err) {
    tn_work_fn fn = w->on_done;
    void *arg = w->on_done_arg;

    if (err != NULL)
        w->result = *err;
    w->state = WORK_DONE;
    pthread_cond_broadcast(&w->done);
    pthread_mutex_unlock(&w->lock);
    if (fn != NULL)
        fn(arg, w);
}

tn_code tn_work_wait(tn_work *w, int64_t timeout_ns, tn_err *err) {
    int64_t deadline = tn_deadline_after(tn_now(), timeout_ns > 0 ? timeout_ns : 0);
    tn_code code = TN_OK;

    pthread_mutex_lock(&w->lock);
    while (w->state != WORK_DONE && code == TN_OK)
        code = timeout_ns > 0 ? tn_cond_wait_until(&w->done, &w->lock, deadline) : TN_ETIMEDOUT;
    if (w->state == WORK_DONE) {
        code = w->result.code;
        if (code != TN_OK && err != NULL)
            *err = w->result;
    } else {
        const char *state = w->state == WORK_PENDING ? "had not begun" : "was still running";

        code = tn_fail(err, TN_ETIMEDOUT, "the operation %s after %.3f s", state,
                       (double)(timeout_ns > 0 ? timeout_ns : 0) / 1e9);
    }
    pthread_mutex_unlock(&w->lock);
    return code;
}

bool tn_work_done(tn_work *w) {
    bool done;

    pthread_mutex_lock(&w->lock);
    done = w->state == WORK_DONE;
    pthread_mutex_unlock(&w->lock);
    return done;
}

void tn_work_abort(tn_work *w, tn_code why) {
    if (why == TN_OK)
        why = TN_ECANCELED;
    pthread_mutex_lock(&w->lock);
    if (w->state == WORK_PENDING) {
        tn_err err;

        tn_fail(&err, why, "aborted before it began: %s", tn_code_text(why));
        complete_and_unlock(w, &err);
    } else if (w->state == WORK_RUNNING && w->cancel != NULL && !w->abort_asked) {
        tn_cancel_fn cancel = w->cancel;
        void *arg = w->cancel_arg;

        w->abort_asked = true;
        pthread_mutex_unlock(&w->lock);
        cancel(arg, why);
    } else {
        pthread_mutex_unlock(&w->lock);
    }
}

bool tn_work_on_done(tn_work *w, tn_work_fn fn, void *arg) {
    bool first, now;

    assert(fn != NULL);
    pthread_mutex_lock(&w->lock);
    first = w->on_done == NULL;
    now = first && w->state == WORK_DONE;
    if (first) {
        w->on_done = fn;
        w->on_done_arg = arg;
    }
    pthread_mutex_unlock(&w->lock);
    if (now)
        fn(arg, w);
    return first;
}

bool tn_work_start(tn_work *w, tn_cancel_fn cancel, void *arg) {
    bool go;

    pthread_mutex_lock(&w->lock);
    assert(w->state != WORK_RUNNING);
    go = w->state == WORK_PENDING;
    if (go) {
        w->state = WORK_RUNNING;
        w->cancel = cancel;
        w->cancel_arg = arg;
    }
    pthread_mutex_unlock(&w->lock);
    return go;
}

bool tn_work_finish(tn_work *w, const tn_err *err) {
    pthread_mutex_lock(&w->lock);
    if (w->state == WORK_DONE) {
        pthread_mutex_unlock(&w->lock);
        return false;
    }
    complete_and_unlock(w, err);
    return true;
}

/* A group: how it is made, how it fails, how it ends, and the thread that carries out its collectives.
 *
 * The progress thread starts with the first operation. It takes collectives from the queue in the order of
 * issue and runs each as straight-line code (collectives.c) that posts messages and waits for counters to
 * reach 0; the messages themselves move on the transport's threads (link.c). While it waits it also looks
 * after the deadlines of point-to-point operations.
 *
 * A failure ends the collectives of the group for good: tni_fail records the first one, tells every peer,
 * and wakes the thread, which waits until no tensor memory is in the hands of the transport before it
 * completes the work. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/random.h"
#include "dist/vote.h"

#define DEFAULT_TIMEOUT (30 * 60 * TN_SECOND)
#define DEFAULT_SEGMENT ((size_t)1 << 20)
#define DEFAULT_SMALL_MAX ((size_t)16 << 10)
#define MAX_SIZE 4096             /* ranks */
#define QUIESCE (2 * TN_SECOND)   /* for healthy peers to take what is under way and read the FAIL behind it */
#define FAREWELL (1 * TN_SECOND)  /* at the least, for the last frames of a group that is freed */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_pg *registry; /* all groups, for cancellation */
static atomic_uint_fast64_t next_id = 1;

static const char *const type_names[] = {
    [TNI_ALLREDUCE] = "allreduce", [TNI_BROADCAST] = "broadcast", [TNI_REDUCE] = "reduce",
    [TNI_ALLGATHER] = "allgather", [TNI_REDUCE_SCATTER] = "reduce_scatter", [TNI_GATHER] = "gather",
    [TNI_SCATTER] = "scatter", [TNI_ALLTOALL] = "alltoall", [TNI_BARRIER] = "barrier",
    [TNI_REFUSED] = "a refused call",
};

const char *tni_type_name(unsigned type) {
    return type < sizeof(type_names) / sizeof(type_names[0]) && type_names[type] != NULL ? type_names[type]
                                                                                         : "?";
}

char *tni_rank_list(char *buf, size_t cap, const bool *set, int size) {
    int i, n = 0, total = 0;
    const char *sep;
    size_t used = 0;

    for (i = 0; i < size; i++)
        total += set[i];
    buf[0] = '\0';
    for (i = 0; i < size && used + 32 < cap; i++) {
        if (!set[i])
            continue;
        sep = n == 0 ? (total > 1 ? "ranks " : "rank ") : n == total - 1 ? " and " : ", ";
        used += (size_t)snprintf(buf + used, cap - used, "%s%d", sep, i);
        n++;
    }
    if (n < total)
        snprintf(buf + used, cap - used, " and %d more", total - n);
    return buf;
}

/* ---- The lock, and works that complete when it is let go ---- */

void tni_lock(tn_pg *g) { pthread_mutex_lock(&g->lock); }

void tni_unlock(tn_pg *g) {
    tni_finished *f = g->finished;

    g->finished = g->finished_tail = NULL;
    pthread_mutex_unlock(&g->lock);
    while (f != NULL) {
        tni_finished *next = f->next;

        tn_work_finish(f->work, f->err.code != TN_OK ? &f->err : NULL);
        tn_work_unref(f->work);
        free(f);
        f = next;
    }
}

void tni_finish(tn_pg *g, tni_finished *f, const tn_err *err) {
    f->next = NULL;
    if (err != NULL)
        f->err = *err;
    if (g->finished_tail != NULL)
        g->finished_tail->next = f;
    else
        g->finished = f;
    g->finished_tail = f;
}

/* ---- Cancellation ---- */

uint64_t tni_next_id(void) { return atomic_fetch_add(&next_id, 1); }

static bool cancel_op(tn_pg *g, uint64_t id, tn_code why) {
    char text[TNI_FAIL_TEXT];
    tni_op *op = g->running;

    if (op == NULL || op->id != id)
        return false;
    snprintf(text, sizeof(text), "rank %d aborted %s: %s", g->rank, tni_type_name(op->kind), tn_code_text(why));
    tni_fail(g, g->rank, -1, why, op->seq, text);
    return true;
}

/* A work may ask after its group is gone, so groups are looked up by the operation's id. */
void tni_cancel(void *id, tn_code why) {
    uint64_t wanted = (uint64_t)(uintptr_t)id;
    tn_pg *g;

    pthread_mutex_lock(&registry_lock);
    for (g = registry; g != NULL; g = g->registry_next) {
        tni_lock(g);
        if (cancel_op(g, wanted, why) || tni_p2p_cancel(g, wanted, why))
            break;
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&registry_lock); /* before works complete: their callbacks may cancel others */
    if (g != NULL)
        tni_unlock(g);
}

/* ---- Failure ---- */

void tni_fail(tn_pg *g, int culprit, int reporter, tn_code code, uint64_t seq, const char *text) {
    int i;

    if (g->failed)
        return;
    g->failed = true;
    g->culprit = culprit;
    g->reporter = reporter;
    g->fail_code = code;
    g->fail_seq = seq;
    snprintf(g->fail_text, sizeof(g->fail_text), "%s", text);
    for (i = 0; i < g->size; i++)
        if (i != g->rank)
            tni_link_failed(tni_link_of(g, i, TNI_COLL));
    pthread_cond_broadcast(&g->wake);
}

/* The error of an operation that ends, or is refused, because the group has failed. */
tn_code tni_group_error(const tn_pg *g, const char *what, uint64_t seq, int64_t started, tn_err *err) {
    char who[48] = "", when[64] = "";

    if (g->reporter >= 0 && g->reporter != g->culprit)
        snprintf(who, sizeof(who), " (reported by rank %d)", g->reporter);
    if (g->fail_seq != seq)
        snprintf(when, sizeof(when), "the group failed at operation %llu: ", (unsigned long long)g->fail_seq);
    return tn_fail(err, g->fail_code, "%s seq %llu of group '%s' failed after %.3f s: %s%.280s%s", what,
                   (unsigned long long)seq, g->name, started != 0 ? (double)(tn_now() - started) / 1e9 : 0.0,
                   when, g->fail_text, who);
}

/* ---- Waiting ---- */

/* Names those who are waited for: if some of them have not come to this operation at all, only those. */
static void timed_out(tn_pg *g, const tni_op *op) {
    bool *waited = calloc((size_t)g->size * 2, sizeof(*waited)), *absent = waited + g->size;
    char list[160] = "unknown ranks", text[TNI_FAIL_TEXT];
    int i, first = -1;
    bool any_absent = false;

    for (i = 0; waited != NULL && i < g->size; i++) {
        const tni_link *l = tni_link_of(g, i, TNI_COLL);

        if (i == g->rank)
            continue;
        waited[i] = l->expect_head != NULL || l->body != NULL || l->out_head != NULL;
        absent[i] = waited[i] && l->seen < op->seq;
        any_absent = any_absent || absent[i];
        if (waited[i] && (first < 0 || (absent[i] && !absent[first])))
            first = i;
    }
    if (waited != NULL)
        tni_rank_list(list, sizeof(list), any_absent ? absent : waited, g->size);
    snprintf(text, sizeof(text), "timed out after %.3f s waiting for %s%s",
             (double)(tn_now() - op->started) / 1e9, list,
             any_absent ? ", from whom nothing of this operation has come" : "");
    free(waited);
    tni_fail(g, first, -1, TN_ETIMEDOUT, op->seq, text);
}

/* After a failure: until the transport holds no memory of the operation. Healthy peers take what is under
 * way, because they skip or finish it; the streams of the others are closed. */
static void quiesce(tn_pg *g) {
    int64_t deadline = tn_deadline_after(tn_now(), QUIESCE);
    bool closed = false;
    int i;

    for (;;) {
        bool busy = false;

        for (i = 0; i < g->size; i++) {
            tni_link *l = tni_link_of(g, i, TNI_COLL);

            if (!tni_link_busy(l))
                continue;
            busy = true;
            if (tn_now() >= deadline && !closed)
                tn_tx_close(l->conn);
        }
        if (!busy)
            return;
        if (tn_now() >= deadline)
            closed = true;
        (void)tn_cond_wait_until(&g->wake, &g->lock, closed ? TN_FOREVER : deadline);
    }
}

tn_code tni_wait(tn_pg *g, tni_op *op, const int *pending) {
    if (*pending > 0 && (g->p2p == NULL || g->watch_at == TN_FOREVER))
        g->watch_at = tn_deadline_after(tn_now(), TNI_PATIENCE);
    while (*pending > 0 && !g->failed) {
        int64_t until = op->deadline < g->p2p_deadline ? op->deadline : g->p2p_deadline;
        int64_t now;

        until = until < g->watch_at ? until : g->watch_at;
        if (g->todo == 0)
            (void)tn_cond_wait_until(&g->wake, &g->lock, until);
        now = tn_now();
        if (g->todo > 0 || now >= g->p2p_deadline)
            tni_p2p_tick(g, now);
        if (*pending > 0 && now >= op->deadline && !g->failed)
            timed_out(g, op);
        else if (now >= g->watch_at)
            tni_watch_tick(g, now);
    }
    if (*pending == 0)
        return TN_OK; /* whatever happened since */
    quiesce(g);
    return TN_EPEER;
}

uint8_t *tni_scratch(tn_pg *g, size_t n) {
    if (n > g->scratch_cap) {
        size_t cap = (n + 63) / 64 * 64;

        free(g->scratch);
        g->scratch = aligned_alloc(64, cap);
        g->scratch_cap = g->scratch != NULL ? cap : 0;
    }
    return g->scratch;
}

/* ---- The progress thread ---- */

static void run_one(tn_pg *g, tni_op *op) {
    tn_err err = TN_ERR_INIT;
    tn_code code = TN_EPEER;
    bool go = op->fin == NULL || tn_work_start(op->fin->work, tni_cancel, (void *)(uintptr_t)op->id);

    op->started = tn_now();
    op->deadline = tn_deadline_after(op->started, op->timeout_ns);
    if (!go) { /* the work is done already, but the peers wait for us */
        char text[TNI_FAIL_TEXT];

        snprintf(text, sizeof(text), "rank %d aborted %s before it began", g->rank, tni_type_name(op->kind));
        tni_fail(g, g->rank, -1, TN_ECANCELED, op->seq, text);
    }
    if (!g->failed)
        code = tni_run(g, op, &err);
    if (code != TN_OK && g->failed)
        tni_group_error(g, tni_type_name(op->kind), op->seq, op->started, &err);
    else if (code != TN_OK)
        tn_ctx(&err, "%s seq %llu of group '%s'", tni_type_name(op->kind), (unsigned long long)op->seq,
               g->name);
    if (op->fin != NULL)
        tni_finish(g, op->fin, code != TN_OK ? &err : NULL);
}

static void *progress(void *arg) {
    tn_pg *g = arg;

    tni_lock(g);
    while (!g->stop) {
        int64_t now = tn_now();

        if (g->queue != NULL) {
            tni_op *op = g->queue;

            g->queue = op->next;
            if (g->queue == NULL)
                g->queue_tail = NULL;
            g->running = op;
            run_one(g, op);
            g->running = NULL;
            free(op);
            pthread_cond_broadcast(&g->wake); /* tn_pg_free waits for the queue to run dry */
        } else if (g->todo > 0 || now >= g->p2p_deadline) {
            tni_p2p_tick(g, now);
        } else if (now >= g->watch_at) {
            tni_watch_tick(g, now);
        } else {
            (void)tn_cond_wait_until(&g->wake, &g->lock,
                                     g->p2p_deadline < g->watch_at ? g->p2p_deadline : g->watch_at);
        }
        if (g->finished != NULL) {
            tni_unlock(g);
            tni_lock(g);
        }
    }
    tni_unlock(g);
    return NULL;
}

tn_code tni_start_thread(tn_pg *g, tn_err *err) {
    int rc;

    if (g->thread_on)
        return TN_OK;
    rc = pthread_create(&g->thread, NULL, progress, g);
    if (rc != 0)
        return tn_fail_sys(err, TN_EIO, rc, "cannot start the progress thread of group '%s'", g->name);
    g->thread_on = true;
    return TN_OK;
}

tni_finished *tni_finished_new(tn_work **work) {
    tni_finished *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->work = tn_work_new();
    if (f->work == NULL) {
        free(f);
        return NULL;
    }
    *work = tn_work_ref(f->work);
    return f;
}

/* ---- Making a group ---- */

static tn_code copy_text(char **out, const char *text, tn_err *err) {
    if (text == NULL)
        return TN_OK;
    *out = strdup(text);
    return *out != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "no memory for a process group");
}

static void release(tn_pg *g) {
    int i;

    tni_links_release(g);
    for (i = 0; g->addr != NULL && i < g->size; i++)
        free(g->addr[i]);
    free(g->addr);
    for (i = 0; i < (int)(sizeof(g->owned) / sizeof(g->owned[0])); i++)
        free(g->owned[i]);
    tni_vote_free(g);
    free(g->scratch);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static tn_code setup(tn_pg *g, int rank, int size, const tn_pg_opts *o, tn_err *err) {
    tn_code code;
    int i;

    g->rank = rank;
    g->size = size;
    g->timeout_ns = o->timeout_ns != 0 ? o->timeout_ns : DEFAULT_TIMEOUT;
    g->segment = o->segment != 0 ? o->segment : DEFAULT_SEGMENT;
    g->small_max = o->small_max != 0 ? o->small_max : DEFAULT_SMALL_MAX;
    g->check = o->check;
    g->reporter = g->culprit = -1;
    g->p2p_deadline = g->watch_at = TN_FOREVER;
    snprintf(g->name, sizeof(g->name), "%s", o->name != NULL ? o->name : "world");
    if ((code = copy_text(&g->owned[0], o->tls.cert, err)) != TN_OK ||
        (code = copy_text(&g->owned[1], o->tls.key, err)) != TN_OK ||
        (code = copy_text(&g->owned[2], o->tls.ca, err)) != TN_OK ||
        (code = copy_text(&g->owned[3], o->tls.server_name, err)) != TN_OK ||
        (code = copy_text(&g->owned[4], o->transport, err)) != TN_OK ||
        (code = copy_text(&g->owned[5], o->host, err)) != TN_OK || (code = tni_vote_new(g, err)) != TN_OK)
        return code;
    g->tls.cert = g->owned[0];
    g->tls.key = g->owned[1];
    g->tls.ca = g->owned[2];
    g->tls.server_name = g->owned[3];
    g->transport = g->owned[4];
    g->host = g->owned[5];
    g->addr = calloc((size_t)size, sizeof(*g->addr));
    g->links = calloc((size_t)size * TNI_KINDS, sizeof(*g->links));
    if (g->addr == NULL || g->links == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a process group of %d ranks", size);
    for (i = 0; i < size * TNI_KINDS; i++)
        g->links[i] = (tni_link){.g = g, .peer = i / TNI_KINDS, .kind = (tni_link_kind)(i % TNI_KINDS)};
    return TN_OK;
}

typedef struct meeting {
    const tn_store *store;
    int64_t began, deadline;
    int64_t generation; /* the how manieth group of this name this is, which each rank counts for itself */
} meeting;

static void key_of(char *key, size_t cap, const tn_pg *g, const meeting *m, const char *what, int rank) {
    snprintf(key, cap, "tn/%s/%lld/%s/%d", g->name, (long long)m->generation, what, rank);
}

static int64_t time_left(const meeting *m) {
    int64_t now = tn_now();

    if (m->deadline == TN_FOREVER)
        return TN_FOREVER;
    return now < m->deadline ? m->deadline - now : 0;
}

/* Rank 0 makes the secret of the group; the others read it before anybody can dial them. */
static tn_code share_cookie(tn_pg *g, const meeting *m, tn_err *err) {
    char key[160];
    uint8_t *value = NULL;
    size_t n = 0;
    tn_code code;

    key_of(key, sizeof(key), g, m, "secret", 0);
    if (g->rank == 0) {
        tn_random_bytes(g->cookie, sizeof(g->cookie));
        return m->store->set(m->store->arg, key, g->cookie, sizeof(g->cookie), err);
    }
    code = m->store->get(m->store->arg, key, time_left(m), &value, &n, err);
    if (code == TN_ETIMEDOUT)
        return tn_fail(err, TN_ETIMEDOUT, "group '%s': rank 0 did not come within %.3f s", g->name,
                       (double)(tn_now() - m->began) / 1e9);
    if (code == TN_OK && n != sizeof(g->cookie))
        code = tn_fail(err, TN_EPROTO, "group '%s': the store holds %zu bytes under '%s' where %zu belong",
                       g->name, n, key, sizeof(g->cookie));
    if (code == TN_OK)
        memcpy(g->cookie, value, n);
    free(value);
    return code;
}

static tn_code read_address(tn_pg *g, const meeting *m, int rank, int64_t timeout_ns, tn_err *err) {
    tni_link *l = tni_link_of(g, rank, TNI_COLL);
    char key[160], *url = NULL;
    uint8_t *value = NULL;
    size_t n = 0;
    tn_code code;

    key_of(key, sizeof(key), g, m, "address", rank);
    code = m->store->get(m->store->arg, key, timeout_ns, &value, &n, err);
    if (code == TN_OK && (n == 0 || n > 4096 || memchr(value, '\0', n) != NULL))
        code = tn_fail(err, TN_EPROTO, "group '%s': what rank %d published is not an address", g->name, rank);
    if (code == TN_OK && (url = strndup((const char *)value, n)) == NULL)
        code = tn_fail(err, TN_ENOMEM, "no memory for a process group");
    if (code == TN_OK)
        code = tn_tx_url_check(url, err);
    free(value);
    if (code != TN_OK) {
        free(url);
        return code;
    }
    tni_lock(g); /* peers that met earlier may talk to us already */
    g->addr[rank] = url;
    if (g->failed && rank != g->rank && l->state == TNI_CLOSED)
        tni_link_dial(l); /* to tell it, which could not be done before */
    tni_unlock(g);
    return TN_OK;
}

/* The time is up while rank `missing` is waited for: look once at all that were not read yet, and name them. */
static tn_code name_missing(tn_pg *g, const meeting *m, int missing, tn_err *err) {
    bool *absent = calloc((size_t)g->size, sizeof(*absent));
    char list[200];
    int i;

    if (absent == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a process group");
    for (i = missing; i < g->size; i++)
        absent[i] = g->addr[i] == NULL && (i == missing || read_address(g, m, i, 0, NULL) == TN_ETIMEDOUT);
    tn_fail(err, TN_ETIMEDOUT, "group '%s' of %d: %s did not come within %.3f s", g->name, g->size,
            tni_rank_list(list, sizeof(list), absent, g->size), (double)(tn_now() - m->began) / 1e9);
    free(absent);
    return TN_ETIMEDOUT;
}

/* Ranks of several hosts, of which some can be reached on their own host only: whoever dials those would meet
 * itself, or nobody. */
static tn_code check_addresses(const tn_pg *g, tn_err *err) {
    int local = -1, other = -1, i;

    for (i = 0; i < g->size; i++) {
        if (tn_tx_url_is_local(g->addr[i]))
            local = local < 0 ? i : local;
        else
            other = other < 0 ? i : other;
    }
    if (local < 0 || other < 0)
        return TN_OK;
    return tn_fail(err, TN_EINVAL,
                   "group '%s': rank %d listens at %s, which other hosts cannot reach, and rank %d at %s: give "
                   "rank %d an address on the network (TN_IFACE, or the option `host`)",
                   g->name, local, g->addr[local], other, g->addr[other], local);
}

static tn_code meet(tn_pg *g, const tn_store *store, tn_err *err) {
    const char *url;
    meeting m = {.store = store, .began = tn_now()};
    char key[160];
    tn_code code;
    int i;

    m.deadline = tn_deadline_after(m.began, g->timeout_ns);
    snprintf(key, sizeof(key), "tn/%s/generation/%d", g->name, g->rank);
    code = store->add(store->arg, key, 1, &m.generation, err);
    if (code == TN_OK)
        code = share_cookie(g, &m, err);
    if (code == TN_OK)
        code = tni_listen(&g->listener, g->socket_path, sizeof(g->socket_path), g, err);
    if (code != TN_OK)
        return code;
    tni_lock(g);
    tni_accept_start(g);
    tni_unlock(g);
    url = tn_tx_listener_url(g->listener);
    key_of(key, sizeof(key), g, &m, "address", g->rank);
    code = store->set(store->arg, key, url, strlen(url), err);
    for (i = 0; i < g->size && code == TN_OK; i++) {
        code = read_address(g, &m, i, time_left(&m), err);
        if (code == TN_ETIMEDOUT)
            code = name_missing(g, &m, i, err);
    }
    return code == TN_OK ? check_addresses(g, err) : code;
}

void tni_group_enroll(tn_pg *g) {
    pthread_mutex_lock(&registry_lock);
    g->registry_next = registry;
    registry = g;
    pthread_mutex_unlock(&registry_lock);
}

static void expel(tn_pg *g) {
    tn_pg **at;

    pthread_mutex_lock(&registry_lock);
    for (at = &registry; *at != NULL && *at != g; at = &(*at)->registry_next)
        ;
    if (*at == g)
        *at = g->registry_next;
    pthread_mutex_unlock(&registry_lock);
}

/* Ends the thread and every stream, and waits until the transport has let go of us. */
void tni_group_discard(tn_pg *g) {
    tni_lock(g);
    g->stop = true;
    pthread_cond_broadcast(&g->wake);
    tni_unlock(g);
    if (g->thread_on)
        pthread_join(g->thread, NULL);
    tni_lock(g);
    tni_links_close(g);
    while (g->inflight > 0)
        (void)tn_cond_wait_until(&g->wake, &g->lock, TN_FOREVER);
    tni_unlock(g);
    release(g);
}

tn_code tni_group_new(tn_pg **out, int rank, int size, const tn_pg_opts *opts, tn_err *err) {
    tn_code code = tn_random_init(err);
    tn_pg *g;

    if (code != TN_OK)
        return code;
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a process group");
    pthread_mutex_init(&g->lock, NULL);
    tn_cond_init(&g->wake);
    code = setup(g, rank, size, opts, err);
    if (code != TN_OK) {
        tni_group_discard(g);
        return code;
    }
    *out = g;
    return TN_OK;
}

tn_code tn_pg_new(tn_pg **out, const tn_store *store, int rank, int size, const tn_pg_opts *opts, tn_err *err) {
    static const tn_pg_opts defaults;
    tn_code code;
    tn_pg *g;

    if (opts == NULL)
        opts = &defaults;
    if (size < 1 || size > MAX_SIZE || rank < 0 || rank >= size)
        return tn_fail(err, TN_EINVAL, "rank %d of %d: a group has 1 to %d ranks, counted from 0", rank, size,
                       MAX_SIZE);
    if (opts->timeout_ns < 0)
        return tn_fail(err, TN_EINVAL, "a time-out cannot be negative");
    if (opts->name != NULL && (opts->name[0] == '\0' || strlen(opts->name) >= TNI_NAME_MAX))
        return tn_fail(err, TN_EINVAL, "the name of a group has 1 to %d bytes", TNI_NAME_MAX - 1);
    code = tni_group_new(&g, rank, size, opts, err);
    if (code != TN_OK)
        return code;
    code = meet(g, store, err);
    if (code != TN_OK) {
        tni_group_discard(g);
        return code;
    }
    tni_group_enroll(g);
    *out = g;
    return TN_OK;
}

int tn_pg_rank(const tn_pg *g) { return g->rank; }

int tn_pg_size(const tn_pg *g) { return g->size; }

/* ---- The end of a group ---- */

void tni_abort_all(tn_pg *g, tn_code code, const char *why) {
    char text[TNI_FAIL_TEXT];
    tn_err err;
    int i;

    snprintf(text, sizeof(text), "rank %d %.300s", g->rank, why);
    tni_fail(g, g->rank, -1, code, g->running != NULL ? g->running->seq : g->seq, text);
    tn_fail(&err, code, "%s", text);
    tni_p2p_abort(g, &err);
    for (i = 0; i < g->size; i++)
        tni_link_abort(tni_link_of(g, i, TNI_P2P));
}

void tn_pg_abort(tn_pg *g, const char *why) {
    char text[TNI_FAIL_TEXT];

    snprintf(text, sizeof(text), "aborted the group: %.280s", why != NULL ? why : "no reason given");
    tni_lock(g);
    g->aborted = true;
    tni_abort_all(g, TN_ECANCELED, text);
    tni_unlock(g);
}

static bool idle(tn_pg *g) { return g->queue == NULL && g->running == NULL && g->p2p == NULL; }

static bool quiet(tn_pg *g) {
    int i;

    for (i = 0; i < g->size * TNI_KINDS; i++)
        if (!tni_link_quiet(&g->links[i]))
            return false;
    return true;
}

/* With the lock held. */
static void wait_until(tn_pg *g, bool (*until)(tn_pg *), int64_t deadline) {
    while (!until(g) && tn_now() < deadline) {
        (void)tn_cond_wait_until(&g->wake, &g->lock, deadline < g->watch_at ? deadline : g->watch_at);
        if (g->closing && tn_now() >= g->watch_at)
            tni_watch_tick(g, tn_now()); /* a host that is gone does not say good-bye */
    }
}

void tn_pg_free(tn_pg *g, int64_t timeout_ns) {
    int64_t deadline, farewell;
    int i;

    if (g == NULL)
        return;
    deadline = tn_deadline_after(tn_now(), timeout_ns > 0 ? timeout_ns : 0);
    expel(g);
    tni_lock(g);
    g->leaving = true;
    wait_until(g, idle, deadline);
    if (!idle(g)) {
        tni_abort_all(g, TN_ECANCELED, "has freed the group before its operations were done");
        wait_until(g, idle, TN_FOREVER); /* bounded by quiesce: nothing waits for a peer any more */
    }
    g->closing = true;
    g->watch_at = tn_deadline_after(tn_now(), TNI_PATIENCE);
    for (i = 0; i < g->size * TNI_KINDS; i++)
        tni_link_bye(&g->links[i]);
    farewell = tn_deadline_after(tn_now(), FAREWELL);
    wait_until(g, quiet, g->failed || farewell > deadline ? farewell : deadline);
    tni_unlock(g);
    tni_group_discard(g);
}

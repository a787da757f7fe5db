/* A run from start to exit: opens everything, then loops over events, time and signals until the job is over. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/log.h"
#include "core/random.h"
#include "server/dp.h"

#define LOGS_A_SECOND 20u
#define ACCEPT_AGAIN_NS (100 * TN_MS)
#define LINGER_NS (10 * TN_SECOND)      /* after the end, since a client last said something */
#define LINGER_MAX_NS (600 * TN_SECOND) /* and in all */
#define STOP_LINGER_NS (100 * TN_MS)    /* for last notices to go out */
#define CLOSE_NS (5 * TN_SECOND)        /* for the transport to let go of connections */

void srv_log_refusal(srv *s, const char *fmt, ...) {
    char text[900];
    int64_t now = tn_now();
    va_list args;

    if (now - s->log_window >= TN_SECOND) {
        if (s->unlogged != 0)
            tn_log(TN_LOG_WARN, "server", "%u more refusals were not logged", s->unlogged);
        s->log_window = now;
        s->logged = s->unlogged = 0;
    }
    if (s->logged == LOGS_A_SECOND) {
        s->unlogged++;
        return;
    }
    s->logged++;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tn_log(TN_LOG_WARN, "server", "%s", text);
}

/* ---- Signals: a thread of their own turns them into wake-ups of the driver ---- */

typedef struct watcher {
    pthread_t thread;
    events *events;
    bool running;
} watcher;

static void watched(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR2); /* ends the thread */
}

static void *watch(void *arg) {
    watcher *w = arg;
    sigset_t set;
    int sig = 0;

    watched(&set);
    while (sigwait(&set, &sig) == 0 && sig != SIGUSR2)
        events_signal(w->events);
    return NULL;
}

/* Before any other thread is there, so that all of them inherit the mask. */
static tn_code watcher_start(watcher *w, events *q, tn_err *err) {
    sigset_t set;
    int rc;

    w->events = q;
    watched(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    rc = pthread_create(&w->thread, NULL, watch, w);
    w->running = rc == 0;
    return rc == 0 ? TN_OK : tn_fail_sys(err, TN_EIO, rc, "the thread for signals cannot be started");
}

static void watcher_stop(watcher *w) {
    if (!w->running)
        return;
    pthread_kill(w->thread, SIGUSR2);
    pthread_join(w->thread, NULL);
}

/* ---- Listening ---- */

static void accepted(void *arg, tn_tx_conn *conn, const tn_err *err) {
    listener *l = arg;

    l->ev.kind = EV_CONN;
    l->ev.conn = conn;
    l->ev.err = *err;
    events_post(&l->srv->events, &l->ev);
}

/* Accepts wherever none is under way, unless there are too many handshakes or the last one failed just now. */
static void accept_more(srv *s, int64_t now) {
    if (now < s->accept_at || s->nhandshakes >= MAX_HANDSHAKES)
        return;
    for (size_t i = 0; i < s->nlisteners; i++) {
        if (!s->listener[i].busy) {
            s->listener[i].busy = true;
            tn_tx_accept(s->listener[i].tx, accepted, &s->listener[i]);
        }
    }
}

static void on_conn(listener *l, event *e) {
    srv *s = l->srv;
    tn_tx_conn *conn = e->conn;

    l->busy = false;
    e->conn = NULL;
    if (conn != NULL) {
        session_new(s, conn, l->tls);
    } else if (e->err.code != TN_ECANCELED) {
        srv_log_refusal(s, "%s: %s", tn_tx_listener_url(l->tx), e->err.msg);
        s->accept_at = tn_now() + ACCEPT_AGAIN_NS;
    }
}

static tn_code listen_all(srv *s, tn_err *err) {
    const tn_srv_cfg *cfg = s->cfg;
    tn_tx_opts opts = {cfg->tls_cert, cfg->tls_key, cfg->tls_ca, NULL};
    tn_code code = TN_OK;

    s->listener = calloc(cfg->listen.count, sizeof(*s->listener));
    if (s->listener == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for listeners");
    for (size_t i = 0; i < cfg->listen.count && code == TN_OK; i++) {
        listener *l = &s->listener[i];

        l->srv = s;
        l->ev.owner = l;
        l->tls = tn_tx_url_is_tls(cfg->listen.item[i]);
        code = tn_tx_listen(&l->tx, cfg->listen.item[i], l->tls ? &opts : NULL, err);
        if (code == TN_OK)
            s->nlisteners++;
    }
    return code;
}

static bool has_tls(const srv *s) {
    for (size_t i = 0; i < s->nlisteners; i++) {
        if (s->listener[i].tls)
            return true;
    }
    return false;
}

static tn_code load_tls(srv *s, tn_err *err) {
    tn_code code;

    if (!has_tls(s))
        return TN_OK;
    code = tn_cert_inspect(s->cfg->tls_cert, s->cert, NULL, 0, NULL, err);
    s->roster_read = tn_now();
    return code == TN_OK ? tn_roster_load(&s->roster, s->cfg->enrolled, err) : code;
}

/* From here on clients can know where to connect. */
static tn_code write_endpoint(srv *s, tn_err *err) {
    tn_wr w = tn_wr_init(1u << 20);
    tn_part part;
    tn_code code;

    for (size_t i = 0; i < s->nlisteners; i++) {
        const char *url = tn_tx_listener_url(s->listener[i].tx);

        tn_wr_bytes(&w, url, strlen(url));
        tn_wr_u8(&w, '\n');
        tn_log(TN_LOG_INFO, "server", "job %s, %" PRIu64 " of %lld rounds done: listens on %s", s->cfg->job,
               s->model->committed, (long long)s->cfg->rounds, url);
    }
    part = (tn_part){w.p, w.len};
    code = w.fail != TN_OK ? tn_fail(err, w.fail, "no memory for the list of URLs")
                           : tn_file_write_atomic(s->endpoint, &part, 1, 0644, err);
    tn_wr_release(&w);
    return code;
}

/* ---- The loop ---- */

static void handle(event *e) {
    while (e != NULL) {
        event *next = e->next; /* handling it may free its owner, or post it anew */

        if (e->kind == EV_CONN)
            on_conn(e->owner, e);
        else
            session_event(e->owner, e);
        e = next;
    }
}

static void on_signal(srv *s) {
    tn_log(TN_LOG_INFO, "server", "stops after the round under way; a second signal stops it at once");
    rounds_feed(s, TN_EV_STOP, NULL);
}

/* After the end: until everybody has said good-bye, or has been silent for long enough. */
static bool is_over(srv *s, int64_t now, bool something_came) {
    if (!s->finished)
        return false;
    if (s->linger_end == 0) {
        s->linger_end = now + LINGER_MAX_NS;
        s->linger_until = now + (s->stopped ? STOP_LINGER_NS : LINGER_NS);
    } else if (something_came && !s->stopped) {
        s->linger_until = now + LINGER_NS;
    }
    if (now >= s->linger_until || now >= s->linger_end)
        return true;
    return s->nsessions == 0 && (!s->absent || s->stopped);
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void loop(srv *s) {
    int signals = 0, seen = 0;
    int64_t now = tn_now(), wake;
    event *e;

    for (;;) {
        wake = earlier(rounds_tell(s, now), tn_round_next_tick(s->round));
        if (s->finished)
            wake = earlier(wake, s->linger_until);
        if (s->accept_at > now)
            wake = earlier(wake, s->accept_at);
        e = events_take(&s->events, wake, &signals);
        handle(e);
        update_flush(s);
        if (signals >= 2)
            return;
        if (signals != seen)
            on_signal(s);
        seen = signals;
        now = tn_now();
        if (now >= tn_round_next_tick(s->round))
            rounds_feed(s, TN_EV_TICK, NULL);
        accept_more(s, now);
        if (is_over(s, now, e != NULL))
            return;
    }
}

/* ---- Opening and closing ---- */

static tn_code open_all(srv *s, tn_err *err) {
    tn_code code;

    if (asprintf(&s->endpoint, "%s/endpoint", s->cfg->state) < 0) {
        s->endpoint = NULL;
        return tn_fail(err, TN_ENOMEM, "no memory for a path");
    }
    if ((code = state_lock(s, err)) != TN_OK)
        return code;
    unlink(s->endpoint); /* of a server that was killed */
    if ((code = listen_all(s, err)) != TN_OK || (code = load_tls(s, err)) != TN_OK ||
        (code = state_open(s, err)) != TN_OK || (code = dp_open(s, err)) != TN_OK ||
        (code = rounds_open(s, err)) != TN_OK)
        return code;
    return write_endpoint(s, err);
}

/* Stops listening and waits for the transport to let go of what it holds of ours. */
static void close_network(srv *s) {
    int64_t deadline = tn_deadline_after(tn_now(), CLOSE_NS);
    int signals = 0;

    s->acting = true; /* that connections close now changes nothing in the round */
    for (size_t i = 0; i < s->nlisteners; i++)
        tn_tx_listener_free(s->listener[i].tx);
    for (session *c = s->sessions; c != NULL; c = c->next)
        session_close(c);
    do {
        event *e = events_take(&s->events, s->sessions != NULL ? deadline : 0, &signals);

        for (event *next; e != NULL; e = next) {
            next = e->next;
            if (e->kind != EV_CONN)
                session_event(e->owner, e);
            else if (e->conn != NULL)
                tn_tx_conn_unref(e->conn);
        }
    } while (s->sessions != NULL && tn_now() < deadline);
}

/* A server has a descriptor for each client. */
static void raise_limits(const tn_srv_cfg *cfg) {
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return;
    if (r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur != RLIM_INFINITY && r.rlim_cur < (rlim_t)cfg->max_connections + 100)
        tn_log(TN_LOG_WARN, "server", "the system allows this process %llu open files, which is less than --max-connections "
               "%lld needs: raise the limit (ulimit -n)", (unsigned long long)r.rlim_cur, (long long)cfg->max_connections);
}

/* Whether an earlier run of this state has finished the job and told everybody. */
static bool was_released(srv *s) {
    tn_err err = TN_ERR_INIT;
    char *text = NULL, done[24];
    bool yes;

    snprintf(done, sizeof(done), "%" PRIu64, s->model->committed);
    if (journal_get(s->journal, "released", &text, &err) != TN_OK)
        tn_log(TN_LOG_WARN, "server", "%s", err.msg);
    yes = text != NULL && strcmp(text, done) == 0 && s->model->committed >= (uint64_t)s->cfg->rounds;
    free(text);
    return yes;
}

static void set_released(srv *s) {
    char done[24];
    tn_err err = TN_ERR_INIT;

    snprintf(done, sizeof(done), "%" PRIu64, s->model->committed);
    if (journal_set(s->journal, "released", done, &err) != TN_OK)
        tn_log(TN_LOG_WARN, "server", "%s", err.msg);
}

static tn_code outcome(srv *s, tn_err *err) {
    if (s->failed)
        return tn_fail(err, TN_EIO, "failed in round %" PRIu64 ": %s", s->model->committed + 1, s->failure);
    if (s->finished && !s->stopped) {
        set_released(s);
        return TN_OK;
    }
    tn_log(TN_LOG_INFO, "server", "stopped after round %" PRIu64 " of %lld; start it with the same --state to go on",
           s->model->committed, (long long)s->cfg->rounds);
    return s->stopped ? TN_OK : tn_fail(err, TN_ECANCELED, "stopped in the middle of round %" PRIu64,
                                        s->model->committed + 1);
}

tn_code tn_srv_run(const tn_srv_cfg *cfg, tn_err *err) {
    srv *s = calloc(1, sizeof(*s));
    watcher w = {.running = false};
    tn_code code;

    if (s == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a server");
    s->cfg = cfg;
    s->lock_fd = -1;
    s->sync = strcmp(cfg->durability, "fsync") == 0;
    s->agg = tn_agg_find(cfg->aggregator);
    events_init(&s->events);
    tn_layout_init(&s->layout);
    raise_limits(cfg);
    if ((code = tn_random_init(err)) != TN_OK || (code = watcher_start(&w, &s->events, err)) != TN_OK ||
        (code = open_all(s, err)) != TN_OK)
        goto out;
    if (was_released(s)) {
        tn_log(TN_LOG_INFO, "server", "all %lld rounds were done before; --rounds N makes more", (long long)cfg->rounds);
    } else {
        rounds_begin(s);
        accept_more(s, tn_now());
        loop(s);
        code = outcome(s, err);
    }
out:
    if (s->endpoint != NULL && s->lock_fd >= 0 && code != TN_EBUSY)
        unlink(s->endpoint);
    close_network(s);
    watcher_stop(&w);
    if (s->sessions != NULL) { /* the transport still holds some; the process ends in a moment */
        tn_log(TN_LOG_WARN, "server", "%zu connections did not close in time", s->nsessions);
        return code;
    }
    tn_round_free(s->round);
    tn_roster_release(&s->roster);
    dp_close(s);
    state_close(s);
    free(s->listener);
    free(s->endpoint);
    events_release(&s->events);
    free(s);
    return code;
}

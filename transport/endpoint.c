/* Listeners and dialers: what is the same for all schemes. One attempt at a time; `users` counts the attempts and refusals
 * whose callbacks have not returned, which is what free waits for. */
#include <stdlib.h>
#include <string.h>

#include "transport/internal.h"

typedef struct refusal {
    tni_task task;
    tni_ep *ep;
    bool attempt; /* ends the attempt under way; else one that never was */
    tn_tx_conn_fn fn;
    void *arg;
    tn_err err;
} refusal;

static void leave(tni_ep *ep) {
    pthread_mutex_lock(&ep->lock);
    if (--ep->users == 0)
        pthread_cond_broadcast(&ep->idle);
    pthread_mutex_unlock(&ep->lock);
}

static void refusal_tell(const refusal *r) {
    if (r->attempt) {
        tni_ep_done(r->ep, NULL, &r->err);
    } else {
        r->fn(r->arg, NULL, &r->err);
        leave(r->ep);
    }
}

static void refusal_run(void *arg) {
    refusal_tell(arg);
    free(arg);
}

/* By a task, never inside the call: the caller may hold a lock that its callback takes. */
static void refuse(const refusal *what) {
    refusal *r = malloc(sizeof(*r));

    if (r == NULL) { /* No memory to tell it later. */
        refusal_tell(what);
        return;
    }
    *r = *what;
    r->task = (tni_task){.run = refusal_run, .arg = r};
    tni_loop_post(&r->task);
}

static void expire(void *arg) {
    tni_ep *ep = arg;

    pthread_mutex_lock(&ep->lock);
    if (ep->busy && !ep->closed) {
        ep->timed_out = true;
        ep->ops->cancel(ep);
    }
    pthread_mutex_unlock(&ep->lock);
}

static void ep_close(tni_ep *ep) {
    if (tni_loop_forked())
        return;
    pthread_mutex_lock(&ep->lock);
    if (!ep->closed) {
        ep->closed = true;
        ep->ops->close(ep);
    }
    pthread_mutex_unlock(&ep->lock);
}

static void ep_release(tni_ep *ep) {
    ep->ops->release(ep);
    pthread_cond_destroy(&ep->idle);
    pthread_mutex_destroy(&ep->lock);
    tni_tls_unref(ep->tls);
    free(ep->url);
}

/* Returns false in a forked child, where what the parent opened is left as it is. */
static bool ep_finish(tni_ep *ep) {
    if (tni_loop_forked())
        return false;
    ep_close(ep);
    pthread_mutex_lock(&ep->lock);
    while (ep->users > 0)
        pthread_cond_wait(&ep->idle, &ep->lock);
    pthread_mutex_unlock(&ep->lock);
    ep_release(ep);
    return true;
}

static tn_code ep_open(tni_ep *ep, bool listener, const char *url, const tn_tx_opts *opts, tn_err *err) {
    const char *name = NULL;
    tn_code code = tni_loop_enter(err);

    if (code == TN_OK)
        code = tni_url_parse(&ep->at, url, err);
    if (code != TN_OK)
        return code;
    ep->ops = ep->at.kind == TNI_INPROC ? &tni_inproc_ops : &tni_nng_ops;
    ep->listener = listener;
    ep->timer = (tni_timer){.fire = expire, .arg = ep};
    pthread_mutex_init(&ep->lock, NULL);
    tn_cond_init(&ep->idle);
    ep->url = strdup(url);
    if (ep->url == NULL)
        code = tn_fail(err, TN_ENOMEM, "%s: out of memory", url);
    else if (!listener && (ep->at.kind == TNI_TCP || ep->at.kind == TNI_TLS) && ep->at.port == 0)
        code = tn_fail(err, TN_EINVAL, "%s: port 0 can be listened on, not dialled: give the port that the listener got", url);
    if (code == TN_OK && ep->at.kind == TNI_TLS) {
        if (!listener)
            name = opts != NULL && opts->server_name != NULL ? opts->server_name : ep->at.host;
        code = tni_tls_load(&ep->tls, opts, url, name, err);
    }
    if (code == TN_OK)
        code = ep->ops->open(ep, err);
    if (code != TN_OK)
        ep_release(ep);
    return code;
}

static void ep_start(tni_ep *ep, int64_t timeout_ns, tn_tx_conn_fn fn, void *arg) {
    refusal r = {.ep = ep, .fn = fn, .arg = arg};

    if (tni_loop_enter(&r.err) != TN_OK) {
        fn(arg, NULL, &r.err);
        return;
    }
    pthread_mutex_lock(&ep->lock);
    ep->users++;
    if (ep->closed) {
        tn_fail(&r.err, TN_ECANCELED, "%s was closed here", ep->url);
    } else if (ep->busy) {
        tn_fail(&r.err, TN_EBUSY, "%s: %s is under way already", ep->url, ep->listener ? "an accept" : "a dial");
    } else {
        r.attempt = true;
        ep->busy = true;
        ep->timed_out = false;
        ep->timeout_ns = timeout_ns;
        ep->fn = fn;
        ep->arg = arg;
        /* First the timer: if it expires at once it waits for this lock, and then there is something to cancel. */
        if (tni_timer_set(&ep->timer, tn_deadline_after(tn_now(), timeout_ns)) != TN_OK)
            tn_fail(&r.err, TN_ENOMEM, "%s: out of memory", ep->url);
        else
            ep->ops->begin(ep, &r.err);
    }
    pthread_mutex_unlock(&ep->lock);
    if (r.err.code != TN_OK)
        refuse(&r);
}

void tni_ep_done(tni_ep *ep, tn_tx_conn *conn, const tn_err *err) {
    tn_err e = TN_ERR_INIT;
    tn_tx_conn_fn fn;
    void *arg;

    tni_timer_cancel(&ep->timer);
    pthread_mutex_lock(&ep->lock);
    if (conn == NULL)
        e = *err;
    if (ep->closed)
        tn_fail(&e, TN_ECANCELED, "%s was closed here", ep->url);
    else if (conn == NULL && ep->timed_out)
        tn_fail(&e, TN_ETIMEDOUT, "%s: no %s within %.1f s", ep->url, ep->listener ? "connection came" : "connection",
                (double)ep->timeout_ns / 1e9);
    fn = ep->fn;
    arg = ep->arg;
    ep->busy = false;
    pthread_mutex_unlock(&ep->lock);
    if (e.code != TN_OK && conn != NULL) {
        tn_tx_conn_unref(conn);
        conn = NULL;
    }
    fn(arg, conn, &e);
    leave(ep);
}

tn_code tn_tx_listen(tn_tx_listener **out, const char *url, const tn_tx_opts *opts, tn_err *err) {
    tn_tx_listener *l = calloc(1, sizeof(*l));
    tn_code code = l != NULL ? ep_open(&l->ep, true, url, opts, err) : tn_fail(err, TN_ENOMEM, "listen: out of memory");

    if (code != TN_OK) {
        free(l);
        l = NULL;
    }
    *out = l;
    return code;
}

const char *tn_tx_listener_url(const tn_tx_listener *l) {
    return l->ep.url;
}

void tni_accept(tn_tx_listener *l, int64_t timeout_ns, tn_tx_conn_fn fn, void *arg) {
    ep_start(&l->ep, timeout_ns, fn, arg);
}

void tn_tx_accept(tn_tx_listener *l, tn_tx_conn_fn fn, void *arg) {
    ep_start(&l->ep, TN_FOREVER, fn, arg);
}

void tn_tx_listener_close(tn_tx_listener *l) {
    ep_close(&l->ep);
}

void tn_tx_listener_free(tn_tx_listener *l) {
    if (l != NULL && ep_finish(&l->ep))
        free(l);
}

tn_code tn_tx_dialer_new(tn_tx_dialer **out, const char *url, const tn_tx_opts *opts, tn_err *err) {
    tn_tx_dialer *d = calloc(1, sizeof(*d));
    tn_code code = d != NULL ? ep_open(&d->ep, false, url, opts, err) : tn_fail(err, TN_ENOMEM, "dial: out of memory");

    if (code != TN_OK) {
        free(d);
        d = NULL;
    }
    *out = d;
    return code;
}

void tn_tx_dial(tn_tx_dialer *d, int64_t timeout_ns, tn_tx_conn_fn fn, void *arg) {
    ep_start(&d->ep, timeout_ns, fn, arg);
}

void tn_tx_dialer_close(tn_tx_dialer *d) {
    ep_close(&d->ep);
}

void tn_tx_dialer_free(tn_tx_dialer *d) {
    if (d != NULL && ep_finish(&d->ep))
        free(d);
}

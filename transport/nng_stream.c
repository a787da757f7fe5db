/* tcp, tls+tcp and ipc by the streams of NNG 1.5.2.
 *
 * What must be known of them. A callback runs on a thread of NNG's and never inside the call. A send or receive may move
 * less than asked: it is repeated here. After its own close a stream may swallow an operation without ever ending it:
 * conn.c starts none then, and close and start exclude each other by the connection's lock. A TLS stream whose socket
 * failed while nothing was waiting swallows the next operation too: after each start the socket is looked at. Freeing waits
 * for callbacks, so it happens on the loop's thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "transport/internal.h"

static const tni_conn_ops conn_ops;

/* ---- errors -------------------------------------------------------------------------------------------------------- */

/* What listen and dial report alike. */
static tn_code common_fail(tn_err *err, int rv, const tni_ep *ep) {
    const char *verb = ep->listener ? "listen at" : "dial";

    if (rv == NNG_ENOMEM)
        return tn_fail(err, TN_ENOMEM, "%s %s: out of memory", verb, ep->url);
    if (rv == NNG_ENOFILES)
        return tn_fail(err, TN_EIO, "%s %s: too many open files: raise the limit (ulimit -n)", verb, ep->url);
    if ((rv & NNG_ESYSERR) != 0)
        return tn_fail_sys(err, TN_EIO, rv & ~NNG_ESYSERR, "%s %s", verb, ep->url);
    return tn_fail(err, TN_EIO, "%s %s: %s", verb, ep->url, nng_strerror(rv));
}

static tn_code listen_fail(tn_err *err, int rv, const tni_ep *ep) {
    bool ipc = ep->at.kind == TNI_IPC;

    switch (rv) {
    case NNG_EADDRINUSE:
        if (ipc)
            return tn_fail(err, TN_EBUSY, "%s is in use by another program: choose another path", ep->url);
        return tn_fail(err, TN_EBUSY, "%s is in use by another program: choose another port, or 0 to let the kernel pick",
                       ep->url);
    case NNG_EADDRINVAL:
    case NNG_EAGAIN:
        return tn_fail(err, TN_ENOTFOUND, "listen at %s: \"%s\" is no address of this machine (0.0.0.0 means all of them)",
                       ep->url, ep->at.host);
    case NNG_EPERM:
        return tn_fail(err, TN_EIO, ipc ? "listen at %s: the folder does not allow it" :
                       "listen at %s: not allowed; ports below 1024 need a privilege", ep->url);
    case NNG_ENOENT:
        return tn_fail(err, TN_ENOTFOUND, "listen at %s: the folder of the socket does not exist", ep->url);
    default:
        return common_fail(err, rv, ep);
    }
}

static tn_code dial_fail(tn_err *err, int rv, const tni_ep *ep) {
    switch (rv) {
    case NNG_ECONNREFUSED:
        return tn_fail(err, TN_EPEER, "nothing listens at %s (connection refused)", ep->url);
    case NNG_EADDRINVAL:
    case NNG_EAGAIN:
        if (ep->at.kind == TNI_IPC)
            return tn_fail(err, TN_EPEER, "dial %s: the listener has too many connections waiting", ep->url);
        return tn_fail(err, TN_ENOTFOUND, "dial %s: the name \"%s\" does not resolve", ep->url, ep->at.host);
    case NNG_EUNREACHABLE:
        tn_fail(err, TN_EPEER, "dial %s: no route to that host", ep->url);
        err->sys = EHOSTUNREACH; /* for those who tell a silent host from a refusal */
        return TN_EPEER;
    case NNG_ETIMEDOUT:
        return tn_fail(err, TN_ETIMEDOUT, "dial %s: no answer", ep->url);
    case NNG_EPERM:
        return tn_fail(err, TN_EIO, "dial %s: not allowed", ep->url);
    case NNG_ECONNRESET:
    case NNG_ECONNABORTED:
    case NNG_ECONNSHUT:
    case NNG_ECLOSED:
        return tn_fail(err, TN_EPEER, "dial %s: the other end closed the connection", ep->url);
    default:
        return common_fail(err, rv, ep);
    }
}

/* ---- connections --------------------------------------------------------------------------------------------------- */

typedef struct lane {
    tn_tx_conn *conn;
    int dir;
    nng_aio *aio;
} lane;

typedef struct nng_conn {
    nng_stream *stream;
    tni_tls *tls;
    atomic_bool proven; /* the TLS peer showed a certificate of our CA; always true without TLS */
    lane lane[2];
} nng_conn;

static tn_code tls_fail(tn_err *err, const nng_conn *nc) {
    bool verified = false;

    if (atomic_load(&nc->proven))
        return tn_fail(err, TN_EAUTH, "a TLS record was damaged or the other end broke off TLS");
    /* What we had found out about the peer's certificate when the handshake broke off tells whose doing it was. */
    if (nng_stream_get_bool(nc->stream, NNG_OPT_TLS_VERIFIED, &verified) == 0 && !verified) {
        if (nc->tls->name != NULL)
            return tn_fail(err, TN_EAUTH, "the other end's certificate was refused here: it must be issued by %s, be valid "
                           "now and carry the name \"%s\"", nc->tls->ca_path, nc->tls->name);
        return tn_fail(err, TN_EAUTH, "the other end's certificate was refused here: it must be issued by %s and be valid "
                       "now", nc->tls->ca_path);
    }
    return tn_fail(err, TN_EAUTH, "the other end refused the TLS handshake or does not speak TLS; is %s issued by its CA and "
                   "valid by its clock?", nc->tls->cert_path);
}

static tn_code stream_fail(tn_err *err, int rv, const nng_conn *nc) {
    switch (rv) {
    case NNG_ECRYPTO:
    case NNG_EPEERAUTH:
        return tls_fail(err, nc);
    case NNG_ECLOSED:
    case NNG_ECONNSHUT:
    case NNG_ECONNRESET:
    case NNG_ECONNABORTED:
    case NNG_ECONNREFUSED: /* TLS's close_notify */
        if (!atomic_load(&nc->proven))
            return tn_fail(err, TN_EPEER, "the other end closed the connection during the TLS handshake; is %s issued by its "
                           "CA and valid by its clock?", nc->tls->cert_path);
        return tn_fail(err, TN_EPEER, "the other end closed the connection");
    case NNG_ETIMEDOUT:
    case NNG_EUNREACHABLE:
        return tn_fail(err, TN_EPEER, "the other end no longer answers");
    case NNG_ENOMEM:
        return tn_fail(err, TN_ENOMEM, "out of memory");
    default:
        if ((rv & NNG_ESYSERR) != 0)
            return tn_fail_sys(err, TN_EIO, rv & ~NNG_ESYSERR, "the stream failed");
        return tn_fail(err, TN_EIO, "the stream failed: %s", nng_strerror(rv));
    }
}

static void conn_start(tn_tx_conn *c, int dir) {
    nng_conn *nc = c->impl;
    const tni_op *op = &c->op[dir];
    nng_iov iov[TN_TX_MAX_IOV];
    nng_sockaddr peer;

    for (int i = 0; i < op->n; i++)
        iov[i] = (nng_iov){.iov_buf = op->iov[i].p, .iov_len = op->iov[i].n};
    nng_aio_set_iov(nc->lane[dir].aio, (unsigned)op->n, iov); /* Cannot fail: NNG holds eight. */
    if (dir == TNI_SEND)
        nng_stream_send(nc->stream, nc->lane[dir].aio);
    else
        nng_stream_recv(nc->stream, nc->lane[dir].aio);
    /* A socket that has failed has no peer. NNG has then either ended the operation or forgotten it: closing ends it. */
    if (nc->tls != NULL && nng_stream_get_addr(nc->stream, NNG_OPT_REMADDR, &peer) != 0)
        nng_stream_close(nc->stream);
}

/* A TLS stream is believed only once it says that the peer was verified. */
static bool prove(nng_conn *nc, tn_err *err) {
    bool verified = false;

    if (atomic_load(&nc->proven))
        return true;
    if (nng_stream_get_bool(nc->stream, NNG_OPT_TLS_VERIFIED, &verified) != 0 || !verified) {
        tls_fail(err, nc);
        return false;
    }
    atomic_store(&nc->proven, true);
    return true;
}

static void lane_moved(void *arg) {
    lane *ln = arg;
    tn_tx_conn *c = ln->conn;
    nng_conn *nc = c->impl;
    tni_op *op = &c->op[ln->dir];
    int rv = nng_aio_result(ln->aio);
    size_t n = nng_aio_count(ln->aio);
    tn_err e = TN_ERR_INIT;

    if (rv == 0 && n == 0)
        rv = NNG_ECONNSHUT; /* How TLS reports an end without close_notify. */
    if (rv != 0) {
        stream_fail(&e, rv, nc);
    } else if (prove(nc, &e)) {
        tni_op_advance(op, n);
        if (op->n == 0) {
            tni_op_done(c, ln->dir, NULL);
            return;
        }
        pthread_mutex_lock(&c->lock);
        if (c->down) {
            stream_fail(&e, NNG_ECLOSED, nc);
        } else {
            conn_start(c, ln->dir);
        }
        pthread_mutex_unlock(&c->lock);
    }
    if (e.code != TN_OK)
        tni_op_done(c, ln->dir, &e);
}

static void conn_close(tn_tx_conn *c) {
    nng_conn *nc = c->impl;

    nng_stream_close(nc->stream);
}

static void nng_conn_free(nng_conn *nc) {
    nng_aio_free(nc->lane[TNI_SEND].aio);
    nng_aio_free(nc->lane[TNI_RECV].aio);
    nng_stream_free(nc->stream);
    tni_tls_unref(nc->tls);
    free(nc);
}

static void conn_release(tn_tx_conn *c) {
    nng_conn_free(c->impl);
}

static bool to_system(const nng_sockaddr *from, struct sockaddr_storage *to) {
    memset(to, 0, sizeof(*to));
    if (from->s_family == NNG_AF_INET) {
        struct sockaddr_in *in = (void *)to;

        in->sin_family = AF_INET;
        in->sin_port = from->s_in.sa_port;
        in->sin_addr.s_addr = from->s_in.sa_addr;
        return true;
    }
    if (from->s_family == NNG_AF_INET6) {
        struct sockaddr_in6 *in6 = (void *)to;

        in6->sin6_family = AF_INET6;
        in6->sin6_port = from->s_in6.sa_port;
        memcpy(&in6->sin6_addr, from->s_in6.sa_addr, sizeof(in6->sin6_addr));
        return true;
    }
    return false;
}

static tn_code conn_socket(tn_tx_conn *c, int *fd, tn_err *err) {
    const nng_conn *nc = c->impl;
    nng_sockaddr here, there;
    struct sockaddr_storage local, remote;

    if (nng_stream_get_addr(nc->stream, NNG_OPT_LOCADDR, &here) != 0 ||
        nng_stream_get_addr(nc->stream, NNG_OPT_REMADDR, &there) != 0)
        return tn_fail(err, TN_EPEER, "%s has no addresses any more", c->peer);
    if (!to_system(&here, &local) || !to_system(&there, &remote))
        return tn_fail(err, TN_EUNSUPPORTED, "%s is not a TCP connection", c->peer);
    *fd = tni_socket_find(&local, &remote);
    return *fd >= 0 ? TN_OK : tn_fail(err, TN_EPEER, "the socket of %s is gone", c->peer);
}

static const tni_conn_ops conn_ops = {
    .start = conn_start, .close = conn_close, .release = conn_release, .socket = conn_socket};

static void peer_name(char *out, size_t cap, nng_stream *s, const tni_ep *ep) {
    nng_sockaddr sa;
    char text[INET6_ADDRSTRLEN] = "?";

    if (ep->at.kind != TNI_IPC && nng_stream_get_addr(s, NNG_OPT_REMADDR, &sa) == 0) {
        if (sa.s_family == NNG_AF_INET) {
            inet_ntop(AF_INET, &sa.s_in.sa_addr, text, sizeof(text));
            snprintf(out, cap, "%s:%u", text, (unsigned)ntohs(sa.s_in.sa_port));
            return;
        }
        if (sa.s_family == NNG_AF_INET6) {
            inet_ntop(AF_INET6, sa.s_in6.sa_addr, text, sizeof(text));
            snprintf(out, cap, "[%s]:%u", text, (unsigned)ntohs(sa.s_in6.sa_port));
            return;
        }
    }
    snprintf(out, cap, "%s", ep->url);
}

/* Takes the stream, also on failure. */
static tn_tx_conn *conn_new(nng_stream *s, const tni_ep *ep) {
    nng_conn *nc = calloc(1, sizeof(*nc));
    tn_tx_conn *c = NULL;
    char peer[sizeof(c->peer)];

    if (nc == NULL) {
        nng_stream_free(s);
        return NULL;
    }
    nc->stream = s;
    nc->tls = tni_tls_ref(ep->tls);
    atomic_init(&nc->proven, ep->tls == NULL);
    peer_name(peer, sizeof(peer), s, ep);
    c = tni_conn_new(&conn_ops, nc, peer);
    if (c == NULL)
        goto fail;
    for (int dir = 0; dir < 2; dir++) {
        nc->lane[dir].conn = c;
        nc->lane[dir].dir = dir;
        if (nng_aio_alloc(&nc->lane[dir].aio, lane_moved, &nc->lane[dir]) != 0)
            goto fail;
    }
    return c;
fail:
    if (c != NULL)
        tni_conn_free(c);
    nng_conn_free(nc);
    return NULL;
}

/* ---- endpoints ----------------------------------------------------------------------------------------------------- */

typedef struct nng_ep {
    nng_aio *aio;
    nng_stream_listener *l;
    nng_stream_dialer *d;
} nng_ep;

/* NNG takes a dial that ended without a route for a success now and then: the socket then has no peer. It may also have been
 * reset meanwhile; another attempt tells. */
static bool dial_is_void(nng_stream *s, const tni_ep *ep) {
    nng_sockaddr peer;

    return ep->at.kind != TNI_IPC && nng_stream_get_addr(s, NNG_OPT_REMADDR, &peer) != 0;
}

static void ep_came(void *arg) {
    tni_ep *ep = arg;
    nng_ep *ne = ep->impl;
    int rv = nng_aio_result(ne->aio);
    tn_tx_conn *c = NULL;
    tn_err e = TN_ERR_INIT;

    if (rv == 0 && !ep->listener && dial_is_void(nng_aio_get_output(ne->aio, 0), ep)) {
        nng_stream_free(nng_aio_get_output(ne->aio, 0));
        tn_fail(&e, TN_EPEER, "dial %s: the connection broke at once", ep->url);
        e.sys = EHOSTUNREACH;
    } else if (rv == 0) {
        c = conn_new(nng_aio_get_output(ne->aio, 0), ep);
        if (c == NULL)
            rv = NNG_ENOMEM;
    }
    if (rv != 0)
        ep->listener ? listen_fail(&e, rv, ep) : dial_fail(&e, rv, ep);
    tni_ep_done(ep, c, &e);
}

/* The URL with the port that the kernel picked. */
static tn_code real_url(tni_ep *ep, tn_err *err) {
    nng_ep *ne = ep->impl;
    size_t cap = strlen(ep->url) + sizeof(":65535");
    int port = 0, rv;
    char *url;

    if (ep->at.kind == TNI_IPC || ep->at.port != 0)
        return TN_OK;
    rv = nng_stream_listener_get_int(ne->l, NNG_OPT_TCP_BOUND_PORT, &port);
    if (rv != 0)
        return listen_fail(err, rv, ep);
    url = malloc(cap);
    if (url == NULL)
        return listen_fail(err, NNG_ENOMEM, ep);
    snprintf(url, cap, ep->at.v6 ? "%s[%s]:%d" : "%s%s:%d", ep->at.kind == TNI_TLS ? "tls+tcp://" : "tcp://", ep->at.host,
             port);
    free(ep->url);
    ep->url = url;
    ep->at.port = (uint16_t)port;
    return TN_OK;
}

static tn_code ep_listen(tni_ep *ep, tn_err *err) {
    nng_ep *ne = ep->impl;
    int rv = nng_stream_listener_alloc(&ne->l, ep->url);

    if (rv == 0 && ep->at.kind == TNI_IPC)
        rv = nng_stream_listener_set_int(ne->l, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (rv == 0 && ep->at.kind != TNI_IPC)
        rv = nng_stream_listener_set_bool(ne->l, NNG_OPT_TCP_NODELAY, true);
    if (rv == 0 && ep->at.kind != TNI_IPC)
        rv = nng_stream_listener_set_bool(ne->l, NNG_OPT_TCP_KEEPALIVE, true);
    if (rv == 0)
        rv = nng_stream_listener_listen(ne->l);
    return rv == 0 ? real_url(ep, err) : listen_fail(err, rv, ep);
}

static tn_code ep_prepare_dial(tni_ep *ep, tn_err *err) {
    nng_ep *ne = ep->impl;
    int rv = nng_stream_dialer_alloc(&ne->d, ep->url);

    if (rv == 0 && ep->at.kind != TNI_IPC)
        rv = nng_stream_dialer_set_bool(ne->d, NNG_OPT_TCP_NODELAY, true);
    if (rv == 0 && ep->at.kind != TNI_IPC)
        rv = nng_stream_dialer_set_bool(ne->d, NNG_OPT_TCP_KEEPALIVE, true);
    return rv == 0 ? TN_OK : dial_fail(err, rv, ep);
}

static tn_code ep_open(tni_ep *ep, tn_err *err) {
    nng_ep *ne = calloc(1, sizeof(*ne));

    ep->impl = ne;
    if (ne == NULL || nng_aio_alloc(&ne->aio, ep_came, ep) != 0)
        return tn_fail(err, TN_ENOMEM, "%s: out of memory", ep->url);
    return ep->listener ? ep_listen(ep, err) : ep_prepare_dial(ep, err);
}

static tn_code ep_begin(tni_ep *ep, tn_err *err) {
    nng_ep *ne = ep->impl;

    if (ep->tls != NULL) {
        nng_tls_config *cfg = NULL;
        tn_code code = tni_tls_config(ep->tls, &cfg, err);
        int rv;

        if (code != TN_OK)
            return code;
        rv = ep->listener ? nng_stream_listener_set_ptr(ne->l, NNG_OPT_TLS_CONFIG, cfg)
                          : nng_stream_dialer_set_ptr(ne->d, NNG_OPT_TLS_CONFIG, cfg);
        nng_tls_config_free(cfg); /* Our reference. */
        if (rv != 0)
            return common_fail(err, rv, ep);
    }
    if (ep->listener)
        nng_stream_listener_accept(ne->l, ne->aio);
    else
        nng_stream_dialer_dial(ne->d, ne->aio);
    return TN_OK;
}

static void ep_cancel(tni_ep *ep) {
    nng_ep *ne = ep->impl;

    nng_aio_cancel(ne->aio);
}

static void ep_close(tni_ep *ep) {
    nng_ep *ne = ep->impl;

    if (ep->listener)
        nng_stream_listener_close(ne->l);
    else
        nng_stream_dialer_close(ne->d);
}

static void ep_release(tni_ep *ep) {
    nng_ep *ne = ep->impl;

    if (ne == NULL)
        return;
    nng_aio_free(ne->aio);
    if (ne->l != NULL)
        nng_stream_listener_free(ne->l);
    if (ne->d != NULL)
        nng_stream_dialer_free(ne->d);
    free(ne);
}

const tni_ep_ops tni_nng_ops = {
    .open = ep_open, .begin = ep_begin, .cancel = ep_cancel, .close = ep_close, .release = ep_release};

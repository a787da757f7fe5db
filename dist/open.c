/* Making the streams: listener, dials and hellos, until a connection is a link (link.c).
 *
 * Either side dials when it first needs the stream and sends a hello: the group's cookie, who it
 * is, which kind. The other side answers WELCOME, and the connection is the link. When both dial at once,
 * the higher rank's wins: it answers the lower one's hello with CROSSED, while the lower accepts the higher
 * one's whatever it has under way itself. A refused dial means that the rank is gone, as all listeners are
 * up before tn_pg_new returns. A rank that has failed answers FAIL, one that has left BYE. Who does not know
 * the cookie is closed. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "core/random.h"
#include "dist/internal.h"

#define HELLO_TIMEOUT (30 * TN_SECOND)
#define MAX_HELLOS 1024 /* connections that have not said who they are; more are closed */
#define MAX_ACCEPT_ERRORS 1000
#define SOCKET_NAME ((int)sizeof("tn-0123456789abcdef.sock") - 1)
#define SWEEP_AGE 60 /* seconds */

static void on_accept(void *arg, tn_tx_conn *conn, const tn_err *err);

static tni_hello *hello_new(tn_pg *g) {
    tni_hello *h = calloc(1, sizeof(*h));

    if (h != NULL) {
        h->g = g;
        h->next = g->hellos;
        g->hellos = h;
    }
    return h;
}

/* conn_too: the connection did not become a link. */
static void hello_free(tni_hello *h, bool conn_too) {
    tn_pg *g = h->g;
    tni_hello **at = &g->hellos;

    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    if (!h->dialled)
        g->nhellos--;
    if (conn_too && h->conn != NULL)
        tn_tx_conn_unref(h->conn);
    free(h);
}

/* Our own attempt has failed; the peer's may have succeeded meanwhile. */
static void dial_failed(tni_link *l, const tn_err *err) {
    if (l->state != TNI_DIALING)
        return;
    if (l->kind == TNI_WATCH && l->knocked != 0)
        tni_watch_failed(l, err);
    else if (l->kind == TNI_WATCH || !tni_watch_later(l, err))
        tni_link_broken(l, err, false);
}

static void on_reply_text(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tni_link *l = h->link;

    tni_io_end(g);
    if (err->code != TN_OK) {
        dial_failed(l, err);
    } else if (l->state == TNI_DIALING) {
        l->state = TNI_BROKEN;
        tn_fail(&l->err, TN_EPEER, "has failed before");
        tni_heard_fail(g, l->peer, l->kind, &h->in, h->body);
        tni_link_drop(l, false);
    }
    hello_free(h, true);
    tni_unlock(g);
}

static void on_reply(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tni_link *l = h->link;
    tn_iov piece = {h->body, (size_t)h->in.size};
    tn_err e;

    tni_io_end(g);
    if (err->code != TN_OK || g->stop) {
        dial_failed(l, err);
        hello_free(h, true);
    } else if (h->in.type == TNI_FAIL && h->in.size > 0) {
        tni_io_begin(g);
        tn_tx_recv(h->conn, &piece, 1, HELLO_TIMEOUT, on_reply_text, h);
    } else if (h->in.size != 0 ||
               (h->in.type != TNI_WELCOME && h->in.type != TNI_CROSSED && h->in.type != TNI_BYE)) {
        tn_fail(&e, TN_EPROTO, "it answered with a frame of type %u", h->in.type);
        dial_failed(l, &e);
        hello_free(h, true);
    } else if (l->state != TNI_DIALING) {
        hello_free(h, true); /* the peer's own connection came first */
    } else if (h->in.type == TNI_WELCOME) {
        tni_link_opened(l, h->conn, false);
        hello_free(h, false);
    } else if (h->in.type == TNI_CROSSED) {
        l->state = TNI_EXPECTED;
        hello_free(h, true);
    } else {
        tn_fail(&e, TN_EPEER, "it has left the group");
        dial_failed(l, &e);
        hello_free(h, true);
    }
    pthread_cond_broadcast(&g->wake);
    tni_unlock(g);
}

static void on_hello_sent(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;

    tni_io_end(g);
    if (err->code != TN_OK || g->stop) {
        dial_failed(h->link, err);
        hello_free(h, true);
    } else {
        tni_io_begin(g);
        tn_frame_recv(h->conn, &h->in, TNI_FAIL_TEXT, h->link->kind == TNI_WATCH ? TN_FOREVER : g->timeout_ns,
                      on_reply, h);
    }
    tni_unlock(g);
}

static void on_dialed(void *arg, tn_tx_conn *conn, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tn_iov cookie = {g->cookie, TNI_COOKIE_BYTES};

    tni_io_end(g);
    h->conn = conn;
    if (err->code != TN_OK || g->stop) {
        dial_failed(h->link, err);
        hello_free(h, true);
    } else {
        tni_watch_connected(h->link, conn);
        h->out = (tn_frame){.type = TNI_HELLO, .flags = (uint16_t)h->link->kind, .tag = (uint32_t)g->rank,
                            .size = TNI_COOKIE_BYTES};
        tni_io_begin(g);
        tn_frame_send(conn, &h->out, &cookie, 1, h->link->kind == TNI_WATCH ? TN_FOREVER : HELLO_TIMEOUT,
                      on_hello_sent, h);
    }
    tni_unlock(g);
}

void tni_link_dial(tni_link *l) {
    tn_pg *g = l->g;
    tni_hello *h;
    tn_err err;

    assert(l->state == TNI_CLOSED && l->peer != g->rank);
    if (g->stop || g->addr[l->peer] == NULL) /* not read yet: only a failure can be under way then */
        return;
    l->state = TNI_DIALING;
    if (l->dialer == NULL && tn_tx_dialer_new(&l->dialer, g->addr[l->peer], &g->tls, &err) != TN_OK) {
        tni_link_broken(l, &err, false);
        return;
    }
    h = hello_new(g);
    if (h == NULL) {
        tn_fail(&err, TN_ENOMEM, "no memory to connect");
        tni_link_broken(l, &err, false);
        return;
    }
    h->link = l;
    h->dialled = true;
    tni_io_begin(g);
    tn_tx_dial(l->dialer, tni_watch_patience(l), on_dialed, h);
}

static void on_hung_up(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;

    (void)err; /* the end of the stream, which is what was waited for */
    tni_io_end(g);
    hello_free(h, true);
    tni_unlock(g);
}

/* Who dialled closes when it has read the answer: a TLS stream that is closed here right behind it may lose it.
 * */
static void on_replied(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tn_iov piece = {h->body, 1};

    tni_io_end(g);
    if (h->out.type != TNI_CROSSED && (h->link->state == TNI_CLOSED || h->link->state == TNI_EXPECTED)) {
        h->link->state = TNI_LEFT;
        tn_fail(&h->link->err, TN_EPEER, "has been told that this rank is done");
        pthread_cond_broadcast(&g->wake);
    }
    if (err->code == TN_OK && !g->stop) {
        tni_io_begin(g);
        tn_tx_recv(h->conn, &piece, 1, HELLO_TIMEOUT, on_hung_up, h);
    } else {
        hello_free(h, true);
    }
    tni_unlock(g);
}

static void reply(tni_hello *h, tni_type type) {
    tn_pg *g = h->g;
    tn_iov text = {g->fail_text, 0};

    h->out = (tn_frame){.type = (uint8_t)type};
    if (type == TNI_FAIL) {
        text.n = strlen(g->fail_text);
        h->out.flags = (uint16_t)g->fail_code;
        h->out.tag = (uint32_t)g->culprit;
        h->out.id = g->fail_seq;
        h->out.size = text.n;
    }
    tni_io_begin(g);
    tn_frame_send(h->conn, &h->out, &text, text.n > 0 ? 1 : 0, HELLO_TIMEOUT, on_replied, h);
}

static void on_cookie(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tni_link *l = h->link;

    tni_io_end(g);
    if (err->code != TN_OK || g->stop || memcmp(h->body, g->cookie, TNI_COOKIE_BYTES) != 0) {
        if (err->code == TN_OK && !g->stop)
            tn_log(TN_LOG_WARN, "dist", "group %s: %s does not know the group's secret: closed", g->name,
                   tn_tx_conn_peer(h->conn));
        hello_free(h, true);
    } else if (l->kind == TNI_COLL && g->failed) {
        reply(h, TNI_FAIL);
    } else if (g->closing && l->state != TNI_DIALING && l->state != TNI_EXPECTED) {
        reply(h, TNI_BYE);
    } else if (l->state == TNI_CLOSED ||
               (l->peer > g->rank && (l->state == TNI_DIALING || l->state == TNI_EXPECTED))) {
        tni_link_opened(l, h->conn, true);
        hello_free(h, false);
    } else if (l->peer < g->rank && l->state == TNI_DIALING) {
        reply(h, TNI_CROSSED);
    } else {
        hello_free(h, true); /* a second stream of the same kind: nobody of ours makes one */
    }
    pthread_cond_broadcast(&g->wake);
    tni_unlock(g);
}

static void on_hello(void *arg, const tn_err *err) {
    tni_hello *h = arg;
    tn_pg *g = h->g;
    tn_iov cookie = {h->body, TNI_COOKIE_BYTES};

    tni_io_end(g);
    if (err->code != TN_OK || g->stop || h->in.type != TNI_HELLO || h->in.size != TNI_COOKIE_BYTES ||
        h->in.flags >= TNI_KINDS || h->in.tag >= (uint32_t)g->size || h->in.tag == (uint32_t)g->rank) {
        if (!g->stop)
            tn_log(err->code != TN_OK ? TN_LOG_DEBUG : TN_LOG_WARN, "dist",
                   "group %s: a stranger at %s was turned away", g->name, tn_tx_conn_peer(h->conn));
        hello_free(h, true);
    } else {
        h->link = tni_link_of(g, (int)h->in.tag, (tni_link_kind)h->in.flags);
        tni_io_begin(g);
        tn_tx_recv(h->conn, &cookie, 1, HELLO_TIMEOUT, on_cookie, h);
    }
    tni_unlock(g);
}

void tni_accept_start(tn_pg *g) {
    tni_io_begin(g);
    tn_tx_accept(g->listener, on_accept, g);
}

static void on_accept(void *arg, tn_tx_conn *conn, const tn_err *err) {
    tn_pg *g = arg;
    tni_hello *h = NULL;

    tni_io_end(g);
    if (err->code == TN_OK) {
        g->accept_errors = 0;
        if (!g->stop && g->nhellos < MAX_HELLOS)
            h = hello_new(g);
        if (h == NULL) {
            tn_tx_conn_unref(conn);
        } else {
            h->conn = conn;
            g->nhellos++;
            tni_io_begin(g);
            tn_frame_recv(conn, &h->in, TNI_COOKIE_BYTES, HELLO_TIMEOUT, on_hello, h);
        }
    } else if (!g->stop && ++g->accept_errors == MAX_ACCEPT_ERRORS) {
        tn_log(TN_LOG_ERROR, "dist", "group %s: no more connections are accepted: %s", g->name, err->msg);
    }
    if (!g->stop && err->code != TN_ECANCELED && g->accept_errors < MAX_ACCEPT_ERRORS)
        tni_accept_start(g);
    tni_unlock(g);
}

/* ---- All of them ---- */

/* What processes left that were killed with all the others: sockets in `dir` that nobody listens at any more.
 * Only old ones, as a young one may be about to be listened at. */
static void sweep(const char *dir) {
    DIR *d = opendir(dir);
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        struct stat st;
        int fd;

        if (strlen(e->d_name) != SOCKET_NAME || strncmp(e->d_name, "tn-", 3) != 0)
            continue;
        snprintf(at.sun_path, sizeof(at.sun_path), "%s/%.*s", dir, SOCKET_NAME, e->d_name);
        if (lstat(at.sun_path, &st) != 0 || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid() ||
            time(NULL) - st.st_mtime < SWEEP_AGE)
            continue;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0 && errno == ECONNREFUSED)
            (void)unlink(at.sun_path);
        if (fd >= 0)
            close(fd);
    }
    if (d != NULL)
        closedir(d);
}

tn_code tni_listen(tn_tx_listener **out, char *path, size_t cap, const tn_pg *g, tn_err *err) {
    const char *transport = g->transport != NULL ? g->transport : "tcp";
    const char *host = g->host != NULL ? g->host : "127.0.0.1";
    bool six = strchr(host, ':') != NULL && host[0] != '[';
    char url[300];
    uint64_t r;

    path[0] = '\0';
    tn_random_bytes(&r, sizeof(r));
    if (strcmp(transport, "tcp") == 0 || strcmp(transport, "tls") == 0) {
        snprintf(url, sizeof(url), "%s://%s%.250s%s:0", transport[1] == 'c' ? "tcp" : "tls+tcp", six ? "[" : "",
                 host, six ? "]" : "");
    } else if (strcmp(transport, "ipc") == 0) {
        const char *dir = getenv("TMPDIR");

        if (dir == NULL || dir[0] != '/' || strlen(dir) > 60)
            dir = "/tmp";
        sweep(dir);
        snprintf(path, cap, "%s/tn-%016llx.sock", dir, (unsigned long long)r);
        snprintf(url, sizeof(url), "ipc://%s", path);
    } else if (strcmp(transport, "inproc") == 0) {
        snprintf(url, sizeof(url), "inproc://tn-%016llx", (unsigned long long)r);
    } else {
        return tn_fail(err, TN_EINVAL, "transport '%.40s' is not known; tcp, tls, ipc and inproc are",
                       transport);
    }
    return tn_tx_listen(out, url, &g->tls, err);
}

void tni_links_close(tn_pg *g) {
    tni_hello *h;
    int i;

    if (g->listener != NULL)
        tn_tx_listener_close(g->listener);
    for (h = g->hellos; h != NULL; h = h->next)
        if (h->conn != NULL)
            tn_tx_close(h->conn);
    for (i = 0; g->links != NULL && i < g->size * TNI_KINDS; i++) {
        if (g->links[i].dialer != NULL)
            tn_tx_dialer_close(g->links[i].dialer);
        if (g->links[i].conn != NULL)
            tn_tx_close(g->links[i].conn);
    }
}

void tni_links_release(tn_pg *g) {
    int i;

    for (i = 0; g->links != NULL && i < g->size * TNI_KINDS; i++) {
        tni_link *l = &g->links[i];

        if (l->kind == TNI_COLL && l->state == TNI_BROKEN && g->addr[l->peer] != NULL &&
            strncmp(g->addr[l->peer], "ipc://", 6) == 0)
            (void)unlink(g->addr[l->peer] + 6); /* a process that was killed could not */
        if (l->dialer != NULL)
            tn_tx_dialer_free(l->dialer);
        if (l->conn != NULL)
            tn_tx_conn_unref(l->conn);
        tni_link_drop(l, false);
        free(l->drain);
    }
    free(g->links);
    if (g->listener != NULL)
        tn_tx_listener_free(g->listener);
    if (g->socket_path[0] != '\0')
        (void)unlink(g->socket_path);
}

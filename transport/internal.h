/* Shared between the files of transport only.
 *
 * Who does what: endpoint.c (listeners and dialers) and conn.c (connections) hold everything that is the same for all
 * schemes: states, refusals, deadlines, errors, references. A scheme (nng_stream.c, inproc.c) is one table of operations
 * that only moves bytes. loop.c is the one thread of ours: deadlines, callbacks that nobody else may run, and the release of
 * what must not be released inside a callback. NNG's threads run the other callbacks.
 *
 * Locks: an endpoint's or a connection's, then a scheme's own, then the loop's. None is held across a callback. NNG never
 * calls back inside a call of ours, so its functions may be called with a lock held. */
#ifndef TN_TRANSPORT_INTERNAL_H
#define TN_TRANSPORT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/transport.h"

struct nng_tls_config;

/* ---- loop.c -------------------------------------------------------------------------------------------------------- */

/* Starts the thread if need be and checks that this process is the one that started it: TN_EUNSUPPORTED in a forked child. */
tn_code tni_loop_enter(tn_err *err);
/* True in a child of the process that called tni_loop_enter: nothing of ours may be touched there. */
bool tni_loop_forked(void);

/* A call to come on the loop's thread, in the order of posting. The owner's memory, until it runs. */
typedef struct tni_task {
    struct tni_task *next;
    void (*run)(void *arg);
    void *arg;
} tni_task;
void tni_loop_post(tni_task *t);

/* fire(arg) runs on the loop's thread, with no lock held, when the deadline has passed. set: the timer must be idle;
 * TN_FOREVER sets nothing; TN_ENOMEM. cancel: afterwards it does not run and will not, so call it without any lock that
 * fire takes. */
typedef struct tni_timer {
    int64_t deadline;
    size_t pos; /* its place in the heap, from 1; 0 when idle */
    void (*fire)(void *arg);
    void *arg;
} tni_timer;
tn_code tni_timer_set(tni_timer *t, int64_t deadline);
void tni_timer_cancel(tni_timer *t);

/* ---- url.c --------------------------------------------------------------------------------------------------------- */

typedef enum tni_kind { TNI_TCP, TNI_TLS, TNI_IPC, TNI_INPROC } tni_kind;

typedef struct tni_url {
    tni_kind kind;
    bool v6;        /* the host is an IPv6 address */
    uint16_t port;  /* tcp and tls */
    char host[256]; /* tcp and tls: without brackets; else the path or name */
} tni_url;
tn_code tni_url_parse(tni_url *u, const char *url, tn_err *err);

/* ---- endpoints (endpoint.c) ---------------------------------------------------------------------------------------- */

typedef struct tni_ep tni_ep;

typedef struct tni_ep_ops {
    /* Listener: binds, and sets ep->url to the real one. Dialer: prepares. On failure the endpoint is still to be released. */
    tn_code (*open)(tni_ep *ep, tn_err *err);
    /* Begins an accept or a dial; it ends by tni_ep_done, never inside this call, or not at all after a failure. Locked. */
    tn_code (*begin)(tni_ep *ep, tn_err *err);
    /* Asks what was begun to end soon, in any way; nothing is lost if it has ended already. Locked. */
    void (*cancel)(tni_ep *ep);
    /* Refuses all that is to come and cancels. Locked, once. */
    void (*close)(tni_ep *ep);
    /* Closed and nothing under way; may block. Not locked. */
    void (*release)(tni_ep *ep);
} tni_ep_ops;

typedef struct tni_tls {
    atomic_int refs;
    char *cert, *key, *ca;       /* the PEM texts */
    char *cert_path, *ca_path;   /* for messages */
    char *name;                  /* whom we expect at the other end; NULL for a listener, which takes all that the CA names */
} tni_tls;

struct tni_ep {
    const tni_ep_ops *ops;
    char *url;
    tni_url at;
    bool listener;
    tni_tls *tls; /* NULL: a scheme without */
    void *impl; /* the scheme's */

    pthread_mutex_t lock;
    pthread_cond_t idle; /* users == 0 */
    int users;           /* operations and refusals whose callback has not returned */
    bool busy, closed, timed_out;
    int64_t timeout_ns;
    tni_timer timer;
    tn_tx_conn_fn fn;
    void *arg;
};
struct tn_tx_listener {
    tni_ep ep;
};
struct tn_tx_dialer {
    tni_ep ep;
};

/* The attempt has ended; called without locks, by whatever thread. conn goes to the user; NULL with err. */
void tni_ep_done(tni_ep *ep, tn_tx_conn *conn, const tn_err *err);
/* tn_tx_accept with a time-out. */
void tni_accept(tn_tx_listener *l, int64_t timeout_ns, tn_tx_conn_fn fn, void *arg);

/* ---- connections (conn.c) ------------------------------------------------------------------------------------------ */

enum { TNI_SEND, TNI_RECV };

typedef struct tni_conn_ops {
    /* Moves op[dir].iov[0..n-1], none of them empty, and ends by tni_op_done, never inside this call. From here to there
     * iov and n belong to the scheme, which leaves in them what was not moved. Locked, and never after close. */
    void (*start)(tn_tx_conn *c, int dir);
    /* Ends what is under way soon. Locked, once. */
    void (*close)(tn_tx_conn *c);
    /* Closed and nothing under way; may block; on the loop's thread. Frees what the scheme holds, not c. */
    void (*release)(tn_tx_conn *c);
    /* The TCP socket's descriptor; TN_EUNSUPPORTED without one, and NULL for a scheme that never has one. Locked, and never
     * after close. */
    tn_code (*socket)(tn_tx_conn *c, int *fd, tn_err *err);
} tni_conn_ops;

typedef struct tni_op {
    bool busy, timed_out;
    int n;
    tn_iov iov[TN_TX_MAX_IOV];
    uint64_t total; /* bytes asked for */
    int64_t began, timeout_ns;
    tn_tx_done fn;
    void *arg;
    tni_timer timer;
    tni_task task; /* the scheme's, or for an operation without bytes */

    bool frame; /* a frame header is in front */
    uint8_t header[TN_FRAME_BYTES];
    tn_frame *frame_out; /* receive */
    uint64_t max_size;
} tni_op;

struct tn_tx_conn {
    const tni_conn_ops *ops;
    void *impl;
    atomic_int refs;
    pthread_mutex_t lock;
    bool closed;   /* by the user */
    bool down;     /* ops->close was called */
    tn_err failed; /* the first failure, which every later operation gets */
    tni_op op[2];
    tni_task reap;
    char peer[128];
};

/* A connection with one reference and without a scheme's part; NULL when out of memory. */
tn_tx_conn *tni_conn_new(const tni_conn_ops *ops, void *impl, const char *peer);
/* Frees the connection alone; for one that nobody has seen. */
void tni_conn_free(tn_tx_conn *c);
/* The operation has ended, err NULL for success; called without locks. */
void tni_op_done(tn_tx_conn *c, int dir, const tn_err *err);
/* Takes n bytes off the front of what is left. */
void tni_op_advance(tni_op *op, size_t n);
void tni_op_start(tn_tx_conn *c, int dir, const tn_frame *send, tn_frame *recv, uint64_t max_size, const tn_iov *iov,
                  int n, int64_t timeout_ns, tn_tx_done fn, void *arg);

/* ---- socket.c ------------------------------------------------------------------------------------------------------ */

struct sockaddr_storage;
/* This process's descriptor of the TCP socket between two addresses; -1 when there is none. */
int tni_socket_find(const struct sockaddr_storage *local, const struct sockaddr_storage *remote);

/* ---- frame.c ------------------------------------------------------------------------------------------------------- */

void tni_frame_encode(uint8_t to[TN_FRAME_BYTES], const tn_frame *f);
tn_code tni_frame_decode(tn_frame *f, const uint8_t from[TN_FRAME_BYTES], uint64_t max_size, tn_err *err);

/* ---- schemes ------------------------------------------------------------------------------------------------------- */

extern const tni_ep_ops tni_nng_ops;
extern const tni_ep_ops tni_inproc_ops;

/* ---- tls.c --------------------------------------------------------------------------------------------------------- */

/* Reads and checks the files; one reference. name: NULL for a listener. url is for messages. */
tn_code tni_tls_load(tni_tls **out, const tn_tx_opts *opts, const char *url, const char *name, tn_err *err);
tni_tls *tni_tls_ref(tni_tls *t);
void tni_tls_unref(tni_tls *t); /* NULL is fine */
/* A configuration of NNG's for one connection. */
tn_code tni_tls_config(const tni_tls *t, struct nng_tls_config **out, tn_err *err);

/* ---- cert.c -------------------------------------------------------------------------------------------------------- */

/* tn_cert_issue with a validity of its own (seconds since 1970), for tests of what has expired. */
tn_code tni_cert_issue(const char *dir, const tn_cert_request *req, int64_t not_before, int64_t not_after,
                       const char *cert_path, const char *key_path, uint8_t *sha256, tn_err *err);

#endif

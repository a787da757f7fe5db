/* The federated channel over the transport: the client library (for Python and for programs in C) and the server's sessions. */
#ifndef TN_FED_NET_H
#define TN_FED_NET_H

#include "fed/fed.h"
#include "transport/transport.h"

/* ---- Client: blocking calls for one thread, with cancellation from others. One connection; when it breaks, the call under way
 * reconnects with back-off (0.1 s doubling to 5 s, with jitter) and goes on where it was: a download or an upload continues at
 * the byte where it broke. ---- */
typedef struct tn_client tn_client;
typedef struct tn_client_cfg {
    const char *url;       /* tls+tcp://HOST:PORT, tcp:// (loopback, or insecure), ipc:// */
    tn_tx_opts tls;
    const char *identity;  /* path of the Ed25519 identity; required with tls */
    const char *server_key;/* hex of the server's identity that must answer, NULL: not pinned (the TLS certificate is the proof) */
    const char *client_id; /* without tls: the id that it asks for; NULL: random */
    bool insecure;         /* allows plain tcp to other hosts */
    int64_t connect_timeout_ns; /* how long to keep trying to reach the server; 0: 60 s. It says once and then every 30 s that it waits */
    /* Sentences for persons ("waiting for 2 clients, 1 is here"), may be NULL; on the calling thread. */
    void (*notice)(void *arg, const char *text);
    void *arg;
} tn_client_cfg;

/* What a client reports of its update. */
typedef struct tn_report {
    uint64_t examples;
    size_t nmetrics;
    const tn_metric *metric;
} tn_report;

TN_API tn_code tn_client_new(tn_client **out, const tn_client_cfg *cfg, tn_err *err);
/* Connects and proves identities. `layout` (sealed; NULL: take the server's) is compared with the server's: the first difference is named. */
TN_API tn_code tn_client_join(tn_client *c, const tn_layout *layout, tn_err *err);
/* After join. Views valid until free. */
TN_API const tn_layout *tn_client_layout(const tn_client *c);
TN_API const tn_msg_welcome *tn_client_welcome(const tn_client *c);
TN_API uint64_t tn_client_bytes_sent(const tn_client *c);
TN_API uint64_t tn_client_bytes_received(const tn_client *c);
/* Waits for something to do, at most timeout_ns (TN_ETIMEDOUT: call again, nothing is lost). */
TN_API tn_code tn_client_next(tn_client *c, tn_msg_task *task, int64_t timeout_ns, tn_err *err);
/* The task's model into a block of layout->nbytes bytes; its hash is checked. */
TN_API tn_code tn_client_model(tn_client *c, const tn_msg_task *task, void *block, tn_err *err);
/* Sends a delta and waits for the acknowledgement. TN_OK: durable and counted once. TN_EROUND, TN_ENONFINITE, ...: refused by the server, with its reason;
 * the client may go on with tn_client_next. TN_EPEER, TN_ETIMEDOUT: the server could not be reached any more. */
TN_API tn_code tn_client_submit(tn_client *c, const tn_msg_task *task, const void *delta, const tn_report *report, tn_err *err);
/* From any thread or a signal-driven one: the call under way and later ones return TN_ECANCELED. */
TN_API void tn_client_cancel(tn_client *c);
/* Says good-bye if connected (bounded by 1 s) and frees. */
TN_API void tn_client_free(tn_client *c);

#endif

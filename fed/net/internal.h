/* Shared between the files of fed/net; other modules include fed/net/net.h. */
#ifndef TN_FED_NET_INTERNAL_H
#define TN_FED_NET_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fed/net/net.h"

/* ---- link.c: one connection of a client at a time, with waits that another thread can cancel ----
 *
 * The transport completes on I/O threads; the client's thread waits here. A header that is awaited stays
 * armed when the wait times out, so that waiting in slices loses nothing. */

#define TNI_PROGRESS_NS (30 * TN_SECOND) /* one frame has to move within that */

typedef struct tni_chan tni_chan;
typedef struct tni_op { /* an operation of the transport under way */
    tni_chan *link;
    bool busy, done;
    tn_err err;
} tni_op;

struct tni_chan {
    pthread_mutex_t mutex; /* guards what follows up to `in`; never held across a call into the transport */
    pthread_cond_t wake;
    bool cancelled;
    tni_op dial, send, recv;
    tn_tx_conn *dialed; /* what the dial brought */
    tn_tx_conn *conn;   /* written by the client's thread only */

    tn_frame in; /* the transport writes it while recv is busy */
    tn_tx_dialer *dialer;
    _Atomic uint64_t sent, received;
};

tn_code tni_chan_init(tni_chan *l, const char *url, const tn_tx_opts *opts, tn_err *err);
void tni_chan_release(tni_chan *l); /* no call may be under way */
/* From any thread; everything fails with TN_ECANCELED from then on. */
void tni_chan_cancel(tni_chan *l);
bool tni_chan_cancelled(tni_chan *l);
/* Sleeps; TN_ECANCELED when cancelled before it is over. */
tn_code tni_chan_pause(tni_chan *l, int64_t until, tn_err *err);
tn_code tni_chan_dial(tni_chan *l, int64_t timeout_ns, tn_err *err);
void tni_chan_drop(tni_chan *l); /* closes the connection, if any */
/* Fills in f->size from the pieces. */
tn_code tni_chan_send(tni_chan *l, tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_err *err);
/* Waits for the next header. TN_ETIMEDOUT at the deadline leaves it armed: call again. After any other
 * failure the connection is of no more use. */
tn_code tni_chan_header(tni_chan *l, int64_t deadline, tn_frame *out, tn_err *err);
tn_code tni_chan_body(tni_chan *l, void *p, size_t n, tn_err *err);

#endif

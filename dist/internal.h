/* What the files of dist share: the group, its links to the other ranks, operations and messages.
 *
 *   store_file.c store_tcp.c   the two stores
 *   group.c                    making and freeing a group, failure, the progress thread
 *   open.c                     streams until they are links: accept, dial, hello
 *   link.c                     links: queues of messages, the reader
 *   vote.c shrink.c            the group of those who are left
 *   watch.c                    whether the hosts of those who are waited for still answer
 *   calls.c                    the public collectives: validation and queueing
 *   collectives.c              the algorithms, straight-line code on the progress thread
 *   check.c                    a look at what all are about to do, first
 *   p2p.c                      send and receive: a rendezvous driven by the reader
 *
 * Locks. One mutex per group guards everything in it. Callbacks of the transport take it; nothing that calls
 * user code runs under it: finished works are put on g->finished and completed by tni_unlock, after the lock
 * is let go. The registry of groups (for cancellation) has a lock of its own, taken before a group's, never
 * after. */
#ifndef TN_DIST_INTERNAL_H
#define TN_DIST_INTERNAL_H

#include <pthread.h>

#include "dist/dist.h"

#define TNI_COOKIE_BYTES 16
#define TNI_FAIL_TEXT 400
#define TNI_NAME_MAX 64
#define TNI_DEPTH 2 /* segments in flight per pair and phase */

/* Types of frames on a group's streams; docs/dist.md describes each. Values are part of the wire protocol. */
typedef enum tni_type {
    TNI_HELLO = 1,
    TNI_WELCOME = 2,
    TNI_CROSSED = 3, /* "I am dialling you myself": answer to a hello */
    TNI_FAIL = 4,
    TNI_BYE = 5,
    TNI_RTS = 6,
    TNI_CTS = 7,
    TNI_DATA = 8,
    TNI_WITHDRAW = 9, /* the sender of an RTS gives up */
    TNI_DECLINE = 10, /* the receiver of an RTS refuses it */
    TNI_ALLREDUCE = 16,
    TNI_BROADCAST = 17,
    TNI_REDUCE = 18,
    TNI_ALLGATHER = 19,
    TNI_REDUCE_SCATTER = 20,
    TNI_GATHER = 21,
    TNI_SCATTER = 22,
    TNI_ALLTOALL = 23,
    TNI_BARRIER = 24,
    TNI_REFUSED = 25, /* the caller's arguments were refused; takes its place in the sequence */
    TNI_CHECK = 26,   /* what the sender is about to do */
    TNI_JOIN = 32, /* from here on: the vote of a shrinking group, vote.c */
    TNI_PREPARE = 33,
    TNI_PROMISE = 34,
    TNI_ACCEPT = 35,
    TNI_ACCEPTED = 36,
    TNI_NACK = 37,
    TNI_DECIDED = 38,
} tni_type;

/* TNI_WATCH carries nothing but its hello: watch.c. TNI_VOTE is for shrinking: vote.c. */
typedef enum tni_link_kind { TNI_COLL, TNI_P2P, TNI_WATCH, TNI_VOTE, TNI_KINDS } tni_link_kind;

typedef struct tni_link tni_link;
typedef struct tni_hello tni_hello;
typedef struct tni_op tni_op;
typedef struct tni_p2p tni_p2p;
typedef struct tni_rts tni_rts;

/* One message to send, or expected. Queued on a link; the memory of the body is borrowed until it is done. */
typedef struct tni_msg {
    struct tni_msg *next;
    tn_frame frame;
    void *data;
    int *pending; /* counts down when done; the progress thread is woken at 0. May be NULL */
    bool control; /* FAIL, BYE and the like: survives the failure of the group */
    void (*fn)(tn_pg *g, struct tni_msg *m, const tn_err *err); /* p2p: called under the lock. May be NULL */
    void *arg;
} tni_msg;

typedef enum tni_link_state {
    TNI_CLOSED,  /* never used */
    TNI_DIALING, /* our hello is under way */
    TNI_EXPECTED, /* crossed, so the peer's hello is under way; or to be dialled again */
    TNI_OPEN,
    TNI_LEFT,   /* the peer said BYE, or both did */
    TNI_BROKEN, /* err says why */
} tni_link_state;

struct tni_link {
    tn_pg *g;
    int peer;
    tni_link_kind kind;
    tni_link_state state;
    tn_err err;
    tn_tx_dialer *dialer;
    tn_tx_conn *conn;
    /* out: the head is being sent while `sending` */
    tni_msg *out_head, *out_tail;
    bool sending;
    /* in: one header receive is always outstanding on an open link, unless a header is held or a body is
     * under way */
    tn_frame in;
    bool held;     /* `in` waits for the next expected message (TNI_COLL) */
    bool reading;  /* a receive is outstanding */
    tni_msg *body; /* the message whose body is being received */
    tni_msg *expect_head, *expect_tail;
    uint64_t seen; /* sequence number of the last collective frame */
    uint64_t drain_left;
    uint8_t *drain; /* where unwanted bodies go */
    uint8_t text[TNI_FAIL_TEXT];
    bool fail_in, bye_in, bye_out;
    tni_msg welcome, fail, bye;
    int64_t knocked;  /* since when the peer's host has not answered; 0: it has, or was not asked */
    int64_t tried;    /* TNI_WATCH: the last dial */
    bool answered;    /* TNI_WATCH: a dial before this one got an answer */
    size_t rts_count; /* unmatched RTS of this peer */
    uint64_t rts_size; /* the body of an RTS */
    tni_msg rts_msg;   /* receives the body of an RTS, or of a vote */
};

/* A connection that is not a link yet. */
struct tni_hello {
    tni_hello *next;
    tn_pg *g;
    tni_link *link; /* dialled: the link it is for; accepted: set once the hello was read */
    tn_tx_conn *conn;
    bool dialled;
    tn_frame in, out;
    uint8_t body[TNI_FAIL_TEXT];
};

/* A work that waits to be completed outside the lock. Made with the operation, so that finishing cannot
 * fail. */
typedef struct tni_finished {
    struct tni_finished *next;
    tn_work *work;
    tn_err err;
} tni_finished;

struct tni_op {
    tni_op *next;
    uint64_t id; /* unique in the process, for cancellation */
    tni_type kind;
    uint64_t seq;
    tn_op redop;
    int root;
    tn_tensor *in, *out; /* copies of the views, in one block with the operation */
    size_t nin, nout;
    double weight;
    int64_t timeout_ns;
    int64_t started, deadline;
    tni_finished *fin; /* NULL for TNI_REFUSED */
};

typedef enum tni_p2p_state {
    TNI_P_WAITING, /* send: RTS queued or sent; receive: not matched */
    TNI_P_MATCHED, /* receive: CTS queued or sent, data to come */
    TNI_P_MOVING,  /* send: data queued or under way; receive: the body is being received */
    TNI_P_UNPACK,  /* receive: on the todo list */
} tni_p2p_state;

struct tni_p2p {
    tni_p2p *next;
    uint64_t id;
    bool send;
    int peer; /* -1: any source, until matched */
    uint32_t tag;
    tni_p2p_state state;
    uint64_t msg_id; /* the sender's id */
    tn_tensor view;
    void *data;
    void *staging;
    uint64_t bytes, wire_size; /* wire_size: little-endian, the body of the RTS */
    int *source;
    int64_t issued, deadline;
    tn_err err; /* set when the operation has failed while the transport still holds its memory */
    tni_finished *fin; /* NULL: the work is done, and only messages keep this here */
    int holds;         /* messages of ours that are queued or under way */
    tni_msg talk, msg; /* RTS, CTS, WITHDRAW or DECLINE; DATA */
};

struct tni_rts {
    tni_rts *next;
    int peer;
    uint32_t tag;
    uint8_t dtype;
    uint64_t id, size;
};

struct tn_pg {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* for the progress thread and tn_pg_free */
    tn_pg *registry_next;
    char name[TNI_NAME_MAX];
    int rank, size;
    int64_t timeout_ns;
    size_t segment, small_max;
    bool check;
    tn_tx_opts tls;
    const char *transport, *host; /* as given */
    char *owned[6]; /* the strings of tls, and these */
    tn_tx_listener *listener;
    char socket_path[108]; /* of ipc, to be unlinked */
    uint8_t cookie[TNI_COOKIE_BYTES];
    char **addr;     /* [size] */
    tni_link *links; /* [size * TNI_KINDS] */
    int inflight;    /* operations of the transport whose callback has not returned */
    tni_hello *hellos;
    int nhellos, accept_errors;

    pthread_t thread;
    bool thread_on;
    bool aborted;
    bool leaving; /* tn_pg_free has begun: nothing new is taken */
    bool closing; /* and all operations are over: links say BYE */
    bool stop;    /* and the links are being closed */
    tni_op *queue, *queue_tail, *running;
    uint64_t seq;

    struct tni_vote *vote;

    bool failed; /* no more collectives */
    tn_code fail_code;
    int culprit;  /* the rank at fault; -1: nobody in particular */
    int reporter; /* the rank that told us; -1: found here */
    uint64_t fail_seq;
    char fail_text[TNI_FAIL_TEXT];

    tni_p2p *p2p, *p2p_tail; /* all under way, in order of issue */
    int64_t p2p_deadline;    /* the earliest, or earlier */
    int64_t watch_at;        /* when to look after those who are waited for */
    tni_rts *rts, *rts_tail; /* unmatched, in order of arrival */
    uint64_t p2p_next_id;
    int todo; /* receives in TNI_P_UNPACK */

    tni_finished *finished, *finished_tail;
    uint8_t *scratch;
    size_t scratch_cap;
};

/* ---- group.c ---- */
void tni_lock(tn_pg *g);
void tni_unlock(tn_pg *g); /* and completes what was finished meanwhile */
/* Has a work completed by the next tni_unlock. Takes over f. err NULL: success. */
void tni_finish(tn_pg *g, tni_finished *f, const tn_err *err);
/* The work has two references: one in *work for the caller. NULL: no memory. */
tni_finished *tni_finished_new(tn_work **work);
/* The group's collectives end here. The first call wins; tells the peers. Under the lock. */
void tni_fail(tn_pg *g, int culprit, int reporter, tn_code code, uint64_t seq, const char *text);
tn_code tni_start_thread(tn_pg *g, tn_err *err); /* if it does not run yet */
tn_code tni_group_error(const tn_pg *g, const char *what, uint64_t seq, int64_t started, tn_err *err);
/* Fails everything pending and to come: "rank 3 <why>". Under the lock. */
void tni_abort_all(tn_pg *g, tn_code code, const char *why);
/* A group that knows nobody yet: without listener, addresses and secret. discard: ends and frees it, in any
 * state. enroll: when it is complete. */
tn_code tni_group_new(tn_pg **out, int rank, int size, const tn_pg_opts *opts, tn_err *err);
void tni_group_enroll(tn_pg *g);
void tni_group_discard(tn_pg *g);
uint64_t tni_next_id(void);
void tni_cancel(void *id, tn_code why); /* a tn_cancel_fn: arg is the id of an operation */
/* Waits until *pending is 0, with the lock held. TN_EPEER when the group has failed (by the operation's
 * time-out for example); the transport then holds no memory of the operation any more. */
tn_code tni_wait(tn_pg *g, tni_op *op, const int *pending);
/* At least n bytes, aligned to 64, valid until the next call. NULL: out of memory. Progress thread only. */
uint8_t *tni_scratch(tn_pg *g, size_t n);
const char *tni_type_name(unsigned type);
/* "rank 1, 3 and 4" */
char *tni_rank_list(char *buf, size_t cap, const bool *set, int size);

/* ---- link.c ---- */
tni_link *tni_link_of(tn_pg *g, int peer, tni_link_kind kind);
void tni_link_opened(tni_link *l, tn_tx_conn *conn, bool welcome); /* takes conn; welcome: we have to answer */
/* Every operation of the transport is counted; its callback begins with tni_io_end, which takes the lock. */
void tni_io_begin(tn_pg *g);
void tni_io_end(tn_pg *g);
void tni_heard_fail(tn_pg *g, int peer, tni_link_kind kind, const tn_frame *f, const uint8_t *text);
void tni_link_drop(tni_link *l, bool keep_control); /* drops what is queued and not under way */
/* Under the lock. Queue a message; a link that is broken fails the group (TNI_COLL). */
void tni_send(tni_link *l, tni_msg *m);
void tni_send_first(tni_link *l, tni_msg *m); /* before everything that is not under way yet */
void tni_expect(tni_link *l, tni_msg *m);
bool tni_unsend(tni_link *l, tni_msg *m); /* takes it off the queue; false: under way or not there */
void tni_link_read(tni_link *l);
void tni_link_body(tni_link *l, tni_msg *m);  /* receives the body of the header that has just come */
void tni_link_malformed(tni_link *l);         /* the header that has just come has no place here */
void tni_link_abort(tni_link *l);             /* the group was aborted: send FAIL */
void tni_link_drain(tni_link *l, uint64_t n); /* skips n bytes, then reads the next header */
/* The stream is of no more use. needed: a collective needs it for what has just failed (else: if it waits). */
void tni_link_broken(tni_link *l, const tn_err *err, bool needed);
void tni_link_failed(tni_link *l); /* the group has failed: drop what is queued, send FAIL */
bool tni_link_busy(const tni_link *l); /* tensor memory is in the hands of the transport */
void tni_link_bye(tni_link *l);
bool tni_link_quiet(const tni_link *l); /* nothing more to say or to hear */

/* ---- open.c ---- */
/* A listener as the group's options say, and the path of its socket ("" if it has none), to be unlinked. */
tn_code tni_listen(tn_tx_listener **out, char *path, size_t cap, const tn_pg *g, tn_err *err);
void tni_accept_start(tn_pg *g);
void tni_link_dial(tni_link *l);
void tni_links_close(tn_pg *g);
void tni_links_release(tn_pg *g);

/* ---- watch.c ---- */
#define TNI_PATIENCE (500 * TN_MS) /* of an operation, until it asks whether those it waits for are there */
void tni_watch_tick(tn_pg *g, int64_t now); /* when g->watch_at has come; sets the next time */
int64_t tni_watch_patience(const tni_link *l); /* how long a dial of this link may take */
void tni_watch_connected(tni_link *l, tn_tx_conn *conn); /* a dial got an answer */
void tni_watch_failed(tni_link *l, const tn_err *err); /* ... or none */
void tni_watch_dial_again(tni_link *l); /* if it is TNI_EXPECTED and that takes long */
/* Whether a dial that failed is to be made again: there was no route, which may change. */
bool tni_watch_later(tni_link *l, const tn_err *err);

/* ---- vote.c ---- */
void tni_vote_frame(tni_link *l); /* a header has arrived on a TNI_VOTE link */
void tni_vote_opened(tni_link *l);

/* ---- collectives.c ---- */
/* Carries out one collective; called with the lock held, returns with it held, lets go of it meanwhile. An
 * error with g->failed unset concerns this operation only, and every rank gets the same. */
tn_code tni_run(tn_pg *g, tni_op *op, tn_err *err);

/* Lists by rank for one operation, in one block. */
typedef struct tni_lists {
    uint8_t **send, **recv;
    size_t *send_bytes, *recv_bytes;
    const void **src;
    double *weights;
    tni_msg *msgs; /* 2 * size */
} tni_lists;
/* One whole message to and from every other rank, as the lists say. */
tn_code tni_exchange(tn_pg *g, tni_op *op, tn_dtype dtype, tni_lists *l);

/* ---- check.c ---- */
/* All ranks are about to do the same, or the group fails and says who is not. */
tn_code tni_check(tn_pg *g, const tni_op *op, tni_lists *l, tn_err *err);

/* ---- p2p.c ---- */
void tni_p2p_frame(tni_link *l);              /* a header has arrived on a TNI_P2P link */
void tni_p2p_lost(tn_pg *g, int peer, const tn_err *err);
void tni_p2p_abort(tn_pg *g, const tn_err *err);
void tni_p2p_tick(tn_pg *g, int64_t now);     /* time-outs, unpacking; may let go of the lock meanwhile */
bool tni_p2p_cancel(tn_pg *g, uint64_t id, tn_code why);

#endif

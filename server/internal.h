/* Shared between the files of server. Everything here belongs to the driver thread, except where it says
 * otherwise. */
#ifndef TN_SERVER_INTERNAL_H
#define TN_SERVER_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/layout.h"
#include "fed/fed.h"
#include "privacy/privacy.h"
#include "server/ledger.h"
#include "server/server.h"
#include "transport/transport.h"

#define NOTICE_NS (30 * TN_SECOND)    /* how often who waits is told what for */
#define HANDSHAKE_NS (10 * TN_SECOND) /* from the connection to HELLO, TLS included */
#define PROGRESS_NS (30 * TN_SECOND)  /* one frame, or the next piece of an upload */
#define MAX_HANDSHAKES 1024           /* at once; while there are that many, no more are accepted */
#define UPLOAD_CHUNK (256u << 10)     /* largest PUT: each upload under way holds one buffer of it */

typedef struct srv srv;
typedef struct session session;
typedef struct upload upload;

/* ---- events.c: from any thread to the driver ---- */

typedef enum event_kind {
    EV_CONN,       /* a listener: `conn` (yours), or err */
    EV_MESSAGE,    /* a session: a whole message is in */
    EV_RECV_BAD,   /* a session: it sent what it may not; err says what */
    EV_RECV_FAIL,  /* a session: its connection broke */
    EV_SENT,       /* a session: one message is out, or err */
} event_kind;

typedef struct event { /* part of its owner, so that posting never fails; posted once at a time */
    struct event *next;
    event_kind kind;
    void *owner;
    tn_tx_conn *conn;
    tn_err err;
} event;

typedef struct events {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    event *head, *tail;
    int signals; /* SIGTERM and SIGINT so far */
} events;

void events_init(events *q);
void events_release(events *q);
void events_post(events *q, event *e);
void events_signal(events *q);
/* All that are there, oldest first; waits for the first until the deadline or a signal. */
event *events_take(events *q, int64_t deadline, int *signals);

/* ---- journal.c ---- */

typedef struct journal journal;
typedef struct id_list {
    char **id;
    size_t n, cap;
} id_list;
bool id_list_add(id_list *l, const char *id);
void id_list_release(id_list *l);

typedef struct journal_round {
    uint64_t round;
    uint32_t attempt;
    const char *model_hash;
    double seconds;
    uint64_t bytes;
} journal_round;

typedef struct journal_report {
    uint64_t round;
    uint32_t attempt;
    const char *client;
    uint64_t examples;
    const char *metrics, *hash, *file;
} journal_report;

/* name, weighted mean (if `some` were finite), how many were not */
typedef void (*journal_metric_fn)(void *arg, const char *name, double mean, bool some, uint64_t dropped);

tn_code journal_open(journal **out, const char *path, bool sync, tn_err *err);
void journal_close(journal *j);
tn_code journal_get(journal *j, const char *key, char **out, tn_err *err); /* NULL: not set; free(*out) */
tn_code journal_set(journal *j, const char *key, const char *text, tn_err *err);
tn_code journal_start(journal *j, uint64_t round, uint32_t attempt, const char *const *cohort, size_t n, tn_err *err);
tn_code journal_retry(journal *j, uint64_t round, uint32_t attempt, tn_err *err); /* forgets the attempt's updates */
/* One transaction: the round is committed, and updates that were not counted are forgotten. */
tn_code journal_commit(journal *j, const journal_round *r, const char *const *counted, size_t n, tn_err *err);
tn_code journal_committed(journal *j, uint64_t *round, char hash[2 * TN_HASH_BYTES + 1], tn_err *err);
/* The last attempt of a round (0: none), and if it was under way, its cohort and who reported. */
tn_code journal_under_way(journal *j, uint64_t round, uint32_t *attempt, id_list *cohort, id_list *reported, tn_err *err);
/* Updates are recorded between begin and end; end commits when code is TN_OK. */
tn_code journal_updates_begin(journal *j, tn_err *err);
tn_code journal_update(journal *j, const journal_report *u, tn_err *err);
tn_code journal_updates_end(journal *j, tn_code code, tn_err *err);
tn_code journal_was_counted(journal *j, const char *client, uint64_t round, uint32_t attempt, bool *yes, tn_err *err);
tn_code journal_metrics(journal *j, uint64_t round, uint32_t attempt, journal_metric_fn fn, void *arg, tn_err *err);

/* ---- spool.c: updates as they arrive ----
 *
 * STATE/spool/rROUND-aATTEMPT-CLIENT.part while bytes come in, .update when whole: a header, then the block. */

#define SPOOL_HEADER 64 /* so that the block is aligned for any element */

typedef struct spool_head {
    uint64_t examples, bytes;
    uint8_t hash[TN_HASH_BYTES];
} spool_head;

typedef struct spool_file { /* one that is being written */
    int fd;
    uint64_t offset;  /* bytes of the block that are there */
    spool_head head;
    tn_hash hash;     /* of these bytes */
    char *part, *whole;
    bool finished; /* it has its final name */
} spool_file;

/* Opens the part, and goes on with what is there if it was begun with the same header. */
tn_code spool_open(spool_file *f, const char *dir, uint64_t round, uint32_t attempt, const char *client,
                   const spool_head *head, tn_err *err);
tn_code spool_append(spool_file *f, const void *p, size_t n, tn_err *err);
/* All bytes are there: their hash is compared (TN_EPROTO) and the update checked. */
tn_code spool_check(const spool_file *f, const tn_layout *layout, const char *client, tn_err *err);
/* Syncs if `sync` and gives it its final name; the folder's sync is the caller's. */
tn_code spool_finish(spool_file *f, bool sync, tn_err *err);
void spool_close(spool_file *f);   /* keeps the file */
void spool_discard(spool_file *f); /* removes it, under the name it has */
tn_code spool_map(tn_map *m, const char *dir, uint64_t round, uint32_t attempt, const char *client, size_t nbytes,
                  tn_update *out, tn_err *err);
void spool_remove(const char *dir, uint64_t round, uint32_t attempt, const char *client);
/* Removes everything but the files of one attempt (0: all). */
void spool_sweep(const char *dir, uint64_t round, uint32_t attempt);

/* ---- The model that clients get: immutable, shared by the sends under way ---- */

typedef struct model {
    size_t refs;
    uint64_t committed; /* after that many rounds */
    uint8_t *block;
    uint8_t hash[TN_HASH_BYTES];
} model;
model *model_ref(model *m);
void model_unref(model *m);

/* ---- session.c: one connection ---- */

typedef struct out_frame {
    struct out_frame *next;
    tn_frame frame;
    uint8_t *own;  /* freed with it */
    const void *p; /* what is sent: own, or within shared */
    model *shared;
} out_frame;

typedef enum session_state {
    SESSION_HELLO,  /* CHALLENGE is out */
    SESSION_READY,  /* between requests, training, or waiting for the answer to NEXT */
    SESSION_UPLOAD, /* between BEGIN and END */
    SESSION_SAVING, /* END came; the answer is due when the update is on the disk */
    SESSION_ENDING, /* the last message is going out */
    SESSION_CLOSED, /* waits for the transport to let go */
} session_state;

struct session {
    srv *srv;
    session *prev, *next;      /* all sessions */
    session *same_hash;        /* in the table of those with an id */
    tn_tx_conn *conn;
    bool tls;
    session_state state;
    tn_msg_challenge *challenge; /* until WELCOME */
    char id[TN_ID_MAX + 1];      /* "" before WELCOME */
    bool authenticated, joined;
    bool greeted;                /* beyond HELLO; changes only while no receive is armed */

    /* Receiving: the transport's threads use these while rx_busy, the driver otherwise. */
    event rx;
    tn_frame in;
    uint8_t *body;
    uint8_t scrap[32];
    bool rx_busy;
    _Atomic bool takes_put;
    uint8_t *put_buffer; /* UPLOAD_CHUNK bytes, during an upload */

    event tx;
    out_frame *out_head, *out_tail; /* the head is under way when tx_busy */
    bool tx_busy;
    int64_t last_sent;

    uint64_t open_next;    /* the NEXT that has no answer yet; 0: none */
    uint64_t request;      /* of the upload */
    upload *up;
};

void session_new(srv *s, tn_tx_conn *conn, bool tls); /* takes conn */
void session_event(session *c, event *e);
/* Queues a message; takes what the writer holds. A message that cannot be made closes the session. */
void session_send(session *c, uint8_t type, uint64_t id, tn_wr *w);
void session_send_piece(session *c, uint64_t offset, size_t n, model *m);
void session_error(session *c, uint64_t request, tn_code code, const char *fmt, ...) TN_PRINTF(4, 5);
void session_notice(session *c, const char *text);
/* Says why (ERROR with id 0) and closes. */
void session_end(session *c, tn_code code, const char *fmt, ...) TN_PRINTF(3, 4);
void session_close(session *c);
session *session_find(srv *s, const char *id);

/* ---- update.c: an update on its way in ---- */

void update_begin(session *c, const tn_frame *f, const uint8_t *body);
void update_put(session *c, const tn_frame *f, const uint8_t *body);
void update_end(session *c, const tn_frame *f);
void update_session_gone(session *c); /* keeps what has arrived */
/* Makes the updates that wait for it durable, all at once, and answers. */
void update_flush(srv *s);

/* ---- state.c: STATE, the job's folder ---- */

/* Locks it, opens the journal and loads the model; makes what is missing on the first start. */
tn_code state_lock(srv *s, tn_err *err);
tn_code state_open(srv *s, tn_err *err);
void state_close(srv *s);
tn_code state_write_model(srv *s, const void *block, uint64_t committed, tn_err *err);
void state_keep_models(srv *s, uint64_t committed);

/* ---- rounds.c: the round machine and what it asks for ---- */

/* Goes on where the journal says the job stands. */
tn_code rounds_open(srv *s, tn_err *err);
void rounds_begin(srv *s); /* does what was waiting to be done */
int64_t rounds_tell(srv *s, int64_t now); /* what is due to be said; returns when to call again */
void rounds_feed(srv *s, tn_round_ev_kind kind, const char *client);
/* Answers an open NEXT if there is something to do. */
void rounds_offer(session *c);
void rounds_sentence(const srv *s, char *out, size_t cap); /* what is being waited for */
/* Which round's model GET gives now. */
uint64_t rounds_servable(const srv *s);

/* ---- dp.c ---- */

typedef struct dp_settings { /* --dp, --dp-budget */
    bool on;
    double clip, noise, delta, denominator;
    double quantile;         /* below 0: the clip is fixed */
    double budget;           /* 0: none */
    double q;                /* sampling probability of a client */
    tn_dp_adaptive adaptive; /* with a quantile */
    double multiplier;       /* of the noise on updates: `noise`, or more with a quantile */
} dp_settings;

/* ---- server.c ---- */

#define TABLE 4096

typedef struct listener {
    srv *srv;
    event ev;
    tn_tx_listener *tx;
    bool tls, busy;
} listener;

struct srv {
    const tn_srv_cfg *cfg;
    events events;

    /* STATE */
    int lock_fd;
    char *models_dir, *spool_dir, *endpoint;
    journal *journal;
    bool sync;

    listener *listener;
    size_t nlisteners;
    int64_t accept_at; /* after a failure, when to try again */
    session *sessions;
    size_t nsessions, nhandshakes;
    session *table[TABLE];

    tn_key identity;
    uint8_t cert[32];
    tn_roster roster;
    int64_t roster_read;

    tn_layout layout;
    model *model;
    const tn_agg_ops *agg;
    dp_settings dp;
    ledger *ledger; /* NULL without --dp */
    double clip;    /* of the next round */
    bool spent;     /* the budget does not allow another round */
    tn_round *round;
    int64_t round_started;
    uint64_t bytes, bytes_at_start;
    char waiting[200];  /* what GATHERING waits for */
    bool waiting_news;  /* not told yet */
    int64_t told_at, sweep_at;
    bool stopped, failed, finished; /* how the run ended */
    char failure[200];
    int64_t linger_until, linger_end; /* after the end; 0: not there yet */
    bool absent;        /* members of the last cohort were not connected when it ended */

    upload *pending;
    bool acting; /* rounds.c is doing what the round machine asked for */

    int64_t log_window; /* refusals are logged at a bounded rate */
    unsigned logged, unlogged;
};

/* A line about what a peer did wrong. */
void srv_log_refusal(srv *s, const char *fmt, ...) TN_PRINTF(2, 3);

#endif

/* Federated learning without sockets and without a clock: rounds, selection, aggregators and the messages of
 * the protocol.
 *
 * Everything here is single-threaded per object and pure: events in, actions out, time and randomness passed
 * in. The server (fed/net, server/) and the simulation bind it to the world. */
#ifndef TN_FED_H
#define TN_FED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/cbor.h"
#include "core/clock.h"
#include "core/layout.h"
#include "privacy/privacy.h"

#define TN_ID_MAX 64 /* bytes of a client id: letters, digits, '.', '-', '_', first one a letter or digit */
#define TN_METRICS_MAX 64
#define TN_MAX_CLIENTS 100000

TN_API bool tn_id_valid(const char *id);

typedef struct tn_metric {
    char name[48];
    double value;
} tn_metric;

/* ---- Aggregators: one table each ---- */
typedef struct tn_update {
    const char *client;
    uint64_t examples;  /* the weight; > 0 */
    const void *block;  /* the delta against the round's model, in the layout's order; borrowed, often a mapped
                           file; aligned for any element */
} tn_update;

#define TN_AGG_LINEAR 1u /* a weighted sum: works on masked sums */

typedef struct tn_agg_ops {
    const char *name; /* "fedavg" */
    const char *help; /* one sentence with the paper and section */
    unsigned caps;
    /* Folds the updates (sorted by client id, n >= 1, checked by tn_update_check) into the model block, in
     * place. Returns an error with the model unchanged or succeeds; runs over blocks of parameters so that
     * the updates may lie on disk. Takes memory for one more model while it runs. May be called from a
     * worker thread. */
    tn_code (*apply)(const tn_layout *l, const tn_update *u, size_t n, void *model, tn_err *err);
} tn_agg_ops;

TN_API const tn_agg_ops *tn_agg_find(const char *name); /* NULL when unknown */
TN_API const tn_agg_ops *const *tn_agg_all(size_t *n);
/* Sorts by client id; refuses duplicates, and an example count outside 1..2^40. Then the result has the same
 * bits whatever order the updates came in. TN_ENONFINITE names the tensor whose values left the range of its
 * dtype. */
TN_API tn_code tn_agg_run(const tn_agg_ops *agg, const tn_layout *l, tn_update *u, size_t n, void *model,
                          tn_err *err);
/* What an update must be before it is accepted: examples in 1..2^40 (else TN_EINVAL), every floating value
 * finite (else TN_ENONFINITE), no change to a tensor of bool or float8_e8m0fnu (else TN_EINVAL); the error
 * names client, tensor and index. Integer tensors (counters such as num_batches_tracked): their delta is
 * aggregated by the maximum, in every aggregator. */
TN_API tn_code tn_update_check(const tn_layout *l, const tn_update *u, tn_err *err);
/* delta = local - base for a whole block (bool and float8_e8m0fnu: XOR; integers modulo 2^bits). An element
 * with the same bits in both gives 0, also where it is Inf or NaN (masks kept as buffers). delta may be
 * local or base. And model += delta. */
TN_API void tn_delta_make(const tn_layout *l, const void *local, const void *base, void *delta);
TN_API void tn_delta_apply(const tn_layout *l, void *model, const void *delta);

/* ---- The round, a pure state machine ----
 *
 *   GATHERING  waits for enough clients: start_clients for the first round of a run, min_clients later
 *   TRAINING   the cohort trains and reports, until all have reported or left, or the deadline
 *   COMMITTING the driver aggregates and persists, then says so
 *   FINISHED / FAILED
 *
 * At the deadline, or when nobody is left to wait for, the round commits if at least min_clients reported;
 * otherwise it starts again with the clients there are: same round, next attempt (updates of the old attempt
 * are dropped). Attempts count from 1 in each round. docs/fed.md has the whole table of states and events. */
typedef struct tn_round_cfg {
    uint64_t rounds;            /* total, >= 1; the run is FINISHED when that many are committed */
    uint32_t start_clients;     /* >= min_clients */
    uint32_t min_clients;       /* >= 1 */
    uint32_t clients_per_round; /* 0: all; else >= min_clients: the cohort is at most this, chosen uniformly by
                                   the seed, the round and the attempt */
    double fraction;            /* 0: unused; else in (0, 1]: the cohort is ceil(fraction * clients), at least
                                   min_clients */
    double over_select;         /* >= 1: the cohort is enlarged by this factor; the round commits when the
                                   un-enlarged number reported */
    int64_t deadline_ns;        /* of TRAINING; > 0 and finite */
    int64_t resume_ns;          /* how long a broken connection may take to come back before its client leaves
                                   the cohort; >= 0 and finite */
    int64_t wait_timeout_ns;    /* of GATHERING, counted from its start; > 0; TN_FOREVER: none. Over: FAILED */
    int64_t notice_ns;          /* how often GATHERING repeats what it waits for (30 s); > 0 */
    uint64_t seed;
} tn_round_cfg;

typedef enum tn_round_state { TN_GATHERING, TN_TRAINING, TN_COMMITTING, TN_FINISHED, TN_FAILED } tn_round_state;

typedef enum tn_round_ev_kind {
    TN_EV_JOIN,          /* client: connected (again) and ready. TN_ETOOBIG over TN_MAX_CLIENTS */
    TN_EV_BREAK,         /* client: its connection broke; not for one that a newer connection has replaced */
    TN_EV_LEAVE,         /* client: said good-bye, or is expelled: gone at once */
    TN_EV_UPDATE,        /* client: its update of the (round, attempt) under way is checked and durable.
                            Afterwards tn_round_may_update says TN_EBUSY if it was counted; if it does not,
                            the update came too late: refuse it */
    TN_EV_REFUSED,       /* client: its update was refused (NaN, ...): it leaves the cohort until the next round */
    TN_EV_COMMITTED,     /* the driver persisted the round */
    TN_EV_COMMIT_FAILED, /* it could not: FAILED */
    TN_EV_STOP,          /* finish after the round under way (in TRAINING or COMMITTING), else at once */
    TN_EV_TICK,
} tn_round_ev_kind;

typedef struct tn_round_ev {
    tn_round_ev_kind kind;
    const char *client; /* for the first five */
} tn_round_ev;

typedef enum tn_round_act_kind {
    TN_ACT_WAITING,  /* tell operator and clients: `have` of `need` clients are here; text is that sentence */
    TN_ACT_START,    /* round, attempt and the cohort (tn_round_cohort) are set: persist, then invite. have: the
                        cohort's size, need: how many reports end the round */
    TN_ACT_DROPPED,  /* `client` left the cohort; text says why */
    TN_ACT_COMMIT,   /* aggregate the reported (tn_round_reported, `have` of them), persist, feed COMMITTED */
    TN_ACT_RETRY,    /* too few reported (`have` of `need`): text says so; drop the attempt's updates */
    TN_ACT_FINISHED, /* round: the last committed; text says whether all rounds are, or it was stopped */
    TN_ACT_FAILED,   /* text says why */
} tn_round_act_kind;

typedef struct tn_round_act {
    tn_round_act_kind kind;
    uint64_t round;
    uint32_t attempt;
    uint32_t have, need;
    char client[TN_ID_MAX + 1];
    char text[200];
} tn_round_act;

typedef struct tn_round tn_round;
/* TN_EINVAL names the setting that is out of range. Take actions at once: a run whose rounds are all
 * committed is FINISHED. */
TN_API tn_code tn_round_new(tn_round **out, const tn_round_cfg *cfg, uint64_t committed_rounds, int64_t now,
                            tn_err *err);
TN_API void tn_round_free(tn_round *m);
/* After a restart, before any event: the round that was under way (committed + 1), its cohort and who had
 * reported (durably). Members count as broken connections from now on, with the whole deadline to come back.
 * There is no START action: the cohort was invited before. An empty cohort: that attempt was given up before
 * the restart, the next one gets the number behind it. Actions may be waiting (COMMIT, when enough had
 * reported). Copies the ids. */
TN_API tn_code tn_round_restore(tn_round *m, uint64_t round, uint32_t attempt, const char *const *cohort,
                                size_t ncohort, const char *const *reported, size_t nreported, int64_t now,
                                tn_err *err);
/* Feeds one event; then take actions until there are none. Unknown clients and repeated events are harmless.
 * `now` never goes backwards (an earlier one counts as the last). On TN_ENOMEM the event may be fed again;
 * time goes on at the next TICK. */
TN_API tn_code tn_round_event(tn_round *m, const tn_round_ev *ev, int64_t now, tn_err *err);
TN_API bool tn_round_action(tn_round *m, tn_round_act *out);
TN_API int64_t tn_round_next_tick(const tn_round *m); /* when it wants a TICK; TN_FOREVER: never */
TN_API tn_round_state tn_round_state_of(const tn_round *m);
TN_API uint64_t tn_round_number(const tn_round *m);   /* the round under way or to come: committed + 1 */
TN_API uint32_t tn_round_attempt(const tn_round *m);  /* under way, or the last; 0: none in this round yet */
TN_API int64_t tn_round_deadline(const tn_round *m);  /* of TRAINING; else TN_FOREVER */
/* Whether an update from client for (round, attempt) may come in now: TN_OK; TN_EBUSY: it has been counted
 * already, in the round under way or in the one committed last (acknowledge again; after a restart the
 * driver's records know the latter); TN_EROUND and a sentence otherwise. */
TN_API tn_code tn_round_may_update(const tn_round *m, const char *client, uint64_t round, uint32_t attempt,
                                   tn_err *err);
TN_API bool tn_round_in_cohort(const tn_round *m, const char *client);
/* Ids, sorted by byte; views valid until the next event. The cohort: those chosen for the attempt that have
 * not left it; the reported: those of them whose update counts. Both empty in GATHERING. */
TN_API size_t tn_round_cohort(const tn_round *m, const char *const **ids);
TN_API size_t tn_round_reported(const tn_round *m, const char *const **ids);
TN_API size_t tn_round_clients(const tn_round *m); /* connected now */

/* ---- Protocol: docs/PROTOCOL.md. Frame types (transport's frame header) and the CBOR bodies of each. ----
 *
 * The client speaks first after CHALLENGE and sends one request at a time; frame.id numbers requests and is
 * repeated in the reply. Bulk bodies (DATA, PUT) are raw bytes of the model's block, with the byte offset in
 * frame.id. */
#define TN_PROTOCOL 1
typedef enum tn_msg_type {
    TN_MSG_CHALLENGE = 1, /* s->c: version, nonce, server key, job */
    TN_MSG_HELLO = 2,     /* c->s: version, nonce, key, certificate hash, id, signature */
    TN_MSG_WELCOME = 3,   /* s->c: id, authenticated, signature, rounds, aggregator, chunk, window, layout */
    TN_MSG_ERROR = 4,     /* s->c: code, text; ends the session when frame.id is 0 */
    TN_MSG_NEXT = 5,      /* c->s: ready; answered when there is something to do */
    TN_MSG_TASK = 6,      /* s->c: train | done | failed; round, attempt, model hash, deadline, parameters */
    TN_MSG_NOTICE = 7,    /* s->c: a sentence for persons, at any time while NEXT is open */
    TN_MSG_GET = 8,       /* c->s: round, offset, size of a piece of the round's model */
    TN_MSG_DATA = 9,      /* s->c: raw */
    TN_MSG_BEGIN = 10,    /* c->s: round, attempt, examples, bytes, hash, metrics of an update */
    TN_MSG_RESUME = 11,   /* s->c: offset from which to send */
    TN_MSG_PUT = 12,      /* c->s: raw; not answered */
    TN_MSG_END = 13,      /* c->s: all sent */
    TN_MSG_ACCEPTED = 14, /* s->c: durable and counted (again, for a duplicate) */
    TN_MSG_BYE = 15,      /* c->s: leaving for good */
} tn_msg_type;
#define TN_MSG_MAX_META (16u << 20)  /* WELCOME (it carries the layout) */
#define TN_MSG_MAX_SMALL (64u << 10) /* every other CBOR body */
#define TN_MSG_CHUNK (1u << 20)      /* largest raw body */
/* The largest body this type may have; 0: unknown type. (NEXT, END and BYE: a small body is read, then
 * refused.) */
TN_API uint64_t tn_msg_max(uint8_t type);
TN_API const char *tn_msg_name(uint8_t type); /* "HELLO"; never NULL */

typedef struct tn_msg_challenge {
    uint64_t version;
    uint8_t nonce[32];
    uint8_t key[TN_KEY_BYTES];
    uint8_t cert[32];
    bool tls;
    char job[65];
} tn_msg_challenge;
typedef struct tn_msg_hello {
    uint64_t version;
    uint8_t nonce[32];
    uint8_t key[TN_KEY_BYTES];
    uint8_t cert[32];
    char id[TN_ID_MAX + 1];
    uint8_t sig[TN_SIG_BYTES];
} tn_msg_hello;
typedef struct tn_msg_welcome {
    char id[TN_ID_MAX + 1];
    bool authenticated;
    uint8_t sig[TN_SIG_BYTES];
    uint64_t rounds;
    char aggregator[33];
    uint64_t chunk;
    double resume_seconds;
    tn_layout layout;
} tn_msg_welcome;
typedef struct tn_msg_error { tn_code code; char text[400]; } tn_msg_error;
typedef enum tn_task_kind { TN_TASK_TRAIN = 0, TN_TASK_DONE = 1, TN_TASK_FAILED = 2 } tn_task_kind;
typedef struct tn_msg_task {
    tn_task_kind kind;
    uint64_t round;       /* TRAIN: 1..rounds; DONE: the last committed, whose model GET may fetch */
    uint32_t attempt;
    uint8_t model_hash[TN_HASH_BYTES]; /* of the block that GET(round) gives */
    double deadline_seconds;
    uint32_t cohort;      /* how many clients */
    char text[200];       /* FAILED: why */
    size_t nparams;       /* hyper-parameters of the round */
    tn_metric param[16];
} tn_msg_task;
typedef struct tn_msg_get { uint64_t round, offset, size; } tn_msg_get;
typedef struct tn_msg_begin {
    uint64_t round;
    uint32_t attempt;
    uint64_t examples, bytes;
    uint8_t hash[TN_HASH_BYTES];
    size_t nmetrics;
    tn_metric metric[TN_METRICS_MAX];
} tn_msg_begin;
typedef struct tn_msg_resume { uint64_t offset; } tn_msg_resume;
typedef struct tn_msg_accepted { uint64_t round; bool duplicate; } tn_msg_accepted;
typedef struct tn_msg_notice { char text[400]; } tn_msg_notice;
/* NEXT, END and BYE have empty bodies. encode appends to the writer; sentences lose their control characters
 * and what is not UTF-8. decode checks every field and refuses unknown ones (TN_EPROTO, in the order of
 * docs/PROTOCOL.md); challenge and hello of another protocol version give TN_EVERSION, with both versions in
 * the sentence. Nothing to release but a decoded welcome. Metric names are unique within one message. */
#define TN_MSGS(X) \
    X(challenge) X(hello) X(welcome) X(error) X(task) X(get) X(begin) X(resume) X(accepted) X(notice)
#define X(name)                                                           \
    TN_API void tn_msg_##name##_encode(const tn_msg_##name *m, tn_wr *w); \
    TN_API tn_code tn_msg_##name##_decode(tn_msg_##name *m, const void *p, size_t n, tn_err *err);
TN_MSGS(X)
#undef X
TN_API void tn_msg_welcome_release(tn_msg_welcome *m); /* safe after a failed decode too */
/* The bytes that both sign: H(label, versions, both nonces, both keys, both certificate hashes, tls, job,
 * id). The client signs them with tn_key_sign under TN_HELLO_CLIENT, the server under TN_HELLO_SERVER. */
#define TN_HELLO_CLIENT "tn hello client 1"
#define TN_HELLO_SERVER "tn hello server 1"
TN_API void tn_msg_transcript(const tn_msg_challenge *c, const tn_msg_hello *h, uint8_t out[TN_HASH_BYTES]);

/* Enrolled clients: a text file, a line each: id, public key and certificate hash in hex; '#' starts a
 * comment. load refuses a line that is not so, and an id or a key that is there twice. Blocks on the disk. */
typedef struct tn_enrolled { char id[TN_ID_MAX + 1]; uint8_t key[TN_KEY_BYTES]; uint8_t cert[32]; } tn_enrolled;
typedef struct tn_roster {
    tn_enrolled *item; /* sorted by key */
    size_t count;
} tn_roster;
TN_API tn_code tn_roster_load(tn_roster *r, const char *path, tn_err *err); /* names file and line */
/* Creates the file; refuses an id or key that is there (TN_EBUSY). Durable when it returns; processes that
 * enrol at the same time wait for each other, 10 s at most. */
TN_API tn_code tn_roster_append(const char *path, const tn_enrolled *e, tn_err *err);
TN_API const tn_enrolled *tn_roster_find(const tn_roster *r, const uint8_t key[TN_KEY_BYTES]);
TN_API void tn_roster_release(tn_roster *r);

#endif

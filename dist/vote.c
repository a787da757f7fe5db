/* The vote of a shrinking group: which ranks go on. A pure matter of messages, carried out under the group's
 * lock by the readers of the TNI_VOTE links and by the loop of tn_pg_shrink (shrink.c).
 *
 * It is single-decree Paxos (Lamport, "Paxos Made Simple", 2001) among the ranks of the old group, and the
 * value is the list of ranks that go on, with the addresses and the secret of the new group. Every rank that
 * has called shrink accepts; the lowest of them that another sees proposes. One value at most is ever decided,
 * whatever dies, stalls or is cut off in between, because two quorums always have a rank in common: more than
 * half of the old group, or exactly half of it with rank 0. So there are never two groups that both think they
 * won.
 *
 *   proposer                          everyone who has called shrink
 *                                <-   JOIN url               to all, once
 *   PREPARE ballot               ->
 *                                <-   PROMISE ballot, [ballot accepted before, value]
 *   ACCEPT ballot, value         ->
 *                                <-   ACCEPTED ballot        (or NACK ballot: a higher one was promised)
 *   DECIDED value                ->   and on to all others
 *
 * Ballots are unique: round * size + rank + 1. A proposer whose voters change, or that gets nowhere for RETRY,
 * begins again with a higher one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/wire.h"
#include "dist/vote.h"

#define URL_MAX 300
#define LIMIT(size) (64 + (size_t)(size) * (URL_MAX + 8)) /* bytes of one message */
#define RETRY (1 * TN_SECOND)

typedef struct value {
    uint8_t *p;
    size_t n;
} value;

typedef struct voter {
    bool joined, minority;
    bool in;               /* of the proposal under way */
    bool promised, accepted;
    char *url;
} voter;

struct tni_vote {
    bool open; /* this rank has called shrink */
    bool resigned; /* and given up: it takes part in nothing any more */
    bool minority;
    voter *who; /* [size], this rank too */
    uint64_t promised, accepted;
    value accepted_value;
    uint64_t ballot; /* of this rank's proposal; 0: none under way */
    bool second;     /* its second phase */
    uint64_t best;
    value best_value;
    int64_t retry_at;
    uint64_t highest; /* ballot seen */
    value decided;
};

/* ---- Values ---- */

static void value_clear(value *v) {
    free(v->p);
    *v = (value){0};
}

static bool value_set(value *v, const uint8_t *p, size_t n) {
    uint8_t *copy = malloc(n > 0 ? n : 1);

    if (copy == NULL)
        return false;
    if (n > 0)
        memcpy(copy, p, n);
    free(v->p);
    *v = (value){copy, n};
    return true;
}

static bool url_ok(const uint8_t *p, size_t n, char text[URL_MAX + 1]) {
    if (p == NULL || n == 0 || n > URL_MAX || memchr(p, '\0', n) != NULL)
        return false;
    memcpy(text, p, n);
    text[n] = '\0';
    return tn_tx_url_check(text, NULL) == TN_OK;
}

/* cookie, count, then rank and url of each, ranks ascending. */
static bool read_value(const tn_pg *g, const uint8_t *p, size_t n, tni_verdict *out) {
    tn_rd r = tn_rd_init(p, n);
    const uint8_t *cookie = tn_rd_take(&r, TNI_COOKIE_BYTES);
    uint32_t count = tn_rd_count(&r, 7, (uint32_t)g->size), i;
    int last = -1;

    for (i = 0; i < count && r.fail == TN_OK; i++) {
        uint32_t rank = tn_rd_u32(&r);
        size_t len = tn_rd_u16(&r);
        const uint8_t *url = tn_rd_take(&r, len);
        char text[URL_MAX + 1];

        if ((int64_t)rank <= last || rank >= (uint32_t)g->size || !url_ok(url, len, text))
            return false;
        last = (int)rank;
        if (out != NULL) {
            out->rank[i] = last;
            out->url[i] = strdup(text);
            if (out->url[i] == NULL)
                return false;
        }
    }
    if (tn_rd_end(&r) != TN_OK || count == 0)
        return false;
    if (out != NULL) {
        memcpy(out->cookie, cookie, TNI_COOKIE_BYTES);
        out->n = (int)count;
    }
    return true;
}

void tni_verdict_release(tni_verdict *v) {
    int i;

    for (i = 0; v->url != NULL && i < v->cap; i++)
        free(v->url[i]);
    free(v->url);
    free(v->rank);
    *v = (tni_verdict){0};
}

tn_code tni_vote_verdict(const tn_pg *g, tni_verdict *out, tn_err *err) {
    const value *v = &g->vote->decided;

    *out = (tni_verdict){.cap = g->size, .rank = calloc((size_t)g->size, sizeof(*out->rank)),
                         .url = calloc((size_t)g->size, sizeof(*out->url))};
    if (out->rank != NULL && out->url != NULL && read_value(g, v->p, v->n, out))
        return TN_OK;
    tni_verdict_release(out); /* the value was checked when it came */
    return tn_fail(err, TN_ENOMEM, "no memory to shrink group '%s'", g->name);
}

/* ---- Sending ---- */

typedef struct letter {
    tni_msg m;
    uint8_t body[];
} letter;

static void on_letter_done(tn_pg *g, tni_msg *m, const tn_err *err) {
    (void)g;
    (void)err;
    free(m->arg);
}

/* What is lost (no memory, or the peer is gone) is made up for by the next round. */
static void send(tn_pg *g, int peer, tni_type type, uint64_t id, const void *body, size_t n) {
    tni_link *l = tni_link_of(g, peer, TNI_VOTE);
    letter *t;

    if (l->state != TNI_OPEN || l->bye_out)
        return;
    t = malloc(sizeof(*t) + n);
    if (t == NULL)
        return;
    t->m = (tni_msg){.frame = {.type = (uint8_t)type, .flags = g->vote->minority, .id = id, .size = n},
                     .data = t->body, .fn = on_letter_done, .arg = t};
    if (n > 0)
        memcpy(t->body, body, n);
    tni_send(l, &t->m);
}

static void send_all(tn_pg *g, bool voters_only, tni_type type, uint64_t id, const value *v) {
    int r;

    for (r = 0; r < g->size; r++)
        if (r != g->rank && (!voters_only || g->vote->who[r].in))
            send(g, r, type, id, v != NULL ? v->p : NULL, v != NULL ? v->n : 0);
}

static void send_join(tn_pg *g, int peer) {
    const char *url = g->vote->who[g->rank].url;

    send(g, peer, TNI_JOIN, 0, url, strlen(url));
}

/* ---- Who is there ---- */

static bool votes(const tn_pg *g, int r) {
    return g->vote->who[r].joined && (r == g->rank || g->links[r * TNI_KINDS + TNI_VOTE].state == TNI_OPEN);
}

static bool lost(const tn_pg *g, int r) {
    tni_link_state s = g->links[r * TNI_KINDS + TNI_VOTE].state;

    return r != g->rank && (s == TNI_BROKEN || s == TNI_LEFT);
}

/* Everybody who votes said that less than a majority may go on. */
static bool minority_may(const tn_pg *g) {
    int r;

    for (r = 0; r < g->size; r++)
        if (votes(g, r) && !g->vote->who[r].minority)
            return false;
    return true;
}

static bool majority(const tn_pg *g, int n, bool with_rank_0) {
    return 2 * n > g->size || (2 * n == g->size && with_rank_0);
}

/* Of those who have promised or accepted. */
static bool quorum(const tn_pg *g, bool accepted) {
    const voter *who = g->vote->who;
    int n = 0, of = 0, r;

    for (r = 0; r < g->size; r++) {
        n += who[r].in && (accepted ? who[r].accepted : who[r].promised);
        of += who[r].in;
    }
    if (minority_may(g))
        return n == of;
    return majority(g, n, who[0].in && (accepted ? who[0].accepted : who[0].promised));
}

bool tni_vote_lost(const tn_pg *g, int rank) { return lost(g, rank); }
bool tni_vote_joined(const tn_pg *g, int rank) { return votes(g, rank); }

/* ---- Proposing ---- */

static void decide(tn_pg *g, const uint8_t *p, size_t n) {
    struct tni_vote *v = g->vote;

    if (v->decided.p != NULL || !value_set(&v->decided, p, n))
        return;
    v->ballot = 0;
    send_all(g, false, TNI_DECIDED, 0, &v->decided);
    pthread_cond_broadcast(&g->wake);
}

static bool own_value(const tn_pg *g, value *out) {
    tn_wr w = tn_wr_init(LIMIT(g->size));
    uint8_t cookie[TNI_COOKIE_BYTES];
    uint32_t n = 0;
    int r;

    tn_random_bytes(cookie, sizeof(cookie));
    tn_wr_bytes(&w, cookie, sizeof(cookie));
    for (r = 0; r < g->size; r++)
        n += g->vote->who[r].in;
    tn_wr_u32(&w, n);
    for (r = 0; r < g->size; r++) {
        const voter *who = &g->vote->who[r];

        if (!who->in)
            continue;
        tn_wr_u32(&w, (uint32_t)r);
        tn_wr_u16(&w, (uint16_t)strlen(who->url));
        tn_wr_bytes(&w, who->url, strlen(who->url));
    }
    if (w.fail == TN_OK) {
        free(out->p);
        *out = (value){w.p, w.len};
        return true;
    }
    tn_wr_release(&w);
    return false;
}

/* From one phase to the next when enough have answered. */
static void advance(tn_pg *g) {
    struct tni_vote *v = g->vote;

    if (v->ballot == 0)
        return;
    if (!v->second && quorum(g, false)) {
        if (v->best_value.p == NULL && !own_value(g, &v->best_value))
            return;
        v->second = true;
        if (v->promised == v->ballot && value_set(&v->accepted_value, v->best_value.p, v->best_value.n)) {
            v->accepted = v->ballot;
            v->who[g->rank].accepted = true;
        }
        send_all(g, true, TNI_ACCEPT, v->ballot, &v->best_value);
    }
    if (v->second && quorum(g, true))
        decide(g, v->best_value.p, v->best_value.n);
}

static void propose(tn_pg *g, int64_t now) {
    struct tni_vote *v = g->vote;
    uint64_t round = v->highest / (uint64_t)g->size + 1;
    int r;

    v->ballot = round * (uint64_t)g->size + (uint64_t)g->rank + 1;
    v->highest = v->promised = v->ballot;
    v->second = false;
    v->retry_at = tn_deadline_after(now, RETRY);
    v->best = v->accepted;
    value_clear(&v->best_value);
    if (v->accepted != 0 && !value_set(&v->best_value, v->accepted_value.p, v->accepted_value.n)) {
        v->ballot = 0;
        return;
    }
    for (r = 0; r < g->size; r++) {
        v->who[r].in = votes(g, r);
        v->who[r].promised = r == g->rank;
        v->who[r].accepted = false;
    }
    send_all(g, true, TNI_PREPARE, v->ballot, NULL);
    advance(g);
}

tni_vote_state tni_vote_tick(tn_pg *g, int64_t now, bool patient) {
    struct tni_vote *v = g->vote;
    int voters = 0, possible = 0, first = -1, r;
    bool changed = false;

    if (v->decided.p != NULL)
        return TNI_VOTE_DECIDED;
    for (r = 0; r < g->size; r++) {
        bool here = votes(g, r);

        voters += here;
        possible += here || !lost(g, r);
        if (here && first < 0)
            first = r;
        changed = changed || here != v->who[r].in;
    }
    if (!majority(g, possible, !lost(g, 0)) && !minority_may(g))
        return TNI_VOTE_HOPELESS;
    if (first != g->rank) {
        v->ballot = 0;
        return TNI_VOTE_OPEN;
    }
    if (v->ballot != 0 && !changed && now < v->retry_at)
        return TNI_VOTE_OPEN;
    v->ballot = 0;
    if ((voters < possible && patient) || (!majority(g, voters, votes(g, 0)) && !minority_may(g)))
        return TNI_VOTE_OPEN;
    propose(g, now);
    return v->decided.p != NULL ? TNI_VOTE_DECIDED : TNI_VOTE_OPEN;
}

/* ---- Messages ---- */

static bool heard_promise(tn_pg *g, int peer, uint64_t ballot, const uint8_t *p, size_t n) {
    struct tni_vote *v = g->vote;
    tn_rd r = tn_rd_init(p, n);
    uint64_t accepted = tn_rd_u64(&r);

    if (r.fail != TN_OK || (accepted != 0) != (r.left > 0) || (r.left > 0 && !read_value(g, r.p, r.left, NULL)))
        return false;
    if (ballot != v->ballot || v->second || ballot == 0 || !v->who[peer].in)
        return true; /* of a proposal that is over */
    if (accepted > v->best) {
        if (!value_set(&v->best_value, r.p, r.left))
            return true;
        v->best = accepted;
    }
    v->who[peer].promised = true;
    advance(g);
    return true;
}

static void promise(tn_pg *g, int peer, uint64_t ballot) {
    struct tni_vote *v = g->vote;
    tn_wr w = tn_wr_init(LIMIT(g->size) + 8);

    v->promised = ballot;
    tn_wr_u64(&w, v->accepted);
    if (v->accepted != 0)
        tn_wr_bytes(&w, v->accepted_value.p, v->accepted_value.n);
    if (w.fail == TN_OK)
        send(g, peer, TNI_PROMISE, ballot, w.p, w.len);
    tn_wr_release(&w);
}

static bool heard_join(tn_pg *g, int peer, const uint8_t *p, size_t n) {
    voter *who = &g->vote->who[peer];
    char text[URL_MAX + 1];

    if (!url_ok(p, n, text))
        return false;
    free(who->url);
    who->url = strdup(text);
    who->joined = who->url != NULL;
    who->minority = tni_link_of(g, peer, TNI_VOTE)->in.flags != 0;
    return true;
}

/* False: it has no place here. */
static bool heard(tn_pg *g, int peer, tni_type type, uint64_t ballot, const uint8_t *p, size_t n) {
    struct tni_vote *v = g->vote;

    if (type == TNI_DECIDED) {
        if (!read_value(g, p, n, NULL))
            return false;
        decide(g, p, n);
        return true;
    }
    if (type == TNI_JOIN && !heard_join(g, peer, p, n))
        return false;
    if (v->decided.p != NULL) {
        send(g, peer, TNI_DECIDED, 0, v->decided.p, v->decided.n);
        return true;
    }
    v->highest = ballot > v->highest ? ballot : v->highest;
    switch (type) {
    case TNI_JOIN:
        return true;
    case TNI_PREPARE:
        if (n != 0)
            return false;
        if (v->open && !v->resigned && ballot > v->promised)
            promise(g, peer, ballot);
        else
            send(g, peer, TNI_NACK, v->promised, NULL, 0);
        return true;
    case TNI_PROMISE:
        return heard_promise(g, peer, ballot, p, n);
    case TNI_ACCEPT:
        if (!read_value(g, p, n, NULL))
            return false;
        if (!v->open || v->resigned || ballot < v->promised || ballot == 0) {
            send(g, peer, TNI_NACK, v->promised, NULL, 0);
        } else if (value_set(&v->accepted_value, p, n)) {
            v->promised = v->accepted = ballot;
            send(g, peer, TNI_ACCEPTED, ballot, NULL, 0);
        }
        return true;
    case TNI_ACCEPTED:
        if (n != 0)
            return false;
        if (ballot != 0 && ballot == v->ballot && v->second && v->who[peer].in) {
            v->who[peer].accepted = true;
            advance(g);
        }
        return true;
    case TNI_NACK:
        if (v->ballot != 0 && ballot > v->ballot)
            v->ballot = 0; /* the next tick begins a higher one, if it is still up to us */
        return n == 0;
    default:
        return false;
    }
}

static void on_body(tn_pg *g, tni_msg *m, const tn_err *err) {
    tni_link *l = m->arg;
    tn_err bad;

    if (err == NULL && !heard(g, l->peer, (tni_type)l->in.type, l->in.id, m->data, (size_t)l->in.size)) {
        tn_fail(&bad, TN_EPROTO, "sent a vote that cannot be read");
        tni_link_broken(l, &bad, false);
    }
    free(m->data);
    m->data = NULL;
    pthread_cond_broadcast(&g->wake);
}

void tni_vote_frame(tni_link *l) {
    uint8_t *body;
    tn_err err;

    if (l->in.type < TNI_JOIN || l->in.type > TNI_DECIDED || l->in.size > LIMIT(l->g->size) + 8) {
        tni_link_malformed(l);
        return;
    }
    body = malloc((size_t)l->in.size + 1);
    if (body == NULL) {
        tn_fail(&err, TN_ENOMEM, "no memory for a vote");
        tni_link_broken(l, &err, false);
        return;
    }
    l->rts_msg = (tni_msg){.data = body, .fn = on_body, .arg = l};
    tni_link_body(l, &l->rts_msg);
}

/* ---- Beginning and end ---- */

tn_code tni_vote_new(tn_pg *g, tn_err *err) {
    struct tni_vote *v = calloc(1, sizeof(*v));

    if (v != NULL)
        v->who = calloc((size_t)g->size, sizeof(*v->who));
    if (v == NULL || v->who == NULL) {
        free(v);
        return tn_fail(err, TN_ENOMEM, "no memory for a process group of %d ranks", g->size);
    }
    g->vote = v;
    return TN_OK;
}

void tni_vote_free(tn_pg *g) {
    struct tni_vote *v = g->vote;
    int r;

    if (v == NULL)
        return;
    for (r = 0; r < g->size; r++)
        free(v->who[r].url);
    free(v->who);
    value_clear(&v->accepted_value);
    value_clear(&v->best_value);
    value_clear(&v->decided);
    free(v);
    g->vote = NULL;
}

void tni_vote_opened(tni_link *l) {
    if (l->g->vote->resigned)
        tni_link_bye(l);
    else if (l->g->vote->open)
        send_join(l->g, l->peer);
}

void tni_vote_resign(tn_pg *g) {
    int r;

    g->vote->resigned = true;
    g->vote->ballot = 0;
    for (r = 0; r < g->size; r++)
        if (r != g->rank)
            tni_link_bye(tni_link_of(g, r, TNI_VOTE));
}

tn_code tni_vote_open(tn_pg *g, const char *url, bool minority, tn_err *err) {
    struct tni_vote *v = g->vote;
    voter *self = &v->who[g->rank];
    int r;

    if (v->open)
        return tn_fail(err, TN_EINVAL,
                       "group '%s' was shrunk here before, or is being: shrink the group that came of it",
                       g->name);
    self->url = strdup(url);
    if (self->url == NULL || strlen(url) > URL_MAX)
        return tn_fail(err, TN_ENOMEM, "no memory to shrink group '%s'", g->name);
    v->open = true;
    v->minority = self->minority = minority;
    self->joined = true;
    for (r = 0; r < g->size; r++) {
        tni_link *l = tni_link_of(g, r, TNI_VOTE);

        if (r == g->rank)
            continue;
        if (l->state == TNI_CLOSED)
            tni_link_dial(l);
        else
            send_join(g, r);
    }
    return TN_OK;
}

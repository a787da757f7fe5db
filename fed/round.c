/* The round as a pure state machine. What each event does in each state ("-": nothing but noting who is
 * connected):
 *
 *              GATHERING              TRAINING                              COMMITTING         FINISHED, FAILED
 *   JOIN       start when enough      a member is back, its timer stops     -                  -
 *   BREAK      notice                 a waited member's timer starts        -                  -
 *   LEAVE      notice                 a waited member is dropped            -                  -
 *   UPDATE     ignored                a waited member has reported          ignored            ignored
 *   REFUSED    ignored                a waited member is dropped            ignored            ignored
 *   COMMITTED  ignored                ignored                               next round, or     ignored
 *                                                                           FINISHED
 *   COMMIT_    ignored                ignored                               FAILED             ignored
 *   FAILED
 *   STOP       FINISHED               noted: the end of the round is the end of the run        ignored
 *   TICK       start, notice, or      timers, deadline                      -                  -
 *              FAILED when it waited
 *              too long
 *
 * After every event settle() looks at what time and numbers now ask for, so that no transition depends on
 * which event brought it about. An event that arrives in time but is fed after its deadline, before a TICK,
 * still counts: the order of events decides, never a race between two clocks.
 *
 *   TRAINING ends when nobody is waited for, when the target number reported, or at the deadline (the others
 *            are dropped): -> COMMITTING with min_clients reports or more, else -> GATHERING (RETRY).
 *   GATHERING counts and chooses from those who are connected and were not refused in this round.
 *   STOP in TRAINING or COMMITTING is noted: the end of that round, or of that attempt, ends the run.
 *
 * A member is WAITED until it has REPORTED or LEFT; both are final within an attempt. Who reported and then
 * breaks or leaves still counts. Who left the cohort and comes back waits for the next round.
 *
 * A client is remembered while it is connected, in the cohort, refused in this round, or counted in the last
 * committed one (its acknowledgement may have been lost with its connection); memory does not grow with those who come and go. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fed/internal.h"

#define NOT_NOTICED UINT32_MAX /* `noticed` before the first notice */
#define START_RETRY_NS (100 * TN_MS) /* when there was no memory to start with */
/* Actions of one event besides DROPPED: one that ends TRAINING and one that follows on it. */
#define ACTIONS_PER_EVENT 2

typedef struct view { /* ids handed out; made anew when it is asked for and out of date */
    const char **id;  /* room for the whole cohort */
    size_t n;
    bool stale;
} view;

struct tn_round {
    tn_round_cfg cfg;
    tn_round_state state;
    uint64_t committed;
    uint32_t attempt;
    bool first;    /* the very first round of a run: GATHERING waits for start_clients */
    bool stopping;
    bool fed;      /* an event was fed: too late to restore */
    int64_t now;   /* of the last event */

    tni_clients known;
    uint32_t connected;
    tni_client *refused; /* in the round under way: a list */
    uint32_t barred;     /* how many of them are connected */

    /* GATHERING */
    int64_t wait_deadline, notice_at;
    uint32_t noticed; /* the number in the last notice */

    /* TRAINING, COMMITTING */
    tni_client **cohort; /* as chosen, sorted by id */
    size_t cohort_size, waited, reported, target;
    int64_t deadline;
    tni_client *queue_head, *queue_tail; /* broken members; all get resume_ns, so they leave in this order */
    view *cohort_view, *reported_view;   /* behind pointers: made by functions that only look at the machine */

    tni_client **last; /* who was counted in the last committed round */
    size_t nlast;

    tn_round_act *act; /* a queue: act[act_head .. act_tail) */
    size_t act_head, act_tail, act_cap;
};

/* ---- Actions ---- */

static tn_code reserve(tn_round *m, size_t n, tn_err *err) {
    tn_round_act *grown;
    size_t len = m->act_tail - m->act_head, want = len + n;

    if (m->act_head != 0) {
        memmove(m->act, m->act + m->act_head, len * sizeof(*m->act));
        m->act_head = 0;
        m->act_tail = len;
    }
    if (want <= m->act_cap)
        return TN_OK;
    want += want / 2;
    grown = realloc(m->act, want * sizeof(*grown));
    if (grown == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu actions of a round", want);
    m->act = grown;
    m->act_cap = want;
    return TN_OK;
}

/* The event reserved the room. */
static tn_round_act *push(tn_round *m, tn_round_act_kind kind) {
    tn_round_act *a;

    assert(m->act_tail < m->act_cap);
    a = &m->act[m->act_tail++];
    memset(a, 0, sizeof(*a));
    a->kind = kind;
    a->round = m->committed + 1;
    a->attempt = m->attempt;
    return a;
}

bool tn_round_action(tn_round *m, tn_round_act *out) {
    if (m->act_head == m->act_tail)
        return false;
    *out = m->act[m->act_head++];
    return true;
}

/* ---- Broken members ---- */

static void dequeue(tn_round *m, tni_client *c) {
    if (!c->queued)
        return;
    *(c->prev != NULL ? &c->prev->next : &m->queue_head) = c->next;
    *(c->next != NULL ? &c->next->prev : &m->queue_tail) = c->prev;
    c->prev = c->next = NULL;
    c->queued = false;
}

static void enqueue(tn_round *m, tni_client *c, int64_t resume_by) {
    c->resume_by = resume_by;
    c->queued = true;
    c->next = NULL;
    c->prev = m->queue_tail;
    *(m->queue_tail != NULL ? &m->queue_tail->next : &m->queue_head) = c;
    m->queue_tail = c;
}

/* ---- The cohort ---- */

/* Who was refused is not asked again in the same round: a client whose updates are bad would otherwise start
 * attempt after attempt. */
static bool is_barred(const tn_round *m, const tni_client *c) { return c->refused == m->committed + 1; }
/* How many could be chosen. */
static uint32_t available(const tn_round *m) { return m->connected - m->barred; }

static void forget_unless_needed(tn_round *m, tni_client *c) {
    if (!c->connected && c->role == TNI_OUTSIDE && !is_barred(m, c) && (c->counted == 0 || c->counted != m->committed))
        tni_clients_remove(&m->known, c);
}

static void views_changed(tn_round *m) { m->cohort_view->stale = m->reported_view->stale = true; }

static void why_text(const tn_round *m, tni_why why, char *out, size_t cap) {
    switch (why) {
    case TNI_BROKE:
        snprintf(out, cap, "its connection broke and it did not come back within %g s",
                 tni_seconds(m->cfg.resume_ns));
        break;
    case TNI_SAID_BYE:
        snprintf(out, cap, "it said good-bye");
        break;
    case TNI_REFUSED:
        snprintf(out, cap, "its update was refused");
        break;
    case TNI_TOO_SLOW:
        snprintf(out, cap, "no update came from it within %g s", tni_seconds(m->cfg.deadline_ns));
        break;
    }
}

static void drop(tn_round *m, tni_client *c, tni_why why) {
    tn_round_act *a = push(m, TN_ACT_DROPPED);

    assert(c->role == TNI_WAITED);
    dequeue(m, c);
    c->role = TNI_LEFT;
    c->why = why;
    m->waited--;
    views_changed(m);
    snprintf(a->client, sizeof(a->client), "%s", c->id);
    why_text(m, why, a->text, sizeof(a->text));
}

/* The attempt is over without a commit. */
static void dissolve(tn_round *m) {
    for (size_t i = 0; i < m->cohort_size; i++) {
        tni_client *c = m->cohort[i];

        c->role = TNI_OUTSIDE;
        forget_unless_needed(m, c);
    }
    m->cohort_size = m->waited = m->reported = m->target = 0;
    m->deadline = TN_FOREVER;
    views_changed(m);
}

static void bar(tn_round *m, tni_client *c) {
    c->refused = m->committed + 1;
    c->next_refused = m->refused;
    m->refused = c;
    m->barred += c->connected;
}

/* A round later they are clients as all others. Those in `last` are looked at after this. */
static void pardon(tn_round *m) {
    for (tni_client *c = m->refused, *next; c != NULL; c = next) {
        next = c->next_refused;
        if (c->counted != m->committed - 1 || c->counted == 0)
            forget_unless_needed(m, c);
    }
    m->refused = NULL;
    m->barred = 0;
}

/* Those who reported are remembered in place of those of the round before. */
static void count_in(tn_round *m) {
    tni_client **before = m->last;
    size_t nbefore = m->nlast;

    m->committed++;
    pardon(m);
    for (size_t i = 0; i < nbefore; i++)
        forget_unless_needed(m, before[i]); /* members have their role still, and stay */
    m->nlast = 0;
    for (size_t i = 0; i < m->cohort_size; i++) {
        tni_client *c = m->cohort[i];

        if (c->role == TNI_REPORTED) {
            c->counted = m->committed;
            m->cohort[m->nlast++] = c; /* nlast <= i */
        } else {
            c->role = TNI_OUTSIDE;
            forget_unless_needed(m, c);
        }
    }
    m->last = m->cohort;
    for (size_t i = 0; i < m->nlast; i++)
        m->last[i]->role = TNI_OUTSIDE;
    m->cohort = before;
    m->cohort_size = m->waited = m->reported = m->target = 0;
    m->deadline = TN_FOREVER;
    views_changed(m);
}

static bool view_room(view *v, size_t n) {
    const char **grown = realloc(v->id, (n + 1) * sizeof(*grown));

    if (grown == NULL)
        return false;
    v->id = grown;
    return true;
}

static tn_code cohort_room(tn_round *m, size_t n, tn_err *err) {
    tni_client **grown = realloc(m->cohort, (n + 1) * sizeof(*grown));

    if (grown != NULL)
        m->cohort = grown;
    if (grown == NULL || !view_room(m->cohort_view, n) || !view_room(m->reported_view, n))
        return tn_fail(err, TN_ENOMEM, "no memory for a cohort of %zu clients", n);
    return TN_OK;
}

/* ---- Transitions ---- */

static uint32_t need_of(const tn_round *m) { return m->first ? m->cfg.start_clients : m->cfg.min_clients; }

static void enter_gathering(tn_round *m) {
    m->state = TN_GATHERING;
    m->wait_deadline = tn_deadline_after(m->now, m->cfg.wait_timeout_ns);
    m->notice_at = m->now;
    m->noticed = NOT_NOTICED;
}

static void finish(tn_round *m) {
    tn_round_act *a;

    m->state = TN_FINISHED;
    a = push(m, TN_ACT_FINISHED);
    a->round = m->committed;
    if (m->committed >= m->cfg.rounds)
        snprintf(a->text, sizeof(a->text), "all %" PRIu64 " rounds are committed", m->cfg.rounds);
    else
        snprintf(a->text, sizeof(a->text), "stopped after %" PRIu64 " of %" PRIu64 " rounds", m->committed,
                 m->cfg.rounds);
}

static int by_id(const void *a, const void *b) {
    const tni_client *const *x = a, *const *y = b;

    return strcmp((*x)->id, (*y)->id);
}

static tn_code start(tn_round *m, tn_err *err) {
    size_t n = 0, size = tni_round_cohort_size(&m->cfg, available(m));
    size_t *picked = NULL;
    tni_client **here = NULL;
    tn_round_act *a;
    tn_code code = cohort_room(m, size, err);

    if (code != TN_OK)
        goto out;
    picked = malloc(size * sizeof(*picked));
    here = malloc(available(m) * sizeof(*here));
    if (picked == NULL || here == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory to choose a cohort of %zu clients", size);
        goto out;
    }
    for (size_t i = 0; i < m->known.cap; i++) {
        tni_client *c = m->known.slot[i];

        if (c != NULL && c->connected && !is_barred(m, c))
            here[n++] = c;
    }
    assert(n == available(m));
    qsort(here, n, sizeof(*here), by_id);
    m->attempt++;
    tni_select_uniform(n, size, m->cfg.seed, m->committed + 1, m->attempt, picked);
    for (size_t i = 0; i < size; i++) {
        m->cohort[i] = here[picked[i]];
        m->cohort[i]->role = TNI_WAITED;
    }
    m->cohort_size = m->waited = size;
    m->reported = 0;
    m->target = tni_round_target(&m->cfg, n);
    m->deadline = tn_deadline_after(m->now, m->cfg.deadline_ns);
    m->state = TN_TRAINING;
    views_changed(m);
    a = push(m, TN_ACT_START);
    a->have = (uint32_t)size;
    a->need = (uint32_t)m->target;
out:
    free(picked);
    free(here);
    return code;
}

/* Fills in the numbers, and `front` with them as a sentence. */
static void tell_numbers(const tn_round *m, tn_round_act *a, const char *front) {
    a->have = available(m);
    a->need = need_of(m);
    snprintf(a->text, sizeof(a->text), "%s for %" PRIu32 " client%s, %" PRIu32 " %s here", front, a->need,
             a->need == 1 ? "" : "s", a->have, a->have == 1 ? "is" : "are");
}

static void notice(tn_round *m) {
    tell_numbers(m, push(m, TN_ACT_WAITING), "waiting");
    m->noticed = available(m);
    m->notice_at = tn_deadline_after(m->now, m->cfg.notice_ns);
}

static void waited_too_long(tn_round *m) {
    char front[48];

    m->state = TN_FAILED;
    snprintf(front, sizeof(front), "waited %g s", tni_seconds(m->cfg.wait_timeout_ns));
    tell_numbers(m, push(m, TN_ACT_FAILED), front);
}

static tn_code settle_gathering(tn_round *m, tn_err *err) {
    if (m->stopping)
        finish(m);
    else if (available(m) >= need_of(m))
        return start(m, err);
    else if (m->now >= m->wait_deadline)
        waited_too_long(m);
    else if (available(m) != m->noticed || m->now >= m->notice_at)
        notice(m);
    return TN_OK;
}

static void end_training(tn_round *m) {
    bool enough = m->reported >= m->cfg.min_clients;
    tn_round_act *a = push(m, enough ? TN_ACT_COMMIT : TN_ACT_RETRY);

    a->have = (uint32_t)m->reported;
    a->need = m->cfg.min_clients;
    while (m->queue_head != NULL) /* over-selected members may be waited for still */
        dequeue(m, m->queue_head);
    if (enough) {
        m->state = TN_COMMITTING;
        return;
    }
    snprintf(a->text, sizeof(a->text), "%" PRIu32 " of %zu clients reported, %" PRIu32 " %s needed", a->have,
             m->cohort_size, a->need, a->need == 1 ? "is" : "are");
    dissolve(m);
    m->first = false;
    enter_gathering(m);
}

static void settle_training(tn_round *m) {
    while (m->queue_head != NULL && m->now >= m->queue_head->resume_by)
        drop(m, m->queue_head, TNI_BROKE);
    if (m->waited != 0 && m->reported < m->target && m->now >= m->deadline) {
        for (size_t i = 0; i < m->cohort_size; i++) {
            if (m->cohort[i]->role == TNI_WAITED)
                drop(m, m->cohort[i], TNI_TOO_SLOW);
        }
    }
    if (m->waited == 0 || m->reported >= m->target)
        end_training(m);
}

/* Room for what settle() may say now. */
static tn_code reserve_for_settling(tn_round *m, tn_err *err) {
    bool broken = m->queue_head != NULL && m->now >= m->queue_head->resume_by;
    bool due = m->state == TN_TRAINING && (broken || m->now >= m->deadline);

    /* One DROPPED may come from the event itself; with resume_ns = 0 that is the BREAK. */
    return reserve(m, ACTIONS_PER_EVENT + 1 + (due ? m->waited : 0), err);
}

static tn_code settle(tn_round *m, tn_err *err) {
    if (m->state == TN_TRAINING)
        settle_training(m);
    return m->state == TN_GATHERING ? settle_gathering(m, err) : TN_OK;
}

/* ---- Events ---- */

static tn_code on_join(tn_round *m, const char *id, tn_err *err) {
    tni_client *c = tni_clients_find(&m->known, id);

    if (c != NULL && c->connected)
        return TN_OK;
    if (m->connected >= TN_MAX_CLIENTS)
        return tn_fail(err, TN_ETOOBIG, "client %s is one too many: %d are connected", id, TN_MAX_CLIENTS);
    if (c == NULL && (c = tni_clients_add(&m->known, id)) == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for client %s", id);
    c->connected = true;
    m->connected++;
    m->barred += is_barred(m, c);
    dequeue(m, c);
    return TN_OK;
}

/* Its connection is gone; `for_good`: it will not come back for this round. */
static void on_gone(tn_round *m, tni_client *c, bool for_good) {
    if (c->connected) {
        c->connected = false;
        m->connected--;
        m->barred -= is_barred(m, c);
        if (m->state == TN_TRAINING && c->role == TNI_WAITED && !for_good)
            enqueue(m, c, tn_deadline_after(m->now, m->cfg.resume_ns));
    }
    if (m->state == TN_TRAINING && c->role == TNI_WAITED && for_good)
        drop(m, c, TNI_SAID_BYE);
    forget_unless_needed(m, c);
}

static void on_update(tn_round *m, tni_client *c) {
    if (m->state != TN_TRAINING || c->role != TNI_WAITED)
        return;
    dequeue(m, c);
    c->role = TNI_REPORTED;
    m->waited--;
    m->reported++;
    views_changed(m);
}

static void on_committed(tn_round *m) {
    if (m->state != TN_COMMITTING)
        return;
    count_in(m);
    m->attempt = 0;
    m->first = false;
    if (m->committed >= m->cfg.rounds || m->stopping)
        finish(m);
    else
        enter_gathering(m);
}

static void on_commit_failed(tn_round *m) {
    tn_round_act *a;

    if (m->state != TN_COMMITTING)
        return;
    m->state = TN_FAILED;
    a = push(m, TN_ACT_FAILED);
    snprintf(a->text, sizeof(a->text), "round %" PRIu64 " could not be committed", a->round);
}

/* The events that concern one client. */
static tn_code on_client(tn_round *m, const tn_round_ev *ev, tn_err *err) {
    tni_client *c;

    if (ev->client == NULL || !tn_id_valid(ev->client))
        return tn_fail(err, TN_EINVAL, "\"%.80s\" is not a client id: %s", ev->client == NULL ? "" : ev->client,
                       TNI_ID_RULE);
    if (ev->kind == TN_EV_JOIN)
        return on_join(m, ev->client, err);
    c = tni_clients_find(&m->known, ev->client);
    if (c == NULL)
        return TN_OK;
    if (ev->kind == TN_EV_UPDATE)
        on_update(m, c);
    else if (ev->kind != TN_EV_REFUSED)
        on_gone(m, c, ev->kind == TN_EV_LEAVE);
    else if (m->state == TN_TRAINING && c->role == TNI_WAITED) {
        drop(m, c, TNI_REFUSED);
        bar(m, c);
    }
    return TN_OK;
}

tn_code tn_round_event(tn_round *m, const tn_round_ev *ev, int64_t now, tn_err *err) {
    tn_code code;

    if (now > m->now)
        m->now = now;
    m->fed = true;
    if ((code = reserve_for_settling(m, err)) != TN_OK)
        return code;
    switch (ev->kind) {
    case TN_EV_JOIN:
    case TN_EV_BREAK:
    case TN_EV_LEAVE:
    case TN_EV_UPDATE:
    case TN_EV_REFUSED:
        code = on_client(m, ev, err);
        break;
    case TN_EV_COMMITTED:
        on_committed(m);
        break;
    case TN_EV_COMMIT_FAILED:
        on_commit_failed(m);
        break;
    case TN_EV_STOP:
        m->stopping = true;
        break;
    case TN_EV_TICK:
        break;
    }
    return code != TN_OK ? code : settle(m, err);
}

/* ---- Making, restoring ---- */

tn_code tn_round_new(tn_round **out, const tn_round_cfg *cfg, uint64_t committed_rounds, int64_t now,
                     tn_err *err) {
    tn_round *m = NULL;
    tn_code code = tni_round_cfg_check(cfg, err);

    *out = NULL;
    if (code != TN_OK)
        return code;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a round");
    m->cfg = *cfg;
    m->committed = committed_rounds;
    m->first = committed_rounds == 0;
    m->now = now;
    m->deadline = TN_FOREVER;
    m->cohort_view = calloc(1, sizeof(view));
    m->reported_view = calloc(1, sizeof(view));
    if (m->cohort_view == NULL || m->reported_view == NULL)
        code = tn_fail(err, TN_ENOMEM, "no memory for a round");
    else if ((code = reserve(m, ACTIONS_PER_EVENT, err)) == TN_OK) {
        enter_gathering(m);
        if (committed_rounds >= cfg->rounds)
            finish(m);
        else
            notice(m);
    }
    if (code != TN_OK)
        tn_round_free(m);
    else
        *out = m;
    return code;
}

void tn_round_free(tn_round *m) {
    if (m == NULL)
        return;
    tni_clients_release(&m->known);
    if (m->cohort_view != NULL)
        free(m->cohort_view->id);
    if (m->reported_view != NULL)
        free(m->reported_view->id);
    free(m->cohort_view);
    free(m->reported_view);
    free(m->cohort);
    free(m->last);
    free(m->act);
    free(m);
}

/* Adds a member of the restored cohort; on failure `dissolve` takes those before it away again. */
static tn_code restore_member(tn_round *m, const char *id, tn_err *err) {
    tni_client *c;

    if (!tn_id_valid(id))
        return tn_fail(err, TN_EINVAL, "\"%.80s\" is not a client id: %s", id, TNI_ID_RULE);
    if (tni_clients_find(&m->known, id) != NULL)
        return tn_fail(err, TN_EINVAL, "client %s is twice in the cohort", id);
    if ((c = tni_clients_add(&m->known, id)) == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for client %s", id);
    c->role = TNI_WAITED;
    m->cohort[m->cohort_size++] = c;
    m->waited++;
    return TN_OK;
}

static tn_code restore_report(tn_round *m, const char *id, tn_err *err) {
    tni_client *c = tni_clients_find(&m->known, id);

    if (c == NULL)
        return tn_fail(err, TN_EINVAL, "client %.64s reported and is not in the cohort", id);
    if (c->role == TNI_REPORTED)
        return tn_fail(err, TN_EINVAL, "client %s reported twice", id);
    c->role = TNI_REPORTED;
    m->waited--;
    m->reported++;
    return TN_OK;
}

tn_code tn_round_restore(tn_round *m, uint64_t round, uint32_t attempt, const char *const *cohort,
                         size_t ncohort, const char *const *reported, size_t nreported, int64_t now,
                         tn_err *err) {
    tn_code code;

    if (m->fed || m->state != TN_GATHERING || m->cohort_size != 0)
        return tn_fail(err, TN_EINVAL, "a round is restored before any event, and while rounds are left");
    if (round != m->committed + 1)
        return tn_fail(err, TN_EINVAL, "round %" PRIu64 " cannot be under way when %" PRIu64 " are committed",
                       round, m->committed);
    if (attempt == 0 || ncohort > TN_MAX_CLIENTS || nreported > ncohort)
        return tn_fail(err, TN_EINVAL, "attempt %" PRIu32 " with %zu of %zu clients reported is not one",
                       attempt, nreported, ncohort);
    if (now > m->now)
        m->now = now;
    code = cohort_room(m, ncohort, err);
    for (size_t i = 0; i < ncohort && code == TN_OK; i++)
        code = restore_member(m, cohort[i], err);
    for (size_t i = 0; i < nreported && code == TN_OK; i++)
        code = restore_report(m, reported[i], err);
    if (code == TN_OK)
        code = reserve(m, ACTIONS_PER_EVENT, err);
    if (code != TN_OK) {
        dissolve(m);
        return code;
    }
    m->attempt = attempt;
    m->first = false;
    m->act_head = m->act_tail = 0; /* the notice of tn_round_new */
    if (ncohort == 0) {
        enter_gathering(m);
    } else {
        qsort(m->cohort, ncohort, sizeof(*m->cohort), by_id);
        m->target = tni_round_target_of_cohort(&m->cfg, ncohort);
        m->deadline = tn_deadline_after(m->now, m->cfg.deadline_ns);
        m->state = TN_TRAINING;
        views_changed(m);
    }
    return settle(m, err);
}

/* ---- Looking ---- */

int64_t tn_round_next_tick(const tn_round *m) {
    int64_t resume = m->queue_head != NULL ? m->queue_head->resume_by : TN_FOREVER;

    switch (m->state) {
    case TN_GATHERING:
        if (available(m) >= need_of(m))
            return tn_deadline_after(m->now, START_RETRY_NS);
        return m->notice_at < m->wait_deadline ? m->notice_at : m->wait_deadline;
    case TN_TRAINING:
        return resume < m->deadline ? resume : m->deadline;
    case TN_COMMITTING:
    case TN_FINISHED:
    case TN_FAILED:
        break;
    }
    return TN_FOREVER;
}

tn_round_state tn_round_state_of(const tn_round *m) { return m->state; }
uint64_t tn_round_number(const tn_round *m) { return m->committed + 1; }
uint32_t tn_round_attempt(const tn_round *m) { return m->attempt; }
int64_t tn_round_deadline(const tn_round *m) { return m->state == TN_TRAINING ? m->deadline : TN_FOREVER; }
size_t tn_round_clients(const tn_round *m) { return m->connected; }

static bool is_member(const tni_client *c) { return c->role == TNI_WAITED || c->role == TNI_REPORTED; }
static bool is_reported(const tni_client *c) { return c->role == TNI_REPORTED; }

bool tn_round_in_cohort(const tn_round *m, const char *client) {
    const tni_client *c = tni_clients_find(&m->known, client);

    return c != NULL && is_member(c);
}

static size_t look(const tn_round *m, view *v, bool (*wanted)(const tni_client *), const char *const **ids) {
    if (v->stale) {
        v->n = 0;
        for (size_t i = 0; i < m->cohort_size; i++) {
            if (wanted(m->cohort[i]))
                v->id[v->n++] = m->cohort[i]->id;
        }
        v->stale = false;
    }
    *ids = v->id;
    return v->n;
}

size_t tn_round_cohort(const tn_round *m, const char *const **ids) {
    return look(m, m->cohort_view, is_member, ids);
}

size_t tn_round_reported(const tn_round *m, const char *const **ids) {
    return look(m, m->reported_view, is_reported, ids);
}

static tn_code counted_already(const tni_client *c, uint64_t round, tn_err *err) {
    return tn_fail(err, TN_EBUSY, "the update of %s for round %" PRIu64 " is counted already", c->id, round);
}

/* For a client that is not to send: why not. The round and the attempt are those under way. */
static tn_code refuse_member(const tn_round *m, const tni_client *c, const char *client, tn_err *err) {
    char why[120];

    if (m->state != TN_TRAINING && m->state != TN_COMMITTING)
        return tn_fail(err, TN_EROUND, "round %" PRIu64 " has not started", m->committed + 1);
    if (c == NULL || c->role == TNI_OUTSIDE)
        return tn_fail(err, TN_EROUND, "client %.64s is not in the cohort of round %" PRIu64, client,
                       m->committed + 1);
    if (c->role == TNI_LEFT) {
        why_text(m, c->why, why, sizeof(why));
        return tn_fail(err, TN_EROUND, "client %s left the cohort of round %" PRIu64 ": %s", c->id,
                       m->committed + 1, why);
    }
    return tn_fail(err, TN_EROUND, "round %" PRIu64 " is closed: it had the %zu updates it asked for",
                   m->committed + 1, m->reported);
}

tn_code tn_round_may_update(const tn_round *m, const char *client, uint64_t round, uint32_t attempt,
                            tn_err *err) {
    const tni_client *c = tni_clients_find(&m->known, client);
    bool gathering = m->state == TN_GATHERING;

    if (c != NULL && round != 0 && round == c->counted && round == m->committed)
        return counted_already(c, round, err);
    if (round <= m->committed)
        return tn_fail(err, TN_EROUND, "round %" PRIu64 " is over: %" PRIu64 " rounds are committed", round,
                       m->committed);
    if (round > m->committed + 1)
        return tn_fail(err, TN_EROUND, "round %" PRIu64 " has not begun: %" PRIu64 " rounds are committed", round,
                       m->committed);
    if (attempt != m->attempt || gathering)
        return tn_fail(err, TN_EROUND, "attempt %" PRIu32 " of round %" PRIu64 " is not under way: %s %" PRIu32,
                       attempt, round, gathering ? "clients gather for attempt" : "this is attempt",
                       gathering ? m->attempt + 1 : m->attempt);
    if (c != NULL && c->role == TNI_REPORTED)
        return counted_already(c, round, err);
    if (m->state == TN_TRAINING && c != NULL && c->role == TNI_WAITED)
        return TN_OK;
    return refuse_member(m, c, client, err);
}

/* The round machine of fed, bound to the world: its events come from here, and what it asks for is done here. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "server/dp.h"

#define TELL_NS TN_SECOND /* "waiting for ..." is told at most that often, however many clients come and go */

static void offer_all(srv *s) {
    for (session *c = s->sessions, *next; c != NULL; c = next) {
        next = c->next;
        rounds_offer(c);
    }
}

static void notice_all(srv *s, const char *text) {
    for (session *c = s->sessions; c != NULL; c = c->next) {
        if (c->open_next != 0)
            session_notice(c, text);
    }
}

/* The run cannot go on. What is on the disk is whole: a restart goes on from there. */
static void fail(srv *s, const char *text) {
    if (s->failed)
        return;
    s->failed = s->finished = true;
    snprintf(s->failure, sizeof(s->failure), "%s", text);
    offer_all(s);
}

/* ---- What clients get ---- */

uint64_t rounds_servable(const srv *s) {
    uint64_t number = tn_round_number(s->round);

    if (s->failed)
        return 0;
    return tn_round_state_of(s->round) == TN_FINISHED ? number - 1 : number;
}

/* Whether there is a task for this client now. */
static bool task_for(const session *c, tn_msg_task *m) {
    const srv *s = c->srv;
    tn_round_state state = tn_round_state_of(s->round);
    const char *const *ids;

    memset(m, 0, sizeof(*m));
    m->round = tn_round_number(s->round);
    m->attempt = tn_round_attempt(s->round);
    memcpy(m->model_hash, s->model->hash, sizeof(m->model_hash));
    if (s->failed) {
        m->kind = TN_TASK_FAILED;
        snprintf(m->text, sizeof(m->text), "%s", s->failure);
        return true;
    }
    if (state == TN_FINISHED && !s->stopped) {
        m->kind = TN_TASK_DONE;
        m->round--;
        return true;
    }
    if (state != TN_TRAINING || tn_round_may_update(s->round, c->id, m->round, m->attempt, NULL) != TN_OK)
        return false;
    m->deadline_seconds = s->cfg->deadline;
    m->cohort = (uint32_t)tn_round_cohort(s->round, &ids);
    return true;
}

void rounds_offer(session *c) {
    tn_msg_task m;
    tn_wr w;
    uint64_t request = c->open_next;

    if (request == 0 || !task_for(c, &m))
        return;
    c->open_next = 0;
    w = tn_wr_init(TN_MSG_MAX_SMALL);
    tn_msg_task_encode(&m, &w);
    session_send(c, TN_MSG_TASK, request, &w);
}

void rounds_sentence(const srv *s, char *out, size_t cap) {
    const char *const *ids;

    if (tn_round_state_of(s->round) == TN_GATHERING)
        snprintf(out, cap, "%s", s->waiting);
    else
        snprintf(out, cap, "round %" PRIu64 " of %lld is under way: %zu of %zu clients have reported",
                 tn_round_number(s->round), (long long)s->cfg->rounds, tn_round_reported(s->round, &ids),
                 tn_round_cohort(s->round, &ids));
}

/* ---- Committing ---- */

typedef struct line { /* of metrics, for the log */
    char text[400];
    size_t n;
} line;

static void add_metric(void *arg, const char *name, double mean, bool some, uint64_t dropped) {
    line *l = arg;
    int n = 0;

    if (some)
        n = snprintf(l->text + l->n, sizeof(l->text) - l->n, ", %s %.4g", name, mean);
    else
        n = snprintf(l->text + l->n, sizeof(l->text) - l->n, ", %s -", name);
    if (n > 0 && dropped != 0 && (size_t)n < sizeof(l->text) - l->n)
        n += snprintf(l->text + l->n + n, sizeof(l->text) - l->n - (size_t)n, " (%" PRIu64 " not finite)", dropped);
    if (n < 0 || (size_t)n >= sizeof(l->text) - l->n)
        l->text[l->n] = '\0'; /* no room: it is only the log */
    else
        l->n += (size_t)n;
}

/* A model to add the updates to: the one there is, if no send still reads it. */
static model *model_to_change(srv *s, tn_err *err) {
    model *m;

    if (s->model->refs == 1)
        return model_ref(s->model);
    m = calloc(1, sizeof(*m));
    if (m != NULL && (m->block = malloc(s->layout.nbytes)) != NULL) {
        m->refs = 1;
        memcpy(m->block, s->model->block, s->layout.nbytes);
        return m;
    }
    free(m);
    tn_fail(err, TN_ENOMEM, "no memory for another model of %zu bytes", s->layout.nbytes);
    return NULL;
}

static tn_code aggregate(srv *s, const tn_round_act *a, const char *const *ids, size_t n, model *m, tn_err *err) {
    tn_update *u = calloc(n, sizeof(*u));
    tn_map *map = calloc(n, sizeof(*map));
    tn_code code = u != NULL && map != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "no memory for %zu updates", n);

    for (size_t i = 0; i < n && code == TN_OK; i++)
        code = spool_map(&map[i], s->spool_dir, a->round, a->attempt, ids[i], s->layout.nbytes, &u[i], err);
    if (code == TN_OK)
        code = s->dp.on ? dp_aggregate(s, a->round, u, n, m->block, err)
                        : tn_agg_run(s->agg, &s->layout, u, n, m->block, err);
    for (size_t i = 0; i < n && map != NULL; i++)
        tn_map_release(&map[i]);
    free(map);
    free(u);
    return code;
}

/* The members that a last DONE would not reach. */
static bool anyone_absent(srv *s) {
    const char *const *ids;
    size_t n = tn_round_cohort(s->round, &ids);

    for (size_t i = 0; i < n; i++) {
        if (session_find(s, ids[i]) == NULL)
            return true;
    }
    return false;
}

static tn_code commit(srv *s, const tn_round_act *a, tn_err *err) {
    char hash[2 * TN_HASH_BYTES + 1];
    const char *const *ids;
    size_t n = tn_round_reported(s->round, &ids);
    line metrics = {.text = "", .n = 0};
    journal_round r = {.round = a->round, .attempt = a->attempt, .model_hash = hash};
    model *m = model_to_change(s, err);
    tn_code code;

    if (m == NULL)
        return TN_ENOMEM;
    code = aggregate(s, a, ids, n, m, err);
    if (code == TN_OK)
        code = state_write_model(s, m->block, a->round, err);
    if (code == TN_OK) {
        tn_hash_once(m->block, s->layout.nbytes, m->hash);
        tn_hex(m->hash, TN_HASH_BYTES, hash);
        m->committed = a->round;
        r.seconds = (double)(tn_now() - s->round_started) / 1e9;
        r.bytes = s->bytes - s->bytes_at_start;
        code = journal_commit(s->journal, &r, ids, n, err);
    }
    if (code != TN_OK) {
        model_unref(m);
        return code;
    }
    model_unref(s->model);
    s->model = m;
    s->absent = anyone_absent(s);
    spool_sweep(s->spool_dir, 0, 0);
    state_keep_models(s, a->round);
    if (journal_metrics(s->journal, a->round, a->attempt, add_metric, &metrics, NULL) != TN_OK)
        metrics.text[0] = '\0';
    tn_log(TN_LOG_INFO, "server", "round %" PRIu64 "/%lld: %zu update%s%s, %.3f s, %" PRIu64 " bytes", a->round,
           (long long)s->cfg->rounds, n, n == 1 ? "" : "s", metrics.text, r.seconds, r.bytes);
    return TN_OK;
}

/* ---- Actions ---- */

static void on_start(srv *s, const tn_round_act *a) {
    tn_err err = TN_ERR_INIT;
    const char *const *ids;
    size_t n = tn_round_cohort(s->round, &ids);

    if (journal_start(s->journal, a->round, a->attempt, ids, n, &err) != TN_OK) {
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
        fail(s, "the server could not record the round; its operator has the reason in the log");
        return;
    }
    spool_sweep(s->spool_dir, a->round, a->attempt);
    s->round_started = tn_now();
    s->bytes_at_start = s->bytes;
    tn_log(TN_LOG_DEBUG, "server", "round %" PRIu64 ", attempt %" PRIu32 ": %zu clients train", a->round, a->attempt, n);
    offer_all(s);
}

/* The job is done when its budget is: clients get the last model as the final one. */
static void stop_when_spent(srv *s) {
    tn_round_ev ev = {.kind = TN_EV_STOP};
    tn_err err = TN_ERR_INIT;

    s->spent = dp_exhausted(s);
    if (s->spent && tn_round_event(s->round, &ev, tn_now(), &err) != TN_OK)
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
}

static void on_commit(srv *s, const tn_round_act *a) {
    tn_err err = TN_ERR_INIT;
    tn_round_ev ev = {.kind = TN_EV_COMMITTED};
    tn_code code = commit(s, a, &err);

    if (code != TN_OK) {
        tn_log(TN_LOG_ERROR, "server", "round %" PRIu64 " cannot be committed: %s", a->round, err.msg);
        ev.kind = TN_EV_COMMIT_FAILED;
    } else {
        stop_when_spent(s);
    }
    if (tn_round_event(s->round, &ev, tn_now(), &err) != TN_OK)
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
}

static void on_retry(srv *s, const tn_round_act *a) {
    tn_err err = TN_ERR_INIT;

    tn_log(TN_LOG_WARN, "server", "round %" PRIu64 " starts again: %s", a->round, a->text);
    if (journal_retry(s->journal, a->round, a->attempt, &err) != TN_OK) {
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
        fail(s, "the server could not record the round; its operator has the reason in the log");
    }
    spool_sweep(s->spool_dir, 0, 0);
}

static void on_finished(srv *s, const tn_round_act *a) {
    s->finished = true;
    s->stopped = a->round < (uint64_t)s->cfg->rounds && !s->spent;
    tn_log(TN_LOG_INFO, "server", "%s", a->text);
    if (s->stopped)
        notice_all(s, "the server was stopped; the job goes on when it is started again");
    else
        offer_all(s);
}

static void act(srv *s) {
    tn_round_act a;

    if (s->acting)
        return;
    s->acting = true;
    while (!s->failed && tn_round_action(s->round, &a)) {
        switch (a.kind) {
        case TN_ACT_WAITING:
            snprintf(s->waiting, sizeof(s->waiting), "%s", a.text);
            s->waiting_news = true;
            break;
        case TN_ACT_START:
            on_start(s, &a);
            break;
        case TN_ACT_DROPPED:
            tn_log(TN_LOG_WARN, "server", "round %" PRIu64 " goes on without client %s: %s", a.round, a.client, a.text);
            break;
        case TN_ACT_COMMIT:
            on_commit(s, &a);
            break;
        case TN_ACT_RETRY:
            on_retry(s, &a);
            break;
        case TN_ACT_FINISHED:
            on_finished(s, &a);
            break;
        case TN_ACT_FAILED:
            tn_log(TN_LOG_ERROR, "server", "%s", a.text);
            fail(s, a.text);
            break;
        }
    }
    s->acting = false;
}

void rounds_feed(srv *s, tn_round_ev_kind kind, const char *client) {
    tn_round_ev ev = {.kind = kind, .client = client};
    tn_err err = TN_ERR_INIT;

    if (tn_round_event(s->round, &ev, tn_now(), &err) != TN_OK)
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
    act(s); /* when it is under way further up, that one goes on with the new actions */
}

void rounds_begin(srv *s) { act(s); }

/* Says what is being waited for, at a bounded rate, and something to everybody who waits, so that they know that
 * the server is alive. Returns when to look again. */
int64_t rounds_tell(srv *s, int64_t now) {
    char text[256];

    if (s->waiting_news && now - s->told_at >= TELL_NS) {
        s->waiting_news = false;
        s->told_at = now;
        if (tn_round_state_of(s->round) == TN_GATHERING) {
            tn_log(TN_LOG_INFO, "server", "%s", s->waiting);
            notice_all(s, s->waiting);
        }
    }
    if (now >= s->sweep_at) {
        s->sweep_at = tn_deadline_after(now, NOTICE_NS / 2);
        rounds_sentence(s, text, sizeof(text));
        for (session *c = s->sessions; c != NULL; c = c->next) {
            if (c->open_next != 0 && now - c->last_sent >= NOTICE_NS / 2)
                session_notice(c, text);
        }
    }
    return s->waiting_news && s->told_at + TELL_NS < s->sweep_at ? s->told_at + TELL_NS : s->sweep_at;
}

/* ---- Going on ---- */

tn_code rounds_open(srv *s, tn_err *err) {
    tn_round_cfg cfg = tn_srv_round_cfg(s->cfg);
    id_list cohort = {NULL, 0, 0}, reported = {NULL, 0, 0};
    uint64_t committed = s->model->committed;
    uint32_t attempt = 0;
    int64_t now = tn_now();
    tn_code code = tn_round_new(&s->round, &cfg, committed, now, err);

    if (code == TN_OK && committed < cfg.rounds)
        stop_when_spent(s);
    if (code == TN_OK && committed < cfg.rounds && !s->spent)
        code = journal_under_way(s->journal, committed + 1, &attempt, &cohort, &reported, err);
    if (code == TN_OK && attempt != 0) {
        code = tn_round_restore(s->round, committed + 1, attempt, (const char *const *)cohort.id, cohort.n,
                                (const char *const *)reported.id, reported.n, now, err);
        if (code == TN_OK && cohort.n != 0)
            tn_log(TN_LOG_INFO, "server", "goes on in round %" PRIu64 ": %zu of %zu clients have reported", committed + 1,
                   reported.n, cohort.n);
    }
    if (code == TN_OK)
        spool_sweep(s->spool_dir, cohort.n != 0 ? committed + 1 : 0, cohort.n != 0 ? attempt : 0);
    s->round_started = now;
    s->told_at = now - TELL_NS;
    s->sweep_at = tn_deadline_after(now, NOTICE_NS / 2);
    id_list_release(&cohort);
    id_list_release(&reported);
    return code;
}

bool id_list_add(id_list *l, const char *id) {
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 64 : l->cap * 2;
        char **grown = realloc(l->id, cap * sizeof(*grown));

        if (grown == NULL)
            return false;
        l->id = grown;
        l->cap = cap;
    }
    l->id[l->n] = strdup(id);
    return l->id[l->n] != NULL && ++l->n != 0;
}

void id_list_release(id_list *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->id[i]);
    free(l->id);
    memset(l, 0, sizeof(*l));
}

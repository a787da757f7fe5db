/* An update on its way in: BEGIN opens a file in the spool, PUT appends, END checks it. Then it waits for
 * update_flush, which makes everything durable that came in together: files, folder, one transaction of the
 * journal. Only after that is it fed to the round and acknowledged; so what was acknowledged is counted once,
 * whatever dies when. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "server/internal.h"

#define EXAMPLES_MAX (UINT64_C(1) << 40) /* tn_update_check's */

struct upload {
    upload *next;     /* among the pending */
    session *session; /* NULL when its connection is gone */
    char client[TN_ID_MAX + 1];
    uint64_t round;
    uint32_t attempt;
    spool_file file;
    char *metrics; /* JSON */
    tn_err fail;   /* the disk refused: what still comes is thrown away, and END is answered with this */
    bool done;     /* on the disk */
};

static void free_upload(upload *u) {
    if (u->session != NULL)
        u->session->up = NULL;
    spool_close(&u->file);
    free(u->metrics);
    free(u);
}

static void accepted(session *c, uint64_t request, uint64_t round, bool duplicate) {
    tn_msg_accepted m = {.round = round, .duplicate = duplicate};
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);

    tn_msg_accepted_encode(&m, &w);
    session_send(c, TN_MSG_ACCEPTED, request, &w);
}

/* Refused, and nothing that the client could send again would help: the round goes on without it. */
static void refuse_for_good(session *c, uint64_t request, const tn_err *why) {
    char id[TN_ID_MAX + 1];

    snprintf(id, sizeof(id), "%s", c->id);
    session_error(c, request, why->code, "%s", why->msg);
    rounds_feed(c->srv, TN_EV_REFUSED, id);
}

/* ---- Metrics as JSON ---- */

/* Names are UTF-8 without control characters. */
static void put_name(tn_wr *w, const char *name) {
    tn_wr_u8(w, '"');
    for (; *name != '\0'; name++) {
        if (*name == '"' || *name == '\\')
            tn_wr_u8(w, '\\');
        tn_wr_u8(w, (uint8_t)*name);
    }
    tn_wr_u8(w, '"');
}

static char *metrics_to_json(const tn_metric *m, size_t n) {
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);
    char number[40];

    tn_wr_u8(&w, '{');
    for (size_t i = 0; i < n; i++) {
        if (i != 0)
            tn_wr_u8(&w, ',');
        put_name(&w, m[i].name);
        if (isfinite(m[i].value))
            snprintf(number, sizeof(number), ":%.17g", m[i].value);
        else
            snprintf(number, sizeof(number), ":null");
        tn_wr_bytes(&w, number, strlen(number));
    }
    tn_wr_bytes(&w, "}", 2);
    if (w.fail != TN_OK)
        tn_wr_release(&w);
    return (char *)w.p;
}

/* ---- BEGIN ---- */

/* TN_OK: it may come. TN_EBUSY: it is counted already. */
static tn_code may_come(srv *s, const char *client, uint64_t round, uint32_t attempt, tn_err *err) {
    tn_err ignored;
    bool counted = false;
    tn_code code = tn_round_may_update(s->round, client, round, attempt, err);

    if (code == TN_EROUND && journal_was_counted(s->journal, client, round, attempt, &counted, &ignored) == TN_OK && counted)
        return TN_EBUSY;
    return code;
}

static tn_code check_begin(const srv *s, const tn_msg_begin *m, tn_err *err) {
    if (m->bytes != s->layout.nbytes)
        return tn_fail(err, TN_ESHAPE, "the update has %" PRIu64 " bytes, the model %zu", m->bytes, s->layout.nbytes);
    if (m->examples == 0 || m->examples > EXAMPLES_MAX)
        return tn_fail(err, TN_EINVAL, "the update has %" PRIu64 " examples; 1 to %" PRIu64 " are allowed", m->examples,
                       EXAMPLES_MAX);
    return TN_OK;
}

static bool is_pending(const srv *s, const char *client) {
    const upload *u = s->pending;

    while (u != NULL && strcmp(u->client, client) != 0)
        u = u->next;
    return u != NULL;
}

static void open_upload(session *c, const tn_frame *f, const tn_msg_begin *m) {
    srv *s = c->srv;
    spool_head head = {.examples = m->examples, .bytes = m->bytes};
    tn_msg_resume resume;
    tn_err err = TN_ERR_INIT;
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);
    upload *u = calloc(1, sizeof(*u));

    memcpy(head.hash, m->hash, sizeof(head.hash));
    if (c->put_buffer == NULL)
        c->put_buffer = malloc(UPLOAD_CHUNK);
    if (u == NULL || c->put_buffer == NULL || (u->metrics = metrics_to_json(m->metric, m->nmetrics)) == NULL)
        tn_fail(&err, TN_ENOMEM, "no memory for an update");
    else
        spool_open(&u->file, s->spool_dir, m->round, m->attempt, c->id, &head, &err);
    if (err.code != TN_OK) {
        if (u != NULL)
            free(u->metrics);
        free(u);
        session_error(c, f->id, err.code, "%s", err.msg);
        return;
    }
    u->session = c;
    snprintf(u->client, sizeof(u->client), "%s", c->id);
    u->round = m->round;
    u->attempt = m->attempt;
    c->up = u;
    c->state = SESSION_UPLOAD;
    atomic_store(&c->takes_put, true);
    resume.offset = u->file.offset;
    if (resume.offset != 0)
        tn_log(TN_LOG_INFO, "server", "client %s goes on with its update at byte %" PRIu64, c->id, resume.offset);
    tn_msg_resume_encode(&resume, &w);
    session_send(c, TN_MSG_RESUME, f->id, &w);
}

void update_begin(session *c, const tn_frame *f, const uint8_t *body) {
    srv *s = c->srv;
    tn_err err = TN_ERR_INIT;
    tn_msg_begin m;
    tn_code code;

    if (tn_msg_begin_decode(&m, body, f->size, &err) != TN_OK) {
        session_end(c, err.code, "%s", err.msg);
        return;
    }
    if (is_pending(s, c->id))
        update_flush(s);
    code = may_come(s, c->id, m.round, m.attempt, &err);
    if (code == TN_EBUSY)
        accepted(c, f->id, m.round, true);
    else if (code != TN_OK)
        session_error(c, f->id, code, "%s", err.msg);
    else if (check_begin(s, &m, &err) != TN_OK)
        refuse_for_good(c, f->id, &err);
    else
        open_upload(c, f, &m);
}

/* ---- PUT, END ---- */

void update_put(session *c, const tn_frame *f, const uint8_t *body) {
    upload *u = c->up;

    if (u->fail.code != TN_OK)
        return;
    if (f->id != u->file.offset || f->size > u->file.head.bytes - u->file.offset)
        session_end(c, TN_EPROTO, "PUT of %" PRIu64 " bytes at %" PRIu64 ", where byte %" PRIu64 " of %" PRIu64 " was due",
                    f->size, f->id, u->file.offset, u->file.head.bytes);
    else
        spool_append(&u->file, body, f->size, &u->fail);
}

void update_end(session *c, const tn_frame *f) {
    srv *s = c->srv;
    upload *u = c->up, **tail = &s->pending;
    tn_err err = u->fail;
    bool for_good = false;

    atomic_store(&c->takes_put, false);
    free(c->put_buffer); /* no receive is armed while a message is handled */
    c->put_buffer = NULL;
    c->state = SESSION_READY;
    if (err.code == TN_OK && u->file.offset != u->file.head.bytes)
        tn_fail(&err, TN_EINVAL, "END after %" PRIu64 " of %" PRIu64 " bytes", u->file.offset, u->file.head.bytes);
    else if (err.code == TN_OK && spool_check(&u->file, &s->layout, u->client, &err) != TN_OK) {
        for_good = err.code == TN_ENONFINITE || err.code == TN_EINVAL;
        spool_discard(&u->file); /* if it can come again, then from the start */
    }
    if (err.code != TN_OK) {
        free_upload(u);
        if (for_good)
            refuse_for_good(c, f->id, &err);
        else
            session_error(c, f->id, err.code, "%s", err.msg);
        return;
    }
    c->state = SESSION_SAVING;
    c->request = f->id;
    while (*tail != NULL)
        tail = &(*tail)->next;
    *tail = u;
}

void update_session_gone(session *c) {
    upload *u = c->up;

    atomic_store(&c->takes_put, false);
    if (u == NULL)
        return;
    if (c->state == SESSION_SAVING) { /* it is whole: it counts, though nobody hears of it */
        u->session = NULL;
        c->up = NULL;
    } else {
        free_upload(u);
    }
}

/* ---- Saving ---- */

static tn_code record(srv *s, upload *list, tn_err *err) {
    char hash[2 * TN_HASH_BYTES + 1];
    tn_code code = journal_updates_begin(s->journal, err);

    if (code != TN_OK)
        return code;
    for (upload *u = list; u != NULL && code == TN_OK; u = u->next) {
        const char *name = strrchr(u->file.whole, '/');
        journal_report r = {u->round, u->attempt, u->client, u->file.head.examples, u->metrics, hash, name + 1};

        if (!u->done)
            continue;
        tn_hex(u->file.head.hash, TN_HASH_BYTES, hash);
        code = journal_update(s->journal, &r, err);
    }
    return journal_updates_end(s->journal, code, err);
}

/* To the disk; each upload that could not be saved has its failure set. */
static void save(srv *s, upload *list) {
    tn_err err = TN_ERR_INIT;
    bool some = false;

    for (upload *u = list; u != NULL; u = u->next) {
        if (tn_round_may_update(s->round, u->client, u->round, u->attempt, &u->fail) == TN_OK &&
            spool_finish(&u->file, s->sync, &u->fail) == TN_OK)
            some = u->done = true;
    }
    if (!some)
        return;
    if (s->sync)
        tn_fsync_dir(s->spool_dir, &err);
    if (err.code == TN_OK)
        record(s, list, &err);
    for (upload *u = list; err.code != TN_OK && u != NULL; u = u->next) {
        if (u->done) {
            u->fail = err;
            u->done = false;
        }
    }
}

static void answer(srv *s, upload *u) {
    session *c = u->session;
    tn_err err = u->fail;

    if (u->done) {
        rounds_feed(s, TN_EV_UPDATE, u->client);
        c = u->session; /* the event may have ended it */
        if (tn_round_may_update(s->round, u->client, u->round, u->attempt, &err) == TN_EBUSY)
            err.code = TN_OK;
    }
    if (err.code == TN_OK)
        spool_close(&u->file);
    else
        spool_discard(&u->file);
    if (c == NULL)
        return;
    u->session = NULL;
    c->up = NULL;
    c->state = SESSION_READY;
    if (err.code == TN_OK)
        accepted(c, c->request, u->round, false);
    else if (err.code == TN_EBUSY)
        accepted(c, c->request, u->round, true);
    else
        session_error(c, c->request, err.code, "%s", err.msg);
}

void update_flush(srv *s) {
    upload *list = s->pending;

    s->pending = NULL;
    if (list == NULL)
        return;
    save(s, list);
    while (list != NULL) {
        upload *u = list;

        list = u->next;
        answer(s, u);
        free_upload(u);
    }
}

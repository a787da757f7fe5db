/* The journal: state.db, SQLite in WAL mode. It is the one record of what has happened; files without a row in it
 * do not count. docs/server.md has the schema, for whoever reads it beside a running server. */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "server/internal.h"

#define FORMAT 1
#define BUSY_MS 10000 /* a reader may hold the file while it makes its snapshot */

struct journal {
    sqlite3 *db;
    char *path;
};

static const char schema[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE rounds ("
    " round INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    " state TEXT NOT NULL CHECK (state IN ('training', 'committed', 'retried')),"
    " cohort TEXT NOT NULL,"              /* JSON: the ids that were chosen */
    " started TEXT NOT NULL, ended TEXT," /* UTC */
    " model_hash TEXT, seconds REAL, bytes INTEGER,"
    " PRIMARY KEY (round, attempt)) WITHOUT ROWID;"
    "CREATE TABLE updates ("
    " round INTEGER NOT NULL, attempt INTEGER NOT NULL, client TEXT NOT NULL,"
    " examples INTEGER NOT NULL,"
    " metrics TEXT NOT NULL," /* JSON: names and numbers; null where it was not finite */
    " loss REAL GENERATED ALWAYS AS (json_extract(metrics, '$.loss')) VIRTUAL,"
    " hash TEXT NOT NULL, file TEXT NOT NULL, accepted TEXT NOT NULL,"
    " PRIMARY KEY (round, attempt, client)) WITHOUT ROWID;";

static tn_code db_fail(journal *j, const char *what, tn_err *err) {
    return tn_fail(err, TN_EIO, "%s: %s: %s", j->path, what, sqlite3_errmsg(j->db));
}

static tn_code run_sql(journal *j, const char *sql, const char *what, tn_err *err) {
    return sqlite3_exec(j->db, sql, NULL, NULL, NULL) == SQLITE_OK ? TN_OK : db_fail(j, what, err);
}

/* ---- Statements: prepared, bound by the letters of `types` (i: int64_t, t: text, d: double), run ---- */

typedef struct value {
    int64_t i;
    const char *t;
    double d;
} value;
#define I(v) ((value){.i = (int64_t)(v)})
#define T(v) ((value){.t = (v)})
#define D(v) ((value){.d = (v)})

static tn_code prepare(journal *j, const char *sql, const char *types, const value *v, sqlite3_stmt **out,
                       tn_err *err) {
    int rc = sqlite3_prepare_v2(j->db, sql, -1, out, NULL);

    for (int i = 0; rc == SQLITE_OK && types[i] != '\0'; i++) {
        if (types[i] == 'i')
            rc = sqlite3_bind_int64(*out, i + 1, v[i].i);
        else if (types[i] == 'd')
            rc = sqlite3_bind_double(*out, i + 1, v[i].d);
        else
            rc = sqlite3_bind_text(*out, i + 1, v[i].t, -1, SQLITE_STATIC);
    }
    return rc == SQLITE_OK ? TN_OK : db_fail(j, "cannot be asked", err);
}

static tn_code change(journal *j, const char *sql, const char *types, const value *v, tn_err *err) {
    sqlite3_stmt *s = NULL;
    tn_code code = prepare(j, sql, types, v, &s, err);

    if (code == TN_OK && sqlite3_step(s) != SQLITE_DONE)
        code = db_fail(j, "cannot be written", err);
    sqlite3_finalize(s);
    return code;
}

/* Steps to the next row: *more says whether there is one. */
static tn_code next_row(journal *j, sqlite3_stmt *s, bool *more, tn_err *err) {
    int rc = sqlite3_step(s);

    *more = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? TN_OK : db_fail(j, "cannot be read", err);
}

static tn_code begin(journal *j, tn_err *err) { return run_sql(j, "BEGIN IMMEDIATE", "cannot be written", err); }

/* Ends a transaction: commits when all went well, else takes everything back. */
static tn_code end(journal *j, tn_code code, tn_err *err) {
    if (code == TN_OK)
        code = run_sql(j, "COMMIT", "cannot be written", err);
    if (code != TN_OK)
        sqlite3_exec(j->db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

/* ---- Opening ---- */

static tn_code format_of(journal *j, int64_t *out, tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j, "PRAGMA user_version", "", NULL, &s, err);

    if (code == TN_OK)
        code = next_row(j, s, &more, err);
    *out = more ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return code;
}

static tn_code make_schema(journal *j, tn_err *err) {
    tn_code code = begin(j, err);

    if (code != TN_OK)
        return code;
    code = run_sql(j, schema, "the tables cannot be made", err);
    if (code == TN_OK)
        code = run_sql(j, "PRAGMA user_version = 1", "the format cannot be set", err);
    return end(j, code, err);
}

tn_code journal_open(journal **out, const char *path, bool sync, tn_err *err) {
    int64_t format = 0;
    tn_code code = TN_OK;
    journal *j = calloc(1, sizeof(*j));

    *out = NULL;
    if (j == NULL || (j->path = strdup(path)) == NULL) {
        free(j);
        return tn_fail(err, TN_ENOMEM, "no memory for the journal");
    }
    if (sqlite3_open_v2(path, &j->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        code = db_fail(j, "cannot be opened", err);
    if (code == TN_OK) {
        sqlite3_busy_timeout(j->db, BUSY_MS);
        code = run_sql(j, "PRAGMA journal_mode = WAL", "is no journal of ours, or damaged", err);
    }
    if (code == TN_OK)
        code = run_sql(j, sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL", "cannot be set up", err);
    if (code == TN_OK)
        code = format_of(j, &format, err);
    if (code == TN_OK && format > FORMAT)
        code = tn_fail(err, TN_EVERSION, "%s has format %" PRId64 ", this program knows formats up to %d: use the release "
                       "that wrote it, or a later one", path, format, FORMAT);
    if (code == TN_OK && format == 0)
        code = make_schema(j, err);
    if (code != TN_OK)
        journal_close(j);
    else
        *out = j;
    return code;
}

void journal_close(journal *j) {
    if (j == NULL)
        return;
    if (j->db != NULL && sqlite3_close(j->db) != SQLITE_OK)
        tn_log(TN_LOG_WARN, "server", "%s: %s", j->path, sqlite3_errmsg(j->db));
    free(j->path);
    free(j);
}

/* ---- Facts of the job ---- */

tn_code journal_get(journal *j, const char *key, char **out, tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j, "SELECT value FROM meta WHERE key = ?", "t", (value[]){T(key)}, &s, err);

    *out = NULL;
    if (code == TN_OK)
        code = next_row(j, s, &more, err);
    if (code == TN_OK && more && (*out = strdup((const char *)sqlite3_column_text(s, 0))) == NULL)
        code = tn_fail(err, TN_ENOMEM, "no memory to read %s", j->path);
    sqlite3_finalize(s);
    return code;
}

tn_code journal_set(journal *j, const char *key, const char *text, tn_err *err) {
    return change(j, "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", "tt",
                  (value[]){T(key), T(text)}, err);
}

/* ---- Rounds ---- */

/* Ids need no escaping: tn_id_valid. */
static char *ids_to_json(const char *const *ids, size_t n) {
    char *text = malloc(n * (TN_ID_MAX + 3) + 3), *p = text;

    if (text == NULL)
        return NULL;
    *p++ = '[';
    for (size_t i = 0; i < n; i++)
        p += snprintf(p, TN_ID_MAX + 4, "%s\"%s\"", i != 0 ? "," : "", ids[i]);
    *p++ = ']';
    *p = '\0';
    return text;
}

tn_code journal_start(journal *j, uint64_t round, uint32_t attempt, const char *const *cohort, size_t n, tn_err *err) {
    char now[32];
    char *ids = ids_to_json(cohort, n);
    tn_code code;

    if (ids == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to record a cohort of %zu clients", n);
    code = change(j, "INSERT INTO rounds (round, attempt, state, cohort, started) VALUES (?, ?, 'training', ?, ?)", "iitt",
                  (value[]){I(round), I(attempt), T(ids), T(tn_utc_now(now, sizeof(now)))}, err);
    free(ids);
    return code;
}

tn_code journal_retry(journal *j, uint64_t round, uint32_t attempt, tn_err *err) {
    char now[32];
    tn_code code = begin(j, err);

    if (code != TN_OK)
        return code;
    code = change(j, "UPDATE rounds SET state = 'retried', ended = ? WHERE round = ? AND attempt = ?", "tii",
                  (value[]){T(tn_utc_now(now, sizeof(now))), I(round), I(attempt)}, err);
    if (code == TN_OK)
        code = change(j, "DELETE FROM updates WHERE round = ? AND attempt = ?", "ii", (value[]){I(round), I(attempt)}, err);
    return end(j, code, err);
}

tn_code journal_commit(journal *j, const journal_round *r, const char *const *counted, size_t n, tn_err *err) {
    char now[32];
    char *ids = ids_to_json(counted, n);
    tn_code code;

    if (ids == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to record a cohort of %zu clients", n);
    if ((code = begin(j, err)) == TN_OK) {
        code = change(j, "UPDATE rounds SET state = 'committed', ended = ?, model_hash = ?, seconds = ?, bytes = ?"
                      " WHERE round = ? AND attempt = ?", "ttdiii",
                      (value[]){T(tn_utc_now(now, sizeof(now))), T(r->model_hash), D(r->seconds), I(r->bytes), I(r->round),
                                I(r->attempt)}, err);
        /* What came too late to be counted is no part of the record. */
        if (code == TN_OK)
            code = change(j, "DELETE FROM updates WHERE round = ?1 AND (attempt <> ?2 OR client NOT IN"
                          " (SELECT value FROM json_each(?3)))", "iit", (value[]){I(r->round), I(r->attempt), T(ids)}, err);
        code = end(j, code, err);
    }
    free(ids);
    return code;
}

tn_code journal_committed(journal *j, uint64_t *round, char hash[2 * TN_HASH_BYTES + 1], tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j, "SELECT round, model_hash FROM rounds WHERE state = 'committed' ORDER BY round DESC LIMIT 1",
                           "", NULL, &s, err);

    *round = 0;
    hash[0] = '\0';
    if (code == TN_OK)
        code = next_row(j, s, &more, err);
    if (more) {
        *round = (uint64_t)sqlite3_column_int64(s, 0);
        snprintf(hash, 2 * TN_HASH_BYTES + 1, "%s", (const char *)sqlite3_column_text(s, 1));
    }
    sqlite3_finalize(s);
    return code;
}

static tn_code last_attempt(journal *j, uint64_t round, uint32_t *attempt, bool *training, tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j, "SELECT attempt, state FROM rounds WHERE round = ? ORDER BY attempt DESC LIMIT 1", "i",
                           (value[]){I(round)}, &s, err);

    *attempt = 0;
    *training = false;
    if (code == TN_OK)
        code = next_row(j, s, &more, err);
    if (more) {
        *attempt = (uint32_t)sqlite3_column_int64(s, 0);
        *training = strcmp((const char *)sqlite3_column_text(s, 1), "training") == 0;
    }
    sqlite3_finalize(s);
    return code;
}

static tn_code read_ids(journal *j, const char *sql, uint64_t round, uint32_t attempt, id_list *out, tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j, sql, "ii", (value[]){I(round), I(attempt)}, &s, err);

    while (code == TN_OK && (code = next_row(j, s, &more, err)) == TN_OK && more) {
        const char *id = (const char *)sqlite3_column_text(s, 0);

        if (id == NULL || !tn_id_valid(id))
            code = tn_fail(err, TN_EIO, "%s: round %" PRIu64 " has a client id that is none", j->path, round);
        else if (!id_list_add(out, id))
            code = tn_fail(err, TN_ENOMEM, "no memory for the cohort of round %" PRIu64, round);
    }
    sqlite3_finalize(s);
    return code;
}

tn_code journal_under_way(journal *j, uint64_t round, uint32_t *attempt, id_list *cohort, id_list *reported, tn_err *err) {
    bool training;
    tn_code code = last_attempt(j, round, attempt, &training, err);

    if (code != TN_OK || !training)
        return code;
    code = read_ids(j, "SELECT value FROM rounds, json_each(cohort) WHERE round = ? AND attempt = ?", round, *attempt,
                    cohort, err);
    if (code == TN_OK)
        code = read_ids(j, "SELECT client FROM updates WHERE round = ? AND attempt = ?", round, *attempt, reported, err);
    return code;
}

/* ---- Updates ---- */

tn_code journal_updates_begin(journal *j, tn_err *err) { return begin(j, err); }
tn_code journal_updates_end(journal *j, tn_code code, tn_err *err) { return end(j, code, err); }

tn_code journal_update(journal *j, const journal_report *u, tn_err *err) {
    char now[32];

    return change(j, "INSERT INTO updates (round, attempt, client, examples, metrics, hash, file, accepted)"
                  " VALUES (?, ?, ?, ?, ?, ?, ?, ?)", "iititttt",
                  (value[]){I(u->round), I(u->attempt), T(u->client), I(u->examples), T(u->metrics), T(u->hash), T(u->file),
                            T(tn_utc_now(now, sizeof(now)))}, err);
}

tn_code journal_was_counted(journal *j, const char *client, uint64_t round, uint32_t attempt, bool *yes, tn_err *err) {
    sqlite3_stmt *s = NULL;
    tn_code code = prepare(j, "SELECT 1 FROM updates JOIN rounds USING (round, attempt)"
                           " WHERE client = ? AND round = ? AND attempt = ? AND state = 'committed'", "tii",
                           (value[]){T(client), I(round), I(attempt)}, &s, err);

    *yes = false;
    if (code == TN_OK)
        code = next_row(j, s, yes, err);
    sqlite3_finalize(s);
    return code;
}

tn_code journal_metrics(journal *j, uint64_t round, uint32_t attempt, journal_metric_fn fn, void *arg, tn_err *err) {
    sqlite3_stmt *s = NULL;
    bool more = false;
    tn_code code = prepare(j,
        "SELECT m.key, TOTAL(examples * m.atom) / SUM(IIF(m.type = 'null', 0, examples)), SUM(m.type = 'null')"
        " FROM updates, json_each(metrics) AS m WHERE round = ? AND attempt = ? GROUP BY m.key ORDER BY m.key", "ii",
        (value[]){I(round), I(attempt)}, &s, err);

    while (code == TN_OK && (code = next_row(j, s, &more, err)) == TN_OK && more) {
        bool some = sqlite3_column_type(s, 1) != SQLITE_NULL;

        fn(arg, (const char *)sqlite3_column_text(s, 0), some ? sqlite3_column_double(s, 1) : 0, some,
           (uint64_t)sqlite3_column_int64(s, 2));
    }
    sqlite3_finalize(s);
    return code;
}

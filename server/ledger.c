/* The ledger: which mechanisms were run on the clients' updates, in a table of state.db beside the
 * journal's.
 *
 * A row is on the disk before the model that it pays for is written anywhere, so it is never too little; a
 * server that dies between the two pays twice. Rows are only ever added. It has a connection of its own,
 * whose commits are synced whatever --durability says. */
#include <sqlite3.h>
#include <stdlib.h>

#include "server/ledger.h"

#define BUSY_MS 10000

struct ledger {
    sqlite3 *db;
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS privacy ("
    " entry INTEGER PRIMARY KEY AUTOINCREMENT,"
    " round INTEGER NOT NULL, q REAL NOT NULL, noise REAL NOT NULL,"
    " clip REAL NOT NULL, next_clip REAL NOT NULL," /* next_clip is noisy too: it may be known */
    " epsilon REAL NOT NULL, delta REAL NOT NULL,"  /* of all rows up to this one */
    " at TEXT NOT NULL)";

static tn_code failed(ledger *l, const char *what, tn_err *err) {
    return tn_fail(err, TN_EIO, "the privacy ledger %s: %s", what, sqlite3_errmsg(l->db));
}

tn_code ledger_open(ledger **out, const char *path, bool make, tn_err *err) {
    int flags =
        SQLITE_OPEN_NOMUTEX | (make ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    ledger *l = calloc(1, sizeof(*l));
    tn_code code = TN_OK;

    *out = NULL;
    if (l == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for the privacy ledger");
    if (sqlite3_open_v2(path, &l->db, flags, NULL) != SQLITE_OK)
        code = tn_fail(err, TN_EIO, "%s cannot be opened: %s", path, sqlite3_errmsg(l->db));
    if (code == TN_OK) {
        sqlite3_busy_timeout(l->db, BUSY_MS);
        if (make && (sqlite3_exec(l->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK ||
                     sqlite3_exec(l->db, schema, NULL, NULL, NULL) != SQLITE_OK))
            code = failed(l, "cannot be made", err);
        else if (!make && sqlite3_table_column_metadata(l->db, NULL, "privacy", NULL, NULL, NULL, NULL, NULL,
                                                        NULL) != SQLITE_OK)
            code = tn_fail(err, TN_ENOTFOUND, "%s has no privacy ledger: its job was begun without --dp", path);
    }
    if (code == TN_OK)
        *out = l;
    else
        ledger_close(l);
    return code;
}

void ledger_close(ledger *l) {
    if (l == NULL)
        return;
    sqlite3_close(l->db);
    free(l);
}

tn_code ledger_add(ledger *l, const ledger_row *r, tn_err *err) {
    static const char sql[] = "INSERT INTO privacy (round, q, noise, clip, next_clip, epsilon, delta, at) "
                              "VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))";
    const double number[] = {r->q, r->noise, r->clip, r->next_clip, r->epsilon, r->delta};
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->db, sql, -1, &s, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s, 1, (int64_t)r->round);
    for (int i = 0; rc == SQLITE_OK && i < 6; i++)
        rc = sqlite3_bind_double(s, i + 2, number[i]);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? TN_OK : failed(l, "cannot be written", err);
}

tn_code ledger_steps(ledger *l, tn_dp_step **out, size_t *n, tn_err *err) {
    static const char sql[] = "SELECT q, noise, count(*) FROM privacy GROUP BY q, noise ORDER BY q, noise";
    sqlite3_stmt *s = NULL;
    tn_dp_step *step = NULL;
    size_t have = 0;
    int rc = sqlite3_prepare_v2(l->db, sql, -1, &s, NULL);

    *out = NULL;
    *n = 0;
    if (rc != SQLITE_OK)
        return failed(l, "cannot be read", err);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        /* room for one more than there are, for the caller's next */
        tn_dp_step *grown = realloc(step, (have + 2) * sizeof(*grown));

        if (grown == NULL)
            break;
        step = grown;
        step[have++] = (tn_dp_step){.noise = TN_DP_DISCRETE_GAUSSIAN,
                                    .q = sqlite3_column_double(s, 0),
                                    .sigma = sqlite3_column_double(s, 1),
                                    .count = (uint64_t)sqlite3_column_int64(s, 2)};
    }
    sqlite3_finalize(s);
    if (step == NULL && rc == SQLITE_DONE)
        step = malloc(sizeof(*step));
    if (rc != SQLITE_DONE || step == NULL) {
        free(step);
        return rc == SQLITE_DONE || rc == SQLITE_ROW
                   ? tn_fail(err, TN_ENOMEM, "no memory for the privacy ledger")
                   : failed(l, "cannot be read", err);
    }
    *out = step;
    *n = have;
    return TN_OK;
}

tn_code ledger_last(ledger *l, bool *some, ledger_row *r, tn_err *err) {
    static const char sql[] =
        "SELECT round, q, noise, clip, next_clip, epsilon, delta FROM privacy ORDER BY entry DESC LIMIT 1";
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->db, sql, -1, &s, NULL);

    *some = false;
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        *some = true;
        *r = (ledger_row){.round = (uint64_t)sqlite3_column_int64(s, 0),
                          .q = sqlite3_column_double(s, 1),
                          .noise = sqlite3_column_double(s, 2),
                          .clip = sqlite3_column_double(s, 3),
                          .next_clip = sqlite3_column_double(s, 4),
                          .epsilon = sqlite3_column_double(s, 5),
                          .delta = sqlite3_column_double(s, 6)};
    }
    sqlite3_finalize(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? TN_OK : failed(l, "cannot be read", err);
}

/* STATE, the folder in which a job lives:
 *
 *   lock                        held by the server that runs, with its process id
 *   state.db                    the journal
 *   models/round-000000.safetensors ...
 *   spool/                      updates of the round under way
 *   identity                    the server's key, unless --identity names another
 *   endpoint                    the URLs it listens on, while it runs */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/log.h"
#include "core/safetensors.h"
#include "server/internal.h"

#define LAYOUT_LIMIT (64u << 20)

static tn_code path_in(char **out, const char *dir, const char *name, tn_err *err) {
    if (asprintf(out, "%s/%s", dir, name) < 0) {
        *out = NULL;
        return tn_fail(err, TN_ENOMEM, "no memory for a path");
    }
    return TN_OK;
}

tn_code state_lock(srv *s, tn_err *err) {
    char *path = NULL, holder[32] = "";
    ssize_t n;
    tn_code code = tn_mkdirs(s->cfg->state, err);

    if (code == TN_OK)
        code = path_in(&path, s->cfg->state, "lock", err);
    if (code != TN_OK)
        return code;
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0) {
        code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be opened", path);
    } else if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            n = pread(s->lock_fd, holder, sizeof(holder) - 1, 0);
            holder[n > 0 ? n : 0] = '\0';
            holder[strcspn(holder, "\n")] = '\0';
            code = tn_fail(err, TN_EBUSY, "--state %s is in use by the server with process id %s", s->cfg->state, holder);
        } else {
            code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be locked", path);
        }
    } else {
        n = snprintf(holder, sizeof(holder), "%ld\n", (long)getpid());
        if (ftruncate(s->lock_fd, 0) != 0 || pwrite(s->lock_fd, holder, (size_t)n, 0) != n)
            code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be written", path);
    }
    free(path);
    return code;
}

/* ---- Models ---- */

static char *model_path(const srv *s, uint64_t committed) {
    char *path = NULL;

    return asprintf(&path, "%s/round-%06" PRIu64 ".safetensors", s->models_dir, committed) < 0 ? NULL : path;
}

model *model_ref(model *m) {
    m->refs++;
    return m;
}

void model_unref(model *m) {
    if (m == NULL || --m->refs != 0)
        return;
    free(m->block);
    free(m);
}

tn_code state_write_model(srv *s, const void *block, uint64_t committed, tn_err *err) {
    char round[24], *path = model_path(s, committed);
    const tn_st_meta meta[] = {{"format", "pt"}, {"torchnative.job", s->cfg->job}, {"torchnative.round", round}};
    tn_code code;

    if (path == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a path");
    snprintf(round, sizeof(round), "%" PRIu64, committed);
    code = tn_st_write(path, &s->layout, block, meta, sizeof(meta) / sizeof(meta[0]), err);
    free(path);
    return code;
}

void state_keep_models(srv *s, uint64_t committed) {
    DIR *d = opendir(s->models_dir);
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        char *end = NULL;
        unsigned long long round = strncmp(e->d_name, "round-", 6) == 0 ? strtoull(e->d_name + 6, &end, 10) : 0;

        if (end == NULL || strcmp(end, ".safetensors") != 0 || round == 0 || round + (uint64_t)s->cfg->keep > committed)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0)
            tn_log(TN_LOG_WARN, "server", "%s/%s cannot be removed", s->models_dir, e->d_name);
    }
    if (d != NULL)
        closedir(d);
}

/* Takes the layout and block of a file; the layout only if there is none yet, else it must be the same. */
static tn_code load_model(srv *s, const char *path, uint64_t committed, tn_err *err) {
    tn_layout layout;
    model *m = calloc(1, sizeof(*m));
    tn_code code;

    if (m == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a model");
    m->refs = 1;
    m->committed = committed;
    code = tn_st_read(path, &layout, &m->block, NULL, err);
    if (code == TN_OK) {
        tn_hash_once(m->block, layout.nbytes, m->hash);
        if (s->layout.count == 0) {
            s->layout = layout;
            memset(&layout, 0, sizeof(layout));
        } else {
            code = tn_layout_same(&s->layout, "the job's model", &layout, path, err);
        }
    }
    tn_layout_release(&layout);
    if (code == TN_OK) {
        model_unref(s->model);
        s->model = m;
    } else {
        model_unref(m);
    }
    return code;
}

static tn_code hash_layout(const tn_layout *l, char out[2 * TN_HASH_BYTES + 1], tn_err *err) {
    tn_wr w = tn_wr_init(LAYOUT_LIMIT);
    uint8_t hash[TN_HASH_BYTES];
    tn_code code;

    tn_layout_encode(l, &w);
    code = w.fail;
    if (code == TN_OK) {
        tn_hash_once(w.p, w.len, hash);
        tn_hex(hash, sizeof(hash), out);
    } else {
        tn_fail(err, code, "the model has too many tensors, or names that are too long, to be sent to clients");
    }
    tn_wr_release(&w);
    return code;
}

/* A layout travels in WELCOME. */
static tn_code check_layout(const tn_layout *l, tn_err *err) {
    tn_wr w = tn_wr_init(TN_MSG_MAX_META - TN_MSG_MAX_SMALL);
    tn_code code;

    tn_layout_encode(l, &w);
    code = w.fail;
    tn_wr_release(&w);
    if (code != TN_OK)
        return tn_fail(err, code, "the model's tensor names and shapes take more than %u bytes", TN_MSG_MAX_META);
    return l->nbytes != 0 ? TN_OK : tn_fail(err, TN_EINVAL, "the model has no elements: there is nothing to federate");
}

/* ---- The first start, and later ones ---- */

static tn_code first_start(srv *s, tn_err *err) {
    char hash[2 * TN_HASH_BYTES + 1], layout[2 * TN_HASH_BYTES + 1], now[32];
    tn_code code;

    if (s->cfg->model == NULL)
        return tn_fail(err, TN_EINVAL, "--model is missing: the first start with --state %s needs the initial model",
                       s->cfg->state);
    if ((code = load_model(s, s->cfg->model, 0, err)) != TN_OK || (code = check_layout(&s->layout, err)) != TN_OK ||
        (code = hash_layout(&s->layout, layout, err)) != TN_OK ||
        (code = state_write_model(s, s->model->block, 0, err)) != TN_OK)
        return code;
    tn_hex(s->model->hash, TN_HASH_BYTES, hash);
    if ((code = journal_set(s->journal, "job", s->cfg->job, err)) != TN_OK ||
        (code = journal_set(s->journal, "aggregator", s->cfg->aggregator, err)) != TN_OK ||
        (code = journal_set(s->journal, "created", tn_utc_now(now, sizeof(now)), err)) != TN_OK ||
        (code = journal_set(s->journal, "layout_hash", layout, err)) != TN_OK)
        return code;
    return journal_set(s->journal, "initial_hash", hash, err); /* the last: with it the job exists */
}

/* What a job was begun with, it goes on with. */
static tn_code must_be(srv *s, const char *key, const char *flag, const char *now, tn_err *err) {
    char *before = NULL;
    tn_code code = journal_get(s->journal, key, &before, err);

    if (code == TN_OK && (before == NULL || strcmp(before, now) != 0))
        code = tn_fail(err, TN_EINVAL, "--%s %s: the job in --state %s was begun with %s; take another --state for another job",
                       flag, now, s->cfg->state, before != NULL ? before : "none");
    free(before);
    return code;
}

static tn_code check_initial(srv *s, const char *initial, tn_err *err) {
    char hash[2 * TN_HASH_BYTES + 1];
    uint8_t *block = NULL, digest[TN_HASH_BYTES];
    tn_layout layout;
    tn_code code;

    if (s->cfg->model == NULL)
        return TN_OK;
    code = tn_st_read(s->cfg->model, &layout, &block, NULL, err);
    if (code == TN_OK)
        code = tn_layout_same(&s->layout, "the job's model", &layout, s->cfg->model, err);
    if (code == TN_OK) {
        tn_hash_once(block, layout.nbytes, digest);
        tn_hex(digest, sizeof(digest), hash);
        if (strcmp(hash, initial) != 0)
            code = tn_fail(err, TN_EINVAL, "--model %s is not the model that the job in --state %s was begun with: leave "
                           "--model out to go on with the job, or take another --state", s->cfg->model, s->cfg->state);
    }
    tn_layout_release(&layout);
    free(block);
    return code;
}

static tn_code later_start(srv *s, const char *initial, tn_err *err) {
    char recorded[2 * TN_HASH_BYTES + 1], found[2 * TN_HASH_BYTES + 1], layout[2 * TN_HASH_BYTES + 1];
    char *path = NULL;
    uint64_t committed = 0;
    tn_code code;

    if ((code = must_be(s, "job", "job", s->cfg->job, err)) != TN_OK ||
        (code = must_be(s, "aggregator", "aggregator", s->cfg->aggregator, err)) != TN_OK ||
        (code = journal_committed(s->journal, &committed, recorded, err)) != TN_OK)
        return code;
    path = model_path(s, committed);
    code = path != NULL ? load_model(s, path, committed, err) : tn_fail(err, TN_ENOMEM, "no memory for a path");
    if (code == TN_OK) {
        tn_hex(s->model->hash, TN_HASH_BYTES, found);
        if (strcmp(found, committed == 0 ? initial : recorded) != 0)
            code = tn_fail(err, TN_EIO, "%s is not the model that round %" PRIu64 " ended with: it was changed", path, committed);
    }
    free(path);
    if (code == TN_OK)
        code = check_initial(s, initial, err);
    if (code == TN_OK)
        code = hash_layout(&s->layout, layout, err);
    return code == TN_OK ? must_be(s, "layout_hash", "model: layout", layout, err) : code;
}

static tn_code load_identity(srv *s, tn_err *err) {
    char *path = NULL;
    tn_code code;

    if (s->cfg->identity != NULL)
        return tn_key_load(&s->identity, s->cfg->identity, err);
    if ((code = path_in(&path, s->cfg->state, "identity", err)) != TN_OK)
        return code;
    if (access(path, F_OK) == 0) {
        code = tn_key_load(&s->identity, path, err);
    } else if ((code = tn_key_new(&s->identity, err)) == TN_OK) {
        code = tn_key_save(&s->identity, path, err);
    }
    free(path);
    return code;
}

/* What atomic writes of a server that was killed have left. */
static void sweep_temporaries(const char *dir) {
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strstr(e->d_name, ".tmp-") != NULL && unlinkat(dirfd(d), e->d_name, 0) != 0)
            tn_log(TN_LOG_WARN, "server", "%s/%s cannot be removed", dir, e->d_name);
    }
    if (d != NULL)
        closedir(d);
}

tn_code state_open(srv *s, tn_err *err) {
    char *db = NULL, *initial = NULL;
    tn_code code;

    if ((code = path_in(&s->models_dir, s->cfg->state, "models", err)) != TN_OK ||
        (code = path_in(&s->spool_dir, s->cfg->state, "spool", err)) != TN_OK ||
        (code = path_in(&db, s->cfg->state, "state.db", err)) != TN_OK ||
        (code = tn_mkdirs(s->models_dir, err)) != TN_OK || (code = tn_mkdirs(s->spool_dir, err)) != TN_OK)
        goto out;
    sweep_temporaries(s->cfg->state);
    sweep_temporaries(s->models_dir);
    if ((code = load_identity(s, err)) != TN_OK || (code = journal_open(&s->journal, db, s->sync, err)) != TN_OK ||
        (code = journal_get(s->journal, "initial_hash", &initial, err)) != TN_OK)
        goto out;
    code = initial == NULL ? first_start(s, err) : later_start(s, initial, err);
out:
    free(db);
    free(initial);
    return code;
}

void state_close(srv *s) {
    journal_close(s->journal);
    model_unref(s->model);
    tn_layout_release(&s->layout);
    tn_key_release(&s->identity);
    free(s->models_dir);
    free(s->spool_dir);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
}

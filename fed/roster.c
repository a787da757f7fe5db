/* The enrolled clients: a text file that a person can read and edit, a line each.
 *
 * In memory the items are sorted by key, which is what a hello is looked up by. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "fed/internal.h"

#define ROSTER_MAX_BYTES (64u << 20)
#define LINE_CAP (TN_ID_MAX + 2 * (2 * 32) + 4) /* two spaces, newline, NUL */
#define LOCK_TRIES 500
#define LOCK_PAUSE_NS 20000000 /* 500 times 20 ms: 10 s */

static int by_key(const void *a, const void *b) {
    return memcmp(((const tn_enrolled *)a)->key, ((const tn_enrolled *)b)->key, TN_KEY_BYTES);
}

static int by_id(const void *a, const void *b) {
    return strcmp(((const tn_enrolled *)a)->id, ((const tn_enrolled *)b)->id);
}

void tn_roster_release(tn_roster *r) {
    free(r->item);
    memset(r, 0, sizeof(*r));
}

/* ---- Reading ---- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Takes the next word off *p; false: none is left. The word is terminated in place. */
static bool next_word(char **p, char **word) {
    while (is_blank(**p))
        (*p)++;
    if (**p == '\0')
        return false;
    *word = *p;
    while (**p != '\0' && !is_blank(**p))
        (*p)++;
    if (**p != '\0')
        *(*p)++ = '\0';
    return true;
}

/* One line without its newline; *used tells whether it held a client. */
static tn_code read_line(char *line, tn_enrolled *e, bool *used, tn_err *err) {
    char *word[4] = {NULL}, *hash = strchr(line, '#');
    size_t n = 0;
    tn_code code;

    if (hash != NULL)
        *hash = '\0';
    while (n < 4 && next_word(&line, &word[n]))
        n++;
    *used = n != 0;
    if (n == 0)
        return TN_OK;
    if (n != 3)
        return tn_fail(err, TN_EINVAL, "a line holds an id, a public key and a certificate hash, this one %s",
                       n < 3 ? "less" : "more");
    if (!tn_id_valid(word[0]))
        return tn_fail(err, TN_EINVAL, "\"%.80s\" is not a client id: %s", word[0], TNI_ID_RULE);
    snprintf(e->id, sizeof(e->id), "%s", word[0]);
    if ((code = tn_unhex(word[1], e->key, sizeof(e->key), err)) != TN_OK)
        return err == NULL ? code : tn_ctx(err, "the public key of %s", e->id);
    if ((code = tn_unhex(word[2], e->cert, sizeof(e->cert), err)) != TN_OK)
        return err == NULL ? code : tn_ctx(err, "the certificate hash of %s", e->id);
    return TN_OK;
}

static tn_code push(tn_roster *r, size_t *cap, const tn_enrolled *e, tn_err *err) {
    if (r->count == TN_MAX_CLIENTS)
        return tn_fail(err, TN_ETOOBIG, "more than %d clients", TN_MAX_CLIENTS);
    if (r->count == *cap) {
        size_t want = *cap == 0 ? 64 : 2 * *cap;
        tn_enrolled *grown = realloc(r->item, want * sizeof(*grown));

        if (grown == NULL)
            return tn_fail(err, TN_ENOMEM, "no memory for %zu clients", want);
        r->item = grown;
        *cap = want;
    }
    r->item[r->count++] = *e;
    return TN_OK;
}

/* Leaves the items sorted by key. */
static tn_code refuse_doubles(tn_roster *r, tn_err *err) {
    if (r->count == 0)
        return TN_OK;
    qsort(r->item, r->count, sizeof(*r->item), by_id);
    for (size_t i = 1; i < r->count; i++) {
        if (by_id(&r->item[i - 1], &r->item[i]) == 0)
            return tn_fail(err, TN_EINVAL, "client id %s is there twice", r->item[i].id);
    }
    qsort(r->item, r->count, sizeof(*r->item), by_key);
    for (size_t i = 1; i < r->count; i++) {
        if (by_key(&r->item[i - 1], &r->item[i]) == 0)
            return tn_fail(err, TN_EINVAL, "clients %s and %s have the same public key", r->item[i - 1].id,
                           r->item[i].id);
    }
    return TN_OK;
}

tn_code tn_roster_load(tn_roster *r, const char *path, tn_err *err) {
    uint8_t *bytes = NULL;
    size_t size = 0, cap = 0, number = 0;
    tn_code code;

    memset(r, 0, sizeof(*r));
    code = tn_file_read(path, ROSTER_MAX_BYTES, &bytes, &size, err);
    if (code != TN_OK)
        return code;
    for (char *p = (char *)bytes, *end = p + size; code == TN_OK && p < end;) {
        char *newline = memchr(p, '\n', (size_t)(end - p));
        char *stop = newline != NULL ? newline : end; /* a NUL lies behind the file's last byte */
        tn_enrolled e = {.id = ""};
        bool used = false;

        number++;
        *stop = '\0';
        if (strlen(p) != (size_t)(stop - p))
            code = tn_fail(err, TN_EINVAL, "a NUL byte");
        else if ((code = read_line(p, &e, &used, err)) == TN_OK && used)
            code = push(r, &cap, &e, err);
        if (code != TN_OK && err != NULL)
            tn_ctx(err, "%s, line %zu", path, number);
        p = stop + 1;
    }
    if (code == TN_OK && (code = refuse_doubles(r, err)) != TN_OK && err != NULL)
        tn_ctx(err, "%s", path);
    free(bytes);
    if (code != TN_OK)
        tn_roster_release(r);
    return code;
}

const tn_enrolled *tn_roster_find(const tn_roster *r, const uint8_t key[TN_KEY_BYTES]) {
    tn_enrolled wanted;

    if (r->count == 0)
        return NULL;
    memcpy(wanted.key, key, TN_KEY_BYTES);
    return bsearch(&wanted, r->item, r->count, sizeof(*r->item), by_key);
}

/* ---- Appending ---- */

/* Another process may be enrolling at the same time; it holds the lock for moments. */
static tn_code lock(int fd, const char *path, tn_err *err) {
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};

    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return TN_OK;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tn_fail_sys(err, TN_EIO, errno, "cannot lock %s", path);
        nanosleep(&pause, NULL);
    }
    return tn_fail(err, TN_ETIMEDOUT, "another process has kept %s locked for 10 s", path);
}

static tn_code refuse_known(const char *path, const tn_enrolled *e, tn_err *err) {
    tn_roster r;
    const tn_enrolled *there;
    tn_code code = tn_roster_load(&r, path, err);

    if (code != TN_OK)
        return code;
    there = tn_roster_find(&r, e->key);
    if (there != NULL)
        code = tn_fail(err, TN_EBUSY, "%s: the key of %s is enrolled already, as %s", path, e->id, there->id);
    for (size_t i = 0; i < r.count && code == TN_OK; i++) {
        if (strcmp(r.item[i].id, e->id) == 0)
            code = tn_fail(err, TN_EBUSY, "%s: client id %s is enrolled already, with another key", path,
                           e->id);
    }
    tn_roster_release(&r);
    return code;
}

/* All of it or nothing: what a full disk cut short is taken away again. */
static tn_code write_line(int fd, off_t size, const char *path, const char *line, size_t n, tn_err *err) {
    ssize_t put = pwrite(fd, line, n, size);
    int sys;

    if (put == (ssize_t)n && fsync(fd) == 0)
        return TN_OK;
    sys = put < 0 || put == (ssize_t)n ? errno : ENOSPC; /* a short write sets no errno */
    if (ftruncate(fd, size) != 0)
        return tn_fail_sys(err, TN_EIO, errno, "cannot write %s, and not take the part back", path);
    return tn_fail_sys(err, TN_EIO, sys, "cannot write %s", path);
}

tn_code tn_roster_append(const char *path, const tn_enrolled *e, tn_err *err) {
    char line[LINE_CAP + 1], key[2 * TN_KEY_BYTES + 1], cert[2 * sizeof(e->cert) + 1], last = '\n';
    struct stat st;
    int fd = -1, n;
    tn_code code;

    if (!tn_id_valid(e->id))
        return tn_fail(err, TN_EINVAL, "\"%.80s\" is not a client id: %s", e->id, TNI_ID_RULE);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return tn_fail_sys(err, TN_EIO, errno, "cannot open %s", path);
    if ((code = lock(fd, path, err)) != TN_OK || (code = refuse_known(path, e, err)) != TN_OK)
        goto out;
    if (fstat(fd, &st) != 0 || (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)) {
        code = tn_fail_sys(err, TN_EIO, errno, "cannot read %s", path);
        goto out;
    }
    tn_hex(e->key, sizeof(e->key), key);
    tn_hex(e->cert, sizeof(e->cert), cert);
    /* A person's editor may have left the last line open. */
    n = snprintf(line, sizeof(line), "%s%s %s %s\n", last == '\n' ? "" : "\n", e->id, key, cert);
    code = write_line(fd, st.st_size, path, line, (size_t)n, err);
out:
    close(fd); /* and with it the lock */
    return code;
}

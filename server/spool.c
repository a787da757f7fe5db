/* Updates on the disk. A file starts with a header that says what it will hold, so that an upload which broke
 * is continued only with the bytes of the same update; what it really holds is decided by the hash. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/wire.h"
#include "server/internal.h"

#define MAGIC UINT64_C(0x314c4f4f50534e54) /* "TNSPOOL1" */
#define READ_BACK (1u << 20)

static char *name(const char *dir, uint64_t round, uint32_t attempt, const char *client, const char *end) {
    char *path = NULL;

    return asprintf(&path, "%s/r%06" PRIu64 "-a%" PRIu32 "-%s.%s", dir, round, attempt, client, end) < 0 ? NULL : path;
}

static void encode(const spool_head *h, uint8_t out[SPOOL_HEADER]) {
    tn_wr w = tn_wr_fixed(out, SPOOL_HEADER);

    memset(out, 0, SPOOL_HEADER);
    tn_wr_u64(&w, MAGIC);
    tn_wr_u64(&w, h->examples);
    tn_wr_u64(&w, h->bytes);
    tn_wr_bytes(&w, h->hash, sizeof(h->hash));
}

static tn_code decode(spool_head *h, const uint8_t *p, size_t n) {
    tn_rd r = tn_rd_init(p, n);
    bool ours = tn_rd_u64(&r) == MAGIC;
    const uint8_t *hash;

    h->examples = tn_rd_u64(&r);
    h->bytes = tn_rd_u64(&r);
    hash = tn_rd_take(&r, sizeof(h->hash));
    if (!ours || hash == NULL)
        return TN_EPROTO;
    memcpy(h->hash, hash, sizeof(h->hash));
    return TN_OK;
}

static tn_code write_at(int fd, const char *path, const void *p, size_t n, uint64_t at, tn_err *err) {
    const uint8_t *from = p;

    while (n > 0) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return tn_fail_sys(err, TN_EIO, done < 0 ? errno : ENOSPC, "%s cannot be written", path);
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return TN_OK;
}

/* Hashes the `offset` bytes that are there already. */
static tn_code read_back(spool_file *f, tn_err *err) {
    uint8_t *buffer = malloc(READ_BACK);
    tn_code code = buffer != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "no memory to read %s", f->part);

    for (uint64_t at = 0; at < f->offset && code == TN_OK;) {
        size_t want = f->offset - at < READ_BACK ? (size_t)(f->offset - at) : READ_BACK;
        ssize_t got = pread(f->fd, buffer, want, (off_t)(SPOOL_HEADER + at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be read", f->part);
        } else {
            tn_hash_update(&f->hash, buffer, (size_t)got);
            at += (uint64_t)got;
        }
    }
    free(buffer);
    return code;
}

/* Whether the file holds the beginning of this very update. */
static bool same_update(const spool_file *f, const uint8_t head[SPOOL_HEADER], uint64_t *there) {
    uint8_t found[SPOOL_HEADER];
    struct stat st;

    if (fstat(f->fd, &st) != 0 || st.st_size < SPOOL_HEADER ||
        pread(f->fd, found, SPOOL_HEADER, 0) != SPOOL_HEADER || memcmp(found, head, SPOOL_HEADER) != 0)
        return false;
    *there = (uint64_t)st.st_size - SPOOL_HEADER;
    return *there <= f->head.bytes;
}

tn_code spool_open(spool_file *f, const char *dir, uint64_t round, uint32_t attempt, const char *client,
                   const spool_head *head, tn_err *err) {
    uint8_t bytes[SPOOL_HEADER];
    tn_code code = TN_OK;

    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->head = *head;
    tn_hash_init(&f->hash);
    f->part = name(dir, round, attempt, client, "part");
    f->whole = name(dir, round, attempt, client, "update");
    if (f->part == NULL || f->whole == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory for an update of %s", client);
        goto out;
    }
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (f->fd < 0) {
        code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be opened", f->part);
        goto out;
    }
    encode(head, bytes);
    if (same_update(f, bytes, &f->offset)) {
        code = read_back(f, err);
        goto out;
    }
    f->offset = 0;
    if (ftruncate(f->fd, 0) != 0)
        code = tn_fail_sys(err, TN_EIO, errno, "%s cannot be emptied", f->part);
    else
        code = write_at(f->fd, f->part, bytes, SPOOL_HEADER, 0, err);
out:
    if (code != TN_OK)
        spool_close(f);
    return code;
}

tn_code spool_append(spool_file *f, const void *p, size_t n, tn_err *err) {
    tn_code code = write_at(f->fd, f->part, p, n, SPOOL_HEADER + f->offset, err);

    if (code == TN_OK) {
        tn_hash_update(&f->hash, p, n);
        f->offset += n;
    }
    return code;
}

tn_code spool_check(const spool_file *f, const tn_layout *layout, const char *client, tn_err *err) {
    tn_hash state = f->hash;
    uint8_t hash[TN_HASH_BYTES];
    tn_map map = {NULL, 0};
    tn_update u = {.client = client, .examples = f->head.examples};
    tn_code code;

    tn_hash_final(&state, hash);
    if (memcmp(hash, f->head.hash, sizeof(hash)) != 0)
        return tn_fail(err, TN_EPROTO, "the update's bytes do not have the hash that was announced");
    if ((code = tn_map_file(&map, f->part, err)) != TN_OK)
        return code;
    u.block = map.data + SPOOL_HEADER;
    code = tn_update_check(layout, &u, err);
    tn_map_release(&map);
    return code;
}

tn_code spool_finish(spool_file *f, bool sync, tn_err *err) {
    if (sync && fsync(f->fd) != 0)
        return tn_fail_sys(err, TN_EIO, errno, "%s cannot be synced", f->part);
    if (rename(f->part, f->whole) != 0)
        return tn_fail_sys(err, TN_EIO, errno, "%s cannot be renamed", f->part);
    f->finished = true;
    return TN_OK;
}

void spool_close(spool_file *f) {
    if (f->fd >= 0)
        close(f->fd);
    free(f->part);
    free(f->whole);
    f->part = f->whole = NULL;
    f->fd = -1;
}

void spool_discard(spool_file *f) {
    if (f->part != NULL)
        unlink(f->finished ? f->whole : f->part);
    spool_close(f);
}

tn_code spool_map(tn_map *m, const char *dir, uint64_t round, uint32_t attempt, const char *client, size_t nbytes,
                  tn_update *out, tn_err *err) {
    char *path = name(dir, round, attempt, client, "update");
    spool_head head = {0};
    tn_code code;

    if (path == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for an update of %s", client);
    code = tn_map_file(m, path, err);
    if (code == TN_OK && (m->size != SPOOL_HEADER + nbytes || decode(&head, m->data, SPOOL_HEADER) != TN_OK)) {
        tn_map_release(m);
        code = tn_fail(err, TN_EIO, "%s is damaged: it should hold an update of %zu bytes", path, nbytes);
    }
    if (code == TN_OK)
        *out = (tn_update){.client = client, .examples = head.examples, .block = m->data + SPOOL_HEADER};
    free(path);
    return code;
}

void spool_remove(const char *dir, uint64_t round, uint32_t attempt, const char *client) {
    char *path = name(dir, round, attempt, client, "update");

    if (path != NULL)
        unlink(path);
    free(path);
}

void spool_sweep(const char *dir, uint64_t round, uint32_t attempt) {
    DIR *d = opendir(dir);
    struct dirent *e;
    char keep[64];

    snprintf(keep, sizeof(keep), "r%06" PRIu64 "-a%" PRIu32 "-", round, attempt);
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_name[0] != 'r' || (attempt != 0 && strncmp(e->d_name, keep, strlen(keep)) == 0))
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0)
            tn_log(TN_LOG_WARN, "server", "%s/%s cannot be removed", dir, e->d_name);
    }
    if (d != NULL)
        closedir(d);
}

/* The file store: separate processes of one host meet in one file.
 *
 * Each change appends one record under an exclusive lock on the open file description (fcntl, F_OFD_SETLK),
 * so that threads exclude each other as well as processes; the last record of a key counts. A reader takes a
 * shared lock and scans. A writer that was killed in the middle leaves a record that reaches beyond the end
 * of the file; the next writer cuts it off. Locks are held for a scan and a write only, and are asked for
 * with a deadline, so that a stopped process cannot hang the others.
 *
 * The record, little-endian: u32 magic, u16 bytes of job, u16 bytes of key, u32 bytes of value, then the
 * three. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/wire.h"
#include "dist/store.h"

#define MAGIC 0x31534e54u /* "TNS1" */
#define HEADER 12
#define FILE_MAX ((size_t)64 << 20)
#define LOCK_TIMEOUT (30 * TN_SECOND)
#define POLL_MIN (1 * TN_MS)
#define POLL_MAX (20 * TN_MS)

typedef struct file_store {
    int fd;
    char *path, *job;
    pthread_mutex_t lock; /* the callbacks may come from several threads of one store */
} file_store;

static void pause_ns(int64_t ns) {
    struct timespec ts = {.tv_sec = ns / TN_SECOND, .tv_nsec = ns % TN_SECOND};

    nanosleep(&ts, NULL);
}

static tn_code lock_file(const file_store *s, short type, tn_err *err) {
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET};
    int64_t deadline = tn_deadline_after(tn_now(), LOCK_TIMEOUT), pause = POLL_MIN / 4;

    while (fcntl(s->fd, F_OFD_SETLK, &fl) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return tn_fail_sys(err, TN_EIO, errno, "cannot lock the store %s", s->path);
        if (tn_now() >= deadline)
            return tn_fail(err, TN_ETIMEDOUT, "the store %s stayed locked by another process for %d s", s->path,
                           (int)(LOCK_TIMEOUT / TN_SECOND));
        pause_ns(pause);
        pause = pause * 2 < POLL_MAX ? pause * 2 : POLL_MAX;
    }
    return TN_OK;
}

static void unlock_file(const file_store *s) {
    struct flock fl = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    fcntl(s->fd, F_OFD_SETLK, &fl);
}

/* The whole file in fresh memory. */
static tn_code read_all(const file_store *s, uint8_t **out, size_t *n, tn_err *err) {
    struct stat st;
    uint8_t *p;
    size_t got = 0;

    if (fstat(s->fd, &st) != 0)
        return tn_fail_sys(err, TN_EIO, errno, "cannot read the store %s", s->path);
    if ((uint64_t)st.st_size > FILE_MAX)
        return tn_fail(err, TN_ETOOBIG, "the store %s is larger than %zu bytes: is it a store at all?", s->path,
                       FILE_MAX);
    p = malloc((size_t)st.st_size + 1);
    if (p == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to read the store %s", s->path);
    while (got < (size_t)st.st_size) {
        ssize_t r = pread(s->fd, p + got, (size_t)st.st_size - got, (off_t)got);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            free(p);
            return tn_fail_sys(err, TN_EIO, errno, "cannot read the store %s", s->path);
        }
        if (r == 0)
            break;
        got += (size_t)r;
    }
    *out = p;
    *n = got;
    return TN_OK;
}

/* Finds the last value of the key (NULL: none) and where the valid part of the file ends. */
static tn_code scan(const file_store *s, const uint8_t *p, size_t n, const char *key, const uint8_t **value,
                    size_t *size, size_t *end, tn_err *err) {
    tn_rd r = tn_rd_init(p, n);
    size_t job_len = strlen(s->job), key_len = strlen(key);

    *value = NULL;
    *size = 0;
    *end = 0;
    while (r.left >= HEADER) {
        uint32_t magic = tn_rd_u32(&r);
        size_t j = tn_rd_u16(&r), k = tn_rd_u16(&r), v = tn_rd_u32(&r);
        const uint8_t *job, *name, *data;

        if (magic != MAGIC)
            return tn_fail(err, TN_EPROTO, "%s is not a store: no record begins at byte %zu", s->path, *end);
        if (j + k + v > r.left)
            break; /* its writer died */
        job = tn_rd_take(&r, j);
        name = tn_rd_take(&r, k);
        data = tn_rd_take(&r, v);
        *end = n - r.left;
        if (j == job_len && k == key_len && memcmp(job, s->job, j) == 0 && memcmp(name, key, k) == 0) {
            *value = data;
            *size = v;
        }
    }
    return TN_OK;
}

/* Cuts off what a killed writer left behind `end` and appends one record. Under the exclusive lock. */
static tn_code append(const file_store *s, size_t end, const char *key, const void *value, size_t n,
                      tn_err *err) {
    tn_wr w = tn_wr_init(FILE_MAX);
    size_t done = 0;
    tn_code code = TN_OK;

    tn_wr_u32(&w, MAGIC);
    tn_wr_u16(&w, (uint16_t)strlen(s->job));
    tn_wr_u16(&w, (uint16_t)strlen(key));
    tn_wr_u32(&w, (uint32_t)n);
    tn_wr_bytes(&w, s->job, strlen(s->job));
    tn_wr_bytes(&w, key, strlen(key));
    tn_wr_bytes(&w, value, n);
    if (w.fail != TN_OK) {
        code = tn_fail(err, w.fail, "key '%s' does not fit into the store %s", key, s->path);
        goto out;
    }
    if (end + w.len > FILE_MAX) {
        code = tn_fail(err, TN_ETOOBIG, "the store %s is full (%zu bytes)", s->path, FILE_MAX);
        goto out;
    }
    if (ftruncate(s->fd, (off_t)end) != 0) {
        code = tn_fail_sys(err, TN_EIO, errno, "cannot write the store %s", s->path);
        goto out;
    }
    while (done < w.len) {
        ssize_t r = pwrite(s->fd, w.p + done, w.len - done, (off_t)(end + done));

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            code = tn_fail_sys(err, TN_EIO, errno, "cannot write the store %s", s->path);
            break;
        }
        done += (size_t)r;
    }
out:
    tn_wr_release(&w);
    return code;
}

static tn_code file_set(void *arg, const char *key, const void *value, size_t n, tn_err *err) {
    file_store *s = arg;
    uint8_t *all = NULL;
    const uint8_t *old;
    size_t len, old_len, end;
    tn_code code = tni_store_check(key, n, err);

    if (code != TN_OK)
        return code;
    pthread_mutex_lock(&s->lock);
    code = lock_file(s, F_WRLCK, err);
    if (code == TN_OK) {
        code = read_all(s, &all, &len, err);
        if (code == TN_OK)
            code = scan(s, all, len, key, &old, &old_len, &end, err);
        if (code == TN_OK)
            code = append(s, end, key, value, n, err);
        unlock_file(s);
    }
    pthread_mutex_unlock(&s->lock);
    free(all);
    return code;
}

/* One look. *value stays NULL when the key is not there. */
static tn_code look(file_store *s, const char *key, uint8_t **value, size_t *n, tn_err *err) {
    uint8_t *all = NULL;
    const uint8_t *v = NULL;
    size_t len, end;
    tn_code code;

    *value = NULL;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    code = lock_file(s, F_RDLCK, err);
    if (code == TN_OK) {
        code = read_all(s, &all, &len, err);
        unlock_file(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (code == TN_OK)
        code = scan(s, all, len, key, &v, n, &end, err);
    if (code == TN_OK && v != NULL) {
        *value = malloc(*n + 1);
        if (*value == NULL)
            code = tn_fail(err, TN_ENOMEM, "no memory for key '%s' of the store", key);
        else
            memcpy(*value, v, *n);
    }
    free(all);
    return code;
}

static tn_code file_get(void *arg, const char *key, int64_t timeout_ns, uint8_t **value, size_t *n,
                        tn_err *err) {
    file_store *s = arg;
    int64_t began = tn_now(), deadline = tn_deadline_after(began, timeout_ns), pause = POLL_MIN;
    tn_code code = tni_store_check(key, 0, err);

    while (code == TN_OK) {
        code = look(s, key, value, n, err);
        if (code != TN_OK || *value != NULL)
            return code;
        if (tn_now() >= deadline)
            return tni_store_timeout(key, tn_now() - began, err);
        pause_ns(pause);
        pause = pause * 2 < POLL_MAX ? pause * 2 : POLL_MAX;
    }
    return code;
}

static tn_code file_add(void *arg, const char *key, int64_t delta, int64_t *now, tn_err *err) {
    file_store *s = arg;
    uint8_t *all = NULL, bytes[8];
    const uint8_t *old;
    size_t len, old_len, end;
    int64_t value = 0;
    tn_code code = tni_store_check(key, 0, err);

    if (code != TN_OK)
        return code;
    pthread_mutex_lock(&s->lock);
    code = lock_file(s, F_WRLCK, err);
    if (code == TN_OK) {
        code = read_all(s, &all, &len, err);
        if (code == TN_OK)
            code = scan(s, all, len, key, &old, &old_len, &end, err);
        if (code == TN_OK)
            code = tni_store_add(key, old, old_len, delta, bytes, &value, err);
        if (code == TN_OK)
            code = append(s, end, key, bytes, sizeof(bytes), err);
        unlock_file(s);
    }
    pthread_mutex_unlock(&s->lock);
    free(all);
    if (code == TN_OK)
        *now = value;
    return code;
}

static void file_release(void *arg) {
    file_store *s = arg;

    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s->job);
    free(s);
}

tn_code tn_store_file(tn_store *out, const char *path, const char *job, tn_err *err) {
    file_store *s;

    if (path == NULL || path[0] == '\0' || job == NULL || strlen(job) > TNI_STORE_KEY_MAX)
        return tn_fail(err, TN_EINVAL, "a file store needs a path and the name of a job of at most %d bytes",
                       TNI_STORE_KEY_MAX);
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a file store");
    pthread_mutex_init(&s->lock, NULL);
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    s->path = strdup(path);
    s->job = strdup(job);
    if (s->fd < 0 || s->path == NULL || s->job == NULL) {
        tn_code code = s->fd < 0 ? tn_fail_sys(err, TN_EIO, errno, "cannot open the store %s", path)
                                 : tn_fail(err, TN_ENOMEM, "no memory for a file store");

        file_release(s);
        return code;
    }
    *out = (tn_store){.arg = s, .set = file_set, .get = file_get, .add = file_add, .release = file_release};
    return TN_OK;
}

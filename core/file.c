/* Files. Every system call that a signal can interrupt is repeated, every short read or write is continued, and
 * every descriptor is close-on-exec. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/internal.h"
#include "core/random.h"

#define TEMP_SUFFIX 64  /* ".tmp-", a process id, "-" and 16 hexadecimal digits */
#define TEMP_ATTEMPTS 8 /* names are random: even a second one is a rarity */

static tn_code sys_fail(tn_err *err, int sys, const char *what, const char *path) {
    tn_code code = sys == ENOENT ? TN_ENOTFOUND : sys == ENOMEM ? TN_ENOMEM : TN_EIO;

    return tn_fail_sys(err, code, sys, "cannot %s %s", what, path);
}

/* The folder that holds path, in fresh memory; NULL when out of memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static tn_code write_all(int fd, const char *path, const void *data, size_t n, tn_err *err) {
    const uint8_t *p = data;

    while (n > 0) {
        ssize_t k = write(fd, p, n < SSIZE_MAX ? n : SSIZE_MAX);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return sys_fail(err, k < 0 ? errno : EIO, "write", path);
        p += k;
        n -= (size_t)k;
    }
    return TN_OK;
}

/* Opens a new file beside path; its name goes to temp[cap]. */
static tn_code open_temp(const char *path, char *temp, size_t cap, unsigned mode, int *fd, tn_err *err) {
    tn_code code = tn_random_init(err);

    if (code != TN_OK)
        return code;
    for (int i = 0; i < TEMP_ATTEMPTS; i++) {
        uint64_t salt;

        tn_random_bytes(&salt, sizeof(salt));
        snprintf(temp, cap, "%s.tmp-%ld-%016" PRIx64, path, (long)getpid(), salt);
        *fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
        if (*fd >= 0)
            return TN_OK;
        if (errno != EEXIST)
            break;
    }
    return sys_fail(err, errno, "create", temp);
}

tn_code tn_file_write_atomic(const char *path, const tn_part *parts, size_t n, unsigned mode, tn_err *err) {
    size_t cap = strlen(path) + TEMP_SUFFIX;
    char *temp = malloc(cap);
    char *folder = folder_of(path);
    int fd = -1;
    tn_code code;

    if (temp == NULL || folder == NULL) {
        code = tn_fail(err, TN_ENOMEM, "out of memory while writing %s", path);
        goto out;
    }
    if ((code = open_temp(path, temp, cap, mode, &fd, err)) != TN_OK)
        goto out;
    for (size_t i = 0; i < n && code == TN_OK; i++)
        code = write_all(fd, path, parts[i].data, parts[i].size, err);
    if (code == TN_OK && fsync(fd) != 0)
        code = sys_fail(err, errno, "sync", path);
    if (close(fd) != 0 && code == TN_OK) /* network file systems report a full disk here */
        code = sys_fail(err, errno, "close", path);
    if (code == TN_OK && rename(temp, path) != 0)
        code = sys_fail(err, errno, "replace", path);
    if (code != TN_OK)
        unlink(temp);
    else
        code = tn_fsync_dir(folder, err);
out:
    free(folder);
    free(temp);
    return code;
}

tn_code tni_open_regular(const char *path, int *fd, uint64_t *size, tn_err *err) {
    struct stat st;
    tn_code code = TN_OK;

    do { /* O_NONBLOCK keeps a FIFO without a writer from blocking; regular files ignore it */
        *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (*fd < 0 && errno == EINTR);
    if (*fd < 0)
        return sys_fail(err, errno, "open", path);
    if (fstat(*fd, &st) != 0)
        code = sys_fail(err, errno, "look at", path);
    else if (S_ISDIR(st.st_mode))
        code = sys_fail(err, EISDIR, "read", path);
    else if (!S_ISREG(st.st_mode))
        code = tn_fail(err, TN_EIO, "cannot read %s: not a regular file", path);
    if (code != TN_OK) {
        close(*fd);
        *fd = -1;
        return code;
    }
    *size = (uint64_t)st.st_size;
    return TN_OK;
}

tn_code tni_read_at(int fd, const char *path, void *to, size_t n, uint64_t offset, tn_err *err) {
    uint8_t *p = to;

    while (n > 0) {
        ssize_t k = pread(fd, p, n < SSIZE_MAX ? n : SSIZE_MAX, (off_t)offset);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sys_fail(err, errno, "read", path);
        if (k == 0)
            return tn_fail(err, TN_EIO, "cannot read %s: it ends at byte %" PRIu64 ", %zu bytes early", path,
                           offset, n);
        p += k;
        n -= (size_t)k;
        offset += (uint64_t)k;
    }
    return TN_OK;
}

/* Reads until the end and not by the size that fstat told: the file may grow, and /proc tells 0. */
static tn_code read_to_end(int fd, const char *path, size_t limit, size_t hint, uint8_t **buf, size_t *size,
                           tn_err *err) {
    size_t len = 0, cap = (hint < limit ? hint : limit) + 2; /* the NUL, and a byte to notice the end by */

    *buf = malloc(cap);
    while (*buf != NULL) {
        ssize_t k = read(fd, *buf + len, cap - len - 1);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sys_fail(err, errno, "read", path);
        if (k == 0) {
            (*buf)[len] = '\0';
            *size = len;
            return TN_OK;
        }
        len += (size_t)k;
        if (len > limit)
            return tn_fail(err, TN_ETOOBIG, "%s is larger than the %zu bytes that are allowed", path, limit);
        if (cap - len < 2) {
            size_t more = cap > limit / 2 ? limit + 2 : cap * 2;
            uint8_t *p = realloc(*buf, more);

            if (p == NULL)
                break;
            *buf = p;
            cap = more;
        }
    }
    return tn_fail(err, TN_ENOMEM, "out of memory while reading %s", path);
}

tn_code tn_file_read(const char *path, size_t limit, uint8_t **out, size_t *size, tn_err *err) {
    uint8_t *buf = NULL;
    uint64_t hint;
    int fd;
    tn_code code;

    *out = NULL;
    *size = 0;
    if (limit > SSIZE_MAX - 2)
        limit = SSIZE_MAX - 2;
    if ((code = tni_open_regular(path, &fd, &hint, err)) != TN_OK)
        return code;
    if (hint > limit)
        code = tn_fail(err, TN_ETOOBIG, "%s has %" PRIu64 " bytes; at most %zu are allowed", path, hint, limit);
    else
        code = read_to_end(fd, path, limit, (size_t)hint, &buf, size, err);
    close(fd);
    if (code == TN_OK)
        *out = buf;
    else
        free(buf);
    return code;
}

tn_code tn_map_file(tn_map *m, const char *path, tn_err *err) {
    uint64_t size;
    int fd;
    tn_code code;

    memset(m, 0, sizeof(*m));
    if ((code = tni_open_regular(path, &fd, &size, err)) != TN_OK)
        return code;
    if (size > SIZE_MAX) {
        code = tn_fail(err, TN_ETOOBIG, "%s is too large for this machine's address space", path);
    } else if (size > 0) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);

        if (p == MAP_FAILED) {
            code = sys_fail(err, errno, "map", path);
        } else {
            m->data = p;
            m->size = (size_t)size;
        }
    }
    close(fd); /* the mapping stays */
    return code;
}

void tn_map_release(tn_map *m) {
    if (m->size != 0)
        munmap((void *)(uintptr_t)m->data, m->size);
    memset(m, 0, sizeof(*m));
}

static tn_code make_dir(const char *path, tn_err *err) {
    struct stat st;
    char *parent;
    tn_code code;

    if (mkdir(path, 0700) != 0) {
        int sys = errno;

        if (sys == EEXIST && stat(path, &st) == 0)
            return S_ISDIR(st.st_mode) ? TN_OK : sys_fail(err, ENOTDIR, "make the folder", path);
        return sys_fail(err, sys, "make the folder", path);
    }
    parent = folder_of(path);
    if (parent == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory while making the folder %s", path);
    code = tn_fsync_dir(parent, err);
    free(parent);
    return code;
}

tn_code tn_mkdirs(const char *path, tn_err *err) {
    char *copy = strdup(path);
    size_t n = strlen(path);
    tn_code code = TN_OK;

    if (copy == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory while making the folder %s", path);
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = '\0';
    for (size_t i = 1; i < n && code == TN_OK; i++) {
        if (copy[i] != '/' || copy[i - 1] == '/')
            continue;
        copy[i] = '\0';
        code = make_dir(copy, err);
        copy[i] = '/';
    }
    if (code == TN_OK)
        code = make_dir(copy, err);
    free(copy);
    return code;
}

tn_code tn_fsync_dir(const char *path, tn_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tn_code code = TN_OK;

    if (fd < 0)
        return sys_fail(err, errno, "open the folder", path);
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: a file system whose folders need no sync */
        code = sys_fail(err, errno, "sync the folder", path);
    close(fd);
    return code;
}

/* Ed25519 identities, by libsodium: made, kept in a file, used to sign.
 *
 * The secret half never touches ordinary memory for longer than a call: it lives in a guarded allocation,
 * and the buffers that a file passes through are wiped on every way out. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/random.h"
#include "privacy/privacy.h"

_Static_assert(TN_KEY_BYTES == crypto_sign_PUBLICKEYBYTES && TN_SIG_BYTES == crypto_sign_BYTES, "Ed25519");

#define SEED_BYTES crypto_sign_SEEDBYTES
#define HEX_KEY (2 * TN_KEY_BYTES)
#define MAGIC "torchnative-identity 1\n"
/* MAGIC, then the public key and the seed in hex, each with its newline. */
#define FILE_BYTES (sizeof(MAGIC) - 1 + 2 * (HEX_KEY + 1))
#define LABEL_MAX 64

static tn_code key_alloc(tn_key *k, tn_err *err) {
    memset(k, 0, sizeof(*k));
    if (tn_random_init(err) != TN_OK)
        return TN_EINTERNAL;
    k->sk = sodium_malloc(crypto_sign_SECRETKEYBYTES);
    if (k->sk == NULL)
        return tn_fail(err, TN_ENOMEM, "no guarded memory for a secret key");
    return TN_OK;
}

void tn_key_release(tn_key *k) {
    sodium_free(k->sk); /* wipes */
    memset(k, 0, sizeof(*k));
}

tn_code tn_key_new(tn_key *k, tn_err *err) {
    tn_code code = key_alloc(k, err);

    if (code == TN_OK)
        crypto_sign_keypair(k->pk, k->sk);
    return code;
}

/* ---- The file ---- */

static tn_code write_all(int fd, const char *p, size_t n, const char *path, tn_err *err) {
    while (n != 0) {
        ssize_t put = write(fd, p, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return tn_fail_sys(err, TN_EIO, errno, "cannot write %s", path);
        p += put;
        n -= (size_t)put;
    }
    if (fsync(fd) != 0)
        return tn_fail_sys(err, TN_EIO, errno, "cannot make %s durable", path);
    return TN_OK;
}

static tn_code sync_parent(const char *path, tn_err *err) {
    const char *slash = strrchr(path, '/');
    char *dir;
    tn_code code;

    if (slash == NULL)
        return tn_fsync_dir(".", err);
    dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (dir == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for the name of %s", path);
    code = tn_fsync_dir(dir, err);
    free(dir);
    return code;
}

/* Under a name of its own first, then linked: link() refuses to overwrite, and a crash leaves no half
 * identity behind. */
tn_code tn_key_save(const tn_key *k, const char *path, tn_err *err) {
    char text[FILE_BYTES + 1], pk[HEX_KEY + 1], seed_hex[HEX_KEY + 1];
    uint8_t seed[SEED_BYTES];
    uint64_t nonce;
    char *tmp = NULL;
    bool made = false;
    int fd = -1;
    tn_code code = TN_OK;

    crypto_sign_ed25519_sk_to_seed(seed, k->sk);
    tn_hex(k->pk, TN_KEY_BYTES, pk);
    tn_hex(seed, SEED_BYTES, seed_hex);
    snprintf(text, sizeof(text), MAGIC "%s\n%s\n", pk, seed_hex);
    tn_random_bytes(&nonce, sizeof(nonce));
    if (asprintf(&tmp, "%s.tmp-%ld-%016" PRIx64, path, (long)getpid(), nonce) < 0) {
        tmp = NULL;
        code = tn_fail(err, TN_ENOMEM, "no memory for the name of %s", path);
        goto out;
    }
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        code = tn_fail_sys(err, TN_EIO, errno, "cannot create %s", tmp);
        goto out;
    }
    made = true;
    if ((code = write_all(fd, text, FILE_BYTES, tmp, err)) != TN_OK)
        goto out;
    if (link(tmp, path) != 0) {
        if (errno == EEXIST)
            code = tn_fail(err, TN_EBUSY, "%s exists; an identity is never overwritten: move it away first",
                           path);
        else
            code = tn_fail_sys(err, TN_EIO, errno, "cannot create %s", path);
    }
out:
    if (fd >= 0)
        close(fd);
    if (made)
        unlink(tmp);
    if (code == TN_OK)
        code = sync_parent(path, err);
    free(tmp);
    sodium_memzero(text, sizeof(text));
    sodium_memzero(seed_hex, sizeof(seed_hex));
    sodium_memzero(seed, sizeof(seed));
    return code;
}

/* Reads FILE_BYTES + 1 bytes at most, so that a longer file shows. */
static tn_code read_identity(const char *path, char text[FILE_BYTES + 2], size_t *n, tn_err *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    tn_code code = TN_OK;

    *n = 0;
    if (fd < 0)
        return tn_fail_sys(err, errno == ENOENT ? TN_ENOTFOUND : TN_EIO, errno, "cannot open identity %s",
                           path);
    if (fstat(fd, &st) != 0)
        code = tn_fail_sys(err, TN_EIO, errno, "cannot look at identity %s", path);
    else if (!S_ISREG(st.st_mode))
        code = tn_fail(err, TN_EINVAL, "identity %s is not a regular file", path);
    else if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        code = tn_fail(err, TN_EAUTH, "identity %s can be read by others than its owner (mode %03o): chmod "
                       "600 it", path,
                       (unsigned)(st.st_mode & 0777));
    while (code == TN_OK && *n < FILE_BYTES + 1) {
        ssize_t got = read(fd, text + *n, FILE_BYTES + 1 - *n);

        if (got == 0)
            break;
        if (got < 0 && errno != EINTR)
            code = tn_fail_sys(err, TN_EIO, errno, "cannot read identity %s", path);
        if (got > 0)
            *n += (size_t)got;
    }
    text[*n] = '\0';
    close(fd);
    return code;
}

tn_code tn_key_load(tn_key *k, const char *path, tn_err *err) {
    char text[FILE_BYTES + 2];
    char *pk = text + sizeof(MAGIC) - 1, *seed_hex = pk + HEX_KEY + 1;
    uint8_t want[TN_KEY_BYTES], seed[SEED_BYTES];
    size_t n;
    tn_code code;

    if ((code = key_alloc(k, err)) != TN_OK || (code = read_identity(path, text, &n, err)) != TN_OK)
        goto out;
    code = tn_fail(err, TN_EINVAL,
                   "%s is not an identity: it must be \"torchnative-identity 1\", the public key and the secret "
                   "seed, a line each",
                   path);
    if (n != FILE_BYTES || memcmp(text, MAGIC, sizeof(MAGIC) - 1) != 0 || pk[HEX_KEY] != '\n' ||
        seed_hex[HEX_KEY] != '\n')
        goto out;
    pk[HEX_KEY] = seed_hex[HEX_KEY] = '\0';
    if (tn_unhex(pk, want, sizeof(want), NULL) != TN_OK ||
        tn_unhex(seed_hex, seed, sizeof(seed), NULL) != TN_OK)
        goto out;
    crypto_sign_seed_keypair(k->pk, k->sk, seed);
    code = TN_OK;
    if (memcmp(k->pk, want, sizeof(want)) != 0)
        code = tn_fail(err, TN_EINVAL, "identity %s: its public key does not belong to its secret seed", path);
out:
    sodium_memzero(text, sizeof(text));
    sodium_memzero(seed, sizeof(seed));
    if (code != TN_OK)
        tn_key_release(k);
    return code;
}

/* ---- Signatures ---- */

/* label || 0x00 || message in fresh memory. One buffer, because Ed25519 (not the pre-hashed variant) reads
 * its message twice. */
static tn_code labelled(const char *label, const void *msg, size_t n, uint8_t **out, size_t *size,
                        tn_err *err) {
    size_t front = strlen(label) + 1;

    if (front == 1 || front > LABEL_MAX + 1)
        return tn_fail(err, TN_EINVAL, "a signature's label has 1 to %d bytes, this one %zu", LABEL_MAX,
                       front - 1);
    if (n > SIZE_MAX - front || (*out = malloc(front + n)) == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a message of %zu bytes to sign", n);
    memcpy(*out, label, front);
    if (n != 0)
        memcpy(*out + front, msg, n);
    *size = front + n;
    return TN_OK;
}

tn_code tn_key_sign(const tn_key *k, const char *label, const void *msg, size_t n, uint8_t sig[TN_SIG_BYTES],
                    tn_err *err) {
    uint8_t *m = NULL;
    size_t size;
    tn_code code = labelled(label, msg, n, &m, &size, err);

    if (code == TN_OK)
        crypto_sign_detached(sig, NULL, m, size, k->sk);
    free(m);
    return code;
}

tn_code tn_key_verify(const uint8_t pk[TN_KEY_BYTES], const char *label, const void *msg, size_t n,
                      const uint8_t sig[TN_SIG_BYTES], tn_err *err) {
    uint8_t *m = NULL;
    size_t size;
    tn_code code = labelled(label, msg, n, &m, &size, err);

    if (code == TN_OK && crypto_sign_verify_detached(sig, m, size, pk) != 0)
        code = tn_fail(err, TN_EAUTH, "the signature (%s) is not by the key that was shown", label);
    free(m);
    return code;
}

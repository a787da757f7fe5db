/* Identities and hashes, by libsodium. No I/O but the two file functions of keys; thread-safe as far as the
 * caller's objects are. */
#ifndef TN_PRIVACY_H
#define TN_PRIVACY_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "privacy/dp.h"

#define TN_KEY_BYTES 32  /* an Ed25519 public key (RFC 8032) */
#define TN_SIG_BYTES 64
#define TN_HASH_BYTES 32 /* BLAKE2b-256 (RFC 7693) */

/* An Ed25519 identity. The secret half lies in guarded memory and is wiped on release. */
typedef struct tn_key {
    uint8_t pk[TN_KEY_BYTES];
    uint8_t *sk; /* private; NULL after release */
} tn_key;

TN_API tn_code tn_key_new(tn_key *k, tn_err *err);
/* Text file, mode 0600: "torchnative-identity 1", then the public key and the secret seed, in hex, a line
 * each. Save never overwrites (TN_EBUSY) and leaves no part behind. Load refuses a file that others than its
 * owner can read (TN_EAUTH), and one whose halves do not belong together. new and load leave the key
 * releasable even when they fail. */
TN_API tn_code tn_key_save(const tn_key *k, const char *path, tn_err *err);
TN_API tn_code tn_key_load(tn_key *k, const char *path, tn_err *err);
TN_API void tn_key_release(tn_key *k);
/* Signs label || 0x00 || message: a signature made for one purpose never serves another. label: 1 to 64
 * bytes of ASCII. verify gives TN_EAUTH for a signature that is not by pk. */
TN_API tn_code tn_key_sign(const tn_key *k, const char *label, const void *msg, size_t n,
                           uint8_t sig[TN_SIG_BYTES], tn_err *err);
TN_API tn_code tn_key_verify(const uint8_t pk[TN_KEY_BYTES], const char *label, const void *msg, size_t n,
                             const uint8_t sig[TN_SIG_BYTES], tn_err *err);

typedef struct tn_hash { /* private; plain value */
    _Alignas(64) uint8_t state[384];
} tn_hash;
TN_API void tn_hash_init(tn_hash *h);
TN_API void tn_hash_update(tn_hash *h, const void *p, size_t n);
TN_API void tn_hash_final(tn_hash *h, uint8_t out[TN_HASH_BYTES]);
TN_API void tn_hash_once(const void *p, size_t n, uint8_t out[TN_HASH_BYTES]);

/* Lower-case hex, out has 2n + 1 bytes; and back: exactly n bytes from 2n digits of either case, else
 * TN_EINVAL. */
TN_API void tn_hex(const uint8_t *p, size_t n, char *out);
TN_API tn_code tn_unhex(const char *hex, uint8_t *out, size_t n, tn_err *err);

#endif

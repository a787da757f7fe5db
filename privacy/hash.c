/* BLAKE2b-256 and hex, by libsodium. Plain computations: no state of ours, any thread. */
#include <sodium.h>
#include <string.h>

#include "privacy/privacy.h"

_Static_assert(sizeof(tn_hash) >= sizeof(crypto_generichash_state), "tn_hash holds libsodium's state");
_Static_assert(_Alignof(tn_hash) >= 64, "libsodium wants its state at a multiple of 64");
_Static_assert(TN_HASH_BYTES == crypto_generichash_BYTES, "BLAKE2b-256");

/* The state lies in the caller's bytes; this is the one place that gives them their type. */
static crypto_generichash_state *state_of(tn_hash *h) { return (void *)h->state; }

void tn_hash_init(tn_hash *h) {
    memset(h->state, 0, sizeof(h->state));
    crypto_generichash_init(state_of(h), NULL, 0, TN_HASH_BYTES);
}

void tn_hash_update(tn_hash *h, const void *p, size_t n) {
    if (n != 0)
        crypto_generichash_update(state_of(h), p, n);
}

void tn_hash_final(tn_hash *h, uint8_t out[TN_HASH_BYTES]) {
    crypto_generichash_final(state_of(h), out, TN_HASH_BYTES);
}

void tn_hash_once(const void *p, size_t n, uint8_t out[TN_HASH_BYTES]) {
    crypto_generichash(out, TN_HASH_BYTES, p, n, NULL, 0);
}

void tn_hex(const uint8_t *p, size_t n, char *out) { sodium_bin2hex(out, 2 * n + 1, p, n); }

tn_code tn_unhex(const char *hex, uint8_t *out, size_t n, tn_err *err) {
    size_t digits = strlen(hex), got = 0;

    if (digits != 2 * n)
        return tn_fail(err, TN_EINVAL, "%zu characters where %zu hex digits were expected", digits, 2 * n);
    if (sodium_hex2bin(out, n, hex, digits, NULL, &got, NULL) != 0 || got != n)
        return tn_fail(err, TN_EINVAL, "a character that is not a hex digit, in a text of %zu digits", digits);
    return TN_OK;
}

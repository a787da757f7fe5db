/* Validation of UTF-8: by the table of well-formed sequences (RFC 3629, section 4). */
#include "core/internal.h"

static bool in(uint8_t b, uint8_t lo, uint8_t hi) { return b >= lo && b <= hi; }

/* Length of the well-formed sequence at s, 0 when there is none. */
static size_t sequence(const uint8_t *s, size_t left) {
    uint8_t lo = 0x80, hi = 0xBF; /* bounds of the second byte: they exclude overlong forms and surrogates */
    size_t n;

    if (s[0] < 0x80)
        return 1;
    if (in(s[0], 0xC2, 0xDF))
        n = 2;
    else if (in(s[0], 0xE0, 0xEF))
        n = 3;
    else if (in(s[0], 0xF0, 0xF4))
        n = 4;
    else
        return 0;
    if (s[0] == 0xE0)
        lo = 0xA0;
    else if (s[0] == 0xED)
        hi = 0x9F;
    else if (s[0] == 0xF0)
        lo = 0x90;
    else if (s[0] == 0xF4)
        hi = 0x8F;
    if (left < n || !in(s[1], lo, hi))
        return 0;
    for (size_t i = 2; i < n; i++) {
        if (!in(s[i], 0x80, 0xBF))
            return 0;
    }
    return n;
}

bool tni_utf8_valid(const void *p, size_t n) {
    const uint8_t *s = p;

    while (n > 0) {
        size_t k = sequence(s, n);

        if (k == 0)
            return false;
        s += k;
        n -= k;
    }
    return true;
}

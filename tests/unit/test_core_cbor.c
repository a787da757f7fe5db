/* CBOR: the encodings of RFC 8949, everything outside the subset by name, every prefix, and seeded mutations. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cbor.h"
#include "core/random.h"

static size_t unhex(const char *hex, uint8_t *out) {
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n;
}

static void expect_hex(const tn_wr *w, const char *hex) {
    uint8_t want[64];
    size_t n = unhex(hex, want);

    ck_assert_int_eq(w->fail, TN_OK);
    ck_assert_uint_eq(w->len, n);
    ck_assert_mem_eq(w->p, want, n);
}

/* ---- Writing: the examples of RFC 8949, appendix A ---- */

START_TEST(unsigned_integers) {
    static const struct {
        uint64_t v;
        const char *hex;
    } rows[] = {
        {0, "00"},
        {23, "17"},
        {24, "1818"},
        {255, "18ff"},
        {256, "190100"},
        {65535, "19ffff"},
        {65536, "1a00010000"},
        {1000000, "1a000f4240"},
        {UINT32_MAX, "1affffffff"},
        {UINT64_C(1) << 32, "1b0000000100000000"},
        {UINT64_C(1000000000000), "1b000000e8d4a51000"},
        {UINT64_MAX, "1bffffffffffffffff"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_wr w = tn_wr_init(64);
        tn_cbor v;

        tn_cbor_put_u64(&w, rows[i].v);
        expect_hex(&w, rows[i].hex);
        ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, NULL), TN_OK);
        ck_assert_int_eq(v.kind, TN_CBOR_UINT);
        ck_assert_uint_eq(v.u, rows[i].v);
        tn_wr_release(&w);
    }
}
END_TEST

START_TEST(signed_integers) {
    static const struct {
        int64_t v;
        const char *hex;
    } rows[] = {
        {7, "07"},           {-1, "20"},          {-10, "29"},
        {-24, "37"},         {-25, "3818"},       {-100, "3863"},
        {-256, "38ff"},      {-257, "390100"},    {-1000, "3903e7"},
        {-65537, "3a00010000"}, {INT64_MIN, "3b7fffffffffffffff"}, {INT64_MAX, "1b7fffffffffffffff"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_wr w = tn_wr_init(64);
        tn_cbor v;

        tn_cbor_put_i64(&w, rows[i].v);
        expect_hex(&w, rows[i].hex);
        ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, NULL), TN_OK);
        ck_assert_int_eq(v.kind, rows[i].v < 0 ? TN_CBOR_NEGINT : TN_CBOR_UINT);
        ck_assert_int_eq(rows[i].v < 0 ? -1 - (int64_t)v.u : (int64_t)v.u, rows[i].v);
        tn_wr_release(&w);
    }
}
END_TEST

START_TEST(floats) {
    static const struct {
        double v;
        const char *hex;
    } rows[] = {
        {1.1, "fb3ff199999999999a"},
        {-4.1, "fbc010666666666666"},
        {0.0, "fb0000000000000000"},
        {-0.0, "fb8000000000000000"},
        {1.0e300, "fb7e37e43c8800759c"},
        {(double)INFINITY, "fb7ff0000000000000"},
        {5e-324, "fb0000000000000001"},
    };
    tn_wr w = tn_wr_init(64);
    tn_cbor v;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        w.len = 0;
        tn_cbor_put_f64(&w, rows[i].v);
        expect_hex(&w, rows[i].hex);
        ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, NULL), TN_OK);
        ck_assert_int_eq(v.kind, TN_CBOR_F64);
        ck_assert_mem_eq(&v.f, &rows[i].v, sizeof(v.f));
    }
    w.len = 0;
    tn_cbor_put_f64(&w, (double)NAN);
    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, NULL), TN_OK);
    ck_assert(isnan(v.f));
    tn_wr_release(&w);
}
END_TEST

START_TEST(strings_booleans_and_containers) {
    tn_wr w = tn_wr_init(64);

    tn_cbor_put_bool(&w, false);
    tn_cbor_put_bool(&w, true);
    expect_hex(&w, "f4f5");
    w.len = 0;
    tn_cbor_put_text(&w, "IETF");
    tn_cbor_put_text(&w, "\xe6\xb0\xb4");
    tn_cbor_put_textn(&w, "ab", 1);
    tn_cbor_put_text(&w, "");
    expect_hex(&w, "6449455446"
                   "63e6b0b4"
                   "6161"
                   "60");
    w.len = 0;
    tn_cbor_put_bytes(&w, "\x01\x02\x03\x04", 4);
    tn_cbor_put_bytes(&w, NULL, 0);
    expect_hex(&w, "4401020304"
                   "40");
    w.len = 0;
    tn_cbor_put_array(&w, 0);
    tn_cbor_put_array(&w, 25);
    tn_cbor_put_map(&w, 2);
    expect_hex(&w, "80"
                   "9819"
                   "a2");
    tn_wr_release(&w);
}
END_TEST

START_TEST(a_full_writer_fails_once_for_all) {
    uint8_t small[10];
    tn_wr w = tn_wr_fixed(small, sizeof(small));

    tn_cbor_put_text(&w, "123456789");
    ck_assert_int_eq(w.fail, TN_OK);
    tn_cbor_put_u64(&w, 0);
    tn_cbor_put_map(&w, 0);
    ck_assert_int_eq(w.fail, TN_ETOOBIG);
    ck_assert_uint_eq(w.len, 10);
}
END_TEST

/* ---- Reading ---- */

/* Outside the subset, malformed or beyond a limit: with the word that must appear in the error. */
START_TEST(refused_by_name) {
    static const struct {
        const char *hex, *says;
    } rows[] = {
        {"", "the end of the input at byte 0"},
        {"0000", "bytes left over at byte 1"},
        {"18", "cut short"},
        {"1c", "reserved"},              /* additional information 28 */
        {"f6", "null at byte 0"},
        {"f7", "undefined at byte 0"},
        {"e0", "reserved or simple"},    /* simple(0) */
        {"f8ff", "reserved or simple"},  /* simple(255) */
        {"f93c00", "half-precision"},
        {"fa47c35000", "single-precision"},
        {"c11a514b67b0", "a tag"},
        {"d818456449455446", "a tag"},
        {"5f42010243030405ff", "indefinite"},
        {"7f657374726561646d696e67ff", "indefinite"},
        {"9fff", "indefinite"},
        {"bfff", "indefinite"},
        {"ff", "a break"},
        {"8100ff", "left over"},
        {"81ff", "a break at byte 1"},
        {"6261", "cut short"},
        {"62c328", "not UTF-8"},         /* a bad second byte */
        {"8162c328", "not UTF-8 at byte 1"},
        {"a1616101616102", "left over"},
        {"a2616101616102", "there before at byte 4"},
        {"a10102", "not text"},
        {"a1410102", "not text"},
        {"a162c32801", "not UTF-8"},
        {"a16161", "the end of the input at byte 3"},
        {"a1616161", "cut short at byte 3"},
        {"9bffffffffffffffff", "more items than there are bytes"},
        {"bbffffffffffffffff", "more items than there are bytes"},
        {"bb8000000000000000", "more items than there are bytes"},
        {"5bffffffffffffffff", "cut short"},
        {"7bffffffffffffffff00", "cut short"},
        {"8201", "more items than there are bytes"},
        {"818181818181818180", "too deep at byte 8"},
        {"a16161a16161a16161a16161a16161a16161a16161a16161a0", "too deep"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t bytes[64];
        size_t n = unhex(rows[i].hex, bytes);
        /* A copy of the exact size, so that ASan sees a read behind the end. */
        uint8_t *exact = malloc(n + (n == 0));
        tn_cbor v;
        tn_err e = TN_ERR_INIT;

        memcpy(exact, bytes, n);
        ck_assert_msg(tn_cbor_parse(exact, n, &v, &e) == TN_EPROTO, "row %zu: %s", i, rows[i].hex);
        ck_assert_int_eq(e.code, TN_EPROTO);
        ck_assert_int_eq(v.kind, TN_CBOR_NONE);
        ck_assert_msg(strstr(e.msg, rows[i].says) != NULL, "%s: %s", rows[i].hex, e.msg);
        free(exact);
    }
}
END_TEST

START_TEST(the_deepest_that_is_allowed) {
    uint8_t bytes[64];
    tn_cbor v;

    ck_assert_int_eq(tn_cbor_parse(bytes, unhex("8181818181818180", bytes), &v, NULL), TN_OK);
    ck_assert_int_eq(tn_cbor_parse(bytes, unhex("8181818181818181"
                                                "00",
                                                bytes),
                                   &v, NULL),
                     TN_OK);
}
END_TEST

static void put_numbered_map(tn_wr *w, size_t pairs) {
    tn_cbor_put_map(w, pairs);
    for (size_t i = 0; i < pairs; i++) {
        char key[24];

        snprintf(key, sizeof(key), "k%zu", i);
        tn_cbor_put_text(w, key);
        tn_cbor_put_u64(w, i);
    }
}

START_TEST(maps_have_a_limit_and_arrays_have_none) {
    tn_wr w = tn_wr_init(1 << 20);
    tn_cbor v;
    tn_err e = TN_ERR_INIT;

    put_numbered_map(&w, TN_CBOR_MAX_PAIRS);
    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, &e), TN_OK);
    ck_assert_uint_eq(tn_cbor_get(&v, "k255").u, 255);
    w.len = 0;
    put_numbered_map(&w, TN_CBOR_MAX_PAIRS + 1);
    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, &e), TN_EPROTO);
    ck_assert_ptr_nonnull(strstr(e.msg, "too many pairs"));
    w.len = 0;
    tn_cbor_put_array(&w, 100000);
    for (int i = 0; i < 100000; i++)
        tn_cbor_put_bool(&w, true);
    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &v, &e), TN_OK);
    ck_assert_uint_eq(v.u, 100000);
    tn_wr_release(&w);
}
END_TEST

/* One of everything: {"n": 300, "neg": -5, "f": 2.5, "yes": true, "t": "text", "b": h'010203',
 * "list": [1, [2, "x"], {}], "map": {"in": 1, "": []}}. */
static tn_wr sample(void) {
    tn_wr w = tn_wr_init(1024);

    tn_cbor_put_map(&w, 8);
    tn_cbor_put_text(&w, "n");
    tn_cbor_put_u64(&w, 300);
    tn_cbor_put_text(&w, "neg");
    tn_cbor_put_i64(&w, -5);
    tn_cbor_put_text(&w, "f");
    tn_cbor_put_f64(&w, 2.5);
    tn_cbor_put_text(&w, "yes");
    tn_cbor_put_bool(&w, true);
    tn_cbor_put_text(&w, "t");
    tn_cbor_put_text(&w, "text");
    tn_cbor_put_text(&w, "b");
    tn_cbor_put_bytes(&w, "\1\2\3", 3);
    tn_cbor_put_text(&w, "list");
    tn_cbor_put_array(&w, 3);
    tn_cbor_put_u64(&w, 1);
    tn_cbor_put_array(&w, 2);
    tn_cbor_put_u64(&w, 2);
    tn_cbor_put_text(&w, "x");
    tn_cbor_put_map(&w, 0);
    tn_cbor_put_text(&w, "map");
    tn_cbor_put_map(&w, 2);
    tn_cbor_put_text(&w, "in");
    tn_cbor_put_u64(&w, 1);
    tn_cbor_put_text(&w, "");
    tn_cbor_put_array(&w, 0);
    ck_assert_int_eq(w.fail, TN_OK);
    return w;
}

START_TEST(a_round_trip) {
    tn_wr w = sample();
    tn_cbor root, list, map, inner, key, v;
    uint64_t u;
    double f;
    bool yes;
    char text[8];
    uint8_t bytes[3];

    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &root, NULL), TN_OK);
    ck_assert_int_eq(root.kind, TN_CBOR_MAP);
    ck_assert_uint_eq(root.u, 8);
    ck_assert_int_eq(tn_cbor_get_u64(&root, "n", 300, &u, NULL), TN_OK);
    ck_assert_uint_eq(u, 300);
    ck_assert_int_eq(tn_cbor_get_f64(&root, "f", &f, NULL), TN_OK);
    ck_assert_double_eq(f, 2.5);
    ck_assert_int_eq(tn_cbor_get_f64(&root, "n", &f, NULL), TN_OK);
    ck_assert_double_eq(f, 300);
    ck_assert_int_eq(tn_cbor_get_f64(&root, "neg", &f, NULL), TN_OK);
    ck_assert_double_eq(f, -5);
    ck_assert_int_eq(tn_cbor_get_bool(&root, "yes", &yes, NULL), TN_OK);
    ck_assert(yes);
    ck_assert_int_eq(tn_cbor_get_text(&root, "t", text, 5, NULL), TN_OK);
    ck_assert_str_eq(text, "text");
    ck_assert_int_eq(tn_cbor_get_bytes(&root, "b", bytes, 3, NULL), TN_OK);
    ck_assert_mem_eq(bytes, "\1\2\3", 3);

    list = tn_cbor_get(&root, "list");
    ck_assert_uint_eq(list.u, 3);
    ck_assert(tn_cbor_next(&list, NULL, &v) && v.kind == TN_CBOR_UINT && v.u == 1);
    ck_assert(tn_cbor_next(&list, NULL, &inner) && inner.kind == TN_CBOR_ARRAY && inner.u == 2);
    ck_assert(tn_cbor_next(&inner, NULL, &v) && v.u == 2);
    ck_assert(tn_cbor_next(&inner, NULL, &v) && v.kind == TN_CBOR_TEXT && v.n == 1 && v.p[0] == 'x');
    ck_assert(!tn_cbor_next(&inner, NULL, &v));
    ck_assert(tn_cbor_next(&list, NULL, &v) && v.kind == TN_CBOR_MAP && v.u == 0 && v.n == 0);
    ck_assert(!tn_cbor_next(&list, NULL, &v));

    map = tn_cbor_get(&root, "map");
    ck_assert(tn_cbor_next(&map, &key, &v) && key.n == 2 && memcmp(key.p, "in", 2) == 0 && v.u == 1);
    ck_assert(tn_cbor_next(&map, &key, &v) && key.n == 0 && v.kind == TN_CBOR_ARRAY);
    ck_assert(!tn_cbor_next(&map, &key, &v));

    ck_assert_int_eq(tn_cbor_get(&root, "no").kind, TN_CBOR_NONE);
    ck_assert_int_eq(tn_cbor_get(&root, "lis").kind, TN_CBOR_NONE);
    ck_assert_int_eq(tn_cbor_get(&list, "n").kind, TN_CBOR_NONE);
    v = tn_cbor_get(&root, "n");
    ck_assert(!tn_cbor_next(&v, NULL, &key)); /* a number has no items */
    tn_wr_release(&w);
}
END_TEST

START_TEST(getters_name_key_and_kind) {
    tn_wr w = sample();
    tn_cbor root, list;
    tn_err e = TN_ERR_INIT;
    uint64_t u = 77;
    double f = 77;
    bool yes = false;
    char text[8] = "kept";
    uint8_t bytes[8];

    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &root, NULL), TN_OK);
    ck_assert_int_eq(tn_cbor_get_u64(&root, "rounds", 9, &u, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"rounds\" is missing (an unsigned integer was expected)");
    ck_assert_int_eq(tn_cbor_get_u64(&root, "t", 9, &u, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"t\" is a text; an unsigned integer was expected");
    ck_assert_int_eq(tn_cbor_get_u64(&root, "neg", 9, &u, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"neg\" is a negative integer; an unsigned integer was expected");
    ck_assert_int_eq(tn_cbor_get_u64(&root, "n", 299, &u, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"n\" is 300; at most 299 is allowed");
    ck_assert_uint_eq(u, 77);
    ck_assert_int_eq(tn_cbor_get_f64(&root, "yes", &f, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"yes\" is a boolean; a float was expected");
    ck_assert_double_eq(f, 77);
    ck_assert_int_eq(tn_cbor_get_bool(&root, "n", &yes, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"n\" is an unsigned integer; a boolean was expected");
    ck_assert_int_eq(tn_cbor_get_text(&root, "b", text, sizeof(text), &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"b\" is a byte string; a text was expected");
    ck_assert_int_eq(tn_cbor_get_text(&root, "t", text, 4, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"t\" is a text of 4 bytes; at most 3 are allowed");
    ck_assert_str_eq(text, "kept");
    ck_assert_int_eq(tn_cbor_get_bytes(&root, "b", bytes, 4, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"b\" is a byte string of 3 bytes; 4 were expected");
    ck_assert_int_eq(tn_cbor_get_bytes(&root, "map", bytes, 4, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"map\" is a map; a byte string was expected");
    list = tn_cbor_get(&root, "list");
    ck_assert_int_eq(tn_cbor_get_u64(&list, "n", 9, &u, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"n\" was looked for in an array, not in a map");
    tn_wr_release(&w);
}
END_TEST

START_TEST(text_with_a_nul_is_refused) {
    tn_wr w = tn_wr_init(64);
    tn_cbor root;
    char text[8];
    tn_err e = TN_ERR_INIT;

    tn_cbor_put_map(&w, 1);
    tn_cbor_put_text(&w, "t");
    tn_cbor_put_textn(&w, "a\0b", 3);
    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &root, NULL), TN_OK);
    ck_assert_int_eq(tn_cbor_get_text(&root, "t", text, sizeof(text), &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "key \"t\" is a text with a NUL byte in it");
    tn_wr_release(&w);
}
END_TEST

START_TEST(only_known_keys) {
    static const char *const all[] = {"n", "neg", "f", "yes", "t", "b", "list", "map", "more", NULL};
    static const char *const some[] = {"n", "neg", "f", "yes", "te", "b", "list", "map", NULL};
    tn_wr w = sample();
    tn_cbor root, n;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_cbor_parse(w.p, w.len, &root, NULL), TN_OK);
    ck_assert_int_eq(tn_cbor_only(&root, all, &e), TN_OK);
    ck_assert_int_eq(tn_cbor_only(&root, some, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "unknown key \"t\"");
    n = tn_cbor_get(&root, "n");
    ck_assert_int_eq(tn_cbor_only(&n, all, &e), TN_EPROTO);
    ck_assert_str_eq(e.msg, "an unsigned integer where a map was expected");
    tn_wr_release(&w);
}
END_TEST

START_TEST(every_prefix_is_refused) {
    tn_wr w = sample();

    for (size_t n = 0; n < w.len; n++) {
        uint8_t *exact = malloc(n + (n == 0));
        tn_cbor v;

        memcpy(exact, w.p, n);
        ck_assert_int_eq(tn_cbor_parse(exact, n, &v, NULL), TN_EPROTO);
        free(exact);
    }
    tn_wr_release(&w);
}
END_TEST

/* Walks everything below v and counts. A view outside the input, or fewer items than announced, aborts. */
static size_t walk(const tn_cbor *v, const uint8_t *from, const uint8_t *to) {
    tn_cbor rest = *v, key, value;
    size_t items = 1;
    uint64_t seen = 0;

    if (v->kind == TN_CBOR_NONE || v->kind > TN_CBOR_MAP)
        ck_abort_msg("an item of no kind");
    if (v->kind >= TN_CBOR_TEXT && (v->p < from || v->p > to || v->n > (size_t)(to - v->p)))
        ck_abort_msg("a view outside the input");
    if (v->kind != TN_CBOR_ARRAY && v->kind != TN_CBOR_MAP)
        return 1;
    while (tn_cbor_next(&rest, &key, &value)) {
        if (v->kind == TN_CBOR_MAP && key.kind != TN_CBOR_TEXT)
            ck_abort_msg("a key that is not text");
        items += walk(&value, from, to);
        seen++;
    }
    if (seen != v->u || rest.n != 0)
        ck_abort_msg("items are missing or left over");
    return items;
}

START_TEST(mutations_are_refused_or_walk) {
    tn_wr w = sample();
    tn_rng rng = tn_rng_seed(2026);
    unsigned accepted = 0, refused = 0;

    for (int round = 0; round < 40000; round++) {
        size_t n = w.len - (tn_rng_below(&rng, 4) == 0 ? (size_t)tn_rng_below(&rng, w.len) : 0);
        uint8_t *bytes = malloc(n);
        unsigned edits = 1 + (unsigned)tn_rng_below(&rng, 3);
        tn_cbor root;
        tn_err e = TN_ERR_INIT;

        memcpy(bytes, w.p, n);
        for (unsigned i = 0; i < edits; i++)
            bytes[tn_rng_below(&rng, n)] = (uint8_t)tn_rng_u64(&rng);
        if (tn_cbor_parse(bytes, n, &root, &e) == TN_OK) {
            walk(&root, bytes, bytes + n);
            tn_cbor_get(&root, "map");
            accepted++;
        } else {
            if (e.code != TN_EPROTO || e.msg[0] == '\0' || root.kind != TN_CBOR_NONE)
                ck_abort_msg("a refusal without a reason");
            refused++;
        }
        free(bytes);
    }
    ck_assert_uint_gt(accepted, 1000); /* both ways were taken */
    ck_assert_uint_gt(refused, 1000);
    tn_wr_release(&w);
}
END_TEST

/* The getters keep their bounds even on a container that no parse has checked. */
START_TEST(an_unchecked_container_yields_nothing_stray) {
    tn_wr w = sample();
    tn_rng rng = tn_rng_seed(5);

    for (int round = 0; round < 20000; round++) {
        size_t n = 1 + (size_t)tn_rng_below(&rng, w.len);
        uint8_t *bytes = malloc(n);
        tn_cbor c = {.kind = round % 2 ? TN_CBOR_MAP : TN_CBOR_ARRAY, .u = tn_rng_below(&rng, 50)}, key, v;

        for (size_t i = 0; i < n; i++)
            bytes[i] = tn_rng_below(&rng, 3) == 0 ? (uint8_t)tn_rng_u64(&rng) : w.p[i];
        c.p = bytes;
        c.n = n;
        while (tn_cbor_next(&c, &key, &v)) {
            if (v.kind >= TN_CBOR_TEXT && (v.p < bytes || v.n > (size_t)(bytes + n - v.p)))
                ck_abort_msg("a view outside the input");
        }
        free(bytes);
    }
    tn_wr_release(&w);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/cbor");
    TCase *write = tcase_create("writing"), *read = tcase_create("reading");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(read, 120);
    suite_add_tcase(s, write);
    suite_add_tcase(s, read);
    tcase_add_test(write, unsigned_integers);
    tcase_add_test(write, signed_integers);
    tcase_add_test(write, floats);
    tcase_add_test(write, strings_booleans_and_containers);
    tcase_add_test(write, a_full_writer_fails_once_for_all);
    tcase_add_test(read, refused_by_name);
    tcase_add_test(read, the_deepest_that_is_allowed);
    tcase_add_test(read, maps_have_a_limit_and_arrays_have_none);
    tcase_add_test(read, a_round_trip);
    tcase_add_test(read, getters_name_key_and_kind);
    tcase_add_test(read, text_with_a_nul_is_refused);
    tcase_add_test(read, only_known_keys);
    tcase_add_test(read, every_prefix_is_refused);
    tcase_add_test(read, mutations_are_refused_or_walk);
    tcase_add_test(read, an_unchecked_container_yields_nothing_stray);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

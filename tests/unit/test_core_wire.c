/* The reader and the writer: byte order, bounds, sticky failure, ceilings. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/wire.h"

START_TEST(bytes_are_little_endian) {
    static const uint8_t want[] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0F, 0x0E, 0x0D,
                                   0x0C, 0x0B, 0x0A, 0x09, 0x08, 'x',  'y'};
    uint8_t bytes[sizeof(want)];
    tn_wr w = tn_wr_fixed(bytes, sizeof(bytes));
    tn_rd r;

    tn_wr_u8(&w, 0x01);
    tn_wr_u16(&w, 0x0203);
    tn_wr_u32(&w, 0x04050607);
    tn_wr_u64(&w, UINT64_C(0x08090A0B0C0D0E0F));
    tn_wr_bytes(&w, "xy", 2);
    ck_assert_int_eq(w.fail, TN_OK);
    ck_assert_uint_eq(w.len, sizeof(want));
    ck_assert_mem_eq(bytes, want, sizeof(want));
    r = tn_rd_init(bytes, sizeof(bytes));
    ck_assert_uint_eq(tn_rd_u8(&r), 0x01);
    ck_assert_uint_eq(tn_rd_u16(&r), 0x0203);
    ck_assert_uint_eq(tn_rd_u32(&r), 0x04050607);
    ck_assert_uint_eq(tn_rd_u64(&r), UINT64_C(0x08090A0B0C0D0E0F));
    ck_assert_int_eq(tn_rd_end(&r), TN_EPROTO); /* two bytes are left */
    ck_assert_mem_eq(tn_rd_take(&r, 2), "xy", 2);
    ck_assert_int_eq(tn_rd_end(&r), TN_OK);
}
END_TEST

START_TEST(every_prefix_is_refused) {
    uint8_t bytes[15] = {0};

    for (size_t n = 0; n <= sizeof(bytes); n++) {
        tn_rd r = tn_rd_init(bytes, n);

        tn_rd_u64(&r);
        tn_rd_u32(&r);
        tn_rd_u16(&r);
        tn_rd_u8(&r);
        ck_assert_int_eq(tn_rd_end(&r), n == sizeof(bytes) ? TN_OK : TN_EPROTO);
    }
}
END_TEST

START_TEST(failure_is_sticky) {
    static const uint8_t bytes[] = {1, 2, 3};
    tn_rd r = tn_rd_init(bytes, sizeof(bytes));

    ck_assert_uint_eq(tn_rd_u32(&r), 0);
    ck_assert_uint_eq(tn_rd_u8(&r), 0); /* there would be one */
    ck_assert_ptr_null(tn_rd_take(&r, 0));
    ck_assert_int_eq(tn_rd_end(&r), TN_EPROTO);
}
END_TEST

START_TEST(taking_nothing_is_no_failure) {
    tn_rd r = tn_rd_init(NULL, 0);
    tn_wr w = tn_wr_init(0);

    ck_assert_ptr_nonnull(tn_rd_take(&r, 0));
    ck_assert_int_eq(tn_rd_end(&r), TN_OK);
    ck_assert_ptr_nonnull(tn_wr_room(&w, 0));
    tn_wr_bytes(&w, NULL, 0);
    ck_assert_int_eq(w.fail, TN_OK);
    tn_wr_release(&w);
}
END_TEST

START_TEST(a_count_must_fit_what_is_left) {
    static const struct {
        uint32_t count, max;
        size_t min_each, behind;
        uint32_t want;
        tn_code code;
    } rows[] = {
        {4, 10, 3, 12, 4, TN_OK},
        {5, 10, 3, 12, 0, TN_EPROTO},
        {10, 10, 1, 12, 10, TN_OK},
        {11, 10, 1, 12, 0, TN_EPROTO},
        {UINT32_MAX, UINT32_MAX, SIZE_MAX, 12, 0, TN_EPROTO},
        {UINT32_MAX, UINT32_MAX, 1, 12, 0, TN_EPROTO},
        {7, 7, 0, 0, 7, TN_OK},
        {0, 0, 8, 0, 0, TN_OK},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t bytes[16] = {0};
        tn_wr w = tn_wr_fixed(bytes, sizeof(bytes));
        tn_rd r = tn_rd_init(bytes, 4 + rows[i].behind);

        tn_wr_u32(&w, rows[i].count);
        ck_assert_uint_eq(tn_rd_count(&r, rows[i].min_each, rows[i].max), rows[i].want);
        ck_assert_int_eq(r.fail, rows[i].code);
    }
}
END_TEST

START_TEST(the_writer_keeps_its_ceiling) {
    for (size_t limit = 0; limit < 600; limit += 13) {
        tn_wr w = tn_wr_init(limit);
        size_t n = 0;

        while (w.fail == TN_OK) {
            ck_assert_uint_eq(w.len, n);
            ck_assert_uint_le(w.cap, limit > 0 ? limit : 1);
            tn_wr_u16(&w, (uint16_t)n);
            n += 2;
        }
        ck_assert_int_eq(w.fail, TN_ETOOBIG);
        ck_assert_uint_eq(w.len, limit / 2 * 2);
        tn_wr_u8(&w, 1); /* sticky, though a byte may be free */
        ck_assert_uint_eq(w.len, limit / 2 * 2);
        ck_assert_ptr_null(tn_wr_room(&w, SIZE_MAX));
        tn_wr_release(&w);
        tn_wr_release(&w);
    }
}
END_TEST

START_TEST(what_is_written_is_read) {
    tn_rng rng = tn_rng_seed(1);

    for (int round = 0; round < 200; round++) {
        tn_wr w = tn_wr_init(1 << 16);
        uint64_t seed = tn_rng_u64(&rng);
        tn_rng a = tn_rng_seed(seed), b = tn_rng_seed(seed);
        size_t n = (size_t)tn_rng_below(&rng, 500);
        tn_rd r;

        for (size_t i = 0; i < n; i++) {
            uint64_t v = tn_rng_u64(&a);

            switch (v % 4) {
            case 0:
                tn_wr_u8(&w, (uint8_t)v);
                break;
            case 1:
                tn_wr_u16(&w, (uint16_t)v);
                break;
            case 2:
                tn_wr_u32(&w, (uint32_t)v);
                break;
            default:
                tn_wr_u64(&w, v);
            }
        }
        ck_assert_int_eq(w.fail, TN_OK);
        r = tn_rd_init(w.p, w.len);
        for (size_t i = 0; i < n; i++) {
            uint64_t v = tn_rng_u64(&b);

            switch (v % 4) {
            case 0:
                ck_assert_uint_eq(tn_rd_u8(&r), (uint8_t)v);
                break;
            case 1:
                ck_assert_uint_eq(tn_rd_u16(&r), (uint16_t)v);
                break;
            case 2:
                ck_assert_uint_eq(tn_rd_u32(&r), (uint32_t)v);
                break;
            default:
                ck_assert_uint_eq(tn_rd_u64(&r), v);
            }
        }
        ck_assert_int_eq(tn_rd_end(&r), TN_OK);
        tn_wr_release(&w);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/wire");
    TCase *tc = tcase_create("wire");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, tc);
    tcase_add_test(tc, bytes_are_little_endian);
    tcase_add_test(tc, every_prefix_is_refused);
    tcase_add_test(tc, failure_is_sticky);
    tcase_add_test(tc, taking_nothing_is_no_failure);
    tcase_add_test(tc, a_count_must_fit_what_is_left);
    tcase_add_test(tc, the_writer_keeps_its_ceiling);
    tcase_add_test(tc, what_is_written_is_read);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

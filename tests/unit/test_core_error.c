/* Error values: what is filled in, what is kept when it does not fit, and the table of codes. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

START_TEST(fail_fills_and_returns) {
    tn_err e = TN_ERR_INIT;

    e.sys = 7;
    ck_assert_int_eq(tn_fail(&e, TN_EPEER, "rank %d left group %s", 3, "g"), TN_EPEER);
    ck_assert_int_eq(e.code, TN_EPEER);
    ck_assert_int_eq(e.sys, 0);
    ck_assert_str_eq(e.msg, "rank 3 left group g");
    ck_assert_int_eq(tn_fail(NULL, TN_EIO, "nobody listens"), TN_EIO);
}
END_TEST

START_TEST(fail_sys_says_why) {
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_fail_sys(&e, TN_EIO, ENOENT, "cannot open %s", "x"), TN_EIO);
    ck_assert_int_eq(e.sys, ENOENT);
    ck_assert_str_eq(e.msg, "cannot open x: No such file or directory");
    tn_fail_sys(&e, TN_EIO, 123456, "odd");
    ck_assert_msg(strstr(e.msg, "123456") != NULL, "%s", e.msg);
    ck_assert_int_eq(tn_fail_sys(NULL, TN_EIO, ENOENT, "x"), TN_EIO);
}
END_TEST

START_TEST(context_goes_in_front) {
    tn_err e = TN_ERR_INIT;

    tn_fail(&e, TN_ETIMEDOUT, "no answer");
    ck_assert_int_eq(tn_ctx(&e, "allreduce seq %d", 9), TN_ETIMEDOUT);
    ck_assert_int_eq(tn_ctx(&e, "%s", "group 2"), TN_ETIMEDOUT);
    ck_assert_str_eq(e.msg, "group 2: allreduce seq 9: no answer");
}
END_TEST

/* Whatever the lengths: terminated, the context whole when it fits, and the message behind it as far as it fits. */
START_TEST(context_of_every_length) {
    static const size_t size = sizeof(((tn_err *)0)->msg);
    char context[1024], message[1024];

    for (size_t c = 0; c < size + 20; c += 7) {
        for (size_t m = 0; m < size + 20; m += 11) {
            tn_err e;
            size_t kept = m < size - 1 ? m : size - 1;
            size_t front = c < size - 3 ? c : size - 3;
            size_t back = kept < size - 1 - front - 2 ? kept : size - 1 - front - 2;

            memset(context, 'c', sizeof(context));
            memset(message, 'm', sizeof(message));
            context[c] = message[m] = '\0';
            tn_fail(&e, TN_EIO, "%s", message);
            tn_ctx(&e, "%s", context);
            ck_assert_uint_eq(strlen(e.msg), front + 2 + back);
            ck_assert_uint_eq(strspn(e.msg, "c"), front);
            ck_assert_int_eq(strncmp(e.msg + front, ": ", 2), 0);
            ck_assert_uint_eq(strspn(e.msg + front + 2, "m"), back);
        }
    }
}
END_TEST

START_TEST(a_cut_message_is_terminated) {
    char text[2000];
    tn_err e;

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    tn_fail_sys(&e, TN_EIO, EIO, "%s", text);
    ck_assert_uint_eq(strlen(e.msg), sizeof(e.msg) - 1);
}
END_TEST

/* The values are part of the wire protocol: this table only ever grows at its end. */
START_TEST(codes_keep_their_values) {
    static const char *const names[] = {
        "TN_OK",      "TN_EINVAL",     "TN_ENOMEM", "TN_EPROTO",       "TN_EPEER",    "TN_ETIMEDOUT",
        "TN_ECANCELED", "TN_EIO",      "TN_EAUTH",  "TN_ESHAPE",       "TN_ENONFINITE", "TN_EROUND",
        "TN_EUNSUPPORTED", "TN_EVERSION", "TN_ETOOBIG", "TN_EBUSY",    "TN_ENOTFOUND", "TN_EINTERNAL",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ck_assert_str_eq(tn_code_name((tn_code)i), names[i]);
        ck_assert_str_ne(tn_code_text((tn_code)i), "unknown error");
    }
    ck_assert_str_eq(tn_code_name((tn_code)9999), "TN_?");
    ck_assert_str_eq(tn_code_text((tn_code)9999), "unknown error");
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/error");
    TCase *tc = tcase_create("error");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, tc);
    tcase_add_test(tc, fail_fills_and_returns);
    tcase_add_test(tc, fail_sys_says_why);
    tcase_add_test(tc, context_goes_in_front);
    tcase_add_test(tc, context_of_every_length);
    tcase_add_test(tc, a_cut_message_is_terminated);
    tcase_add_test(tc, codes_keep_their_values);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

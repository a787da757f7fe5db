/* UTF-8: the edges of each range of RFC 3629, and each cut sequence. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

START_TEST(edges) {
    static const struct {
        const char *text;
        bool valid;
    } rows[] = {
        {"", true},
        {"plain", true},
        {"\x7f", true},
        {"\x80", false},
        {"\xbf", false},
        {"\xc0\x80", false}, /* overlong */
        {"\xc1\xbf", false},
        {"\xc2\x80", true}, /* U+0080 */
        {"\xdf\xbf", true}, /* U+07FF */
        {"\xc2\x7f", false},
        {"\xc2\xc0", false},
        {"\xe0\x9f\xbf", false}, /* overlong */
        {"\xe0\xa0\x80", true},  /* U+0800 */
        {"\xed\x9f\xbf", true},  /* U+D7FF */
        {"\xed\xa0\x80", false}, /* surrogates */
        {"\xed\xbf\xbf", false},
        {"\xee\x80\x80", true}, /* U+E000 */
        {"\xef\xbf\xbf", true}, /* U+FFFF */
        {"\xef\xbf\xc0", false},
        {"\xf0\x8f\xbf\xbf", false}, /* overlong */
        {"\xf0\x90\x80\x80", true},  /* U+10000 */
        {"\xf4\x8f\xbf\xbf", true},  /* U+10FFFF */
        {"\xf4\x90\x80\x80", false},
        {"\xf5\x80\x80\x80", false},
        {"\xff", false},
        {"ok \xe2\x82\xac ok \xf0\x9f\x98\x80", true},
        {"ok \xe2\x82 ok", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(tni_utf8_valid(rows[i].text, strlen(rows[i].text)) == rows[i].valid, "row %zu", i);
    ck_assert(tni_utf8_valid("a\0b", 3));
    ck_assert(tni_utf8_valid(NULL, 0));
}
END_TEST

/* Every code point, encoded the plain way, is accepted whole and refused when cut. */
START_TEST(every_code_point) {
    for (uint32_t c = 0; c <= 0x110000; c++) {
        uint8_t b[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        bool want = c < 0x110000 && !(c >= 0xD800 && c <= 0xDFFF);

        b[0] = (uint8_t)(n == 1 ? c : (0xF00u >> n & 0xFF) | c >> 6 * (n - 1));
        for (size_t i = 1; i < n; i++)
            b[i] = (uint8_t)(0x80 | (c >> 6 * (n - 1 - i) & 0x3F));
        if (tni_utf8_valid(b, n) != want) /* not ck_assert_msg: Check reports each one through a pipe */
            ck_abort_msg("U+%04X", (unsigned)c);
        for (size_t cut = 1; cut < n; cut++) {
            if (tni_utf8_valid(b, cut))
                ck_abort_msg("U+%04X cut to %zu", (unsigned)c, cut);
        }
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/utf8");
    TCase *tc = tcase_create("utf8");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, edges);
    tcase_add_test(tc, every_code_point);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

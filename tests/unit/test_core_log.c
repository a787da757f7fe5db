/* The log: the shape of a line, levels, escapes, lines that stay whole. Standard error goes to a file meanwhile. */
#include <check.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"

static FILE *sink;
static int real_stderr;

static void redirect(void) {
    sink = tmpfile();
    ck_assert_ptr_nonnull(sink);
    real_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(dup2(fileno(sink), STDERR_FILENO), STDERR_FILENO);
}

static void restore(void) {
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    fclose(sink);
}

/* What was logged since the last call, in fresh memory. */
static char *logged(void) {
    long n = (long)lseek(fileno(sink), 0, SEEK_CUR);
    char *text = calloc(1, (size_t)n + 1);

    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(pread(fileno(sink), text, (size_t)n, 0), n);
    lseek(fileno(sink), 0, SEEK_SET);
    ck_assert_int_eq(ftruncate(fileno(sink), 0), 0);
    return text;
}

static void expect(const char *pattern) {
    char *text = logged();
    regex_t re;

    ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    ck_assert_msg(regexec(&re, text, 0, NULL, 0) == 0, "\"%s\" does not match %s", text, pattern);
    regfree(&re);
    free(text);
}

#define STAMP "^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

START_TEST(a_line_has_its_shape) {
    tn_log_level_set(TN_LOG_DEBUG);
    tn_log(TN_LOG_INFO, "server", "round %d: %s", 3, "done");
    expect(STAMP "info  server  round 3: done\n$");
    tn_log(TN_LOG_DEBUG, "fed", "x");
    expect(STAMP "debug fed  x\n$");
    tn_log(TN_LOG_WARN, "fed", "x");
    expect(STAMP "warn  fed  x\n$");
    tn_log(TN_LOG_ERROR, "fed", "x");
    expect(STAMP "error fed  x\n$");
}
END_TEST

START_TEST(levels_hold_back) {
    for (int level = TN_LOG_DEBUG; level <= TN_LOG_ERROR; level++) {
        tn_log_level_set((tn_log_level)level);
        ck_assert_int_eq((int)tn_log_level_get(), level);
        for (int l = TN_LOG_DEBUG; l <= TN_LOG_ERROR; l++) {
            tn_log((tn_log_level)l, "a", "text");
            expect(l >= level ? "text" : "^$");
        }
    }
}
END_TEST

START_TEST(the_level_comes_from_the_environment) {
    static const struct {
        const char *value;
        tn_log_level level;
        const char *said;
    } rows[] = {
        {"debug", TN_LOG_DEBUG, "^$"},
        {"error", TN_LOG_ERROR, "^$"},
        {"", TN_LOG_INFO, "^$"},
        {"LOUD", TN_LOG_INFO, "warn  log  TN_LOG=LOUD is not a level; use debug, info, warn or error\n$"},
    };

    setenv("TN_LOG", rows[_i].value, 1);
    ck_assert_int_eq((int)tn_log_level_get(), (int)rows[_i].level);
    expect(rows[_i].said);
}
END_TEST

START_TEST(a_level_that_was_set_wins) {
    setenv("TN_LOG", "debug", 1);
    tn_log_level_set(TN_LOG_WARN);
    ck_assert_int_eq((int)tn_log_level_get(), TN_LOG_WARN);
}
END_TEST

START_TEST(control_characters_are_escaped) {
    tn_log_level_set(TN_LOG_INFO);
    tn_log(TN_LOG_INFO, "a", "%s", "x\n2026 error forged\r\t\x1b[2J\x7f \xc2\x9b \xc3\xa9 \xc2\xa0|");
    expect("a  x\\\\n2026 error forged\\\\r\\\\t\\\\x1b\\[2J\\\\x7f \\\\xc2\\\\x9b \xc3\xa9 \xc2\xa0\\|\n$");
}
END_TEST

/* Whatever the length, and when every byte is escaped: one line, with its end. */
START_TEST(long_records_are_cut) {
    static char text[8192];

    tn_log_level_set(TN_LOG_INFO);
    for (size_t n = 4000; n < 4200; n += 3) {
        for (int c = 0; c < 2; c++) {
            char *line;

            memset(text, c == 0 ? 'x' : '\x01', n);
            text[n] = '\0';
            tn_log(TN_LOG_INFO, "a", "%s", text);
            line = logged();
            ck_assert_uint_le(strlen(line), 4096);
            ck_assert_uint_ge(strlen(line), 4000);
            ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
            free(line);
        }
    }
}
END_TEST

#define THREADS 4
#define LINES 200

static void *talk(void *arg) {
    for (int i = 0; i < LINES; i++)
        tn_log(TN_LOG_INFO, "thread", "%s begin %060d end", (const char *)arg, i);
    return NULL;
}

START_TEST(lines_of_threads_do_not_mix) {
    static const char *const names[THREADS] = {"a", "b", "c", "d"};
    pthread_t t[THREADS];
    char *text, *line;
    int next[THREADS] = {0};

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, talk, (void *)(uintptr_t)names[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    text = logged();
    for (line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        char who = line[sizeof("2026-12-01T05:59:24.123Z info  thread  ") - 1], *end;
        char *number = strstr(line, " begin ");

        ck_assert(who >= 'a' && who < 'a' + THREADS);
        ck_assert_ptr_nonnull(number);
        ck_assert_int_eq(strtol(number + strlen(" begin "), &end, 10), next[who - 'a']++);
        ck_assert_int_eq(strncmp(end, " end\n", 5), 0);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(next[i], LINES);
    free(text);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/log");
    TCase *tc = tcase_create("log");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, redirect, restore);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, a_line_has_its_shape);
    tcase_add_test(tc, levels_hold_back);
    tcase_add_loop_test(tc, the_level_comes_from_the_environment, 0, 4);
    tcase_add_test(tc, a_level_that_was_set_wins);
    tcase_add_test(tc, control_characters_are_escaped);
    tcase_add_test(tc, long_records_are_cut);
    tcase_add_test(tc, lines_of_threads_do_not_mix);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Settings: each source, which one wins, and the text of every refusal. */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/file.h"

typedef struct settings {
    char *config, *state;
    tn_cfg_list listen;
    int64_t rounds;
    double fraction;
    bool check, insecure;
} settings;

#define AT(field) offsetof(settings, field)

static const tn_cfg_row rows[] = {
    {"config", NULL, "FILE", "read settings from this file", NULL, TN_CFG_STR, AT(config), 0, 0},
    {"check", NULL, NULL, "validate and exit", NULL, TN_CFG_BOOL, AT(check), 0, 0},
    {"listen", "server", "URL", "where clients meet", "tcp://127.0.0.1:0", TN_CFG_LIST, AT(listen), 0, 0},
    {"state-dir", "server", "DIR", "where the state lies", NULL, TN_CFG_STR, AT(state), 0, 0},
    {"insecure", "server", NULL, "allow plain connections", NULL, TN_CFG_BOOL, AT(insecure), 0, 0},
    {"rounds", "rounds", "N", "how many rounds to run", "10", TN_CFG_INT, AT(rounds), 1, 1000000},
    {"fraction", "rounds", "F", "part of the clients in a round", "0.5", TN_CFG_FLOAT, AT(fraction), 0, 1},
    {"secagg", "rounds", NULL, "secure aggregation comes later", NULL, TN_CFG_NOT_BUILT, 0, 0, 0},
    {"dp-budget", "rounds", "E", "it needs the accountant", NULL, TN_CFG_NOT_BUILT, 0, 0, 0},
};
#define N (sizeof(rows) / sizeof(rows[0]))

static settings s;
static char path[64];

static void set_up(void) {
    int fd;

    memset(&s, 0xA5, sizeof(s)); /* the defaults must set every field */
    ck_assert_int_eq(tn_cfg_defaults(rows, N, &s, NULL), TN_OK);
    snprintf(path, sizeof(path), "/tmp/tn-config-XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void tear_down(void) {
    tn_cfg_release(rows, N, &s);
    tn_cfg_release(rows, N, &s);
    ck_assert(s.config == NULL && s.state == NULL && s.listen.item == NULL && s.listen.count == 0);
    unlink(path);
}

static void put(const char *text) {
    tn_part part = {text, strlen(text)};

    ck_assert_int_eq(tn_file_write_atomic(path, &part, 1, 0600, NULL), TN_OK);
}

#define MAX_ARGS 12

/* Words of a command line, cut at blanks; %F stands for the file. */
static tn_code run(const char *line, tn_cfg_list *positional, tn_err *e) {
    static char text[512];
    char *argv[MAX_ARGS + 1] = {0}, *p = text;
    int argc = 0;

    snprintf(text, sizeof(text), "prog%s%s", line[0] != '\0' ? " " : "", line);
    while (*p != '\0' && argc < MAX_ARGS) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        while (*p == ' ')
            *p++ = '\0';
    }
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "%F") == 0)
            argv[i] = path;
    }
    return tn_cfg_argv(rows, N, &s, argc, argv, positional, e);
}

START_TEST(defaults) {
    ck_assert_ptr_null(s.config);
    ck_assert_ptr_null(s.state);
    ck_assert_uint_eq(s.listen.count, 1);
    ck_assert_str_eq(s.listen.item[0], "tcp://127.0.0.1:0");
    ck_assert_int_eq(s.rounds, 10);
    ck_assert_double_eq(s.fraction, 0.5);
    ck_assert(!s.check && !s.insecure);
}
END_TEST

START_TEST(a_wrong_default_is_told) {
    static const tn_cfg_row wrong[] = {
        {"name", NULL, "S", "h", "text", TN_CFG_STR, AT(state), 0, 0},
        {"rounds", NULL, "N", "h", "0", TN_CFG_INT, AT(rounds), 1, 5},
    };
    settings t;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_cfg_defaults(wrong, 2, &t, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "default of --rounds: 0 is out of range; 1 to 5 are allowed");
    ck_assert_ptr_null(t.state); /* nothing is left to release */
}
END_TEST

START_TEST(flags) {
    ck_assert_int_eq(run("--rounds 3 --fraction=0.25 --check --listen a --state-dir=/x --listen=b", NULL, NULL),
                     TN_OK);
    ck_assert_int_eq(s.rounds, 3);
    ck_assert_double_eq(s.fraction, 0.25);
    ck_assert(s.check && !s.insecure);
    ck_assert_str_eq(s.state, "/x");
    ck_assert_uint_eq(s.listen.count, 2); /* the default has gone */
    ck_assert_str_eq(s.listen.item[0], "a");
    ck_assert_str_eq(s.listen.item[1], "b");
    ck_assert_int_eq(run("", NULL, NULL), TN_OK); /* and nothing is touched without a flag */
    ck_assert_int_eq(s.rounds, 3);
    ck_assert_uint_eq(s.listen.count, 2);
}
END_TEST

START_TEST(wrong_flags) {
    static const struct {
        const char *line;
        tn_code code;
        const char *message;
    } want[] = {
        {"--round 3", TN_EINVAL, "unknown flag --round; see --help"}, /* an abbreviation */
        {"--round=3", TN_EINVAL, "unknown flag --round; see --help"},
        {"--chec", TN_EINVAL, "unknown flag --chec; see --help"},
        {"--c", TN_EINVAL, "unknown flag --c; see --help"}, /* an ambiguous one */
        {"--min-clients 3", TN_EINVAL, "unknown flag --min-clients; see --help"},
        {"--rounds 3 --ROUNDS 4", TN_EINVAL, "unknown flag --ROUNDS; see --help"},
        {"--state_dir x", TN_EINVAL, "unknown flag --state_dir; see --help"},
        {"-r 3", TN_EINVAL, "unknown flag -r; see --help"},
        {"-", TN_EINVAL, "unexpected argument \"-\"; flags begin with --"},
        {"--check=yes", TN_EINVAL, "--check takes no value; give the flag alone"},
        {"--rounds", TN_EINVAL, "--rounds needs a value: --rounds N"},
        {"--check --config", TN_EINVAL, "--config needs a value: --config FILE"},
        {"--rounds=", TN_EINVAL, "--rounds: \"\" is not a whole number"},
        {"--rounds x", TN_EINVAL, "--rounds: \"x\" is not a whole number"},
        {"--rounds 3x", TN_EINVAL, "--rounds: \"3x\" is not a whole number"},
        {"--rounds 3.0", TN_EINVAL, "--rounds: \"3.0\" is not a whole number"},
        {"--rounds 0x10", TN_EINVAL, "--rounds: \"0x10\" is not a whole number"},
        {"--rounds=\t3", TN_EINVAL, "--rounds: \"\t3\" is not a whole number"},
        {"--rounds 0", TN_EINVAL, "--rounds: 0 is out of range; 1 to 1000000 are allowed"},
        {"--rounds 1000001", TN_EINVAL, "--rounds: 1000001 is out of range; 1 to 1000000 are allowed"},
        {"--rounds 99999999999999999999", TN_EINVAL,
         "--rounds: 99999999999999999999 is out of range; 1 to 1000000 are allowed"},
        {"--fraction nan", TN_EINVAL, "--fraction: \"nan\" is not a number"},
        {"--fraction inf", TN_EINVAL, "--fraction: \"inf\" is not a number"},
        {"--fraction -inf", TN_EINVAL, "--fraction: -inf is out of range; 0 to 1 are allowed"},
        {"--fraction 1e999", TN_EINVAL, "--fraction: 1e999 is out of range; 0 to 1 are allowed"},
        {"--fraction -0.1", TN_EINVAL, "--fraction: -0.1 is out of range; 0 to 1 are allowed"},
        {"--fraction 1.0001", TN_EINVAL, "--fraction: 1.0001 is out of range; 0 to 1 are allowed"},
        {"--fraction 0,5", TN_EINVAL, "--fraction: \"0,5\" is not a number"},
        {"--state-dir=", TN_EINVAL, "--state-dir: the value is empty; it takes DIR"},
        {"--rounds 3 --rounds 3", TN_EINVAL, "--rounds is given twice; give it once"},
        {"--check --check", TN_EINVAL, "--check is given twice; give it once"},
        {"--secagg", TN_EUNSUPPORTED, "--secagg is not built yet: secure aggregation comes later"},
        {"--secagg=on", TN_EUNSUPPORTED, "--secagg is not built yet: secure aggregation comes later"},
        {"--dp-budget=3", TN_EUNSUPPORTED, "--dp-budget is not built yet: it needs the accountant"},
        {"--dp-budget", TN_EUNSUPPORTED, "--dp-budget is not built yet: it needs the accountant"},
        {"start", TN_EINVAL, "unexpected argument \"start\"; flags begin with --"},
        {"-- --rounds", TN_EINVAL, "unexpected argument \"--rounds\"; flags begin with --"},
        {"--config /no/such", TN_ENOTFOUND, "cannot open /no/such: No such file or directory"},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        tn_err e = TN_ERR_INIT;

        ck_assert_msg(run(want[i].line, NULL, &e) == want[i].code, "%s: %s", want[i].line, e.msg);
        ck_assert_str_eq(e.msg, want[i].message);
        ck_assert_int_eq(e.code, want[i].code);
    }
}
END_TEST

START_TEST(edges_of_numbers) {
    static const struct {
        const char *line;
        int64_t rounds;
        double fraction;
    } want[] = {
        {"--rounds 1 --fraction 0", 1, 0},
        {"--rounds 1000000 --fraction 1", 1000000, 1},
        {"--rounds +5 --fraction .5", 5, 0.5},
        {"--rounds 007 --fraction 1e-3", 7, 1e-3},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        ck_assert_int_eq(run(want[i].line, NULL, NULL), TN_OK);
        ck_assert_int_eq(s.rounds, want[i].rounds);
        ck_assert_double_eq(s.fraction, want[i].fraction);
    }
}
END_TEST

START_TEST(positional_arguments) {
    tn_cfg_list list;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(run("model --rounds 3 get -- --listen x", &list, &e), TN_OK);
    ck_assert_uint_eq(list.count, 4);
    ck_assert_str_eq(list.item[0], "model");
    ck_assert_str_eq(list.item[1], "get");
    ck_assert_str_eq(list.item[2], "--listen");
    ck_assert_str_eq(list.item[3], "x");
    ck_assert_int_eq(s.rounds, 3);
    free(list.item);
    ck_assert_int_eq(run("model --nope", &list, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "unknown flag --nope; see --help");
    ck_assert(list.item == NULL && list.count == 0);
    ck_assert_int_eq(run("--check", &list, &e), TN_OK);
    ck_assert(list.item == NULL && list.count == 0);
}
END_TEST

START_TEST(a_file) {
    put("# comment\n"
        "\n"
        "[server]\r\n"
        "listen = a ; comment\n"
        "listen = b\n"
        "state_dir: /var/x y\n"
        "insecure = TRUE\n"
        "[rounds]\n"
        "  rounds=7\n"
        "fraction = 1");
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, path, NULL), TN_OK);
    ck_assert_uint_eq(s.listen.count, 2);
    ck_assert_str_eq(s.listen.item[0], "a");
    ck_assert_str_eq(s.listen.item[1], "b");
    ck_assert_str_eq(s.state, "/var/x y");
    ck_assert(s.insecure);
    ck_assert_int_eq(s.rounds, 7);
    ck_assert_double_eq(s.fraction, 1);
    put("check = yes\n[server]\ninsecure = 0\n");
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, path, NULL), TN_OK);
    ck_assert(s.check && !s.insecure);
    ck_assert_uint_eq(s.listen.count, 2);
    put("");
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, path, NULL), TN_OK);
}
END_TEST

START_TEST(wrong_files) {
    static const struct {
        const char *text, *message; /* the message after "PATH:" */
        tn_code code;
    } want[] = {
        {"[rounds]\nround = 3\n", "2: round: there is no such key; the names are those of the flags", TN_EINVAL},
        {"[rounds]\n\n# x\nrounds = 0\n", "4: rounds: 0 is out of range; 1 to 1000000 are allowed", TN_EINVAL},
        {"[rounds]\nrounds =\n", "2: rounds: \"\" is not a whole number", TN_EINVAL},
        {"[rounds]\nrounds = 1\nrounds = 2\n", "3: rounds is given twice; give it once", TN_EINVAL},
        {"[server]\ninsecure = maybe\n", "2: insecure: \"maybe\" is neither yes nor no", TN_EINVAL},
        {"[server]\ninsecure = on\n", "2: insecure: \"on\" is neither yes nor no", TN_EINVAL},
        {"[server]\nstate-dir =\n", "2: state-dir: the value is empty; it takes DIR", TN_EINVAL},
        {"[server]\nrounds = 3\n", "2: rounds belongs in [rounds], not in [server]", TN_EINVAL},
        {"rounds = 3\n", "1: rounds belongs in [rounds], not before the first section", TN_EINVAL},
        {"[server]\ncheck = yes\n", "2: check belongs before the first section, not in [server]", TN_EINVAL},
        {"config = other.ini\n", "1: config: a file cannot name another one; use the flag", TN_EINVAL},
        {"[rounds]\nsecagg = yes\n", "2: secagg is not built yet: secure aggregation comes later", TN_EUNSUPPORTED},
        {"[rounds]\nrounds 3\n", "2: neither \"key = value\" nor [section] nor a comment", TN_EINVAL},
        {"[rounds\nrounds = 3\n", "1: neither \"key = value\" nor [section] nor a comment", TN_EINVAL},
        {"check = no\nrubbish\n[x]\nnope = 1\n", "2: neither \"key = value\" nor [section] nor a comment",
         TN_EINVAL},
        {"[x]\nnope = 1\nrubbish\n", "2: nope: there is no such key; the names are those of the flags", TN_EINVAL},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        char message[256];
        tn_err e = TN_ERR_INIT;

        put(want[i].text);
        ck_assert_msg(tn_cfg_file(rows, N, &s, path, &e) == want[i].code, "%s: %s", want[i].text, e.msg);
        snprintf(message, sizeof(message), "%s:%s", path, want[i].message);
        ck_assert_str_eq(e.msg, message);
    }
}
END_TEST

/* inih would read the rest of a long line as another line, and so a value as a key. */
START_TEST(long_lines_are_refused_not_split) {
    char text[512];
    tn_err e = TN_ERR_INIT;

    for (size_t n = 150; n < 250; n++) {
        tn_code code;

        snprintf(text, sizeof(text), "[server]\nstate-dir = %0*d\n[rounds]\nrounds = 5\n", (int)n, 0);
        put(text);
        s.rounds = 0;
        code = tn_cfg_file(rows, N, &s, path, &e);
        if (code == TN_OK) {
            ck_assert_uint_eq(strlen(s.state), n);
            ck_assert_int_eq(s.rounds, 5);
            ck_assert_uint_lt(n, 200);
        } else {
            ck_assert_int_eq(code, TN_EINVAL);
            ck_assert_ptr_nonnull(strstr(e.msg, ":2: the line has "));
            ck_assert_int_eq(s.rounds, 0);
            ck_assert_uint_gt(n, 180);
        }
    }
}
END_TEST

START_TEST(files_that_are_no_text) {
    const tn_part nul = {"[rounds]\nrounds = 5\n\0\n", 22};
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_file_write_atomic(path, &nul, 1, 0600, NULL), TN_OK);
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, path, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "is not text: it has a NUL byte in it"));
    ck_assert_int_eq(s.rounds, 10);
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, "/", &e), TN_EIO);
    ck_assert_int_eq(tn_cfg_file(rows, N, &s, "/dev/zero", &e), TN_EIO);
}
END_TEST

START_TEST(flags_win_over_the_file_whatever_their_order) {
    put("[server]\nlisten = file\nstate-dir = /file\n[rounds]\nrounds = 7\n");
    ck_assert_int_eq(run("--rounds 3 --config %F --listen flag", NULL, NULL), TN_OK);
    ck_assert_int_eq(s.rounds, 3);
    ck_assert_uint_eq(s.listen.count, 1);
    ck_assert_str_eq(s.listen.item[0], "flag");
    ck_assert_str_eq(s.state, "/file");
    ck_assert_str_eq(s.config, path);
    ck_assert_double_eq(s.fraction, 0.5);
}
END_TEST

START_TEST(an_error_in_the_file_is_told_through_the_flag) {
    char message[128];
    tn_err e = TN_ERR_INIT;

    put("[rounds]\nrounds = x\n");
    ck_assert_int_eq(run("--config %F --rounds 3", NULL, &e), TN_EINVAL);
    snprintf(message, sizeof(message), "%s:2: rounds: \"x\" is not a whole number", path);
    ck_assert_str_eq(e.msg, message);
    ck_assert_int_eq(run("--config %F --config %F", NULL, &e), TN_EINVAL);
}
END_TEST

START_TEST(help_lists_every_row_under_its_section) {
    static const char want[] = "general:\n"
                               "  --config FILE    read settings from this file\n"
                               "  --check          validate and exit\n"
                               "\n"
                               "server:\n"
                               "  --listen URL     where clients meet (repeatable) (default: tcp://127.0.0.1:0)\n"
                               "  --state-dir DIR  where the state lies\n"
                               "  --insecure       allow plain connections\n"
                               "\n"
                               "rounds:\n"
                               "  --rounds N       how many rounds to run (default: 10)\n"
                               "  --fraction F     part of the clients in a round (default: 0.5)\n"
                               "  --secagg         (not built yet) secure aggregation comes later\n"
                               "  --dp-budget E    (not built yet) it needs the accountant\n";
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);

    tn_cfg_help(rows, N, to);
    fclose(to);
    ck_assert_str_eq(text, want);
    free(text);
}
END_TEST

START_TEST(long_help_is_wrapped) {
    static const tn_cfg_row row[] = {
        {"a", NULL, "X",
         "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen twenty",
         NULL, TN_CFG_STR, 0, 0, 0},
    };
    char *text = NULL, *line;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    int lines = 0;

    tn_cfg_help(row, 1, to);
    fclose(to);
    for (line = text; *line != '\0'; line = strchr(line, '\n') + 1, lines++) {
        ck_assert_uint_le(strcspn(line, "\n"), 100);
        if (lines > 1) /* behind the heading and the flag's own line */
            ck_assert_uint_eq(strspn(line, " "), strlen("  --a X  "));
    }
    ck_assert_int_eq(lines, 3);
    free(text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("core/config");
    TCase *tc = tcase_create("config");
    SRunner *r = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    suite_add_tcase(suite, tc);
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, a_wrong_default_is_told);
    tcase_add_test(tc, flags);
    tcase_add_test(tc, wrong_flags);
    tcase_add_test(tc, edges_of_numbers);
    tcase_add_test(tc, positional_arguments);
    tcase_add_test(tc, a_file);
    tcase_add_test(tc, wrong_files);
    tcase_add_test(tc, long_lines_are_refused_not_split);
    tcase_add_test(tc, files_that_are_no_text);
    tcase_add_test(tc, flags_win_over_the_file_whatever_their_order);
    tcase_add_test(tc, an_error_in_the_file_is_told_through_the_flag);
    tcase_add_test(tc, help_lists_every_row_under_its_section);
    tcase_add_test(tc, long_help_is_wrapped);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

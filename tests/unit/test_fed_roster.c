/* The file of enrolled clients: reading, refusing, appending, several processes at once. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fed/fed.h"

static char dir[] = "/tmp/tn-roster-XXXXXX";
static char path[128];

#define H0 "00000000000000000000000000000000000000000000000000000000000000"
#define KEY(n) H0 "0" n
#define CERT(n) H0 "f" n

static void set_up(void) {
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/clients", dir);
}

static void tear_down(void) {
    unlink(path);
    rmdir(dir);
}

static void put_bytes(const char *text, size_t n) {
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

static void put_file(const char *text) { put_bytes(text, strlen(text)); }

static tn_enrolled person(const char *id, uint8_t key) {
    tn_enrolled e;

    memset(&e, 0, sizeof(e));
    snprintf(e.id, sizeof(e.id), "%s", id);
    e.key[31] = key;
    e.cert[31] = 0xf0;
    return e;
}

START_TEST(reads) {
    tn_roster r;
    tn_err err = TN_ERR_INIT;
    uint8_t key[TN_KEY_BYTES] = {0};

    put_file("# the clients of the study\n\n"
             "  hospital-2\t" KEY("2") "  " CERT("2") "   # moved\r\n"
             "hospital-1 " KEY("1") " " CERT("1"));
    ck_assert_msg(tn_roster_load(&r, path, &err) == TN_OK, "%s", err.msg);
    ck_assert_uint_eq(r.count, 2);
    key[31] = 2;
    ck_assert_ptr_nonnull(tn_roster_find(&r, key));
    ck_assert_str_eq(tn_roster_find(&r, key)->id, "hospital-2");
    ck_assert_uint_eq(tn_roster_find(&r, key)->cert[31], 0xf2);
    key[31] = 3;
    ck_assert_ptr_null(tn_roster_find(&r, key));
    tn_roster_release(&r);
    ck_assert_ptr_null(tn_roster_find(&r, key));
    tn_roster_release(&r);
    put_file("");
    ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_OK);
    ck_assert_uint_eq(r.count, 0);
    tn_roster_release(&r);
}
END_TEST

START_TEST(refuses) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"a " KEY("1") " " CERT("1") "\nb " KEY("2") "\n", "line 2"},
        {"a " KEY("1") " " CERT("1") " more\n", "line 1"},
        {"-a " KEY("1") " " CERT("1") "\n", "client id"},
        {"a " H0 " " CERT("1") "\n", "public key of a"},
        {"a " KEY("x") " " CERT("1") "\n", "public key of a"},
        {"a " KEY("1") " " H0 "\n", "certificate hash of a"},
        {"a " KEY("1") " " CERT("1") "\na " KEY("2") " " CERT("2") "\n", "twice"},
        {"a " KEY("1") " " CERT("1") "\nb " KEY("1") " " CERT("2") "\n", "same public key"},
    };
    tn_roster r;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_ENOTFOUND);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put_file(bad[i].text);
        ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_EINVAL);
        ck_assert_msg(strstr(err.msg, bad[i].says) != NULL && strstr(err.msg, path) != NULL, "%s", err.msg);
        ck_assert_ptr_null(r.item);
        ck_assert_int_eq(tn_roster_load(&r, path, NULL), TN_EINVAL);
    }
    put_bytes("a\0b " KEY("1") " " CERT("1") "\n", 4 + 64 + 1 + 64 + 1);
    ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "NUL"));
}
END_TEST

START_TEST(appends) {
    tn_enrolled a = person("a", 1), b = person("b", 2), c = person("c", 3), again = person("a", 9),
                same_key = person("d", 2), bad = person("-", 4);
    tn_roster r;
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(tn_roster_append(path, &a, &err) == TN_OK, "%s", err.msg);
    ck_assert_int_eq(tn_roster_append(path, &b, &err), TN_OK);
    ck_assert_int_eq(tn_roster_append(path, &again, &err), TN_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.msg, "id a"));
    ck_assert_int_eq(tn_roster_append(path, &same_key, &err), TN_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.msg, "as b"));
    ck_assert_int_eq(tn_roster_append(path, &bad, &err), TN_EINVAL);
    ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_OK);
    ck_assert_uint_eq(r.count, 2);
    ck_assert_str_eq(tn_roster_find(&r, a.key)->id, "a");
    ck_assert_mem_eq(tn_roster_find(&r, a.key)->cert, a.cert, sizeof(a.cert));
    tn_roster_release(&r);
    put_file("# no newline at the end"); /* must not swallow the next client */
    ck_assert_int_eq(tn_roster_append(path, &c, &err), TN_OK);
    ck_assert_int_eq(tn_roster_load(&r, path, &err), TN_OK);
    ck_assert_uint_eq(r.count, 1);
    tn_roster_release(&r);
    put_file("not a roster\n");
    ck_assert_int_eq(tn_roster_append(path, &c, &err), TN_EINVAL);
}
END_TEST

/* A file that may not grow any more stands for a full disk: the part that was written is taken back. */
START_TEST(all_of_a_line_or_nothing) {
    tn_enrolled a = person("a", 1), b = person("b", 2);
    struct rlimit limit = {.rlim_cur = 150, .rlim_max = RLIM_INFINITY};
    tn_roster r;
    tn_err err = TN_ERR_INIT;
    tn_code code;
    int limited, unlimited;

    ck_assert_int_eq(tn_roster_append(path, &a, &err), TN_OK);
    signal(SIGXFSZ, SIG_IGN);
    limited = setrlimit(RLIMIT_FSIZE, &limit);
    code = tn_roster_append(path, &b, &err);
    limit.rlim_cur = RLIM_INFINITY;
    unlimited = setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert(limited == 0 && unlimited == 0); /* not before: Check writes files too */
    ck_assert_int_eq(code, TN_EIO);
    ck_assert_msg(tn_roster_load(&r, path, &err) == TN_OK, "%s", err.msg);
    ck_assert_uint_eq(r.count, 1);
    tn_roster_release(&r);
}
END_TEST

START_TEST(several_processes) {
    enum { PROCESSES = 4, EACH = 10 };
    pid_t child[PROCESSES];
    tn_roster r;
    tn_err err = TN_ERR_INIT;

    for (int p = 0; p < PROCESSES; p++) {
        child[p] = fork();
        ck_assert_int_ge(child[p], 0);
        if (child[p] != 0)
            continue;
        for (int i = 0; i < EACH; i++) {
            char id[32];
            tn_enrolled e;

            snprintf(id, sizeof(id), "p%d-%d", p, i);
            e = person(id, (uint8_t)(p * EACH + i));
            if (tn_roster_append(path, &e, NULL) != TN_OK)
                _exit(1);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status = -1;

        ck_assert_int_eq(waitpid(child[p], &status, 0), child[p]);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_msg(tn_roster_load(&r, path, &err) == TN_OK, "%s", err.msg);
    ck_assert_uint_eq(r.count, PROCESSES * EACH);
    tn_roster_release(&r);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fed_roster");
    TCase *c = tcase_create("roster");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, c);
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, reads);
    tcase_add_test(c, refuses);
    tcase_add_test(c, appends);
    tcase_add_test(c, all_of_a_line_or_nothing);
    tcase_add_test(c, several_processes);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

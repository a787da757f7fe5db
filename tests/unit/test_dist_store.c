/* The stores of dist: one set of tests over both, and what is particular to the file. */
#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dist/dist.h"

static char dir[64], path[80];
static tn_store first; /* TCP: the server */
static bool tcp;

static void setup_dir(void) {
    snprintf(dir, sizeof(dir), "/tmp/tn-test-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/store", dir);
}

static void open_as(tn_store *s, bool server) {
    tn_err err = TN_ERR_INIT;

    if (!tcp)
        ck_assert_msg(tn_store_file(s, path, "job", &err) == TN_OK, "%s", err.msg);
    else
        ck_assert_msg(tn_store_tcp(s, "127.0.0.1", server ? 0 : tn_store_tcp_port(&first), server,
                                   10 * TN_SECOND, &err) == TN_OK,
                      "%s", err.msg);
}

static void setup_file(void) {
    setup_dir();
    tcp = false;
    open_as(&first, true);
}

static void setup_tcp(void) {
    setup_dir();
    tcp = true;
    open_as(&first, true);
}

static int remove_one(const char *p, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(p);
}

static void teardown(void) {
    tn_store_release(&first);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void set(tn_store *s, const char *key, const void *p, size_t n) {
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(s->set(s->arg, key, p, n, &err) == TN_OK, "%s", err.msg);
}

static void expect(tn_store *s, const char *key, const void *want, size_t n) {
    tn_err err = TN_ERR_INIT;
    uint8_t *got;
    size_t len;

    ck_assert_msg(s->get(s->arg, key, 10 * TN_SECOND, &got, &len, &err) == TN_OK, "%s", err.msg);
    ck_assert_uint_eq(len, n);
    ck_assert_int_eq(n > 0 ? memcmp(got, want, n) : 0, 0);
    free(got);
}

START_TEST(what_is_set_is_got) {
    tn_store other;
    uint8_t *large = malloc(3 << 20);
    size_t i;

    for (i = 0; i < 3 << 20; i++)
        large[i] = (uint8_t)(i * 31 >> 3);
    open_as(&other, false);
    set(&first, "a", "one", 3);
    set(&other, "b", "\0two\0", 5);
    set(&first, "empty", NULL, 0);
    set(&other, "large", large, 3 << 20);
    expect(&other, "a", "one", 3);
    expect(&first, "b", "\0two\0", 5);
    expect(&other, "empty", NULL, 0);
    expect(&first, "large", large, 3 << 20);
    set(&other, "a", "again", 5);
    expect(&first, "a", "again", 5);
    free(large);
    tn_store_release(&other);
}
END_TEST

START_TEST(a_missing_key_times_out_by_name) {
    tn_err err = TN_ERR_INIT;
    uint8_t *p;
    size_t n;
    int64_t began = tn_now();

    ck_assert_int_eq(first.get(first.arg, "not/there", 50 * TN_MS, &p, &n, &err), TN_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(err.msg, "'not/there'"));
    ck_assert(tn_now() - began >= 50 * TN_MS);
    set(&first, "there", "x", 1); /* and the store is of use */
    expect(&first, "there", "x", 1);
    ck_assert_int_eq(first.get(first.arg, "not/there", 0, &p, &n, &err), TN_ETIMEDOUT);
}
END_TEST

static void *set_later(void *arg) {
    tn_store s;

    (void)arg;
    open_as(&s, false);
    expect(&s, "go", "1", 1);
    set(&s, "late", "value", 5);
    tn_store_release(&s);
    return NULL;
}

START_TEST(a_get_waits_for_the_set) {
    pthread_t t;

    ck_assert_int_eq(pthread_create(&t, NULL, set_later, NULL), 0);
    set(&first, "go", "1", 1);
    expect(&first, "late", "value", 5);
    pthread_join(t, NULL);
}
END_TEST

#define ADDERS 4
#define ADDS 50

static void *add_many(void *arg) {
    tn_err err = TN_ERR_INIT;
    tn_store s;
    int64_t now, last = 0;
    int i;

    (void)arg;
    open_as(&s, false);
    for (i = 0; i < ADDS; i++) {
        ck_assert_msg(s.add(s.arg, "counter", 2, &now, &err) == TN_OK, "%s", err.msg);
        ck_assert(now > last);
        last = now;
    }
    tn_store_release(&s);
    return NULL;
}

START_TEST(counters_count_every_add) {
    tn_err err = TN_ERR_INIT;
    pthread_t t[ADDERS];
    int64_t now;
    int i;

    for (i = 0; i < ADDERS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, add_many, NULL), 0);
    for (i = 0; i < ADDERS; i++)
        pthread_join(t[i], NULL);
    ck_assert_int_eq(first.add(first.arg, "counter", -1, &now, &err), TN_OK);
    ck_assert_int_eq(now, 2 * ADDERS * ADDS - 1);
    set(&first, "text", "abc", 3);
    ck_assert_int_eq(first.add(first.arg, "text", 1, &now, &err), TN_EINVAL);
}
END_TEST

START_TEST(bad_keys_are_refused) {
    tn_err err = TN_ERR_INIT;
    char key[1100];
    uint8_t *p;
    size_t n;
    int64_t now;

    memset(key, 'k', sizeof(key));
    key[1025] = '\0';
    ck_assert_int_eq(first.set(first.arg, "", "x", 1, &err), TN_EINVAL);
    ck_assert_int_eq(first.set(first.arg, key, "x", 1, &err), TN_EINVAL);
    ck_assert_int_eq(first.get(first.arg, key, 0, &p, &n, &err), TN_EINVAL);
    ck_assert_int_eq(first.add(first.arg, key, 1, &now, &err), TN_EINVAL);
    ck_assert_int_eq(first.set(first.arg, "k", "x", (16 << 20) + 1, &err), TN_ETOOBIG);
    key[1024] = '\0';
    set(&first, key, "x", 1);
    expect(&first, key, "x", 1);
}
END_TEST

/* ---- The file ---- */

START_TEST(processes_meet_in_the_file) {
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        tn_store s;

        open_as(&s, false);
        expect(&s, "from parent", "p", 1);
        set(&s, "from child", "c", 1);
        tn_store_release(&s);
        _exit(0);
    }
    set(&first, "from parent", "p", 1);
    expect(&first, "from child", "c", 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

START_TEST(jobs_do_not_see_each_other) {
    tn_err err = TN_ERR_INIT;
    tn_store other;
    uint8_t *p;
    size_t n;
    int64_t now;

    ck_assert_int_eq(tn_store_file(&other, path, "another job", &err), TN_OK);
    set(&first, "k", "mine", 4);
    ck_assert_int_eq(other.get(other.arg, "k", 0, &p, &n, &err), TN_ETIMEDOUT);
    set(&other, "k", "theirs", 6);
    expect(&first, "k", "mine", 4);
    expect(&other, "k", "theirs", 6);
    ck_assert_int_eq(first.add(first.arg, "n", 5, &now, &err), TN_OK);
    ck_assert_int_eq(other.add(other.arg, "n", 1, &now, &err), TN_OK);
    ck_assert_int_eq(now, 1);
    tn_store_release(&other);
}
END_TEST

/* A writer was killed in the middle of its record, at every byte of it. */
START_TEST(half_a_record_is_cut_off) {
    tn_err err = TN_ERR_INIT;
    struct stat whole, st;
    uint8_t *p;
    size_t n;
    off_t cut;

    set(&first, "before", "1", 1);
    ck_assert_int_eq(stat(path, &whole), 0);
    set(&first, "last", "12345", 5);
    ck_assert_int_eq(stat(path, &st), 0);
    for (cut = st.st_size - 1; cut > whole.st_size; cut--) {
        ck_assert_int_eq(truncate(path, cut), 0);
        ck_assert_int_eq(first.get(first.arg, "last", 0, &p, &n, &err), TN_ETIMEDOUT);
        expect(&first, "before", "1", 1);
    }
    set(&first, "after", "2", 1);
    expect(&first, "after", "2", 1);
    expect(&first, "before", "1", 1);
}
END_TEST

START_TEST(another_file_is_refused) {
    tn_err err = TN_ERR_INIT;
    static const char text[] = "This is somebody's letter, and not a store at all.";
    char letter[90];
    tn_store s;
    struct stat st;
    uint8_t *p;
    size_t n;
    int fd;

    snprintf(letter, sizeof(letter), "%s/letter", dir);
    fd = open(letter, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq((int)write(fd, text, sizeof(text)), (int)sizeof(text));
    close(fd);
    ck_assert_int_eq(tn_store_file(&s, letter, "job", &err), TN_OK);
    ck_assert_int_eq(s.get(s.arg, "k", 0, &p, &n, &err), TN_EPROTO);
    ck_assert_int_eq(s.set(s.arg, "k", "v", 1, &err), TN_EPROTO);
    ck_assert_int_eq(stat(letter, &st), 0);
    ck_assert_int_eq((int)st.st_size, (int)sizeof(text));
    tn_store_release(&s);
    ck_assert_int_eq(tn_store_file(&s, "/nonexistent/store", "job", &err), TN_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, "/nonexistent/store"));
}
END_TEST

/* ---- TCP ---- */

START_TEST(an_absent_server_is_named) {
    tn_err err = TN_ERR_INIT;
    tn_store s;
    int port = tn_store_tcp_port(&first);

    ck_assert_int_gt(port, 0);
    tn_store_release(&first);
    ck_assert_int_ne(tn_store_tcp(&s, "127.0.0.1", port, false, 100 * TN_MS, &err), TN_OK);
    ck_assert_ptr_nonnull(strstr(err.msg, "did not answer"));
    ck_assert_int_eq(tn_store_tcp(&s, "127.0.0.1", 0, false, TN_SECOND, &err), TN_EINVAL);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_store");
    TCase *both[2] = {tcase_create("file"), tcase_create("tcp")};
    int i;

    tcase_add_checked_fixture(both[0], setup_file, teardown);
    tcase_add_checked_fixture(both[1], setup_tcp, teardown);
    for (i = 0; i < 2; i++) {
        tcase_set_timeout(both[i], 60);
        tcase_add_test(both[i], what_is_set_is_got);
        tcase_add_test(both[i], a_missing_key_times_out_by_name);
        tcase_add_test(both[i], a_get_waits_for_the_set);
        tcase_add_test(both[i], counters_count_every_add);
        tcase_add_test(both[i], bad_keys_are_refused);
        suite_add_tcase(s, both[i]);
    }
    tcase_add_test(both[0], processes_meet_in_the_file);
    tcase_add_test(both[0], jobs_do_not_see_each_other);
    tcase_add_test(both[0], half_a_record_is_cut_off);
    tcase_add_test(both[0], another_file_is_refused);
    tcase_add_test(both[1], an_absent_server_is_named);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    int failed;

    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

/* Files: whole or not at all, under failure and under a concurrent reader; bounded reads; maps; folders. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"

static char dir[64];

static void make_dir(void) {
    snprintf(dir, sizeof(dir), "/tmp/tn-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_dir(void) { ck_assert_int_eq(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0); }

static const char *path_of(const char *name) {
    static char path[4][256];
    static int i;

    i = (i + 1) % 4;
    snprintf(path[i], sizeof(path[i]), "%s/%s", dir, name);
    return path[i];
}

static void put(const char *path, const char *text) {
    tn_part part = {text, strlen(text)};
    tn_err e = TN_ERR_INIT;

    ck_assert_msg(tn_file_write_atomic(path, &part, 1, 0600, &e) == TN_OK, "%s", e.msg);
}

static void expect_text(const char *path, const char *text) {
    uint8_t *got;
    size_t n;

    ck_assert_int_eq(tn_file_read(path, 1 << 20, &got, &n, NULL), TN_OK);
    ck_assert_uint_eq(n, strlen(text));
    ck_assert_str_eq((char *)got, text);
    free(got);
}

/* Files in the test's folder. */
static int entries(void) {
    DIR *d = opendir(dir);
    int n = 0;

    ck_assert_ptr_nonnull(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n - 2;
}

START_TEST(parts_are_written_in_order) {
    const tn_part parts[] = {{"one ", 4}, {NULL, 0}, {"two ", 4}, {"three", 5}};
    struct stat st;
    const char *path = path_of("f");

    umask(022);
    ck_assert_int_eq(tn_file_write_atomic(path, parts, 4, 0644, NULL), TN_OK);
    expect_text(path, "one two three");
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0644);
    ck_assert_int_eq(tn_file_write_atomic(path, NULL, 0, 0600, NULL), TN_OK);
    expect_text(path, "");
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_relative_name_works) {
    ck_assert_int_eq(chdir(dir), 0);
    put("plain", "text");
    expect_text("plain", "text");
    ck_assert_int_eq(entries(), 1);
}
END_TEST

/* A disk that is full half way: the limit on file sizes makes write(2) fail as ENOSPC would. */
START_TEST(a_failed_write_leaves_the_old_content) {
    static uint8_t big[100000];
    const tn_part parts[] = {{"head", 4}, {big, sizeof(big)}};
    struct rlimit limit;
    const char *path = path_of("f");
    tn_err e = TN_ERR_INIT;

    put(path, "old");
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 50000;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(tn_file_write_atomic(path, parts, 2, 0600, &e), TN_EIO);
    ck_assert_int_eq(e.sys, EFBIG);
    ck_assert_ptr_nonnull(strstr(e.msg, "cannot write "));
    ck_assert_ptr_nonnull(strstr(e.msg, "/f: File too large"));
    expect_text(path, "old");
    ck_assert_int_eq(entries(), 1); /* no temporary file is left */
}
END_TEST

START_TEST(a_failed_rename_leaves_nothing_behind) {
    const char *path = path_of("d");
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(tn_file_write_atomic(path, NULL, 0, 0600, &e), TN_EIO);
    ck_assert_int_eq(e.sys, EISDIR);
    ck_assert_ptr_nonnull(strstr(e.msg, "cannot replace "));
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_missing_folder_is_named) {
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_file_write_atomic(path_of("no/f"), NULL, 0, 0600, &e), TN_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(e.msg, "/no/f"));
    ck_assert_int_eq(e.sys, ENOENT);
}
END_TEST

static atomic_bool stop;

static void *keep_reading(void *arg) {
    const char *path = arg;

    do {
        uint8_t *got;
        size_t n;

        ck_assert_int_eq(tn_file_read(path, 1 << 20, &got, &n, NULL), TN_OK);
        if (n != 40000 || memchr(got, got[0] == 'a' ? 'b' : 'a', n) != NULL)
            ck_abort_msg("a mixed or cut file of %zu bytes", n);
        free(got);
    } while (!atomic_load(&stop));
    return NULL;
}

START_TEST(a_reader_sees_the_old_or_the_new) {
    static char a[20000], b[20000];
    const tn_part as[] = {{a, sizeof(a)}, {a, sizeof(a)}}, bs[] = {{b, sizeof(b)}, {b, sizeof(b)}};
    char path[256];
    pthread_t t;

    snprintf(path, sizeof(path), "%s/f", dir);
    memset(a, 'a', sizeof(a));
    memset(b, 'b', sizeof(b));
    ck_assert_int_eq(tn_file_write_atomic(path, as, 2, 0600, NULL), TN_OK);
    ck_assert_int_eq(pthread_create(&t, NULL, keep_reading, path), 0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(tn_file_write_atomic(path, i % 2 ? as : bs, 2, 0600, NULL), TN_OK);
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(reads_keep_their_limit) {
    const char *path = path_of("f");
    uint8_t *got;
    size_t n;
    tn_err e = TN_ERR_INIT;

    put(path, "12345");
    ck_assert_int_eq(tn_file_read(path, 5, &got, &n, &e), TN_OK);
    ck_assert_uint_eq(n, 5);
    ck_assert_uint_eq(got[5], 0);
    free(got);
    ck_assert_int_eq(tn_file_read(path, SIZE_MAX, &got, &n, &e), TN_OK);
    free(got);
    ck_assert_int_eq(tn_file_read(path, 4, &got, &n, &e), TN_ETOOBIG);
    ck_assert_ptr_nonnull(strstr(e.msg, "/f has 5 bytes; at most 4 are allowed"));
    ck_assert_ptr_null(got);
    put(path, "");
    ck_assert_int_eq(tn_file_read(path, 0, &got, &n, &e), TN_OK);
    ck_assert_uint_eq(n, 0);
    ck_assert_str_eq((char *)got, "");
    free(got);
}
END_TEST

/* The files of /proc tell a size of 0: they are read to their end, and the limit still holds. */
START_TEST(files_of_unknown_size) {
    uint8_t *got;
    size_t n;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_file_read("/proc/self/status", 1 << 20, &got, &n, &e), TN_OK);
    ck_assert_uint_gt(n, 100);
    ck_assert_uint_eq(strlen((char *)got), n);
    free(got);
    ck_assert_int_eq(tn_file_read("/proc/self/status", 50, &got, &n, &e), TN_ETOOBIG);
    ck_assert_str_eq(e.msg, "/proc/self/status is larger than the 50 bytes that are allowed");
    ck_assert_ptr_null(got);
}
END_TEST

START_TEST(what_is_not_a_file_is_refused) {
    uint8_t *got = (uint8_t *)1;
    size_t n = 1;
    tn_map m;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_file_read(path_of("no"), 10, &got, &n, &e), TN_ENOTFOUND);
    ck_assert(got == NULL && n == 0);
    ck_assert_ptr_nonnull(strstr(e.msg, "/no: No such file or directory"));
    ck_assert_int_eq(tn_file_read(dir, 10, &got, &n, &e), TN_EIO);
    ck_assert_int_eq(e.sys, EISDIR);
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0); /* nobody writes: a plain open would wait for ever */
    ck_assert_int_eq(tn_file_read(path_of("fifo"), 10, &got, &n, &e), TN_EIO);
    ck_assert_ptr_nonnull(strstr(e.msg, "not a regular file"));
    ck_assert_int_eq(tn_map_file(&m, path_of("fifo"), &e), TN_EIO);
    ck_assert_int_eq(tn_map_file(&m, path_of("no"), &e), TN_ENOTFOUND);
    ck_assert(m.data == NULL && m.size == 0);
    tn_map_release(&m);
}
END_TEST

START_TEST(maps) {
    const char *path = path_of("f");
    tn_map m = {0};

    tn_map_release(&m);
    put(path, "mapped");
    ck_assert_int_eq(tn_map_file(&m, path, NULL), TN_OK);
    ck_assert_uint_eq(m.size, 6);
    ck_assert_mem_eq(m.data, "mapped", 6);
    put(path, "replaced"); /* another file under the same name: the map keeps the old one */
    ck_assert_mem_eq(m.data, "mapped", 6);
    tn_map_release(&m);
    tn_map_release(&m);
    put(path, "");
    ck_assert_int_eq(tn_map_file(&m, path, NULL), TN_OK);
    ck_assert(m.data == NULL && m.size == 0);
    tn_map_release(&m);
}
END_TEST

START_TEST(folders_are_made_with_their_parents) {
    struct stat st;
    tn_err e = TN_ERR_INIT;

    umask(0);
    ck_assert_int_eq(tn_mkdirs(path_of("a/b//c/"), &e), TN_OK);
    ck_assert_int_eq(tn_mkdirs(path_of("a/b/c"), &e), TN_OK);
    ck_assert_int_eq(tn_mkdirs("/", &e), TN_OK);
    ck_assert_int_eq(stat(path_of("a/b"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert_int_eq(tn_fsync_dir(path_of("a/b/c"), &e), TN_OK);
    put(path_of("f"), "a file");
    ck_assert_int_eq(tn_mkdirs(path_of("f"), &e), TN_EIO);
    ck_assert_int_eq(e.sys, ENOTDIR);
    ck_assert_int_eq(tn_mkdirs(path_of("f/g"), &e), TN_EIO);
    ck_assert_int_eq(e.sys, ENOTDIR);
    ck_assert_int_eq(tn_mkdirs("", &e), TN_ENOTFOUND);
    ck_assert_int_eq(tn_fsync_dir(path_of("f"), &e), TN_EIO);
    ck_assert_int_eq(tn_fsync_dir(path_of("no"), &e), TN_ENOTFOUND);
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(tn_mkdirs("r/s", &e), TN_OK);
    ck_assert_int_eq(stat("r/s", &st), 0);
}
END_TEST

/* Nothing is left open, whatever the outcome. */
START_TEST(no_descriptor_leaks) {
    uint8_t *got;
    size_t n;
    tn_map m;
    int first = open("/dev/null", O_RDONLY), second;

    for (int i = 0; i < 3; i++) {
        put(path_of("f"), "x");
        tn_file_write_atomic(dir, NULL, 0, 0600, NULL);
        ck_assert_int_eq(tn_file_read(path_of("f"), 10, &got, &n, NULL), TN_OK);
        free(got);
        tn_file_read(path_of("f"), 0, &got, &n, NULL);
        tn_file_read(dir, 10, &got, &n, NULL);
        ck_assert_int_eq(tn_map_file(&m, path_of("f"), NULL), TN_OK);
        tn_map_release(&m);
        tn_mkdirs(path_of("q"), NULL);
    }
    second = open("/dev/null", O_RDONLY);
    ck_assert_int_eq(second, first + 1);
    close(first);
    close(second);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/file");
    TCase *tc = tcase_create("file");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, make_dir, remove_dir);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, parts_are_written_in_order);
    tcase_add_test(tc, a_relative_name_works);
    tcase_add_test(tc, a_failed_write_leaves_the_old_content);
    tcase_add_test(tc, a_failed_rename_leaves_nothing_behind);
    tcase_add_test(tc, a_missing_folder_is_named);
    tcase_add_test(tc, a_reader_sees_the_old_or_the_new);
    tcase_add_test(tc, reads_keep_their_limit);
    tcase_add_test(tc, files_of_unknown_size);
    tcase_add_test(tc, what_is_not_a_file_is_refused);
    tcase_add_test(tc, maps);
    tcase_add_test(tc, folders_are_made_with_their_parents);
    tcase_add_test(tc, no_descriptor_leaks);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

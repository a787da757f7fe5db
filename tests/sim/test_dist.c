/* Process groups among real processes where all goes well: each test starts dist_rank once a rank. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "tests/sim/dist_world.h"

static const int sizes[] = {1, 2, 3, 5, 8};
#define SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

START_TEST(grid_tcp) {
    world w = begin(sizes[_i], -1, "mode=grid", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_ipc) {
    world w = begin(sizes[_i], -1, "mode=grid", "transport=ipc", NULL);

    end(&w, -1);
}
END_TEST

/* Segments of a few elements, so that small tensors cross every edge; and the one-step algorithm throughout. */
START_TEST(grid_segments) {
    static const char *const segments[] = {"segment=16", "segment=80", "segment=4096"};
    world w = begin(3, -1, "mode=grid", segments[_i], "small=1", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_tree) {
    world w = begin(_i, -1, "mode=grid", "segment=64", "small=1", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_checked) {
    world w = begin(3, -1, "mode=grid", "check=1", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_one_step) {
    world w = begin(3, -1, "mode=grid", "small=18446744073709551615", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_tls) {
    world w;

    make_certificates();
    w = begin(3, -1, "mode=grid", "transport=tls", certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
}
END_TEST

START_TEST(grid_tcp_store) {
    tn_store server;
    tn_err err = TN_ERR_INIT;
    world w;

    /* NNG is touched here, in a child of Check, and the ranks are exec'd: no state of it is inherited. */
    ck_assert_msg(tn_store_tcp(&server, "127.0.0.1", 0, true, 20 * TN_SECOND, &err) == TN_OK, "%s", err.msg);
    snprintf(store_arg, sizeof(store_arg), "store=tcp:%d", tn_store_tcp_port(&server));
    w = begin(3, -1, "mode=grid", NULL);
    end(&w, -1);
    tn_store_release(&server);
}
END_TEST

START_TEST(p2p_tcp) {
    world w = begin(sizes[_i], -1, "mode=p2p", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(p2p_ipc) {
    world w = begin(3, -1, "mode=p2p", "transport=ipc", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(p2p_tls) {
    world w;

    make_certificates();
    w = begin(3, -1, "mode=p2p", "transport=tls", certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
}
END_TEST

START_TEST(leaving_loses_nothing) {
    world w = begin(_i, -1, "mode=leave", NULL);

    end(&w, -1);
}
END_TEST

/* ---- Strangers ---- */

/* Connects to a rank, says something, and perhaps stays. Returns the socket or -1. */
static int stranger(const char *url, const void *bytes, size_t n, bool stay) {
    const char *colon = strrchr(url, ':');
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_nonnull(colon);
    at.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    if (n > 0)
        ck_assert_int_eq((int)send(fd, bytes, n, MSG_NOSIGNAL), (int)n);
    if (stay)
        return fd;
    close(fd);
    return -1;
}

START_TEST(strangers_are_turned_away) {
    uint8_t junk[200], hello[48] = "TN01\x01\x01";
    world w = begin(3, -1, "mode=strangers", NULL);
    int fds[16], n = 0, r, i;

    for (i = 0; i < (int)sizeof(junk); i++)
        junk[i] = (uint8_t)(i * 37 + 1);
    hello[8] = 1;   /* "I am rank 1" ... */
    hello[24] = 16; /* ... with a secret of 16 bytes, all wrong */
    for (r = 0; r < 3; r++) {
        tn_err err = TN_ERR_INIT;
        uint8_t *p;
        size_t len;
        char key[60], url[100];

        snprintf(key, sizeof(key), "tn/world/1/address/%d", r);
        ck_assert_msg(store.get(store.arg, key, 20 * TN_SECOND, &p, &len, &err) == TN_OK, "%s", err.msg);
        snprintf(url, sizeof(url), "%.*s", (int)len, (char *)p);
        free(p);
        stranger(url, NULL, 0, false);
        stranger(url, junk, sizeof(junk), false);
        stranger(url, hello, 20, false);
        stranger(url, hello, sizeof(hello), false);
        fds[n++] = stranger(url, NULL, 0, true);
        fds[n++] = stranger(url, hello, 33, true);
        fds[n++] = stranger(url, hello, sizeof(hello), true);
        fds[n++] = stranger(url, "GET / HTTP/1.1\r\n\r\n", 18, true);
    }
    put("strangers were here");
    end(&w, -1);
    while (n > 0)
        close(fds[--n]);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist");
    TCase *t = tcase_create("results");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, grid_tcp, 0, SANITISED ? SIZES - 1 : SIZES);
    tcase_add_loop_test(t, grid_ipc, 0, SANITISED ? 3 : SIZES);
    tcase_add_loop_test(t, grid_segments, 0, 3);
    tcase_add_loop_test(t, grid_tree, 5, SANITISED ? 6 : 9);
    tcase_add_test(t, grid_checked);
    tcase_add_test(t, grid_one_step);
    tcase_add_test(t, grid_tls);
    tcase_add_test(t, grid_tcp_store);
    tcase_add_loop_test(t, p2p_tcp, 0, SANITISED ? SIZES - 1 : SIZES);
    tcase_add_test(t, p2p_ipc);
    tcase_add_test(t, p2p_tls);
    tcase_add_loop_test(t, leaving_loses_nothing, 2, 6);
    tcase_add_test(t, strangers_are_turned_away);
    suite_add_tcase(s, t);
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

/* Options of a connection's socket that NNG 1.5.2 does not offer. Its streams do not tell their descriptor, so that is looked
 * up among the process's own by the two addresses, which no other socket of this network namespace has. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/internal.h"

static bool same(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;

        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;

        return x->sin6_port == y->sin6_port && memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
    }
    return false;
}

static bool is_it(int fd, const struct sockaddr_storage *local, const struct sockaddr_storage *remote) {
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof(at);

    if (getpeername(fd, (struct sockaddr *)&at, &n) != 0 || !same(&at, remote))
        return false;
    n = sizeof(at);
    return getsockname(fd, (struct sockaddr *)&at, &n) == 0 && same(&at, local);
}

int tni_socket_find(const struct sockaddr_storage *local, const struct sockaddr_storage *remote) {
    DIR *d = opendir("/proc/self/fd");
    const struct dirent *e;
    int found = -1;

    if (d == NULL)
        return -1;
    while (found < 0 && (e = readdir(d)) != NULL) {
        char *end;
        long fd = strtol(e->d_name, &end, 10);

        if (end != e->d_name && *end == '\0' && is_it((int)fd, local, remote))
            found = (int)fd;
    }
    closedir(d);
    return found;
}

tn_code tn_tx_keepalive(tn_tx_conn *c, int idle_s, int interval_s, int count, tn_err *err) {
    unsigned unanswered_ms = (unsigned)(idle_s + interval_s * count) * 1000;
    int fd = -1, on = 1;
    tn_code code;

    if (c->ops->socket == NULL)
        return tn_fail(err, TN_EUNSUPPORTED, "%s has no keep-alive", c->peer);
    pthread_mutex_lock(&c->lock); /* until it is let go nobody closes the descriptor */
    code = c->down ? tn_fail(err, TN_ECANCELED, "the connection with %s is closed", c->peer)
                   : c->ops->socket(c, &fd, err);
    if (code == TN_OK && (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0 ||
                          setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)) != 0 ||
                          setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s)) != 0 ||
                          setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count)) != 0 ||
                          setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof(unanswered_ms)) != 0))
        code = tn_fail_sys(err, TN_EIO, errno, "%s: keep-alive", c->peer);
    pthread_mutex_unlock(&c->lock);
    return code;
}

/* The address of this host on the route to another. */
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/internal.h"

tn_code tn_tx_route_address(const char *host, char *out, size_t cap, tn_err *err) {
    /* A connected datagram socket is given its source address by the routing table, and sends nothing. */
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    tn_code code = TN_OK;
    int fd = -1, rc = getaddrinfo(host, "9", &hints, &found);

    if (rc != 0)
        return tn_fail(err, TN_ENOTFOUND, "the name \"%.200s\" does not resolve: %s", host, gai_strerror(rc));
    for (struct addrinfo *a = found; a != NULL; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        rc = errno;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    if (fd < 0) {
        code = tn_fail_sys(err, TN_EPEER, rc, "no route to \"%.200s\"", host);
        goto out;
    }
    if (getsockname(fd, (struct sockaddr *)&own, &len) != 0)
        code = tn_fail_sys(err, TN_EIO, errno, "the address of this host on the route to \"%.200s\" is not known", host);
    else if (getnameinfo((struct sockaddr *)&own, len, out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        code = tn_fail(err, TN_EINVAL, "an address does not fit in %zu bytes", cap);
out:
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return code;
}

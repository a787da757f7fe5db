/* URLs: scheme, host, port; nothing is opened or resolved here. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "transport/internal.h"

static const char *const forms =
    "the forms are tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc:///path/of/a/socket and inproc://name";

static const struct {
    const char *prefix;
    tni_kind kind;
} schemes[] = {
    {"tcp://", TNI_TCP},
    {"tls+tcp://", TNI_TLS},
    {"ipc://", TNI_IPC},
    {"inproc://", TNI_INPROC},
};

static bool name_ok(const char *s) {
    if (*s == '\0' || *s == '-')
        return false;
    for (; *s != '\0'; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '.' ||
              *s == '-' || *s == '_'))
            return false;
    return true;
}

static bool port_ok(const char *s, uint16_t *port) {
    uint32_t v = 0;

    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9')
            return false;
        v = v * 10 + (uint32_t)(*s - '0');
        if (v > UINT16_MAX)
            return false;
    }
    *port = (uint16_t)v;
    return true;
}

static tn_code parse_host_port(tni_url *u, const char *url, const char *rest, tn_err *err) {
    const char *host = rest, *end, *colon;
    struct in6_addr a6;

    if (*rest == '[') {
        host = rest + 1;
        end = strchr(host, ']');
        if (end == NULL || end[1] != ':')
            return tn_fail(err, TN_EINVAL, "url \"%.200s\": an IPv6 address looks like [::1]:PORT", url);
        colon = end + 1;
        u->v6 = true;
    } else {
        end = colon = strrchr(rest, ':');
        if (colon == NULL)
            return tn_fail(err, TN_EINVAL, "url \"%.200s\": the port is missing; %s", url, forms);
    }
    if ((size_t)(end - host) >= sizeof(u->host))
        return tn_fail(err, TN_EINVAL, "url \"%.60s...\": the host is longer than %zu bytes", url, sizeof(u->host) - 1);
    memcpy(u->host, host, (size_t)(end - host));
    u->host[end - host] = '\0';
    if (u->v6 ? inet_pton(AF_INET6, u->host, &a6) != 1 : !name_ok(u->host))
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": \"%.100s\" is no host name or address; %s", url, u->host, forms);
    if (!port_ok(colon + 1, &u->port))
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": the port must be a number from 0 to 65535", url);
    return TN_OK;
}

tn_code tni_url_parse(tni_url *u, const char *url, tn_err *err) {
    const char *rest = NULL;
    size_t n;

    memset(u, 0, sizeof(*u));
    if (url == NULL)
        return tn_fail(err, TN_EINVAL, "url: none given; %s", forms);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        n = strlen(schemes[i].prefix);
        if (strncmp(url, schemes[i].prefix, n) == 0) {
            u->kind = schemes[i].kind;
            rest = url + n;
        }
    }
    if (rest == NULL)
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": unknown scheme; %s", url, forms);
    if (u->kind == TNI_TCP || u->kind == TNI_TLS)
        return parse_host_port(u, url, rest, err);
    n = strlen(rest);
    if (u->kind == TNI_IPC && *rest != '/')
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": the path of the socket must be absolute (ipc:///path)", url);
    if (u->kind == TNI_IPC && n >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": the path of a Unix socket has at most %zu bytes", url,
                       sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
    if (n == 0 || n >= 128)
        return tn_fail(err, TN_EINVAL, "url \"%.200s\": a name has 1 to 127 bytes; %s", url, forms);
    memcpy(u->host, rest, n + 1);
    return TN_OK;
}

tn_code tn_tx_url_check(const char *url, tn_err *err) {
    tni_url u;

    return tni_url_parse(&u, url, err);
}

bool tn_tx_url_is_local(const char *url) {
    tni_url u;
    struct in_addr a4;
    struct in6_addr a6;

    if (tni_url_parse(&u, url, NULL) != TN_OK)
        return false;
    if (u.kind == TNI_IPC || u.kind == TNI_INPROC)
        return true;
    if (u.v6)
        return inet_pton(AF_INET6, u.host, &a6) == 1 && IN6_IS_ADDR_LOOPBACK(&a6);
    if (inet_pton(AF_INET, u.host, &a4) == 1)
        return ntohl(a4.s_addr) >> 24 == 127;
    return strcasecmp(u.host, "localhost") == 0;
}

bool tn_tx_url_is_tls(const char *url) {
    tni_url u;

    return tni_url_parse(&u, url, NULL) == TN_OK && u.kind == TNI_TLS;
}

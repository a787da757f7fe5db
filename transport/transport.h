/* Byte streams between processes: tcp://, tls+tcp://, ipc:// by NNG streams, and inproc:// of our own.
 *
 *   tcp://HOST:PORT  tls+tcp://HOST:PORT   HOST is a name, an IPv4 address or [IPv6]; port 0 is picked by the kernel
 *   ipc:///path/of/a/socket                a Unix socket
 *   inproc://name                          two ends inside one process (tests, simulations)
 *
 * Everything is asynchronous: an operation takes a callback that runs exactly once, on an I/O thread, with no lock
 * of ours held; it must be short and must not block. Blocking forms for callers that own a thread are at the end. An idle
 * connection costs memory, no thread. Time-outs are durations in nanoseconds on the monotonic clock, TN_FOREVER for none.
 *
 * Nothing of NNG is touched until the first listen or dial of the process. After fork() a child must not use what the
 * parent opened, nor open its own if the parent had opened any: such calls fail with TN_EUNSUPPORTED instead of the panic
 * that NNG would give.
 *
 * Thread-safety: every function may be called from any thread; on one connection at most one send and one receive
 * may be under way at a time (a second one is refused through its callback with TN_EBUSY). */
#ifndef TN_TRANSPORT_H
#define TN_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/error.h"

typedef struct tn_tx_conn tn_tx_conn;
typedef struct tn_tx_listener tn_tx_listener;
typedef struct tn_tx_dialer tn_tx_dialer;

typedef struct tn_iov {
    void *p; /* read by send, written by receive */
    size_t n;
} tn_iov;
#define TN_TX_MAX_IOV 8

/* TLS settings; all NULL for the other schemes. Files are PEM. Both sides always present a certificate and require
 * one of `ca` from the other. Read at listen and dial; the error names the file and what is wrong with it. */
typedef struct tn_tx_opts {
    const char *cert, *key, *ca;
    const char *server_name; /* dial: the DNS name that the server's certificate must carry; NULL: the URL's host */
} tn_tx_opts;

typedef void (*tn_tx_done)(void *arg, const tn_err *err);                   /* err->code is TN_OK on success */
typedef void (*tn_tx_conn_fn)(void *arg, tn_tx_conn *conn, const tn_err *err); /* conn: one reference, yours; NULL on failure */

/* Checks a URL without opening anything: scheme known, host and port well-formed. Errors quote it and show the forms. */
TN_API tn_code tn_tx_url_check(const char *url, tn_err *err);
/* True for inproc, ipc, and tcp or tls+tcp to a loopback address or "localhost". */
TN_API bool tn_tx_url_is_local(const char *url);
TN_API bool tn_tx_url_is_tls(const char *url);

/* Listener. tn_tx_listen binds before it returns: "address in use" and the like are its errors. _url gives the URL with the
 * real port. One accept at a time. close: pending accept ends with TN_ECANCELED. free: close, then waits for the callback to return (so never
 * from inside it), then releases. */
TN_API tn_code tn_tx_listen(tn_tx_listener **out, const char *url, const tn_tx_opts *opts, tn_err *err);
TN_API const char *tn_tx_listener_url(const tn_tx_listener *l);
TN_API void tn_tx_accept(tn_tx_listener *l, tn_tx_conn_fn fn, void *arg);
TN_API void tn_tx_listener_close(tn_tx_listener *l);
TN_API void tn_tx_listener_free(tn_tx_listener *l);

/* Dialer: one attempt each tn_tx_dial (no retries); close cancels the attempt under way; free as for listeners. The TLS handshake is part of
 * the first send or receive. */
TN_API tn_code tn_tx_dialer_new(tn_tx_dialer **out, const char *url, const tn_tx_opts *opts, tn_err *err);
TN_API void tn_tx_dial(tn_tx_dialer *d, int64_t timeout_ns, tn_tx_conn_fn fn, void *arg);
TN_API void tn_tx_dialer_close(tn_tx_dialer *d);
TN_API void tn_tx_dialer_free(tn_tx_dialer *d);

/* Connection. send writes all bytes of 1..TN_TX_MAX_IOV pieces, recv fills all of them, or the operation fails. The iov array is copied;
 * the memory behind it is borrowed until the callback. Codes: TN_EPEER (the other end closed or reset), TN_ETIMEDOUT, TN_ECANCELED (closed here),
 * TN_EAUTH (TLS handshake refused; the text says which side refused and the likely remedy), TN_EIO. After any failure the connection is of no more use: close it.
 * close never blocks and may be called from callbacks. unref of the last reference closes and releases, later, on a thread where that is
 * allowed: it never blocks and may be called from callbacks. */
TN_API void tn_tx_send(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_tx_done fn, void *arg);
TN_API void tn_tx_recv(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_tx_done fn, void *arg);
TN_API void tn_tx_close(tn_tx_conn *c);
TN_API tn_tx_conn *tn_tx_conn_ref(tn_tx_conn *c);
TN_API void tn_tx_conn_unref(tn_tx_conn *c);
/* Has the kernel ask the peer's kernel for a sign of life when the connection was idle for idle_s seconds, and again every
 * interval_s; after `count` questions without an answer the connection fails with TN_EPEER, and so it does when what was sent
 * is not acknowledged for that long in all. A peer that is merely stopped or busy answers, as long as its buffers have room: for
 * streams that carry next to nothing. TN_EUNSUPPORTED for other schemes than tcp and tls+tcp, where a peer cannot be silent
 * without being gone. */
TN_API tn_code tn_tx_keepalive(tn_tx_conn *c, int idle_s, int interval_s, int count, tn_err *err);
/* "127.0.0.1:40312", "ipc", "inproc://x": for messages. Always valid while a reference is held. */
TN_API const char *tn_tx_conn_peer(const tn_tx_conn *c);

/* Frames: the one framing of the project, for requests and bulk alike. 32 bytes in front of each body, little-endian:
 *   magic "TN01" | u8 version = 1 | u8 type | u16 flags | u32 tag | u32 reserved = 0 | u64 id | u64 size
 * type, flags, tag and id belong to the protocol above. */
#define TN_FRAME_BYTES 32
typedef struct tn_frame {
    uint8_t type;
    uint16_t flags;
    uint32_t tag;
    uint64_t id;
    uint64_t size; /* bytes of the body */
} tn_frame;
/* Sends header and body (0..TN_TX_MAX_IOV - 1 pieces, which together make f->size: asserted) in one vectored call. */
TN_API void tn_frame_send(tn_tx_conn *c, const tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_tx_done fn, void *arg);
/* Receives a header into *f, which must live until the callback. A wrong magic, version, reserved field or a size over max_size fails with TN_EPROTO
 * or TN_EVERSION, before any memory is taken for the body. The body, if f->size > 0, is then the caller's tn_tx_recv. */
TN_API void tn_frame_recv(tn_tx_conn *c, tn_frame *f, uint64_t max_size, int64_t timeout_ns, tn_tx_done fn, void *arg);

/* Blocking forms, for a caller with a thread of its own (never inside a callback). */
TN_API tn_code tn_tx_dial_wait(tn_tx_conn **out, const char *url, const tn_tx_opts *opts, int64_t timeout_ns, tn_err *err);
TN_API tn_code tn_tx_accept_wait(tn_tx_listener *l, tn_tx_conn **out, int64_t timeout_ns, tn_err *err); /* TN_ETIMEDOUT leaves no accept behind */
TN_API tn_code tn_tx_send_wait(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_err *err);
TN_API tn_code tn_tx_recv_wait(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_err *err);
TN_API tn_code tn_frame_send_wait(tn_tx_conn *c, const tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_err *err);
TN_API tn_code tn_frame_recv_wait(tn_tx_conn *c, tn_frame *f, uint64_t max_size, int64_t timeout_ns, tn_err *err);

/* The address of this host on the route to `host` (a name or an address), as text without a port; for choosing what to listen on and advertise. No packet is sent. */
TN_API tn_code tn_tx_route_address(const char *host, char *out, size_t cap, tn_err *err);

/* Certificates (mbedTLS's X.509 writer; ECDSA P-256). A folder `dir` holds the CA: ca.pem, ca.key (0600). Files that exist are never overwritten: TN_EBUSY names the file. */
typedef struct tn_cert_request {
    const char *name;          /* common name; letters, digits, '.', '-', '_' ; 1..64 */
    const char *const *hosts;  /* DNS names and IP addresses for the alternative names; both kinds are written */
    size_t nhosts;
    bool server;               /* extended key usage: server and client authentication, or client only */
    int days;                  /* validity; 1..3650 */
} tn_cert_request;
TN_API tn_code tn_cert_init(const char *dir, const char *name, int days, tn_err *err);
/* Writes cert_path (the certificate, PEM) and key_path (0600), signed by the CA in dir. sha256[32], may be NULL, gets the hash of the certificate's DER form. */
TN_API tn_code tn_cert_issue(const char *dir, const tn_cert_request *req, const char *cert_path, const char *key_path, uint8_t *sha256, tn_err *err);
/* The SHA-256 of the DER form of the first certificate in a PEM file, its common name (cap >= 65) and the end of its validity (seconds since 1970). Outputs may be NULL. */
TN_API tn_code tn_cert_inspect(const char *cert_path, uint8_t *sha256, char *name, size_t cap, int64_t *not_after, tn_err *err);

#endif

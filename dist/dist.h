/* Process groups: collectives and point to point between the ranks of a world, over the transport.
 *
 * A group is made of `size` processes that share a store. Operations are asynchronous: each returns a
 * tn_work, in the order in which they were issued; all ranks issue the collectives of one group in the same
 * order. Tensor memory is borrowed until the work is done. Views may be strided: values are as on contiguous
 * copies, and bytes outside the view stay untouched.
 *
 * Numbers. Every reduction takes the ranks in rank order with the accumulators of kernels.h and rounds once,
 * whatever algorithm, segment size or transport is used: all ranks end with identical bits, and so does the
 * same reduction tomorrow.
 *
 * Failure. Every wait has the group's time-out (or the operation's own), counted from when the operation
 * begins, not while it is queued behind others. When a rank is lost, a rank reports a failure, or peers
 * disagree on operation, dtype, op or size (each message carries them), the operation and all later
 * collectives of the group fail at once with an error that names the rank, the operation, its sequence
 * number and the elapsed time; nothing hangs. A rank that has gone without need (it has done its part)
 * disturbs nobody until an operation needs it. Codes: TN_EPEER a rank is gone, has left or aborted;
 * TN_ETIMEDOUT; TN_ESHAPE peers disagree; TN_ECANCELED aborted here; TN_ENOMEM, also when it was a peer's.
 *
 * Thread-safety: all functions from any thread, but a group is freed once, after all other calls have
 * returned, and not from a completion callback. Completion callbacks (tn_work_on_done) run on the group's
 * progress thread or a thread of the transport: they must be short. A process that forks must not use the
 * parent's groups in the child. */
#ifndef TN_DIST_H
#define TN_DIST_H

#include "core/tensor.h"
#include "core/work.h"
#include "kernels/kernels.h"
#include "transport/transport.h"

/* ---- Store: where ranks meet. A table of callbacks: torch's Store from Python, a file or a TCP store from
 * C. ---- */
typedef struct tn_store {
    void *arg;
    tn_code (*set)(void *arg, const char *key, const void *value, size_t n, tn_err *err);
    /* Waits until the key is there. *value is fresh memory for free(). TN_ETIMEDOUT names the key; a
     * time-out of 0 looks once. */
    tn_code (*get)(void *arg, const char *key, int64_t timeout_ns, uint8_t **value, size_t *n, tn_err *err);
    /* Adds to a counter that starts at 0 and gives its new value. */
    tn_code (*add)(void *arg, const char *key, int64_t delta, int64_t *now, tn_err *err);
    void (*release)(void *arg); /* may be NULL */
} tn_store;

/* One file that separate processes of one host share, with locks (fcntl) and appended records. `job` tells
 * two jobs on one file apart: keys of another job are invisible. Keys have 1 to 1024 bytes, values up to 16
 * MiB; the file grows up to 64 MiB and is never deleted by us. */
TN_API tn_code tn_store_file(tn_store *out, const char *path, const char *job, tn_err *err);
/* A TCP store: host:port, of which one process (is_server) runs the server; port 0 is picked by the kernel,
 * tn_store_tcp_port tells. Clients wait for the server up to the time-out. It is for trusted networks: whoever
 * reaches the port may read and write. Releasing the server waits (5 s at most) for its clients to go. */
TN_API tn_code tn_store_tcp(tn_store *out, const char *host, int port, bool is_server, int64_t timeout_ns,
                            tn_err *err);
TN_API int tn_store_tcp_port(const tn_store *s); /* -1: not a TCP store */
TN_API void tn_store_release(tn_store *s);

/* ---- Group ---- */
typedef struct tn_pg tn_pg;
typedef struct tn_pg_opts {
    const char *name;      /* for messages and keys, 1..63 bytes; NULL: "world" */
    const char *transport; /* "tcp" (default), "ipc", "tls", "inproc" (ranks are threads of one process) */
    const char *host;      /* address to listen on and advertise; NULL: 127.0.0.1 */
    tn_tx_opts tls;        /* copied */
    int64_t timeout_ns;    /* of each operation; 0: 30 minutes */
    size_t segment;        /* bytes in which large messages are cut; 0: chosen. The same on all ranks */
    size_t small_max;      /* all-reduces of up to this many bytes use the one-step algorithm; 0: chosen;
                            * SIZE_MAX and 1 force one or the other in tests. The same on all ranks */
    bool check; /* each collective begins with a small exchange of what it is, shapes and roots included,
                            * so that all ranks are told which of them differ, and how. The same on all ranks */
} tn_pg_opts;

/* Publishes this rank's address in the store and reads those of all others (so it waits for all ranks to get
 * here, at most the time-out; TN_ETIMEDOUT names who did not come). The store is used only inside this call.
 * Groups of one name may be made one after another on one store. Streams are opened on first use; every
 * stream begins with a secret of the group that travels through the store, so that strangers who connect are
 * turned away. */
TN_API tn_code tn_pg_new(tn_pg **out, const tn_store *store, int rank, int size, const tn_pg_opts *opts,
                         tn_err *err);
TN_API int tn_pg_rank(const tn_pg *g);
TN_API int tn_pg_size(const tn_pg *g);
/* Fails everything pending and to come with TN_ECANCELED and tells the peers why. Never blocks. */
TN_API void tn_pg_abort(tn_pg *g, const char *why);
/* Lets issued operations finish for at most timeout_ns, then aborts; says good-bye to the peers, so that
 * nothing that they have not read yet is lost (a peer that is busy elsewhere is waited for within
 * timeout_ns); closes streams, joins the thread, frees. Never hangs. NULL is fine. */
TN_API void tn_pg_free(tn_pg *g, int64_t timeout_ns);

/* ---- Shrinking: after a failure, a group of those who are left. ---- */
typedef struct tn_pg_shrink_opts {
    int64_t timeout_ns; /* 0: 30 s. Give twice the 5 s within which ranks notice a failure, or more */
    bool minority;      /* go on even with less than a majority, if all who go on say so: there may be two
                         * groups then */
} tn_pg_shrink_opts;
/* Every rank that is to go on calls this on its own group, which fails now if it has not failed yet (so ranks
 * that are still in an operation hear of it). The ranks agree, through the streams they have, on who is still
 * there, make a group of those (in the old order, with the old options), and meet in it. *out is that group;
 * ranks (may be NULL) has room for the old size, and ranks[i] becomes the old rank of new rank i. The old group
 * is yours to free afterwards.
 *
 * At most one group comes of it: it needs more than half of the old ranks, or exactly half with rank 0 among
 * them. Those who are too few get TN_EPEER, which names who was left; so does a rank that the others went on
 * without. A rank that is there but does not call this is waited for during half of the time. Ranks that die
 * meanwhile are left out too. TN_ETIMEDOUT: no decision in time. After an error this rank has left; a second
 * call, or one after a success, is TN_EINVAL. Blocks. */
TN_API tn_code tn_pg_shrink(tn_pg *g, const tn_pg_shrink_opts *opts, tn_pg **out, int *ranks, tn_err *err);

/* Options of one operation; NULL means all default. */
typedef struct tn_pg_call {
    int64_t timeout_ns; /* 0: the group's */
    double weight;      /* PREMUL_SUM: this rank's factor; WMEAN: this rank's weight, finite and >= 0. A wrong
                         * one, or all zero, is TN_EINVAL on every rank, and the group goes on */
} tn_pg_call;

/* All return TN_OK and *work (one reference, yours), or a refusal that is detected at once (bad rank, op not
 * defined for the dtype, shapes that do not fit, the group has failed); *work is then NULL and nothing was
 * written. A collective that is refused takes its place in the sequence all the same: peers that issued a
 * real one fail by name instead of waiting, and if every rank's call was refused the group goes on. Lists
 * (t, n) are one operation over several tensors: of one dtype, but for broadcast. */
TN_API tn_code tn_pg_allreduce(tn_pg *g, const tn_tensor *t, size_t n, tn_op op, const tn_pg_call *call,
                               tn_work **work, tn_err *err);
TN_API tn_code tn_pg_broadcast(tn_pg *g, const tn_tensor *t, size_t n, int root, const tn_pg_call *call,
                               tn_work **work, tn_err *err);
/* The tensors of the other ranks are input only. */
TN_API tn_code tn_pg_reduce(tn_pg *g, const tn_tensor *t, size_t n, int root, tn_op op, const tn_pg_call *call,
                            tn_work **work, tn_err *err);
/* out[size]: rank r's input lands in out[r]; each has the dtype of `in` and as many elements as that rank's
 * input (sizes may differ by rank; all ranks know them). */
TN_API tn_code tn_pg_allgather(tn_pg *g, const tn_tensor *in, const tn_tensor *out, const tn_pg_call *call,
                               tn_work **work, tn_err *err);
/* in[size]: in[r] is reduced over the ranks into rank r's out; sizes may differ by rank. */
TN_API tn_code tn_pg_reduce_scatter(tn_pg *g, const tn_tensor *in, const tn_tensor *out, tn_op op,
                                    const tn_pg_call *call, tn_work **work, tn_err *err);
/* out[size] at the root, else NULL. */
TN_API tn_code tn_pg_gather(tn_pg *g, const tn_tensor *in, const tn_tensor *out, int root,
                            const tn_pg_call *call, tn_work **work, tn_err *err);
/* in[size] at the root, else NULL. */
TN_API tn_code tn_pg_scatter(tn_pg *g, const tn_tensor *in, const tn_tensor *out, int root,
                             const tn_pg_call *call, tn_work **work, tn_err *err);
/* in[r] goes to rank r, out[r] comes from rank r; any sizes, zero included; one dtype. */
TN_API tn_code tn_pg_alltoall(tn_pg *g, const tn_tensor *in, const tn_tensor *out, const tn_pg_call *call,
                              tn_work **work, tn_err *err);
/* Done when all ranks have come. A time-out names those who did not. */
TN_API tn_code tn_pg_barrier(tn_pg *g, const tn_pg_call *call, tn_work **work, tn_err *err);
/* Point to point, matched by (source, tag) in order of issue; independent of the collectives and of each
 * other. src -1: any source. *source (may be NULL; must live until the work is done) receives the sender's
 * rank. Sizes in bytes must be equal, else both ends fail by name. A send is done when its data has been
 * handed to the system, which is not before the receive was posted. The time-out counts from the call. The
 * group goes on after a point-to-point failure; messages to oneself are refused. */
TN_API tn_code tn_pg_send(tn_pg *g, const tn_tensor *t, int dst, uint32_t tag, const tn_pg_call *call,
                          tn_work **work, tn_err *err);
TN_API tn_code tn_pg_recv(tn_pg *g, const tn_tensor *t, int src, uint32_t tag, int *source,
                          const tn_pg_call *call, tn_work **work, tn_err *err);
/* For a layer above that refuses a collective before it can ask for it (a tensor of another device, say): takes
 * the place in the sequence that the refusals above take, so that the peers' calls fail by name. */
TN_API void tn_pg_refuse(tn_pg *g, const tn_pg_call *call);
/* The sequence number of the last collective issued. */
TN_API uint64_t tn_pg_sequence(const tn_pg *g);

#endif

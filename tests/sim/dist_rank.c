/* One rank of a test of process groups, where everything goes well: every operation with every dtype, layout
 * and size against values computed here; point to point; strangers; leaving. Options: dist_rank.h. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <time.h>

#include "tests/sim/dist_values.h"

/* ---- Every operation ---- */

static tn_pg_call weight_call(tn_op op, int rank) {
    return (tn_pg_call){.weight = op == TN_WMEAN ? (double)(rank * 2 + (opt.size == 1)) : 0.5 + rank};
}

static void check_allreduce(tn_op op, tn_dtype d, size_t n, layout how) {
    double weights[MAX_RANKS];
    tn_pg_call call = weight_call(op, opt.rank);
    block b = block_new(d, n, how);
    uint8_t *want = malloc(n * tn_dtype_size(d) + 1);
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    char what[80];
    int r;

    for (r = 0; r < opt.size; r++)
        weights[r] = weight_call(op, r).weight;
    snprintf(what, sizeof(what), "allreduce %s, layout %d", tn_op_name(op), (int)how);
    block_fill(&b, opt.rank, (unsigned)n);
    expect_reduced(want, op, d, n, (unsigned)n, weights);
    need(finish(tn_pg_allreduce(g, &b.t, 1, op, &call, &w, &err), &w, &err), &err);
    block_same(what, &b, want);
    hash(want, n * tn_dtype_size(d));
    free(want);
    free(b.store);
}

static void check_reduce(tn_op op, tn_dtype d, size_t n, layout how, int root) {
    double weights[MAX_RANKS];
    tn_pg_call call = weight_call(op, opt.rank);
    block b = block_new(d, n, how);
    uint8_t *want = malloc(n * tn_dtype_size(d) + 1);
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    for (r = 0; r < opt.size; r++)
        weights[r] = weight_call(op, r).weight;
    block_fill(&b, opt.rank, 3);
    if (opt.rank == root)
        expect_reduced(want, op, d, n, 3, weights);
    else
        fill(want, d, n, opt.rank, 3); /* input only */
    need(finish(tn_pg_reduce(g, &b.t, 1, root, op, &call, &w, &err), &w, &err), &err);
    block_same("reduce", &b, want);
    free(want);
    free(b.store);
}

static void check_broadcast(tn_dtype d, size_t n, layout how, int root) {
    block b = block_new(d, n, how);
    uint8_t *want = malloc(n * tn_dtype_size(d) + 1);
    tn_err err = TN_ERR_INIT;
    tn_work *w;

    block_fill(&b, opt.rank, 9);
    fill(want, d, n, root, 9);
    need(finish(tn_pg_broadcast(g, &b.t, 1, root, NULL, &w, &err), &w, &err), &err);
    block_same("broadcast", &b, want);
    free(want);
    free(b.store);
}

/* How many elements rank `to` gets from rank `from`. Uneven, with empty ones. */
static size_t part(size_t n, int from, int to) {
    return n == 0 ? 0 : n + (size_t)(from * 5 + to * 3) % 7 - n % 2;
}

static void check_allgather(tn_dtype d, size_t n, layout how) {
    block in = block_new(d, part(n, opt.rank, 0), how), out[MAX_RANKS];
    tn_tensor views[MAX_RANKS];
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    block_fill(&in, opt.rank, 1);
    for (r = 0; r < opt.size; r++) {
        out[r] = block_new(d, part(n, r, 0), (layout)(((unsigned)how + (unsigned)r) % LAYOUTS));
        views[r] = out[r].t;
    }
    need(finish(tn_pg_allgather(g, &in.t, views, NULL, &w, &err), &w, &err), &err);
    for (r = 0; r < opt.size; r++) {
        uint8_t *want = malloc(tn_tensor_nbytes(&views[r]) + 1);

        fill(want, d, part(n, r, 0), r, 1);
        block_same("allgather", &out[r], want);
        hash(want, tn_tensor_nbytes(&views[r]));
        free(want);
        free(out[r].store);
    }
    free(in.store);
}

static void check_reduce_scatter(tn_op op, tn_dtype d, size_t n, layout how) {
    double weights[MAX_RANKS];
    tn_pg_call call = weight_call(op, opt.rank);
    block in[MAX_RANKS], out = block_new(d, part(n, 0, opt.rank), how);
    tn_tensor views[MAX_RANKS];
    uint8_t *want = malloc(tn_tensor_nbytes(&out.t) + 1);
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    for (r = 0; r < opt.size; r++) {
        weights[r] = weight_call(op, r).weight;
        in[r] = block_new(d, part(n, 0, r), (layout)(((unsigned)how + (unsigned)r) % LAYOUTS));
        block_fill(&in[r], opt.rank, 20 + (unsigned)r);
        views[r] = in[r].t;
    }
    expect_reduced(want, op, d, part(n, 0, opt.rank), 20 + (unsigned)opt.rank, weights);
    need(finish(tn_pg_reduce_scatter(g, views, &out.t, op, &call, &w, &err), &w, &err), &err);
    block_same("reduce_scatter", &out, want);
    for (r = 0; r < opt.size; r++)
        free(in[r].store);
    free(want);
    free(out.store);
}

static void check_gather(tn_dtype d, size_t n, layout how, int root) {
    block in = block_new(d, part(n, opt.rank, 0), how), out[MAX_RANKS];
    tn_tensor views[MAX_RANKS];
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    block_fill(&in, opt.rank, 4);
    for (r = 0; r < opt.size; r++) {
        out[r] = block_new(d, part(n, r, 0), how);
        views[r] = out[r].t;
    }
    need(finish(tn_pg_gather(g, &in.t, opt.rank == root ? views : NULL, root, NULL, &w, &err), &w, &err), &err);
    for (r = 0; r < opt.size; r++) {
        uint8_t *want = malloc(tn_tensor_nbytes(&views[r]) + 1);

        fill(want, d, part(n, r, 0), r, 4);
        if (opt.rank == root)
            block_same("gather", &out[r], want);
        free(want);
        free(out[r].store);
    }
    free(in.store);
}

static void check_scatter(tn_dtype d, size_t n, layout how, int root) {
    block in[MAX_RANKS], out = block_new(d, part(n, 0, opt.rank), how);
    tn_tensor views[MAX_RANKS];
    uint8_t *want = malloc(tn_tensor_nbytes(&out.t) + 1);
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    for (r = 0; r < opt.size; r++) {
        in[r] = block_new(d, part(n, 0, r), how);
        block_fill(&in[r], root, 30 + (unsigned)r);
        views[r] = in[r].t;
    }
    fill(want, d, part(n, 0, opt.rank), root, 30 + (unsigned)opt.rank);
    need(finish(tn_pg_scatter(g, opt.rank == root ? views : NULL, &out.t, root, NULL, &w, &err), &w, &err),
         &err);
    block_same("scatter", &out, want);
    for (r = 0; r < opt.size; r++)
        free(in[r].store);
    free(want);
    free(out.store);
}

static void check_alltoall(tn_dtype d, size_t n, layout how) {
    block in[MAX_RANKS], out[MAX_RANKS];
    tn_tensor from[MAX_RANKS], to[MAX_RANKS];
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    for (r = 0; r < opt.size; r++) {
        in[r] = block_new(d, part(n, opt.rank, r), how);
        out[r] = block_new(d, part(n, r, opt.rank), how);
        block_fill(&in[r], opt.rank, 40 + (unsigned)r);
        from[r] = in[r].t;
        to[r] = out[r].t;
    }
    need(finish(tn_pg_alltoall(g, from, to, NULL, &w, &err), &w, &err), &err);
    for (r = 0; r < opt.size; r++) {
        uint8_t *want = malloc(tn_tensor_nbytes(&to[r]) + 1);

        fill(want, d, part(n, r, opt.rank), r, 40 + (unsigned)opt.rank);
        block_same("alltoall", &out[r], want);
        free(want);
        free(in[r].store);
        free(out[r].store);
    }
}
/* Lists are one operation over several tensors. */
static void check_lists(void) {
    static const size_t counts[] = {5, 0, 1000, 1, 77};
    enum { N = sizeof(counts) / sizeof(counts[0]) };
    block b[N];
    tn_tensor views[N];
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    size_t i;
    int pass;

    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < N; i++) {
            b[i] = block_new(TN_F32, counts[i], (layout)(i % LAYOUTS));
            block_fill(&b[i], opt.rank, 50 + (unsigned)i);
            views[i] = b[i].t;
        }
        need(finish(pass == 0 ? tn_pg_allreduce(g, views, N, TN_SUM, NULL, &w, &err)
                              : tn_pg_broadcast(g, views, N, opt.size - 1, NULL, &w, &err),
                    &w, &err),
             &err);
        for (i = 0; i < N; i++) {
            uint8_t *want = malloc(counts[i] * 4 + 1);

            if (pass == 0)
                expect_reduced(want, TN_SUM, TN_F32, counts[i], 50 + (unsigned)i, NULL);
            else
                fill(want, TN_F32, counts[i], opt.size - 1, 50 + (unsigned)i);
            block_same("list", &b[i], want);
            free(want);
            free(b[i].store);
        }
    }
}

/* Many operations issued before any is waited for, which then complete in order. */
static void check_queue(void) {
    enum { N = 40 };
    static int64_t x[N][3];
    tn_work *w[N];
    tn_err err = TN_ERR_INIT;
    uint64_t before = tn_pg_sequence(g);
    int i, r;

    for (i = 0; i < N; i++) {
        tn_tensor t = tn_tensor_flat(x[i], TN_I64, 3);

        x[i][0] = i;
        x[i][1] = opt.rank;
        x[i][2] = i * opt.rank;
        need(tn_pg_allreduce(g, &t, 1, TN_SUM, NULL, &w[i], &err), &err);
    }
    if (tn_pg_sequence(g) != before + N)
        die("%d operations moved the sequence from %" PRIu64 " to %" PRIu64, N, before, tn_pg_sequence(g));
    for (i = N; i-- > 0;) {
        int64_t ranks = 0;

        need(finish(TN_OK, &w[i], &err), &err);
        for (r = 0; r < opt.size; r++)
            ranks += r;
        if (x[i][0] != (int64_t)i * opt.size || x[i][1] != ranks || x[i][2] != i * ranks)
            die("operation %d of the queue gave %" PRId64 " %" PRId64 " %" PRId64, i, x[i][0], x[i][1],
                x[i][2]);
    }
}

/* The cases of CASES.md by their numbers. */
static void check_cases(void) {
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int r;

    { /* 16: empty tensors, then a real one */
        int64_t shape[3] = {1, 0, 2};
        float ones[2] = {1, 1};
        tn_tensor empty, outs[MAX_RANKS], t = tn_tensor_flat(ones, TN_F32, 2);

        need(tn_tensor_init(&empty, NULL, TN_F32, 3, shape, &err), &err);
        for (r = 0; r < opt.size; r++)
            outs[r] = empty;
        need(finish(tn_pg_allreduce(g, &empty, 1, TN_SUM, NULL, &w, &err), &w, &err), &err);
        need(finish(tn_pg_allgather(g, &empty, outs, NULL, &w, &err), &w, &err), &err);
        need(finish(tn_pg_broadcast(g, &empty, 1, 0, NULL, &w, &err), &w, &err), &err);
        need(finish(tn_pg_allreduce(g, &t, 1, TN_SUM, NULL, &w, &err), &w, &err), &err);
        if (ones[0] != (float)opt.size || ones[1] != (float)opt.size)
            die("after empty tensors, the sum of ones is %g", (double)ones[0]);
    }
    if (opt.size == 2) { /* 17: rank 0 holds 7 and 8 and keeps one; rank 1 has nothing to send */
        float mine[2] = {7, 8}, got = 0;
        tn_tensor in[2], out[2];

        in[0] = in[1] = out[0] = out[1] = tn_tensor_flat(NULL, TN_F32, 0);
        out[0] = tn_tensor_flat(&got, TN_F32, 1);
        if (opt.rank == 0) {
            in[0] = tn_tensor_flat(&mine[0], TN_F32, 1);
            in[1] = tn_tensor_flat(&mine[1], TN_F32, 1);
        }
        need(finish(tn_pg_alltoall(g, in, out, NULL, &w, &err), &w, &err), &err);
        if (got != (opt.rank == 0 ? 7.0f : 8.0f))
            die("alltoall with an empty sender gave %g", (double)got);
    }
    if (opt.size == 2 || opt.size == 3) { /* 18: AVG */
        float x[4], k = (float)(opt.rank + 1);
        float want = opt.size == 2 ? 1.5f : 2.0f;
        tn_tensor t = tn_tensor_flat(x, TN_F32, 4);
        int i;

        for (i = 0; i < 4; i++)
            x[i] = k * 2.0f * (float)(i + 1);
        need(finish(tn_pg_allreduce(g, &t, 1, TN_AVG, NULL, &w, &err), &w, &err), &err);
        for (i = 0; i < 4; i++)
            if (x[i] != want * 2.0f * (float)(i + 1))
                die("AVG gave %g at %d", (double)x[i], i);
    }
    { /* 2: bfloat16 is reduced in float32 and rounded once: 256 + 1 + 1 (+ ...) is not 256 */
        uint16_t x = opt.rank == 0 ? 0x4380 : 0x3f80; /* 256; 1 */
        float sum = 256.0f + (float)(opt.size - 1), got;
        uint32_t bits, wide;
        tn_tensor t = tn_tensor_flat(&x, TN_BF16, 1);

        need(finish(tn_pg_allreduce(g, &t, 1, TN_SUM, NULL, &w, &err), &w, &err), &err);
        wide = (uint32_t)x << 16;
        memcpy(&got, &wide, 4);
        memcpy(&bits, &sum, 4);
        bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        if (x != bits)
            die("the sum of bfloat16 is %g, not %g rounded once", (double)got, (double)sum);
    }
}

/* Every rank gets the same error, and the group goes on. */
static void check_refusals(void) {
    float x[2] = {1, 2};
    tn_tensor t = tn_tensor_flat(x, TN_F32, 2), none[MAX_RANKS];
    tn_pg_call zero = {.weight = 0}, bad = {.weight = opt.rank == opt.size - 1 ? -1.0 : 1.0};
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    char name[32];
    int r;

    if (finish(tn_pg_allreduce(g, &t, 1, TN_WMEAN, &zero, &w, &err), &w, &err) != TN_EINVAL)
        die("weights that are all zero were not refused: %s", err.msg);
    snprintf(name, sizeof(name), "rank %d is -1", opt.size - 1);
    if (finish(tn_pg_allreduce(g, &t, 1, TN_WMEAN, &bad, &w, &err), &w, &err) != TN_EINVAL ||
        strstr(err.msg, name) == NULL)
        die("a negative weight was not refused by name: %s", err.msg);
    if (tn_pg_allreduce(g, &t, 1, TN_BAND, NULL, &w, &err) == TN_OK)
        die("BAND of float32 was accepted");
    if (tn_pg_broadcast(g, &t, 1, opt.size, NULL, &w, &err) != TN_EINVAL)
        die("a root outside the group was accepted");
    for (r = 0; r < opt.size; r++)
        none[r] = tn_tensor_flat(x, TN_F32, 1);
    if (tn_pg_allgather(g, &t, none, NULL, &w, &err) != TN_ESHAPE)
        die("an output of another size was accepted");
    if (tn_pg_send(g, &t, opt.rank, 0, NULL, &w, &err) != TN_EINVAL)
        die("a message to oneself was accepted");
    if (tn_pg_allreduce(g, &t, 0, TN_SUM, NULL, &w, &err) != TN_EINVAL)
        die("an empty list was accepted");
    if (x[0] != 1 || x[1] != 2)
        die("a refused operation wrote");
    barrier();
}

static void compare_digests(void) {
    char key[60];
    tn_err err = TN_ERR_INIT;
    uint8_t *p;
    size_t n;
    int r;

    snprintf(key, sizeof(key), "digest/%d", opt.rank);
    put(key, &digest, sizeof(digest));
    for (r = 0; r < opt.size; r++) {
        snprintf(key, sizeof(key), "digest/%d", r);
        need(store.get(store.arg, key, opt.timeout, &p, &n, &err), &err);
        if (n != sizeof(digest) || memcmp(p, &digest, n) != 0)
            die("rank %d ended with other bits", r);
        free(p);
    }
}

static void mode_grid(void) {
    static const size_t counts[] = {0, 1, 3, 1000, 100003};
    size_t c;
    int d, o, root;

    for (c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        size_t n = counts[c];
        bool large = n > 1000;

        if (large && opt.segment != 0 && opt.segment < 4096)
            continue; /* tiny segments are for edges: a hundred of them do */
        if (n == 1000 && opt.segment != 0 && opt.segment < 4096)
            n = 130;
        for (d = 0; d < TN_DTYPE_COUNT; d++) {
            layout how = (layout)((d + (int)c) % LAYOUTS);

            if (large && d != TN_F32 && d != TN_BF16 && d != TN_I64 && d != TN_U8)
                continue;
            if (SANITISED && d != TN_F32 && (d + (int)c) % 4 != 0)
                continue; /* what a sanitiser finds does not depend on the dtype */
            root = (d + (int)c) % opt.size;
            for (o = 0; o < TN_OP_COUNT; o++) {
                tn_op op = (tn_op)o;

                if (!tn_k_reduce_supported(op, (tn_dtype)d) || (large && op != TN_SUM && op != TN_WMEAN))
                    continue;
                check_allreduce(op, (tn_dtype)d, n, o == TN_SUM ? PACKED : how);
                check_reduce(op, (tn_dtype)d, n, how, root);
                check_reduce_scatter(op, (tn_dtype)d, n, how);
            }
            check_broadcast((tn_dtype)d, n, how, root);
            check_allgather((tn_dtype)d, n, how);
            check_gather((tn_dtype)d, n, how, root);
            check_scatter((tn_dtype)d, n, how, root);
            check_alltoall((tn_dtype)d, n, how);
        }
        barrier();
    }
    for (root = 0; root < opt.size; root++) { /* 1: a column of a matrix, each root */
        check_broadcast(TN_F64, 1000, COLUMN, root);
        check_reduce(TN_SUM, TN_F64, 1000, COLUMN, root);
        check_scatter(TN_F64, 1000, COLUMN, root);
    }
    check_lists();
    check_queue();
    check_cases();
    check_refusals();
    compare_digests();
}

/* ---- Point to point ---- */

static void mode_p2p(void) {
    int next = (opt.rank + 1) % opt.size, prev = (opt.rank + opt.size - 1) % opt.size, r, from = -2;
    tn_work *s[6], *w[MAX_RANKS];
    tn_err err = TN_ERR_INIT;
    int i;

    if (opt.size == 1)
        return;
    for (i = 0; i < 6; i++) { /* a ring, large and small, strided and not, received in another order of tags */
        static const size_t counts[] = {1, 0, 200003, 5, 1000, 70000};
        block out = block_new(TN_F32, counts[i], (layout)(i % LAYOUTS)),
              in = block_new(TN_F32, counts[i], COLUMN);
        uint8_t *want = malloc(counts[i] * 4 + 1);

        block_fill(&out, opt.rank, (unsigned)i);
        fill(want, TN_F32, counts[i], prev, (unsigned)i);
        need(tn_pg_send(g, &out.t, next, 7, NULL, &s[0], &err), &err);
        need(tn_pg_send(g, &out.t, next, 8, NULL, &s[1], &err), &err);
        need(finish(tn_pg_recv(g, &in.t, prev, 8, NULL, NULL, &w[0], &err), &w[0], &err), &err);
        block_same("receive", &in, want);
        need(finish(tn_pg_recv(g, &in.t, prev, 7, &from, NULL, &w[0], &err), &w[0], &err), &err);
        block_same("receive", &in, want);
        if (from != prev)
            die("the source is %d, not %d", from, prev);
        need(finish(TN_OK, &s[0], &err), &err);
        need(finish(TN_OK, &s[1], &err), &err);
        free(want);
        free(in.store);
        free(out.store);
    }
    { /* messages of one tag keep their order, issued first on either side */
        int32_t x[6], y[6];

        for (i = 0; i < 6; i++) {
            tn_tensor t = tn_tensor_flat(&x[i], TN_I32, 1), u = tn_tensor_flat(&y[i], TN_I32, 1);

            x[i] = opt.rank * 100 + i;
            if (opt.rank % 2 == 0)
                need(tn_pg_send(g, &t, next, 1, NULL, &s[i], &err), &err);
            need(tn_pg_recv(g, &u, prev, 1, NULL, NULL, &w[i], &err), &err);
            if (opt.rank % 2 != 0)
                need(tn_pg_send(g, &t, next, 1, NULL, &s[i], &err), &err);
        }
        for (i = 0; i < 6; i++) {
            need(finish(TN_OK, &s[i], &err), &err);
            need(finish(TN_OK, &w[i], &err), &err);
            if (y[i] != prev * 100 + i)
                die("message %d of a tag is %d", i, y[i]);
        }
    }
    if (opt.rank == 0) { /* any source: each of the others once */
        bool seen[MAX_RANKS] = {false};
        int sources[MAX_RANKS];
        int64_t x[MAX_RANKS];

        for (r = 1; r < opt.size; r++) {
            tn_tensor t = tn_tensor_flat(&x[r], TN_I64, 1);

            need(tn_pg_recv(g, &t, -1, 3, &sources[r], NULL, &w[r], &err), &err);
        }
        for (r = 1; r < opt.size; r++) {
            need(finish(TN_OK, &w[r], &err), &err);
            if (sources[r] < 1 || sources[r] >= opt.size || seen[sources[r]] || x[r] != 1000 + sources[r])
                die("any source: %" PRId64 " came from %d", x[r], sources[r]);
            seen[sources[r]] = true;
        }
    } else {
        int64_t x = 1000 + opt.rank;
        tn_tensor t = tn_tensor_flat(&x, TN_I64, 1);

        need(finish(tn_pg_send(g, &t, 0, 3, NULL, &s[0], &err), &s[0], &err), &err);
    }
    barrier(); /* independent of the collectives */
    if (opt.rank < 2) { /* sizes differ: both ends fail by name, and the group goes on */
        int32_t x[3] = {0};
        tn_tensor t = tn_tensor_flat(x, TN_I32, opt.rank == 0 ? 3 : 2);
        tn_code code = opt.rank == 0 ? tn_pg_send(g, &t, 1, 5, NULL, &s[0], &err)
                                     : tn_pg_recv(g, &t, 0, 5, NULL, NULL, &s[0], &err);

        code = finish(code, &s[0], &err);
        if (code != TN_ESHAPE || strstr(err.msg, opt.rank == 0 ? "8 bytes" : "12 bytes") == NULL)
            die("messages of 12 and 8 bytes met: %s", err.msg);
    }
    { /* nothing comes: a time-out, and the next one works */
        int32_t x = opt.rank, y = -1;
        tn_tensor t = tn_tensor_flat(&x, TN_I32, 1), u = tn_tensor_flat(&y, TN_I32, 1);
        tn_pg_call soon = {.timeout_ns = 100 * TN_MS};
        tn_code code;

        if (finish(tn_pg_recv(g, &u, prev, 99, NULL, &soon, &w[0], &err), &w[0], &err) != TN_ETIMEDOUT)
            die("a receive of nothing did not time out");
        if (finish(tn_pg_send(g, &t, next, 98, &soon, &w[0], &err), &w[0], &err) != TN_ETIMEDOUT)
            die("a send that nobody receives did not time out");
        barrier();
        /* The withdrawn message is gone: this receive does not match it. */
        need(tn_pg_recv(g, &u, prev, 98, NULL, &soon, &w[0], &err), &err);
        code = finish(TN_OK, &w[0], &err); /* the barrier may have been faster than the withdrawal */
        if (code != TN_ETIMEDOUT && (code != TN_EPEER || strstr(err.msg, "gave up") == NULL))
            die("a message that was withdrawn was received");
        need(tn_pg_recv(g, &u, prev, 1, NULL, NULL, &w[0], &err), &err);
        need(finish(tn_pg_send(g, &t, next, 1, NULL, &s[0], &err), &s[0], &err), &err);
        need(finish(TN_OK, &w[0], &err), &err);
        if (y != prev)
            die("after time-outs, %d came from %d", y, prev);
        need(tn_pg_recv(g, &u, prev, 97, NULL, NULL, &w[0], &err), &err);
        tn_work_abort(w[0], TN_ECANCELED);
        if (finish(TN_OK, &w[0], &err) != TN_ECANCELED)
            die("an aborted receive ended with %s", err.msg);
    }
    barrier();
}
/* Strangers have been at every listener (test_dist sees to that) before the first operation. */
static void mode_strangers(void) {
    gate("made");
    wait_for("strangers were here");
    check_allreduce(TN_SUM, TN_F32, 1000, PACKED);
    check_alltoall(TN_I16, 10, COLUMN);
}

/* Whoever is done frees the group at once, while others still read what it sent. */
static void mode_leave(void) {
    int round, r;

    for (round = 0; round < 5; round++) {
        tn_err err = TN_ERR_INIT;
        tn_code code;

        if (round > 0) {
            g = make_group(NULL, &err, &code);
            need(code, &err);
        }
        for (r = 0; r < opt.size; r++)
            check_broadcast(TN_F32, 300000, PACKED, r);
        check_gather(TN_F32, 200000, PACKED, round % opt.size);
        tn_pg_free(g, 20 * TN_SECOND);
    }
    g = NULL;
}
/* ---- Every collective once, and what a rank may do meanwhile ---- */

#define EACH 11

static void each(int k) {
    int root = k % opt.size;

    switch (k) {
    case 0:
        check_allreduce(TN_SUM, TN_F32, 1000, PACKED);
        break;
    case 1:
        check_allreduce(TN_MAX, TN_I32, 100003, COLUMN);
        break;
    case 2:
        check_broadcast(TN_F64, 50000, PACKED, root);
        break;
    case 3:
        check_reduce(TN_SUM, TN_BF16, 1000, COLUMN, root);
        break;
    case 4:
        check_reduce(TN_AVG, TN_F32, 30000, PACKED, root);
        break;
    case 5:
        check_allgather(TN_U8, 3000, PACKED);
        break;
    case 6:
        check_reduce_scatter(TN_SUM, TN_I64, 2000, REVERSED_ROWS);
        break;
    case 7:
        check_gather(TN_F16, 3000, PACKED, root);
        break;
    case 8:
        check_scatter(TN_C64, 3000, COLUMN, root);
        break;
    case 9:
        check_alltoall(TN_I32, 2000, PACKED);
        break;
    default:
        barrier();
        break;
    }
}

/* Before each of them another rank is late. */
static void mode_each_slow(void) {
    struct timespec late = {.tv_nsec = 300 * TN_MS};
    int k;

    for (k = 0; k < EACH; k++) {
        if (opt.rank == k % opt.size)
            nanosleep(&late, NULL);
        each(k);
    }
    compare_digests();
}

/* Before each of them another rank stops; the test lets it go on. */
static void mode_each_stopped(void) {
    int k;

    for (k = 0; k < EACH; k++) {
        if (opt.rank == k % opt.size)
            raise(SIGSTOP);
        each(k);
    }
    compare_digests();
}

static int64_t each_began;

static void the_victim_is_named(tn_code code, const tn_err *err) {
    char words[32];

    when_it_fails = NULL;
    snprintf(words, sizeof(words), "rank %d is gone", opt.victim);
    must_fail(code, err, TN_EPEER, words, each_began, 5 * TN_SECOND);
    tn_pg_free(g, 10 * TN_SECOND);
    exit(0);
}

/* The victim is killed before one of them. Who does not need it there hears of it in the barrier at the latest.
 * */
static void mode_each_killed(void) {
    int k;

    for (k = 0; k < EACH; k++) {
        if (k == opt.which) {
            gate("here");
            if (opt.rank == opt.victim)
                raise(SIGKILL);
            when_it_fails = the_victim_is_named;
            each_began = tn_now();
        }
        each(k);
    }
    barrier();
    die("nobody missed rank %d", opt.victim);
}

/* What depends on the way between hosts, not on dtypes. */
static void mode_hosts(void) {
    int root;

    for (root = 0; root < opt.size; root++) {
        check_broadcast(TN_F32, 300000, PACKED, root);
        check_gather(TN_F32, 1000, COLUMN, root);
    }
    check_allreduce(TN_SUM, TN_F32, 500003, PACKED);
    check_allreduce(TN_SUM, TN_BF16, 3, PACKED);
    check_alltoall(TN_I64, 1000, PACKED);
    barrier();
    mode_p2p();
    compare_digests();
}

int main(int argc, char **argv) {
    static const mode modes[] = {
        {"grid", mode_grid, false},
        {"hosts", mode_hosts, false},
        {"each_slow", mode_each_slow, false},
        {"each_stopped", mode_each_stopped, false},
        {"each_killed", mode_each_killed, false},
        {"p2p", mode_p2p, false},
        {"strangers", mode_strangers, false},
        {"leave", mode_leave, false},
    };

    return play(argc, argv, modes, sizeof(modes) / sizeof(modes[0]));
}

/* The message bodies: round trips, every prefix, mutations, what is refused, and the known answers of
 * docs/PROTOCOL.md. */
#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/random.h"
#include "fed/fed.h"

/* ---- One sample of each message, and its functions without their types ---- */

static void fill(void *p, size_t n, uint8_t first) {
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)(first + i);
}

static tn_msg_challenge sample_challenge(void) {
    tn_msg_challenge m = {.version = 1, .tls = true, .job = "digits"};

    fill(m.nonce, sizeof(m.nonce), 0);
    fill(m.key, sizeof(m.key), 1);
    fill(m.cert, sizeof(m.cert), 2);
    return m;
}

static tn_msg_hello sample_hello(void) {
    tn_msg_hello m = {.version = 1, .id = "client-1"};

    fill(m.nonce, sizeof(m.nonce), 3);
    fill(m.key, sizeof(m.key), 4);
    fill(m.cert, sizeof(m.cert), 5);
    fill(m.sig, sizeof(m.sig), 6);
    return m;
}

static tn_msg_welcome sample_welcome(void) {
    tn_msg_welcome m = {.id = "client-1", .authenticated = true, .rounds = 20, .aggregator = "fedavg",
                        .chunk = 65536, .resume_seconds = 5.5};
    const int64_t shape[] = {3, 4};

    fill(m.sig, sizeof(m.sig), 7);
    tn_layout_init(&m.layout);
    ck_assert_int_eq(tn_layout_add(&m.layout, "fc.weight", TN_F32, 2, shape, NULL), TN_OK);
    ck_assert_int_eq(tn_layout_add(&m.layout, "steps", TN_I64, 0, NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_layout_seal(&m.layout, NULL), TN_OK);
    return m;
}

static tn_msg_error sample_error(void) { return (tn_msg_error){.code = TN_EROUND, .text = "round 3 is over"}; }

static tn_msg_task sample_task(void) {
    tn_msg_task m = {.kind = TN_TASK_TRAIN, .round = 3, .attempt = 2, .deadline_seconds = 60, .cohort = 8,
                     .text = "", .nparams = 2, .param = {{"lr", 0.1}, {"epochs", 2}}};

    fill(m.model_hash, sizeof(m.model_hash), 8);
    return m;
}

static tn_msg_get sample_get(void) { return (tn_msg_get){.round = 3, .offset = 1 << 20, .size = 4096}; }

static tn_msg_begin sample_begin(void) {
    tn_msg_begin m = {.round = 3, .attempt = 2, .examples = 1437, .bytes = 100000, .nmetrics = 2,
                      .metric = {{"loss", 0.25}, {"accuracy", 0.9}}};

    fill(m.hash, sizeof(m.hash), 9);
    return m;
}

static tn_msg_resume sample_resume(void) { return (tn_msg_resume){.offset = 12345678901}; }
static tn_msg_accepted sample_accepted(void) { return (tn_msg_accepted){.round = 3, .duplicate = true}; }
static tn_msg_notice sample_notice(void) { return (tn_msg_notice){.text = "waiting for 2 clients, 1 is here"}; }

static void release_nothing(void *m) { (void)m; }
static void release_welcome(void *m) { tn_msg_welcome_release(m); }
#define release_challenge release_nothing
#define release_hello release_nothing
#define release_error release_nothing
#define release_task release_nothing
#define release_get release_nothing
#define release_begin release_nothing
#define release_resume release_nothing
#define release_accepted release_nothing
#define release_notice release_nothing

#define X(name)                                                                          \
    static void encode_##name(tn_wr *w) {                                                \
        tn_msg_##name m = sample_##name();                                               \
                                                                                         \
        tn_msg_##name##_encode(&m, w);                                                   \
        release_##name(&m);                                                              \
    }                                                                                    \
    /* Decodes, and encodes what came out. */                                            \
    static tn_code again_##name(const void *p, size_t n, tn_wr *w, tn_err *err) {        \
        tn_msg_##name m;                                                                 \
        tn_code code = tn_msg_##name##_decode(&m, p, n, err);                            \
                                                                                         \
        if (code == TN_OK)                                                               \
            tn_msg_##name##_encode(&m, w);                                               \
        release_##name(&m);                                                              \
        return code;                                                                     \
    }
TN_MSGS(X)
#undef X

static const struct {
    const char *name;
    void (*encode)(tn_wr *w);
    tn_code (*again)(const void *p, size_t n, tn_wr *w, tn_err *err);
} kinds[] = {
#define X(name) {#name, encode_##name, again_##name},
    TN_MSGS(X)
#undef X
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static tn_wr encoded(int kind) {
    tn_wr w = tn_wr_init(1 << 20);

    kinds[kind].encode(&w);
    ck_assert_int_eq(w.fail, TN_OK);
    return w;
}

/* ---- Every message ---- */

START_TEST(round_trip) {
    tn_wr a = encoded(_i), b = tn_wr_init(1 << 20);
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(kinds[_i].again(a.p, a.len, &b, &err) == TN_OK, "%s", err.msg);
    ck_assert_uint_eq(a.len, b.len);
    ck_assert_mem_eq(a.p, b.p, a.len);
    tn_wr_release(&a);
    tn_wr_release(&b);
}
END_TEST

/* Each prefix lies in memory of its own size, so that the address sanitizer sees a read behind it. */
START_TEST(every_prefix_is_refused) {
    tn_wr a = encoded(_i), b = tn_wr_init(1 << 20);
    tn_err err = TN_ERR_INIT;

    for (size_t n = 0; n < a.len; n++) {
        uint8_t *part = malloc(n + (n == 0));

        memcpy(part, a.p, n);
        ck_assert_int_ne(kinds[_i].again(part, n, &b, &err), TN_OK);
        ck_assert(err.msg[0] != '\0');
        ck_assert_int_ne(kinds[_i].again(part, n, &b, NULL), TN_OK);
        free(part);
    }
    tn_wr_u8(&a, 0);
    ck_assert_int_eq(kinds[_i].again(a.p, a.len, &b, &err), TN_EPROTO); /* a byte too many */
    ck_assert_uint_eq(b.len, 0);
    tn_wr_release(&a);
    tn_wr_release(&b);
}
END_TEST

/* Bytes changed, put in and taken out at random: refused, or a message that encodes to something which
 * decodes to itself. */
START_TEST(mutations) {
    tn_wr a = encoded(_i);
    tn_rng rng = tn_rng_seed(1000 + (uint64_t)_i);

    for (int i = 0; i < 4000; i++) {
        size_t n = a.len, at = (size_t)tn_rng_below(&rng, a.len);
        uint8_t *bytes = malloc(n + 1);
        tn_wr once = tn_wr_init(1 << 20), twice = tn_wr_init(1 << 20);

        memcpy(bytes, a.p, n);
        switch (tn_rng_below(&rng, 4)) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << tn_rng_below(&rng, 8));
            break;
        case 1:
            bytes[at] = (uint8_t)tn_rng_u64(&rng);
            break;
        case 2:
            memmove(bytes + at, bytes + at + 1, n - at - 1);
            n--;
            break;
        default:
            memmove(bytes + at + 1, bytes + at, n - at);
            bytes[at] = (uint8_t)tn_rng_u64(&rng);
            n++;
            break;
        }
        if (kinds[_i].again(bytes, n, &once, NULL) == TN_OK) {
            ck_assert_int_eq(kinds[_i].again(once.p, once.len, &twice, NULL), TN_OK);
            ck_assert_uint_eq(once.len, twice.len);
            ck_assert_mem_eq(once.p, twice.p, once.len);
        }
        tn_wr_release(&once);
        tn_wr_release(&twice);
        free(bytes);
    }
    tn_wr_release(&a);
}
END_TEST

/* A key that this version does not know, and one that is missing. The map's head is the first byte. */
START_TEST(unknown_and_missing_keys) {
    tn_wr a = encoded(_i), b = tn_wr_init(1 << 20);
    tn_err err = TN_ERR_INIT;

    ck_assert_uint_eq(a.p[0] & 0xe0, 0xa0);
    ck_assert_uint_lt(a.p[0] & 0x1f, 23);
    a.p[0]++;
    tn_cbor_put_text(&a, "extra");
    tn_cbor_put_u64(&a, 1);
    ck_assert_int_eq(kinds[_i].again(a.p, a.len, &b, &err), TN_EPROTO);
    ck_assert_msg(strstr(err.msg, "\"extra\"") != NULL, "%s", err.msg);
    ck_assert_int_eq(kinds[_i].again("\xa0", 1, &b, &err), TN_EPROTO); /* an empty map */
    ck_assert_ptr_nonnull(strstr(err.msg, "missing"));
    ck_assert_int_eq(kinds[_i].again("\x80", 1, &b, &err), TN_EPROTO); /* no map at all */
    tn_wr_release(&a);
    tn_wr_release(&b);
}
END_TEST

/* Every value replaced by one of another type. */
START_TEST(wrong_types) {
    static const char *const other[] = {"\x01", "\x20", "\xf5", "\x61x", "\x41x", "\x80", "\xa0"};
    tn_wr a = encoded(_i);
    tn_cbor root, key, value;

    ck_assert_int_eq(tn_cbor_parse(a.p, a.len, &root, NULL), TN_OK);
    while (tn_cbor_next(&root, &key, &value)) {
        /* The walk's position is behind the value, the key's end is in front of it. */
        size_t from = (size_t)(key.p + key.n - a.p), to = (size_t)(root.p - a.p);
        int accepted = 0;

        for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
            tn_wr m = tn_wr_init(1 << 20), out = tn_wr_init(1 << 20);

            tn_wr_bytes(&m, a.p, from);
            tn_wr_bytes(&m, other[i], strlen(other[i]));
            tn_wr_bytes(&m, a.p + to, a.len - to);
            accepted += kinds[_i].again(m.p, m.len, &out, NULL) == TN_OK;
            tn_wr_release(&m);
            tn_wr_release(&out);
        }
        /* One type of the seven is the right one, two where a float may be written as an integer. */
        ck_assert_msg(accepted <= 2, "%s: %.*s took %d of 7 types", kinds[_i].name, (int)key.n,
                      (const char *)key.p, accepted);
    }
    tn_wr_release(&a);
}
END_TEST

/* ---- Values out of range ---- */

#define REFUSED(name, change)                                                    \
    do {                                                                         \
        tn_msg_##name in = sample_##name(), back;                                \
        tn_wr to = tn_wr_init(1 << 20);                                          \
        tn_err why = TN_ERR_INIT;                                                \
        in.change;                                                               \
        tn_msg_##name##_encode(&in, &to);                                        \
        ck_assert_int_eq(tn_msg_##name##_decode(&back, to.p, to.len, &why), TN_EPROTO); \
        ck_assert(why.msg[0] != '\0');                                           \
        tn_wr_release(&to);                                                      \
        release_##name(&in);                                                     \
        release_##name(&back);                                                   \
    } while (0)

static char *long_text(char *p, size_t n) {
    memset(p, 'x', n - 1);
    p[n - 1] = '\0';
    return p;
}

START_TEST(out_of_range) {
    REFUSED(hello, id[0] = '-');
    REFUSED(hello, id[3] = '/');
    REFUSED(welcome, id[0] = '\0');
    REFUSED(welcome, chunk = 0);
    REFUSED(welcome, chunk = TN_MSG_CHUNK + 1);
    REFUSED(welcome, rounds = UINT64_MAX);
    REFUSED(welcome, resume_seconds = -1);
    REFUSED(welcome, resume_seconds = (double)NAN);
    REFUSED(error, code = TN_OK);
    REFUSED(task, kind = (tn_task_kind)3);
    REFUSED(task, round = 0);
    REFUSED(task, attempt = 0);
    REFUSED(task, round = UINT64_MAX);
    REFUSED(task, deadline_seconds = -0.5);
    REFUSED(task, deadline_seconds = (double)NAN);
    REFUSED(task, param[0].name[0] = '\0');
    REFUSED(task, param[1] = in.param[0]); /* a name twice */
    REFUSED(get, size = TN_MSG_CHUNK + 1);
    REFUSED(get, offset = (UINT64_C(1) << 40) + 1);
    REFUSED(begin, bytes = (UINT64_C(1) << 40) + 1);
    REFUSED(begin, metric[1] = in.metric[0]);
    REFUSED(resume, offset = UINT64_MAX);
    REFUSED(accepted, round = UINT64_MAX);
}
END_TEST

START_TEST(what_passes) {
    tn_msg_hello hello = sample_hello(), hello2;
    tn_msg_task task = sample_task(), task2;
    tn_msg_begin begin = sample_begin(), begin2;
    tn_wr w = tn_wr_init(1 << 20);

    hello.id[0] = '\0'; /* with TLS the server knows the id */
    tn_msg_hello_encode(&hello, &w);
    ck_assert_int_eq(tn_msg_hello_decode(&hello2, w.p, w.len, NULL), TN_OK);
    ck_assert_str_eq(hello2.id, "");
    tn_wr_release(&w);
    w = tn_wr_init(1 << 20);
    task.kind = TN_TASK_DONE;
    task.round = task.attempt = 0;
    task.deadline_seconds = (double)INFINITY;
    tn_msg_task_encode(&task, &w);
    ck_assert_int_eq(tn_msg_task_decode(&task2, w.p, w.len, NULL), TN_OK);
    ck_assert(isinf(task2.deadline_seconds));
    tn_wr_release(&w);
    w = tn_wr_init(1 << 20);
    begin.examples = 0; /* refused later, as an update */
    begin.metric[0].value = (double)NAN;
    begin.metric[1].value = -(double)INFINITY;
    tn_msg_begin_encode(&begin, &w);
    ck_assert_int_eq(tn_msg_begin_decode(&begin2, w.p, w.len, NULL), TN_OK);
    ck_assert_uint_eq(begin2.nmetrics, 2);
    ck_assert(isnan(begin2.metric[0].value));
    tn_wr_release(&w);
}
END_TEST

START_TEST(too_many_metrics) {
    tn_wr w = tn_wr_init(1 << 20);
    tn_msg_begin m;
    tn_err err = TN_ERR_INIT;

    for (int n = TN_METRICS_MAX; n <= TN_METRICS_MAX + 1; n++) {
        tn_wr_release(&w);
        w = tn_wr_init(1 << 20);
        tn_cbor_put_map(&w, 6);
        tn_cbor_put_text(&w, "round");
        tn_cbor_put_u64(&w, 1);
        tn_cbor_put_text(&w, "attempt");
        tn_cbor_put_u64(&w, 1);
        tn_cbor_put_text(&w, "examples");
        tn_cbor_put_u64(&w, 1);
        tn_cbor_put_text(&w, "bytes");
        tn_cbor_put_u64(&w, 1);
        tn_cbor_put_text(&w, "hash");
        tn_cbor_put_bytes(&w, "0123456789abcdef0123456789abcdef", 32);
        tn_cbor_put_text(&w, "metrics");
        tn_cbor_put_map(&w, (size_t)n);
        for (int i = 0; i < n; i++) {
            char name[48];

            long_text(name, sizeof(name)); /* as long as one may be */
            name[0] = (char)('A' + i / 26);
            name[1] = (char)('a' + i % 26);
            tn_cbor_put_text(&w, name);
            tn_cbor_put_i64(&w, -i);
        }
        ck_assert_int_eq(tn_msg_begin_decode(&m, w.p, w.len, &err), n <= TN_METRICS_MAX ? TN_OK : TN_EPROTO);
    }
    ck_assert_ptr_nonnull(strstr(err.msg, "65"));
    ck_assert_double_eq(m.metric[3].value, 0); /* untouched by the refused one */
    tn_wr_release(&w);
}
END_TEST

START_TEST(too_large) {
    uint8_t *big = calloc(1, TN_MSG_MAX_SMALL + 1);
    tn_msg_notice m;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_msg_notice_decode(&m, big, TN_MSG_MAX_SMALL + 1, &err), TN_ETOOBIG);
    free(big);
}
END_TEST

/* ---- Sentences ---- */

static const char *notice_of(const char *text) {
    static tn_msg_notice out;
    tn_msg_notice in;
    tn_wr w = tn_wr_init(1 << 20);
    tn_err err = TN_ERR_INIT;

    snprintf(in.text, sizeof(in.text), "%s", text);
    tn_msg_notice_encode(&in, &w);
    ck_assert_msg(tn_msg_notice_decode(&out, w.p, w.len, &err) == TN_OK, "%s", err.msg);
    tn_wr_release(&w);
    return out.text;
}

START_TEST(sentences_are_cleaned) {
    static const char wide[] = "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"; /* 2, 3 and 4 bytes */
    char text[400];

    ck_assert_str_eq(notice_of("one\ntwo\x1b[31m\x7f"), "one two [31m ");
    ck_assert_str_eq(notice_of(wide), wide);
    ck_assert_str_eq(notice_of("\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80"), "??????????");
    ck_assert_str_eq(notice_of("cut \xe2\x82"), "cut ??");
    long_text(text, sizeof(text));
    ck_assert_str_eq(notice_of(text), text);
    text[397] = '\xe2'; /* snprintf would have cut a character of three bytes */
    text[398] = '\x82';
    ck_assert_uint_eq(strlen(notice_of(text)), 399);
}
END_TEST

START_TEST(control_characters_are_refused) {
    static const char body[] = "\xa1\x64text\x63" "a\nb";
    tn_msg_notice m;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_msg_notice_decode(&m, body, sizeof(body) - 1, &err), TN_EPROTO);
    ck_assert_ptr_nonnull(strstr(err.msg, "control"));
    ck_assert_ptr_nonnull(strstr(err.msg, "NOTICE"));
}
END_TEST

/* ---- Versions, codes, names ---- */

START_TEST(another_version) {
    tn_msg_challenge c = sample_challenge(), c2;
    tn_msg_hello h = sample_hello(), h2;
    tn_wr w = tn_wr_init(1 << 20);
    tn_err err = TN_ERR_INIT;

    c.version = 7;
    tn_msg_challenge_encode(&c, &w);
    w.p[0]++; /* another version may have other keys: that is not what the peer is told */
    tn_cbor_put_text(&w, "later");
    tn_cbor_put_bool(&w, true);
    ck_assert_int_eq(tn_msg_challenge_decode(&c2, w.p, w.len, &err), TN_EVERSION);
    ck_assert_ptr_nonnull(strstr(err.msg, "version 7"));
    ck_assert_ptr_nonnull(strstr(err.msg, "version 1"));
    ck_assert_ptr_nonnull(strstr(err.msg, "server"));
    tn_wr_release(&w);
    w = tn_wr_init(1 << 20);
    h.version = 0;
    tn_msg_hello_encode(&h, &w);
    ck_assert_int_eq(tn_msg_hello_decode(&h2, w.p, w.len, &err), TN_EVERSION);
    ck_assert_uint_eq(h2.version, 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "client"));
    tn_wr_release(&w);
}
END_TEST

START_TEST(codes_of_a_later_server) {
    tn_wr w = tn_wr_init(100);
    tn_msg_error m;

    tn_cbor_put_map(&w, 2);
    tn_cbor_put_text(&w, "code");
    tn_cbor_put_u64(&w, 999);
    tn_cbor_put_text(&w, "text");
    tn_cbor_put_text(&w, "no");
    ck_assert_int_eq(tn_msg_error_decode(&m, w.p, w.len, NULL), TN_OK);
    ck_assert_int_eq(m.code, TN_EPEER);
    ck_assert_str_eq(m.text, "no");
    tn_wr_release(&w);
}
END_TEST

START_TEST(sizes_and_names) {
    ck_assert_uint_eq(tn_msg_max(0), 0);
    ck_assert_uint_eq(tn_msg_max(TN_MSG_BYE + 1), 0);
    ck_assert_uint_eq(tn_msg_max(255), 0);
    ck_assert_uint_eq(tn_msg_max(TN_MSG_WELCOME), TN_MSG_MAX_META);
    ck_assert_uint_eq(tn_msg_max(TN_MSG_PUT), TN_MSG_CHUNK);
    ck_assert_uint_eq(tn_msg_max(TN_MSG_DATA), TN_MSG_CHUNK);
    ck_assert_uint_eq(tn_msg_max(TN_MSG_HELLO), TN_MSG_MAX_SMALL);
    ck_assert_str_eq(tn_msg_name(TN_MSG_HELLO), "HELLO");
    ck_assert_str_eq(tn_msg_name(TN_MSG_BYE), "BYE");
    ck_assert_str_eq(tn_msg_name(0), "unknown");
    ck_assert_str_eq(tn_msg_name(200), "unknown");
    for (int type = TN_MSG_CHALLENGE; type <= TN_MSG_BYE; type++)
        ck_assert_str_ne(tn_msg_name((uint8_t)type), "unknown");
}
END_TEST

/* ---- The hello, with the known answers of docs/PROTOCOL.md ----
 *
 * They were made with Python's hashlib and a plain transcription of RFC 8032. */

#define SERVER_PK "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
#define CLIENT_PK "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"

static void known_hello(tn_msg_challenge *c, tn_msg_hello *h) {
    *c = (tn_msg_challenge){.version = 1, .tls = true, .job = "digits"};
    *h = (tn_msg_hello){.version = 1, .id = "client-1"};
    fill(c->nonce, 32, 0);
    fill(h->nonce, 32, 32);
    ck_assert_int_eq(tn_unhex(SERVER_PK, c->key, 32, NULL), TN_OK);
    ck_assert_int_eq(tn_unhex(CLIENT_PK, h->key, 32, NULL), TN_OK);
    memset(c->cert, 0xa0, 32);
    memset(h->cert, 0xb0, 32);
}

/* The key whose seed is 32 times `byte`, by way of a file. */
static void known_key(tn_key *k, const char *pk, const char *byte) {
    char path[] = "/tmp/tn-msg-XXXXXX";
    int fd = mkstemp(path); /* mode 0600 */
    FILE *f = fdopen(fd, "w");
    tn_err err = TN_ERR_INIT;

    fprintf(f, "torchnative-identity 1\n%s\n", pk);
    for (int i = 0; i < 32; i++)
        fputs(byte, f);
    fputs("\n", f);
    fclose(f);
    ck_assert_msg(tn_key_load(k, path, &err) == TN_OK, "%s", err.msg);
    unlink(path);
}

static void check_signature(const char *pk, const char *byte, const char *label, const uint8_t *transcript,
                            const char *want) {
    uint8_t sig[TN_SIG_BYTES];
    char hex[2 * TN_SIG_BYTES + 1];
    tn_key k;

    known_key(&k, pk, byte);
    ck_assert_int_eq(tn_key_sign(&k, label, transcript, TN_HASH_BYTES, sig, NULL), TN_OK);
    tn_hex(sig, sizeof(sig), hex);
    ck_assert_str_eq(hex, want);
    ck_assert_int_eq(tn_key_verify(k.pk, label, transcript, TN_HASH_BYTES, sig, NULL), TN_OK);
    tn_key_release(&k);
}

START_TEST(known_answers) {
    tn_msg_challenge c;
    tn_msg_hello h;
    uint8_t t[TN_HASH_BYTES];
    char hex[2 * TN_HASH_BYTES + 1];

    known_hello(&c, &h);
    tn_msg_transcript(&c, &h, t);
    tn_hex(t, sizeof(t), hex);
    ck_assert_str_eq(hex, "94167b678cf028721913dcffe9496bfc7eb7a3a41fcc639506412f3ff89ceffa");
    check_signature(CLIENT_PK, "02", TN_HELLO_CLIENT, t,
                    "fd20b142822af20e138ecd4f88fe17fc2adc6ffd1bcc55b1fc9f16079a5f5c03"
                    "df47c565d82862991ffef315b6ac2b526ea37e99acb7063e8610f94983f0e303");
    check_signature(SERVER_PK, "01", TN_HELLO_SERVER, t,
                    "91a89abc2b6271cafebfe8edbdc67cfbc452930d8a5c0760f42d677176bae028"
                    "3ceb85a38480020e925c4ece899b774d9d03110ad96bf497e1de940d3bf52f00");
}
END_TEST

START_TEST(every_field_is_in_the_transcript) {
    tn_msg_challenge c;
    tn_msg_hello h;
    uint8_t t[TN_HASH_BYTES], other[TN_HASH_BYTES];

    known_hello(&c, &h);
    tn_msg_transcript(&c, &h, t);
#define CHANGES(change)                          \
    do {                                         \
        known_hello(&c, &h);                     \
        change;                                  \
        tn_msg_transcript(&c, &h, other);        \
        ck_assert_mem_ne(t, other, sizeof(t));   \
    } while (0)
    CHANGES(c.version++);
    CHANGES(h.version++);
    for (int i = 0; i < 32; i++) {
        CHANGES(c.nonce[i] ^= 1);
        CHANGES(h.nonce[i] ^= 1);
        CHANGES(c.key[i] ^= 1);
        CHANGES(h.key[i] ^= 1);
        CHANGES(c.cert[i] ^= 1);
        CHANGES(h.cert[i] ^= 1);
    }
    CHANGES(c.tls = false);
    CHANGES(c.job[0] = 'D');
    CHANGES(h.id[0] = 'C');
    CHANGES(h.id[0] = '\0');
#undef CHANGES
    known_hello(&c, &h);
    h.sig[0] ^= 1; /* what is signed cannot hold the signature */
    tn_msg_transcript(&c, &h, other);
    ck_assert_mem_eq(t, other, sizeof(t));
}
END_TEST

int main(void) {
    Suite *s = suite_create("fed_msg");
    TCase *every = tcase_create("every"), *values = tcase_create("values"), *hello = tcase_create("hello");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, every);
    tcase_set_timeout(every, 60);
    tcase_add_loop_test(every, round_trip, 0, KINDS);
    tcase_add_loop_test(every, every_prefix_is_refused, 0, KINDS);
    tcase_add_loop_test(every, mutations, 0, KINDS);
    tcase_add_loop_test(every, unknown_and_missing_keys, 0, KINDS);
    tcase_add_loop_test(every, wrong_types, 0, KINDS);
    suite_add_tcase(s, values);
    tcase_add_test(values, out_of_range);
    tcase_add_test(values, what_passes);
    tcase_add_test(values, too_many_metrics);
    tcase_add_test(values, too_large);
    tcase_add_test(values, sentences_are_cleaned);
    tcase_add_test(values, control_characters_are_refused);
    tcase_add_test(values, another_version);
    tcase_add_test(values, codes_of_a_later_server);
    tcase_add_test(values, sizes_and_names);
    suite_add_tcase(s, hello);
    tcase_add_test(hello, known_answers);
    tcase_add_test(hello, every_field_is_in_the_transcript);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

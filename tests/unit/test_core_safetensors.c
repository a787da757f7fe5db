/* .safetensors: a file of the reference package, round trips, each rule broken, every prefix, seeded mutations. */
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/random.h"
#include "core/safetensors.h"

static char dir[64];

static void make_dir(void) {
    snprintf(dir, sizeof(dir), "/tmp/tn-st-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_dir(void) { ck_assert_int_eq(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0); }

static const char *model_path(void) {
    static char path[128];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    return path;
}

/* A file of this header and these data, as they are. */
static void put_file(const char *json, size_t n, const void *data, size_t size) {
    uint8_t length[8];
    tn_wr w = tn_wr_fixed(length, sizeof(length));
    const tn_part parts[] = {{length, 8}, {json, n}, {data, size}};

    tn_wr_u64(&w, n);
    ck_assert_int_eq(tn_file_write_atomic(model_path(), parts, 3, 0600, NULL), TN_OK);
}

static tn_code parse(const char *json, uint64_t data_size, tn_err *e) {
    tn_layout l;
    uint64_t *offsets;
    char *meta;
    size_t n = strlen(json);
    char *exact = malloc(n + (n == 0)); /* so that ASan sees a read behind the end */
    tn_code code;

    memcpy(exact, json, n);
    code = tn_st_parse_header(exact, n, data_size, &l, &offsets, &meta, e);
    free(exact);
    if (code != TN_OK)
        ck_assert(l.count == 0 && l.entry == NULL && offsets == NULL && meta == NULL);
    tn_layout_release(&l);
    free(offsets);
    free(meta);
    return code;
}

/* ---- Against the reference package ---- */

/* safetensors 0.8.0: w = arange(6) as float32 (2, 3), n = 7 as an int64 scalar, and three bytes. */
static const char package_header[] =
    "{\"__metadata__\":{\"by\":\"safetensors 0.8.0\"},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[32,35]}}  ";
static const uint8_t package_data[] = {7,    0, 0, 0, 0,    0,    0, 0, 0,    0,    0, 0, 0,    0,    128, 63, 0, 0,
                                       0,    64, 0, 0, 64,  64,   0, 0, 128,  64,   0, 0, 160,  64,   1,   2,  3};

START_TEST(a_file_of_the_package_is_read) {
    static const float w[] = {0, 1, 2, 3, 4, 5};
    static const int64_t n = 7;
    tn_layout l;
    uint8_t *block;
    char *meta;
    tn_err e = TN_ERR_INIT;
    const tn_layout_entry *entry;

    ck_assert_uint_eq(sizeof(package_header) - 1, 208);
    put_file(package_header, sizeof(package_header) - 1, package_data, sizeof(package_data));
    ck_assert_msg(tn_st_read(model_path(), &l, &block, &meta, &e) == TN_OK, "%s", e.msg);
    ck_assert_uint_eq(l.count, 3);
    ck_assert_uint_eq(l.nbytes, 35);
    entry = tn_layout_find(&l, "w");
    ck_assert(entry->dtype == TN_F32 && entry->ndim == 2 && entry->shape[0] == 2 && entry->shape[1] == 3);
    ck_assert_mem_eq(block + entry->offset, w, sizeof(w));
    entry = tn_layout_find(&l, "n");
    ck_assert(entry->dtype == TN_I64 && entry->ndim == 0);
    ck_assert_mem_eq(block + entry->offset, &n, sizeof(n));
    ck_assert_mem_eq(block + tn_layout_find(&l, "\xc3\xa9")->offset, "\1\2\3", 3);
    ck_assert_str_eq(meta, "{\"by\":\"safetensors 0.8.0\"}");
    free(meta);
    free(block);
    tn_layout_release(&l);
}
END_TEST

/* The same content written by us is the same file, byte by byte: order, spelling and padding agree. */
START_TEST(our_file_is_the_packages_file) {
    static const tn_st_meta meta[] = {{"by", "safetensors 0.8.0"}};
    tn_layout l;
    uint8_t *block, *file;
    size_t n;

    put_file(package_header, sizeof(package_header) - 1, package_data, sizeof(package_data));
    ck_assert_int_eq(tn_st_read(model_path(), &l, &block, NULL, NULL), TN_OK);
    unlink(model_path());
    ck_assert_int_eq(tn_st_write(model_path(), &l, block, meta, 1, NULL), TN_OK);
    ck_assert_int_eq(tn_file_read(model_path(), 1000, &file, &n, NULL), TN_OK);
    ck_assert_uint_eq(n, 8 + sizeof(package_header) - 1 + sizeof(package_data));
    ck_assert_mem_eq(file + 8, package_header, sizeof(package_header) - 1);
    ck_assert_mem_eq(file + n - sizeof(package_data), package_data, sizeof(package_data));
    free(file);
    free(block);
    tn_layout_release(&l);
}
END_TEST

START_TEST(tensors_in_any_order_land_where_the_layout_says) {
    static const char json[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                               "\"a\":{\"data_offsets\":[2,10],\"shape\":[1],\"dtype\":\"F64\"},"
                               "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[10,10]},"
                               "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[10,11]}}";
    tn_layout l;
    uint8_t *block;
    char *meta = dir;
    tn_err e = TN_ERR_INIT;

    put_file(json, strlen(json), "bbAAAAAAAAc", 11);
    ck_assert_msg(tn_st_read(model_path(), &l, &block, &meta, &e) == TN_OK, "%s", e.msg);
    ck_assert_ptr_null(meta);
    ck_assert_mem_eq(block, "AAAAAAAAbbc", 11);
    ck_assert_str_eq(l.entry[0].name, "a");
    ck_assert_str_eq(l.entry[1].name, "none");
    ck_assert_str_eq(l.entry[2].name, "b");
    free(block);
    tn_layout_release(&l);
}
END_TEST

/* ---- Round trips ---- */

START_TEST(every_dtype_and_shape_comes_back) {
    tn_layout l, back;
    uint8_t *block, *got, *file;
    size_t n;
    char *meta;
    static const tn_st_meta pairs[] = {{"round", "3"}, {"k\"ey\n", "v\\al\xc3\xa9"}, {"", ""}};
    static const int64_t shapes[][3] = {{0}, {5}, {2, 3}, {3, 0, 2}};
    tn_rng rng = tn_rng_seed(4);
    struct stat st;

    tn_layout_init(&l);
    for (int d = 0; d < TN_DTYPE_COUNT; d++) {
        for (int ndim = 0; ndim < 4 && tn_dtype_safetensors((tn_dtype)d)[0] != '\0'; ndim++) {
            char name[64];

            snprintf(name, sizeof(name), "layer \"%d\".%s\n\xc3\xa9", ndim, tn_dtype_name((tn_dtype)d));
            ck_assert_int_eq(tn_layout_add(&l, name, (tn_dtype)d, ndim, shapes[ndim], NULL), TN_OK);
        }
    }
    ck_assert_int_eq(tn_layout_seal(&l, NULL), TN_OK);
    block = malloc(l.nbytes);
    for (size_t i = 0; i < l.nbytes; i++)
        block[i] = (uint8_t)tn_rng_u64(&rng);
    umask(022);
    ck_assert_int_eq(tn_st_write(model_path(), &l, block, pairs, 3, NULL), TN_OK);
    ck_assert_int_eq(stat(model_path(), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0644);
    ck_assert_int_eq(tn_st_read(model_path(), &back, &got, &meta, NULL), TN_OK);
    ck_assert_int_eq(tn_layout_same(&l, "a", &back, "b", NULL), TN_OK);
    ck_assert_mem_eq(got, block, l.nbytes);
    ck_assert_str_eq(meta, "{\"round\":\"3\",\"k\\\"ey\\n\":\"v\\\\al\xc3\xa9\",\"\":\"\"}");
    ck_assert_int_eq(tn_file_read(model_path(), 1 << 20, &file, &n, NULL), TN_OK);
    ck_assert_uint_eq((n - l.nbytes) % 8, 0); /* the data start at a multiple of 8 */
    free(file);
    free(meta);
    free(got);
    free(block);
    tn_layout_release(&back);
    tn_layout_release(&l);
}
END_TEST

START_TEST(an_empty_model_is_a_model) {
    tn_layout l, back;
    uint8_t *got;
    char *meta;

    tn_layout_init(&l);
    ck_assert_int_eq(tn_st_write(model_path(), &l, NULL, NULL, 0, NULL), TN_OK);
    ck_assert_int_eq(tn_st_read(model_path(), &back, &got, &meta, NULL), TN_OK);
    ck_assert(back.count == 0 && got != NULL && meta == NULL);
    free(got);
    tn_layout_release(&back);
}
END_TEST

START_TEST(what_cannot_be_written) {
    static const tn_st_meta twice[] = {{"a", "1"}, {"b", "2"}, {"a", "3"}}, latin[] = {{"a", "\xe9"}};
    static tn_st_meta many[TN_ST_MAX_META + 1];
    static const int64_t one[] = {1};
    tn_layout l;
    tn_err e = TN_ERR_INIT;

    tn_layout_init(&l);
    ck_assert_int_eq(tn_st_write(model_path(), &l, "", twice, 3, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.safetensors: the metadata key \"a\" is there twice"));
    ck_assert_int_eq(tn_st_write(model_path(), &l, "", latin, 1, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "metadata pair 0 is not UTF-8"));
    ck_assert_int_eq(tn_st_write(model_path(), &l, "", many, TN_ST_MAX_META + 1, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "65 pairs of metadata; at most 64"));
    ck_assert_int_eq(tn_layout_add(&l, "__metadata__", TN_U8, 1, one, NULL), TN_OK);
    ck_assert_int_eq(tn_layout_seal(&l, NULL), TN_OK);
    ck_assert_int_eq(tn_st_write(model_path(), &l, "", NULL, 0, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "cannot be called __metadata__"));
    ck_assert_int_ne(access(model_path(), F_OK), 0);
    tn_layout_release(&l);
}
END_TEST

/* ---- Each rule broken once ---- */

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

START_TEST(broken_headers_are_refused_by_rule) {
    static const struct {
        const char *json;
        uint64_t size;
        const char *says;
    } rows[] = {
        {"", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"{", 0, "not JSON"},
        {"{}x", 0, "not JSON"},
        {"{}{}", 0, "not JSON"},
        {"{\"\xff\":" T("U8", "[1]", "[0,1]") "}", 1, "not JSON"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate"},
        {"{}", 1, "the tensors take 0 bytes of data, but there are 1"},
        {"{\"a\":1}", 0, "tensor a is not an object"},
        {"{\"a\":{}}", 0, "tensor a: \"dtype\" is not a string"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor a: \"dtype\" is not a string"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor a: \"shape\" is not an array"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor a: \"data_offsets\" is not a pair"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":0}}", 1,
         "a has the unknown key \"x\""},
        {"{\"a\":" T("F4", "[2]", "[0,1]") "}", 1, "tensor a has the dtype \"F4\", which is not supported"},
        {"{\"a\":" T("F6_E2M3", "[4]", "[0,3]") "}", 3, "has the dtype \"F6_E2M3\", which is not supported"},
        {"{\"a\":" T("", "[1]", "[0,1]") "}", 1, "tensor a has the dtype \"\", which is not supported"},
        {"{\"a\":" T("float32", "[1]", "[0,4]") "}", 4, "has the dtype \"float32\", which is not supported"},
        {"{\"a\":" T("U8", "1", "[0,1]") "}", 1, "\"shape\" is not an array"},
        {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "tensor a: dimension 0 is not a size"},
        {"{\"a\":" T("U8", "[1,1.0]", "[0,1]") "}", 1, "tensor a: dimension 1 is not a size"},
        {"{\"a\":" T("U8", "[9223372036854775808]", "[0,1]") "}", 1, "not JSON"},
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1,
         "a has 17 dimensions; at most 16"},
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "2^63"},
        {"{\"a\":" T("F32", "[4294967296,1073741824]", "[0,0]") "}", 0, "2^63"},
        {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "not a pair"},
        {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "not a pair"},
        {"{\"a\":" T("U8", "[1]", "[0,1.0]") "}", 1, "not a pair"},
        {"{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "lies at bytes -1 to 0"},
        {"{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "lies at bytes 1 to 0 of 1"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 1, "lies at bytes 0 to 2 of 1 bytes"},
        {"{\"a\":" T("U8", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1, "of 1 bytes"},
        {"{\"a\":" T("F32", "[1]", "[0,3]") "}", 3, "a has 3 bytes of data, but its dtype and shape take 4"},
        {"{\"a\":" T("U8", "[0]", "[0,1]") "}", 1, "a has 1 bytes of data, but its dtype and shape take 0"},
        {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "a begins at byte 1 of the data, not at 0"}, /* a hole */
        {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 2, "the tensors take 1 bytes of data, but there are 2"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", 3,
         "b begins at byte 2 of the data, not at 1"}, /* a hole between */
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3,
         "b begins at byte 1 of the data, not at 2"}, /* an overlap */
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, "begins at byte 0"},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[0]", "[1,1]") "}", 2, "b begins at byte 1"},
        {"{\"\":" T("U8", "[1]", "[0,1]") "}", 1, "a tensor with an empty name"},
        {"{\"__metadata__\":3}", 0, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"a\":3}}", 0, "\"__metadata__\": the value of \"a\" is not a string"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "duplicate"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_err e = TN_ERR_INIT;

        ck_assert_msg(parse(rows[i].json, rows[i].size, &e) == TN_EPROTO, "row %zu: %s", i, rows[i].json);
        ck_assert_int_eq(e.code, TN_EPROTO);
        ck_assert_msg(strstr(e.msg, rows[i].says) != NULL, "%s: %s", rows[i].json, e.msg);
    }
}
END_TEST

START_TEST(what_is_allowed) {
    static const struct {
        const char *json;
        uint64_t size;
    } rows[] = {
        {"{}", 0},
        {"{}    ", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{\"a\":" T("U8", "[]", "[0,1]") "}", 1},
        {"{\"a\":" T("U8", "[0]", "[0,0]") ",\"b\":" T("F32", "[3,0]", "[0,0]") "}", 0},
        {"{\"a\":" T("U8", "[0]", "[2,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2},
        {"{\"a\":" T("F8_E8M0", "[2]", "[0,2]") "}", 2},
        {"{ \"a\" : " T("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") " }", 1},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_err e = TN_ERR_INIT;

        ck_assert_msg(parse(rows[i].json, rows[i].size, &e) == TN_OK, "%s: %s", rows[i].json, e.msg);
    }
}
END_TEST

START_TEST(every_prefix_is_refused) {
    char json[sizeof(package_header)];

    memcpy(json, package_header, sizeof(json));
    ck_assert_int_eq(parse(json, sizeof(package_data), NULL), TN_OK);
    for (size_t n = sizeof(json) - 1 - 2; n-- > 0;) { /* the last two are padding */
        json[n] = '\0';
        ck_assert_int_eq(parse(json, sizeof(package_data), NULL), TN_EPROTO);
    }
}
END_TEST

/* The whole file cut at every byte, and with one byte too many. The error names the file. */
START_TEST(every_cut_file_is_refused) {
    size_t whole = 8 + sizeof(package_header) - 1 + sizeof(package_data);
    tn_layout l;
    uint8_t *block;
    char *meta;
    tn_err e = TN_ERR_INIT;

    put_file(package_header, sizeof(package_header) - 1, package_data, sizeof(package_data));
    ck_assert_int_eq(truncate(model_path(), (off_t)whole + 1), 0);
    ck_assert_int_eq(tn_st_read(model_path(), &l, &block, &meta, &e), TN_EPROTO);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.safetensors: the tensors take 35 bytes of data, but there are 36"));
    for (size_t n = whole; n-- > 0;) {
        ck_assert_int_eq(truncate(model_path(), (off_t)n), 0);
        ck_assert_int_eq(tn_st_read(model_path(), &l, &block, &meta, &e), TN_EPROTO);
        ck_assert_ptr_eq(strstr(e.msg, model_path()), e.msg);
        ck_assert(l.count == 0 && block == NULL && meta == NULL);
    }
    unlink(model_path());
    ck_assert_int_eq(tn_st_read(model_path(), &l, &block, &meta, &e), TN_ENOTFOUND);
    ck_assert(l.count == 0 && block == NULL && meta == NULL);
}
END_TEST

START_TEST(a_huge_header_is_refused_before_memory_is_taken) {
    static const uint64_t lengths[] = {TN_ST_MAX_HEADER + 1, UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63};
    tn_layout l;
    uint8_t *block;
    tn_err e = TN_ERR_INIT;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t bytes[10] = {0};
        tn_wr w = tn_wr_fixed(bytes, 8);
        tn_part part = {bytes, sizeof(bytes)};

        tn_wr_u64(&w, lengths[i]);
        memcpy(bytes + 8, "{}", 2);
        ck_assert_int_eq(tn_file_write_atomic(model_path(), &part, 1, 0600, NULL), TN_OK);
        ck_assert_int_eq(tn_st_read(model_path(), &l, &block, NULL, &e), TN_ETOOBIG);
        ck_assert_ptr_nonnull(strstr(e.msg, "at most 104857600 are allowed"));
    }
    {
        uint8_t bytes[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        tn_part part = {bytes, sizeof(bytes)};

        ck_assert_int_eq(tn_file_write_atomic(model_path(), &part, 1, 0600, NULL), TN_OK);
        ck_assert_int_eq(tn_st_read(model_path(), &l, &block, NULL, &e), TN_EPROTO);
        ck_assert_ptr_nonnull(strstr(e.msg, "a header of 3 bytes in a file of 10"));
    }
}
END_TEST

/* Whatever is accepted covers the data exactly once, with every tensor inside. */
static void check_accepted(const tn_layout *l, const uint64_t *offset, uint64_t size) {
    uint64_t sum = 0;

    for (size_t i = 0; i < l->count; i++) {
        if (offset[i] > size || l->entry[i].nbytes > size - offset[i])
            ck_abort_msg("a tensor outside the data");
        for (size_t j = 0; j < i; j++) {
            if (offset[i] < offset[j] + l->entry[j].nbytes && offset[j] < offset[i] + l->entry[i].nbytes)
                ck_abort_msg("two tensors overlap");
        }
        sum += l->entry[i].nbytes;
    }
    if (sum != size || sum != l->nbytes)
        ck_abort_msg("the data are not covered");
}

START_TEST(mutations_are_refused_or_cover_the_data) {
    static const char digits[] = "0123456789,:[]{}\"-U8F";
    tn_rng rng = tn_rng_seed(99);
    unsigned accepted = 0, refused = 0;

    for (int round = 0; round < 30000; round++) {
        size_t n = sizeof(package_header) - 1;
        char *json = malloc(n);
        uint64_t size = sizeof(package_data);
        tn_layout l;
        uint64_t *offset;
        char *meta;
        tn_err e = TN_ERR_INIT;

        memcpy(json, package_header, n);
        for (uint64_t i = 0; i <= tn_rng_below(&rng, 3); i++) /* mostly what keeps it JSON, sometimes any byte */
            json[1 + tn_rng_below(&rng, n - 1)] = tn_rng_below(&rng, 4) > 0
                                                      ? digits[tn_rng_below(&rng, sizeof(digits) - 1)]
                                                      : (char)tn_rng_u64(&rng);
        if (tn_rng_below(&rng, 8) == 0)
            size = tn_rng_u64(&rng) >> tn_rng_below(&rng, 64);
        if (tn_st_parse_header(json, n, size, &l, &offset, &meta, &e) == TN_OK) {
            check_accepted(&l, offset, size);
            accepted++;
        } else {
            if ((e.code != TN_EPROTO && e.code != TN_ETOOBIG) || e.msg[0] == '\0' || l.entry != NULL ||
                offset != NULL || meta != NULL)
                ck_abort_msg("a refusal without a reason, or with something left");
            refused++;
        }
        tn_layout_release(&l);
        free(offset);
        free(meta);
        free(json);
    }
    ck_assert_uint_gt(accepted, 1000);
    ck_assert_uint_gt(refused, 1000);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/safetensors");
    TCase *tc = tcase_create("safetensors");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, make_dir, remove_dir);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, a_file_of_the_package_is_read);
    tcase_add_test(tc, our_file_is_the_packages_file);
    tcase_add_test(tc, tensors_in_any_order_land_where_the_layout_says);
    tcase_add_test(tc, every_dtype_and_shape_comes_back);
    tcase_add_test(tc, an_empty_model_is_a_model);
    tcase_add_test(tc, what_cannot_be_written);
    tcase_add_test(tc, broken_headers_are_refused_by_rule);
    tcase_add_test(tc, what_is_allowed);
    tcase_add_test(tc, every_prefix_is_refused);
    tcase_add_test(tc, every_cut_file_is_refused);
    tcase_add_test(tc, a_huge_header_is_refused_before_memory_is_taken);
    tcase_add_test(tc, mutations_are_refused_or_cover_the_data);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* .safetensors: the header is one JSON object by jansson; everything it claims is checked against the
 * data's size before a byte of data is read. */
#include "core/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/internal.h"

#define LENGTH_SIZE 8 /* the u64 in front of the header */
#define META_KEY "__metadata__"
#define NAME "%.120s"

/* ---- Reading ---- */

static tn_code parse_dtype(const char *name, json_t *v, tn_dtype *out, tn_err *err) {
    const char *text = json_string_value(v);

    if (text == NULL)
        return tn_fail(err, TN_EPROTO, "tensor " NAME ": \"dtype\" is not a string", name);
    for (int i = 0; text[0] != '\0' && i < TN_DTYPE_COUNT; i++) {
        if (strcmp(text, tn_dtype_safetensors((tn_dtype)i)) == 0) {
            *out = (tn_dtype)i;
            return TN_OK;
        }
    }
    return tn_fail(err, TN_EPROTO, "tensor " NAME " has the dtype \"%.32s\", which is not supported", name,
                   text);
}

static tn_code parse_shape(const char *name, json_t *v, int64_t shape[TN_MAX_DIMS], int *ndim, tn_err *err) {
    size_t n = json_array_size(v);

    if (!json_is_array(v))
        return tn_fail(err, TN_EPROTO, "tensor " NAME ": \"shape\" is not an array", name);
    if (n > TN_MAX_DIMS)
        return tn_fail(err, TN_EPROTO, "tensor " NAME " has %zu dimensions; at most %d are supported", name, n,
                       TN_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        json_t *size = json_array_get(v, i);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return tn_fail(err, TN_EPROTO, "tensor " NAME ": dimension %zu is not a size", name, i);
        shape[i] = json_integer_value(size);
    }
    *ndim = (int)n;
    return TN_OK;
}

static tn_code parse_offsets(const char *name, json_t *v, uint64_t data_size, uint64_t *begin, uint64_t *end,
                             tn_err *err) {
    json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);

    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return tn_fail(err, TN_EPROTO, "tensor " NAME ": \"data_offsets\" is not a pair of integers", name);
    if (json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b) ||
        (uint64_t)json_integer_value(e) > data_size)
        return tn_fail(err, TN_EPROTO,
                       "tensor " NAME " lies at bytes %" JSON_INTEGER_FORMAT " to %" JSON_INTEGER_FORMAT
                       " of %" PRIu64 " bytes of data",
                       name, json_integer_value(b), json_integer_value(e), data_size);
    *begin = (uint64_t)json_integer_value(b);
    *end = (uint64_t)json_integer_value(e);
    return TN_OK;
}

/* One "name": {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} into the layout. */
static tn_code parse_tensor(const char *name, json_t *v, uint64_t data_size, tn_layout *layout, tn_err *err) {
    int64_t shape[TN_MAX_DIMS];
    uint64_t begin = 0, end = 0;
    tn_dtype dtype = TN_U8;
    int ndim = 0;
    const tn_layout_entry *e;
    const char *key;
    json_t *ignored;
    tn_code code;

    if (!json_is_object(v))
        return tn_fail(err, TN_EPROTO, "tensor " NAME " is not an object", name);
    json_object_foreach(v, key, ignored) {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return tn_fail(err, TN_EPROTO, "tensor " NAME " has the unknown key \"%.64s\"", name, key);
    }
    if ((code = parse_dtype(name, json_object_get(v, "dtype"), &dtype, err)) != TN_OK ||
        (code = parse_shape(name, json_object_get(v, "shape"), shape, &ndim, err)) != TN_OK ||
        (code = parse_offsets(name, json_object_get(v, "data_offsets"), data_size, &begin, &end, err)) != TN_OK)
        return code;
    code = tn_layout_add(layout, name, dtype, ndim, shape, err);
    if (code == TN_EINVAL) { /* its argument is the file's claim */
        if (err != NULL)
            err->code = TN_EPROTO;
        return TN_EPROTO;
    }
    if (code != TN_OK)
        return code;
    e = &layout->entry[layout->count - 1];
    if (end - begin != e->nbytes)
        return tn_fail(err, TN_EPROTO,
                       "tensor " NAME " has %" PRIu64 " bytes of data, but its dtype and shape take %zu", name,
                       end - begin, e->nbytes);
    return TN_OK;
}

static tn_code check_meta(json_t *meta, tn_err *err) {
    const char *key;
    json_t *v;

    if (!json_is_object(meta))
        return tn_fail(err, TN_EPROTO, "\"" META_KEY "\" is not an object");
    json_object_foreach(meta, key, v) {
        if (!json_is_string(v))
            return tn_fail(err, TN_EPROTO, "\"" META_KEY "\": the value of \"%.64s\" is not a string", key);
    }
    return TN_OK;
}

typedef struct extent {
    uint64_t begin, end;
    const char *name;
} extent;

static int by_begin(const void *a, const void *b) {
    const extent *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* the empty ones first */
}

/* The tensors cover the data, each byte once. */
static tn_code check_cover(const tn_layout *layout, const uint64_t *file_offset, uint64_t data_size,
                           tn_err *err) {
    extent *list = calloc(layout->count + 1, sizeof(*list));
    uint64_t at = 0;
    tn_code code = TN_OK;

    if (list == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for %zu tensors", layout->count);
    for (size_t i = 0; i < layout->count; i++) {
        list[i].begin = file_offset[i];
        list[i].end = file_offset[i] + layout->entry[i].nbytes;
        list[i].name = layout->entry[i].name;
    }
    qsort(list, layout->count, sizeof(*list), by_begin);
    for (size_t i = 0; i < layout->count && code == TN_OK; i++) {
        if (list[i].begin != at)
            code = tn_fail(err, TN_EPROTO,
                           "tensor " NAME " begins at byte %" PRIu64 " of the data, not at %" PRIu64
                           " where the one before ends",
                           list[i].name, list[i].begin, at);
        at = list[i].end;
    }
    if (code == TN_OK && at != data_size)
        code = tn_fail(err, TN_EPROTO, "the tensors take %" PRIu64 " bytes of data, but there are %" PRIu64, at,
                       data_size);
    free(list);
    return code;
}

/* Where each entry of the sealed layout lies in the file, from the header again: sealing has moved the
 * entries. */
static tn_code collect_offsets(json_t *root, const tn_layout *layout, uint64_t **file_offset, tn_err *err) {
    *file_offset = calloc(layout->count + 1, sizeof(**file_offset));
    if (*file_offset == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for %zu tensors", layout->count);
    for (size_t i = 0; i < layout->count; i++) {
        json_t *offsets = json_object_get(json_object_get(root, layout->entry[i].name), "data_offsets");

        (*file_offset)[i] = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    }
    return TN_OK;
}

static tn_code parse_root(json_t *root, uint64_t data_size, tn_layout *layout, uint64_t **file_offset,
                          char **meta_json, tn_err *err) {
    const char *key;
    json_t *v;
    tn_code code;

    json_object_foreach(root, key, v) {
        if (strcmp(key, META_KEY) == 0)
            code = check_meta(v, err);
        else
            code = parse_tensor(key, v, data_size, layout, err);
        if (code != TN_OK)
            return code;
    }
    if ((code = tn_layout_seal(layout, err)) != TN_OK ||
        (code = collect_offsets(root, layout, file_offset, err)) != TN_OK ||
        (code = check_cover(layout, *file_offset, data_size, err)) != TN_OK)
        return code;
    v = json_object_get(root, META_KEY);
    if (v != NULL && meta_json != NULL) {
        *meta_json = json_dumps(v, JSON_COMPACT);
        if (*meta_json == NULL)
            return tn_fail(err, TN_ENOMEM, "out of memory for \"" META_KEY "\"");
    }
    return TN_OK;
}

tn_code tn_st_parse_header(const char *json, size_t n, uint64_t data_size, tn_layout *layout,
                           uint64_t **file_offset, char **meta_json, tn_err *err) {
    json_error_t why;
    json_t *root = NULL;
    tn_code code;

    tn_layout_init(layout);
    *file_offset = NULL;
    if (meta_json != NULL)
        *meta_json = NULL;
    if (n > TN_ST_MAX_HEADER)
        return tn_fail(err, TN_ETOOBIG, "a header of %zu bytes; at most %u are allowed", n, TN_ST_MAX_HEADER);
    if (n == 0 || json[0] != '{')
        return tn_fail(err, TN_EPROTO, "the header does not begin with '{'");
    root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return tn_fail(err, TN_EPROTO, "the header is not JSON: %s at byte %d", why.text, why.position);
    code = parse_root(root, data_size, layout, file_offset, meta_json, err);
    json_decref(root);
    if (code != TN_OK) {
        tn_layout_release(layout);
        free(*file_offset);
        *file_offset = NULL;
    }
    return code;
}

/* The header's length and text; *data_at is where the data begin. */
static tn_code read_header(int fd, const char *path, uint64_t size, char **json, size_t *n, uint64_t *data_at,
                           tn_err *err) {
    uint8_t raw[LENGTH_SIZE];
    tn_rd rd = tn_rd_init(raw, sizeof(raw));
    uint64_t len;
    tn_code code;

    if (size < LENGTH_SIZE)
        return tn_fail(err, TN_EPROTO, "a file of %" PRIu64 " bytes is no .safetensors file", size);
    if ((code = tni_read_at(fd, path, raw, sizeof(raw), 0, err)) != TN_OK)
        return code;
    len = tn_rd_u64(&rd);
    if (len > TN_ST_MAX_HEADER)
        return tn_fail(err, TN_ETOOBIG, "a header of %" PRIu64 " bytes; at most %u are allowed", len,
                       TN_ST_MAX_HEADER);
    if (len > size - LENGTH_SIZE)
        return tn_fail(err, TN_EPROTO, "a header of %" PRIu64 " bytes in a file of %" PRIu64, len, size);
    *json = malloc((size_t)len + 1);
    if (*json == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for a header of %" PRIu64 " bytes", len);
    *n = (size_t)len;
    *data_at = LENGTH_SIZE + len;
    return tni_read_at(fd, path, *json, *n, LENGTH_SIZE, err);
}

tn_code tn_st_read(const char *path, tn_layout *layout, uint8_t **block, char **meta_json, tn_err *err) {
    tn_err local;
    char *json = NULL;
    uint64_t *file_offset = NULL;
    uint64_t size, data_at = 0;
    size_t n = 0;
    int fd = -1;
    tn_code code;

    if (err == NULL)
        err = &local;
    tn_layout_init(layout);
    *block = NULL;
    if (meta_json != NULL)
        *meta_json = NULL;
    if ((code = tni_open_regular(path, &fd, &size, err)) != TN_OK)
        return code;
    if ((code = read_header(fd, path, size, &json, &n, &data_at, err)) != TN_OK ||
        (code = tn_st_parse_header(json, n, size - data_at, layout, &file_offset, meta_json, err)) != TN_OK) {
        tn_ctx(err, "%s", path);
        goto out;
    }
    *block = malloc(layout->nbytes + 1); /* never of size 0 */
    if (*block == NULL) {
        code = tn_fail(err, TN_ENOMEM, "%s: out of memory for a model of %zu bytes", path, layout->nbytes);
        goto out;
    }
    for (size_t i = 0; i < layout->count && code == TN_OK; i++)
        code = tni_read_at(fd, path, *block + layout->entry[i].offset, layout->entry[i].nbytes,
                           data_at + file_offset[i], err);
out:
    close(fd);
    free(json);
    free(file_offset);
    if (code != TN_OK) {
        tn_layout_release(layout);
        free(*block);
        *block = NULL;
        if (meta_json != NULL) {
            free(*meta_json);
            *meta_json = NULL;
        }
    }
    return code;
}

/* ---- Writing ---- */

/* Each returns a new reference, NULL when out of memory. *_new functions of jansson steal the values they
 * are given, and take NULL for a failure. */
static json_t *tensor_json(const tn_layout_entry *e) {
    json_t *v = json_object(), *shape = json_array(), *offsets = json_array();
    int bad = v == NULL || shape == NULL || offsets == NULL;

    for (int i = 0; i < e->ndim && !bad; i++)
        bad = json_array_append_new(shape, json_integer(e->shape[i]));
    bad = bad || json_array_append_new(offsets, json_integer((json_int_t)e->offset)) ||
          json_array_append_new(offsets, json_integer((json_int_t)(e->offset + e->nbytes))) ||
          json_object_set_new(v, "dtype", json_string(tn_dtype_safetensors(e->dtype))) ||
          json_object_set(v, "shape", shape) || json_object_set(v, "data_offsets", offsets);
    json_decref(shape);
    json_decref(offsets);
    if (bad) {
        json_decref(v);
        return NULL;
    }
    return v;
}

static tn_code meta_json_of(const tn_st_meta *meta, size_t n, json_t **out, tn_err *err) {
    *out = json_object();
    if (*out == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for \"" META_KEY "\"");
    if (n > TN_ST_MAX_META)
        return tn_fail(err, TN_EINVAL, "%zu pairs of metadata; at most %d are allowed", n, TN_ST_MAX_META);
    for (size_t i = 0; i < n; i++) {
        const char *key = meta[i].key, *value = meta[i].value;

        if (!tni_utf8_valid(key, strlen(key)) || !tni_utf8_valid(value, strlen(value)))
            return tn_fail(err, TN_EINVAL, "metadata pair %zu is not UTF-8", i);
        if (json_object_get(*out, key) != NULL)
            return tn_fail(err, TN_EINVAL, "the metadata key \"%.64s\" is there twice", key);
        if (json_object_set_new(*out, key, json_string(value)) != 0)
            return tn_fail(err, TN_ENOMEM, "out of memory for \"" META_KEY "\"");
    }
    return TN_OK;
}

/* The header's text, terminated and not yet padded. */
static tn_code header_text(const tn_layout *layout, const tn_st_meta *meta, size_t nmeta, char **text,
                           tn_err *err) {
    json_t *root = json_object(), *pairs = NULL;
    tn_code code = TN_OK;
    int bad = root == NULL;

    *text = NULL;
    if (nmeta != 0 && !bad) { /* first: the order of insertion is the order in the file */
        code = meta_json_of(meta, nmeta, &pairs, err);
        bad = code == TN_OK && json_object_set(root, META_KEY, pairs);
    }
    for (size_t i = 0; i < layout->count && code == TN_OK && !bad; i++) {
        const tn_layout_entry *e = &layout->entry[i];

        if (strcmp(e->name, META_KEY) == 0)
            code = tn_fail(err, TN_EINVAL, "a tensor cannot be called " META_KEY);
        else
            bad = json_object_set_new(root, e->name, tensor_json(e));
    }
    if (code == TN_OK && !bad) {
        *text = json_dumps(root, JSON_COMPACT);
        bad = *text == NULL;
    }
    if (code == TN_OK && bad)
        code = tn_fail(err, TN_ENOMEM, "out of memory for a header of %zu tensors", layout->count);
    json_decref(pairs);
    json_decref(root);
    return code;
}

tn_code tn_st_write(const char *path, const tn_layout *layout, const void *block, const tn_st_meta *meta,
                    size_t nmeta, tn_err *err) {
    static const char spaces[LENGTH_SIZE] = "        ";
    uint8_t raw[LENGTH_SIZE];
    tn_wr wr = tn_wr_fixed(raw, sizeof(raw));
    char *text;
    size_t n = 0, pad = 0;
    tn_code code = header_text(layout, meta, nmeta, &text, err);

    if (code == TN_OK) {
        n = strlen(text);
        pad = (LENGTH_SIZE - n % LENGTH_SIZE) % LENGTH_SIZE;
        tn_wr_u64(&wr, n + pad);
        if (n + pad > TN_ST_MAX_HEADER)
            code = tn_fail(err, TN_ETOOBIG, "a header of %zu bytes; at most %u are allowed", n,
                           TN_ST_MAX_HEADER);
    }
    if (code == TN_OK) {
        const tn_part parts[] = {{raw, sizeof(raw)}, {text, n}, {spaces, pad}, {block, layout->nbytes}};

        code = tn_file_write_atomic(path, parts, sizeof(parts) / sizeof(parts[0]), 0644, err);
    } else if (err != NULL) {
        tn_ctx(err, "%s", path);
    }
    free(text);
    return code;
}

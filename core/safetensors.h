/* Models as .safetensors files (huggingface/safetensors format 1: u64 header length, JSON header, data). */
#ifndef TN_CORE_SAFETENSORS_H
#define TN_CORE_SAFETENSORS_H

#include "core/file.h"
#include "core/layout.h"

#define TN_ST_MAX_HEADER (100u * 1024 * 1024)
#define TN_ST_MAX_META 64

typedef struct tn_st_meta { /* a "__metadata__" pair */
    const char *key, *value;
} tn_st_meta;

/* Reads and checks everything: header bounds, JSON (jansson, duplicates refused), offsets that cover the
 * data exactly once, sizes against shapes, known dtypes. On success *layout is sealed (release it) and
 * *block (free it; never NULL) holds the tensors in the layout's order, whatever order the file had.
 * meta_json may be NULL; else it receives the __metadata__ object as JSON text (free it), or NULL when
 * there is none. The error names the file, the tensor and the rule: TN_EPROTO or TN_ETOOBIG for what the
 * file says, TN_ENOTFOUND and TN_EIO for the disk. On failure everything is empty. Blocks on the disk. */
TN_API tn_code tn_st_read(const char *path, tn_layout *layout, uint8_t **block, char **meta_json, tn_err *err);

/* Atomic and durable (tn_file_write_atomic), mode 0644. The layout is sealed; the block becomes the data
 * part as it is, and the header is padded with spaces so that the data start at a multiple of 8. meta: at
 * most TN_ST_MAX_META pairs of UTF-8 text with keys that differ (TN_EINVAL). */
TN_API tn_code tn_st_write(const char *path, const tn_layout *layout, const void *block, const tn_st_meta *meta,
                           size_t nmeta, tn_err *err);

/* The parser alone, over memory: for tests and fuzzing. Entries come back sealed; file_offset[i] (free it;
 * count entries, never NULL) is where entry i lies in the data part of data_size bytes. */
TN_API tn_code tn_st_parse_header(const char *json, size_t n, uint64_t data_size, tn_layout *layout,
                                  uint64_t **file_offset, char **meta_json, tn_err *err);

#endif

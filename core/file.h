/* Files: whole, atomic, bounded. All functions block on the disk and are thread-safe. */
#ifndef TN_CORE_FILE_H
#define TN_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct tn_part {
    const void *data;
    size_t size;
} tn_part;

/* Writes path.tmp-PID-RANDOM beside path, fsyncs it, renames it over path and fsyncs the folder: after a
 * crash the old or the new content is there, never a part. The n parts are written one after another; mode
 * as open(2). On failure (TN_ENOTFOUND: no such folder; TN_EIO, err->sys says why) the temporary file is
 * gone and the old content intact; only when it is the last step that failed, the folder's fsync, may the
 * new content stand already. */
TN_API tn_code tn_file_write_atomic(const char *path, const tn_part *parts, size_t n, unsigned mode,
                                    tn_err *err);

/* The whole of a regular file in fresh memory (*out, free() it) with a NUL behind it that *size does not count.
 * TN_ENOTFOUND, TN_ETOOBIG over `limit`, TN_EIO. */
TN_API tn_code tn_file_read(const char *path, size_t limit, uint8_t **out, size_t *size, tn_err *err);

/* A read-only mapping of a regular file. Release with tn_map_release (safe on a zeroed one). An empty file
 * maps to size 0. Who truncates a mapped file kills its readers: map only what nobody else writes. */
typedef struct tn_map {
    const uint8_t *data;
    size_t size;
} tn_map;
TN_API tn_code tn_map_file(tn_map *m, const char *path, tn_err *err);
TN_API void tn_map_release(tn_map *m);

/* Makes the folder and its missing parents, mode 0700 for what it makes, and makes that durable. */
TN_API tn_code tn_mkdirs(const char *path, tn_err *err);
TN_API tn_code tn_fsync_dir(const char *path, tn_err *err);

#endif

/* Files: whole, atomic, bounded. All functions block on the disk and are thread-safe. */
#ifndef TN_CORE_FILE_H
#define TN_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* Writes name.tmp-PID-RANDOM beside path, fsyncs it, renames it over path and fsyncs the folder: after a
 * crash the old or the new content is there, never a part. `parts` are written one after another. mode as
 * open(2). */
typedef struct tn_part {
    const void *data;
    size_t size;
} tn_part;
TN_API tn_code tn_file_write_atomic(const char *path, const tn_part *parts, size_t n, unsigned mode,
                                    tn_err *err);
/* The whole file in fresh memory (*out, free() it) with a NUL behind it that *size does not count.
 * TN_ENOTFOUND, TN_ETOOBIG over `limit`, TN_EIO. */
TN_API tn_code tn_file_read(const char *path, size_t limit, uint8_t **out, size_t *size, tn_err *err);
/* A read-only mapping. Release with tn_map_release (safe on a zeroed one). An empty file maps to size 0. */
typedef struct tn_map {
    const uint8_t *data;
    size_t size;
} tn_map;
TN_API tn_code tn_map_file(tn_map *m, const char *path, tn_err *err);
TN_API void tn_map_release(tn_map *m);
/* Makes the folder and its missing parents, mode 0700 for what it makes. */
TN_API tn_code tn_mkdirs(const char *path, tn_err *err);
TN_API tn_code tn_fsync_dir(const char *path, tn_err *err);

#endif

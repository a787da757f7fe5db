/* Shared between the files of core only. */
#ifndef TN_CORE_INTERNAL_H
#define TN_CORE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. NUL bytes are text. */
bool tni_utf8_valid(const void *p, size_t n);

/* Opens a regular file for reading, close-on-exec, without ever blocking in open (a FIFO would). TN_ENOTFOUND,
 * TN_EIO. On success *fd is the caller's to close. */
tn_code tni_open_regular(const char *path, int *fd, uint64_t *size, tn_err *err);
/* Exactly n bytes at `offset`; TN_EIO when the file ends before. `path` is for the message. */
tn_code tni_read_at(int fd, const char *path, void *to, size_t n, uint64_t offset, tn_err *err);

#endif

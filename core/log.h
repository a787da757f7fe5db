/* One line a record to standard error: UTC time, level, area, text. Thread-safe (one write a line).
 *
 *     2026-12-01T05:59:24.123Z info  server  round 3: 10 updates
 *
 * Level from TN_LOG=debug|info|warn|error (default info) or tn_log_level_set, which wins. Control
 * characters in the text are escaped, so that a peer's bytes cannot forge lines; records over about 4,000
 * bytes are cut. */
#ifndef TN_CORE_LOG_H
#define TN_CORE_LOG_H

#include "core/error.h"

typedef enum tn_log_level { TN_LOG_DEBUG, TN_LOG_INFO, TN_LOG_WARN, TN_LOG_ERROR } tn_log_level;

TN_API void tn_log_level_set(tn_log_level level);
TN_API tn_log_level tn_log_level_get(void);
/* area is the part that speaks ("server", "transport"), a constant of ours. */
TN_API void tn_log(tn_log_level level, const char *area, const char *fmt, ...) TN_PRINTF(3, 4);

#endif

/* Time, injected. Everything that waits or measures takes a tn_clock, so that tests can drive it.
 *
 * Durations are int64_t nanoseconds inside and float seconds where a person types them. A deadline is a
 * moment on the same clock, TN_FOREVER for none. Wall-clock time exists for logs and records only. Every
 * function may be called from any thread. */
#ifndef TN_CORE_CLOCK_H
#define TN_CORE_CLOCK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

#define TN_FOREVER INT64_MAX
#define TN_SECOND INT64_C(1000000000)
#define TN_MS INT64_C(1000000)

typedef struct tn_clock {
    int64_t (*now)(void *arg); /* nanoseconds from an arbitrary start, never backwards; any thread */
    void *arg;
} tn_clock;

TN_API extern const tn_clock tn_clock_monotonic;
TN_API int64_t tn_now(void);                               /* of the monotonic clock */
TN_API int64_t tn_deadline_after(int64_t now, int64_t ns); /* saturates at TN_FOREVER; ns may be TN_FOREVER */
TN_API int64_t tn_seconds_to_ns(double seconds);           /* saturates; NaN and negatives give 0 */

/* "2026-12-01T05:59:24.123Z" (UTC). cap >= 32. Returns buf. */
TN_API char *tn_utc_now(char *buf, size_t cap);

/* A condition variable on the monotonic clock (release it with pthread_cond_destroy), and a wait until a
 * deadline on that clock: TN_OK when woken, perhaps spuriously (check the predicate in a loop), or
 * TN_ETIMEDOUT. */
TN_API void tn_cond_init(pthread_cond_t *c);
TN_API tn_code tn_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline);

#endif

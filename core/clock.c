/* The monotonic clock, arithmetic on deadlines that cannot overflow, and waits on condition variables. */
#include "core/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

static int64_t monotonic_now(void *arg) {
    struct timespec ts;

    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * TN_SECOND + (int64_t)ts.tv_nsec;
}

const tn_clock tn_clock_monotonic = {.now = monotonic_now, .arg = NULL};

int64_t tn_now(void) { return monotonic_now(NULL); }

int64_t tn_deadline_after(int64_t now, int64_t ns) {
    int64_t deadline;

    if (now == TN_FOREVER || ns == TN_FOREVER)
        return TN_FOREVER;
    if (__builtin_add_overflow(now, ns, &deadline))
        return ns > 0 ? TN_FOREVER : INT64_MIN;
    return deadline;
}

int64_t tn_seconds_to_ns(double seconds) {
    double ns = seconds * 1e9;

    if (!(ns > 0)) /* NaN too */
        return 0;
    if (ns >= 0x1p63)
        return TN_FOREVER;
    return (int64_t)ns;
}

char *tn_utc_now(char *buf, size_t cap) {
    struct timespec ts;
    struct tm tm;
    size_t used;

    assert(cap >= 32);
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    used = strftime(buf, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf + used, cap - used, ".%03dZ", (int)(ts.tv_nsec / TN_MS));
    return buf;
}

void tn_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    int rc;

    /* On Linux these fail only for arguments that are wrong by construction. */
    rc = pthread_condattr_init(&attr);
    assert(rc == 0);
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    assert(rc == 0);
    rc = pthread_cond_init(c, &attr);
    assert(rc == 0);
    (void)rc;
    pthread_condattr_destroy(&attr);
}

tn_code tn_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline) {
    struct timespec ts;
    int rc;

    if (deadline == TN_FOREVER) {
        rc = pthread_cond_wait(c, m);
    } else {
        int64_t at = deadline < 0 ? 0 : deadline; /* a negative tv_sec is EINVAL, not "in the past" */

        ts.tv_sec = (time_t)(at / TN_SECOND);
        ts.tv_nsec = (long)(at % TN_SECOND);
        rc = pthread_cond_timedwait(c, m, &ts);
    }
    assert(rc == 0 || rc == ETIMEDOUT);
    return rc == ETIMEDOUT ? TN_ETIMEDOUT : TN_OK;
}

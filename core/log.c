/* The log: each record is formatted, escaped and handed to the kernel in one write, so that lines of several
 * threads or processes do not mix. */
#include "core/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

static const char *const level_names[] = {"debug", "info", "warn", "error"};
#define LEVELS (sizeof(level_names) / sizeof(level_names[0]))

static atomic_int threshold = TN_LOG_INFO;
static pthread_once_t env_once = PTHREAD_ONCE_INIT;

static void write_record(tn_log_level level, const char *area, const char *text) {
    char line[4096];
    char when[32];
    size_t used;
    ssize_t rc;

    used = (size_t)snprintf(line, sizeof(line), "%s %-5s %.64s  ", tn_utc_now(when, sizeof(when)),
                            level_names[level], area);
    /* Escape as \n, \r, \t or \xNN: the C0 controls, DEL, and the C1 controls in their UTF-8 form (C2 80..9F),
     * which terminals obey too. The margin keeps room for the longest escape pair and the newline. */
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0' && used < sizeof(line) - 16; p++) {
        bool c1 = p[0] == 0xC2 && p[1] >= 0x80 && p[1] <= 0x9F;

        if (*p == '\n' || *p == '\r' || *p == '\t') {
            line[used++] = '\\';
            line[used++] = *p == '\n' ? 'n' : *p == '\r' ? 'r' : 't';
        } else if (*p < 0x20 || *p == 0x7F) {
            used += (size_t)snprintf(line + used, sizeof(line) - used, "\\x%02x", (unsigned)*p);
        } else if (c1) {
            used += (size_t)snprintf(line + used, sizeof(line) - used, "\\x%02x\\x%02x", (unsigned)p[0],
                                     (unsigned)p[1]);
            p++;
        } else {
            line[used++] = (char)*p;
        }
    }
    line[used++] = '\n';
    do { /* a full pipe or a closed stderr loses the record: there is nowhere to report it */
        rc = write(STDERR_FILENO, line, used);
    } while (rc < 0 && errno == EINTR);
}

static void read_env(void) {
    const char *v = getenv("TN_LOG");
    char text[160];

    if (v == NULL || v[0] == '\0')
        return;
    for (size_t i = 0; i < LEVELS; i++) {
        if (strcmp(v, level_names[i]) == 0) {
            atomic_store(&threshold, (int)i);
            return;
        }
    }
    snprintf(text, sizeof(text), "TN_LOG=%.64s is not a level; use debug, info, warn or error", v);
    write_record(TN_LOG_WARN, "log", text);
}

void tn_log_level_set(tn_log_level level) {
    pthread_once(&env_once, read_env); /* else the variable would later overwrite this */
    atomic_store(&threshold, (int)level);
}

tn_log_level tn_log_level_get(void) {
    pthread_once(&env_once, read_env);
    return (tn_log_level)atomic_load(&threshold);
}

void tn_log(tn_log_level level, const char *area, const char *fmt, ...) {
    char text[4096];
    va_list ap;

    if (level < tn_log_level_get())
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    write_record(level, area, text);
}

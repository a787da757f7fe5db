/* The aggregation server as a library of its two programs: settings, and a run from start to exit.
 *
 * Threads: the transport's I/O threads move bytes and post events; one driver thread, the caller of
 * tn_srv_run, owns everything else (rounds, connections' states, the journal, the model). */
#ifndef TN_SERVER_H
#define TN_SERVER_H

#include <stdio.h>

#include "core/config.h"
#include "fed/fed.h"

/* One field a row of the table in config.c; strings are owned by the settings, NULL when unset. */
typedef struct tn_srv_cfg {
    char *config;
    bool check, version, help;

    tn_cfg_list listen;
    bool insecure;
    int64_t max_connections;
    char *tls_cert, *tls_key, *tls_ca;
    char *enrolled, *identity;

    char *state, *model, *job;
    int64_t keep;
    char *durability; /* "fsync" or "process" */

    int64_t rounds, min_clients, start_clients, clients_per_round;
    double fraction, over_select, deadline, resume_window, wait_timeout;
    char *selection, *aggregator, *dp;
    double dp_budget;
    int64_t seed;

    char *log_level;
} tn_srv_cfg;

/* argv and --config FILE. TN_EINVAL and TN_EUNSUPPORTED: wrong usage, the error names the flag. What is set
 * can be released after a failure too. */
tn_code tn_srv_cfg_load(tn_srv_cfg *cfg, int argc, char **argv, tn_err *err);
void tn_srv_cfg_release(tn_srv_cfg *cfg);
void tn_srv_cfg_help(FILE *to);
/* What can be said without starting: settings that contradict each other, URLs, and every file that is named:
 * readable, well-formed, fitting together. Every failure is wrong usage. */
tn_code tn_srv_cfg_check(const tn_srv_cfg *cfg, tn_err *err);
tn_round_cfg tn_srv_round_cfg(const tn_srv_cfg *cfg);

/* Runs the job to its end. TN_OK: done, or stopped by SIGTERM or SIGINT after the round under way. The caller
 * has one thread; SIGTERM and SIGINT are blocked in it from then on. */
tn_code tn_srv_run(const tn_srv_cfg *cfg, tn_err *err);

#endif

/* The server's settings: one row each, from which flags, the configuration file's keys and --help come. */
#include <libgen.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/safetensors.h"
#include "server/dp.h"

#define F(field) offsetof(tn_srv_cfg, field)
#define SECONDS_MAX 1e9
#define COUNT_MAX 9007199254740992.0 /* 2^53 */

static const tn_cfg_row rows[] = {
    {"config", NULL, "FILE", "settings from an INI file; flags win over it", NULL, TN_CFG_STR, F(config), 0, 0},
    {"check", NULL, NULL, "validate the settings and every file they name, and exit", NULL, TN_CFG_BOOL, F(check), 0, 0},
    {"version", NULL, NULL, "print the version and exit", NULL, TN_CFG_BOOL, F(version), 0, 0},
    {"help", NULL, NULL, "print this and exit", NULL, TN_CFG_BOOL, F(help), 0, 0},
    {"log-level", NULL, "LEVEL", "debug, info, warn or error (default: TN_LOG, or info)", NULL, TN_CFG_STR,
     F(log_level), 0, 0},

    {"listen", "network", "URL", "where clients connect: tls+tcp://HOST:PORT, tcp://HOST:PORT (loopback only, unless "
     "--insecure) or ipc://PATH; port 0 is picked by the kernel; repeatable. The URLs are written to STATE/endpoint",
     NULL, TN_CFG_LIST, F(listen), 0, 0},
    {"insecure", "network", NULL, "allow plain tcp:// beyond loopback addresses", NULL, TN_CFG_BOOL, F(insecure), 0, 0},
    {"max-connections", "network", "N", "connections at once", "10000", TN_CFG_INT, F(max_connections), 1, TN_MAX_CLIENTS},
    {"tls-cert", "network", "FILE", "certificate of the server (PEM)", NULL, TN_CFG_STR, F(tls_cert), 0, 0},
    {"tls-key", "network", "FILE", "its key (PEM)", NULL, TN_CFG_STR, F(tls_key), 0, 0},
    {"tls-ca", "network", "FILE", "the CA that certificates of clients must come from (PEM)", NULL, TN_CFG_STR,
     F(tls_ca), 0, 0},
    {"enrolled", "network", "FILE", "the clients that may take part over TLS (default: `enrolled` beside --tls-ca)",
     NULL, TN_CFG_STR, F(enrolled), 0, 0},
    {"identity", "network", "FILE", "the server's Ed25519 identity (default: STATE/identity, made on the first start)",
     NULL, TN_CFG_STR, F(identity), 0, 0},
    {"http", "network", "URL", "the control plane", NULL, TN_CFG_NOT_BUILT, 0, 0, 0},
    {"parent", "network", "URL", "hierarchies of servers", NULL, TN_CFG_NOT_BUILT, 0, 0, 0},

    {"state", "job", "DIR", "where the job lives: journal, models, spool; a restart with the same one goes on", NULL,
     TN_CFG_STR, F(state), 0, 0},
    {"model", "job", "FILE", "the initial model (.safetensors); needed on the first start", NULL, TN_CFG_STR, F(model), 0, 0},
    {"job", "job", "NAME", "the job's name, told to clients", "default", TN_CFG_STR, F(job), 0, 0},
    {"keep", "job", "N", "committed models to keep, besides round 0", "5", TN_CFG_INT, F(keep), 1, COUNT_MAX},
    {"durability", "job", "HOW", "when an update is acknowledged: `fsync` (it is on the disk) or `process` (it survives "
     "kill -9, not power loss)", "fsync", TN_CFG_STR, F(durability), 0, 0},

    {"rounds", "rounds", "N", "rounds of the job", "10", TN_CFG_INT, F(rounds), 1, COUNT_MAX},
    {"min-clients", "rounds", "N", "reports that a round needs", "2", TN_CFG_INT, F(min_clients), 1, TN_MAX_CLIENTS},
    {"start-clients", "rounds", "N", "clients that the first round waits for (default: --min-clients)", NULL, TN_CFG_INT,
     F(start_clients), 1, TN_MAX_CLIENTS},
    {"clients-per-round", "rounds", "N", "size of a round's cohort (default: all)", NULL, TN_CFG_INT,
     F(clients_per_round), 1, TN_MAX_CLIENTS},
    {"fraction", "rounds", "F", "the same as a share of the clients that are there", NULL, TN_CFG_FLOAT, F(fraction),
     1e-9, 1},
    {"over-select", "rounds", "F", "ask F times as many, and commit when the first have reported", "1", TN_CFG_FLOAT,
     F(over_select), 1, 100},
    {"deadline", "rounds", "SECONDS", "how long a round waits for its cohort", "60", TN_CFG_FLOAT, F(deadline), 1e-3,
     SECONDS_MAX},
    {"resume-window", "rounds", "SECONDS", "how long a broken connection may take to come back", "5", TN_CFG_FLOAT,
     F(resume_window), 0, SECONDS_MAX},
    {"wait-timeout", "rounds", "SECONDS", "give up when too few clients came for that long (default: never)", NULL,
     TN_CFG_FLOAT, F(wait_timeout), 1e-3, SECONDS_MAX},
    {"selection", "rounds", "NAME", "how a cohort is chosen: uniform", "uniform", TN_CFG_STR, F(selection), 0, 0},
    {"seed", "rounds", "N", "of the choice of cohorts", "0", TN_CFG_INT, F(seed), 0, COUNT_MAX},
    {"aggregator", "rounds", "NAME", "how updates become one: fedavg", "fedavg", TN_CFG_STR, F(aggregator), 0, 0},
    {"secagg", "rounds", NULL, "secure aggregation", NULL, TN_CFG_NOT_BUILT, 0, 0, 0},
    {"dp", "privacy", "SPEC", "central differential privacy: clip=C,noise=Z[,delta=D][,quantile=P][,denominator=M]: updates "
     "are clipped to norm C (with quantile: from there on to that quantile of their norms), all count the same, and "
     "their sum gets noise of Z times C. delta: 1e-5; denominator: --clients-per-round or --start-clients", NULL, TN_CFG_STR,
     F(dp), 0, 0},
    {"dp-budget", "privacy", "EPSILON", "stop before epsilon would be more than this", NULL, TN_CFG_FLOAT, F(dp_budget),
     1e-6, 1e6},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

void tn_srv_cfg_release(tn_srv_cfg *cfg) { tn_cfg_release(rows, ROWS, cfg); }

void tn_srv_cfg_help(FILE *to) {
    fprintf(to, "usage: torchnative-server --listen URL --state DIR --model FILE [...]\n\n"
                "Runs the rounds of a federation. Exit codes: 0 done or stopped, 1 failed, 2 wrong usage.\n\n");
    tn_cfg_help(rows, ROWS, to);
}

/* The file with the clients lies where `torchnative-ctl cert` puts it. */
static tn_code default_enrolled(tn_srv_cfg *cfg, tn_err *err) {
    char *copy = NULL;
    int n = 0;

    if (cfg->enrolled != NULL || cfg->tls_ca == NULL)
        return TN_OK;
    copy = strdup(cfg->tls_ca);
    if (copy != NULL)
        n = asprintf(&cfg->enrolled, "%s/enrolled", dirname(copy));
    free(copy);
    if (copy == NULL || n < 0) {
        cfg->enrolled = NULL;
        return tn_fail(err, TN_ENOMEM, "no memory for the settings");
    }
    return TN_OK;
}

tn_code tn_srv_cfg_load(tn_srv_cfg *cfg, int argc, char **argv, tn_err *err) {
    tn_code code = tn_cfg_defaults(rows, ROWS, cfg, err);

    if (code == TN_OK)
        code = tn_cfg_argv(rows, ROWS, cfg, argc, argv, NULL, err);
    if (code == TN_OK && cfg->start_clients == 0)
        cfg->start_clients = cfg->min_clients;
    if (code == TN_OK)
        code = default_enrolled(cfg, err);
    return code;
}

tn_round_cfg tn_srv_round_cfg(const tn_srv_cfg *cfg) {
    return (tn_round_cfg){
        .rounds = (uint64_t)cfg->rounds,
        .start_clients = (uint32_t)cfg->start_clients,
        .min_clients = (uint32_t)cfg->min_clients,
        .clients_per_round = (uint32_t)cfg->clients_per_round,
        .fraction = cfg->fraction,
        .over_select = cfg->over_select,
        .deadline_ns = tn_seconds_to_ns(cfg->deadline),
        .resume_ns = tn_seconds_to_ns(cfg->resume_window),
        .wait_timeout_ns = cfg->wait_timeout > 0 ? tn_seconds_to_ns(cfg->wait_timeout) : TN_FOREVER,
        .notice_ns = NOTICE_NS,
        .seed = (uint64_t)cfg->seed,
    };
}

/* ---- Checks ---- */

static tn_code need_file(const char *flag, const char *path, tn_err *err) {
    if (path == NULL)
        return tn_fail(err, TN_EINVAL, "%s is missing: tls+tcp:// needs --tls-cert, --tls-key and --tls-ca; "
                       "`torchnative-ctl cert init` makes them", flag);
    if (access(path, R_OK) != 0)
        return tn_fail_sys(err, TN_ENOTFOUND, errno, "%s %s cannot be read", flag, path);
    return TN_OK;
}

static tn_code check_urls(const tn_srv_cfg *cfg, bool *tls, tn_err *err) {
    tn_code code = TN_OK;

    *tls = false;
    if (cfg->listen.count == 0)
        return tn_fail(err, TN_EINVAL, "--listen is missing: say where clients connect, as in "
                       "--listen tls+tcp://0.0.0.0:4433");
    for (size_t i = 0; i < cfg->listen.count && code == TN_OK; i++) {
        const char *url = cfg->listen.item[i];

        code = tn_tx_url_check(url, err);
        if (code != TN_OK)
            return tn_ctx(err, "--listen");
        if (strncmp(url, "inproc://", 9) == 0)
            return tn_fail(err, TN_EINVAL, "--listen %s: no other process can connect to that", url);
        if (tn_tx_url_is_tls(url))
            *tls = true;
        else if (!tn_tx_url_is_local(url) && !cfg->insecure)
            return tn_fail(err, TN_EINVAL, "--listen %s is neither encrypted nor a loopback address: use tls+tcp://, "
                           "or allow it with --insecure", url);
    }
    return code;
}

static tn_code check_tls(const tn_srv_cfg *cfg, tn_err *err) {
    tn_roster roster = {NULL, 0};
    tn_tx_dialer *probe = NULL;
    tn_tx_opts opts = {cfg->tls_cert, cfg->tls_key, cfg->tls_ca, NULL};
    tn_code code;

    if ((code = need_file("--tls-cert", cfg->tls_cert, err)) != TN_OK ||
        (code = need_file("--tls-key", cfg->tls_key, err)) != TN_OK ||
        (code = need_file("--tls-ca", cfg->tls_ca, err)) != TN_OK)
        return code;
    /* A dialer takes the same three files as a listener does, and looks at them without opening anything. */
    code = tn_tx_dialer_new(&probe, "tls+tcp://localhost:1", &opts, err);
    tn_tx_dialer_free(probe);
    if (code != TN_OK)
        return code;
    if ((code = need_file("--enrolled", cfg->enrolled, err)) == TN_OK)
        code = tn_roster_load(&roster, cfg->enrolled, err);
    tn_roster_release(&roster);
    return code;
}

static tn_code check_model(const char *path, tn_err *err) {
    tn_layout layout;
    uint8_t *block = NULL;
    tn_code code;

    code = tn_st_read(path, &layout, &block, NULL, err);
    tn_layout_release(&layout);
    free(block);
    return code == TN_OK ? code : tn_ctx(err, "--model");
}

static tn_code check_names(const tn_srv_cfg *cfg, tn_err *err) {
    if (strcmp(cfg->selection, "uniform") != 0)
        return tn_fail(err, TN_EUNSUPPORTED, "--selection %s is not built yet; there is: uniform", cfg->selection);
    if (tn_agg_find(cfg->aggregator) == NULL)
        return tn_fail(err, TN_EUNSUPPORTED, "--aggregator %s is not built yet; there is: fedavg", cfg->aggregator);
    if (strcmp(cfg->durability, "fsync") != 0 && strcmp(cfg->durability, "process") != 0)
        return tn_fail(err, TN_EINVAL, "--durability %s is neither fsync nor process", cfg->durability);
    if (strlen(cfg->job) > 64)
        return tn_fail(err, TN_EINVAL, "--job: the name has %zu bytes; at most 64 are allowed", strlen(cfg->job));
    return TN_OK;
}

static tn_code check_rounds(const tn_srv_cfg *cfg, tn_err *err) {
    tn_round_cfg rounds = tn_srv_round_cfg(cfg);
    tn_round *probe = NULL;
    tn_code code;

    if (cfg->clients_per_round != 0 && cfg->fraction > 0)
        return tn_fail(err, TN_EINVAL, "--clients-per-round and --fraction say the same in two ways: give one");
    if (cfg->clients_per_round != 0 && cfg->clients_per_round < cfg->min_clients)
        return tn_fail(err, TN_EINVAL, "--clients-per-round %lld is less than --min-clients %lld",
                       (long long)cfg->clients_per_round, (long long)cfg->min_clients);
    if (cfg->start_clients < cfg->min_clients)
        return tn_fail(err, TN_EINVAL, "--start-clients %lld is less than --min-clients %lld",
                       (long long)cfg->start_clients, (long long)cfg->min_clients);
    code = tn_round_new(&probe, &rounds, 0, 0, err);
    tn_round_free(probe);
    return code;
}

tn_code tn_srv_cfg_check(const tn_srv_cfg *cfg, tn_err *err) {
    bool tls;
    tn_code code;

    if (cfg->state == NULL)
        return tn_fail(err, TN_EINVAL, "--state is missing: say which folder the job lives in");
    if ((code = check_urls(cfg, &tls, err)) != TN_OK || (code = check_names(cfg, err)) != TN_OK ||
        (code = check_rounds(cfg, err)) != TN_OK || (code = dp_check(cfg, err)) != TN_OK)
        return code;
    if (tls && (code = check_tls(cfg, err)) != TN_OK)
        return code;
    if (cfg->identity != NULL) {
        tn_key key;

        code = tn_key_load(&key, cfg->identity, err);
        tn_key_release(&key);
        if (code != TN_OK)
            return tn_ctx(err, "--identity");
    }
    if (cfg->model != NULL)
        return check_model(cfg->model, err);
    return TN_OK;
}

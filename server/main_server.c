/* torchnative-server: see docs/server.md. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "server/server.h"

enum { DONE = 0, FAILED = 1, USAGE = 2 };

static tn_code set_log_level(const char *name, tn_err *err) {
    static const char *const names[] = {"debug", "info", "warn", "error"};

    for (int i = 0; i < 4 && name != NULL; i++) {
        if (strcmp(name, names[i]) == 0) {
            tn_log_level_set((tn_log_level)i);
            return TN_OK;
        }
    }
    return name == NULL ? TN_OK : tn_fail(err, TN_EINVAL, "--log-level %s is none of debug, info, warn, error", name);
}

static int usage(const tn_err *err) {
    fprintf(stderr, "torchnative-server: %s\n(`torchnative-server --help` lists the flags)\n", err->msg);
    return USAGE;
}

int main(int argc, char **argv) {
    tn_srv_cfg cfg;
    tn_err err = TN_ERR_INIT;
    int exit_code = DONE;

    signal(SIGPIPE, SIG_IGN);
    if (tn_srv_cfg_load(&cfg, argc, argv, &err) != TN_OK) {
        exit_code = usage(&err);
    } else if (cfg.help) {
        tn_srv_cfg_help(stdout);
    } else if (cfg.version) {
        puts("torchnative-server " TN_VERSION);
    } else if (set_log_level(cfg.log_level, &err) != TN_OK || tn_srv_cfg_check(&cfg, &err) != TN_OK) {
        exit_code = usage(&err);
    } else if (cfg.check) {
        puts("the settings are valid");
    } else if (tn_srv_run(&cfg, &err) != TN_OK) {
        fprintf(stderr, "torchnative-server: %s\n", err.msg);
        exit_code = err.code == TN_EINVAL ? USAGE : FAILED;
    }
    tn_srv_cfg_release(&cfg);
    return exit_code;
}

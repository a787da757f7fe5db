/* A complete federated client in C, and some that misbehave.
 *
 *   fed_client --server URL (--id ID | --certs DIR --name NAME) --shard K [--do WHAT --at ROUND]
 *              [--connect-timeout SECONDS] [--pad N]
 *
 * WHAT: die      SIGKILL to itself, with the task in hand
 *       silent   takes the task and never answers
 *       nan      one element is NaN
 *       zero     an update of 0 examples
 *       early    reports for the round to come
 *       twice    sends the same update twice
 *       again    asks for another task instead of reporting
 *       bye      says good-bye with the task in hand
 *
 * Exit: 0 all rounds done, 1 refused or the server is gone, 3 a misbehaviour got another answer than it should. Each
 * task, refusal and notice is a line on stdout: "task ROUND ATTEMPT", "refused CODE TEXT", "notice TEXT", "done ROUND". */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fed/net/net.h"
#include "tests/sim/fed_linear.h"

typedef struct options {
    const char *server, *id, *certs, *name, *what;
    unsigned shard;
    uint64_t at;
    double connect_timeout;
    int64_t pad; /* of the layout to join with; -1: take the server's */
} options;

static char cert[4096], key[4096], ca[4096], identity[4096];

static void notice(void *arg, const char *text) {
    (void)arg;
    printf("notice %s\n", text);
    fflush(stdout);
}

static void fill_cfg(const options *o, tn_client_cfg *cfg) {
    memset(cfg, 0, sizeof(*cfg));
    cfg->url = o->server;
    cfg->client_id = o->id;
    cfg->notice = notice;
    cfg->connect_timeout_ns = tn_seconds_to_ns(o->connect_timeout);
    if (o->certs == NULL)
        return;
    snprintf(cert, sizeof(cert), "%s/%s.pem", o->certs, o->name);
    snprintf(key, sizeof(key), "%s/%s.key", o->certs, o->name);
    snprintf(ca, sizeof(ca), "%s/ca.pem", o->certs);
    snprintf(identity, sizeof(identity), "%s/%s.identity", o->certs, o->name);
    cfg->tls = (tn_tx_opts){cert, key, ca, NULL};
    cfg->identity = identity;
}

/* ---- A round ---- */

static int unexpected(const char *what, tn_code code, const tn_err *err) {
    fprintf(stderr, "fed_client: %s was answered with %s: %s\n", what, tn_code_name(code), err->msg);
    return 3;
}

/* Returns an exit code, or -1 to go on. */
static int run_round(tn_client *c, options *o, tn_msg_task *task, uint8_t *model, uint8_t *delta) {
    const tn_layout *l = tn_client_layout(c);
    const char *what = o->what != NULL && o->at == task->round ? o->what : "";
    tn_metric metric[2] = {{.name = "loss"}, {.name = "odd"}};
    tn_report report = {.examples = EXAMPLES_OF(o->shard), .nmetrics = 2, .metric = metric};
    tn_err err = TN_ERR_INIT;
    tn_code code;

    if (what[0] != '\0')
        o->what = NULL; /* once: the task may come again */
    if (strcmp(what, "die") == 0)
        raise(SIGKILL);
    if (strcmp(what, "silent") == 0)
        for (;;)
            pause();
    if (strcmp(what, "bye") == 0)
        return 0;
    if (strcmp(what, "again") == 0)
        return -1;
    if ((code = tn_client_model(c, task, model, &err)) != TN_OK)
        return code == TN_EROUND ? -1 : unexpected("GET", code, &err);
    memcpy(delta, model, l->nbytes);
    metric[0].value = linear_train(l, delta, o->shard, task->round);
    metric[1].value = o->shard == 1 ? (double)NAN : 1.0;
    tn_delta_make(l, delta, model, delta);
    if (strcmp(what, "nan") == 0)
        memcpy(delta, &(float){NAN}, sizeof(float));
    if (strcmp(what, "zero") == 0)
        report.examples = 0;
    if (strcmp(what, "early") == 0)
        task->round++;
    code = tn_client_submit(c, task, delta, &report, &err);
    if (code == TN_OK && strcmp(what, "twice") == 0)
        code = tn_client_submit(c, task, delta, &report, &err);
    if (code == TN_OK)
        return strcmp(what, "nan") != 0 && strcmp(what, "zero") != 0 && strcmp(what, "early") != 0 ? -1
                                                                                               : unexpected(what, code, &err);
    printf("refused %s %s\n", tn_code_name(code), err.msg);
    fflush(stdout);
    return code == TN_EROUND || code == TN_ENONFINITE || code == TN_EINVAL ? -1 : 1;
}

static int run(tn_client *c, options *o) {
    size_t nbytes = tn_client_layout(c)->nbytes;
    uint8_t *model = malloc(nbytes), *delta = malloc(nbytes);
    tn_err err = TN_ERR_INIT;
    tn_msg_task task;
    int exit_code = model != NULL && delta != NULL ? -1 : 1;

    while (exit_code < 0) {
        if (tn_client_next(c, &task, TN_FOREVER, &err) != TN_OK) {
            fprintf(stderr, "fed_client: %s: %s\n", tn_code_name(err.code), err.msg);
            exit_code = 1;
        } else if (task.kind == TN_TASK_TRAIN) {
            printf("task %" PRIu64 " %" PRIu32 "\n", task.round, task.attempt);
            fflush(stdout);
            exit_code = run_round(c, o, &task, model, delta);
        } else if (task.kind == TN_TASK_FAILED) {
            fprintf(stderr, "fed_client: the job failed: %s\n", task.text);
            exit_code = 1;
        } else {
            exit_code = tn_client_model(c, &task, model, &err) == TN_OK ? 0 : unexpected("GET", err.code, &err);
            printf("done %" PRIu64 "\n", task.round);
        }
    }
    free(model);
    free(delta);
    return exit_code;
}

int main(int argc, char **argv) {
    options o = {.connect_timeout = 30, .pad = -1};
    tn_client_cfg cfg;
    tn_client *c = NULL;
    tn_layout layout;
    tn_err err = TN_ERR_INIT;
    int exit_code = 1;

    tn_layout_init(&layout);
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *flag = argv[i], *value = argv[i + 1];

        if (strcmp(flag, "--server") == 0)
            o.server = value;
        else if (strcmp(flag, "--id") == 0)
            o.id = value;
        else if (strcmp(flag, "--certs") == 0)
            o.certs = value;
        else if (strcmp(flag, "--name") == 0)
            o.name = value;
        else if (strcmp(flag, "--shard") == 0)
            o.shard = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(flag, "--do") == 0)
            o.what = value;
        else if (strcmp(flag, "--at") == 0)
            o.at = strtoull(value, NULL, 10);
        else if (strcmp(flag, "--connect-timeout") == 0)
            o.connect_timeout = strtod(value, NULL);
        else if (strcmp(flag, "--pad") == 0)
            o.pad = strtoll(value, NULL, 10);
        else
            return fprintf(stderr, "fed_client: %s is no flag\n", flag), 2;
    }
    fill_cfg(&o, &cfg);
    if (o.pad >= 0 && linear_layout(&layout, o.pad, &err) != TN_OK)
        goto out;
    if (tn_client_new(&c, &cfg, &err) != TN_OK || tn_client_join(c, o.pad >= 0 ? &layout : NULL, &err) != TN_OK)
        goto out;
    exit_code = run(c, &o);
out:
    if (exit_code != 0 && err.code != TN_OK)
        fprintf(stderr, "fed_client: %s: %s\n", tn_code_name(err.code), err.msg);
    tn_client_free(c);
    tn_layout_release(&layout);
    return exit_code;
}

/* torchnative-ctl dp: what a training spends, how much noise a budget needs, and what a job has spent. Talks
 * to nobody; the ledger is read beside a running server. */
#include "server/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config.h"
#include "privacy/privacy.h"
#include "server/ledger.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define ORDERS_MAX 1000

typedef struct settings {
    double q, sigma, epsilon, delta;
    int64_t steps;
    char *accountant, *orders, *state;
    bool json, help;
} settings;

#define F(field) offsetof(settings, field)
#define COMMON \
    {"q", NULL, "P", "probability with which each participant is in a step, independently; 1: no amplification", \
     "1", TN_CFG_FLOAT, F(q), 0, 1}, \
    {"steps", NULL, "N", "how many steps (rounds)", "1", TN_CFG_INT, F(steps), 1, 1e9}, \
    {"delta", NULL, "D", "the delta, more than 0 and less than 1", NULL, TN_CFG_FLOAT, F(delta), 0, 1}, \
    {"accountant", NULL, "NAME", "rdp, or pld, which is closer to the truth and slower", "rdp", TN_CFG_STR, \
     F(accountant), 0, 0}, \
    {"orders", NULL, "A,B,...", "orders of rdp, each above 1 (default: 156 from 1.1 to 1024)", NULL, TN_CFG_STR, \
     F(orders), 0, 0}, \
    {"json", NULL, NULL, "print for machines", NULL, TN_CFG_BOOL, F(json), 0, 0}, \
    {"help", NULL, NULL, "print this and exit", NULL, TN_CFG_BOOL, F(help), 0, 0}

static const tn_cfg_row epsilon_rows[] = {
    {"sigma", NULL, "S", "noise multiplier: standard deviation of the noise over the clipping norm", NULL,
     TN_CFG_FLOAT, F(sigma), 0, 1e6},
    COMMON,
};
static const tn_cfg_row calibrate_rows[] = {
    {"epsilon", NULL, "E", "the budget", NULL, TN_CFG_FLOAT, F(epsilon), 0, 1e6},
    COMMON,
};

static const tn_cfg_row ledger_rows[] = {
    {"state", NULL, "DIR", "the job's folder", "state", TN_CFG_STR, F(state), 0, 0},
    {"json", NULL, NULL, "print for machines", NULL, TN_CFG_BOOL, F(json), 0, 0},
    {"help", NULL, NULL, "print this and exit", NULL, TN_CFG_BOOL, F(help), 0, 0},
};

static void help(FILE *to) {
    fputs("usage: torchnative-ctl dp epsilon --sigma S --delta D [...]       what was spent\n"
          "       torchnative-ctl dp calibrate --epsilon E --delta D [...]   the noise that a budget needs\n"
          "       torchnative-ctl dp ledger [--state DIR]                    what a job has spent\n\ndp "
          "epsilon\n",
          to);
    tn_cfg_help(epsilon_rows, COUNT(epsilon_rows), to);
    fputs("\ndp calibrate\n", to);
    tn_cfg_help(calibrate_rows, COUNT(calibrate_rows), to);
    fputs("\ndp ledger\n", to);
    tn_cfg_help(ledger_rows, COUNT(ledger_rows), to);
}

static tn_code parse_orders(const char *text, double *orders, size_t *n, tn_err *err) {
    for (*n = 0; *n < ORDERS_MAX;) {
        char *end;

        orders[(*n)++] = strtod(text, &end);
        if (end == text || (*end != ',' && *end != '\0'))
            return tn_fail(err, TN_EINVAL, "--orders: \"%.80s\" does not begin with a number and a comma",
                           text);
        if (*end == '\0')
            return TN_OK;
        text = end + 1;
    }
    return tn_fail(err, TN_EINVAL, "--orders: at most %d", ORDERS_MAX);
}

static tn_code answer(const settings *s, bool calibrate, tn_err *err) {
    tn_dp_step step = {.noise = TN_DP_GAUSSIAN, .q = s->q, .sigma = s->sigma, .count = (uint64_t)s->steps};
    bool pld = strcmp(s->accountant, "pld") == 0;
    tn_dp_accountant how = pld ? TN_DP_PLD : TN_DP_RDP;
    double orders[ORDERS_MAX];
    const double *given = s->orders != NULL ? orders : NULL;
    size_t norders = 0;
    tn_dp_spent spent;
    tn_code code = TN_OK;

    if (!pld && strcmp(s->accountant, "rdp") != 0)
        return tn_fail(err, TN_EINVAL, "--accountant %.40s: there are rdp and pld", s->accountant);
    if (s->delta <= 0)
        return tn_fail(err, TN_EINVAL, "--delta is missing: it must be more than 0 and less than 1");
    if (calibrate ? s->epsilon <= 0 : s->sigma <= 0)
        return tn_fail(err, TN_EINVAL, "--%s is missing: it must be more than 0",
                       calibrate ? "epsilon" : "sigma");
    if (given != NULL && (code = parse_orders(s->orders, orders, &norders, err)) != TN_OK)
        return code;
    if (calibrate && (code = tn_dp_calibrate(how, s->epsilon, s->q, step.count, s->delta, given, norders,
                                             &step.sigma, err)) != TN_OK)
        return code;
    if ((code = tn_dp_epsilon(how, &step, 1, s->delta, given, norders, &spent, err)) != TN_OK)
        return code;
    if (s->json) {
        printf("{\"epsilon\": %.10g, \"delta\": %.10g, \"sigma\": %.10g, \"q\": %.10g, \"steps\": %lld, "
               "\"accountant\": \"%s\"",
               spent.epsilon, s->delta, step.sigma, s->q, (long long)s->steps, s->accountant);
        if (!pld)
            printf(", \"order\": %.10g", spent.order);
        puts("}");
        return TN_OK;
    }
    if (calibrate)
        printf("sigma %.7g: ", step.sigma);
    printf("epsilon %.7g at delta %g (%s", spent.epsilon, s->delta, s->accountant);
    if (!pld)
        printf(", order %.7g", spent.order);
    puts(")");
    return TN_OK;
}

static tn_code show_ledger(const settings *s, tn_err *err) {
    ledger_row last = {0};
    ledger *l = NULL;
    char *path = NULL;
    tn_dp_step *steps = NULL;
    size_t n = 0;
    uint64_t releases = 0;
    bool some = false;
    tn_code code;

    if (asprintf(&path, "%s/state.db", s->state) < 0)
        return tn_fail(err, TN_ENOMEM, "no memory for a path");
    code = ledger_open(&l, path, false, err);
    if (code == TN_OK)
        code = ledger_last(l, &some, &last, err);
    if (code == TN_OK)
        code = ledger_steps(l, &steps, &n, err);
    for (size_t i = 0; i < n; i++)
        releases += steps[i].count;
    if (code == TN_OK && !some)
        code =
            tn_fail(err, TN_ENOTFOUND, "%s has no entry: no model of the job was released with --dp yet", path);
    else if (code == TN_OK && s->json)
        printf("{\"epsilon\": %.10g, \"delta\": %.10g, \"releases\": %llu, \"round\": %llu, \"clip\": %.10g}\n",
               last.epsilon, last.delta, (unsigned long long)releases, (unsigned long long)last.round,
               last.next_clip);
    else if (code == TN_OK)
        printf("epsilon %.7g at delta %g after %llu releases, the last in round %llu; the next clip is %.7g\n",
               last.epsilon, last.delta, (unsigned long long)releases, (unsigned long long)last.round,
               last.next_clip);
    free(steps);
    free(path);
    ledger_close(l);
    return code;
}

static tn_code epsilon_command(const settings *s, tn_err *err) { return answer(s, false, err); }
static tn_code calibrate_command(const settings *s, tn_err *err) { return answer(s, true, err); }

static const struct command {
    const char *name;
    const tn_cfg_row *rows;
    size_t nrows;
    tn_code (*run)(const settings *s, tn_err *err);
} commands[] = {
    {"epsilon", epsilon_rows, COUNT(epsilon_rows), epsilon_command},
    {"calibrate", calibrate_rows, COUNT(calibrate_rows), calibrate_command},
    {"ledger", ledger_rows, COUNT(ledger_rows), show_ledger},
};

static const struct command *find(const char *name) {
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

int ctl_dp(int argc, char **argv) {
    const struct command *c = argc > 1 ? find(argv[1]) : NULL;
    settings s = {.accountant = NULL};
    tn_err err = TN_ERR_INIT;
    tn_code code;

    if (c == NULL) {
        bool asked = argc == 2 && strcmp(argv[1], "--help") == 0;

        if (!asked && argc > 1)
            fprintf(stderr, "torchnative-ctl dp: \"%.80s\" is no command\n", argv[1]);
        help(asked ? stdout : stderr);
        return asked ? TN_CTL_DONE : TN_CTL_USAGE;
    }
    code = tn_cfg_defaults(c->rows, c->nrows, &s, &err);
    if (code == TN_OK)
        code = tn_cfg_argv(c->rows, c->nrows, &s, argc - 1, argv + 1, NULL, &err);
    if (code == TN_OK && s.help)
        help(stdout);
    else if (code == TN_OK)
        code = c->run(&s, &err);
    tn_cfg_release(c->rows, c->nrows, &s);
    if (code == TN_OK)
        return TN_CTL_DONE;
    fprintf(stderr, "torchnative-ctl dp %s: %s\n", c->name, err.msg);
    return code == TN_EINVAL ? TN_CTL_USAGE : TN_CTL_FAILED;
}

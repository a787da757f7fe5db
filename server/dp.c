/* Central differential privacy: --dp and --dp-budget.
 *
 * The server is trusted with updates; what it gives away are models. Before a model is released, the
 * mechanism that it came from is in the ledger, and a round whose mechanism would bring epsilon over the
 * budget does not begin. */
#include "server/dp.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

/* ---- --dp clip=C,noise=Z[,...] ---- */

static const struct option {
    const char *name;
    size_t offset;
} options[] = {
#define O(field) offsetof(dp_settings, field)
    {"clip", O(clip)},
    {"noise", O(noise)},
    {"delta", O(delta)},
    {"quantile", O(quantile)},
    {"denominator", O(denominator)},
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static tn_code parse_one(dp_settings *s, bool *given, const char *item, size_t n, tn_err *err) {
    const char *equals = memchr(item, '=', n);
    size_t name = equals != NULL ? (size_t)(equals - item) : n;
    char number[64], *end;

    for (size_t i = 0; i < OPTIONS; i++) {
        if (strlen(options[i].name) != name || strncmp(options[i].name, item, name) != 0)
            continue;
        if (given[i])
            return tn_fail(err, TN_EINVAL, "--dp: %s is given twice", options[i].name);
        given[i] = true;
        if (equals == NULL || n - name - 1 == 0 || n - name - 1 >= sizeof(number))
            return tn_fail(err, TN_EINVAL, "--dp: %s needs a number, as in %s=1.0", options[i].name,
                           options[i].name);
        memcpy(number, equals + 1, n - name - 1);
        number[n - name - 1] = '\0';
        *(double *)(void *)((char *)s + options[i].offset) = strtod(number, &end);
        if (end == number || *end != '\0')
            return tn_fail(err, TN_EINVAL, "--dp: %s=%s is no number", options[i].name, number);
        return TN_OK;
    }
    return tn_fail(err, TN_EINVAL,
                   "--dp: there is no \"%.*s\"; there are clip, noise, delta, quantile and denominator",
                   (int)(name < 40 ? name : 40), item);
}

static tn_code check_adaptive(dp_settings *s, tn_err *err) {
    s->adaptive = (tn_dp_adaptive){.quantile = s->quantile, .rate = 0.2, .sigma = s->denominator / 20};
    return tn_dp_adaptive_split(&s->adaptive, s->noise, &s->multiplier, err);
}

tn_code dp_parse(dp_settings *s, const tn_srv_cfg *cfg, tn_err *err) {
    bool given[OPTIONS] = {false};
    tn_code code = TN_OK;

    memset(s, 0, sizeof(*s));
    if (cfg->dp == NULL)
        return cfg->dp_budget > 0
                   ? tn_fail(err, TN_EINVAL, "--dp-budget needs --dp: nothing is spent without it")
                   : TN_OK;
    s->on = true;
    s->delta = 1e-5;
    s->quantile = -1;
    s->denominator = (double)(cfg->clients_per_round != 0 ? cfg->clients_per_round : cfg->start_clients);
    s->budget = cfg->dp_budget;
    s->q = 1; /* a cohort is chosen among those who are connected: nobody's part in it is a coin of their own */
    for (const char *item = cfg->dp; code == TN_OK; item += strcspn(item, ",") + 1) {
        size_t n = strcspn(item, ",");

        code = parse_one(s, given, item, n, err);
        if (item[n] == '\0')
            break;
    }
    if (code == TN_OK && (!given[0] || !given[1]))
        code = tn_fail(err, TN_EINVAL, "--dp: %s is missing, as in --dp clip=1.0,noise=1.1",
                       given[0] ? "noise" : "clip");
    s->multiplier = s->noise;
    if (code == TN_OK && s->quantile >= 0)
        code = check_adaptive(s, err);
    return code;
}

/* Epsilon when one more round is added to `steps`, which have room for it. */
static tn_code with_one_more(const dp_settings *s, tn_dp_step *steps, size_t n, double *epsilon, tn_err *err) {
    tn_dp_spent spent;
    tn_code code;

    steps[n] = (tn_dp_step){.noise = TN_DP_DISCRETE_GAUSSIAN, .q = s->q, .sigma = s->noise, .count = 1};
    code = tn_dp_epsilon(TN_DP_RDP, steps, n + 1, s->delta, NULL, 0, &spent, err);
    *epsilon = spent.epsilon;
    return code;
}

tn_code dp_check(const tn_srv_cfg *cfg, tn_err *err) {
    const tn_agg_ops *agg = tn_agg_find(cfg->aggregator);
    tn_dp_step one;
    dp_settings s;
    double epsilon;
    tn_code code = dp_parse(&s, cfg, err);

    if (code != TN_OK || !s.on)
        return code;
    if (agg == NULL || (agg->caps & TN_AGG_LINEAR) == 0)
        return tn_fail(err, TN_EUNSUPPORTED,
                       "--dp needs an aggregator that is a sum of updates; %s is none, so one update "
                       "could change it by more than the noise covers",
                       cfg->aggregator);
    if (!(s.clip > 0 && s.clip <= 1e30))
        return tn_fail(err, TN_EINVAL, "--dp: clip=%g must be more than 0", s.clip);
    if (!(s.denominator > 0 && s.denominator <= 1e9))
        return tn_fail(err, TN_EINVAL, "--dp: denominator=%g must be more than 0", s.denominator);
    if (with_one_more(&s, &one, 0, &epsilon, err) != TN_OK)
        return tn_ctx(err, "--dp");
    if (s.budget > 0 && epsilon > s.budget)
        return tn_fail(err, TN_EINVAL,
                       "--dp-budget %g: one round spends epsilon %.4g at delta %g; more noise spends less "
                       "(torchnative-ctl dp calibrate)",
                       s.budget, epsilon, s.delta);
    return TN_OK;
}

/* ---- A job ---- */

/* A job that is begun with noise goes on with it; one that was begun without has models that no noise
 * covers. */
static tn_code same_as_before(srv *s, tn_err *err) {
    const char *now = s->cfg->dp != NULL ? s->cfg->dp : "none";
    char *before = NULL;
    tn_code code = journal_get(s->journal, "dp", &before, err);

    if (code == TN_OK && before == NULL && s->model->committed == 0)
        code = journal_set(s->journal, "dp", now, err);
    else if (code == TN_OK && strcmp(before != NULL ? before : "none", now) != 0)
        code = tn_fail(err, TN_EINVAL,
                       "--dp %s: the job in --state %s was begun with %s; take another --state for another job",
                       now, s->cfg->state, before != NULL ? before : "none");
    free(before);
    return code;
}

static tn_code next_epsilon(srv *s, double *epsilon, tn_err *err) {
    tn_dp_step *steps;
    size_t n;
    tn_code code = ledger_steps(s->ledger, &steps, &n, err);

    if (code == TN_OK)
        code = with_one_more(&s->dp, steps, n, epsilon, err);
    free(steps);
    return code;
}

tn_code dp_open(srv *s, tn_err *err) {
    char *path = NULL;
    ledger_row last = {0};
    bool some = false;
    tn_dp_grid grid;
    tn_code code;

    if ((code = same_as_before(s, err)) != TN_OK || (code = dp_parse(&s->dp, s->cfg, err)) != TN_OK ||
        !s->dp.on)
        return code;
    if (tn_dp_grid_init(&grid, &s->layout, s->dp.clip, s->dp.multiplier, err) != TN_OK)
        return tn_ctx(err, "--dp");
    if (asprintf(&path, "%s/state.db", s->cfg->state) < 0)
        return tn_fail(err, TN_ENOMEM, "no memory for a path");
    code = ledger_open(&s->ledger, path, true, err);
    if (code == TN_OK)
        code = ledger_last(s->ledger, &some, &last, err);
    free(path);
    s->clip = some ? last.next_clip : s->dp.clip;
    return code;
}

bool dp_exhausted(srv *s) {
    tn_err err = TN_ERR_INIT;
    double epsilon = 0;

    if (!s->dp.on || s->dp.budget <= 0)
        return false;
    if (next_epsilon(s, &epsilon, &err) != TN_OK) {
        tn_log(TN_LOG_ERROR, "server", "%s", err.msg);
        return true;
    }
    if (epsilon <= s->dp.budget)
        return false;
    tn_log(TN_LOG_INFO, "server",
           "the privacy budget is spent: one more round would bring epsilon to %.4g of %g at delta %g", epsilon,
           s->dp.budget, s->dp.delta);
    return true;
}

static tn_code mean(srv *s, const tn_update *u, size_t n, void *out, ledger_row *row, tn_err *err) {
    const void **block = malloc(n * sizeof(*block) + 1);
    uint64_t within = 0;
    tn_dp_grid grid;
    tn_code code;

    if (block == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu updates", n);
    for (size_t i = 0; i < n; i++)
        block[i] = u[i].block;
    code = tn_dp_grid_init(&grid, &s->layout, s->clip, s->dp.multiplier, err);
    if (code == TN_OK)
        code = tn_dp_mean(&grid, &s->layout, block, n, s->dp.denominator, NULL, out, &within, err);
    if (code == TN_OK && s->dp.quantile >= 0)
        code = tn_dp_adapt(&s->dp.adaptive, s->clip, within, n, s->dp.denominator, NULL, &row->next_clip, err);
    free(block);
    return code;
}

tn_code dp_aggregate(srv *s, uint64_t round, const tn_update *u, size_t n, void *into, tn_err *err) {
    ledger_row row = {.round = round,
                      .q = s->dp.q,
                      .noise = s->dp.noise,
                      .clip = s->clip,
                      .next_clip = s->clip,
                      .delta = s->dp.delta};
    tn_update noisy = {.client = "mean", .examples = 1};
    uint8_t *out = malloc(s->layout.nbytes);
    tn_code code = out != NULL ? next_epsilon(s, &row.epsilon, err)
                               : tn_fail(err, TN_ENOMEM, "no memory for a mean of %zu bytes", s->layout.nbytes);

    if (code == TN_OK && s->dp.budget > 0 && row.epsilon > s->dp.budget)
        code =
            tn_fail(err, TN_EINVAL, "the privacy budget is spent: this round would bring epsilon to %.4g of %g",
                    row.epsilon, s->dp.budget);
    if (code == TN_OK)
        code = mean(s, u, n, out, &row, err);
    noisy.block = out;
    if (code == TN_OK)
        code = tn_agg_run(s->agg, &s->layout, &noisy, 1, into, err);
    if (code == TN_OK)
        code = ledger_add(s->ledger, &row, err);
    if (code == TN_OK) {
        s->clip = row.next_clip;
        tn_log(TN_LOG_INFO, "server",
               "round %" PRIu64 ": epsilon %.4g at delta %g spent so far, updates clipped to %.4g", round,
               row.epsilon, row.delta, row.clip);
    }
    free(out);
    return code;
}

void dp_close(srv *s) { ledger_close(s->ledger); }

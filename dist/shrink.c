/* tn_pg_shrink: the survivors of a group agree on who they are (vote.c) and make a group of themselves. Nothing
 * is needed of the store, which may have died with the rank that kept it: the ranks know each other's listeners
 * from the old group, and the new addresses and the new secret are part of what is decided.
 *
 * A group counts as made when all of its members have met in a barrier. If one of them dies before that, the
 * rest shrink again, now as a group of the size that was decided. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/vote.h"

#define DEFAULT_TIMEOUT (30 * TN_SECOND)
#define STEP (100 * TN_MS) /* between two looks at who is there */

static int64_t left(int64_t deadline) {
    int64_t now = tn_now();

    return deadline == TN_FOREVER ? TN_FOREVER : now < deadline ? deadline - now : 0;
}

/* Why there can be no decision, or why there was none in time. Under the lock. */
static tn_code undecided(tn_pg *g, bool hopeless, int64_t began, tn_err *err) {
    bool *set = calloc((size_t)g->size, sizeof(*set));
    char list[160] = "?";
    double took = (double)(tn_now() - began) / 1e9;
    int i, there = 0;

    for (i = 0; set != NULL && i < g->size; i++) {
        set[i] = hopeless ? !tni_vote_lost(g, i) : !tni_vote_lost(g, i) && !tni_vote_joined(g, i);
        there += set[i];
    }
    if (set != NULL)
        tni_rank_list(list, sizeof(list), set, g->size);
    free(set);
    if (hopeless)
        return tn_fail(
            err, TN_EPEER,
            "shrink of group '%s' failed after %.3f s: only %s of %d can be reached, which is no "
            "majority%s; the others may go on without us. Only the option for minorities overrides this",
            g->name, took, list, g->size,
            2 * there == g->size ? " (of two halves the one with rank 0 goes on)" : "");
    if (there == 0)
        return tn_fail(err, TN_ETIMEDOUT, "shrink of group '%s': no decision within %.3f s", g->name, took);
    return tn_fail(
        err, TN_ETIMEDOUT,
        "shrink of group '%s': no decision within %.3f s, for want of %s, which %s there but did not "
        "shrink",
        g->name, took, list, there == 1 ? "is" : "are");
}

/* Waits for the decision. */
static tn_code agree(tn_pg *g, const char *url, bool minority, int64_t deadline, tni_verdict *out,
                     tn_err *err) {
    int64_t began = tn_now(), nudge = began + TNI_PATIENCE;
    int64_t patience = tn_deadline_after(began, left(deadline) / 2);
    tni_vote_state state = TNI_VOTE_OPEN;
    tn_code code;
    int i;

    tni_lock(g);
    tni_abort_all(g, TN_ECANCELED, "shrinks the group");
    code = tni_vote_open(g, url, minority, err);
    while (code == TN_OK) {
        int64_t now = tn_now();

        state = tni_vote_tick(g, now, now < patience);
        if (state != TNI_VOTE_OPEN || now >= deadline)
            break;
        for (i = 0; now >= nudge && i < g->size; i++)
            tni_watch_dial_again(tni_link_of(g, i, TNI_VOTE));
        if (now >= nudge)
            nudge = now + TNI_PATIENCE;
        (void)tn_cond_wait_until(&g->wake, &g->lock, now + STEP < deadline ? now + STEP : deadline);
    }
    if (code == TN_OK && state == TNI_VOTE_DECIDED)
        code = tni_vote_verdict(g, out, err);
    else if (code == TN_OK)
        code = undecided(g, state == TNI_VOTE_HOPELESS, began, err);
    if (code != TN_OK && code != TN_EINVAL)
        tni_vote_resign(g);
    tni_unlock(g);
    return code;
}

/* A group of those who were decided on. Takes the listener, which is there already, and its path. */
static tn_code make(const tn_pg *old, const tni_verdict *v, tn_tx_listener *listener, const char *path,
                    tn_pg **out, tn_err *err) {
    tn_pg_opts o = {.name = old->name,
                    .transport = old->transport,
                    .host = old->host,
                    .tls = old->tls,
                    .timeout_ns = old->timeout_ns,
                    .segment = old->segment,
                    .small_max = old->small_max,
                    .check = old->check};
    int rank = -1, i;
    tn_pg *g = NULL;
    tn_code code;

    for (i = 0; i < v->n; i++)
        if (v->rank[i] == old->rank)
            rank = i;
    if (rank < 0)
        code = tn_fail(err, TN_EPEER,
                       "shrink of group '%s': the others went on without this rank, %d, which they could not "
                       "reach or which came too late",
                       old->name, old->rank);
    else
        code = tni_group_new(&g, rank, v->n, &o, err);
    if (code != TN_OK) {
        tn_tx_listener_free(listener);
        if (path[0] != '\0')
            (void)unlink(path);
        return code;
    }
    g->listener = listener;
    snprintf(g->socket_path, sizeof(g->socket_path), "%s", path);
    memcpy(g->cookie, v->cookie, sizeof(g->cookie));
    for (i = 0; i < v->n && code == TN_OK; i++)
        if ((g->addr[i] = strdup(v->url[i])) == NULL)
            code = tn_fail(err, TN_ENOMEM, "no memory to shrink group '%s'", old->name);
    if (code != TN_OK) {
        tni_group_discard(g);
        return code;
    }
    tni_lock(g);
    tni_accept_start(g);
    tni_unlock(g);
    tni_group_enroll(g);
    *out = g;
    return TN_OK;
}

/* One vote and the group that comes of it. */
static tn_code shrink_once(tn_pg *g, bool minority, int64_t deadline, tni_verdict *v, tn_pg **out,
                           tn_err *err) {
    tn_tx_listener *listener = NULL;
    char path[sizeof(g->socket_path)];
    tn_code code = tni_listen(&listener, path, sizeof(path), g, err);

    if (code != TN_OK)
        return code;
    code = agree(g, tn_tx_listener_url(listener), minority, deadline, v, err);
    if (code == TN_OK)
        return make(g, v, listener, path, out, err);
    tn_tx_listener_free(listener);
    if (path[0] != '\0')
        (void)unlink(path);
    return code;
}

/* All have come. Half of the time: the rest is for another vote, should somebody not come. */
static tn_code meet(tn_pg *g, int64_t deadline, tn_err *err) {
    tn_pg_call call = {.timeout_ns = left(deadline) / 2 + 1};
    tn_work *w;
    tn_code code = tn_pg_barrier(g, &call, &w, err);

    if (code == TN_OK) {
        code = tn_work_wait(w, TN_FOREVER, err);
        tn_work_unref(w);
    }
    return code;
}

tn_code tn_pg_shrink(tn_pg *g, const tn_pg_shrink_opts *opts, tn_pg **out, int *ranks, tn_err *err) {
    static const tn_pg_shrink_opts defaults;
    int64_t deadline;
    tn_err local, *e = err != NULL ? err : &local;
    tn_pg *old = g, *next = NULL;
    tn_code code;
    int *names, i;

    if (opts == NULL)
        opts = &defaults;
    if (opts->timeout_ns < 0)
        return tn_fail(e, TN_EINVAL, "a time-out cannot be negative");
    names = calloc((size_t)g->size, sizeof(*names)); /* the first group's ranks by those of `old` */
    if (names == NULL)
        return tn_fail(e, TN_ENOMEM, "no memory to shrink group '%s'", g->name);
    deadline = tn_deadline_after(tn_now(), opts->timeout_ns != 0 ? opts->timeout_ns : DEFAULT_TIMEOUT);
    for (i = 0; i < g->size; i++)
        names[i] = i;
    for (;;) {
        tni_verdict v = {0};

        code = shrink_once(old, opts->minority, deadline, &v, &next, e);
        for (i = 0; code == TN_OK && i < v.n; i++)
            names[i] = names[v.rank[i]]; /* ascending, so nothing is overwritten before it was read */
        tni_verdict_release(&v);
        if (old != g)
            tn_pg_free(old, 0);
        if (code != TN_OK || meet(next, deadline, e) == TN_OK)
            break;
        old = next;
    }
    if (code == TN_OK) {
        *out = next;
        for (i = 0; ranks != NULL && i < next->size; i++)
            ranks[i] = names[i];
    }
    free(names);
    return code;
}

/* Planning a step: decoders first, one row each; then admission; then prompt rows.
 * Invariants: running requests hold blocks (other than window ones) for all their known tokens, so
 * prefill never waits half-way for them; a request may preempt only requests of lower rank, so the
 * first in rank always goes on and nothing starves; the queue's head is never overtaken by one that
 * needs fewer blocks. */
#include "engine/sched.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum mxc_code mxc_sched_init(struct mxc_sched *sched, const struct mxc_engine_options *options,
                             const struct mxc_blocks_options *blocks, struct mxc_err *err) {
    struct mxc_sched s = {.options = *options};
    s.max_queue = options->max_queue + options->max_batch;
    s.queue = mxc_mem_array((size_t)s.max_queue, sizeof *s.queue);
    s.running = mxc_mem_array((size_t)options->max_batch, sizeof *s.running);
    s.items = mxc_mem_array((size_t)options->max_batch, sizeof *s.items);
    enum mxc_code code = MXC_OK;
    *sched = s; /* blocks keep a pointer into it */
    if (!s.queue || !s.running || !s.items)
        code = mxc_err_nomem(err);
    else
        code = mxc_pace_init(&sched->pace, options->stall, options->prefill_rows,
                             options->max_batch, err);
    if (!code)
        code = mxc_blocks_init(&sched->blocks, blocks, err);
    if (code)
        mxc_sched_fini(sched);
    return code;
}

void mxc_sched_fini(struct mxc_sched *sched) {
    mxc_blocks_fini(&sched->blocks);
    mxc_pace_fini(&sched->pace);
    mxc_mem_free(sched->queue);
    mxc_mem_free(sched->running);
    mxc_mem_free(sched->items);
    *sched = (struct mxc_sched){0};
}

/* Whether a goes before b. */
static bool before(const struct mxc_request *a, const struct mxc_request *b) {
    if (a->params.priority != b->params.priority)
        return a->params.priority > b->params.priority;
    return a->id < b->id;
}

static void insert(struct mxc_request **list, int32_t *n, struct mxc_request *r) {
    int32_t at = (*n)++;
    for (; at > 0 && before(r, list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = r;
}

static void erase(struct mxc_request **list, int32_t *n, const struct mxc_request *r) {
    int32_t at = 0;
    while (list[at] != r)
        at++;
    (*n)--;
    memmove(list + at, list + at + 1, (size_t)(*n - at) * sizeof *list);
}

void mxc_sched_queue(struct mxc_sched *sched, struct mxc_request *r) {
    assert(sched->n_queue < sched->max_queue);
    insert(sched->queue, &sched->n_queue, r);
}

void mxc_sched_remove(struct mxc_sched *sched, struct mxc_request *r) {
    if (r->running)
        erase(sched->running, &sched->n_running, r);
    else
        erase(sched->queue, &sched->n_queue, r);
    r->running = false;
    mxc_blocks_release(&sched->blocks, &r->table);
}

static void preempt(struct mxc_sched *s, struct mxc_request *r) {
    mxc_sched_remove(s, r);
    r->stats.n_preempted++;
    s->n_preempted++;
    mxc_sched_queue(s, r);
}

/* Blocks for n_rows more rows of r, at the cost of younger requests if need be. */
static bool make_room(struct mxc_sched *s, struct mxc_request *r, int32_t n_rows) {
    while (!mxc_blocks_extend(&s->blocks, &r->table, r->table.n_tokens + n_rows, true)) {
        struct mxc_request *victim = s->running[s->n_running - 1];
        for (int32_t i = s->n_running - 1; i >= 0; i--) {
            victim = s->running[i];
            if (!victim->scheduled || !before(r, victim))
                break;
        }
        if (victim->scheduled || !before(r, victim))
            return false;
        preempt(s, victim);
    }
    return true;
}

static void add_item(struct mxc_sched *s, struct mxc_request *r, int32_t n_rows) {
    bool out = n_rows == mxc_request_pending(r);
    r->scheduled = true;
    s->items[s->n_items++] = (struct mxc_sched_item){r, n_rows, out};
    s->n_rows += n_rows;
    s->n_out += out;
}

/* A running request that works on its prompt, or recomputes after preemption. */
static bool prefills(const struct mxc_request *r) {
    return mxc_request_pending(r) > 1 || r->n_tokens == r->n_prompt;
}

static void plan_decoders(struct mxc_sched *s) {
    for (int32_t i = 0; i < s->n_running; i++) { /* preemption only shortens the list behind i */
        struct mxc_request *r = s->running[i];
        if (!prefills(r) && make_room(s, r, 1))
            add_item(s, r, 1);
    }
}

/* The oldest running request of the group with the same prompt, or NULL. */
static const struct mxc_request *leader_of(const struct mxc_sched *s, const struct mxc_request *r) {
    for (int32_t i = 0; i < s->n_running && r->params.group; i++)
        if (s->running[i]->params.group == r->params.group &&
            mxc_request_same_prompt(s->running[i], r))
            return s->running[i];
    return NULL;
}

static bool enough_blocks(const struct mxc_sched *s, const struct mxc_request *r) {
    const struct mxc_blocks *b = &s->blocks;
    /* room for those that decode to go on for a block each */
    int32_t reserve = s->n_running;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!b->options.n_blocks[k] || k == MXC_KV_CROSS)
            continue;
        int64_t tokens = (int64_t)r->n_tokens + 1;
        int32_t need = mxc_blocks_of_tokens(tokens < r->limit ? tokens : r->limit);
        if (k == MXC_KV_WINDOW) {
            int32_t most =
                mxc_blocks_of_tokens((int64_t)b->options.window + s->options.max_rows) + 1;
            need = need - r->table.n_behind < most ? need - r->table.n_behind : most;
            need -= r->table.n_blocks[k] - r->table.n_behind;
        } else {
            need -= r->table.n_blocks[k];
        }
        need += r->table.n_tokens % MXC_KV_BLOCK != 0; /* a shared partial block is copied */
        if (need + reserve > mxc_blocks_available(b, (enum mxc_kv_kind)k))
            return false;
    }
    return true;
}

/* Gives r blocks for all its known tokens, shared ones where possible. */
static bool admit_one(struct mxc_sched *s, struct mxc_request *r, const struct mxc_request *leader,
                      uint64_t now_ns) {
    struct mxc_block_source source = mxc_request_source(r);
    int32_t reusable = r->n_tokens - 1; /* one row must run for its logits */
    bool forked = leader && r->n_tokens == r->n_prompt && mxc_request_may_cut(r, reusable) &&
                  mxc_blocks_fork(&s->blocks, &r->table, &leader->table, reusable);
    if (!forked && !r->params.no_cache)
        mxc_blocks_reuse(&s->blocks, &r->table, &source, reusable);
    int32_t cached = r->table.n_tokens;
    if (!enough_blocks(s, r) || !mxc_blocks_extend(&s->blocks, &r->table, r->n_tokens, false) ||
        (r->cross_tokens && !mxc_blocks_take_cross(&s->blocks, &r->table, r->cross_tokens))) {
        mxc_blocks_release(&s->blocks, &r->table);
        return false;
    }
    r->cross_written = false;
    if (!r->admit_ns) {
        r->admit_ns = now_ns;
        r->stats.n_cached = cached;
    }
    return true;
}

static void admit(struct mxc_sched *s, uint64_t now_ns) {
    int32_t n_prefills = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        n_prefills += prefills(s->running[i]);
    for (int32_t i = 0; i < s->n_queue && s->n_running < s->options.max_batch &&
                        n_prefills < s->options.max_prefills;) {
        struct mxc_request *r = s->queue[i];
        const struct mxc_request *leader = leader_of(s, r);
        if (!r->seen || !r->fetched || (leader && prefills(leader))) {
            i++; /* its pictures are not seen yet, its prefix is on its way, or the leader's prompt
                    will be its own: let others go ahead meanwhile */
            continue;
        }
        if (!admit_one(s, r, leader, now_ns))
            break;
        erase(s->queue, &s->n_queue, r);
        r->running = true;
        insert(s->running, &s->n_running, r);
        n_prefills++;
    }
}

/* Most rows of r's prompt up to budget that may be cut there; more than budget, up to most, when
 * rows that belong together do not fit into it. */
static int32_t chunk_of(const struct mxc_request *r, int32_t budget, int32_t most) {
    int32_t done = r->table.n_tokens, pending = mxc_request_pending(r);
    int32_t n = budget < pending ? budget : pending;
    while (n > 0 && !mxc_request_may_cut(r, done + n))
        n--;
    if (n > 0 || budget < 1)
        return n;
    for (n = budget; n <= most && n <= pending; n++)
        if (mxc_request_may_cut(r, done + n))
            return n;
    return 0;
}

static int32_t plan_prompt(struct mxc_sched *s, struct mxc_request *r, int32_t budget) {
    int32_t n = chunk_of(r, budget, s->options.max_rows - s->n_rows);
    if (n < 1 || !make_room(s, r, n))
        return 0;
    add_item(s, r, n);
    return n;
}

/* Shares the prompt rows of the step: the first in rank takes most, a quarter is set aside for the
 * prompt that is nearest to its end, so that a short question does not wait behind a book. */
static void plan_prompts(struct mxc_sched *s) {
    struct mxc_request *first = NULL, *shortest = NULL;
    int32_t budget = s->options.max_rows - s->n_rows;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct mxc_request *r = s->running[i];
        if (r->scheduled || !prefills(r))
            continue;
        if (!first)
            first = r;
        else if (!shortest || mxc_request_pending(r) < mxc_request_pending(shortest))
            shortest = r;
    }
    if (!first)
        return;
    if (s->n_decoders) {
        int32_t most = mxc_pace_rows(&s->pace, s->n_decoders);
        budget = budget < most ? budget : most;
    }
    int32_t aside = 0;
    if (shortest) {
        aside = budget / 4;
        if (mxc_request_pending(shortest) < aside)
            aside = mxc_request_pending(shortest);
    }
    budget -= plan_prompt(s, first, budget - aside);
    if (shortest && shortest->running && budget > 0)
        budget -= plan_prompt(s, shortest, budget);
    for (int32_t i = 0; i < s->n_running && budget > 0; i++)
        if (!s->running[i]->scheduled && prefills(s->running[i]))
            budget -= plan_prompt(s, s->running[i], budget);
}

void mxc_sched_plan(struct mxc_sched *s, uint64_t now_ns) {
    s->n_items = s->n_rows = s->n_out = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        s->running[i]->scheduled = false;
    for (int32_t i = 0; i < s->n_queue; i++)
        s->queue[i]->scheduled = false;
    plan_decoders(s);
    s->n_decoders = s->n_items;
    admit(s, now_ns);
    plan_prompts(s);
}

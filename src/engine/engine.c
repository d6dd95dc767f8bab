/* The engine: inbox (shared, behind one mutex), scheduler, step, sampling, events.
 * Invariants: a request is in exactly one of inbox, queue, running; it is on the live list until
 * its DONE event; the mutex is never held while an event function or the backend runs; a step's
 * failure ends the requests that had rows in it, and nothing else, unless it lost the device: then
 * all of them end, and no other is taken. */
#define _GNU_SOURCE
#include "engine/engine.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/shelving.h"
#include "engine/sight.h"
#include "engine/step.h"

#include <pthread.h>
#include <string.h>

struct mxc_engine {
    struct mxc_engine_target target;
    struct mxc_engine_options options;
    struct mxc_request_limits limits;
    struct mxc_state *state;
    struct mxc_sched sched;
    struct mxc_sight sight;
    struct mxc_shelving shelving;
    struct mxc_step_arrays arrays;
    struct mxc_sample_work work;
    float *logits; /* [max_batch][vocab], or hidden rows [max_rows][hidden] */
    int32_t width; /* of one of its rows */
    float *raw;    /* [vocab] a row before the sampler changes it */

    pthread_mutex_t mutex; /* guards what follows */
    struct mxc_err lost;   /* code: MXC_E_DEVICE_LOST, or none. Written by the stepping thread only,
                              which may read it without the mutex */
    struct mxc_request *inbox, **inbox_end, *live;
    int32_t n_inbox, n_queued; /* n_queued: the scheduler's queue, as of the last step */
    uint64_t next_id;
    struct mxc_engine_stats stats;
};

void mxc_engine_options_init(struct mxc_engine_options *options) {
    *options = (struct mxc_engine_options){.max_rows = 512,
                                           .max_batch = 16,
                                           .max_prefills = 4,
                                           .prefill_rows = 256,
                                           .stall = 2.2,
                                           .max_queue = 64,
                                           .context = 4096,
                                           .feature_bytes = 256 << 20};
}

static int32_t window_of(const struct mxc_graph *graph) {
    int32_t window = 0;
    for (int32_t i = 0; i < graph->n_kvs; i++)
        if (graph->kvs[i].kind == MXC_KV_WINDOW && graph->kvs[i].window > window)
            window = graph->kvs[i].window;
    return window;
}

void mxc_engine_blocks_for(const struct mxc_graph *graph, int32_t context, int32_t n_sequences,
                           int32_t max_rows, int32_t n_blocks[MXC_N_KV_KINDS]) {
    int64_t full = (int64_t)mxc_blocks_of_tokens(context) * n_sequences;
    int64_t window = window_of(graph);
    /* per sequence: the window, which begins and ends inside a block, and one to grow into; once:
     * the rows of a chunk */
    int64_t behind = ((int64_t)mxc_blocks_of_tokens(window) + 3) * n_sequences +
                     mxc_blocks_of_tokens(max_rows) + 1;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = 0;
    /* pictures of each sequence; two when there is one sequence, to compare them */
    int64_t cross =
        (int64_t)mxc_blocks_of_tokens(2 * (int64_t)graph->cross_tokens) * (n_sequences + 1) / 2;
    for (int32_t i = 0; i < graph->n_kvs; i++) {
        int64_t n = graph->kvs[i].kind == MXC_KV_WINDOW  ? behind
                    : graph->kvs[i].kind == MXC_KV_CROSS ? cross
                                                         : full;
        n_blocks[graph->kvs[i].kind] = n < INT32_MAX / 64 ? (int32_t)n : INT32_MAX / 64;
    }
}

/* Rows of the embedding table: mllama's has more than there are logits. */
static int32_t table_rows(const struct mxc_graph *graph) {
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == MXC_OP_EMBED) {
            int64_t rows = graph->weights[graph->nodes[i].weights[0]].shape[0];
            return rows > graph->vocab ? (int32_t)rows : graph->vocab;
        }
    return graph->vocab;
}

static void copy_block(void *user, enum mxc_kv_kind kind, int32_t from, int32_t to) {
    struct mxc_engine *e = user;
    e->target.ops->state_copy(e->state, kind, from, to);
}

static enum mxc_code check_options(const struct mxc_engine_target *target,
                                   const struct mxc_engine_options *o, struct mxc_err *err) {
    bool have[MXC_N_KV_KINDS] = {false};
    for (int32_t i = 0; i < target->graph->n_kvs; i++)
        have[target->graph->kvs[i].kind] = true;
    if (o->max_batch < 1 || o->max_batch > 4096 || o->max_rows <= o->max_batch ||
        o->max_rows > 1 << 20)
        return mxc_err_set(err, MXC_E_ARG,
                           "a step of %d rows and a batch of %d: 1 <= batch < rows is needed",
                           o->max_rows, o->max_batch);
    if (o->max_prefills < 1 || o->prefill_rows < 1 || o->max_queue < 1 || o->max_queue > 1 << 20)
        return mxc_err_set(err, MXC_E_ARG, "prefills %d, prefill rows %d, queue %d: too small",
                           o->max_prefills, o->prefill_rows, o->max_queue);
    if (!(o->stall == 0 || (o->stall > 1 && o->stall < 1e6)))
        return mxc_err_set(err, MXC_E_ARG, "stall %g: 0, or above 1", o->stall);
    if (o->context < (target->admit_whole ? 1 : 2))
        return mxc_err_set(err, MXC_E_ARG, "a context of %d tokens", o->context);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (have[k] != (o->n_blocks[k] > 0))
            return mxc_err_set(err, MXC_E_ARG, "KV kind %d %s, but there are %d blocks", k,
                               have[k] ? "is used" : "is not used", o->n_blocks[k]);
    return MXC_OK;
}

/* No sequence can be longer than the pool; a window pool must hold one sequence at least. */
static enum mxc_code fit_context(struct mxc_engine *e, int32_t window, struct mxc_err *err) {
    const int32_t *n = e->options.n_blocks;
    int64_t context = e->options.context;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (n[k] && k != MXC_KV_WINDOW && k != MXC_KV_CROSS &&
            (int64_t)n[k] * MXC_KV_BLOCK < context)
            context = (int64_t)n[k] * MXC_KV_BLOCK;
    int64_t tokens = (int64_t)window + e->options.max_rows;
    int32_t need = mxc_blocks_of_tokens(tokens < context ? tokens : context) + 1;
    if (n[MXC_KV_WINDOW] && n[MXC_KV_WINDOW] < need)
        return mxc_err_set(err, MXC_E_ARG, "%d window blocks; one sequence needs %d",
                           n[MXC_KV_WINDOW], need);
    e->limits.context = (int32_t)context;
    return MXC_OK;
}

static void init_shelving(struct mxc_engine *e) {
    struct mxc_plan_memory memory = {0};
    if (e->target.ops->plan_memory)
        e->target.ops->plan_memory(e->target.plan, &memory);
    e->shelving = (struct mxc_shelving){.blocks = &e->sched.blocks,
                                        .ops = e->target.ops,
                                        .state = e->state,
                                        .clock = e->options.clock};
    memcpy(e->shelving.block_bytes, memory.kv_block_bytes, sizeof memory.kv_block_bytes);
}

enum mxc_code mxc_engine_new(const struct mxc_engine_target *target,
                             const struct mxc_engine_options *options, struct mxc_engine **engine,
                             struct mxc_err *err) {
    const struct mxc_graph *graph = target->graph;
    enum mxc_code code = check_options(target, options, err);
    if (code)
        return code;
    struct mxc_engine *e = mxc_mem_zalloc(1, sizeof *e);
    if (!e)
        return mxc_err_nomem(err);
    if (pthread_mutex_init(&e->mutex, NULL)) {
        mxc_mem_free(e);
        return mxc_err_nomem(err);
    }
    e->target = *target;
    e->options = *options;
    if (!e->options.clock)
        e->options.clock = mxc_clock_ns;
    e->inbox_end = &e->inbox;
    e->next_id = 1;
    e->limits.vocab = graph->vocab;
    e->limits.table_rows = table_rows(graph);
    e->limits.max_group_rows = options->max_rows - options->max_batch;
    e->limits.admit_whole = target->admit_whole;
    e->limits.feature_width = target->tower ? target->tower_graph->vocab : 0;
    e->limits.cross_tokens = options->n_blocks[MXC_KV_CROSS] * MXC_KV_BLOCK;
    mxc_sight_init(&e->sight, target, e->options.clock, options->feature_bytes);
    struct mxc_blocks_options blocks = {.window = window_of(graph)};
    blocks.copy = copy_block;
    blocks.copy_user = e;
    memcpy(blocks.n_blocks, options->n_blocks, sizeof blocks.n_blocks);
    size_t n_logits = 0;
    if ((code = fit_context(e, blocks.window, err)))
        goto out;
    int32_t n_out = graph->hidden_out ? options->max_rows : options->max_batch;
    e->width = graph->hidden_out ? graph->hidden : graph->vocab;
    if (!mxc_size_mul((size_t)n_out, (size_t)e->width, &n_logits) ||
        !(e->logits = mxc_mem_array(n_logits, sizeof *e->logits)) ||
        !(e->raw = mxc_mem_array((size_t)graph->vocab, sizeof *e->raw))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if ((code = mxc_sched_init(&e->sched, &e->options, &blocks, err)) ||
        (code =
             mxc_step_arrays_init(&e->arrays, options->max_rows, options->max_batch, graph, err)) ||
        (code = mxc_sample_work_init(&e->work, graph->vocab, e->limits.context, err)) ||
        (code = target->ops->state_new(target->plan, options->n_blocks, &e->state, err)))
        goto out;
    init_shelving(e);
    *engine = e;
    e = NULL;
out:
    mxc_engine_free(e);
    return code;
}

enum mxc_code mxc_engine_submit(struct mxc_engine *e, const struct mxc_prompt *prompt,
                                const struct mxc_request_params *params, uint64_t *id,
                                struct mxc_err *err) {
    struct mxc_request *r;
    enum mxc_code code =
        mxc_request_new(&e->limits, e->target.graph, &e->sched.blocks, prompt, params, &r, err);
    if (code)
        return code;
    r->submit_ns = e->options.clock();
    pthread_mutex_lock(&e->mutex);
    int32_t n_waiting = e->n_inbox + e->n_queued;
    if (e->lost.code) {
        code = mxc_err_set(err, e->lost.code, "%s", e->lost.message);
    } else if (n_waiting >= e->options.max_queue) {
        code = mxc_err_set(err, MXC_E_BUSY, "%d requests wait already; the limit is %d", n_waiting,
                           e->options.max_queue);
    } else {
        *id = r->id = e->next_id++;
        *e->inbox_end = r;
        e->inbox_end = &r->next_inbox;
        e->n_inbox++;
        r->next_live = e->live;
        e->live = r;
        e->stats.n_requests++;
        r = NULL;
    }
    pthread_mutex_unlock(&e->mutex);
    mxc_request_free(r);
    if (!code && e->options.wake)
        e->options.wake(e->options.wake_user);
    return code;
}

void mxc_engine_cancel(struct mxc_engine *e, uint64_t id) {
    bool found = false;
    pthread_mutex_lock(&e->mutex);
    for (struct mxc_request *r = e->live; r && !found; r = r->next_live)
        if (r->id == id) {
            atomic_store(&r->cancelled, true);
            found = true;
        }
    pthread_mutex_unlock(&e->mutex);
    if (found && e->options.wake)
        e->options.wake(e->options.wake_user);
}

static void drain(struct mxc_engine *e) {
    pthread_mutex_lock(&e->mutex);
    struct mxc_request *r = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->n_queued += e->n_inbox;
    e->n_inbox = 0;
    pthread_mutex_unlock(&e->mutex);
    for (struct mxc_request *next; r; r = next) {
        next = r->next_inbox;
        mxc_sched_queue(&e->sched, r);
    }
}

static bool emit(struct mxc_request *r, struct mxc_event *event) {
    event->request = r->id;
    return r->params.event(r->params.user, event);
}

/* DONE, and the end of r. */
static void finish(struct mxc_engine *e, struct mxc_request *r, enum mxc_done_reason reason,
                   int32_t stop_id, const struct mxc_err *err) {
    uint64_t now = e->options.clock();
    uint64_t admit = r->admit_ns ? r->admit_ns : now, first = r->first_ns ? r->first_ns : now;
    r->stats.queue_ns = admit - r->submit_ns;
    r->stats.prefill_ns = first - admit;
    r->stats.decode_ns = now - first;
    if (r->table.node >= 0) {
        r->stats.n_kept = r->table.n_nodes * MXC_KV_BLOCK;
        memcpy(r->stats.kept, e->sched.blocks.prefix.nodes[r->table.node].digest,
               sizeof r->stats.kept);
    }
    mxc_sched_remove(&e->sched, r);
    mxc_sight_forget(&e->sight, r);
    pthread_mutex_lock(&e->mutex);
    struct mxc_request **link = &e->live;
    while (*link != r)
        link = &(*link)->next_live;
    *link = r->next_live;
    pthread_mutex_unlock(&e->mutex);
    struct mxc_event event = {.kind = MXC_EVENT_DONE,
                              .reason = reason,
                              .stop_id = stop_id,
                              .err = reason == MXC_DONE_ERROR ? err : NULL,
                              .stats = &r->stats};
    (void)emit(r, &event);
    mxc_request_free(r);
}

/* Ends requests of a list (queue or running set) that were cancelled or are late. */
static void reap(struct mxc_engine *e, struct mxc_request **list, const int32_t *n, bool all) {
    uint64_t now = e->options.clock();
    for (int32_t i = 0; i < *n;) {
        struct mxc_request *r = list[i];
        struct mxc_err err;
        if (all || atomic_load(&r->cancelled)) {
            finish(e, r, MXC_DONE_CANCELLED, -1, NULL);
        } else if (r->params.deadline_ns && now >= r->params.deadline_ns) {
            (void)mxc_err_set(&err, MXC_E_LIMIT, "the request's time is up after %d tokens",
                              r->stats.n_generated);
            finish(e, r, MXC_DONE_ERROR, -1, &err);
        } else {
            i++;
        }
    }
}

/* ---- a lost device */

/* Notes the loss before the first of the requests hears of it. */
static void lose(struct mxc_engine *e, const struct mxc_err *err) {
    if (err->code != MXC_E_DEVICE_LOST || e->lost.code)
        return;
    pthread_mutex_lock(&e->mutex);
    e->lost = *err;
    pthread_mutex_unlock(&e->mutex);
    if (e->options.lost)
        e->options.lost(e->options.lost_user, err);
}

static void fail_all(struct mxc_engine *e) {
    drain(e);
    while (e->sched.n_queue)
        finish(e, e->sched.queue[0], MXC_DONE_ERROR, -1, &e->lost);
    while (e->sched.n_running)
        finish(e, e->sched.running[0], MXC_DONE_ERROR, -1, &e->lost);
}

bool mxc_engine_is_lost(const struct mxc_engine *e) {
    return e->lost.code != MXC_OK;
}

static bool has(const int32_t *ids, int32_t n, int32_t id) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Samples one token of r from its logits; ends r when it is the last. */
static void next_token(struct mxc_engine *e, struct mxc_request *r, float *logits) {
    const struct mxc_request_params *p = &r->params;
    int32_t vocab = e->limits.vocab, id;
    double lse = 0;
    struct mxc_err err;
    if (p->n_logprobs >= 0) {
        if (mxc_logsumexp(logits, vocab, &lse, &err)) {
            finish(e, r, MXC_DONE_ERROR, -1, &err);
            return;
        }
        memcpy(e->raw, logits, (size_t)vocab * sizeof *logits);
    }
    if (mxc_sampler_next(&r->sampler, &e->work, logits, r->tokens, r->n_tokens, &id, &err)) {
        finish(e, r, MXC_DONE_ERROR, -1, &err);
        return;
    }
    if (!r->first_ns)
        r->first_ns = e->options.clock();
    int32_t index = r->stats.n_generated++;
    if (has(p->stop_ids, p->n_stop_ids, id) ||
        (!p->ignore_eos && has(p->eos_ids, p->n_eos_ids, id))) {
        finish(e, r, MXC_DONE_STOP, id, NULL);
        return;
    }
    r->tokens[r->n_tokens++] = id;
    struct mxc_event event = {.kind = MXC_EVENT_TOKEN, .id = id, .index = index, .stop_id = -1};
    if (p->n_logprobs >= 0) {
        event.logprob = mxc_logprob(e->raw, id, lse);
        event.top = r->top;
        event.n_top = p->n_logprobs < vocab ? p->n_logprobs : vocab;
        if (event.n_top)
            mxc_top_logprobs(e->raw, vocab, lse, event.n_top, r->top);
    }
    if (!emit(r, &event))
        finish(e, r, MXC_DONE_STOP, -1, NULL);
    else if (r->n_tokens == r->limit)
        finish(e, r, MXC_DONE_LENGTH, -1, NULL);
}

/* The hidden rows of a step. false: the receiver wants no more. */
static bool deliver(struct mxc_request *r, int32_t row0, int32_t n_rows, const float *rows) {
    struct mxc_event event = {
        .kind = MXC_EVENT_ROWS, .row0 = row0, .n_rows = n_rows, .rows = rows, .stop_id = -1};
    return emit(r, &event);
}

/* What follows a step that went well, for one of its requests. */
static void advance(struct mxc_engine *e, const struct mxc_sched_item *item, float *logits) {
    struct mxc_request *r = item->request;
    struct mxc_block_source source = mxc_request_source(r);
    if (r->params.rows && !deliver(r, r->table.n_tokens, item->n_rows, logits)) {
        finish(e, r, MXC_DONE_STOP, -1, NULL);
        return;
    }
    bool prompt = r->table.n_tokens < r->n_prompt && !r->stats.n_generated;
    mxc_blocks_commit(&e->sched.blocks, &r->table, &source, r->table.n_tokens + item->n_rows);
    if (prompt && r->params.progress && r->table.n_tokens > r->n_reported) {
        r->n_reported = r->table.n_tokens;
        struct mxc_event event = {.kind = MXC_EVENT_PROGRESS,
                                  .n_done = r->table.n_tokens,
                                  .n_total = r->n_prompt,
                                  .n_cached = r->stats.n_cached,
                                  .stop_id = -1};
        if (!emit(r, &event)) {
            finish(e, r, MXC_DONE_STOP, -1, NULL);
            return;
        }
    }
    if (!item->out)
        return;
    if (r->n_tokens < r->limit)
        next_token(e, r, logits);
    else
        finish(e, r, MXC_DONE_LENGTH, -1, NULL);
}

/* Writes the features of a request's pictures into its CROSS store. */
static enum mxc_code write_cross(struct mxc_engine *e, struct mxc_request *r, struct mxc_err *err) {
    for (int32_t i = 0; i < r->n_cross_runs; i++) {
        const struct mxc_embed_run *run = &r->cross_runs[i];
        const struct mxc_feature *f = r->pictures[run->picture].feature;
        enum mxc_code code = e->target.ops->state_put(
            e->state, r->table.blocks[MXC_KV_CROSS], run->row0, run->n_rows,
            f->rows + (size_t)run->feature0 * (size_t)f->width, (size_t)f->width, err);
        if (code)
            return code;
    }
    r->cross_written = true;
    return MXC_OK;
}

static enum mxc_code write_stores(struct mxc_engine *e, struct mxc_err *err) {
    for (int32_t i = 0; i < e->sched.n_items; i++) {
        struct mxc_request *r = e->sched.items[i].request;
        enum mxc_code code = r->cross_tokens && !r->cross_written ? write_cross(e, r, err) : MXC_OK;
        if (code)
            return code;
    }
    return MXC_OK;
}

static void run_plan(struct mxc_engine *e) {
    const struct mxc_backend_ops *ops = e->target.ops;
    struct mxc_sched *s = &e->sched;
    struct mxc_err err;
    uint64_t start = e->options.clock();
    mxc_step_arrays_build(&e->arrays, s);
    struct mxc_out out = {.logits = e->logits};
    enum mxc_code code = write_stores(e, &err);
    if (!code)
        code = ops->run(e->target.plan, e->state, &e->arrays.step, &out, &err);
    float *logits = e->logits;
    if (code)
        lose(e, &err);
    for (int32_t i = 0; i < s->n_items; i++) {
        struct mxc_sched_item item = s->items[i];
        if (code) {
            finish(e, item.request, MXC_DONE_ERROR, -1, &err);
            continue;
        }
        size_t n_out = e->arrays.all_rows ? (size_t)item.n_rows : item.out;
        advance(e, &item, logits);
        logits += n_out * (size_t)e->width;
    }
    mxc_pace_note(&s->pace, s->n_decoders, s->n_rows - s->n_decoders, e->options.clock() - start);
    pthread_mutex_lock(&e->mutex);
    e->stats.n_steps++;
    e->stats.n_failed_steps += code != MXC_OK;
    e->stats.n_rows += (uint64_t)s->n_rows;
    e->stats.n_generated += e->arrays.all_rows ? 0 : (uint64_t)s->n_out;
    pthread_mutex_unlock(&e->mutex);
}

static void take_stats(struct mxc_engine *e) {
    const struct mxc_blocks *b = &e->sched.blocks;
    pthread_mutex_lock(&e->mutex);
    e->n_queued = e->sched.n_queue;
    e->stats.n_running = e->sched.n_running;
    e->stats.n_preempted = e->sched.n_preempted;
    e->stats.n_lookup_tokens = b->n_lookup_tokens;
    e->stats.n_hit_tokens = b->n_hit_tokens;
    e->stats.n_evicted = b->prefix.n_evicted;
    e->stats.n_feature_hits = e->sight.features.n_hits;
    e->stats.n_feature_misses = e->sight.features.n_misses;
    e->stats.feature_bytes = e->sight.features.bytes;
    e->stats.n_shelf_in = e->shelving.n_fetched;
    e->stats.n_shelf_out = e->shelving.n_put;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        e->stats.n_blocks[k] = b->pools[k].n_blocks;
        e->stats.n_free[k] = b->pools[k].n_free;
        e->stats.n_idle[k] = b->pools[k].n_idle;
    }
    pthread_mutex_unlock(&e->mutex);
}

/* A piece of the tower for those that wait for it. */
static void see(struct mxc_engine *e) {
    struct mxc_err err;
    struct mxc_request *failed =
        mxc_sight_step(&e->sight, e->sched.queue, e->sched.n_queue, e->sched.n_running > 0, &err);
    if (failed) {
        lose(e, &err);
        finish(e, failed, MXC_DONE_ERROR, -1, &err);
    }
}

bool mxc_engine_step(struct mxc_engine *e) {
    drain(e);
    reap(e, e->sched.queue, &e->sched.n_queue, false);
    reap(e, e->sched.running, &e->sched.n_running, false);
    if (!mxc_engine_is_lost(e))
        see(e);
    if (!mxc_engine_is_lost(e)) {
        mxc_shelving_fetch(&e->shelving, e->sched.queue, e->sched.n_queue, e->sched.n_running > 0);
        mxc_sched_plan(&e->sched, e->options.clock());
        if (e->sched.n_items)
            run_plan(e);
    }
    if (mxc_engine_is_lost(e))
        fail_all(e);
    bool work = mxc_engine_has_work(e);
    if (!mxc_engine_is_lost(e))
        mxc_shelving_put(&e->shelving, work);
    take_stats(e);
    return work;
}

int32_t mxc_engine_vocab(const struct mxc_engine *e) {
    return e->limits.vocab;
}

bool mxc_engine_has_work(struct mxc_engine *e) {
    pthread_mutex_lock(&e->mutex);
    bool work = e->inbox != NULL;
    pthread_mutex_unlock(&e->mutex);
    return work || e->sched.n_queue || e->sched.n_running;
}

void mxc_engine_get_stats(struct mxc_engine *e, struct mxc_engine_stats *stats) {
    pthread_mutex_lock(&e->mutex);
    *stats = e->stats;
    stats->n_queued = e->n_inbox + e->n_queued;
    pthread_mutex_unlock(&e->mutex);
}

void mxc_engine_clear_cache(struct mxc_engine *e) {
    mxc_prefix_clear(&e->sched.blocks.prefix);
    take_stats(e);
}

/* ---- the shelf */

void mxc_engine_set_shelf(struct mxc_engine *e, const struct mxc_shelf *shelf) {
    bool can = e->target.ops->state_export && e->target.ops->state_import;
    e->shelving.shelf = can ? shelf : NULL;
    e->sched.blocks.prefix.has_shelf = e->shelving.shelf != NULL;
}

bool mxc_engine_shelve(struct mxc_engine *e) {
    bool left = mxc_shelving_put_all(&e->shelving);
    take_stats(e);
    return left;
}

enum mxc_code mxc_engine_kept_record(struct mxc_engine *e, const uint8_t digest[MXC_BLAKE2B_BYTES],
                                     int32_t number, uint8_t **record, size_t *n_bytes,
                                     struct mxc_err *err) {
    const struct mxc_prefix *prefix = &e->sched.blocks.prefix;
    int32_t node = mxc_prefix_by_digest(prefix, digest), above = -number - 1;
    for (int32_t i = node; i >= 0; i = prefix->nodes[i].parent)
        above++;
    if (node < 0 || above < 0)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "the prompt's KV is not in the cache any more");
    for (; above > 0; above--)
        node = prefix->nodes[node].parent;
    return mxc_shelving_record(&e->shelving, node, record, n_bytes, err);
}

enum mxc_code mxc_engine_adopt(struct mxc_engine *e, const uint8_t *record, struct mxc_err *err) {
    enum mxc_code code = mxc_shelving_adopt(&e->shelving, record, err);
    take_stats(e);
    return code;
}

int32_t mxc_engine_forget(struct mxc_engine *e, const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    struct mxc_prefix *prefix = &e->sched.blocks.prefix;
    const struct mxc_shelf *shelf = e->shelving.shelf;
    int32_t node = mxc_prefix_by_digest(prefix, digest);
    for (int32_t i = node; i >= 0 && shelf; i = prefix->nodes[i].parent) {
        const struct mxc_prefix_node *n = &prefix->nodes[i];
        if (n->n_users || n->n_children > (i != node))
            break;
        shelf->forget(shelf->user, n->digest);
    }
    int32_t n = mxc_prefix_forget(prefix, node);
    take_stats(e);
    return n * MXC_KV_BLOCK;
}

void mxc_engine_free(struct mxc_engine *e) {
    if (!e)
        return;
    if (e->state) {                      /* made last: the engine is whole and may hold requests */
        while (mxc_engine_has_work(e)) { /* an event may submit */
            drain(e);
            reap(e, e->sched.queue, &e->sched.n_queue, true);
            reap(e, e->sched.running, &e->sched.n_running, true);
        }
        e->target.ops->state_free(e->state);
    }
    mxc_sight_fini(&e->sight);
    mxc_sched_fini(&e->sched);
    mxc_step_arrays_fini(&e->arrays);
    mxc_sample_work_fini(&e->work);
    mxc_mem_free(e->logits);
    mxc_mem_free(e->raw);
    pthread_mutex_destroy(&e->mutex);
    mxc_mem_free(e);
}

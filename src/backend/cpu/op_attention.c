/* ATTENTION: K rows are normed, rotated and appended with their V rows; then tiles of (token, query
 * head) columns attend to the pages of their KV head. q is normed and rotated where it is used, so
 * the input value stays as it is; a norm over all heads needs only a factor per row, which workers
 * compute first. Over a latent, K is the latent and V its first numbers. A CROSS appends nothing:
 * its pages were filled by state_put.
 *
 * Three ways to share, chosen per step (step.c), all with equal results: a worker appends and
 * attends for KV heads of its own; or pages are appended by their owners, workers meet, and take
 * tiles from a counter; or, few tiles with a long past, they take single chunks, and whoever
 * finishes the last chunk of a tile merges all of them in order. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* One attention op as one worker sees it. */
struct job {
    struct mxc_cpu_worker *worker;
    const struct mxc_plan *plan;
    const struct mxc_step *step;
    const struct mxc_cpu_attention *attention;
    const struct mxc_cpu_class *class;
    const struct mxc_cpu_schedule *schedule;
    const struct mxc_attn_attr *attr;
    const struct mxc_cpu_rope *rope;      /* NULL: none */
    const float *q_norm, *k_norm, *sinks; /* NULL: none */
    const float *q, *k, *v;               /* of row 0, head 0 */
    float *out;
    size_t ld_q, ld_k, ld_out, dim, v_dim; /* v has k's row stride */
    uint8_t *pages;
};

static const float *vector(const struct mxc_plan *plan, const struct mxc_node *node, int i) {
    int32_t weight = node->weights[i];
    return weight == MXC_NONE ? NULL : plan->weights[weight].vector;
}

static struct job make_job(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_plan *plan = run->plan;
    struct job job = {.worker = worker,
                      .plan = plan,
                      .step = run->step,
                      .attention = &plan->attentions[op->attention],
                      .q_norm = vector(plan, op->node, 0)};
    job.attr = &job.attention->attr;
    if (op->node->op == MXC_OP_ATTENTION) {
        job.k_norm = vector(plan, op->node, 1);
        job.sinks = vector(plan, op->node, 2);
    }
    job.class = &plan->classes[job.attention->class_];
    job.schedule = &plan->schedules[job.attention->class_];
    job.rope = job.attr->rope == MXC_NONE ? NULL : &plan->ropes[job.attr->rope];
    job.dim = (size_t)job.attr->head_dim;
    job.v_dim = job.attr->v_dim ? (size_t)job.attr->v_dim : job.dim;
    job.q = mxc_cpu_value(run, op->source, &job.ld_q);
    if (op->residual != MXC_NONE) {
        job.k = job.v = mxc_cpu_value(run, op->residual, &job.ld_k);
    } else {
        job.ld_k = job.ld_q;
        job.k = job.q + (size_t)job.attr->n_heads * job.dim;
        job.v = job.k + (size_t)job.attr->n_kv_heads * job.dim;
    }
    job.out = mxc_cpu_value(run, op->out, &job.ld_out);
    job.pages = mxc_cpu_state_pages(run->state, job.attention, job.class->kind);
    return job;
}

/* ---- norms and rotation */

/* 1 / sqrt(mean(x^2) + eps): lanes of fixed positions, added up in a fixed order. */
static float rms_factor(const float *x, size_t n, float eps) {
    enum { LANES = 16 };
    double lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += (double)x[i + l] * (double)x[i + l];
    for (; i < n; i++)
        lanes[i % LANES] += (double)x[i] * (double)x[i];
    for (size_t l = 0; l < LANES; l++)
        sum += lanes[l];
    return (float)(1.0 / sqrt(sum / (double)n + (double)eps));
}

/* Factors of this worker's rows. */
static void find_factors(const struct job *job) {
    int32_t begin, end;
    float eps = job->attr->qk_norm_eps;
    mxc_cpu_split(job->worker, job->step->n_rows, 1, &begin, &end);
    for (size_t row = (size_t)begin; row < (size_t)end; row++) {
        float *factors = job->plan->row_factors + 2 * row;
        if (job->q_norm)
            factors[0] =
                rms_factor(job->q + row * job->ld_q, (size_t)job->attr->n_heads * job->dim, eps);
        if (job->k_norm)
            factors[1] =
                rms_factor(job->k + row * job->ld_k, (size_t)job->attr->n_kv_heads * job->dim, eps);
    }
    mxc_cpu_barrier(job->worker);
}

/* A head of q (which 0) or k (which 1). */
struct head {
    const float *x, *norm; /* norm NULL: none */
    int32_t row, number, which;
};

static void norm_head(const struct job *job, const struct head *head, float *to) {
    const struct mxc_kernels *kernels = job->plan->kernels;
    const struct mxc_attn_attr *a = job->attr;
    const float *own = head->norm; /* of this head, where heads have weights of their own */
    if (a->qk_norm != MXC_QK_RMS_HEAD)
        own += (size_t)head->number * job->dim;
    switch (a->qk_norm) {
    case MXC_QK_RMS_HEAD:
        kernels->rms_norm(to, head->x, own, a->head_dim, a->qk_norm_eps, a->qk_norm_offset);
        break;
    case MXC_QK_RMS_WHOLE: {
        float factor = job->plan->row_factors[2 * head->row + head->which];
        for (size_t i = 0; i < job->dim; i++)
            to[i] = head->x[i] * factor * (own[i] + a->qk_norm_offset);
        break;
    }
    case MXC_QK_LAYER_HEADS:
        kernels->layer_norm(to, head->x, own, NULL, a->head_dim, a->qk_norm_eps);
        break;
    }
}

/* A head's vector with norm and rotation, in scratch when it needs any. */
static const float *turned(const struct job *job, const struct head *head) {
    if (!head->norm && !job->rope)
        return head->x;
    const struct mxc_kernels *kernels = job->plan->kernels;
    float *to = job->worker->heads;
    if (head->norm)
        norm_head(job, head, to);
    else
        memcpy(to, head->x, job->dim * sizeof *to);
    if (job->rope) {
        size_t at = (size_t)head->row * (size_t)job->rope->half;
        (job->rope->rope->interleaved ? kernels->rope_pairs : kernels->rope_half)(
            to + job->attr->rope_offset, job->rope->cos + at, job->rope->sin + at,
            job->rope->rope->dims);
    }
    return to;
}

/* ---- appending */

static const int32_t *table_of(const struct job *job, int32_t span) {
    return job->plan->span_tables[span * MXC_N_KV_KINDS + (int)job->class->kind];
}

static void append_row(const struct job *job, int32_t span, int32_t row, int32_t head) {
    const struct mxc_span *s = &job->step->spans[span];
    int32_t token = s->context + (row - s->row0);
    struct head k = {.x = job->k + (size_t)row * job->ld_k + (size_t)head * job->dim,
                     .norm = job->k_norm,
                     .row = row,
                     .number = head,
                     .which = 1};
    const float *key = turned(job, &k);
    const float *value =
        job->v == job->k ? key : job->v + (size_t)row * job->ld_k + (size_t)head * job->v_dim;
    uint8_t *page =
        job->pages +
        (size_t)table_of(job, span)[token / MXC_KV_BLOCK] * job->attention->block_bytes +
        (size_t)head * job->attention->page_bytes;
    job->plan->kernels->append[job->plan->kv_type](page, token % MXC_KV_BLOCK, key, value,
                                                   job->attr->head_dim, (int32_t)job->v_dim);
}

/* Every row, for some heads. */
static void append_heads(const struct job *job, int32_t head0, int32_t head1) {
    for (int32_t i = 0; i < job->step->n_spans; i++) {
        const struct mxc_span *span = &job->step->spans[i];
        for (int32_t row = span->row0; row < span->row0 + span->n_rows; row++)
            for (int32_t head = head0; head < head1; head++)
                append_row(job, i, row, head);
    }
}

/* Every head, for the rows of this worker's pages: two workers never write into one page. */
static void append_pages(const struct job *job) {
    for (int32_t i = 0; i < job->step->n_spans; i++) {
        const struct mxc_span *span = &job->step->spans[i];
        for (int32_t row = span->row0; row < span->row0 + span->n_rows; row++) {
            int32_t page = (span->context + (row - span->row0)) / MXC_KV_BLOCK;
            if ((page + i) % job->worker->n != job->worker->id)
                continue;
            for (int32_t head = 0; head < job->attr->n_kv_heads; head++)
                append_row(job, i, row, head);
        }
    }
}

/* One tile of one KV head's group of query heads, ready for the kernels. */
struct group {
    const struct mxc_cpu_tile *tile;
    int32_t first_head; /* query head */
    struct mxc_attend attend;
    int32_t begin[MXC_ATTN_COLUMNS], end[MXC_ATTN_COLUMNS];
};

/* heads counts (KV head, sub) pairs. Prepares q of every column. */
static void make_group(const struct job *job, const struct mxc_cpu_tile *tile, int32_t heads,
                       struct group *group) {
    int32_t per_token = job->class->columns_per_token, kv_head = heads / job->class->n_subs;
    size_t q_bytes = job->dim * (job->plan->kv_type == MXC_KV_F32 ? 4 : 2);
    uint8_t *query = (uint8_t *)job->worker->query;
    group->tile = tile;
    group->first_head = heads * per_token;
    group->attend =
        (struct mxc_attend){.k_dim = job->attr->head_dim,
                            .v_dim = (int32_t)job->v_dim,
                            .n_columns = tile->n_rows * per_token,
                            .q = query,
                            .pages = job->pages + (size_t)kv_head * job->attention->page_bytes,
                            .page_stride = job->attention->block_bytes,
                            .table = table_of(job, tile->span),
                            .begin = group->begin,
                            .end = group->end,
                            .softcap = job->attr->softcap};
    for (int32_t t = 0, c = 0; t < tile->n_rows; t++) {
        int32_t row = tile->row0 + t, begin, end;
        struct head q = {.x = job->q + (size_t)row * job->ld_q +
                              (size_t)group->first_head * job->dim,
                         .norm = job->q_norm,
                         .row = row,
                         .number = group->first_head};
        mxc_cpu_class_keys(job->class, job->step, &job->step->spans[tile->span], row, &begin, &end);
        for (int32_t g = 0; g < per_token; g++, c++, q.x += job->dim, q.number++) {
            group->begin[c] = begin;
            group->end[c] = end;
            job->plan->kernels->prepare_q[job->plan->kv_type](query + (size_t)c * q_bytes,
                                                              turned(job, &q), job->attr->head_dim,
                                                              job->attr->scale);
        }
    }
}

static void finish_group(const struct job *job, const struct group *group,
                         const struct mxc_attn_part *total) {
    const struct mxc_cpu_tile *tile = group->tile;
    int32_t per_token = job->class->columns_per_token, n = group->attend.n_columns;
    float sinks[MXC_ATTN_COLUMNS];
    for (int32_t c = 0; job->sinks && c < n; c++)
        sinks[c] = job->sinks[group->first_head + c % per_token];
    size_t token = (size_t)per_token * job->v_dim;
    float *out =
        job->out + (size_t)tile->row0 * job->ld_out + (size_t)group->first_head * job->v_dim;
    float *to = tile->n_rows == 1 ? out : job->worker->result;
    job->plan->kernels->attn_finish(total, job->sinks ? sinks : NULL, to, job->v_dim, n,
                                    (int32_t)job->v_dim);
    for (size_t t = 0; tile->n_rows > 1 && t < (size_t)tile->n_rows; t++)
        memcpy(out + t * job->ld_out, to + t * token, token * sizeof *out);
}

static void attend_tile(const struct job *job, const struct mxc_cpu_tile *tile, int32_t heads) {
    const struct mxc_kernels *kernels = job->plan->kernels;
    struct mxc_attn_part *part = job->worker->part, *total = job->worker->total;
    struct group group;
    make_group(job, tile, heads, &group);
    kernels->attend[job->plan->kv_type](&group.attend, tile->chunk0 * MXC_ATTN_CHUNK, total);
    for (int32_t chunk = tile->chunk0 + 1; chunk < tile->chunk1; chunk++) {
        kernels->attend[job->plan->kv_type](&group.attend, chunk * MXC_ATTN_CHUNK, part);
        kernels->attn_merge(total, part, false, group.attend.n_columns, group.attend.v_dim);
    }
    finish_group(job, &group, total);
}

static struct mxc_attn_part *part_at(const struct job *job, int32_t item) {
    return (struct mxc_attn_part *)(void *)(job->plan->parts +
                                            (size_t)item * job->plan->part_stride);
}

/* item counts (tile, heads, chunk); chunks of one tile and heads stand together. */
static void attend_chunk(const struct job *job, int32_t item) {
    const struct mxc_cpu_schedule *s = job->schedule;
    const struct mxc_kernels *kernels = job->plan->kernels;
    int32_t t = s->n_tiles - 1;
    while (s->tiles[t].item0 > item)
        t--;
    const struct mxc_cpu_tile *tile = &s->tiles[t];
    int32_t n = tile->chunk1 - tile->chunk0, heads = (item - tile->item0) / n;
    int32_t first = tile->item0 + heads * n;
    struct group group;
    make_group(job, tile, heads, &group);
    kernels->attend[job->plan->kv_type](
        &group.attend, (tile->chunk0 + item - first) * MXC_ATTN_CHUNK, part_at(job, item));
    _Atomic int32_t *pending =
        &job->plan->pending[s->pending0 + t * job->class->n_kv_heads * job->class->n_subs + heads];
    if (atomic_fetch_sub(pending, 1) != 1)
        return;
    struct mxc_attn_part *total = part_at(job, first);
    for (int32_t i = 1; i < n; i++)
        kernels->attn_merge(total, part_at(job, first + i), false, group.attend.n_columns,
                            group.attend.v_dim);
    finish_group(job, &group, total);
    atomic_store(pending, n);
}

static void take_items(const struct job *job, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_schedule *s = job->schedule;
    int32_t turn = 0, item, end;
    while (mxc_cpu_take(job->worker, op->ticket, s->n_items, 1, &turn, &item, &end)) {
        if (s->share_chunks) {
            attend_chunk(job, item);
            continue;
        }
        /* head by head, late tiles first: they have the most keys */
        int32_t tile = s->n_tiles - 1 - item % s->n_tiles;
        attend_tile(job, &s->tiles[tile], item / s->n_tiles);
    }
}

void mxc_cpu_op_attention(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    struct job job = make_job(worker, op);
    bool append_only = op->append_only && !worker->run->step->n_out;
    bool cross = job.class->kind == MXC_KV_CROSS; /* keys are there */
    if (job.attr->qk_norm == MXC_QK_RMS_WHOLE && (job.q_norm || job.k_norm))
        find_factors(&job);
    if (!job.schedule->own_heads) {
        if (!cross)
            append_pages(&job);
        if (append_only)
            return;
        if (!cross)
            mxc_cpu_barrier(worker);
        take_items(&job, op);
        return;
    }
    int32_t head0, head1;
    mxc_cpu_split(worker, job.attr->n_kv_heads, 1, &head0, &head1);
    if (!cross)
        append_heads(&job, head0, head1);
    if (append_only)
        return;
    for (int32_t heads = head0 * job.class->n_subs; heads < head1 * job.class->n_subs; heads++)
        for (int32_t t = 0; t < job.schedule->n_tiles; t++)
            attend_tile(&job, &job.schedule->tiles[t], heads);
}

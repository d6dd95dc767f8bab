/* State: KV pages. Per KV kind one region of [attention node][block][KV head] pages, so that the
 * heads of a block stand together and any block can be copied, taken out or put in alone. An
 * exported block is the pages of every attention node of the kind, in the order of the graph.
 * Memory is zeroed and touched by use only. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"
#include "base/mem.h"

#include <string.h>

enum mxc_code mxc_cpu_state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                                struct mxc_state **out, struct mxc_err *err) {
    struct mxc_state *state = mxc_mem_zalloc(1, sizeof *state);
    if (!state)
        return mxc_err_nomem(err);
    state->plan = plan;
    enum mxc_code code = MXC_OK;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!plan->kv_block_bytes[k])
            continue;
        if (n_blocks[k] < 1) {
            code = mxc_err_set(err, MXC_E_ARG, "KV kind %s needs at least one block, not %d",
                               mxc_kv_kind_name((enum mxc_kv_kind)k), n_blocks[k]);
            goto out;
        }
        size_t bytes;
        if (mxc_size_mul(plan->kv_block_bytes[k], (size_t)n_blocks[k], &bytes))
            state->pages[k] = mxc_mem_aligned(MXC_CPU_HUGE, bytes, false);
        if (!state->pages[k]) {
            code = mxc_err_set(err, MXC_E_NOMEM, "out of memory: %d KV blocks of %zu bytes",
                               n_blocks[k], plan->kv_block_bytes[k]);
            goto out;
        }
        state->bytes[k] = bytes;
        state->n_blocks[k] = n_blocks[k];
    }
    *out = state;
    state = NULL;
out:
    mxc_cpu_state_free(state);
    return code;
}

void mxc_cpu_state_expect(struct mxc_state *state, const struct mxc_step *step) {
    enum { LONG = 256 };
    bool is_long = false;
    for (int32_t i = 0; i < step->n_spans; i++)
        is_long = is_long || step->spans[i].context + step->spans[i].n_rows > LONG;
    if (state->huge || !is_long)
        return;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (state->pages[k])
            mxc_mem_make_huge(state->pages[k], state->bytes[k]);
    state->huge = true;
}

void mxc_cpu_state_free(struct mxc_state *state) {
    if (!state)
        return;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        mxc_mem_free_aligned(state->pages[k], state->bytes[k]);
    mxc_mem_free(state);
}

/* Walks the pages of one block: step by step an attention node's pages and their size. */
static uint8_t *block_pages(const struct mxc_state *state, enum mxc_kv_kind kind, int32_t node,
                            int32_t block, size_t *bytes) {
    const struct mxc_plan *plan = state->plan;
    const struct mxc_cpu_attention *a = &plan->attentions[node];
    if (plan->classes[a->class_].kind != kind)
        return NULL;
    *bytes = a->block_bytes;
    return mxc_cpu_state_pages(state, a, kind) + (size_t)block * a->block_bytes;
}

void mxc_cpu_state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to) {
    if (mxc_kv_block_check(state->n_blocks, kind, from, NULL) ||
        mxc_kv_block_check(state->n_blocks, kind, to, NULL) || from == to)
        return;
    for (int32_t i = 0; i < state->plan->n_attentions; i++) {
        size_t bytes;
        uint8_t *source = block_pages(state, kind, i, from, &bytes);
        if (source)
            memcpy(block_pages(state, kind, i, to, &bytes), source, bytes);
    }
}

/* ---- rows of a CROSS store */

struct put {
    const struct mxc_state *state;
    const int32_t *blocks;
    int32_t token0, n;
    const float *rows;
    size_t ld;
};

static void put_token(const struct put *put, int32_t token, const float *row) {
    const struct mxc_plan *plan = put->state->plan;
    int32_t block = put->blocks[token / MXC_KV_BLOCK];
    for (int32_t i = 0; i < plan->n_attentions; i++) {
        const struct mxc_cpu_attention *a = &plan->attentions[i];
        size_t dim = (size_t)a->attr.head_dim, heads = (size_t)a->attr.n_kv_heads, bytes;
        uint8_t *pages = block_pages(put->state, MXC_KV_CROSS, i, block, &bytes);
        if (!pages)
            continue;
        for (size_t head = 0; head < heads; head++)
            plan->kernels->append[plan->kv_type](pages + head * a->page_bytes, token % MXC_KV_BLOCK,
                                                 row + head * dim, row + (heads + head) * dim,
                                                 a->attr.head_dim, a->attr.head_dim);
        row += 2 * heads * dim;
    }
}

/* Two workers never write into one page. */
static void put_worker(void *arg, int id, int n_workers) {
    const struct put *put = arg;
    for (int32_t i = 0; i < put->n; i++)
        if ((put->token0 + i) / MXC_KV_BLOCK % n_workers == id)
            put_token(put, put->token0 + i, put->rows + (size_t)i * put->ld);
}

enum mxc_code mxc_cpu_state_put(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                                int32_t n, const float *rows, size_t ld, struct mxc_err *err) {
    struct put put = {state, blocks, token0, n, rows, ld};
    enum mxc_code code = mxc_kv_put_check(state->n_blocks, blocks, token0, n, rows, err);
    if (!code && n)
        mxc_team_run(state->plan->backend->team, put_worker, &put);
    return code;
}

enum mxc_code mxc_cpu_state_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   void *bytes, struct mxc_err *err) {
    enum mxc_code code = mxc_kv_block_check(state->n_blocks, kind, block, err);
    uint8_t *to = bytes;
    for (int32_t i = 0; !code && i < state->plan->n_attentions; i++) {
        size_t n;
        const uint8_t *from = block_pages(state, kind, i, block, &n);
        if (!from)
            continue;
        memcpy(to, from, n);
        to += n;
    }
    return code;
}

enum mxc_code mxc_cpu_state_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   const void *bytes, struct mxc_err *err) {
    enum mxc_code code = mxc_kv_block_check(state->n_blocks, kind, block, err);
    const uint8_t *from = bytes;
    for (int32_t i = 0; !code && i < state->plan->n_attentions; i++) {
        size_t n;
        uint8_t *to = block_pages(state, kind, i, block, &n);
        if (!to)
            continue;
        memcpy(to, from, n);
        from += n;
    }
    return code;
}

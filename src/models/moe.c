/* Mixture of experts: reading its keys and writing router, routed experts and shared experts. The
 * experts of a layer come in four spellings, all of which become stacks:
 *   PARENT.experts.N.gate_proj.weight [f, d]        one tensor per expert (Hugging Face)
 *   PARENT.switch_mlp.gate_proj.weight [E, f, d]    stacked (MLX; GGUF files are named so, too)
 *   PARENT.experts.gate_proj.weight [E, f, d]       stacked (gpt-oss by MLX)
 *   PARENT.experts.gate_up_proj [E, 2f, d] or [E, d, 2f]   fused, halves or rows in turn
 * Invariants: numbers are bounded here, with the key's name in the error. */
#include "models/blocks.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_EXPERTS = 4096, MAX_WIDTH = 1 << 23 };

const char *const mxc_moe_keys[] = {"num_local_experts", "num_experts", "n_routed_experts", NULL};

/* The first of the keys (NULL-ended) that is given; needed: one must be. */
static enum mxc_code first_int(const json_t *text, const char *const *keys, int64_t min,
                               int64_t max, int32_t *out, struct mxc_err *err) {
    for (int i = 0; keys[i]; i++) {
        const json_t *v = json_object_get(text, keys[i]);
        if (!v || json_is_null(v))
            continue;
        int64_t n = 0;
        enum mxc_code code = mxc_json_get_int(text, keys[i], min, max, &n, err);
        if (!code)
            *out = (int32_t)n;
        return code;
    }
    return *out ? MXC_OK : mxc_err_set(err, MXC_E_FORMAT, "%s: missing", keys[0]);
}

enum mxc_code mxc_moe_read(const struct mxc_config *config, const struct mxc_hyper *hyper,
                           struct mxc_moe_hyper *moe, struct mxc_err *err) {
    static const char *const top[] = {"num_experts_per_tok", "moe_topk", "experts_per_token", NULL};
    static const char *const width[] = {"moe_intermediate_size", "intermediate_size", NULL};
    const json_t *text = config->text;
    struct mxc_moe_hyper m = {
        .attr = {.act = hyper->act, .scale = 1, .n_groups = 1, .top_groups = 1},
        .parent = "mlp",
        .router = "gate",
        .router_bias = MXC_ABSENT,
        .gate = "gate_proj",
        .up = "up_proj",
        .down = "down_proj",
        .step = 1};
    int64_t first = 0, step = 1;
    enum mxc_code code;
    if ((code = first_int(text, mxc_moe_keys, 1, MAX_EXPERTS, &m.attr.n_experts, err)) ||
        (code = first_int(text, top, 1, MXC_MAX_TOP_EXPERTS, &m.attr.top_k, err)) ||
        (code = first_int(text, width, 1, MAX_WIDTH, &m.attr.width, err)) ||
        (code = mxc_json_get_bool(text, "norm_topk_prob", &m.attr.normalise, err)) ||
        (code = mxc_json_get_int(text, "first_k_dense_replace", 0, INT32_MAX, &first, err)) ||
        (code = mxc_json_get_int(text, "decoder_sparse_step", 1, INT32_MAX, &step, err)))
        return code;
    if (m.attr.top_k > m.attr.n_experts)
        return mxc_err_set(err, MXC_E_FORMAT, "num_experts_per_tok: %d of %d experts", m.attr.top_k,
                           m.attr.n_experts);
    m.first_dense = (int32_t)first;
    m.step = (int32_t)step;
    m.dense = json_object_get(text, "mlp_only_layers");
    if (m.dense && !json_is_null(m.dense) && !json_is_array(m.dense))
        return mxc_err_set(err, MXC_E_FORMAT, "mlp_only_layers: not a list");
    *moe = m;
    return MXC_OK;
}

enum mxc_code mxc_moe_read_groups(const struct mxc_config *config, struct mxc_moe_hyper *moe,
                                  struct mxc_err *err) {
    const json_t *text = config->text;
    int64_t n = 1, top = 1, experts = moe->attr.n_experts;
    double scale = 1;
    enum mxc_code code;
    if ((code = mxc_json_get_int(text, "n_group", 0, experts, &n, err)) ||
        (code = mxc_json_get_int(text, "topk_group", 0, experts, &top, err)) ||
        (code = mxc_json_get_real(text, "routed_scaling_factor", &scale, err)))
        return code;
    n = n ? n : 1;
    top = top ? top : 1;
    if (experts % n || top > n || (n > 1 && experts / n < 2) || moe->attr.top_k > experts / n * top)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "n_group, topk_group: %lld of %lld groups do not go with %d of %lld "
                           "experts",
                           (long long)top, (long long)n, moe->attr.top_k, (long long)experts);
    if (!isfinite(scale) || fabs(scale) > 1e6)
        return mxc_err_set(err, MXC_E_FORMAT, "routed_scaling_factor: %g is out of range", scale);
    moe->attr.n_groups = (int32_t)n;
    moe->attr.top_groups = (int32_t)top;
    moe->attr.scale = (float)scale;
    return MXC_OK;
}

bool mxc_moe_is_dense(const struct mxc_moe_hyper *moe, int32_t layer) {
    if (layer < moe->first_dense || (layer + 1) % moe->step)
        return true;
    size_t i;
    json_t *v;
    json_array_foreach(moe->dense, i, v) {
        if (json_integer_value(v) == layer && json_is_integer(v))
            return true;
    }
    return false;
}

/* ---- weights of the experts */

struct experts {
    const struct mxc_decoder *d;
    const struct mxc_moe_hyper *moe;
    char base[MXC_MAX_WEIGHT_NAME]; /* PREFIXlayers.LAYER.PARENT */
};

static const struct mxc_tensor *find(const struct experts *e, const char *rest) {
    char name[2 * MXC_MAX_WEIGHT_NAME];
    (void)snprintf(name, sizeof name, "%s.%s", e->base, rest);
    return e->d->weights ? mxc_weights_find(e->d->weights, name) : NULL;
}

/* Which module holds stacks named like single linears; NULL: none. */
static const char *stacked_module(const struct experts *e) {
    return find(e, "switch_mlp.down_proj.weight") ? "switch_mlp"
           : find(e, "experts.down_proj.weight")  ? "experts"
                                                  : NULL;
}

/* Whether the fused tensors are [E, in, out]. The shape of gate_up says so, or, when 2 f = d, that
 * of down; a square down follows gate_up. */
static bool is_transposed(const struct experts *e, int64_t f, int64_t d) {
    const struct mxc_tensor *up = find(e, "experts.gate_up_proj"),
                            *down = find(e, "experts.down_proj");
    if (d != 2 * f)
        return up && up->n_dims == 3 && up->shape[1] == d && up->shape[2] == 2 * f;
    return down && down->n_dims == 3 && down->shape[1] == f && down->shape[2] == d;
}

/* Half `part` (0: gate, 1: up, -1: all rows, the down projection) of a tensor [E, rows, in], or
 * [E, in, rows] transposed. */
static int32_t fused(const struct experts *e, const char *module, int part, bool transposed,
                     int64_t out, int64_t in) {
    struct mxc_graph *g = e->d->g;
    int64_t n = e->moe->attr.n_experts, rows = part < 0 ? out : 2 * out;
    bool turns = part >= 0 && e->moe->interleaved;
    int64_t first = part <= 0 ? 0 : turns ? 1 : out, step = turns ? 2 : 1;
    struct mxc_weight weight = {.role = MXC_W_STACK, .n_dims = 3, .shape = {n, out, in}};
    struct mxc_weight_view view = {
        .n_dims = 3, .shape = {n, rows, in}, .stride = rows, .row0 = first, .row_step = step};
    if (transposed)
        view = (struct mxc_weight_view){.n_dims = 3,
                                        .shape = {n, in, rows},
                                        .stride = in,
                                        .col0 = first,
                                        .col_step = step,
                                        .transposed = true};
    return mxc_graph_view(g, &weight, &view, "%s.%s", e->base, module);
}

static int32_t fused_bias(const struct experts *e, const char *module, int part, int64_t out) {
    int64_t n = e->moe->attr.n_experts;
    bool turns = e->moe->interleaved;
    struct mxc_weight weight = {.role = MXC_W_VECTOR, .n_dims = 2, .shape = {n, out}};
    struct mxc_weight_view view = {.n_dims = 2,
                                   .shape = {n, 2 * out},
                                   .stride = 2 * out,
                                   .row0 = !part   ? 0
                                           : turns ? 1
                                                   : out,
                                   .row_step = turns ? 2 : 1};
    return mxc_graph_view(e->d->g, &weight, &view, "%s.%s", e->base, module);
}

static void fused_experts(const struct experts *e, int64_t f, int64_t d,
                          int32_t weights[MXC_N_MOE_WEIGHTS]) {
    bool transposed = is_transposed(e, f, d);
    weights[MXC_MOE_GATE] = fused(e, "experts.gate_up_proj", 0, transposed, f, d);
    weights[MXC_MOE_UP] = fused(e, "experts.gate_up_proj", 1, transposed, f, d);
    weights[MXC_MOE_DOWN] = fused(e, "experts.down_proj", -1, transposed, d, f);
    if (!e->moe->biases)
        return;
    weights[MXC_MOE_GATE_BIAS] = fused_bias(e, "experts.gate_up_proj_bias", 0, f);
    weights[MXC_MOE_UP_BIAS] = fused_bias(e, "experts.gate_up_proj_bias", 1, f);
    weights[MXC_MOE_DOWN_BIAS] =
        mxc_graph_vectors(e->d->g, e->moe->attr.n_experts, d, "%s.experts.down_proj_bias", e->base);
}

static void stacked_experts(const struct experts *e, const char *module, int64_t f, int64_t d,
                            int32_t weights[MXC_N_MOE_WEIGHTS]) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    struct mxc_graph *g = e->d->g;
    int64_t n = e->moe->attr.n_experts;
    for (int i = 0; i < 3; i++) {
        int64_t out = i == 2 ? d : f, in = i == 2 ? f : d;
        weights[MXC_MOE_GATE + i] =
            mxc_graph_stack(g, n, out, in, "%s.%s.%s.weight", e->base, module, names[i]);
        if (e->moe->biases)
            weights[MXC_MOE_GATE_BIAS + i] =
                mxc_graph_vectors(g, n, out, "%s.%s.%s.bias", e->base, module, names[i]);
    }
}

static void single_experts(const struct experts *e, int64_t f, int64_t d,
                           int32_t weights[MXC_N_MOE_WEIGHTS]) {
    struct mxc_graph *g = e->d->g;
    const struct mxc_moe_hyper *m = e->moe;
    int64_t n = m->attr.n_experts;
    weights[MXC_MOE_GATE] = mxc_graph_stack(g, n, f, d, "%s.experts.*.%s.weight", e->base, m->gate);
    weights[MXC_MOE_UP] = mxc_graph_stack(g, n, f, d, "%s.experts.*.%s.weight", e->base, m->up);
    weights[MXC_MOE_DOWN] = mxc_graph_stack(g, n, d, f, "%s.experts.*.%s.weight", e->base, m->down);
}

/* ---- the block */

static int32_t routed(const struct mxc_decoder *d, const struct mxc_moe_hyper *moe, int32_t x) {
    struct experts e = {.d = d, .moe = moe};
    int64_t f = moe->attr.width, hidden = d->h.hidden;
    int32_t weights[MXC_N_MOE_WEIGHTS];
    for (int i = 0; i < MXC_N_MOE_WEIGHTS; i++)
        weights[i] = MXC_NONE;
    (void)snprintf(e.base, sizeof e.base, "%slayers.%d.%s", d->prefix, d->layer, moe->parent);
    const char *module = stacked_module(&e);
    if (module)
        stacked_experts(&e, module, f, hidden, weights);
    else if (find(&e, "experts.gate_up_proj"))
        fused_experts(&e, f, hidden, weights);
    else
        single_experts(&e, f, hidden, weights);
    if (moe->choice)
        weights[MXC_MOE_CHOICE] =
            mxc_graph_vector(d->g, moe->attr.n_experts, "%s.%s", e.base, moe->choice);
    struct mxc_linear_part router =
        mxc_block_part(d, moe->parent, moe->router, moe->attr.n_experts, hidden, moe->router_bias);
    int32_t logits = mxc_graph_linear(d->g, x, 1, &router, 1, MXC_NONE);
    return mxc_graph_moe(d->g, x, logits, &moe->attr, weights);
}

int32_t mxc_block_moe(const struct mxc_decoder *d, const struct mxc_moe_hyper *moe, int32_t x,
                      int32_t residual) {
    int32_t y = routed(d, moe, x);
    if (!moe->shared_width)
        return residual == MXC_NONE ? y : mxc_graph_add(d->g, y, residual);
    char parent[MXC_MAX_WEIGHT_NAME];
    (void)snprintf(parent, sizeof parent, "%s.%s", moe->parent, moe->shared);
    if (!moe->shared_gate) {
        if (residual != MXC_NONE)
            y = mxc_graph_add(d->g, y, residual);
        return mxc_block_glu_of(d, parent, moe->shared_width, x, y);
    }
    struct mxc_linear_part gate =
        mxc_block_part(d, moe->parent, moe->shared_gate, 1, d->h.hidden, MXC_ABSENT);
    int32_t shared = mxc_block_glu_of(d, parent, moe->shared_width, x, MXC_NONE);
    shared = mxc_graph_gate(d->g, shared, mxc_graph_linear(d->g, x, 1, &gate, 1, MXC_NONE));
    y = mxc_graph_add(d->g, y, shared);
    return residual == MXC_NONE ? y : mxc_graph_add(d->g, y, residual);
}

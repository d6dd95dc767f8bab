/* DeepSeek V3 and R1 (and V2 by the same parts): multi-head latent attention in its absorbed form,
 * and routed experts with shared ones. Only the latent (kv_lora_rank numbers) and one rotated key
 * (qk_rope_head_dim) are kept per token: q is taken into the latent's space by the key half of
 * kv_b_proj, and what attention returns from there by its value half.
 *   q [T, H * (nope + rope)] -> per head (latent + rope) -> attention -> per head latent -> v
 * In: a config and the names of the weights. Out: the graph.
 * Source: DeepSeek-V2, arXiv 2405.04434, section 2.1; the choice of experts: V3, 2412.19437, 2.1.2.
 */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>
#include <string.h>

enum { MAX_RANK = 1 << 16 };

struct deepseek {
    struct mxc_moe_hyper moe;
    int64_t q_rank, kv_rank, nope, rope, v; /* q_rank 0: q is projected at once */
    float scale;
};

/* The key (part 0) or value half of kv_b_proj as a stack; conversions have cut it in two already.
 */
static int32_t kv_half(const struct mxc_decoder *d, const struct deepseek *f, bool value) {
    int64_t heads = d->h.n_heads, out = value ? f->v : f->kv_rank,
            in = value ? f->kv_rank : f->nope;
    const char *split = value ? "self_attn.unembed_out.weight" : "self_attn.embed_q.weight";
    if (mxc_block_has(d, split))
        return mxc_graph_stack(d->g, heads, out, in, "%slayers.%d.%s", d->prefix, d->layer, split);
    struct mxc_weight weight = {.role = MXC_W_STACK, .n_dims = 3, .shape = {heads, out, in}};
    struct mxc_weight_view view = {.n_dims = 2,
                                   .shape = {heads * (f->nope + f->v), f->kv_rank},
                                   .stride = f->nope + f->v,
                                   .row0 = value ? f->nope : 0,
                                   .row_step = value ? 1 : 0,
                                   .col_step = 1,
                                   .transposed = !value};
    return mxc_graph_view(d->g, &weight, &view, "%slayers.%d.self_attn.kv_b_proj.weight", d->prefix,
                          d->layer);
}

static int32_t low_rank_norm(const struct mxc_decoder *d, int32_t x, const char *module,
                             int64_t width) {
    int32_t w = mxc_graph_vector(d->g, width, "%slayers.%d.self_attn.%s.weight", d->prefix,
                                 d->layer, module);
    return mxc_graph_rms_norm(d->g, x, w, 1e-6f, 0); /* whatever rms_norm_eps says */
}

static int32_t queries(const struct mxc_decoder *d, const struct deepseek *f, int32_t x) {
    int64_t width = d->h.n_heads * (f->nope + f->rope);
    struct mxc_linear_part p;
    if (!f->q_rank) {
        p = mxc_block_part(d, d->attn, "q_proj", width, d->h.hidden, MXC_ABSENT);
        return mxc_graph_linear(d->g, x, 1, &p, 1, MXC_NONE);
    }
    p = mxc_block_part(d, d->attn, "q_a_proj", f->q_rank, d->h.hidden, d->h.qkv_bias);
    x = mxc_graph_linear(d->g, x, 1, &p, 1, MXC_NONE);
    x = low_rank_norm(d, x, "q_a_layernorm", f->q_rank);
    p = mxc_block_part(d, d->attn, "q_b_proj", width, f->q_rank, MXC_ABSENT);
    return mxc_graph_linear(d->g, x, 1, &p, 1, MXC_NONE);
}

static int32_t attention(const struct mxc_decoder *d, const struct deepseek *f, int32_t x,
                         int32_t residual) {
    int32_t heads = d->h.n_heads, dim = (int32_t)(f->kv_rank + f->rope);
    struct mxc_kv store = {
        .kind = MXC_KV_LATENT, .n_heads = 1, .k_dim = dim, .v_dim = (int32_t)f->kv_rank};
    struct mxc_attn_attr attr = {.n_heads = heads,
                                 .n_kv_heads = 1,
                                 .head_dim = dim,
                                 .v_dim = (int32_t)f->kv_rank,
                                 .scale = f->scale,
                                 .rope = d->rope,
                                 .rope_offset = (int32_t)f->kv_rank,
                                 .kv = mxc_graph_kv(d->g, &store)};
    int32_t q = mxc_graph_heads_linear(d->g, queries(d, f, x), kv_half(d, f, false), heads);
    struct mxc_linear_part p =
        mxc_block_part(d, d->attn, "kv_a_proj_with_mqa", dim, d->h.hidden, d->h.qkv_bias);
    int32_t latent = mxc_graph_linear(d->g, x, 1, &p, 1, MXC_NONE);
    latent = low_rank_norm(d, latent, "kv_a_layernorm", f->kv_rank);
    int32_t y = mxc_graph_latent_attention(d->g, q, latent, &attr);
    y = mxc_graph_heads_linear(d->g, y, kv_half(d, f, true), heads);
    p = mxc_block_part(d, d->attn, "o_proj", d->h.hidden, heads * f->v, d->h.o_bias);
    return mxc_graph_linear(d->g, y, 1, &p, 1, residual);
}

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const struct deepseek *f = d->family;
    x = attention(d, f, mxc_block_norm(d, x, "input_layernorm"), x);
    int32_t y = mxc_block_norm(d, x, "post_attention_layernorm");
    return mxc_moe_is_dense(&f->moe, d->layer) ? mxc_block_glu(d, y, x)
                                               : mxc_block_moe(d, &f->moe, y, x);
}

static enum mxc_code read_dims(const json_t *text, struct deepseek *f, struct mxc_err *err) {
    f->kv_rank = 512;
    f->nope = f->v = 128;
    f->rope = 64;
    enum mxc_code code;
    if ((code = mxc_json_get_int(text, "q_lora_rank", 0, MAX_RANK, &f->q_rank, err)) ||
        (code = mxc_json_get_int(text, "kv_lora_rank", 1, MAX_RANK, &f->kv_rank, err)) ||
        (code = mxc_json_get_int(text, "qk_nope_head_dim", 1, 1024, &f->nope, err)) ||
        (code = mxc_json_get_int(text, "qk_rope_head_dim", 2, 512, &f->rope, err)) ||
        (code = mxc_json_get_int(text, "v_head_dim", 1, 1024, &f->v, err)))
        return code;
    return MXC_OK;
}

static enum mxc_code read_moe(const struct mxc_config *config, struct mxc_decoder *d,
                              struct deepseek *f, struct mxc_err *err) {
    const json_t *text = config->text;
    const char *score = "sigmoid", *method = "noaux_tc";
    int64_t n_shared = 0;
    enum mxc_code code;
    if ((code = mxc_moe_read(config, &d->h, &f->moe, err)) ||
        (code = mxc_moe_read_groups(config, &f->moe, err)) ||
        (code = mxc_json_get_string(text, "scoring_func", &score, err)) ||
        (code = mxc_json_get_string(text, "topk_method", &method, err)) ||
        (code = mxc_json_get_int(text, "n_shared_experts", 0, 1024, &n_shared, err)))
        return code;
    bool sigmoid = !strcmp(score, "sigmoid");
    if (!sigmoid && strcmp(score, "softmax") != 0)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "scoring_func: \"%.40s\" is not supported",
                           score);
    if (strcmp(method, "noaux_tc") != 0 && strcmp(method, "greedy") != 0 &&
        strcmp(method, "group_limited_greedy") != 0)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "topk_method: \"%.40s\" is not supported",
                           method);
    f->moe.attr.score = sigmoid ? MXC_MOE_SIGMOID : MXC_MOE_SOFTMAX;
    f->moe.attr.normalise_eps = 1e-20f;
    if (!strcmp(method, "noaux_tc")) {
        f->moe.choice = "gate.e_score_correction_bias";
    } else {
        f->moe.attr.group_best = true;
        if (!strcmp(method, "greedy"))
            f->moe.attr.n_groups = f->moe.attr.top_groups = 1;
    }
    f->moe.shared = "shared_experts";
    f->moe.shared_width = (int32_t)(n_shared * f->moe.attr.width);
    return MXC_OK;
}

/* Yarn's attention factor belongs to q . k here, not to the rotated part alone. */
static void set_scale(struct deepseek *f, struct mxc_rope *rope) {
    double scale = 1 / sqrt((double)(f->nope + f->rope));
    if (rope->scaling == MXC_ROPE_YARN && rope->mscale_all_dim != 0 && rope->factor > 1) {
        double m = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
        scale *= m * m;
    }
    f->scale = (float)scale;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"n_routed_experts", "kv_lora_rank",
                                          "num_nextn_predict_layers", NULL};
    struct deepseek f = {0};
    enum mxc_code code = read_dims(config->text, &f, err);
    if (code)
        return code;
    bool pairs = true;
    struct mxc_hyper_rules rules = {.accepts = accepts, .rotary = (int32_t)f.rope};
    if ((code = mxc_decoder_open(&d, graph, config, weights, &rules, err)) ||
        (code = mxc_json_get_bool(config->text, "rope_interleave", &pairs, err)) ||
        (code = read_moe(config, &d, &f, err)))
        return code;
    set_scale(&f, &d.h.rope);
    d.h.rope.interleaved = pairs;
    d.h.mlp_bias = MXC_ABSENT;
    d.family = &f;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"deepseek_v3", "deepseek_v2", NULL};
static const char *const gguf_archs[] = {"deepseek2", NULL};

const struct mxc_family mxc_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .summary = "DeepSeek V2, V3 and R1",
    .notes = "latent attention (only the latent is kept), shared and routed experts in groups",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};

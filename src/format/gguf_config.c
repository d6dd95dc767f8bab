/* Translates GGUF metadata to the keys of config.json. In: an open GGUF file. Out: a JSON object.
 * Keys are "<architecture>.<name>"; each table row says what one becomes. Values are only carried
 * over and checked for type and range here; what they mean is the family's business. */
#include "format/gguf_config.h"

#include "base/mem.h"
#include "format/gguf_arch.h"
#include "format/gguf_names.h"

#include <stdio.h>
#include <string.h>

typedef struct mxc_gguf_context context;

struct row {
    const char *from, *to;
    double min, max;
};

static const struct row ints[] = {
    {"block_count", "num_hidden_layers", 1, 10000},
    {"embedding_length", "hidden_size", 1, 1 << 20},
    {"feed_forward_length", "intermediate_size", 1, 1 << 24},
    {"attention.head_count", "num_attention_heads", 1, 65536},
    {"attention.head_count_kv", "num_key_value_heads", 1, 65536},
    {"attention.key_length", "head_dim", 1, 65536},
    {"attention.value_length", "v_head_dim", 1, 65536},
    {"attention.sliding_window", "sliding_window", 0, 1 << 30},
    {"context_length", "max_position_embeddings", 1, (double)UINT32_MAX},
    {"vocab_size", "vocab_size", 1, 1 << 26},
    {"expert_count", "num_experts", 0, 65536},
    {"expert_used_count", "num_experts_per_tok", 0, 65536},
    {"expert_feed_forward_length", "moe_intermediate_size", 1, 1 << 24},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", 1, 1 << 24},
    {"expert_shared_count", "num_shared_experts", 0, 65536},
    {"expert_group_count", "n_group", 0, 65536},
    {"expert_group_used_count", "topk_group", 0, 65536},
    {"leading_dense_block_count", "first_k_dense_replace", 0, 10000},
    {"attention.q_lora_rank", "q_lora_rank", 0, 1 << 16},
    {"attention.kv_lora_rank", "kv_lora_rank", 1, 1 << 16},
};

static const struct row reals[] = {
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", 0, 1},
    {"attention.layer_norm_epsilon", "layer_norm_eps", 0, 1},
    {"rope.freq_base", "rope_theta", 1e-6, 1e15},
    {"rope.freq_base_swa", "rope_local_base_freq", 1e-6, 1e15},
    {"logit_scale", "logit_scale", 0, 1e9},
    {"embedding_scale", "embedding_multiplier", 0, 1e9},
    {"residual_scale", "residual_multiplier", 0, 1e9},
    {"attention.scale", "attention_multiplier", 0, 1e9},
    {"expert_weights_scale", "routed_scaling_factor", 0, 1e6},
    {"attn_logit_softcapping", "attn_logit_softcapping", 0, 1e9},
    {"final_logit_softcapping", "final_logit_softcapping", 0, 1e9},
};

const char *mxc_gguf_key_of(context *c, const char *name) {
    (void)snprintf(c->key, sizeof c->key, "%s.%s", c->arch, name);
    return c->key;
}

enum mxc_code mxc_gguf_put(context *c, json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) ? mxc_err_nomem(c->err) : MXC_OK;
}

int64_t mxc_gguf_int_of(const context *c, const char *key) {
    return json_integer_value(json_object_get(c->root, key));
}

const struct mxc_gguf_tensor *mxc_gguf_tensor_of(const context *c, const char *name) {
    for (size_t i = 0; i < mxc_gguf_n_tensors(c->g); i++) {
        const struct mxc_gguf_tensor *t = mxc_gguf_tensor_at(c->g, i);
        if (!strcmp(t->name, name))
            return t;
    }
    return NULL;
}

/* A list with one number per layer becomes that number when all agree, else a list. */
static enum mxc_code put_ints(context *c, const struct row *row) {
    const struct mxc_gguf_value *list = NULL;
    enum mxc_code code = mxc_gguf_get_ints(c->g, c->key, &list, c->err);
    if (code)
        return code;
    bool same = true;
    for (size_t i = 0; i < list->count; i++) {
        int64_t v = mxc_gguf_int_at(list, i);
        if ((double)v < row->min || (double)v > row->max)
            return mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: %lld is out of range", c->path,
                               c->key, (long long)v);
        same = same && v == mxc_gguf_int_at(list, 0);
    }
    if (!list->count || list->count > 10000)
        return mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: a list of %zu numbers", c->path, c->key,
                           list->count);
    if (same)
        return mxc_gguf_put(c, c->root, row->to, json_integer(mxc_gguf_int_at(list, 0)));
    json_t *array = json_array();
    for (size_t i = 0; array && i < list->count; i++) {
        if (json_array_append_new(array, json_integer(mxc_gguf_int_at(list, i)))) {
            json_decref(array);
            array = NULL;
        }
    }
    return mxc_gguf_put(c, c->root, row->to, array);
}

static enum mxc_code put_tables(context *c) {
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; !code && i < sizeof ints / sizeof *ints; i++) {
        const struct row *row = &ints[i];
        const struct mxc_gguf_value *v = mxc_gguf_find(c->g, mxc_gguf_key_of(c, row->from));
        int64_t n = 0;
        if (!v)
            continue;
        if (v->type == MXC_GGUF_ARRAY) {
            code = put_ints(c, row);
            continue;
        }
        code = mxc_gguf_get_int(c->g, c->key, (int64_t)row->min, (int64_t)row->max, &n, c->err);
        if (!code)
            code = mxc_gguf_put(c, c->root, row->to, json_integer(n));
    }
    for (size_t i = 0; !code && i < sizeof reals / sizeof *reals; i++) {
        const struct row *row = &reals[i];
        double d = 0;
        if (!mxc_gguf_find(c->g, mxc_gguf_key_of(c, row->from)))
            continue;
        code = mxc_gguf_get_real(c->g, c->key, &d, c->err);
        if (!code && !(d >= row->min && d <= row->max)) /* also NaN */
            code =
                mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: %g is out of range", c->path, c->key, d);
        if (!code)
            code = mxc_gguf_put(c, c->root, row->to, json_real(d));
    }
    return code;
}

/* Needed by every family; heads must divide; head_dim from the rope width where it is not given. */
static enum mxc_code check_shape(context *c) {
    static const char *const needed[][2] = {
        {"num_hidden_layers", "block_count"},
        {"hidden_size", "embedding_length"},
        {"num_attention_heads", "attention.head_count"},
    };
    for (size_t i = 0; i < 3; i++)
        if (!json_object_get(c->root, needed[i][0]))
            return mxc_err_set(c->err, MXC_E_FORMAT, "%s: key %s is missing", c->path,
                               mxc_gguf_key_of(c, needed[i][1]));
    int64_t heads = mxc_gguf_int_of(c, "num_attention_heads"),
            kv = mxc_gguf_int_of(c, "num_key_value_heads");
    int64_t rope = 0, head_dim = mxc_gguf_int_of(c, "head_dim");
    if (heads && kv && heads % kv)
        return mxc_err_set(
            c->err, MXC_E_FORMAT, "%s: %s: %lld heads are not a multiple of %lld kv heads", c->path,
            mxc_gguf_key_of(c, "attention.head_count"), (long long)heads, (long long)kv);
    bool latent = json_object_get(c->root, "qk_nope_head_dim") != NULL;
    if (latent)
        return MXC_OK;
    if (heads && !head_dim && mxc_gguf_int_of(c, "hidden_size") % heads)
        return mxc_err_set(c->err, MXC_E_FORMAT,
                           "%s: %s: an embedding of %lld does not divide into %lld heads", c->path,
                           mxc_gguf_key_of(c, "attention.head_count"),
                           (long long)mxc_gguf_int_of(c, "hidden_size"), (long long)heads);
    enum mxc_code code =
        mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "rope.dimension_count"), 2, 65536, &rope, c->err);
    if (code)
        return code;
    int64_t width = head_dim ? head_dim : heads ? mxc_gguf_int_of(c, "hidden_size") / heads : rope;
    if (rope && (rope % 2 || (width && rope > width)))
        return mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: %lld is odd or wider than a head (%lld)",
                           c->path, c->key, (long long)rope, (long long)width);
    if (width && !head_dim)
        code = mxc_gguf_put(c, c->root, "head_dim", json_integer(width));
    if (!code && rope && width && rope < width)
        code = mxc_gguf_put(c, c->root, "partial_rotary_factor",
                            json_real((double)rope / (double)width));
    if (!code && !kv && heads && !json_object_get(c->root, "num_key_value_heads"))
        code = mxc_gguf_put(c, c->root, "num_key_value_heads", json_integer(heads));
    return code;
}

/* A real under `from`, if it is there, into object[to]; it must be finite and > 0. */
static enum mxc_code put_positive(context *c, json_t *object, const char *from, const char *to) {
    double d = 0;
    if (!mxc_gguf_find(c->g, mxc_gguf_key_of(c, from)))
        return MXC_OK;
    enum mxc_code code = mxc_gguf_get_real(c->g, c->key, &d, c->err);
    if (!code && !(d > 0 && d < 1e12))
        code = mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: %g is out of range", c->path, c->key, d);
    return code ? code : mxc_gguf_put(c, object, to, json_real(d));
}

static enum mxc_code put_rope_scaling(context *c) {
    struct mxc_str type = {0};
    char text[32];
    int64_t original = 0;
    enum mxc_code code =
        mxc_gguf_get_string(c->g, mxc_gguf_key_of(c, "rope.scaling.type"), &type, c->err);
    if (code)
        return code;
    json_t *s = json_object();
    if (!s)
        return mxc_err_nomem(c->err);
    code = put_positive(c, s, "rope.scaling.factor", "factor");
    if (!code && !json_object_get(s, "factor"))
        code = put_positive(c, s, "rope.scale_linear", "factor"); /* the key of older files */
    bool factor = json_object_get(s, "factor") != NULL;
    if (!type.length)
        type = factor ? MXC_STR("linear") : MXC_STR("none");
    if (code || mxc_str_is(type, "none") || (mxc_str_is(type, "linear") && !factor))
        goto out;
    if (type.length >= sizeof text || !mxc_utf8_valid(type.ptr, type.length)) {
        code = mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: not a known type", c->path,
                           mxc_gguf_key_of(c, "rope.scaling.type"));
        goto out;
    }
    memcpy(text, type.ptr, type.length);
    text[type.length] = 0;
    code = mxc_gguf_put(c, s, "rope_type", json_string(text));
    if (!code)
        code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "rope.scaling.original_context_length"), 1,
                                UINT32_MAX, &original, c->err);
    if (!code && original)
        code = mxc_gguf_put(c, s, "original_max_position_embeddings", json_integer(original));
    if (!code)
        code = put_positive(c, s, "rope.scaling.attn_factor", "attention_factor");
    if (!code)
        code = put_positive(c, s, "rope.scaling.yarn_attn_factor", "attention_factor");
    if (!code)
        code = put_positive(c, s, "rope.scaling.yarn_beta_fast", "beta_fast");
    if (!code)
        code = put_positive(c, s, "rope.scaling.yarn_beta_slow", "beta_slow");
    if (!code)
        code = mxc_gguf_put(c, c->root, "rope_scaling", json_incref(s));
out:
    json_decref(s);
    return code;
}

static bool has_tensor(const context *c, const char *name) {
    return mxc_gguf_tensor_of(c, name) != NULL;
}

static enum mxc_code put_flags(context *c) {
    bool normalise = false;
    enum mxc_code code =
        mxc_gguf_get_bool(c->g, mxc_gguf_key_of(c, "expert_weights_norm"), &normalise, c->err);
    if (!code && mxc_gguf_find(c->g, c->key))
        code = mxc_gguf_put(c, c->root, "norm_topk_prob", json_boolean(normalise));
    if (code)
        return code;
    code = mxc_gguf_put(c, c->root, "tie_word_embeddings",
                        json_boolean(!has_tensor(c, "output.weight")));
    if (!code)
        code = mxc_gguf_put(c, c->root, "attention_bias",
                            json_boolean(has_tensor(c, "blk.0.attn_q.bias")));
    if (!code)
        code =
            mxc_gguf_put(c, c->root, "mlp_bias", json_boolean(has_tensor(c, "blk.0.ffn_up.bias")));
    if (!code) {
        bool gelu = !strncmp(c->arch, "gemma", 5) || !strcmp(c->arch, "starcoder2");
        code = mxc_gguf_put(c, c->root, "hidden_act",
                            json_string(gelu ? "gelu_pytorch_tanh" : "silu"));
    }
    return code;
}

/* vocab_size where no key gives it: rows of the embedding (they may be more than the tokens). */
static enum mxc_code put_vocab(context *c) {
    for (size_t i = 0; i < mxc_gguf_n_tensors(c->g); i++) {
        const struct mxc_gguf_tensor *t = mxc_gguf_tensor_at(c->g, i);
        if (!strcmp(t->name, "token_embd.weight") && t->n_dims == 2 && t->dims[1] < 1 << 26)
            return mxc_gguf_put(c, c->root, "vocab_size", json_integer((json_int_t)t->dims[1]));
    }
    return MXC_OK;
}

static bool ends_turn(struct mxc_str s) {
    static const char *const texts[] = {
        "<|im_end|>",      "<|eot_id|>",    "<|eom_id|>",        "<|end|>",
        "<end_of_turn>",   "<|endoftext|>", "<|end_of_text|>",   "<EOT>",
        "<|end_of_turn|>", "<|return|>",    "<end_of_utterance>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (mxc_str_is(s, texts[i]))
            return true;
    return false;
}

static enum mxc_code add_id(context *c, json_t *list, int64_t id) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return MXC_OK;
    return json_array_append_new(list, json_integer(id)) ? mxc_err_nomem(c->err) : MXC_OK;
}

/* Control tokens (type 3 of tokenizer.ggml.token_type) that are known to end a turn. */
static enum mxc_code add_known_ends(context *c, json_t *list) {
    const struct mxc_gguf_value *tokens = NULL, *kinds = NULL;
    struct mxc_str text;
    size_t cursor = 0;
    enum mxc_code code = mxc_gguf_get_strings(c->g, "tokenizer.ggml.tokens", &tokens, c->err);
    if (!code)
        code = mxc_gguf_get_ints(c->g, "tokenizer.ggml.token_type", &kinds, c->err);
    if (code || !tokens || !kinds)
        return code;
    for (size_t i = 0; !code && i < kinds->count; i++) {
        if (!mxc_gguf_next_string(tokens, &cursor, &text))
            break;
        if (mxc_gguf_int_at(kinds, i) == 3 && ends_turn(text))
            code = add_id(c, list, (int64_t)i);
    }
    return code;
}

static enum mxc_code put_ids(context *c) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const others[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                            {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    enum mxc_code code = MXC_OK;
    json_t *list = json_array();
    if (!list)
        return mxc_err_nomem(c->err);
    for (size_t i = 0; !code && i < 3; i++) {
        int64_t id = -1;
        code = mxc_gguf_get_int(c->g, ends[i], -1, UINT32_MAX, &id, c->err);
        if (!code && id >= 0 && id <= INT32_MAX)
            code = add_id(c, list, id);
    }
    if (!code)
        code = add_known_ends(c, list);
    for (size_t i = 0; !code && i < 2; i++) {
        int64_t id = -1;
        code = mxc_gguf_get_int(c->g, others[i][0], -1, UINT32_MAX, &id, c->err);
        if (!code && id >= 0 && id <= INT32_MAX)
            code = mxc_gguf_put(c, c->root, others[i][1], json_integer(id));
    }
    if (!code)
        code = mxc_gguf_put(c, c->root, "eos_token_id", json_incref(list));
    json_decref(list);
    return code;
}

/* False when no key speaks of the architecture: then there is nothing to check, and whoever looks
 * for the family refuses its name. */
static bool knows_arch(const context *c) {
    size_t n = strlen(c->arch);
    for (size_t i = 0; i < mxc_gguf_n_values(c->g); i++) {
        struct mxc_str key = mxc_gguf_value_at(c->g, i)->key;
        if (key.length > n && key.ptr[n] == '.' && !memcmp(key.ptr, c->arch, n))
            return true;
    }
    return false;
}

enum mxc_code mxc_gguf_config(const struct mxc_gguf *gguf, json_t **root, struct mxc_err *err) {
    context c = {.g = gguf, .path = mxc_gguf_file(gguf)->path, .err = err};
    struct mxc_str arch = {0};
    enum mxc_code code = mxc_gguf_get_string(gguf, "general.architecture", &arch, err);
    if (code)
        return code;
    bool plain = arch.length && arch.length < sizeof c.arch;
    for (size_t i = 0; plain && i < arch.length; i++)
        plain = arch.ptr[i] > 32 && arch.ptr[i] < 127;
    if (!plain)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: general.architecture is missing or no name",
                           c.path);
    memcpy(c.arch, arch.ptr, arch.length);
    if ((code = mxc_json_parse("{}", 2, c.path, &c.root, err)))
        return code;
    code = mxc_gguf_put(&c, c.root, "model_type", json_string(mxc_gguf_model_type(c.arch)));
    if (!code)
        code = put_tables(&c);
    if (!code && knows_arch(&c)) {
        code = mxc_gguf_arch_shape(&c);
        if (!code)
            code = check_shape(&c);
    }
    if (!code)
        code = mxc_gguf_arch_type(&c);
    if (!code)
        code = put_rope_scaling(&c);
    if (!code)
        code = put_flags(&c);
    if (!code && !json_object_get(c.root, "vocab_size"))
        code = put_vocab(&c);
    if (!code)
        code = put_ids(&c);
    if (!code)
        code = mxc_gguf_arch_finish(&c);
    if (code) {
        json_decref(c.root);
        return code;
    }
    *root = c.root;
    return MXC_OK;
}

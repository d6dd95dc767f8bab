/* GGUF architectures: metadata as the converter of llama.cpp writes it becomes the keys that the
 * families read, and tensors get their logical names. */
#define _GNU_SOURCE
#include "test.h"

#include "base/half.h"
#include "base/mem.h"
#include "files.h"
#include "format/config.h"
#include "format/gguf_names.h"
#include "format/weights.h"
#include "quant/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* "key=5", "key=0.5" (with a point: f32), "key=true", "key='text'", "key=[true false]". */
static void put_key(struct mxc_buf *b, const char *arch, const char *entry) {
    char key[128];
    const char *value = strchr(entry, '=');
    assert_non_null(value);
    (void)snprintf(key, sizeof key, "%s%s%.*s", strncmp(entry, "general.", 8) ? arch : "",
                   strncmp(entry, "general.", 8) ? "." : "", (int)(value - entry), entry);
    value++;
    files_string(b, key);
    if (*value == '\'') {
        char text[64];
        (void)snprintf(text, sizeof text, "%.*s", (int)strlen(value) - 2, value + 1);
        files_uint(b, STRING, 4);
        files_string(b, text);
    } else if (*value == '[') {
        char copy[128], *rest = NULL, flags[16];
        size_t n = 0;
        (void)snprintf(copy, sizeof copy, "%.*s", (int)strlen(value) - 2, value + 1);
        for (char *w = strtok_r(copy, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
            flags[n++] = !strcmp(w, "true");
        files_uint(b, ARRAY, 4);
        files_uint(b, BOOL, 4);
        files_uint(b, n, 8);
        assert_true(mxc_buf_append(b, flags, n));
    } else if (*value == 't' || *value == 'f') {
        files_uint(b, BOOL, 4);
        files_uint(b, *value == 't', 1);
    } else if (strchr(value, '.')) {
        files_uint(b, F32, 4);
        files_uint(b, mxc_f32_bits(strtof(value, NULL)), 4);
    } else {
        files_uint(b, U32, 4);
        files_uint(b, strtoul(value, NULL, 10), 4);
    }
}

static size_t words(const char *text) {
    size_t n = 0;
    for (const char *p = text; *p; p++)
        n += *p != ' ' && (p == text || p[-1] == ' ');
    return n;
}

/* Keys apart by ";", tensors "name[@type]:extent:..." (innermost first; F32, or 8: Q8_0) by spaces.
 */
static const char *write_gguf(const char *arch, const char *keys, const char *tensors) {
    struct mxc_buf b;
    char copy[2048], *rest = NULL;
    size_t n_keys = 1, n_data = 0;
    for (const char *p = keys; *p; p++)
        n_keys += *p == ';';
    mxc_buf_init(&b, 1 << 20);
    files_uint(&b, 0x46554747, 4);
    files_uint(&b, 3, 4);
    files_uint(&b, words(tensors), 8);
    files_uint(&b, n_keys + 1, 8);
    files_string(&b, "general.architecture");
    files_uint(&b, STRING, 4);
    files_string(&b, arch);
    (void)snprintf(copy, sizeof copy, "%s", keys);
    for (char *k = strtok_r(copy, ";", &rest); k; k = strtok_r(NULL, ";", &rest))
        put_key(&b, arch, k);
    (void)snprintf(copy, sizeof copy, "%s", tensors);
    for (char *t = strtok_r(copy, " ", &rest); t; t = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(t, ':'), *type = strchr(t, '@');
        uint64_t extents[4], n = 1;
        uint32_t n_dims = 0;
        assert_non_null(colon);
        for (char *p = colon; *p == ':'; n_dims++) {
            extents[n_dims] = strtoul(p + 1, &p, 10);
            n *= extents[n_dims];
        }
        *(type ? type : colon) = 0;
        files_string(&b, t);
        files_uint(&b, n_dims, 4);
        for (uint32_t i = 0; i < n_dims; i++)
            files_uint(&b, extents[i], 8);
        files_uint(&b, type ? 8 : 0, 4);
        files_uint(&b, n_data, 8);
        n_data += ((type ? n / 32 * 34 : n * 4) + 31) / 32 * 32;
    }
    files_pad(&b, 32);
    for (size_t i = 0; i < n_data / 4; i++)
        files_uint(&b, mxc_f32_bits(1 + (float)i), 4);
    const char *path = files_write("a.gguf", b.data, b.length);
    mxc_buf_fini(&b);
    return path;
}

#define BASE                                                                                       \
    "block_count=4;embedding_length=64;attention.head_count=4;attention.head_count_kv=2;"          \
    "feed_forward_length=96;context_length=512;vocab_size=100"

static const struct {
    const char *arch, *keys, *tensors, *want;
} rows[] = {
    {"llama", BASE ";expert_count=8;expert_used_count=2", "x:1",
     "model_type 'mixtral' num_experts 8 num_experts_per_tok 2 intermediate_size 96"},
    {"llama", BASE ";expert_count=0", "x:1", "model_type 'llama' num_experts 0"},
    {"gemma2",
     BASE ";attention.key_length=32;attn_logit_softcapping=50.0;attention.sliding_window=8", "x:1",
     "head_dim 32 query_pre_attn_scalar 32 attn_logit_softcapping 50 sliding_window 8 hidden_act "
     "'gelu_pytorch_tanh'"},
    {"gemma3",
     "block_count=62;embedding_length=64;attention.head_count=4;attention.key_length=32;"
     "rope.freq_base_swa=5000.0;attention.sliding_window=8;attention.sliding_window_pattern=6;"
     "rope.scaling.type='linear';rope.scaling.factor=8.0",
     "x:1",
     "model_type 'gemma3_text' query_pre_attn_scalar 16 rope_local_base_freq 5000 "
     "sliding_window_pattern 6 rope_scaling.rope_type 'linear' rope_scaling.factor 8"},
    {"gemma3",
     BASE ";attention.sliding_window=8;attention.sliding_window_pattern=[true true false true]",
     "x:1", "layer_types.0 'sliding_attention' layer_types.2 'full_attention'"},
    {"olmo2", BASE ";attention.sliding_window=8", "x:1", "model_type 'olmo3'"},
    {"olmo2", BASE, "x:1", "model_type 'olmo2'"},
    {"granite",
     BASE ";logit_scale=8.0;embedding_scale=12.0;residual_scale=0.25;attention.scale=0.5", "x:1",
     "logits_scaling 8 logit_scale - embedding_multiplier 12 residual_multiplier 0.25 "
     "attention_multiplier 0.5"},
    {"command-r", BASE ";logit_scale=0.0625;attention.layer_norm_epsilon=0.5", "x:1",
     "model_type 'cohere' logit_scale 0.0625 layer_norm_eps 0.5"},
    {"starcoder2", BASE ";attention.layer_norm_epsilon=0.5", "x:1",
     "norm_epsilon 0.5 layer_norm_eps - hidden_act 'gelu_pytorch_tanh'"},
    {"glm4", BASE ";rope.dimension_count=8;nextn_predict_layers=1", "x:1",
     "partial_rotary_factor 0.5 num_hidden_layers 3"},
    {"phi3",
     BASE ";rope.dimension_count=16;rope.scaling.original_context_length=128;"
          "rope.scaling.attn_factor=1.25",
     "rope_factors_long.weight:8 rope_factors_short.weight:8",
     "rope_scaling.rope_type 'longrope' rope_scaling.long_factor.1 2 rope_scaling.short_factor.0 9 "
     "rope_scaling.attention_factor 1.25 rope_scaling.original_max_position_embeddings 128"},
    {"phi3", BASE ";rope.scaling.original_context_length=128", "x:1", "rope_scaling -"},
    {"gpt-oss",
     BASE ";attention.key_length=64;expert_count=32;expert_used_count=4;"
          "expert_feed_forward_length=96;attention.sliding_window=128;rope.scaling.type='yarn';"
          "rope.scaling.factor=32.0;rope.scaling.original_context_length=4096",
     "x:1",
     "model_type 'gpt_oss' head_dim 64 moe_intermediate_size 96 sliding_window 128 "
     "rope_scaling.truncate false rope_scaling.factor 32"},
    {"qwen3moe",
     BASE ";expert_count=8;expert_used_count=2;expert_feed_forward_length=32;expert_weights_norm="
          "true",
     "x:1", "model_type 'qwen3_moe' moe_intermediate_size 32 norm_topk_prob true"},
    {"qwen2moe", BASE ";expert_count=8;expert_shared_feed_forward_length=48", "x:1",
     "model_type 'qwen2_moe' shared_expert_intermediate_size 48 norm_topk_prob -"},
    {"bailingmoe2",
     BASE ";leading_dense_block_count=1;expert_count=8;expert_used_count=2;expert_shared_count=2;"
          "expert_gating_func=2;expert_group_count=4;expert_group_used_count=2;"
          "expert_weights_scale=2.5;expert_weights_norm=true;rope.dimension_count=8;"
          "expert_shared_feed_forward_length=24;nextn_predict_layers=1",
     "blk.1.exp_probs_b.bias:8 blk.0.attn_q_norm.weight:16 blk.1.ffn_up_shexp.weight:64:48",
     "model_type 'bailing_moe_v2' score_function 'sigmoid' moe_router_enable_expert_bias true "
     "use_qk_norm true moe_shared_expert_intermediate_size 24 first_k_dense_replace 1 n_group 4 "
     "topk_group 2 routed_scaling_factor 2.5 norm_topk_prob true num_shared_experts 2 "
     "num_hidden_layers 3 shared_expert_intermediate_size -"},
    {"bailingmoe", BASE ";expert_count=8;expert_shared_count=2", "x:1",
     "model_type 'bailing_moe' score_function 'softmax' moe_router_enable_expert_bias false "
     "use_qk_norm false"},
    {"deepseek2",
     BASE ";attention.q_lora_rank=24;attention.kv_lora_rank=32;"
          "rope.dimension_count=8;attention.key_length=40;attention.value_length=32;"
          "attention.key_length_mla=24;attention.value_length_mla=16;leading_dense_block_count=1;"
          "expert_count=8;expert_used_count=2;expert_shared_count=1;expert_gating_func=2;"
          "expert_group_count=4;rope.scaling.type='yarn';rope.scaling.factor=40.0;"
          "rope.scaling.yarn_log_multiplier=0.1",
     "blk.1.exp_probs_b.bias:8",
     "model_type 'deepseek_v3' q_lora_rank 24 kv_lora_rank 32 qk_rope_head_dim 8 qk_nope_head_dim "
     "16 v_head_dim 16 num_key_value_heads 4 head_dim - n_routed_experts 8 num_experts - "
     "n_shared_experts 1 scoring_func 'sigmoid' topk_method 'noaux_tc' n_group 4 "
     "rope_scaling.mscale_all_dim 1 rope_scaling.mscale 1 partial_rotary_factor -"},
    {"deepseek2",
     BASE ";attention.kv_lora_rank=32;rope.dimension_count=8;attention.key_length=24;"
          "attention.value_length=16;expert_count=8",
     "x:1",
     "qk_nope_head_dim 16 v_head_dim 16 q_lora_rank - scoring_func 'softmax' topk_method 'greedy'"},
};

/* root at a path with points: object keys or list places. */
static const json_t *at_path(const json_t *root, char *path) {
    char *rest = NULL;
    for (char *p = strtok_r(path, ".", &rest); p; p = strtok_r(NULL, ".", &rest))
        root = json_is_array(root) ? json_array_get(root, strtoul(p, NULL, 10))
                                   : json_object_get(root, p);
    return root;
}

static bool is_value(const json_t *v, const char *want) {
    if (*want == '-')
        return !v;
    if (*want == '\'')
        return json_is_string(v) && strlen(json_string_value(v)) == strlen(want) - 2 &&
               !strncmp(json_string_value(v), want + 1, strlen(want) - 2);
    if (*want == 't' || *want == 'f')
        return *want == 't' ? json_is_true(v) : json_is_false(v);
    double number = strtod(want, NULL);
    return json_is_number(v) && json_number_value(v) == number;
}

static void test_configs(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_config *c;
        struct mxc_err err;
        char copy[1024], *rest = NULL;
        if (mxc_config_open(write_gguf(rows[i].arch, rows[i].keys, rows[i].tensors), &c, &err))
            fail_msg("case %zu, %s: %s", i, rows[i].arch, err.message);
        (void)snprintf(copy, sizeof copy, "%s", rows[i].want);
        for (char *key = strtok_r(copy, " ", &rest); key; key = strtok_r(NULL, " ", &rest)) {
            char path[128];
            const char *want = strtok_r(NULL, " ", &rest);
            (void)snprintf(path, sizeof path, "%s", key);
            assert_non_null(want);
            if (!is_value(at_path(c->root, path), want))
                fail_msg("case %zu, %s: %s is not %s", i, rows[i].arch, key, want);
        }
        mxc_config_close(c);
    }
}

static void test_bad(void **unused) {
    (void)unused;
    static const struct {
        const char *arch, *keys, *tensors, *words;
    } bad[] = {
        {"deepseek2", BASE ";attention.key_length=24;attention.value_length=16", "x:1",
         "deepseek2 keys 24 values 16 0 rotated"},
        {"deepseek2",
         BASE ";rope.dimension_count=24;attention.key_length=24;attention.value_length=16", "x:1",
         "keys 24 rotated"},
        {"glm4", BASE ";nextn_predict_layers=4", "x:1", "nextn_predict_layers 4 of 4"},
        {"bailingmoe2", BASE ";expert_gating_func=9", "x:1", "expert_gating_func 9 supported"},
        {"gemma3", BASE ";attention.sliding_window=8;attention.sliding_window_pattern=[true]",
         "x:1", "sliding_window_pattern 1 flags"},
        {"gemma3", BASE ";attention.sliding_window=8;attention.sliding_window_pattern=0", "x:1",
         "sliding_window_pattern 0"},
        {"phi3", BASE, "rope_factors_long.weight:4:2", "rope_factors_long.weight vector"},
        {"phi3", BASE, "rope_factors_long.weight:2000", "rope_factors_long.weight vector"},
        {"qwen3moe", BASE ";expert_weights_norm=3", "x:1", "expert_weights_norm bool"},
        {"granite", BASE ";residual_scale=-1.0", "x:1", "residual_scale range"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mxc_config *c;
        struct mxc_err err;
        if (!mxc_config_open(write_gguf(bad[i].arch, bad[i].keys, bad[i].tensors), &c, &err))
            fail_msg("accepted: case %zu (%s)", i, bad[i].words);
        files_expect(&err, "a.gguf:");
        files_expect(&err, bad[i].words);
    }
}

static void test_names(void **unused) {
    (void)unused;
    static const char *const names[][3] = {
        {"deepseek2", "blk.1.attn_q_a.weight", "self_attn.q_a_proj.weight"},
        {"deepseek2", "blk.1.attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
        {"deepseek2", "blk.1.attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
        {"deepseek2", "blk.1.attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
        {"deepseek2", "blk.1.attn_k_b.weight", "self_attn.embed_q.weight"},
        {"deepseek2", "blk.1.attn_v_b.weight", "self_attn.unembed_out.weight"},
        {"deepseek2", "blk.1.exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
        {"deepseek2", "blk.1.ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
        {"bailingmoe2", "blk.1.exp_probs_b.bias", "mlp.gate.expert_bias"},
        {"bailingmoe2", "blk.1.attn_qkv.weight", "attention.query_key_value.weight"},
        {"bailingmoe", "blk.1.attn_q.weight", "self_attn.q_proj.weight"},
        {"qwen2moe", "blk.1.ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
        {"qwen2moe", "blk.1.ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
        {"qwen3moe", "blk.1.ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"},
        {"gpt-oss", "blk.1.attn_sinks.weight", "self_attn.sinks"},
        {"gpt-oss", "blk.1.ffn_gate_inp.bias", "mlp.router.bias"},
        {"gpt-oss", "blk.1.ffn_gate_exps.bias", "mlp.switch_mlp.gate_proj.bias"},
        {"glm4", "blk.1.post_attention_norm.weight", "post_self_attn_layernorm.weight"},
        {"glm4", "blk.1.post_ffw_norm.weight", "post_mlp_layernorm.weight"},
        {"glm4", "blk.1.ffn_up.weight", "mlp.gate_up_proj.weight"},
        {"phi3", "blk.1.ffn_up.weight", "mlp.gate_up_proj.weight"},
        {"phi3", "blk.1.attn_qkv.weight", "self_attn.qkv_proj.weight"},
        {"olmo2", "blk.1.post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
        {"gemma2", "blk.1.post_attention_norm.weight", "post_attention_layernorm.weight"},
        {"llama", "blk.1.ffn_gate.7.weight", "mlp.experts.7.w1.weight"},
        {"llama", "blk.1.ffn_down.12.weight", "mlp.experts.12.w2.weight"},
        {"llama", "blk.1.ffn_up.0.weight", "mlp.experts.0.w3.weight"},
    };
    char out[128], want[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(want, sizeof want, "model.layers.1.%s", names[i][2]);
        assert_true(mxc_gguf_logical_name(names[i][0], names[i][1], out, sizeof out));
        assert_string_equal(out, want);
    }
    assert_true(mxc_gguf_logical_name("bailingmoe2", "token_embd.weight", out, sizeof out));
    assert_string_equal(out, "model.word_embeddings.weight");
    static const char *const kept[] = {"blk.1.ffn_gate.x.weight", "blk.1.ffn_gate..weight",
                                       "blk.1.ffn_gate.12345.weight", "blk.1.attn_q.3.weight"};
    for (size_t i = 0; i < 4; i++) {
        assert_true(mxc_gguf_logical_name("llama", kept[i], out, sizeof out));
        assert_string_equal(out, kept[i]);
    }
    static const char *const permuted[] = {"llama", "granite", "smollm3", "bailingmoe"};
    static const char *const plain[] = {"bailingmoe2", "deepseek2", "command-r", "glm4",
                                        "ernie4_5",    "gemma3",    "phi3",      "gpt-oss"};
    for (size_t i = 0; i < 4; i++)
        assert_true(mxc_gguf_permutes(permuted[i]));
    for (size_t i = 0; i < 8; i++)
        assert_false(mxc_gguf_permutes(plain[i]));
}

/* Vectors of one row get it back; tables that became part of the config are no weights. */
static void test_tensors(void **unused) {
    (void)unused;
    struct mxc_weights *w;
    struct mxc_err err;
    const struct mxc_tensor *t;
    const char *path = write_gguf("qwen2moe", BASE,
                                  "blk.0.ffn_gate_inp_shexp.weight:64 rope_factors_long.weight:8 "
                                  "blk.0.ffn_norm.weight:64");
    assert_int_equal(mxc_weights_open(path, NULL, &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_count(w), 2);
    assert_int_equal(mxc_weights_get(w, "model.layers.0.mlp.shared_expert_gate.weight", 2,
                                     (const int64_t[]){1, 64}, &t, &err),
                     MXC_OK);
    mxc_weights_close(w);
    /* experts of blocks: rows one after the other, expert by expert */
    path = write_gguf("qwen3moe", BASE, "blk.1.ffn_up_exps.weight@8:64:5:3");
    assert_int_equal(mxc_weights_open(path, NULL, &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_get(w, "model.layers.1.mlp.switch_mlp.up_proj.weight", 3,
                                     (const int64_t[]){3, 5, 64}, &t, &err),
                     MXC_OK);
    assert_int_equal(t->storage, MXC_ST_Q8_0);
    for (int64_t r = 0; r < 15; r++) {
        float row[64], want[64];
        mxc_tensor_row(t, r, row);
        mxc_quant_decode(MXC_ST_Q8_0, t->data + 68 * r, 64, want);
        assert_memory_equal(row, want, sizeof row);
    }
    mxc_weights_close(w);
}

static void test_no_memory(void **unused) {
    (void)unused;
    const size_t last = sizeof rows / sizeof *rows - 2; /* deepseek2, then phi3 */
    for (size_t i = 0; i < 2; i++) {
        size_t at = i ? 11 : last;
        const char *path = write_gguf(rows[at].arch, rows[at].keys, rows[at].tensors);
        enum mxc_code code = MXC_E_NOMEM;
        for (uint64_t n = 1; code; n++) {
            struct mxc_config *c = NULL;
            assert_true(n < 400);
            mxc_mem_fail_at(n);
            code = mxc_config_open(path, &c, NULL);
            mxc_mem_fail_at(0);
            assert_true(!code || code == MXC_E_NOMEM || code == MXC_E_FORMAT);
            mxc_config_close(c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configs),   cmocka_unit_test(test_bad),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

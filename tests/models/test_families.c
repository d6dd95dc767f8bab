/* Families: the graphs of the golden configs as text, what optional config keys and tensors change,
 * and hostile configs, each refused with the key's name. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph **graph, struct mxc_err *err) {
    const struct mxc_family *family;
    enum mxc_code code = mxc_family_find(config, &family, err);
    if (!code)
        code = mxc_graph_new(family->name, graph, err);
    if (!code && (code = family->build(config, weights, *graph, err))) {
        mxc_graph_free(*graph);
        *graph = NULL;
    }
    return code;
}

static struct mxc_graph *must_build(const struct mxc_config *config,
                                    const struct mxc_weights *weights) {
    struct mxc_graph *graph = NULL;
    struct mxc_err err;
    if (build(config, weights, &graph, &err))
        fail_msg("%s", err.message);
    return graph;
}

static struct mxc_graph *changed(const char *file, const char *change) {
    char *base = test_data(file);
    struct mxc_config config = test_config_change(base, change);
    struct mxc_graph *graph = must_build(&config, NULL);
    test_config_fini(&config);
    mxc_mem_free(base);
    return graph;
}

static const struct mxc_weight *weight(const struct mxc_graph *g, const char *name) {
    for (int32_t i = 0; i < g->n_weights; i++) {
        if (!strcmp(g->weights[i].name, name))
            return &g->weights[i];
    }
    return NULL;
}

static const struct mxc_attn_attr *attention(const struct mxc_graph *g, int32_t layer) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == MXC_OP_ATTENTION && g->nodes[i].layer == layer)
            return &g->nodes[i].u.attn;
    }
    fail_msg("no attention in layer %d", layer);
    return NULL;
}

/* The graph of a config alone against the text in NAME.txt. */
static void expect_text(const char *name, const struct mxc_graph *g) {
    char file[64], *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    mxc_graph_print(g, out);
    fclose(out);
    (void)snprintf(file, sizeof file, "%s.txt", name);
    char *want = test_data(file);
    if (strcmp(text, want))
        fail_msg("%s: got\n%s", name, text);
    free(text);
    mxc_mem_free(want);
}

static void golden_graphs(void **state) {
    (void)state;
    static const char *const names[] = {
        "llama", "llama_tied_rope3", "llama_v5cfg", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[64];
        (void)snprintf(file, sizeof file, "%s.json", names[i]);
        struct mxc_graph *g = changed(file, "{}");
        expect_text(names[i], g);
        mxc_graph_free(g);
    }
}

/* The same for configs of golden checkpoints, whose results the golden tests compare. */
static void checkpoint_graphs(void **state) {
    (void)state;
    static const char *const names[] = {
        "bailing_moe_v2", "cohere_qk_norm", "deepseek_v3", "gemma2",           "gemma3_text",
        "glm4",           "gpt_oss_bf16",   "granite",     "mixtral",          "olmo2",
        "phi3_longrope",  "qwen2_moe",      "qwen3_moe",   "smollm3",          "stablelm_parallel",
        "starcoder2",     "qwen2_vl",       "qwen3_vl",    "llava_clip_llama", "mllama",
        "gemma3",         "idefics3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        struct mxc_config *config = NULL;
        struct mxc_graph *g = NULL;
        struct mxc_weights *weights = NULL;
        struct mxc_err err;
        (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, names[i]);
        if (mxc_config_open(path, &config, &err) ||
            mxc_weights_open(path, config, &weights, &err) ||
            mxc_model_graph(config, weights, &g, &err))
            fail_msg("%s: %s", names[i], err.message);
        expect_text(names[i], g);
        mxc_graph_free(g);
        mxc_weights_close(weights);
        mxc_config_close(config);
    }
}

static void defaults(void **state) {
    (void)state;
    struct mxc_graph *g = changed("llama.json", "{\"num_key_value_heads\": null, \"hidden_act\": "
                                                "null, \"rope_theta\": null, \"rms_norm_eps\": "
                                                "null, \"max_position_embeddings\": null}");
    const struct mxc_attn_attr *a = attention(g, 1);
    assert_int_equal(a->n_heads, 4);
    assert_int_equal(a->n_kv_heads, 4);
    assert_int_equal(a->head_dim, 16);
    assert_true(a->scale == 0.25f);
    assert_true(g->ropes[0].theta == 1e4);
    assert_true(g->nodes[1].u.norm.eps == 1e-6f);
    assert_int_equal(g->max_position, 0);
    mxc_graph_free(g);
    g = changed("qwen3.json", "{\"head_dim\": null}");
    assert_int_equal(attention(g, 0)->head_dim, 128);
    mxc_graph_free(g);
    g = changed("mistral.json", "{\"head_dim\": null}");
    assert_int_equal(attention(g, 0)->head_dim, 16);
    mxc_graph_free(g);
}

static void activations(void **state) {
    (void)state;
    static const struct {
        const char *change;
        enum mxc_act act;
    } cases[] = {
        {"{\"hidden_act\": \"silu\"}", MXC_ACT_SILU},
        {"{\"hidden_act\": \"swish\"}", MXC_ACT_SILU},
        {"{\"hidden_act\": \"gelu\"}", MXC_ACT_GELU},
        {"{\"hidden_act\": \"gelu_new\"}", MXC_ACT_GELU_TANH},
        {"{\"hidden_act\": \"gelu_pytorch_tanh\"}", MXC_ACT_GELU_TANH},
        {"{\"hidden_act\": \"relu\"}", MXC_ACT_RELU},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = changed("llama.json", cases[i].change);
        int n = 0;
        for (int32_t j = 0; j < g->n_nodes; j++) {
            if (g->nodes[j].op == MXC_OP_GLU) {
                assert_int_equal(g->nodes[j].u.glu.act, cases[i].act);
                n++;
            }
        }
        assert_int_equal(n, 3);
        mxc_graph_free(g);
    }
}

static void windows(void **state) {
    (void)state;
    static const struct {
        const char *file, *change;
        int32_t window[3];
    } cases[] = {
        {"mistral.json", "{}", {48, 48, 48}},
        {"mistral.json", "{\"sliding_window\": null}", {4096, 4096, 4096}}, /* absent: default */
        {"llama.json", "{\"sliding_window\": 48}", {0, 0, 0}},
        {"qwen2.json", "{}", {0, 0, 0}},
        {"qwen2.json", "{\"use_sliding_window\": true}", {0, 0, 0}},
        {"qwen2.json", "{\"use_sliding_window\": true, \"max_window_layers\": 1}", {0, 1024, 1024}},
        {"qwen2.json",
         "{\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
         "\"full_attention\", \"sliding_attention\"], \"sliding_window\": 7}",
         {7, 0, 7}},
        {"qwen2.json", "{\"layer_types\": [\"sliding_attention\"]}", {0, 0, 0}},
        {"qwen3.json",
         "{\"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 2}",
         {0, 0, 5}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = changed(cases[i].file, cases[i].change);
        for (int32_t j = 0; j < 3; j++) {
            const struct mxc_attn_attr *a = attention(g, j);
            assert_int_equal(a->window, cases[i].window[j]);
            assert_int_equal(g->kvs[a->kv].window, cases[i].window[j]);
            assert_int_equal(g->kvs[a->kv].kind, cases[i].window[j] ? MXC_KV_WINDOW : MXC_KV_FULL);
        }
        mxc_graph_free(g);
    }
    /* an explicit null means no window; a GGUF that says nothing too */
    char *base = test_data("mistral.json");
    struct mxc_config config = test_config_change(base, "{}");
    json_object_set_new(config.root, "sliding_window", json_null());
    struct mxc_graph *g = must_build(&config, NULL);
    assert_int_equal(attention(g, 0)->window, 0);
    mxc_graph_free(g);
    json_object_del(config.root, "sliding_window");
    config.from_gguf = true;
    g = must_build(&config, NULL);
    assert_int_equal(attention(g, 0)->window, 0);
    mxc_graph_free(g);
    json_object_set_new(config.root, "sliding_window", json_integer(0));
    g = must_build(&config, NULL);
    assert_int_equal(attention(g, 0)->window, 0);
    mxc_graph_free(g);
    test_config_fini(&config);
    mxc_mem_free(base);
}

/* Which of layer 0's linears have biases: q, k, v, o, gate, up, down. */
static void expect_biases(const struct mxc_graph *g, const char *want) {
    static const char *const modules[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    char got[8] = "-------", name[96];
    for (int i = 0; i < 7; i++) {
        (void)snprintf(name, sizeof name, "model.layers.0.%s.bias", modules[i]);
        got[i] = weight(g, name) ? "qkvogud"[i] : '-';
    }
    assert_string_equal(got, want);
}

static void biases(void **state) {
    (void)state;
    static const struct {
        const char *file, *change, *want;
    } cases[] = {
        {"llama.json", "{}", "-------"},
        {"llama.json", "{\"attention_bias\": true}", "qkvo---"},
        {"llama.json", "{\"mlp_bias\": true}", "----gud"},
        {"llama_v5cfg.json", "{}", "qkvogud"},
        {"mistral.json", "{\"attention_bias\": true, \"mlp_bias\": true}", "-------"},
        {"qwen2.json", "{}", "qkv----"},
        {"qwen2.json", "{\"attention_bias\": false}", "qkv----"},
        {"qwen3.json", "{}", "-------"},
        {"qwen3.json", "{\"attention_bias\": true}", "qkvo---"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = changed(cases[i].file, cases[i].change);
        expect_biases(g, cases[i].want);
        mxc_graph_free(g);
    }
}

static void biases_by_file(void **state) {
    (void)state;
    char *base = test_data("llama.json");
    struct mxc_config silent =
        test_config_change(base, "{\"attention_bias\": null, \"mlp_bias\": null}");
    struct mxc_config off = test_config_change(base, "{}");
    struct mxc_graph *g = must_build(&silent, NULL);
    struct test_change change = {
        .extra = {.name = "model.layers.0.self_attn.q_proj.bias", .n_dims = 1, .shape = {64}}};
    struct test_checkpoint c;
    test_checkpoint_open(g, &change, &c);
    mxc_graph_free(g);
    g = must_build(&silent, c.weights);
    expect_biases(g, "q------");
    mxc_graph_free(g);
    g = must_build(&off, c.weights); /* the config says no: the tensor is not used */
    expect_biases(g, "-------");
    mxc_graph_free(g);
    off.from_gguf = true;
    g = must_build(&off, c.weights);
    expect_biases(g, "q------");
    mxc_graph_free(g);
    test_checkpoint_close(&c);
    test_config_fini(&silent);
    test_config_fini(&off);
    mxc_mem_free(base);
}

/* flag true, false, absent x lm_head in the file or not: the file decides. */
static void tied_heads(void **state) {
    (void)state;
    static const char *const flags[] = {"{\"tie_word_embeddings\": true}",
                                        "{\"tie_word_embeddings\": false}",
                                        "{\"tie_word_embeddings\": null}"};
    char *base = test_data("llama.json");
    for (int flag = 0; flag < 3; flag++) {
        for (int present = 0; present < 2; present++) {
            struct mxc_config config = test_config_change(base, flags[flag]);
            struct mxc_config full = test_config_change(base, "{\"tie_word_embeddings\": false}");
            struct mxc_graph *g = must_build(&full, NULL);
            struct test_change change = {.drop = present ? NULL : "lm_head.weight"};
            struct test_checkpoint c;
            assert_non_null(weight(g, "lm_head.weight"));
            test_checkpoint_open(g, &change, &c);
            mxc_graph_free(g);
            g = NULL;
            struct mxc_err err;
            if (mxc_model_graph(&config, c.weights, &g, &err))
                fail_msg("%s", err.message);
            const struct mxc_node *head = &g->nodes[g->n_nodes - 1];
            const struct mxc_weight *w = &g->weights[head->weights[0]];
            assert_string_equal(w->name, present ? "lm_head.weight" : "model.embed_tokens.weight");
            assert_int_equal(w->role, present ? MXC_W_MATRIX : MXC_W_TABLE);
            assert_int_equal(g->vocab, 720);
            mxc_graph_free(g);
            test_checkpoint_close(&c);
            test_config_fini(&config);
            test_config_fini(&full);
        }
    }
    mxc_mem_free(base);
    struct mxc_graph *g = changed("qwen3.json", "{}"); /* without a file the flag decides */
    assert_null(weight(g, "lm_head.weight"));
    mxc_graph_free(g);
}

/* ---- refusals: message, change to llama.json (or to the file named) */

struct refusal {
    const char *file, *change, *message;
};

static const struct refusal refusals[] = {
    {"llama.json", "{\"hidden_size\": null}", "hidden_size: missing"},
    {"llama.json", "{\"num_attention_heads\": null}", "num_attention_heads: missing"},
    {"llama.json", "{\"num_hidden_layers\": null}", "num_hidden_layers: missing"},
    {"llama.json", "{\"intermediate_size\": null}", "intermediate_size: missing"},
    {"llama.json", "{\"vocab_size\": null}", "vocab_size: missing"},
    {"llama.json", "{\"hidden_size\": -16}", "hidden_size: -16"},
    {"llama.json", "{\"hidden_size\": 2147483648}", "hidden_size: 2147483648"},
    {"llama.json", "{\"hidden_size\": 16.5}", "hidden_size: not an integer"},
    {"llama.json", "{\"hidden_size\": true}", "hidden_size: not an integer"},
    {"llama.json", "{\"hidden_size\": \"16\"}", "hidden_size: not an integer"},
    {"llama.json", "{\"num_attention_heads\": 0}", "num_attention_heads: 0"},
    {"llama.json", "{\"num_attention_heads\": 3, \"num_key_value_heads\": 3}",
     "num_attention_heads: 3 does not divide hidden_size (64)"},
    {"llama.json", "{\"num_key_value_heads\": 8}", "num_key_value_heads: 8 does not divide"},
    {"llama.json", "{\"num_key_value_heads\": 3}", "num_key_value_heads: 3 does not divide"},
    {"llama.json", "{\"num_key_value_heads\": [4, 2]}", "num_key_value_heads: not an integer"},
    {"llama.json", "{\"head_dim\": 0}", "head_dim: 0"},
    {"llama.json", "{\"head_dim\": 15}", "head_dim: 15 is odd"},
    {"llama.json", "{\"head_dim\": 4096}", "head_dim: 4096"},
    {"llama.json", "{\"head_dim\": 1024}", "head_dim: 1024 rotated dimensions"},
    {"llama.json", "{\"num_hidden_layers\": 1000000000}", "num_hidden_layers: 1000000000"},
    {"llama.json", "{\"vocab_size\": 2147483648}", "vocab_size: 2147483648"},
    {"llama.json", "{\"max_position_embeddings\": 0}", "max_position_embeddings: 0"},
    {"llama.json", "{\"max_position_embeddings\": 1099511627776}", "max_position_embeddings"},
    {"llama.json", "{\"rms_norm_eps\": -1e-5}", "rms_norm_eps: -1e-05"},
    {"llama.json", "{\"rms_norm_eps\": \"x\"}", "rms_norm_eps: not a number"},
    {"llama.json", "{\"hidden_act\": \"swoosh\"}",
     "\"swoosh\" is not supported (nearest: \"swish\")"},
    {"llama.json", "{\"hidden_act\": 3}", "hidden_act: not a string"},
    {"llama.json", "{\"attention_bias\": 1}", "attention_bias: not true or false"},
    {"llama.json", "{\"mlp_bias\": \"no\"}", "mlp_bias: not true or false"},
    {"llama.json", "{\"attention_chunk_size\": 8192}", "attention_chunk_size: this option"},
    {"llama.json", "{\"logits_scaling\": 8.0}", "logits_scaling: this option"},
    {"llama.json", "{\"num_local_experts\": 8}", "num_local_experts: this option"},
    {"llama.json", "{\"no_rope_layers\": [1, 0]}", "no_rope_layers: this option"},
    {"llama.json", "{\"use_qk_norm\": true}", "use_qk_norm: this option"},
    {"llama.json", "{\"position_embedding_type\": \"alibi\"}",
     "position_embedding_type: \"alibi\""},
    {"llama.json", "{\"intermediate_size\": 8388608, \"num_hidden_layers\": 1025}",
     "num_hidden_layers: 1025"},
    {"llama.json",
     "{\"num_attention_heads\": 65536, \"num_key_value_heads\": 65536, \"head_dim\": 512}",
     "extent 33554432"},
    {"mistral.json", "{\"sliding_window\": 0}", "sliding_window: 0"},
    {"mistral.json", "{\"sliding_window\": \"4\"}", "sliding_window: not an integer"},
    {"qwen2.json", "{\"use_sliding_window\": 1}", "use_sliding_window: not true or false"},
    {"qwen2.json", "{\"use_sliding_window\": true, \"sliding_window\": -1}", "sliding_window: -1"},
    {"qwen2.json", "{\"use_sliding_window\": true, \"layer_types\": [\"full_attention\"]}",
     "layer_types: not a list of 3 names"},
    {"qwen3.json",
     "{\"use_sliding_window\": true, \"layer_types\": [\"full_attention\", \"chunked\", 3]}",
     "layer_types[1]: \"chunked\""},
};

static void expect_refusal(const struct refusal *r) {
    char *base = test_data(r->file);
    struct mxc_config config = test_config_change(base, r->change);
    struct mxc_graph *graph = NULL;
    struct mxc_err err = {0};
    enum mxc_code code = build(&config, NULL, &graph, &err);
    if (!code || code == MXC_E_INTERNAL || !strstr(err.message, r->message))
        fail_msg("%s: code %d, \"%s\": expected \"%s\"", r->change, (int)code, err.message,
                 r->message);
    assert_null(graph);
    test_config_fini(&config);
    mxc_mem_free(base);
}

static void hostile_configs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        expect_refusal(&refusals[i]);
}

static void neutral_options(void **state) {
    (void)state;
    struct mxc_graph *g =
        changed("llama.json", "{\"logits_scaling\": 1.0, \"num_experts\": 0, \"alibi\": false, "
                              "\"no_rope_layers\": [], \"pretraining_tp\": 2, "
                              "\"position_embedding_type\": \"rope\", \"something_new\": 5}");
    mxc_graph_free(g);
}

/* 1,024 layers of the smallest model are the largest graph: bounded, and quick. */
static void largest_graph(void **state) {
    (void)state;
    struct mxc_graph *g = changed("qwen2.json", "{\"num_hidden_layers\": 1024}");
    assert_int_equal(g->n_layers, 1024);
    assert_string_equal(g->values[g->layer_values[1024]].name, "layer.1023.out");
    mxc_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_graphs),   cmocka_unit_test(checkpoint_graphs),
        cmocka_unit_test(defaults),        cmocka_unit_test(activations),
        cmocka_unit_test(windows),         cmocka_unit_test(biases),
        cmocka_unit_test(biases_by_file),  cmocka_unit_test(tied_heads),
        cmocka_unit_test(hostile_configs), cmocka_unit_test(neutral_options),
        cmocka_unit_test(largest_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

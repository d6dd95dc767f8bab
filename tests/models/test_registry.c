/* Registry: finding families, errors that name the nearest, and mxc_model_graph over checkpoints
 * with a tensor missing or of another shape, and with the n-th allocation failing. */
#include "test.h"

#include "base/mem.h"
#include "checkpoint.h"

#include <string.h>

static void list(void **state) {
    (void)state;
    static const char *const names[] = {
        "llama",     "mistral",     "mixtral",     "qwen2",       "qwen2_moe",  "qwen3",
        "qwen3_moe", "gemma",       "gemma2",      "gemma3_text", "phi3",       "smollm3",
        "olmo2",     "granite",     "cohere",      "glm4",        "starcoder2", "stablelm",
        "ernie4_5",  "bailing_moe", "deepseek_v3", "gpt_oss",     "qwen2_vl",   "qwen2_5_vl",
        "qwen3_vl",  "llava",       "mllama",      "gemma3",      "idefics3",   "bert"};
    const int n_names = sizeof names / sizeof *names;
    const struct mxc_family *const *families = mxc_family_list();
    int n = 0;
    for (; families[n]; n++) {
        assert_true(n < n_names);
        assert_string_equal(families[n]->name, names[n]);
        assert_non_null(families[n]->model_types[0]);
        assert_true(families[n]->summary[0] != 0);
        assert_non_null(families[n]->build);
    }
    assert_int_equal(n, n_names);
}

static void find(void **state) {
    (void)state;
    static const struct {
        const char *type;
        bool gguf;
        const char *family, *message;
    } cases[] = {
        {"llama", false, "llama", NULL},
        {"mistral", false, "mistral", NULL},
        {"qwen2", false, "qwen2", NULL},
        {"qwen3", false, "qwen3", NULL},
        {"llama", true, "llama", NULL},
        {"qwen3", true, "qwen3", NULL},
        {"mistral", true, "mistral", NULL}, /* translated by format/ */
        {"lama", false, NULL, "model_type: \"lama\" is not supported (nearest: \"llama\""},
        {"qwen", false, NULL, "nearest: \"qwen2\""},
        {"mixtrel", false, NULL, "nearest: \"mixtral\""},
        {"glm", false, "glm4", NULL},
        {"command-r", true, "cohere", NULL},
        {"command-r", false, NULL, "\"command-r\" is not supported"},
        {"deepseek_v2", false, "deepseek_v3", NULL},
        {"LLAMA", false, NULL, "\"LLAMA\" is not supported"},
        {"qwen33", true, NULL,
         "general.architecture: \"qwen33\" is not supported (nearest: \"qwen3\""},
        {"", false, NULL, "model_type: missing"},
        {NULL, false, NULL, "model_type: missing"},
        {NULL, true, NULL, "general.architecture: missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char type[16] = "";
        memcpy(type, cases[i].type ? cases[i].type : "", cases[i].type ? strlen(cases[i].type) : 0);
        struct mxc_config config = {.model_type = cases[i].type ? type : NULL,
                                    .from_gguf = cases[i].gguf};
        const struct mxc_family *family = NULL;
        struct mxc_err err = {0};
        enum mxc_code code = mxc_family_find(&config, &family, &err);
        if (cases[i].family) {
            assert_int_equal(code, MXC_OK);
            assert_string_equal(family->name, cases[i].family);
        } else {
            assert_int_equal(code, *type ? MXC_E_UNSUPPORTED : MXC_E_FORMAT);
            assert_null(family);
            if (!strstr(err.message, cases[i].message))
                fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].message);
        }
    }
}

static void nearest(void **state) {
    (void)state;
    static const char *const names[] = {"alpha", "beta", NULL}, *const none[] = {NULL};
    assert_string_equal(mxc_models_nearest("bet", names), "beta");
    assert_string_equal(mxc_models_nearest("", names), "beta");
    assert_null(mxc_models_nearest("x", none));
}

static struct mxc_graph *must_graph(const struct mxc_config *config) {
    const struct mxc_family *family;
    struct mxc_graph *g = NULL;
    struct mxc_err err;
    if (mxc_family_find(config, &family, &err) || mxc_graph_new(family->name, &g, &err) ||
        family->build(config, NULL, g, &err))
        fail_msg("%s", err.message);
    return g;
}

static void expect(const char *file, const char *change, const struct test_change *tensors,
                   enum mxc_code want, const char *message) {
    char *base = test_data(file);
    struct mxc_config whole = test_config(base), config = test_config_change(base, change);
    struct mxc_graph *g = must_graph(&whole);
    struct test_checkpoint c;
    test_checkpoint_open(g, tensors, &c);
    mxc_graph_free(g);
    g = NULL;
    struct mxc_err err = {0};
    enum mxc_code code = mxc_model_graph(&config, c.weights, &g, &err);
    if (code != want || (message && !strstr(err.message, message)))
        fail_msg("code %d, \"%s\": expected \"%s\"", (int)code, err.message,
                 message ? message : "success");
    assert_int_equal(g != NULL, want == MXC_OK);
    if (want && !strstr(err.message, "config.json"))
        fail_msg("\"%s\" does not name config.json", err.message);
    mxc_graph_free(g);
    test_checkpoint_close(&c);
    test_config_fini(&config);
    test_config_fini(&whole);
    mxc_mem_free(base);
}

static void model_graph(void **state) {
    (void)state;
    static const char *const files[] = {"llama.json",       "llama_tied_rope3.json",
                                        "llama_v5cfg.json", "mistral.json",
                                        "qwen2.json",       "qwen3.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        expect(files[i], "{}", NULL, MXC_OK, NULL);
    struct test_change extra = {
        .extra = {.name = "model.rotary.inv_freq", .n_dims = 1, .shape = {8}}};
    expect("llama.json", "{}", &extra, MXC_OK, NULL);
}

static void wrong_tensors(void **state) {
    (void)state;
    static const struct {
        const char *file, *drop, *reshape, *change;
        enum mxc_code code;
        const char *message;
    } cases[] = {
        {"llama.json", "model.layers.1.mlp.up_proj.weight", NULL, "{}", MXC_E_NOT_FOUND,
         "model.layers.1.mlp.up_proj.weight"},
        {"llama.json", "model.embed_tokens.weight", NULL, "{}", MXC_E_NOT_FOUND,
         "model.embed_tokens.weight"},
        {"qwen2.json", "model.layers.2.self_attn.k_proj.bias", NULL, "{}", MXC_E_NOT_FOUND,
         "model.layers.2.self_attn.k_proj.bias"},
        {"qwen3.json", "model.layers.0.self_attn.q_norm.weight", NULL, "{}", MXC_E_NOT_FOUND,
         "model.layers.0.self_attn.q_norm.weight"},
        {"llama.json", NULL, "model.norm.weight", "{}", MXC_E_FORMAT, "model.norm.weight"},
        {"llama.json", NULL, "model.layers.0.self_attn.o_proj.weight", "{}", MXC_E_FORMAT,
         "model.layers.0.self_attn.o_proj.weight"},
        {"llama.json", NULL, NULL, "{\"num_hidden_layers\": 4}", MXC_E_NOT_FOUND,
         "model.layers.3."},
        {"llama.json", NULL, NULL, "{\"vocab_size\": 100}", MXC_E_FORMAT,
         "model.embed_tokens.weight"},
        {"llama.json", NULL, NULL, "{\"model_type\": \"foo\"}", MXC_E_UNSUPPORTED, "foo"},
        {"llama.json", NULL, NULL, "{\"hidden_act\": \"foo\"}", MXC_E_UNSUPPORTED,
         "config.json: hidden_act"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_change change = {.drop = cases[i].drop, .reshape = cases[i].reshape};
        expect(cases[i].file, cases[i].change, &change, cases[i].code, cases[i].message);
    }
}

static void out_of_memory(void **state) {
    (void)state;
    char *base = test_data("llama_tied_rope3.json");
    struct mxc_config config = test_config(base);
    struct mxc_graph *g = must_graph(&config);
    struct test_checkpoint c;
    test_checkpoint_open(g, NULL, &c);
    mxc_graph_free(g);
    uint64_t n = 1;
    for (;; n++) {
        struct mxc_err err = {0};
        g = NULL;
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_model_graph(&config, c.weights, &g, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
        assert_string_equal(err.message, "out of memory");
        assert_null(g);
    }
    assert_true(n > 10);
    mxc_graph_free(g);
    test_checkpoint_close(&c);
    test_config_fini(&config);
    mxc_mem_free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list),          cmocka_unit_test(find),
        cmocka_unit_test(nearest),       cmocka_unit_test(model_graph),
        cmocka_unit_test(wrong_tensors), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

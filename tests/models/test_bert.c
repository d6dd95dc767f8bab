/* The bert family without a checkpoint: names, defaults, and configs that must be refused; and
 * decoders without their heads. */
#define _GNU_SOURCE
#include "test.h"

#include "checkpoint.h"

#include <string.h>

static const char base[] =
    "{\"model_type\": \"bert\", \"vocab_size\": 30, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 24, "
    "\"max_position_embeddings\": 40}";

static bool has(const struct mxc_graph *g, const char *name) {
    for (int32_t i = 0; i < g->n_weights; i++)
        if (!strcmp(g->weights[i].name, name))
            return true;
    return false;
}

/* The graph of a config alone; the error's message, NULL: none. */
static enum mxc_code build(const char *change, struct mxc_graph **graph, struct mxc_err *err) {
    struct mxc_config config = test_config_change(base, change);
    const struct mxc_family *family;
    struct mxc_graph *g = NULL;
    enum mxc_code code = mxc_family_find(&config, &family, err);
    if (!code)
        code = mxc_graph_new(family->name, &g, err);
    if (!code)
        code = family->build(&config, NULL, g, err);
    test_config_fini(&config);
    if (code)
        mxc_graph_free(g);
    else
        *graph = g;
    return code;
}

static void plain(void **state) {
    struct mxc_graph *g;
    struct mxc_err err;
    (void)state;
    assert_int_equal(build("{}", &g, &err), MXC_OK);
    assert_true(g->hidden_out && g->both_ways);
    assert_int_equal(g->vocab, 30);
    assert_int_equal(g->hidden, 16);
    assert_int_equal(g->n_layers, 2);
    assert_int_equal(g->max_position, 40);
    assert_true(has(g, "embeddings.token_type_embeddings.weight"));
    assert_true(has(g, "encoder.layer.1.output.LayerNorm.bias"));
    assert_false(has(g, "pooler.dense.weight"));
    bool erf = false;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op == MXC_OP_LAYER_NORM)
            assert_true(g->nodes[i].u.norm.eps == 1e-12f);
        erf |= g->nodes[i].op == MXC_OP_ACT && g->nodes[i].u.glu.act == MXC_ACT_GELU;
    }
    assert_true(erf);
    mxc_graph_free(g);
}

static void refused(void **state) {
    static const struct {
        const char *change;
        enum mxc_code code;
        const char *message;
    } cases[] = {
        {"{\"hidden_size\": null}", MXC_E_FORMAT, "hidden_size"},
        {"{\"num_attention_heads\": 0}", MXC_E_FORMAT, "num_attention_heads"},
        {"{\"num_attention_heads\": 3}", MXC_E_FORMAT, "num_attention_heads"},
        {"{\"num_attention_heads\": 16}", MXC_E_FORMAT, "num_attention_heads"},
        {"{\"max_position_embeddings\": null}", MXC_E_FORMAT, "max_position_embeddings"},
        {"{\"type_vocab_size\": 0}", MXC_E_FORMAT, "type_vocab_size"},
        {"{\"layer_norm_eps\": -1}", MXC_E_FORMAT, "layer_norm_eps"},
        {"{\"layer_norm_eps\": \"x\"}", MXC_E_FORMAT, "layer_norm_eps"},
        {"{\"hidden_act\": \"mish\"}", MXC_E_UNSUPPORTED, "hidden_act"},
        {"{\"position_embedding_type\": \"relative_key\"}", MXC_E_UNSUPPORTED, "relative_key"},
        {"{\"is_decoder\": true}", MXC_E_UNSUPPORTED, "is_decoder"},
        {"{\"add_cross_attention\": true}", MXC_E_UNSUPPORTED, "add_cross_attention"},
        {"{\"vocab_size\": 2000000}", MXC_E_FORMAT, "vocab_size"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = NULL;
        struct mxc_err err = {.message = ""};
        enum mxc_code code = build(cases[i].change, &g, &err);
        if (code != cases[i].code || !strstr(err.message, cases[i].message))
            fail_msg("%s: code %d, \"%s\"", cases[i].change, (int)code, err.message);
    }
}

/* A tensor that is missing is named; a decoder's hidden graph asks for no head. */
static void against_files(void **state) {
    static const char decoder[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 30, \"hidden_size\": 16, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 24, "
        "\"tie_word_embeddings\": false}";
    struct mxc_graph *g = NULL, *again = NULL;
    struct test_checkpoint files;
    struct mxc_err err;
    (void)state;
    struct mxc_config config = test_config(base);
    const struct test_change lost = {.drop = "encoder.layer.1.output.dense.bias"};
    assert_int_equal(build("{}", &g, &err), MXC_OK);
    test_checkpoint_open(g, &lost, &files);
    assert_int_equal(mxc_model_graph(&config, files.weights, &again, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, lost.drop));
    test_checkpoint_close(&files);
    test_config_fini(&config);
    mxc_graph_free(g);

    config = test_config(decoder);
    assert_int_equal(mxc_graph_new("llama", &g, &err), MXC_OK);
    const struct mxc_family *family;
    assert_int_equal(mxc_family_find(&config, &family, &err), MXC_OK);
    g->hidden_out = true;
    assert_int_equal(family->build(&config, NULL, g, &err), MXC_OK);
    test_checkpoint_open(g, &(struct test_change){.drop = NULL}, &files);
    assert_int_equal(mxc_model_hidden_graph(&config, files.weights, &again, &err), MXC_OK);
    assert_true(again->hidden_out && !again->both_ways && again->vocab == 30);
    assert_false(has(again, "lm_head.weight"));
    mxc_graph_free(again);
    test_checkpoint_close(&files);
    test_config_fini(&config);
    mxc_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(refused),
                                       cmocka_unit_test(against_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

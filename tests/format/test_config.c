/* Config: config.json and generation_config.json in their spellings, what is refused, and GGUF
 * metadata translated to the same keys. */
#include "test.h"

#include "base/half.h"
#include "base/mem.h"
#include "files.h"
#include "format/config.h"
#include "format/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"vocab_size\":100"

static enum mxc_code open_text(const char *config, const char *generation, struct mxc_config **c,
                               struct mxc_err *err) {
    files_text("c/config.json", config);
    files_text("c/generation_config.json", generation ? generation : "{}");
    return mxc_config_open(files_path("c"), c, err);
}

static struct mxc_config *must_open(const char *config, const char *generation) {
    struct mxc_config *c;
    struct mxc_err err;
    if (open_text(config, generation, &c, &err))
        fail_msg("%s", err.message);
    return c;
}

static void test_plain(void **unused) {
    (void)unused;
    struct mxc_config *c = must_open(
        "{\"model_type\":\"llama\"," SIZES ",\"max_position_embeddings\":77,\"eos_token_id\":3,"
        "\"bos_token_id\":1,\"pad_token_id\":null}",
        "{\"eos_token_id\":[3,5,100,-1],\"pad_token_id\":9,\"temperature\":0.6,\"top_p\":null,"
        "\"top_k\":20,\"do_sample\":true}");
    assert_string_equal(c->model_type, "llama");
    assert_ptr_equal(c->root, c->text);
    assert_null(c->quantization);
    assert_int_equal(c->n_eos, 2); /* 100 and -1 are no tokens */
    assert_int_equal(c->eos[0], 3);
    assert_int_equal(c->eos[1], 5);
    assert_int_equal(c->bos, 1);
    assert_int_equal(c->pad, 9);
    assert_int_equal(c->max_position, 77);
    assert_true(c->defaults.temperature == 0.6);
    assert_true(isnan(c->defaults.top_p) && isnan(c->defaults.min_p));
    assert_int_equal(c->defaults.top_k, 20);
    assert_int_equal(c->defaults.do_sample, 1);
    assert_false(c->from_gguf);
    mxc_config_close(c);
}

static void test_nested(void **unused) {
    (void)unused;
    struct mxc_config *c =
        must_open("{\"model_type\":\"llava\",\"eos_token_id\":7,\"quantization\":{\"bits\":4},"
                  "\"text_config\":{" SIZES ",\"model_type\":\"llama\",\"eos_token_id\":[8,7],"
                  "\"bos_token_id\":2,\"max_position_embeddings\":5}}",
                  NULL);
    assert_string_equal(c->model_type, "llava");
    assert_ptr_equal(c->text, json_object_get(c->root, "text_config"));
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 7);
    assert_int_equal(c->eos[1], 8);
    assert_int_equal(c->bos, 2);
    assert_int_equal(c->max_position, 5);
    assert_ptr_equal(c->quantization, json_object_get(c->root, "quantization"));
    assert_int_equal(c->defaults.top_k, -1);
    assert_int_equal(c->defaults.do_sample, -1);
    mxc_config_close(c);
    c = must_open("{\"model_type\":\"x\",\"llm_config\":{\"quantization_config\":{\"bits\":4}}}",
                  NULL);
    assert_ptr_equal(c->text, json_object_get(c->root, "llm_config"));
    assert_non_null(c->quantization);
    mxc_config_close(c);
    files_text("d/config.json", "{\"model_type\":\"x\"}"); /* no generation_config.json */
    assert_int_equal(mxc_config_open(files_path("d"), &c, NULL), MXC_OK);
    assert_int_equal(c->n_eos, 0);
    assert_int_equal(c->bos, -1);
    mxc_config_close(c);
}

static void test_many_eos(void **unused) {
    (void)unused;
    struct mxc_config *c = must_open("{\"model_type\":\"x\",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,"
                                     "11,12,13,14,15,16,17,18,19,20]}",
                                     NULL);
    assert_int_equal(c->n_eos, MXC_MAX_EOS);
    mxc_config_close(c);
}

#define L(fields) "{\"model_type\":\"llama\"," fields "}"

static void test_bad(void **unused) {
    (void)unused;
    static const struct {
        const char *config, *generation, *words;
    } rows[] = {
        {"", NULL, "c/config.json"},
        {"  ", NULL, "c/config.json"},
        {"{", NULL, "c/config.json line"},
        {"[]", NULL, "c/config.json object"},
        {"{}", NULL, "c/config.json model_type missing"},
        {"{\"model_type\":\"\"}", NULL, "model_type missing"},
        {"{\"model_type\":7}", NULL, "model_type string"},
        {L("\"x\":NaN"), NULL, "c/config.json"},
        {L("\"x\":1,\"x\":2"), NULL, "duplicate"},
        {L("\"hidden_size\":-16"), NULL, "c/config.json hidden_size -16"},
        {L("\"hidden_size\":2147483648"), NULL, "hidden_size"},
        {L("\"hidden_size\":\"16\""), NULL, "hidden_size integer"},
        {L("\"hidden_size\":16.5"), NULL, "hidden_size integer"},
        {L("\"hidden_size\":true"), NULL, "hidden_size integer"},
        {L("\"hidden_size\":99999999999999999999"), NULL, "hidden_size integer"},
        {L("\"num_hidden_layers\":1000000000"), NULL, "num_hidden_layers"},
        {L("\"num_attention_heads\":0"), NULL, "num_attention_heads"},
        {L("\"num_attention_heads\":2,\"num_key_value_heads\":4"), NULL, "num_key_value_heads"},
        {L("\"num_attention_heads\":3,\"num_key_value_heads\":2"), NULL, "num_key_value_heads"},
        {L("\"num_attention_heads\":3,\"hidden_size\":16"), NULL, "hidden_size divide"},
        {L("\"head_dim\":0"), NULL, "head_dim"},
        {L("\"vocab_size\":2147483648"), NULL, "vocab_size"},
        {L("\"max_position_embeddings\":0"), NULL, "max_position_embeddings"},
        {L("\"rms_norm_eps\":-1"), NULL, "rms_norm_eps"},
        {L("\"rope_theta\":0"), NULL, "rope_theta"},
        {L("\"rope_theta\":[1]"), NULL, "rope_theta number"},
        {L("\"tie_word_embeddings\":1"), NULL, "tie_word_embeddings"},
        {L("\"text_config\":7"), NULL, "text_config object"},
        {L("\"quantization\":7"), NULL, "quantization object"},
        {L("\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}"), NULL,
         "bitsandbytes supported"},
        {L("\"quantization_config\":{\"quant_method\":1}"), NULL, "quant_method"},
        {L("\"eos_token_id\":\"x\""), NULL, "eos_token_id"},
        {L("\"eos_token_id\":[1,null]"), NULL, "eos_token_id"},
        {L("\"bos_token_id\":1.5"), NULL, "bos_token_id"},
        {L("\"x\":1"), "[]", "c/generation_config.json object"},
        {L("\"x\":1"), "{", "c/generation_config.json"},
        {L("\"x\":1"), "{\"temperature\":-1}", "c/generation_config.json temperature"},
        {L("\"x\":1"), "{\"top_p\":2}", "top_p"},
        {L("\"x\":1"), "{\"top_k\":\"x\"}", "top_k"},
        {L("\"x\":1"), "{\"do_sample\":1}", "do_sample"},
        {L("\"x\":1"), "{\"eos_token_id\":1e9}", "generation_config.json eos_token_id"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_config *c = NULL;
        struct mxc_err err = {0};
        if (!open_text(rows[i].config, rows[i].generation, &c, &err))
            fail_msg("accepted: %s %s", rows[i].config, rows[i].generation);
        assert_null(c);
        files_expect(&err, rows[i].words);
    }
    struct mxc_config *c;
    struct mxc_err err;
    assert_int_equal(mxc_config_open(files_path("nowhere"), &c, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "nowhere");
    files_text("e/other", "");
    assert_int_equal(mxc_config_open(files_path("e"), &c, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "e/config.json");
}

/* A key of a GGUF file; list: count elements of the type, all `number` but the first. */
struct key {
    const char *name;
    enum mxc_gguf_type type;
    double number;
    const char *text;
    unsigned list, first;
};

static void put_number(struct mxc_buf *b, enum mxc_gguf_type type, double number) {
    if (type == MXC_GGUF_F32)
        files_uint(b, mxc_f32_bits((float)number), 4);
    else
        files_uint(b, (uint64_t)(int64_t)number, type == MXC_GGUF_U64 ? 8 : 4);
}

static const char *write_gguf(const struct key *keys, size_t n, const char *const *tensors,
                              size_t n_tensors) {
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    files_uint(&b, 0x46554747, 4);
    files_uint(&b, 3, 4);
    files_uint(&b, n_tensors, 8);
    files_uint(&b, n, 8);
    for (size_t i = 0; i < n; i++) {
        const struct key *k = &keys[i];
        files_string(&b, k->name);
        files_uint(&b, k->list ? MXC_GGUF_ARRAY : k->type, 4);
        if (k->list) {
            files_uint(&b, k->type, 4);
            files_uint(&b, k->list, 8);
        }
        for (unsigned e = 0; e < (k->list ? k->list : 1); e++) {
            if (k->type == MXC_GGUF_STRING)
                files_string(&b, e || !k->list ? k->text : "<|im_end|>");
            else
                put_number(&b, k->type, k->list && !e ? k->first : k->number);
        }
    }
    for (size_t i = 0; i < n_tensors; i++) {
        files_string(&b, tensors[i]);
        files_uint(&b, 2, 4);
        files_uint(&b, 2, 8);
        files_uint(&b, 4, 8);
        files_uint(&b, 0, 4);
        files_uint(&b, 32 * i, 8);
    }
    files_pad(&b, 32);
    for (size_t i = 0; i < 4 * n_tensors; i++)
        files_uint(&b, 0, 8);
    const char *path = files_write("m.gguf", b.data, b.length);
    mxc_buf_fini(&b);
    return path;
}

enum { ARCH, LAYERS, HIDDEN, HEADS, N_BASE = 7, N_KEYS = 12 };

static const struct key base[N_BASE] = {
    {"general.architecture", MXC_GGUF_STRING, 0, "llama", 0, 0},
    {"llama.block_count", MXC_GGUF_U32, 2, NULL, 0, 0},
    {"llama.embedding_length", MXC_GGUF_U64, 64, NULL, 0, 0},
    {"llama.attention.head_count", MXC_GGUF_I32, 4, NULL, 0, 0},
    {"llama.attention.head_count_kv", MXC_GGUF_U32, 2, NULL, 2, 2},
    {"llama.context_length", MXC_GGUF_U32, 512, NULL, 0, 0},
    {"llama.attention.layer_norm_rms_epsilon", MXC_GGUF_F32, 1e-5, NULL, 0, 0},
};

static const char *write_with(const struct key *more, size_t n) {
    static const char *const tensors[] = {"token_embd.weight", "output.weight"};
    struct key keys[N_KEYS];
    memcpy(keys, base, sizeof base);
    memcpy(keys + N_BASE, more, n * sizeof *more);
    return write_gguf(keys, N_BASE + n, tensors, 2);
}

static int64_t int_of(const struct mxc_config *c, const char *key) {
    json_t *v = json_object_get(c->root, key);
    if (!json_is_integer(v))
        fail_msg("no integer %s", key);
    return json_integer_value(v);
}

static void test_gguf(void **unused) {
    (void)unused;
    static const struct key more[] = {
        {"llama.rope.freq_base", MXC_GGUF_F32, 5e5, NULL, 0, 0},
        {"tokenizer.ggml.eos_token_id", MXC_GGUF_U32, 2, NULL, 0, 0},
        {"tokenizer.ggml.bos_token_id", MXC_GGUF_U32, 1, NULL, 0, 0},
        {"tokenizer.ggml.tokens", MXC_GGUF_STRING, 0, "x", 4, 0},
        {"tokenizer.ggml.token_type", MXC_GGUF_I32, 1, NULL, 4, 3},
    };
    struct mxc_config *c;
    struct mxc_err err;
    if (mxc_config_open(write_with(more, 5), &c, &err))
        fail_msg("%s", err.message);
    assert_true(c->from_gguf);
    assert_string_equal(c->model_type, "llama");
    assert_int_equal(int_of(c, "num_hidden_layers"), 2);
    assert_int_equal(int_of(c, "hidden_size"), 64);
    assert_int_equal(int_of(c, "num_attention_heads"), 4);
    assert_int_equal(int_of(c, "num_key_value_heads"), 2);
    assert_int_equal(int_of(c, "head_dim"), 16);
    assert_int_equal(int_of(c, "vocab_size"), 4);
    assert_int_equal(c->max_position, 512);
    assert_true(json_is_false(json_object_get(c->root, "tie_word_embeddings")));
    assert_true(json_real_value(json_object_get(c->root, "rope_theta")) == 5e5);
    assert_true((float)json_real_value(json_object_get(c->root, "rms_norm_eps")) == 1e-5f);
    assert_null(json_object_get(c->root, "rope_scaling"));
    assert_int_equal(c->n_eos, 2); /* the key's, and the control token <|im_end|> = 0 */
    assert_int_equal(c->eos[0], 2);
    assert_int_equal(c->eos[1], 0);
    assert_int_equal(c->bos, 1);
    mxc_config_close(c);
}

static void test_gguf_scaling(void **unused) {
    (void)unused;
    static const struct key yarn[] = {
        {"llama.rope.scaling.type", MXC_GGUF_STRING, 0, "yarn", 0, 0},
        {"llama.rope.scaling.factor", MXC_GGUF_F32, 4, NULL, 0, 0},
        {"llama.rope.scaling.original_context_length", MXC_GGUF_U32, 128, NULL, 0, 0},
        {"llama.attention.key_length", MXC_GGUF_U32, 32, NULL, 0, 0},
        {"llama.rope.dimension_count", MXC_GGUF_U32, 8, NULL, 0, 0},
    };
    static const struct key old[] = {{"llama.rope.scale_linear", MXC_GGUF_F32, 2, NULL, 0, 0}};
    struct mxc_config *c;
    assert_int_equal(mxc_config_open(write_with(yarn, 5), &c, NULL), MXC_OK);
    json_t *s = json_object_get(c->root, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(s, "rope_type")), "yarn");
    assert_true(json_real_value(json_object_get(s, "factor")) == 4);
    assert_int_equal(json_integer_value(json_object_get(s, "original_max_position_embeddings")),
                     128);
    assert_int_equal(int_of(c, "head_dim"), 32);
    assert_true(json_real_value(json_object_get(c->root, "partial_rotary_factor")) == 0.25);
    mxc_config_close(c);
    assert_int_equal(mxc_config_open(write_with(old, 1), &c, NULL), MXC_OK);
    s = json_object_get(c->root, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(s, "rope_type")), "linear");
    assert_true(json_real_value(json_object_get(s, "factor")) == 2);
    mxc_config_close(c);
}

static void test_bad_gguf(void **unused) {
    (void)unused;
    static const struct {
        int at; /* index of the key to replace */
        struct key key;
        const char *words;
    } rows[] = {
        {ARCH, {"general.architecture", MXC_GGUF_U32, 1, NULL, 0, 0}, "general.architecture"},
        {ARCH, {"general.architecture", MXC_GGUF_STRING, 0, "", 0, 0}, "general.architecture"},
        {ARCH, {"general.architecture", MXC_GGUF_STRING, 0, "a\nb", 0, 0}, "general.architecture"},
        {LAYERS, {"x", MXC_GGUF_U32, 1, NULL, 0, 0}, "llama.block_count missing"},
        {LAYERS, {"llama.block_count", MXC_GGUF_STRING, 0, "2", 0, 0}, "llama.block_count"},
        {LAYERS, {"llama.block_count", MXC_GGUF_F32, 2, NULL, 0, 0}, "llama.block_count"},
        {LAYERS, {"llama.block_count", MXC_GGUF_I32, -1, NULL, 0, 0}, "llama.block_count"},
        {HEADS, {"llama.attention.head_count", MXC_GGUF_U32, 0, NULL, 0, 0}, "head_count"},
        {HEADS, {"llama.attention.head_count", MXC_GGUF_U32, 3, NULL, 0, 0}, "head_count multiple"},
        {HEADS, {"llama.attention.head_count", MXC_GGUF_U32, 6, NULL, 0, 0}, "head_count divide"},
        {HEADS, {"llama.attention.head_count", MXC_GGUF_U32, 1 << 20, NULL, 0, 0}, "head_count"},
        {HEADS, {"llama.attention.head_count", MXC_GGUF_U32, 4, NULL, 2, 0}, "head_count range"},
        {5, {"llama.context_length", MXC_GGUF_U32, 0, NULL, 0, 0}, "context_length"},
        {5, {"llama.rope.dimension_count", MXC_GGUF_U32, 7, NULL, 0, 0}, "dimension_count odd"},
        {5, {"llama.rope.dimension_count", MXC_GGUF_U32, 64, NULL, 0, 0}, "dimension_count wider"},
        {5, {"llama.rope.freq_base", MXC_GGUF_F32, 0, NULL, 0, 0}, "freq_base"},
        {5, {"llama.rope.scaling.factor", MXC_GGUF_F32, 0, NULL, 0, 0}, "scaling.factor"},
        {6,
         {"llama.attention.layer_norm_rms_epsilon", MXC_GGUF_F32, (double)NAN, NULL, 0, 0},
         "epsilon"},
        {6, {"llama.attention.layer_norm_rms_epsilon", MXC_GGUF_F32, -1, NULL, 0, 0}, "epsilon"},
        {6, {"tokenizer.ggml.eos_token_id", MXC_GGUF_STRING, 0, "2", 0, 0}, "eos_token_id"},
        {6, {"tokenizer.ggml.tokens", MXC_GGUF_U32, 0, NULL, 0, 0}, "tokens"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_config *c;
        struct mxc_err err = {0};
        struct key keys[N_BASE];
        memcpy(keys, base, sizeof keys);
        keys[rows[i].at] = rows[i].key;
        if (!mxc_config_open(write_gguf(keys, N_BASE, NULL, 0), &c, &err))
            fail_msg("accepted: case %zu (%s)", i, rows[i].words);
        files_expect(&err, "m.gguf:");
        files_expect(&err, rows[i].words);
    }
    /* an architecture that no key speaks of is the registry's to refuse */
    struct mxc_config *c;
    assert_int_equal(
        mxc_config_open(write_gguf((const struct key[]){{"general.architecture", MXC_GGUF_STRING, 0,
                                                         "foo", 0, 0}},
                                   1, NULL, 0),
                        &c, NULL),
        MXC_OK);
    assert_string_equal(c->model_type, "foo");
    mxc_config_close(c);
}

static void test_no_memory(void **unused) {
    (void)unused;
    files_text("c/config.json", "{\"model_type\":\"llama\"," SIZES ",\"eos_token_id\":[1,2]}");
    files_text("c/generation_config.json", "{\"eos_token_id\":4}");
    static const struct key more[] = {{"llama.rope.scaling.type", MXC_GGUF_STRING, 0, "yarn", 0, 0},
                                      {"llama.rope.scaling.factor", MXC_GGUF_F32, 4, NULL, 0, 0},
                                      {"llama.feed_forward_length", MXC_GGUF_U32, 4, NULL, 3, 5}};
    const char *paths[] = {files_path("c"), write_with(more, 3)};
    for (int i = 0; i < 2; i++) {
        enum mxc_code code = MXC_E_NOMEM;
        for (uint64_t n = 1; code; n++) {
            struct mxc_config *c = NULL;
            assert_true(n < 300);
            mxc_mem_fail_at(n);
            code = mxc_config_open(paths[i], &c, NULL);
            mxc_mem_fail_at(0);
            /* jansson calls a failed allocation a syntax error */
            assert_true(!code || code == MXC_E_NOMEM || code == MXC_E_FORMAT);
            mxc_config_close(c);
        }
    }
}

static void test_golden(void **unused) {
    (void)unused;
    static const char *const names[] = {"llama", "llama_v5cfg", "llama_mlx_mixed", "qwen3",
                                        "llama_gguf_q4_k_m_tied_rope3/model.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        struct mxc_config *c;
        struct mxc_err err;
        (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, names[i]);
        if (mxc_config_open(path, &c, &err))
            fail_msg("%s", err.message);
        assert_string_equal(c->model_type, i == 3 ? "qwen3" : "llama");
        assert_true(c->n_eos >= 1);
        assert_int_equal(c->max_position, 2048);
        assert_true((c->quantization != NULL) == (i == 2));
        mxc_config_close(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_nested),
        cmocka_unit_test(test_many_eos), cmocka_unit_test(test_bad),
        cmocka_unit_test(test_gguf),     cmocka_unit_test(test_gguf_scaling),
        cmocka_unit_test(test_bad_gguf), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

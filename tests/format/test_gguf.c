/* GGUF reader: a small file built here, one mutation per check, every truncation, failed
 * allocations, accessors, names, and every block type against stored reference numbers. */
#include "test.h"

#include "base/half.h"
#include "base/mem.h"
#include "files.h"
#include "format/gguf.h"
#include "format/gguf_names.h"
#include "format/safetensors.h"
#include "quant/decode.h"

#include <stdlib.h>
#include <string.h>

/* What a mutation changes; zero: as it should be. */
struct plan {
    uint64_t magic, version, n_tensors, n_values, alignment, value_type, element, count, length;
    uint64_t name_length, n_dims, dim, type, offset, second_offset;
    const char *second_name, *second_key;
    size_t n_data;
};

static uint64_t or_else(uint64_t value, uint64_t standard) {
    return value ? value : standard;
}

/* Keys: general.alignment u32, list [3] of u8, text, a second text. Tensors: t [32 x 2] Q4_0 at 0
 * (36 bytes), and "u" [3] F32 at 64. */
static void build(struct mxc_buf *b, const struct plan *p) {
    mxc_buf_clear(b);
    files_uint(b, or_else(p->magic, 0x46554747), 4);
    files_uint(b, or_else(p->version, 3), 4);
    files_uint(b, or_else(p->n_tensors, 2), 8);
    files_uint(b, or_else(p->n_values, 4), 8);
    files_string(b, "general.alignment");
    files_uint(b, MXC_GGUF_U32, 4);
    files_uint(b, or_else(p->alignment, 64), 4);
    files_string(b, "list");
    files_uint(b, or_else(p->value_type, MXC_GGUF_ARRAY), 4);
    files_uint(b, p->element, 4);
    files_uint(b, or_else(p->count, 3), 8);
    files_uint(b, 0x0302FF, 3);
    files_string(b, "text");
    files_uint(b, MXC_GGUF_STRING, 4);
    files_uint(b, or_else(p->length, 5), 8);
    assert_true(mxc_buf_puts(b, "hello"));
    files_string(b, p->second_key ? p->second_key : "more");
    files_uint(b, MXC_GGUF_STRING, 4);
    files_string(b, "");
    files_uint(b, or_else(p->name_length, 1), 8);
    assert_true(mxc_buf_puts(b, "t"));
    files_uint(b, or_else(p->n_dims, 2), 4);
    files_uint(b, or_else(p->dim, 32), 8);
    files_uint(b, 2, 8);
    files_uint(b, or_else(p->type, 2), 4);
    files_uint(b, p->offset, 8);
    files_string(b, p->second_name ? p->second_name : "u");
    files_uint(b, 1, 4);
    files_uint(b, 3, 8);
    files_uint(b, 0, 4);
    files_uint(b, or_else(p->second_offset, 64), 8);
    files_pad(b, 64);
    for (size_t i = 0; i < or_else(p->n_data, 76); i++)
        assert_true(mxc_buf_putc(b, (char)i));
}

static void test_good(void **unused) {
    (void)unused;
    struct mxc_buf b;
    struct mxc_gguf *g;
    struct mxc_err err;
    mxc_buf_init(&b, 1 << 20);
    for (uint64_t version = 2; version <= 3; version++) {
        build(&b, &(struct plan){.version = version});
        const char *path = files_write("x.gguf", b.data, b.length);
        assert_int_equal(mxc_gguf_open(path, &g, &err), MXC_OK);
        assert_int_equal(mxc_gguf_check_tensors(g, &err), MXC_OK);
        assert_int_equal(mxc_gguf_n_values(g), 4);
        assert_int_equal(mxc_gguf_n_tensors(g), 2);
        const struct mxc_gguf_tensor *t = mxc_gguf_tensor_at(g, 0), *u = mxc_gguf_tensor_at(g, 1);
        assert_null(mxc_gguf_tensor_at(g, 2));
        assert_string_equal(t->name, "t");
        assert_int_equal(t->storage, MXC_ST_Q4_0);
        assert_int_equal(t->dims[0], 32);
        assert_int_equal(t->bytes, 36);
        assert_int_equal(t->data[0], 0);
        assert_int_equal(u->data[0], 64);
        assert_int_equal(u->bytes, 12);
        mxc_gguf_close(g);
    }
    mxc_buf_fini(&b);
}

static const struct {
    struct plan plan;
    const char *words;
} bad[] = {
    {{.magic = 7}, "magic"},
    {{.version = 1}, "version 1"},
    {{.version = 99}, "version 99"},
    {{.version = 0x03000000}, "big-endian"},
    {{.n_tensors = UINT64_MAX}, "tensors fit"},
    {{.n_tensors = (uint64_t)1 << 63}, "tensors fit"},
    {{.n_tensors = 3}, "tensor 2"},
    {{.n_values = UINT64_MAX}, "keys fit"},
    {{.n_values = 5}, "past"},
    {{.n_values = 3}, "tensor"},
    {{.alignment = 3}, "general.alignment"},
    {{.alignment = 1u << 31}, "general.alignment"},
    {{.value_type = 13}, "list value type 13"},
    {{.element = 13}, "list unknown type 13"},
    {{.element = MXC_GGUF_ARRAY}, "list of lists"},
    {{.element = MXC_GGUF_STRING}, "list past"},
    {{.count = UINT64_MAX}, "list past"},
    {{.count = (uint64_t)1 << 40}, "list past"},
    {{.length = UINT64_MAX}, "text past"},
    {{.length = 1000}, "text past"},
    {{.second_key = "text"}, "text twice"},
    {{.second_key = ""}, "key 3"},
    {{.second_key = "\xFF\xFE"}, "key 3"},
    {{.second_key = "a\nb"}, "key 3"},
    {{.name_length = UINT64_MAX}, "tensor 0 past"},
    {{.name_length = 65}, "tensor 0 64"},
    {{.n_dims = 5}, "tensor t dimensions"},
    {{.n_dims = UINT32_MAX}, "tensor t dimensions"},
    {{.dim = UINT64_MAX}, "tensor t overflows"},
    {{.dim = (uint64_t)1 << 62}, "tensor t overflows"},
    {{.dim = 31}, "tensor t block"},
    {{.type = 12}, "tensor t block"},
    {{.type = 4}, "tensor t type 4"},
    {{.type = 31}, "tensor t type 31"},
    {{.type = 42}, "tensor t type 42"},
    {{.type = UINT32_MAX}, "tensor t unknown"},
    {{.offset = 7}, "tensor t aligned"},
    {{.offset = UINT64_MAX - 63}, "tensor t range"},
    {{.second_offset = 128}, "tensor u range"},
    {{.second_name = "t"}, "tensor t twice"},
    {{.second_name = "\x01"}, "tensor 1"},
    {{.n_data = 75}, "tensor u truncated"},
};

static void test_bad(void **unused) {
    (void)unused;
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mxc_gguf *g = NULL;
        struct mxc_err err = {0};
        build(&b, &bad[i].plan);
        if (!mxc_gguf_open(files_write("x.gguf", b.data, b.length), &g, &err))
            fail_msg("accepted: case %zu (%s)", i, bad[i].words);
        assert_null(g);
        files_expect(&err, "x.gguf:");
        files_expect(&err, bad[i].words);
    }
    mxc_buf_fini(&b);
}

/* What opens for its metadata but not as weights. */
static void test_bad_tensors(void **unused) {
    (void)unused;
    static const struct {
        struct plan plan;
        const char *words;
    } rows[] = {
        {{.type = 9}, "tensor t Q8_1"},
        {{.type = 24}, "tensor t I8"},
        {{.offset = 64}, "overlap"},
    };
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_gguf *g;
        struct mxc_err err = {0};
        struct plan plan = rows[i].plan;
        plan.n_data = 200;
        build(&b, &plan);
        assert_int_equal(mxc_gguf_open(files_write("x.gguf", b.data, b.length), &g, &err), MXC_OK);
        assert_int_not_equal(mxc_gguf_check_tensors(g, &err), MXC_OK);
        files_expect(&err, rows[i].words);
        mxc_gguf_close(g);
    }
    mxc_buf_fini(&b);
}

static void test_truncated(void **unused) {
    (void)unused;
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    build(&b, &(struct plan){0});
    for (size_t n = 0; n < b.length; n++) {
        struct mxc_gguf *g;
        struct mxc_err err = {0};
        if (!mxc_gguf_open(files_write("x.gguf", b.data, n), &g, &err))
            fail_msg("accepted with %zu of %zu bytes", n, b.length);
        files_expect(&err, "x.gguf");
    }
    mxc_buf_fini(&b);
}

static void test_no_memory(void **unused) {
    (void)unused;
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    build(&b, &(struct plan){0});
    const char *path = files_write("x.gguf", b.data, b.length);
    enum mxc_code code = MXC_E_NOMEM;
    for (uint64_t n = 1; code; n++) {
        struct mxc_gguf *g = NULL;
        assert_true(n < 100);
        mxc_mem_fail_at(n);
        code = mxc_gguf_open(path, &g, NULL);
        if (!code)
            code = mxc_gguf_check_tensors(g, NULL);
        mxc_mem_fail_at(0);
        assert_true(!code || code == MXC_E_NOMEM);
        mxc_gguf_close(g);
    }
    mxc_buf_fini(&b);
}

static void put_scalar(struct mxc_buf *b, const char *key, enum mxc_gguf_type type, uint64_t bits,
                       size_t bytes) {
    files_string(b, key);
    files_uint(b, type, 4);
    files_uint(b, bits, bytes);
}

static void test_accessors(void **unused) {
    (void)unused;
    struct mxc_buf b;
    struct mxc_gguf *g;
    struct mxc_err err;
    int64_t n = 5;
    double d = 5;
    bool flag = false;
    struct mxc_str s = {0};
    const struct mxc_gguf_value *v = NULL;
    mxc_buf_init(&b, 1 << 20);
    files_uint(&b, 0x46554747, 4);
    files_uint(&b, 3, 4);
    files_uint(&b, 0, 8);
    files_uint(&b, 10, 8);
    put_scalar(&b, "i8", MXC_GGUF_I8, 0xFE, 1);
    put_scalar(&b, "i16", MXC_GGUF_I16, 0xFFFD, 2);
    put_scalar(&b, "i32", MXC_GGUF_I32, 0xFFFFFFFC, 4);
    put_scalar(&b, "i64", MXC_GGUF_I64, UINT64_MAX - 4, 8);
    put_scalar(&b, "u64", MXC_GGUF_U64, UINT64_MAX, 8);
    put_scalar(&b, "f32", MXC_GGUF_F32, mxc_f32_bits(2.5f), 4);
    put_scalar(&b, "yes", MXC_GGUF_BOOL, 2, 1);
    files_string(&b, "names");
    files_uint(&b, MXC_GGUF_ARRAY, 4);
    files_uint(&b, MXC_GGUF_STRING, 4);
    files_uint(&b, 3, 8);
    files_string(&b, "one");
    files_string(&b, "");
    files_string(&b, "three");
    files_string(&b, "scores");
    files_uint(&b, MXC_GGUF_ARRAY, 4);
    files_uint(&b, MXC_GGUF_F32, 4);
    files_uint(&b, 2, 8);
    files_uint(&b, mxc_f32_bits(-1.5f), 4);
    files_uint(&b, mxc_f32_bits(3.0f), 4);
    files_string(&b, "kinds");
    files_uint(&b, MXC_GGUF_ARRAY, 4);
    files_uint(&b, MXC_GGUF_I32, 4);
    files_uint(&b, 1, 8);
    files_uint(&b, 0xFFFFFFFF, 4);
    assert_int_equal(mxc_gguf_open(files_write("y.gguf", b.data, b.length), &g, &err), MXC_OK);

    static const char *const keys[] = {"i8", "i16", "i32", "i64"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mxc_gguf_get_int(g, keys[i], -9, 9, &n, &err), MXC_OK);
        assert_int_equal(n, -2 - i);
        assert_int_equal(mxc_gguf_get_real(g, keys[i], &d, &err), MXC_OK);
        assert_true(d == -2 - i);
    }
    assert_int_equal(mxc_gguf_get_int(g, "u64", 0, INT64_MAX, &n, &err), MXC_OK);
    assert_true(n == INT64_MAX);
    assert_int_equal(mxc_gguf_get_int(g, "absent", 0, 1, &n, &err), MXC_OK);
    assert_true(n == INT64_MAX);
    assert_int_equal(mxc_gguf_get_int(g, "i8", 0, 9, &n, &err), MXC_E_FORMAT);
    files_expect(&err, "y.gguf i8 -2");
    assert_int_equal(mxc_gguf_get_int(g, "f32", 0, 9, &n, &err), MXC_E_FORMAT);
    files_expect(&err, "y.gguf f32 integer");
    assert_true(n == INT64_MAX);
    assert_int_equal(mxc_gguf_get_real(g, "f32", &d, &err), MXC_OK);
    assert_true(d == 2.5);
    assert_int_equal(mxc_gguf_get_real(g, "names", &d, &err), MXC_E_FORMAT);
    files_expect(&err, "names list string");
    assert_int_equal(mxc_gguf_get_bool(g, "yes", &flag, &err), MXC_OK);
    assert_true(flag);
    assert_int_equal(mxc_gguf_get_bool(g, "i8", &flag, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_gguf_get_string(g, "i8", &s, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_gguf_get_strings(g, "scores", &v, &err), MXC_E_FORMAT);
    assert_null(v);
    assert_int_equal(mxc_gguf_get_strings(g, "absent", &v, &err), MXC_OK);
    assert_null(v);
    assert_int_equal(mxc_gguf_get_strings(g, "names", &v, &err), MXC_OK);
    size_t cursor = 0, count = 0;
    static const char *const want[] = {"one", "", "three"};
    while (mxc_gguf_next_string(v, &cursor, &s))
        assert_true(count < 3 && mxc_str_is(s, want[count++]));
    assert_int_equal(count, 3);
    assert_int_equal(mxc_gguf_get_reals(g, "kinds", &v, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_gguf_get_reals(g, "scores", &v, &err), MXC_OK);
    assert_true(mxc_gguf_real_at(v, 0) == -1.5 && mxc_gguf_real_at(v, 1) == 3.0);
    assert_int_equal(mxc_gguf_get_ints(g, "scores", &v, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_gguf_get_ints(g, "kinds", &v, &err), MXC_OK);
    assert_int_equal(mxc_gguf_int_at(v, 0), -1);
    assert_true(mxc_str_is(mxc_gguf_value_at(g, 9)->key, "kinds"));
    assert_null(mxc_gguf_value_at(g, 10));
    mxc_gguf_close(g);
    mxc_buf_fini(&b);
}

static void test_names(void **unused) {
    (void)unused;
    static const char *const rows[][3] = {
        {"llama", "blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
        {"qwen2", "blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"},
        {"qwen3", "blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
        {"llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"},
        {"gemma", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"llama", "output.weight", "lm_head.weight"},
        {"llama", "token_embd.weight", "model.embed_tokens.weight"},
        {"llama", "output_norm.weight", "model.norm.weight"},
        {"llama", "rope_freqs.weight", "rope_freqs.weight"},
        {"llama", "blk.x.attn_q.weight", "blk.x.attn_q.weight"},
        {"llama", "blk.0.weight", "blk.0.weight"},
        {"llama", "blk.", "blk."},
        {"llama", "blk.0.something.weight", "blk.0.something.weight"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(mxc_gguf_logical_name(rows[i][0], rows[i][1], out, sizeof out));
        assert_string_equal(out, rows[i][2]);
    }
    assert_false(mxc_gguf_logical_name("llama", "blk.0.attn_q.weight", out, 10));
    assert_string_equal(mxc_gguf_model_type("qwen3moe"), "qwen3_moe");
    assert_string_equal(mxc_gguf_model_type("llama"), "llama");
    assert_true(mxc_gguf_permutes("llama"));
    assert_false(mxc_gguf_permutes("qwen2"));
    assert_int_equal(mxc_gguf_q_or_k("blk.3.attn_q.weight"), 'q');
    assert_int_equal(mxc_gguf_q_or_k("blk.3.attn_k.bias"), 'k');
    assert_int_equal(mxc_gguf_q_or_k("blk.3.attn_k_norm.weight"), 0);
    assert_int_equal(mxc_gguf_q_or_k("output.weight"), 0);
}

static const struct mxc_st_tensor *named(const struct mxc_safetensors *st, const char *name) {
    for (size_t i = 0; i < st->n_tensors; i++)
        if (!strcmp(st->tensors[i].name, name))
            return &st->tensors[i];
    return NULL;
}

/* Every block type that we decode, bit for bit. */
static void test_golden_blocks(void **unused) {
    (void)unused;
    struct mxc_gguf *g;
    struct mxc_safetensors *want;
    struct mxc_err err;
    assert_int_equal(mxc_gguf_open(MXC_TEST_DATA "/golden/gguf_blocks/blocks.gguf", &g, &err),
                     MXC_OK);
    assert_int_equal(mxc_safetensors_open(MXC_TEST_DATA
                                          "/golden/gguf_blocks/golden/golden.safetensors",
                                          &want, &err),
                     MXC_OK);
    int compared = 0;
    for (size_t i = 0; i < mxc_gguf_n_tensors(g); i++) {
        const struct mxc_gguf_tensor *t = mxc_gguf_tensor_at(g, i);
        const struct mxc_st_tensor *w = named(want, t->name);
        size_t n = (size_t)(t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1));
        assert_non_null(w);
        assert_int_equal(w->end - w->begin, n * 4);
        if (t->storage == MXC_N_STORAGES)
            continue;
        float *out = malloc(n * sizeof *out);
        assert_non_null(out);
        mxc_quant_decode(t->storage, t->data, n, out);
        if (memcmp(out, w->data, n * sizeof *out))
            fail_msg("%s differs", t->name);
        free(out);
        compared++;
    }
    assert_int_equal(compared, 17);
    mxc_gguf_close(g);
    mxc_safetensors_close(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_accessors),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_golden_blocks),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

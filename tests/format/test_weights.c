/* Weights: folders with and without index, MLX triplets, GGUF permutation, access with errors. */
#include "test.h"

#include "base/half.h"
#include "base/mem.h"
#include "files.h"
#include "format/config.h"
#include "format/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Header with one tensor of n bytes. */
static void write_one(const char *file, const char *tensor, size_t n) {
    char header[256];
    struct mxc_buf buf;
    (void)snprintf(header, sizeof header,
                   "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", tensor,
                   n, n);
    mxc_buf_init(&buf, 1 << 20);
    files_safetensors(&buf, header, n);
    files_write(file, buf.data, buf.length);
    mxc_buf_fini(&buf);
}

static enum mxc_code open_folder(const char *name, struct mxc_weights **w, struct mxc_err *err) {
    return mxc_weights_open(files_path(name), NULL, w, err);
}

#define INDEX(a, b) "{\"weight_map\":{\"x\":\"" a "\",\"y\":\"" b "\"}}"

static void test_folder(void **unused) {
    (void)unused;
    struct mxc_weights *w;
    struct mxc_err err;
    write_one("f/model-1.safetensors", "x", 3);
    write_one("f/model-2.safetensors", "y", 5);
    write_one("f/adapter.safetensors", "z", 5); /* not a shard: its name is another's */
    for (int with_index = 0; with_index < 2; with_index++) {
        assert_int_equal(open_folder("f", &w, &err), MXC_OK);
        assert_int_equal(mxc_weights_count(w), 2);
        assert_int_equal(mxc_weights_bytes(w), 8);
        assert_int_equal(mxc_weights_find(w, "y")->bytes, 5);
        assert_null(mxc_weights_find(w, "z"));
        assert_null(mxc_weights_at(w, 2));
        mxc_weights_close(w);
        files_text("f/model.safetensors.index.json",
                   INDEX("model-1.safetensors", "model-2.safetensors"));
    }
    /* a stale index does not hide a third file, nor does it complain of tensors that are nowhere */
    write_one("f/model-3.safetensors", "new", 2);
    files_text("f/model.safetensors.index.json",
               "{\"weight_map\":{\"x\":\"model-1.safetensors\",\"y\":\"model-2.safetensors\","
               "\"gone\":\"model-2.safetensors\"}}");
    assert_int_equal(open_folder("f", &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_count(w), 3);
    mxc_weights_close(w);
    /* without "model*", every file counts */
    write_one("g/a.safetensors", "x", 3);
    write_one("g/b.safetensors", "y", 3);
    assert_int_equal(open_folder("g", &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_count(w), 2);
    mxc_weights_close(w);
    write_one("g/b.safetensors", "x", 3);
    assert_int_equal(open_folder("g", &w, &err), MXC_E_FORMAT);
    files_expect(&err, "a.safetensors b.safetensors tensor x");
    assert_int_equal(mxc_weights_open(files_path("g/a.safetensors"), NULL, &w, &err), MXC_OK);
    mxc_weights_close(w);
}

static void test_bad_folders(void **unused) {
    (void)unused;
    static const struct {
        const char *index, *words;
    } rows[] = {
        {"{", "line"},
        {"[]", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map no file"},
        {"{\"weight_map\":{\"x\":7}}", "weight_map x file name"},
        {"{\"weight_map\":{\"x\":null}}", "weight_map x file name"},
        {INDEX("model-1.safetensors", "model-9.safetensors"), "model-9.safetensors"},
        {INDEX("model-2.safetensors", "model-1.safetensors"), "tensor x model-1 model-2"},
        {INDEX("../f/model-1.safetensors", "model-2.safetensors"), "leaves"},
        {INDEX("/etc/passwd", "model-2.safetensors"), "leaves"},
        {INDEX("..", "model-2.safetensors"), "leaves"},
        {INDEX("", "model-2.safetensors"), "bad shard name"},
        {INDEX(".", "model-2.safetensors"), "bad shard name"},
        {INDEX("a\\u0000b", "model-2.safetensors"), "bad shard name"},
        {INDEX("a\\nb", "model-2.safetensors"), "bad shard name"},
        {INDEX("folder", "model-2.safetensors"), "folder regular"},
        {INDEX("model.safetensors.index.json", "model-2.safetensors"), "header length"},
    };
    struct mxc_weights *w = NULL;
    struct mxc_err err;
    write_one("h/model-1.safetensors", "x", 3);
    write_one("h/model-2.safetensors", "y", 5);
    files_text("h/folder/file", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        files_text("h/model.safetensors.index.json", rows[i].index);
        if (!open_folder("h", &w, &err))
            fail_msg("accepted: %s", rows[i].index);
        files_expect(&err, "model.safetensors.index.json:");
        files_expect(&err, rows[i].words);
    }
    files_text("p/pytorch_model.bin", "x");
    assert_int_equal(open_folder("p", &w, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "no weights pickle");
    assert_int_equal(open_folder("nowhere", &w, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "nowhere");
    assert_null(w);
}

/* An MLX folder: m.weight [2, words] u32, m.scales and m.biases [2, groups] f16, plain.weight. */
struct mlx {
    const char *module;
    unsigned words, groups, bias_groups;
    const char *weight_type, *scale_type;
    bool no_weight, no_biases;
    int scale_rows;
};

static void write_mlx(const struct mlx *m) {
    char header[1024];
    size_t at = 0;
    int n = snprintf(header, sizeof header, "{");
    const unsigned rows = m->scale_rows ? (unsigned)m->scale_rows : 2;
    const unsigned columns[3] = {m->words, m->groups, m->bias_groups ? m->bias_groups : m->groups};
    static const char *const suffix[] = {"weight", "scales", "biases"};
    for (int i = 0; i < 3; i++) {
        const char *type = i                ? m->scale_type ? m->scale_type : "F16"
                           : m->weight_type ? m->weight_type
                                            : "U32";
        size_t width = !strcmp(type, "F16") ? 2 : !strcmp(type, "U8") ? 1 : 4;
        size_t count = (size_t)(i ? rows : 2) * columns[i], bytes = count * width;
        if ((i == 0 && m->no_weight) || (i == 2 && m->no_biases))
            continue;
        n += snprintf(header + n, sizeof header - (size_t)n,
                      "\"%s.%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]},",
                      m->module ? m->module : "model.m", suffix[i], type, i ? rows : 2, columns[i],
                      at, at + bytes);
        at += bytes;
    }
    (void)snprintf(header + n, sizeof header - (size_t)n,
                   "\"plain.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}}",
                   at, at + 1);
    struct mxc_buf buf;
    mxc_buf_init(&buf, 1 << 20);
    files_safetensors(&buf, header, at + 1);
    files_write("m/model.safetensors", buf.data, buf.length);
    mxc_buf_fini(&buf);
}

static enum mxc_code open_mlx(const char *quantization, struct mxc_weights **w,
                              struct mxc_err *err) {
    struct mxc_config config = {0};
    if (quantization)
        assert_int_equal(
            mxc_json_parse(quantization, strlen(quantization), "test", &config.quantization, NULL),
            MXC_OK);
    enum mxc_code code = mxc_weights_open(files_path("m"), &config, w, err);
    json_decref(config.quantization);
    return code;
}

static void test_mlx(void **unused) {
    (void)unused;
    static const struct {
        struct mlx mlx;
        const char *quantization;
        unsigned bits, group;
    } rows[] = {
        {{.words = 8, .groups = 1}, "{\"bits\":4,\"group_size\":64}", 4, 64},
        {{.words = 8, .groups = 1}, "{\"bits\":2,\"group_size\":128}", 2, 128},
        {{.words = 6, .groups = 2}, "{\"bits\":3,\"group_size\":32,\"mode\":\"affine\"}", 3, 32},
        {{.words = 6, .groups = 2}, NULL, 3, 32}, /* 96 bits a group: one reading */
        {{.words = 32, .groups = 1}, NULL, 8, 128},
        {{.words = 8, .groups = 1}, "{\"bits\":4}", 4, 64},
        {{.words = 8, .groups = 1}, "{\"group_size\":32}", 8, 32},
        {{.words = 8, .groups = 1},
         "{\"bits\":3,\"group_size\":32,\"model.m\":{\"bits\":4,\"group_size\":64}}",
         4,
         64},
        {{.words = 8, .groups = 1, .module = "language_model.model.m"},
         "{\"bits\":3,\"group_size\":32,\"model.language_model.m\":{\"bits\":4,\"group_size\":64}}",
         4,
         64},
        {{.words = 8, .groups = 1, .module = "model.language_model.m"},
         "{\"bits\":3,\"group_size\":32,\"m\":{\"bits\":4,\"group_size\":64}}",
         4,
         64},
        {{.words = 8, .groups = 1},
         "{\"bits\":4,\"group_size\":64,\"plain\":false,\"model.m\":true}",
         4,
         64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_weights *w;
        struct mxc_err err;
        struct mxc_group_form form;
        write_mlx(&rows[i].mlx);
        if (open_mlx(rows[i].quantization, &w, &err))
            fail_msg("case %zu: %s", i, err.message);
        assert_int_equal(mxc_weights_count(w), 2);
        const struct mxc_tensor *t = mxc_weights_at(w, 0);
        assert_int_equal(t->storage, MXC_ST_MLX_AFFINE);
        assert_int_equal(t->bits, rows[i].bits);
        assert_int_equal(t->group, rows[i].group);
        assert_int_equal(t->shape[0], 2);
        assert_int_equal(t->shape[1], rows[i].mlx.words * 32 / rows[i].bits);
        assert_true(mxc_tensor_group_form(t, &form));
        assert_int_equal(form.bits, rows[i].bits);
        assert_int_equal(form.zero_point, -1);
        assert_int_equal(mxc_weights_bytes(w),
                         2 * 4 * rows[i].mlx.words + 8 * rows[i].mlx.groups + 1);
        mxc_weights_close(w);
    }
}

/* Modes with scales of one byte are told apart by words to a scale; overrides name them too. */
static void test_mlx_bytes(void **unused) {
    (void)unused;
    static const struct {
        struct mlx mlx;
        const char *quantization;
        enum mxc_storage storage;
        unsigned columns, group;
    } rows[] = {
        {{.words = 8, .groups = 2},
         "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}",
         MXC_ST_MXFP4,
         64,
         32},
        {{.words = 8, .groups = 2}, NULL, MXC_ST_MXFP4, 64, 32},
        {{.words = 16, .groups = 2},
         "{\"bits\":8,\"group_size\":32,\"mode\":\"mxfp8\"}",
         MXC_ST_MXFP8,
         64,
         32},
        {{.words = 8, .groups = 4},
         "{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}",
         MXC_ST_NVFP4,
         64,
         16},
        {{.words = 8, .groups = 4},
         "{\"bits\":4,\"group_size\":64,\"language_model.model.m\":{\"mode\":\"nvfp4\"}}",
         MXC_ST_NVFP4,
         64,
         16},
        {{.words = 8, .groups = 2},
         "{\"mode\":\"nvfp4\",\"bits\":4,\"group_size\":16,\"m\":{\"bits\":4,\"group_size\":32}}",
         MXC_ST_MXFP4,
         64,
         32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_weights *w;
        struct mxc_err err;
        struct mlx mlx = rows[i].mlx;
        mlx.scale_type = "U8";
        mlx.no_biases = true;
        write_mlx(&mlx);
        if (open_mlx(rows[i].quantization, &w, &err))
            fail_msg("case %zu: %s", i, err.message);
        const struct mxc_tensor *t = mxc_weights_at(w, 0);
        assert_int_equal(t->storage, rows[i].storage);
        assert_int_equal(t->shape[1], rows[i].columns);
        assert_int_equal(t->group, rows[i].group);
        assert_int_equal(t->companion_bytes, 2 * mlx.groups);
        mxc_weights_close(w);
    }
    /* an affine module whose neighbours are mxfp4, as gpt_oss is converted */
    struct mxc_weights *w;
    struct mxc_err err;
    write_mlx(&(struct mlx){.words = 16, .groups = 1});
    assert_int_equal(open_mlx("{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\","
                              "\"model.m\":{\"bits\":8,\"group_size\":64}}",
                              &w, &err),
                     MXC_OK);
    assert_int_equal(mxc_weights_at(w, 0)->storage, MXC_ST_MLX_AFFINE);
    assert_int_equal(mxc_weights_at(w, 0)->bits, 8);
    mxc_weights_close(w);
}

static void test_bad_mlx(void **unused) {
    (void)unused;
    static const char q4[] = "{\"bits\":4,\"group_size\":64}";
    static const struct {
        struct mlx mlx;
        const char *quantization, *words;
    } rows[] = {
        {{.words = 8, .groups = 1, .no_weight = true}, q4, "tensor model.m.scales .weight"},
        {{.words = 8, .groups = 1, .no_biases = true}, q4, "tensor model.m.scales .biases"},
        {{.words = 8, .groups = 1, .bias_groups = 2}, q4, "tensor model.m.scales shape"},
        {{.words = 8, .groups = 1, .scale_rows = 3}, q4, "tensor model.m.scales rows"},
        {{.words = 8, .groups = 1, .weight_type = "F16"}, q4, "tensor model.m.weight U32"},
        {{.words = 8, .groups = 1, .scale_type = "U8"}, q4, "tensor model.m.scales float"},
        {{.words = 8, .groups = 1}, NULL, "tensor model.m.weight several"},
        {{.words = 8, .groups = 1}, "{\"bits\":8,\"group_size\":64}", "model.m.weight bits 8"},
        {{.words = 8, .groups = 1}, "{\"bits\":7,\"group_size\":64}", "model.m.weight 7 supported"},
        {{.words = 8, .groups = 1},
         "{\"bits\":4,\"group_size\":16}",
         "model.m.weight 16 supported"},
        {{.words = 7, .groups = 1}, q4, "model.m.weight 7 words"},
        {{.words = 8, .groups = 0}, q4, "model.m.weight 0 scales"},
        {{.words = 8, .groups = 1}, "{\"bits\":\"4\"}", "quantization bits"},
        {{.words = 8, .groups = 1}, "{\"bits\":-4}", "quantization bits"},
        {{.words = 8, .groups = 1}, "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}", "mxfp4"},
        {{.words = 8, .groups = 1},
         "{\"bits\":4,\"group_size\":64,\"m\":{\"mode\":\"nvfp4\"}}",
         "nvfp4"},
        {{.words = 6, .groups = 1, .scale_type = "U8", .no_biases = true},
         q4,
         "model.m.weight 6 words 1 byte scales mxfp4, mxfp8 nvfp4"},
        {{.words = 8, .groups = 2, .scale_type = "U8", .no_biases = true},
         "{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}",
         "model.m.weight 2 byte scales nvfp4"},
        {{.words = 8, .groups = 2, .scale_type = "U8", .no_biases = true},
         "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp5\"}",
         "model.m.weight mode mxfp5 supported"},
        {{.words = 8, .groups = 1},
         "{\"bits\":4,\"group_size\":64,\"model.m\":false}",
         "model.m.weight not quantised"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_weights *w;
        struct mxc_err err;
        write_mlx(&rows[i].mlx);
        if (!open_mlx(rows[i].quantization, &w, &err))
            fail_msg("accepted: case %zu (%s)", i, rows[i].words);
        files_expect(&err, rows[i].words);
    }
}

/* llama with 2 heads and 1 kv head of 4 rows: q [8 x 3], k [4 x 3], q bias [8]; number = place. */
static const char *write_gguf(const char *arch, uint64_t heads, uint64_t q_rows) {
    struct mxc_buf b;
    const uint64_t rows[] = {q_rows, 4, q_rows}, columns[] = {3, 3, 1};
    static const char *const names[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                        "blk.0.attn_q.bias"};
    char key[64];
    mxc_buf_init(&b, 1 << 20);
    files_uint(&b, 0x46554747, 4);
    files_uint(&b, 3, 4);
    files_uint(&b, 3, 8);
    files_uint(&b, 3, 8);
    files_string(&b, "general.architecture");
    files_uint(&b, 8, 4);
    files_string(&b, arch);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(key, sizeof key, "%s.attention.head_count%s", arch, i ? "_kv" : "");
        files_string(&b, key);
        files_uint(&b, 4, 4);
        files_uint(&b, i ? 1 : heads, 4);
    }
    for (uint64_t i = 0, at = 0; i < 3; i++) {
        files_string(&b, names[i]);
        files_uint(&b, i == 2 ? 1 : 2, 4);
        if (i < 2)
            files_uint(&b, columns[i], 8);
        files_uint(&b, rows[i], 8);
        files_uint(&b, 0, 4);
        files_uint(&b, at, 8);
        at += (rows[i] * columns[i] * 4 + 31) / 32 * 32;
    }
    files_pad(&b, 32);
    for (int i = 0; i < 3; i++) {
        for (uint64_t k = 0; k < rows[i] * columns[i]; k++)
            files_uint(&b, mxc_f32_bits((float)k), 4);
        files_pad(&b, 32);
    }
    const char *path = files_write("p.gguf", b.data, b.length);
    mxc_buf_fini(&b);
    return path;
}

static void test_permutation(void **unused) {
    (void)unused;
    struct mxc_weights *w;
    struct mxc_err err;
    /* file rows of a head: 0 2 1 3 of the original order 0 1 | 2 3 */
    static const int order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    assert_int_equal(mxc_weights_open(write_gguf("llama", 2, 8), NULL, &w, &err), MXC_OK);
    const struct mxc_tensor *q = mxc_weights_find(w, "model.layers.0.self_attn.q_proj.weight");
    const struct mxc_tensor *k = mxc_weights_find(w, "model.layers.0.self_attn.k_proj.weight");
    const struct mxc_tensor *b = mxc_weights_find(w, "model.layers.0.self_attn.q_proj.bias");
    float row[8];
    assert_int_equal(mxc_tensor_rows(q), 8);
    assert_int_equal(mxc_tensor_columns(q), 3);
    for (int r = 0; r < 8; r++) {
        mxc_tensor_row(q, r, row);
        assert_true(row[0] == (float)(3 * order[r]) && row[2] == (float)(3 * order[r] + 2));
        if (r < 4) {
            mxc_tensor_row(k, r, row);
            assert_true(row[1] == (float)(3 * order[r] + 1));
        }
    }
    assert_int_equal(mxc_tensor_rows(b), 1);
    mxc_tensor_row(b, 0, row);
    for (int r = 0; r < 8; r++)
        assert_true(row[r] == (float)order[r]);
    mxc_tensor_drop(q, 0, 8);
    mxc_tensor_row(q, 1, row);
    assert_true(row[0] == 6);
    mxc_weights_close(w);
    assert_int_equal(mxc_weights_open(write_gguf("qwen2", 2, 8), NULL, &w, &err), MXC_OK);
    mxc_tensor_row(mxc_weights_find(w, "model.layers.0.self_attn.q_proj.weight"), 1, row);
    assert_true(row[0] == 3);
    mxc_weights_close(w);
    assert_int_equal(mxc_weights_open(write_gguf("llama", 2, 6), NULL, &w, &err), MXC_E_FORMAT);
    files_expect(&err, "p.gguf blk.0.attn_q.weight 6 rows 2 heads");
    assert_int_equal(mxc_weights_open(write_gguf("llama", 0, 8), NULL, &w, &err), MXC_E_FORMAT);
    files_expect(&err, "p.gguf head_count");
}

static void test_get(void **unused) {
    (void)unused;
    struct mxc_weights *w;
    struct mxc_err err;
    const struct mxc_tensor *t = NULL;
    static const char name[] = "model.layers.0.self_attn.q_proj.weight";
    assert_int_equal(mxc_weights_open(write_gguf("llama", 2, 8), NULL, &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_get(w, name, 2, (const int64_t[]){8, 3}, &t, &err), MXC_OK);
    assert_int_equal(mxc_weights_get(w, name, 2, (const int64_t[]){-1, 3}, &t, &err), MXC_OK);
    assert_ptr_equal(t, mxc_weights_find(w, name));
    t = NULL;
    assert_int_equal(mxc_weights_get(w, name, 2, (const int64_t[]){8, 4}, &t, &err), MXC_E_FORMAT);
    files_expect(&err, "p.gguf q_proj.weight shape [8, 3] [8, 4]");
    assert_int_equal(mxc_weights_get(w, name, 1, (const int64_t[]){-1}, &t, &err), MXC_E_FORMAT);
    files_expect(&err, "rank [any]");
    assert_int_equal(mxc_weights_get(w, "none", 1, (const int64_t[]){8}, &t, &err),
                     MXC_E_NOT_FOUND);
    files_expect(&err, "p.gguf missing none");
    assert_null(t);
    mxc_weights_close(w);
    write_one("n/model.safetensors", "x.weight", 3);
    assert_int_equal(open_folder("n", &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_get(w, "x.weight", 1, (const int64_t[]){3}, &t, &err),
                     MXC_E_FORMAT);
    files_expect(&err, "model.safetensors x.weight dtype U8");
    mxc_weights_close(w);
}

/* Kilobytes of file pages in this process. */
static long resident_file_kb(void) {
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssFile: %ld kB", &kb) == 1)
            break;
    (void)fclose(f);
    assert_true(kb >= 0);
    return kb;
}

/* Dropping rows as they are used gives their pages back, however the rows lie on pages. */
static void test_drop(void **unused) {
    (void)unused;
    enum { ROWS = 4000, COLUMNS = 1001 };
    struct mxc_weights *w;
    struct mxc_buf buf;
    char header[128];
    float row[COLUMNS];
    const size_t n = (size_t)ROWS * COLUMNS * 4;
    (void)snprintf(header, sizeof header,
                   "{\"x\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}", ROWS,
                   COLUMNS, n);
    mxc_buf_init(&buf, n + 1000);
    files_safetensors(&buf, header, n);
    files_write("big/model.safetensors", buf.data, buf.length);
    mxc_buf_fini(&buf);
    assert_int_equal(open_folder("big", &w, NULL), MXC_OK);
    const struct mxc_tensor *t = mxc_weights_find(w, "x");
    long before = resident_file_kb(), most = 0;
    for (int64_t r = 0; r < ROWS; r++) {
        mxc_tensor_row(t, r, row);
        if (r % 50 == 49) {
            long now = resident_file_kb() - before;
            most = now > most ? now : most;
            mxc_tensor_drop(t, r - 49, r + 1);
        }
    }
    assert_in_range(most, 50, 4000); /* of 16,000; neighbours are mapped along with a page */
    assert_true(resident_file_kb() - before < 500);
    mxc_weights_close(w);
}

/* Parts of a split GGUF are found by their names. */
static void test_split(void **unused) {
    (void)unused;
    struct mxc_weights *w;
    struct mxc_err err;
    struct mxc_buf b;
    static const char *const files[] = {"s-00001-of-00002.gguf", "s-00002-of-00002.gguf"};
    mxc_buf_init(&b, 1 << 20);
    for (uint64_t i = 0; i < 2; i++) {
        mxc_buf_clear(&b);
        files_uint(&b, 0x46554747, 4);
        files_uint(&b, 3, 4);
        files_uint(&b, 1, 8);
        files_uint(&b, 2, 8);
        files_string(&b, "general.architecture");
        files_uint(&b, 8, 4);
        files_string(&b, "llama");
        files_string(&b, "split.count");
        files_uint(&b, 2, 4);
        files_uint(&b, 2, 2);
        files_string(&b, i ? "b" : "a");
        files_uint(&b, 1, 4);
        files_uint(&b, 8, 8);
        files_uint(&b, 0, 4);
        files_uint(&b, 0, 8);
        files_pad(&b, 32);
        for (int k = 0; k < 4; k++)
            files_uint(&b, 0, 8);
        files_write(files[i], b.data, b.length);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mxc_weights_open(files_path(files[i]), NULL, &w, &err), MXC_OK);
        assert_int_equal(mxc_weights_count(w), 2);
        mxc_weights_close(w);
    }
    files_write("other.gguf", b.data, b.length);
    assert_int_equal(mxc_weights_open(files_path("other.gguf"), NULL, &w, &err), MXC_E_FORMAT);
    files_expect(&err, "other.gguf split.count");
    files_remove(files[0]);
    assert_int_equal(mxc_weights_open(files_path(files[1]), NULL, &w, &err), MXC_E_NOT_FOUND);
    files_expect(&err, files[0]);
    mxc_buf_fini(&b);
}

static enum mxc_code open_with_failure(uint64_t n, const char *path, const char *quantization) {
    struct mxc_config config = {0};
    struct mxc_weights *w = NULL;
    if (quantization)
        assert_int_equal(
            mxc_json_parse(quantization, strlen(quantization), "test", &config.quantization, NULL),
            MXC_OK);
    mxc_mem_fail_at(n);
    enum mxc_code code = mxc_weights_open(path, &config, &w, NULL);
    mxc_mem_fail_at(0);
    mxc_weights_close(w);
    json_decref(config.quantization);
    return code;
}

static void test_no_memory(void **unused) {
    (void)unused;
    write_mlx(&(struct mlx){.words = 8, .groups = 1});
    files_text("m/model.safetensors.index.json",
               "{\"weight_map\":{\"model.m.weight\":\"model.safetensors\"}}");
    const char *folder = files_path("m"), *gguf = write_gguf("llama", 2, 8);
    static const char q[] = "{\"bits\":3,\"group_size\":32,\"m\":{\"bits\":4,\"group_size\":64}}";
    for (int i = 0; i < 2; i++) {
        enum mxc_code code = MXC_E_NOMEM;
        for (uint64_t n = 1; code; n++) {
            assert_true(n < 300);
            code = open_with_failure(n, i ? gguf : folder, i ? NULL : q);
            /* jansson calls a failed allocation a syntax error */
            if (code)
                assert_true(code == MXC_E_NOMEM || (!i && code == MXC_E_FORMAT));
        }
    }
}

/* The stored checkpoints: sharded equals whole, 16 bits equal rounded 32 bits, all rows decode. */
static struct mxc_weights *open_golden(const char *name) {
    char path[512];
    struct mxc_config *config;
    struct mxc_weights *w = NULL;
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, name);
    if (mxc_config_open(path, &config, &err) || mxc_weights_open(path, config, &w, &err))
        fail_msg("%s", err.message);
    mxc_config_close(config);
    return w;
}

static void test_sharded(void **unused) {
    (void)unused;
    struct mxc_weights *a = open_golden("llama_bf16"), *b = open_golden("llama_bf16_sharded");
    assert_int_equal(mxc_weights_count(a), 30);
    assert_int_equal(mxc_weights_count(a), mxc_weights_count(b));
    for (size_t i = 0; i < mxc_weights_count(a); i++) {
        const struct mxc_tensor *x = mxc_weights_at(a, i), *y = mxc_weights_find(b, x->name);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    mxc_weights_close(a);
    mxc_weights_close(b);
}

/* Quantised checkpoints: the group view gives the decoder's numbers, and these are small. */
static void check_rows(const struct mxc_tensor *t) {
    size_t n = (size_t)mxc_tensor_columns(t);
    float *row = malloc(4 * n), *scales = malloc(4 * n), *biases = malloc(4 * n);
    uint8_t *codes = malloc(n);
    struct mxc_group_form form = {0};
    bool grouped = mxc_tensor_group_form(t, &form);
    assert_true(row && scales && biases && codes);
    for (int64_t r = 0; r < mxc_tensor_rows(t); r++) {
        mxc_tensor_row(t, r, row);
        if (grouped)
            mxc_tensor_group_row(t, r, &(struct mxc_group_row){codes, scales, biases});
        for (size_t i = 0; i < n; i++) {
            assert_true(row[i] > -100 && row[i] < 100);
            float code = form.table ? (float)form.table[codes[i]] : (float)codes[i];
            if (grouped)
                assert_true(row[i] == scales[i / form.group] * code + biases[i / form.group]);
        }
    }
    free(row);
    free(scales);
    free(biases);
    free(codes);
}

static void test_golden(void **unused) {
    (void)unused;
    static const struct {
        const char *name;
        size_t count;
    } rows[] = {
        {"llama", 30},
        {"llama_f16", 30},
        {"llama_tied_rope3", 29},
        {"llama_v5cfg", 35},
        {"mistral", 30},
        {"qwen2", 39},
        {"qwen3", 35},
        {"llama_mlx_q2_q5", 21},
        {"llama_mlx_q3_g32", 21},
        {"llama_mlx_q4_g64", 21},
        {"llama_mlx_q6_g32", 21},
        {"llama_mlx_q8_g64", 21},
        {"llama_mlx_mixed", 21},
        {"llama_mlx_tied_q4_g32", 20},
        {"llama_mlx_mxfp4", 21},
        {"llama_mlx_mxfp8", 21},
        {"llama_mlx_nvfp4", 21},
        {"llama_gptq_q4", 21},
        {"llama_gptq_q8_act", 21},
        {"llama_awq", 21},
        {"llama_ct_w4", 21},
        {"llama_ct_w8", 21},
        {"llama_fp8_block", 21},
        {"llama_gguf_f32/model.gguf", 21},
        {"llama_gguf_f16/model.gguf", 21},
        {"llama_gguf_bf16/model.gguf", 21},
        {"llama_gguf_q4_0/model.gguf", 21},
        {"llama_gguf_q4_1/model.gguf", 21},
        {"llama_gguf_q5_0/model.gguf", 21},
        {"llama_gguf_q5_1/model.gguf", 21},
        {"llama_gguf_q8_0/model.gguf", 21},
        {"llama_gguf_q4_k/model.gguf", 21},
        {"llama_gguf_q6_k/model.gguf", 21},
        {"llama_gguf_q4_k_m_tied_rope3/model.gguf", 21},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_weights *w = open_golden(rows[i].name);
        assert_int_equal(mxc_weights_count(w), rows[i].count);
        assert_non_null(mxc_weights_find(w, "model.layers.1.mlp.down_proj.weight"));
        for (size_t k = 0; k < mxc_weights_count(w); k++)
            check_rows(mxc_weights_at(w, k));
        mxc_weights_close(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),      cmocka_unit_test(test_bad_folders),
        cmocka_unit_test(test_mlx),         cmocka_unit_test(test_mlx_bytes),
        cmocka_unit_test(test_bad_mlx),     cmocka_unit_test(test_get),
        cmocka_unit_test(test_permutation), cmocka_unit_test(test_drop),
        cmocka_unit_test(test_split),       cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_sharded),     cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

/* Quantised matrices in the layouts of Hugging Face's methods: every stored matrix of
 * tests/data/quant (made by tools/hf_quant.py, numbers from the published formulas) decodes to its
 * numbers exactly, row by row and in strips; the group form gives them to one rounding; and pieces
 * that are missing or contradict each other are refused by name. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "files.h"
#include "format/config.h"
#include "format/safetensors.h"
#include "format/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct folder {
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_safetensors *want;
};

static void path_of(char path[512], const char *folder, const char *file) {
    (void)snprintf(path, 512, "%s/quant/%s%s%s", MXC_TEST_DATA, folder, *file ? "/" : "", file);
}

static void folder_open(struct folder *f, const char *name) {
    char path[512];
    struct mxc_err err;
    path_of(path, name, "");
    if (mxc_config_open(path, &f->config, &err) ||
        mxc_weights_open(path, f->config, &f->weights, &err))
        fail_msg("%s", err.message);
    path_of(path, name, "expected.safetensors");
    if (mxc_safetensors_open(path, &f->want, &err))
        fail_msg("%s", err.message);
}

static void folder_close(struct folder *f) {
    mxc_safetensors_close(f->want);
    mxc_weights_close(f->weights);
    mxc_config_close(f->config);
}

static bool same_float(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static void check_groups(const struct mxc_tensor *t, const float *want) {
    size_t n = (size_t)mxc_tensor_columns(t), rows = (size_t)mxc_tensor_rows(t);
    struct mxc_group_form form;
    if (!mxc_tensor_group_form(t, &form))
        return;
    assert_true(form.group >= 16 && form.group <= 128 && n % form.group == 0);
    size_t groups = n / form.group;
    struct mxc_group_row all = {calloc(rows, n + 1), calloc(rows * (groups + 1), sizeof(float)),
                                calloc(rows * (groups + 1), sizeof(float))};
    struct mxc_group_row one = {calloc(1, n), calloc(groups, 4), calloc(groups, 4)};
    mxc_tensor_group_rows(t, 0, (int64_t)rows, &all, n + 1, groups + 1);
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *codes = all.codes + r * (n + 1);
        const float *scales = all.scales + r * (groups + 1);
        const float *biases = all.biases + r * (groups + 1);
        mxc_tensor_group_row(t, (int64_t)r, &one);
        assert_memory_equal(one.codes, codes, n);
        assert_memory_equal(one.scales, scales, groups * 4);
        assert_memory_equal(one.biases, biases, groups * 4);
        assert_true(codes[n] == 0 && scales[groups] == 0 && biases[groups] == 0);
        for (size_t i = 0; i < n; i++) {
            size_t g = i / form.group;
            assert_true(codes[i] < 1u << form.bits);
            double code = form.table ? form.table[codes[i]] : codes[i];
            double is = (double)scales[g] * code + (double)biases[g];
            double bound = fabs((double)scales[g]) * 256 * 0x1p-23;
            if (!(fabs(is - (double)want[r * n + i]) <= bound))
                fail_msg("%s: group view of row %zu column %zu: %g, not %g", t->name, r, i, is,
                         (double)want[r * n + i]);
            if (form.zero_point >= 0)
                assert_true(biases[g] == -(float)form.zero_point * scales[g]);
        }
    }
    free(all.codes);
    free(all.scales);
    free(all.biases);
    free(one.codes);
    free(one.scales);
    free(one.biases);
}

static void check_matrix(const struct mxc_tensor *t, const struct mxc_st_tensor *w) {
    size_t n = (size_t)mxc_tensor_columns(t), rows = (size_t)mxc_tensor_rows(t);
    assert_int_equal(t->n_dims, w->n_dims);
    for (int i = 0; i < t->n_dims; i++)
        assert_int_equal(t->shape[i], w->shape[i]);
    assert_int_equal(w->end - w->begin, n * rows * 4);
    float *want = malloc(n * rows * 4), *row = malloc(n * 4);
    float *strip = calloc(rows, (n + 3) * 4), *turned = calloc(n, rows * 4);
    assert_true(want && row && strip && turned);
    memcpy(want, w->data, n * rows * 4);
    mxc_tensor_read(t, 0, (int64_t)rows, strip, n + 3);
    for (size_t r = 0; r < rows; r++) {
        mxc_tensor_row(t, (int64_t)r, row);
        for (size_t i = 0; i < n; i++) {
            if (!same_float(row[i], want[r * n + i]))
                fail_msg("%s row %zu column %zu: %.9g, not %.9g", t->name, r, i, (double)row[i],
                         (double)want[r * n + i]);
            assert_true(same_float(strip[r * (n + 3) + i], want[r * n + i]));
        }
    }
    /* columns as rows */
    struct mxc_view view = {
        .tensor = t, .n = (int64_t)n, .k = (int64_t)rows, .col_step = 1, .transposed = true};
    assert_true(mxc_view_fits(&view));
    assert_true(mxc_view_scratch(&view) <= n + 3);
    mxc_view_rows(&view, 0, (int64_t)n, turned, rows, strip);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            assert_true(same_float(turned[i * rows + r], want[r * n + i]));
    check_groups(t, want);
    mxc_tensor_drop(t, 0, (int64_t)rows);
    mxc_tensor_row(t, (int64_t)rows - 1, row);
    assert_true(same_float(row[0], want[(rows - 1) * n]));
    free(want);
    free(row);
    free(strip);
    free(turned);
}

/* Folder, module, storage, and the form: group (0: none), bits, zero point. */
static const struct {
    const char *folder, *name;
    enum mxc_storage storage;
    uint32_t group, bits;
    int zero_point;
} rows[] = {
    {"gptq2", "plain.weight", MXC_ST_GPTQ, 32, 2, -1},
    {"gptq2", "sym.weight", MXC_ST_GPTQ, 32, 2, 2},
    {"gptq3", "plain.weight", MXC_ST_GPTQ, 32, 3, -1},
    {"gptq3", "act.weight", MXC_ST_GPTQ, 0, 0, 0},
    {"gptq4", "plain.weight", MXC_ST_GPTQ, 32, 4, -1},
    {"gptq4", "sym.weight", MXC_ST_GPTQ, 32, 4, 8},
    {"gptq4", "act.weight", MXC_ST_GPTQ, 0, 0, 0},
    {"gptq4v2", "sym.weight", MXC_ST_GPTQ, 32, 4, 8},
    {"gptq8", "sym.weight", MXC_ST_GPTQ, 32, 8, 128},
    {"gptqrow", "row.weight", MXC_ST_GPTQ, 32, 4, -1},
    {"awq", "a.weight", MXC_ST_AWQ, 32, 4, -1},
    {"awq", "b.weight", MXC_ST_AWQ, 32, 4, -1},
    {"ct", "sym4.weight", MXC_ST_INT_GROUPS, 32, 4, 8},
    {"ct", "asym4.weight", MXC_ST_INT_GROUPS, 32, 4, -1},
    {"ct", "row4.weight", MXC_ST_INT_GROUPS, 32, 4, 8},
    {"ct", "rowasym8.weight", MXC_ST_INT_GROUPS, 64, 8, -1},
    {"ct", "act4.weight", MXC_ST_INT_GROUPS, 0, 0, 0},
    {"ct", "i8row.weight", MXC_ST_INT_GROUPS, 32, 8, 128},
    {"ct", "i8groupasym.weight", MXC_ST_INT_GROUPS, 16, 8, -1},
    {"ct", "i8whole.weight", MXC_ST_INT_GROUPS, 32, 8, 128},
    {"ct", "f8row.weight", MXC_ST_FP8, 0, 0, 0},
    {"ct", "nv.weight", MXC_ST_NVFP4, 16, 4, 0},
    {"ct", "mx.weight", MXC_ST_MXFP4, 32, 4, 0},
    {"fp8", "block.weight", MXC_ST_FP8, 0, 0, 0},
    {"modelopt", "nv.weight", MXC_ST_NVFP4, 16, 4, 0},
    {"mxfp4", "experts.down_proj", MXC_ST_MXFP4, 32, 4, 0},
};

static void test_matrices(void **unused) {
    (void)unused;
    static const char *const folders[] = {"gptq2",   "gptq2v2", "gptq3",    "gptq3v2", "gptq4",
                                          "gptq4v2", "gptq8",   "gptq8v2",  "gptqrow", "awq",
                                          "ct",      "fp8",     "modelopt", "mxfp4"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct folder f;
        folder_open(&f, folders[i]);
        assert_int_equal(mxc_weights_count(f.weights), f.want->n_tensors);
        for (size_t k = 0; k < f.want->n_tensors; k++) {
            const struct mxc_tensor *t = mxc_weights_find(f.weights, f.want->tensors[k].name);
            if (!t)
                fail_msg("%s: no %s", folders[i], f.want->tensors[k].name);
            check_matrix(t, &f.want->tensors[k]);
        }
        folder_close(&f);
    }
}

static void test_forms(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct folder f;
        struct mxc_group_form form = {0};
        folder_open(&f, rows[i].folder);
        const struct mxc_tensor *t = mxc_weights_find(f.weights, rows[i].name);
        assert_non_null(t);
        assert_int_equal(t->storage, rows[i].storage);
        assert_true(t->companion_bytes > 0);
        assert_int_equal(mxc_tensor_group_form(t, &form), rows[i].group > 0);
        assert_int_equal(form.group, rows[i].group);
        assert_int_equal(form.bits, rows[i].bits);
        assert_int_equal(form.zero_point, rows[i].zero_point);
        assert_true((form.table != NULL) ==
                    (t->storage == MXC_ST_NVFP4 || t->storage == MXC_ST_MXFP4));
        folder_close(&f);
    }
}

/* ---- malformed pieces */

/* "NAME DTYPE E E E=FILL, ...": zeros, or the byte FILL. */
static void write_pieces(const char *spec) {
    static const struct {
        const char *name;
        size_t width;
    } types[] = {{"I32", 4}, {"F16", 2}, {"F32", 4}, {"BF16", 2},   {"U8", 1},
                 {"I8", 1},  {"I64", 8}, {"U32", 4}, {"F8_E4M3", 1}};
    struct mxc_buf header, data, all;
    char copy[1024], *rest = NULL;
    mxc_buf_init(&header, 1 << 20);
    mxc_buf_init(&data, 1 << 20);
    mxc_buf_init(&all, 1 << 20);
    assert_true(strlen(spec) < sizeof copy);
    memcpy(copy, spec, strlen(spec) + 1);
    assert_true(mxc_buf_puts(&header, "{"));
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char name[64], type[16], text[512];
        size_t width = 0, n = 1, begin = data.length;
        int at = 0, length;
        assert_int_equal(sscanf(one, " %63s %15s%n", name, type, &at), 2);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (!strcmp(types[i].name, type))
                width = types[i].width;
        assert_true(width > 0);
        length = snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                          header.length > 1 ? "," : "", name, type);
        const char *p = one + at;
        for (int dims = 0; *p == ' '; dims++) {
            char *end;
            unsigned long extent = strtoul(p, &end, 10);
            n *= extent;
            length += snprintf(text + length, sizeof text - (size_t)length, "%s%lu",
                               dims ? "," : "", extent);
            p = end;
        }
        uint64_t fill = *p == '=' ? strtoul(p + 1, NULL, 10) : 0;
        for (size_t i = 0; i < n * width; i++)
            files_uint(&data, fill, 1);
        (void)snprintf(text + length, sizeof text - (size_t)length, "],\"data_offsets\":[%zu,%zu]}",
                       begin, data.length);
        assert_true(mxc_buf_puts(&header, text));
    }
    assert_true(mxc_buf_puts(&header, "}") && mxc_buf_putc(&header, 0));
    files_string(&all, header.data);
    assert_true(mxc_buf_append(&all, data.data, data.length));
    files_write("q/model.safetensors", all.data, all.length);
    mxc_buf_fini(&header);
    mxc_buf_fini(&data);
    mxc_buf_fini(&all);
}

static enum mxc_code open_pieces(const char *quantization, uint64_t fail_at, struct mxc_weights **w,
                                 struct mxc_err *err) {
    struct mxc_config config = {0};
    if (quantization)
        assert_int_equal(
            mxc_json_parse(quantization, strlen(quantization), "test", &config.quantization, NULL),
            MXC_OK);
    const char *path = files_path("q");
    mxc_mem_fail_at(fail_at);
    enum mxc_code code = mxc_weights_open(path, &config, w, err);
    mxc_mem_fail_at(0);
    json_decref(config.quantization);
    return code;
}

#define GPTQ  "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32}"
#define AWQ   "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}"
#define CT    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}"
#define FP8   "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]}"
#define MXFP4 "{\"quant_method\":\"mxfp4\"}"
#define Q     "m.qweight I32 8 32,"
#define S     "m.scales F16 2 32,"
#define Z     "m.qzeros I32 2 4,"

static const struct {
    const char *pieces, *quantization, *words;
} bad[] = {
    {Q S Z "m.g_idx I32 64,m.weight_packed I32 4 8,m.weight_shape I32 2=8,m.weight_scale F16 4 1",
     GPTQ, "m.weight_packed shape"},
    {Q S Z "m.weight_packed U8 4 32,m.weight_scale U8 4 2", GPTQ, "m.weight two forms"},
    {Q Z "m.g_idx I32 64", GPTQ, "m.qweight no m.scales"},
    {Q S "m.g_idx I32 64", GPTQ, "m.qweight no m.qzeros"},
    {Q S Z "m.weight F16 32 64", GPTQ, "m.qweight m.weight beside"},
    {"m.qweight F16 8 32," S Z "m.g_idx I32 64", GPTQ, "m.qweight I32"},
    {Q S "m.qzeros F16 2 4", GPTQ, "m.qzeros I32"},
    {Q "m.scales U8 2 32," Z "m.g_idx I32 64", GPTQ, "m.scales float"},
    {Q "m.scales F16 64," Z "m.g_idx I32 64", GPTQ, "m.scales shape m.qweight"},
    {Q "m.scales F16 2 31," Z "m.g_idx I32 64", GPTQ, "m.scales shape m.qweight"},
    {Q S "m.qzeros I32 2 5,m.g_idx I32 64", GPTQ, "m.qzeros shape m.qweight"},
    {Q S Z "m.g_idx I32 64=9", GPTQ, "m.g_idx group out range 2"},
    {Q S Z "m.g_idx I32 64=255", GPTQ, "m.g_idx group -1 out range"},
    {Q S Z "m.g_idx I64 64", GPTQ, "m.g_idx I32"},
    {Q S Z "m.g_idx I32 63", GPTQ, "m.g_idx each column"},
    {Q S Z "m.g_idx I32 32", GPTQ, "m.qweight 32 columns 4 bits"},
    {Q S Z "m.g_idx I32 512", GPTQ, "m.g_idx shape m.qweight"},
    {Q "m.scales F16 0 32,m.qzeros I32 0 4", GPTQ, "m.scales no groups"},
    {Q "m.scales F16 3 32,m.qzeros I32 3 4", GPTQ, "m.scales 3 groups 32 64"},
    {Q S Z, NULL, "m.qweight bits unknown"},
    {Q S Z, "{\"quant_method\":\"gptq\",\"bits\":5,\"group_size\":32}", "m.qweight 5 bits"},
    {"m.qweight I32 7 32," S Z, GPTQ, "m.qweight multiples 32"},
    {"m.qweight I32 8 0,m.scales F16 2 0,m.qzeros I32 2 0", GPTQ, "m.scales shape"},
    {"m.qweight I32 2 8 32," S Z, GPTQ, "m.qweight shape matrix"},
    {Q S Z, AWQ, "m.qweight GPTQ"},
    {"m.qweight I32 64 4," S Z, GPTQ, "m.qweight AWQ"},
    {"m.qweight I32 64 4," S "m.qzeros I32 2 5", AWQ, "m.qzeros shape"},
    {"m.qweight I32 64 4," S Z, "{\"quant_method\":\"awq\",\"bits\":8}", "m.qweight AWQ 8 bits"},
    {"m.qweight I32 64 4,m.scales F16 5 32,m.qzeros I32 5 4", AWQ, "m.scales 5 groups"},
    {"m.weight_packed I32 4 8,m.weight_scale BF16 4 2", CT, "m.weight_packed no m.weight_shape"},
    {"m.weight_packed I32 4 8,m.weight_shape I64 2", CT, "m.weight_packed no m.weight_scale"},
    {"m.weight_packed I32 4 8,m.weight_shape I64 2,m.weight_scale BF16 4 2", CT,
     "m.weight_shape out range"},
    {"m.weight_packed I32 4 8,m.weight_shape I64 3,m.weight_scale BF16 4 2", CT,
     "m.weight_shape two integers"},
    {"m.weight_packed I32 4 8,m.weight_shape I32 2=1,m.weight_scale BF16 4 2", CT,
     "m.weight_packed shape .weight_shape"},
    {"m.weight_packed F16 4 8,m.weight_shape I32 2=1,m.weight_scale BF16 4 2", CT,
     "m.weight_packed dtype"},
    {"m.weight_packed I32 4 8,m.weight_shape I32 2=1,m.weight_scale U8 4 2", CT,
     "m.weight_scale float"},
    {"m.weight_packed U8 4 32,m.weight_scale F8_E4M3 4 4", CT,
     "m.weight_packed no m.weight_global_scale"},
    {"m.weight_packed U8 4 32,m.weight_scale F8_E4M3 4 4,m.weight_global_scale F32 1", CT,
     "m.weight_global_scale positive"},
    {"m.weight_packed U8 4 32,m.weight_scale F8_E4M3 4 4,m.weight_global_scale F32 2", CT,
     "m.weight_global_scale one float"},
    {"m.weight_packed U8 4 32,m.weight_scale F8_E4M3 4 3", CT, "m.weight_scale shape"},
    {"m.weight_packed U8 4 32,m.weight_scale F8_E4M3 5 4", CT, "m.weight_scale shape"},
    {"m.weight_packed U8 4 32,m.weight_scale F16 4 4", CT, "m.weight_scale dtype"},
    {"m.weight I8 4 8", CT, "m.weight no m.weight_scale"},
    {"m.weight I8 4 8,m.weight_scale F32 3", CT, "m.weight_scale shape m.weight"},
    {"m.weight I8 4 8,m.weight_scale F32 4 3", CT, "m.weight_scale 3 groups"},
    {"m.weight I8 4 8,m.weight_scale I8 4 1", CT, "m.weight_scale float"},
    {"m.weight I8 4 8,m.weight_scale F32 4 1,m.weight_zero_point I8 3 1", CT,
     "m.weight_zero_point shape"},
    {"m.weight F8_E4M3 32 32", FP8, "m.weight no m.weight_scale"},
    {"m.weight F8_E4M3 32 32,m.weight_scale_inv F32 3 2", FP8, "m.weight_scale_inv shape"},
    {"m.weight F8_E4M3 32 32,m.weight_scale_inv F32 2 3", FP8, "m.weight_scale_inv shape"},
    {"m.weight F8_E4M3 32,m.weight_scale F32 1", FP8, "m.weight shape matrix"},
    {"m.weight F8_E4M3 2 20 32,m.weight_scale_inv F32 2 2 2", FP8, "m.weight rows expert"},
    {"m.weight F8_E4M3 0 32,m.weight_scale_inv F32 1", FP8, "m.weight shape matrix"},
    {"m_blocks U8 2 3 2 16", MXFP4, "m_blocks no m_scales"},
    {"m_blocks U8 2 3 2 16,m_scales U8 2 3 3", MXFP4, "m_scales shape"},
    {"m_blocks U8 2 3 2 16,m_scales F16 2 3 2", MXFP4, "m_scales shape"},
    {"m_blocks U8 2 3 2 8,m_scales U8 2 3 2", MXFP4, "m_scales shape"},
    {"m_blocks U8 2 3 2 16,m_scales U8 2 3 2,m F16 1", MXFP4, "m_blocks m beside"},
};

static void test_bad(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mxc_weights *w = NULL;
        struct mxc_err err;
        write_pieces(bad[i].pieces);
        if (!open_pieces(bad[i].quantization, 0, &w, &err))
            fail_msg("accepted: %s", bad[i].pieces);
        assert_null(w);
        files_expect(&err, "model.safetensors: tensor");
        files_expect(&err, bad[i].words);
    }
}

/* What a config may not say, and what needs no config at all. */
static void test_configs(void **unused) {
    (void)unused;
    static const char *const refused[][2] = {
        {"{\"quant_method\":\"bitsandbytes\"}", "quantization_config method bitsandbytes"},
        {"{\"quant_method\":\"aqlm\"}", "aqlm"},
        {"{\"quant_method\":\"hqq\"}", "hqq"},
        {"{\"quant_method\":\"eetq\"}", "eetq"},
        {"{\"quant_method\":\"quanto\"}", "quanto"},
        {"{\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\"}",
         "checkpoint_format marlin"},
        {"{\"quant_method\":\"gptq\",\"bits\":\"4\"}", "bits"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-2}", "group_size"},
        {"{\"quant_method\":\"awq\",\"version\":\"gemv\"}", "version gemv"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}", "format marlin-24"},
        {"{\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{\"format\":"
         "\"sparse-24-bitmask\"}}",
         "format sparse-24-bitmask"},
        {"{\"quant_method\":\"compressed-tensors\",\"transform_config\":{\"a\":1}}",
         "transform_config"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]}", "weight_block_size"},
    };
    struct mxc_weights *w = NULL;
    struct mxc_err err;
    write_pieces("x F16 4");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!open_pieces(refused[i][0], 0, &w, &err))
            fail_msg("accepted: %s", refused[i][0]);
        files_expect(&err, "quantization_config");
        files_expect(&err, refused[i][1]);
    }
    /* a g_idx tells bits and groups; activation scales are nobody's weights */
    write_pieces(Q S Z "m.g_idx I32 64,m.input_scale F32 1");
    struct mxc_group_form form;
    assert_int_equal(open_pieces(NULL, 0, &w, &err), MXC_OK);
    const struct mxc_tensor *t = mxc_weights_find(w, "m.weight");
    assert_int_equal(mxc_weights_count(w), 2);
    assert_true(t->bits == 4 && t->group == 32 && t->shape[0] == 32 && t->shape[1] == 64);
    assert_false(mxc_tensor_group_form(t, &form)); /* every column in group 0 */
    mxc_weights_close(w);
    write_pieces(Q "m.scales F16 1 32,m.qzeros I32 1 4,m.g_idx I32 64,m.input_scale F32 1");
    assert_int_equal(open_pieces(GPTQ, 0, &w, &err), MXC_OK);
    assert_int_equal(mxc_weights_count(w), 1);
    assert_int_equal(mxc_weights_find(w, "m.weight")->bits, 4);
    mxc_weights_close(w);
    write_pieces("m.weight F8_E4M3 4 8=56"); /* 1.0, and no scale anywhere */
    assert_int_equal(open_pieces(NULL, 0, &w, &err), MXC_OK);
    float row[8];
    mxc_tensor_row(mxc_weights_find(w, "m.weight"), 3, row);
    assert_true(row[0] == 1 && row[7] == 1);
    mxc_weights_close(w);
}

static void test_no_memory(void **unused) {
    (void)unused;
    static const char *const cases[][2] = {
        {Q S Z "m.g_idx I32 64", GPTQ},
        {"m_blocks U8 2 3 2 16,m_scales U8 2 3 2", MXFP4},
        {"m.weight F8_E4M3 32 32,m.weight_scale_inv F32 2 2,m.input_scale F32 1", FP8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_pieces(cases[i][0]);
        enum mxc_code code = MXC_E_NOMEM;
        for (uint64_t n = 1; code; n++) {
            struct mxc_weights *w = NULL;
            assert_true(n < 300);
            code = open_pieces(cases[i][1], n, &w, NULL);
            assert_true(!code || code == MXC_E_NOMEM);
            mxc_weights_close(w);
        }
    }
}

/* Names for people, and that the bytes of all tensors and their companions are those of the file.
 */
static void test_storage_names(void **unused) {
    (void)unused;
    static const struct {
        const char *folder, *names; /* names separated by semicolons */
    } cases[] = {
        {"awq", ";AWQ 4-bit g32;"},
        {"ct", ";int 8-bit;int 8-bit rows;int 8-bit g16;int 8-bit g32;int 4-bit g32;int 4-bit rows;"
               "FP8 e4m3;FP8 e4m3 rows;FP8 e5m2 rows;MXFP4;NVFP4;"},
        {"fp8", ";FP8 e4m3 48x40;FP8 e5m2;FP8 e4m3;"},
        {"gptq3", ";GPTQ 3-bit g32;"},
        {"gptqrow", ";GPTQ 4-bit rows;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        uint64_t bytes = 0;
        folder_open(&f, cases[i].folder);
        for (size_t k = 0; k < mxc_weights_count(f.weights); k++) {
            const struct mxc_tensor *t = mxc_weights_at(f.weights, k);
            char name[MXC_STORAGE_NAME], listed[MXC_STORAGE_NAME + 2];
            mxc_tensor_storage_name(t, name);
            (void)snprintf(listed, sizeof listed, ";%s;", name);
            if (!strstr(cases[i].names, listed))
                fail_msg("%s: %s: \"%s\"", cases[i].folder, t->name, name);
            bytes += t->bytes + t->companion_bytes;
        }
        assert_int_equal(bytes, mxc_weights_bytes(f.weights));
        folder_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices),  cmocka_unit_test(test_forms),
        cmocka_unit_test(test_bad),       cmocka_unit_test(test_configs),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_storage_names),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

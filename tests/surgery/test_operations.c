/* Scale, add, replace, interpolate: numbers against hand computation, on F32, F16, BF16, MLX affine
 * and GGUF blocks; order; sources; what is refused; a failed allocation at every place. */
#include "surgery/patient.h"

#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD      "version: 1\noperations:\n"
#define COUNT(a)  (sizeof(a) / sizeof *(a))
#define NO_CONFIG "{}"

static const float six[] = {1, -2, 0.5f, 4, -0.25f, 3};
static const struct piece floats[] = {
    {.name = "a.f32.weight", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .values = six},
    {.name = "a.f16.weight", .dtype = "F16", .n_dims = 2, .shape = {3, 2}, .values = six},
    {.name = "a.bf16.weight", .dtype = "BF16", .n_dims = 1, .shape = {6}, .values = six},
    {.name = "b.f32.weight", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .values = six},
};

static void open_floats(struct patient *p) {
    patient_open(p, patient_file("floats.safetensors", floats, COUNT(floats)), NO_CONFIG);
}

static void operate(struct patient *p, const char *yaml) {
    if (patient_operate(p, yaml))
        fail_msg("%s", p->err.message);
}

static void refused(struct patient *p, const char *yaml, enum mxc_code code, const char *why) {
    enum mxc_code have = patient_operate(p, yaml);
    if (have != code || !strstr(p->err.message, why))
        fail_msg("%d \"%s\"", (int)have, p->err.message);
    patient_close(p);
}

static size_t changed(const struct patient *p, size_t i) {
    struct mxc_surgery_note note;
    assert_true(mxc_surgery_note(p->surgery, i, &note));
    return note.n_tensors;
}

static void scale_floats(void **state) {
    (void)state;
    struct patient p;
    float want[6];
    open_floats(&p);
    operate(&p, HEAD "  - {op: scale, pattern: \"a.*\", factor: -1.1}\n");
    assert_int_equal(changed(&p, 0), 3);
    assert_int_equal(mxc_surgery_bytes(p.surgery), 6 * 4 + 6 * 2 + 6 * 2);
    for (int i = 0; i < 6; i++)
        want[i] = six[i] * -1.1f;
    patient_expect(&p, "a.f32.weight", want, 6);
    patient_expect(&p, "b.f32.weight", six, 6);
    for (int i = 0; i < 6; i++)
        want[i] = mxc_f16_to_f32(mxc_f32_to_f16(six[i] * -1.1f));
    patient_expect(&p, "a.f16.weight", want, 6);
    for (int i = 0; i < 6; i++)
        want[i] = mxc_bf16_to_f32(mxc_f32_to_bf16(six[i] * -1.1f));
    patient_expect(&p, "a.bf16.weight", want, 6);
    /* dropping pages of what is in memory would make zeros of it */
    const struct mxc_tensor *t = mxc_weights_find(p.weights, "a.f32.weight");
    mxc_tensor_drop(t, 0, 2);
    patient_expect(&p, "b.f32.weight", six, 6);
    assert_true(patient_read(&p, "a.f32.weight")[0] == six[0] * -1.1f);
    assert_string_equal(t->name, "a.f32.weight");
    patient_close(&p);
}

/* Nothing is copied where nothing changes. */
static void identity(void **state) {
    (void)state;
    static const char *const documents[] = {"version: 1\n",
                                            HEAD "  - {op: scale, pattern: \"*\", factor: 1.0}\n"};
    for (size_t i = 0; i < COUNT(documents); i++) {
        struct patient p;
        open_floats(&p);
        const struct mxc_tensor before = *mxc_weights_find(p.weights, "a.f32.weight");
        operate(&p, documents[i]);
        assert_ptr_equal(mxc_weights_find(p.weights, "a.f32.weight")->data, before.data);
        assert_int_equal(mxc_surgery_bytes(p.surgery), 0);
        patient_close(&p);
    }
}

static void order(void **state) {
    (void)state;
    struct patient p;
    float want[6];
    (void)patient_file("donor.safetensors", floats, COUNT(floats));
    open_floats(&p);
    operate(&p, HEAD "  - {op: scale, pattern: a.f32.weight, factor: 2}\n"
                     "  - {op: add, pattern: a.f32.weight, source: donor.safetensors}\n"
                     "  - {op: add, pattern: b.f32.weight, source: donor.safetensors}\n"
                     "  - {op: scale, pattern: b.f32.weight, factor: 2}\n");
    for (int i = 0; i < 6; i++)
        want[i] = six[i] * 2 + six[i];
    patient_expect(&p, "a.f32.weight", want, 6);
    for (int i = 0; i < 6; i++)
        want[i] = (six[i] + six[i]) * 2;
    patient_expect(&p, "b.f32.weight", want, 6);
    assert_int_equal(mxc_surgery_bytes(p.surgery), 2 * 6 * 4); /* one copy of each */
    patient_close(&p);
}

static void add(void **state) {
    (void)state;
    static const float delta[] = {0.5f, 1, -1, 2, 0, 8};
    static const struct piece donor[] = {
        {.name = "a.f32.weight", .dtype = "BF16", .n_dims = 2, .shape = {2, 3}, .values = delta},
        {.name = "a.f16.weight", .dtype = "F32", .n_dims = 2, .shape = {3, 2}, .values = delta},
        {.name = "a.bf16.weight", .dtype = "F16", .n_dims = 1, .shape = {6}, .values = delta},
        {.name = "b.f32.weight", .dtype = "F32", .n_dims = 2, .shape = {3, 2}, .values = delta},
    };
    struct patient p;
    float want[6];
    (void)patient_file("donor.safetensors", donor, COUNT(donor));
    open_floats(&p);
    operate(&p, HEAD "  - {op: add, pattern: \"a.*\", source: donor.safetensors, alpha: 0.3}\n");
    for (int i = 0; i < 6; i++)
        want[i] = six[i] + 0.3f * delta[i];
    patient_expect(&p, "a.f32.weight", want, 6);
    for (int i = 0; i < 6; i++)
        want[i] = mxc_f16_to_f32(mxc_f32_to_f16(six[i] + 0.3f * delta[i]));
    patient_expect(&p, "a.f16.weight", want, 6);
    for (int i = 0; i < 6; i++)
        want[i] = mxc_bf16_to_f32(mxc_f32_to_bf16(six[i] + 0.3f * delta[i]));
    patient_expect(&p, "a.bf16.weight", want, 6);
    patient_close(&p);
    open_floats(&p);
    refused(&p, HEAD "  - {op: add, pattern: \"*\", source: donor.safetensors}\n", MXC_E_FORMAT,
            "surgery operation #0 (add): ");
    open_floats(&p);
    refused(&p, HEAD "  - {op: add, pattern: b.f32.weight, source: donor.safetensors}\n",
            MXC_E_FORMAT,
            "tensor b.f32.weight: 3 rows of 2, but b.f32.weight of the model has 2 of 3");
    (void)patient_file("donor.safetensors", donor, 1);
    open_floats(&p);
    refused(&p, HEAD "  - {op: add, pattern: \"a.*\", source: donor.safetensors}\n",
            MXC_E_NOT_FOUND, "donor.safetensors has no tensor a.f16.weight");
    (void)files_text("donor.safetensors", "no tensors");
    open_floats(&p);
    refused(&p, HEAD "  - {op: add, pattern: \"a.*\", source: donor.safetensors}\n", MXC_E_FORMAT,
            "surgery operation #0 (add): ");
}

static void replace(void **state) {
    (void)state;
    static const float other[] = {9, 8, 7, 6, 5, 4};
    static const struct piece donor[] = {
        {.name = "x.a.f32", .dtype = "BF16", .n_dims = 2, .shape = {2, 3}, .values = other},
        {.name = "x.b.f32", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .values = six},
        {.name = "x.a.f16", .dtype = "F32", .n_dims = 2, .shape = {2, 3}, .values = six},
    };
    struct patient p;
    float want[6];
    (void)patient_file("donor.safetensors", donor, COUNT(donor));
    open_floats(&p);
    operate(&p, HEAD "  - {op: scale, pattern: \"a.f32.*\", factor: 3}\n"
                     "  - {op: replace, pattern: \"*.f32.weight\", source: donor.safetensors, "
                     "source_key: \"x.*.f32\"}\n");
    assert_int_equal(changed(&p, 1), 2);
    patient_expect(&p, "a.f32.weight", other, 6);
    patient_expect(&p, "b.f32.weight", six, 6);
    const struct mxc_tensor *t = mxc_weights_find(p.weights, "a.f32.weight");
    assert_int_equal(t->storage, MXC_ST_BF16); /* the donor's */
    assert_string_equal(t->name, "a.f32.weight");
    assert_int_equal(mxc_surgery_bytes(p.surgery), 0); /* what was scaled is gone again */
    patient_close(&p);
    /* and on: what was replaced is scaled, the donor is not */
    open_floats(&p);
    operate(&p, HEAD "  - {op: replace, pattern: a.f32.weight, source: donor.safetensors, "
                     "source_key: x.a.f32}\n"
                     "  - {op: scale, pattern: a.f32.weight, factor: 0.5}\n"
                     "  - {op: replace, pattern: b.f32.weight, source: donor.safetensors, "
                     "source_key: x.a.f32}\n");
    for (int i = 0; i < 6; i++)
        want[i] = other[i] / 2;
    patient_expect(&p, "a.f32.weight", want, 6);
    patient_expect(&p, "b.f32.weight", other, 6);
    patient_close(&p);
    open_floats(&p);
    refused(&p,
            HEAD "  - {op: replace, pattern: \"a.*.weight\", source: donor.safetensors, "
                 "source_key: \"x.a.*\"}\n",
            MXC_E_FORMAT, "tensor x.a.f16: 2 rows of 3, but a.f16.weight of the model has 3 of 2");
    open_floats(&p);
    refused(&p,
            HEAD "  - {op: replace, pattern: a.f32.weight, source: donor.safetensors, "
                 "source_key: x.c}\n",
            MXC_E_NOT_FOUND, "donor.safetensors has no tensor x.c");
}

/* ---- interpolation */

static void mix_case(const float a[4], const float b[4], const char *dtype, const char *method,
                     const char *ratio, float want[4]) {
    const struct piece base = {"w", dtype, 2, {2, 2, 0}, a, NULL}, left = base;
    struct piece right = base;
    struct patient p;
    char yaml[512];
    right.values = b;
    (void)patient_file("a.safetensors", &left, 1);
    (void)patient_file("b.safetensors", &right, 1);
    patient_open(&p, patient_file("w.safetensors", &base, 1), NO_CONFIG);
    (void)snprintf(yaml, sizeof yaml,
                   HEAD "  - {op: interpolate, pattern: w, source_a: a.safetensors, source_b: "
                        "b.safetensors, ratio: %s, method: %s}\n",
                   ratio, method);
    operate(&p, yaml);
    memcpy(want, patient_read(&p, "w"), 4 * sizeof *want);
    patient_close(&p);
}

static void near(const float have[4], const float want[4], double part) {
    for (int i = 0; i < 4; i++)
        if (fabs((double)have[i] - (double)want[i]) > part * fabs((double)want[i]) + 1e-12)
            fail_msg("%d: %.9g, not %.9g", i, (double)have[i], (double)want[i]);
}

static void interpolate(void **state) {
    (void)state;
    static const float a[] = {1, 2, -3, 4}, b[] = {-2, 1, 4, 3}, zero[4] = {0};
    float twice[4], have[4], want[4];
    for (int i = 0; i < 4; i++)
        twice[i] = 2 * a[i];
    mix_case(a, b, "F32", "lerp", "0.25", have);
    for (int i = 0; i < 4; i++)
        want[i] = 0.75f * a[i] + 0.25f * b[i];
    near(have, want, 0);
    mix_case(a, b, "F32", "lerp", "0", have);
    near(have, a, 0);
    mix_case(a, b, "F32", "slerp", "1", have);
    near(have, b, 1e-6);
    /* a and b are orthogonal: cos = (-2 + 2 - 12 + 12) = 0; weights are cosine and sine of an
     * angle of 0.25 * 90 degrees */
    mix_case(a, b, "F32", "slerp", "0.25", have);
    for (int i = 0; i < 4; i++)
        want[i] = 0.92387953f * a[i] + 0.38268343f * b[i];
    near(have, want, 1e-6);
    mix_case(a, b, "BF16", "slerp", "0.25", have);
    near(have, want, 0.005);
    /* parallel, opposite or zero: as lerp */
    mix_case(a, twice, "F32", "slerp", "0.5", have);
    for (int i = 0; i < 4; i++)
        want[i] = 0.5f * a[i] + 0.5f * twice[i];
    near(have, want, 0);
    for (int i = 0; i < 4; i++)
        twice[i] = -a[i];
    mix_case(a, twice, "F32", "slerp", "0.25", have);
    for (int i = 0; i < 4; i++)
        want[i] = 0.75f * a[i] + 0.25f * twice[i];
    near(have, want, 0);
    mix_case(a, zero, "F32", "slerp", "0.25", have);
    for (int i = 0; i < 4; i++)
        want[i] = 0.75f * a[i];
    near(have, want, 0);
}

static void interpolate_refused(void **state) {
    (void)state;
    static const struct piece half = {"b.f32.weight", "F16", 2, {2, 3, 0}, six, NULL};
    struct patient p;
    (void)patient_file("a.safetensors", floats, COUNT(floats));
    (void)patient_file("b.safetensors", &half, 1);
    open_floats(&p);
    refused(&p,
            HEAD "  - {op: interpolate, pattern: b.f32.weight, source_a: a.safetensors, source_b: "
                 "b.safetensors, ratio: 0.5, method: lerp}\n",
            MXC_E_FORMAT,
            "tensor b.f32.weight: F32 of the model, F32 of source_a and F16 of source_b");
}

/* ---- quantised */

enum { ROWS = 2, COLUMNS = 64, GROUP = 32, BITS = 4 };

static void affine_open(struct patient *p, float scales[4], float biases[4], uint32_t words[16]) {
    const float s[] = {0.5f, -0.25f, 2, 1}, b[] = {1, -1, 0.5f, 0};
    memcpy(scales, s, sizeof s);
    memcpy(biases, b, sizeof b);
    for (uint32_t i = 0; i < 16; i++)
        words[i] = 0x76543210u + i * 0x11111111u;
    const struct piece pieces[] = {
        {"m.q.weight", "U32", 2, {ROWS, 8, 0}, NULL, words},
        {"m.q.scales", "BF16", 2, {ROWS, 2, 0}, scales, NULL},
        {"m.q.biases", "BF16", 2, {ROWS, 2, 0}, biases, NULL},
    };
    patient_open(p, patient_file("affine.safetensors", pieces, COUNT(pieces)),
                 "{\"quantization\": {\"group_size\": 32, \"bits\": 4}}");
}

static void scale_affine(void **state) {
    (void)state;
    struct patient p;
    float scales[4], biases[4], want[ROWS * COLUMNS];
    uint32_t words[16];
    affine_open(&p, scales, biases, words);
    const uint8_t *codes = mxc_weights_find(p.weights, "m.q.weight")->data;
    operate(&p, HEAD "  - {op: scale, pattern: m.q.weight, factor: 0.3}\n");
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int g = i / GROUP;
        float code = (float)(words[i / 8] >> i % 8 * BITS & 15);
        float scale = mxc_bf16_to_f32(mxc_f32_to_bf16(scales[g] * 0.3f));
        float bias = mxc_bf16_to_f32(mxc_f32_to_bf16(biases[g] * 0.3f));
        float product = scale * code;
        want[i] = product + bias;
    }
    patient_expect(&p, "m.q.weight", want, ROWS * COLUMNS);
    const struct mxc_tensor *t = mxc_weights_find(p.weights, "m.q.weight");
    assert_ptr_equal(t->data, codes);
    assert_int_equal(t->scale_storage, MXC_ST_BF16);
    assert_int_equal(mxc_surgery_bytes(p.surgery), 2 * 4 * 2);
    patient_close(&p);
    affine_open(&p, scales, biases, words);
    refused(&p,
            HEAD "  - {op: scale, pattern: m.q.weight, factor: 1.0e+38}\n"
                 "  - {op: scale, pattern: m.q.weight, factor: 1.0e+38}\n",
            MXC_E_ARG,
            "surgery operation #1 (scale): tensor m.q.weight: a number becomes too large");
    (void)patient_file("donor.safetensors", floats, 1);
    affine_open(&p, scales, biases, words);
    refused(&p, HEAD "  - {op: scale, pattern: m.q.scales, factor: 2}\n", MXC_E_NOT_FOUND,
            "no tensor matches the pattern \"m.q.scales\"");
}

static void add_to_affine(void **state) {
    (void)state;
    static float numbers[ROWS * COLUMNS];
    const struct piece donor = {"m.q.weight", "F32", 2, {ROWS, COLUMNS, 0}, numbers, NULL};
    struct patient p;
    float scales[4], biases[4];
    uint32_t words[16];
    (void)patient_file("donor.safetensors", &donor, 1);
    affine_open(&p, scales, biases, words);
    refused(&p, HEAD "  - {op: add, pattern: m.q.weight, source: donor.safetensors}\n",
            MXC_E_UNSUPPORTED,
            "tensor m.q.weight is stored as MLX affine 4-bit g32: only floating");
    /* but it can be replaced by floats, and these by sums */
    affine_open(&p, scales, biases, words);
    operate(&p, HEAD "  - {op: replace, pattern: m.q.weight, source: donor.safetensors, "
                     "source_key: m.q.weight}\n"
                     "  - {op: add, pattern: m.q.weight, source: donor.safetensors}\n");
    patient_expect(&p, "m.q.weight", numbers, ROWS * COLUMNS);
    patient_close(&p);
}

/* Every quantised golden checkpoint: a factor of two doubles every number of a matrix, exactly. */
static void scale_every_storage(void **state) {
    (void)state;
    static const char *const names[] = {"llama_gguf_q4_0/model.gguf",
                                        "llama_gguf_q4_1/model.gguf",
                                        "llama_gguf_q5_0/model.gguf",
                                        "llama_gguf_q5_1/model.gguf",
                                        "llama_gguf_q8_0/model.gguf",
                                        "llama_gguf_q4_k/model.gguf",
                                        "llama_gguf_q6_k/model.gguf",
                                        "llama_gguf_f16/model.gguf",
                                        "llama_gguf_bf16/model.gguf",
                                        "llama_mlx_q3_g32",
                                        "llama_mlx_q8_g64",
                                        "llama_mlx_mxfp4",
                                        "llama_mlx_mxfp8",
                                        "llama_mlx_nvfp4",
                                        "llama_gptq_q4",
                                        "llama_gptq_q8_act",
                                        "llama_awq",
                                        "llama_ct_w4",
                                        "llama_ct_w8",
                                        "llama_fp8_block"};
    const char *name = "model.layers.0.self_attn.q_proj.weight";
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[512];
        struct mxc_config *config = NULL;
        struct mxc_weights *weights = NULL;
        struct mxc_surgery *surgery = NULL;
        struct mxc_err err = {.message = ""};
        (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, names[i]);
        const char *yaml = files_text(
            "surgery.yaml", HEAD "  - {op: scale, pattern: \"*.0.*.q_proj.weight\", factor: 2}\n");
        if (mxc_config_open(path, &config, &err) || mxc_weights_open(path, config, &weights, &err))
            fail_msg("%s", err.message);
        const struct mxc_tensor *t = mxc_weights_find(weights, name);
        size_t k = (size_t)mxc_tensor_columns(t), n = (size_t)mxc_tensor_rows(t) * k;
        float *before = calloc(n, sizeof *before), *after = calloc(n, sizeof *after);
        assert_true(before && after);
        mxc_tensor_read(t, 0, mxc_tensor_rows(t), before, k);
        if (mxc_surgery_open(yaml, &surgery, &err) ||
            mxc_surgery_apply(surgery, config, weights, &err))
            fail_msg("%s: %s", names[i], err.message);
        mxc_tensor_read(t, 0, mxc_tensor_rows(t), after, k);
        for (size_t j = 0; j < n; j++)
            if (after[j] != 2 * before[j])
                fail_msg("%s[%zu]: %g from %g", names[i], j, (double)after[j], (double)before[j]);
        free(before);
        free(after);
        mxc_weights_close(weights);
        mxc_surgery_close(surgery);
        mxc_config_close(config);
    }
}

/* ---- faults */

static void no_match(void **state) {
    (void)state;
    struct patient p;
    open_floats(&p);
    refused(&p,
            HEAD "  - {op: scale, pattern: \"a.*\", factor: 2}\n"
                 "  - {op: scale, pattern: \"z.*\", factor: 2}\n",
            MXC_E_NOT_FOUND,
            "surgery.yaml: surgery operation #1 (scale): no tensor matches the pattern \"z.*\"");
}

static void too_large(void **state) {
    (void)state;
    struct patient p;
    open_floats(&p);
    refused(&p, HEAD "  - {op: scale, pattern: a.f16.weight, factor: 65000}\n", MXC_E_ARG,
            "tensor a.f16.weight: a number becomes too large for its storage");
}

static void integers(void **state) {
    (void)state;
    static const uint32_t words[] = {1, 2};
    static const struct piece ids = {"ids", "U32", 1, {2, 0, 0}, NULL, words};
    struct patient p;
    patient_open(&p, patient_file("ids.safetensors", &ids, 1), NO_CONFIG);
    refused(&p, HEAD "  - {op: scale, pattern: ids, factor: 2}\n", MXC_E_UNSUPPORTED,
            "tensor ids is stored as U32: it has no scale");
}

static void allocations(void **state) {
    (void)state;
    (void)patient_file("donor.safetensors", floats, COUNT(floats));
    for (uint64_t n = 1;; n++) {
        struct patient p;
        open_floats(&p);
        const char *path = files_text(
            "surgery.yaml", HEAD
            "  - {op: scale, pattern: \"a.*\", factor: 2}\n"
            "  - {op: add, pattern: \"*\", source: donor.safetensors}\n"
            "  - {op: replace, pattern: \"a.*\", source: donor.safetensors, source_key: \"a.*\"}\n"
            "  - {op: interpolate, pattern: \"b.*\", source_a: donor.safetensors,\n"
            "     source_b: donor.safetensors, ratio: 0.5, method: slerp}\n");
        assert_int_equal(mxc_surgery_open(path, &p.surgery, &p.err), MXC_OK);
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_surgery_apply(p.surgery, &p.config, p.weights, &p.err);
        mxc_mem_fail_at(0);
        if (code) {
            assert_int_equal(code, MXC_E_NOMEM);
        } else {
            assert_true(n > 10);
            patient_expect(&p, "b.f32.weight", six, 6);
        }
        patient_close(&p);
        if (!code)
            return;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scale_floats),
                                       cmocka_unit_test(identity),
                                       cmocka_unit_test(order),
                                       cmocka_unit_test(add),
                                       cmocka_unit_test(replace),
                                       cmocka_unit_test(interpolate),
                                       cmocka_unit_test(interpolate_refused),
                                       cmocka_unit_test(scale_affine),
                                       cmocka_unit_test(add_to_affine),
                                       cmocka_unit_test(scale_every_storage),
                                       cmocka_unit_test(no_match),
                                       cmocka_unit_test(too_large),
                                       cmocka_unit_test(integers),
                                       cmocka_unit_test(allocations)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

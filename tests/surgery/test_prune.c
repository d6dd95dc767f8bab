/* Prune: which rows and columns become zeros for heads, layers and channels, on floats, MLX affine
 * matrices and those with parts; ranges; what is left alone; groups that do not fit. */
#include "surgery/patient.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD     "version: 1\noperations:\n"
#define COUNT(a) (sizeof(a) / sizeof *(a))
#define L0       "model.layers.0."
#define L1       "model.layers.1."

/* two text layers of two heads (one of keys), MLP of 3 channels; one vision layer of 2 heads */
static const char config[] = "{\"num_attention_heads\": 2, \"num_key_value_heads\": 1,"
                             " \"num_hidden_layers\": 2, \"intermediate_size\": 3,"
                             " \"vision_config\": {\"num_heads\": 3, \"depth\": 1}}";
static float ones[128];
static const struct piece pieces[] = {
    {L0 "self_attn.q_proj.weight", "F32", 2, {4, 3, 0}, ones, NULL},
    {L0 "self_attn.q_proj.bias", "F32", 1, {4, 0, 0}, ones, NULL},
    {L0 "self_attn.k_proj.weight", "F32", 2, {2, 3, 0}, ones, NULL},
    {L0 "self_attn.q_norm.weight", "F32", 1, {2, 0, 0}, ones, NULL},
    {L0 "self_attn.o_proj.weight", "BF16", 2, {3, 4, 0}, ones, NULL},
    {L0 "self_attn.o_proj.bias", "BF16", 1, {3, 0, 0}, ones, NULL},
    {L0 "mlp.gate_proj.weight", "F16", 2, {3, 2, 0}, ones, NULL},
    {L0 "mlp.up_proj.weight", "F32", 2, {3, 2, 0}, ones, NULL},
    {L0 "mlp.down_proj.weight", "F32", 2, {2, 3, 0}, ones, NULL},
    {L0 "mlp.experts.gate_proj.weight", "F32", 3, {2, 3, 2}, ones, NULL},
    {L0 "mlp.gate_up_proj.weight", "F32", 2, {6, 2, 0}, ones, NULL},
    {L1 "self_attn.qkv_proj.weight", "F32", 2, {8, 2, 0}, ones, NULL},
    {L1 "mlp.w2.weight", "F32", 2, {2, 3, 0}, ones, NULL},
    {"model.norm.weight", "F32", 1, {4, 0, 0}, ones, NULL},
    {"visual.blocks.0.attn.qkv.weight", "F32", 2, {9, 2, 0}, ones, NULL},
    {"visual.blocks.0.attn.proj.weight", "F32", 2, {2, 3, 0}, ones, NULL},
    {"visual.patch_embed.proj.weight", "F32", 2, {2, 3, 0}, ones, NULL},
};

static void open_ones(struct patient *p) {
    for (size_t i = 0; i < COUNT(ones); i++)
        ones[i] = 1;
    patient_open(p, patient_file("ones.safetensors", pieces, COUNT(pieces)), config);
}

static void operate(struct patient *p, const char *yaml) {
    enum mxc_code code = patient_operate(p, yaml);
    if (code)
        fail_msg("%s", p->err.message);
}

static void refused(const char *yaml, enum mxc_code code, const char *why) {
    struct patient p;
    open_ones(&p);
    enum mxc_code have = patient_operate(&p, yaml);
    if (have != code || !strstr(p.err.message, why))
        fail_msg("%d \"%s\"", (int)have, p.err.message);
    patient_close(&p);
}

/* "110 110": digits of the rows, which are 0 or 1. */
static void expect(const struct patient *p, const char *name, const char *want) {
    const struct mxc_tensor *t = mxc_weights_find(p->weights, name);
    const float *have = patient_read(p, name);
    char text[256];
    size_t at = 0, columns = (size_t)mxc_tensor_columns(t);
    for (size_t r = 0; r < (size_t)mxc_tensor_rows(t); r++) {
        if (r)
            text[at++] = ' ';
        for (size_t c = 0; c < columns; c++)
            text[at++] = have[r * columns + c] == 0 ? '0' : '1';
    }
    text[at] = 0;
    assert_string_equal(text, want);
}

static size_t changed(const struct patient *p) {
    struct mxc_surgery_note note;
    assert_true(mxc_surgery_note(p->surgery, 0, &note));
    return note.n_tensors;
}

static const char *left(const struct patient *p) {
    static struct mxc_surgery_note note;
    assert_true(mxc_surgery_note(p->surgery, 0, &note));
    return note.left;
}

static void heads(void **state) {
    (void)state;
    struct patient p;
    open_ones(&p);
    operate(&p, HEAD "  - {op: prune, granularity: attention_head, pattern: \"model.layers.*\", "
                     "head_ids: [1]}\n");
    expect(&p, L0 "self_attn.q_proj.weight", "111 111 000 000");
    expect(&p, L0 "self_attn.q_proj.bias", "1100");
    expect(&p, L0 "self_attn.o_proj.weight", "1100 1100 1100");
    expect(&p, L0 "self_attn.o_proj.bias", "111");
    expect(&p, L0 "self_attn.k_proj.weight", "111 111");
    expect(&p, L0 "self_attn.q_norm.weight", "11");
    expect(&p, L0 "mlp.down_proj.weight", "111 111");
    /* 8 rows: two heads of queries, one of keys, one of values */
    expect(&p, L1 "self_attn.qkv_proj.weight", "11 11 00 00 11 11 11 11");
    assert_int_equal(changed(&p), 4);
    assert_string_equal(left(&p), "1 left alone, keys and values that other heads share (" L0
                                  "self_attn.k_proj.weight); "
                                  "6 left alone, names that tell no part of a block (" L0
                                  "mlp.gate_proj.weight, ...)");
    patient_close(&p);
}

static void vision_heads(void **state) {
    (void)state;
    struct patient p;
    open_ones(&p);
    operate(&p, HEAD "  - {op: prune, granularity: attention_head, pattern: \"visual.*\", "
                     "head_ids: [0, 2]}\n");
    expect(&p, "visual.blocks.0.attn.qkv.weight", "00 11 00 11 11 11 11 11 11");
    expect(&p, "visual.blocks.0.attn.proj.weight", "010 010");
    expect(&p, "visual.patch_embed.proj.weight", "111 111");
    assert_int_equal(changed(&p), 2);
    patient_close(&p);
}

static void channels(void **state) {
    (void)state;
    struct patient p;
    open_ones(&p);
    operate(&p, HEAD "  - {op: prune, granularity: mlp_channel, pattern: "
                     "\"*.{gate_proj,up_proj,down_proj,w2}.weight\", channel_ids: [2, 0]}\n");
    expect(&p, L0 "mlp.gate_proj.weight", "00 11 00");
    expect(&p, L0 "mlp.up_proj.weight", "00 11 00");
    expect(&p, L0 "mlp.down_proj.weight", "010 010");
    expect(&p, L0 "mlp.experts.gate_proj.weight", "00 11 00 00 11 00");
    expect(&p, L1 "mlp.w2.weight", "010 010");
    assert_int_equal(changed(&p), 5);
    patient_close(&p);
}

static void layers(void **state) {
    (void)state;
    struct patient p;
    open_ones(&p);
    operate(&p, HEAD "  - {op: prune, granularity: layer, pattern: \"model.*\", layer_ids: [1]}\n");
    expect(&p, L1 "self_attn.qkv_proj.weight", "00 00 00 00 00 00 00 00");
    expect(&p, L1 "mlp.w2.weight", "000 000");
    expect(&p, L0 "mlp.up_proj.weight", "11 11 11");
    expect(&p, "model.norm.weight", "1111");
    assert_int_equal(changed(&p), 2);
    patient_close(&p);
    open_ones(&p);
    operate(&p, HEAD "  - {op: prune, granularity: layer, pattern: \"vis*\", layer_ids: [0]}\n");
    expect(&p, "visual.blocks.0.attn.proj.weight", "000 000");
    expect(&p, "visual.patch_embed.proj.weight", "111 111");
    patient_close(&p);
}

static void out_of_range(void **state) {
    (void)state;
    refused(HEAD "  - {op: prune, granularity: attention_head, pattern: \"*.q_proj.*\", "
                 "head_ids: [0, 2]}\n",
            MXC_E_ARG,
            "surgery operation #0 (prune): head_ids: 2 is not below the 2 heads of the text");
    refused(HEAD "  - {op: prune, granularity: layer, pattern: \"model.*\", layer_ids: [2]}\n",
            MXC_E_ARG, "layer_ids: 2 is not below the 2 layers of the text");
    refused(HEAD "  - {op: prune, granularity: layer, pattern: \"visual.*\", layer_ids: [1]}\n",
            MXC_E_ARG, "layer_ids: 1 is not below the 1 layers of the vision part");
    refused(HEAD "  - {op: prune, granularity: mlp_channel, pattern: \"*.down_proj.weight\", "
                 "channel_ids: [3]}\n",
            MXC_E_ARG, "channel_ids: 3 is not below the 3 channels of " L0 "mlp.down_proj.weight");
    refused(HEAD "  - {op: prune, granularity: layer, pattern: model.norm.weight, layer_ids: "
                 "[1]}\n",
            MXC_E_NOT_FOUND, "none of the 1 tensors that match the pattern \"model.norm.weight\"");
    refused(HEAD "  - {op: prune, granularity: attention_head, pattern: \"*.k_proj.*\", "
                 "head_ids: [0]}\n",
            MXC_E_NOT_FOUND, "none of the 1 tensors that match");
    refused(HEAD "  - {op: prune, granularity: mlp_channel, pattern: \"*.gate_up_proj.*\", "
                 "channel_ids: [0]}\n",
            MXC_E_UNSUPPORTED, "gate and up are one matrix");
    refused(HEAD "  - {op: prune, granularity: layer, pattern: \"nothing\", layer_ids: [0]}\n",
            MXC_E_NOT_FOUND, "no tensor matches the pattern \"nothing\"");
}

static void no_config(void **state) {
    (void)state;
    struct patient p;
    patient_open(&p, patient_file("ones.safetensors", pieces, COUNT(pieces)), "{}");
    assert_int_equal(patient_operate(&p, HEAD "  - {op: prune, granularity: layer, pattern: \"*\", "
                                              "layer_ids: [0]}\n"),
                     MXC_E_CONFIG);
    assert_non_null(strstr(p.err.message, "does not tell the number of layers of the text"));
    patient_close(&p);
}

/* ---- quantised */

static void affine_open(struct patient *p, const char *heads_config) {
    static uint32_t words[64 * 8];
    static float scales[64 * 2], biases[64 * 2];
    char text[256];
    memset(words, 0x55, sizeof words);
    for (size_t i = 0; i < COUNT(scales); i++) {
        scales[i] = 0.5f;
        biases[i] = 1;
    }
    static const char *const names[] = {"q_proj", "o_proj"};
    struct piece list[6];
    static char full[6][64];
    for (int i = 0; i < 2; i++) {
        static const char *const ends[] = {"weight", "scales", "biases"};
        for (int k = 0; k < 3; k++) {
            (void)snprintf(full[i * 3 + k], sizeof full[0], L0 "self_attn.%s.%s", names[i],
                           ends[k]);
            list[i * 3 + k] =
                (struct piece){full[i * 3 + k],    k ? "F16" : "U32",        2,
                               {64, k ? 2 : 8, 0}, k == 1 ? scales : biases, k ? NULL : words};
        }
    }
    (void)snprintf(text, sizeof text, "{\"quantization\": {\"group_size\": 32, \"bits\": 4}, %s}",
                   heads_config);
    patient_open(p, patient_file("affine.safetensors", list, 6), text);
}

static void affine(void **state) {
    (void)state;
    struct patient p;
    const char *heads = HEAD "  - {op: prune, granularity: attention_head, pattern: \"*\", "
                             "head_ids: [1]}\n";
    affine_open(&p, "\"num_attention_heads\": 2, \"num_hidden_layers\": 1");
    operate(&p, heads);
    const float *q = patient_read(&p, L0 "self_attn.q_proj.weight");
    const float *o = patient_read(&p, L0 "self_attn.o_proj.weight");
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++) {
            float want_q = r < 32 ? 0.5f * 5 + 1 : 0, want_o = c < 32 ? 0.5f * 5 + 1 : 0;
            if (q[r * 64 + c] != want_q || o[r * 64 + c] != want_o)
                fail_msg("%d, %d: %g %g", r, c, (double)q[r * 64 + c], (double)o[r * 64 + c]);
        }
    patient_close(&p);
    /* heads of 16 columns end inside of groups of 32 */
    affine_open(&p, "\"num_attention_heads\": 4");
    assert_int_equal(patient_operate(&p, heads), MXC_E_ARG);
    assert_non_null(strstr(p.err.message,
                           "tensor " L0 "self_attn.o_proj.weight: columns 16 to 31 do not begin "
                           "and end at a multiple of its group of 32"));
    patient_close(&p);
    affine_open(&p, "\"num_hidden_layers\": 1");
    operate(&p, HEAD "  - {op: prune, granularity: layer, pattern: \"*\", layer_ids: [0]}\n");
    q = patient_read(&p, L0 "self_attn.q_proj.weight");
    for (int i = 0; i < 64 * 64; i++)
        assert_true(q[i] == 0);
    patient_close(&p);
}

/* Golden checkpoints of every kind of storage: a head's rows are zero and no others. */
static void every_storage(void **state) {
    (void)state;
    static const char *const names[] = {"llama_gguf_q4_0/model.gguf",
                                        "llama_gguf_q4_k/model.gguf",
                                        "llama_gguf_f16/model.gguf",
                                        "llama_mlx_q8_g64",
                                        "llama_mlx_mxfp4",
                                        "llama_mlx_nvfp4",
                                        "llama_gptq_q4",
                                        "llama_gptq_q8_act",
                                        "llama_awq",
                                        "llama_ct_w4",
                                        "llama_ct_w8"};
    const char *name = L0 "self_attn.q_proj.weight";
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[512];
        struct mxc_config *c = NULL;
        struct mxc_weights *weights = NULL;
        struct mxc_surgery *surgery = NULL;
        struct mxc_err err = {.message = ""};
        (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, names[i]);
        const char *yaml =
            files_text("surgery.yaml", HEAD "  - {op: prune, granularity: attention_head, pattern: "
                                            "\"*.0.*.q_proj.weight\", head_ids: [1]}\n");
        if (mxc_config_open(path, &c, &err) || mxc_weights_open(path, c, &weights, &err))
            fail_msg("%s", err.message);
        const struct mxc_tensor *t = mxc_weights_find(weights, name);
        size_t k = (size_t)mxc_tensor_columns(t), rows = (size_t)mxc_tensor_rows(t);
        size_t dim =
            rows / (size_t)json_integer_value(json_object_get(c->text, "num_attention_heads"));
        float *before = calloc(rows * k, sizeof *before), *after = calloc(rows * k, sizeof *after);
        assert_true(before && after);
        mxc_tensor_read(t, 0, (int64_t)rows, before, k);
        if (mxc_surgery_open(yaml, &surgery, &err) || mxc_surgery_apply(surgery, c, weights, &err))
            fail_msg("%s: %s", names[i], err.message);
        mxc_tensor_read(t, 0, (int64_t)rows, after, k);
        for (size_t j = 0; j < rows * k; j++) {
            bool pruned = j / k >= dim && j / k < 2 * dim;
            if (after[j] != (pruned ? 0 : before[j]))
                fail_msg("%s[%zu]: %g from %g", names[i], j, (double)after[j], (double)before[j]);
        }
        free(before);
        free(after);
        mxc_weights_close(weights);
        mxc_surgery_close(surgery);
        mxc_config_close(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads),  cmocka_unit_test(vision_heads), cmocka_unit_test(channels),
        cmocka_unit_test(layers), cmocka_unit_test(out_of_range), cmocka_unit_test(no_config),
        cmocka_unit_test(affine), cmocka_unit_test(every_storage)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

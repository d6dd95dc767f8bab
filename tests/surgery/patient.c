/* Weights to operate on: see patient.h. */
#define _GNU_SOURCE
#include "surgery/patient.h"

#include "base/buf.h"
#include "base/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t count_of(const struct piece *p) {
    size_t n = 1;
    for (int d = 0; d < p->n_dims; d++)
        n *= (size_t)p->shape[d];
    return n;
}

static size_t width_of(const struct piece *p) {
    return !strcmp(p->dtype, "F16") || !strcmp(p->dtype, "BF16") ? 2 : 4;
}

static void put_numbers(struct mxc_buf *out, const struct piece *p) {
    for (size_t i = 0; i < count_of(p); i++) {
        uint32_t bits = p->words ? p->words[i] : mxc_f32_bits(p->values[i]);
        if (!strcmp(p->dtype, "F16"))
            bits = mxc_f32_to_f16(p->values[i]);
        if (!strcmp(p->dtype, "BF16"))
            bits = mxc_f32_to_bf16(p->values[i]);
        files_uint(out, bits, width_of(p));
    }
}

const char *patient_file(const char *name, const struct piece *pieces, size_t n) {
    struct mxc_buf head, out;
    size_t at = 0;
    mxc_buf_init(&head, 1 << 20);
    mxc_buf_init(&out, 1 << 24);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = count_of(&pieces[i]) * width_of(&pieces[i]);
        assert_true(mxc_buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{",
                                   pieces[i].name, pieces[i].dtype));
        for (int d = 0; d < pieces[i].n_dims; d++)
            assert_true(
                mxc_buf_printf(&head, "%s%lld", d ? "," : "", (long long)pieces[i].shape[d]));
        assert_true(mxc_buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes));
        at += bytes;
    }
    assert_true(mxc_buf_putc(&head, '}'));
    files_uint(&out, head.length, 8);
    assert_true(mxc_buf_append(&out, head.data, head.length));
    for (size_t i = 0; i < n; i++)
        put_numbers(&out, &pieces[i]);
    const char *path = files_write(name, out.data, out.length);
    mxc_buf_fini(&head);
    mxc_buf_fini(&out);
    return path;
}

void patient_open(struct patient *p, const char *path, const char *config) {
    *p = (struct patient){.err = {.message = ""}};
    p->config.root = json_loads(config, 0, NULL);
    assert_non_null(p->config.root);
    p->config.text = p->config.root;
    p->config.quantization = json_object_get(p->config.root, "quantization");
    if (mxc_weights_open(path, &p->config, &p->weights, &p->err))
        fail_msg("%s", p->err.message);
}

enum mxc_code patient_operate(struct patient *p, const char *yaml) {
    const char *path = files_text("surgery.yaml", yaml);
    enum mxc_code code = mxc_surgery_open(path, &p->surgery, &p->err);
    return code ? code : mxc_surgery_apply(p->surgery, &p->config, p->weights, &p->err);
}

void patient_close(struct patient *p) {
    mxc_weights_close(p->weights);
    mxc_surgery_close(p->surgery);
    json_decref(p->config.root);
}

const float *patient_read(const struct patient *p, const char *name) {
    static float numbers[4][4096];
    static unsigned turn;
    float *out = numbers[turn++ % 4];
    const struct mxc_tensor *t = mxc_weights_find(p->weights, name);
    assert_non_null(t);
    size_t n = (size_t)mxc_tensor_columns(t);
    assert_true(n * (size_t)mxc_tensor_rows(t) <= 4096);
    mxc_tensor_read(t, 0, mxc_tensor_rows(t), out, n);
    return out;
}

void patient_expect(const struct patient *p, const char *name, const float *want, size_t n) {
    const float *have = patient_read(p, name);
    for (size_t i = 0; i < n; i++)
        if (have[i] != want[i])
            fail_msg("%s[%zu] is %.9g, not %.9g", name, i, (double)have[i], (double)want[i]);
}

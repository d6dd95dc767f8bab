/* Models with operations on their weights: see operated.h. */
#define _GNU_SOURCE
#include "engine/operated.h"

#include "base/mem.h"
#include "engine/grey.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mxc_model *operated_open(const char *golden, const char *yaml,
                                const struct mxc_load_options *options) {
    struct mxc_load_options o = *options;
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    char path[512], document[] = "/tmp/mxc-surgery-XXXXXX";
    (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, golden);
    o.surgery = "";
    if (yaml) {
        int fd = mkstemp(document);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, yaml, strlen(yaml)), strlen(yaml));
        assert_int_equal(close(fd), 0);
        o.surgery = document;
    }
    enum mxc_code code = mxc_model_open(path, &o, &model, &err);
    if (yaml)
        (void)unlink(document);
    if (code)
        fail_msg("%s", err.message);
    return model;
}

float *operated_logits(const struct mxc_model *m) {
    const int32_t n_blocks[MXC_N_KV_KINDS] = {4, 4, 4, 4}, table[] = {0, 1};
    static const int32_t tokens[OPERATED_TOKENS] = {5, 6, 7, 91, 33, 50, 9, 40};
    static const int32_t rows[OPERATED_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct mxc_state *kv = NULL;
    struct mxc_err err = {.message = ""};
    struct mxc_span span = {.n_rows = OPERATED_TOKENS, .rope_length = 16, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span.blocks[k] = table;
        span.n_blocks[k] = 2;
    }
    const struct mxc_step step = {.n_rows = OPERATED_TOKENS,
                                  .tokens = tokens,
                                  .positions = rows,
                                  .n_axes = 1,
                                  .n_spans = 1,
                                  .spans = &span,
                                  .n_out = OPERATED_TOKENS,
                                  .out_row = rows};
    size_t vocab = (size_t)m->checkpoint->graph->vocab;
    float *logits = calloc(OPERATED_TOKENS * vocab, sizeof *logits);
    assert_non_null(logits);
    const struct mxc_out out = {.logits = logits};
    if (m->ops->state_new(m->plan, n_blocks, &kv, &err) ||
        m->ops->run(m->plan, kv, &step, &out, &err))
        fail_msg("%s", err.message);
    m->ops->state_free(kv);
    return logits;
}

/* The tower's rows of an input, [*rows][width], malloc'ed. */
static float *look(const struct mxc_model *m, const struct mxc_tower_input *input, size_t *n) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err = {.message = ""};
    int32_t rows = 0;
    bool done = false;
    assert_non_null(m->tower);
    if (m->tower_ops->tower_new(m->tower, input, &tower, &err))
        fail_msg("%s", err.message);
    while (!done)
        if (m->tower_ops->tower_step(tower, UINT64_MAX, &done, &err))
            fail_msg("%s", err.message);
    const float *from = m->tower_ops->tower_output(tower, &rows);
    *n = (size_t)rows * (size_t)mxc_vision_tower(m->checkpoint->vision)->vocab;
    float *copy = calloc(*n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, from, *n * sizeof *copy);
    m->tower_ops->tower_free(tower);
    return copy;
}

float *operated_features(const struct mxc_model *m, size_t *n) {
    struct grey grey;
    grey_init(&grey, m->checkpoint->vision);
    float *features = look(m, &grey.picture.input, n);
    grey_fini(&grey);
    return features;
}

/* ---- a prompt with a picture */

enum { SIDE = 56, MAX_ROWS = 64, TABLE = 4 };

static void paint(const struct mxc_vision *vision, struct mxc_vision_picture *picture) {
    struct mxc_image image;
    struct mxc_err err = {.message = ""};
    assert_int_equal(mxc_image_init(SIDE, SIDE, &image, &err), MXC_OK);
    for (int i = 0; i < 3 * SIDE * SIDE; i++)
        image.rgb[i] = (uint8_t)((i % 3 + 1) * (i / 3 % SIDE) + i / (3 * SIDE) * 2);
    if (mxc_vision_prepare(vision, &image, NULL, picture, &err))
        fail_msg("%s", err.message);
    mxc_image_fini(&image);
}

/* false: the picture needs text around it. */
static bool lay_out(const struct mxc_vision *vision, const struct mxc_vision_picture *picture,
                    struct mxc_vision_layout *layout) {
    const int32_t tokens[] = {5, 6, mxc_vision_image_token(vision), 7, 8};
    const uint8_t is_mark[] = {0, 0, 1, 0, 0};
    const struct mxc_vision_text text = {tokens, is_mark, 5};
    struct mxc_err err = {.message = ""};
    char *around = NULL;
    if (mxc_vision_mark_text(vision, picture, "<mark>", &around, &err))
        fail_msg("%s", err.message);
    if (!around && mxc_vision_lay_out(vision, &text, &picture, 1, layout, &err))
        fail_msg("%s", err.message);
    const bool plain = !around;
    mxc_mem_free(around);
    return plain;
}

static void ask(const struct mxc_model *m, const struct mxc_vision_layout *l,
                struct operated_seen *seen) {
    static const int32_t n_blocks[MXC_N_KV_KINDS] = {TABLE, TABLE, TABLE, TABLE},
                         table[TABLE] = {0, 1, 2, 3};
    const size_t ld = (size_t)mxc_vision_tower(m->checkpoint->vision)->vocab;
    int32_t counted[MAX_ROWS], wanted[OPERATED_TOKENS];
    struct mxc_splice splices[MAX_ROWS];
    struct mxc_state *kv = NULL;
    struct mxc_err err = {.message = ""};
    const int32_t n = l->n_tokens, n_out = n < OPERATED_TOKENS ? n : OPERATED_TOKENS;
    assert_in_range(n, 1, MAX_ROWS);
    struct mxc_span span = {.n_rows = n, .rope_length = n, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span.blocks[k] = table;
        span.n_blocks[k] = TABLE;
    }
    struct mxc_step step = {.n_rows = n,
                            .tokens = l->tokens,
                            .positions = l->positions ? l->positions : counted,
                            .n_axes = l->positions ? 3 : 1,
                            .row_end = l->row_end,
                            .cross_range = l->cross_range,
                            .n_spans = 1,
                            .spans = &span,
                            .n_out = n_out,
                            .out_row = wanted,
                            .splices = splices};
    for (int32_t i = 0; i < n; i++)
        counted[i] = i;
    for (int32_t i = 0; i < n_out; i++)
        wanted[i] = n - n_out + i;
    if (m->ops->state_new(m->plan, n_blocks, &kv, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < l->n_runs; i++) {
        const struct mxc_vision_run *r = &l->runs[i];
        const float *from = seen->features + (size_t)r->feature0 * ld;
        if (l->cross_range) {
            if (m->ops->state_put(kv, table, r->row0, r->n_rows, from, ld, &err))
                fail_msg("%s", err.message);
            span.cross_tokens = r->row0 + r->n_rows;
            continue;
        }
        for (int32_t k = 0; k < r->n_rows; k++)
            splices[step.n_splices++] = (struct mxc_splice){r->row0 + k, from + (size_t)k * ld};
    }
    seen->n_logits = (size_t)n_out * (size_t)m->checkpoint->graph->vocab;
    seen->logits = calloc(seen->n_logits, sizeof *seen->logits);
    assert_non_null(seen->logits);
    if (m->ops->run(m->plan, kv, &step, &(struct mxc_out){.logits = seen->logits}, &err))
        fail_msg("%s", err.message);
    m->ops->state_free(kv);
}

void operated_see(const struct mxc_model *m, struct operated_seen *seen) {
    struct mxc_vision_picture picture;
    struct mxc_vision_layout layout;
    *seen = (struct operated_seen){.n_logits = 0};
    paint(m->checkpoint->vision, &picture);
    seen->features = look(m, &picture.input, &seen->n_features);
    if (lay_out(m->checkpoint->vision, &picture, &layout)) {
        ask(m, &layout, seen);
        mxc_vision_layout_fini(&layout);
    }
    mxc_vision_picture_fini(&picture);
}

void operated_seen_fini(struct operated_seen *seen) {
    free(seen->features);
    free(seen->logits);
}

/* ---- donors */

static void put(FILE *f, const void *bytes, size_t n) {
    assert_int_equal(fwrite(bytes, 1, n, f), n);
}

/* Codes 0 to 15, scale 1/64, bias -1/8; both fit F16. */
static unsigned code_of(int row, int column) {
    return (unsigned)(row * 7 + column * 5 + column / 16 * 3) % 16;
}

void operated_donor(const char *path, const char *name, int rows, int columns, bool quantised) {
    static const uint16_t scale = 0x2400, bias = 0xb000;
    char head[1024];
    const int words = rows * columns / 8, groups = rows * columns / 64;
    assert_true(rows <= 256 && columns <= 512 && columns % 64 == 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (quantised)
        (void)snprintf(
            head, sizeof head,
            "{\"%s.weight\":{\"dtype\":\"U32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]},"
            "\"%s.scales\":{\"dtype\":\"F16\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]},"
            "\"%s.biases\":{\"dtype\":\"F16\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]}}",
            name, rows, columns / 8, 4 * words, name, rows, columns / 64, 4 * words,
            4 * words + 2 * groups, name, rows, columns / 64, 4 * words + 2 * groups,
            4 * words + 4 * groups);
    else
        (void)snprintf(
            head, sizeof head,
            "{\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", name,
            rows, columns, 4 * rows * columns);
    uint64_t length = strlen(head);
    put(f, &length, sizeof length);
    put(f, head, (size_t)length);
    for (int i = 0; i < rows * columns; i += 8) {
        uint32_t word = 0;
        float numbers[8];
        for (int k = 0; k < 8; k++) {
            unsigned code = code_of(i / columns, i % columns + k);
            word |= (uint32_t)code << (4 * k);
            numbers[k] = (float)code / 64 - 0.125f;
        }
        if (quantised)
            put(f, &word, sizeof word);
        else
            put(f, numbers, sizeof numbers);
    }
    for (int i = 0; quantised && i < 2 * groups; i++)
        put(f, i < groups ? &scale : &bias, sizeof scale);
    assert_int_equal(fclose(f), 0);
}

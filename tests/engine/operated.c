/* Models with operations on their weights: see operated.h. */
#define _GNU_SOURCE
#include "engine/operated.h"

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

float *operated_features(const struct mxc_model *m, size_t *n) {
    struct grey grey;
    struct mxc_tower *tower = NULL;
    struct mxc_err err = {.message = ""};
    int32_t rows = 0;
    bool done = false;
    assert_non_null(m->tower);
    grey_init(&grey, m->checkpoint->vision);
    if (m->tower_ops->tower_new(m->tower, &grey.picture.input, &tower, &err))
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
    grey_fini(&grey);
    return copy;
}

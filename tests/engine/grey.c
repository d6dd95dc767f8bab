/* A prompt with a grey picture: see grey.h. */
#define _GNU_SOURCE
#include "engine/grey.h"

#include "test.h"

#include <string.h>

void grey_init(struct grey *g, const struct mxc_vision *vision) {
    struct mxc_image image;
    const int32_t mark = mxc_vision_image_token(vision);
    const int32_t tokens[] = {5, 6, mark, 7, 8};
    const uint8_t is_mark[] = {0, 0, 1, 0, 0};
    const struct mxc_vision_text text = {tokens, is_mark, 5};
    const struct mxc_vision_picture *pictures[] = {&g->picture};
    assert_int_equal(mxc_image_init(56, 56, &image, NULL), MXC_OK);
    memset(image.rgb, 90, 56 * 56 * 3);
    assert_int_equal(mxc_vision_prepare(vision, &image, NULL, &g->picture, NULL), MXC_OK);
    mxc_image_fini(&image);
    assert_int_equal(mxc_vision_lay_out(vision, &text, pictures, 1, &g->layout, NULL), MXC_OK);
    assert_in_range(g->layout.n_runs, 1, GREY_MAX_RUNS);
    for (int32_t i = 0; i < g->layout.n_runs; i++) {
        g->runs[i] = (struct mxc_embed_run){.row0 = g->layout.runs[i].row0,
                                            .n_rows = g->layout.runs[i].n_rows,
                                            .feature0 = g->layout.runs[i].feature0};
        memcpy(g->runs[i].digest, g->picture.digest, sizeof g->picture.digest);
    }
    g->given = (struct mxc_prompt_picture){.input = &g->picture.input,
                                           .n_rows = g->picture.cost.n_features};
    memcpy(g->given.digest, g->picture.digest, sizeof g->given.digest);
    g->prompt = (struct mxc_prompt){.tokens = g->layout.tokens,
                                    .n_tokens = g->layout.n_tokens,
                                    .positions = g->layout.positions,
                                    .rope_delta = g->layout.rope_delta,
                                    .row_end = g->layout.row_end,
                                    .embeds = g->runs,
                                    .n_embeds = g->layout.n_runs,
                                    .pictures = &g->given,
                                    .n_pictures = 1,
                                    .adapter = -1};
}

void grey_fini(struct grey *g) {
    mxc_vision_layout_fini(&g->layout);
    mxc_vision_picture_fini(&g->picture);
}

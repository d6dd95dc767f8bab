/* A prompt with one grey picture of 56 x 56, laid out for a model that sees by embedding. */
#ifndef MXC_TESTS_ENGINE_GREY_H
#define MXC_TESTS_ENGINE_GREY_H

#include "engine/engine.h"
#include "models/vision.h"

enum { GREY_MAX_RUNS = 64 };

struct grey {
    struct mxc_vision_picture picture;
    struct mxc_vision_layout layout;
    struct mxc_embed_run runs[GREY_MAX_RUNS];
    struct mxc_prompt_picture given;
    struct mxc_prompt prompt; /* what to submit; points into the others: do not move it */
};

/* Fails the test when it cannot be made. */
void grey_init(struct grey *grey, const struct mxc_vision *vision);
void grey_fini(struct grey *grey);

#endif

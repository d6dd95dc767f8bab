/* A golden checkpoint that sees, opened with its vision part, tokeniser and reference results;
 * pictures prepared and prompts laid out as gen/ does it. Asserts that everything works. */
#ifndef MXC_TESTS_MODELS_VLM_H
#define MXC_TESTS_MODELS_VLM_H

#include "test.h"

#include "format/config.h"
#include "format/safetensors.h"
#include "models/vision.h"
#include "text/tokenizer.h"

enum { VLM_MAX_PICTURES = 2 };

struct vlm {
    char path[256];
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_vision *vision;
    struct mxc_tokenizer *tokenizer;
    json_t *golden;
    struct mxc_safetensors *tensors;
};
/* The golden checkpoints that see, NULL at the end: those of tests/data, or with MXC_GOLDEN in the
 * environment those of that folder which tests/data does not have. */
const char *const *vlm_names(void);
void vlm_open(struct vlm *m, const char *name);
void vlm_close(struct vlm *m);
/* The bytes of a golden tensor, NULL: there is none; count: of its numbers. */
const void *vlm_tensor(const struct vlm *m, const char *name, size_t *count);

/* One case: its pictures, prepared, and its prompt, laid out. */
struct vlm_case {
    const json_t *item;
    const char *name;
    struct mxc_vision_picture pictures[VLM_MAX_PICTURES];
    int32_t n_pictures;
    struct mxc_vision_layout layout;
    int32_t *tokens; /* before expansion */
    uint8_t *is_mark;
    int32_t n_tokens;
};
void vlm_case_open(const struct vlm *m, size_t index, struct vlm_case *c);
void vlm_case_close(struct vlm_case *c);
/* A picture of tests/data/image by its golden name. */
void vlm_image(const char *name, struct mxc_image *image);

#endif

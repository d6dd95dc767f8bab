/* What preprocess.c and the families (plan_*.c) share. */
#ifndef MXC_IMAGE_FAMILY_H
#define MXC_IMAGE_FAMILY_H

#include "image/preprocess.h"

struct mxc_picture_family {
    const char *name;
    const char *types[6];       /* image_processor_type, without "Fast"; NULL ends */
    const char *model_types[6]; /* where the file names no type; NULL ends */
    bool int_is_square;         /* what "size": 224 means: both sides, or else the shortest edge */
    struct mxc_preprocess defaults; /* of keys that the file leaves out */
    /* Checks the keys this family needs; the error names the key. */
    enum mxc_code (*check)(const struct mxc_preprocess *p, struct mxc_err *err);
    /* plan comes with the picture's size filled in. budget: 0 where nothing is asked. */
    enum mxc_code (*plan)(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err);
    /* data: room for what the plan says, zeroed. */
    enum mxc_code (*run)(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err);
};
extern const struct mxc_picture_family mxc_picture_qwen2_vl, mxc_picture_clip, mxc_picture_llava,
    mxc_picture_siglip, mxc_picture_mllama, mxc_picture_idefics3, mxc_picture_gemma3;

#define MXC_CLIP_LEVELS                                                                            \
    {                                                                                              \
        .rescale = true, .normalise = true, .factor = 1.0 / 255,                                   \
        .mean = {0.48145466, 0.4578275, 0.40821073}, .std = {                                      \
            0.26862954,                                                                            \
            0.26130258,                                                                            \
            0.27577711                                                                             \
        }                                                                                          \
    }
#define MXC_HALF_LEVELS                                                                            \
    {                                                                                              \
        .rescale = true, .normalise = true, .factor = 1.0 / 255, .mean = {0.5, 0.5, 0.5}, .std = { \
            0.5,                                                                                   \
            0.5,                                                                                   \
            0.5                                                                                    \
        }                                                                                          \
    }

/* Both sides given and square, for families of one tile size: MXC_E_FORMAT names "size". */
enum mxc_code mxc_picture_need_square(const struct mxc_preprocess *p, struct mxc_err *err) MXC_MUST;
/* Resizes the rectangle of image (inside it) to the plan's plane and writes plane number at. */
enum mxc_code mxc_picture_fixed(const struct mxc_preprocess *p, const struct mxc_image *image,
                                const struct mxc_picture_plan *plan, int at, float *data,
                                struct mxc_err *err) MXC_MUST;

#endif

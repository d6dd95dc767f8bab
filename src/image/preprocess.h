/* How a model wants its pictures: read from preprocessor_config.json or processor_config.json, and
 * carried out. A plan says from the picture's size alone what will come out (tiles, patches,
 * bytes), for admission and estimates; running it makes the numbers. What comes out equals the PIL
 * processors of transformers 5 to the last bit of their 8-bit steps.
 *
 * Families (image_processor_type): Qwen2-VL, Qwen2.5-VL, Qwen3-VL; CLIP and LLaVA; SigLIP; mllama;
 * Idefics3 and SmolVLM; Gemma 3. Each is a table and two functions in plan_<family>.c.
 * Pure functions: a struct mxc_preprocess is read-only after loading and may be shared. */
#ifndef MXC_IMAGE_PREPROCESS_H
#define MXC_IMAGE_PREPROCESS_H

#include "image/pixels.h"
#include "image/resize.h"

#include <jansson.h>

struct mxc_picture_family;

/* 0 stands for "not given". */
struct mxc_picture_size {
    int height, width, shortest_edge, longest_edge;
};

struct mxc_preprocess {
    const struct mxc_picture_family *family;
    bool do_resize, do_center_crop, do_rescale, do_normalize, do_pad, do_image_splitting,
        do_pan_and_scan;
    enum mxc_filter resample;
    struct mxc_picture_size size, crop_size, max_image_size;
    int64_t min_pixels, max_pixels; /* of the resized picture: Qwen */
    int patch_size, temporal_patch_size, merge_size;
    int max_image_tiles;
    int pan_min_crop_size, pan_max_crops;
    double pan_min_ratio;
    struct mxc_level_rule rule;
    struct mxc_levels levels; /* of rule */
};

/* Reads the model folder's files. processor_config.json counts if it holds an "image_processor"
 * object (transformers 5), else preprocessor_config.json. model_type (of config.json; NULL:
 * unknown) decides the family where the file does not name one. A folder without either file is
 * MXC_E_NOT_FOUND, an unknown processor MXC_E_UNSUPPORTED. Errors name the file and the key. */
enum mxc_code mxc_preprocess_load(const char *folder, const char *model_type,
                                  struct mxc_preprocess *p, struct mxc_err *err) MXC_MUST;
/* The same from a parsed object. */
enum mxc_code mxc_preprocess_parse(const json_t *object, const char *model_type,
                                   struct mxc_preprocess *p, struct mxc_err *err) MXC_MUST;
/* "qwen2_vl", "clip", "llava", "siglip", "mllama", "idefics3", "gemma3". */
const char *mxc_preprocess_family(const struct mxc_preprocess *p);

/* Pixels a request allows, instead of the file's; 0: the file's. Qwen: the bounds of the resized
 * picture (a lower max lowers min too). Idefics3: longest_edge^2, in whole tiles. mllama and pan
 * and scan: tiles of the fixed size, at least one. CLIP, LLaVA and SigLIP always take one fixed
 * size. */
struct mxc_pixel_budget {
    int64_t min_pixels, max_pixels;
};

/* What a picture becomes. Either n_patches rows of patch_values numbers, or n_planes planes of
 * [3, plane_height, plane_width]; the other count is 0. */
struct mxc_picture_plan {
    int width, height;                 /* of the picture */
    int resized_width, resized_height; /* of what is tiled, cropped or cut into patches */
    int64_t n_patches, patch_values;
    int grid_thw[3];   /* Qwen: in patches */
    int n_planes;      /* mllama: max_image_tiles, the ones from n_tiles on are zero */
    int n_tiles;       /* planes that show something: aspect_ratio_mask is 1 for these. Within them
                          every pixel counts: pixel_attention_mask is 1 throughout */
    int rows, columns; /* tiles: of mllama, and of Idefics3 before its whole picture (0: not split);
                          pan and scan: of the crops after the whole picture */
    int plane_width, plane_height;
    int aspect_ratio_id; /* mllama: 1 and up */
};

/* From the size of the upright picture. A picture the family cannot take is MXC_E_ARG, one that
 * becomes too much MXC_E_LIMIT. budget may be NULL. */
enum mxc_code mxc_picture_plan_init(const struct mxc_preprocess *p, int width, int height,
                                    const struct mxc_pixel_budget *budget,
                                    struct mxc_picture_plan *plan, struct mxc_err *err) MXC_MUST;

struct mxc_pixels {
    struct mxc_picture_plan plan;
    float *data; /* [n_patches, patch_values] or [n_planes, 3, plane_height, plane_width] */
    size_t count;
};

/* Carries out the plan of the picture's size. Release with mxc_pixels_fini. */
enum mxc_code mxc_pixels_init(const struct mxc_preprocess *p, const struct mxc_image *image,
                              const struct mxc_pixel_budget *budget, struct mxc_pixels *pixels,
                              struct mxc_err *err) MXC_MUST;
void mxc_pixels_fini(struct mxc_pixels *pixels);

#endif

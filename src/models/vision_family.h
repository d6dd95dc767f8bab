/* What vision.c and the families that see share. A family that sees is a struct mxc_family with a
 * `vision`: how its tower is written, what a picture costs, how prepared pixels become the tower's
 * input, and what kind of layout its prompts have. Tower pieces are in vision_blocks.c, layouts in
 * vision_layout.c, text models that stand inside a vision model in vision_text.c. */
#ifndef MXC_MODELS_VISION_FAMILY_H
#define MXC_MODELS_VISION_FAMILY_H

#include "base/buf.h"
#include "image/preprocess.h"
#include "models/blocks.h"
#include "models/vision.h"

/* What a family keeps of its config; each uses what it needs. */
struct mxc_vision_shape {
    int32_t patch, temporal; /* of a patch: pixels per side, frames */
    int32_t merge;           /* rows join in squares of merge x merge */
    int32_t image;           /* pixels per side of a plane */
    int32_t table;           /* side of the position table */
    int32_t window;          /* qwen2_5_vl: side of a window, in merged cells */
    int32_t tiles;           /* mllama: planes of a picture */
    bool class_row;          /* a plane's first row is the class's */
    bool drop_first;         /* the first row of a plane gives no feature */
    bool channels_last;      /* the kernel's inputs are y, x, channel, not channel, y, x */
    int32_t end_token;       /* gemma3: what follows the picture's tokens */
};

struct mxc_vision {
    const struct mxc_vision_family *family;
    const char *name; /* of the family */
    struct mxc_preprocess pre;
    struct mxc_vision_shape shape;
    struct mxc_graph *tower;
    int32_t image_token; /* stands for a feature row in the prompt */
    int32_t mark_token;  /* what the template writes */
};

/* What a tower is made from. */
struct mxc_vision_source {
    const struct mxc_config *config;
    const json_t *vision; /* vision_config */
    const struct mxc_weights *weights;
    const char *prefix;      /* of the tower's tensors */
    int32_t text_hidden;     /* width of the language model */
    struct mxc_vision *into; /* shape and tower are to be filled */
};

enum mxc_vision_layout_kind {
    MXC_LAYOUT_PLAIN,     /* features take the mark's place */
    MXC_LAYOUT_MROPE,     /* and have positions of their own on three axes */
    MXC_LAYOUT_BOTH_WAYS, /* and see each other */
    MXC_LAYOUT_CROSS      /* the mark stays; features go to the CROSS store */
};

struct mxc_vision_family {
    const char *const *prefixes;   /* of the tower's tensors, NULL-ended; the first that ... */
    const char *probe;             /* ... holds this tensor counts; none does: text only */
    const char *const *processors; /* mxc_preprocess_family, NULL-ended */
    enum mxc_vision_layout_kind layout;
    bool mark_per_tile; /* mark_text writes a mark for every tile */
    enum mxc_code (*open)(const struct mxc_vision_source *source, struct mxc_err *err);
    /* Fills n_features, n_tokens and n_patches; the rest is filled. */
    void (*cost)(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                 struct mxc_vision_cost *cost);
    /* Fills input, grid and aspect; may take pixels->data (and leave NULL there). */
    enum mxc_code (*feed)(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err);
    /* NULL: the mark stays as the template wrote it. */
    void (*mark_text)(const struct mxc_vision *v, const struct mxc_vision_picture *picture,
                      const char *mark, struct mxc_buf *out);
    bool cap_pixels; /* the default budget is at most 1 megapixel */
};

extern const struct mxc_vision_family mxc_vision_qwen2_vl, mxc_vision_qwen2_5_vl,
    mxc_vision_qwen3_vl, mxc_vision_llava, mxc_vision_mllama, mxc_vision_gemma3,
    mxc_vision_idefics3;

/* ---- reading configs */

struct mxc_vision_key {
    const char *key;
    int32_t *out;
    int32_t absent, max; /* at least 1 */
};
enum mxc_code mxc_vision_ints(const json_t *object, const struct mxc_vision_key *keys, size_t n,
                              struct mxc_err *err) MXC_MUST;
/* A list of at most `max` integers in [lo, hi]; absent or null leaves *n. */
enum mxc_code mxc_vision_list(const json_t *object, const char *key, const int32_t range[2],
                              int32_t max, int32_t *out, int32_t *n, struct mxc_err *err) MXC_MUST;

/* ---- tower.c pieces. Graph errors are sticky; names are full ones without ".weight". */
struct mxc_tower_build {
    struct mxc_graph *g;
    const struct mxc_weights *weights;
    int32_t hidden, heads, ffn, layers;
    float eps;
    double theta; /* of mxc_tower_rope_2d */
    enum mxc_act act;
    int32_t range, rope, positions; /* of the attention; MXC_NONE: no rotation */
};
bool mxc_tower_has(const struct mxc_tower_build *t, const char *fmt, ...) MXC_PRINTF(2, 3);
/* x W^T, with a bias where the file has one. */
int32_t mxc_tower_linear(const struct mxc_tower_build *t, int32_t x, int64_t out, int32_t residual,
                         const char *fmt, ...) MXC_PRINTF(5, 6);
/* A layer norm, its bias by file. */
int32_t mxc_tower_layer_norm(const struct mxc_tower_build *t, int32_t x, const char *fmt, ...)
    MXC_PRINTF(3, 4);
int32_t mxc_tower_rms_norm(const struct mxc_tower_build *t, int32_t x, const char *fmt, ...)
    MXC_PRINTF(3, 4);
/* The kernel of a convolution whose strides are its sizes, as a matrix over input rows of `in`
 * numbers; tells how its inputs are laid out. A kernel that fits neither way is the graph's error.
 */
int32_t mxc_tower_patches(const struct mxc_tower_build *t, const struct mxc_vision_shape *shape,
                          bool *channels_last, const char *fmt, ...) MXC_PRINTF(4, 5);
/* A table of rows of t->hidden numbers, seen in a tensor of any shape with as many numbers. */
int32_t mxc_tower_table(const struct mxc_tower_build *t, int64_t rows, const char *fmt, ...)
    MXC_PRINTF(3, 4);
/* q, k, v (fused or apart), attention and output projection, without the residual when it is
 * MXC_NONE. name: of the attention's module. */
int32_t mxc_tower_attention(const struct mxc_tower_build *t, int32_t x, int32_t residual,
                            const char *name);
/* fc2(act(fc1 x)); up and down: full names. */
int32_t mxc_tower_mlp(const struct mxc_tower_build *t, int32_t x, int32_t residual, const char *up,
                      const char *down);
/* Rotation by row and column over whole heads: sets rope and positions (an index of two terms). */
void mxc_tower_rope_2d(struct mxc_tower_build *t, int32_t rows_of);
/* CLIP's and SigLIP's encoder under `prefix` ("vision_tower.vision_model."): reads vision_config
 * (type: what its model_type is when absent), and writes embeddings and n_layers layers (negative:
 * all). Index 0: positions; index 1: class rows, where shape->class_row; range 0. values: [n_layers
 * + 1] or NULL: input and every layer's output. Returns the last value. */
struct mxc_encoder {
    struct mxc_tower_build t;
    struct mxc_vision_shape *shape;
    const char *prefix;
};
enum mxc_code mxc_encoder_read(const struct mxc_vision_source *source, const char *type,
                               struct mxc_encoder *e, struct mxc_err *err) MXC_MUST;
int32_t mxc_encoder_build(struct mxc_encoder *e, int32_t n_layers, int32_t *values);

/* ---- feeding */

/* Arrays that the picture owns; NULL: no memory (err is set). */
float *mxc_feed_rows(struct mxc_vision_picture *picture, int64_t rows, int64_t width,
                     struct mxc_err *err);
int32_t *mxc_feed_index(struct mxc_vision_picture *picture, int32_t index, int64_t n,
                        struct mxc_err *err);
float *mxc_feed_factor(struct mxc_vision_picture *picture, int32_t index, int64_t n,
                       struct mxc_err *err);
/* [2][rows] */
int32_t *mxc_feed_range(struct mxc_vision_picture *picture, int32_t range, int64_t rows,
                        struct mxc_err *err);
/* Row of patch (y, x) of a plane, in the kernel's layout. */
void mxc_feed_patch(const struct mxc_vision *v, const struct mxc_pixels *pixels, int32_t plane,
                    int32_t y, int32_t x, float *row);
/* Patch i of a grid `across` patches wide whose patches stand in squares of merge x merge. */
struct mxc_cell {
    int32_t y, x;
};
struct mxc_cell mxc_feed_cell(int32_t i, int32_t across, int32_t merge);
/* Rows, index 0 (and 1), and range 0 of planes for mxc_encoder_build, patches in squares of
 * shape.merge. */
enum mxc_code mxc_feed_planes(const struct mxc_vision *v, const struct mxc_pixels *pixels,
                              struct mxc_vision_picture *picture, struct mxc_err *err) MXC_MUST;

/* ---- Qwen's towers */
enum mxc_code mxc_qwen_read(const struct mxc_vision_source *source, const char *hidden_key,
                            struct mxc_tower_build *t, struct mxc_err *err) MXC_MUST;
void mxc_qwen_cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                   struct mxc_vision_cost *cost);
/* Rows (order: NULL, or for every row the patch that stands there), index 0 and range 0. */
enum mxc_code mxc_qwen_feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                            const int32_t *order, struct mxc_vision_picture *picture,
                            struct mxc_err *err) MXC_MUST;
extern const char *const mxc_qwen_prefixes[], *const mxc_qwen_processors[];

/* ---- text */

/* The graph of the language model inside: the family that text_config's model_type names (absent:
 * `type`), with the defaults that its config class has. */
enum mxc_code mxc_vision_text_build(const struct mxc_config *config,
                                    const struct mxc_weights *weights, const char *type,
                                    struct mxc_graph *graph, struct mxc_err *err) MXC_MUST;
/* text_config with what it leaves out of that type; the caller owns it (json_decref). */
json_t *mxc_vision_text_config(const struct mxc_config *config, const char *type);
/* M-RoPE's sections where the config gives none: the family's own, if they fit. */
enum mxc_code mxc_vision_sections(struct mxc_rope *rope, const int sections[MXC_MAX_ROPE_AXES],
                                  struct mxc_err *err) MXC_MUST;

#endif

/* Vision: how a model sees. For each family that does: which pictures it takes, what they cost,
 * what the tower is fed with, and what stands for a picture in the prompt. The tower itself is a
 * graph (mxc_graph with an INPUT), run by the backend; its output rows go into the prompt's
 * embedding rows or, for mllama, into the CROSS store. Only engine/load.c opens one (with the
 * model); gen/ uses it. Immutable after open: any number of threads may measure, prepare and lay
 * out at the same time. */
#ifndef MXC_MODELS_VISION_H
#define MXC_MODELS_VISION_H

#include "graph/tower.h"
#include "image/decode.h"
#include "models/family.h"

struct mxc_vision;

/* What a picture of some size costs, from its header alone. */
struct mxc_vision_cost {
    int32_t width, height; /* after resizing (of one tile, for families that cut) */
    int32_t n_tiles;       /* pictures that the tower sees for it; 1 for most */
    int64_t n_patches;     /* rows of the tower's input */
    int32_t n_tokens;      /* tokens in the prompt that stand for it, marks around included */
    int32_t n_features;    /* rows that the tower gives (tokens spliced, or rows of the store) */
};

struct mxc_vision_budget {
    int64_t min_pixels, max_pixels; /* after resizing; 0: what the files say */
};

/* A picture made ready for the tower. Owned by whoever called prepare. */
struct mxc_vision_picture {
    struct mxc_vision_cost cost;
    struct mxc_tower_input input; /* arrays owned by the picture */
    int32_t grid[3];              /* t, h, w in patches; rows and columns of tiles for idefics3 */
    int32_t aspect;               /* mllama: aspect ratio id */
    uint8_t digest[32]; /* of the pixels and of everything that decides what the tower makes of
                           them: the cache's key, within one model */
};

/* A prompt with its pictures laid out. Owned arrays. */
struct mxc_vision_layout {
    int32_t *tokens; /* expanded */
    int32_t n_tokens;
    int32_t *positions;   /* [3][n_tokens], or NULL: plain */
    int32_t rope_delta;   /* position of a generated token = its number + rope_delta */
    int32_t *row_end;     /* [n_tokens], or NULL: causal */
    int32_t *cross_range; /* [2][n_tokens], or NULL: no cross attention */
    struct mxc_vision_run {
        int32_t row0, n_rows; /* prompt rows, or tokens of the CROSS store */
        int32_t picture;      /* index */
        int32_t feature0;     /* first of the picture's feature rows */
    } * runs;                 /* ascending; of cross attention they fill the store */
    int32_t n_runs;
};

/* NULL in *vision and MXC_OK: the checkpoint is text only. An error is one of the vision part
 * (config, preprocessor file, tensors): it names file and field. */
enum mxc_code mxc_vision_open(const char *path, const struct mxc_config *config,
                              const struct mxc_weights *weights, struct mxc_vision **vision,
                              struct mxc_err *err) MXC_MUST;
void mxc_vision_close(struct mxc_vision *vision); /* NULL is fine */
/* The tower's graph, every weight checked; owned by vision. */
const struct mxc_graph *mxc_vision_tower(const struct mxc_vision *vision);
/* The default budget: what the files say, but at most 1 megapixel (2^20) where the limit is one of
 * pixels (Qwen, Idefics3) and higher. Families of whole tiles (mllama, Gemma 3) keep theirs. */
void mxc_vision_default_budget(const struct mxc_vision *vision, struct mxc_vision_budget *budget);
/* max_pixels, or what the files allow if that is less, where the limit is one of pixels. */
int64_t mxc_vision_limit(const struct mxc_vision *vision, int64_t max_pixels);
/* MXC_E_ARG: a picture of that size cannot be seen (too small, too long); says why. budget: NULL
 * for what the files say. */
enum mxc_code mxc_vision_measure(const struct mxc_vision *vision, int32_t width, int32_t height,
                                 const struct mxc_vision_budget *budget,
                                 struct mxc_vision_cost *cost, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_vision_prepare(const struct mxc_vision *vision, const struct mxc_image *image,
                                 const struct mxc_vision_budget *budget,
                                 struct mxc_vision_picture *picture, struct mxc_err *err) MXC_MUST;
void mxc_vision_picture_fini(struct mxc_vision_picture *picture);
/* The token that the template writes for one picture: the mark. */
int32_t mxc_vision_image_token(const struct mxc_vision *vision);
/* Some families put text of their own around a picture, which becomes tokens together with its
 * neighbours. What must stand in the rendered prompt instead of the mark's text, before the prompt
 * is made tokens; NULL in *text: the mark stays. The text may hold the mark several times (a tile
 * each); each is a mark to lay_out. mark: the mark token's text. The caller frees *text
 * (mxc_mem_free). */
enum mxc_code mxc_vision_mark_text(const struct mxc_vision *vision,
                                   const struct mxc_vision_picture *picture, const char *mark,
                                   char **text, struct mxc_err *err) MXC_MUST;
/* tokens: of the rendered prompt, where is_mark[i] tells that token i came from the template's own
 * place for a picture (or from mark_text), not from what somebody wrote (a user's "<image>" is
 * text). Marks and pictures must match (MXC_E_ARG with both numbers). */
struct mxc_vision_text {
    const int32_t *tokens;
    const uint8_t *is_mark;
    int32_t n_tokens;
};
enum mxc_code mxc_vision_lay_out(const struct mxc_vision *vision,
                                 const struct mxc_vision_text *text,
                                 const struct mxc_vision_picture *const *pictures,
                                 int32_t n_pictures, struct mxc_vision_layout *layout,
                                 struct mxc_err *err) MXC_MUST;
void mxc_vision_layout_fini(struct mxc_vision_layout *layout);

#endif

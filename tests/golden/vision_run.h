/* Vision runner: golden checkpoints that see (models/vlm.h), run on a backend as the engine would:
 * pictures through the tower, prompts with their features in place, generated tokens; and how far
 * that is from the reference. Asserts that calls succeed. */
#ifndef MXC_TESTS_GOLDEN_VISION_RUN_H
#define MXC_TESTS_GOLDEN_VISION_RUN_H

#include "backend/backend.h"
#include "models/vlm.h"

enum { VISION_MAX_CASES = 8, VISION_MAX_ROWS = 1024, VISION_CASE_BLOCKS = 16, VISION_GREEDY = 24 };

/* A checkpoint on a backend. */
struct vision_stage {
    const struct mxc_backend_ops *ops;
    const struct vlm *m;
    struct mxc_graph *graph;
    struct mxc_backend *backend;
    struct mxc_plan *tower, *plan;
    struct mxc_state *state;
};
void vision_stage_open(struct vision_stage *s, const struct vlm *m, const char *backend,
                       const struct mxc_backend_options *options, enum mxc_precision precision);
void vision_stage_close(struct vision_stage *s);
size_t vision_feature_width(const struct vision_stage *s);
/* Features of an input, [*rows][width], the caller's to free; the tower's steps are of `budget`. */
float *vision_see(const struct vision_stage *s, const struct mxc_tower_input *input,
                  uint64_t budget, int32_t *rows);

/* One case in progress on a stage; the case is borrowed. */
struct vision_item {
    const struct vlm_case *c;
    float *features[VLM_MAX_PICTURES]; /* [n_features][width] */
    int32_t blocks[VISION_CASE_BLOCKS], cross_tokens;
    float *logits; /* [n_tokens + GREEDY][vocab] */
};
/* Sees the pictures and fills the CROSS store. Items of different numbers have other blocks. */
void vision_item_open(const struct vision_stage *s, const struct vlm_case *c, size_t number,
                      struct vision_item *item);
void vision_item_close(struct vision_item *item);
/* Writes the features to the CROSS store (again). */
void vision_item_put(const struct vision_stage *s, struct vision_item *item);
/* max |ours - the reference's| / max |the reference's|, of features (-1: there are none to compare
 * with) and of the prompt's logits. */
double vision_features_difference(const struct vision_stage *s, const struct vision_item *item);
double vision_logits_difference(const struct vision_stage *s, const struct vision_item *item);

/* Arrays of a step that grows span by span. */
struct vision_rows {
    int32_t tokens[VISION_MAX_ROWS], axes[3][VISION_MAX_ROWS], ends[VISION_MAX_ROWS];
    int32_t cross[2][VISION_MAX_ROWS], flat[3 * VISION_MAX_ROWS], flat_cross[2 * VISION_MAX_ROWS];
    int32_t out_row[VISION_MAX_ROWS];
    struct mxc_splice splices[VISION_MAX_ROWS];
    struct mxc_span spans[VISION_MAX_CASES];
    int32_t n, n_splices, n_spans;
    bool many_axes, ends_given;
};
struct vision_rows *vision_rows_new(void); /* free */
/* Rows [from, to) of a prompt. */
void vision_add_prompt(const struct vision_stage *s, struct vision_rows *rows,
                       const struct vision_item *item, int32_t from, int32_t to);
/* A generated token. */
void vision_add_token(struct vision_rows *rows, const struct vision_item *item, int32_t context,
                      int32_t token);
/* Runs the step: logits of every row. The rows are empty then. */
void vision_run(const struct vision_stage *s, struct vision_rows *rows, float *logits);
/* The item's prompt alone, to its logits. */
void vision_run_prompt(const struct vision_stage *s, struct vision_item *item);
/* Behind their prompts, the tokens of all items together in one step each: they must be the
 * reference's greedy ones. */
void vision_greedy(const struct vision_stage *s, struct vision_item *items, size_t n);

#endif

/* Golden checkpoints: a model folder of tests/data/golden, opened with its graph and its reference
 * results. Asserts that everything opens. */
#ifndef MXC_TESTS_GOLDEN_CHECKPOINT_H
#define MXC_TESTS_GOLDEN_CHECKPOINT_H

#include "backend/runner.h"
#include "format/config.h"
#include "format/safetensors.h"
#include "models/family.h"

/* Builds with a sanitizer are some twenty times slower: they take a sample of the combinations. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CHECKPOINT_SAMPLE = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { CHECKPOINT_SAMPLE = 1 };
#else
enum { CHECKPOINT_SAMPLE = 0 };
#endif
#else
enum { CHECKPOINT_SAMPLE = 0 };
#endif

enum { CHECKPOINT_MAX_NAME = 64 };

struct checkpoint {
    char name[CHECKPOINT_MAX_NAME];
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_graph *graph;
    json_t *golden; /* golden.json */
    struct mxc_safetensors *tensors;
};

/* One case of golden.json. */
struct golden_case {
    const char *name;
    int32_t *ids, n_ids;
    int32_t *greedy, n_greedy;
    const float *logits; /* [n_rows][vocab] */
    int32_t *rows, n_rows;
    const float *layer_l2; /* [n_layers + 2][n_l2], of all rows or of `rows`; n_l2 0: not given */
    int32_t n_l2;
};

void checkpoint_open(struct checkpoint *c, const char *name);
void checkpoint_close(struct checkpoint *c);
/* Of a model that sees, the cases without pictures. */
int32_t checkpoint_cases(const struct checkpoint *c);
void checkpoint_case(const struct checkpoint *c, int32_t index, struct golden_case *out);
void golden_case_fini(struct golden_case *out);
/* max |logits - the case's| / max |the case's|; logits [n_ids][vocab]. */
double golden_case_difference(const struct golden_case *g, const float *logits, size_t vocab);
/* The prompt in one step, then tokens one by one, each of which must be the case's next greedy one.
 * Returns the difference of the prompt's logits. */
double golden_case_run(struct runner *r, const struct golden_case *g);
/* One text of an encoder. */
enum { GOLDEN_MAX_TEXTS = 8, GOLDEN_TEXT_TOKENS = 384 };
struct golden_text {
    const char *name;
    int32_t ids[GOLDEN_TEXT_TOKENS], n;
    const float *hidden, *layer_l2; /* [n][hidden], [n_layers + 1][n] */
};
/* All texts that stand alone (pairs are left out); returns how many. */
int32_t checkpoint_texts(const struct checkpoint *c, struct golden_text texts[GOLDEN_MAX_TEXTS]);
/* Whole texts in one step, each row seeing all of its text: hidden rows of all of them. tap may
 * be NULL. */
void golden_texts_run(const struct runner *r, const struct golden_text *const *texts, int32_t n,
                      float *hidden, mxc_tap_fn *tap, void *tap_user);
/* Names of all model folders with logits, sorted; *names is owned by the caller (free). */
int32_t checkpoint_list(char (**names)[CHECKPOINT_MAX_NAME]);

#endif

/* Features: what a vision tower made of pictures, kept by content digest, so that a picture is seen
 * once however many questions are asked about it. Entries that requests hold stay; of the others
 * the least recently used go when the byte limit is reached. An entry larger than the limit lives
 * only as long as it is held. Thread rules: the engine thread only. */
#ifndef MXC_ENGINE_FEATURES_H
#define MXC_ENGINE_FEATURES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { MXC_FEATURE_DIGEST = 32 };

struct mxc_feature {
    struct mxc_feature *next;
    uint8_t digest[MXC_FEATURE_DIGEST];
    float *rows; /* [n_rows][width] */
    int32_t n_rows, width;
    int32_t n_holders;
    uint64_t stamp;
    size_t bytes;
};

struct mxc_features {
    struct mxc_feature *list;
    size_t bytes, limit;
    uint64_t tick, n_hits, n_misses;
};

void mxc_features_init(struct mxc_features *features, size_t limit_bytes);
/* No entry may be held. */
void mxc_features_fini(struct mxc_features *features);
/* The entry of a digest with one more holder, or NULL. */
struct mxc_feature *mxc_features_take(struct mxc_features *features, const uint8_t *digest);
/* A new entry with a copy of rows and one holder. */
enum mxc_code mxc_features_add(struct mxc_features *features, const uint8_t *digest,
                               const float *rows, int32_t n_rows, int32_t width,
                               struct mxc_feature **feature, struct mxc_err *err) MXC_MUST;
/* NULL is fine. */
void mxc_features_give_back(struct mxc_features *features, struct mxc_feature *feature);

#endif

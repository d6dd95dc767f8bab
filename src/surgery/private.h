/* What the files of surgery/ share: a document in memory, and tensors that have become memory of
 * its own. */
#ifndef MXC_SURGERY_PRIVATE_H
#define MXC_SURGERY_PRIVATE_H

#include "base/arena.h"
#include "surgery/glob.h"
#include "surgery/surgery.h"

enum mxc_surgery_kind { MXC_CUT_SCALE, MXC_CUT_ADD, MXC_CUT_PRUNE, MXC_CUT_REPLACE, MXC_CUT_MIX };
enum mxc_prune { MXC_PRUNE_HEAD, MXC_PRUNE_LAYER, MXC_PRUNE_CHANNEL, MXC_N_PRUNES };
/* What became of a tensor that a pattern has matched. */
enum mxc_cut_outcome {
    MXC_CUT_CHANGED,
    MXC_CUT_NOTHING, /* it is no part of what the operation is about */
    MXC_CUT_SHARED,  /* left alone: keys and values that other heads share */
    MXC_CUT_UNKNOWN, /* left alone: its name tells no part of a block */
    MXC_N_OUTCOMES
};
/* Units of pruning and the lists of their ids, as documents call them. */
extern const char *const mxc_prune_names[MXC_N_PRUNES], *const mxc_prune_fields[MXC_N_PRUNES];

struct mxc_cut { /* one operation */
    enum mxc_surgery_kind kind;
    const char *pattern;
    struct mxc_glob glob;
    float amount;        /* factor, alpha or ratio */
    size_t source[2];    /* of mxc_surgery.sources */
    const char *key;     /* replace: source_key */
    bool slerp;          /* interpolate */
    enum mxc_prune unit; /* prune */
    const int64_t *ids;  /* prune: none is negative */
    size_t n_ids;
    size_t n[MXC_N_OUTCOMES];          /* tensors, once applied */
    const char *first[MXC_N_OUTCOMES]; /* the first of them, borrowed from the weights */
};

struct mxc_cut_source {
    const char *path;
    struct mxc_weights *weights; /* NULL until an operation needs it */
};

/* The pieces of a tensor that are memory of the surgery; NULL: still in a file. */
struct mxc_cut_memory {
    uint8_t *data, *scales, *biases; /* scales of a storage with parts: F32 */
    size_t n_scales;                 /* of a storage with parts */
    size_t bytes;                    /* of all of them */
};

struct mxc_surgery {
    const char *path;
    struct mxc_cut *cuts;
    size_t n_cuts, n_ids;           /* n_ids: of all of them */
    struct mxc_cut_source *sources; /* every file once */
    size_t n_sources;
    struct mxc_cut_memory *memory; /* [n_tensors], once applied */
    size_t n_tensors;
    uint64_t bytes;
    struct mxc_arena arena;
};

const char *mxc_cut_name(enum mxc_surgery_kind kind);
/* Fills cuts and sources. Errors name the operation, not the document. */
enum mxc_code mxc_surgery_parse(struct mxc_surgery *s, const char *text, size_t length,
                                struct mxc_err *err) MXC_MUST;

/* What an operation works on. */
struct mxc_patient {
    struct mxc_surgery *surgery;
    const struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_err *err;
};

/* F32, F16, BF16 or F64, each number on its own. */
bool mxc_cut_is_float(const struct mxc_tensor *t);
/* "tensor x is stored as Q4_K: why". */
enum mxc_code mxc_cut_refuse(const struct mxc_patient *p, const struct mxc_tensor *t,
                             const char *why);
/* The index-th tensor with what may be written in memory of its own: numbers (floats in logical
 * order) or blocks; of MLX affine the scales and biases; of a storage with parts the scales, which
 * are F32 then. *t is what the weights hand out from then on. */
enum mxc_code mxc_cut_own(const struct mxc_patient *p, size_t index, struct mxc_tensor *t,
                          struct mxc_cut_memory *memory) MXC_MUST;
/* Sets the index-th tensor and releases memory that it had. */
void mxc_cut_set(const struct mxc_patient *p, size_t index, const struct mxc_tensor *t);
/* The operation on one tensor that its pattern has matched. */
enum mxc_code mxc_cut_scale(const struct mxc_patient *p, const struct mxc_cut *cut,
                            size_t index) MXC_MUST;
enum mxc_code mxc_cut_add(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                          const struct mxc_tensor *source) MXC_MUST;
enum mxc_code mxc_cut_mix(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                          const struct mxc_tensor *a, const struct mxc_tensor *b) MXC_MUST;
enum mxc_code mxc_cut_prune(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                            enum mxc_cut_outcome *outcome) MXC_MUST;

#endif

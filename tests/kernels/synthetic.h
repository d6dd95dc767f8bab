/* Synthetic inputs for the kernel tests: random numbers, tensors of every storage in memory,
 * guarded buffers, and the list of kernels made from kernels.def. */
#ifndef MXC_TESTS_KERNELS_SYNTHETIC_H
#define MXC_TESTS_KERNELS_SYNTHETIC_H

#include "test.h"

#include "backend/cpu/kernels/kernels.h"

uint32_t rnd_u32(void);
float rnd_float(void); /* uniform in [-1, 1) */
void rnd_fill(float *x, size_t n, float amplitude);

/* What the packed layouts are tested with; quantised storages have random codes and scales. */
struct case_storage {
    const char *name;
    enum mxc_storage storage;
    uint32_t bits, group; /* MLX affine */
    enum mxc_storage scale_storage;
    enum mxc_layout layout; /* in fast */
};
extern const struct case_storage case_storages[];
extern const size_t n_case_storages;

/* A random matrix [n, k]; k is a multiple of the storage's block. Freed with free_tensor. */
struct mxc_tensor *make_tensor(const struct case_storage *c, int32_t n, int32_t k);
void free_tensor(struct mxc_tensor *tensor);
/* Packs all strips; data is owned by the result (free_packed). */
struct mxc_packed pack(const struct mxc_tensor *tensor, bool exact);
struct mxc_packed pack_view(const struct mxc_view *view, bool exact);
void free_packed(struct mxc_packed *packed);

/* Integer layouts made directly, also those that no storage of the cases has: every template of the
 * integer matmuls. k is a multiple of 32 and of the group. */
struct case_layout {
    const char *name;
    enum mxc_layout layout;
    int32_t group;
    bool affine;
    int32_t zero_point;
    bool bf16_scales;
    const int8_t *table;
};
extern const struct case_layout case_layouts[];
extern const size_t n_case_layouts;
/* Random codes and scales. Freed with free_packed. */
struct mxc_packed make_packed(const struct case_layout *c, int32_t n, int32_t k);
/* Stored scales and biases become these, times 1 +- spread. */
void set_scales(struct mxc_packed *w, float scale, float bias, float spread);

struct mxc_activation activation_new(enum mxc_activation_form form, int32_t m, int32_t k);
void activation_free(struct mxc_activation *a);

/* Buffer of n floats with guard words before and behind, all set to a canary. */
struct guarded {
    float *base, *data;
    size_t n;
};
struct guarded guarded_new(size_t n);
void guarded_check(const struct guarded *g); /* the guards stand */
bool is_canary(float x);
void guarded_free(struct guarded *g);

enum kernel_kind {
    KIND_NORM,
    KIND_LAYER_NORM,
    KIND_GLU,
    KIND_ACT,
    KIND_SOFTCAP,
    KIND_GATE,
    KIND_ADD,
    KIND_WEIGHTED_ADD,
    KIND_ROPE,
    KIND_PREPARE,
    KIND_MATMUL,
    KIND_PREPARE_Q,
    KIND_APPEND,
    KIND_ATTEND,
    KIND_MERGE,
    KIND_FINISH
};
struct kernel_row {
    enum mxc_cpu_level level;
    enum kernel_kind kind;
    int index;
    const char *name;
};
extern const struct kernel_row kernel_rows[];
extern const size_t n_kernel_rows;
/* The i-th row, or NULL when this machine cannot run its level or it is of another kind. */
const struct kernel_row *kernel_row(size_t i, enum kernel_kind kind);

#endif

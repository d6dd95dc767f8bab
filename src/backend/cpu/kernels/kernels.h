/* Kernels: the contract between the CPU plan and the ISA folders. One table per ISA level; the rows
 * of kernels.def make the declarations, the tables, the equivalence tests and the benchmarks.
 *
 * Batch invariance: every output number has one accumulator that visits K in order, whatever the
 * number of rows; the number of rows picks only among kernels that give the same bits. Threads
 * split output rows (strips), never K. Attention visits keys in blocks at fixed absolute positions
 * with a fixed combine order. Reductions over a row use one fixed tree per ISA level.
 *
 * Layouts interleave MXC_STRIP output rows; a packed matrix is a sequence of strips.
 *   F32   f32 weights, f32 activations           exact, and f32 checkpoints
 *   F16   f16 weights, f32 activations           f16 checkpoints in fast
 *   BF16  bf16 weights, bf16 activations         bf16 checkpoints in fast
 *   I4    unsigned 4-bit codes + group scales (f16, times a power of two per matrix) and, when
 *         affine, group biases; int8 activations   MLX 2-4 bit, Q4_0, Q4_1, Q2_K, Q3_K, Q4_K
 *   I8    unsigned 8-bit codes, the same           MLX 8 bit, Q8_0
 *   I6    unsigned 6-bit codes, the same           MLX 5 and 6 bit, Q5_*
 *   K6    6-bit codes, int8 scales in groups of 16, and a factor (f16) for 256; int8 activations
 *                                                  Q6_K, every number of it exactly
 *   N4    4-bit codes of a table of 16 int8 numbers, w = scale * table[code]; int8 activations
 *                                                  IQ4_NL, IQ4_XS, MXFP4, nvfp4
 * One scale per row of activations is not enough: SmolLM2 then has a KL divergence of 0.035 per
 * token and 89 % equal top tokens; with one per 32 columns 0.0034 and 96.3 % (bench_kl).
 * Groups: 16, 32, 64 (N4: 16, 32; I6: 32, 64). A larger storage group is stored as several that
 * share its scale. What has no such groups (they do not divide the row, or the tensor is seen
 * transposed) is decoded and packed as BF16 (each number rounded once), or F16 and F32 where the
 * storage is. Scales and biases that are products in the file (the K formats) or f32 (MLX) are
 * rounded to f16; those that are f16 or bf16 are kept exactly (bf16: unless it lies 2^24 below the
 * matrix's largest, where it is rounded to a multiple of 2^-34 of that). N4 keeps scales that are
 * powers of two as bf16: exact over all their range, and no unit is needed. */
#ifndef MXC_BACKEND_CPU_KERNELS_H
#define MXC_BACKEND_CPU_KERNELS_H

#include "base/cpu.h"
#include "format/view.h"
#include "graph/graph.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MXC_STRIP = 32, MXC_ATTN_PAGE = 32, MXC_ALIGN = 64 };

enum mxc_layout {
    MXC_LAYOUT_F32,
    MXC_LAYOUT_F16,
    MXC_LAYOUT_BF16,
    MXC_LAYOUT_I4,
    MXC_LAYOUT_I8,
    MXC_LAYOUT_N4,
    MXC_LAYOUT_I6,
    MXC_LAYOUT_K6,
    MXC_N_LAYOUTS
};

/* A packed matrix [n, k]: strips of 32 rows; rows >= n and columns >= k are zero weights. */
struct mxc_packed {
    enum mxc_layout layout;
    int32_t n, k;
    int32_t group;      /* I4, I8, N4, I6, K6; else 0 */
    bool affine;        /* biases are stored; else w = s * (q - zero_point). N4, K6: never */
    int32_t zero_point; /* when not affine. N4: 0, I6: 16, K6: 32 */
    int8_t table[16];   /* N4: w = s * table[q] */
    bool bf16_scales;   /* N4: scales are bf16, not f16 */
    float unit;         /* stored scales and biases are multiplied by it (a power of two) */
    uint8_t *data;      /* n_strips * strip_bytes, aligned to MXC_ALIGN. Owned by the plan */
    size_t strip_bytes;
    const uint8_t *next; /* what this worker reads after the last strip of a call: prefetched. NULL:
                            what stands behind it. Only a hint */
};

/* How activations are prepared for a matmul. Matrices that share an input and a form share the
 * prepared activations. */
enum mxc_activation_form {
    MXC_ACT_FORM_F32,  /* F32, F16 layouts */
    MXC_ACT_FORM_BF16, /* BF16 layout */
    MXC_ACT_FORM_I8,   /* I4, I8, N4, I6, K6: int8, one scale per row and 32 columns, block sums */
    MXC_N_ACT_FORMS
};
struct mxc_activation {
    enum mxc_activation_form form;
    int32_t m, k;  /* rows, columns */
    uint8_t *data; /* mxc_activation_bytes(form, m, k), aligned to MXC_ALIGN; layout is private */
};

/* ---- packing (pack.c, ISA-independent bytes; the same packed bytes serve every ISA level) */

/* Fills everything but data for one matrix. exact: the layout is F32, whatever the storage. The
 * view must fit its tensor. MXC_E_UNSUPPORTED names file and tensor: not a matrix of numbers. */
enum mxc_code mxc_pack_form(const struct mxc_view *view, bool exact, struct mxc_packed *packed,
                            struct mxc_err *err) MXC_MUST;
/* The same without a look at the data: all is settled but `unit`, which changes no size. Enough for
 * planning; what it gave cannot be packed with. */
enum mxc_code mxc_pack_plan(const struct mxc_view *view, bool exact, struct mxc_packed *packed,
                            struct mxc_err *err) MXC_MUST;
int32_t mxc_packed_strips(const struct mxc_packed *packed);
size_t mxc_packed_bytes(const struct mxc_packed *packed);
enum mxc_activation_form mxc_packed_form(const struct mxc_packed *packed);
/* Packs strips [strip0, strip1) of the view; scratch is at least mxc_pack_scratch_bytes. Safe for
 * disjoint ranges at the same time. `packed` must come from mxc_pack_form for the same view. */
size_t mxc_pack_scratch_bytes(const struct mxc_view *view, const struct mxc_packed *packed);
void mxc_pack_strips(const struct mxc_view *view, struct mxc_packed *packed, int32_t strip0,
                     int32_t strip1, void *scratch);
/* Decodes one row of a packed matrix to f32 (tests, and the definition of the layout). */
void mxc_packed_row(const struct mxc_packed *packed, int32_t row, float *out);

/* ---- matmul */

size_t mxc_activation_bytes(enum mxc_activation_form form, int32_t m, int32_t k);
/* Rows are prepared in units of this many (the column tile): threads split [0, m) at multiples. */
enum { MXC_PREPARE_TILE = 24 };

/* What happens to a finished output number; any of them may be absent (a NULL epilogue: none). */
struct mxc_epilogue {
    const float *bias; /* [n] or NULL */
    float scale;       /* y = scale * (acc + bias); 1 when there is none */
    const float
        *residual; /* added last: residual[row * ld + column], same ld as out; may alias out */
};

/* ---- attention: K and V in pages of 32 tokens, one page per (block, KV head).
 * f32 page:  K [k_dim][32], V [32][v_dim].   bf16 page: K [k_dim/2][32][2], V [16][v_dim][2]. */
enum mxc_kv_type { MXC_KV_F32, MXC_KV_BF16, MXC_N_KV_TYPES };
size_t mxc_page_bytes(enum mxc_kv_type type, int32_t k_dim, int32_t v_dim);

/* Columns are (token, query head) pairs of one KV head; at most MXC_ATTN_COLUMNS at once. Keys are
 * visited in chunks of MXC_ATTN_CHUNK at absolute multiples; partial results of chunks are merged
 * in chunk order, so a chunk is also the unit that threads may share. */
enum { MXC_ATTN_COLUMNS = 16, MXC_ATTN_CHUNK = 512, MXC_ATTN_MAX_DIM = 576 };
struct mxc_attend {
    int32_t k_dim, v_dim; /* each at most MXC_ATTN_MAX_DIM; k_dim even; they may differ */
    int32_t n_columns;
    const void *q;        /* prepared by prepare_q: [n_columns][k_dim] */
    const uint8_t *pages; /* page of block b: pages + b * page_stride */
    size_t page_stride;
    const int32_t *table; /* block numbers; table[p / 32] holds token p. Entries of pages that no
                             column sees are not read */
    const int32_t *begin; /* [n_columns] first visible key (window) */
    const int32_t *end;   /* [n_columns] one past the last visible key */
    float softcap;        /* 0: none; else cap * tanh(s / cap) */
};
/* Running softmax of one group of columns: m, l, o. o is [MXC_ATTN_COLUMNS][v_dim], rows v_dim
 * rounded up to 16 apart. The struct must be aligned to MXC_ALIGN. */
struct mxc_attn_part {
    float m[MXC_ATTN_COLUMNS], l[MXC_ATTN_COLUMNS];
    _Alignas(MXC_ALIGN) float o[MXC_ATTN_COLUMNS * MXC_ATTN_MAX_DIM];
};

/* ---- the table of one ISA level */
struct mxc_kernels {
    enum mxc_cpu_level level;
    /* y[i] = x[i] / sqrt(mean(x^2) + eps) * (w[i] + offset), n numbers; y may be x */
    void (*rms_norm)(float *y, const float *x, const float *w, int32_t n, float eps, float offset);
    /* y[i] = (x[i] - mean) / sqrt(mean((x - mean)^2) + eps) * w[i] + b[i], b may be NULL; y may be
     * x. Two passes: the mean, then the squares of what is left. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int32_t n,
                       float eps);
    /* y[i] = act(g[i]) * u[i]; y may be g or u */
    void (*glu[MXC_N_ACTS])(float *y, const float *g, const float *u, int32_t n);
    /* y[i] = act(x[i]); y may be x. NULL for MXC_ACT_SWIGLU_CLIP, which has two inputs */
    void (*act[MXC_N_ACTS])(float *y, const float *x, int32_t n);
    /* y[i] = cap * tanh(x[i] / cap); y may be x; cap > 0 */
    void (*softcap)(float *y, const float *x, float cap, int32_t n);
    /* y[i] = x[i] * sigmoid(g), one gate for the row; y may be x */
    void (*gate)(float *y, const float *x, float g, int32_t n);
    void (*add)(float *y, const float *a, const float *b, int32_t n);
    /* y[i] = y[i] + p * x[i] in two roundings; first: y[i] = p * x[i]. The same bits at every
     * level */
    void (*weighted_add)(float *y, const float *x, float p, bool first, int32_t n);
    /* Rotates the first dims numbers of v with cos[dims/2], sin[dims/2]. */
    void (*rope_half)(float *v, const float *cos, const float *sin, int32_t dims);
    void (*rope_pairs)(float *v, const float *cos, const float *sin, int32_t dims);
    /* Prepares rows [row0, row1) of x (row stride ldx) into a; row0 is a multiple of
     * MXC_PREPARE_TILE, row1 too unless it is a->m. */
    void (*prepare[MXC_N_ACT_FORMS])(struct mxc_activation *a, const float *x, size_t ldx,
                                     int32_t row0, int32_t row1);
    /* out[row * ld + column] for the output columns of strips [strip0, strip1) and all a->m rows;
     * columns >= w->n are not written. */
    void (*matmul[MXC_N_LAYOUTS])(const struct mxc_packed *w, const struct mxc_activation *a,
                                  int32_t strip0, int32_t strip1, float *out, size_t ld,
                                  const struct mxc_epilogue *epilogue);
    /* One query row to the KV type's form (f32 or bf16, k_dim numbers). The caller passes the
     * graph's attr.scale; prepare_q multiplies by scale * log2 e, softcap or not: scores are in
     * units of log2 from here on, and attend and attn_finish take softcap and sinks as they stand
     * in the graph (natural units). */
    void (*prepare_q[MXC_N_KV_TYPES])(void *out, const float *q, int32_t k_dim, float scale);
    /* Stores one token's K and V in slot 0..31 of a page. */
    void (*append[MXC_N_KV_TYPES])(uint8_t *page, int32_t slot, const float *k, const float *v,
                                   int32_t k_dim, int32_t v_dim);
    /* Keys [k0, min(k0 + MXC_ATTN_CHUNK, largest end)); k0 a multiple of MXC_ATTN_CHUNK. Columns
     * that see none of them get m = -inf-like, l = 0, o = 0. Slots that no column sees may hold
     * anything. A column's result is the same alone as in any group. */
    void (*attend[MXC_N_KV_TYPES])(const struct mxc_attend *job, int32_t k0,
                                   struct mxc_attn_part *part);
    /* total <- total + part (first: total <- part), for the first n_columns columns. */
    void (*attn_merge)(struct mxc_attn_part *total, const struct mxc_attn_part *part, bool first,
                       int32_t n_columns, int32_t v_dim);
    /* sinks: per-column extra logit, or NULL. out[c * ld_out + i] = o / l, 0 for a column that
     * saw no key. */
    void (*attn_finish)(const struct mxc_attn_part *total, const float *sinks, float *out,
                        size_t ld_out, int32_t n_columns, int32_t v_dim);
};
/* The table of a level (never higher than what the machine has). Never NULL. */
const struct mxc_kernels *mxc_kernels_get(enum mxc_cpu_level level);

/* Rulers (rulers.c): measured on the calling team's threads; GB/s, TOP/s, TFLOP/s. */
struct mxc_team;
double mxc_ruler_read_gbs(struct mxc_team *team); /* 0: no memory for the buffer */
double mxc_ruler_int8_tops(struct mxc_team *team, enum mxc_cpu_level level);
double mxc_ruler_bf16_tflops(struct mxc_team *team, enum mxc_cpu_level level); /* 0: no such unit */
double mxc_ruler_f32_tflops(struct mxc_team *team, enum mxc_cpu_level level);

#endif

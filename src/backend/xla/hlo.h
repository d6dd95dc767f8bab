/* HLO: writes StableHLO text, op by op. A value is a name with a type and a shape; every function
 * appends one line (or a few) and returns the new value. Failure is sticky (see base/buf.h): nobody
 * checks until the text is whole. Shapes that do not go together are bugs of ours and asserted.
 * Ranges, starts and axes are in numbers of elements, outermost axis first.
 * Only shapes that are known are written: every extent is a constant.
 * Thread rules: a builder belongs to one thread. */
#ifndef MXC_BACKEND_XLA_HLO_H
#define MXC_BACKEND_XLA_HLO_H

#include "backend/xla/client.h"
#include "base/buf.h"

enum { MXC_HLO_NAME = 16, MXC_HLO_MAX_PARTS = 64, MXC_HLO_MAX_BYTES = 64 << 20 };

struct mxc_hlo {
    struct mxc_buf text;
    int32_t next; /* number of the next value */
    int indent;
};

struct mxc_hlo_value {
    char name[MXC_HLO_NAME]; /* "%12", "%a3", "%7#1"; "": no value */
    struct mxc_xla_shape shape;
};

/* n_dims, dims of a list of extents; and a list of axes. */
#define MXC_DIMS(...)                                                                              \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                               \
        ((const int64_t[]){__VA_ARGS__})
#define MXC_AXES(...) ((const int[]){__VA_ARGS__})

void mxc_hlo_init(struct mxc_hlo *h);
void mxc_hlo_fini(struct mxc_hlo *h);
/* One whole line, printf-style, at the current indent. */
void mxc_hlo_line(struct mxc_hlo *h, const char *fmt, ...) MXC_PRINTF(2, 3);
/* "f32", "i8", "ui8" ...; bits of one number. */
const char *mxc_hlo_type_name(enum mxc_xla_type type);
int mxc_hlo_type_bits(enum mxc_xla_type type);
struct mxc_xla_shape mxc_hlo_shape(enum mxc_xla_type type, int n_dims, const int64_t *dims);
/* "tensor<4x8xf32>" */
enum { MXC_HLO_TYPE = 192 };
const char *mxc_hlo_type(const struct mxc_xla_shape *shape, char text[MXC_HLO_TYPE]);
/* A value that is there already: an argument, a result of a region. */
struct mxc_hlo_value mxc_hlo_named(const struct mxc_xla_shape *shape, const char *fmt, ...)
    MXC_PRINTF(2, 3);
static inline bool mxc_hlo_none(struct mxc_hlo_value v) {
    return !v.name[0];
}

/* ---- constants */
/* All numbers are x. */
struct mxc_hlo_value mxc_hlo_splat(struct mxc_hlo *h, enum mxc_xla_type type, double x, int n_dims,
                                   const int64_t *dims);
/* A splat of v's type and shape. */
struct mxc_hlo_value mxc_hlo_like(struct mxc_hlo *h, struct mxc_hlo_value v, double x);
struct mxc_hlo_value mxc_hlo_scalar(struct mxc_hlo *h, enum mxc_xla_type type, double x);
/* A vector of few numbers. */
struct mxc_hlo_value mxc_hlo_ints(struct mxc_hlo *h, int n, const int32_t *numbers);
/* Counts along an axis. */
struct mxc_hlo_value mxc_hlo_iota(struct mxc_hlo *h, enum mxc_xla_type type, int axis, int n_dims,
                                  const int64_t *dims);

/* ---- number by number; op is StableHLO's name without the dialect */
struct mxc_hlo_value mxc_hlo_unary(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a);
struct mxc_hlo_value mxc_hlo_binary(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                    struct mxc_hlo_value b);
/* With a splat of x on the right. */
struct mxc_hlo_value mxc_hlo_binary_x(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                      double x);
/* direction: EQ NE LT LE GT GE */
struct mxc_hlo_value mxc_hlo_compare(struct mxc_hlo *h, const char *direction,
                                     struct mxc_hlo_value a, struct mxc_hlo_value b);
struct mxc_hlo_value mxc_hlo_select(struct mxc_hlo *h, struct mxc_hlo_value condition,
                                    struct mxc_hlo_value yes, struct mxc_hlo_value no);
/* a itself when it has the type already. */
struct mxc_hlo_value mxc_hlo_convert(struct mxc_hlo *h, struct mxc_hlo_value a,
                                     enum mxc_xla_type type);

/* ---- moving numbers */
/* a itself when it has the shape already. */
struct mxc_hlo_value mxc_hlo_reshape(struct mxc_hlo *h, struct mxc_hlo_value a, int n_dims,
                                     const int64_t *dims);
/* axes[i]: where a's axis i goes. */
struct mxc_hlo_value mxc_hlo_broadcast(struct mxc_hlo *h, struct mxc_hlo_value a, const int *axes,
                                       int n_dims, const int64_t *dims);
/* The same, to v's shape. */
struct mxc_hlo_value mxc_hlo_spread(struct mxc_hlo *h, struct mxc_hlo_value a, const int *axes,
                                    struct mxc_hlo_value v);
/* Axis i of the result is a's axis order[i]. */
struct mxc_hlo_value mxc_hlo_transpose(struct mxc_hlo *h, struct mxc_hlo_value a, const int *order);
/* [begin, end) along one axis, all of the others. */
struct mxc_hlo_value mxc_hlo_slice(struct mxc_hlo *h, struct mxc_hlo_value a, int axis,
                                   int64_t begin, int64_t end);
struct mxc_hlo_value mxc_hlo_concat(struct mxc_hlo *h, const struct mxc_hlo_value *parts, int n,
                                    int axis);
/* Zeros (or x) behind the numbers of one axis. */
struct mxc_hlo_value mxc_hlo_pad(struct mxc_hlo *h, struct mxc_hlo_value a, int axis, int64_t n,
                                 double x);
/* at: one S32 scalar per axis of a; a start that would lead outside is moved inside. */
struct mxc_hlo_value mxc_hlo_dynamic_slice(struct mxc_hlo *h, struct mxc_hlo_value a,
                                           const struct mxc_hlo_value *at, const int64_t *sizes);
struct mxc_hlo_value mxc_hlo_dynamic_update(struct mxc_hlo *h, struct mxc_hlo_value a,
                                            struct mxc_hlo_value part,
                                            const struct mxc_hlo_value *at);
/* a's slices of the first n axes at index [..., n] (S32): the shape of index without its last
 * extent, then a's other extents. With n 1, index may leave that last extent out. */
struct mxc_hlo_value mxc_hlo_gather(struct mxc_hlo *h, struct mxc_hlo_value a,
                                    struct mxc_hlo_value index, int n);
/* a with the slices at index [m, n] replaced by updates [m, rest of a]; an index outside of a
 * writes nothing. */
struct mxc_hlo_value mxc_hlo_scatter(struct mxc_hlo *h, struct mxc_hlo_value a,
                                     struct mxc_hlo_value index, struct mxc_hlo_value updates);
/* Sorts along the last axis by keys, largest first (F32) or smallest first (S32), equal ones as
 * they stood; payload goes along. */
void mxc_hlo_sort(struct mxc_hlo *h, struct mxc_hlo_value *keys, struct mxc_hlo_value *payload);

/* ---- sums and products */
/* op: "add", "maximum", "minimum", "or", over n axes. */
struct mxc_hlo_value mxc_hlo_reduce(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                    int n, const int *axes);
/* Batch axes first, then a's other axes, then b's; contracts one axis of each. The result's type is
 * F32; f32 inputs are multiplied in full precision on any device. */
struct mxc_hlo_dot {
    int n_batch;
    const int *a_batch, *b_batch;
    int a_axis, b_axis;
};
struct mxc_hlo_value mxc_hlo_dot(struct mxc_hlo *h, struct mxc_hlo_value a, struct mxc_hlo_value b,
                                 const struct mxc_hlo_dot *dot);

/* ---- loops: for (i = 0; i < n; i++) carried = body(carried). What stands outside may be used
 * inside. */
struct mxc_hlo_loop {
    int32_t id;
    int n;                      /* carried values */
    struct mxc_hlo_value index; /* S32 scalar, inside */
};
/* n: S32 scalar. carried [n_carried] become the loop's own. */
void mxc_hlo_loop_begin(struct mxc_hlo *h, struct mxc_hlo_loop *loop, struct mxc_hlo_value n,
                        struct mxc_hlo_value *carried, int n_carried);
/* In: what the next turn carries; out: the loop's results. */
void mxc_hlo_loop_end(struct mxc_hlo *h, struct mxc_hlo_loop *loop, struct mxc_hlo_value *carried);

#endif

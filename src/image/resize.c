/* Resampling as Pillow does it for 8-bit pictures. The sums are the same whether a row or a column
 * is the direction: LANES neighbours at once, each a sum over the taps. For the horizontal pass a
 * tile of LANES rows is turned so that the rows are neighbours. Plain loops that compilers
 * vectorise, compiled for the base instruction set and for AVX2; integers, so the bytes are equal.
 */
#include "image/resize.h"

#include "base/cpu.h"
#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { PRECISION = 32 - 8 - 2, LANES = 32 };

static const uint8_t black[3] = {0};

/* ---- filters ---- */

static const double pi = 3.14159265358979323846;

static double box(double x) {
    return x > -0.5 && x <= 0.5 ? 1 : 0;
}

static double bilinear(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double hamming(double x) {
    x = fabs(x);
    if (x == 0)
        return 1;
    if (x >= 1)
        return 0;
    x *= pi;
    return sin(x) / x * (0.54 + 0.46 * cos(x));
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static double sinc(double x) {
    if (x == 0)
        return 1;
    x *= pi;
    return sin(x) / x;
}

static double lanczos(double x) {
    return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*at)(double x);
    double support;
} filters[MXC_N_FILTERS] = {
    [MXC_FILTER_LANCZOS] = {lanczos, 3}, [MXC_FILTER_BILINEAR] = {bilinear, 1},
    [MXC_FILTER_BICUBIC] = {bicubic, 2}, [MXC_FILTER_BOX] = {box, 0.5},
    [MXC_FILTER_HAMMING] = {hamming, 1},
};

/* ---- taps ---- */

/* Output i is the sum of k[i * stride + j] * input[first[i] + j], j < count[i]. */
struct taps {
    int stride, n;
    int *first, *count;
    int32_t *k;
};

static void taps_fini(struct taps *t) {
    mxc_mem_free(t->first);
    mxc_mem_free(t->k);
    *t = (struct taps){0};
}

/* Outputs [begin, begin + out) of whole. */
static enum mxc_code taps_init(int in, int whole, int begin, int out, enum mxc_filter filter,
                               struct taps *t, struct mxc_err *err) {
    double scale = (double)in / whole, stretch = scale < 1 ? 1 : scale;
    double support = filters[filter].support * stretch, shrink = 1 / stretch;
    *t = (struct taps){.stride = (int)ceil(support) * 2 + 1, .n = out};
    size_t all;
    t->first = mxc_mem_array((size_t)out, 2 * sizeof *t->first);
    if (mxc_size_mul((size_t)t->stride, (size_t)out, &all))
        t->k = mxc_mem_array(all, sizeof *t->k);
    double *w = mxc_mem_array((size_t)t->stride, sizeof *w);
    if (!t->first || !t->k || !w) {
        mxc_mem_free(w);
        taps_fini(t);
        return mxc_err_nomem(err);
    }
    t->count = t->first + out;
    for (int i = 0; i < out; i++) {
        double centre = (begin + i + 0.5) * scale, sum = 0;
        int lo = (int)(centre - support + 0.5), hi = (int)(centre + support + 0.5);
        lo = lo < 0 ? 0 : lo;
        hi = hi > in ? in : hi;
        int n = hi - lo;
        for (int j = 0; j < n; j++) {
            w[j] = filters[filter].at((j + lo - centre + 0.5) * shrink);
            sum += w[j];
        }
        int32_t *k = t->k + (size_t)i * (size_t)t->stride;
        for (int j = 0; j < n; j++) {
            double v = sum != 0 ? w[j] / sum : w[j];
            k[j] = (int32_t)((v < 0 ? -0.5 : 0.5) + v * (1 << PRECISION));
        }
        t->first[i] = lo;
        t->count[i] = n;
    }
    mxc_mem_free(w);
    return MXC_OK;
}

/* ---- sums ---- */

static inline uint8_t clip(int32_t sum) {
    int32_t v = sum >> PRECISION;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* LANES neighbours: out[i] = clip(sum of k[j] * in[j * stride + i]). */
static inline __attribute__((always_inline)) void lanes(const uint8_t *in, size_t stride,
                                                        const int32_t *k, int n, uint8_t *out) {
    int32_t sum[LANES];
    for (int i = 0; i < LANES; i++)
        sum[i] = 1 << (PRECISION - 1);
    for (int j = 0; j < n; j++, in += stride)
        for (int i = 0; i < LANES; i++)
            sum[i] += k[j] * in[i];
    for (int i = 0; i < LANES; i++)
        out[i] = clip(sum[i]);
}

/* One output row of row_bytes. */
static inline __attribute__((always_inline)) void
column_sums(const uint8_t *in, size_t row_bytes, const int32_t *k, int n, uint8_t *out) {
    size_t i = 0;
    for (; i + LANES <= row_bytes; i += LANES)
        lanes(in + i, row_bytes, k, n, out + i);
    if (i < row_bytes && row_bytes >= LANES) { /* the rest overlaps what is done */
        i = row_bytes - LANES;
        lanes(in + i, row_bytes, k, n, out + i);
        return;
    }
    for (; i < row_bytes; i++) {
        int32_t sum = 1 << (PRECISION - 1);
        for (int j = 0; j < n; j++)
            sum += k[j] * in[(size_t)j * row_bytes + i];
        out[i] = clip(sum);
    }
}

/* tile: [width * 3, LANES], the rows side by side; out: [t->n * 3, LANES]. */
static inline __attribute__((always_inline)) void tile_sums(const uint8_t *tile,
                                                            const struct taps *t, uint8_t *out) {
    for (int x = 0; x < t->n; x++) {
        const int32_t *k = t->k + (size_t)x * (size_t)t->stride;
        const uint8_t *in = tile + (size_t)t->first[x] * 3 * LANES;
        for (int c = 0; c < 3; c++, in += LANES, out += LANES)
            lanes(in, 3 * LANES, k, t->count[x], out);
    }
}

static void column_sums_base(const uint8_t *in, size_t row_bytes, const int32_t *k, int n,
                             uint8_t *out) {
    column_sums(in, row_bytes, k, n, out);
}

static void tile_sums_base(const uint8_t *tile, const struct taps *t, uint8_t *out) {
    tile_sums(tile, t, out);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void
column_sums_avx2(const uint8_t *in, size_t row_bytes, const int32_t *k, int n, uint8_t *out) {
    column_sums(in, row_bytes, k, n, out);
}

__attribute__((target("avx2"))) static void tile_sums_avx2(const uint8_t *tile,
                                                           const struct taps *t, uint8_t *out) {
    tile_sums(tile, t, out);
}
#endif

/* ---- passes ---- */

/* Exchanges the bits of *a above shift with those of *b under the mask. */
static inline void exchange(uint64_t *a, uint64_t *b, unsigned shift, uint64_t mask) {
    uint64_t t = ((*a >> shift) ^ *b) & mask;
    *a ^= t << shift;
    *b ^= t;
}

/* 8 rows of 8 bytes at from become 8 rows of 8 bytes at to, turned over the diagonal. */
static inline void turn8(const uint8_t *from, size_t from_step, uint8_t *to, size_t to_step) {
    uint64_t w[8];
    for (size_t i = 0; i < 8; i++)
        memcpy(&w[i], from + i * from_step, 8);
    for (int i = 0; i < 4; i++)
        exchange(&w[i], &w[i + 4], 32, UINT64_C(0x00000000FFFFFFFF));
    for (int i = 0; i < 6; i += i == 1 ? 3 : 1)
        exchange(&w[i], &w[i + 2], 16, UINT64_C(0x0000FFFF0000FFFF));
    for (int i = 0; i < 8; i += 2)
        exchange(&w[i], &w[i + 1], 8, UINT64_C(0x00FF00FF00FF00FF));
    for (size_t i = 0; i < 8; i++)
        memcpy(to + i * to_step, &w[i], 8);
}

/* [rows, row_bytes] -> [row_bytes, LANES]; lanes without a row are left as they are. */
static void turn_in(const uint8_t *from, size_t row_bytes, size_t rows, uint8_t *tile) {
    size_t whole = rows / 8 * 8, columns = row_bytes / 8 * 8;
    for (size_t b = 0; b < columns; b += 8)
        for (size_t r = 0; r < whole; r += 8)
            turn8(from + r * row_bytes + b, row_bytes, tile + b * LANES + r, LANES);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = r < whole ? columns : 0; i < row_bytes; i++)
            tile[i * LANES + r] = from[r * row_bytes + i];
}

/* [row_bytes, LANES] -> [rows, row_bytes] */
static void turn_out(const uint8_t *tile, size_t row_bytes, size_t rows, uint8_t *to) {
    size_t whole = rows / 8 * 8, columns = row_bytes / 8 * 8;
    for (size_t b = 0; b < columns; b += 8)
        for (size_t r = 0; r < whole; r += 8)
            turn8(tile + b * LANES + r, LANES, to + r * row_bytes + b, row_bytes);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = r < whole ? columns : 0; i < row_bytes; i++)
            to[r * row_bytes + i] = tile[i * LANES + r];
}

/* Rows [first, first + rows) of from, resampled to t->n pixels. */
static enum mxc_code horizontal(const struct mxc_image *from, size_t first, size_t rows,
                                const struct taps *t, struct mxc_image *to, struct mxc_err *err) {
    size_t in_bytes = (size_t)from->width * 3, out_bytes = (size_t)t->n * 3, room;
    if (!mxc_size_add(in_bytes, out_bytes, &room))
        return mxc_err_nomem(err);
    uint8_t *tile = mxc_mem_zalloc(room, LANES); /* lanes beyond the last row are summed, too */
    if (!tile)
        return mxc_err_nomem(err);
    struct mxc_image result;
    enum mxc_code code = mxc_image_init(t->n, (int)rows, &result, err);
    if (code) {
        mxc_mem_free(tile);
        return code;
    }
    uint8_t *out = tile + in_bytes * LANES;
    void (*sums)(const uint8_t *, const struct taps *, uint8_t *) = tile_sums_base;
#ifdef __x86_64__
    if (mxc_cpu_level() >= MXC_CPU_AVX2)
        sums = tile_sums_avx2;
#endif
    for (size_t y = 0; y < rows; y += LANES) {
        size_t n = rows - y < LANES ? rows - y : LANES;
        turn_in(from->rgb + (first + y) * in_bytes, in_bytes, n, tile);
        sums(tile, t, out);
        turn_out(out, out_bytes, n, result.rgb + y * out_bytes);
    }
    mxc_mem_free(tile);
    *to = result;
    return MXC_OK;
}

/* first: the row of the whole picture that from begins with. */
static enum mxc_code vertical(const struct mxc_image *from, size_t first, const struct taps *t,
                              struct mxc_image *to, struct mxc_err *err) {
    size_t row_bytes = (size_t)from->width * 3;
    enum mxc_code code = mxc_image_init(from->width, t->n, to, err);
    void (*sums)(const uint8_t *, size_t, const int32_t *, int, uint8_t *) = column_sums_base;
#ifdef __x86_64__
    if (mxc_cpu_level() >= MXC_CPU_AVX2)
        sums = column_sums_avx2;
#endif
    for (int y = 0; !code && y < t->n; y++)
        sums(from->rgb + ((size_t)t->first[y] - first) * row_bytes, row_bytes,
             t->k + (size_t)y * (size_t)t->stride, t->count[y], to->rgb + (size_t)y * row_bytes);
    return code;
}

/* Sources of outputs [begin, begin + out). Pillow steps by adding, not by multiplying. */
static void steps(int in, int whole, int begin, int out, int *source) {
    double step = (double)in / whole, at = step * 0.5;
    for (int i = 0; i < begin + out; i++, at += step)
        if (i >= begin)
            source[i - begin] = (int)at < in ? (int)at : in - 1;
}

static enum mxc_code nearest(const struct mxc_image *from, const struct mxc_resize *r,
                             struct mxc_image *to, struct mxc_err *err) {
    int *columns = mxc_mem_array((size_t)r->width, sizeof *columns);
    int *rows = mxc_mem_array((size_t)r->height, sizeof *rows);
    enum mxc_code code =
        columns && rows ? mxc_image_init(r->width, r->height, to, err) : mxc_err_nomem(err);
    if (!code) {
        steps(from->width, r->whole_width, r->left, r->width, columns);
        steps(from->height, r->whole_height, r->top, r->height, rows);
    }
    for (int y = 0; !code && y < r->height; y++) {
        const uint8_t *row = from->rgb + (size_t)rows[y] * (size_t)from->width * 3;
        uint8_t *out = to->rgb + (size_t)y * (size_t)r->width * 3;
        for (int x = 0; x < r->width; x++, out += 3)
            memcpy(out, row + (size_t)columns[x] * 3, 3);
    }
    mxc_mem_free(columns);
    mxc_mem_free(rows);
    return code;
}

/* wide, high: whether the sides change at all, else the pass is left out and the part cut. */
static enum mxc_code passes(const struct mxc_image *from, const struct mxc_resize *r, bool wide,
                            bool high, struct mxc_image *to, struct mxc_err *err) {
    struct mxc_image middle = {0};
    struct taps across = {0}, down = {0};
    /* Which pass is first decides how values are rounded. Pillow (since 13) begins with the one
     * that shrinks more: measured on it, the vertical one when it drops more than twice as many
     * rows as the other drops columns. */
    int columns_less = from->width > r->whole_width ? from->width - r->whole_width : 0;
    bool down_first =
        wide && high && (int64_t)from->height - r->whole_height > 2 * (int64_t)columns_less;
    enum mxc_code code = MXC_OK;
    if (wide)
        code = taps_init(from->width, r->whole_width, r->left, r->width, r->filter, &across, err);
    if (!code && high)
        code = taps_init(from->height, r->whole_height, r->top, r->height, r->filter, &down, err);
    if (!code && down_first) {
        code = vertical(from, 0, &down, &middle, err);
        if (!code)
            code = horizontal(&middle, 0, (size_t)r->height, &across, to, err);
    } else if (!code && wide && high) {
        /* Rows that no output row looks at are not resampled. */
        size_t first = (size_t)down.first[0];
        size_t last = (size_t)(down.first[r->height - 1] + down.count[r->height - 1]);
        code = horizontal(from, first, last - first, &across, &middle, err);
        if (!code)
            code = vertical(&middle, first, &down, to, err);
    } else if (!code && wide) {
        code = horizontal(from, (size_t)r->top, (size_t)r->height, &across, to, err);
    } else if (!code) {
        code = vertical(from, 0, &down, &middle, err);
        if (!code)
            code = mxc_image_cut(&middle, r->left, 0, r->width, r->height, black, to, err);
    }
    mxc_image_fini(&middle);
    taps_fini(&across);
    taps_fini(&down);
    return code;
}

enum mxc_code mxc_image_resize_part(const struct mxc_image *from, const struct mxc_resize *r,
                                    struct mxc_image *to, struct mxc_err *err) {
    struct mxc_image result = {0};
    if (r->width < 1 || r->height < 1 || r->width > MXC_IMAGE_MAX_SIDE ||
        r->height > MXC_IMAGE_MAX_SIDE || (unsigned)r->filter >= MXC_N_FILTERS || r->left < 0 ||
        r->top < 0 || r->width > r->whole_width - r->left || r->height > r->whole_height - r->top)
        return mxc_err_set(err, MXC_E_ARG, "resizing to %d x %d, filter %d", r->width, r->height,
                           (int)r->filter);
    bool wide = r->whole_width != from->width, high = r->whole_height != from->height;
    enum mxc_code code;
    if (!wide && !high)
        code = mxc_image_cut(from, r->left, r->top, r->width, r->height, black, &result, err);
    else if (r->filter == MXC_FILTER_NEAREST)
        code = nearest(from, r, &result, err);
    else
        code = passes(from, r, wide, high, &result, err);
    if (!code)
        *to = result;
    return code;
}

enum mxc_code mxc_image_resize(const struct mxc_image *from, int width, int height,
                               enum mxc_filter filter, struct mxc_image *to, struct mxc_err *err) {
    const struct mxc_resize r = {.whole_width = width,
                                 .whole_height = height,
                                 .width = width,
                                 .height = height,
                                 .filter = filter};
    return mxc_image_resize_part(from, &r, to, err);
}

enum mxc_code mxc_image_cut(const struct mxc_image *from, int left, int top, int width, int height,
                            const uint8_t colour[3], struct mxc_image *to, struct mxc_err *err) {
    struct mxc_image result;
    enum mxc_code code = mxc_image_init(width, height, &result, err);
    if (code)
        return code;
    int64_t from_x = left < 0 ? -(int64_t)left : 0, to_x = (int64_t)from->width - left;
    from_x = from_x > width ? width : from_x;
    to_x = to_x > width ? width : to_x < from_x ? from_x : to_x;
    for (int y = 0; y < height; y++) {
        uint8_t *row = result.rgb + (size_t)y * (size_t)width * 3;
        int64_t source = (int64_t)top + y, inside = to_x - from_x;
        if (source < 0 || source >= from->height)
            inside = 0;
        for (int64_t x = 0; x < width; x++)
            if (inside && x == from_x)
                x += inside - 1; /* copied below */
            else
                memcpy(row + x * 3, colour, 3);
        if (inside)
            memcpy(row + from_x * 3,
                   from->rgb + ((size_t)source * (size_t)from->width + (size_t)(left + from_x)) * 3,
                   (size_t)inside * 3);
    }
    *to = result;
    return MXC_OK;
}

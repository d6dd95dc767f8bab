/* Matrix products, scalar level: codes of six bits (I6, K6) with int8 activations.
 * In: packed strips of 32 output rows, prepared tiles. Out: those columns of the output, through
 * the epilogue. This is the definition that the vector levels are tested against.
 * Invariant: one accumulator per output visits K in order; sums of integers inside a cell of 32 are
 * exact, those of K6 with their scales: 2 * 16 * 32 * 127 * 128 < 2^24. */
#include "backend/cpu/kernels/scalar/scalar.h"

enum { S = MXC_STRIP };

/* One column of a strip: where its numbers stand in the prepared tile of `width` columns. */
struct column {
    const int8_t *x;     /* [cell][width][32] */
    const float *scale;  /* [cell][width] */
    const int32_t *sum;  /* negated: I6 [cell][width], K6 [half cell][width] */
    const float *scaled; /* [cell][width] */
    size_t width;
};

/* dot[r] += 16 codes of row r, where p is those of row 0, times x. */
static void dot16(const uint8_t *p, const int8_t *x, int32_t dot[S]) {
    for (size_t r = 0; r < S; r++) {
        const uint8_t *b = p + mxc_six_at(0, r);
        for (size_t i = 0; i < 4; i++) {
            uint8_t b0 = b[i], b1 = b[64 + i], b2 = b[128 + i];
            dot[r] += (b0 & 63) * x[i] + (b1 & 63) * x[4 + i] + (b2 & 63) * x[8 + i];
            dot[r] += (b0 >> 6 | b1 >> 6 << 2 | b2 >> 6 << 4) * x[12 + i];
        }
    }
}

static void column_i6(const struct mxc_packed *w, const uint8_t *strip, const struct column *c,
                      float acc[S]) {
    for (size_t cell = 0; cell < (size_t)w->k / MXC_CELL_I8; cell++) {
        size_t k = cell * MXC_CELL_I8, group = (size_t)w->group, at = cell * c->width;
        const uint8_t *block = strip + k / group * mxc_block_bytes(w);
        const uint16_t *f = (const uint16_t *)(const void *)(block + mxc_block_codes(w));
        const int8_t *x = c->x + at * MXC_CELL_I8;
        int32_t dot[S];
        for (int r = 0; r < S; r++)
            dot[r] = c->sum[at] * w->zero_point;
        dot16(block + mxc_six_at(k % group, 0), x, dot);
        dot16(block + mxc_six_at(k % group + 16, 0), x + 16, dot);
        for (int r = 0; r < S; r++)
            acc[r] += mxc_f16_to_f32(f[r]) * ((float)dot[r] * c->scale[at]);
        for (int r = 0; w->affine && r < S; r++)
            acc[r] -= mxc_f16_to_f32(f[S + r]) * c->scaled[at];
    }
}

static void column_k6(const struct mxc_packed *w, const uint8_t *strip, const struct column *c,
                      float acc[S]) {
    const int8_t *x = c->x;
    const float *scale = c->scale;
    const int32_t *sum = c->sum;
    for (int32_t k = 0; k < w->k; k += MXC_K6_BLOCK, strip += MXC_K6_BYTES) {
        const uint16_t *factor = (const uint16_t *)(const void *)strip;
        const uint8_t *cell = strip + MXC_BLOCK_TAIL;
        float part[S] = {0};
        for (int i = 0; i < MXC_K6_BLOCK / MXC_CELL_I8; i++, cell += MXC_K6_CELL) {
            int32_t total[S] = {0};
            for (size_t g = 0; g < 2; g++, sum += c->width) {
                int32_t dot[S];
                for (int r = 0; r < S; r++)
                    dot[r] = *sum * MXC_K6_ZERO;
                dot16(cell + MXC_K6_SCALES + mxc_six_at(16 * g, 0), x + 16 * g, dot);
                for (size_t r = 0; r < S; r++)
                    total[r] += (int8_t)cell[mxc_k6_scale_at(g, r)] * dot[r];
            }
            for (int r = 0; r < S; r++)
                part[r] += *scale * (float)total[r];
            x += c->width * MXC_CELL_I8;
            scale += c->width;
        }
        for (int r = 0; r < S; r++)
            acc[r] += mxc_f16_to_f32(factor[r]) * part[r];
    }
}

static void matmul(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                   int32_t strip1, float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view v = mxc_i8_view(a);
    const bool k6 = w->layout == MXC_LAYOUT_K6;
    size_t cells = v.kp / MXC_CELL_I8;
    float inverse_unit = 1.0f / w->unit;
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t row = 0; row < a->m; row++) {
            int32_t first = row / MXC_TILE_I8 * MXC_TILE_I8;
            size_t c0 = (size_t)first, ci = (size_t)(row - first);
            struct column c = {.x = v.codes + c0 * v.kp + ci * MXC_CELL_I8,
                               .scale = v.scale + c0 * cells + ci,
                               .sum = (k6 ? v.sum16 + 2 * c0 * cells : v.sum32 + c0 * cells) + ci,
                               .scaled = v.scaled32 + c0 * cells + ci,
                               .width = (size_t)mxc_tile_width(a, first)};
            float acc[S] = {0};
            (k6 ? column_k6 : column_i6)(w, w->data + (size_t)s * w->strip_bytes, &c, acc);
            for (int32_t r = 0; r < S && s * S + r < w->n; r++) {
                size_t column = (size_t)(s * S + r), at = (size_t)row * ld + column;
                out[at] = mxc_epilogue_one(epilogue, acc[r] * inverse_unit, column, at);
            }
        }
}

void mxc_scalar_matmul_i6(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    matmul(w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_scalar_matmul_k6(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    matmul(w, a, strip0, strip1, out, ld, epilogue);
}

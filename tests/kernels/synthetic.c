/* Synthetic inputs for the kernel tests (synthetic.h). */
#include "synthetic.h"

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static uint32_t state = 0x2545F491;

uint32_t rnd_u32(void) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

float rnd_float(void) {
    return (float)(int32_t)rnd_u32() * 0x1p-31f;
}

void rnd_fill(float *x, size_t n, float amplitude) {
    for (size_t i = 0; i < n; i++)
        x[i] = amplitude * rnd_float();
}

const struct case_storage case_storages[] = {
    {"f32", MXC_ST_F32, 0, 0, 0, MXC_LAYOUT_F32},
    {"f16", MXC_ST_F16, 0, 0, 0, MXC_LAYOUT_F16},
    {"bf16", MXC_ST_BF16, 0, 0, 0, MXC_LAYOUT_BF16},
    {"q4_0", MXC_ST_Q4_0, 0, 0, 0, MXC_LAYOUT_I4},
    {"q4_1", MXC_ST_Q4_1, 0, 0, 0, MXC_LAYOUT_I4},
    {"q4_k", MXC_ST_Q4_K, 0, 0, 0, MXC_LAYOUT_I4},
    {"q5_0", MXC_ST_Q5_0, 0, 0, 0, MXC_LAYOUT_I6},
    {"q5_1", MXC_ST_Q5_1, 0, 0, 0, MXC_LAYOUT_I6},
    {"q5_k", MXC_ST_Q5_K, 0, 0, 0, MXC_LAYOUT_I6},
    {"q8_0", MXC_ST_Q8_0, 0, 0, 0, MXC_LAYOUT_I8},
    {"q6_k", MXC_ST_Q6_K, 0, 0, 0, MXC_LAYOUT_K6},
    {"q2_k", MXC_ST_Q2_K, 0, 0, 0, MXC_LAYOUT_I4},
    {"q3_k", MXC_ST_Q3_K, 0, 0, 0, MXC_LAYOUT_I4},
    {"iq4_nl", MXC_ST_IQ4_NL, 0, 0, 0, MXC_LAYOUT_N4},
    {"iq4_xs", MXC_ST_IQ4_XS, 0, 0, 0, MXC_LAYOUT_N4},
    {"mxfp4", MXC_ST_MXFP4_BLOCK, 0, 0, 0, MXC_LAYOUT_N4},
    {"tq1_0", MXC_ST_TQ1_0, 0, 0, 0, MXC_LAYOUT_I4},
    {"tq2_0", MXC_ST_TQ2_0, 0, 0, 0, MXC_LAYOUT_I4},
    {"f8_e4m3", MXC_ST_F8_E4M3, 0, 0, 0, MXC_LAYOUT_BF16},
    {"mlx 2 g32 f16", MXC_ST_MLX_AFFINE, 2, 32, MXC_ST_F16, MXC_LAYOUT_I4},
    {"mlx 4 g64 bf16", MXC_ST_MLX_AFFINE, 4, 64, MXC_ST_BF16, MXC_LAYOUT_I4},
    {"mlx 4 g128 f32", MXC_ST_MLX_AFFINE, 4, 128, MXC_ST_F32, MXC_LAYOUT_I4},
    {"mlx 5 g32 bf16", MXC_ST_MLX_AFFINE, 5, 32, MXC_ST_BF16, MXC_LAYOUT_I6},
    {"mlx 6 g128 f16", MXC_ST_MLX_AFFINE, 6, 128, MXC_ST_F16, MXC_LAYOUT_I6},
    {"mlx 8 g32 f16", MXC_ST_MLX_AFFINE, 8, 32, MXC_ST_F16, MXC_LAYOUT_I8},
    {"mlx 8 g64 bf16", MXC_ST_MLX_AFFINE, 8, 64, MXC_ST_BF16, MXC_LAYOUT_I8},
};
const size_t n_case_storages = sizeof case_storages / sizeof *case_storages;

static void put_u16(uint8_t *p, uint16_t h) {
    memcpy(p, &h, sizeof h);
}

/* Makes the f16 scales of one random block sane. */
static void fix_block(enum mxc_storage storage, uint8_t *p) {
    uint16_t d = mxc_f32_to_f16(0.01f + 0.005f * rnd_float());
    uint16_t m = mxc_f32_to_f16(0.05f * rnd_float());
    switch (storage) {
    case MXC_ST_Q4_1:
    case MXC_ST_Q5_1:
    case MXC_ST_Q4_K:
    case MXC_ST_Q5_K:
        put_u16(p + 2, m);
        put_u16(p, d);
        break;
    case MXC_ST_Q2_K:
        put_u16(p + 80, d);
        put_u16(p + 82, mxc_f32_to_f16(fabsf(mxc_f16_to_f32(m))));
        break;
    case MXC_ST_Q3_K:
        put_u16(p + 108, d);
        break;
    case MXC_ST_MXFP4_BLOCK:
        p[0] = (uint8_t)(118 + rnd_u32() % 8);
        break;
    case MXC_ST_TQ1_0:
        put_u16(p + 52, d);
        break;
    case MXC_ST_TQ2_0:
        put_u16(p + 64, d);
        break;
    case MXC_ST_F8_E4M3:
        p[0] = (uint8_t)(p[0] & 0xBF); /* below 2, no NaN */
        break;
    case MXC_ST_Q6_K:
        put_u16(p + 208, mxc_f32_to_f16(0.0002f + 0.0001f * rnd_float()));
        break;
    default:
        put_u16(p, d);
    }
}

static uint8_t *random_scales(enum mxc_storage storage, size_t n, float middle, float spread) {
    size_t size = storage == MXC_ST_F32 ? 4 : 2;
    uint8_t *p = mxc_mem_array(n, size);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        float x = middle + spread * rnd_float();
        if (storage == MXC_ST_F32)
            memcpy(p + 4 * i, &x, sizeof x);
        else
            put_u16(p + 2 * i, storage == MXC_ST_F16 ? mxc_f32_to_f16(x) : mxc_f32_to_bf16(x));
    }
    return p;
}

struct mxc_tensor *make_tensor(const struct case_storage *c, int32_t n, int32_t k) {
    struct mxc_tensor *t = mxc_mem_zalloc(1, sizeof *t);
    assert_non_null(t);
    const struct mxc_storage_info *info = mxc_storage_info(c->storage);
    size_t numbers = (size_t)n * (size_t)k;
    t->name = c->name;
    t->storage = c->storage;
    t->n_dims = 2;
    t->shape[0] = n;
    t->shape[1] = k;
    t->bits = c->bits;
    t->group = c->group;
    t->scale_storage = c->scale_storage;
    t->bytes = info->block ? numbers / info->block * info->block_bytes : numbers * c->bits / 8;
    uint8_t *data = mxc_mem_alloc(t->bytes);
    assert_non_null(data);
    for (size_t i = 0; i < t->bytes; i++)
        data[i] = (uint8_t)rnd_u32();
    if (c->storage == MXC_ST_MLX_AFFINE) {
        t->scales = random_scales(c->scale_storage, numbers / c->group, 0.02f, 0.01f);
        t->biases = random_scales(c->scale_storage, numbers / c->group, -0.1f, 0.05f);
    } else if (info->quantised) {
        for (size_t i = 0; i + info->block_bytes <= t->bytes; i += info->block_bytes)
            fix_block(c->storage, data + i);
    } else {
        for (size_t i = 0; i < numbers; i++) {
            float x = rnd_float();
            if (c->storage == MXC_ST_F32)
                memcpy(data + 4 * i, &x, sizeof x);
            else
                put_u16(data + 2 * i,
                        c->storage == MXC_ST_F16 ? mxc_f32_to_f16(x) : mxc_f32_to_bf16(x));
        }
    }
    t->data = data;
    return t;
}

void free_tensor(struct mxc_tensor *tensor) {
    mxc_mem_free((void *)(uintptr_t)tensor->data);
    mxc_mem_free((void *)(uintptr_t)tensor->scales);
    mxc_mem_free((void *)(uintptr_t)tensor->biases);
    mxc_mem_free(tensor);
}

static const int8_t table_wide[16] = {-128, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  127};
static const int8_t table_small[16] = {0, 1, 2, 3, 4, 6, 8, 16, 0, -1, -2, -3, -4, -6, -8, -16};

const struct case_layout case_layouts[] = {
    {"i4 16", MXC_LAYOUT_I4, 16, false, 4, false, NULL},
    {"i4 32", MXC_LAYOUT_I4, 32, false, 8, false, NULL},
    {"i4 64", MXC_LAYOUT_I4, 64, false, 1, false, NULL},
    {"i4 16 affine", MXC_LAYOUT_I4, 16, true, 0, false, NULL},
    {"i4 32 affine", MXC_LAYOUT_I4, 32, true, 0, false, NULL},
    {"i4 64 affine", MXC_LAYOUT_I4, 64, true, 0, false, NULL},
    {"i8 16", MXC_LAYOUT_I8, 16, false, 32, false, NULL},
    {"i8 32", MXC_LAYOUT_I8, 32, false, 128, false, NULL},
    {"i8 64", MXC_LAYOUT_I8, 64, false, 255, false, NULL},
    {"i8 16 affine", MXC_LAYOUT_I8, 16, true, 0, false, NULL},
    {"i8 32 affine", MXC_LAYOUT_I8, 32, true, 0, false, NULL},
    {"i8 64 affine", MXC_LAYOUT_I8, 64, true, 0, false, NULL},
    {"i6 32", MXC_LAYOUT_I6, 32, false, 16, false, NULL},
    {"i6 64", MXC_LAYOUT_I6, 64, false, 16, false, NULL},
    {"i6 32 affine", MXC_LAYOUT_I6, 32, true, 0, false, NULL},
    {"i6 64 affine", MXC_LAYOUT_I6, 64, true, 0, false, NULL},
    {"k6", MXC_LAYOUT_K6, 16, false, 32, false, NULL},
    {"n4 16", MXC_LAYOUT_N4, 16, false, 0, false, table_wide},
    {"n4 32", MXC_LAYOUT_N4, 32, false, 0, false, table_wide},
    {"n4 16 bf16", MXC_LAYOUT_N4, 16, false, 0, true, table_wide},
    {"n4 32 bf16", MXC_LAYOUT_N4, 32, false, 0, true, table_wide},
    {"n4 16 small", MXC_LAYOUT_N4, 16, false, 0, false, table_small},
    {"n4 32 small", MXC_LAYOUT_N4, 32, false, 0, false, table_small},
    {"n4 16 bf16 small", MXC_LAYOUT_N4, 16, false, 0, true, table_small},
    {"n4 32 bf16 small", MXC_LAYOUT_N4, 32, false, 0, true, table_small},
};
const size_t n_case_layouts = sizeof case_layouts / sizeof *case_layouts;

void set_scales(struct mxc_packed *w, float scale, float bias, float spread) {
    size_t blocks = mxc_packed_bytes(w) / mxc_block_bytes(w);
    size_t per_strip = (size_t)(w->k / mxc_block_numbers(w));
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *block = w->data + i * mxc_block_bytes(w), *tail = block + mxc_block_codes(w);
        for (int c = 0; w->layout == MXC_LAYOUT_K6 && c < MXC_K6_BLOCK / MXC_CELL_I8; c++) {
            uint8_t *scales = block + MXC_BLOCK_TAIL + c * MXC_K6_CELL;
            for (int j = 0; j < MXC_K6_SCALES; j++) /* the factor becomes `scale` */
                scales[j] = (uint8_t)(spread > 0 ? rnd_u32() : 1);
        }
        for (size_t r = 0; r < (w->affine ? 2u : 1u) * MXC_STRIP; r++) {
            float x = (r < MXC_STRIP ? scale : bias) * (1 + spread * rnd_float());
            if ((int32_t)(i / per_strip * MXC_STRIP + r % MXC_STRIP) >= w->n)
                x = 0; /* a row of the padding */
            put_u16(tail + 2 * r, w->bf16_scales ? mxc_f32_to_bf16(x) : mxc_f32_to_f16(x));
        }
    }
}

struct mxc_packed make_packed(const struct case_layout *c, int32_t n, int32_t k) {
    struct mxc_packed w = {.layout = c->layout,
                           .n = n,
                           .k = k,
                           .group = c->group,
                           .affine = c->affine,
                           .zero_point = c->zero_point,
                           .bf16_scales = c->bf16_scales,
                           .unit = c->bf16_scales ? 1 : 64};
    if (c->table)
        memcpy(w.table, c->table, sizeof w.table);
    w.strip_bytes = (size_t)(k / mxc_block_numbers(&w)) * mxc_block_bytes(&w);
    w.data = mxc_mem_aligned(MXC_ALIGN, mxc_packed_bytes(&w), false);
    assert_non_null(w.data);
    for (size_t i = 0; i < mxc_packed_bytes(&w); i++)
        w.data[i] = (uint8_t)rnd_u32();
    set_scales(&w, 1, -8, 0.5f);
    return w;
}

struct mxc_packed pack_view(const struct mxc_view *view, bool exact) {
    struct mxc_packed w, plan;
    struct mxc_err err;
    assert_true(mxc_view_fits(view));
    assert_int_equal(mxc_pack_form(view, exact, &w, &err), MXC_OK);
    assert_int_equal(mxc_pack_plan(view, exact, &plan, &err), MXC_OK);
    assert_true(plan.layout == w.layout && plan.strip_bytes == w.strip_bytes);
    w.data = mxc_mem_aligned(MXC_ALIGN, mxc_packed_bytes(&w), false);
    void *scratch = mxc_mem_alloc(mxc_pack_scratch_bytes(view, &w));
    assert_true(w.data && scratch);
    int32_t strips = mxc_packed_strips(&w);
    mxc_pack_strips(view, &w, strips / 2, strips, scratch);
    mxc_pack_strips(view, &w, 0, strips / 2, scratch);
    mxc_mem_free(scratch);
    return w;
}

struct mxc_packed pack(const struct mxc_tensor *tensor, bool exact) {
    struct mxc_view view = mxc_view_whole(tensor);
    return pack_view(&view, exact);
}

void free_packed(struct mxc_packed *packed) {
    mxc_mem_free_aligned(packed->data, mxc_packed_bytes(packed));
}

struct mxc_activation activation_new(enum mxc_activation_form form, int32_t m, int32_t k) {
    struct mxc_activation a = {.form = form, .m = m, .k = k};
    a.data = mxc_mem_aligned(MXC_ALIGN, mxc_activation_bytes(form, m, k), false);
    assert_non_null(a.data);
    return a;
}

void activation_free(struct mxc_activation *a) {
    mxc_mem_free_aligned(a->data, mxc_activation_bytes(a->form, a->m, a->k));
}

enum { GUARD = 64, CANARY = 0x7FC0DEAD };

bool is_canary(float x) {
    return mxc_f32_bits(x) == CANARY;
}

struct guarded guarded_new(size_t n) {
    struct guarded g = {.n = n};
    g.base = mxc_mem_aligned(MXC_ALIGN, (n + 2 * GUARD) * sizeof(float), false);
    assert_non_null(g.base);
    g.data = g.base + GUARD;
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        g.base[i] = mxc_f32_of_bits(CANARY);
    return g;
}

void guarded_check(const struct guarded *g) {
    for (size_t i = 0; i < GUARD; i++)
        assert_true(is_canary(g->base[i]) && is_canary(g->data[g->n + i]));
}

void guarded_free(struct guarded *g) {
    guarded_check(g);
    mxc_mem_free_aligned(g->base, (g->n + 2 * GUARD) * sizeof(float));
}

const struct kernel_row kernel_rows[] = {
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name)                                            \
    {MXC_CPU_##LEVEL, KIND_##KIND, (int)(index), #isa " " #name},
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL
};
const size_t n_kernel_rows = sizeof kernel_rows / sizeof *kernel_rows;

const struct kernel_row *kernel_row(size_t i, enum kernel_kind kind) {
    const struct kernel_row *row = &kernel_rows[i];
    return row->kind == kind && row->level <= mxc_cpu_best() ? row : NULL;
}

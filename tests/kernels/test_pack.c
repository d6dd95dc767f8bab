/* Packing: what a packed row decodes to against the storage's own decoder, for every storage, in
 * fast and exact, whole and through views; units, padding, plans, refusals, sizes. */
#include "synthetic.h"

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static int32_t case_k(const struct case_storage *c) {
    const struct mxc_storage_info *info = mxc_storage_info(c->storage);
    return c->storage == MXC_ST_MLX_AFFINE ? 3 * (int32_t)c->group
           : info->block == 1              ? 77
                                           : 2 * (int32_t)info->block;
}

/* How far a packed number may be from the decoder's; size: the largest of the row. */
static float bound_of(const struct mxc_packed *w, enum mxc_storage storage, float size) {
    switch (storage) {
    case MXC_ST_Q4_0:
    case MXC_ST_Q5_0:
    case MXC_ST_Q8_0:
    case MXC_ST_TQ1_0:
    case MXC_ST_TQ2_0:
    case MXC_ST_IQ4_NL:
    case MXC_ST_MXFP4_BLOCK:
    case MXC_ST_F8_E4M3:
        if (mxc_layout_integer(w->layout))
            return 0; /* f16 scales or powers of two, one product */
        break;
    case MXC_ST_Q6_K:
        if (w->layout == MXC_LAYOUT_K6)
            return 0;
        break;
    default:
        break;
    }
    if (w->layout == MXC_LAYOUT_BF16 && storage != MXC_ST_BF16 && storage != MXC_ST_F8_E4M3)
        return 0x1p-8f * size; /* decoded, then rounded to bf16 */
    /* floats and f32 are kept; integers: f16 scales and biases, of terms up to ~10x larger */
    return mxc_layout_integer(w->layout) ? 1.5e-3f * size : 0;
}

/* Every packed row against the view's own decoding, and zeros in the padding. */
static void check_view(const struct mxc_view *view, bool exact, enum mxc_layout layout) {
    size_t kk = (size_t)view->k;
    struct mxc_packed w = pack_view(view, exact);
    assert_int_equal(w.layout, layout);
    assert_int_equal(w.n, view->n);
    assert_int_equal(w.k, view->k);
    float *got = mxc_mem_array(2 * kk + mxc_view_scratch(view), sizeof *got), *want = got + kk;
    assert_non_null(got);
    for (int32_t r = 0; r < w.n; r++) {
        mxc_packed_row(&w, r, got);
        mxc_view_rows(view, r, 1, want, kk, want + kk);
        float size = 0;
        for (size_t i = 0; i < kk; i++)
            size = fabsf(want[i]) > size ? fabsf(want[i]) : size;
        float bound = bound_of(&w, view->tensor->storage, size);
        for (size_t i = 0; i < kk; i++)
            if (!(fabsf(got[i] - want[i]) <= bound))
                fail_msg("%s row %d: %g, not %g", view->tensor->name, r, (double)got[i],
                         (double)want[i]);
    }
    for (int32_t r = w.n; r < mxc_packed_strips(&w) * MXC_STRIP; r++) {
        mxc_packed_row(&w, r, got);
        for (size_t i = 0; i < kk; i++)
            assert_true(got[i] == 0);
    }
    mxc_mem_free(got);
    free_packed(&w);
}

static void check(const struct case_storage *c, bool exact) {
    struct mxc_tensor *t = make_tensor(c, 45, case_k(c));
    struct mxc_view view = mxc_view_whole(t);
    check_view(&view, exact, exact ? MXC_LAYOUT_F32 : c->layout);
    free_tensor(t);
}

/* Rows 3, 5, 7 ... of a tensor of three dimensions, and columns as rows. */
static void test_views(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_case_storages; i++) {
        const struct case_storage *c = &case_storages[i];
        struct mxc_tensor *t = make_tensor(c, 90, case_k(c));
        t->n_dims = 3;
        t->shape[2] = t->shape[1];
        t->shape[0] = 2;
        t->shape[1] = 45;
        struct mxc_view steps = {
            .tensor = t, .n = 43, .k = t->shape[2], .row0 = 3, .row_step = 2, .col_step = 1};
        struct mxc_view turned = {.tensor = t,
                                  .n = 34,
                                  .k = 41,
                                  .row0 = 11,
                                  .col0 = 5,
                                  .col_step = 1,
                                  .transposed = true};
        enum mxc_layout layout = mxc_layout_integer(c->layout) ? MXC_LAYOUT_BF16 : c->layout;
        for (int exact = 0; exact < 2; exact++) {
            check_view(&steps, exact, exact ? MXC_LAYOUT_F32 : c->layout);
            check_view(&turned, exact, exact ? MXC_LAYOUT_F32 : layout);
        }
        free_tensor(t);
    }
}

/* Whether a byte of a strip of codes of six bits belongs to the last row. */
static bool is_of_last_row(const struct mxc_packed *w, size_t at) {
    at %= mxc_block_bytes(w);
    if (w->layout == MXC_LAYOUT_K6) {
        if (at < MXC_BLOCK_TAIL)
            return at >= MXC_BLOCK_TAIL - 2;
        at = (at - MXC_BLOCK_TAIL) % MXC_K6_CELL;
        if (at < MXC_K6_SCALES)
            return at == 47 || at == 63;
        at -= MXC_K6_SCALES;
    } else if (at >= mxc_block_codes(w)) {
        return (at - mxc_block_codes(w)) % MXC_BLOCK_TAIL >= MXC_BLOCK_TAIL - 2;
    }
    return at % MXC_SIX_CELL >= MXC_SIX_HALF && at % 64 >= 60;
}

/* A whole strip and the first 31 rows of it come out of different code where a storage has a way of
 * its own: the same bytes in the lanes of those rows. */
static void test_strips_are_the_same(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_case_storages; i++) {
        const struct case_storage *c = &case_storages[i];
        struct mxc_tensor *t = make_tensor(c, 2 * MXC_STRIP, case_k(c));
        for (int step = 1; step <= 2; step++) {
            struct mxc_view view = mxc_view_whole(t);
            view.n = MXC_STRIP;
            view.row_step = step;
            struct mxc_packed whole = pack_view(&view, false);
            view.n = MXC_STRIP - 1;
            struct mxc_packed part = pack_view(&view, false);
            size_t lane = whole.group ? 2 : whole.layout == MXC_LAYOUT_F32 ? 4 : 2;
            assert_int_equal(whole.strip_bytes, part.strip_bytes);
            if (whole.layout == MXC_LAYOUT_BF16)
                lane = 4;
            size_t at = 0, codes = whole.group ? mxc_block_codes(&whole) : 0;
            bool six = whole.layout == MXC_LAYOUT_I6 || whole.layout == MXC_LAYOUT_K6;
            for (; six && at < whole.strip_bytes; at++)
                if (whole.data[at] != part.data[at] && !is_of_last_row(&whole, at))
                    fail_msg("%s, steps of %d: byte %zu", t->name, step, at);
            while (at < whole.strip_bytes) {
                size_t inside = whole.group ? at % mxc_block_bytes(&whole) : 0;
                size_t width = inside < codes ? 4 : lane;
                if (memcmp(whole.data + at, part.data + at, width * (MXC_STRIP - 1)))
                    fail_msg("%s, steps of %d: byte %zu on", t->name, step, at);
                at += width * MXC_STRIP;
            }
            free_packed(&whole);
            free_packed(&part);
        }
        free_tensor(t);
    }
}

static void test_rows_survive(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_case_storages; i++) {
        check(&case_storages[i], false);
        check(&case_storages[i], true);
    }
}

static const struct case_storage *find_case(const char *name) {
    for (size_t i = 0; i < n_case_storages; i++)
        if (!strcmp(case_storages[i].name, name))
            return &case_storages[i];
    fail_msg("no case %s", name);
    return NULL;
}

/* bf16 scales convert to f16 exactly, however small or large the matrix is. */
static void test_unit_keeps_bf16_scales(void **unused) {
    (void)unused;
    static const float sizes[] = {1e-33f, 1e-9f, 1e-4f, 1, 1e6f, 1e20f, 1e35f};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct mxc_tensor *t = make_tensor(find_case("mlx 4 g64 bf16"), 32, 192);
        uint8_t *scales = (uint8_t *)(uintptr_t)t->scales;
        uint8_t *biases = (uint8_t *)(uintptr_t)t->biases;
        for (size_t i = 0; i < 32 * 3; i++) {
            uint16_t h = mxc_f32_to_bf16(sizes[s] * (1.0f + 0.9f * rnd_float()));
            memcpy(scales + 2 * i, &h, sizeof h);
            h = mxc_f32_to_bf16(-sizes[s] * 7 * rnd_float());
            memcpy(biases + 2 * i, &h, sizeof h);
        }
        struct mxc_packed w = pack(t, false);
        assert_true(w.unit > 0 && frexpf(w.unit, &(int){0}) == 0.5f); /* a power of two */
        float got[192], want[192];
        for (int32_t r = 0; r < 32; r++) {
            mxc_packed_row(&w, r, got);
            mxc_tensor_row(t, r, want);
            for (size_t i = 0; i < 192; i++)
                assert_true(got[i] == want[i]);
        }
        free_packed(&w);
        free_tensor(t);
    }
}

/* A power of two as scale is kept wherever it lies, beside any other. */
static void test_e8m0_keeps_its_range(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("mxfp4"), 40, 32 * 40);
    uint8_t *data = (uint8_t *)(uintptr_t)t->data;
    for (size_t i = 0; i < t->bytes / 17; i++)
        data[17 * i] = (uint8_t)(rnd_u32() % 253); /* 2^-128 to 2^124, times up to 12 */
    struct mxc_view view = mxc_view_whole(t);
    check_view(&view, false, MXC_LAYOUT_N4);
    free_tensor(t);
}

/* Group scales that lie far below the largest one are rounded, not lost and not garbage. */
static void test_small_scales_beside_large(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("mlx 4 g64 bf16"), 32, 192);
    uint8_t *scales = (uint8_t *)(uintptr_t)t->scales, *biases = (uint8_t *)(uintptr_t)t->biases;
    for (size_t i = 0; i < 32 * 3; i++) {
        uint16_t h = mxc_f32_to_bf16(i == 50 ? 3e30f : 1.5f * ldexpf(1, 60 + (int)(i % 40)));
        memcpy(scales + 2 * i, &h, sizeof h);
        memset(biases + 2 * i, 0, 2);
    }
    struct mxc_packed w = pack(t, false);
    float got[192], want[192], bound = ldexpf(3e30f, -34);
    for (int32_t r = 0; r < 32; r++) {
        mxc_packed_row(&w, r, got);
        mxc_tensor_row(t, r, want);
        for (size_t i = 0; i < 192; i++)
            assert_true(fabsf(got[i] - want[i]) <= 15 * bound);
    }
    free_packed(&w);
    free_tensor(t);
}

/* The layout follows from storage and shape; the plan looks at no data. */
static void plan_gives(struct mxc_tensor *t, enum mxc_layout layout, int32_t group) {
    struct mxc_packed w;
    struct mxc_err err;
    struct mxc_view view = mxc_view_whole(t);
    const uint8_t *data = t->data, *scales = t->scales;
    t->data = t->scales = NULL;
    assert_int_equal(mxc_pack_plan(&view, false, &w, &err), MXC_OK);
    assert_int_equal(w.layout, layout);
    assert_int_equal(w.group, group);
    t->data = data;
    t->scales = scales;
}

static void test_plans(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("mlx 4 g64 bf16"), 4, 192);
    plan_gives(t, MXC_LAYOUT_I4, 64);
    t->group = 96; /* stored as three of 32 */
    plan_gives(t, MXC_LAYOUT_I4, 32);
    t->group = 48;
    plan_gives(t, MXC_LAYOUT_I4, 16);
    t->group = 192;
    plan_gives(t, MXC_LAYOUT_I4, 64);
    t->group = 128; /* does not divide the row */
    plan_gives(t, MXC_LAYOUT_BF16, 0);
    t->group = 24;
    plan_gives(t, MXC_LAYOUT_BF16, 0);
    t->group = 16;
    t->shape[1] = 48; /* half a cell at the end */
    plan_gives(t, MXC_LAYOUT_BF16, 0);
    free_tensor(t);
}

/* Rows of some of the permuted heads of GGUF's q and k; the largest scale is elsewhere. */
static void test_permuted_heads(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("q4_k"), 64, 256);
    t->permuted_heads = 4;
    struct mxc_view half = {.tensor = t, .n = 32, .k = 256, .row0 = 16, .row_step = 1};
    check_view(&half, false, MXC_LAYOUT_I4);
    half.n = 7;
    half.row_step = 3;
    check_view(&half, false, MXC_LAYOUT_I4);
    free_tensor(t);
}

/* Codes, scales and zero points in arrays of their own. */
static void check_parts(const char *name, enum mxc_storage storage, struct mxc_quant_parts p,
                        enum mxc_layout layout, int32_t group) {
    enum { SCALES = 70 * 16, CODES = 70 * 256 };
    static uint8_t codes[CODES], zeros[CODES], scales[4 * SCALES];
    size_t width = mxc_storage_info(p.scale_storage)->block_bytes;
    for (size_t i = 0; i < CODES; i++) {
        codes[i] = (uint8_t)(rnd_u32() & (p.number == MXC_ST_F8_E4M3 ? 0xBF : 0xFF)); /* no NaN */
        zeros[i] = (uint8_t)rnd_u32();
    }
    for (size_t i = 0; i < SCALES; i++) {
        float x = 0.02f + 0.01f * rnd_float();
        uint32_t u = p.scale_storage == MXC_ST_F32       ? mxc_f32_bits(x)
                     : p.scale_storage == MXC_ST_F16     ? mxc_f32_to_f16(x)
                     : p.scale_storage == MXC_ST_BF16    ? mxc_f32_to_bf16(x)
                     : p.scale_storage == MXC_ST_F8_E8M0 ? 110 + rnd_u32() % 20
                                                         : 32 + rnd_u32() % 64;
        memcpy(scales + i * width, &u, width);
    }
    p.n = 70;
    p.k = 256;
    p.n_groups = p.k / p.group;
    p.row_bytes = p.k * p.bits / 8;
    p.codes = codes;
    p.zeros = zeros;
    p.scales = scales;
    p.scale_rows = 1;
    p.scale_step_r = p.layout == MXC_CODES_COLUMNS ? 1 : p.n_groups;
    p.scale_step_g = p.layout == MXC_CODES_COLUMNS ? p.n : 1;
    struct mxc_tensor t = {.name = name,
                           .storage = storage,
                           .n_dims = 2,
                           .shape = {70, 256},
                           .data = codes,
                           .bytes = p.n * p.row_bytes,
                           .parts = &p,
                           .scale_storage = p.scale_storage};
    struct mxc_view whole = mxc_view_whole(&t);
    struct mxc_view steps = {.tensor = &t, .n = 33, .k = 256, .row0 = 2, .row_step = 2};
    struct mxc_view turned = {
        .tensor = &t, .n = 40, .k = 31, .row0 = 5, .col0 = 1, .col_step = 3, .transposed = true};
    struct mxc_packed w;
    struct mxc_err err;
    assert_int_equal(mxc_pack_plan(&whole, false, &w, &err), MXC_OK);
    if (w.group != group)
        fail_msg("%s: groups of %d", name, w.group);
    check_view(&whole, false, layout);
    check_view(&steps, false, layout);
    check_view(&whole, true, MXC_LAYOUT_F32);
    check_view(&turned, false, MXC_LAYOUT_BF16);
}

static void test_parts(void **unused) {
    (void)unused;
    struct mxc_quant_parts p = {.number = MXC_ST_MXFP4, .bits = 4, .group = 32};
    p.scale_storage = MXC_ST_F8_E8M0;
    check_parts("mxfp4", MXC_ST_MXFP4, p, MXC_LAYOUT_N4, 32);
    p.scale_storage = MXC_ST_F8_E4M3;
    p.group = 16;
    check_parts("nvfp4", MXC_ST_NVFP4, p, MXC_LAYOUT_N4, 16);
    p.factor = 3e-5f;
    check_parts("nvfp4 factor", MXC_ST_NVFP4, p, MXC_LAYOUT_N4, 16);
    p = (struct mxc_quant_parts){.number = MXC_ST_F8_E4M3, .bits = 8, .group = 32};
    p.scale_storage = MXC_ST_F8_E8M0;
    check_parts("mxfp8", MXC_ST_MXFP8, p, MXC_LAYOUT_BF16, 0);
    p = (struct mxc_quant_parts){.number = MXC_ST_U8, .bits = 8, .group = 256, .zero_point = 128};
    p.layout = MXC_CODES_I8;
    p.scale_storage = MXC_ST_BF16;
    struct mxc_group_form form;
    p.k = 256;
    assert_true(mxc_parts_form(&p, &form)); /* a channel's scale is shown as smaller groups */
    check_parts("int8 channel", MXC_ST_INT_GROUPS, p, MXC_LAYOUT_I8, form.group < 64 ? 32 : 64);
    p = (struct mxc_quant_parts){.number = MXC_ST_U8, .bits = 4, .group = 128};
    p.layout = MXC_CODES_COLUMNS;
    p.zero_layout = MXC_ZEROS_GROUPS;
    p.zero_point = 1;
    p.scale_storage = MXC_ST_F16;
    p.k = 256;
    check_parts("gptq", MXC_ST_GPTQ, p, MXC_LAYOUT_I4, 64);
}

static void refused(struct mxc_tensor *t, const char *word) {
    struct mxc_packed w, before;
    memset(&w, 0x5A, sizeof w);
    memcpy(&before, &w, sizeof w);
    struct mxc_err err;
    struct mxc_view view = mxc_view_whole(t);
    assert_int_equal(mxc_pack_form(&view, false, &w, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, t->name));
    assert_non_null(strstr(err.message, word));
    assert_memory_equal(&w, &before, sizeof w);
}

static void test_refusals(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("f32"), 4, 32);
    t->storage = MXC_ST_I32;
    refused(t, "I32");
    t->storage = MXC_ST_F32;
    t->shape[1] = 0;
    refused(t, "4 x 0");
    t->shape[1] = (int64_t)1 << 40;
    refused(t, "size");
    free_tensor(t);
    t = make_tensor(find_case("q4_0"), 4, 64);
    t->shape[1] = 48; /* not a multiple of the group: a loader's fault, but not a crash */
    refused(t, "Q4_0");
    free_tensor(t);
}

/* Prepared activations never need more than they are given, at the edges of tiles and cells. */
static void test_activation_bytes(void **unused) {
    (void)unused;
    for (int32_t m = 1; m < 30; m += 4)
        for (int32_t k = 1; k < 200; k += 33) {
            struct mxc_activation a = {.form = MXC_ACT_FORM_I8, .m = m, .k = k};
            size_t bytes = mxc_activation_bytes(MXC_ACT_FORM_I8, m, k);
            a.data = mxc_mem_aligned(MXC_ALIGN, bytes, false);
            assert_non_null(a.data);
            struct mxc_i8_view v = mxc_i8_view(&a);
            size_t mk = (size_t)m * v.kp;
            assert_true((uint8_t *)(v.codes + mk) <= (uint8_t *)v.scale);
            assert_true((uint8_t *)(v.scale + mk / 32) <= (uint8_t *)v.sum32);
            assert_true((uint8_t *)(v.sum32 + mk / 32) <= (uint8_t *)v.scaled32);
            assert_true((uint8_t *)(v.scaled32 + mk / 32) <= (uint8_t *)v.sum16);
            assert_true((uint8_t *)(v.sum16 + mk / 16) <= (uint8_t *)v.scaled64);
            assert_true((uint8_t *)(v.scaled64 + mk / 64) <= a.data + bytes);
            mxc_mem_free_aligned(a.data, bytes);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_survive),
        cmocka_unit_test(test_strips_are_the_same),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_unit_keeps_bf16_scales),
        cmocka_unit_test(test_e8m0_keeps_its_range),
        cmocka_unit_test(test_small_scales_beside_large),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_permuted_heads),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_activation_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

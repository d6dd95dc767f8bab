/* MLX affine rows: every width and group, codes written bit by bit, scales of each type. */
#include "test.h"

#include "base/half.h"
#include "quant/decode.h"

#include <string.h>

enum { N = 384 };

static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void put_number(uint8_t *p, enum mxc_storage storage, size_t index, float *value) {
    if (storage == MXC_ST_F32) {
        memcpy(p + 4 * index, value, 4);
        return;
    }
    uint16_t h = storage == MXC_ST_F16 ? mxc_f32_to_f16(*value) : mxc_f32_to_bf16(*value);
    *value = storage == MXC_ST_F16 ? mxc_f16_to_f32(h) : mxc_bf16_to_f32(h);
    memcpy(p + 2 * index, &h, 2);
}

static void check(uint32_t bits, uint32_t group, enum mxc_storage storage, uint32_t *state) {
    uint8_t stream[N + 1] = {0}, want[N], codes[N + 1], room[2][4 * N / 32 + 1];
    float scales[N / 32], biases[N / 32], out[N + 1];
    float got_scales[N / 32 + 1], got_biases[N / 32 + 1];
    for (size_t i = 0; i < N; i++) {
        want[i] = (uint8_t)(next(state) & ((1u << bits) - 1));
        for (size_t b = 0; b < bits; b++)
            if (want[i] >> b & 1)
                stream[1 + (i * bits + b) / 8] |= (uint8_t)(1u << (i * bits + b) % 8);
    }
    for (size_t g = 0; g < N / group; g++) {
        scales[g] = (float)(next(state) % 1000) / 3000.0f;
        biases[g] = -(float)(next(state) % 1000) / 300.0f;
        put_number(room[0] + 1, storage, g, &scales[g]);
        put_number(room[1] + 1, storage, g, &biases[g]);
    }
    const struct mxc_mlx_row row = {stream + 1, room[0] + 1, room[1] + 1, N, bits, group, storage};
    out[N] = 42;
    codes[N] = 77;
    got_scales[N / group] = got_biases[N / group] = 5;
    mxc_mlx_decode(&row, out);
    mxc_mlx_groups(&row, &(struct mxc_group_row){codes, got_scales, got_biases});
    assert_true(out[N] == 42 && codes[N] == 77);
    assert_true(got_scales[N / group] == 5 && got_biases[N / group] == 5);
    assert_memory_equal(codes, want, N);
    assert_memory_equal(got_scales, scales, N / group * sizeof *scales);
    assert_memory_equal(got_biases, biases, N / group * sizeof *biases);
    for (size_t i = 0; i < N; i++)
        assert_true(out[i] == scales[i / group] * (float)want[i] + biases[i / group]);
}

static void test_rows(void **unused) {
    (void)unused;
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum mxc_storage storages[] = {MXC_ST_F16, MXC_ST_BF16, MXC_ST_F32};
    uint32_t state = 3;
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++)
            for (size_t s = 0; s < 3; s++)
                check(bits[b], groups[g], storages[s], &state);
}

static void test_supported(void **unused) {
    (void)unused;
    assert_true(mxc_mlx_supported(3, 32));
    assert_true(mxc_mlx_supported(8, 128));
    assert_false(mxc_mlx_supported(7, 32));
    assert_false(mxc_mlx_supported(1, 64));
    assert_false(mxc_mlx_supported(4, 16));
    assert_false(mxc_mlx_supported(4, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_supported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

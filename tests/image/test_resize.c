/* Resampling against Pillow's bytes (tests/data/image/resize.json) on every level of the CPU; parts
 * against the whole; cutting. */
#define _GNU_SOURCE
#include "data.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "image/resize.h"

#include <string.h>

static int at(const json_t *row, const char *key, size_t i) {
    return (int)json_integer_value(json_array_get(json_object_get(row, key), i));
}

static void equal_to_pillow(void **state) {
    (void)state;
    json_t *rows = data_json("resize.json"), *row;
    size_t i;
    assert_true(json_array_size(rows) > 90);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, NULL), MXC_OK);
        json_array_foreach(rows, i, row) {
            struct mxc_image to,
                from = data_noise(at(row, "from", 0), at(row, "from", 1),
                                  (uint32_t)json_integer_value(json_object_get(row, "seed")));
            int filter = (int)json_integer_value(json_object_get(row, "filter"));
            char hash[17];
            assert_int_equal(mxc_image_resize(&from, at(row, "to", 0), at(row, "to", 1),
                                              (enum mxc_filter)filter, &to, NULL),
                             MXC_OK);
            data_hash(to.rgb, (size_t)to.width * (size_t)to.height * 3, hash);
            if (strcmp(hash, json_string_value(json_object_get(row, "hash"))) != 0)
                fail_msg("level %d: %d x %d to %d x %d, filter %d", level, from.width, from.height,
                         to.width, to.height, filter);
            mxc_image_fini(&to);
            mxc_image_fini(&from);
        }
    }
    assert_int_equal(mxc_cpu_mask(mxc_cpu_best(), NULL), MXC_OK);
    json_decref(rows);
}

static void parts_are_of_the_whole(void **state) {
    (void)state;
    static const struct {
        int w, h, to_w, to_h, left, top, width, height;
    } cases[] = {
        {90, 70, 40, 33, 7, 9, 20, 11},        {20, 100, 40, 30, 0, 0, 40, 1},
        {20, 100, 40, 30, 39, 29, 1, 1},       {30, 30, 30, 90, 5, 50, 20, 20},
        {30, 30, 90, 30, 70, 3, 20, 20},       {30, 30, 30, 30, 3, 4, 5, 6},
        {3, 200, 100, 6700, 10, 3000, 50, 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int filter = 0; filter < MXC_N_FILTERS; filter++) {
            struct mxc_image from = data_noise(cases[i].w, cases[i].h, 5), all, part;
            const struct mxc_resize r = {cases[i].to_w,          cases[i].to_h,  cases[i].left,
                                         cases[i].top,           cases[i].width, cases[i].height,
                                         (enum mxc_filter)filter};
            assert_int_equal(
                mxc_image_resize(&from, r.whole_width, r.whole_height, r.filter, &all, NULL),
                MXC_OK);
            assert_int_equal(mxc_image_resize_part(&from, &r, &part, NULL), MXC_OK);
            for (int y = 0; y < r.height; y++)
                assert_memory_equal(part.rgb + (size_t)(y * r.width) * 3,
                                    all.rgb + (size_t)((y + r.top) * r.whole_width + r.left) * 3,
                                    (size_t)r.width * 3);
            mxc_image_fini(&from);
            mxc_image_fini(&all);
            mxc_image_fini(&part);
        }
}

static void cutting(void **state) {
    (void)state;
    static const uint8_t colour[3] = {1, 2, 3};
    struct mxc_image from = data_noise(5, 4, 3), to;
    for (int left = -7; left <= 6; left++)
        for (int top = -6; top <= 5; top++) {
            assert_int_equal(mxc_image_cut(&from, left, top, 6, 5, colour, &to, NULL), MXC_OK);
            for (int y = 0; y < 5; y++)
                for (int x = 0; x < 6; x++) {
                    int sx = x + left, sy = y + top;
                    bool inside = sx >= 0 && sx < 5 && sy >= 0 && sy < 4;
                    assert_memory_equal(to.rgb + (y * 6 + x) * 3,
                                        inside ? from.rgb + (sy * 5 + sx) * 3 : colour, 3);
                }
            mxc_image_fini(&to);
        }
    mxc_image_fini(&from);
}

static void bad_arguments(void **state) {
    (void)state;
    struct mxc_image from = data_noise(5, 4, 3), to;
    struct mxc_err err;
    assert_int_equal(mxc_image_resize(&from, 0, 4, MXC_FILTER_BICUBIC, &to, &err), MXC_E_ARG);
    assert_int_equal(mxc_image_resize(&from, 4, -1, MXC_FILTER_BICUBIC, &to, &err), MXC_E_ARG);
    assert_int_equal(mxc_image_resize(&from, MXC_IMAGE_MAX_SIDE + 1, 1, MXC_FILTER_BOX, &to, &err),
                     MXC_E_ARG);
    assert_int_equal(mxc_image_resize(&from, 4, 4, (enum mxc_filter)6, &to, &err), MXC_E_ARG);
    const struct mxc_resize outside = {8, 8, 4, 4, 5, 4, MXC_FILTER_BOX};
    assert_int_equal(mxc_image_resize_part(&from, &outside, &to, &err), MXC_E_ARG);
    mxc_image_fini(&from);
}

static bool resize_step(void *context) {
    struct mxc_image to;
    enum mxc_code code = mxc_image_resize(context, 30, 20, MXC_FILTER_LANCZOS, &to, NULL);
    if (!code)
        code =
            (mxc_image_fini(&to), mxc_image_resize(context, 11, 9, MXC_FILTER_NEAREST, &to, NULL));
    if (code) {
        assert_int_equal(code, MXC_E_NOMEM);
        return false;
    }
    mxc_image_fini(&to);
    return true;
}

static void no_memory(void **state) {
    (void)state;
    struct mxc_image from = data_noise(40, 50, 3);
    data_fail_each(resize_step, &from);
    mxc_image_fini(&from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_pillow), cmocka_unit_test(parts_are_of_the_whole),
        cmocka_unit_test(cutting),         cmocka_unit_test(bad_arguments),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("image_resize", tests, NULL, NULL);
}

/* Preprocessing against transformers' values, to the last bit (tests/data/image/process.json);
 * spellings of the settings, their errors; plans from sizes alone, and pixel budgets. */
#define _GNU_SOURCE
#include "data.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "image/preprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int int_of(const json_t *row, const char *key, int absent) {
    const json_t *v = json_object_get(row, key);
    return v ? (int)json_integer_value(v) : absent;
}

static void check_plan(const json_t *row, const struct mxc_picture_plan *plan) {
    const json_t *grid = json_object_get(row, "grid_thw");
    const json_t *tiles = json_object_get(row, "rows_columns");
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(plan->grid_thw[i],
                         grid ? (int)json_integer_value(json_array_get(grid, i)) : 0);
    assert_int_equal(plan->aspect_ratio_id, int_of(row, "aspect_ratio_id", 0));
    assert_int_equal(plan->n_tiles, int_of(row, "n_tiles", plan->n_tiles));
    if (tiles) {
        assert_int_equal(plan->rows, json_integer_value(json_array_get(tiles, 0)));
        assert_int_equal(plan->columns, json_integer_value(json_array_get(tiles, 1)));
    }
}

static void equal_to_reference(void **state) {
    (void)state;
    json_t *rows = data_json("process.json"), *row;
    size_t i;
    assert_true(json_array_size(rows) >= 64);
    json_array_foreach(rows, i, row) {
        const char *file = json_string_value(json_object_get(row, "file"));
        struct mxc_image image = data_image(file);
        struct mxc_preprocess p;
        struct mxc_pixels pixels;
        struct mxc_picture_plan plan;
        struct mxc_err err;
        char hash[17];
        if (mxc_preprocess_parse(json_object_get(row, "config"), NULL, &p, &err) ||
            mxc_picture_plan_init(&p, image.width, image.height, NULL, &plan, &err) ||
            mxc_pixels_init(&p, &image, NULL, &pixels, &err))
            fail_msg("row %zu, %s: %s", i, file, err.message);
        check_plan(row, &plan);
        assert_memory_equal(&plan, &pixels.plan, sizeof plan);
        assert_int_equal(pixels.count, int_of(row, "count", 0));
        data_hash(pixels.data, pixels.count * sizeof *pixels.data, hash);
        if (strcmp(hash, json_string_value(json_object_get(row, "hash"))) != 0)
            fail_msg("row %zu, %s: other values", i, file);
        mxc_pixels_fini(&pixels);
        mxc_image_fini(&image);
    }
    json_decref(rows);
}

static struct mxc_preprocess parsed(const char *text, const char *model_type) {
    struct mxc_preprocess p = {0};
    struct mxc_err err;
    json_t *root = NULL;
    if (mxc_json_parse(text, strlen(text), "test", &root, &err) ||
        mxc_preprocess_parse(root, model_type, &p, &err))
        fail_msg("%s: %s", text, err.message);
    json_decref(root);
    return p;
}

static void refuses(const char *text, enum mxc_code expected, const char *words) {
    struct mxc_preprocess p;
    struct mxc_err err;
    json_t *root = NULL;
    assert_int_equal(mxc_json_parse(text, strlen(text), "test", &root, &err), MXC_OK);
    enum mxc_code code = mxc_preprocess_parse(root, NULL, &p, &err);
    if (code != expected || !strstr(err.message, words))
        fail_msg("%s: %d %s", text, code, code ? err.message : "");
    json_decref(root);
}

#define QWEN  "{\"image_processor_type\": \"Qwen2VLImageProcessor\""
#define CLIP  "{\"image_processor_type\": \"CLIPImageProcessor\""
#define IDEF  "{\"image_processor_type\": \"Idefics3ImageProcessor\""
#define GEMMA "{\"image_processor_type\": \"Gemma3ImageProcessor\""
#define LLAMA "{\"image_processor_type\": \"MllamaImageProcessor\""

static void spellings(void **state) {
    (void)state;
    struct mxc_preprocess p = parsed(QWEN "}", NULL);
    assert_int_equal(p.min_pixels, 3136);
    assert_int_equal(p.max_pixels, 28 * 28 * 1280);
    p = parsed(QWEN ", \"size\": {\"min_pixels\": 5, \"max_pixels\": 6}}", NULL);
    assert_int_equal(p.min_pixels, 5);
    assert_int_equal(p.max_pixels, 6);
    p = parsed(QWEN ", \"size\": {\"shortest_edge\": 7, \"longest_edge\": 90000000}}", NULL);
    assert_int_equal(p.min_pixels, 7);
    assert_int_equal(p.max_pixels, 90000000);
    p = parsed(QWEN ", \"max_pixels\": 9999, \"size\": {\"shortest_edge\": 7}}", NULL);
    assert_int_equal(p.max_pixels, 9999);
    p = parsed("{}", "qwen3_vl");
    assert_string_equal(mxc_preprocess_family(&p), "qwen2_vl");
    p = parsed("{\"feature_extractor_type\": \"CLIPFeatureExtractor\", \"size\": 336, "
               "\"crop_size\": 300}",
               "mllama");
    assert_string_equal(mxc_preprocess_family(&p), "clip");
    assert_int_equal(p.size.shortest_edge, 336);
    assert_int_equal(p.crop_size.height, 300);
    assert_int_equal(p.crop_size.width, 300);
    p = parsed("{\"image_processor_type\": \"SiglipImageProcessorFast\", \"size\": 384, "
               "\"crop_size\": null, \"resample\": 2.0}",
               NULL);
    assert_int_equal(p.size.height, 384);
    assert_int_equal(p.resample, MXC_FILTER_BILINEAR);
    p = parsed(IDEF ", \"max_image_size\": 512, \"size\": {\"longest_edge\": 2048}}", NULL);
    assert_int_equal(p.max_image_size.longest_edge, 512);
    p = parsed(LLAMA ", \"size\": [560, 560], \"do_convert_rgb\": true}", NULL);
    assert_int_equal(p.size.width, 560);
}

static void errors_name_the_key(void **state) {
    (void)state;
    refuses("[]", MXC_E_FORMAT, "not an object");
    refuses("{}", MXC_E_FORMAT, "image_processor_type");
    refuses("{\"image_processor_type\": 3}", MXC_E_FORMAT, "image_processor_type");
    refuses("{\"image_processor_type\": \"ViTImageProcessor\"}", MXC_E_UNSUPPORTED, "ViTImage");
    refuses("{\"image_processor_type\": \"CLIP\"}", MXC_E_UNSUPPORTED, "\"CLIP\"");
    refuses(CLIP ", \"size\": \"big\"}", MXC_E_FORMAT, "size");
    refuses(CLIP ", \"size\": {}}", MXC_E_FORMAT, "size");
    refuses(CLIP ", \"size\": {\"height\": 3}}", MXC_E_FORMAT, "size: height and width");
    refuses(CLIP ", \"size\": {\"height\": 0, \"width\": 3}}", MXC_E_FORMAT, "size: height: 0");
    refuses(CLIP ", \"size\": [1, 2, 3]}", MXC_E_FORMAT, "size");
    refuses(CLIP ", \"size\": 1e9}", MXC_E_FORMAT, "size");
    refuses(CLIP ", \"crop_size\": {\"shortest_edge\": 3}}", MXC_E_FORMAT, "crop_size");
    refuses(CLIP ", \"do_center_crop\": false}", MXC_E_UNSUPPORTED, "do_center_crop");
    refuses(CLIP ", \"do_resize\": 1}", MXC_E_FORMAT, "do_resize");
    refuses(CLIP ", \"resample\": 6}", MXC_E_FORMAT, "resample");
    refuses(CLIP ", \"resample\": \"bicubic\"}", MXC_E_FORMAT, "resample");
    refuses(CLIP ", \"image_mean\": [1, 2]}", MXC_E_FORMAT, "image_mean");
    refuses(CLIP ", \"image_std\": [1, 0, 1]}", MXC_E_FORMAT, "image_std");
    refuses(CLIP ", \"image_std\": [1, \"a\", 1]}", MXC_E_FORMAT, "image_std");
    refuses(CLIP ", \"rescale_factor\": \"x\"}", MXC_E_FORMAT, "rescale_factor");
    refuses(QWEN ", \"patch_size\": 0}", MXC_E_FORMAT, "patch_size");
    refuses(QWEN ", \"merge_size\": 4000000000}", MXC_E_FORMAT, "merge_size");
    refuses(QWEN ", \"min_pixels\": 10, \"max_pixels\": 9}", MXC_E_FORMAT, "min_pixels");
    refuses(LLAMA ", \"size\": {\"height\": 3, \"width\": 4}}", MXC_E_FORMAT, "size");
    refuses(LLAMA ", \"do_pad\": false}", MXC_E_UNSUPPORTED, "do_pad");
    refuses(LLAMA ", \"do_resize\": false}", MXC_E_UNSUPPORTED, "do_resize");
    refuses(LLAMA ", \"max_image_tiles\": 0}", MXC_E_FORMAT, "max_image_tiles");
    refuses(IDEF ", \"size\": {\"shortest_edge\": 3}}", MXC_E_FORMAT, "longest_edge");
    refuses(IDEF ", \"max_image_size\": {\"height\": 3, \"width\": 3}}", MXC_E_FORMAT,
            "max_image_size");
    refuses(GEMMA ", \"do_pan_and_scan\": true}", MXC_E_FORMAT, "pan_and_scan_min_crop_size");
}

static struct mxc_picture_plan planned(const struct mxc_preprocess *p, int w, int h,
                                       int64_t max_pixels) {
    const struct mxc_pixel_budget budget = {0, max_pixels};
    struct mxc_picture_plan plan;
    struct mxc_err err;
    if (mxc_picture_plan_init(p, w, h, max_pixels ? &budget : NULL, &plan, &err))
        fail_msg("%d x %d: %s", w, h, err.message);
    return plan;
}

/* Figures of the reference for Qwen2-VL's own limits. */
static void qwen_plans(void **state) {
    (void)state;
    static const struct {
        int w, h, grid_h, grid_w;
    } cases[] = {{4000, 3000, 60, 82}, {1, 1, 4, 4},        {28, 28, 4, 4},
                 {1400, 7, 2, 58},     {1120, 700, 50, 80}, {640, 480, 34, 46},
                 {42, 42, 4, 4},       {70, 70, 4, 4},      {98, 98, 8, 8}};
    struct mxc_preprocess p = parsed(QWEN "}", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_picture_plan plan = planned(&p, cases[i].w, cases[i].h, 0);
        if (plan.grid_thw[0] != 1 || plan.grid_thw[1] != cases[i].grid_h ||
            plan.grid_thw[2] != cases[i].grid_w)
            fail_msg("%d x %d: %d x %d", cases[i].w, cases[i].h, plan.grid_thw[1],
                     plan.grid_thw[2]);
        assert_int_equal(plan.n_patches, cases[i].grid_h * cases[i].grid_w);
        assert_int_equal(plan.patch_values, 1176);
    }
    struct mxc_picture_plan plan;
    struct mxc_err err;
    assert_int_equal(mxc_picture_plan_init(&p, 1407, 7, NULL, &plan, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "200"));
    assert_int_equal(mxc_picture_plan_init(&p, 7, 1407, NULL, &plan, &err), MXC_E_ARG);
    assert_int_equal(mxc_picture_plan_init(&p, 0, 7, NULL, &plan, &err), MXC_E_ARG);
    assert_int_equal(mxc_picture_plan_init(&p, 7, INT32_MAX, NULL, &plan, &err), MXC_E_ARG);
    p = parsed(QWEN ", \"do_resize\": false}", NULL);
    assert_int_equal(planned(&p, 56, 28, 0).n_patches, 8);
    assert_int_equal(mxc_picture_plan_init(&p, 57, 28, NULL, &plan, &err), MXC_E_ARG);
}

static void budgets(void **state) {
    (void)state;
    struct mxc_preprocess p = parsed(QWEN "}", NULL);
    struct mxc_picture_plan plan = planned(&p, 4000, 3000, 200000);
    assert_true(plan.resized_width * plan.resized_height <= 200000);
    assert_true(plan.resized_width * plan.resized_height > 180000);
    plan = planned(&p, 4000, 3000, 12000000); /* more than the file allows */
    assert_true(plan.resized_width * plan.resized_height > 11000000);
    assert_int_equal(planned(&p, 4000, 3000, 1).n_patches, 4); /* one block at least */
    const struct mxc_pixel_budget least = {.min_pixels = 100000};
    assert_int_equal(mxc_picture_plan_init(&p, 30, 30, &least, &plan, NULL), MXC_OK);
    assert_true(plan.resized_width * plan.resized_height >= 100000);

    p = parsed(LLAMA ", \"size\": 560, \"max_image_tiles\": 4}", NULL);
    assert_int_equal(planned(&p, 3000, 3000, 0).n_tiles, 4);
    assert_int_equal(planned(&p, 3000, 3000, 0).aspect_ratio_id, 6);
    assert_int_equal(planned(&p, 3000, 3000, 560 * 560 * 3).n_tiles, 1);
    assert_int_equal(planned(&p, 3000, 900, 560 * 560 * 3).aspect_ratio_id, 3);
    plan = planned(&p, 900, 3000, 560 * 560 * 2); /* ids stay those of four tiles */
    assert_int_equal(plan.aspect_ratio_id, 5);
    assert_int_equal(plan.n_planes, 4);
    assert_int_equal(planned(&p, 3000, 3000, 1).n_tiles, 1);

    p = parsed(IDEF ", \"size\": {\"longest_edge\": 2048}, \"max_image_size\": 512}", NULL);
    assert_int_equal(planned(&p, 2000, 2000, 0).n_planes, 17);
    assert_int_equal(planned(&p, 2000, 2000, 1024 * 1024).n_planes, 5);
    assert_int_equal(planned(&p, 2000, 2000, 1).n_planes, 1);
    assert_int_equal(planned(&p, 2000, 2000, INT64_C(1) << 60).n_planes, 17);

    p = parsed(GEMMA ", \"size\": 896, \"do_pan_and_scan\": true, "
                     "\"pan_and_scan_min_crop_size\": 256, \"pan_and_scan_max_num_crops\": 4, "
                     "\"pan_and_scan_min_ratio_to_activate\": 1.2}",
               NULL);
    assert_int_equal(planned(&p, 3000, 1000, 0).n_planes, 4);
    assert_int_equal(planned(&p, 3000, 1000, 896 * 896 * 3).n_planes, 3);
    assert_int_equal(planned(&p, 3000, 1000, 1).n_planes, 1);
    assert_int_equal(planned(&p, 1000, 1000, 0).n_planes, 1);
}

/* Sizes at which a step could divide by zero or overflow: a plan or an error. */
static void extreme_sizes(void **state) {
    (void)state;
    static const int sides[] = {1, 2, 3, 55, 56, 57, 4097, 65535, MXC_IMAGE_MAX_SIDE};
    static const char *const settings[] = {
        QWEN "}",
        QWEN ", \"max_pixels\": 1099511627776, \"min_pixels\": 1099511627776}",
        QWEN ", \"patch_size\": 1024, \"merge_size\": 64}",
        CLIP "}",
        CLIP ", \"size\": 65536}",
        LLAMA ", \"size\": 65536, \"max_image_tiles\": 256}",
        LLAMA ", \"max_image_tiles\": 1}",
        IDEF ", \"size\": {\"longest_edge\": 65536}, \"max_image_size\": 1}",
        IDEF ", \"size\": {\"longest_edge\": 1}}",
        IDEF ", \"do_resize\": false}",
        GEMMA ", \"do_pan_and_scan\": true, \"pan_and_scan_min_crop_size\": 1, "
              "\"pan_and_scan_max_num_crops\": 256, \"pan_and_scan_min_ratio_to_activate\": 1e-9}"};
    enum { N = sizeof sides / sizeof *sides };
    int plans = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct mxc_preprocess p = parsed(settings[i], NULL);
        for (int k = 0; k < N * N; k++) {
            struct mxc_picture_plan plan;
            struct mxc_err err;
            if (mxc_picture_plan_init(&p, sides[k / N], sides[k % N], NULL, &plan, &err))
                continue;
            plans++;
            assert_true(plan.resized_width >= 1 && plan.resized_height >= 1);
            assert_true(plan.n_patches ? plan.n_patches > 0 && !plan.n_planes
                                       : plan.n_planes >= 1 && plan.n_tiles >= 1 &&
                                             plan.n_tiles <= plan.n_planes);
        }
    }
    assert_true(plans > 500);
}

static void folders(void **state) {
    (void)state;
    char folder[] = "/tmp/mxc-image-XXXXXX", a[64], b[64];
    struct mxc_preprocess p;
    struct mxc_err err;
    static const char old[] = CLIP "}", plain[] = "{\"processor_class\": \"LlavaProcessor\"}",
                      nested[] = "{\"image_processor\": " QWEN ", \"merge_size\": 4}}",
                      broken[] = CLIP ", \"size\": true}";
    assert_non_null(mkdtemp(folder));
    (void)snprintf(a, sizeof a, "%s/preprocessor_config.json", folder);
    (void)snprintf(b, sizeof b, "%s/processor_config.json", folder);
    assert_int_equal(mxc_preprocess_load(folder, "llava", &p, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_file_write(b, plain, strlen(plain), &err), MXC_OK);
    assert_int_equal(mxc_preprocess_load(folder, "llava", &p, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_file_write(a, old, strlen(old), &err), MXC_OK);
    assert_int_equal(mxc_preprocess_load(folder, "qwen2_vl", &p, &err), MXC_OK);
    assert_string_equal(mxc_preprocess_family(&p), "clip");
    assert_int_equal(mxc_file_write(b, nested, strlen(nested), &err), MXC_OK);
    assert_int_equal(mxc_preprocess_load(folder, NULL, &p, &err), MXC_OK);
    assert_int_equal(p.merge_size, 4);
    for (uint64_t n = 1;; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_preprocess_load(folder, NULL, &p, &err);
        bool reached = mxc_mem_calls() >= n;
        mxc_mem_fail_at(0);
        assert_int_equal(code, reached ? MXC_E_NOMEM : MXC_OK);
        if (!reached)
            break;
    }
    assert_int_equal(unlink(b), 0);
    assert_int_equal(mxc_file_write(a, broken, strlen(broken), &err), MXC_OK);
    assert_int_equal(mxc_preprocess_load(folder, NULL, &p, &err), MXC_E_FORMAT);
    assert_non_null(strstr(err.message, "preprocessor_config.json: size"));
    assert_int_equal(unlink(a), 0);
    assert_int_equal(rmdir(folder), 0);
}

struct work {
    struct mxc_preprocess p;
    struct mxc_image image;
};

static bool pixels_step(void *context) {
    struct work *w = context;
    struct mxc_pixels pixels;
    enum mxc_code code = mxc_pixels_init(&w->p, &w->image, NULL, &pixels, NULL);
    if (code) {
        assert_int_equal(code, MXC_E_NOMEM);
        return false;
    }
    mxc_pixels_fini(&pixels);
    return true;
}

static void no_memory(void **state) {
    (void)state;
    static const char *const settings[] = {
        QWEN "}",
        CLIP ", \"size\": 40, \"crop_size\": 41}",
        "{\"image_processor_type\": \"LlavaImageProcessor\", \"do_pad\": true}",
        LLAMA ", \"size\": 40}",
        IDEF ", \"size\": {\"longest_edge\": 80}, \"max_image_size\": 40}",
        GEMMA ", \"do_pan_and_scan\": true, \"pan_and_scan_min_crop_size\": 1, "
              "\"pan_and_scan_max_num_crops\": 3, \"pan_and_scan_min_ratio_to_activate\": 1}"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct work w = {parsed(settings[i], NULL), data_noise(70, 50, 1)};
        data_fail_each(pixels_step, &w);
        mxc_image_fini(&w.image);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_reference),
        cmocka_unit_test(spellings),
        cmocka_unit_test(errors_name_the_key),
        cmocka_unit_test(qwen_plans),
        cmocka_unit_test(budgets),
        cmocka_unit_test(extreme_sizes),
        cmocka_unit_test(folders),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("image_preprocess", tests, NULL, NULL);
}

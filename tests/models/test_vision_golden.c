/* Vision against the reference's numbers on the way: the pixels that a processor gives (with grids,
 * aspect ratios, masks and tiles), and the features inside a tower, before the projector. */
#define _GNU_SOURCE
#include "vlm.h"

#include "base/mem.h"
#include "image/preprocess.h"
#include "tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const pictures[] = {"rgb", "alpha", "tall", "grey"};

/* The integers of a golden tensor; 0 numbers: there is none. */
static size_t integers(const struct vlm *m, const char *picture, const char *what, int64_t out[4]) {
    char name[128];
    (void)snprintf(name, sizeof name, "img.%s.%s", picture, what);
    for (size_t i = 0; i < m->tensors->n_tensors; i++) {
        const struct mxc_st_tensor *t = &m->tensors->tensors[i];
        size_t n = 1, size = t->storage == MXC_ST_I64 ? 8 : 4;
        if (strcmp(t->name, name) != 0)
            continue;
        for (int k = 0; k < t->n_dims; k++)
            n *= (size_t)t->shape[k];
        assert_int_equal(t->end - t->begin, n * size);
        assert_true(n <= 4);
        for (size_t k = 0; k < n; k++) {
            int32_t small = 0;
            if (size == 8)
                memcpy(&out[k], t->data + 8 * k, 8);
            else
                memcpy(&small, t->data + 4 * k, 4);
            out[k] = size == 8 ? out[k] : small;
        }
        return n;
    }
    return 0;
}

/* Returns how many figures there were. */
static int check_figures(const struct vlm *m, const char *picture,
                         const struct mxc_picture_plan *plan) {
    int64_t v[4];
    int n = 0;
    if (integers(m, picture, "image_grid_thw", v)) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(plan->grid_thw[i], v[i]);
        n++;
    }
    if (integers(m, picture, "aspect_ratio_ids", v)) {
        assert_int_equal(plan->aspect_ratio_id, v[0]);
        n++;
    }
    if (integers(m, picture, "aspect_ratio_mask", v)) {
        for (int i = 0; i < 4; i++)
            assert_int_equal(i < plan->n_tiles, v[i]);
        n++;
    }
    if (integers(m, picture, "rows_cols", v)) {
        assert_int_equal(plan->rows, v[0]);
        assert_int_equal(plan->columns, v[1]);
        n++;
    }
    return n;
}

/* Every pixel of our planes counts, so the reference's mask must be all ones. */
static void check_mask(const struct vlm *m, const char *picture,
                       const struct mxc_picture_plan *plan) {
    char name[128];
    size_t count;
    (void)snprintf(name, sizeof name, "img.%s.pixel_attention_mask", picture);
    const int32_t *mask = vlm_tensor(m, name, &count);
    if (!mask)
        return;
    assert_int_equal(count, plan->n_planes * plan->plane_width * plan->plane_height);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(mask[i], 1);
}

static void pixels(void **state) {
    (void)state;
    int n_seen = 0, n_figures = 0;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        struct mxc_preprocess p;
        struct mxc_err err;
        double worst = -1;
        vlm_open(&m, *model);
        if (mxc_preprocess_load(m.path, m.config->model_type, &p, &err))
            fail_msg("%s", err.message);
        for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
            struct mxc_image image;
            struct mxc_pixels have;
            char name[128];
            size_t count;
            (void)snprintf(name, sizeof name, "img.%s.pixel_values", pictures[i]);
            const float *want = vlm_tensor(&m, name, &count);
            if (!want) /* another format of a checkpoint that has them */
                continue;
            vlm_image(pictures[i], &image);
            assert_int_equal(mxc_pixels_init(&p, &image, NULL, &have, &err), MXC_OK);
            assert_int_equal(have.count, count);
            for (size_t k = 0; k < count; k++)
                worst = fmax(worst, fabs((double)have.data[k] - (double)want[k]));
            n_figures += check_figures(&m, pictures[i], &have.plan);
            check_mask(&m, pictures[i], &have.plan);
            n_seen++;
            mxc_pixels_fini(&have);
            mxc_image_fini(&image);
        }
        print_message("%-24s %.1e\n", *model, worst);
        assert_true(worst <= 1e-6);
        vlm_close(&m);
    }
    assert_true(getenv("MXC_GOLDEN") || (n_seen >= 4 * 8 && n_figures >= 4 * 6));
}

/* vision_features of a case: its pictures one after the other, rows in proportion to patches. */
static double check_case(const struct vlm *m, const struct vlm_case *c) {
    char name[128];
    size_t count, at = 0;
    int64_t patches = 0;
    double worst = 0;
    (void)snprintf(name, sizeof name, "%s.vision_features", c->name);
    const float *want = vlm_tensor(m, name, &count);
    for (int32_t i = 0; i < c->n_pictures; i++)
        patches += c->pictures[i].cost.n_patches;
    for (int32_t i = 0; want && i < c->n_pictures; i++) {
        size_t n = count / (size_t)patches * (size_t)c->pictures[i].cost.n_patches;
        if (count % (size_t)patches)
            n = count / (size_t)c->n_pictures; /* mllama: with class rows */
        worst = fmax(worst, tower_nearest(mxc_vision_tower(m->vision), m->weights,
                                          &c->pictures[i].input, want + at, n));
        at += n;
    }
    assert_true(!want || at == count);
    return want ? worst : -1;
}

static void features(void **state) {
    (void)state;
    int n_seen = 0;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        double worst = -1;
        vlm_open(&m, *model);
        size_t n = json_array_size(json_object_get(m.golden, "cases"));
        for (size_t i = 0; i < n; i++) {
            struct vlm_case c;
            vlm_case_open(&m, i, &c);
            double one = c.n_pictures ? check_case(&m, &c) : -1;
            worst = fmax(worst, one);
            n_seen += one >= 0;
            vlm_case_close(&c);
        }
        print_message("%-24s %.1e\n", *model, worst);
        assert_true(worst < 2e-5);
        vlm_close(&m);
    }
    assert_true(getenv("MXC_GOLDEN") || n_seen >= 3 * 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pixels), cmocka_unit_test(features)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

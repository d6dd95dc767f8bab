/* Vision: every golden checkpoint that sees, in every format: weights found, prompts laid out as
 * the reference does (ids, positions, rope deltas, masks), and towers, run the plain way, give the
 * reference's features. Then the rules of costs, budgets, marks and digests. */
#define _GNU_SOURCE
#include "vlm.h"

#include "base/mem.h"
#include "models/family.h"
#include "tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights */

static void text_graphs(void **state) {
    (void)state;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        struct mxc_graph *g;
        struct mxc_err err;
        vlm_open(&m, *model);
        if (mxc_model_graph(m.config, m.weights, &g, &err))
            fail_msg("%s: %s", *model, err.message);
        assert_true(g->input == MXC_NONE && mxc_vision_tower(m.vision)->input != MXC_NONE);
        assert_int_equal(g->cross_tokens, strcmp(*model, "mllama") ? 0 : 4 * 17);
        mxc_graph_free(g);
        vlm_close(&m);
    }
}

static void text_only_checkpoint(void **state) {
    (void)state;
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_vision *vision;
    struct mxc_err err;
    const char *path = MXC_TEST_DATA "/golden/llama";
    assert_int_equal(mxc_config_open(path, &config, &err), MXC_OK);
    assert_int_equal(mxc_weights_open(path, config, &weights, &err), MXC_OK);
    vision = (struct mxc_vision *)(uintptr_t)16;
    assert_int_equal(mxc_vision_open(path, config, weights, &vision, &err), MXC_OK);
    assert_null(vision);
    mxc_vision_close(vision);
    mxc_weights_close(weights);
    mxc_config_close(config);
}

/* ---- layouts */

static void check_ids(const struct vlm_case *c, const char *where) {
    const json_t *want = json_object_get(c->item, "expanded_ids");
    if (json_array_size(want) != (size_t)c->layout.n_tokens)
        fail_msg("%s, %s: %d tokens, expected %zu", where, c->name, c->layout.n_tokens,
                 json_array_size(want));
    for (int32_t i = 0; i < c->layout.n_tokens; i++) {
        if (json_integer_value(json_array_get(want, (size_t)i)) != c->layout.tokens[i])
            fail_msg("%s, %s: token %d is %d", where, c->name, i, c->layout.tokens[i]);
    }
}

static const int32_t *ints(const struct vlm *m, const struct vlm_case *c, const char *what,
                           size_t *count) {
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", c->name, what);
    return vlm_tensor(m, name, count);
}

/* -1: the case has no such tensor. */
static int check_positions(const struct vlm *m, const struct vlm_case *c) {
    size_t n, one;
    const int32_t *want = ints(m, c, "position_ids", &n), *delta = ints(m, c, "rope_delta", &one);
    if (!want) {
        assert_null(c->layout.positions);
        return 0;
    }
    assert_non_null(c->layout.positions);
    assert_int_equal(n, 3 * c->layout.n_tokens);
    assert_memory_equal(want, c->layout.positions, n * sizeof *want);
    assert_int_equal(*delta, c->layout.rope_delta);
    return 1;
}

/* A row of a picture sees to the picture's end; picture rows are those of type 1. */
static int check_row_end(const struct vlm *m, const struct vlm_case *c) {
    size_t n;
    const int32_t *type = ints(m, c, "token_type_ids", &n);
    if (!type)
        return 0;
    assert_non_null(c->layout.row_end);
    assert_int_equal(n, c->layout.n_tokens);
    for (int32_t i = 0; i < c->layout.n_tokens; i++) {
        int32_t end = i + 1;
        while (type[i] == 1 && end < c->layout.n_tokens && type[end] == 1)
            end++;
        assert_int_equal(c->layout.row_end[i], end);
    }
    return 1;
}

/* What every token sees of the store, against the reference's mask [T][pictures][tiles]. */
static int check_cross(const struct vlm *m, const struct vlm_case *c) {
    size_t count;
    const int32_t *mask = ints(m, c, "cross_attention_mask", &count);
    const struct mxc_vision_layout *l = &c->layout;
    if (!mask)
        return 0;
    assert_non_null(l->cross_range);
    assert_int_equal(count, l->n_tokens * c->n_pictures * 4);
    int32_t rows = c->pictures[0].cost.n_features / 4, store = 0;
    int32_t *tile = calloc((size_t)(c->n_pictures * rows * 4), sizeof *tile);
    assert_non_null(tile);
    for (int32_t i = 0; i < l->n_runs; i++) {
        assert_int_equal(l->runs[i].row0, store);
        for (int32_t k = 0; k < l->runs[i].n_rows; k++)
            tile[store++] = l->runs[i].picture * 4 + (l->runs[i].feature0 + k) / rows;
    }
    assert_int_equal(store, c->n_pictures * rows * 4);
    for (int32_t t = 0; t < l->n_tokens; t++)
        for (int32_t k = 0; k < store; k++) {
            bool sees = k >= l->cross_range[t] && k < l->cross_range[l->n_tokens + t];
            if (sees != (mask[t * c->n_pictures * 4 + tile[k]] != 0))
                fail_msg("%s: token %d, store %d", c->name, t, k);
        }
    free(tile);
    return 1;
}

/* Runs cover every feature of every picture once, and stand where image tokens are. */
static void check_runs(const struct vlm_case *c) {
    const struct mxc_vision_layout *l = &c->layout;
    int32_t features = 0, covered = 0, next = 0;
    for (int32_t i = 0; i < c->n_pictures; i++)
        features += c->pictures[i].cost.n_features;
    for (int32_t i = 0; i < l->n_runs; i++) {
        const struct mxc_vision_run *r = &l->runs[i];
        assert_true(r->row0 >= next && r->n_rows > 0);
        next = r->row0 + r->n_rows;
        assert_true(r->feature0 + r->n_rows <= c->pictures[r->picture].cost.n_features);
        covered += r->n_rows;
        if (!l->cross_range)
            for (int32_t k = 0; k < r->n_rows; k++)
                assert_int_equal(l->tokens[r->row0 + k], l->tokens[r->row0]);
    }
    assert_int_equal(covered, features);
}

static void layouts(void **state) {
    (void)state;
    int axes = 0, ends = 0, crosses = 0;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        vlm_open(&m, *model);
        size_t n = json_array_size(json_object_get(m.golden, "cases"));
        assert_true(n >= 4);
        for (size_t k = 0; k < n; k++) {
            struct vlm_case c;
            vlm_case_open(&m, k, &c);
            check_ids(&c, *model);
            axes += check_positions(&m, &c);
            ends += check_row_end(&m, &c);
            crosses += check_cross(&m, &c);
            check_runs(&c);
            vlm_case_close(&c);
        }
        vlm_close(&m);
    }
    assert_true(getenv("MXC_GOLDEN") || (axes >= 12 && ends == 3 && crosses == 4));
}

/* ---- towers */

/* K and V of mllama's cross layers from the reference's projected rows. */
static float *keys_and_values(const struct vlm *m, const float *rows, int32_t n, int32_t width) {
    static const int layers[] = {1, 3};
    const int32_t hidden = 64, heads = 2, dim = 16;
    float *out = calloc((size_t)n * (size_t)width, sizeof *out), w[64], norm[16];
    assert_non_null(out);
    for (size_t i = 0; i < 4; i++) {
        char name[128];
        const char *what = i % 2 ? "v_proj" : "k_proj";
        (void)snprintf(name, sizeof name, "language_model.model.layers.%d.cross_attn.%s.weight",
                       layers[i / 2], what);
        const struct mxc_tensor *t = mxc_weights_find(m->weights, name);
        (void)snprintf(name, sizeof name, "language_model.model.layers.%d.cross_attn.k_norm.weight",
                       layers[i / 2]);
        mxc_tensor_row(mxc_weights_find(m->weights, name), 0, norm);
        for (int32_t o = 0; o < heads * dim; o++) {
            mxc_tensor_row(t, o, w);
            for (int32_t r = 0; r < n; r++) {
                double sum = 0;
                for (int32_t k = 0; k < hidden; k++)
                    sum += (double)w[k] * (double)rows[r * hidden + k];
                out[r * width + (int32_t)i * heads * dim + o] = (float)sum;
            }
        }
        for (int32_t r = 0; r < n * heads && i % 2 == 0; r++) {
            float *x = out + r / heads * width + (int32_t)i * heads * dim + r % heads * dim;
            double square = 0;
            for (int32_t k = 0; k < dim; k++)
                square += (double)x[k] * (double)x[k] / dim;
            for (int32_t k = 0; k < dim; k++)
                x[k] = (float)((double)x[k] / sqrt(square + 1e-5) * (double)norm[k]);
        }
    }
    return out;
}

/* The reference's rows of the case, in the tower's form; the caller frees. */
static float *wanted(const struct vlm *m, const struct vlm_case *c, int32_t width, int32_t *rows) {
    char name[128];
    size_t count = 0;
    (void)snprintf(name, sizeof name, "%s.projected", c->name);
    const float *from = vlm_tensor(m, name, &count);
    assert_non_null(from);
    int32_t hidden = 64, n = 0;
    for (int32_t i = 0; i < c->n_pictures; i++)
        n += c->pictures[i].cost.n_features;
    assert_int_equal(count % (size_t)n, 0);
    hidden = (int32_t)(count / (size_t)n);
    *rows = n;
    if (c->layout.cross_range)
        return keys_and_values(m, from, n, width);
    float *out = calloc((size_t)n * (size_t)width, sizeof *out);
    assert_non_null(out);
    for (int32_t k = 0; k * hidden < width; k++) {
        if (k) {
            (void)snprintf(name, sizeof name, "%s.deepstack_%d", c->name, k - 1);
            from = vlm_tensor(m, name, &count);
            assert_true(from && count == (size_t)n * (size_t)hidden);
        }
        for (int32_t r = 0; r < n; r++)
            memcpy(out + r * width + k * hidden, from + r * hidden, (size_t)hidden * sizeof *out);
    }
    return out;
}

static double check_towers(const struct vlm *m, const struct vlm_case *c) {
    const struct mxc_graph *g = mxc_vision_tower(m->vision);
    int32_t n, at = 0, rows;
    float *want = wanted(m, c, g->vocab, &n);
    double worst = 0, most = 0;
    for (int32_t i = 0; i < c->n_pictures; i++) {
        const struct mxc_vision_picture *p = &c->pictures[i];
        float *have = tower_run(g, m->weights, &p->input, &rows);
        assert_int_equal(rows, p->cost.n_features);
        assert_true(p->cost.n_patches == p->input.n_rows[0]);
        for (int32_t k = 0; k < rows * g->vocab; k++) {
            double x = (double)want[at * g->vocab + k];
            worst = fmax(worst, fabs((double)have[k] - x));
            most = fmax(most, fabs(x));
        }
        at += rows;
        free(have);
    }
    assert_int_equal(at, n);
    free(want);
    return worst / most;
}

static void towers(void **state) {
    (void)state;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        double worst = 0;
        size_t k;
        const json_t *item;
        vlm_open(&m, *model);
        json_array_foreach(json_object_get(m.golden, "cases"), k, item) {
            struct vlm_case c;
            char name[128];
            size_t count;
            vlm_case_open(&m, k, &c);
            (void)snprintf(name, sizeof name, "%s.projected", c.name);
            if (c.n_pictures && vlm_tensor(&m, name, &count))
                worst = fmax(worst, check_towers(&m, &c));
            else
                assert_true(!c.n_pictures || strstr(*model, "mlx") || strstr(*model, "bf16"));
            vlm_case_close(&c);
        }
        print_message("%-24s %.1e\n", *model, worst);
        assert_true(worst < 2e-5);
        vlm_close(&m);
    }
}

/* The graphs as text: compared with NAME_tower.txt, which was read against the reference. */
static void tower_texts(void **state) {
    (void)state;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        char path[256], *text = NULL, *want = NULL;
        size_t length, size;
        struct mxc_err err;
        if (!strncmp(*model, "qwen2_vl_", 9) && strcmp(*model, "qwen2_vl_mlx_q4_g64") != 0)
            continue; /* another format of the same */
        vlm_open(&m, *model);
        FILE *out = open_memstream(&text, &length);
        mxc_graph_print(mxc_vision_tower(m.vision), out);
        fclose(out);
        (void)snprintf(path, sizeof path, "%s/models/%s_tower.txt", MXC_TEST_DATA, *model);
        if (mxc_file_read(path, 1 << 20, &want, &size, &err))
            fail_msg("%s; got\n%s", err.message, text);
        if (strcmp(text, want))
            fail_msg("%s: got\n%s", *model, text);
        free(text);
        mxc_mem_free(want);
        vlm_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_graphs), cmocka_unit_test(text_only_checkpoint),
        cmocka_unit_test(layouts),     cmocka_unit_test(towers),
        cmocka_unit_test(tower_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

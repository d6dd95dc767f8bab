/* Vision, spellings: golden checkpoints with their tensors renamed as Hugging Face (old, new) and
 * MLX name them give the same graphs, and the same numbers of the tower's first picture. */
#define _GNU_SOURCE
#include "vlm.h"

#include "base/mem.h"
#include "models/family.h"
#include "tower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct renaming {
    const char *name;
    const char *pairs[10]; /* from, to, ...; the first that fits */
    bool apart;            /* and the towers' q, k and v are three tensors instead of one */
};

static char *renamed(const struct renaming *r, const char *name) {
    char *out = NULL;
    for (size_t i = 0; i + 1 < sizeof r->pairs / sizeof *r->pairs && r->pairs[i]; i += 2) {
        size_t n = strlen(r->pairs[i]);
        if (!strncmp(name, r->pairs[i], n)) {
            assert_true(asprintf(&out, "%s%s", r->pairs[i + 1], name + n) > 0);
            return out;
        }
    }
    out = strdup(name);
    assert_non_null(out);
    return out;
}

/* PREFIXqkv.weight, rows of q, k and v one after the other, as three tensors of the same bytes. */
static bool split(json_t *out, const char *name, const json_t *tensor) {
    static const char *const names[] = {"q", "k", "v"};
    const char *at = strstr(name, ".qkv.");
    json_int_t begin, end, rows;
    if (!at)
        return false;
    assert_int_equal(json_unpack((json_t *)(uintptr_t)tensor, "{s:[I,I],s:[I*]}", "data_offsets",
                                 &begin, &end, "shape", &rows),
                     0);
    for (int i = 0; i < 3; i++) {
        char *part = NULL;
        json_int_t third = (end - begin) / 3;
        json_t *copy = json_deep_copy(tensor);
        assert_true(asprintf(&part, "%.*s.%s.%s", (int)(at - name), name, names[i], at + 5) > 0);
        json_object_set_new(copy, "data_offsets",
                            json_pack("[I,I]", begin + i * third, begin + (i + 1) * third));
        json_array_set_new(json_object_get(copy, "shape"), 0, json_integer(rows / 3));
        json_object_set_new(out, part, copy);
        free(part);
    }
    return true;
}

/* The file with other names in its header. */
static void rewrite(const struct renaming *r, const char *from, const char *to) {
    char *data;
    size_t size;
    uint64_t length;
    struct mxc_err err;
    assert_int_equal(mxc_file_read(from, 1 << 24, &data, &size, &err), MXC_OK);
    memcpy(&length, data, sizeof length);
    json_t *header = json_loadb(data + 8, length, 0, NULL), *out = json_object(), *value;
    const char *key;
    json_object_foreach(header, key, value) {
        char *name = renamed(r, key);
        if (!r->apart || !split(out, name, value))
            json_object_set(out, name, value);
        free(name);
    }
    char *text = json_dumps(out, JSON_COMPACT);
    uint64_t n = strlen(text);
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&n, sizeof n, 1, file), 1);
    assert_int_equal(fwrite(text, n, 1, file), 1);
    assert_int_equal(fwrite(data + 8 + length, size - 8 - length, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    free(text);
    json_decref(header);
    json_decref(out);
    mxc_mem_free(data);
}

static char *printed(const struct mxc_graph *g) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    mxc_graph_print(g, out);
    fclose(out);
    return text;
}

/* The same ops in the same order: the text without what stands in parentheses. */
static void same_ops(const struct mxc_graph *a, const struct mxc_graph *b) {
    char *x = printed(a), *y = printed(b), *p = x, *q = y;
    while (*p && *p == *q) {
        if (*p == '(') {
            p = strchr(p, '\n');
            q = strchr(q, '\n');
            assert_true(p && q);
            continue;
        }
        p++;
        q++;
    }
    if (*p || *q)
        fail_msg("graphs differ: %.60s / %.60s", p, q);
    free(x);
    free(y);
}

static void check(const struct renaming *r) {
    struct vlm m;
    struct vlm_case c;
    struct mxc_weights *weights = NULL;
    struct mxc_vision *vision = NULL;
    struct mxc_graph *a = NULL, *b = NULL;
    struct mxc_err err;
    char dir[] = "/tmp/mxc-names-XXXXXX", from[512], to[512];
    vlm_open(&m, r->name);
    vlm_case_open(&m, 0, &c);
    assert_non_null(mkdtemp(dir));
    (void)snprintf(from, sizeof from, "%s/model.safetensors", m.path);
    (void)snprintf(to, sizeof to, "%s/model.safetensors", dir);
    rewrite(r, from, to);
    if (mxc_weights_open(dir, m.config, &weights, &err) ||
        mxc_vision_open(m.path, m.config, weights, &vision, &err) ||
        mxc_model_graph(m.config, m.weights, &a, &err) ||
        mxc_model_graph(m.config, weights, &b, &err))
        fail_msg("%s: %s", r->name, err.message);
    assert_non_null(vision);
    same_ops(a, b);
    if (!r->apart)
        same_ops(mxc_vision_tower(m.vision), mxc_vision_tower(vision));
    else
        assert_true(mxc_vision_tower(vision)->n_weights > mxc_vision_tower(m.vision)->n_weights);
    int32_t rows[2];
    float *x = tower_run(mxc_vision_tower(m.vision), m.weights, &c.pictures[0].input, &rows[0]);
    float *y = tower_run(mxc_vision_tower(vision), weights, &c.pictures[0].input, &rows[1]);
    assert_int_equal(rows[0], rows[1]);
    assert_memory_equal(x, y,
                        (size_t)rows[0] * (size_t)mxc_vision_tower(vision)->vocab * sizeof *x);
    free(x);
    free(y);
    mxc_graph_free(a);
    mxc_graph_free(b);
    mxc_vision_close(vision);
    mxc_weights_close(weights);
    (void)unlink(to);
    (void)rmdir(dir);
    vlm_case_close(&c);
    vlm_close(&m);
}

static void spellings(void **state) {
    (void)state;
    static const struct renaming cases[] = {
        {.name = "qwen2_vl",
         .pairs = {"model.", "model.language_model.", "visual.", "model.visual."}},
        {.name = "qwen2_vl", .apart = true},
        {.name = "qwen2_vl_mlx_q4_g64", .apart = true},
        {.name = "qwen2_5_vl",
         .pairs = {"model.", "model.language_model.", "visual.", "model.visual."},
         .apart = true},
        {.name = "qwen3_vl", .apart = true},
        {.name = "qwen2_vl",
         .pairs = {"model.", "language_model.model.", "visual.", "vision_tower.", "lm_head",
                   "language_model.lm_head"}},
        {.name = "qwen2_5_vl",
         .pairs = {"model.", "model.language_model.", "visual.", "model.visual."}},
        {.name = "qwen3_vl",
         .pairs = {"model.language_model.", "language_model.model.", "model.visual.",
                   "vision_tower.", "lm_head", "language_model.lm_head"}},
        {.name = "llava_clip_llama",
         .pairs = {"language_model.model.", "model.language_model.", "language_model.lm_head",
                   "lm_head", "vision_tower.", "model.vision_tower.", "multi_modal_projector.",
                   "model.multi_modal_projector."}},
        {.name = "llava_siglip_qwen2",
         .pairs = {"language_model.model.", "model.language_model.", "language_model.lm_head",
                   "lm_head", "vision_tower.vision_model.", "model.vision_tower.",
                   "multi_modal_projector.", "model.multi_modal_projector."}},
        {.name = "mllama",
         .pairs = {"language_model.model.", "model.language_model.", "language_model.lm_head",
                   "lm_head", "vision_model.", "model.vision_model.", "multi_modal_projector.",
                   "model.multi_modal_projector."}},
        {.name = "mllama", .pairs = {"vision_model.", "vision_tower."}},
        {.name = "gemma3",
         .pairs = {"language_model.model.", "model.language_model.", "vision_tower.",
                   "model.vision_tower.", "multi_modal_projector.",
                   "model.multi_modal_projector."}},
        {.name = "idefics3",
         .pairs = {"model.text_model.", "language_model.", "lm_head", "language_model.lm_head",
                   "model.vision_model.", "vision_model.", "model.connector.", "connector."}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(spellings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

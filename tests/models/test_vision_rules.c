/* Vision, the rules: what a picture costs, budgets, marks that do not match, digests, kernels with
 * the channels last, pan and scan, tiles without pictures, hostile configs and processor files,
 * each refused with the key's name, and the n-th allocation failing. */
#define _GNU_SOURCE
#include "vlm.h"

#include "base/mem.h"
#include "models/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files with a setting changed */

static void set(json_t *object, const char *key, const char *value) {
    json_t *parsed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (!value) {
        (void)json_object_del(object, key);
        return;
    }
    assert_non_null(parsed);
    assert_int_equal(json_object_set_new(object, key, parsed), 0);
}

/* Opens the model's eye with one setting of its processor changed, or (key NULL) no file at all. */
static enum mxc_code open_with(const struct vlm *m, const char *key, const char *value,
                               struct mxc_vision **vision, struct mxc_err *err) {
    char dir[] = "/tmp/mxc-vision-XXXXXX", path[512];
    json_t *object;
    (void)snprintf(path, sizeof path, "%s/preprocessor_config.json", m->path);
    assert_int_equal(mxc_json_load(path, 1 << 20, &object, err), MXC_OK);
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/preprocessor_config.json", dir);
    if (key) {
        set(object, key, value);
        assert_int_equal(json_dump_file(object, path, 0), 0);
    }
    enum mxc_code code = mxc_vision_open(dir, m->config, m->weights, vision, err);
    (void)unlink(path);
    (void)rmdir(dir);
    json_decref(object);
    return code;
}

/* ---- costs and budgets */

static struct mxc_vision_cost measured(const struct vlm *m, int32_t w, int32_t h,
                                       const struct mxc_vision_budget *budget) {
    struct mxc_vision_cost cost;
    struct mxc_err err;
    if (mxc_vision_measure(m->vision, w, h, budget, &cost, &err))
        fail_msg("%s", err.message);
    return cost;
}

static void costs(void **state) {
    (void)state;
    struct vlm m;
    struct mxc_vision_cost c;
    struct mxc_vision_budget budget = {0};
    vlm_open(&m, "qwen2_vl");
    c = measured(&m, 4000, 3000, NULL); /* the file: 6272 pixels */
    assert_true(c.width % 28 == 0 && c.height % 28 == 0 && c.width * c.height <= 6272);
    assert_int_equal(c.n_patches, c.width * c.height / 196);
    assert_int_equal(c.n_features, c.n_patches / 4);
    assert_int_equal(c.n_tiles, 1);
    budget.max_pixels = 1 << 20;
    c = measured(&m, 4000, 3000, &budget);
    assert_true(c.n_patches > 5000 && c.width * c.height <= 1 << 20);
    mxc_vision_default_budget(m.vision, &budget); /* below 1 megapixel: as the file says */
    assert_int_equal(budget.max_pixels, 0);
    vlm_close(&m);

    vlm_open(&m, "mllama");
    c = measured(&m, 4000, 1000, NULL); /* a strip of four tiles */
    assert_int_equal(c.n_tiles, 4);
    assert_int_equal(c.n_features, 4 * 17);
    assert_int_equal(c.n_tokens, 1);
    budget.max_pixels = 56 * 56;
    c = measured(&m, 4000, 1000, &budget);
    assert_int_equal(c.n_tiles, 1);
    assert_int_equal(c.n_features, 4 * 17);
    mxc_vision_default_budget(m.vision, &budget);
    assert_int_equal(budget.max_pixels, 0);
    vlm_close(&m);

    vlm_open(&m, "idefics3");
    c = measured(&m, 112, 112, NULL);
    assert_int_equal(c.n_tiles, 5);
    assert_int_equal(c.n_features, 5 * 4);
    assert_int_equal(c.n_patches, 5 * 16);
    vlm_close(&m);
}

/* A file that allows more than a megapixel: that is the default all the same, and no bound. */
static void default_budget(void **state) {
    (void)state;
    static const struct {
        const char *name, *key, *value;
    } cases[] = {{"qwen2_vl", "max_pixels", "12845056"},
                 {"qwen2_5_vl", "max_pixels", "12845056"},
                 {"qwen3_vl", "max_pixels", "16777216"},
                 {"idefics3", "size", "{\"longest_edge\": 1456}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct vlm m;
        struct mxc_vision *vision = NULL;
        struct mxc_vision_budget budget;
        struct mxc_vision_cost cost, most;
        struct mxc_err err;
        vlm_open(&m, cases[i].name);
        enum mxc_code code = open_with(&m, cases[i].key, cases[i].value, &vision, &err);
        if (code)
            fail_msg("%s: %s", cases[i].name, err.message);
        mxc_vision_default_budget(vision, &budget);
        assert_int_equal(budget.min_pixels, 0);
        assert_int_equal(budget.max_pixels, 1 << 20);
        assert_int_equal(mxc_vision_measure(vision, 4000, 3000, &budget, &cost, &err), MXC_OK);
        assert_int_equal(mxc_vision_measure(vision, 4000, 3000, NULL, &most, &err), MXC_OK);
        assert_true(cost.n_patches > 256 && most.n_patches > cost.n_patches);
        mxc_vision_close(vision);
        vlm_close(&m);
    }
}

/* A picture nobody can see is refused, with the reason. */
static void refused_pictures(void **state) {
    (void)state;
    struct vlm m;
    struct mxc_vision_cost cost;
    struct mxc_err err;
    vlm_open(&m, "qwen2_vl");
    assert_int_equal(mxc_vision_measure(m.vision, 20000, 10, NULL, &cost, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "ratio"));
    struct mxc_vision_budget huge = {.min_pixels = INT64_C(1) << 39,
                                     .max_pixels = INT64_C(1) << 39};
    assert_int_equal(mxc_vision_measure(m.vision, 1000, 1000, &huge, &cost, &err), MXC_E_LIMIT);
    vlm_close(&m);
}

/* ---- marks */

static void marks(void **state) {
    (void)state;
    static const struct {
        const char *name, *message;
    } cases[] = {{"qwen2_vl", "1 pictures for 0 places"},
                 {"mllama", "1 pictures for 0 places"},
                 {"idefics3", "1 pictures of 5 tiles for 0 places"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct vlm m;
        struct vlm_case c;
        struct mxc_vision_layout layout;
        struct mxc_err err;
        vlm_open(&m, cases[i].name);
        vlm_case_open(&m, 0, &c);
        const struct mxc_vision_picture *pictures[] = {&c.pictures[0], &c.pictures[0]};
        struct mxc_vision_text text = {c.tokens, c.is_mark, c.n_tokens};
        /* the image token of a text that somebody wrote is text */
        memset(c.is_mark, 0, (size_t)c.n_tokens);
        assert_int_equal(mxc_vision_lay_out(m.vision, &text, pictures, 0, &layout, &err), MXC_OK);
        assert_int_equal(layout.n_tokens, c.n_tokens);
        assert_memory_equal(layout.tokens, c.tokens, (size_t)c.n_tokens * sizeof *c.tokens);
        assert_int_equal(layout.n_runs, 0);
        assert_int_equal(layout.rope_delta, 0);
        for (int32_t k = 0; layout.cross_range && k < c.n_tokens; k++)
            assert_int_equal(layout.cross_range[k], layout.cross_range[c.n_tokens + k]);
        mxc_vision_layout_fini(&layout);
        assert_int_equal(mxc_vision_lay_out(m.vision, &text, pictures, 1, &layout, &err),
                         MXC_E_ARG);
        assert_non_null(strstr(err.message, cases[i].message));
        vlm_case_close(&c);
        vlm_close(&m);
    }
}

/* Gemma's mark without its end was not put in by mark_text. */
static void unfinished_mark(void **state) {
    (void)state;
    struct vlm m;
    struct vlm_case c;
    struct mxc_vision_layout layout;
    struct mxc_err err;
    vlm_open(&m, "gemma3");
    vlm_case_open(&m, 0, &c);
    const struct mxc_vision_picture *pictures[] = {&c.pictures[0]};
    int32_t tokens[] = {2, mxc_vision_image_token(m.vision)};
    const uint8_t is_mark[] = {0, 1};
    struct mxc_vision_text text = {tokens, is_mark, 2};
    assert_int_equal(mxc_vision_lay_out(m.vision, &text, pictures, 1, &layout, &err),
                     MXC_E_INTERNAL);
    vlm_case_close(&c);
    vlm_close(&m);
}

/* Three pictures in a row: each token sees the tiles of those before it, and never an empty tile,
 * though pictures with empty tiles stand in between. */
static void three_in_a_row(void **state) {
    (void)state;
    struct vlm m;
    struct vlm_case c;
    struct mxc_vision_layout l;
    struct mxc_err err;
    vlm_open(&m, "mllama");
    vlm_case_open(&m, 0, &c);
    struct mxc_vision_picture one = c.pictures[0], two = one;
    one.cost.n_tiles = 1;
    two.cost.n_tiles = 2;
    const struct mxc_vision_picture *pictures[] = {&one, &two, &one};
    int32_t mark = mxc_vision_image_token(m.vision), tokens[] = {5, mark, mark, mark, 6, 7};
    const uint8_t is_mark[] = {0, 1, 1, 1, 0, 0};
    struct mxc_vision_text text = {tokens, is_mark, 6};
    assert_int_equal(mxc_vision_lay_out(m.vision, &text, pictures, 3, &l, &err), MXC_OK);
    static const int32_t begin[] = {0, 0, 0, 0, 0, 0}, end[] = {0, 17, 51, 68, 68, 68};
    assert_memory_equal(l.cross_range, begin, sizeof begin);
    assert_memory_equal(l.cross_range + 6, end, sizeof end);
    static const struct mxc_vision_run runs[] = {{0, 17, 0, 0},    {17, 34, 1, 0},
                                                 {51, 17, 2, 0},   {68, 51, 0, 17},
                                                 {119, 34, 1, 34}, {153, 51, 2, 17}};
    assert_int_equal(l.n_runs, 6);
    assert_memory_equal(l.runs, runs, sizeof runs);
    mxc_vision_layout_fini(&l);
    vlm_case_close(&c);
    vlm_close(&m);
}

static void check_text(const struct vlm *m, int32_t tiles, const int32_t grid[3],
                       const char *want) {
    struct mxc_vision_picture p = {.cost.n_tiles = tiles, .grid = {grid[0], grid[1], grid[2]}};
    char *text;
    struct mxc_err err;
    assert_int_equal(mxc_vision_mark_text(m->vision, &p, "<M>", &text, &err), MXC_OK);
    if (want)
        assert_string_equal(text, want);
    else
        assert_null(text);
    mxc_mem_free(text);
}

static void mark_texts(void **state) {
    (void)state;
    struct vlm m;
    static const int32_t none[3] = {0, 0, 0}, split[3] = {1, 2, 1};
    vlm_open(&m, "llava_clip_llama");
    check_text(&m, 1, none, NULL);
    vlm_close(&m);
    vlm_open(&m, "gemma3");
    check_text(&m, 1, none, "\n\n<M><end_of_image>\n\n");
    check_text(&m, 3, none,
               "Here is the original image \n\n<M><end_of_image>\n\n and here are some crops to "
               "help you see better \n\n<M><end_of_image>\n\n \n\n<M><end_of_image>\n\n");
    vlm_close(&m);
    vlm_open(&m, "idefics3");
    check_text(&m, 1, none, "<fake_token_around_image><global-img><M><fake_token_around_image>");
    check_text(&m, 3, split,
               "<fake_token_around_image><row_1_col_1><M>\n"
               "<fake_token_around_image><row_2_col_1><M>\n\n"
               "<fake_token_around_image><global-img><M><fake_token_around_image>");
    vlm_close(&m);
}

/* ---- digests, layouts of kernels */

static void prepare(const struct vlm *m, const char *name, const struct mxc_vision_budget *budget,
                    struct mxc_vision_picture *p) {
    struct mxc_image image;
    struct mxc_err err;
    vlm_image(name, &image);
    if (mxc_vision_prepare(m->vision, &image, budget, p, &err))
        fail_msg("%s", err.message);
    mxc_image_fini(&image);
}

static void digests(void **state) {
    (void)state;
    struct vlm m;
    struct mxc_vision_picture p[4];
    const struct mxc_vision_budget small = {.max_pixels = 3136};
    vlm_open(&m, "qwen2_vl");
    prepare(&m, "alpha", NULL, &p[0]);
    prepare(&m, "alpha", NULL, &p[1]);
    prepare(&m, "alpha", &small, &p[2]);
    prepare(&m, "rgb", NULL, &p[3]);
    assert_memory_equal(p[0].digest, p[1].digest, sizeof p[0].digest);
    assert_memory_not_equal(p[0].digest, p[2].digest, sizeof p[0].digest);
    assert_memory_not_equal(p[0].digest, p[3].digest, sizeof p[0].digest);
    assert_memory_not_equal(p[2].digest, p[3].digest, sizeof p[0].digest);
    for (int i = 0; i < 4; i++)
        mxc_vision_picture_fini(&p[i]);
    vlm_close(&m);
}

/* MLX stores [out, time, y, x, channel]: rows are laid out to match, numbers are the same. */
static void channels_last(void **state) {
    (void)state;
    struct vlm first, last;
    struct mxc_vision_picture a, b;
    vlm_open(&first, "qwen2_vl");
    vlm_open(&last, "qwen2_vl_mlx_q4_g64");
    prepare(&first, "rgb", NULL, &a);
    prepare(&last, "rgb", NULL, &b);
    assert_int_equal(a.input.n_rows[0], b.input.n_rows[0]);
    for (int32_t row = 0; row < a.input.n_rows[0]; row++)
        for (int32_t c = 0; c < 3; c++)
            for (int32_t i = 0; i < 392; i++)
                assert_true(a.input.rows[row * 1176 + c * 392 + i] ==
                            b.input.rows[row * 1176 + i * 3 + c]);
    mxc_vision_picture_fini(&a);
    mxc_vision_picture_fini(&b);
    vlm_close(&first);
    vlm_close(&last);
}

/* ---- hostile configs */

struct bad {
    const char *name, *object, *key, *value, *message; /* object: NULL for the root */
};

static void expect_refusal(const struct bad *b, bool text) {
    char path[256];
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_vision *vision = NULL;
    struct mxc_graph *graph = NULL;
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, b->name);
    assert_int_equal(mxc_config_open(path, &config, &err), MXC_OK);
    assert_int_equal(mxc_weights_open(path, config, &weights, &err), MXC_OK);
    set(b->object ? json_object_get(config->root, b->object) : config->root, b->key, b->value);
    enum mxc_code code = text ? mxc_model_graph(config, weights, &graph, &err)
                              : mxc_vision_open(path, config, weights, &vision, &err);
    if (!code)
        fail_msg("%s: %s: %s is taken", b->name, b->key, b->value);
    if (!strstr(err.message, b->message))
        fail_msg("%s: %s: %s: \"%s\" says nothing of \"%s\"", b->name, b->key, b->value,
                 err.message, b->message);
    assert_non_null(strstr(err.message, text ? "config.json" : "config.json: vision"));
    assert_null(vision);
    mxc_weights_close(weights);
    mxc_config_close(config);
}

static void bad_vision(void **state) {
    (void)state;
    static const struct bad cases[] = {
        {"qwen2_vl", "vision_config", "embed_dim", "\"x\"", "embed_dim"},
        {"qwen2_vl", "vision_config", "embed_dim", NULL, "embed_dim: missing"},
        {"qwen2_vl", "vision_config", "depth", "0", "depth"},
        {"qwen2_vl", "vision_config", "depth", "3", "visual.blocks.2."},
        {"qwen2_vl", "vision_config", "num_heads", "7", "num_heads"},
        {"qwen2_vl", "vision_config", "num_heads", "24", "do not divide into four"},
        {"qwen2_vl", "vision_config", "mlp_ratio", "1e30", "mlp_ratio"},
        {"qwen2_vl", "vision_config", "in_chans", "4", "in_channels"},
        {"qwen2_vl", "vision_config", "hidden_act", "\"mish\"", "hidden_act"},
        {"qwen2_vl", "vision_config", "patch_size", "16", "no kernel of 16 x 16"},
        {"qwen2_vl", "vision_config", "spatial_merge_size", "1000", "spatial_merge_size"},
        {"qwen2_vl", NULL, "image_token_id", NULL, "image_token_id: missing"},
        {"qwen2_vl", NULL, "image_token_id", "-3", "image_token_id"},
        {"qwen2_5_vl", "vision_config", "window_size", "10", "window_size"},
        {"qwen2_5_vl", "vision_config", "fullatt_block_indexes", "[9]", "fullatt_block_indexes[0]"},
        {"qwen2_5_vl", "vision_config", "out_hidden_size", "32", "out_hidden_size"},
        {"qwen3_vl", "vision_config", "num_position_embeddings", "35", "num_position_embeddings"},
        {"qwen3_vl", "vision_config", "num_position_embeddings", "49", "pos_embed.weight"},
        {"qwen3_vl", "vision_config", "deepstack_visual_indexes", "[0,1,2,0,1,2,0,1]",
         "deepstack_visual_indexes"},
        {"qwen3_vl", "vision_config", "deepstack_visual_indexes", "[0, 3]",
         "deepstack_visual_indexes[1]"},
        {"llava_clip_llama", NULL, "vision_feature_layer", "-9", "vision_feature_layer"},
        {"llava_clip_llama", NULL, "vision_feature_layer", "[]", "vision_feature_layer: empty"},
        {"llava_clip_llama", NULL, "vision_feature_select_strategy", "\"cls\"",
         "vision_feature_select_strategy"},
        {"llava_clip_llama", NULL, "projector_hidden_act", "\"x\"", "projector_hidden_act"},
        {"llava_clip_llama", "vision_config", "model_type", "\"vit\"", "model_type: \"vit\""},
        {"llava_clip_llama", "vision_config", "num_attention_heads", "5", "num_attention_heads"},
        {"llava_clip_llama", "vision_config", "image_size", "70", "position_embedding"},
        {"llava_clip_llama", "vision_config", "layer_norm_eps", "7", "layer_norm_eps"},
        {"gemma3", NULL, "mm_tokens_per_image", "5", "mm_tokens_per_image"},
        {"gemma3", NULL, "mm_tokens_per_image", "9", "mm_tokens_per_image"},
        {"gemma3", NULL, "boi_token_index", NULL, "boi_token_id: missing"},
        {"idefics3", NULL, "scale_factor", "0", "scale_factor"},
        {"mllama", "vision_config", "intermediate_layers_indices", "[0, 3]",
         "intermediate_layers_indices[1]"},
        {"mllama", "vision_config", "max_num_tiles", "100", "max_num_tiles"},
        {"mllama", "vision_config", "supported_aspect_ratios", "[[1, 1]]",
         "supported_aspect_ratios[1]: not [1, 2]"},
        {"mllama", "vision_config", "supported_aspect_ratios",
         "[[1,1],[1,2],[1,3],[1,4],[2,1],[2,2],[3,1],[4,1],[9,9]]", "more than 8 canvases"},
        {"mllama", "vision_config", "attention_heads", "5", "attention_heads"},
        {"mllama", "text_config", "cross_attention_layers", "[4]", "cross_attention_layers[0]"},
        {"mllama", "text_config", "cross_attention_layers", "[]", "cross_attention_layers"},
        {"mllama", "text_config", "cross_attention_layers", "[0]", "cross_attn.k_proj"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(&cases[i], false);
}

static void bad_text(void **state) {
    (void)state;
    static const struct bad cases[] = {
        {"qwen2_vl", "rope_scaling", "mrope_section", "[2, 3]", "mrope_section"},
        {"qwen2_vl", "rope_scaling", "mrope_section", "[2, 3, 4]", "mrope_section: 9 pairs"},
        {"qwen2_vl", "rope_scaling", "mrope_section", "[9, 3, -4]", "mrope_section"},
        {"qwen2_vl", "rope_scaling", "mrope_section", NULL, "mrope_section: missing"},
        {"qwen2_vl", "rope_scaling", "mrope_interleaved", "3", "mrope_interleaved"},
        {"qwen3_vl", "vision_config", "deepstack_visual_indexes", "[0,1,2,0,1]",
         "5 levels for 3 layers"},
        {"llava_clip_llama", "text_config", "model_type", "\"llava\"", "no language model"},
        {"llava_clip_llama", "text_config", "model_type", "\"lama\"", "text_config: model_type"},
        {"llava_clip_llama", "text_config", "model_type", "7", "model_type"},
        {"mllama", "text_config", "cross_attention_layers", "[1, 4]", "cross_attention_layers[1]"},
        {"mllama", "text_config", "cross_attention_layers", "7", "cross_attention_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(&cases[i], true);
}

/* text_config leaves out what its config class has as a default. */
static void text_defaults(void **state) {
    (void)state;
    static const struct bad cases[] = {
        {"llava_clip_llama", "text_config", "vocab_size", NULL,
         "[784, 64] where the config asks for [32000"},
        {"gemma3", "text_config", "num_attention_heads", NULL,
         "[96, 64] where the config asks for [192"},
        {"mllama", "text_config", "num_hidden_layers", NULL, "layers.4."},
        {"idefics3", "text_config", "vocab_size", NULL,
         "[720, 64] where the config asks for [32000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(&cases[i], true);
}

/* ---- processor files */

static void processor_refused(const char *name, const char *key, const char *value,
                              const char *message) {
    struct vlm m;
    struct mxc_vision *vision = NULL;
    struct mxc_err err;
    vlm_open(&m, name);
    assert_int_not_equal(open_with(&m, key, value, &vision, &err), MXC_OK);
    assert_null(vision);
    if (!strstr(err.message, message) || !strstr(err.message, "preprocessor_config.json"))
        fail_msg("%s: %s: \"%s\" says nothing of \"%s\"", name, key, err.message, message);
    vlm_close(&m);
}

static void processors(void **state) {
    (void)state;
    processor_refused("qwen2_vl", NULL, NULL, "preprocessor_config.json");
    processor_refused("qwen2_vl", "patch_size", "16", "patch_size");
    processor_refused("qwen2_vl", "merge_size", "4", "merge_size");
    processor_refused("qwen2_vl", "image_processor_type", "\"SiglipImageProcessor\"",
                      "image_processor_type");
    processor_refused("llava_clip_llama", "crop_size", "{\"height\": 70, \"width\": 70}",
                      "image_size is 56");
    processor_refused("gemma3", "size", "{\"height\": 28, \"width\": 28}", "image_size is 56");
    processor_refused("mllama", "max_image_tiles", "2", "max_image_tiles");
    processor_refused("idefics3", "max_image_size", "{\"longest_edge\": 70}", "image_size is 56");
    processor_refused("idefics3", "max_image_size", "{\"longest_edge\": 42}", "size");
}

/* A model of pictures whose tower was left out (as conversions for text do) is one of text. */
static void no_tower(void **state) {
    (void)state;
    struct vlm m;
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_vision *vision = NULL;
    struct mxc_err err;
    vlm_open(&m, "qwen2_vl");
    assert_int_equal(mxc_config_open(MXC_TEST_DATA "/golden/llama", &config, &err), MXC_OK);
    assert_int_equal(mxc_weights_open(MXC_TEST_DATA "/golden/llama", config, &weights, &err),
                     MXC_OK);
    assert_int_equal(mxc_vision_open(m.path, m.config, weights, &vision, &err), MXC_OK);
    assert_null(vision);
    mxc_weights_close(weights);
    mxc_config_close(config);
    set(m.config->root, "vision_config", NULL);
    assert_int_equal(mxc_vision_open(m.path, m.config, m.weights, &vision, &err), MXC_OK);
    assert_null(vision);
    vlm_close(&m);
}

/* ---- memory */

static enum mxc_code whole(const struct vlm *m, const struct vlm_case *c,
                           const struct mxc_image *image, struct mxc_err *err) {
    struct mxc_vision *vision = NULL;
    struct mxc_vision_picture p = {.aspect = 0};
    struct mxc_vision_layout layout = {0};
    char *text = NULL;
    const struct mxc_vision_picture *pictures[] = {&p};
    const struct mxc_vision_text prompt = {c->tokens, c->is_mark, c->n_tokens};
    enum mxc_code code = mxc_vision_open(m->path, m->config, m->weights, &vision, err);
    if (!code)
        code = mxc_vision_prepare(vision, image, NULL, &p, err);
    if (!code)
        code = mxc_vision_mark_text(vision, &p, "<M>", &text, err);
    if (!code)
        code = mxc_vision_lay_out(vision, &prompt, pictures, 1, &layout, err);
    mxc_vision_layout_fini(&layout);
    mxc_mem_free(text);
    mxc_vision_picture_fini(&p);
    mxc_vision_close(vision);
    return code;
}

static void nth_allocation(void **state) {
    (void)state;
    static const char *const names[] = {"qwen2_5_vl", "qwen3_vl", "llava_clip_llama",
                                        "mllama",     "gemma3",   "idefics3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct vlm m;
        struct vlm_case c;
        struct mxc_image image;
        struct mxc_err err;
        vlm_open(&m, names[i]);
        vlm_case_open(&m, 0, &c);
        vlm_image("rgb", &image);
        enum mxc_code code = MXC_E_NOMEM;
        uint64_t n = 1;
        for (; code; n++) {
            mxc_mem_fail_at(n);
            code = whole(&m, &c, &image, &err);
            mxc_mem_fail_at(0);
            if (code)
                assert_int_equal(code, MXC_E_NOMEM);
        }
        assert_true(n > 20);
        mxc_image_fini(&image);
        vlm_case_close(&c);
        vlm_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs),           cmocka_unit_test(refused_pictures),
        cmocka_unit_test(default_budget),  cmocka_unit_test(marks),
        cmocka_unit_test(unfinished_mark), cmocka_unit_test(three_in_a_row),
        cmocka_unit_test(mark_texts),      cmocka_unit_test(digests),
        cmocka_unit_test(channels_last),   cmocka_unit_test(bad_vision),
        cmocka_unit_test(bad_text),        cmocka_unit_test(text_defaults),
        cmocka_unit_test(processors),      cmocka_unit_test(no_tower),
        cmocka_unit_test(nth_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

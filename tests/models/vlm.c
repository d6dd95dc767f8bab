/* Golden checkpoints that see; see vlm.h. */
#define _GNU_SOURCE
#include "vlm.h"

#include "base/mem.h"
#include "format/tokenizer_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(enum mxc_code code, const struct mxc_err *err, const char *what) {
    if (code)
        fail_msg("%s: %s", what, err->message);
}

/* ---- which */

enum { MAX_NAMES = 64 };
static const char *const ours[] = {"qwen2_vl",
                                   "qwen2_vl_bf16",
                                   "qwen2_vl_mlx_q4_g64",
                                   "qwen2_vl_mlx_mixed6",
                                   "qwen2_5_vl",
                                   "qwen3_vl",
                                   "llava_clip_llama",
                                   "llava_siglip_qwen2",
                                   "mllama",
                                   "gemma3",
                                   "idefics3",
                                   NULL};

static const char *folder(void) {
    const char *other = getenv("MXC_GOLDEN");
    return other ? other : MXC_TEST_DATA "/golden";
}

/* What scandir takes: another checkpoint with settings for pictures. */
static int is_other(const struct dirent *entry) {
    char path[512];
    for (size_t i = 0; ours[i]; i++)
        if (!strcmp(entry->d_name, ours[i]))
            return 0;
    (void)snprintf(path, sizeof path, "%s/%.200s/preprocessor_config.json", folder(),
                   entry->d_name);
    return access(path, R_OK) == 0;
}

const char *const *vlm_names(void) {
    static char text[MAX_NAMES][64];
    static const char *others[MAX_NAMES + 1];
    struct dirent **entries = NULL;
    if (!getenv("MXC_GOLDEN"))
        return ours;
    int n = scandir(folder(), &entries, is_other, alphasort);
    assert_in_range(n, 1, MAX_NAMES);
    for (int i = 0; i < n; i++) {
        (void)snprintf(text[i], sizeof text[i], "%.63s", entries[i]->d_name);
        others[i] = text[i];
        free(entries[i]);
    }
    others[n] = NULL;
    free(entries);
    return others;
}

/* ---- a checkpoint */

void vlm_open(struct vlm *m, const char *name) {
    char path[512];
    struct mxc_tokdesc desc;
    const char *file;
    struct mxc_err err;
    *m = (struct vlm){.path = ""};
    (void)snprintf(m->path, sizeof m->path, "%s/%s", folder(), name);
    need(mxc_config_open(m->path, &m->config, &err), &err, name);
    need(mxc_weights_open(m->path, m->config, &m->weights, &err), &err, name);
    need(mxc_vision_open(m->path, m->config, m->weights, &m->vision, &err), &err, name);
    assert_non_null(m->vision);
    need(mxc_tokenizer_load(m->path, &desc, &file, &err), &err, name);
    need(mxc_tokenizer_new(&desc, &m->tokenizer, &err), &err, name);
    (void)snprintf(path, sizeof path, "%s/golden/golden.json", m->path);
    need(mxc_json_load(path, 1 << 24, &m->golden, &err), &err, name);
    (void)snprintf(path, sizeof path, "%s/golden/golden.safetensors", m->path);
    need(mxc_safetensors_open(path, &m->tensors, &err), &err, name);
}

void vlm_close(struct vlm *m) {
    mxc_vision_close(m->vision);
    mxc_weights_close(m->weights);
    mxc_config_close(m->config);
    mxc_tokenizer_free(m->tokenizer);
    json_decref(m->golden);
    mxc_safetensors_close(m->tensors);
}

const void *vlm_tensor(const struct vlm *m, const char *name, size_t *count) {
    for (size_t i = 0; i < m->tensors->n_tensors; i++) {
        const struct mxc_st_tensor *t = &m->tensors->tensors[i];
        if (strcmp(t->name, name))
            continue;
        *count = 1;
        for (int k = 0; k < t->n_dims; k++)
            *count *= (size_t)t->shape[k];
        return t->data;
    }
    return NULL;
}

void vlm_image(const char *name, struct mxc_image *image) {
    char path[256], *data;
    size_t size;
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/image/%s.%s", MXC_TEST_DATA, name,
                   strcmp(name, "tall") ? "png" : "jpg");
    need(mxc_file_read(path, 1 << 20, &data, &size, &err), &err, path);
    need(mxc_image_decode(data, size, NULL, image, &err), &err, path);
    mxc_mem_free(data);
}

/* The prompt with what the family puts in place of each mark. */
static char *marked(const struct vlm *m, const struct vlm_case *c, const char *text) {
    struct mxc_str mark =
        mxc_tokenizer_spelling(m->tokenizer, (uint32_t)mxc_vision_image_token(m->vision));
    char spelling[64], *put, *out = NULL;
    size_t length;
    struct mxc_err err;
    FILE *file = open_memstream(&out, &length);
    (void)snprintf(spelling, sizeof spelling, "%.*s", (int)mark.length, mark.ptr);
    for (int32_t i = 0; i < c->n_pictures; i++) {
        const char *at = strstr(text, spelling);
        assert_non_null(at);
        need(mxc_vision_mark_text(m->vision, &c->pictures[i], spelling, &put, &err), &err,
             "mark_text");
        (void)fprintf(file, "%.*s%s", (int)(at - text), text, put ? put : spelling);
        mxc_mem_free(put);
        text = at + strlen(spelling);
    }
    (void)fputs(text, file);
    (void)fclose(file);
    return out;
}

static void tokenise(const struct vlm *m, struct vlm_case *c) {
    char *text = marked(m, c, json_string_value(json_object_get(c->item, "rendered")));
    struct mxc_ids ids = {0};
    struct mxc_err err;
    const struct mxc_text_span span = {text, strlen(text), true};
    const struct mxc_tokdesc *desc = mxc_tokenizer_desc(m->tokenizer);
    struct mxc_str bos = {0};
    if (desc->bos != MXC_TOK_NO_ID)
        bos = mxc_tokenizer_spelling(m->tokenizer, desc->bos);
    bool has = bos.length && !strncmp(text, bos.ptr, bos.length);
    const struct mxc_encode_options options = {.parse_special = true, .add_special = !has};
    need(mxc_tokenizer_encode(m->tokenizer, &span, 1, options, &ids, &err), &err, c->name);
    c->n_tokens = (int32_t)ids.count;
    c->tokens = calloc(ids.count, sizeof *c->tokens);
    c->is_mark = calloc(ids.count, 1);
    assert_true(c->tokens && c->is_mark);
    for (size_t i = 0; i < ids.count; i++) {
        c->tokens[i] = (int32_t)ids.items[i];
        c->is_mark[i] = c->tokens[i] == mxc_vision_image_token(m->vision);
    }
    mxc_ids_fini(&ids);
    free(text);
}

void vlm_case_open(const struct vlm *m, size_t index, struct vlm_case *c) {
    const json_t *name;
    size_t i;
    const struct mxc_vision_picture *pictures[VLM_MAX_PICTURES];
    struct mxc_err err;
    *c = (struct vlm_case){.item = json_array_get(json_object_get(m->golden, "cases"), index)};
    c->name = json_string_value(json_object_get(c->item, "name"));
    json_array_foreach(json_object_get(c->item, "images"), i, name) {
        struct mxc_image image;
        assert_true(i < VLM_MAX_PICTURES);
        vlm_image(json_string_value(name), &image);
        need(mxc_vision_prepare(m->vision, &image, NULL, &c->pictures[i], &err), &err, c->name);
        mxc_image_fini(&image);
        pictures[i] = &c->pictures[i];
        c->n_pictures++;
    }
    tokenise(m, c);
    const struct mxc_vision_text text = {c->tokens, c->is_mark, c->n_tokens};
    need(mxc_vision_lay_out(m->vision, &text, pictures, c->n_pictures, &c->layout, &err), &err,
         c->name);
}

void vlm_case_close(struct vlm_case *c) {
    for (int32_t i = 0; i < c->n_pictures; i++)
        mxc_vision_picture_fini(&c->pictures[i]);
    mxc_vision_layout_fini(&c->layout);
    free(c->tokens);
    free(c->is_mark);
}

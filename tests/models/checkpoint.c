/* Test checkpoints; see checkpoint.h. */
#define _GNU_SOURCE
#include "checkpoint.h"

#include "test.h"

#include "base/buf.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct mxc_config config_of(json_t *root) {
    struct mxc_config config = {.root = root, .text = root, .bos = -1, .pad = -1};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    config.model_type = type ? mxc_mem_strdup(type) : NULL;
    config.max_position = json_integer_value(json_object_get(root, "max_position_embeddings"));
    return config;
}

static json_t *parse(const char *text) {
    json_t *root = NULL;
    struct mxc_err err;
    if (mxc_json_parse(text, strlen(text), "test", &root, &err))
        fail_msg("%s", err.message);
    return root;
}

struct mxc_config test_config(const char *json) {
    return config_of(parse(json));
}

struct mxc_config test_config_change(const char *base, const char *change) {
    json_t *root = parse(base), *over = parse(change), *value;
    const char *key;
    json_object_foreach(over, key, value) {
        if (json_is_null(value))
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    json_decref(over);
    return config_of(root);
}

void test_config_fini(struct mxc_config *config) {
    json_decref(config->root);
    mxc_mem_free(config->model_type);
}

char *test_data(const char *name) {
    char path[256], *text = NULL;
    size_t length;
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/models/%s", name);
    assert_int_equal(mxc_file_read(path, 1 << 20, &text, &length, NULL), MXC_OK);
    return text;
}

struct writer {
    struct mxc_buf header, data;
};

static void add(struct writer *w, const struct test_tensor *t) {
    size_t bytes = t->data ? sizeof(float) : 2, begin = w->data.length;
    char shape[96] = "";
    for (int i = 0; i < t->n_dims; i++) {
        size_t at = strlen(shape);
        (void)snprintf(shape + at, sizeof shape - at, "%s%lld", i ? "," : "",
                       (long long)t->shape[i]);
        bytes *= (size_t)t->shape[i];
    }
    if (t->data) {
        mxc_buf_append(&w->data, t->data, bytes);
    } else {
        for (size_t i = 0; i < bytes; i++)
            mxc_buf_putc(&w->data, 0);
    }
    mxc_buf_printf(&w->header,
                   "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                   w->header.length ? ',' : '{', t->name, t->data ? "F32" : "F16", shape, begin,
                   begin + bytes);
}

void test_checkpoint_open(const struct mxc_graph *graph, const struct test_change *change,
                          struct test_checkpoint *checkpoint) {
    struct writer w;
    mxc_buf_init(&w.header, 1 << 20);
    mxc_buf_init(&w.data, 8 << 20);
    for (int32_t i = 0; i < graph->n_weights; i++) {
        const struct mxc_weight *weight = &graph->weights[i];
        struct test_tensor t = {.name = weight->name, .n_dims = weight->n_dims};
        memcpy(t.shape, weight->shape, sizeof t.shape);
        if (change && change->drop && !strcmp(change->drop, t.name))
            continue;
        t.shape[0] += change && change->reshape && !strcmp(change->reshape, t.name);
        add(&w, &t);
    }
    if (change && change->extra.name)
        add(&w, &change->extra);
    mxc_buf_putc(&w.header, '}');
    assert_int_equal(mxc_buf_status(&w.header, NULL), MXC_OK);
    assert_int_equal(mxc_buf_status(&w.data, NULL), MXC_OK);

    char path[96];
    (void)snprintf(checkpoint->dir, sizeof checkpoint->dir, "/tmp/mxc-models-XXXXXX");
    assert_non_null(mkdtemp(checkpoint->dir));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", checkpoint->dir);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    uint64_t length = w.header.length;
    assert_int_equal(fwrite(&length, sizeof length, 1, out), 1);
    assert_int_equal(fwrite(w.header.data, w.header.length, 1, out), 1);
    if (w.data.length)
        assert_int_equal(fwrite(w.data.data, w.data.length, 1, out), 1);
    assert_int_equal(fclose(out), 0);
    mxc_buf_fini(&w.header);
    mxc_buf_fini(&w.data);
    struct mxc_err err;
    if (mxc_weights_open(checkpoint->dir, NULL, &checkpoint->weights, &err))
        fail_msg("%s", err.message);
}

void test_checkpoint_close(struct test_checkpoint *checkpoint) {
    char path[96];
    mxc_weights_close(checkpoint->weights);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", checkpoint->dir);
    (void)unlink(path);
    (void)rmdir(checkpoint->dir);
}

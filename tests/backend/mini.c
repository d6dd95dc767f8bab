/* Mini models, see mini.h: the checkpoint. The interpreter is mini_reference.c. */
#define _GNU_SOURCE
#include "backend/mini.h"

#include "base/half.h"
#include "format/config.h"
#include "format/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1024, GROUP = 64 };

/* One tensor of the file. */
struct tensor {
    char name[MXC_MAX_WEIGHT_NAME];
    enum mxc_storage storage;
    int n_dims;
    int64_t shape[MXC_MAX_VIEW_DIMS];
    bool quantised;
};

struct file {
    struct tensor tensors[MOST];
    int n;
    FILE *header, *data;
    size_t at;
    uint32_t random;
};

static uint32_t next_random(struct file *f) {
    f->random ^= f->random << 13;
    f->random ^= f->random >> 17;
    f->random ^= f->random << 5;
    return f->random;
}

static int64_t count(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static void collect(struct file *f, const struct mxc_weight *w, enum mxc_storage storage,
                    const char *odd) {
    for (int64_t i = 0; i < mxc_weight_tensors(w); i++) {
        struct tensor t = {.storage = storage};
        bool known = false;
        mxc_weight_tensor_name(w, i, t.name);
        t.n_dims = mxc_weight_tensor_shape(w, t.shape);
        if (w->role == MXC_W_VECTOR)
            t.storage = MXC_ST_F32;
        else if (storage == MXC_ST_MLX_AFFINE)
            t.storage = MXC_ST_BF16;
        t.quantised = storage == MXC_ST_MLX_AFFINE && w->role != MXC_W_VECTOR && t.n_dims == 2 &&
                      t.shape[1] % GROUP == 0 && ends_with(t.name, ".weight");
        if (odd && !strcmp(t.name, odd)) {
            t.storage = MXC_ST_F32;
            t.quantised = false;
        }
        for (int k = 0; k < f->n; k++)
            known |= !strcmp(f->tensors[k].name, t.name);
        if (known)
            continue;
        assert_true(f->n < MOST);
        f->tensors[f->n++] = t;
    }
}

static void declare(struct file *f, const char *name, const char *type, int n_dims,
                    const int64_t *shape, size_t bytes) {
    fprintf(f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->at ? "," : "", name, type);
    for (int i = 0; i < n_dims; i++)
        fprintf(f->header, "%s%lld", i ? "," : "", (long long)shape[i]);
    fprintf(f->header, "],\"data_offsets\":[%zu,%zu]}", f->at, f->at + bytes);
    f->at += bytes;
}

static void put(struct file *f, enum mxc_storage storage, float x) {
    uint16_t half = storage == MXC_ST_F16 ? mxc_f32_to_f16(x) : mxc_f32_to_bf16(x);
    size_t n = storage == MXC_ST_F32 ? fwrite(&x, sizeof x, 1, f->data)
                                     : fwrite(&half, sizeof half, 1, f->data);
    assert_int_equal(n, 1);
}

/* In [-1, 1) */
static float next_number(struct file *f) {
    return (float)(int32_t)next_random(f) * 0x1p-31f;
}

static void write_plain(struct file *f, const struct tensor *t) {
    size_t size = t->storage == MXC_ST_F32 ? 4 : 2;
    declare(f, t->name, mxc_storage_info(t->storage)->name, t->n_dims, t->shape,
            (size_t)count(t) * size);
    float scale = t->n_dims > 1 ? 1.7f / sqrtf((float)t->shape[t->n_dims - 1]) : 0.4f;
    bool norm = strstr(t->name, "norm") != NULL;
    for (int64_t i = 0; i < count(t); i++) {
        float x = next_number(f) * scale;
        put(f, t->storage, norm ? 1 + x : x);
    }
}

/* Codes, then scales and biases that centre them. */
static void write_quantised(struct file *f, const struct tensor *t) {
    char name[MXC_MAX_WEIGHT_NAME + 8];
    int64_t packed[2] = {t->shape[0], t->shape[1] / 8};
    int64_t groups[2] = {t->shape[0], t->shape[1] / GROUP};
    float spread = 0.2f / sqrtf((float)t->shape[1]);
    int stem = (int)(strlen(t->name) - strlen(".weight"));
    declare(f, t->name, "U32", 2, packed, (size_t)(packed[0] * packed[1]) * 4);
    for (int64_t i = 0; i < packed[0] * packed[1]; i++) {
        uint32_t word = next_random(f);
        assert_int_equal(fwrite(&word, sizeof word, 1, f->data), 1);
    }
    for (int part = 0; part < 2; part++) {
        snprintf(name, sizeof name, "%.*s.%s", stem, t->name, part ? "biases" : "scales");
        declare(f, name, "BF16", 2, groups, (size_t)(groups[0] * groups[1]) * 2);
        for (int64_t i = 0; i < groups[0] * groups[1]; i++) {
            float x = spread * (1 + 0.5f * next_number(f));
            put(f, MXC_ST_BF16, part ? -7.5f * x : x);
        }
    }
}

static void write_file(struct file *f, const char *path) {
    char *header = NULL, *data = NULL;
    size_t header_bytes = 0, data_bytes = 0;
    f->header = open_memstream(&header, &header_bytes);
    f->data = open_memstream(&data, &data_bytes);
    assert_true(f->header && f->data);
    fputc('{', f->header);
    for (int i = 0; i < f->n; i++)
        (f->tensors[i].quantised ? write_quantised : write_plain)(f, &f->tensors[i]);
    fputc('}', f->header);
    while (ftell(f->header) % 8)
        fputc(' ', f->header);
    assert_int_equal(fclose(f->header), 0);
    assert_int_equal(fclose(f->data), 0);
    assert_int_equal(data_bytes, f->at);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    uint64_t n = header_bytes;
    assert_int_equal(fwrite(&n, sizeof n, 1, to), 1);
    assert_int_equal(fwrite(header, 1, header_bytes, to), header_bytes);
    assert_int_equal(fwrite(data, 1, data_bytes, to), data_bytes);
    assert_int_equal(fclose(to), 0);
    free(header);
    free(data);
}

void mini_write(const struct mxc_graph *graph, enum mxc_storage storage, const char *odd,
                struct mxc_weights **weights) {
    struct file *f = calloc(1, sizeof *f);
    char folder[] = "/tmp/mlxcel-mini-XXXXXX", path[64];
    struct mxc_config *config = NULL;
    struct mxc_err err;
    assert_non_null(f);
    f->random = 12345;
    for (int32_t i = 0; i < graph->n_weights; i++)
        collect(f, &graph->weights[i], storage, odd);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *json = fopen(path, "w");
    assert_non_null(json);
    fprintf(json, "{\"model_type\":\"mini\",\"quantization\":{\"bits\":4,\"group_size\":%d}}\n",
            GROUP);
    assert_int_equal(fclose(json), 0);
    if (storage == MXC_ST_MLX_AFFINE)
        assert_int_equal(mxc_config_open(folder, &config, &err), MXC_OK);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_file(f, path);
    enum mxc_code code = mxc_weights_open(folder, config, weights, &err);
    if (code)
        print_message("%s\n", err.message);
    assert_int_equal(code, MXC_OK);
    mxc_config_close(config);
    unlink(path);
    rmdir(folder);
    free(f);
}

/* ---- what the graph sees of it */

static float *decode(const struct mxc_tensor *t) {
    size_t columns = (size_t)mxc_tensor_columns(t), rows = (size_t)mxc_tensor_rows(t);
    float *all = calloc(rows * columns, sizeof *all);
    assert_non_null(all);
    for (size_t r = 0; r < rows; r++)
        mxc_tensor_row(t, (int64_t)r, all + r * columns);
    return all;
}

static double *read_weight(const struct mini *m, const struct mxc_weight *w) {
    int64_t slices = w->n_dims - (w->role == MXC_W_VECTOR ? 1 : 2) > 0 ? w->shape[0] : 1;
    int64_t in = w->role == MXC_W_VECTOR ? 1 : w->shape[w->n_dims - 1];
    int64_t out = w->shape[w->n_dims - (w->role == MXC_W_VECTOR ? 1 : 2)];
    double *numbers = calloc((size_t)(slices * out * in), sizeof *numbers);
    assert_non_null(numbers);
    bool many = mxc_weight_tensors(w) > 1;
    for (int64_t s = 0; s < slices; s++) {
        char name[MXC_MAX_WEIGHT_NAME];
        mxc_weight_tensor_name(w, s, name);
        const struct mxc_tensor *t = mxc_weights_find(m->weights, name);
        assert_non_null(t);
        float *all = decode(t);
        if (w->view.flat) { /* of one tensor */
            for (int64_t i = 0; i < slices * out * in; i++)
                numbers[i] = (double)all[i];
            free(all);
            break;
        }
        int64_t columns = w->role == MXC_W_VECTOR ? 1 : mxc_tensor_columns(t);
        for (int64_t r = 0; r < out; r++)
            for (int64_t c = 0; c < in; c++) {
                const struct mxc_weight_view *v = &w->view;
                int64_t row = (many ? 0 : s * out) + r, column = c;
                if (v->n_dims && v->transposed) {
                    row = v->row0 + s * v->stride + c;
                    column = v->col0 + r * v->col_step;
                } else if (v->n_dims) {
                    row = v->row0 + s * v->stride + r * v->row_step;
                }
                numbers[(s * out + r) * in + c] = (double)all[row * columns + column];
            }
        free(all);
    }
    return numbers;
}

void mini_open(struct mini *m, struct mxc_graph *graph, int32_t logits, enum mxc_storage storage) {
    struct mxc_err err;
    enum mxc_code code = mxc_graph_finish(graph, logits, &err);
    if (code)
        print_message("%s\n", err.message);
    assert_int_equal(code, MXC_OK);
    *m = (struct mini){.graph = graph};
    mini_write(graph, storage, NULL, &m->weights);
    m->numbers = calloc((size_t)graph->n_weights, sizeof *m->numbers);
    assert_non_null(m->numbers);
    for (int32_t i = 0; i < graph->n_weights; i++)
        m->numbers[i] = read_weight(m, &graph->weights[i]);
}

void mini_close(struct mini *m) {
    for (int32_t i = 0; i < m->graph->n_weights; i++)
        free(m->numbers[i]);
    free(m->numbers);
    mxc_graph_free(m->graph);
    mxc_weights_close(m->weights);
}

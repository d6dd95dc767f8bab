/* mlxcel inspect: architecture, tensors, quantisation, and the memory a checkpoint would take.
 * In: a model's config and weights, read through format/. Out: a report as text or as one JSON
 * object.
 * It works for architectures that cannot run: config and tensors are read without a family, and why
 * the estimate was refused is part of the report.
 * Invariant: what was opened is closed in run(), whichever step failed. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "base/mem.h"
#include "cli/options.h"
#include "cli/term.h"
#include "format/config.h"
#include "format/weights.h"
#include "surgery/surgery.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect {
    struct mxc_model_args model_args;
    int64_t context, batch;
    bool json, tensors, graph;
    const char *image_size;
    int64_t image_max_pixels;
    struct mlxcel_image_cost image; /* width 0: not asked for, or the model does not see */
    bool sees;
    char *path;
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_surgery *surgery; /* NULL: none */
    struct mlxcel_memory memory;
    struct mlxcel_family family; /* name NULL: not supported */
    struct mlxcel_error refused; /* why memory could not be estimated */
};

static bool in_list(const char *const *names, const char *name) {
    for (size_t i = 0; names && names[i]; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

static void find_family(struct inspect *s) {
    struct mlxcel_family f;
    for (size_t i = 0; mlxcel_family_at(i, &f); i++)
        if (in_list(f.model_types, s->config->model_type) ||
            (s->config->from_gguf && in_list(f.gguf_archs, s->config->model_type))) {
            s->family = f;
            return;
        }
}

static uint64_t numbers(const struct mxc_tensor *t) {
    return (uint64_t)mxc_tensor_rows(t) * (uint64_t)mxc_tensor_columns(t);
}

static uint64_t file_bytes(const struct mxc_tensor *t) {
    return (uint64_t)t->bytes + t->companion_bytes;
}

struct share {
    char name[MXC_STORAGE_NAME];
    uint64_t bytes, n;
};

/* Bytes and tensors per storage, largest first. Returns the number of entries. */
static size_t storages(const struct mxc_weights *weights, struct share *out, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        char name[MXC_STORAGE_NAME];
        size_t k = 0;
        mxc_tensor_storage_name(t, name);
        while (k < n && strcmp(out[k].name, name))
            k++;
        if (k == n && n < max) {
            out[n] = (struct share){0};
            memcpy(out[n++].name, name, sizeof name);
        }
        if (k < n) {
            out[k].bytes += file_bytes(t);
            out[k].n++;
        }
    }
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j && out[j].bytes > out[j - 1].bytes; j--) {
            struct share swap = out[j];
            out[j] = out[j - 1];
            out[j - 1] = swap;
        }
    return n;
}

static uint64_t parameters(const struct mxc_weights *weights) {
    uint64_t n = 0;
    for (size_t i = 0; i < mxc_weights_count(weights); i++)
        n += numbers(mxc_weights_at(weights, i));
    return n;
}

static json_t *tensors_json(const struct mxc_weights *weights) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        char name[MXC_STORAGE_NAME];
        mxc_tensor_storage_name(t, name);
        json_t *shape = json_array();
        for (int d = 0; shape && d < t->n_dims; d++)
            (void)json_array_append_new(shape, json_integer(t->shape[d]));
        (void)json_array_append_new(array, json_pack("{s:s, s:s, s:o, s:I}", "name", t->name,
                                                     "storage", name, "shape", shape, "bytes",
                                                     (json_int_t)file_bytes(t)));
    }
    return array;
}

static json_t *surgery_json(const struct mxc_surgery *surgery) {
    json_t *list = json_array();
    struct mxc_surgery_note note;
    for (size_t i = 0; list && mxc_surgery_note(surgery, i, &note); i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:I, s:o}", "op", note.op,
                                                    "pattern", mxc_term_json(note.pattern),
                                                    "detail", mxc_term_json(note.detail), "tensors",
                                                    (json_int_t)note.n_tensors, "left_alone",
                                                    mxc_term_json(note.left)));
    return json_pack("{s:o, s:o, s:I}", "path", mxc_term_json(mxc_surgery_file(surgery, 0)),
                     "operations", list, "bytes", (json_int_t)mxc_surgery_bytes(surgery));
}

static json_t *memory_json(const struct inspect *s) {
    const struct mlxcel_memory *m = &s->memory;
    return json_pack("{s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:b}",
                     "context", (json_int_t)s->context, "batch", (json_int_t)s->batch,
                     "weights_bytes", (json_int_t)m->weights, "kv_bytes_total", (json_int_t)m->kv,
                     "kv_bytes", "full", (json_int_t)m->kv_full, "window", (json_int_t)m->kv_window,
                     "latent", (json_int_t)m->kv_latent, "cross", (json_int_t)m->kv_cross,
                     "kv_bytes_per_token", (json_int_t)m->kv_per_token, "activation_bytes",
                     (json_int_t)m->activations, "overhead_bytes", (json_int_t)m->overhead,
                     "total_bytes", (json_int_t)m->total, "budget_bytes", (json_int_t)m->available,
                     "fits", m->fits);
}

static int print_json(const struct inspect *s) {
    struct share shares[64];
    size_t n = storages(s->weights, shares, MXC_COUNT(shares));
    json_t *quantisation = json_array();
    for (size_t i = 0; quantisation && i < n; i++)
        (void)json_array_append_new(
            quantisation, json_pack("{s:s, s:I, s:I}", "storage", shares[i].name, "tensors",
                                    (json_int_t)shares[i].n, "bytes", (json_int_t)shares[i].bytes));
    json_t *o =
        json_pack("{s:o, s:s, s:s?, s:b, s:s, s:I, s:I, s:I, s:o}", "path", mxc_term_json(s->path),
                  "model_type", s->config->model_type, "family", s->family.name, "supported",
                  !s->refused.status, "format", s->config->from_gguf ? "gguf" : "safetensors",
                  "parameters", (json_int_t)parameters(s->weights), "file_bytes",
                  (json_int_t)mxc_weights_bytes(s->weights), "max_position_embeddings",
                  (json_int_t)s->config->max_position, "quantization", quantisation);
    if (o && s->refused.status)
        (void)json_object_set_new(o, "refused", mxc_term_json(s->refused.message));
    else if (o)
        (void)json_object_set_new(o, "memory", memory_json(s));
    if (o && s->sees)
        (void)json_object_set_new(
            o, "vision",
            json_pack("{s:s, s:i, s:i, s:i, s:I, s:i, s:I, s:I}", "image_size", s->image_size,
                      "width", s->image.width, "height", s->image.height, "tiles", s->image.tiles,
                      "patches", (json_int_t)s->image.patches, "tokens", s->image.tokens, "bytes",
                      (json_int_t)s->image.bytes, "max_pixels", (json_int_t)s->image.max_pixels));
    if (o && s->surgery)
        (void)json_object_set_new(o, "surgery", surgery_json(s->surgery));
    if (o)
        (void)json_object_set_new(o, "tensors", tensors_json(s->weights));
    return mxc_term_put_json(o);
}

static void print_config(const struct inspect *s) {
    static const char *const keys[] = {
        "num_hidden_layers",   "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "head_dim",    "vocab_size",        "sliding_window"};
    for (size_t i = 0; i < MXC_COUNT(keys); i++) {
        const json_t *v = json_object_get(s->config->text, keys[i]);
        if (json_is_integer(v))
            (void)printf("%-22s %" JSON_INTEGER_FORMAT "\n", keys[i], json_integer_value(v));
    }
}

static void print_tensors(const struct mxc_weights *weights) {
    for (size_t i = 0; i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        char storage[MXC_STORAGE_NAME], size[16];
        mxc_tensor_storage_name(t, storage);
        (void)printf("%-56s %-20s %9s  [", t->name, storage, mxc_term_size(file_bytes(t), size));
        for (int d = 0; d < t->n_dims; d++)
            (void)printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
        (void)puts("]");
    }
}

/* "268 MB (full 200 MB, window 68 MB; 32.8 kB a token)" */
static void print_kv(const struct mlxcel_memory *m) {
    const struct {
        const char *name;
        uint64_t bytes;
    } kinds[] = {{"full", m->kv_full},
                 {"window", m->kv_window},
                 {"latent", m->kv_latent},
                 {"cross", m->kv_cross}};
    char size[16];
    (void)printf("KV %s (", mxc_term_size(m->kv, size));
    for (size_t i = 0; i < MXC_COUNT(kinds); i++)
        if (kinds[i].bytes)
            (void)printf("%s %s, ", kinds[i].name, mxc_term_size(kinds[i].bytes, size));
    (void)printf("%s a token)", mxc_term_size(m->kv_per_token, size));
}

static void print_memory(const struct inspect *s) {
    const struct mlxcel_memory *m = &s->memory;
    char a[16], b[16];
    (void)printf("memory at context %" PRId64 ", batch %" PRId64 "\n", s->context, s->batch);
    (void)printf("  weights %s, ", mxc_term_size(m->weights, a));
    print_kv(m);
    (void)printf(", activations %s", mxc_term_size(m->activations, b));
    (void)printf(", overhead %s\n", mxc_term_size(m->overhead, b));
    (void)printf("  total %s of %s available: %s\n", mxc_term_size(m->total, a),
                 mxc_term_size(m->available, b), m->fits ? "fits" : "does not fit");
}

static void print_vision(const struct inspect *s) {
    const struct mlxcel_image_cost *v = &s->image;
    char size[16];
    if (!s->sees)
        return;
    (void)printf("%-22s pictures; one of %s is seen as %d x %d", "vision", s->image_size, v->width,
                 v->height);
    if (v->tiles > 1)
        (void)printf(" in %d tiles", v->tiles);
    (void)printf(": %" PRId64 " patches, %d tokens, %s", v->patches, v->tokens,
                 mxc_term_size(v->bytes, size));
    if (v->max_pixels)
        (void)printf("; at most %" PRId64 " pixels (--image-max-pixels)", v->max_pixels);
    (void)putchar('\n');
}

static void print_surgery(const struct inspect *s) {
    struct mxc_surgery_note note;
    char size[16];
    if (!s->surgery)
        return;
    (void)printf("%-22s %s, %s of changed tensors\n", "surgery", mxc_surgery_file(s->surgery, 0),
                 mxc_term_size(mxc_surgery_bytes(s->surgery), size));
    for (size_t i = 0; mxc_surgery_note(s->surgery, i, &note); i++)
        (void)printf("  #%zu %-12s %s (%s): %zu tensors%s%s\n", i, note.op, note.pattern,
                     note.detail, note.n_tensors, *note.left ? "; " : "", note.left);
}

static void print_text(const struct inspect *s) {
    struct share shares[64];
    size_t n = storages(s->weights, shares, MXC_COUNT(shares));
    char size[16];
    (void)printf("%-22s %s\n", "path", s->path);
    (void)printf("%-22s %s (%s)\n", "architecture", s->config->model_type,
                 s->family.name ? s->family.summary : "not supported");
    (void)printf("%-22s %s\n", "format", s->config->from_gguf ? "GGUF" : "safetensors");
    (void)printf("%-22s %.1f million\n", "parameters", (double)parameters(s->weights) / 1e6);
    (void)printf("%-22s %s\n", "tensor data", mxc_term_size(mxc_weights_bytes(s->weights), size));
    (void)printf("%-22s %" PRId64 "\n", "context", s->config->max_position);
    print_config(s);
    (void)printf("quantisation\n");
    for (size_t i = 0; i < n; i++)
        (void)printf("  %-26s %4" PRIu64 " tensors %10s\n", shares[i].name, shares[i].n,
                     mxc_term_size(shares[i].bytes, size));
    if (s->refused.status)
        (void)printf("cannot be run: %s\n", s->refused.message);
    else
        print_memory(s);
    print_vision(s);
    print_surgery(s);
    if (s->tensors)
        print_tensors(s->weights);
}

/* What a picture costs: of the size that was asked for, else of 1024 x 768 when the model sees. */
static int read_image(struct inspect *s, const struct mlxcel_model_options *options) {
    struct mlxcel_error error;
    int width = 1024, height = 768, end = 0;
    if (s->image_size && (sscanf(s->image_size, "%8dx%8d%n", &width, &height, &end) != 2 ||
                          s->image_size[end] || width < 1 || height < 1))
        return mxc_term_usage("inspect", "--image-size: \"%s\" is not WIDTHxHEIGHT", s->image_size);
    mlxcel_status status = mlxcel_image_estimate(s->path, options, width, height,
                                                 s->image_max_pixels, &s->image, &error);
    s->sees = !status;
    if (status && s->image_size)
        return mxc_term_fail(&error);
    if (!s->image_size)
        s->image_size = "1024x768";
    return 0;
}

/* On the weights that are shown, as loading does it. */
static enum mxc_code operate(struct inspect *s, struct mxc_err *err) {
    const char *path = s->model_args.surgery;
    if (!path)
        path = getenv("MLXCEL_SURGERY");
    if (!path || !*path)
        return MXC_OK;
    enum mxc_code code = mxc_surgery_open(path, &s->surgery, err);
    return code ? code : mxc_surgery_apply(s->surgery, s->config, s->weights, err);
}

static int inspect(struct inspect *s, const struct mlxcel_model_options *options) {
    struct mxc_err err;
    if (mxc_config_open(s->path, &s->config, &err) ||
        mxc_weights_open(s->path, s->config, &s->weights, &err) || operate(s, &err))
        return mxc_term_err(&err);
    find_family(s);
    if (!mlxcel_model_estimate(s->path, options, s->context, (int)s->batch, &s->memory,
                               &s->refused))
        s->refused.status = MLXCEL_OK;
    int status = read_image(s, options);
    if (status)
        return status;
    if (s->json)
        return print_json(s);
    print_text(s);
    return 0;
}

static int print_graph(const struct inspect *s, const struct mlxcel_model_options *options) {
    struct mlxcel_error error;
    char *text = NULL;
    if (mlxcel_model_graph(s->path, options, &text, &error))
        return mxc_term_fail(&error);
    (void)fputs(text, stdout);
    mlxcel_free(text);
    return 0;
}

static int run(int argc, char **argv) {
    struct inspect s = {.context = 8192, .batch = 1};
    const char *words[1];
    bool exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_INT, "-c, -n, --context, --ctx-size", "N",
         "tokens of a sequence for the estimate (8192)", &s.context, 1, 1 << 30, NULL},
        {MXC_ARG_INT, "--batch", "N", "sequences for the estimate (1)", &s.batch, 1, 1024, NULL},
        {MXC_ARG_FLAG, "--tensors", NULL, "list every tensor", &s.tensors, 0, 0, NULL},
        {MXC_ARG_FLAG, "--graph", NULL, "print the model as a list of ops, and nothing else",
         &s.graph, 0, 0, NULL},
        {MXC_ARG_TEXT, "--image-size", "WxH", "what a picture of that size costs a model that sees",
         &s.image_size, 0, 0, NULL},
        {MXC_ARG_INT, "--image-max-pixels", "N",
         "of a picture after resizing (the model's, at most 1048576)", &s.image_max_pixels, 0,
         INT64_C(1) << 40, NULL},
        {MXC_ARG_FLAG, "--json", NULL, "one JSON object", &s.json, 0, 0, NULL},
        {MXC_ARG_TEXT, "--precision", "P", "auto, exact or fast", &s.model_args.precision, 0, 0,
         NULL},
        MXC_BACKEND_ARGS(&s.model_args),
        MXC_SURGERY_ARG(&s.model_args),
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &s.model_args.models_dir, 0, 0, NULL},
    };
    int n = mxc_args_parse(&mxc_command_inspect, args, MXC_COUNT(args), argc, argv, words, 1,
                           &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("inspect", "MODEL is missing");
    struct mlxcel_model_options options;
    int status = mxc_options_model("inspect", &s.model_args, &options);
    if (!status)
        status = mxc_options_resolve(&s.model_args, words[0], &s.path);
    if (!status)
        status = s.graph ? print_graph(&s, &options) : inspect(&s, &options);
    mxc_weights_close(s.weights);
    mxc_surgery_close(s.surgery);
    mxc_config_close(s.config);
    mxc_mem_free(s.path);
    return status;
}

const struct mxc_command mxc_command_inspect = {
    "inspect", "MODEL [options]", "tell architecture, tensors and the memory a model takes", run};

/* Tower pieces: what the graphs of vision towers are made of, and the whole encoder of CLIP and
 * SigLIP, which LLaVA, Gemma 3 and Idefics3 share. In: a vision_config and the names of tensors.
 * Out: nodes of a graph. The file decides what has a bias and whether q, k and v are fused; the
 * shape of a kernel decides how its inputs are laid out, so nothing is transposed twice. */
#include "models/vision_family.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_EXTENT = 1 << 20, MAX_IMAGE = 1 << 14, MAX_PATCH = 1 << 10 };

/* ---- reading configs */

enum mxc_code mxc_vision_ints(const json_t *object, const struct mxc_vision_key *keys, size_t n,
                              struct mxc_err *err) {
    for (size_t i = 0; i < n; i++) {
        int64_t value = keys[i].absent;
        enum mxc_code code = mxc_json_get_int(object, keys[i].key, 1, keys[i].max, &value, err);
        if (code)
            return code;
        if (value < 1)
            return mxc_err_set(err, MXC_E_FORMAT, "%s: missing", keys[i].key);
        *keys[i].out = (int32_t)value;
    }
    return MXC_OK;
}

enum mxc_code mxc_vision_list(const json_t *object, const char *key, const int32_t range[2],
                              int32_t max, int32_t *out, int32_t *n, struct mxc_err *err) {
    const json_t *list = json_object_get(object, key);
    if (!list || json_is_null(list))
        return MXC_OK;
    if (!json_is_array(list) || json_array_size(list) > (size_t)max)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not a list of at most %d numbers", key, max);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        int64_t x = json_is_integer(item) ? json_integer_value(item) : INT64_MIN;
        if (x < range[0] || x > range[1])
            return mxc_err_set(err, MXC_E_FORMAT, "%s[%zu]: not an integer in [%d, %d]", key, i,
                               range[0], range[1]);
        out[i] = (int32_t)x;
    }
    *n = (int32_t)json_array_size(list);
    return MXC_OK;
}

/* ---- pieces */

#define NAME(name, fmt)                                                                            \
    char name[MXC_MAX_WEIGHT_NAME];                                                                \
    do {                                                                                           \
        va_list ap;                                                                                \
        va_start(ap, fmt);                                                                         \
        (void)vsnprintf(name, sizeof name, fmt, ap);                                               \
        va_end(ap);                                                                                \
    } while (0)

static const struct mxc_tensor *find(const struct mxc_tower_build *t, const char *name,
                                     const char *what) {
    char full[MXC_MAX_WEIGHT_NAME];
    int n = snprintf(full, sizeof full, "%s%s", name, what);
    return n > 0 && (size_t)n < sizeof full ? mxc_weights_find(t->weights, full) : NULL;
}

bool mxc_tower_has(const struct mxc_tower_build *t, const char *fmt, ...) {
    NAME(name, fmt);
    return mxc_weights_find(t->weights, name) != NULL;
}

static int32_t bias_of(const struct mxc_tower_build *t, const char *name, int64_t n) {
    return find(t, name, ".bias") ? mxc_graph_vector(t->g, n, "%s.bias", name) : MXC_NONE;
}

static struct mxc_linear_part part(const struct mxc_tower_build *t, const char *name, int64_t out,
                                   int64_t in) {
    return (struct mxc_linear_part){mxc_graph_matrix(t->g, out, in, "%s.weight", name),
                                    bias_of(t, name, out)};
}

static int64_t width_of(const struct mxc_tower_build *t, int32_t x) {
    return x < t->g->n_values ? t->g->values[x].width : 1;
}

static int32_t linear(const struct mxc_tower_build *t, int32_t x, int64_t out, int32_t residual,
                      const char *name) {
    struct mxc_linear_part p = part(t, name, out, width_of(t, x));
    return mxc_graph_linear(t->g, x, 1, &p, 1, residual);
}

int32_t mxc_tower_linear(const struct mxc_tower_build *t, int32_t x, int64_t out, int32_t residual,
                         const char *fmt, ...) {
    NAME(name, fmt);
    return linear(t, x, out, residual, name);
}

int32_t mxc_tower_layer_norm(const struct mxc_tower_build *t, int32_t x, const char *fmt, ...) {
    NAME(name, fmt);
    int64_t n = width_of(t, x);
    int32_t w = mxc_graph_vector(t->g, n, "%s.weight", name);
    return mxc_graph_layer_norm(t->g, x, w, bias_of(t, name, n), t->eps);
}

int32_t mxc_tower_rms_norm(const struct mxc_tower_build *t, int32_t x, const char *fmt, ...) {
    NAME(name, fmt);
    int32_t w = mxc_graph_vector(t->g, width_of(t, x), "%s.weight", name);
    return mxc_graph_rms_norm(t->g, x, w, t->eps, 0);
}

/* [out, channels, (time,) y, x], channels last, or flattened already. */
static bool kernel_shape(const struct mxc_tensor *kernel, const struct mxc_vision_shape *shape,
                         struct mxc_weight_view *view, bool *channels_last) {
    int64_t p = shape->patch, time = shape->temporal, all = 3 * time * p * p;
    int first = time > 1 ? 5 : 4;
    *view = (struct mxc_weight_view){.n_dims = kernel->n_dims, .row_step = 1, .flat = true};
    memcpy(view->shape, kernel->shape, sizeof kernel->shape[0] * (size_t)kernel->n_dims);
    *channels_last = false;
    if (kernel->n_dims == 2)
        return kernel->shape[1] == all;
    if (kernel->n_dims != first || kernel->shape[1] * kernel->shape[2] * kernel->shape[3] *
                                           (first == 5 ? kernel->shape[4] : 1) !=
                                       all)
        return false;
    *channels_last = kernel->shape[1] != 3 && kernel->shape[first - 1] == 3;
    return kernel->shape[1] == 3 || *channels_last;
}

int32_t mxc_tower_patches(const struct mxc_tower_build *t, const struct mxc_vision_shape *shape,
                          bool *channels_last, const char *fmt, ...) {
    NAME(name, fmt);
    int64_t in = (int64_t)3 * shape->temporal * shape->patch * shape->patch;
    int32_t x = mxc_graph_input(t->g, (int32_t)in);
    const struct mxc_tensor *kernel = find(t, name, ".weight");
    const struct mxc_weight matrix = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {t->hidden, in}};
    struct mxc_weight_view view;
    if (!kernel || !kernel_shape(kernel, shape, &view, channels_last)) {
        mxc_graph_fail(t->g, MXC_E_FORMAT, "tensor %s.weight: no kernel of %d x %d pixels%s", name,
                       shape->patch, shape->patch, kernel ? "" : " (missing)");
        return 0;
    }
    struct mxc_linear_part p = {mxc_graph_view(t->g, &matrix, &view, "%s.weight", name),
                                bias_of(t, name, t->hidden)};
    return mxc_graph_linear(t->g, x, 1, &p, 1, MXC_NONE);
}

int32_t mxc_tower_table(const struct mxc_tower_build *t, int64_t rows, const char *fmt, ...) {
    NAME(name, fmt);
    const struct mxc_tensor *tensor = find(t, name, "");
    if (!tensor || (tensor->n_dims == 2 && tensor->shape[0] == rows))
        return mxc_graph_table(t->g, rows, t->hidden, "%s", name);
    const struct mxc_weight table = {.role = MXC_W_TABLE, .n_dims = 2, .shape = {rows, t->hidden}};
    struct mxc_weight_view view = {.n_dims = tensor->n_dims, .row_step = 1, .flat = true};
    memcpy(view.shape, tensor->shape, sizeof tensor->shape[0] * (size_t)tensor->n_dims);
    return mxc_graph_view(t->g, &table, &view, "%s", name);
}

int32_t mxc_tower_attention(const struct mxc_tower_build *t, int32_t x, int32_t residual,
                            const char *name) {
    static const char *const fused[] = {"qkv", "qkv_proj"};
    static const char *const apart[][3] = {{"q_proj", "k_proj", "v_proj"}, {"q", "k", "v"}};
    static const char *const outs[] = {"proj", "out_proj", "o_proj"};
    struct mxc_linear_part parts[3];
    char full[MXC_MAX_WEIGHT_NAME];
    const char *out = outs[0];
    int n = 0, spelling = mxc_tower_has(t, "%s.q.weight", name);
    for (size_t i = 0; i < sizeof fused / sizeof *fused && !n; i++) {
        if (mxc_tower_has(t, "%s.%s.weight", name, fused[i])) {
            (void)snprintf(full, sizeof full, "%s.%s", name, fused[i]);
            parts[n++] = part(t, full, 3 * (int64_t)t->hidden, t->hidden);
        }
    }
    for (int i = 0; i < 3 && n == i; i++) {
        (void)snprintf(full, sizeof full, "%s.%s", name, apart[spelling][i]);
        parts[n++] = part(t, full, t->hidden, t->hidden);
    }
    int32_t head_dim = t->hidden / t->heads;
    struct mxc_attend_attr attr = {.n_heads = t->heads,
                                   .head_dim = head_dim,
                                   .scale = (float)(1 / sqrt((double)head_dim)),
                                   .rope = t->rope,
                                   .positions = t->positions,
                                   .range = t->range};
    x = mxc_graph_attend(t->g, mxc_graph_linear(t->g, x, n, parts, 1, MXC_NONE), &attr);
    for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
        if (mxc_tower_has(t, "%s.%s.weight", name, outs[i]))
            out = outs[i];
    }
    return mxc_tower_linear(t, x, t->hidden, residual, "%s.%s", name, out);
}

int32_t mxc_tower_mlp(const struct mxc_tower_build *t, int32_t x, int32_t residual, const char *up,
                      const char *down) {
    x = mxc_graph_act(t->g, linear(t, x, t->ffn, MXC_NONE, up), t->act);
    return linear(t, x, t->hidden, residual, down);
}

void mxc_tower_rope_2d(struct mxc_tower_build *t, int32_t rows_of) {
    int32_t dims = t->hidden / t->heads;
    struct mxc_rope rope = {
        .dims = dims, .theta = t->theta, .sections = {dims / 4, dims / 4, 0}, .restart = true};
    if (dims % 4)
        mxc_graph_fail(t->g, MXC_E_UNSUPPORTED,
                       "vision_config: heads of %d numbers do not divide into four", dims);
    t->rope = mxc_graph_rope(t->g, &rope);
    t->positions = mxc_graph_index(t->g, rows_of, 2, false);
}

/* ---- the encoder of CLIP and SigLIP */

enum mxc_code mxc_encoder_read(const struct mxc_vision_source *source, const char *type,
                               struct mxc_encoder *e, struct mxc_err *err) {
    struct mxc_vision_shape *s = &source->into->shape;
    enum mxc_code code = mxc_json_get_string(source->vision, "model_type", &type, err);
    if (code)
        return code;
    bool clip = strstr(type, "clip_vision") && !strstr(type, "siglip");
    bool idefics = strstr(type, "idefics3") || strstr(type, "smolvlm");
    if (!clip && !idefics && !strstr(type, "siglip_vision"))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "model_type: \"%.60s\" is not supported", type);
    int32_t channels;
    const struct mxc_vision_key keys[] = {
        {"hidden_size", &e->t.hidden, idefics ? 1152 : 768, MAX_EXTENT},
        {"intermediate_size", &e->t.ffn, 3072, MAX_EXTENT},
        {"num_hidden_layers", &e->t.layers, 12, MAX_LAYERS},
        {"num_attention_heads", &e->t.heads, idefics ? 16 : 12, MAX_EXTENT},
        {"image_size", &s->image, 224, MAX_IMAGE},
        {"patch_size", &s->patch, clip || idefics ? 32 : 16, MAX_PATCH},
        {"num_channels", &channels, 3, 3},
    };
    double eps = clip ? 1e-5 : 1e-6;
    if ((code = mxc_vision_ints(source->vision, keys, sizeof keys / sizeof *keys, err)) ||
        (code = mxc_json_get_real(source->vision, "layer_norm_eps", &eps, err)) ||
        (code = mxc_read_act(source->vision, "hidden_act",
                             clip ? "quick_gelu" : "gelu_pytorch_tanh", &e->t.act, err)))
        return code;
    if (channels != 3 || !(eps >= 0 && eps < 1))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "num_channels or layer_norm_eps: out of range");
    if (e->t.hidden % e->t.heads || s->image < s->patch)
        return mxc_err_set(
            err, MXC_E_FORMAT,
            "num_attention_heads does not divide hidden_size, or patch_size is above "
            "image_size");
    e->t.g = source->into->tower;
    e->t.weights = source->weights;
    e->t.eps = (float)eps;
    e->t.rope = e->t.positions = MXC_NONE;
    e->shape = s;
    e->prefix = source->prefix;
    s->temporal = s->merge = 1;
    s->table = s->image / s->patch;
    s->class_row = clip;
    return MXC_OK;
}

static int32_t encoder_layer(const struct mxc_encoder *e, int32_t x, int32_t layer) {
    const struct mxc_tower_build *t = &e->t;
    char name[4][MXC_MAX_WEIGHT_NAME];
    static const char *const modules[] = {"self_attn", "mlp.fc1", "mlp.fc2"};
    for (int i = 0; i < 3; i++)
        (void)snprintf(name[i], sizeof name[i], "%sencoder.layers.%d.%s", e->prefix, layer,
                       modules[i]);
    int32_t y = mxc_tower_layer_norm(t, x, "%sencoder.layers.%d.layer_norm1", e->prefix, layer);
    x = mxc_tower_attention(t, y, x, name[0]);
    y = mxc_tower_layer_norm(t, x, "%sencoder.layers.%d.layer_norm2", e->prefix, layer);
    return mxc_tower_mlp(t, y, x, name[1], name[2]);
}

int32_t mxc_encoder_build(struct mxc_encoder *e, int32_t n_layers, int32_t *values) {
    struct mxc_tower_build *t = &e->t;
    int64_t rows = (int64_t)e->shape->table * e->shape->table + e->shape->class_row;
    int32_t x = mxc_tower_patches(t, e->shape, &e->shape->channels_last,
                                  "%sembeddings.patch_embedding", e->prefix);
    int32_t positions = mxc_graph_index(t->g, x, 1, false);
    t->range = mxc_graph_range(t->g, x);
    if (e->shape->class_row) {
        int32_t classes = mxc_graph_index(t->g, x, 1, false);
        int32_t table = mxc_tower_table(t, 1, "%sembeddings.class_embedding", e->prefix);
        x = mxc_graph_lookup(t->g, x, table, classes, MXC_NONE, false);
    }
    int32_t table = mxc_tower_table(t, rows, "%sembeddings.position_embedding.weight", e->prefix);
    x = mxc_graph_lookup(t->g, x, table, positions, MXC_NONE, false);
    if (e->shape->class_row) {
        bool typo = !mxc_tower_has(t, "%spre_layernorm.weight", e->prefix);
        x = mxc_tower_layer_norm(t, x, "%s%s", e->prefix, typo ? "pre_layrnorm" : "pre_layernorm");
    }
    n_layers = n_layers < 0 || n_layers > t->layers ? t->layers : n_layers;
    for (int32_t i = 0; i < n_layers; i++) {
        if (values)
            values[i] = x;
        mxc_graph_begin_layer(t->g, i);
        x = encoder_layer(e, x, i);
    }
    mxc_graph_begin_layer(t->g, MXC_NONE);
    if (values)
        values[n_layers] = x;
    return x;
}

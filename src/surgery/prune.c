/* Prune: zeros where heads, layers or MLP channels were. In: a matched tensor, whose part in its
 * block is told by its name. Out: the tensor with rows or columns that read as zeros; shapes stay.
 * Invariants: heads are query heads; key and value rows are left alone, since other heads share
 * them; what begins or ends inside of a quantisation group is an error and never rounded. */
#include "surgery/private.h"

#include <stdlib.h>
#include <string.h>

/* ---- names and the config */

/* Whether the tensor belongs to the vision part. */
static bool is_vision(const char *name) {
    return strstr(name, "vision") || strstr(name, "visual");
}

/* The first of the keys that is a positive integer; 0: none. */
static int64_t count_of(const struct mxc_patient *p, bool vision, const char *const *keys) {
    const json_t *from = vision ? json_object_get(p->config->root, "vision_config")
                                : (const json_t *)p->config->text;
    for (; *keys; keys++) {
        json_int_t n = json_integer_value(json_object_get(from, *keys));
        if (n > 0)
            return (int64_t)n;
    }
    return 0;
}

/* N of "....layers.N.rest"; -1: the tensor is in no layer. */
static int64_t layer_of(const char *name) {
    static const char *const words[] = {"layers", "layer", "blocks", "block", "h", "resblocks"};
    enum { N_WORDS = sizeof words / sizeof *words };
    for (const char *at = name; at; at = strchr(at, '.'), at = at ? at + 1 : NULL) {
        for (int i = 0; i < N_WORDS; i++) {
            size_t n = strlen(words[i]);
            if (strncmp(at, words[i], n) || at[n] != '.' || at[n + 1] < '0' || at[n + 1] > '9')
                continue;
            char *end;
            long long layer = strtoll(at + n + 1, &end, 10);
            if (*end == '.' || !*end)
                return layer;
        }
    }
    return -1;
}

/* What a tensor does in its block. */
enum role { OTHER, SILENT, HEAD_ROWS, HEAD_COLUMNS, QKV_ROWS, KEYS_VALUES, UP, DOWN, GATE_UP };

/* The module's own name: "q_proj" of "model.layers.0.self_attn.q_proj.weight". */
static struct mxc_str module_of(const char *name, bool *bias) {
    struct mxc_str s = mxc_str_of(name);
    *bias = mxc_str_ends(s, ".bias");
    const char *dot = strrchr(name, '.');
    if (dot && (*bias || mxc_str_ends(s, ".weight")))
        s.length = (size_t)(dot - name);
    size_t at = s.length;
    while (at && s.ptr[at - 1] != '.')
        at--;
    return (struct mxc_str){s.ptr + at, s.length - at};
}

static enum role role_of(const char *name, enum mxc_prune unit, bool *bias) {
    static const struct {
        const char *module;
        enum mxc_prune unit;
        enum role role;
        bool attention; /* only below a module of attention */
    } roles[] = {
        {"q_proj", MXC_PRUNE_HEAD, HEAD_ROWS, false},
        {"q_b_proj", MXC_PRUNE_HEAD, HEAD_ROWS, false},
        {"query", MXC_PRUNE_HEAD, HEAD_ROWS, false},
        {"o_proj", MXC_PRUNE_HEAD, HEAD_COLUMNS, false},
        {"out_proj", MXC_PRUNE_HEAD, HEAD_COLUMNS, false},
        {"proj", MXC_PRUNE_HEAD, HEAD_COLUMNS, true},
        {"dense", MXC_PRUNE_HEAD, HEAD_COLUMNS, true},
        {"qkv", MXC_PRUNE_HEAD, QKV_ROWS, false},
        {"qkv_proj", MXC_PRUNE_HEAD, QKV_ROWS, false},
        {"query_key_value", MXC_PRUNE_HEAD, QKV_ROWS, false},
        {"k_proj", MXC_PRUNE_HEAD, KEYS_VALUES, false},
        {"v_proj", MXC_PRUNE_HEAD, KEYS_VALUES, false},
        {"kv_b_proj", MXC_PRUNE_HEAD, KEYS_VALUES, false},
        {"key", MXC_PRUNE_HEAD, KEYS_VALUES, false},
        {"value", MXC_PRUNE_HEAD, KEYS_VALUES, false},
        {"gate_proj", MXC_PRUNE_CHANNEL, UP, false},
        {"up_proj", MXC_PRUNE_CHANNEL, UP, false},
        {"fc1", MXC_PRUNE_CHANNEL, UP, false},
        {"linear_fc1", MXC_PRUNE_CHANNEL, UP, false},
        {"w1", MXC_PRUNE_CHANNEL, UP, false},
        {"w3", MXC_PRUNE_CHANNEL, UP, false},
        {"down_proj", MXC_PRUNE_CHANNEL, DOWN, false},
        {"fc2", MXC_PRUNE_CHANNEL, DOWN, false},
        {"linear_fc2", MXC_PRUNE_CHANNEL, DOWN, false},
        {"w2", MXC_PRUNE_CHANNEL, DOWN, false},
        {"gate_up_proj", MXC_PRUNE_CHANNEL, GATE_UP, false},
    };
    const struct mxc_str module = module_of(name, bias);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (roles[i].unit == unit && mxc_str_is(module, roles[i].module) &&
            (!roles[i].attention || strstr(name, "attn") || strstr(name, "attention")))
            return roles[i].role;
    for (size_t i = 0; i + 4 <= module.length; i++)
        if (!memcmp(module.ptr + i, "norm", 4))
            return SILENT; /* of a head's width, shared by the heads */
    return OTHER;
}

/* ---- zeros */

/* Numbers of a row that can be zeroed apart from others; 0: rows share their scales. */
static int64_t granule(const struct mxc_tensor *t, bool columns) {
    const struct mxc_quant_parts *parts = t->parts;
    if (t->storage == MXC_ST_MLX_AFFINE)
        return t->group;
    if (!parts)
        return mxc_storage_info(t->storage)->block;
    if (parts->scale_rows != 1 || (!parts->scale_step_r && mxc_tensor_rows(t) > 1) ||
        (columns && parts->order))
        return 0;
    return (int64_t)parts->group;
}

/* Columns [from, from + n) of a row, both multiples of the granule. */
static void zero_span(const struct mxc_tensor *t, const struct mxc_cut_memory *m, int64_t row,
                      int64_t from, int64_t n) {
    const struct mxc_storage_info *info = mxc_storage_info(t->storage);
    const struct mxc_quant_parts *parts = t->parts;
    if (!n)
        return;
    if (parts) {
        size_t r = (size_t)row / parts->scale_rows * parts->scale_step_r;
        for (size_t g = (size_t)from / parts->group; g * parts->group < (size_t)(from + n); g++)
            if (g < parts->n_groups)
                memset(m->scales + (r + g * parts->scale_step_g) * sizeof(float), 0, sizeof(float));
        return;
    }
    if (t->storage == MXC_ST_MLX_AFFINE) {
        size_t width = mxc_storage_info(t->scale_storage)->block_bytes;
        size_t at = (size_t)(row * (mxc_tensor_columns(t) / t->group) + from / t->group) * width;
        memset(m->scales + at, 0, (size_t)(n / t->group) * width);
        memset(m->biases + at, 0, (size_t)(n / t->group) * width);
        return;
    }
    size_t at = (size_t)(mxc_tensor_row_data(t, row) - m->data);
    memset(m->data + at + (size_t)(from / info->block) * info->block_bytes, 0,
           (size_t)(n / info->block) * info->block_bytes);
}

static enum mxc_code zero_all(const struct mxc_patient *p, size_t index) {
    struct mxc_cut_memory m;
    struct mxc_tensor t;
    enum mxc_code code = mxc_cut_own(p, index, &t, &m);
    if (code)
        return code;
    if (t.parts)
        memset(m.scales, 0, m.n_scales * sizeof(float));
    else if (t.storage != MXC_ST_MLX_AFFINE)
        memset(m.data, 0, t.bytes);
    for (int64_t r = 0; t.storage == MXC_ST_MLX_AFFINE && r < mxc_tensor_rows(&t); r++)
        zero_span(&t, &m, r, 0, mxc_tensor_columns(&t));
    return MXC_OK;
}

/* Slices of `width` along an axis of n numbers, one for each id. */
struct slices {
    bool columns; /* or rows */
    int64_t n, width;
    int64_t repeats; /* the same rows again in each of so many parts (experts) */
};

static enum mxc_code zero_slices(const struct mxc_patient *p, const struct mxc_cut *cut,
                                 size_t index, const struct slices *s) {
    const struct mxc_tensor *before = mxc_weights_at(p->weights, index);
    int64_t unit = granule(before, s->columns);
    struct mxc_cut_memory m;
    struct mxc_tensor t;
    if (!unit)
        return mxc_cut_refuse(p, before, "its rows or columns share scales");
    for (size_t i = 0; s->columns && i < cut->n_ids; i++)
        if (cut->ids[i] * s->width % unit || s->width % unit)
            return mxc_err_set(p->err, MXC_E_ARG,
                               "tensor %s: columns %lld to %lld do not begin and end at a "
                               "multiple of its group of %lld",
                               before->name, (long long)(cut->ids[i] * s->width),
                               (long long)((cut->ids[i] + 1) * s->width - 1), (long long)unit);
    enum mxc_code code = mxc_cut_own(p, index, &t, &m);
    if (code)
        return code;
    for (size_t i = 0; i < cut->n_ids; i++) {
        int64_t first = cut->ids[i] * s->width;
        for (int64_t r = 0; s->columns && r < mxc_tensor_rows(&t); r++)
            zero_span(&t, &m, r, first, s->width);
        for (int64_t k = 0; !s->columns && k < s->repeats; k++)
            for (int64_t r = 0; r < s->width; r++)
                zero_span(&t, &m, k * s->n + first + r, 0, mxc_tensor_columns(&t));
    }
    return MXC_OK;
}

/* ---- units */

static enum mxc_code check_ids(const struct mxc_patient *p, const struct mxc_cut *cut, int64_t n,
                               const char *what, const char *of) {
    if (n <= 0)
        return mxc_err_set(p->err, MXC_E_CONFIG, "the config does not tell the number of %s of %s",
                           what, of);
    for (size_t i = 0; i < cut->n_ids; i++)
        if (cut->ids[i] >= n)
            return mxc_err_set(p->err, MXC_E_ARG, "%s: %lld is not below the %lld %s of %s",
                               mxc_prune_fields[cut->unit], (long long)cut->ids[i], (long long)n,
                               what, of);
    return MXC_OK;
}

static enum mxc_code misfit(const struct mxc_patient *p, const struct mxc_tensor *t, int64_t n,
                            int64_t heads) {
    return mxc_err_set(p->err, MXC_E_FORMAT,
                       "tensor %s: %lld numbers do not divide into %lld heads", t->name,
                       (long long)n, (long long)heads);
}

static enum mxc_code prune_heads(const struct mxc_patient *p, const struct mxc_cut *cut,
                                 size_t index, enum role role) {
    static const char *const heads_keys[] = {"num_attention_heads", "num_heads", "attention_heads",
                                             NULL};
    static const char *const kv_keys[] = {"num_key_value_heads", NULL};
    const struct mxc_tensor *t = mxc_weights_at(p->weights, index);
    bool vision = is_vision(t->name);
    int64_t heads = count_of(p, vision, heads_keys), parts = heads;
    enum mxc_code code = check_ids(p, cut, heads, "heads", vision ? "the vision part" : "the text");
    if (code)
        return code;
    if (role == QKV_ROWS) {
        int64_t kv = count_of(p, vision, kv_keys);
        parts += 2 * (kv ? kv : heads);
    }
    bool columns = role == HEAD_COLUMNS || t->n_dims == 1;
    int64_t n = columns ? mxc_tensor_columns(t) : mxc_tensor_rows(t);
    if (t->n_dims > 2 || !n || n % parts)
        return misfit(p, t, n, parts);
    const struct slices s = {columns, n, n / parts, 1};
    return zero_slices(p, cut, index, &s);
}

static enum mxc_code prune_channels(const struct mxc_patient *p, const struct mxc_cut *cut,
                                    size_t index, enum role role) {
    const struct mxc_tensor *t = mxc_weights_at(p->weights, index);
    struct slices s = {role == DOWN || t->n_dims == 1, mxc_tensor_columns(t), 1, 1};
    if (!s.columns) {
        s.n = t->shape[t->n_dims - 2];
        s.repeats = s.n ? mxc_tensor_rows(t) / s.n : 0;
    }
    enum mxc_code code = check_ids(p, cut, s.n, "channels", t->name);
    return code ? code : zero_slices(p, cut, index, &s);
}

static enum mxc_code prune_layer(const struct mxc_patient *p, const struct mxc_cut *cut,
                                 size_t index, enum mxc_cut_outcome *outcome) {
    static const char *const keys[] = {"num_hidden_layers", "depth", "num_layers", NULL};
    const char *name = mxc_weights_at(p->weights, index)->name;
    int64_t layer = layer_of(name);
    bool vision = is_vision(name);
    if (layer < 0)
        return MXC_OK;
    enum mxc_code code = check_ids(p, cut, count_of(p, vision, keys), "layers",
                                   vision ? "the vision part" : "the text");
    for (size_t i = 0; !code && *outcome != MXC_CUT_CHANGED && i < cut->n_ids; i++)
        if (cut->ids[i] == layer && !(code = zero_all(p, index)))
            *outcome = MXC_CUT_CHANGED;
    return code;
}

enum mxc_code mxc_cut_prune(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                            enum mxc_cut_outcome *outcome) {
    const struct mxc_tensor *t = mxc_weights_at(p->weights, index);
    bool bias;
    *outcome = MXC_CUT_NOTHING;
    if (cut->unit == MXC_PRUNE_LAYER)
        return prune_layer(p, cut, index, outcome);
    enum role role = role_of(t->name, cut->unit, &bias);
    if (role == SILENT || (bias && (role == HEAD_COLUMNS || role == DOWN)))
        return MXC_OK;
    if (role == GATE_UP)
        return mxc_cut_refuse(p, t, "gate and up are one matrix, whose channels are not pruned");
    if (role == OTHER || role == KEYS_VALUES) {
        *outcome = role == OTHER ? MXC_CUT_UNKNOWN : MXC_CUT_SHARED;
        return MXC_OK;
    }
    enum mxc_code code = cut->unit == MXC_PRUNE_HEAD ? prune_heads(p, cut, index, role)
                                                     : prune_channels(p, cut, index, role);
    if (!code)
        *outcome = MXC_CUT_CHANGED;
    return code;
}

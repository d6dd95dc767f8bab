/* MLX affine triplets: X.weight (u32 words), X.scales, X.biases become one tensor X.weight whose
 * shape is the logical one. In: raw tensors and the quantization object. Out: joined tensors with
 * sizes that agree: columns == words * 32 / bits == scales' columns * group. */
#include "format/mlx_join.h"

#include "base/mem.h"
#include "quant/decode.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 1100 };

struct spec {
    int64_t bits, group; /* 0: not given */
    const char *mode;    /* NULL: not given */
    bool skip;           /* the config says that the module is not quantised */
};

struct join {
    struct mxc_tensor *tensors;
    size_t n;
    const struct mxc_map *by_name;
    const json_t *quantization;
    struct mxc_map modules; /* canonical module name -> json_t pointer */
    bool *gone;
    struct mxc_err *err;
};

/* Checkpoints and configs spell the same module with and without "model." and
 * "language_model." in any order: what is left without them names it. */
static struct mxc_str canonical(struct mxc_str s) {
    static const char *const prefixes[] = {"model.", "language_model."};
    for (size_t i = 0; i < 2;) {
        size_t n = strlen(prefixes[i]);
        if (mxc_str_starts(s, prefixes[i])) {
            s.ptr += n;
            s.length -= n;
            i = 0;
        } else {
            i++;
        }
    }
    return s;
}

static enum mxc_code index_modules(struct join *j) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j->quantization, key, value) {
        if (!json_is_object(value) && !json_is_boolean(value))
            continue;
        if (!mxc_map_put_borrowed(&j->modules, canonical(mxc_str_of(key)),
                                  (uint64_t)(uintptr_t)value))
            return mxc_err_nomem(j->err);
    }
    return MXC_OK;
}

static enum mxc_code read_spec(const json_t *object, struct spec *spec, struct mxc_err *err) {
    enum mxc_code code = mxc_json_get_int(object, "bits", 1, 16, &spec->bits, err);
    if (!code)
        code = mxc_json_get_int(object, "group_size", 1, 65536, &spec->group, err);
    if (!code)
        code = mxc_json_get_string(object, "mode", &spec->mode, err);
    return code;
}

static enum mxc_code find_spec(const struct join *j, const char *module, struct spec *spec) {
    *spec = (struct spec){0};
    if (!j->quantization)
        return MXC_OK;
    enum mxc_code code = read_spec(j->quantization, spec, j->err);
    const json_t *own = json_object_get(j->quantization, module);
    uint64_t value;
    if (!own && mxc_map_get(&j->modules, canonical(mxc_str_of(module)), &value))
        own = (const json_t *)(uintptr_t)value;
    if (!code && json_is_object(own))
        code = read_spec(own, spec, j->err);
    spec->skip = json_is_false(own);
    if (code)
        (void)mxc_err_context(j->err, "config.json: quantization");
    return code;
}

static struct mxc_tensor *find(const struct join *j, const char *module, const char *suffix) {
    char name[MAX_NAME];
    uint64_t index;
    int n = snprintf(name, sizeof name, "%s%s", module, suffix);
    if (n < 0 || (size_t)n >= sizeof name ||
        !mxc_map_get(j->by_name, (struct mxc_str){name, (size_t)n}, &index))
        return NULL;
    return &j->tensors[index];
}

static enum mxc_code refuse(const struct join *j, const struct mxc_tensor *t, enum mxc_code code,
                            const char *what) {
    return mxc_err_set(j->err, code, "%s: tensor %s: %s", t->file->path, t->name, what);
}

static bool is_float(enum mxc_storage s) {
    return s == MXC_ST_F16 || s == MXC_ST_BF16 || s == MXC_ST_F32;
}

/* Bits from words and group, 0 when they do not come out whole. */
static int64_t bits_of(int64_t words, int64_t n_groups, int64_t group) {
    int64_t columns;
    if (n_groups < 1 || __builtin_mul_overflow(n_groups, group, &columns) ||
        words > INT64_MAX / 32 || words * 32 % columns)
        return 0;
    int64_t bits = words * 32 / columns;
    return bits <= 8 && mxc_mlx_supported((uint32_t)bits, (uint32_t)group) ? bits : 0;
}

static enum mxc_code settle(const struct join *j, struct mxc_tensor *w, const struct mxc_tensor *s,
                            const struct spec *spec) {
    int64_t words = w->shape[w->n_dims - 1], n_groups = s->shape[s->n_dims - 1];
    int64_t bits = 0, group = 0;
    int readings = 0;
    if (spec->bits && spec->group &&
        !mxc_mlx_supported((uint32_t)spec->bits, (uint32_t)spec->group))
        return mxc_err_set(j->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: %lld bits in groups of %lld are not supported",
                           w->file->path, w->name, (long long)spec->bits, (long long)spec->group);
    for (int64_t g = 32; g <= 128; g *= 2) {
        int64_t b = bits_of(words, n_groups, g);
        if (!b || (spec->group && g != spec->group) || (spec->bits && b != spec->bits))
            continue;
        bits = b;
        group = g;
        readings++;
    }
    if (readings > 1)
        return refuse(j, w, MXC_E_FORMAT,
                      "its shapes fit several bits and group sizes and the config has no "
                      "quantization entry");
    if (!readings)
        return mxc_err_set(j->err, MXC_E_FORMAT,
                           "%s: tensor %s: %lld words and %lld scales a row do not fit bits %lld, "
                           "group_size %lld of the config (0: not given)",
                           w->file->path, w->name, (long long)words, (long long)n_groups,
                           (long long)spec->bits, (long long)spec->group);
    w->bits = (uint32_t)bits;
    w->group = (uint32_t)group;
    w->shape[w->n_dims - 1] = n_groups * group;
    return MXC_OK;
}

static bool same_rows(const struct mxc_tensor *a, const struct mxc_tensor *b) {
    if (a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i + 1 < a->n_dims; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static enum mxc_code join_one(struct join *j, struct mxc_tensor *s) {
    char module[MAX_NAME];
    struct spec spec;
    size_t length = strlen(s->name) - strlen(".scales");
    if (length >= sizeof module)
        return refuse(j, s, MXC_E_FORMAT, "name too long");
    memcpy(module, s->name, length);
    module[length] = 0;
    struct mxc_tensor *w = find(j, module, ".weight"), *b = find(j, module, ".biases");
    if (!w)
        return refuse(j, s, MXC_E_FORMAT, "scales without a .weight");
    enum mxc_code code = find_spec(j, module, &spec);
    if (code)
        return code;
    if (spec.skip)
        return refuse(j, w, MXC_E_FORMAT,
                      "it has scales, but the config's quantization says it is not quantised");
    if (spec.mode && strcmp(spec.mode, "affine"))
        return mxc_err_set(j->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: quantization mode %.40s is not supported (affine is)",
                           w->file->path, w->name, spec.mode);
    if (!b)
        return refuse(j, s, MXC_E_FORMAT, "scales without .biases");
    if (w->storage != MXC_ST_U32)
        return refuse(j, w, MXC_E_FORMAT, "it has scales, but its dtype is not U32");
    if (!is_float(s->storage) || s->storage != b->storage)
        return refuse(j, s, MXC_E_FORMAT, "scales and biases are not of one float dtype");
    if (w->n_dims < 2 || !same_rows(w, s) || !same_rows(w, b) ||
        s->shape[s->n_dims - 1] != b->shape[b->n_dims - 1])
        return refuse(j, s, MXC_E_FORMAT,
                      "shape: scales, biases and weight do not have the same rows");
    if ((code = settle(j, w, s, &spec)))
        return code;
    w->storage = MXC_ST_MLX_AFFINE;
    w->scale_storage = s->storage;
    w->scales = s->data;
    w->scales_file = s->file;
    w->biases = b->data;
    w->biases_file = b->file;
    j->gone[s - j->tensors] = j->gone[b - j->tensors] = true;
    return MXC_OK;
}

enum mxc_code mxc_mlx_join(struct mxc_tensor *tensors, size_t n, const struct mxc_map *by_name,
                           const json_t *quantization, bool *gone, struct mxc_err *err) {
    struct join j = {tensors, n, by_name, quantization, {0}, gone, err};
    mxc_map_init(&j.modules);
    enum mxc_code code = quantization ? index_modules(&j) : MXC_OK;
    for (size_t i = 0; !code && i < n; i++)
        if (mxc_str_ends(mxc_str_of(tensors[i].name), ".scales"))
            code = join_one(&j, &tensors[i]);
    mxc_map_fini(&j.modules);
    return code;
}

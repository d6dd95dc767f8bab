/* MLX's quantised matrices: X.weight (u32 words), X.scales and X.biases become one tensor X.weight
 * whose shape is the logical one. In: raw tensors and the quantization object. Out: joined tensors
 * with sizes that agree: columns == words * 32 / bits == scales' columns * group. */
#include "format/mlx_join.h"

#include "quant/decode.h"

#include <string.h>

enum { MAX_NAME = MXC_JOIN_MAX_NAME };

struct spec {
    int64_t bits, group; /* 0: not given */
    const char *mode;    /* NULL: not given */
    bool skip;           /* the config says that the module is not quantised */
};

struct join {
    struct mxc_join *base;
    struct mxc_map modules; /* canonical module name -> json_t pointer */
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
    json_object_foreach((json_t *)(uintptr_t)j->base->quantization, key, value) {
        if (!json_is_object(value) && !json_is_boolean(value))
            continue;
        if (!mxc_map_put_borrowed(&j->modules, canonical(mxc_str_of(key)),
                                  (uint64_t)(uintptr_t)value))
            return mxc_err_nomem(j->base->err);
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
    if (!j->base->quantization)
        return MXC_OK;
    enum mxc_code code = read_spec(j->base->quantization, spec, j->base->err);
    const json_t *own = json_object_get(j->base->quantization, module);
    uint64_t value;
    if (!own && mxc_map_get(&j->modules, canonical(mxc_str_of(module)), &value))
        own = (const json_t *)(uintptr_t)value;
    if (!code && json_is_object(own)) {
        spec->mode = NULL; /* an override without a mode leaves it to the shapes */
        code = read_spec(own, spec, j->base->err);
    }
    spec->skip = json_is_false(own);
    if (code)
        (void)mxc_err_context(j->base->err, "config.json: quantization");
    return code;
}

static enum mxc_code refuse(const struct join *j, const struct mxc_tensor *t, enum mxc_code code,
                            const char *what) {
    return mxc_join_refuse(j->base, t, code, what);
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
        return mxc_err_set(j->base->err, MXC_E_UNSUPPORTED,
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
        return mxc_err_set(j->base->err, MXC_E_FORMAT,
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

/* Modes with scales of one byte: the number of words to a scale tells them apart. */
static enum mxc_code join_bytes(struct join *j, struct mxc_tensor *w, struct mxc_tensor *s,
                                const struct spec *spec) {
    static const struct {
        const char *mode;
        int64_t words; /* to a scale */
        enum mxc_storage storage, number, scale;
        uint32_t bits, group;
    } rows[] = {
        {"mxfp4", 4, MXC_ST_MXFP4, MXC_ST_MXFP4, MXC_ST_F8_E8M0, 4, 32},
        {"mxfp8", 8, MXC_ST_MXFP8, MXC_ST_F8_E4M3, MXC_ST_F8_E8M0, 8, 32},
        {"nvfp4", 2, MXC_ST_NVFP4, MXC_ST_MXFP4, MXC_ST_F8_E4M3, 4, 16},
    };
    int64_t words = w->shape[w->n_dims - 1], scales = s->shape[s->n_dims - 1];
    size_t i = 0, n = (size_t)mxc_tensor_rows(w);
    while (i < 3 && (scales < 1 || words != scales * rows[i].words))
        i++;
    if (i == 3 || (spec->mode && strcmp(spec->mode, rows[i].mode)))
        return mxc_err_set(j->base->err, MXC_E_FORMAT,
                           "%s: tensor %s: %lld words and %lld byte scales a row are not those of "
                           "%.40s",
                           w->file->path, w->name, (long long)words, (long long)scales,
                           spec->mode ? spec->mode : "mxfp4, mxfp8 or nvfp4");
    if (!n)
        return refuse(j, w, MXC_E_FORMAT, "it has no rows");
    const struct mxc_quant_parts p = {
        .number = rows[i].number,
        .layout = MXC_CODES_ROWS,
        .bits = rows[i].bits,
        .n = n,
        .k = (size_t)scales * rows[i].group,
        .group = rows[i].group,
        .n_groups = (size_t)scales,
        .row_bytes = w->bytes / n,
        .codes = w->data,
        .scales = s->data,
        .scale_storage = rows[i].scale,
        .scale_rows = 1,
        .scale_step_r = (size_t)scales,
        .scale_step_g = 1,
    };
    enum mxc_code code = mxc_join_parts(j->base, w, rows[i].storage, &p);
    if (code)
        return code;
    w->shape[w->n_dims - 1] = (int64_t)p.k;
    w->scales_file = s->file;
    mxc_join_take(j->base, w, s);
    return MXC_OK;
}

static enum mxc_code join_affine(struct join *j, struct mxc_tensor *w, struct mxc_tensor *s,
                                 struct mxc_tensor *b, const struct spec *spec) {
    if (spec->mode && strcmp(spec->mode, "affine"))
        return mxc_err_set(j->base->err, MXC_E_FORMAT,
                           "%s: tensor %s: quantization mode %.40s, but its scales are not bytes",
                           w->file->path, w->name, spec->mode);
    if (!b)
        return refuse(j, s, MXC_E_FORMAT, "scales without .biases");
    if (!mxc_join_is_float(s->storage) || s->storage != b->storage)
        return refuse(j, s, MXC_E_FORMAT, "scales and biases are not of one float dtype");
    if (!same_rows(w, b) || s->shape[s->n_dims - 1] != b->shape[b->n_dims - 1])
        return refuse(j, s, MXC_E_FORMAT,
                      "shape: scales, biases and weight do not have the same rows");
    enum mxc_code code = settle(j, w, s, spec);
    if (code)
        return code;
    w->storage = MXC_ST_MLX_AFFINE;
    w->scale_storage = s->storage;
    w->scales = s->data;
    w->scales_file = s->file;
    w->biases = b->data;
    w->biases_file = b->file;
    mxc_join_take(j->base, w, s);
    mxc_join_take(j->base, w, b);
    return MXC_OK;
}

static bool known_mode(const char *mode) {
    return !strcmp(mode, "affine") || !strcmp(mode, "mxfp4") || !strcmp(mode, "mxfp8") ||
           !strcmp(mode, "nvfp4");
}

static enum mxc_code join_one(struct join *j, struct mxc_tensor *s) {
    char module[MAX_NAME];
    struct spec spec;
    enum mxc_code code = mxc_join_module(j->base, s, ".scales", module);
    if (code)
        return code;
    struct mxc_tensor *w = mxc_join_find(j->base, module, ".weight");
    struct mxc_tensor *b = mxc_join_find(j->base, module, ".biases");
    if (!w)
        return refuse(j, s, MXC_E_FORMAT, "scales without a .weight");
    if ((code = find_spec(j, module, &spec)))
        return code;
    if (spec.skip)
        return refuse(j, w, MXC_E_FORMAT,
                      "it has scales, but the config's quantization says it is not quantised");
    if (spec.mode && !known_mode(spec.mode))
        return mxc_err_set(j->base->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: quantization mode %.40s is not supported (affine, "
                           "mxfp4, mxfp8 and nvfp4 are)",
                           w->file->path, w->name, spec.mode);
    if (w->storage != MXC_ST_U32)
        return refuse(j, w, MXC_E_FORMAT, "it has scales, but its dtype is not U32");
    if (w->n_dims < 2 || !same_rows(w, s))
        return refuse(j, s, MXC_E_FORMAT, "shape: scales and weight do not have the same rows");
    if (s->storage == MXC_ST_U8 && !b)
        return join_bytes(j, w, s, &spec);
    return join_affine(j, w, s, b, &spec);
}

enum mxc_code mxc_mlx_join(struct mxc_join *join) {
    struct join j = {.base = join};
    mxc_map_init(&j.modules);
    enum mxc_code code = join->quantization ? index_modules(&j) : MXC_OK;
    for (size_t i = 0; !code && i < join->n; i++)
        if (!join->gone[i] && mxc_str_ends(mxc_str_of(join->tensors[i].name), ".scales"))
            code = join_one(&j, &join->tensors[i]);
    mxc_map_fini(&j.modules);
    return code;
}

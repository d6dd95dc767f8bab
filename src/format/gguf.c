/* GGUF reader. In: a path. Out: metadata values and tensors with pointers into the map.
 * The file is walked once, front to back, with a cursor that cannot pass the end; counts are
 * checked against the bytes that are left before anything is allocated by them. Invariant after
 * open: every value's and tensor's bytes lie inside the map. */
#include "format/gguf.h"

#include "base/arena.h"
#include "base/map.h"
#include "base/mem.h"
#include "quant/decode.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_COUNT = 1 << 20, MAX_KEY = 65535, MAX_NAME = 64, MAX_ALIGNMENT = 1 << 16 };

struct mxc_gguf {
    struct mxc_file file;
    struct mxc_gguf_value *values;
    size_t n_values;
    struct mxc_gguf_tensor *tensors;
    size_t n_tensors;
    struct mxc_map keys, names; /* -> index; keys borrow from the map, names from the arena */
    struct mxc_arena arena;
};

struct reader {
    const unsigned char *at, *end;
    struct mxc_gguf *g;
    struct mxc_err *err;
};

struct ggml_type {
    const char *name;
    uint32_t block, block_bytes;
    enum mxc_storage storage;
};

/* Numbers, block sizes and bytes of ggml's tensor types; no name: never used, or removed. */
static const struct ggml_type types[] = {
    [0] = {"F32", 1, 4, MXC_ST_F32},
    [1] = {"F16", 1, 2, MXC_ST_F16},
    [2] = {"Q4_0", 32, 18, MXC_ST_Q4_0},
    [3] = {"Q4_1", 32, 20, MXC_ST_Q4_1},
    [6] = {"Q5_0", 32, 22, MXC_ST_Q5_0},
    [7] = {"Q5_1", 32, 24, MXC_ST_Q5_1},
    [8] = {"Q8_0", 32, 34, MXC_ST_Q8_0},
    [9] = {"Q8_1", 32, 36, MXC_N_STORAGES},
    [10] = {"Q2_K", 256, 84, MXC_ST_Q2_K},
    [11] = {"Q3_K", 256, 110, MXC_ST_Q3_K},
    [12] = {"Q4_K", 256, 144, MXC_ST_Q4_K},
    [13] = {"Q5_K", 256, 176, MXC_ST_Q5_K},
    [14] = {"Q6_K", 256, 210, MXC_ST_Q6_K},
    [15] = {"Q8_K", 256, 292, MXC_N_STORAGES},
    [16] = {"IQ2_XXS", 256, 66, MXC_N_STORAGES},
    [17] = {"IQ2_XS", 256, 74, MXC_N_STORAGES},
    [18] = {"IQ3_XXS", 256, 98, MXC_N_STORAGES},
    [19] = {"IQ1_S", 256, 50, MXC_N_STORAGES},
    [20] = {"IQ4_NL", 32, 18, MXC_ST_IQ4_NL},
    [21] = {"IQ3_S", 256, 110, MXC_N_STORAGES},
    [22] = {"IQ2_S", 256, 82, MXC_N_STORAGES},
    [23] = {"IQ4_XS", 256, 136, MXC_ST_IQ4_XS},
    [24] = {"I8", 1, 1, MXC_ST_I8},
    [25] = {"I16", 1, 2, MXC_ST_I16},
    [26] = {"I32", 1, 4, MXC_ST_I32},
    [27] = {"I64", 1, 8, MXC_ST_I64},
    [28] = {"F64", 1, 8, MXC_ST_F64},
    [29] = {"IQ1_M", 256, 56, MXC_N_STORAGES},
    [30] = {"BF16", 1, 2, MXC_ST_BF16},
    [34] = {"TQ1_0", 256, 54, MXC_ST_TQ1_0},
    [35] = {"TQ2_0", 256, 66, MXC_ST_TQ2_0},
    [39] = {"MXFP4", 32, 17, MXC_ST_MXFP4_BLOCK},
    [40] = {"NVFP4", 64, 36, MXC_N_STORAGES},
    [41] = {"Q1_0", 128, 18, MXC_N_STORAGES},
};

static const struct {
    const char *name;
    unsigned bytes; /* 0: not fixed */
} value_types[MXC_N_GGUF_TYPES] = {
    [MXC_GGUF_U8] = {"u8", 1},         [MXC_GGUF_I8] = {"i8", 1},
    [MXC_GGUF_U16] = {"u16", 2},       [MXC_GGUF_I16] = {"i16", 2},
    [MXC_GGUF_U32] = {"u32", 4},       [MXC_GGUF_I32] = {"i32", 4},
    [MXC_GGUF_F32] = {"f32", 4},       [MXC_GGUF_BOOL] = {"bool", 1},
    [MXC_GGUF_STRING] = {"string", 0}, [MXC_GGUF_ARRAY] = {"list", 0},
    [MXC_GGUF_U64] = {"u64", 8},       [MXC_GGUF_I64] = {"i64", 8},
    [MXC_GGUF_F64] = {"f64", 8},
};

const char *mxc_gguf_type_name(enum mxc_gguf_type type) {
    return (unsigned)type < MXC_N_GGUF_TYPES ? value_types[type].name : "?";
}

static uint64_t load(const unsigned char *p, size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static size_t left(const struct reader *r) {
    return (size_t)(r->end - r->at);
}

static bool read_uint(struct reader *r, size_t bytes, uint64_t *out) {
    if (left(r) < bytes)
        return false;
    *out = load(r->at, bytes);
    r->at += bytes;
    return true;
}

/* Length and bytes. false: past the end. */
static bool read_text(struct reader *r, struct mxc_str *out) {
    uint64_t n;
    if (!read_uint(r, 8, &n) || n > left(r))
        return false;
    *out = (struct mxc_str){(const char *)r->at, (size_t)n};
    r->at += n;
    return true;
}

/* Text that may stand in a one-line message. */
static bool printable(struct mxc_str s) {
    for (size_t i = 0; i < s.length; i++)
        if ((unsigned char)s.ptr[i] < 32 || s.ptr[i] == 127)
            return false;
    return mxc_utf8_valid(s.ptr, s.length);
}

static enum mxc_code read_value(struct reader *r, size_t index) {
    const char *path = r->g->file.path;
    struct mxc_gguf_value v = {.count = 1};
    uint64_t type, count = 1, seen;
    if (!read_text(r, &v.key) || v.key.length > MAX_KEY)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %zu: length past the end of the file",
                           path, index);
    if (!v.key.length || !printable(v.key))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %zu: not a name", path, index);
    int n = v.key.length > 100 ? 100 : (int)v.key.length;
    if (mxc_map_get(&r->g->keys, v.key, &seen))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %.*s stands there twice", path, n,
                           v.key.ptr);
    if (!read_uint(r, 4, &type))
        goto cut;
    if (type >= MXC_N_GGUF_TYPES)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %.*s: unknown value type %llu", path, n,
                           v.key.ptr, (unsigned long long)type);
    v.type = (enum mxc_gguf_type)type;
    if (v.type == MXC_GGUF_ARRAY) {
        if (!read_uint(r, 4, &type) || !read_uint(r, 8, &count))
            goto cut;
        if (type >= MXC_N_GGUF_TYPES)
            return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %.*s: list of unknown type %llu",
                               path, n, v.key.ptr, (unsigned long long)type);
        if (type == MXC_GGUF_ARRAY)
            return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                               "%s: key %.*s: a list of lists is not supported", path, n,
                               v.key.ptr);
    }
    v.element = (enum mxc_gguf_type)type;
    v.data = r->at;
    size_t width = value_types[v.element].bytes;
    if (count > left(r) / (width ? width : 8))
        goto cut;
    v.count = (size_t)count;
    if (width) {
        r->at += v.count * width;
    } else {
        struct mxc_str s;
        for (size_t i = 0; i < v.count; i++)
            if (!read_text(r, &s))
                goto cut;
    }
    v.bytes = (size_t)(r->at - v.data);
    if (!mxc_map_put_borrowed(&r->g->keys, v.key, index))
        return mxc_err_nomem(r->err);
    r->g->values[index] = v;
    r->g->n_values = index + 1;
    return MXC_OK;
cut:
    return mxc_err_set(r->err, MXC_E_FORMAT, "%s: key %.*s: value goes past the end of the file",
                       path, n, v.key.ptr);
}

/* Reads one tensor's entry; data and its range are settled later. */
static enum mxc_code read_tensor(struct reader *r, size_t index, uint64_t *offset) {
    struct mxc_gguf *g = r->g;
    struct mxc_gguf_tensor t = {0};
    struct mxc_str name;
    uint64_t n_dims, type, seen, n = 1;
    if (!read_text(r, &name))
        return mxc_err_set(r->err, MXC_E_FORMAT,
                           "%s: tensor %zu: name goes past the end of the file", g->file.path,
                           index);
    if (!name.length || name.length > MAX_NAME || !printable(name))
        return mxc_err_set(r->err, MXC_E_FORMAT,
                           "%s: tensor %zu: its name is not text of 1 to 64 bytes", g->file.path,
                           index);
    if (!(t.name = mxc_arena_dup(&g->arena, name.ptr, name.length)))
        return mxc_err_nomem(r->err);
    const char *what = "cut off in the tensor list";
    if (!read_uint(r, 4, &n_dims))
        goto bad;
    what = "number of dimensions is not 1 to 4";
    if (!n_dims || n_dims > MXC_GGUF_MAX_DIMS)
        goto bad;
    t.n_dims = (int)n_dims;
    for (int i = 0; i < t.n_dims; i++) {
        what = "cut off in the tensor list";
        if (!read_uint(r, 8, &t.dims[i]))
            goto bad;
        what = "a dimension is 0, or the shape's product overflows";
        if (!t.dims[i] || t.dims[i] > INT64_MAX / n)
            goto bad;
        n *= t.dims[i];
    }
    what = "cut off in the tensor list";
    if (!read_uint(r, 4, &type) || !read_uint(r, 8, offset))
        goto bad;
    if (type >= sizeof types / sizeof *types || !types[type].name)
        return mxc_err_set(r->err, MXC_E_UNSUPPORTED, "%s: tensor %s: unknown type %llu",
                           g->file.path, t.name, (unsigned long long)type);
    t.type = (uint32_t)type;
    t.type_name = types[type].name;
    t.storage = types[type].storage;
    what = "a row is not a multiple of the type's block";
    if (t.dims[0] % types[type].block)
        goto bad;
    what = "size in bytes overflows";
    if (!mxc_size_mul((size_t)(n / types[type].block), types[type].block_bytes, &t.bytes))
        goto bad;
    what = "the same name twice";
    struct mxc_str key = {t.name, name.length};
    if (mxc_map_get(&g->names, key, &seen))
        goto bad;
    if (!mxc_map_put_borrowed(&g->names, key, index))
        return mxc_err_nomem(r->err);
    g->tensors[index] = t;
    g->n_tensors = index + 1;
    return MXC_OK;
bad:
    return mxc_err_set(r->err, MXC_E_FORMAT, "%s: tensor %s: %s", g->file.path, t.name, what);
}

static enum mxc_code read_tensors(struct reader *r, uint64_t count) {
    struct mxc_gguf *g = r->g;
    int64_t alignment = 32;
    enum mxc_code code =
        mxc_gguf_get_int(g, "general.alignment", 1, MAX_ALIGNMENT, &alignment, r->err);
    if (code)
        return code;
    if (alignment & (alignment - 1))
        return mxc_err_set(r->err, MXC_E_FORMAT,
                           "%s: general.alignment: %lld is not a power of two", g->file.path,
                           (long long)alignment);
    uint64_t *offsets = mxc_mem_array((size_t)count + 1, sizeof *offsets);
    g->tensors = mxc_mem_zalloc((size_t)count + 1, sizeof *g->tensors);
    if (!offsets || !g->tensors || !mxc_map_reserve(&g->names, (size_t)count))
        code = mxc_err_nomem(r->err);
    for (size_t i = 0; !code && i < count; i++)
        code = read_tensor(r, i, &offsets[i]);
    size_t at = (size_t)(r->at - g->file.data), mask = (size_t)alignment - 1;
    size_t start = (at + mask) & ~mask; /* at <= size of a map: no overflow */
    size_t room = start < g->file.size ? g->file.size - start : 0;
    for (size_t i = 0; !code && i < count; i++) {
        struct mxc_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] & mask)
            code = mxc_err_set(r->err, MXC_E_FORMAT,
                               "%s: tensor %s: offset %llu is not aligned to %lld", g->file.path,
                               t->name, (unsigned long long)offsets[i], (long long)alignment);
        else if (offsets[i] > room || t->bytes > room - (size_t)offsets[i])
            code =
                mxc_err_set(r->err, MXC_E_FORMAT,
                            "%s: tensor %s: %zu bytes at offset %llu are out of range: the "
                            "file has %zu bytes of data (truncated?)",
                            g->file.path, t->name, t->bytes, (unsigned long long)offsets[i], room);
        else
            t->data = g->file.data + start + offsets[i];
    }
    mxc_mem_free(offsets);
    return code;
}

static enum mxc_code read_file(struct mxc_gguf *g, struct mxc_err *err) {
    const struct mxc_file *f = &g->file;
    struct reader r = {f->data, f->data + f->size, g, err};
    uint64_t magic, version, n_tensors, n_values;
    if (!read_uint(&r, 4, &magic))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: too short for a GGUF file: %zu bytes", f->path,
                           f->size);
    if (magic != 0x46554747u)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: bad magic, not a GGUF file", f->path);
    if (!read_uint(&r, 4, &version))
        goto cut;
    if (version == 0x02000000u || version == 0x03000000u)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: big-endian GGUF is not supported", f->path);
    if (version != 2 && version != 3)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "%s: GGUF version %llu is not supported (2 and 3 are)", f->path,
                           (unsigned long long)version);
    if (!read_uint(&r, 8, &n_tensors) || !read_uint(&r, 8, &n_values))
        goto cut;
    /* The smallest entries take 14 (key of one byte, u8) and 33 bytes. */
    if (n_values > left(&r) / 14 || n_values > MAX_COUNT)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %llu keys do not fit in the file", f->path,
                           (unsigned long long)n_values);
    if (n_tensors > left(&r) / 33 || n_tensors > MAX_COUNT)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %llu tensors do not fit in the file", f->path,
                           (unsigned long long)n_tensors);
    g->values = mxc_mem_zalloc((size_t)n_values + 1, sizeof *g->values);
    if (!g->values || !mxc_map_reserve(&g->keys, (size_t)n_values))
        return mxc_err_nomem(err);
    for (size_t i = 0; i < n_values; i++) {
        enum mxc_code code = read_value(&r, i);
        if (code)
            return code;
    }
    return read_tensors(&r, n_tensors);
cut:
    return mxc_err_set(err, MXC_E_FORMAT, "%s: cut off in the GGUF header", f->path);
}

enum mxc_code mxc_gguf_open(const char *path, struct mxc_gguf **gguf, struct mxc_err *err) {
    struct mxc_gguf *g = mxc_mem_zalloc(1, sizeof *g);
    if (!g)
        return mxc_err_nomem(err);
    mxc_arena_init(&g->arena, 0);
    mxc_map_init(&g->keys);
    mxc_map_init(&g->names);
    enum mxc_code code = mxc_file_open(path, &g->file, err);
    if (!code)
        code = read_file(g, err);
    if (code) {
        mxc_gguf_close(g);
        return code;
    }
    *gguf = g;
    return MXC_OK;
}

void mxc_gguf_close(struct mxc_gguf *gguf) {
    if (!gguf)
        return;
    mxc_file_close(&gguf->file);
    mxc_mem_free(gguf->values);
    mxc_mem_free(gguf->tensors);
    mxc_map_fini(&gguf->keys);
    mxc_map_fini(&gguf->names);
    mxc_arena_fini(&gguf->arena);
    mxc_mem_free(gguf);
}

const struct mxc_file *mxc_gguf_file(const struct mxc_gguf *gguf) {
    return &gguf->file;
}

bool mxc_gguf_is_path(const char *path) {
    size_t n = strlen(path);
    return n >= 5 && !strcasecmp(path + n - 5, ".gguf") && mxc_file_exists(path);
}

size_t mxc_gguf_n_values(const struct mxc_gguf *gguf) {
    return gguf->n_values;
}

const struct mxc_gguf_value *mxc_gguf_value_at(const struct mxc_gguf *gguf, size_t index) {
    return index < gguf->n_values ? &gguf->values[index] : NULL;
}

const struct mxc_gguf_value *mxc_gguf_find(const struct mxc_gguf *gguf, const char *key) {
    uint64_t index;
    return mxc_map_get(&gguf->keys, mxc_str_of(key), &index) ? &gguf->values[index] : NULL;
}

size_t mxc_gguf_n_tensors(const struct mxc_gguf *gguf) {
    return gguf->n_tensors;
}

const struct mxc_gguf_tensor *mxc_gguf_tensor_at(const struct mxc_gguf *gguf, size_t index) {
    return index < gguf->n_tensors ? &gguf->tensors[index] : NULL;
}

static int by_place(const void *a, const void *b) {
    const struct mxc_gguf_tensor *x = *(const struct mxc_gguf_tensor *const *)a;
    const struct mxc_gguf_tensor *y = *(const struct mxc_gguf_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

enum mxc_code mxc_gguf_check_tensors(const struct mxc_gguf *gguf, struct mxc_err *err) {
    const struct mxc_gguf *g = gguf;
    for (size_t i = 0; i < g->n_tensors; i++) {
        enum mxc_storage s = g->tensors[i].storage;
        if (s == MXC_N_STORAGES || (s >= MXC_ST_F64 && s <= MXC_ST_BOOL))
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported",
                               g->file.path, g->tensors[i].name, g->tensors[i].type_name);
    }
    const struct mxc_gguf_tensor **order = mxc_mem_array(g->n_tensors + 1, sizeof *order);
    if (!order)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof *order, by_place);
    enum mxc_code code = MXC_OK;
    for (size_t i = 1; !code && i < g->n_tensors; i++)
        if (order[i]->data < order[i - 1]->data + order[i - 1]->bytes)
            code = mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s: its bytes overlap those of %s",
                               g->file.path, order[i]->name, order[i - 1]->name);
    mxc_mem_free(order);
    return code;
}

static bool is_integer(enum mxc_gguf_type type) {
    return type <= MXC_GGUF_I32 || type == MXC_GGUF_U64 || type == MXC_GGUF_I64;
}

static bool is_real(enum mxc_gguf_type type) {
    return type == MXC_GGUF_F32 || type == MXC_GGUF_F64;
}

static enum mxc_code wrong(const struct mxc_gguf *g, const char *key,
                           const struct mxc_gguf_value *v, const char *want, struct mxc_err *err) {
    bool list = v->type == MXC_GGUF_ARRAY;
    return mxc_err_set(err, MXC_E_FORMAT, "%s: %s: %s%s where %s was expected", g->file.path, key,
                       list ? "list of " : "", mxc_gguf_type_name(v->element), want);
}

enum mxc_code mxc_gguf_get_int(const struct mxc_gguf *gguf, const char *key, int64_t min,
                               int64_t max, int64_t *out, struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (!is_integer(v->type))
        return wrong(gguf, key, v, "an integer", err);
    int64_t n = mxc_gguf_int_at(v, 0);
    if (n < min || n > max)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %s: %lld is not in [%lld, %lld]",
                           gguf->file.path, key, (long long)n, (long long)min, (long long)max);
    *out = n;
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_real(const struct mxc_gguf *gguf, const char *key, double *out,
                                struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (!is_real(v->type) && !is_integer(v->type))
        return wrong(gguf, key, v, "a number", err);
    *out = mxc_gguf_real_at(v, 0);
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_bool(const struct mxc_gguf *gguf, const char *key, bool *out,
                                struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_BOOL)
        return wrong(gguf, key, v, "a bool", err);
    *out = v->data[0] != 0;
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_string(const struct mxc_gguf *gguf, const char *key, struct mxc_str *out,
                                  struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    size_t cursor = 0;
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_STRING)
        return wrong(gguf, key, v, "a string", err);
    (void)mxc_gguf_next_string(v, &cursor, out);
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_strings(const struct mxc_gguf *gguf, const char *key,
                                   const struct mxc_gguf_value **out, struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_ARRAY || v->element != MXC_GGUF_STRING)
        return wrong(gguf, key, v, "a list of strings", err);
    *out = v;
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_ints(const struct mxc_gguf *gguf, const char *key,
                                const struct mxc_gguf_value **out, struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_ARRAY || !is_integer(v->element))
        return wrong(gguf, key, v, "a list of integers", err);
    *out = v;
    return MXC_OK;
}

enum mxc_code mxc_gguf_get_reals(const struct mxc_gguf *gguf, const char *key,
                                 const struct mxc_gguf_value **out, struct mxc_err *err) {
    const struct mxc_gguf_value *v = mxc_gguf_find(gguf, key);
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_ARRAY || !is_real(v->element))
        return wrong(gguf, key, v, "a list of floats", err);
    *out = v;
    return MXC_OK;
}

int64_t mxc_gguf_int_at(const struct mxc_gguf_value *value, size_t index) {
    size_t width = value_types[value->element].bytes;
    uint64_t u = load(value->data + index * width, width);
    switch (value->element) {
    case MXC_GGUF_I8:
        return (int8_t)u;
    case MXC_GGUF_I16:
        return (int16_t)u;
    case MXC_GGUF_I32:
        return (int32_t)u;
    case MXC_GGUF_BOOL:
        return u != 0;
    case MXC_GGUF_U64:
        return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    default:
        return (int64_t)u;
    }
}

double mxc_gguf_real_at(const struct mxc_gguf_value *value, size_t index) {
    size_t width = value_types[value->element].bytes;
    if (value->element == MXC_GGUF_F32) {
        float f;
        memcpy(&f, value->data + index * width, sizeof f);
        return (double)f;
    }
    if (value->element == MXC_GGUF_F64) {
        double d;
        memcpy(&d, value->data + index * width, sizeof d);
        return d;
    }
    return (double)mxc_gguf_int_at(value, index);
}

bool mxc_gguf_next_string(const struct mxc_gguf_value *value, size_t *cursor, struct mxc_str *out) {
    if (value->element != MXC_GGUF_STRING || *cursor >= value->bytes)
        return false;
    size_t n = (size_t)load(value->data + *cursor, 8);
    *out = (struct mxc_str){(const char *)value->data + *cursor + 8, n};
    *cursor += 8 + n;
    return true;
}

/* safetensors reader: 8 bytes of header length, a JSON header, the data. In: a path. Out: the list
 * of tensors with pointers into the map. Invariant after open: every tensor's bytes lie inside the
 * map, tensors do not share bytes, and their size agrees with shape and type. */
#include "format/safetensors.h"

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "format/json_reader.h"
#include "quant/decode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 100 * 1000 * 1000, MAX_NAME = 1024 };

/* What reading the header needs besides its text. */
struct reader {
    struct mxc_jr jr;
    struct mxc_safetensors *st;
    struct mxc_map names;
    size_t data, capacity; /* bytes of data in the file; room in st->tensors */
};

static enum mxc_code bad(struct reader *r, const char *what) {
    return mxc_err_set(r->jr.err, MXC_E_FORMAT, "%s", what);
}

static bool storage_of(const char *dtype, enum mxc_storage *out) {
    static const struct {
        const char *name;
        enum mxc_storage storage;
    } names[] = {
        {"F32", MXC_ST_F32},         {"F16", MXC_ST_F16},         {"BF16", MXC_ST_BF16},
        {"F64", MXC_ST_F64},         {"I8", MXC_ST_I8},           {"U8", MXC_ST_U8},
        {"I16", MXC_ST_I16},         {"U16", MXC_ST_U16},         {"I32", MXC_ST_I32},
        {"U32", MXC_ST_U32},         {"I64", MXC_ST_I64},         {"U64", MXC_ST_U64},
        {"BOOL", MXC_ST_BOOL},       {"F8_E4M3", MXC_ST_F8_E4M3}, {"F8_E5M2", MXC_ST_F8_E5M2},
        {"F8_E8M0", MXC_ST_F8_E8M0},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(names[i].name, dtype)) {
            *out = names[i].storage;
            return true;
        }
    }
    return false;
}

static enum mxc_code read_dtype(struct reader *r, struct mxc_st_tensor *t) {
    struct mxc_str s;
    char text[32];
    if (mxc_jr_peek(&r->jr) != '"')
        return bad(r, "dtype is not a string");
    enum mxc_code code = mxc_jr_string(&r->jr, &s);
    if (code)
        return code;
    size_t n = s.length < sizeof text ? s.length : sizeof text - 1;
    memcpy(text, s.ptr, n);
    text[n] = 0;
    if (storage_of(text, &t->storage))
        return MXC_OK;
    for (size_t i = 0; i < n; i++)
        text[i] = text[i] > 32 && text[i] < 127 ? text[i] : '?';
    return mxc_err_set(r->jr.err, MXC_E_UNSUPPORTED, "dtype %s is not supported", text);
}

static enum mxc_code read_shape(struct reader *r, struct mxc_st_tensor *t) {
    enum mxc_code code = mxc_jr_open(&r->jr, '[');
    t->n_dims = 0;
    for (bool more = true; !code;) {
        uint64_t v;
        if ((code = mxc_jr_item(&r->jr, (size_t)t->n_dims, &more)) || !more)
            break;
        if (t->n_dims == MXC_MAX_DIMS)
            return bad(r, "rank of the shape is more than 5");
        if (!(code = mxc_jr_uint(&r->jr, &v)))
            t->shape[t->n_dims++] = (int64_t)v; /* the reader stays below 2^53 */
    }
    if (code)
        (void)mxc_err_context(r->jr.err, "shape");
    return code;
}

static enum mxc_code read_offsets(struct reader *r, struct mxc_st_tensor *t) {
    uint64_t at[2] = {0};
    size_t n = 0;
    enum mxc_code code = mxc_jr_open(&r->jr, '[');
    for (bool more = true; !code; n++) {
        if ((code = mxc_jr_item(&r->jr, n, &more)) || !more)
            break;
        if (n == 2)
            return bad(r, "data_offsets are not two numbers");
        code = mxc_jr_uint(&r->jr, &at[n]);
    }
    if (code) {
        (void)mxc_err_context(r->jr.err, "data_offsets");
        return code;
    }
    if (n != 2)
        return bad(r, "data_offsets are not two numbers");
    if (at[0] > at[1])
        return bad(r, "data_offsets: begin after end");
    t->begin = (size_t)at[0];
    t->end = (size_t)at[1];
    return MXC_OK;
}

/* Bytes of the data section must be there and be as many as shape and type say. */
static enum mxc_code check_tensor(struct reader *r, const struct mxc_st_tensor *t) {
    size_t n = 1, bytes = 0;
    bool zero = false;
    for (int i = 0; i < t->n_dims; i++) {
        size_t extent = (size_t)t->shape[i];
        zero = zero || !extent;
        if (!mxc_size_mul(n, extent ? extent : 1, &n) || n > INT64_MAX / 8)
            return bad(r, "product of the shape overflows");
    }
    if (!zero && !mxc_quant_bytes(t->storage, n, &bytes))
        return bad(r, "product of the shape overflows");
    if (t->end > r->data)
        return mxc_err_set(r->jr.err, MXC_E_FORMAT,
                           "data_offsets end at %zu, out of range: the file has %zu bytes of data "
                           "(truncated?)",
                           t->end, r->data);
    if (bytes != t->end - t->begin)
        return mxc_err_set(r->jr.err, MXC_E_FORMAT,
                           "size mismatch: shape and dtype need %zu bytes, data_offsets give %zu",
                           bytes, t->end - t->begin);
    return MXC_OK;
}

static enum mxc_code read_tensor(struct reader *r, struct mxc_st_tensor *t) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    bool seen[3] = {false};
    if (mxc_jr_peek(&r->jr) != '{')
        return bad(r, "its entry is not an object");
    enum mxc_code code = mxc_jr_open(&r->jr, '{');
    for (size_t n = 0; !code; n++) {
        struct mxc_str key;
        bool more;
        size_t which = 0;
        if ((code = mxc_jr_key(&r->jr, n, &more, &key)) || !more)
            break;
        while (which < 3 && !mxc_str_is(key, fields[which]))
            which++;
        if (which < 3 && seen[which])
            return bad(r, "the same field twice");
        if (which < 3)
            seen[which] = true;
        code = which == 0   ? read_dtype(r, t)
               : which == 1 ? read_shape(r, t)
               : which == 2 ? read_offsets(r, t)
                            : mxc_jr_skip(&r->jr, NULL);
    }
    for (size_t i = 0; !code && i < 3; i++)
        if (!seen[i])
            code = mxc_err_set(r->jr.err, MXC_E_FORMAT, "missing field %s", fields[i]);
    return code ? code : check_tensor(r, t);
}

static enum mxc_code read_metadata(struct reader *r) {
    enum mxc_code code = mxc_jr_open(&r->jr, '{');
    for (size_t n = 0; !code; n++) {
        struct mxc_str key, value;
        bool more;
        if ((code = mxc_jr_key(&r->jr, n, &more, &key)) || !more)
            break;
        if (!mxc_str_is(key, "format") || mxc_jr_peek(&r->jr) != '"') {
            code = mxc_jr_skip(&r->jr, NULL);
        } else if (!(code = mxc_jr_string(&r->jr, &value))) {
            r->st->format = mxc_arena_dup(&r->st->arena, value.ptr, value.length);
            if (!r->st->format)
                code = mxc_err_nomem(r->jr.err);
        }
    }
    if (code)
        (void)mxc_err_context(r->jr.err, "__metadata__");
    return code;
}

static enum mxc_code add_tensor(struct reader *r, const struct mxc_st_tensor *t) {
    struct mxc_safetensors *st = r->st;
    if (st->n_tensors == r->capacity) {
        size_t next = r->capacity ? r->capacity * 2 : 64;
        struct mxc_st_tensor *grown = mxc_mem_realloc(st->tensors, next, sizeof *grown);
        if (!grown)
            return mxc_err_nomem(r->jr.err);
        st->tensors = grown;
        r->capacity = next;
    }
    st->tensors[st->n_tensors++] = *t;
    return MXC_OK;
}

/* A name that may stand in a one-line message. */
static bool good_name(struct mxc_str name) {
    for (size_t i = 0; i < name.length; i++)
        if ((unsigned char)name.ptr[i] < 32 || name.ptr[i] == 127)
            return false;
    return name.length <= MAX_NAME;
}

static enum mxc_code read_entry(struct reader *r, struct mxc_str key) {
    uint64_t seen;
    if (mxc_str_is(key, "__metadata__"))
        return read_metadata(r);
    if (!good_name(key))
        return bad(r, "a tensor name with control characters, or of more than 1024 bytes");
    struct mxc_st_tensor t = {.name = mxc_arena_dup(&r->st->arena, key.ptr, key.length)};
    if (!t.name)
        return mxc_err_nomem(r->jr.err);
    struct mxc_str name = {t.name, key.length};
    enum mxc_code code = mxc_map_get(&r->names, name, &seen)         ? bad(r, "the same name twice")
                         : !mxc_map_put_borrowed(&r->names, name, 1) ? mxc_err_nomem(r->jr.err)
                                                                     : read_tensor(r, &t);
    if (code) {
        if (code != MXC_E_NOMEM)
            (void)mxc_err_context(r->jr.err, "tensor %s", t.name);
        return code;
    }
    t.data = r->st->file.data + (r->st->file.size - r->data) + t.begin;
    return add_tensor(r, &t);
}

static int by_place(const void *a, const void *b) {
    const struct mxc_st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Bytes that no tensor names are odd but harmless: whoever misses a tensor names it better. */
static enum mxc_code check_places(struct mxc_safetensors *st, size_t data, struct mxc_err *err) {
    const char *path = st->file.path;
    size_t at = 0, holes = 0;
    if (!st->n_tensors)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: no tensors", path);
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_place);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct mxc_st_tensor *t = &st->tensors[i];
        if (t->begin < at)
            return mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s: its bytes overlap those of %s",
                               path, t->name, st->tensors[i - 1].name);
        holes += t->begin - at;
        at = t->end;
    }
    holes += data - at;
    if (holes)
        mxc_log(MXC_LOG_WARN, "%s: %zu bytes of data belong to no tensor", path, holes);
    return MXC_OK;
}

static enum mxc_code read_header(struct mxc_safetensors *st, struct mxc_err *err) {
    const struct mxc_file *f = &st->file;
    uint64_t length = 0;
    if (f->size < 8)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: too short for a safetensors file: %zu bytes",
                           f->path, f->size);
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)f->data[i] << 8 * i;
    if (!length)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: empty header", f->path);
    if (length > f->size - 8)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "%s: header length %llu is more than the file has (truncated, or not "
                           "safetensors)",
                           f->path, (unsigned long long)length);
    if (length > MAX_HEADER)
        return mxc_err_set(err, MXC_E_LIMIT, "%s: header length %llu is over 100 MB", f->path,
                           (unsigned long long)length);
    const char *text = (const char *)f->data + 8;
    struct reader r = {.st = st, .data = f->size - 8 - (size_t)length};
    mxc_map_init(&r.names);
    mxc_jr_init(&r.jr, text, (size_t)length, "header", err);
    enum mxc_code code = MXC_OK;
    if (mxc_jr_peek(&r.jr) != '{')
        code = bad(&r, "the header is not an object");
    else
        code = mxc_jr_open(&r.jr, '{');
    for (size_t n = 0; !code; n++) {
        struct mxc_str key;
        bool more;
        if ((code = mxc_jr_key(&r.jr, n, &more, &key)) || !more)
            break;
        code = read_entry(&r, key);
    }
    if (!code && (mxc_jr_peek(&r.jr) || r.jr.p < r.jr.end))
        code = bad(&r, "trailing text after the header's object");
    if (code && code != MXC_E_NOMEM)
        (void)mxc_err_context(err, "%s", f->path);
    mxc_jr_fini(&r.jr);
    mxc_map_fini(&r.names);
    return code ? code : check_places(st, r.data, err);
}

enum mxc_code mxc_safetensors_open(const char *path, struct mxc_safetensors **st,
                                   struct mxc_err *err) {
    struct mxc_safetensors *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    mxc_arena_init(&s->arena, 0);
    enum mxc_code code = mxc_file_open(path, &s->file, err);
    if (!code)
        code = read_header(s, err);
    if (code) {
        mxc_safetensors_close(s);
        return code;
    }
    *st = s;
    return MXC_OK;
}

void mxc_safetensors_close(struct mxc_safetensors *st) {
    if (!st)
        return;
    mxc_file_close(&st->file);
    mxc_arena_fini(&st->arena);
    mxc_mem_free(st->tensors);
    mxc_mem_free(st);
}

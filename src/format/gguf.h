/* GGUF: one mapped file, its metadata and its tensor list. Versions 2 and 3, little-endian.
 * Everything handed out points into the map and lives until mxc_gguf_close.
 * open checks every count, length, offset and size against the file before it allocates, so the
 * accessors below cannot run past the map.
 * Thread rules: after open the view is read-only and may be read from any thread. */
#ifndef MXC_FORMAT_GGUF_H
#define MXC_FORMAT_GGUF_H

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "quant/storage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MXC_GGUF_MAX_DIMS = 4 };

enum mxc_gguf_type {
    MXC_GGUF_U8,
    MXC_GGUF_I8,
    MXC_GGUF_U16,
    MXC_GGUF_I16,
    MXC_GGUF_U32,
    MXC_GGUF_I32,
    MXC_GGUF_F32,
    MXC_GGUF_BOOL,
    MXC_GGUF_STRING,
    MXC_GGUF_ARRAY,
    MXC_GGUF_U64,
    MXC_GGUF_I64,
    MXC_GGUF_F64,
    MXC_N_GGUF_TYPES
};

/* One metadata entry. Strings in the file may hold any bytes: check UTF-8 where it matters. */
struct mxc_gguf_value {
    struct mxc_str key;
    enum mxc_gguf_type type;    /* of the value; MXC_GGUF_ARRAY for lists */
    enum mxc_gguf_type element; /* of a list's elements; equals type for scalars */
    size_t count;               /* elements; 1 for scalars */
    const unsigned char *data;  /* raw little-endian bytes, unaligned */
    size_t bytes;
};

struct mxc_gguf_tensor {
    const char *name; /* as in the file, NUL-terminated, 1 to 64 bytes */
    uint32_t type;    /* ggml's number */
    const char *type_name;
    enum mxc_storage storage; /* MXC_N_STORAGES: a known type that we do not read */
    int n_dims;
    uint64_t dims[MXC_GGUF_MAX_DIMS]; /* as in the file: innermost first */
    const uint8_t *data;
    size_t bytes;
};

struct mxc_gguf;

/* Maps and checks the file. Errors name path and, where there is one, the key or tensor. */
enum mxc_code mxc_gguf_open(const char *path, struct mxc_gguf **gguf, struct mxc_err *err) MXC_MUST;
void mxc_gguf_close(struct mxc_gguf *gguf);
const struct mxc_file *mxc_gguf_file(const struct mxc_gguf *gguf);
/* True when path ends in .gguf (any case) and is a regular file. */
bool mxc_gguf_is_path(const char *path);

/* Metadata in file order; keys are unique. */
size_t mxc_gguf_n_values(const struct mxc_gguf *gguf);
const struct mxc_gguf_value *mxc_gguf_value_at(const struct mxc_gguf *gguf, size_t index);
/* NULL when there is none. */
const struct mxc_gguf_value *mxc_gguf_find(const struct mxc_gguf *gguf, const char *key);

/* Optional scalars: an absent key leaves *out as it was; another type or a value out of [min, max]
 * is MXC_E_FORMAT that names file and key. int takes every integer width, real takes floats and
 * integers. */
enum mxc_code mxc_gguf_get_int(const struct mxc_gguf *gguf, const char *key, int64_t min,
                               int64_t max, int64_t *out, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_gguf_get_real(const struct mxc_gguf *gguf, const char *key, double *out,
                                struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_gguf_get_bool(const struct mxc_gguf *gguf, const char *key, bool *out,
                                struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_gguf_get_string(const struct mxc_gguf *gguf, const char *key, struct mxc_str *out,
                                  struct mxc_err *err) MXC_MUST;
/* Optional lists: *out stays untouched when the key is absent. Another type than a list of strings
 * (of integers of any width, of F32 or F64) is MXC_E_FORMAT that names file and key. */
enum mxc_code mxc_gguf_get_strings(const struct mxc_gguf *gguf, const char *key,
                                   const struct mxc_gguf_value **out, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_gguf_get_ints(const struct mxc_gguf *gguf, const char *key,
                                const struct mxc_gguf_value **out, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_gguf_get_reals(const struct mxc_gguf *gguf, const char *key,
                                 const struct mxc_gguf_value **out, struct mxc_err *err) MXC_MUST;

/* Elements. index < count. For integers and bools (a U64 above INT64_MAX reads as INT64_MAX). */
int64_t mxc_gguf_int_at(const struct mxc_gguf_value *value, size_t index);
/* For F32, F64 and integers. */
double mxc_gguf_real_at(const struct mxc_gguf_value *value, size_t index);
/* Strings have no index: walk them in order from *cursor = 0. false at the end. Also for a
 * scalar string. */
bool mxc_gguf_next_string(const struct mxc_gguf_value *value, size_t *cursor, struct mxc_str *out);
const char *mxc_gguf_type_name(enum mxc_gguf_type type);

/* Tensors in file order; names are unique. */
size_t mxc_gguf_n_tensors(const struct mxc_gguf *gguf);
const struct mxc_gguf_tensor *mxc_gguf_tensor_at(const struct mxc_gguf *gguf, size_t index);
/* What a loader of weights needs beyond open: every tensor is of a type that we decode, and no two
 * share bytes. Errors name file and tensor. */
enum mxc_code mxc_gguf_check_tensors(const struct mxc_gguf *gguf, struct mxc_err *err) MXC_MUST;

#endif

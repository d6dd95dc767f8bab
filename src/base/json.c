/* JSON helpers over jansson: parsing with our messages, typed fields, dumping to our memory.
 * jansson's allocator is left alone, since setting it would hit a host program's jansson too; what
 * is handed out as text comes from mxc_mem. Values themselves are jansson's: json_decref. A key
 * that stands twice is an error, numbers out of range are refused by the getters, and null counts
 * as absent, as in the files that we read. */
#include "base/json.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum mxc_code mxc_json_parse(const char *text, size_t length, const char *name, json_t **root,
                             struct mxc_err *err) {
    json_error_t e;
    json_t *value =
        json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!value) {
        /* jansson has no words for a value that it could not allocate */
        if (json_error_code(&e) == json_error_out_of_memory || !*e.text)
            return mxc_err_nomem(err);
        return mxc_err_at(err, MXC_E_FORMAT, e.position, "%s: line %d: %s", name, e.line, e.text);
    }
    *root = value;
    return MXC_OK;
}

enum mxc_code mxc_json_load(const char *path, size_t max_bytes, json_t **root,
                            struct mxc_err *err) {
    char *text;
    size_t length;
    enum mxc_code code = mxc_file_read(path, max_bytes, &text, &length, err);
    if (code)
        return code;
    code = mxc_json_parse(text, length, path, root, err);
    mxc_mem_free(text);
    return code;
}

static const json_t *field(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

enum mxc_code mxc_json_get_int(const json_t *object, const char *key, int64_t min, int64_t max,
                               int64_t *out, struct mxc_err *err) {
    const json_t *v = field(object, key);
    if (!v)
        return MXC_OK;
    int64_t n;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v) &&
               fabs(json_real_value(v)) < 9e15) {
        n = (int64_t)json_real_value(v);
    } else {
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not an integer", key);
    }
    if (n < min || n > max)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %lld is not in [%lld, %lld]", key, (long long)n,
                           (long long)min, (long long)max);
    *out = n;
    return MXC_OK;
}

enum mxc_code mxc_json_get_real(const json_t *object, const char *key, double *out,
                                struct mxc_err *err) {
    const json_t *v = field(object, key);
    if (!v)
        return MXC_OK;
    if (!json_is_number(v))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not a number", key);
    *out = json_number_value(v);
    return MXC_OK;
}

enum mxc_code mxc_json_get_bool(const json_t *object, const char *key, bool *out,
                                struct mxc_err *err) {
    const json_t *v = field(object, key);
    if (!v)
        return MXC_OK;
    if (!json_is_boolean(v))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not true or false", key);
    *out = json_is_true(v);
    return MXC_OK;
}

enum mxc_code mxc_json_get_string(const json_t *object, const char *key, const char **out,
                                  struct mxc_err *err) {
    const json_t *v = field(object, key);
    if (!v)
        return MXC_OK;
    if (!json_is_string(v))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not a string", key);
    *out = json_string_value(v);
    return MXC_OK;
}

static int append(const char *bytes, size_t length, void *buf) {
    return mxc_buf_append(buf, bytes, length) ? 0 : -1;
}

char *mxc_json_dump(const json_t *value) {
    struct mxc_buf buf;
    mxc_buf_init(&buf, SIZE_MAX / 4);
    bool ok = !json_dump_callback(value, append, &buf, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = ok ? mxc_buf_take(&buf) : NULL;
    mxc_buf_fini(&buf);
    return text;
}

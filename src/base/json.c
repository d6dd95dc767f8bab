/* JSON helpers over jansson: parsing with our messages, typed fields, dumping to our memory.
 * jansson's allocator is left alone, since setting it would hit a host program's jansson too; what
 * is handed out as text comes from mxc_mem. Values themselves are jansson's: json_decref. A key
 * that stands twice is an error, numbers out of range are refused by the getters, and null counts
 * as absent, as in the files that we read. */
#include "base/json.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* An integer in text[*i, length) that fits no int64; *i moves behind it, or behind any other. */
static bool is_wide(const char *text, size_t length, size_t *i) {
    char digits[24];
    size_t n = 0, at = *i;
    for (; at < length && (is_digit(text[at]) || (!n && text[at] == '-')); at++, n++)
        if (n < sizeof digits - 1)
            digits[n] = text[at];
    *i = at;
    if (at < length && (text[at] == '.' || text[at] == 'e' || text[at] == 'E'))
        return false;
    digits[n < sizeof digits - 1 ? n : sizeof digits - 1] = 0;
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* The text with integers that fit no int64 written as reals: Hugging Face writes "no limit" as
 * 1000000000000000019884624838656, which jansson refuses. */
static bool widen(const char *text, size_t length, struct mxc_buf *out) {
    bool quoted = false;
    size_t from = 0;
    for (size_t i = 0; i < length;) {
        char c = text[i];
        if (quoted && c == '\\' && i + 1 < length)
            i++;
        else if (c == '"')
            quoted = !quoted;
        if (quoted || (c != '-' && !is_digit(c))) {
            i++;
            continue;
        }
        bool wide = is_wide(text, length, &i);
        mxc_buf_append(out, text + from, i - from);
        mxc_buf_puts(out, wide ? ".0" : "");
        for (from = i; i < length && (is_digit(text[i]) || memchr("+-.eE", text[i], 5));)
            i++; /* the rest of a real */
    }
    mxc_buf_append(out, text + from, length - from);
    return !out->failed;
}

static json_t *load(const char *text, size_t length, json_error_t *e) {
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *value = json_loadb(text, length, flags, e);
    if (value || json_error_code(e) != json_error_numeric_overflow)
        return value;
    struct mxc_buf wide;
    mxc_buf_init(&wide, SIZE_MAX / 2);
    if (widen(text, length, &wide))
        value = json_loadb(wide.data, wide.length, flags, e);
    else
        *e->text = 0;
    mxc_buf_fini(&wide);
    return value;
}

enum mxc_code mxc_json_parse(const char *text, size_t length, const char *name, json_t **root,
                             struct mxc_err *err) {
    json_error_t e;
    json_t *value = load(text, length, &e);
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

/* Typed fields. */
#include "server/fields.h"

#include <math.h>
#include <stdio.h>

const json_t *mxc_field(const json_t *object, const char *name) {
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

enum mxc_code mxc_field_wrong(struct mxc_fault *fault, const char *name, const char *wanted,
                              const json_t *value) {
    return mxc_fault_set(fault, MXC_E_ARG, name, "%s: not %s but %s", name, wanted,
                         type_name(value));
}

enum mxc_code mxc_field_int(const json_t *object, const char *name, int64_t min, int64_t max,
                            int64_t *out, struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (!v)
        return MXC_OK;
    int64_t n;
    if (json_is_integer(v))
        n = json_integer_value(v);
    else if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v) &&
             fabs(json_real_value(v)) < 9e15)
        n = (int64_t)json_real_value(v);
    else
        return mxc_field_wrong(fault, name, "a whole number", v);
    if (n < min || n > max)
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s: %lld is not in [%lld, %lld]", name,
                             (long long)n, (long long)min, (long long)max);
    *out = n;
    return MXC_OK;
}

enum mxc_code mxc_field_real(const json_t *object, const char *name, double min, double max,
                             double *out, struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (!v)
        return MXC_OK;
    if (!json_is_number(v))
        return mxc_field_wrong(fault, name, "a number", v);
    double n = json_number_value(v);
    if (!(n >= min && n <= max))
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s: %g is not in [%g, %g]", name, n, min,
                             max);
    *out = n;
    return MXC_OK;
}

enum mxc_code mxc_field_bool(const json_t *object, const char *name, bool *out,
                             struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (!v)
        return MXC_OK;
    if (!json_is_boolean(v))
        return mxc_field_wrong(fault, name, "true or false", v);
    *out = json_is_true(v);
    return MXC_OK;
}

enum mxc_code mxc_field_text(const json_t *object, const char *name, struct mxc_str *out,
                             struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (!v)
        return MXC_OK;
    if (!json_is_string(v))
        return mxc_field_wrong(fault, name, "a string", v);
    *out = (struct mxc_str){json_string_value(v), json_string_length(v)};
    return MXC_OK;
}

enum mxc_code mxc_field_list(const json_t *object, const char *name, const json_t **out,
                             struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (v && !json_is_array(v))
        return mxc_field_wrong(fault, name, "a list", v);
    if (v)
        *out = v;
    return MXC_OK;
}

enum mxc_code mxc_field_object(const json_t *object, const char *name, const json_t **out,
                               struct mxc_fault *fault) {
    const json_t *v = mxc_field(object, name);
    if (v && !json_is_object(v))
        return mxc_field_wrong(fault, name, "an object", v);
    if (v)
        *out = v;
    return MXC_OK;
}

enum mxc_code mxc_field_ids(const json_t *list, const char *name, int32_t vocab, int32_t *ids,
                            struct mxc_fault *fault) {
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) {
        if (!json_is_integer(item))
            return mxc_fault_set(fault, MXC_E_ARG, name, "%s[%zu]: not a token id", name, i);
        json_int_t id = json_integer_value(item);
        if (id < 0 || id >= vocab)
            return mxc_fault_set(fault, MXC_E_ARG, name,
                                 "%s[%zu]: token %lld is not in the vocabulary of %d", name, i,
                                 (long long)id, vocab);
        ids[i] = (int32_t)id;
    }
    return MXC_OK;
}

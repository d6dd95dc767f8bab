/* Schemas that must hold together (allOf, keywords beside $ref or anyOf) are merged into one, and
 * schemas of a oneOf are compared.
 * In: parsed schemas. Out: new ones, owned by the builder.
 * Invariants: a merged schema accepts exactly what all parts accept, or the merge is refused by the
 * keyword that stands in the way. */
#include "gen/grammar/schema.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_FOLLOW = 32 };

static json_t *own(struct mxc_schema *s, json_t *value) {
    if (value && !s->b->owned)
        s->b->owned = json_array();
    if (!value || !s->b->owned || json_array_append(s->b->owned, value)) {
        json_decref(value);
        (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
        return NULL;
    }
    json_decref(value); /* the list holds it */
    return value;
}

static json_t *borrow(const json_t *value) {
    return (json_t *)(uintptr_t)value;
}

json_t *mxc_schema_without(struct mxc_schema *s, const json_t *schema, const char *const *keys) {
    json_t *copy = own(s, json_copy(borrow(schema)));
    for (; copy && *keys; keys++)
        (void)json_object_del(copy, *keys);
    return copy;
}

static bool set(struct mxc_schema *s, json_t *object, const char *key, const json_t *value) {
    if (!json_object_set(object, key, borrow(value)))
        return true;
    (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    return false;
}

static bool set_new(struct mxc_schema *s, json_t *object, const char *key, json_t *value) {
    if (value && !json_object_set_new(object, key, value))
        return true;
    (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    return false;
}

/* {"allOf": [a, b]} */
static json_t *both(const json_t *a, const json_t *b) {
    return json_pack("{s:[O,O]}", "allOf", borrow(a), borrow(b));
}

static bool has_value(const json_t *list, const json_t *value) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), borrow(value)))
            return true;
    return false;
}

static bool is_one_of(const char *key, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(*list, key))
            return true;
    return false;
}

static bool merge_properties(struct mxc_schema *s, json_t *out, const json_t *a, const json_t *b) {
    json_t *all = json_copy(borrow(a));
    const char *name;
    json_t *value;
    if (!all || !json_is_object(a) || !json_is_object(b))
        return set_new(s, out, "properties", all);
    json_object_foreach(borrow(b), name, value) {
        const json_t *known = json_object_get(a, name);
        if (known && json_equal(borrow(known), value))
            continue;
        if (known ? !set_new(s, all, name, both(known, value)) : !set(s, all, name, value)) {
            json_decref(all);
            return false;
        }
    }
    return set_new(s, out, "properties", all);
}

static bool is_type(const json_t *type, const char *name) {
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_type(json_array_get(type, i), name))
            return true;
    const char *own_name = json_string_value(type);
    return own_name &&
           (!strcmp(own_name, name) || (!strcmp(own_name, "number") && !strcmp(name, "integer")));
}

static bool merge_types(struct mxc_schema *s, json_t *out, const json_t *a, const json_t *b) {
    static const char *const names[] = {"object", "array",   "string", "integer",
                                        "number", "boolean", "null"};
    json_t *types = json_array();
    for (size_t i = 0; types && i < sizeof names / sizeof *names; i++)
        if (is_type(a, names[i]) && is_type(b, names[i]))
            (void)json_array_append_new(types, json_string(names[i]));
    if (types && !json_array_size(types)) {
        json_decref(types);
        (void)mxc_schema_fail(s, MXC_E_ARG, "no value satisfies both types");
        return false;
    }
    return set_new(s, out, "type", types);
}

static bool merge_lists(struct mxc_schema *s, json_t *out, const char *key, const json_t *a,
                        const json_t *b, bool common) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(a); i++)
        if (!common || has_value(b, json_array_get(a, i)))
            (void)json_array_append(list, json_array_get(a, i));
    for (size_t i = 0; list && !common && i < json_array_size(b); i++)
        if (!has_value(list, json_array_get(b, i)))
            (void)json_array_append(list, json_array_get(b, i));
    return set_new(s, out, key, list);
}

static bool merge_key(struct mxc_schema *s, json_t *out, const char *key, const json_t *a,
                      const json_t *b) {
    static const char *const greatest[] = {"minimum",  "exclusiveMinimum", "minLength",
                                           "minItems", "minProperties",    NULL};
    static const char *const least[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    if (json_equal(borrow(a), borrow(b)) || mxc_schema_is_annotation(key))
        return true;
    if (!strcmp(key, "properties"))
        return merge_properties(s, out, a, b);
    if (!strcmp(key, "required"))
        return merge_lists(s, out, key, a, b, false);
    if (!strcmp(key, "enum"))
        return merge_lists(s, out, key, a, b, true);
    if (!strcmp(key, "type"))
        return merge_types(s, out, a, b);
    if (!strcmp(key, "items"))
        return set_new(s, out, key, both(a, b));
    if (!strcmp(key, "additionalProperties") && !json_is_false(a) && !json_is_false(b))
        return set_new(s, out, key, both(a, b));
    if (!strcmp(key, "additionalProperties")) /* the names are checked by closed_names */
        return set_new(s, out, key, json_false());
    if (!strcmp(key, "nullable"))
        return set_new(s, out, key, json_false());
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);
        if (is_one_of(key, greatest))
            return set(s, out, key, x >= y ? a : b);
        if (is_one_of(key, least))
            return set(s, out, key, x <= y ? a : b);
    }
    (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED,
                          "%s in two schemas that must both hold is not "
                          "supported",
                          key);
    return false;
}

/* Of two schemas for objects one allows only its own names: the other's must be among them. */
static bool closed_names(struct mxc_schema *s, const json_t *a, const json_t *b) {
    const json_t *open = json_object_get(b, "properties");
    const json_t *closed = json_object_get(a, "properties");
    const json_t *more = json_object_get(a, "additionalProperties");
    const char *name;
    json_t *value;
    if (!more || json_is_true(more))
        return true;
    json_object_foreach(borrow(open), name, value) {
        if (json_object_get(closed, name))
            continue;
        (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED,
                              "additionalProperties of one schema applies to the property %.60s of "
                              "another; that is not supported",
                              name);
        return false;
    }
    return true;
}

/* Follows a $ref that stands alone or with others, and dissolves allOf. */
static const json_t *plain(struct mxc_schema *s, const json_t *schema, int depth) {
    const json_t *ref = json_object_get(schema, "$ref");
    const json_t *all = json_object_get(schema, "allOf");
    if (!mxc_schema_spend(s))
        return NULL;
    if (depth > MAX_FOLLOW) {
        (void)mxc_schema_fail(s, MXC_E_LIMIT,
                              "references and allOf inside each other more than %d deep; the limit "
                              "is %d",
                              MAX_FOLLOW, MAX_FOLLOW);
        return NULL;
    }
    if (!ref && !all)
        return schema;
    const json_t *out = mxc_schema_without(s, schema, (const char *const[]){"$ref", "allOf", NULL});
    if (ref && out) {
        const json_t *target =
            json_is_string(ref) ? mxc_schema_resolve(s, json_string_value(ref)) : NULL;
        target = target ? plain(s, target, depth + 1) : NULL;
        out = target ? mxc_schema_merge(s, out, target) : NULL;
    }
    for (size_t i = 0; out && i < json_array_size(all); i++) {
        const json_t *part = plain(s, json_array_get(all, i), depth + 1);
        out = part ? mxc_schema_merge(s, out, part) : NULL;
    }
    return out;
}

json_t *mxc_schema_merge(struct mxc_schema *s, const json_t *a, const json_t *b) {
    const char *key;
    json_t *value;
    if (mxc_grammar_failed(s->b) || !mxc_schema_spend(s))
        return NULL;
    if (json_is_true(b))
        return own(s, json_copy(borrow(a)));
    if (!json_is_object(a) || !json_is_object(b)) {
        (void)mxc_schema_fail(
            s, json_is_boolean(b) || json_is_boolean(a) ? MXC_E_UNSUPPORTED : MXC_E_ARG,
            "not a schema that can be joined with another");
        return NULL;
    }
    if (s->depth >= MXC_GRAMMAR_MAX_NESTING) {
        (void)mxc_schema_fail(s, MXC_E_LIMIT,
                              "schemas are nested more than %d deep; the limit is %d",
                              MXC_GRAMMAR_MAX_NESTING, MXC_GRAMMAR_MAX_NESTING);
        return NULL;
    }
    s->depth++;
    json_t *out = NULL;
    a = plain(s, a, 0);
    b = a ? plain(s, b, 0) : NULL;
    if (a && b && closed_names(s, a, b) && closed_names(s, b, a))
        out = own(s, json_copy(borrow(a)));
    if (out)
        json_object_foreach(borrow(b), key, value) {
            const json_t *known = json_object_get(a, key);
            if (known ? !merge_key(s, out, key, known, value) : !set(s, out, key, value)) {
                out = NULL;
                break;
            }
        }
    s->depth--;
    return out;
}

/* ---- oneOf */

static const json_t *follow(struct mxc_schema *s, const json_t *schema) {
    for (int i = 0; i < MAX_FOLLOW && json_is_string(json_object_get(schema, "$ref")); i++) {
        const json_t *next =
            mxc_schema_resolve(s, json_string_value(json_object_get(schema, "$ref")));
        if (!next)
            return NULL;
        schema = next;
    }
    return schema;
}

static const json_t *values_of(const json_t *schema) {
    return json_object_get(schema, "enum");
}

/* The type a schema's keywords speak of, "" when there is none. */
static bool types_apart(const json_t *a, const json_t *b) {
    static const char *const names[] = {"object", "array",   "string", "integer",
                                        "number", "boolean", "null"};
    const json_t *ta = json_object_get(a, "type"), *tb = json_object_get(b, "type");
    if (!ta || !tb)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_type(ta, names[i]) && is_type(tb, names[i]))
            return false;
    return true;
}

static bool fits_type(const json_t *value, const json_t *type) {
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return !type || is_type(type, names[json_typeof(value)]) ||
           (json_is_real(value) && is_type(type, "integer"));
}

static bool values_apart(const json_t *a, const json_t *b) {
    const json_t *ca = json_object_get(a, "const"), *cb = json_object_get(b, "const");
    const json_t *ea = values_of(a), *eb = values_of(b);
    if (ca && cb)
        return !json_equal(borrow(ca), borrow(cb)) &&
               !(json_is_number(ca) && json_is_number(cb) &&
                 json_number_value(ca) == json_number_value(cb));
    if (ca && eb)
        return !json_is_number(ca) && !has_value(eb, ca);
    if (cb && ea)
        return !json_is_number(cb) && !has_value(ea, cb);
    if (ca && json_object_get(b, "type"))
        return !fits_type(ca, json_object_get(b, "type"));
    for (size_t i = 0; i < json_array_size(ea); i++) {
        const json_t *v = json_array_get(ea, i);
        if (eb ? json_is_number(v) || has_value(eb, v) : fits_type(v, json_object_get(b, "type")))
            return false;
    }
    return ea && (eb || json_object_get(b, "type"));
}

static bool requires(const json_t *schema, const char *name) {
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));
        if (item && !strcmp(item, name))
            return true;
    }
    return false;
}

/* A name that `needs` must have and `lacks` does not declare. */
static bool lacks_required(const json_t *lacks, const json_t *needs) {
    const json_t *list = json_object_get(needs, "required");
    const json_t *declared = json_object_get(lacks, "properties");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !json_object_get(declared, name) && !requires(lacks, name))
            return true;
    }
    return false;
}

bool mxc_schema_excludes(struct mxc_schema *s, const json_t *a, const json_t *b, int depth) {
    if (!mxc_schema_spend(s))
        return false;
    a = follow(s, a);
    b = a ? follow(s, b) : NULL;
    if (!json_is_object(a) || !json_is_object(b) || depth > 8)
        return false;
    if (json_is_true(json_object_get(a, "nullable")) ||
        json_is_true(json_object_get(b, "nullable")))
        return false;
    if (types_apart(a, b) || values_apart(a, b) || values_apart(b, a))
        return true;
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const json_t *type = json_object_get(a, "type"),
                 *more = json_object_get(a, "additionalProperties");
    /* Below, a's texts must be objects, whatever b's are. */
    if (!pa || (type && strcmp(json_string_value(type) ? json_string_value(type) : "", "object")) ||
        json_object_get(a, "anyOf") || json_object_get(a, "oneOf") || json_object_get(a, "allOf"))
        return false;
    if ((!more || json_is_false(more)) && json_object_size(pa) && lacks_required(a, b))
        return true;
    if (json_is_false(json_object_get(b, "additionalProperties")) && lacks_required(b, a))
        return true;
    const char *name;
    json_t *value;
    json_object_foreach(borrow(pa), name, value) {
        const json_t *other = json_object_get(pb, name);
        if (other && requires(a, name) && mxc_schema_excludes(s, value, other, depth + 1))
            return true;
    }
    return false;
}

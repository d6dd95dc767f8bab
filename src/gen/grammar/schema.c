/* JSON Schema to expressions: references, combinations, types. Keywords that constrain and cannot
 * be honoured are refused with their JSON pointer; annotations are ignored.
 * In: a parsed schema. Out: a node whose texts all satisfy the schema.
 * Invariants: every target of a $ref is one rule, so recursion costs nothing; schemas are nested at
 * most MXC_GRAMMAR_MAX_NESTING deep apart from references. */
#include "gen/grammar/schema.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *mxc_schema_where(const struct mxc_schema *s) {
    return mxc_buf_text(&s->path);
}

int32_t mxc_schema_fail(struct mxc_schema *s, enum mxc_code code, const char *fmt, ...) {
    char text[300];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return mxc_grammar_fail(s->b, code, "schema, %.180s: %s", mxc_schema_where(s), text);
}

bool mxc_schema_spend(struct mxc_schema *s) {
    if (++s->work <= MXC_SCHEMA_MAX_WORK)
        return true;
    (void)mxc_schema_fail(s, MXC_E_LIMIT,
                          "references and combinations make more than %d schemas; the limit is %d",
                          MXC_SCHEMA_MAX_WORK, MXC_SCHEMA_MAX_WORK);
    return false;
}

static void append_key(struct mxc_buf *path, const char *key) {
    mxc_buf_putc(path, '/');
    for (; *key; key++) {
        if (*key == '~' || *key == '/')
            mxc_buf_puts(path, *key == '~' ? "~0" : "~1");
        else
            mxc_buf_putc(path, (uint8_t)*key < 0x20 ? ' ' : *key);
    }
}

size_t mxc_schema_enter(struct mxc_schema *s, const char *key, const char *key2, int64_t index) {
    size_t mark = s->path.length;
    append_key(&s->path, key);
    if (key2)
        append_key(&s->path, key2);
    else if (index >= 0)
        mxc_buf_printf(&s->path, "/%lld", (long long)index);
    if (s->path.failed && !s->path.full)
        (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    return mark;
}

void mxc_schema_leave(struct mxc_schema *s, size_t mark) {
    if (s->path.length > mark) {
        s->path.length = mark;
        s->path.data[mark] = 0;
    }
    s->path.failed = s->path.full = false;
}

int32_t mxc_schema_node_at(struct mxc_schema *s, const json_t *schema, const char *key,
                           const char *key2, int64_t index) {
    size_t mark = mxc_schema_enter(s, key, key2, index);
    int32_t node = mxc_schema_node(s, schema);
    mxc_schema_leave(s, mark);
    return node;
}

bool mxc_schema_count(struct mxc_schema *s, const json_t *schema, const char *key, int64_t *out) {
    const json_t *v = json_object_get(schema, key);
    if (!v)
        return true;
    double real = json_number_value(v);
    if (!json_is_number(v) || real < 0 || real > 1e15 || real != (double)(int64_t)real) {
        (void)mxc_schema_fail(s, MXC_E_ARG, "%s is not a non-negative integer", key);
        return false;
    }
    *out = (int64_t)real;
    return true;
}

/* ---- keywords */

static bool in_list(const char *const *list, const char *key) {
    for (; *list; list++)
        if (!strcmp(*list, key))
            return true;
    return false;
}

static const char *const object_keys[] = {"properties",    "required",      "additionalProperties",
                                          "minProperties", "maxProperties", NULL};
static const char *const array_keys[] = {"items",    "prefixItems", "minItems",
                                         "maxItems", "uniqueItems", NULL};
static const char *const string_keys[] = {"minLength", "maxLength", "pattern", "format", NULL};
static const char *const number_keys[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL};
static const char *const general_keys[] = {"type",  "enum", "const",    "anyOf", "oneOf",
                                           "allOf", "$ref", "nullable", NULL};
static const char *const refused_keys[] = {"not",
                                           "if",
                                           "then",
                                           "else",
                                           "dependentRequired",
                                           "dependentSchemas",
                                           "dependencies",
                                           "patternProperties",
                                           "propertyNames",
                                           "unevaluatedProperties",
                                           "unevaluatedItems",
                                           "contains",
                                           "minContains",
                                           "maxContains",
                                           "$dynamicRef",
                                           "$recursiveRef",
                                           "additionalItems",
                                           NULL};
static const char *const annotations[] = {"title",
                                          "description",
                                          "default",
                                          "example",
                                          "examples",
                                          "$schema",
                                          "$id",
                                          "id",
                                          "$comment",
                                          "$defs",
                                          "definitions",
                                          "deprecated",
                                          "readOnly",
                                          "writeOnly",
                                          "$anchor",
                                          "$dynamicAnchor",
                                          "$vocabulary",
                                          "contentEncoding",
                                          "contentMediaType",
                                          "contentSchema",
                                          "discriminator",
                                          "strict",
                                          "externalDocs",
                                          "xml",
                                          NULL};

bool mxc_schema_is_annotation(const char *key) {
    return in_list(annotations, key) ||
           (!in_list(object_keys, key) && !in_list(array_keys, key) && !in_list(string_keys, key) &&
            !in_list(number_keys, key) && !in_list(general_keys, key) &&
            !in_list(refused_keys, key));
}

static bool check_keys(struct mxc_schema *s, const json_t *schema) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (!in_list(refused_keys, key))
            continue;
        if ((!strncmp(key, "unevaluated", 11) && json_is_true(value)) ||
            (!strcmp(key, "patternProperties") && json_is_object(value) &&
             !json_object_size(value)))
            continue;
        (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED, "the keyword %s is not supported", key);
        return false;
    }
    return true;
}

/* Whether nothing but annotations and the given key stands in the schema. */
static bool alone(const json_t *schema, const char *but) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (strcmp(key, but) != 0 && !mxc_schema_is_annotation(key))
            return false;
    }
    return true;
}

static bool any_of(const json_t *schema, const char *const *keys) {
    for (; *keys; keys++)
        if (json_object_get(schema, *keys))
            return true;
    return false;
}

/* ---- references */

/* One step of a pointer, decoded into name. */
static const char *pointer_step(const char *at, struct mxc_buf *name) {
    mxc_buf_clear(name);
    for (; *at && *at != '/'; at++) {
        if (at[0] == '~' && (at[1] == '0' || at[1] == '1')) {
            mxc_buf_putc(name, *++at == '0' ? '~' : '/');
        } else if (at[0] == '%' && mxc_hex_digit(at[1]) >= 0 && mxc_hex_digit(at[2]) >= 0) {
            mxc_buf_putc(name, (char)(mxc_hex_digit(at[1]) * 16 + mxc_hex_digit(at[2])));
            at += 2;
        } else {
            mxc_buf_putc(name, *at);
        }
    }
    return at;
}

const json_t *mxc_schema_resolve(struct mxc_schema *s, const char *ref) {
    const json_t *at = s->root;
    struct mxc_buf name;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED,
                              "$ref %.80s: only pointers into this schema (#/...) are supported",
                              ref);
        return NULL;
    }
    mxc_buf_init(&name, 1 << 16);
    for (const char *p = ref + 1; *p == '/' && at;) {
        int64_t index;
        p = pointer_step(p + 1, &name);
        if (json_is_array(at) && mxc_parse_i64(mxc_buf_text(&name), &index) && index >= 0)
            at = json_array_get(at, (size_t)index);
        else
            at = json_object_get(at, mxc_buf_text(&name));
    }
    if (name.failed && !name.full)
        (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    mxc_buf_fini(&name);
    if (!at)
        (void)mxc_schema_fail(s, MXC_E_ARG, "$ref %.80s leads nowhere", ref);
    return at;
}

static int32_t reference(struct mxc_schema *s, const char *ref) {
    const json_t *target = mxc_schema_resolve(s, ref);
    uint64_t rule;
    if (!target)
        return -1;
    struct mxc_str key = {(const char *)&target, sizeof target};
    if (!mxc_map_get(&s->refs, key, &rule)) {
        int32_t made = mxc_grammar_add_rule(s->b, mxc_str_of(ref));
        if (made < 0 || !mxc_map_put(&s->refs, key, (uint64_t)made))
            return mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
        rule = (uint64_t)made;
        struct mxc_buf path = s->path; /* errors below the target speak of its own place */
        mxc_buf_init(&s->path, path.max_bytes);
        mxc_buf_puts(&s->path, ref);
        mxc_grammar_set_rule(s->b, made, mxc_schema_node(s, target));
        mxc_buf_fini(&s->path);
        s->path = path;
    }
    return mxc_grammar_add_ref(s->b, (int32_t)rule);
}

/* ---- combinations */

static int32_t all_of(struct mxc_schema *s, const json_t *schema) {
    const json_t *list = json_object_get(schema, "allOf");
    if (!json_is_array(list) || !json_array_size(list))
        return mxc_schema_fail(s, MXC_E_ARG, "allOf is not a list of schemas");
    const json_t *merged = mxc_schema_without(s, schema, (const char *const[]){"allOf", NULL});
    for (size_t i = 0; merged && i < json_array_size(list); i++) {
        size_t mark = mxc_schema_enter(s, "allOf", NULL, (int64_t)i);
        merged = mxc_schema_merge(s, merged, json_array_get(list, i));
        mxc_schema_leave(s, mark);
    }
    return merged ? mxc_schema_node(s, merged) : -1;
}

static int32_t ways(struct mxc_schema *s, const json_t *schema, const char *key) {
    const json_t *list = json_object_get(schema, key), *rest = NULL;
    size_t n = json_array_size(list);
    if (!json_is_array(list) || !n)
        return mxc_schema_fail(s, MXC_E_ARG, "%s is not a list of schemas", key);
    if (!alone(schema, key) &&
        !(rest = mxc_schema_without(s, schema, (const char *const[]){key, NULL})))
        return -1;
    if (!strcmp(key, "oneOf"))
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n && !mxc_grammar_failed(s->b); j++)
                if (i != j &&
                    !mxc_schema_excludes(s, json_array_get(list, i), json_array_get(list, j), 0))
                    return mxc_schema_fail(s, MXC_E_UNSUPPORTED,
                                           "oneOf: one value could satisfy both %zu and %zu; use "
                                           "anyOf if that is meant",
                                           i < j ? i : j, i < j ? j : i);
    int32_t *items = mxc_mem_array(n, sizeof *items), node = -1;
    if (!items)
        return mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        size_t mark = mxc_schema_enter(s, key, NULL, (int64_t)i);
        const json_t *way = json_array_get(list, i);
        if (rest)
            way = mxc_schema_merge(s, rest, way);
        items[i] = way ? mxc_schema_node(s, way) : -1;
        mxc_schema_leave(s, mark);
    }
    node = mxc_grammar_add_alt(s->b, items, n);
    mxc_mem_free(items);
    return node;
}

/* ---- types */

static const char *const type_names[] = {"object", "array",   "string", "integer",
                                         "number", "boolean", "null",   NULL};
enum type { OBJECT, ARRAY, STRING, INTEGER, NUMBER, BOOLEAN, NOTHING, N_TYPES };

/* The bits of type; 0: none given or failed. */
static unsigned types_of(struct mxc_schema *s, const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    unsigned bits = 0;
    size_t n = json_is_array(type) ? json_array_size(type) : type ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        int t = 0;
        while (name && type_names[t] && strcmp(type_names[t], name) != 0)
            t++;
        if (!name || !type_names[t]) {
            (void)mxc_schema_fail(s, MXC_E_ARG, "type %.40s is unknown", name ? name : "(no text)");
            return 0;
        }
        bits |= 1u << t;
    }
    if (type && !n)
        (void)mxc_schema_fail(s, MXC_E_ARG, "type is empty");
    if (bits & 1u << NUMBER)
        bits &= ~(1u << INTEGER);
    if (json_is_true(json_object_get(schema, "nullable")) && bits)
        bits |= 1u << NOTHING;
    return bits;
}

static unsigned type_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return 1u << OBJECT;
    case JSON_ARRAY:
        return 1u << ARRAY;
    case JSON_STRING:
        return 1u << STRING;
    case JSON_INTEGER:
        return 1u << INTEGER | 1u << NUMBER;
    case JSON_REAL:
        return 1u << NUMBER;
    case JSON_NULL:
        return 1u << NOTHING;
    default:
        return 1u << BOOLEAN;
    }
}

/* enum, or const as an enum of one; type restricts it. */
static int32_t constants(struct mxc_schema *s, const json_t *schema, const char *key) {
    const json_t *list = json_object_get(schema, key);
    bool one = !strcmp(key, "const");
    size_t n = one ? 1 : json_array_size(list), used = 0;
    const char *other;
    json_t *value;
    if (!one && (!json_is_array(list) || !n))
        return mxc_schema_fail(s, MXC_E_ARG, "enum is not a list of values");
    json_object_foreach((json_t *)(uintptr_t)schema, other, value) {
        if (strcmp(other, key) != 0 && strcmp(other, "type") != 0 &&
            strcmp(other, "nullable") != 0 && strcmp(other, "format") != 0 &&
            !mxc_schema_is_annotation(other))
            return mxc_schema_fail(s, MXC_E_UNSUPPORTED, "%s beside %s is not supported", other,
                                   key);
    }
    unsigned types = types_of(s, schema);
    if (mxc_grammar_failed(s->b))
        return -1;
    int32_t *items = mxc_mem_array(n + 1, sizeof *items);
    if (!items)
        return mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
    bool has_null = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = one ? list : json_array_get(list, i);
        if (types && !(types & type_of_value(v)))
            continue;
        has_null |= json_is_null(v);
        items[used++] = mxc_grammar_add_json_const(s->b, v, mxc_schema_where(s));
    }
    if (json_is_true(json_object_get(schema, "nullable")) && !has_null)
        items[used++] = mxc_grammar_add_text(s->b, "null");
    int32_t node = used ? mxc_grammar_add_alt(s->b, items, used)
                        : mxc_schema_fail(s, MXC_E_ARG, "no value of %s has the type", key);
    mxc_mem_free(items);
    return node;
}

static int32_t one_type(struct mxc_schema *s, const json_t *schema, enum type type) {
    switch (type) {
    case OBJECT:
        return mxc_schema_object(s, schema);
    case ARRAY:
        return mxc_schema_array(s, schema);
    case STRING:
        return mxc_schema_string(s, schema);
    case INTEGER:
    case NUMBER:
        return mxc_schema_number(s, schema, type == INTEGER);
    case BOOLEAN:
        return mxc_grammar_add_alt(
            s->b,
            (int32_t[]){mxc_grammar_add_text(s->b, "true"), mxc_grammar_add_text(s->b, "false")},
            2);
    default:
        return mxc_grammar_add_text(s->b, "null");
    }
}

static int32_t typed(struct mxc_schema *s, const json_t *schema) {
    unsigned types = types_of(s, schema);
    int32_t items[N_TYPES];
    size_t n = 0;
    if (mxc_grammar_failed(s->b))
        return -1;
    if (!types) { /* the keywords say what is meant */
        types |= any_of(schema, object_keys) ? 1u << OBJECT : 0;
        types |= any_of(schema, array_keys) ? 1u << ARRAY : 0;
        types |= any_of(schema, string_keys) ? 1u << STRING : 0;
        types |= any_of(schema, number_keys) ? 1u << NUMBER : 0;
        if (types && json_is_true(json_object_get(schema, "nullable")))
            types |= 1u << NOTHING;
    }
    if (!types)
        return mxc_grammar_add_json_value(s->b);
    for (int t = 0; t < N_TYPES; t++)
        if (types & 1u << t)
            items[n++] = one_type(s, schema, (enum type)t);
    return mxc_grammar_add_alt(s->b, items, n);
}

static int32_t dispatch(struct mxc_schema *s, const json_t *schema) {
    const json_t *ref = json_object_get(schema, "$ref");
    if (!check_keys(s, schema))
        return -1;
    if (ref) {
        if (!json_is_string(ref))
            return mxc_schema_fail(s, MXC_E_ARG, "$ref is not a text");
        if (alone(schema, "$ref"))
            return reference(s, json_string_value(ref));
        const json_t *target = mxc_schema_resolve(s, json_string_value(ref));
        const json_t *rest =
            target ? mxc_schema_without(s, schema, (const char *const[]){"$ref", NULL}) : NULL;
        const json_t *merged = rest ? mxc_schema_merge(s, rest, target) : NULL;
        return merged ? mxc_schema_node(s, merged) : -1;
    }
    if (json_object_get(schema, "allOf"))
        return all_of(s, schema);
    if (json_object_get(schema, "anyOf"))
        return ways(s, schema, "anyOf");
    if (json_object_get(schema, "oneOf"))
        return ways(s, schema, "oneOf");
    if (json_object_get(schema, "const"))
        return constants(s, schema, "const");
    if (json_object_get(schema, "enum"))
        return constants(s, schema, "enum");
    return typed(s, schema);
}

int32_t mxc_schema_node(struct mxc_schema *s, const json_t *schema) {
    if (mxc_grammar_failed(s->b))
        return -1;
    if (json_is_true(schema))
        return mxc_grammar_add_json_value(s->b);
    if (json_is_false(schema))
        return mxc_grammar_add_alt(s->b, NULL, 0);
    if (!json_is_object(schema))
        return mxc_schema_fail(s, MXC_E_ARG, "not a schema (an object or a boolean)");
    if (!mxc_schema_spend(s))
        return -1;
    if (s->depth >= MXC_GRAMMAR_MAX_NESTING)
        return mxc_schema_fail(s, MXC_E_LIMIT,
                               "schemas are nested more than %d deep; the limit is %d",
                               MXC_GRAMMAR_MAX_NESTING, MXC_GRAMMAR_MAX_NESTING);
    s->depth++;
    int32_t node = dispatch(s, schema);
    s->depth--;
    return node;
}

int32_t mxc_grammar_add_schema(struct mxc_grammar_builder *b, const json_t *schema) {
    struct mxc_schema s = {.b = b, .root = schema};
    mxc_map_init(&s.refs);
    mxc_buf_init(&s.path, 4096);
    mxc_buf_puts(&s.path, "#");
    int32_t node = -1;
    if (s.path.failed)
        (void)mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    else
        node = mxc_schema_node(&s, schema);
    mxc_map_fini(&s.refs);
    mxc_buf_fini(&s.path);
    return node;
}

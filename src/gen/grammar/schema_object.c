/* Objects and arrays of a JSON Schema.
 * An object is a graph: for each property a state "none written yet" and a state "some written",
 * so that optional properties cost no alternatives and commas stand where they must. Properties
 * come in the order declared; those that additionalProperties allows come last, under other names.
 * Out: nodes. Errors name the keyword and its place. */
#include "gen/grammar/schema.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_PROPERTIES = 16384 };

struct property {
    const char *name;
    int32_t value;
    bool required;
};

struct object {
    struct mxc_schema *s;
    struct property *items;
    size_t n;
    const json_t *additional; /* NULL: absent */
    int64_t min, max;         /* properties; max -1: no bound */
};

static int32_t nomem(struct mxc_schema *s) {
    return mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
}

static int32_t text(struct mxc_schema *s, const char *t) {
    return mxc_grammar_add_text(s->b, t);
}

static int32_t keyed(struct mxc_schema *s, int32_t key, int32_t value) {
    return mxc_grammar_add_seq(
        s->b, (int32_t[]){key, text(s, ":"), mxc_grammar_add_json_space(s->b), value}, 4);
}

static struct property *find(struct object *o, const struct mxc_map *index, const char *name) {
    uint64_t at;
    return mxc_map_get(index, mxc_str_of(name), &at) ? &o->items[at] : NULL;
}

/* Collects properties; names that are only required become properties of the additional kind. */
static bool collect(struct object *o, const json_t *schema, struct mxc_map *index) {
    struct mxc_schema *s = o->s;
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    size_t room = json_object_size(properties) + json_array_size(required);
    const char *name;
    json_t *value;
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required))) {
        (void)mxc_schema_fail(s, MXC_E_ARG, "%s is not %s",
                              properties && !json_is_object(properties) ? "properties" : "required",
                              properties && !json_is_object(properties) ? "an object" : "a list");
        return false;
    }
    if (json_object_size(properties) > MAX_PROPERTIES ||
        json_array_size(required) > MAX_PROPERTIES) {
        (void)mxc_schema_fail(s, MXC_E_LIMIT, "%zu properties; the limit is %d", room,
                              MAX_PROPERTIES);
        return false;
    }
    o->items = mxc_mem_zalloc(room + 1, sizeof *o->items);
    if (!o->items) {
        (void)nomem(s);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)properties, name, value) {
        if (!mxc_map_put_borrowed(index, mxc_str_of(name), o->n)) {
            (void)nomem(s);
            return false;
        }
        o->items[o->n].name = name;
        o->items[o->n++].value =
            json_is_false(value) ? -1 : mxc_schema_node_at(s, value, "properties", name, -1);
        if (mxc_grammar_failed(s->b))
            return false;
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *wanted = json_string_value(json_array_get(required, i));
        if (!wanted) {
            (void)mxc_schema_fail(s, MXC_E_ARG, "required/%zu is not a text", i);
            return false;
        }
        struct property *p = find(o, index, wanted);
        if (!p) {
            if (!mxc_map_put_borrowed(index, mxc_str_of(wanted), o->n)) {
                (void)nomem(s);
                return false;
            }
            p = &o->items[o->n++];
            p->name = wanted;
            p->value = o->additional
                           ? mxc_schema_node_at(s, o->additional, "additionalProperties", NULL, -1)
                           : mxc_grammar_add_json_value(s->b);
        }
        p->required = true;
    }
    return !mxc_grammar_failed(s->b);
}

/* A key that is none of the declared names. */
static int32_t other_key(struct object *o) {
    struct mxc_grammar_builder *b = o->s->b;
    struct mxc_code_range never[3] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    int32_t quote = mxc_grammar_add_text(b, "\"");
    int32_t chars = mxc_grammar_add_repeat(b, mxc_grammar_add_class(b, never, 3, true), 0, -1);
    struct mxc_str *names = mxc_mem_array(o->n + 1, sizeof *names);
    if (!names)
        return nomem(o->s);
    for (size_t i = 0; i < o->n; i++)
        names[i] = mxc_str_of(o->items[i].name);
    int32_t content = mxc_grammar_add_without(b, chars, names, o->n);
    mxc_mem_free(names);
    return mxc_grammar_add_kept(b, "key",
                                mxc_grammar_add_seq(b, (int32_t[]){quote, content, quote}, 3));
}

/* Written once, called from wherever it is repeated: nested arrays would double each time. */
static int32_t once(struct mxc_grammar_builder *b, int32_t item) {
    return item < 0 || b->nodes[item].size <= 8 ? item : mxc_grammar_add_kept(b, "item", item);
}

/* { pair, pair, ... } with min to max pairs. */
static int32_t free_object(struct object *o, int32_t pair) {
    struct mxc_grammar_builder *b = o->s->b;
    pair = once(b, pair);
    int32_t space = mxc_grammar_add_json_space(b);
    int32_t min = (int32_t)o->min, max = (int32_t)o->max;
    int32_t empty = mxc_grammar_add_text(b, "}");
    int32_t more =
        mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_text(b, ","), space, pair}, 3);
    if (!max)
        return mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_text(b, "{"), space, empty}, 3);
    int32_t some = mxc_grammar_add_seq(
        b,
        (int32_t[]){pair,
                    mxc_grammar_add_repeat(b, more, min ? min - 1 : 0, max < 0 ? max : max - 1),
                    space},
        3);
    if (!min)
        some = mxc_grammar_add_optional(b, some);
    return mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_text(b, "{"), space, some, empty}, 4);
}

/* States: start 0, end 1, then per place i of n + 1: none written, some written, before the pair.
 */
static int32_t declared(struct object *o, int32_t others) {
    struct mxc_grammar_builder *b = o->s->b;
    struct mxc_gedges edges;
    int32_t space = mxc_grammar_add_json_space(b), close = mxc_grammar_add_text(b, "}");
    int32_t comma = mxc_grammar_add_pair(b, mxc_grammar_add_text(b, ","), space);
    int32_t open = mxc_grammar_add_pair(b, mxc_grammar_add_text(b, "{"), space);
    mxc_grammar_edges_init(&edges);
    edges.n_states = 2 + 3 * ((uint32_t)o->n + 1);
    mxc_grammar_edge(b, &edges, 0, open, 2);
    for (uint32_t i = 0; i <= o->n && !mxc_grammar_failed(b); i++) {
        uint32_t none = 2 + 3 * i, some = none + 1, pair = none + 2;
        bool last = i == o->n;
        int32_t value = last ? others : o->items[i].value;
        if (value >= 0) {
            int32_t label =
                last ? value
                     : keyed(o->s, mxc_grammar_add_json_text(b, mxc_str_of(o->items[i].name)),
                             value);
            mxc_grammar_edge(b, &edges, none, -1, pair);
            mxc_grammar_edge(b, &edges, some, comma, pair);
            mxc_grammar_edge(b, &edges, pair, label, last ? some : some + 3);
        }
        if (last) {
            mxc_grammar_edge(b, &edges, none, close, 1);
            mxc_grammar_edge(b, &edges, some, mxc_grammar_add_pair(b, space, close), 1);
        } else if (!o->items[i].required) {
            mxc_grammar_edge(b, &edges, none, -1, none + 3);
            mxc_grammar_edge(b, &edges, some, -1, some + 3);
        }
    }
    return mxc_grammar_edges_finish(b, &edges);
}

/* Counts of properties, where they say more than the declarations do. */
static bool check_counts(struct object *o, bool closed) {
    size_t n_required = 0;
    for (size_t i = 0; i < o->n; i++)
        n_required += o->items[i].required;
    if (o->min > (int64_t)n_required) {
        (void)mxc_schema_fail(o->s, MXC_E_UNSUPPORTED,
                              "minProperties %lld beside properties of which %zu are required is "
                              "not supported",
                              (long long)o->min, n_required);
        return false;
    }
    if (o->max >= 0 && (!closed || o->max < (int64_t)o->n)) {
        (void)mxc_schema_fail(o->s, MXC_E_UNSUPPORTED,
                              "maxProperties %lld beside properties is not supported",
                              (long long)o->max);
        return false;
    }
    return true;
}

int32_t mxc_schema_object(struct mxc_schema *s, const json_t *schema) {
    struct object o = {.s = s, .max = -1};
    struct mxc_map index;
    int32_t node = -1;
    o.additional = json_object_get(schema, "additionalProperties");
    if (!mxc_schema_count(s, schema, "minProperties", &o.min) ||
        !mxc_schema_count(s, schema, "maxProperties", &o.max))
        return -1;
    if (o.max > MXC_GRAMMAR_MAX_REPEAT)
        o.max = MXC_GRAMMAR_MAX_REPEAT;
    if (o.min > MXC_GRAMMAR_MAX_REPEAT || (o.max >= 0 && o.min > o.max))
        return mxc_schema_fail(s, o.min > MXC_GRAMMAR_MAX_REPEAT ? MXC_E_LIMIT : MXC_E_ARG,
                               "minProperties %lld; the limit is %lld", (long long)o.min,
                               (long long)(o.max >= 0 ? o.max : MXC_GRAMMAR_MAX_REPEAT));
    mxc_map_init(&index);
    if (!collect(&o, schema, &index))
        goto out;
    bool closed = o.additional ? json_is_false(o.additional) : o.n > 0;
    if (!o.n && closed) {
        o.max = 0;
        node = free_object(&o, -1);
        if (o.min)
            node = mxc_schema_fail(s, MXC_E_ARG, "minProperties %lld of an object without any",
                                   (long long)o.min);
    } else if (!o.n) {
        bool any = !o.additional || json_is_true(o.additional);
        if (any && !o.min && o.max < 0) {
            node = mxc_grammar_add_json_object(s->b);
            goto out;
        }
        int32_t value = any ? mxc_grammar_add_json_value(s->b)
                            : mxc_schema_node_at(s, o.additional, "additionalProperties", NULL, -1);
        node = free_object(&o, keyed(s, mxc_grammar_json_shared(s->b, MXC_G_JSON_STRING), value));
    } else if (check_counts(&o, closed)) {
        int32_t others = -1;
        if (!closed)
            others = keyed(s, other_key(&o),
                           mxc_schema_node_at(s, o.additional, "additionalProperties", NULL, -1));
        node = declared(&o, others);
    }
out:
    mxc_map_fini(&index);
    mxc_mem_free(o.items);
    return mxc_grammar_failed(s->b) ? -1 : node;
}

/* ---- arrays */

/* Behind `n` items before it: min to max more, each after a comma. */
static int32_t tail(struct mxc_schema *s, int32_t item, int32_t min, int32_t max) {
    int32_t more = mxc_grammar_add_seq(
        s->b, (int32_t[]){text(s, ","), mxc_grammar_add_json_space(s->b), item}, 3);
    return mxc_grammar_add_repeat(s->b, more, min, max);
}

static int32_t plain_array(struct mxc_schema *s, int32_t item, int32_t min, int32_t max) {
    int32_t space = mxc_grammar_add_json_space(s->b);
    if (!max)
        return mxc_grammar_add_seq(s->b, (int32_t[]){text(s, "["), space, text(s, "]")}, 3);
    int32_t some = mxc_grammar_add_seq(
        s->b, (int32_t[]){item, tail(s, item, min ? min - 1 : 0, max < 0 ? max : max - 1), space},
        3);
    if (!min)
        some = mxc_grammar_add_optional(s->b, some);
    return mxc_grammar_add_seq(s->b, (int32_t[]){text(s, "["), space, some, text(s, "]")}, 4);
}

/* rest -1: nothing may follow the prefix. */
static int32_t tuple(struct mxc_schema *s, const json_t *prefix, int32_t rest, int32_t min,
                     int32_t max) {
    struct mxc_grammar_builder *b = s->b;
    struct mxc_gedges edges;
    size_t n = json_array_size(prefix);
    int32_t space = mxc_grammar_add_json_space(b), close = text(s, "]");
    mxc_grammar_edges_init(&edges);
    edges.n_states = 4 + (uint32_t)n;
    mxc_grammar_edge(b, &edges, 0, mxc_grammar_add_pair(b, text(s, "["), space), 2);
    for (uint32_t i = 0; i <= n && !mxc_grammar_failed(b); i++) {
        if ((int64_t)i >= min && (max < 0 || (int64_t)i <= max))
            mxc_grammar_edge(b, &edges, 2 + i, i ? mxc_grammar_add_pair(b, space, close) : close,
                             1);
        if (i == n || (max >= 0 && (int64_t)i >= max))
            break;
        int32_t item = mxc_schema_node_at(s, json_array_get(prefix, i), "prefixItems", NULL, i);
        if (i)
            item = mxc_grammar_add_seq(b, (int32_t[]){text(s, ","), space, item}, 3);
        mxc_grammar_edge(b, &edges, 2 + i, item, 3 + i);
    }
    if (rest >= 0 && (max < 0 || max > (int32_t)n)) {
        int32_t at_least = min > (int32_t)n ? min - (int32_t)n : 1;
        mxc_grammar_edge(b, &edges, 2 + (uint32_t)n,
                         tail(s, rest, at_least, max < 0 ? max : max - (int32_t)n),
                         3 + (uint32_t)n);
        mxc_grammar_edge(b, &edges, 3 + (uint32_t)n, mxc_grammar_add_pair(b, space, close), 1);
    }
    return mxc_grammar_edges_finish(b, &edges);
}

int32_t mxc_schema_array(struct mxc_schema *s, const json_t *schema) {
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = json_object_get(schema, "prefixItems");
    int64_t min = 0, max = -1;
    if (!mxc_schema_count(s, schema, "minItems", &min) ||
        !mxc_schema_count(s, schema, "maxItems", &max))
        return -1;
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        return mxc_schema_fail(s, MXC_E_UNSUPPORTED, "the keyword uniqueItems is not supported");
    if (prefix && (!json_is_array(prefix) || !json_array_size(prefix)))
        return mxc_schema_fail(s, MXC_E_ARG, "prefixItems is not a list of schemas");
    if (json_is_array(items))
        return mxc_schema_fail(s, MXC_E_UNSUPPORTED,
                               "items as a list is not supported; use prefixItems");
    if (max > MXC_GRAMMAR_MAX_REPEAT)
        max = MXC_GRAMMAR_MAX_REPEAT;
    if (min > MXC_GRAMMAR_MAX_REPEAT)
        return mxc_schema_fail(s, MXC_E_LIMIT, "minItems %lld; the limit is %d", (long long)min,
                               MXC_GRAMMAR_MAX_REPEAT);
    if (max >= 0 && min > max)
        return mxc_schema_fail(s, MXC_E_ARG, "minItems %lld is more than maxItems %lld",
                               (long long)min, (long long)max);
    size_t n = json_array_size(prefix);
    bool none = json_is_false(items);
    if (none && min > (int64_t)n)
        return mxc_schema_fail(s, MXC_E_ARG, "minItems %lld of an array of at most %zu",
                               (long long)min, n);
    int32_t item = -1;
    if (none || (!items && n && min <= (int64_t)n))
        max = max >= 0 && max < (int64_t)n ? max : (int64_t)n;
    else if (items)
        item = mxc_schema_node_at(s, items, "items", NULL, -1);
    else
        item = mxc_grammar_add_json_value(s->b);
    item = once(s->b, item);
    if (n)
        return tuple(s, prefix, item, (int32_t)min, (int32_t)max);
    return plain_array(s, item, (int32_t)min, (int32_t)max);
}

/* The grammar of calls: the shape's literals around the tools' schemas. In: shape, tools, and a
 * tokenizer, because marks that are special tokens are matched as tokens, all others as text.
 * Out: one grammar. A lazy one begins behind its trigger, which is the first special token of what
 * opens a call, or all of it when it holds none. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "gen/tools/shapes.h"
#include "gen/tools/values.h"

#include <string.h>

enum { MAX_ITEMS = 32 };

struct wrapper {
    const struct mxc_tools_grammar_options *o;
    const struct mxc_tool_shape *shape;
    struct mxc_grammar_builder *b;
    json_t *kept;     /* schemas made here, which live until finish */
    const bool *free; /* [n tools] their schema cannot be honoured */
    int32_t gemma;    /* the rule of a value, -1: not yet */
    bool failed;      /* memory */
};

struct row { /* a sequence in the making */
    int32_t items[MAX_ITEMS];
    size_t n;
};

static void add(struct row *row, int32_t node) {
    if (row->n < MAX_ITEMS)
        row->items[row->n++] = node;
}

static int32_t seq(struct wrapper *w, const struct row *row) {
    return mxc_grammar_add_seq(w->b, row->items, row->n);
}

static void add_text(struct wrapper *w, struct row *row, const char *text) {
    if (text && *text)
        add(row, mxc_grammar_add_literal(w->b, mxc_str_of(text)));
}

static bool is_special(const struct mxc_tokenizer *tokenizer, struct mxc_str spelling) {
    uint32_t id = mxc_tokenizer_id(tokenizer, spelling);
    return id != MXC_TOK_NO_ID && mxc_tokenizer_is_special(tokenizer, id);
}

/* The special token of the shape with which text begins; empty: none. */
static struct mxc_str special_at(const struct mxc_tools_grammar_options *o, const char *text) {
    size_t n;
    const char *const *shown = mxc_tool_shape_shown(o->shape, &n);
    for (size_t i = 0; i < n; i++) {
        struct mxc_str s = mxc_str_of(shown[i]);
        if (!strncmp(text, s.ptr, s.length) && is_special(o->tokenizer, s))
            return s;
    }
    return (struct mxc_str){NULL, 0};
}

/* A literal of the table, with its special tokens as tokens. */
static void add_mark(struct wrapper *w, struct row *row, const char *text) {
    size_t from = 0, at = 0;
    while (text && text[at]) {
        struct mxc_str token = special_at(w->o, text + at);
        if (!token.length) {
            at++;
            continue;
        }
        if (at > from)
            add(row, mxc_grammar_add_literal(w->b, (struct mxc_str){text + from, at - from}));
        add(row, mxc_grammar_add_special(w->b, token));
        from = at += token.length;
    }
    if (at > from)
        add(row, mxc_grammar_add_literal(w->b, (struct mxc_str){text + from, at - from}));
}

static int32_t optional(struct wrapper *w, int32_t node) {
    return mxc_grammar_add_repeat(w->b, node, 0, 1);
}

static int32_t either(struct wrapper *w, int32_t a, int32_t b) {
    const int32_t items[] = {a, b};
    return mxc_grammar_add_alt(w->b, items, 2);
}

/* What opens a call, or a block of them. */
static const char *opening(const struct mxc_tool_shape *shape) {
    return shape->open ? shape->open : shape->call_open;
}

/* Where in the opening the trigger ends; *token: the special token that it is, or empty. */
static size_t trigger_end(const struct mxc_tools_grammar_options *o, struct mxc_str *token) {
    const char *text = opening(o->shape);
    size_t length = strlen(text);
    *token = (struct mxc_str){NULL, 0};
    if (o->shape->trigger)
        return length;
    for (size_t at = 0; at < length; at++) {
        *token = special_at(o, text + at);
        if (token->length)
            return at + token->length;
    }
    while (length && strchr(" \n", text[length - 1]))
        length--;
    return length;
}

/* ---- values */

static bool is_required(const json_t *parameters, const char *key) {
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(parameters, "required"), i, item) {
        if (!strcmp(json_string_value(item) ? json_string_value(item) : "", key))
            return true;
    }
    return false;
}

static int32_t arguments_node(struct wrapper *w, size_t tool) {
    if (w->free[tool])
        return mxc_grammar_add_json_object(w->b);
    return mxc_grammar_add_schema(w->b, w->o->tools->items[tool].parameters);
}

/* A property's schema as one of its own: with the definitions that it may refer to. */
static int32_t property_node(struct wrapper *w, size_t tool, const json_t *schema) {
    static const char *const keys[] = {"$defs", "definitions"};
    const json_t *parameters = w->o->tools->items[tool].parameters;
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : NULL;
    if (w->free[tool] || !json_is_object(schema))
        return mxc_grammar_add_json_value(w->b);
    bool ok = copy != NULL;
    for (size_t i = 0; ok && i < 2; i++) {
        json_t *defs = json_object_get(parameters, keys[i]);
        if (defs && !json_object_get(copy, keys[i]))
            ok = !json_object_set(copy, keys[i], defs);
    }
    ok = ok && !json_array_append(w->kept, copy);
    json_decref(copy);
    w->failed = w->failed || !ok;
    return ok ? mxc_grammar_add_schema(w->b, copy) : -1;
}

static int32_t string_choice(struct wrapper *w, const json_t *values) {
    size_t n = json_array_size(values), i;
    const json_t *item;
    struct mxc_str *texts = mxc_mem_array(n, sizeof *texts);
    int32_t node = -1;
    w->failed = w->failed || !texts;
    if (!texts)
        return -1;
    json_array_foreach(values, i, item) texts[i] =
        (struct mxc_str){json_string_value(item), json_string_length(item)};
    node = mxc_grammar_add_choice(w->b, texts, n);
    mxc_mem_free(texts);
    return node;
}

static bool all_text(const json_t *values) {
    size_t i;
    const json_t *item;
    json_array_foreach(values, i, item) {
        if (!json_string_length(item))
            return false;
    }
    return json_array_size(values) > 0;
}

static struct mxc_str trimmed(const char *text) {
    struct mxc_str s = mxc_str_of(text);
    while (s.length && strchr(" \n", s.ptr[s.length - 1]))
        s.length--;
    return s;
}

/* <parameter=key>value</parameter>, strings as they are and all else as JSON; key NULL: any. */
static int32_t xml_param(struct wrapper *w, size_t tool, const char *key, const json_t *schema) {
    const struct mxc_tool_shape *s = w->shape;
    const json_t *values = json_object_get(schema, "enum");
    unsigned types = key ? mxc_tool_types(w->o->tools->items[tool].parameters, mxc_str_of(key))
                         : MXC_TYPE_STRING;
    bool as_string = !types || (types & MXC_TYPE_STRING);
    bool choice = types == MXC_TYPE_STRING && all_text(values);
    struct row row = {.n = 0};
    add_mark(w, &row, s->param_open);
    add(&row, key ? mxc_grammar_add_literal(w->b, mxc_str_of(key))
                  : mxc_grammar_add_regex(w->b, MXC_STR("[A-Za-z0-9_-]{1,64}")));
    add_mark(w, &row, s->key_end);
    if (s->typed)
        add_text(w, &row, as_string ? " string=\"true\"" : " string=\"false\"");
    add_mark(w, &row, s->value_open);
    if (s->framed)
        add_text(w, &row, "\n");
    add(&row, choice      ? string_choice(w, values)
              : as_string ? mxc_grammar_add_until(w->b, trimmed(s->value_close))
                          : property_node(w, tool, schema));
    if (s->framed && (choice || !as_string)) /* free text brings its own */
        add_text(w, &row, "\n");
    add_mark(w, &row, s->value_close);
    return seq(w, &row);
}

static int32_t xml_params(struct wrapper *w, size_t tool) {
    const json_t *parameters = w->o->tools->items[tool].parameters;
    json_t *properties = json_object_get(parameters, "properties"), *schema;
    size_t n = json_object_size(properties), at = 0;
    const char *key;
    if (!n)
        return mxc_grammar_add_repeat(w->b, xml_param(w, tool, NULL, NULL), 0, -1);
    int32_t *items = mxc_mem_array(n, sizeof *items);
    w->failed = w->failed || !items;
    if (!items)
        return -1;
    json_object_foreach(properties, key, schema) {
        int32_t node = xml_param(w, tool, key, schema);
        items[at++] = is_required(parameters, key) ? node : optional(w, node);
    }
    int32_t node = mxc_grammar_add_seq(w->b, items, n);
    mxc_mem_free(items);
    return node;
}

/* A string in Gemma's quotes; values: one of these, NULL: any. */
static int32_t gemma_text(struct wrapper *w, const json_t *values) {
    struct row row = {.n = 0};
    add_mark(w, &row, "<|\"|>");
    add(&row, values ? string_choice(w, values) : mxc_grammar_add_until(w->b, MXC_STR("<|\"|>")));
    add_mark(w, &row, "<|\"|>");
    return seq(w, &row);
}

/* Items with commas between, perhaps none. */
static int32_t several(struct wrapper *w, int32_t item) {
    const int32_t more[] = {mxc_grammar_add_literal(w->b, MXC_STR(",")), item};
    const int32_t all[] = {item,
                           mxc_grammar_add_repeat(w->b, mxc_grammar_add_seq(w->b, more, 2), 0, -1)};
    return optional(w, mxc_grammar_add_seq(w->b, all, 2));
}

/* Any value in Gemma's notation. */
static int32_t gemma_value(struct wrapper *w) {
    if (w->gemma >= 0)
        return mxc_grammar_add_ref(w->b, w->gemma);
    w->gemma = mxc_grammar_add_rule(w->b, MXC_STR("gemma value"));
    int32_t value = mxc_grammar_add_ref(w->b, w->gemma);
    const int32_t pair[] = {mxc_grammar_add_regex(w->b, MXC_STR("[A-Za-z0-9_-]{1,64}:")), value};
    const int32_t list[] = {mxc_grammar_add_literal(w->b, MXC_STR("[")), several(w, value),
                            mxc_grammar_add_literal(w->b, MXC_STR("]"))};
    const int32_t object[] = {mxc_grammar_add_literal(w->b, MXC_STR("{")),
                              several(w, mxc_grammar_add_seq(w->b, pair, 2)),
                              mxc_grammar_add_literal(w->b, MXC_STR("}"))};
    const int32_t kinds[] = {
        gemma_text(w, NULL),
        mxc_grammar_add_regex(w->b,
                              MXC_STR("-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?|true|false|null")),
        mxc_grammar_add_seq(w->b, list, 3), mxc_grammar_add_seq(w->b, object, 3)};
    mxc_grammar_set_rule(w->b, w->gemma, mxc_grammar_add_alt(w->b, kinds, 4));
    return mxc_grammar_add_ref(w->b, w->gemma);
}

/* A keyword's value: in Python's words, or Gemma's. */
static int32_t word_value(struct wrapper *w, size_t tool, const char *key, const json_t *schema) {
    unsigned types = mxc_tool_types(w->o->tools->items[tool].parameters, mxc_str_of(key));
    if (w->shape->body == MXC_TOOL_PYTHONIC)
        return types == MXC_TYPE_BOOLEAN ? mxc_grammar_add_regex(w->b, MXC_STR("True|False"))
                                         : property_node(w, tool, schema);
    if (types == MXC_TYPE_STRING) {
        const json_t *values = json_object_get(schema, "enum");
        return gemma_text(w, all_text(values) ? values : NULL);
    }
    if (types && !(types & ~(unsigned)(MXC_TYPE_INTEGER | MXC_TYPE_NUMBER | MXC_TYPE_BOOLEAN)))
        return property_node(w, tool, schema);
    return gemma_value(w);
}

/* a=1, b=2 in the order of the schema, those that are not required perhaps left out. From the last
 * one on: rest stands behind an item, first where there was none yet. */
static int32_t keywords(struct wrapper *w, size_t tool) {
    const json_t *parameters = w->o->tools->items[tool].parameters;
    json_t *properties = json_object_get(parameters, "properties");
    size_t n = json_object_size(properties), at = 0;
    bool python = w->shape->body == MXC_TOOL_PYTHONIC;
    const char *key;
    json_t *schema;
    int32_t *items = mxc_mem_array(n + 1, sizeof *items);
    bool *required = mxc_mem_array(n + 1, sizeof *required);
    int32_t first = mxc_grammar_add_literal(w->b, MXC_STR("")), rest = first;
    int32_t comma = mxc_grammar_add_literal(w->b, python ? MXC_STR(", ") : MXC_STR(","));
    w->failed = w->failed || !items || !required;
    if (!w->failed) {
        json_object_foreach(properties, key, schema) {
            const int32_t pair[] = {
                mxc_grammar_add_literal(w->b, mxc_str_of(key)),
                mxc_grammar_add_literal(w->b, python ? MXC_STR("=") : MXC_STR(":")),
                word_value(w, tool, key, schema)};
            required[at] = is_required(parameters, key);
            items[at++] = mxc_grammar_add_seq(w->b, pair, 3);
        }
        while (at--) {
            const int32_t here[] = {items[at], rest}, behind[] = {comma, items[at], rest};
            int32_t begun = mxc_grammar_add_seq(w->b, here, 2);
            int32_t next = mxc_grammar_add_seq(w->b, behind, 3);
            first = required[at] ? begun : either(w, begun, first);
            rest = required[at] ? next : either(w, next, rest);
        }
    }
    mxc_mem_free(items);
    mxc_mem_free(required);
    return first;
}

/* ---- calls */

/* One call of a tool; open: what is left of call_open. */
static int32_t call_node(struct wrapper *w, size_t tool, const char *open) {
    const struct mxc_tool_shape *s = w->shape;
    const char *name = w->o->tools->items[tool].name;
    struct row row = {.n = 0};
    switch (s->body) {
    case MXC_TOOL_OBJECTS:
        add_text(w, &row, "{\"");
        add_text(w, &row, s->name_key);
        add_text(w, &row, s->name_key ? "\": \"" : NULL);
        add_text(w, &row, name);
        add_text(w, &row, s->name_key ? "\", \"" : NULL);
        add_text(w, &row, s->name_key ? s->arguments_key : NULL);
        add_text(w, &row, "\": ");
        add(&row, arguments_node(w, tool));
        add_text(w, &row, "}");
        break;
    case MXC_TOOL_JSON:
    case MXC_TOOL_XML:
        add_mark(w, &row, open);
        if (s->before_name)
            add(&row, mxc_grammar_add_regex(w->b, MXC_STR("[A-Za-z0-9_-]{1,32}")));
        add_mark(w, &row, s->before_name);
        add_text(w, &row, name);
        add_mark(w, &row, s->written_after ? s->written_after : s->after_name);
        add(&row, s->body == MXC_TOOL_XML ? xml_params(w, tool) : arguments_node(w, tool));
        add_mark(w, &row, s->ends ? NULL : s->call_close);
        break;
    case MXC_TOOL_GEMMA:
        add_mark(w, &row, open);
        add_text(w, &row, name);
        add_text(w, &row, "{");
        add(&row, keywords(w, tool));
        add_text(w, &row, "}");
        add_mark(w, &row, s->call_close);
        break;
    case MXC_TOOL_PYTHONIC:
    default:
        add_text(w, &row, name);
        add_text(w, &row, "(");
        add(&row, keywords(w, tool));
        add_text(w, &row, ")");
    }
    return seq(w, &row);
}

static int32_t any_call(struct wrapper *w, const char *open) {
    const struct mxc_tools *t = w->o->tools;
    if (t->choice == MXC_TOOLS_NAMED)
        return call_node(w, t->named, open);
    int32_t *items = mxc_mem_array(t->n, sizeof *items);
    w->failed = w->failed || !items;
    if (!items)
        return -1;
    for (size_t i = 0; i < t->n; i++)
        items[i] = call_node(w, i, open);
    int32_t node = mxc_grammar_add_alt(w->b, items, t->n);
    mxc_mem_free(items);
    return node;
}

/* first (between call)*, when several calls may be. */
static int32_t calls(struct wrapper *w, int32_t first, int32_t call, const char *between) {
    struct row more = {.n = 0};
    if (!w->o->tools->parallel || w->shape->ends)
        return first;
    add_mark(w, &more, between);
    add(&more, call);
    const int32_t all[] = {first, mxc_grammar_add_repeat(w->b, seq(w, &more), 0, -1)};
    return mxc_grammar_add_seq(w->b, all, 2);
}

/* A block, from what is left of its open mark on. */
static int32_t block(struct wrapper *w, const char *open) {
    const struct mxc_tool_shape *s = w->shape;
    bool list = s->list || s->body == MXC_TOOL_PYTHONIC;
    int32_t call = any_call(w, s->call_open);
    struct row row = {.n = 0};
    add_mark(w, &row, open);
    add_text(w, &row, list ? "[" : NULL);
    add(&row, s->between ? calls(w, call, call, s->between) : call);
    add_text(w, &row, list ? "]" : NULL);
    add_mark(w, &row, s->close);
    return seq(w, &row);
}

/* gpt-oss may think before it calls; it is the grammar that sees its channels. */
static int32_t prelude(struct wrapper *w, int32_t node) {
    struct row row = {.n = 0};
    add(&row, mxc_grammar_add_special(w->b, MXC_STR("<|channel|>")));
    add_text(w, &row, "analysis");
    add(&row, mxc_grammar_add_special(w->b, MXC_STR("<|message|>")));
    add(&row, mxc_grammar_add_until(w->b, MXC_STR("<|end|>")));
    add(&row, mxc_grammar_add_special(w->b, MXC_STR("<|end|>")));
    add(&row, mxc_grammar_add_special(w->b, MXC_STR("<|start|>")));
    add_text(w, &row, "assistant");
    const int32_t all[] = {optional(w, seq(w, &row)), node};
    return mxc_grammar_add_seq(w->b, all, 2);
}

static int32_t whole(struct wrapper *w) {
    const struct mxc_tool_shape *s = w->shape;
    struct mxc_str token;
    const char *rest = opening(s);
    if (w->o->lazy)
        rest += trigger_end(w->o, &token);
    if (s->open || s->bare) { /* bare ones need no mark when nothing else may come */
        int32_t one = block(w, s->bare && !w->o->lazy ? NULL : rest);
        if (w->o->lazy || s->between)
            return one;
        return calls(w, one, one, "\n");
    }
    int32_t first = any_call(w, rest);
    if (w->o->lazy)
        return first;
    int32_t node = calls(w, first, first, s->between ? s->between : "\n");
    return s->ends ? prelude(w, node) : node;
}

static enum mxc_code build(const struct mxc_tools_grammar_options *o, const bool *is_free,
                           struct mxc_grammar **out, struct mxc_err *err) {
    struct wrapper w = {.o = o, .shape = o->shape, .free = is_free, .gemma = -1};
    enum mxc_code code = mxc_grammar_builder_new(o->space, &w.b, err);
    if (code)
        return code;
    w.kept = json_array();
    w.failed = !w.kept;
    int32_t root = w.failed ? -1 : whole(&w);
    code = w.failed ? mxc_err_nomem(err) : mxc_grammar_builder_finish(w.b, root, out, err);
    mxc_grammar_builder_free(w.b);
    json_decref(w.kept);
    return code;
}

/* Which schemas cannot be honoured. An error for strict tools. */
static enum mxc_code find_free(const struct mxc_tools_grammar_options *o, bool *is_free,
                               struct mxc_err *err) {
    for (size_t i = 0; i < o->tools->n; i++) {
        struct mxc_grammar *grammar = NULL;
        const struct mxc_tool *tool = &o->tools->items[i];
        enum mxc_code code = mxc_grammar_parse_schema(tool->parameters, o->space, &grammar, err);
        if (!code)
            mxc_grammar_free(grammar);
        is_free[i] = code != MXC_OK;
        if (code && (tool->strict || code == MXC_E_NOMEM)) {
            (void)mxc_err_context(err, "tools[%zu].function.parameters", i);
            return code;
        }
    }
    return MXC_OK;
}

enum mxc_code mxc_tools_grammar(const struct mxc_tools_grammar_options *options,
                                struct mxc_grammar **out, struct mxc_err *err) {
    size_t n = options->tools->n;
    if (!n)
        return mxc_err_set(err, MXC_E_ARG, "tools: there are none");
    bool *is_free = mxc_mem_zalloc(n, sizeof *is_free);
    if (!is_free)
        return mxc_err_nomem(err);
    enum mxc_code code = build(options, is_free, out, err);
    if (code && code != MXC_E_NOMEM) { /* some schema, perhaps: find out which */
        code = find_free(options, is_free, err);
        if (!code)
            code = build(options, is_free, out, err);
    }
    mxc_mem_free(is_free);
    return code;
}

enum mxc_tool_force mxc_tools_force(const struct mxc_tools *tools) {
    if (tools->choice == MXC_TOOLS_REQUIRED || tools->choice == MXC_TOOLS_NAMED)
        return MXC_TOOL_FORCE_ALL;
    bool strict = false;
    for (size_t i = 0; i < tools->n; i++)
        strict = strict || tools->items[i].strict;
    return strict && tools->choice == MXC_TOOLS_AUTO ? MXC_TOOL_FORCE_LAZY : MXC_TOOL_FORCE_NONE;
}

void mxc_tools_lazy(const struct mxc_tools_grammar_options *options,
                    struct mxc_grammar_trigger *trigger, struct mxc_grammar_lazy *lazy) {
    struct mxc_str token;
    size_t end = trigger_end(options, &token);
    const char *text = options->shape->trigger;
    *trigger = (struct mxc_grammar_trigger){.token = -1};
    if (token.length)
        trigger->token = (int32_t)mxc_tokenizer_id(options->tokenizer, token);
    else
        trigger->text = text ? mxc_str_of(text) : (struct mxc_str){opening(options->shape), end};
    *lazy = (struct mxc_grammar_lazy){
        .triggers = trigger, .n_triggers = 1, .rearm = options->tools->parallel};
}

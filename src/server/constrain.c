/* Structured output and tools of a request, joined from gen/grammar/ and gen/tools/.
 * Shared by all requests: a vocabulary per model, made when it is first needed, and the masks of
 * the last grammars by the text of what asked for them, so that a client that sends the same schema
 * again finds it compiled and its masks cached.
 * A model that begins inside a thought is free until the closing mark; the grammar begins behind
 * it. Tools that the model may use freely (auto) put no grammar on it unless they are strict. */
#define _GNU_SOURCE
#include "server/constrain.h"

#include "base/mem.h"
#include "gen/budget.h"
#include "gen/grammar/grammar.h"
#include "gen/tools/tools.h"
#include "server/fields.h"
#include "server/internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { N_KEPT = 32, MAX_KEY = 1 << 20, MASK_BYTES = 16 << 20 };

struct kept {
    char *key; /* NULL: free */
    int model;
    struct mxc_grammar_masks *masks;
    uint64_t used;
};

struct mxc_constraints {
    pthread_mutex_t mutex;
    struct mxc_grammar_vocab *vocabs[MXC_HOST_MAX_MODELS];
    struct kept kept[N_KEPT];
    uint64_t clock;
};

struct mxc_constraint {
    const struct mxc_chat *chat;
    struct mxc_tools tools;
    const struct mxc_tool_shape *shape; /* NULL: no tools */
    struct mxc_grammar_masks *masks;    /* NULL: no grammar */
    bool lazy;                          /* begins behind the trigger of a call */
    uint64_t seed;
    int32_t budget; /* tokens of thought, -1: no bound */
};

struct mxc_call_parser {
    struct mxc_tool_parser *parser;
    void (*emit)(void *user, const struct mxc_delta *delta);
    void *user;
};

/* ---- shared */

enum mxc_code mxc_constraints_new(struct mxc_constraints **all, struct mxc_err *err) {
    struct mxc_constraints *a = mxc_mem_zalloc(1, sizeof *a);
    if (!a)
        return mxc_err_nomem(err);
    pthread_mutex_init(&a->mutex, NULL); /* cannot fail with default attributes */
    *all = a;
    return MXC_OK;
}

void mxc_constraints_free(struct mxc_constraints *all) {
    if (!all)
        return;
    for (int i = 0; i < N_KEPT; i++) {
        mxc_mem_free(all->kept[i].key);
        mxc_grammar_masks_unref(all->kept[i].masks);
    }
    for (int i = 0; i < MXC_HOST_MAX_MODELS; i++)
        mxc_grammar_vocab_free(all->vocabs[i]);
    pthread_mutex_destroy(&all->mutex);
    mxc_mem_free(all);
}

/* The model's vocabulary. The mutex is held while it is made: others would only make it twice. */
static enum mxc_code vocab_of(struct mxc_constraints *all, const struct mxc_params *params,
                              const struct mxc_grammar_vocab **out, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    pthread_mutex_lock(&all->mutex);
    if (!all->vocabs[params->model])
        code = mxc_grammar_vocab_new(params->chat->tokenizer, params->chat->eos_ids,
                                     (size_t)params->chat->n_eos_ids, &all->vocabs[params->model],
                                     err);
    *out = all->vocabs[params->model];
    pthread_mutex_unlock(&all->mutex);
    return code;
}

static struct mxc_grammar_masks *find_kept(struct mxc_constraints *all, int model,
                                           const char *key) {
    struct mxc_grammar_masks *found = NULL;
    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < N_KEPT && !found; i++) {
        struct kept *k = &all->kept[i];
        if (k->key && k->model == model && !strcmp(k->key, key)) {
            k->used = ++all->clock;
            found = mxc_grammar_masks_ref(k->masks);
        }
    }
    pthread_mutex_unlock(&all->mutex);
    return found;
}

/* Keeps masks under a key (taken over) in place of what was used longest ago. */
static void keep(struct mxc_constraints *all, int model, char *key,
                 struct mxc_grammar_masks *masks) {
    pthread_mutex_lock(&all->mutex);
    struct kept *oldest = &all->kept[0];
    for (int i = 1; i < N_KEPT; i++)
        if (all->kept[i].used < oldest->used)
            oldest = &all->kept[i];
    mxc_mem_free(oldest->key);
    mxc_grammar_masks_unref(oldest->masks);
    *oldest = (struct kept){key, model, mxc_grammar_masks_ref(masks), ++all->clock};
    pthread_mutex_unlock(&all->mutex);
}

/* ---- what is asked for */

enum wish_kind {
    WISH_NONE,
    WISH_OBJECT,
    WISH_SCHEMA,
    WISH_GBNF,
    WISH_REGEX,
    WISH_CHOICE,
    WISH_CALLS
};

struct wish {
    enum wish_kind kind;
    const char *name;    /* of the field */
    const json_t *value; /* schema, choices, or text */
};

static enum mxc_code set_wish(struct wish *w, enum wish_kind kind, const char *name,
                              const json_t *value, struct mxc_fault *fault) {
    if (w->kind != WISH_NONE)
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s: not together with %s", name, w->name);
    *w = (struct wish){kind, name, value};
    return MXC_OK;
}

static enum mxc_code read_schema(const json_t *format, struct wish *w, struct mxc_fault *fault) {
    static const char name[] = "response_format.json_schema";
    const json_t *outer = mxc_field(format, "json_schema");
    if (!outer)
        outer = mxc_field(format, "schema"); /* llama-server's spelling has it there */
    if (!outer)
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s: it is missing", name);
    if (!json_is_object(outer))
        return mxc_field_wrong(fault, name, "an object", outer);
    const json_t *schema = json_object_get(outer, "schema");
    bool wrapped = json_object_get(outer, "name") || schema;
    if (wrapped && !json_is_object(schema) && !json_is_boolean(schema))
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s.schema: it is missing, or no schema",
                             name);
    return set_wish(w, WISH_SCHEMA, name, wrapped ? schema : outer, fault);
}

static enum mxc_code read_format(const json_t *json, struct wish *w, struct mxc_fault *fault) {
    const json_t *format = NULL;
    struct mxc_str type = {NULL, 0};
    enum mxc_code code = mxc_field_object(json, "response_format", &format, fault);
    if (code || !format)
        return code;
    if (mxc_field_text(format, "type", &type, fault))
        return mxc_field_wrong(fault, "response_format.type", "a string",
                               mxc_field(format, "type"));
    if (mxc_str_is(type, "text"))
        return MXC_OK;
    if (mxc_str_is(type, "json_schema"))
        return read_schema(format, w, fault);
    if (mxc_str_is(type, "json_object") && mxc_field(format, "schema"))
        return set_wish(w, WISH_SCHEMA, "response_format", mxc_field(format, "schema"), fault);
    if (mxc_str_is(type, "json_object"))
        return set_wish(w, WISH_OBJECT, "response_format", format, fault);
    return mxc_fault_set(fault, MXC_E_ARG, "response_format.type",
                         "response_format.type: not text, json_object or json_schema");
}

static enum mxc_code read_wish(const json_t *json, struct wish *w, struct mxc_fault *fault) {
    static const struct {
        const char *name;
        enum wish_kind kind;
    } rows[] = {{"json_schema", WISH_SCHEMA}, {"guided_json", WISH_SCHEMA},
                {"grammar", WISH_GBNF},       {"guided_grammar", WISH_GBNF},
                {"guided_regex", WISH_REGEX}, {"guided_choice", WISH_CHOICE}};
    enum mxc_code code = read_format(json, w, fault);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !code; i++) {
        const json_t *v = mxc_field(json, rows[i].name);
        bool is_text = rows[i].kind == WISH_GBNF || rows[i].kind == WISH_REGEX;
        if (!v || (json_is_string(v) && !json_string_length(v)))
            continue;
        if (is_text && !json_is_string(v))
            code = mxc_field_wrong(fault, rows[i].name, "a string", v);
        else if (rows[i].kind == WISH_CHOICE && !json_is_array(v))
            code = mxc_field_wrong(fault, rows[i].name, "a list", v);
        else if (rows[i].kind == WISH_SCHEMA && !json_is_object(v) && !json_is_boolean(v))
            code = mxc_field_wrong(fault, rows[i].name, "a schema", v);
        else
            code = set_wish(w, rows[i].kind, rows[i].name, v, fault);
    }
    return code;
}

/* ---- grammars */

static enum mxc_code compile_choice(const json_t *list, struct mxc_grammar **out,
                                    struct mxc_err *err) {
    size_t n = json_array_size(list);
    if (!n)
        return mxc_err_set(err, MXC_E_ARG, "guided_choice: the list is empty");
    struct mxc_str *items = mxc_mem_array(n, sizeof *items);
    if (!items)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < n && !code; i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_string(item))
            items[i] = (struct mxc_str){json_string_value(item), json_string_length(item)};
        else
            code = mxc_err_set(err, MXC_E_ARG, "guided_choice[%zu]: not a string", i);
    }
    if (!code)
        code = mxc_grammar_choice(items, n, out, err);
    mxc_mem_free(items);
    return code;
}

static enum mxc_code compile(const struct mxc_constraint *c, const struct wish *w,
                             struct mxc_grammar **out, struct mxc_err *err) {
    const struct mxc_str text = {json_string_value(w->value), json_string_length(w->value)};
    switch (w->kind) {
    case WISH_OBJECT:
        return mxc_grammar_json_object(MXC_JSON_SPACED, out, err);
    case WISH_SCHEMA:
        return mxc_grammar_parse_schema(w->value, MXC_JSON_SPACED, out, err);
    case WISH_GBNF:
        return mxc_grammar_parse_gbnf(text, out, err);
    case WISH_REGEX:
        return mxc_grammar_parse_regex(text, out, err);
    case WISH_CHOICE:
        return compile_choice(w->value, out, err);
    default: {
        const struct mxc_tools_grammar_options options = {.shape = c->shape,
                                                          .tools = &c->tools,
                                                          .tokenizer = c->chat->tokenizer,
                                                          .space = MXC_JSON_SPACED,
                                                          .lazy = c->lazy};
        return mxc_tools_grammar(&options, out, err);
    }
    }
}

/* What the grammar is made from, as text; NULL: too long to keep, or no memory. */
static char *key_of(const struct mxc_constraint *c, const struct wish *w) {
    struct mxc_buf key;
    char *value = mxc_json_dump(w->kind == WISH_CALLS ? c->tools.list : w->value);
    mxc_buf_init(&key, MAX_KEY);
    (void)mxc_buf_printf(&key, "%d %d %d %zu %d ", (int)w->kind, (int)c->lazy, (int)c->tools.choice,
                         c->tools.named, (int)c->tools.parallel);
    (void)mxc_buf_puts(&key, value ? value : "");
    char *text = value && !key.failed ? mxc_buf_take(&key) : NULL;
    mxc_buf_fini(&key);
    mxc_mem_free(value);
    return text;
}

static enum mxc_code make_masks(struct mxc_constraints *all, const struct mxc_params *params,
                                struct mxc_constraint *c, const struct wish *w,
                                struct mxc_fault *fault) {
    const struct mxc_grammar_vocab *vocab;
    struct mxc_grammar *grammar;
    struct mxc_err err;
    char *key = key_of(c, w);
    if (key && (c->masks = find_kept(all, params->model, key))) {
        mxc_mem_free(key);
        return MXC_OK;
    }
    enum mxc_code code = vocab_of(all, params, &vocab, &err);
    if (!code)
        code = compile(c, w, &grammar, &err);
    if (!code)
        code = mxc_grammar_masks_new(grammar, vocab, MASK_BYTES, &c->masks, &err);
    if (!code && key) {
        keep(all, params->model, key, c->masks);
        key = NULL;
    }
    mxc_mem_free(key);
    if (code == MXC_E_LIMIT)
        err.code = MXC_E_ARG; /* of the request, not of its size in bytes */
    return code ? mxc_fault_from(fault, &err, w->name) : MXC_OK;
}

/* ---- a request */

static bool has_token(void *user, const char *spelling) {
    return mxc_tokenizer_id(user, mxc_str_of(spelling)) != MXC_TOK_NO_ID;
}

static enum mxc_code read_tools(const json_t *json, struct mxc_params *params,
                                struct mxc_constraint *c, struct wish *w, struct mxc_fault *fault) {
    struct mxc_err err;
    enum mxc_code code =
        mxc_tools_read(json_object_get(json, "tools"), json_object_get(json, "tool_choice"),
                       json_object_get(json, "parallel_tool_calls"), &c->tools, &err);
    if (code)
        return mxc_fault_from(fault, &err, "tools");
    if (c->tools.choice == MXC_TOOLS_NONE)
        return MXC_OK;
    const struct mxc_chat *chat = params->chat;
    const char *text = chat->tool_text ? chat->tool_text : chat->text;
    c->shape = mxc_tool_shape_find(mxc_str_of(text), has_token, chat->tokenizer);
    params->gen.shown = mxc_tool_shape_shown(c->shape, &params->gen.n_shown);
    enum mxc_tool_force force = mxc_tools_force(&c->tools);
    c->lazy = force == MXC_TOOL_FORCE_LAZY;
    if (w->kind != WISH_NONE)
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, w->name,
                             "%s: not together with tools; leave one of them out, or set "
                             "tool_choice to none",
                             w->name);
    if (force != MXC_TOOL_FORCE_NONE)
        *w = (struct wish){WISH_CALLS, "tools", NULL};
    return MXC_OK;
}

enum mxc_code mxc_constraint_read(struct mxc_exchange *x, const json_t *json, bool with_tools,
                                  struct mxc_params *params, struct mxc_constraint **out,
                                  struct mxc_fault *fault) {
    struct wish wish = {WISH_NONE, NULL, NULL};
    *out = NULL;
    struct mxc_constraint *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c)
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    c->chat = params->chat;
    c->budget = -1;
    c->seed = params->gen.request.sampling.seed ^ x->start_ns;
    enum mxc_code code = read_wish(json, &wish, fault);
    if (!code && with_tools)
        code = read_tools(json, params, c, &wish, fault);
    if (!code && wish.kind != WISH_NONE)
        code = make_masks(x->server->constraints, params, c, &wish, fault);
    if (code || (!c->shape && !c->masks)) {
        mxc_constraint_free(c);
        return code;
    }
    *out = c;
    return MXC_OK;
}

void mxc_constraint_free(struct mxc_constraint *c) {
    if (!c)
        return;
    mxc_tools_fini(&c->tools);
    mxc_grammar_masks_unref(c->masks);
    mxc_mem_free(c);
}

enum mxc_code mxc_constraint_budget(const struct mxc_params *params, int32_t budget,
                                    struct mxc_constraint **constraint, struct mxc_fault *fault) {
    if (budget < 0 || !params->chat->marks)
        return MXC_OK;
    if (!*constraint) {
        struct mxc_constraint *c = mxc_mem_zalloc(1, sizeof *c);
        if (!c)
            return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
        c->chat = params->chat;
        *constraint = c;
    }
    (*constraint)->budget = budget;
    return MXC_OK;
}

json_t *mxc_constraint_tools(const struct mxc_constraint *c) {
    return c && c->shape ? mxc_tools_for_template(&c->tools) : NULL;
}

/* ---- a choice */

static enum mxc_code make_state(struct mxc_constraint *c, struct mxc_choice *choice, bool inside,
                                struct mxc_err *err) {
    struct mxc_grammar_trigger trigger;
    struct mxc_grammar_lazy lazy = {.n_triggers = 0};
    if (c->lazy) {
        const struct mxc_tools_grammar_options options = {.shape = c->shape,
                                                          .tools = &c->tools,
                                                          .tokenizer = c->chat->tokenizer,
                                                          .space = MXC_JSON_SPACED,
                                                          .lazy = true};
        mxc_tools_lazy(&options, &trigger, &lazy);
    } else if (inside && c->chat->marks) {
        trigger = (struct mxc_grammar_trigger){mxc_str_of(c->chat->marks->close), -1};
        lazy = (struct mxc_grammar_lazy){.triggers = &trigger, .n_triggers = 1, .must = true};
    }
    enum mxc_code code =
        mxc_grammar_state_new(c->masks, lazy.n_triggers ? &lazy : NULL, &choice->grammar, err);
    if (!code)
        choice->filter = mxc_grammar_filter(choice->grammar);
    return code;
}

/* In front of the grammar's filter, which then sees no token of a thought. */
static enum mxc_code make_budget(const struct mxc_constraint *c, struct mxc_choice *choice,
                                 bool inside, struct mxc_err *err) {
    const struct mxc_reasoning_budget_options options = {.tokenizer = c->chat->tokenizer,
                                                         .marks = c->chat->marks,
                                                         .inside = inside,
                                                         .budget = c->budget,
                                                         .answer = choice->filter};
    enum mxc_code code = mxc_reasoning_budget_new(&options, &choice->budget, err);
    if (!code)
        choice->filter = mxc_reasoning_budget_filter(choice->budget);
    return code;
}

static bool on_call(void *user, const struct mxc_tool_event *event) {
    struct mxc_call_parser *p = user;
    struct mxc_delta d = {.text = event->text, .call = event->index};
    switch (event->kind) {
    case MXC_TOOL_TEXT:
        d.kind = MXC_DELTA_TEXT;
        break;
    case MXC_TOOL_BEGIN:
        d.kind = MXC_DELTA_CALL;
        d.call_id = event->id;
        d.call_name = event->name;
        break;
    case MXC_TOOL_ARGUMENTS:
        d.kind = MXC_DELTA_ARGUMENTS;
        break;
    default:
        return true;
    }
    p->emit(p->user, &d);
    return true;
}

static enum mxc_code make_parser(struct mxc_constraint *c, struct mxc_choice *choice,
                                 struct mxc_err *err) {
    struct mxc_call_parser *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    const struct mxc_tool_parser_options options = {.shape = c->shape,
                                                    .tools = &c->tools,
                                                    .seed = c->seed + (uint64_t)choice->index,
                                                    .event = on_call,
                                                    .user = p};
    enum mxc_code code = mxc_tool_parser_new(&options, &p->parser, err);
    if (code)
        mxc_mem_free(p);
    else
        choice->parser = p;
    return code;
}

enum mxc_code mxc_constraint_attach(struct mxc_constraint *c, struct mxc_choice *choice,
                                    bool inside, struct mxc_fault *fault) {
    struct mxc_err err;
    enum mxc_code code = MXC_OK;
    bool budget = c && c->budget >= 0 && c->chat->marks;
    if (c && c->masks) /* with channels the grammar sees thoughts all the same */
        code = make_state(c, choice, inside && !(budget && !c->chat->marks->channels), &err);
    if (!code && budget)
        code = make_budget(c, choice, inside, &err);
    if (!code && c && c->shape)
        code = make_parser(c, choice, &err);
    return code ? mxc_fault_from(fault, &err, NULL) : MXC_OK;
}

void mxc_constraint_detach(struct mxc_choice *choice) {
    if (choice->parser)
        mxc_tool_parser_free(choice->parser->parser);
    mxc_mem_free(choice->parser);
    choice->parser = NULL;
    mxc_reasoning_budget_free(choice->budget);
    choice->budget = NULL;
    mxc_grammar_state_free(choice->grammar);
    choice->grammar = NULL;
}

const struct mxc_err *mxc_constraint_error(const struct mxc_choice *choice) {
    return choice->grammar ? mxc_grammar_state_error(choice->grammar) : NULL;
}

enum mxc_code mxc_constraint_push(struct mxc_choice *choice, struct mxc_str text, bool last,
                                  void (*emit)(void *user, const struct mxc_delta *delta),
                                  void *user) {
    struct mxc_call_parser *p = choice->parser;
    p->emit = emit;
    p->user = user;
    enum mxc_code code =
        text.length ? mxc_tool_parser_push(p->parser, text.ptr, text.length, NULL) : MXC_OK;
    if (!code && last)
        code = mxc_tool_parser_finish(p->parser, NULL);
    return code;
}

bool mxc_constraint_is_done(const struct mxc_choice *choice) {
    return choice->parser && mxc_tool_parser_is_done(choice->parser->parser);
}

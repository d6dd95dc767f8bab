/* Render: JSON variables to values, a run with its bounds, output and spans.
 * In: a compiled template and an object. Out: text, and spans that tell for every byte whether it
 * is trusted or user content.
 * Everything in the variables is the user's, but for the well-known names of roles and for values
 * that equal the text of the model's token of the same name. Only names that the template uses are
 * converted.
 * The memory bound grows with the input; steps and stack do not. All values end with the run's
 * arenas. */
#define _GNU_SOURCE
#include "text/jinja/run.h"

#include "base/mem.h"

#include <string.h>

enum {
    OUTPUT_BYTES = 16 << 20,
    MEMORY_BYTES = 48 << 20,
    MAX_STEPS = 20000000,
    STACK_BYTES = 400 << 10
};

static bool is_role(const char *key, const char *text, size_t len) {
    static const char *const roles[] = {"system", "user",      "assistant",
                                        "tool",   "developer", "ipython"};
    if (strcmp(key, "role") != 0)
        return false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strlen(roles[i]) == len && !memcmp(roles[i], text, len))
            return true;
    return false;
}

static bool convert(struct mxc_jrun *run, const json_t *json, const char *key, bool user,
                    struct mxc_jval *out);

static bool convert_object(struct mxc_jrun *run, const json_t *json, bool user,
                           struct mxc_jval *out) {
    if (!mxc_j_dict(run, out))
        return false;
    out->u.d->user = user;
    /* jansson's iterators want a mutable object and do not change it */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        struct mxc_jval name, value;
        if (!mxc_j_str_new(run, key, strlen(key), user, &name) ||
            !convert(run, json_object_iter_value(it), key, user, &value) ||
            !mxc_j_dict_put(run, out->u.d, name, value))
            return false;
    }
    return true;
}

static bool convert(struct mxc_jrun *run, const json_t *json, const char *key, bool user,
                    struct mxc_jval *out) {
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return convert_object(run, json, user, out);
    case JSON_ARRAY:
        if (!mxc_j_seq(run, MJ_LIST, json_array_size(json), out))
            return false;
        out->u.q->user = user;
        for (size_t i = 0; i < json_array_size(json); i++) {
            struct mxc_jval item;
            if (!convert(run, json_array_get(json, i), "", user, &item) ||
                !mxc_j_push(run, out->u.q, item))
                return false;
        }
        return true;
    case JSON_STRING: {
        const char *text = json_string_value(json);
        size_t len = json_string_length(json);
        return mxc_j_str_new(run, text, len, user && !is_role(key, text, len), out);
    }
    case JSON_INTEGER:
        *out = mxc_j_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = mxc_j_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = mxc_j_bool(json_is_true(json));
        break;
    default:
        *out = mxc_j_none();
    }
    out->user = user;
    return true;
}

/* The text lives only as long as the JSON: strings are copied. */
static bool own_strings(struct mxc_jrun *run, struct mxc_jval *v) {
    if (!mxc_j_stack(run))
        return false;
    if (v->type == MJ_STR) {
        struct mxc_jsb sb;
        mxc_j_sb_init(&sb, run);
        return mxc_j_put_str(&sb, v->u.s) && mxc_j_sb_done(&sb, v);
    }
    if (v->type == MJ_LIST)
        for (size_t i = 0; i < v->u.q->n; i++)
            if (!own_strings(run, &v->u.q->v[i]))
                return false;
    if (v->type == MJ_DICT)
        for (size_t i = 0; i < v->u.d->n; i++)
            if (!own_strings(run, &v->u.d->e[i].key) || !own_strings(run, &v->u.d->e[i].value))
                return false;
    return true;
}

bool mxc_j_from_json(struct mxc_jrun *run, const json_t *json, bool user, struct mxc_jval *out) {
    struct mxc_jval v;
    if (!convert(run, json, "", user, &v) || !own_strings(run, &v))
        return false;
    *out = v;
    return true;
}

static size_t text_bytes(const json_t *json, unsigned depth) {
    size_t n = 48;
    if (depth > 200)
        return n;
    if (json_is_string(json))
        return n + json_string_length(json);
    if (json_is_array(json))
        for (size_t i = 0; i < json_array_size(json); i++)
            n += text_bytes(json_array_get(json, i), depth + 1);
    json_t *object = (json_t *)(uintptr_t)json;
    if (json_is_object(json))
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it))
            n += strlen(json_object_iter_key(it)) +
                 text_bytes(json_object_iter_value(it), depth + 1);
    return n;
}

static const char *token_text(const struct mxc_jinja_options *options, const char *name) {
    for (size_t i = 0; i < options->n_tokens; i++)
        if (!strcmp(options->tokens[i].name, name))
            return options->tokens[i].text;
    return NULL;
}

/* The template itself: self.name() renders a block. */
static bool set_self(struct mxc_jrun *run) {
    const struct mxc_jlist *blocks = &run->jinja->blocks;
    struct mxc_jval self, name;
    uint64_t id;
    if (!mxc_map_get(&run->jinja->ids, MXC_STR("self"), &id))
        return true;
    if (!mxc_j_dict(run, &self))
        return false;
    for (size_t i = 0; i < blocks->n; i++) {
        struct mxc_jmacro *macro = mxc_j_alloc(run, 1, sizeof *macro);
        if (!macro || !mxc_j_text(run, run->jinja->names[blocks->v[i]->id], &name))
            return false;
        macro->node = blocks->v[i];
        macro->scope = &run->root;
        if (!mxc_j_dict_put(run, self.u.d, name, mxc_j_of(MJ_MACRO, macro)))
            return false;
    }
    self.type = MJ_NS;
    run->globals[id] = self;
    return true;
}

static bool set_globals(struct mxc_jrun *run, const json_t *vars) {
    const struct mxc_jinja *jinja = run->jinja;
    uint64_t id;
    for (const struct mxc_jfunc *f = mxc_j_funcs; f->name; f++)
        if (mxc_map_get(&jinja->ids, mxc_str_of(f->name), &id))
            run->globals[id] = mxc_j_of(MJ_FUNC, (void *)(uintptr_t)f);
    for (size_t i = 0; i < run->options->n_tokens; i++) {
        const struct mxc_jinja_token *token = &run->options->tokens[i];
        if (token->text && mxc_map_get(&jinja->ids, mxc_str_of(token->name), &id) &&
            !mxc_j_text(run, token->text, &run->globals[id]))
            return false;
    }
    if (!set_self(run))
        return false;
    json_t *object = (json_t *)(uintptr_t)vars;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it), *text = token_text(run->options, key);
        const json_t *value = json_object_iter_value(it);
        if (!mxc_map_get(&jinja->ids, mxc_str_of(key), &id))
            continue;
        bool trusted = text && json_is_string(value) && !strcmp(text, json_string_value(value));
        if (!convert(run, value, key, !trusted, &run->globals[id]))
            return false;
    }
    return true;
}

static void init_run(struct mxc_jrun *run, const struct mxc_jinja_options *options,
                     const json_t *vars) {
    size_t extra, max = options->max_memory_bytes;
    mxc_arena_init(&run->arena, 0);
    mxc_arena_init(&run->large, 0);
    if (!max && mxc_size_mul(text_bytes(vars, 0), 8, &extra) &&
        !mxc_size_add(extra, MEMORY_BYTES, &max))
        max = MEMORY_BYTES;
    run->max_bytes = max ? max : MEMORY_BYTES;
    run->max_steps = options->max_steps ? options->max_steps : MAX_STEPS;
    run->max_stack = options->max_stack_bytes ? options->max_stack_bytes : STACK_BYTES;
    run->options = options;
    run->line = 1;
    if (options->now) {
        run->now = *options->now;
    } else {
        time_t now = time(NULL);
        (void)localtime_r(&now, &run->now);
    }
    /* fields of a caller's clock index tables */
    run->now.tm_wday = run->now.tm_wday < 0 || run->now.tm_wday > 6 ? 0 : run->now.tm_wday;
    run->now.tm_mon = run->now.tm_mon < 0 || run->now.tm_mon > 11 ? 0 : run->now.tm_mon;
}

enum mxc_code mxc_jinja_render(const struct mxc_jinja *jinja, const json_t *vars,
                               const struct mxc_jinja_options *options,
                               struct mxc_jinja_result *result, struct mxc_err *err) {
    static const struct mxc_jinja_options defaults = {0};
    struct mxc_err local;
    struct mxc_jrun run = {.jinja = jinja, .err = err ? err : &local};
    struct mxc_buf output;
    struct mxc_jsb sb;
    enum mxc_code code = MXC_OK;
    if (!json_is_object(vars))
        return mxc_err_set(err, MXC_E_ARG, "the variables of a template must be an object");
    if (!options)
        options = &defaults;
    init_run(&run, options, vars);
    run.stack_base = __builtin_frame_address(0);
    mxc_buf_init(&output, options->max_output_bytes ? options->max_output_bytes : OUTPUT_BYTES);
    mxc_j_sb_init(&sb, &run);
    sb.top = &output;
    run.out = &sb;
    run.globals = mxc_j_alloc(&run, jinja->n_names + 1, sizeof *run.globals);
    if (!run.globals || !set_globals(&run, vars) ||
        mxc_j_exec(&run, &run.root, &jinja->body) != MJ_NEXT)
        code = run.err->code;
    size_t length = output.length;
    char *text = code == MXC_OK ? mxc_buf_take(&output) : NULL;
    if (code == MXC_OK && !text)
        code = mxc_err_nomem(run.err);
    if (code == MXC_OK)
        *result = (struct mxc_jinja_result){text, length, run.spans, run.n_spans};
    else
        mxc_mem_free(run.spans);
    mxc_buf_fini(&output);
    mxc_arena_fini(&run.arena);
    mxc_arena_fini(&run.large);
    return code;
}

void mxc_jinja_result_fini(struct mxc_jinja_result *result) {
    mxc_mem_free(result->text);
    mxc_mem_free(result->spans);
    *result = (struct mxc_jinja_result){0};
}

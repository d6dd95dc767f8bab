/* Statement parser: the whole template to a list of nodes; and compile and free of a template.
 * In: UTF-8 text of at most 1 MiB. Out: jinja->body in the template's arena, or a syntax error with
 * its line.
 * One row of `tags` per statement. Tags that would read other files are parsed to their end and
 * refused by name when they run, so that a template which never gets there works.
 * Nesting of blocks and height of the tree are bounded, so that exec.c may recurse. An unknown
 * filter or test is an error at once, except inside an if, as in Jinja2. */
#include "text/jinja/run.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_BLOCKS = 100, MAX_TEXT = 1 << 20, MAX_TREE = 64 << 20 };

static bool parse_until(struct mxc_jparse *p, struct mxc_jlist *body, const char *const *ends);

static bool at_block_end(struct mxc_jparse *p) {
    return p->cur.type == MJ_T_BLOCK_END ? mxc_j_advance(p)
                                         : mxc_j_unexpected(p, "end of statement block");
}

static bool adopt(struct mxc_jparse *p, struct mxc_jnode *node, const struct mxc_jlist *list) {
    for (size_t i = 0; i < list->n; i++)
        if (!mxc_j_above(p, node, list->v[i]))
            return false;
    return true;
}

/* The body up to {% end %}, with the cursor behind the end's name. */
static bool parse_body(struct mxc_jparse *p, struct mxc_jnode *node, const char *end) {
    const char *const ends[] = {end, NULL};
    return at_block_end(p) && parse_until(p, &node->body, ends) && mxc_j_advance(p) &&
           adopt(p, node, &node->body);
}

/* A body that runs as a function of its own: break and continue stay inside. */
static bool parse_function_body(struct mxc_jparse *p, struct mxc_jnode *node, const char *end) {
    struct mxc_jmacro_use use = {.outer = p->macro};
    bool in_loop = p->in_loop, soft = p->soft;
    p->macro = &use;
    p->in_loop = p->soft = false;
    bool ok = parse_body(p, node, end);
    p->macro = use.outer;
    p->in_loop = in_loop;
    p->soft = soft;
    if (!ok)
        return false;
    for (size_t i = 0; i < node->params->n; i++) {
        const char *name = p->jinja->names[node->params->ids[i]];
        if (!strcmp(name, "kwargs"))
            use.uses &= ~(unsigned)MJ_USES_KWARGS;
        else if (!strcmp(name, "varargs"))
            use.uses &= ~(unsigned)MJ_USES_VARARGS;
        else if (!strcmp(name, "caller") && use.uses & MJ_USES_CALLER) {
            if (i + node->params->n_defaults < node->params->n)
                return mxc_j_syntax(p->err, node->line,
                                    "the special \"caller\" argument must be omitted or be given "
                                    "a default");
            node->params->explicit_caller = true;
        }
    }
    node->params->uses = use.uses;
    return true;
}

/* "(a, b=1)" */
static bool parse_params(struct mxc_jparse *p, struct mxc_jnode *node) {
    struct mxc_jparams *params = node->params;
    struct mxc_jlist defaults = {0};
    size_t capacity = 0;
    if (!mxc_j_expect_op(p, '('))
        return false;
    while (!mxc_j_at_op(p, ')')) {
        if (params->n && !mxc_j_expect_op(p, ','))
            return false;
        if (p->cur.type != MJ_T_NAME)
            return mxc_j_unexpected(p, "a name");
        if (params->n == capacity) {
            capacity = capacity ? capacity * 2 : 8;
            int *grown = mxc_arena_array(&p->jinja->arena, capacity, sizeof *grown);
            if (!grown)
                return mxc_j_nomem_at(p);
            if (params->n)
                memcpy(grown, params->ids, params->n * sizeof *grown);
            params->ids = grown;
        }
        int id;
        if (!mxc_j_intern(p, p->cur.p, p->cur.len, &id))
            return false;
        for (size_t i = 0; i < params->n; i++)
            if (params->ids[i] == id)
                return mxc_j_syntax(p->err, node->line, "duplicate argument '%s'",
                                    p->jinja->names[id]);
        params->ids[params->n++] = id;
        if (!mxc_j_advance(p))
            return false;
        if (mxc_j_at_op(p, '=')) {
            struct mxc_jnode *value;
            if (!mxc_j_advance(p) || !(value = mxc_j_parse_expr(p, true)) ||
                !mxc_j_above(p, node, value) || !mxc_j_add(p, &defaults, value))
                return false;
        } else if (defaults.n) {
            return mxc_j_syntax(p->err, node->line,
                                "non-default argument follows default argument");
        }
    }
    params->defaults = defaults.v;
    params->n_defaults = defaults.n;
    return mxc_j_advance(p);
}

static bool new_params(struct mxc_jparse *p, struct mxc_jnode *node) {
    node->params = mxc_arena_alloc(&p->jinja->arena, sizeof *node->params);
    return node->params || mxc_j_nomem_at(p);
}

static bool parse_if(struct mxc_jparse *p, struct mxc_jnode *node) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    bool soft = p->soft;
    for (;;) {
        /* the test itself is soft too, as in Jinja2 */
        p->soft = true;
        if (!(node->a = mxc_j_parse_tuple(p, MJ_NO_COND)) || !at_block_end(p) ||
            !parse_until(p, &node->body, ends))
            return false;
        p->soft = soft;
        if (!mxc_j_above(p, node, node->a) || !adopt(p, node, &node->body))
            return false;
        if (mxc_j_at_name(p, "endif"))
            return mxc_j_advance(p);
        bool is_elif = mxc_j_at_name(p, "elif");
        if (!mxc_j_advance(p))
            return false;
        if (!is_elif) {
            p->soft = true;
            if (!at_block_end(p) || !parse_until(p, &node->other, ends + 2) || !mxc_j_advance(p))
                return false;
            p->soft = soft;
            return adopt(p, node, &node->other);
        }
        /* a chain: each link stands beside the one before it, not below (op 1: more follows) */
        struct mxc_jnode *link = mxc_j_node(p, MJ_IF, p->cur.line);
        if (!link)
            return false;
        node->op = 1;
        node->b = link;
        link->height = node->height;
        node = link;
    }
}

static bool parse_for(struct mxc_jparse *p, struct mxc_jnode *node) {
    static const char *const ends[] = {"endfor", "else", NULL};
    bool in_loop = p->in_loop, soft = p->soft;
    if (!(node->a = mxc_j_parse_target(p, MJ_END_IN)) || !mxc_j_expect_name(p, "in") ||
        !(node->b = mxc_j_parse_tuple(p, MJ_NO_COND | MJ_END_RECURSIVE)))
        return false;
    for (size_t i = 0; i < (node->a->kind == MJ_TUPLE_EXPR ? node->a->items.n : 1); i++) {
        const struct mxc_jnode *name =
            node->a->kind == MJ_TUPLE_EXPR ? node->a->items.v[i] : node->a;
        if (name->kind == MJ_NAME && !strcmp(p->jinja->names[name->id], "loop"))
            return mxc_j_syntax(p->err, node->line,
                                "Can't assign to special loop variable in for-loop target");
    }
    if (mxc_j_at_name(p, "if")) {
        if (!mxc_j_advance(p) || !(node->c = mxc_j_parse_expr(p, true)))
            return false;
    }
    if (mxc_j_at_name(p, "recursive")) {
        node->op = 1;
        if (!mxc_j_advance(p))
            return false;
    }
    p->in_loop = true;
    p->soft = false;
    if (!at_block_end(p) || !parse_until(p, &node->body, ends))
        return false;
    p->in_loop = in_loop;
    if (mxc_j_at_name(p, "else")) {
        if (!mxc_j_advance(p) || !at_block_end(p))
            return false;
        static const char *const end[] = {"endfor", NULL};
        if (!parse_until(p, &node->other, end))
            return false;
    }
    p->soft = soft;
    return mxc_j_advance(p) && mxc_j_above(p, node, node->a) && mxc_j_above(p, node, node->b) &&
           mxc_j_above(p, node, node->c) && adopt(p, node, &node->body) &&
           adopt(p, node, &node->other);
}

static bool parse_set(struct mxc_jparse *p, struct mxc_jnode *node) {
    int line = p->cur.line;
    bool soft = p->soft;
    if (!(node->a = mxc_j_parse_target(p, MJ_WITH_NS)))
        return false;
    if (mxc_j_at_op(p, '=')) {
        if (!mxc_j_advance(p) || !(node->b = mxc_j_parse_tuple(p, 0)))
            return false;
        return mxc_j_above(p, node, node->a) && mxc_j_above(p, node, node->b);
    }
    node->kind = MJ_SET_BLOCK;
    node->line = line;
    if (mxc_j_at_op(p, '|') && !(node->b = mxc_j_parse_filters(p, NULL, false)))
        return false;
    p->soft = false;
    bool ok = parse_body(p, node, "endset");
    p->soft = soft;
    return ok && mxc_j_above(p, node, node->a) && mxc_j_above(p, node, node->b);
}

static bool parse_with(struct mxc_jparse *p, struct mxc_jnode *node) {
    bool soft = p->soft;
    while (p->cur.type != MJ_T_BLOCK_END) {
        struct mxc_jnode *target, *value;
        if (node->items.n && !mxc_j_expect_op(p, ','))
            return false;
        if (!(target = mxc_j_parse_target(p, 0)) || !mxc_j_expect_op(p, '=') ||
            !(value = mxc_j_parse_expr(p, true)) || !mxc_j_above(p, node, value) ||
            !mxc_j_add(p, &node->items, target) || !mxc_j_add(p, &node->items, value))
            return false;
    }
    p->soft = false;
    bool ok = parse_body(p, node, "endwith");
    p->soft = soft;
    return ok;
}

static bool parse_macro(struct mxc_jparse *p, struct mxc_jnode *node) {
    if (p->cur.type != MJ_T_NAME)
        return mxc_j_unexpected(p, "a name");
    return mxc_j_intern(p, p->cur.p, p->cur.len, &node->id) && mxc_j_advance(p) &&
           new_params(p, node) && parse_params(p, node) && parse_function_body(p, node, "endmacro");
}

static bool parse_call_block(struct mxc_jparse *p, struct mxc_jnode *node) {
    if (!new_params(p, node) || (mxc_j_at_op(p, '(') && !parse_params(p, node)) ||
        !(node->a = mxc_j_parse_expr(p, true)))
        return false;
    if (node->a->kind != MJ_CALL)
        return mxc_j_syntax(p->err, node->line, "expected call");
    return mxc_j_above(p, node, node->a) && parse_function_body(p, node, "endcall");
}

static bool parse_filter_block(struct mxc_jparse *p, struct mxc_jnode *node) {
    bool soft = p->soft;
    if (!(node->a = mxc_j_parse_filters(p, NULL, true)))
        return false;
    p->soft = false;
    bool ok = parse_body(p, node, "endfilter");
    p->soft = soft;
    return ok && mxc_j_above(p, node, node->a);
}

static bool parse_generation(struct mxc_jparse *p, struct mxc_jnode *node) {
    return new_params(p, node) && parse_function_body(p, node, "endgeneration");
}

static bool parse_block(struct mxc_jparse *p, struct mxc_jnode *node) {
    const char *const ends[] = {"endblock", NULL};
    bool in_loop = p->in_loop;
    if (p->cur.type != MJ_T_NAME)
        return mxc_j_unexpected(p, "a name");
    if (!mxc_j_intern(p, p->cur.p, p->cur.len, &node->id) || !new_params(p, node) ||
        !mxc_j_add(p, &p->jinja->blocks, node))
        return false;
    for (size_t i = 0; i + 1 < p->jinja->blocks.n; i++)
        if (p->jinja->blocks.v[i]->id == node->id)
            return mxc_j_syntax(p->err, node->line, "block '%s' defined twice",
                                p->jinja->names[node->id]);
    if (!mxc_j_advance(p))
        return false;
    while (mxc_j_at_name(p, "scoped") || mxc_j_at_name(p, "required")) {
        node->op |= mxc_j_at_name(p, "scoped");
        if (!mxc_j_advance(p))
            return false;
    }
    p->in_loop = false;
    if (!at_block_end(p) || !parse_until(p, &node->body, ends) || !mxc_j_advance(p))
        return false;
    p->in_loop = in_loop;
    if (p->cur.type == MJ_T_NAME && !mxc_j_advance(p)) /* endblock name */
        return false;
    return adopt(p, node, &node->body);
}

static bool parse_print(struct mxc_jparse *p, struct mxc_jnode *node) {
    while (p->cur.type != MJ_T_BLOCK_END) {
        struct mxc_jnode *item;
        if (node->items.n && !mxc_j_expect_op(p, ','))
            return false;
        if (!(item = mxc_j_parse_expr(p, true)) || !mxc_j_above(p, node, item) ||
            !mxc_j_add(p, &node->items, item))
            return false;
    }
    return true;
}

/* include, import, from, extends: known, and refused when they run. */
static bool parse_refused(struct mxc_jparse *p, struct mxc_jnode *node) {
    while (p->cur.type != MJ_T_BLOCK_END) {
        if (p->cur.type == MJ_T_EOF)
            return mxc_j_unexpected(p, "end of statement block");
        if (!mxc_j_advance(p))
            return false;
    }
    (void)node;
    return true;
}

static bool parse_jump(struct mxc_jparse *p, struct mxc_jnode *node) {
    return p->in_loop || mxc_j_syntax(p->err, node->line, "'%s' outside loop",
                                      node->kind == MJ_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    enum mxc_jkind kind;
    bool (*parse)(struct mxc_jparse *p, struct mxc_jnode *node);
} tags[] = {{"if", MJ_IF, parse_if},
            {"for", MJ_FOR, parse_for},
            {"set", MJ_SET, parse_set},
            {"with", MJ_WITH, parse_with},
            {"macro", MJ_MACRO_DEF, parse_macro},
            {"call", MJ_CALL_BLOCK, parse_call_block},
            {"filter", MJ_FILTER_BLOCK, parse_filter_block},
            {"generation", MJ_GENERATION, parse_generation},
            {"block", MJ_BLOCK, parse_block},
            {"print", MJ_OUTPUT, parse_print},
            {"break", MJ_BREAK, parse_jump},
            {"continue", MJ_CONTINUE, parse_jump},
            {"include", MJ_REFUSED, parse_refused},
            {"import", MJ_REFUSED, parse_refused},
            {"from", MJ_REFUSED, parse_refused},
            {"extends", MJ_REFUSED, parse_refused}};

static bool parse_tag(struct mxc_jparse *p, struct mxc_jlist *body) {
    if (p->cur.type != MJ_T_NAME)
        return mxc_j_unexpected(p, "tag name");
    struct mxc_str name = {p->cur.p, p->cur.len};
    int line = p->cur.line;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!mxc_str_is(name, tags[i].name))
            continue;
        struct mxc_jnode *node = mxc_j_node(p, tags[i].kind, line);
        if (!node || !mxc_j_advance(p))
            return false;
        node->value.u.p = (void *)(uintptr_t)tags[i].name;
        return tags[i].parse(p, node) && at_block_end(p) && mxc_j_add(p, body, node);
    }
    return mxc_j_syntax(p->err, line, "Encountered unknown tag '%.*s'.",
                        (int)(name.length < 80 ? name.length : 80), name.ptr);
}

static bool add_data(struct mxc_jparse *p, struct mxc_jlist *body) {
    struct mxc_jnode *node = mxc_j_node(p, MJ_DATA, p->cur.line);
    struct mxc_jstr *s = node ? mxc_arena_alloc(&p->jinja->arena, sizeof *s) : NULL;
    if (!s)
        return node ? mxc_j_nomem_at(p) : false;
    s->p = p->cur.p;
    s->len = p->cur.len;
    s->n_cp = SIZE_MAX;
    mxc_j_str_count(s);
    node->value = mxc_j_str_val(s);
    return mxc_j_advance(p) && mxc_j_add(p, body, node);
}

static bool add_output(struct mxc_jparse *p, struct mxc_jlist *body) {
    struct mxc_jnode *node = mxc_j_node(p, MJ_OUTPUT, p->cur.line), *item;
    if (!node || !mxc_j_advance(p) || !(item = mxc_j_parse_tuple(p, 0)))
        return false;
    if (p->cur.type != MJ_T_VAR_END)
        return mxc_j_unexpected(p, "end of print statement");
    return mxc_j_above(p, node, item) && mxc_j_add(p, &node->items, item) && mxc_j_advance(p) &&
           mxc_j_add(p, body, node);
}

static bool no_unknown(struct mxc_jparse *p) {
    const struct mxc_jnode *node = p->unknown;
    if (!node)
        return true;
    const struct mxc_jstr *name = node->value.u.s;
    return mxc_j_syntax(p->err, node->line, "No %s named '%.*s'.",
                        node->kind == MJ_FILTER ? "filter" : "test",
                        (int)(name->len < 80 ? name->len : 80), name->p);
}

/* Statements up to a tag of one of the names, which is then the current token; ends NULL: to the
 * end of the template. */
static bool parse_until(struct mxc_jparse *p, struct mxc_jlist *body, const char *const *ends) {
    unsigned depth = p->depth;
    if ((p->blocks += 1) > MAX_BLOCKS) {
        (void)mxc_err_at(p->err, MXC_E_LIMIT, p->cur.line,
                         "line %d: the template is nested too deep", p->cur.line);
        return false;
    }
    p->depth = 0;
    for (;;) {
        if (p->cur.type == MJ_T_EOF) {
            if (ends)
                return mxc_j_syntax(
                    p->err, p->cur.line,
                    "Unexpected end of template. The block that is open needs '%s'.", ends[0]);
            break;
        }
        bool ok;
        if (p->cur.type == MJ_T_DATA) {
            ok = add_data(p, body);
        } else if (p->cur.type == MJ_T_VAR_BEGIN) {
            ok = add_output(p, body);
        } else if (p->cur.type == MJ_T_BLOCK_BEGIN) {
            if (!mxc_j_advance(p))
                return false;
            bool end = false;
            for (size_t i = 0; ends && ends[i] && !end; i++)
                end = mxc_j_at_name(p, ends[i]);
            if (end)
                break;
            ok = parse_tag(p, body);
        } else {
            return mxc_j_unexpected(p, NULL);
        }
        if (!ok || !no_unknown(p))
            return false;
    }
    p->blocks--;
    p->depth = depth;
    return true;
}

bool mxc_j_parse_template(struct mxc_jparse *p) {
    return mxc_j_advance(p) && mxc_j_advance(p) && parse_until(p, &p->jinja->body, NULL);
}

enum mxc_code mxc_jinja_compile(const char *text, size_t length, bool from_json,
                                struct mxc_jinja **jinja, struct mxc_err *err) {
    struct mxc_err local;
    struct mxc_jparse p = {.err = err ? err : &local};
    if (length > MAX_TEXT)
        return mxc_err_set(err, MXC_E_LIMIT, "the template is longer than 1 MiB");
    if (!mxc_utf8_valid(text, length))
        return mxc_err_set(err, MXC_E_TEMPLATE, "the template is not UTF-8");
    struct mxc_jinja *j = mxc_mem_zalloc(1, sizeof *j);
    if (!j)
        return mxc_err_nomem(err);
    mxc_arena_init(&j->arena, MAX_TREE);
    mxc_map_init(&j->ids);
    j->from_json = from_json;
    p.jinja = j;
    if (!mxc_j_lex_init(&p.lex, &j->arena, text, length, p.err) || !mxc_j_parse_template(&p)) {
        mxc_jinja_free(j);
        return p.err->code;
    }
    *jinja = j;
    return MXC_OK;
}

void mxc_jinja_free(struct mxc_jinja *jinja) {
    if (!jinja)
        return;
    mxc_map_fini(&jinja->ids);
    mxc_arena_fini(&jinja->arena);
    mxc_mem_free(jinja);
}

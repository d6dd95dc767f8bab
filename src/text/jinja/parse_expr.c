/* Expression parser: tokens to nodes, with Jinja2's grammar and precedences. In: the token stream
 * of a tag. Out: nodes in the template's arena. Nesting and the height of every tree are bounded,
 * so that neither this recursion nor the evaluator's can run away. */
#include "text/jinja/run.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_NESTING = 120, MAX_HEIGHT = 400 };

bool mxc_j_nomem_at(struct mxc_jparse *p) {
    const struct mxc_arena *arena = &p->jinja->arena;
    if (arena->used_bytes > arena->max_bytes / 2)
        (void)mxc_err_at(p->err, MXC_E_LIMIT, p->cur.line, "line %d: the template is too large",
                         p->cur.line);
    else
        (void)mxc_err_nomem(p->err);
    return false;
}

static bool too_deep(struct mxc_jparse *p, int line) {
    (void)mxc_err_at(p->err, MXC_E_LIMIT, line, "line %d: the template is nested too deep", line);
    return false;
}

bool mxc_j_advance(struct mxc_jparse *p) {
    p->cur = p->next;
    return mxc_j_lex_next(&p->lex, &p->next);
}

struct mxc_jnode *mxc_j_node(struct mxc_jparse *p, enum mxc_jkind kind, int line) {
    struct mxc_jnode *node = mxc_arena_alloc(&p->jinja->arena, sizeof *node);
    if (!node) {
        mxc_j_nomem_at(p);
        return NULL;
    }
    node->kind = kind;
    node->line = line;
    node->height = 1;
    node->id = -1;
    return node;
}

bool mxc_j_above(struct mxc_jparse *p, struct mxc_jnode *node, const struct mxc_jnode *child) {
    if (child && child->height >= node->height)
        node->height = child->height + 1;
    return node->height <= MAX_HEIGHT || too_deep(p, node->line);
}

bool mxc_j_add(struct mxc_jparse *p, struct mxc_jlist *list, struct mxc_jnode *node) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4;
        struct mxc_jnode **grown = mxc_arena_array(&p->jinja->arena, capacity, sizeof *grown);
        if (!grown)
            return mxc_j_nomem_at(p);
        if (list->n)
            memcpy(grown, list->v, list->n * sizeof *grown);
        list->v = grown;
        list->capacity = capacity;
    }
    list->v[list->n++] = node;
    return true;
}

bool mxc_j_intern(struct mxc_jparse *p, const char *text, size_t len, int *id) {
    struct mxc_jinja *j = p->jinja;
    struct mxc_str key = {text, len};
    uint64_t found;
    if (mxc_map_get(&j->ids, key, &found)) {
        *id = (int)found;
        return true;
    }
    if (j->n_names == j->names_capacity) {
        size_t capacity = j->names_capacity ? j->names_capacity * 2 : 64;
        const char **grown = mxc_arena_array(&j->arena, capacity, sizeof *grown);
        if (!grown)
            return mxc_j_nomem_at(p);
        if (j->n_names)
            memcpy(grown, j->names, j->n_names * sizeof *grown);
        j->names = grown;
        j->names_capacity = capacity;
    }
    char *name = mxc_arena_dup(&j->arena, text, len);
    if (!name || !mxc_map_put(&j->ids, key, j->n_names))
        return mxc_j_nomem_at(p);
    *id = (int)j->n_names;
    j->names[j->n_names++] = name;
    return true;
}

bool mxc_j_at_name(const struct mxc_jparse *p, const char *name) {
    return p->cur.type == MJ_T_NAME && mxc_str_is((struct mxc_str){p->cur.p, p->cur.len}, name);
}

static bool next_is_name(const struct mxc_jparse *p, const char *name) {
    return p->next.type == MJ_T_NAME && mxc_str_is((struct mxc_str){p->next.p, p->next.len}, name);
}

bool mxc_j_at_op(const struct mxc_jparse *p, int op) {
    return p->cur.type == MJ_T_OP && p->cur.op == op;
}

bool mxc_j_unexpected(struct mxc_jparse *p, const char *wanted) {
    const struct mxc_jtoken *t = &p->cur;
    const char *text = t->type == MJ_T_EOF         ? "end of template"
                       : t->type == MJ_T_BLOCK_END ? "end of statement block"
                       : t->type == MJ_T_VAR_END   ? "end of print statement"
                       : t->type == MJ_T_DATA      ? "template data"
                       : t->type == MJ_T_STRING    ? "string"
                       : t->type == MJ_T_INT       ? "integer"
                       : t->type == MJ_T_FLOAT     ? "float"
                                                   : NULL;
    char word[80];
    if (!text) {
        size_t n = t->len < sizeof word - 1 ? t->len : sizeof word - 1;
        if (n)
            memcpy(word, t->p, n);
        word[n] = 0;
        text = word;
    }
    if (wanted)
        return mxc_j_syntax(p->err, t->line, "expected %s, got '%s'", wanted, text);
    return mxc_j_syntax(p->err, t->line, "unexpected '%s'", text);
}

bool mxc_j_expect_op(struct mxc_jparse *p, int op) {
    if (!mxc_j_at_op(p, op)) {
        char wanted[8] = {'\'', (char)op, '\'', 0};
        return mxc_j_unexpected(p, wanted);
    }
    return mxc_j_advance(p);
}

bool mxc_j_expect_name(struct mxc_jparse *p, const char *name) {
    return mxc_j_at_name(p, name) ? mxc_j_advance(p) : mxc_j_unexpected(p, name);
}

static struct mxc_jnode *constant(struct mxc_jparse *p, struct mxc_jval v, int line) {
    struct mxc_jnode *node = mxc_j_node(p, MJ_CONST, line);
    if (node)
        node->value = v;
    return node;
}

static struct mxc_jstr *const_str(struct mxc_jparse *p, const char *text, size_t len) {
    struct mxc_jstr *s = mxc_arena_alloc(&p->jinja->arena, sizeof *s);
    if (!s) {
        mxc_j_nomem_at(p);
        return NULL;
    }
    s->p = len ? text : "";
    s->len = len;
    s->n_cp = SIZE_MAX;
    mxc_j_str_count(s); /* now: threads share it */
    return s;
}

static struct mxc_jnode *binary(struct mxc_jparse *p, enum mxc_jkind kind, int op, int line,
                                struct mxc_jnode *a, struct mxc_jnode *b) {
    struct mxc_jnode *node = a && b ? mxc_j_node(p, kind, line) : NULL;
    if (!node)
        return NULL;
    node->op = op;
    node->a = a;
    node->b = b;
    return mxc_j_above(p, node, a) && mxc_j_above(p, node, b) ? node : NULL;
}

static struct mxc_jnode *name_node(struct mxc_jparse *p, const struct mxc_jtoken *t, bool target) {
    uint32_t cp;
    mxc_j_decode(t->p, t->len, &cp);
    struct mxc_jnode *node = mxc_j_node(p, MJ_NAME, t->line);
    if (!node || !mxc_j_intern(p, t->p, t->len, &node->id))
        return NULL;
    static const char *const special[] = {"caller", "kwargs", "varargs"};
    for (unsigned i = 0; i < 3; i++) {
        if (!mxc_str_is((struct mxc_str){t->p, t->len}, special[i]))
            continue;
        for (struct mxc_jmacro_use *use = p->macro; use; use = use->outer) {
            if (target)
                use->hidden |= 1U << i;
            else if (!(use->hidden & 1U << i))
                use->uses |= 1U << i;
        }
    }
    return node;
}

static struct mxc_jnode *parse_strings(struct mxc_jparse *p) {
    int line = p->cur.line;
    struct mxc_jtoken first = p->cur;
    if (!mxc_j_advance(p))
        return NULL;
    const char *text = first.p;
    size_t len = first.len, capacity = 0;
    char *joined = NULL;
    while (p->cur.type == MJ_T_STRING) {
        if (len + p->cur.len > capacity) {
            capacity = (len + p->cur.len) * 2;
            char *grown = mxc_arena_alloc(&p->jinja->arena, capacity);
            if (!grown) {
                mxc_j_nomem_at(p);
                return NULL;
            }
            memcpy(grown, text, len);
            text = joined = grown;
        }
        if (p->cur.len && joined)
            memcpy(joined + len, p->cur.p, p->cur.len);
        len += p->cur.len;
        if (!mxc_j_advance(p))
            return NULL;
    }
    struct mxc_jstr *s = const_str(p, text, len);
    return s ? constant(p, mxc_j_str_val(s), line) : NULL;
}

static bool parse_items(struct mxc_jparse *p, struct mxc_jnode *node, int end, bool pairs) {
    while (!mxc_j_at_op(p, end)) {
        if (node->items.n) {
            if (!mxc_j_expect_op(p, ','))
                return false;
            if (mxc_j_at_op(p, end))
                break;
        }
        struct mxc_jnode *item = mxc_j_parse_expr(p, true);
        if (!item || !mxc_j_above(p, node, item) || !mxc_j_add(p, &node->items, item))
            return false;
        if (!pairs)
            continue;
        if (!mxc_j_expect_op(p, ':') || !(item = mxc_j_parse_expr(p, true)) ||
            !mxc_j_above(p, node, item) || !mxc_j_add(p, &node->items, item))
            return false;
    }
    return mxc_j_advance(p);
}

static struct mxc_jnode *parse_primary(struct mxc_jparse *p, unsigned flags) {
    struct mxc_jtoken t = p->cur;
    if (t.type == MJ_T_STRING)
        return parse_strings(p);
    if (t.type == MJ_T_NAME) {
        struct mxc_str word = {t.p, t.len};
        if (!mxc_j_advance(p))
            return NULL;
        if (mxc_str_is(word, "true") || mxc_str_is(word, "True"))
            return constant(p, mxc_j_bool(true), t.line);
        if (mxc_str_is(word, "false") || mxc_str_is(word, "False"))
            return constant(p, mxc_j_bool(false), t.line);
        if (mxc_str_is(word, "none") || mxc_str_is(word, "None"))
            return constant(p, mxc_j_none(), t.line);
        bool ns = flags & MJ_WITH_NS && mxc_j_at_op(p, '.');
        struct mxc_jnode *node = name_node(p, &t, flags & MJ_TARGET && !ns);
        if (node && ns) {
            node->kind = MJ_NSREF;
            if (!mxc_j_advance(p))
                return NULL;
            if (p->cur.type != MJ_T_NAME)
                return mxc_j_unexpected(p, "a name"), NULL;
            struct mxc_jstr *s = const_str(p, p->cur.p, p->cur.len);
            if (!s || !mxc_j_advance(p))
                return NULL;
            node->value = mxc_j_str_val(s);
        }
        return node;
    }
    if (t.type == MJ_T_INT || t.type == MJ_T_FLOAT) {
        if (!mxc_j_advance(p))
            return NULL;
        return constant(p, t.type == MJ_T_INT ? mxc_j_int(t.i) : mxc_j_float(t.f), t.line);
    }
    if (t.type != MJ_T_OP || !(t.op == '(' || t.op == '[' || t.op == '{'))
        return mxc_j_unexpected(p, NULL), NULL;
    if (!mxc_j_advance(p))
        return NULL;
    if (t.op == '(') {
        struct mxc_jnode *node = mxc_j_parse_tuple(p, MJ_PARENS);
        return node && mxc_j_expect_op(p, ')') ? node : NULL;
    }
    struct mxc_jnode *node = mxc_j_node(p, t.op == '[' ? MJ_LIST_EXPR : MJ_DICT_EXPR, t.line);
    return node && parse_items(p, node, t.op == '[' ? ']' : '}', t.op == '{') ? node : NULL;
}

static bool call_error(struct mxc_jparse *p, int line) {
    return mxc_j_syntax(p->err, line, "invalid syntax for function call expression");
}

static bool parse_kwarg(struct mxc_jparse *p, struct mxc_jcall *call, struct mxc_jnode **value) {
    struct mxc_jstr *name = const_str(p, p->cur.p, p->cur.len);
    struct mxc_jstr **names =
        name ? mxc_arena_array(&p->jinja->arena, call->kwargs.n + 1, sizeof *names) : NULL;
    if (!names)
        return name ? mxc_j_nomem_at(p) : false;
    for (size_t i = 0; i < call->kwargs.n; i++) {
        if (mxc_str_equal(mxc_j_slice_of(call->names[i]), mxc_j_slice_of(name)))
            return mxc_j_syntax(p->err, p->cur.line, "keyword argument repeated: %.*s",
                                (int)(name->len < 80 ? name->len : 80), name->p);
        names[i] = call->names[i];
    }
    names[call->kwargs.n] = name;
    call->names = names;
    return mxc_j_advance(p) && mxc_j_advance(p) && (*value = mxc_j_parse_expr(p, true)) &&
           mxc_j_add(p, &call->kwargs, *value);
}

/* "(a, b=c, *d, **e)" into node->call. */
static bool parse_call_args(struct mxc_jparse *p, struct mxc_jnode *node) {
    struct mxc_jcall *call = mxc_arena_alloc(&p->jinja->arena, sizeof *call);
    if (!call)
        return mxc_j_nomem_at(p);
    int line = p->cur.line;
    node->call = call;
    if (!mxc_j_expect_op(p, '('))
        return false;
    for (bool comma = false; !mxc_j_at_op(p, ')'); comma = true) {
        struct mxc_jnode *value = NULL;
        if (comma) {
            if (!mxc_j_expect_op(p, ','))
                return false;
            if (mxc_j_at_op(p, ')'))
                break;
        }
        if (mxc_j_at_op(p, '*')) {
            if (call->dyn_args || call->dyn_kwargs)
                return call_error(p, line);
            if (!mxc_j_advance(p) || !(value = mxc_j_parse_expr(p, true)))
                return false;
            call->dyn_args = value;
        } else if (mxc_j_at_op(p, MJ_OP_POW)) {
            if (call->dyn_kwargs)
                return call_error(p, line);
            if (!mxc_j_advance(p) || !(value = mxc_j_parse_expr(p, true)))
                return false;
            call->dyn_kwargs = value;
        } else if (p->cur.type == MJ_T_NAME && p->next.type == MJ_T_OP && p->next.op == '=') {
            if (call->dyn_kwargs)
                return call_error(p, line);
            if (!parse_kwarg(p, call, &value))
                return false;
        } else {
            if (call->dyn_args || call->dyn_kwargs || call->kwargs.n)
                return call_error(p, line);
            if (!(value = mxc_j_parse_expr(p, true)) || !mxc_j_add(p, &call->args, value))
                return false;
        }
        if (!mxc_j_above(p, node, value))
            return false;
    }
    return mxc_j_advance(p);
}

static struct mxc_jnode *parse_call(struct mxc_jparse *p, struct mxc_jnode *callee) {
    struct mxc_jnode *node = mxc_j_node(p, MJ_CALL, p->cur.line);
    if (!node)
        return NULL;
    node->a = callee;
    return mxc_j_above(p, node, callee) && parse_call_args(p, node) ? node : NULL;
}

/* One part of a subscript: an expression or a slice. */
static struct mxc_jnode *parse_subscript_part(struct mxc_jparse *p, struct mxc_jnode *object) {
    int line = p->cur.line;
    struct mxc_jnode *part[3] = {NULL, NULL, NULL};
    if (!mxc_j_at_op(p, ':')) {
        if (!(part[0] = mxc_j_parse_expr(p, true)))
            return NULL;
        if (!mxc_j_at_op(p, ':'))
            return part[0];
    }
    for (int i = 1; i < 3 && mxc_j_at_op(p, ':'); i++) {
        if (!mxc_j_advance(p))
            return NULL;
        if (!mxc_j_at_op(p, ':') && !mxc_j_at_op(p, ']') && !mxc_j_at_op(p, ',') &&
            !(part[i] = mxc_j_parse_expr(p, true)))
            return NULL;
    }
    struct mxc_jnode *node = mxc_j_node(p, MJ_SLICE, line);
    if (!node)
        return NULL;
    node->a = object;
    node->b = part[0];
    node->c = part[1];
    node->d = part[2];
    return mxc_j_above(p, node, object) && mxc_j_above(p, node, part[0]) &&
                   mxc_j_above(p, node, part[1]) && mxc_j_above(p, node, part[2])
               ? node
               : NULL;
}

static struct mxc_jnode *parse_subscript(struct mxc_jparse *p, struct mxc_jnode *object) {
    int line = p->cur.line;
    bool dot = mxc_j_at_op(p, '.');
    if (!mxc_j_advance(p))
        return NULL;
    if (dot) {
        struct mxc_jtoken t = p->cur;
        if (t.type != MJ_T_NAME && t.type != MJ_T_INT)
            return mxc_j_unexpected(p, "name or number"), NULL;
        if (!mxc_j_advance(p))
            return NULL;
        if (t.type == MJ_T_INT)
            return binary(p, MJ_ITEM, 0, line, object, constant(p, mxc_j_int(t.i), line));
        struct mxc_jnode *node = mxc_j_node(p, MJ_ATTR, line);
        struct mxc_jstr *s = node ? const_str(p, t.p, t.len) : NULL;
        if (!s)
            return NULL;
        node->a = object;
        node->value = mxc_j_str_val(s);
        return mxc_j_above(p, node, object) ? node : NULL;
    }
    struct mxc_jnode *tuple = mxc_j_node(p, MJ_TUPLE_EXPR, line);
    while (tuple && !mxc_j_at_op(p, ']')) {
        if (tuple->items.n && !mxc_j_expect_op(p, ','))
            return NULL;
        struct mxc_jnode *part = parse_subscript_part(p, object);
        if (!part || !mxc_j_above(p, tuple, part) || !mxc_j_add(p, &tuple->items, part))
            return NULL;
        if (part->kind == MJ_SLICE && part->a == object && (mxc_j_at_op(p, ',')))
            return mxc_j_syntax(p->err, line, "a slice cannot be part of a tuple"), NULL;
    }
    if (!tuple || !mxc_j_advance(p))
        return NULL;
    if (tuple->items.n != 1)
        return binary(p, MJ_ITEM, 0, line, object, tuple);
    struct mxc_jnode *only = tuple->items.v[0];
    return only->kind == MJ_SLICE && only->a == object ? only
                                                       : binary(p, MJ_ITEM, 0, line, object, only);
}

static struct mxc_jnode *parse_postfix(struct mxc_jparse *p, struct mxc_jnode *node) {
    while (node) {
        if (mxc_j_at_op(p, '.') || mxc_j_at_op(p, '['))
            node = parse_subscript(p, node);
        else if (mxc_j_at_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* A filter's or test's name, with dots. */
static bool parse_dotted(struct mxc_jparse *p, struct mxc_str *name) {
    if (p->cur.type != MJ_T_NAME)
        return mxc_j_unexpected(p, "a name");
    const char *from = p->cur.p;
    *name = (struct mxc_str){from, p->cur.len};
    if (!mxc_j_advance(p))
        return false;
    while (mxc_j_at_op(p, '.')) {
        if (!mxc_j_advance(p))
            return false;
        if (p->cur.type != MJ_T_NAME)
            return mxc_j_unexpected(p, "a name");
        name->length = (size_t)(p->cur.p - from) + p->cur.len;
        if (!mxc_j_advance(p))
            return false;
    }
    return true;
}

static bool set_target(struct mxc_jparse *p, struct mxc_jnode *node, struct mxc_str name) {
    struct mxc_jstr *s = const_str(p, name.ptr, name.length);
    if (!s)
        return false;
    node->value = mxc_j_str_val(s);
    node->target = node->kind == MJ_FILTER
                       ? (const void *)mxc_j_find_filter(name, p->jinja->from_json)
                       : (const void *)mxc_j_find_test(name);
    if (!node->target && !p->soft && !p->unknown)
        p->unknown = node;
    return true;
}

struct mxc_jnode *mxc_j_parse_filters(struct mxc_jparse *p, struct mxc_jnode *node, bool inlined) {
    while (inlined || mxc_j_at_op(p, '|')) {
        if (!inlined && !mxc_j_advance(p))
            return NULL;
        struct mxc_jnode *filter = mxc_j_node(p, MJ_FILTER, p->cur.line);
        struct mxc_str name;
        if (!filter || !parse_dotted(p, &name) || !set_target(p, filter, name))
            return NULL;
        filter->a = node;
        if (!mxc_j_above(p, filter, node) || (mxc_j_at_op(p, '(') && !parse_call_args(p, filter)))
            return NULL;
        node = filter;
        inlined = false;
    }
    return node;
}

static struct mxc_jnode *parse_test(struct mxc_jparse *p, struct mxc_jnode *subject) {
    int line = p->cur.line;
    bool negated = false;
    if (!mxc_j_advance(p))
        return NULL;
    if (mxc_j_at_name(p, "not")) {
        negated = true;
        if (!mxc_j_advance(p))
            return NULL;
    }
    struct mxc_jnode *node = mxc_j_node(p, MJ_TEST, line);
    struct mxc_str name;
    if (!node || !parse_dotted(p, &name) || !set_target(p, node, name))
        return NULL;
    node->a = subject;
    if (!mxc_j_above(p, node, subject))
        return NULL;
    enum mxc_jtok type = p->cur.type;
    if (mxc_j_at_op(p, '(')) {
        if (!parse_call_args(p, node))
            return NULL;
    } else if ((type == MJ_T_NAME && !mxc_j_at_name(p, "else") && !mxc_j_at_name(p, "or") &&
                !mxc_j_at_name(p, "and")) ||
               type == MJ_T_STRING || type == MJ_T_INT || type == MJ_T_FLOAT ||
               mxc_j_at_op(p, '[') || mxc_j_at_op(p, '{')) {
        if (mxc_j_at_name(p, "is"))
            return mxc_j_syntax(p->err, line, "You cannot chain multiple tests with is"), NULL;
        struct mxc_jnode *arg = parse_postfix(p, parse_primary(p, 0));
        if (!arg || !(node->call = mxc_arena_alloc(&p->jinja->arena, sizeof *node->call)))
            return arg ? (mxc_j_nomem_at(p), NULL) : NULL;
        if (!mxc_j_above(p, node, arg) || !mxc_j_add(p, &node->call->args, arg))
            return NULL;
    }
    if (!negated)
        return node;
    struct mxc_jnode *not_node = mxc_j_node(p, MJ_UNARY, line);
    if (!not_node)
        return NULL;
    not_node->op = '!';
    not_node->a = node;
    return mxc_j_above(p, not_node, node) ? not_node : NULL;
}

static struct mxc_jnode *parse_filter_expr(struct mxc_jparse *p, struct mxc_jnode *node) {
    while (node) {
        if (mxc_j_at_op(p, '|'))
            node = mxc_j_parse_filters(p, node, false);
        else if (mxc_j_at_name(p, "is"))
            node = parse_test(p, node);
        else if (mxc_j_at_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static bool enter(struct mxc_jparse *p) {
    return ++p->depth <= MAX_NESTING || too_deep(p, p->cur.line);
}

static struct mxc_jnode *parse_unary(struct mxc_jparse *p, bool with_filter) {
    struct mxc_jnode *node;
    if (mxc_j_at_op(p, '-') || mxc_j_at_op(p, '+')) {
        int op = p->cur.op, line = p->cur.line;
        if (!enter(p) || !mxc_j_advance(p))
            return NULL;
        struct mxc_jnode *operand = parse_unary(p, false);
        p->depth--;
        if (!operand || !(node = mxc_j_node(p, MJ_UNARY, line)))
            return NULL;
        node->op = op;
        node->a = operand;
        if (!mxc_j_above(p, node, operand))
            return NULL;
    } else {
        node = parse_primary(p, 0);
    }
    node = parse_postfix(p, node);
    return with_filter ? parse_filter_expr(p, node) : node;
}

/* The levels of binary operators, loosest first; 1 is '~', which joins many. */
static int level_of(const struct mxc_jparse *p) {
    if (p->cur.type != MJ_T_OP)
        return -1;
    switch (p->cur.op) {
    case '+':
    case '-':
        return 0;
    case '~':
        return 1;
    case '*':
    case '/':
    case '%':
    case MJ_OP_FLOORDIV:
        return 2;
    case MJ_OP_POW:
        return 3;
    default:
        return -1;
    }
}

static struct mxc_jnode *parse_math(struct mxc_jparse *p, int level) {
    struct mxc_jnode *left = parse_unary(p, true);
    for (int at = level_of(p); left && at >= level; at = level_of(p)) {
        int op = p->cur.op, line = p->cur.line;
        if (!mxc_j_advance(p))
            return NULL;
        struct mxc_jnode *right = parse_math(p, at + 1);
        if (at != 1) {
            left = binary(p, MJ_BINARY, op, line, left, right);
            continue;
        }
        struct mxc_jnode *concat = left->kind == MJ_CONCAT && left->op == 1 ? left : NULL;
        if (right && !concat) {
            concat = mxc_j_node(p, MJ_CONCAT, line);
            if (!concat || !mxc_j_above(p, concat, left) || !mxc_j_add(p, &concat->items, left))
                return NULL;
            concat->op = 1; /* still open: a further ~ joins here */
        }
        if (!right || !mxc_j_above(p, concat, right) || !mxc_j_add(p, &concat->items, right))
            return NULL;
        left = concat;
    }
    if (left && left->kind == MJ_CONCAT)
        left->op = 0;
    return left;
}

static struct mxc_jnode *parse_compare(struct mxc_jparse *p) {
    int line = p->cur.line;
    struct mxc_jnode *first = parse_math(p, 0), *node = NULL;
    while (first) {
        int op = 0;
        if (p->cur.type == MJ_T_OP &&
            (p->cur.op == '<' || p->cur.op == '>' || p->cur.op == MJ_OP_EQ ||
             p->cur.op == MJ_OP_NE || p->cur.op == MJ_OP_LE || p->cur.op == MJ_OP_GE))
            op = p->cur.op;
        else if (mxc_j_at_name(p, "in"))
            op = MJ_OP_IN;
        else if (mxc_j_at_name(p, "not") && next_is_name(p, "in"))
            op = MJ_OP_NOT_IN;
        if (!op)
            break;
        if (!mxc_j_advance(p) || (op == MJ_OP_NOT_IN && !mxc_j_advance(p)))
            return NULL;
        if (!node) {
            if (!(node = mxc_j_node(p, MJ_COMPARE, line)))
                return NULL;
            node->a = first;
            if (!mxc_j_above(p, node, first))
                return NULL;
        }
        struct mxc_jnode *right = parse_math(p, 0), *operand;
        if (!right || !(operand = mxc_j_node(p, MJ_OPERAND, line)))
            return NULL;
        operand->op = op;
        operand->a = right;
        if (!mxc_j_above(p, node, right) || !mxc_j_add(p, &node->items, operand))
            return NULL;
    }
    return node ? node : first;
}

static struct mxc_jnode *parse_not(struct mxc_jparse *p) {
    if (!mxc_j_at_name(p, "not"))
        return parse_compare(p);
    int line = p->cur.line;
    if (!enter(p) || !mxc_j_advance(p))
        return NULL;
    struct mxc_jnode *operand = parse_not(p);
    p->depth--;
    struct mxc_jnode *node = operand ? mxc_j_node(p, MJ_UNARY, line) : NULL;
    if (!node)
        return NULL;
    node->op = '!';
    node->a = operand;
    return mxc_j_above(p, node, operand) ? node : NULL;
}

static struct mxc_jnode *parse_or(struct mxc_jparse *p, bool is_or) {
    struct mxc_jnode *left = is_or ? parse_or(p, false) : parse_not(p);
    while (left && mxc_j_at_name(p, is_or ? "or" : "and")) {
        int line = p->cur.line;
        if (!mxc_j_advance(p))
            return NULL;
        left = binary(p, is_or ? MJ_OR : MJ_AND, 0, line, left,
                      is_or ? parse_or(p, false) : parse_not(p));
    }
    return left;
}

struct mxc_jnode *mxc_j_parse_expr(struct mxc_jparse *p, bool with_cond) {
    if (!enter(p))
        return NULL;
    bool soft = p->soft;
    const struct mxc_jnode *unknown = p->unknown;
    struct mxc_jnode *left = parse_or(p, true);
    while (left && with_cond && mxc_j_at_name(p, "if")) {
        struct mxc_jnode *node = mxc_j_node(p, MJ_COND, p->cur.line);
        if (!node || !mxc_j_advance(p))
            return NULL;
        p->soft = true;
        p->unknown = unknown;
        node->a = left;
        if (!(node->b = parse_or(p, true)))
            return NULL;
        if (mxc_j_at_name(p, "else") &&
            (!mxc_j_advance(p) || !(node->c = mxc_j_parse_expr(p, true))))
            return NULL;
        if (!mxc_j_above(p, node, left) || !mxc_j_above(p, node, node->b) ||
            !mxc_j_above(p, node, node->c))
            return NULL;
        left = node;
    }
    p->soft = soft;
    p->depth--;
    return left;
}

static bool at_tuple_end(const struct mxc_jparse *p, unsigned flags) {
    return p->cur.type == MJ_T_VAR_END || p->cur.type == MJ_T_BLOCK_END || mxc_j_at_op(p, ')') ||
           (flags & MJ_END_IN && mxc_j_at_name(p, "in")) ||
           (flags & MJ_END_RECURSIVE && mxc_j_at_name(p, "recursive"));
}

struct mxc_jnode *mxc_j_parse_tuple(struct mxc_jparse *p, unsigned flags) {
    int line = p->cur.line;
    struct mxc_jnode *tuple = mxc_j_node(p, MJ_TUPLE_EXPR, line);
    bool is_tuple = false;
    while (tuple) {
        if (tuple->items.n && !mxc_j_expect_op(p, ','))
            return NULL;
        if (at_tuple_end(p, flags))
            break;
        struct mxc_jnode *item;
        if (flags & MJ_TARGET) {
            if (!enter(p))
                return NULL;
            item = parse_primary(p, flags);
            p->depth--;
        } else {
            item = mxc_j_parse_expr(p, !(flags & MJ_NO_COND));
        }
        if (!item || !mxc_j_above(p, tuple, item) || !mxc_j_add(p, &tuple->items, item))
            return NULL;
        if (!mxc_j_at_op(p, ','))
            break;
        is_tuple = true;
    }
    if (!tuple || is_tuple)
        return tuple;
    if (tuple->items.n)
        return tuple->items.v[0];
    if (!(flags & MJ_PARENS))
        return mxc_j_unexpected(p, "an expression"), NULL;
    return tuple;
}

static bool can_assign(const struct mxc_jnode *node) {
    if (node->kind == MJ_TUPLE_EXPR) {
        for (size_t i = 0; i < node->items.n; i++)
            if (!can_assign(node->items.v[i]))
                return false;
        return true;
    }
    return node->kind == MJ_NAME || node->kind == MJ_NSREF;
}

struct mxc_jnode *mxc_j_parse_target(struct mxc_jparse *p, unsigned flags) {
    struct mxc_jnode *node = mxc_j_parse_tuple(p, flags | MJ_TARGET);
    if (node && !can_assign(node))
        return mxc_j_syntax(p->err, node->line, "can't assign to this expression"), NULL;
    return node;
}

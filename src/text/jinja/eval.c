/* Expression evaluator: nodes to values; and how a run fails.
 * In: a node, the scope its names are looked up in. Out: a value in the run's arena, or false with
 * the run's error set.
 * The first error wins and carries the template's line. Every node costs a step and checks the C
 * stack, so no template runs or recurses without end.
 * Names go from the inner scope outwards to the globals; one that is nowhere gives an undefined
 * value, which fails only when it is used. */
#include "text/jinja/run.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CALLS = 200 };

bool mxc_j_fail(struct mxc_jrun *run, const char *kind, const char *fmt, ...) {
    if (run->failed)
        return false;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = strlen(text);
    while (n && !mxc_utf8_valid(text, n)) /* cut inside a character */
        text[--n] = 0;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    run->failed = true;
    (void)mxc_err_at(run->err, MXC_E_TEMPLATE, run->line, "line %d: %s: %s", run->line, kind, text);
    return false;
}

bool mxc_j_limit(struct mxc_jrun *run, const char *what) {
    if (!run->failed) {
        run->failed = true;
        (void)mxc_err_at(run->err, MXC_E_LIMIT, run->line, "line %d: %s", run->line, what);
    }
    return false;
}

bool mxc_j_nomem(struct mxc_jrun *run) {
    if (!run->failed) {
        run->failed = true;
        (void)mxc_err_nomem(run->err);
    }
    return false;
}

bool mxc_j_step(struct mxc_jrun *run, uint64_t cost) {
    run->steps += cost;
    return run->steps <= run->max_steps || mxc_j_limit(run, "the template runs too long");
}

bool mxc_j_stack(struct mxc_jrun *run) {
    const char *here = __builtin_frame_address(0);
    size_t used =
        (size_t)(run->stack_base > here ? run->stack_base - here : here - run->stack_base);
    return (used <= run->max_stack && run->calls <= MAX_CALLS) ||
           mxc_j_limit(run, "the template recurses too deep");
}

static bool eval_name(struct mxc_jrun *run, struct mxc_jscope *scope, int id,
                      struct mxc_jval *out) {
    for (; scope; scope = scope->parent)
        for (size_t i = scope->n; i-- > 0;)
            if (scope->vars[i].id == id) {
                *out = scope->vars[i].v;
                return true;
            }
    if (run->globals[id].type != MJ_MISSING) {
        *out = run->globals[id];
        return true;
    }
    return mxc_j_undef_name(run, run->jinja->names[id], out);
}

static bool spread_args(struct mxc_jrun *run, struct mxc_jval more, struct mxc_jargs *args) {
    struct mxc_jval list;
    if (!mxc_j_collect(run, more, &list))
        return false;
    struct mxc_jval *v = mxc_j_alloc(run, args->n + list.u.q->n, sizeof *v);
    if (!v)
        return false;
    if (args->n)
        memcpy(v, args->v, args->n * sizeof *v);
    if (list.u.q->n)
        memcpy(v + args->n, list.u.q->v, list.u.q->n * sizeof *v);
    args->v = v;
    args->n += list.u.q->n;
    return true;
}

static bool spread_kwargs(struct mxc_jrun *run, struct mxc_jval more, struct mxc_jargs *args) {
    if (more.type != MJ_DICT)
        return mxc_j_fail(run, "TypeError", "argument after ** must be a mapping, not %s",
                          mxc_j_type_name(more));
    struct mxc_jkw *kw = mxc_j_alloc(run, args->n_kw + more.u.d->n, sizeof *kw);
    if (!kw)
        return false;
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    for (size_t i = 0; i < more.u.d->n; i++) {
        const struct mxc_jentry *e = &more.u.d->e[i];
        if (e->key.type != MJ_STR)
            return mxc_j_fail(run, "TypeError", "keywords must be strings");
        for (size_t k = 0; k < args->n_kw; k++)
            if (mxc_str_equal(mxc_j_slice_of(kw[k].name), mxc_j_slice_of(e->key.u.s)))
                return mxc_j_fail(run, "TypeError", "got multiple values for a keyword argument");
        kw[args->n_kw + i].name = e->key.u.s;
        kw[args->n_kw + i].v = e->value;
    }
    args->kw = kw;
    args->n_kw += more.u.d->n;
    return true;
}

bool mxc_j_eval_args(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jcall *call,
                     struct mxc_jargs *args) {
    *args = (struct mxc_jargs){0};
    if (!call)
        return true;
    args->n = call->args.n;
    args->n_kw = call->kwargs.n;
    if (args->n && !(args->v = mxc_j_alloc(run, args->n, sizeof *args->v)))
        return false;
    if (args->n_kw && !(args->kw = mxc_j_alloc(run, args->n_kw, sizeof *args->kw)))
        return false;
    for (size_t i = 0; i < args->n; i++)
        if (!mxc_j_eval(run, scope, call->args.v[i], &args->v[i]))
            return false;
    for (size_t i = 0; i < args->n_kw; i++) {
        args->kw[i].name = call->names[i];
        if (!mxc_j_eval(run, scope, call->kwargs.v[i], &args->kw[i].v))
            return false;
    }
    struct mxc_jval more;
    if (call->dyn_args &&
        (!mxc_j_eval(run, scope, call->dyn_args, &more) || !spread_args(run, more, args)))
        return false;
    return !call->dyn_kwargs ||
           (mxc_j_eval(run, scope, call->dyn_kwargs, &more) && spread_kwargs(run, more, args));
}

static bool eval_call(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                      struct mxc_jval *out) {
    struct mxc_jval callee;
    struct mxc_jargs args;
    if (!mxc_j_eval(run, scope, node->a, &callee) ||
        !mxc_j_eval_args(run, scope, node->call, &args))
        return false;
    run->line = node->line;
    return mxc_j_call(run, callee, &args, out);
}

static bool eval_filter(struct mxc_jrun *run, struct mxc_jscope *scope,
                        const struct mxc_jnode *node, struct mxc_jval v, struct mxc_jval *out) {
    struct mxc_jargs args;
    if (!mxc_j_eval_args(run, scope, node->call, &args))
        return false;
    run->line = node->line;
    if (node->target)
        return mxc_j_call_filter(run, node->target, v, &args, out);
    return mxc_j_fail(run, "TemplateRuntimeError", "No filter named '%.*s' found.",
                      (int)(node->value.u.s->len < 80 ? node->value.u.s->len : 80),
                      node->value.u.s->p);
}

bool mxc_j_filter_chain(struct mxc_jrun *run, struct mxc_jscope *scope,
                        const struct mxc_jnode *node, struct mxc_jval value, struct mxc_jval *out) {
    if (!mxc_j_stack(run))
        return false;
    if (node->a && !mxc_j_filter_chain(run, scope, node->a, value, &value))
        return false;
    return eval_filter(run, scope, node, value, out);
}

static bool eval_test(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                      struct mxc_jval *out) {
    struct mxc_jval v;
    struct mxc_jargs args;
    bool yes;
    if (!mxc_j_eval(run, scope, node->a, &v) || !mxc_j_eval_args(run, scope, node->call, &args))
        return false;
    run->line = node->line;
    if (!node->target)
        return mxc_j_fail(run, "TemplateRuntimeError", "No test named '%.*s' found.",
                          (int)(node->value.u.s->len < 80 ? node->value.u.s->len : 80),
                          node->value.u.s->p);
    if (!mxc_j_call_test(run, node->target, v, &args, &yes))
        return false;
    *out = mxc_j_bool(yes);
    return true;
}

static bool compare(struct mxc_jrun *run, int op, struct mxc_jval a, struct mxc_jval b,
                    bool *result) {
    switch (op) {
    case MJ_OP_EQ:
        return mxc_j_equal(run, a, b, result);
    case MJ_OP_NE:
        if (!mxc_j_equal(run, a, b, result))
            return false;
        *result = !*result;
        return true;
    case MJ_OP_IN:
        return mxc_j_contains(run, b, a, result);
    case MJ_OP_NOT_IN:
        if (!mxc_j_contains(run, b, a, result))
            return false;
        *result = !*result;
        return true;
    default:
        return mxc_j_order(run, a, b,
                           op == MJ_OP_LE   ? 'l'
                           : op == MJ_OP_GE ? 'g'
                                            : (char)op,
                           result);
    }
}

static bool eval_compare(struct mxc_jrun *run, struct mxc_jscope *scope,
                         const struct mxc_jnode *node, struct mxc_jval *out) {
    struct mxc_jval left, right;
    bool result = true;
    if (!mxc_j_eval(run, scope, node->a, &left))
        return false;
    for (size_t i = 0; i < node->items.n && result; i++) {
        const struct mxc_jnode *operand = node->items.v[i];
        if (!mxc_j_eval(run, scope, operand->a, &right))
            return false;
        run->line = node->line;
        if (!compare(run, operand->op, left, right, &result))
            return false;
        left = right;
    }
    *out = mxc_j_bool(result);
    return true;
}

static bool eval_concat(struct mxc_jrun *run, struct mxc_jscope *scope,
                        const struct mxc_jnode *node, struct mxc_jval *out) {
    struct mxc_jval sum, item;
    if (!mxc_j_eval(run, scope, node->items.v[0], &item) || !mxc_j_to_str(run, item, &sum))
        return false;
    for (size_t i = 1; i < node->items.n; i++)
        if (!mxc_j_eval(run, scope, node->items.v[i], &item) || !mxc_j_to_str(run, item, &item) ||
            !mxc_j_str_concat(run, sum.u.s, item.u.s, &sum))
            return false;
    if (sum.u.s->markup) {
        if (!mxc_j_str_part(run, sum.u.s, 0, sum.u.s->len, &sum))
            return false;
        sum.u.s->markup = false;
    }
    *out = sum;
    return true;
}

static bool eval_items(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                       struct mxc_jval *out) {
    struct mxc_jval v;
    if (node->kind != MJ_DICT_EXPR) {
        if (!mxc_j_seq(run, node->kind == MJ_LIST_EXPR ? MJ_LIST : MJ_TUPLE, node->items.n, &v))
            return false;
        for (size_t i = 0; i < node->items.n; i++)
            if (!mxc_j_eval(run, scope, node->items.v[i], &v.u.q->v[i]))
                return false;
        v.u.q->n = node->items.n;
        *out = v;
        return true;
    }
    if (!mxc_j_dict(run, &v))
        return false;
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        struct mxc_jval key, value;
        if (!mxc_j_eval(run, scope, node->items.v[i], &key) ||
            !mxc_j_eval(run, scope, node->items.v[i + 1], &value) ||
            !mxc_j_dict_put(run, v.u.d, key, value))
            return false;
    }
    *out = v;
    return true;
}

static bool eval_slice(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                       struct mxc_jval *out) {
    struct mxc_jval v, part[3] = {{0}, {0}, {0}};
    const struct mxc_jnode *const parts[3] = {node->b, node->c, node->d};
    if (!mxc_j_eval(run, scope, node->a, &v))
        return false;
    for (int i = 0; i < 3; i++)
        if (parts[i] && !mxc_j_eval(run, scope, parts[i], &part[i]))
            return false;
    run->line = node->line;
    return mxc_j_slice(run, v, part, out);
}

static bool eval_cond(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                      struct mxc_jval *out) {
    struct mxc_jval test;
    if (!mxc_j_eval(run, scope, node->b, &test))
        return false;
    if (mxc_j_truth(test))
        return mxc_j_eval(run, scope, node->a, out);
    if (node->c)
        return mxc_j_eval(run, scope, node->c, out);
    return mxc_j_undef_hint(run,
                            "the inline if-expression evaluated to false and no else section was "
                            "defined.",
                            out);
}

static bool eval_operands(struct mxc_jrun *run, struct mxc_jscope *scope,
                          const struct mxc_jnode *node, struct mxc_jval *out) {
    struct mxc_jval a, b;
    if (!mxc_j_eval(run, scope, node->a, &a) || !mxc_j_eval(run, scope, node->b, &b))
        return false;
    run->line = node->line;
    return node->kind == MJ_ITEM ? mxc_j_getitem(run, a, b, out)
                                 : mxc_j_binary(run, node->op, a, b, out);
}

bool mxc_j_eval(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                struct mxc_jval *out) {
    struct mxc_jval v;
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    run->line = node->line;
    switch (node->kind) {
    case MJ_CONST:
        *out = node->value;
        return true;
    case MJ_NAME:
        return eval_name(run, scope, node->id, out);
    case MJ_ATTR:
        return mxc_j_eval(run, scope, node->a, &v) && mxc_j_getattr(run, v, node->value, out);
    case MJ_ITEM:
    case MJ_BINARY:
        return eval_operands(run, scope, node, out);
    case MJ_SLICE:
        return eval_slice(run, scope, node, out);
    case MJ_CALL:
        return eval_call(run, scope, node, out);
    case MJ_FILTER:
        return mxc_j_eval(run, scope, node->a, &v) && eval_filter(run, scope, node, v, out);
    case MJ_TEST:
        return eval_test(run, scope, node, out);
    case MJ_UNARY:
        return mxc_j_eval(run, scope, node->a, &v) && mxc_j_unary(run, node->op, v, out);
    case MJ_AND:
    case MJ_OR:
        if (!mxc_j_eval(run, scope, node->a, &v))
            return false;
        if (mxc_j_truth(v) == (node->kind == MJ_OR)) {
            *out = v;
            return true;
        }
        return mxc_j_eval(run, scope, node->b, out);
    case MJ_COMPARE:
        return eval_compare(run, scope, node, out);
    case MJ_CONCAT:
        return eval_concat(run, scope, node, out);
    case MJ_COND:
        return eval_cond(run, scope, node, out);
    case MJ_TUPLE_EXPR:
    case MJ_LIST_EXPR:
    case MJ_DICT_EXPR:
        return eval_items(run, scope, node, out);
    default:
        return mxc_j_fail(run, "TemplateRuntimeError", "this expression has no value");
    }
}

/* Statements: runs a list of nodes in a scope and writes to run->out.
 * In: nodes, a scope. Out: text, assignments, and how to go on: next, break, continue, failed.
 * Scopes follow Jinja2: loops, macros, call, with, filter, set blocks and generation have their
 * own; if has none. An assignment reaches only the innermost scope; namespaces are the way out.
 * Blocks that catch their output exchange run->out and put it back in every case. A macro marks the
 * scopes it can see as captured: loops must not use those again. */
#include "text/jinja/run.h"

#include <string.h>

bool mxc_j_scope_set(struct mxc_jrun *run, struct mxc_jscope *scope, int id, struct mxc_jval v) {
    for (size_t i = 0; i < scope->n; i++)
        if (scope->vars[i].id == id) {
            scope->vars[i].v = v;
            return true;
        }
    if (scope->n == scope->capacity) {
        size_t capacity = scope->capacity ? scope->capacity * 2 : 8;
        struct mxc_jvar *grown = mxc_j_alloc(run, capacity, sizeof *grown);
        if (!grown)
            return false;
        if (scope->n)
            memcpy(grown, scope->vars, scope->n * sizeof *grown);
        scope->vars = grown;
        scope->capacity = capacity;
    }
    scope->vars[scope->n++] = (struct mxc_jvar){id, v};
    return true;
}

static bool assign_member(struct mxc_jrun *run, struct mxc_jscope *scope,
                          const struct mxc_jnode *target, struct mxc_jval v) {
    struct mxc_jnode name = {.kind = MJ_NAME, .id = target->id, .line = target->line};
    struct mxc_jval ns;
    if (!mxc_j_eval(run, scope, &name, &ns))
        return false;
    if (ns.type != MJ_NS)
        return mxc_j_fail(run, "TemplateRuntimeError",
                          "cannot assign attribute on non-namespace object");
    return mxc_j_dict_put(run, ns.u.d, target->value, v);
}

bool mxc_j_assign(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *target,
                  struct mxc_jval v) {
    if (target->kind == MJ_NAME)
        return mxc_j_scope_set(run, scope, target->id, v);
    if (target->kind == MJ_NSREF)
        return assign_member(run, scope, target, v);
    if (!mxc_j_stack(run))
        return false;
    struct mxc_jiter *it;
    struct mxc_jval *parts, extra;
    size_t n = target->items.n;
    if (!mxc_j_iterable(v))
        return mxc_j_fail(run, "TypeError", "cannot unpack non-iterable %s object",
                          mxc_j_type_name(v));
    if (!mxc_j_iter(run, v, &it) || !(parts = mxc_j_alloc(run, n, sizeof *parts)))
        return false;
    for (size_t i = 0; i < n; i++) {
        int more = mxc_j_next(run, it, &parts[i]);
        if (more < 0)
            return false;
        if (!more)
            return mxc_j_fail(run, "ValueError",
                              "not enough values to unpack (expected %zu, got %zu)", n, i);
    }
    int more = mxc_j_next(run, it, &extra);
    if (more)
        return more > 0 &&
               mxc_j_fail(run, "ValueError", "too many values to unpack (expected %zu)", n);
    for (size_t i = 0; i < n; i++)
        if (!mxc_j_assign(run, scope, target->items.v[i], parts[i]))
            return false;
    return true;
}

/* Runs body in a scope of its own and gives its output as a string. */
static enum mxc_jflow capture(struct mxc_jrun *run, struct mxc_jscope *parent,
                              const struct mxc_jlist *body, struct mxc_jval *out) {
    struct mxc_jscope *scope = mxc_j_alloc(run, 1, sizeof *scope);
    if (!scope)
        return MJ_FAILED;
    scope->parent = parent;
    struct mxc_jsb sb, *saved = run->out;
    mxc_j_sb_init(&sb, run);
    run->out = &sb;
    enum mxc_jflow flow = mxc_j_exec(run, scope, body);
    run->out = saved;
    if (flow == MJ_NEXT && !mxc_j_sb_done(&sb, out))
        return MJ_FAILED;
    return flow;
}

static enum mxc_jflow exec_scoped(struct mxc_jrun *run, struct mxc_jscope *parent,
                                  const struct mxc_jlist *body) {
    struct mxc_jscope *scope = mxc_j_alloc(run, 1, sizeof *scope);
    if (!scope)
        return MJ_FAILED;
    scope->parent = parent;
    return mxc_j_exec(run, scope, body);
}

static enum mxc_jflow exec_if(struct mxc_jrun *run, struct mxc_jscope *scope,
                              const struct mxc_jnode *node) {
    for (;; node = node->b) {
        struct mxc_jval test;
        if (!mxc_j_eval(run, scope, node->a, &test))
            return MJ_FAILED;
        if (mxc_j_truth(test))
            return mxc_j_exec(run, scope, &node->body);
        if (!node->op)
            return mxc_j_exec(run, scope, &node->other);
    }
}

static enum mxc_jflow exec_set_block(struct mxc_jrun *run, struct mxc_jscope *scope,
                                     const struct mxc_jnode *node) {
    struct mxc_jval text;
    enum mxc_jflow flow = capture(run, scope, &node->body, &text);
    if (flow != MJ_NEXT)
        return flow;
    if (node->b && !mxc_j_filter_chain(run, scope, node->b, text, &text))
        return MJ_FAILED;
    return mxc_j_assign(run, scope, node->a, text) ? MJ_NEXT : MJ_FAILED;
}

static enum mxc_jflow exec_filter_block(struct mxc_jrun *run, struct mxc_jscope *scope,
                                        const struct mxc_jnode *node) {
    struct mxc_jval text;
    enum mxc_jflow flow = capture(run, scope, &node->body, &text);
    if (flow != MJ_NEXT)
        return flow;
    if (!mxc_j_filter_chain(run, scope, node->a, text, &text))
        return MJ_FAILED;
    if (text.type != MJ_STR) {
        mxc_j_fail(run, "TypeError", "a filter block needs text, its filter gave %s",
                   mxc_j_type_name(text));
        return MJ_FAILED;
    }
    return mxc_j_put_str(run->out, text.u.s) ? MJ_NEXT : MJ_FAILED;
}

static enum mxc_jflow exec_with(struct mxc_jrun *run, struct mxc_jscope *parent,
                                const struct mxc_jnode *node) {
    struct mxc_jscope *scope = mxc_j_alloc(run, 1, sizeof *scope);
    if (!scope)
        return MJ_FAILED;
    scope->parent = parent;
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        struct mxc_jval v;
        if (!mxc_j_eval(run, parent, node->items.v[i + 1], &v) ||
            !mxc_j_assign(run, scope, node->items.v[i], v))
            return MJ_FAILED;
    }
    return mxc_j_exec(run, scope, &node->body);
}

static bool new_macro(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                      struct mxc_jval *out) {
    struct mxc_jmacro *macro = mxc_j_alloc(run, 1, sizeof *macro);
    if (!macro)
        return false;
    macro->node = node;
    macro->scope = scope;
    for (; scope && !scope->captured; scope = scope->parent)
        scope->captured = true;
    *out = mxc_j_of(MJ_MACRO, macro);
    return true;
}

static enum mxc_jflow exec_call_block(struct mxc_jrun *run, struct mxc_jscope *scope,
                                      const struct mxc_jnode *node) {
    struct mxc_jval caller, callee, result;
    struct mxc_jargs args;
    struct mxc_jstr *name = mxc_j_alloc(run, 1, sizeof *name);
    if (!name || !new_macro(run, scope, node, &caller) ||
        !mxc_j_eval(run, scope, node->a->a, &callee) ||
        !mxc_j_eval_args(run, scope, node->a->call, &args))
        return MJ_FAILED;
    struct mxc_jkw *kw = mxc_j_alloc(run, args.n_kw + 1, sizeof *kw);
    if (!kw)
        return MJ_FAILED;
    if (args.n_kw)
        memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    *name = (struct mxc_jstr){.p = "caller", .len = 6, .n_cp = 6};
    kw[args.n_kw++] = (struct mxc_jkw){name, caller};
    args.kw = kw;
    run->line = node->line;
    return mxc_j_call(run, callee, &args, &result) && mxc_j_put_val(run->out, result) ? MJ_NEXT
                                                                                      : MJ_FAILED;
}

static enum mxc_jflow exec_output(struct mxc_jrun *run, struct mxc_jscope *scope,
                                  const struct mxc_jnode *node) {
    for (size_t i = 0; i < node->items.n; i++) {
        struct mxc_jval v;
        if (!mxc_j_eval(run, scope, node->items.v[i], &v) || !mxc_j_put_val(run->out, v))
            return MJ_FAILED;
    }
    return MJ_NEXT;
}

static enum mxc_jflow exec_one(struct mxc_jrun *run, struct mxc_jscope *scope,
                               const struct mxc_jnode *node) {
    struct mxc_jval v;
    switch (node->kind) {
    case MJ_DATA:
        return mxc_j_put_str(run->out, node->value.u.s) ? MJ_NEXT : MJ_FAILED;
    case MJ_OUTPUT:
        return exec_output(run, scope, node);
    case MJ_IF:
        return exec_if(run, scope, node);
    case MJ_FOR:
        return mxc_j_exec_for(run, scope, node);
    case MJ_SET:
        return mxc_j_eval(run, scope, node->b, &v) && mxc_j_assign(run, scope, node->a, v)
                   ? MJ_NEXT
                   : MJ_FAILED;
    case MJ_SET_BLOCK:
        return exec_set_block(run, scope, node);
    case MJ_WITH:
        return exec_with(run, scope, node);
    case MJ_MACRO_DEF:
        return new_macro(run, scope, node, &v) && mxc_j_scope_set(run, scope, node->id, v)
                   ? MJ_NEXT
                   : MJ_FAILED;
    case MJ_CALL_BLOCK:
        return exec_call_block(run, scope, node);
    case MJ_FILTER_BLOCK:
        return exec_filter_block(run, scope, node);
    case MJ_GENERATION:
        return exec_scoped(run, scope, &node->body);
    case MJ_BLOCK:
        return exec_scoped(run, node->op ? scope : &run->root, &node->body);
    case MJ_BREAK:
        return MJ_DO_BREAK;
    case MJ_CONTINUE:
        return MJ_DO_CONTINUE;
    default:
        mxc_j_fail(run, "TypeError", "'%s' is refused: a chat template has no other files",
                   (const char *)node->value.u.p);
        return MJ_FAILED;
    }
}

enum mxc_jflow mxc_j_exec(struct mxc_jrun *run, struct mxc_jscope *scope,
                          const struct mxc_jlist *body) {
    if (!mxc_j_stack(run))
        return MJ_FAILED;
    for (size_t i = 0; i < body->n; i++) {
        run->line = body->v[i]->line;
        if (!mxc_j_step(run, 1))
            return MJ_FAILED;
        enum mxc_jflow flow = exec_one(run, scope, body->v[i]);
        if (flow != MJ_NEXT)
            return flow;
    }
    return MJ_NEXT;
}

/* For loops and the loop object (loop.index, loop.last, loop.cycle ... and recursive calls).
 * In: a for node and its scope. Out: the body's text per item, else's where no item's body ran to
 * its end.
 * Items are read one at a time and looked at one ahead only when the template asks (loop.last,
 * loop.nextitem), because a body may change what a filter sees. loop.length of an iterator reads it
 * to the end and goes on from the list.
 * The body's scope is used again for the next item unless a macro has captured it. */
#include "text/jinja/run.h"

#include <stdio.h>

struct mxc_jloop {
    const struct mxc_jnode *node;
    struct mxc_jscope *scope; /* around the loop */
    struct mxc_jiter *it;
    struct mxc_jval source, current, previous, ahead, changed;
    bool has_current, has_previous, has_ahead, has_changed, has_length;
    int64_t index0, depth0;
    size_t length;
};

static int pull(struct mxc_jrun *run, struct mxc_jloop *loop, struct mxc_jval *out) {
    if (!loop->has_ahead)
        return mxc_j_next(run, loop->it, out);
    *out = loop->ahead;
    loop->has_ahead = false;
    return 1;
}

/* 1: *out is the item after the current one. */
static int peek(struct mxc_jrun *run, struct mxc_jloop *loop, struct mxc_jval *out) {
    if (!loop->has_ahead) {
        int more = mxc_j_next(run, loop->it, &loop->ahead);
        if (more <= 0)
            return more;
        loop->has_ahead = true;
    }
    *out = loop->ahead;
    return 1;
}

static bool loop_length(struct mxc_jrun *run, struct mxc_jloop *loop) {
    if (loop->has_length)
        return true;
    if (loop->source.type != MJ_ITER) {
        if (!mxc_j_length(run, loop->source, &loop->length))
            return false;
    } else {
        struct mxc_jval rest;
        if (!mxc_j_collect(run, mxc_j_of(MJ_ITER, loop->it), &rest) ||
            !mxc_j_iter(run, rest, &loop->it))
            return false;
        loop->length = rest.u.q->n + (size_t)(loop->index0 + 1) + loop->has_ahead;
    }
    loop->has_length = true;
    return true;
}

static bool loop_cycle(struct mxc_jrun *run, const struct mxc_jmethod *method, struct mxc_jval *a,
                       const struct mxc_jargs *args, struct mxc_jval *out) {
    (void)a;
    if (!args->n)
        return mxc_j_fail(run, "TypeError", "no items for cycling given");
    *out = args->v[(size_t)method->self.u.loop->index0 % args->n];
    return true;
}

static bool loop_changed(struct mxc_jrun *run, const struct mxc_jmethod *method, struct mxc_jval *a,
                         const struct mxc_jargs *args, struct mxc_jval *out) {
    struct mxc_jloop *loop = method->self.u.loop;
    struct mxc_jval tuple;
    bool equal = false;
    (void)a;
    if (!mxc_j_seq(run, MJ_TUPLE, args->n, &tuple))
        return false;
    for (size_t i = 0; i < args->n; i++)
        if (!mxc_j_push(run, tuple.u.q, args->v[i]))
            return false;
    if (loop->has_changed && !mxc_j_equal(run, loop->changed, tuple, &equal))
        return false;
    loop->has_changed = true;
    loop->changed = tuple;
    *out = mxc_j_bool(!equal);
    return true;
}

bool mxc_j_loop_attr(struct mxc_jrun *run, struct mxc_jloop *loop, const struct mxc_jstr *name,
                     struct mxc_jval *out) {
    static const struct mxc_jmethod_def methods[] = {{"cycle", NULL, 0, 0, loop_cycle},
                                                     {"changed", NULL, 0, 0, loop_changed}};
    for (size_t i = 0; i < 2; i++) {
        if (!mxc_j_is(name, methods[i].name))
            continue;
        struct mxc_jmethod *method = mxc_j_alloc(run, 1, sizeof *method);
        if (!method)
            return false;
        method->self = mxc_j_of(MJ_LOOP, loop);
        method->def = &methods[i];
        *out = mxc_j_of(MJ_METHOD, method);
        return true;
    }
    struct mxc_jval item;
    int more;
    if (mxc_j_is(name, "index"))
        *out = mxc_j_int(loop->index0 + 1);
    else if (mxc_j_is(name, "index0"))
        *out = mxc_j_int(loop->index0);
    else if (mxc_j_is(name, "first"))
        *out = mxc_j_bool(loop->index0 == 0);
    else if (mxc_j_is(name, "depth"))
        *out = mxc_j_int(loop->depth0 + 1);
    else if (mxc_j_is(name, "depth0"))
        *out = mxc_j_int(loop->depth0);
    else if (mxc_j_is(name, "last") || mxc_j_is(name, "nextitem")) {
        if ((more = peek(run, loop, &item)) < 0)
            return false;
        if (mxc_j_is(name, "last"))
            *out = mxc_j_bool(!more);
        else if (more)
            *out = item;
        else
            return mxc_j_undef_hint(run, "there is no next item", out);
    } else if (mxc_j_is(name, "previtem")) {
        if (!loop->has_previous)
            return mxc_j_undef_hint(run, "there is no previous item", out);
        *out = loop->previous;
    } else if (mxc_j_is(name, "length") || mxc_j_is(name, "revindex") ||
               mxc_j_is(name, "revindex0")) {
        if (!loop_length(run, loop))
            return false;
        int64_t n = (int64_t)loop->length;
        *out = mxc_j_int(mxc_j_is(name, "length")     ? n
                         : mxc_j_is(name, "revindex") ? n - loop->index0
                                                      : n - loop->index0 - 1);
    }
    return true;
}

bool mxc_j_loop_repr(struct mxc_jsb *sb, struct mxc_jloop *loop) {
    char text[80];
    if (!loop_length(sb->run, loop))
        return false;
    (void)snprintf(text, sizeof text, "<LoopContext %lld/%zu>", (long long)loop->index0 + 1,
                   loop->length);
    return mxc_j_put_text(sb, text, false);
}

int mxc_j_next_filtered(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out) {
    int more;
    while ((more = mxc_j_next(run, it->inner, out)) > 0) {
        struct mxc_jscope *scope = mxc_j_alloc(run, 1, sizeof *scope);
        struct mxc_jval test;
        if (!scope)
            return -1;
        scope->parent = it->scope;
        if (!mxc_j_assign(run, scope, it->loop_node->a, *out) ||
            !mxc_j_eval(run, scope, it->loop_node->c, &test))
            return -1;
        if (mxc_j_truth(test))
            return 1;
    }
    return more;
}

static int loop_name_id(const struct mxc_jrun *run) {
    uint64_t id;
    return mxc_map_get(&run->jinja->ids, MXC_STR("loop"), &id) ? (int)id : -1;
}

static enum mxc_jflow run_loop(struct mxc_jrun *run, struct mxc_jloop *loop) {
    const struct mxc_jnode *node = loop->node;
    struct mxc_jscope *scope = NULL;
    int loop_id = loop_name_id(run), more;
    bool empty = true;
    struct mxc_jval item;
    while ((more = pull(run, loop, &item)) > 0) {
        loop->has_previous = loop->has_current;
        loop->previous = loop->current;
        loop->current = item;
        loop->has_current = true;
        loop->index0++;
        if (!scope || scope->captured) {
            if (!(scope = mxc_j_alloc(run, 1, sizeof *scope)))
                return MJ_FAILED;
            scope->parent = loop->scope;
        }
        scope->n = 0;
        if (!mxc_j_assign(run, scope, node->a, item) ||
            (loop_id >= 0 && !mxc_j_scope_set(run, scope, loop_id, mxc_j_of(MJ_LOOP, loop))))
            return MJ_FAILED;
        enum mxc_jflow flow = mxc_j_exec(run, scope, &node->body);
        if (flow == MJ_FAILED)
            return flow;
        if (flow == MJ_DO_BREAK)
            break;
        /* As Jinja2 has it, an iteration that ends in continue does not count for else. */
        if (flow == MJ_NEXT)
            empty = false;
    }
    if (more < 0)
        return MJ_FAILED;
    if (!empty || !node->other.n)
        return MJ_NEXT;
    struct mxc_jscope *other = mxc_j_alloc(run, 1, sizeof *other);
    if (!other)
        return MJ_FAILED;
    other->parent = loop->scope;
    return mxc_j_exec(run, other, &node->other);
}

static enum mxc_jflow start_loop(struct mxc_jrun *run, struct mxc_jscope *scope,
                                 const struct mxc_jnode *node, struct mxc_jval source,
                                 int64_t depth0) {
    struct mxc_jloop *loop = mxc_j_alloc(run, 1, sizeof *loop);
    if (!loop || !mxc_j_iter(run, source, &loop->it))
        return MJ_FAILED;
    loop->node = node;
    loop->scope = scope;
    loop->source = source;
    loop->index0 = -1;
    loop->depth0 = depth0;
    if (node->c) {
        struct mxc_jiter *filtered = mxc_j_alloc(run, 1, sizeof *filtered);
        if (!filtered)
            return MJ_FAILED;
        filtered->kind = MJ_IT_FOR;
        filtered->type_name = "generator";
        filtered->inner = loop->it;
        filtered->loop_node = node;
        filtered->scope = scope;
        loop->it = filtered;
        loop->source = mxc_j_of(MJ_ITER, filtered);
    }
    return run_loop(run, loop);
}

enum mxc_jflow mxc_j_exec_for(struct mxc_jrun *run, struct mxc_jscope *scope,
                              const struct mxc_jnode *node) {
    struct mxc_jval source;
    if (!mxc_j_eval(run, scope, node->b, &source))
        return MJ_FAILED;
    run->line = node->line;
    return start_loop(run, scope, node, source, 0);
}

bool mxc_j_loop_call(struct mxc_jrun *run, struct mxc_jloop *loop, const struct mxc_jargs *args,
                     struct mxc_jval *out) {
    if (!loop->node->op)
        return mxc_j_fail(run, "TypeError",
                          "The loop must have the 'recursive' marker to be called recursively.");
    if (args->n != 1 || args->n_kw)
        return mxc_j_fail(run, "TypeError", "loop() takes exactly one iterable");
    struct mxc_jsb sb, *saved = run->out;
    mxc_j_sb_init(&sb, run);
    run->out = &sb;
    run->calls++;
    bool ok = mxc_j_stack(run) &&
              start_loop(run, loop->scope, loop->node, args->v[0], loop->depth0 + 1) == MJ_NEXT;
    run->calls--;
    run->out = saved;
    return ok && mxc_j_sb_done(&sb, out);
}

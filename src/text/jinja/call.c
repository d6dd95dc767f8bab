/* Calls: macros, functions, methods, filters; and the binding of arguments to parameters.
 * In: a callee and evaluated arguments. Out: its value; wrong arguments are a TypeError that names
 * the callee in Python's words.
 * A macro runs in a new scope below the one it was defined in and its output becomes its value:
 * run->out is exchanged for the call and put back also when it fails. Defaults are evaluated per
 * call and see only the parameters before them. */
#include "text/jinja/run.h"

#include <string.h>

static const struct mxc_jval *take_kw(const struct mxc_jargs *args, bool *used, const char *name) {
    for (size_t i = 0; i < args->n_kw; i++)
        if (mxc_j_is(args->kw[i].name, name)) {
            used[i] = true;
            return &args->kw[i].v;
        }
    return NULL;
}

static bool rest_of_args(struct mxc_jrun *run, struct mxc_jscope *scope,
                         const struct mxc_jmacro *macro, const struct mxc_jargs *args,
                         const bool *used) {
    const struct mxc_jparams *params = macro->node->params;
    const char *name =
        macro->node->kind == MJ_MACRO_DEF ? run->jinja->names[macro->node->id] : "caller";
    struct mxc_jval kwargs, varargs;
    uint64_t id;
    if (!mxc_j_dict(run, &kwargs) || !mxc_j_seq(run, MJ_TUPLE, 0, &varargs))
        return false;
    for (size_t i = 0; i < args->n_kw; i++) {
        if (used[i])
            continue;
        if (!(params->uses & MJ_USES_KWARGS))
            return mxc_j_fail(run, "TypeError", "macro '%s' takes no keyword argument '%.*s'", name,
                              (int)(args->kw[i].name->len < 80 ? args->kw[i].name->len : 80),
                              args->kw[i].name->p);
        if (!mxc_j_dict_put(run, kwargs.u.d, mxc_j_str_val(args->kw[i].name), args->kw[i].v))
            return false;
    }
    if (args->n > params->n && !(params->uses & MJ_USES_VARARGS))
        return mxc_j_fail(run, "TypeError", "macro '%s' takes not more than %zu argument(s)", name,
                          params->n);
    for (size_t i = params->n; i < args->n; i++)
        if (!mxc_j_push(run, varargs.u.q, args->v[i]))
            return false;
    if (params->uses & MJ_USES_KWARGS && mxc_map_get(&run->jinja->ids, MXC_STR("kwargs"), &id) &&
        !mxc_j_scope_set(run, scope, (int)id, kwargs))
        return false;
    return !(params->uses & MJ_USES_VARARGS) ||
           !mxc_map_get(&run->jinja->ids, MXC_STR("varargs"), &id) ||
           mxc_j_scope_set(run, scope, (int)id, varargs);
}

static bool macro_args(struct mxc_jrun *run, struct mxc_jscope *scope,
                       const struct mxc_jmacro *macro, const struct mxc_jargs *args) {
    const struct mxc_jparams *params = macro->node->params;
    bool *used = mxc_j_alloc(run, args->n_kw + 1, sizeof *used);
    uint64_t id;
    if (!used)
        return false;
    /* Given values first: a default may use the parameters before it, and only those. */
    const struct mxc_jval **given = mxc_j_alloc(run, params->n + 1, sizeof *given);
    if (!given)
        return false;
    for (size_t i = 0; i < params->n; i++)
        given[i] =
            i < args->n ? &args->v[i] : take_kw(args, used, run->jinja->names[params->ids[i]]);
    if (params->uses & MJ_USES_CALLER && !params->explicit_caller &&
        mxc_map_get(&run->jinja->ids, MXC_STR("caller"), &id)) {
        const struct mxc_jval *caller = take_kw(args, used, "caller");
        struct mxc_jval none;
        if (!caller) {
            if (!mxc_j_undef_hint(run, "No caller defined", &none))
                return false;
            caller = &none;
        }
        if (!mxc_j_scope_set(run, scope, (int)id, *caller))
            return false;
    }
    if (!rest_of_args(run, scope, macro, args, used))
        return false;
    size_t first_default = params->n - params->n_defaults;
    for (size_t i = 0; i < params->n; i++) {
        struct mxc_jval v;
        if (given[i])
            v = *given[i];
        else if (i >= first_default) {
            if (!mxc_j_eval(run, scope, params->defaults[i - first_default], &v))
                return false;
        } else if (!mxc_j_undef_hint(run, "parameter was not provided", &v))
            return false;
        if (!mxc_j_scope_set(run, scope, params->ids[i], v))
            return false;
    }
    return true;
}

bool mxc_j_call_macro(struct mxc_jrun *run, const struct mxc_jmacro *macro,
                      const struct mxc_jargs *args, struct mxc_jval *out) {
    struct mxc_jscope *scope = mxc_j_alloc(run, 1, sizeof *scope);
    struct mxc_jsb sb, *saved = run->out;
    if (!scope)
        return false;
    scope->parent = macro->scope;
    mxc_j_sb_init(&sb, run);
    run->calls++;
    run->out = &sb;
    bool ok = mxc_j_stack(run) && macro_args(run, scope, macro, args) &&
              mxc_j_exec(run, scope, &macro->node->body) == MJ_NEXT;
    run->out = saved;
    run->calls--;
    return ok && mxc_j_sb_done(&sb, out);
}

bool mxc_j_bind(struct mxc_jrun *run, const char *what, const char *params, size_t required,
                const struct mxc_jargs *args, struct mxc_jval slots[MJ_MAX_SLOTS]) {
    bool positional_only = *params == '/';
    size_t n = 0, taken = 0;
    memset(slots, 0, MJ_MAX_SLOTS * sizeof *slots);
    for (const char *p = params + positional_only; *p && n < MJ_MAX_SLOTS; n++) {
        size_t len = strcspn(p, ",");
        if (n < args->n) {
            slots[n] = args->v[n];
        }
        for (size_t k = 0; k < args->n_kw && !positional_only; k++) {
            if (!mxc_str_equal(mxc_j_slice_of(args->kw[k].name), (struct mxc_str){p, len}))
                continue;
            if (n < args->n)
                return mxc_j_fail(run, "TypeError", "%s() got multiple values for argument '%.*s'",
                                  what, (int)len, p);
            slots[n] = args->kw[k].v;
            taken++;
        }
        if (n < required && slots[n].type == MJ_MISSING)
            return mxc_j_fail(run, "TypeError", "%s() missing required argument: '%.*s'", what,
                              (int)len, p);
        p += len + (p[len] == ',');
    }
    if (taken < args->n_kw)
        return mxc_j_fail(run, "TypeError", "%s() got an unexpected keyword argument", what);
    if (args->n > n)
        return mxc_j_fail(run, "TypeError", "%s() takes at most %zu arguments (%zu given)", what, n,
                          args->n);
    return true;
}

bool mxc_j_arg_int(struct mxc_jrun *run, struct mxc_jval v, int64_t *out) {
    if (v.type == MJ_MISSING)
        return true;
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    if (!mxc_j_is_int(v))
        return mxc_j_fail(run, "TypeError", "'%s' object cannot be interpreted as an integer",
                          mxc_j_type_name(v));
    *out = mxc_j_as_int(v);
    return true;
}

bool mxc_j_arg_str(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jstr **out) {
    if (v.type == MJ_MISSING)
        return true;
    if (v.type == MJ_UNDEF)
        return mxc_j_fail(run, "TypeError", "must be str, not Undefined");
    if (v.type != MJ_STR)
        return mxc_j_fail(run, "TypeError", "must be str, not %s", mxc_j_type_name(v));
    *out = v.u.s;
    return true;
}

bool mxc_j_call(struct mxc_jrun *run, struct mxc_jval callee, const struct mxc_jargs *args,
                struct mxc_jval *out) {
    struct mxc_jval slots[MJ_MAX_SLOTS];
    if (!mxc_j_stack(run))
        return false;
    switch ((enum mxc_jtype)callee.type) {
    case MJ_UNDEF:
        return mxc_j_undef_fail(run, callee);
    case MJ_MACRO:
        return mxc_j_call_macro(run, callee.u.macro, args, out);
    case MJ_FUNC:
        return callee.u.func->fn(run, args, out);
    case MJ_LOOP:
        return mxc_j_loop_call(run, callee.u.loop, args, out);
    case MJ_METHOD: {
        const struct mxc_jmethod_def *def = callee.u.method->def;
        if (def->params && !mxc_j_bind(run, def->name, def->params, def->required, args, slots))
            return false;
        return def->fn(run, callee.u.method, slots, args, out);
    }
    case MJ_JOINER:
        if (callee.u.cycler->pos++)
            *out = callee.u.cycler->v[0];
        else
            return mxc_j_text(run, "", out);
        return true;
    default:
        return mxc_j_fail(run, "TypeError", "'%s' object is not callable", mxc_j_type_name(callee));
    }
}

bool mxc_j_call_filter(struct mxc_jrun *run, const struct mxc_jfilter *filter, struct mxc_jval v,
                       const struct mxc_jargs *args, struct mxc_jval *out) {
    struct mxc_jval slots[MJ_MAX_SLOTS + 1];
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    if (filter->params &&
        !mxc_j_bind(run, filter->name, filter->params, filter->required, args, slots + 1))
        return false;
    slots[0] = v;
    return filter->fn(run, slots, args, out);
}

const struct mxc_jfilter *mxc_j_find_filter(struct mxc_str name, bool from_json) {
    const struct mxc_jfilter *const tables[] = {mxc_j_seq_filters, mxc_j_str_filters};
    if (mxc_str_is(name, "from_json") && !from_json)
        return NULL;
    for (size_t t = 0; t < 2; t++)
        for (const struct mxc_jfilter *f = tables[t]; f->name; f++)
            if (mxc_str_is(name, f->name))
                return f;
    return NULL;
}

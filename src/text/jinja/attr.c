/* Attributes and subscripts as the immutable sandbox gives them: attribute first and item second
 * for a.b, the other way round for a['b']; private and mutating attributes are undefined values
 * that fail when they are used. */
#include "text/jinja/run.h"

#include <string.h>

static const struct mxc_jmethod_def *find_method(const struct mxc_jmethod_def *table,
                                                 const struct mxc_jstr *name) {
    for (; table->name; table++)
        if (mxc_j_is(name, table->name))
            return table;
    return NULL;
}

static bool is_any(const struct mxc_jstr *name, const char *const *names) {
    for (; *names; names++)
        if (mxc_j_is(name, *names))
            return true;
    return false;
}

static bool number_attr(struct mxc_jval v, const struct mxc_jstr *name, struct mxc_jval *out) {
    bool is_real = mxc_j_is(name, "real"), is_imag = mxc_j_is(name, "imag");
    if (v.type == MJ_FLOAT) {
        if (is_real || is_imag)
            *out = mxc_j_float(is_real ? v.u.f : 0);
    } else if (is_real || mxc_j_is(name, "numerator")) {
        *out = mxc_j_int(mxc_j_as_int(v));
    } else if (is_imag || mxc_j_is(name, "denominator")) {
        *out = mxc_j_int(!is_imag);
    }
    return true;
}

static bool macro_attr(struct mxc_jrun *run, const struct mxc_jmacro *macro,
                       const struct mxc_jstr *name, struct mxc_jval *out) {
    const struct mxc_jparams *params = macro->node->params;
    if (mxc_j_is(name, "name"))
        return macro->node->kind == MJ_MACRO_DEF
                   ? mxc_j_text(run, run->jinja->names[macro->node->id], out)
                   : (*out = mxc_j_none(), true);
    if (mxc_j_is(name, "catch_kwargs"))
        *out = mxc_j_bool(params->uses & MJ_USES_KWARGS);
    else if (mxc_j_is(name, "catch_varargs"))
        *out = mxc_j_bool(params->uses & MJ_USES_VARARGS);
    else if (mxc_j_is(name, "caller"))
        *out = mxc_j_bool(params->uses & MJ_USES_CALLER);
    else if (mxc_j_is(name, "arguments")) {
        struct mxc_jval tuple, item;
        if (!mxc_j_seq(run, MJ_TUPLE, params->n, &tuple))
            return false;
        for (size_t i = 0; i < params->n; i++)
            if (!mxc_j_text(run, run->jinja->names[params->ids[i]], &item) ||
                !mxc_j_push(run, tuple.u.q, item))
                return false;
        *out = tuple;
    }
    return true;
}

/* true in *is_unsafe: the attribute exists and the sandbox hides it. */
static bool lookup(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jstr *name,
                   struct mxc_jval *out, bool *is_unsafe) {
    static const char *const list_unsafe[] = {"append", "clear",   "extend", "insert", "pop",
                                              "remove", "reverse", "sort",   NULL};
    static const char *const dict_unsafe[] = {"clear",      "pop",    "popitem",
                                              "setdefault", "update", NULL};
    const struct mxc_jmethod_def *def = NULL;
    *out = (struct mxc_jval){0};
    *is_unsafe =
        name->len > 4 && !memcmp(name->p, "__", 2) && !memcmp(name->p + name->len - 2, "__", 2);
    if (*is_unsafe)
        return true;
    switch ((enum mxc_jtype)v.type) {
    case MJ_STR:
        def = find_method(mxc_j_str_methods, name);
        break;
    case MJ_DICT:
        *is_unsafe = is_any(name, dict_unsafe);
        def = find_method(mxc_j_dict_methods, name);
        break;
    case MJ_LIST:
        *is_unsafe = is_any(name, list_unsafe);
        def = find_method(mxc_j_seq_methods, name);
        break;
    case MJ_TUPLE:
        if (v.u.q->group && (mxc_j_is(name, "grouper") || mxc_j_is(name, "list"))) {
            *out = v.u.q->v[mxc_j_is(name, "list")];
            return true;
        }
        def = mxc_j_is(name, "copy") ? NULL : find_method(mxc_j_seq_methods, name);
        break;
    case MJ_NS: {
        struct mxc_jval *found;
        struct mxc_jstr copy = *name;
        if (!mxc_j_dict_get(run, v.u.d, mxc_j_str_val(&copy), &found))
            return false;
        if (found)
            *out = *found;
        return true;
    }
    case MJ_BOOL:
    case MJ_INT:
    case MJ_FLOAT:
        return number_attr(v, name, out);
    case MJ_MACRO:
        return macro_attr(run, v.u.macro, name, out);
    case MJ_LOOP:
        return mxc_j_loop_attr(run, v.u.loop, name, out);
    case MJ_RANGE:
        if (mxc_j_is(name, "start"))
            *out = mxc_j_int(v.u.range->start);
        else if (mxc_j_is(name, "stop"))
            *out = mxc_j_int(v.u.range->stop);
        else if (mxc_j_is(name, "step"))
            *out = mxc_j_int(v.u.range->step);
        return true;
    case MJ_CYCLER:
        if (mxc_j_is(name, "current")) {
            *out = v.u.cycler->v[v.u.cycler->pos];
            return true;
        }
        for (def = mxc_j_seq_methods; def->name && def->op != 'n'; def++)
            ;
        if (!mxc_j_is(name, "next"))
            def = mxc_j_is(name, "reset") ? def + 1 : NULL;
        break;
    default:
        break;
    }
    if (def && def->name && !*is_unsafe) {
        if (v.type != MJ_CYCLER && (def->op == 'n' || def->op == 'r'))
            return true;
        struct mxc_jmethod *method = mxc_j_alloc(run, 1, sizeof *method);
        if (!method)
            return false;
        method->self = v;
        method->def = def;
        *out = mxc_j_of(MJ_METHOD, method);
    }
    return true;
}

bool mxc_j_attribute(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval name,
                     struct mxc_jval *out) {
    bool is_unsafe;
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    if (!lookup(run, v, name.u.s, out, &is_unsafe))
        return false;
    return !is_unsafe || mxc_j_undef_member(run, v, name, true, out);
}

bool mxc_j_getattr(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval name,
                   struct mxc_jval *out) {
    if (!mxc_j_attribute(run, v, name, out))
        return false;
    if (out->type != MJ_MISSING)
        return true;
    if (v.type == MJ_DICT) {
        struct mxc_jval *found;
        if (!mxc_j_dict_get(run, v.u.d, name, &found))
            return false;
        if (found) {
            *out = *found;
            return true;
        }
    }
    return mxc_j_undef_member(run, v, name, false, out);
}

static bool hashable(struct mxc_jval v, unsigned depth) {
    if (v.type == MJ_TUPLE) {
        for (size_t i = 0; i < v.u.q->n; i++)
            if (depth > 50 || !hashable(v.u.q->v[i], depth + 1))
                return false;
        return true;
    }
    return v.type != MJ_LIST && v.type != MJ_DICT && v.type != MJ_VIEW;
}

bool mxc_j_getitem(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval key,
                   struct mxc_jval *out) {
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    if (v.type == MJ_DICT && hashable(key, 0)) {
        struct mxc_jval *found;
        if (!mxc_j_dict_get(run, v.u.d, key, &found))
            return false;
        if (found) {
            *out = *found;
            return true;
        }
    } else if (mxc_j_is_int(key) && (v.type == MJ_STR || v.type == MJ_LIST || v.type == MJ_TUPLE ||
                                     v.type == MJ_RANGE)) {
        size_t n;
        int64_t i = mxc_j_as_int(key);
        if (!mxc_j_length(run, v, &n))
            return false;
        if (i < 0)
            i += (int64_t)n;
        if (i >= 0 && i < (int64_t)n)
            return mxc_j_item(run, v, (size_t)i, out);
    }
    if (key.type == MJ_STR) {
        if (!mxc_j_attribute(run, v, key, out))
            return false;
        if (out->type != MJ_MISSING)
            return true;
    }
    return mxc_j_undef_member(run, v, key, false, out);
}

/* Filters over sequences and mappings, and the attribute paths ("a.b.0") that many of them take.
 * In: the value and bound arguments (a[0] is the value). Out: lists, lazy iterators where Jinja2
 * has generators, or single values; items keep their own taint.
 * A generator over something that cannot be iterated fails when it is read, not when it is made, as
 * in Python: hence the broken iterators. random is refused, since a prompt must be reproducible. */
#include "text/jinja/run.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static bool name(struct mxc_jrun *run, struct mxc_jval *a, const struct mxc_jargs *rest,       \
                     struct mxc_jval *out)

static bool is_given(struct mxc_jval v) {
    return v.type != MJ_MISSING && v.type != MJ_NONE;
}

static bool filter_error(struct mxc_jrun *run, const char *text) {
    return mxc_j_fail(run, "FilterArgumentError", "%s", text);
}

/* One step of an attribute path: digits are an index. */
static bool path_step(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jstr *path,
                      size_t from, size_t to, struct mxc_jval *out) {
    struct mxc_jval key;
    char number[20];
    int64_t index;
    if (!mxc_j_str_part(run, path, from, to - from, &key))
        return false;
    if (to > from && to - from < sizeof number && path->p[from] >= '0' && path->p[from] <= '9') {
        memcpy(number, path->p + from, to - from);
        number[to - from] = 0;
        if (mxc_parse_i64(number, &index))
            key = mxc_j_int(index);
    }
    return mxc_j_getitem(run, v, key, out);
}

static bool path_part(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jstr *path,
                      size_t from, size_t to, struct mxc_jval fallback, struct mxc_jval *out) {
    for (size_t i = from;; i++) {
        if (i < to && path->p[i] != '.')
            continue;
        if (!path_step(run, v, path, from, i, &v))
            return false;
        if (v.type == MJ_UNDEF && is_given(fallback))
            v = fallback;
        from = i + 1;
        if (i >= to)
            break;
    }
    *out = v;
    return true;
}

bool mxc_j_path(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval path,
                struct mxc_jval fallback, struct mxc_jval *out) {
    if (path.type == MJ_STR)
        return path_part(run, v, path.u.s, 0, path.u.s->len, fallback, out);
    if (path.type == MJ_NONE || path.type == MJ_MISSING) {
        *out = v;
        return true;
    }
    if (!mxc_j_getitem(run, v, path, out))
        return false;
    if (out->type == MJ_UNDEF && is_given(fallback))
        *out = fallback;
    return true;
}

static bool fold(struct mxc_jrun *run, struct mxc_jval case_sensitive, struct mxc_jval *key) {
    return key->type != MJ_STR || mxc_j_truth(case_sensitive) ||
           mxc_j_case(run, key->u.s, MJ_LOWER, key);
}

/* Keys of items by an attribute ("a,b" makes lists when multi). */
static bool make_keys(struct mxc_jrun *run, const struct mxc_jseq *items, struct mxc_jval attribute,
                      struct mxc_jval fallback, struct mxc_jval case_sensitive, bool multi,
                      struct mxc_jval **out) {
    struct mxc_jval *keys = mxc_j_alloc(run, items->n + 1, sizeof *keys);
    if (!keys)
        return false;
    bool many =
        multi && attribute.type == MJ_STR && memchr(attribute.u.s->p, ',', attribute.u.s->len);
    for (size_t i = 0; i < items->n; i++) {
        if (!many) {
            if (!mxc_j_path(run, items->v[i], attribute, fallback, &keys[i]) ||
                !fold(run, case_sensitive, &keys[i]))
                return false;
            continue;
        }
        const struct mxc_jstr *path = attribute.u.s;
        struct mxc_jval key;
        if (!mxc_j_seq(run, MJ_LIST, 0, &keys[i]))
            return false;
        for (size_t from = 0, j = 0; j <= path->len; j++) {
            if (j < path->len && path->p[j] != ',')
                continue;
            if (!path_part(run, items->v[i], path, from, j, fallback, &key) ||
                !fold(run, case_sensitive, &key) || !mxc_j_push(run, keys[i].u.q, key))
                return false;
            from = j + 1;
        }
    }
    *out = keys;
    return true;
}

static bool generator(struct mxc_jrun *run, struct mxc_jval source, struct mxc_jval *out) {
    struct mxc_jiter *it;
    if (!mxc_j_iter(run, source, &it))
        return false;
    it->type_name = "generator";
    *out = mxc_j_of(MJ_ITER, it);
    return true;
}

/* A generator over what is no source; items: of the items filter. */
static bool broken(struct mxc_jrun *run, struct mxc_jval source, bool items, struct mxc_jval *out) {
    struct mxc_jiter *it = mxc_j_alloc(run, 1, sizeof *it);
    if (!it)
        return false;
    it->kind = MJ_IT_BROKEN;
    it->type_name = "generator";
    it->source = source;
    it->by_attribute = items;
    *out = mxc_j_of(MJ_ITER, it);
    return true;
}

FILTER(f_attr) {
    (void)rest;
    if (a[1].type != MJ_STR)
        return mxc_j_fail(run, "TypeError", "attribute name must be string, not '%s'",
                          mxc_j_type_name(a[1]));
    if (!mxc_j_attribute(run, a[0], a[1], out))
        return false;
    return out->type != MJ_MISSING || mxc_j_undef_member(run, a[0], a[1], false, out);
}

FILTER(f_batch) {
    struct mxc_jval items, all, line = {0};
    int64_t n = 0;
    (void)rest;
    if (!mxc_j_iterable(a[0]))
        return broken(run, a[0], false, out);
    if (!mxc_j_arg_int(run, a[1], &n) || !mxc_j_collect(run, a[0], &items) ||
        !mxc_j_seq(run, MJ_LIST, 0, &all))
        return false;
    for (size_t i = 0; i < items.u.q->n; i++) {
        if (line.type != MJ_MISSING && (int64_t)line.u.q->n == n) {
            if (!mxc_j_push(run, all.u.q, line))
                return false;
            line.type = MJ_MISSING;
        }
        if ((line.type == MJ_MISSING && !mxc_j_seq(run, MJ_LIST, 0, &line)) ||
            !mxc_j_push(run, line.u.q, items.u.q->v[i]))
            return false;
    }
    if (line.type != MJ_MISSING) {
        while (is_given(a[2]) && (int64_t)line.u.q->n < n)
            if (!mxc_j_step(run, 1) || !mxc_j_push(run, line.u.q, a[2]))
                return false;
        if (!mxc_j_push(run, all.u.q, line))
            return false;
    }
    return generator(run, all, out);
}

FILTER(f_slice) {
    struct mxc_jval items, all, part;
    int64_t n = 0, offset = 0;
    (void)rest;
    if (!mxc_j_iterable(a[0]))
        return broken(run, a[0], false, out);
    if (!mxc_j_arg_int(run, a[1], &n) || !mxc_j_collect(run, a[0], &items) ||
        !mxc_j_seq(run, MJ_LIST, 0, &all))
        return false;
    if (!n)
        return mxc_j_fail(run, "ZeroDivisionError", "integer division or modulo by zero");
    int64_t length = (int64_t)items.u.q->n, per = n > 0 ? length / n : 0,
            extra = n > 0 ? length % n : 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t start = offset + k * per;
        offset += k < extra;
        int64_t end = offset + (k + 1) * per;
        if (!mxc_j_step(run, 1) || !mxc_j_seq(run, MJ_LIST, (size_t)(end - start) + 1, &part))
            return false;
        for (int64_t i = start; i < end; i++)
            if (!mxc_j_push(run, part.u.q, items.u.q->v[i]))
                return false;
        if (is_given(a[2]) && k >= extra && !mxc_j_push(run, part.u.q, a[2]))
            return false;
        if (!mxc_j_push(run, all.u.q, part))
            return false;
    }
    return generator(run, all, out);
}

FILTER(f_default) {
    (void)run;
    (void)rest;
    bool use = a[0].type == MJ_UNDEF || (mxc_j_truth(a[2]) && !mxc_j_truth(a[0]));
    *out = !use ? a[0] : a[1];
    return !use || a[1].type != MJ_MISSING || mxc_j_text(run, "", out);
}

FILTER(f_dictsort) {
    size_t pos = 0;
    (void)rest;
    if (a[2].type != MJ_MISSING) {
        bool value = a[2].type == MJ_STR && mxc_j_is(a[2].u.s, "value");
        if (!value && !(a[2].type == MJ_STR && mxc_j_is(a[2].u.s, "key")))
            return filter_error(run, "You can only sort by either \"key\" or \"value\"");
        pos = value;
    }
    if (a[0].type != MJ_DICT)
        return a[0].type == MJ_UNDEF
                   ? mxc_j_undef_fail(run, a[0])
                   : mxc_j_fail(run, "AttributeError", "'%s' object has no attribute 'items'",
                                mxc_j_type_name(a[0]));
    struct mxc_jdict *d = a[0].u.d;
    struct mxc_jval list, *keys = mxc_j_alloc(run, d->n + 1, sizeof *keys);
    if (!keys || !mxc_j_seq(run, MJ_LIST, d->n, &list))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        struct mxc_jval pair;
        if (!mxc_j_pair(run, d->e[i].key, d->e[i].value, &pair) || !mxc_j_push(run, list.u.q, pair))
            return false;
        keys[i] = pair.u.q->v[pos];
        if (!fold(run, a[1], &keys[i]))
            return false;
    }
    if (!mxc_j_sort(run, keys, list.u.q->v, d->n, mxc_j_truth(a[3])))
        return false;
    list.u.q->user = d->user;
    *out = list;
    return true;
}

FILTER(f_first) {
    struct mxc_jiter *it;
    (void)rest;
    if (!mxc_j_iter(run, a[0], &it))
        return false;
    int more = mxc_j_next(run, it, out);
    return more > 0 || (!more && mxc_j_undef_hint(run, "No first item, sequence was empty.", out));
}

FILTER(f_last) {
    size_t n;
    (void)rest;
    if (a[0].type == MJ_ITER || a[0].type == MJ_LOOP || !mxc_j_iterable(a[0]))
        return mxc_j_fail(run, "TypeError", "'%s' object is not reversible", mxc_j_type_name(a[0]));
    if (!mxc_j_length(run, a[0], &n))
        return false;
    return n ? mxc_j_item(run, a[0], n - 1, out)
             : mxc_j_undef_hint(run, "No last item, sequence was empty.", out);
}

FILTER(f_length) {
    size_t n;
    (void)rest;
    if (!mxc_j_length(run, a[0], &n))
        return false;
    *out = mxc_j_int((int64_t)n);
    return true;
}

FILTER(f_list) {
    (void)rest;
    if (!mxc_j_collect(run, a[0], out))
        return false;
    out->u.q->user =
        (a[0].type == MJ_LIST && a[0].u.q->user) || (a[0].type == MJ_DICT && a[0].u.d->user);
    return true;
}

FILTER(f_items) {
    (void)rest;
    if (a[0].type == MJ_UNDEF)
        return generator(run, a[0], out);
    if (a[0].type != MJ_DICT)
        return broken(run, a[0], true, out);
    struct mxc_jview *view = mxc_j_alloc(run, 1, sizeof *view);
    if (!view)
        return false;
    view->d = a[0].u.d;
    view->kind = MJ_ITEMS;
    return generator(run, mxc_j_of(MJ_VIEW, view), out);
}

static bool lazy(struct mxc_jrun *run, enum mxc_jiter_kind kind, struct mxc_jval source,
                 const struct mxc_jargs *args, struct mxc_jval *out) {
    if (mxc_j_truth(source) && !mxc_j_iterable(source))
        return broken(run, source, false, out);
    struct mxc_jiter *it = mxc_j_alloc(run, 1, sizeof *it);
    if (!it || (mxc_j_truth(source) && !mxc_j_iter(run, source, &it->inner)))
        return false;
    it->kind = kind;
    it->type_name = "generator";
    it->args = *args;
    *out = mxc_j_of(MJ_ITER, it);
    return true;
}

FILTER(f_map) {
    if (!mxc_j_truth(a[0]))
        return lazy(run, MJ_IT_MAP, a[0], rest, out);
    struct mxc_jargs args = *rest;
    bool by_attribute = false;
    if (!rest->n && rest->n_kw &&
        (mxc_j_is(rest->kw[0].name, "attribute") || mxc_j_is(rest->kw[0].name, "default"))) {
        struct mxc_jval *slots = mxc_j_alloc(run, MJ_MAX_SLOTS, sizeof *slots);
        if (!slots || !mxc_j_bind(run, "map", "attribute,default", 1, rest, slots))
            return false;
        args = (struct mxc_jargs){.v = slots, .n = 2};
        by_attribute = true;
    } else if (!rest->n) {
        return filter_error(run, "map requires a filter argument");
    } else if (rest->v[0].type != MJ_STR) {
        return mxc_j_fail(run, "TemplateRuntimeError", "No filter named that found.");
    }
    if (!lazy(run, MJ_IT_MAP, a[0], &args, out))
        return false;
    out->u.iter->by_attribute = by_attribute && out->u.iter->kind == MJ_IT_MAP;
    return true;
}

static bool select_items(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jargs *rest,
                         bool by_attribute, bool reject, struct mxc_jval *out) {
    if (by_attribute && !rest->n && mxc_j_truth(v))
        return filter_error(run, "Missing parameter for attribute name");
    if (!lazy(run, MJ_IT_SELECT, v, rest, out))
        return false;
    out->u.iter->by_attribute = by_attribute && out->u.iter->kind == MJ_IT_SELECT;
    out->u.iter->reject = reject;
    return true;
}

FILTER(f_select) {
    return select_items(run, a[0], rest, false, false, out);
}
FILTER(f_reject) {
    return select_items(run, a[0], rest, false, true, out);
}
FILTER(f_selectattr) {
    return select_items(run, a[0], rest, true, false, out);
}
FILTER(f_rejectattr) {
    return select_items(run, a[0], rest, true, true, out);
}

static bool extreme(struct mxc_jrun *run, struct mxc_jval *a, char op, struct mxc_jval *out) {
    struct mxc_jval items, *keys;
    if (!mxc_j_collect(run, a[0], &items))
        return false;
    if (!items.u.q->n)
        return mxc_j_undef_hint(run, "No aggregated item, sequence was empty.", out);
    if (!make_keys(run, items.u.q, a[2], (struct mxc_jval){0}, a[1], false, &keys))
        return false;
    size_t best = 0;
    for (size_t i = 1; i < items.u.q->n; i++) {
        bool better;
        if (!mxc_j_order(run, keys[i], keys[best], op, &better))
            return false;
        if (better)
            best = i;
    }
    *out = items.u.q->v[best];
    return true;
}

FILTER(f_min) {
    (void)rest;
    return extreme(run, a, '<', out);
}
FILTER(f_max) {
    (void)rest;
    return extreme(run, a, '>', out);
}

FILTER(f_sort) {
    struct mxc_jval items, *keys;
    (void)rest;
    if (!mxc_j_collect(run, a[0], &items) ||
        !make_keys(run, items.u.q, a[3], (struct mxc_jval){0}, a[2], true, &keys) ||
        !mxc_j_sort(run, keys, items.u.q->v, items.u.q->n, mxc_j_truth(a[1])))
        return false;
    *out = items;
    return true;
}

FILTER(f_unique) {
    struct mxc_jval items, *keys, seen, all;
    (void)rest;
    if (!mxc_j_iterable(a[0]))
        return broken(run, a[0], false, out);
    if (!mxc_j_collect(run, a[0], &items) ||
        !make_keys(run, items.u.q, a[2], (struct mxc_jval){0}, a[1], false, &keys) ||
        !mxc_j_dict(run, &seen) || !mxc_j_seq(run, MJ_LIST, 0, &all))
        return false;
    for (size_t i = 0; i < items.u.q->n; i++) {
        size_t before = seen.u.d->n;
        if (!mxc_j_dict_put(run, seen.u.d, keys[i], mxc_j_none()))
            return false;
        if (seen.u.d->n > before && !mxc_j_push(run, all.u.q, items.u.q->v[i]))
            return false;
    }
    return generator(run, all, out);
}

FILTER(f_groupby) {
    struct mxc_jval items, *keys, all, group, members = {0}, grouper;
    (void)rest;
    if (!mxc_j_collect(run, a[0], &items) ||
        !make_keys(run, items.u.q, a[1], a[2], a[3], false, &keys) ||
        !mxc_j_sort(run, keys, items.u.q->v, items.u.q->n, false) ||
        !mxc_j_seq(run, MJ_LIST, 0, &all))
        return false;
    for (size_t i = 0; i < items.u.q->n; i++) {
        bool same = false;
        if (i && !mxc_j_equal(run, keys[i - 1], keys[i], &same))
            return false;
        if (!same) {
            if (!mxc_j_path(run, items.u.q->v[i], a[1], a[2], &grouper) ||
                !mxc_j_seq(run, MJ_LIST, 0, &members) ||
                !mxc_j_pair(run, grouper, members, &group) || !mxc_j_push(run, all.u.q, group))
                return false;
            group.u.q->group = true;
        }
        if (!mxc_j_push(run, members.u.q, items.u.q->v[i]))
            return false;
    }
    *out = all;
    return true;
}

FILTER(f_sum) {
    struct mxc_jiter *it;
    struct mxc_jval sum = a[2].type == MJ_MISSING ? mxc_j_int(0) : a[2], v;
    (void)rest;
    if (sum.type == MJ_STR)
        return mxc_j_fail(run, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    if (!mxc_j_iter(run, a[0], &it))
        return false;
    int more;
    while ((more = mxc_j_next(run, it, &v)) > 0)
        if (!mxc_j_path(run, v, a[1], (struct mxc_jval){0}, &v) ||
            !mxc_j_binary(run, '+', sum, v, &sum))
            return false;
    *out = sum;
    return more == 0;
}

FILTER(f_join) {
    struct mxc_jiter *it;
    struct mxc_jval v, with;
    struct mxc_jsb sb;
    (void)rest;
    if (a[1].type == MJ_MISSING ? !mxc_j_text(run, "", &with) : !mxc_j_to_str(run, a[1], &with))
        return false;
    if (!mxc_j_iter(run, a[0], &it))
        return false;
    mxc_j_sb_init(&sb, run);
    int more;
    for (size_t i = 0; (more = mxc_j_next(run, it, &v)) > 0; i++)
        if (!mxc_j_path(run, v, a[2], (struct mxc_jval){0}, &v) ||
            (i && !mxc_j_put_str(&sb, with.u.s)) || !mxc_j_put_val(&sb, v))
            return false;
    return more == 0 && mxc_j_sb_done(&sb, out);
}

FILTER(f_reverse) {
    (void)rest;
    if (a[0].type == MJ_STR) {
        struct mxc_jval part[3] = {{0}, {0}, mxc_j_int(-1)};
        return mxc_j_slice(run, a[0], part, out);
    }
    if (!mxc_j_iterable(a[0]))
        return filter_error(run, "argument must be iterable");
    struct mxc_jval list = a[0];
    bool lazy_source = a[0].type == MJ_ITER;
    if (lazy_source && !mxc_j_collect(run, a[0], &list))
        return false;
    struct mxc_jiter *it = mxc_j_alloc(run, 1, sizeof *it);
    if (!it)
        return false;
    it->kind = MJ_IT_REVERSED;
    it->type_name = a[0].type == MJ_LIST    ? "list_reverseiterator"
                    : a[0].type == MJ_TUPLE ? "reversed"
                    : a[0].type == MJ_DICT  ? "dict_reversekeyiterator"
                                            : "range_iterator";
    it->source = list;
    if (!mxc_j_length(run, list, &it->n))
        return false;
    if (lazy_source)
        return mxc_j_collect(run, mxc_j_of(MJ_ITER, it), out);
    *out = mxc_j_of(MJ_ITER, it);
    return true;
}

FILTER(f_random) {
    (void)a;
    (void)rest;
    (void)out;
    return mxc_j_fail(run, "TemplateRuntimeError",
                      "the random filter is refused: a prompt must be reproducible");
}

const struct mxc_jfilter mxc_j_seq_filters[] = {
    {"attr", "name", 1, f_attr},
    {"batch", "linecount,fill_with", 1, f_batch},
    {"slice", "slices,fill_with", 1, f_slice},
    {"default", "default_value,boolean", 0, f_default},
    {"d", "default_value,boolean", 0, f_default},
    {"dictsort", "case_sensitive,by,reverse", 0, f_dictsort},
    {"first", "", 0, f_first},
    {"last", "", 0, f_last},
    {"length", "", 0, f_length},
    {"count", "", 0, f_length},
    {"list", "", 0, f_list},
    {"items", "", 0, f_items},
    {"map", NULL, 0, f_map},
    {"select", NULL, 0, f_select},
    {"reject", NULL, 0, f_reject},
    {"selectattr", NULL, 0, f_selectattr},
    {"rejectattr", NULL, 0, f_rejectattr},
    {"min", "case_sensitive,attribute", 0, f_min},
    {"max", "case_sensitive,attribute", 0, f_max},
    {"sort", "reverse,case_sensitive,attribute", 0, f_sort},
    {"unique", "case_sensitive,attribute", 0, f_unique},
    {"groupby", "attribute,default,case_sensitive", 1, f_groupby},
    {"sum", "attribute,start", 0, f_sum},
    {"join", "d,attribute", 0, f_join},
    {"reverse", "", 0, f_reverse},
    {"random", "", 0, f_random},
    {NULL, NULL, 0, NULL}};

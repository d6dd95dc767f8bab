/* Iterators: over what has items by index, and the lazy ones of map, select and loop filters, which
 * read their source only as far as the reader asks (a loop's body may change what its filter sees).
 */
#include "text/jinja/run.h"

bool mxc_j_iterable(struct mxc_jval v) {
    switch ((enum mxc_jtype)v.type) {
    case MJ_UNDEF:
    case MJ_STR:
    case MJ_LIST:
    case MJ_TUPLE:
    case MJ_DICT:
    case MJ_RANGE:
    case MJ_VIEW:
    case MJ_ITER:
        return true;
    default:
        return false;
    }
}

bool mxc_j_iter(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jiter **out) {
    if (v.type == MJ_ITER) {
        *out = v.u.iter;
        return true;
    }
    if (!mxc_j_iterable(v))
        return mxc_j_fail(run, "TypeError", "'%s' object is not iterable", mxc_j_type_name(v));
    struct mxc_jiter *it = mxc_j_alloc(run, 1, sizeof *it);
    if (!it)
        return false;
    static const char *const names[] = {
        [MJ_STR] = "str_iterator",     [MJ_LIST] = "list_iterator",
        [MJ_TUPLE] = "tuple_iterator", [MJ_DICT] = "dict_keyiterator",
        [MJ_RANGE] = "range_iterator", [MJ_VIEW] = "dict_itemiterator",
        [MJ_UNDEF] = "generator"};
    it->kind = MJ_IT_INDEX;
    it->type_name = names[v.type];
    it->source = v;
    if (v.type == MJ_STR)
        it->n = v.u.s->len;
    else if (!mxc_j_length(run, v, &it->n))
        return false;
    *out = it;
    return true;
}

bool mxc_j_item(struct mxc_jrun *run, struct mxc_jval v, size_t i, struct mxc_jval *out) {
    switch ((enum mxc_jtype)v.type) {
    case MJ_LIST:
    case MJ_TUPLE:
        *out = v.u.q->v[i];
        return true;
    case MJ_DICT:
        *out = v.u.d->e[i].key;
        return true;
    case MJ_RANGE:
        *out = mxc_j_int(v.u.range->start + (int64_t)i * v.u.range->step);
        return true;
    case MJ_VIEW: {
        const struct mxc_jentry *e = &v.u.view->d->e[i];
        if (v.u.view->kind == MJ_ITEMS)
            return mxc_j_pair(run, e->key, e->value, out);
        *out = v.u.view->kind == MJ_KEYS ? e->key : e->value;
        return true;
    }
    case MJ_STR: {
        mxc_j_str_count(v.u.s);
        if (v.u.s->n_cp != v.u.s->len && !mxc_j_step(run, i / 16))
            return false;
        size_t offset = mxc_j_str_offset(v.u.s, i);
        uint32_t cp;
        size_t len = mxc_j_decode(v.u.s->p + offset, v.u.s->len - offset, &cp);
        return mxc_j_str_part(run, v.u.s, offset, len, out);
    }
    default:
        return mxc_j_fail(run, "TypeError", "'%s' object is not subscriptable", mxc_j_type_name(v));
    }
}

static int next_index(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out) {
    if (it->pos >= it->n)
        return 0;
    if (it->source.type == MJ_STR) {
        const struct mxc_jstr *s = it->source.u.s;
        uint32_t cp;
        size_t len = mxc_j_decode(s->p + it->pos, s->len - it->pos, &cp);
        bool ok = mxc_j_str_part(run, s, it->pos, len, out);
        it->pos += len;
        return ok ? 1 : -1;
    }
    return mxc_j_item(run, it->source, it->pos++, out) ? 1 : -1;
}

static int next_mapped(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out) {
    struct mxc_jval v;
    int more = mxc_j_next(run, it->inner, &v);
    if (more <= 0)
        return more;
    if (it->by_attribute)
        return mxc_j_path(run, v, it->args.v[0], it->args.v[1], out) ? 1 : -1;
    const struct mxc_jstr *name = it->args.v[0].u.s;
    const struct mxc_jfilter *filter =
        mxc_j_find_filter(mxc_j_slice_of(name), run->jinja->from_json);
    if (!filter)
        return mxc_j_fail(run, "TemplateRuntimeError", "No filter named '%.*s' found.",
                          (int)(name->len < 80 ? name->len : 80), name->p),
               -1;
    struct mxc_jargs rest = {it->args.v + 1, it->args.n - 1, it->args.kw, it->args.n_kw};
    return mxc_j_call_filter(run, filter, v, &rest, out) ? 1 : -1;
}

static int next_selected(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out) {
    struct mxc_jval v;
    int more;
    while ((more = mxc_j_next(run, it->inner, &v)) > 0) {
        struct mxc_jval subject = v;
        struct mxc_jargs rest = it->args;
        bool yes;
        if (it->by_attribute) {
            if (!mxc_j_path(run, v, rest.v[0], (struct mxc_jval){0}, &subject))
                return -1;
            rest.v++;
            rest.n--;
        }
        if (!rest.n) {
            yes = mxc_j_truth(subject);
        } else {
            const struct mxc_jstr *name = rest.v[0].u.s;
            const struct mxc_jtest *test =
                rest.v[0].type == MJ_STR ? mxc_j_find_test(mxc_j_slice_of(name)) : NULL;
            if (!test) {
                mxc_j_fail(run, "TemplateRuntimeError", "No test named '%.*s' found.",
                           rest.v[0].type == MJ_STR ? (int)(name->len < 80 ? name->len : 80) : 0,
                           rest.v[0].type == MJ_STR ? name->p : "");
                return -1;
            }
            rest.v++;
            rest.n--;
            if (!mxc_j_call_test(run, test, subject, &rest, &yes))
                return -1;
        }
        if (yes != it->reject) {
            *out = v;
            return 1;
        }
    }
    return more;
}

int mxc_j_next(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out) {
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return -1;
    switch (it->kind) {
    case MJ_IT_INDEX:
        return next_index(run, it, out);
    case MJ_IT_REVERSED:
        if (it->pos >= it->n)
            return 0;
        it->pos++;
        return mxc_j_item(run, it->source, it->n - it->pos, out) ? 1 : -1;
    case MJ_IT_MAP:
        return it->inner ? next_mapped(run, it, out) : 0;
    case MJ_IT_SELECT:
        return it->inner ? next_selected(run, it, out) : 0;
    case MJ_IT_BROKEN:
        if (it->by_attribute)
            mxc_j_fail(run, "TypeError", "Can only get item pairs from a mapping.");
        else
            mxc_j_fail(run, "TypeError", "'%s' object is not iterable",
                       mxc_j_type_name(it->source));
        return -1;
    default:
        return mxc_j_next_filtered(run, it, out);
    }
}

bool mxc_j_collect(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval *out) {
    struct mxc_jiter *it;
    struct mxc_jval list, item;
    if (!mxc_j_iter(run, v, &it) || !mxc_j_seq(run, MJ_LIST, 0, &list))
        return false;
    int more;
    while ((more = mxc_j_next(run, it, &item)) > 0)
        if (!mxc_j_push(run, list.u.q, item))
            return false;
    if (more == 0)
        *out = list;
    return more == 0;
}

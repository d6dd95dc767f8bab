/* Values: construction, and Python's rules of truth, equality, order, hashing, containment and
 * sorting.
 * In: values. Out: new ones in the run's arena, or answers; undefined values know what was missing
 * and tell it when they are used.
 * Dicts keep insertion order in an array; from nine entries on a hash index stands beside it. Equal
 * numbers of all types hash alike, as 1 and 1.0 are one key.
 * Recursion over nested data is bounded by the run's stack limit; every element costs a step. */
#include "text/jinja/run.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { INDEX_FROM = 8 };

bool mxc_j_text(struct mxc_jrun *run, const char *text, struct mxc_jval *out) {
    return mxc_j_str_new(run, text, strlen(text), false, out);
}

bool mxc_j_seq(struct mxc_jrun *run, enum mxc_jtype type, size_t capacity, struct mxc_jval *out) {
    struct mxc_jseq *q = mxc_j_alloc(run, 1, sizeof *q);
    if (!q || (capacity && !(q->v = mxc_j_alloc(run, capacity, sizeof *q->v))))
        return false;
    q->capacity = capacity;
    *out = mxc_j_of(type, q);
    return true;
}

bool mxc_j_push(struct mxc_jrun *run, struct mxc_jseq *q, struct mxc_jval v) {
    if (q->n == q->capacity) {
        size_t capacity = q->capacity ? q->capacity * 2 : 8;
        struct mxc_jval *grown = mxc_j_alloc(run, capacity, sizeof *grown);
        if (!grown)
            return false;
        if (q->n)
            memcpy(grown, q->v, q->n * sizeof *grown);
        q->v = grown;
        q->capacity = capacity;
    }
    q->v[q->n++] = v;
    return true;
}

bool mxc_j_pair(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, struct mxc_jval *out) {
    struct mxc_jval pair;
    if (!mxc_j_seq(run, MJ_TUPLE, 2, &pair))
        return false;
    pair.u.q->v[0] = a;
    pair.u.q->v[1] = b;
    pair.u.q->n = 2;
    *out = pair;
    return true;
}

bool mxc_j_dict(struct mxc_jrun *run, struct mxc_jval *out) {
    struct mxc_jdict *d = mxc_j_alloc(run, 1, sizeof *d);
    if (!d)
        return false;
    *out = mxc_j_of(MJ_DICT, d);
    return true;
}

static bool dict_find(struct mxc_jrun *run, struct mxc_jdict *d, struct mxc_jval key, uint64_t hash,
                      size_t *at) {
    *at = SIZE_MAX;
    bool equal;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (!mxc_j_equal(run, d->e[i].key, key, &equal))
                return false;
            if (equal) {
                *at = i;
                break;
            }
        }
        return true;
    }
    for (size_t slot = hash & (d->n_index - 1); d->index[slot];
         slot = (slot + 1) & (d->n_index - 1)) {
        size_t i = d->index[slot] - 1;
        if (!mxc_j_equal(run, d->e[i].key, key, &equal))
            return false;
        if (equal) {
            *at = i;
            break;
        }
    }
    return true;
}

static void index_add(struct mxc_jdict *d, uint64_t hash, size_t i) {
    size_t slot = hash & (d->n_index - 1);
    while (d->index[slot])
        slot = (slot + 1) & (d->n_index - 1);
    d->index[slot] = (uint32_t)(i + 1);
}

static bool dict_reindex(struct mxc_jrun *run, struct mxc_jdict *d) {
    size_t n = d->n_index ? d->n_index * 2 : 64;
    uint32_t *index = mxc_j_alloc(run, n, sizeof *index);
    if (!index)
        return false;
    d->index = index;
    d->n_index = n;
    for (size_t i = 0; i < d->n; i++) {
        uint64_t hash = 0;
        if (!mxc_j_hash(run, d->e[i].key, &hash))
            return false;
        index_add(d, hash, i);
    }
    return true;
}

bool mxc_j_dict_put(struct mxc_jrun *run, struct mxc_jdict *d, struct mxc_jval key,
                    struct mxc_jval value) {
    uint64_t hash = 0;
    size_t at;
    if (!mxc_j_hash(run, key, &hash) || !dict_find(run, d, key, hash, &at))
        return false;
    if (at != SIZE_MAX) {
        d->e[at].value = value;
        return true;
    }
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? d->capacity * 2 : 4;
        struct mxc_jentry *grown = mxc_j_alloc(run, capacity, sizeof *grown);
        if (!grown)
            return false;
        if (d->n)
            memcpy(grown, d->e, d->n * sizeof *grown);
        d->e = grown;
        d->capacity = capacity;
    }
    d->e[d->n++] = (struct mxc_jentry){key, value};
    if (d->index && d->n * 2 <= d->n_index)
        index_add(d, hash, d->n - 1);
    else if (d->n > INDEX_FROM)
        return dict_reindex(run, d);
    return true;
}

bool mxc_j_dict_get(struct mxc_jrun *run, struct mxc_jdict *d, struct mxc_jval key,
                    struct mxc_jval **out) {
    uint64_t hash = 0;
    size_t at;
    if (!mxc_j_hash(run, key, &hash) || !dict_find(run, d, key, hash, &at))
        return false;
    *out = at == SIZE_MAX ? NULL : &d->e[at].value;
    return true;
}

static bool undef_new(struct mxc_jrun *run, enum mxc_jundef_kind kind, const char *text,
                      struct mxc_jval *out) {
    struct mxc_jundef *undef = mxc_j_alloc(run, 1, sizeof *undef);
    if (!undef)
        return false;
    undef->kind = kind;
    undef->text = text;
    *out = mxc_j_of(MJ_UNDEF, undef);
    return true;
}

bool mxc_j_undef_name(struct mxc_jrun *run, const char *name, struct mxc_jval *out) {
    return undef_new(run, MJ_U_NAME, name, out);
}

bool mxc_j_undef_hint(struct mxc_jrun *run, const char *hint, struct mxc_jval *out) {
    return undef_new(run, MJ_U_HINT, hint, out);
}

bool mxc_j_undef_member(struct mxc_jrun *run, struct mxc_jval object, struct mxc_jval member,
                        bool is_unsafe, struct mxc_jval *out) {
    struct mxc_jval v;
    if (!undef_new(run, is_unsafe ? MJ_U_UNSAFE : MJ_U_MEMBER, NULL, &v))
        return false;
    v.u.undef->object = object;
    v.u.undef->member = member;
    *out = v;
    return true;
}

bool mxc_j_undef_fail(struct mxc_jrun *run, struct mxc_jval v) {
    const struct mxc_jundef *undef = v.u.undef;
    if (!undef)
        return mxc_j_fail(run, "UndefinedError", "value is undefined");
    if (undef->kind == MJ_U_NAME)
        return mxc_j_fail(run, "UndefinedError", "'%s' is undefined", undef->text);
    if (undef->kind == MJ_U_HINT)
        return mxc_j_fail(run, "UndefinedError", "%s", undef->text);
    char name[96] = "";
    struct mxc_jval text;
    if (!mxc_j_to_str(run, undef->member, &text))
        return false;
    size_t n = text.u.s->len < sizeof name - 1 ? text.u.s->len : sizeof name - 1;
    memcpy(name, text.u.s->p, n);
    const char *type = mxc_j_type_name(undef->object);
    if (undef->kind == MJ_U_UNSAFE)
        return mxc_j_fail(run, "SecurityError", "access to attribute '%s' of '%s' object is unsafe",
                          name, type);
    const char *suffix = undef->object.type == MJ_NONE ? "" : " object";
    if (undef->member.type == MJ_STR)
        return mxc_j_fail(run, "UndefinedError", "'%s%s' has no attribute '%s'",
                          undef->object.type == MJ_NONE ? "None" : type, suffix, name);
    return mxc_j_fail(run, "UndefinedError", "%s%s has no element %s",
                      undef->object.type == MJ_NONE ? "None" : type, suffix, name);
}

const char *mxc_j_type_name(struct mxc_jval v) {
    static const char *const view[] = {"dict_keys", "dict_values", "dict_items"};
    switch ((enum mxc_jtype)v.type) {
    case MJ_NONE:
        return "NoneType";
    case MJ_BOOL:
        return "bool";
    case MJ_INT:
        return "int";
    case MJ_FLOAT:
        return "float";
    case MJ_STR:
        return v.u.s->markup ? "Markup" : "str";
    case MJ_LIST:
        return "list";
    case MJ_TUPLE:
        return "tuple";
    case MJ_DICT:
        return "dict";
    case MJ_RANGE:
        return "range";
    case MJ_VIEW:
        return view[v.u.view->kind];
    case MJ_ITER:
        return v.u.iter->type_name;
    case MJ_NS:
        return "Namespace";
    case MJ_MACRO:
        return "Macro";
    case MJ_FUNC:
        return "function";
    case MJ_METHOD:
        return "builtin_function_or_method";
    case MJ_LOOP:
        return "LoopContext";
    case MJ_CYCLER:
        return "Cycler";
    case MJ_JOINER:
        return "Joiner";
    default:
        return "Undefined";
    }
}

bool mxc_j_truth(struct mxc_jval v) {
    switch ((enum mxc_jtype)v.type) {
    case MJ_MISSING:
    case MJ_UNDEF:
    case MJ_NONE:
        return false;
    case MJ_BOOL:
        return v.u.b;
    case MJ_INT:
        return v.u.i != 0;
    case MJ_FLOAT:
        return v.u.f != 0;
    case MJ_STR:
        return v.u.s->len > 0;
    case MJ_LIST:
    case MJ_TUPLE:
        return v.u.q->n > 0;
    case MJ_DICT:
        return v.u.d->n > 0;
    case MJ_RANGE:
        return v.u.range->n > 0;
    case MJ_VIEW:
        return v.u.view->d->n > 0;
    default:
        return true;
    }
}

bool mxc_j_length(struct mxc_jrun *run, struct mxc_jval v, size_t *n) {
    switch ((enum mxc_jtype)v.type) {
    case MJ_UNDEF:
        *n = 0;
        return true;
    case MJ_STR:
        *n = mxc_j_str_count(v.u.s);
        return true;
    case MJ_LIST:
    case MJ_TUPLE:
        *n = v.u.q->n;
        return true;
    case MJ_DICT:
        *n = v.u.d->n;
        return true;
    case MJ_RANGE:
        *n = v.u.range->n;
        return true;
    case MJ_VIEW:
        *n = v.u.view->d->n;
        return true;
    case MJ_LOOP: {
        static const char length[] = "length";
        struct mxc_jstr name = {.p = length, .len = 6};
        struct mxc_jval size;
        if (!mxc_j_loop_attr(run, v.u.loop, &name, &size))
            return false;
        *n = (size_t)size.u.i;
        return true;
    }
    default:
        return mxc_j_fail(run, "TypeError", "object of type '%s' has no len()", mxc_j_type_name(v));
    }
}

static bool dict_equal(struct mxc_jrun *run, struct mxc_jdict *a, struct mxc_jdict *b,
                       bool *equal) {
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        struct mxc_jval *other;
        if (!mxc_j_dict_get(run, b, a->e[i].key, &other))
            return false;
        if (!other)
            *equal = false;
        else if (!mxc_j_equal(run, a->e[i].value, *other, equal))
            return false;
    }
    return true;
}

static bool range_equal(const struct mxc_jrange *a, const struct mxc_jrange *b) {
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool mxc_j_equal(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, bool *equal) {
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    if (mxc_j_is_number(a) && mxc_j_is_number(b)) {
        if (a.type == MJ_FLOAT || b.type == MJ_FLOAT)
            *equal =
                mxc_j_as_float(a) >= mxc_j_as_float(b) && mxc_j_as_float(a) <= mxc_j_as_float(b);
        else
            *equal = mxc_j_as_int(a) == mxc_j_as_int(b);
        return true;
    }
    *equal = false;
    if (a.type != b.type)
        return true;
    switch ((enum mxc_jtype)a.type) {
    case MJ_MISSING:
    case MJ_UNDEF:
    case MJ_NONE:
        *equal = true;
        return true;
    case MJ_STR:
        if (a.u.s->len == b.u.s->len) {
            if (!mxc_j_step(run, a.u.s->len / 64))
                return false;
            *equal = !memcmp(a.u.s->p, b.u.s->p, a.u.s->len);
        }
        return true;
    case MJ_LIST:
    case MJ_TUPLE:
        *equal = a.u.q->n == b.u.q->n;
        for (size_t i = 0; *equal && i < a.u.q->n; i++)
            if (!mxc_j_equal(run, a.u.q->v[i], b.u.q->v[i], equal))
                return false;
        return true;
    case MJ_DICT:
        return dict_equal(run, a.u.d, b.u.d, equal);
    case MJ_RANGE:
        *equal = range_equal(a.u.range, b.u.range);
        return true;
    default:
        *equal = a.u.p == b.u.p;
        return true;
    }
}

static bool ordered(int sign, char op) {
    switch (op) {
    case '<':
        return sign < 0;
    case '>':
        return sign > 0;
    case 'l':
        return sign <= 0;
    default:
        return sign >= 0;
    }
}

bool mxc_j_order(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, char op,
                 bool *result) {
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    if (mxc_j_is_number(a) && mxc_j_is_number(b)) {
        if (a.type == MJ_FLOAT || b.type == MJ_FLOAT) {
            double x = mxc_j_as_float(a), y = mxc_j_as_float(b);
            *result = op == '<' ? x < y : op == '>' ? x > y : op == 'l' ? x <= y : x >= y;
            return true;
        }
        int64_t x = mxc_j_as_int(a), y = mxc_j_as_int(b);
        *result = ordered(x < y ? -1 : x > y, op);
        return true;
    }
    if (a.type == MJ_STR && b.type == MJ_STR) {
        size_t n = a.u.s->len < b.u.s->len ? a.u.s->len : b.u.s->len;
        if (!mxc_j_step(run, n / 64))
            return false;
        int sign = memcmp(a.u.s->p, b.u.s->p, n);
        if (!sign)
            sign = a.u.s->len < b.u.s->len ? -1 : a.u.s->len > b.u.s->len;
        *result = ordered(sign, op);
        return true;
    }
    if (a.type == b.type && (a.type == MJ_LIST || a.type == MJ_TUPLE)) {
        const struct mxc_jseq *x = a.u.q, *y = b.u.q;
        for (size_t i = 0; i < x->n && i < y->n; i++) {
            bool equal;
            if (!mxc_j_equal(run, x->v[i], y->v[i], &equal))
                return false;
            if (!equal)
                return mxc_j_order(run, x->v[i], y->v[i], op, result);
        }
        *result = ordered(x->n < y->n ? -1 : x->n > y->n, op);
        return true;
    }
    if (a.type == MJ_UNDEF || b.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, a.type == MJ_UNDEF ? a : b);
    static const char *const sign[] = {"<", ">", "<=", ">="};
    return mxc_j_fail(run, "TypeError", "'%s' not supported between instances of '%s' and '%s'",
                      sign[op == '<'   ? 0
                           : op == '>' ? 1
                           : op == 'l' ? 2
                                       : 3],
                      mxc_j_type_name(a), mxc_j_type_name(b));
}

bool mxc_j_hash(struct mxc_jrun *run, struct mxc_jval v, uint64_t *hash) {
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    switch ((enum mxc_jtype)v.type) {
    case MJ_BOOL:
    case MJ_INT:
    case MJ_FLOAT: {
        double f = mxc_j_as_float(v); /* equal numbers of all types hash alike */
        if (!(f < 0) && !(f > 0))
            f = 0;
        *hash = mxc_hash_bytes(&f, sizeof f, 1);
        return true;
    }
    case MJ_STR:
        if (!mxc_j_step(run, v.u.s->len / 64))
            return false;
        *hash = mxc_hash_bytes(v.u.s->p, v.u.s->len, 2);
        return true;
    case MJ_TUPLE: {
        uint64_t h = 3;
        for (size_t i = 0; i < v.u.q->n; i++) {
            uint64_t item;
            if (!mxc_j_hash(run, v.u.q->v[i], &item))
                return false;
            h = mxc_hash_bytes(&item, sizeof item, h);
        }
        *hash = h;
        return true;
    }
    case MJ_LIST:
    case MJ_DICT:
    case MJ_VIEW:
        return mxc_j_fail(run, "TypeError", "unhashable type: '%s'", mxc_j_type_name(v));
    case MJ_RANGE:
        *hash = v.u.range->n;
        return true;
    case MJ_NONE:
    case MJ_UNDEF:
    case MJ_MISSING:
        *hash = v.type;
        return true;
    default:
        *hash = (uint64_t)(uintptr_t)v.u.p;
        return true;
    }
}

bool mxc_j_contains(struct mxc_jrun *run, struct mxc_jval box, struct mxc_jval item, bool *found) {
    *found = false;
    if (box.type == MJ_STR) {
        if (item.type != MJ_STR)
            return item.type == MJ_UNDEF
                       ? mxc_j_fail(run, "TypeError",
                                    "'in <string>' requires string as left operand, not Undefined")
                       : mxc_j_fail(run, "TypeError",
                                    "'in <string>' requires string as left operand, not %s",
                                    mxc_j_type_name(item));
        if (!mxc_j_step(run, box.u.s->len / 16))
            return false;
        *found = mxc_j_find(box.u.s, 0, box.u.s->len, item.u.s) != SIZE_MAX;
        return true;
    }
    struct mxc_jdict *d = box.type == MJ_DICT                                  ? box.u.d
                          : box.type == MJ_VIEW && box.u.view->kind == MJ_KEYS ? box.u.view->d
                                                                               : NULL;
    if (d) {
        struct mxc_jval *value;
        if (!mxc_j_dict_get(run, d, item, &value))
            return false;
        *found = value != NULL;
        return true;
    }
    if (!mxc_j_iterable(box))
        return mxc_j_fail(run, "TypeError", "argument of type '%s' is not iterable",
                          mxc_j_type_name(box));
    struct mxc_jiter *it;
    struct mxc_jval v;
    int more;
    if (!mxc_j_iter(run, box, &it))
        return false;
    while ((more = mxc_j_next(run, it, &v)) > 0) {
        if (!mxc_j_equal(run, v, item, found))
            return false;
        if (*found)
            return true;
    }
    return more == 0;
}

/* Merge sort. Reverse keeps the order of equal items, as Python does. */
static bool merge_sort(struct mxc_jrun *run, struct mxc_jval *keys, struct mxc_jval *items,
                       size_t n, bool reverse, struct mxc_jval *spare) {
    if (n < 2)
        return true;
    size_t half = n / 2;
    if (!merge_sort(run, keys, items, half, reverse, spare) ||
        !merge_sort(run, keys + half, items + half, n - half, reverse, spare))
        return false;
    size_t i = 0, j = half;
    for (size_t k = 0; k < n; k++) {
        bool take_right = false;
        if (i >= half)
            take_right = true;
        else if (j < n && !(reverse ? mxc_j_order(run, keys[i], keys[j], '<', &take_right)
                                    : mxc_j_order(run, keys[j], keys[i], '<', &take_right)))
            return false;
        size_t from = take_right ? j++ : i++;
        spare[2 * k] = keys[from];
        spare[2 * k + 1] = items[from];
    }
    for (size_t k = 0; k < n; k++) {
        keys[k] = spare[2 * k];
        items[k] = spare[2 * k + 1];
    }
    return true;
}

bool mxc_j_sort(struct mxc_jrun *run, struct mxc_jval *keys, struct mxc_jval *items, size_t n,
                bool reverse) {
    if (n < 2)
        return true;
    struct mxc_jval *spare = mxc_j_alloc(run, n, 2 * sizeof *spare);
    return spare && merge_sort(run, keys, items, n, reverse, spare);
}

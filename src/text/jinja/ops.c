/* Operators: arithmetic, concatenation, repetition and slices with Python's rules.
 * In: one or two values. Out: a value, or Python's error by name. Numbers and lists are the user's
 * if an operand was; strings know it byte by byte.
 * Integers have 64 bits; a result that does not fit is an error instead of a bignum. // and % round
 * toward minus infinity, / is always a float. Repetition and slices cost a step per item, so short
 * templates cannot make huge values. */
#include "text/jinja/run.h"

#include <math.h>
#include <string.h>

static const char *op_name(int op) {
    switch (op) {
    case '+':
        return "+";
    case '-':
        return "-";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    case MJ_OP_FLOORDIV:
        return "//";
    default:
        return "** or pow()";
    }
}

static bool overflow(struct mxc_jrun *run) {
    return mxc_j_fail(run, "OverflowError", "an integer does not fit in 64 bits");
}

static bool int_pow(struct mxc_jrun *run, int64_t base, int64_t exponent, struct mxc_jval *out) {
    if (exponent < 0) {
        if (!base)
            return mxc_j_fail(run, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
        *out = mxc_j_float(pow((double)base, (double)exponent));
        return true;
    }
    int64_t result = 1;
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return overflow(run);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return overflow(run);
    }
    *out = mxc_j_int(result);
    return true;
}

static bool int_op(struct mxc_jrun *run, int op, int64_t a, int64_t b, struct mxc_jval *out) {
    int64_t r = 0;
    switch (op) {
    case '+':
        if (__builtin_add_overflow(a, b, &r))
            return overflow(run);
        break;
    case '-':
        if (__builtin_sub_overflow(a, b, &r))
            return overflow(run);
        break;
    case '*':
        if (__builtin_mul_overflow(a, b, &r))
            return overflow(run);
        break;
    case MJ_OP_POW:
        return int_pow(run, a, b, out);
    default:
        if (!b)
            return mxc_j_fail(run, "ZeroDivisionError",
                              op == '/' ? "division by zero"
                                        : "integer division or modulo by zero");
        if (op == '/') {
            *out = mxc_j_float((double)a / (double)b);
            return true;
        }
        if (b == -1) {
            if (op == MJ_OP_FLOORDIV && a == INT64_MIN)
                return overflow(run);
            r = op == '%' ? 0 : -a;
            break;
        }
        r = op == '%' ? a % b : a / b;
        bool adjust = a % b != 0 && (a < 0) != (b < 0); /* round toward minus infinity */
        if (adjust)
            r = op == '%' ? r + b : r - 1;
    }
    *out = mxc_j_int(r);
    return true;
}

static bool float_op(struct mxc_jrun *run, int op, double a, double b, struct mxc_jval *out) {
    bool zero = !(b < 0) && !(b > 0) && !isnan(b);
    double r;
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case MJ_OP_POW:
        if (a < 0 && floor(b) < b)
            return mxc_j_fail(run, "TypeError", "complex numbers are not supported");
        if (!(a < 0) && !(a > 0) && b < 0)
            return mxc_j_fail(run, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
        r = pow(a, b);
        if (isinf(r) && !isinf(a) && !isinf(b))
            return mxc_j_fail(run, "OverflowError", "Numerical result out of range");
        break;
    default:
        if (zero)
            return mxc_j_fail(run, "ZeroDivisionError", "float division by zero");
        if (op == '/') {
            r = a / b;
            break;
        }
        double mod = fmod(a, b);
        if (mod < 0 || mod > 0) {
            if ((b < 0) != (mod < 0))
                mod += b;
        } else {
            mod = copysign(0.0, b);
        }
        if (op == '%') {
            r = mod;
            break;
        }
        r = (a - mod) / b;
        double whole = floor(r);
        r = r - whole > 0.5 ? whole + 1 : whole;
    }
    *out = mxc_j_float(r);
    return true;
}

static bool repeat(struct mxc_jrun *run, struct mxc_jval v, int64_t times, struct mxc_jval *out) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (v.type == MJ_STR) {
        struct mxc_jsb sb;
        mxc_j_sb_init(&sb, run);
        for (size_t i = 0; i < n && v.u.s->len; i++)
            if (!mxc_j_step(run, 1) || !mxc_j_put_str(&sb, v.u.s))
                return false;
        if (!mxc_j_sb_done(&sb, out))
            return false;
        out->u.s->markup = v.u.s->markup;
        return true;
    }
    struct mxc_jval list;
    if (!mxc_j_seq(run, v.type == MJ_LIST ? MJ_LIST : MJ_TUPLE, 0, &list))
        return false;
    for (size_t i = 0; i < n && v.u.q->n; i++)
        for (size_t k = 0; k < v.u.q->n; k++)
            if (!mxc_j_step(run, 1) || !mxc_j_push(run, list.u.q, v.u.q->v[k]))
                return false;
    list.u.q->user = v.u.q->user;
    *out = list;
    return true;
}

static bool concat(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b,
                   struct mxc_jval *out) {
    if (a.type == MJ_STR) {
        bool markup = a.u.s->markup || b.u.s->markup;
        if (markup && (!mxc_j_escape(run, a, false, &a) || !mxc_j_escape(run, b, false, &b)))
            return false;
        if (!mxc_j_str_concat(run, a.u.s, b.u.s, out))
            return false;
        if (markup && !out->u.s->markup) {
            if (!mxc_j_str_part(run, out->u.s, 0, out->u.s->len, out))
                return false;
            out->u.s->markup = true;
        }
        return true;
    }
    struct mxc_jval list;
    if (!mxc_j_step(run, a.u.q->n + b.u.q->n) ||
        !mxc_j_seq(run, a.type == MJ_LIST ? MJ_LIST : MJ_TUPLE, a.u.q->n + b.u.q->n, &list))
        return false;
    if (a.u.q->n)
        memcpy(list.u.q->v, a.u.q->v, a.u.q->n * sizeof *list.u.q->v);
    if (b.u.q->n)
        memcpy(list.u.q->v + a.u.q->n, b.u.q->v, b.u.q->n * sizeof *list.u.q->v);
    list.u.q->n = a.u.q->n + b.u.q->n;
    list.u.q->user = a.u.q->user || b.u.q->user;
    *out = list;
    return true;
}

bool mxc_j_binary(struct mxc_jrun *run, int op, struct mxc_jval a, struct mxc_jval b,
                  struct mxc_jval *out) {
    if (op == '%' && a.type == MJ_STR)
        return mxc_j_percent(run, a.u.s, b, out);
    if (a.type == MJ_UNDEF || b.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, a.type == MJ_UNDEF ? a : b);
    if (mxc_j_is_number(a) && mxc_j_is_number(b)) {
        bool ok = a.type == MJ_FLOAT || b.type == MJ_FLOAT
                      ? float_op(run, op, mxc_j_as_float(a), mxc_j_as_float(b), out)
                      : int_op(run, op, mxc_j_as_int(a), mxc_j_as_int(b), out);
        if (ok)
            out->user = a.user || b.user;
        return ok;
    }
    bool a_seq = a.type == MJ_STR || a.type == MJ_LIST || a.type == MJ_TUPLE;
    bool b_seq = b.type == MJ_STR || b.type == MJ_LIST || b.type == MJ_TUPLE;
    if (op == '+' && a_seq && a.type == b.type)
        return concat(run, a, b, out);
    if (op == '*' && a_seq && mxc_j_is_int(b))
        return repeat(run, a, mxc_j_as_int(b), out);
    if (op == '*' && b_seq && mxc_j_is_int(a))
        return repeat(run, b, mxc_j_as_int(a), out);
    if (op == '+' && a_seq)
        return mxc_j_fail(run, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                          mxc_j_type_name(a), mxc_j_type_name(b), mxc_j_type_name(a));
    return mxc_j_fail(run, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
                      op_name(op), mxc_j_type_name(a), mxc_j_type_name(b));
}

bool mxc_j_unary(struct mxc_jrun *run, int op, struct mxc_jval a, struct mxc_jval *out) {
    if (op == '!') {
        *out = mxc_j_bool(!mxc_j_truth(a));
        return true;
    }
    if (a.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, a);
    if (!mxc_j_is_number(a))
        return mxc_j_fail(run, "TypeError", "bad operand type for unary %c: '%s'", op,
                          mxc_j_type_name(a));
    if (a.type == MJ_FLOAT) {
        *out = mxc_j_float(op == '-' ? -a.u.f : a.u.f);
    } else {
        int64_t i = mxc_j_as_int(a);
        if (op == '-' && i == INT64_MIN)
            return overflow(run);
        *out = mxc_j_int(op == '-' ? -i : i);
    }
    out->user = a.user;
    return true;
}

static bool slice_index(struct mxc_jrun *run, struct mxc_jval v, int64_t *out) {
    if (v.type == MJ_NONE || v.type == MJ_MISSING)
        return true;
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    if (!mxc_j_is_int(v))
        return mxc_j_fail(run, "TypeError",
                          "slice indices must be integers or None or have an __index__ method");
    *out = mxc_j_as_int(v);
    return true;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high) {
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

bool mxc_j_slice(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jval part[3],
                 struct mxc_jval *out) {
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    if (v.type == MJ_DICT)
        return mxc_j_fail(run, "TypeError", "unhashable type: 'slice'");
    if (v.type != MJ_STR && v.type != MJ_LIST && v.type != MJ_TUPLE && v.type != MJ_RANGE)
        return mxc_j_fail(run, "TypeError", "'%s' object is not subscriptable", mxc_j_type_name(v));
    size_t length;
    int64_t step = 1;
    if (!mxc_j_length(run, v, &length) || !slice_index(run, part[2], &step))
        return false;
    if (!step)
        return mxc_j_fail(run, "ValueError", "slice step cannot be zero");
    int64_t n = (int64_t)length, start = step > 0 ? 0 : INT64_MAX, stop = step > 0 ? INT64_MAX : 0;
    bool has_stop = part[1].type != MJ_NONE && part[1].type != MJ_MISSING;
    if (!slice_index(run, part[0], &start) || !slice_index(run, part[1], &stop))
        return false;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    start = clamp(start, n, low, high);
    stop = step < 0 && !has_stop ? -1 : clamp(stop, n, low, high);
    if (v.type == MJ_STR && step == 1) {
        if (stop < start)
            stop = start;
        if (!mxc_j_step(run, length / 64))
            return false;
        size_t from = mxc_j_str_offset(v.u.s, (size_t)start);
        size_t to = mxc_j_str_offset(v.u.s, (size_t)stop);
        return mxc_j_str_part(run, v.u.s, from, to - from, out);
    }
    int64_t last = stop;
    size_t count = 0;
    if (step > 0 ? start < last : start > last)
        count = step > 0 ? (size_t)((last - start - 1) / step) + 1
                         : (size_t)((start - last - 1) / -(step < -n - 1 ? -n - 1 : step)) + 1;
    if (step < -n - 1)
        step = -n - 1; /* one item at most either way; keeps the products small */
    if (v.type == MJ_RANGE) {
        const struct mxc_jrange *r = v.u.range;
        struct mxc_jrange *part_of = mxc_j_alloc(run, 1, sizeof *part_of);
        if (!part_of)
            return false;
        if (step > n + 1)
            step = n + 1;
        *part_of = (struct mxc_jrange){r->start + start * r->step, r->start + stop * r->step,
                                       r->step * step, count};
        *out = mxc_j_of(MJ_RANGE, part_of);
        return true;
    }
    struct mxc_jsb sb;
    struct mxc_jval list = {0}, item;
    mxc_j_sb_init(&sb, run);
    if (v.type != MJ_STR && !mxc_j_seq(run, v.type == MJ_LIST ? MJ_LIST : MJ_TUPLE, count, &list))
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t index = (size_t)(start + (int64_t)i * step);
        if (!mxc_j_step(run, 1) || !mxc_j_item(run, v, index, &item) ||
            !(v.type == MJ_STR ? mxc_j_put_str(&sb, item.u.s) : mxc_j_push(run, list.u.q, item)))
            return false;
    }
    if (v.type == MJ_STR) {
        if (!mxc_j_sb_done(&sb, out))
            return false;
        out->u.s->markup = v.u.s->markup;
        return true;
    }
    list.u.q->user = v.u.q->user;
    *out = list;
    return true;
}

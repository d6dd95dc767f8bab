/* Expression tests (x is NAME), in one table with the number of their arguments.
 * In: the value and the test's arguments. Out: a truth value, or false with the run's error.
 * Tests of type cannot fail and accept undefined values. Comparisons share value.c's rules with the
 * operators, so "a is eq b" and "a == b" cannot differ. An argument may be named by any of the
 * keywords that Jinja2's tests use. */
#include "text/jinja/run.h"

#define TEST(name) static bool name(struct mxc_jrun *run, const struct mxc_jval *a, bool *out)
#define TYPE_TEST(name, condition)                                                                 \
    TEST(name) {                                                                                   \
        (void)run;                                                                                 \
        *out = (condition);                                                                        \
        return true;                                                                               \
    }

TYPE_TEST(t_defined, a->type != MJ_UNDEF)
TYPE_TEST(t_undefined, a->type == MJ_UNDEF)
TYPE_TEST(t_none, a->type == MJ_NONE)
TYPE_TEST(t_boolean, a->type == MJ_BOOL)
TYPE_TEST(t_true, a->type == MJ_BOOL && a->u.b)
TYPE_TEST(t_false, a->type == MJ_BOOL && !a->u.b)
TYPE_TEST(t_integer, a->type == MJ_INT)
TYPE_TEST(t_float, a->type == MJ_FLOAT)
TYPE_TEST(t_number, mxc_j_is_number(*a))
TYPE_TEST(t_string, a->type == MJ_STR)
TYPE_TEST(t_mapping, a->type == MJ_DICT)
TYPE_TEST(t_iterable, mxc_j_iterable(*a) || a->type == MJ_LOOP)
TYPE_TEST(t_escaped, a->type == MJ_STR && a->u.s->markup)
TYPE_TEST(t_sequence, a->type == MJ_UNDEF || a->type == MJ_STR || a->type == MJ_LIST ||
                          a->type == MJ_TUPLE || a->type == MJ_DICT || a->type == MJ_RANGE)
TYPE_TEST(t_callable, a->type == MJ_MACRO || a->type == MJ_FUNC || a->type == MJ_METHOD ||
                          a->type == MJ_JOINER || a->type == MJ_LOOP || a->type == MJ_UNDEF)

TEST(t_filter) {
    *out = a->type == MJ_STR &&
           mxc_j_find_filter(mxc_j_slice_of(a->u.s), run->jinja->from_json) != NULL;
    return true;
}

TEST(t_test) {
    (void)run;
    *out = a->type == MJ_STR && mxc_j_find_test(mxc_j_slice_of(a->u.s)) != NULL;
    return true;
}

static bool remainder_is(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval by,
                         int64_t wanted, bool *out) {
    struct mxc_jval rest;
    return mxc_j_binary(run, '%', v, by, &rest) && mxc_j_equal(run, rest, mxc_j_int(wanted), out);
}

TEST(t_odd) {
    return remainder_is(run, *a, mxc_j_int(2), 1, out);
}
TEST(t_even) {
    return remainder_is(run, *a, mxc_j_int(2), 0, out);
}
TEST(t_divisible) {
    return remainder_is(run, a[0], a[1], 0, out);
}

static bool case_is(struct mxc_jrun *run, struct mxc_jval v, bool upper, bool *out) {
    if (!mxc_j_to_str(run, v, &v))
        return false;
    bool cased = false, yes = true;
    for (size_t i = 0, n; i < v.u.s->len && yes; i += n) {
        uint32_t cp;
        n = mxc_j_decode(v.u.s->p + i, v.u.s->len - i, &cp);
        bool is_upper = mxc_j_is_upper(cp), is_lower = mxc_j_is_lower(cp);
        yes = !mxc_j_is_title(cp) && !(upper ? is_lower : is_upper);
        cased |= is_upper || is_lower;
    }
    *out = yes && cased;
    return mxc_j_step(run, v.u.s->len / 16);
}

TEST(t_lower) {
    return case_is(run, *a, false, out);
}
TEST(t_upper) {
    return case_is(run, *a, true, out);
}

TEST(t_same) {
    (void)run;
    if (a[0].type != a[1].type)
        *out = false;
    else if (a[0].type == MJ_BOOL)
        *out = a[0].u.b == a[1].u.b;
    else if (a[0].type == MJ_INT)
        *out = a[0].u.i == a[1].u.i;
    else
        *out = a[0].type == MJ_NONE || (a[0].type != MJ_FLOAT && a[0].u.p == a[1].u.p);
    return true;
}

TEST(t_in) {
    return mxc_j_contains(run, a[1], a[0], out);
}
TEST(t_eq) {
    return mxc_j_equal(run, a[0], a[1], out);
}
TEST(t_ne) {
    if (!mxc_j_equal(run, a[0], a[1], out))
        return false;
    *out = !*out;
    return true;
}
TEST(t_gt) {
    return mxc_j_order(run, a[0], a[1], '>', out);
}
TEST(t_ge) {
    return mxc_j_order(run, a[0], a[1], 'g', out);
}
TEST(t_lt) {
    return mxc_j_order(run, a[0], a[1], '<', out);
}
TEST(t_le) {
    return mxc_j_order(run, a[0], a[1], 'l', out);
}

static const struct mxc_jtest table[] = {{"defined", 0, t_defined},
                                         {"undefined", 0, t_undefined},
                                         {"none", 0, t_none},
                                         {"boolean", 0, t_boolean},
                                         {"true", 0, t_true},
                                         {"false", 0, t_false},
                                         {"integer", 0, t_integer},
                                         {"float", 0, t_float},
                                         {"number", 0, t_number},
                                         {"string", 0, t_string},
                                         {"mapping", 0, t_mapping},
                                         {"iterable", 0, t_iterable},
                                         {"sequence", 0, t_sequence},
                                         {"callable", 0, t_callable},
                                         {"escaped", 0, t_escaped},
                                         {"filter", 0, t_filter},
                                         {"test", 0, t_test},
                                         {"odd", 0, t_odd},
                                         {"even", 0, t_even},
                                         {"divisibleby", 1, t_divisible},
                                         {"lower", 0, t_lower},
                                         {"upper", 0, t_upper},
                                         {"sameas", 1, t_same},
                                         {"in", 1, t_in},
                                         {"eq", 1, t_eq},
                                         {"equalto", 1, t_eq},
                                         {"==", 1, t_eq},
                                         {"ne", 1, t_ne},
                                         {"!=", 1, t_ne},
                                         {"gt", 1, t_gt},
                                         {"greaterthan", 1, t_gt},
                                         {">", 1, t_gt},
                                         {"ge", 1, t_ge},
                                         {">=", 1, t_ge},
                                         {"lt", 1, t_lt},
                                         {"lessthan", 1, t_lt},
                                         {"<", 1, t_lt},
                                         {"le", 1, t_le},
                                         {"<=", 1, t_le}};

const struct mxc_jtest *mxc_j_find_test(struct mxc_str name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mxc_str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

bool mxc_j_call_test(struct mxc_jrun *run, const struct mxc_jtest *test, struct mxc_jval v,
                     const struct mxc_jargs *args, bool *out) {
    static const char *const keyword[] = {"other", "num", "seq"};
    struct mxc_jval slots[2] = {v, {0}};
    if (!mxc_j_step(run, 1) || !mxc_j_stack(run))
        return false;
    size_t given = args->n;
    if (args->n)
        slots[1] = args->v[0];
    for (size_t i = 0; i < args->n_kw; i++)
        for (size_t k = 0; k < 3; k++)
            if (mxc_j_is(args->kw[i].name, keyword[k])) {
                slots[1] = args->kw[i].v;
                given++;
            }
    if (given != test->n_args || (args->n_kw && args->n))
        return mxc_j_fail(run, "TypeError", "test '%s' takes %zu arguments (%zu given)", test->name,
                          test->n_args, args->n + args->n_kw);
    return test->fn(run, slots, out);
}

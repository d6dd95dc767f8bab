/* Numbers between bounds, exactly: an automaton that reads decimal digits and compares them with
 * the digits of the bounds as it goes.
 * In: bounds as decimals, how many digits may follow the point, a divisor for integers. Out: a
 * graph of byte edges.
 * Invariants: no exponents, no leading zeros; a text is accepted exactly when its value lies within
 * the bounds (and is a multiple). Where a bound is missing, numbers have at most 16 digits before
 * the point, or as many as the other bound. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INT = 40, FREE_DIGITS = 16, MAX_FRAC = 15, MAX_DIVISOR = 4096 };
#define NO_STATE UINT32_MAX

bool mxc_grammar_decimal_of_int(int64_t value, struct mxc_gdecimal *out) {
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *out = (struct mxc_gdecimal){.negative = value < 0};
    (void)snprintf(out->digits, sizeof out->digits, "%llu", (unsigned long long)magnitude);
    return true;
}

bool mxc_grammar_decimal_of(double value, struct mxc_gdecimal *out) {
    char text[64], digits[64];
    struct mxc_gdecimal d = {.negative = value < 0};
    double back = 0;
    size_t n = 0;
    if (!isfinite(value))
        return false;
    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        if (mxc_parse_f64(text, &back) && back == fabs(value))
            break;
    }
    const char *e = strchr(text, 'e');
    int64_t exponent;
    if (!e || !mxc_parse_i64(e[1] == '+' ? e + 2 : e + 1, &exponent))
        return false;
    for (const char *c = text; c < e; c++)
        if (*c != '.')
            digits[n++] = *c;
    exponent -= (int64_t)n - 1; /* value = digits * 10^exponent */
    while (n > 1 && digits[n - 1] == '0') {
        n--;
        exponent++;
    }
    if (exponent > 0) {
        if (n + (size_t)exponent >= sizeof d.digits)
            return false;
        memset(digits + n, '0', (size_t)exponent);
        n += (size_t)exponent;
        exponent = 0;
    }
    if (exponent < -MAX_FRAC || n >= sizeof d.digits)
        return false;
    d.n_frac = (int32_t)-exponent;
    memcpy(d.digits, digits, n);
    d.digits[n] = 0;
    if (n == 1 && digits[0] == '0')
        d = (struct mxc_gdecimal){.digits = "0"};
    *out = d;
    return true;
}

/* ---- one sign */

struct side {
    char whole[MAX_INT + 8], frac[MAX_INT + 8]; /* without leading, trailing zeros; whole "0" */
    int n_whole, n_frac;
    bool excluded;
};

static void side_of(const struct mxc_gdecimal *d, bool excluded, struct side *out) {
    int n = (int)strlen(d->digits), whole = n - d->n_frac;
    *out = (struct side){.excluded = excluded};
    if (whole > 0)
        memcpy(out->whole, d->digits, (size_t)whole);
    else
        out->whole[0] = '0';
    out->n_whole = whole > 0 ? whole : 1;
    for (int i = whole; i < n; i++) {
        out->frac[out->n_frac++] = '0';
        if (i >= 0)
            out->frac[out->n_frac - 1] = d->digits[i];
    }
    while (out->n_frac && out->frac[out->n_frac - 1] == '0')
        out->n_frac--;
}

static int frac_digit(const struct side *s, int at) {
    return at < s->n_frac ? s->frac[at] : '0';
}

struct counter {
    struct mxc_grammar_builder *b;
    struct mxc_gedges *edges;
    const struct side *lo, *hi;
    int32_t digit[10], any, point;
    int n_frac;
    int64_t divisor;   /* 1: none */
    uint32_t *free_of; /* [FREE + 1][divisor] states with digits left to read, not at a bound */
    int max_whole;
    uint32_t frac_of[MAX_FRAC + 2][2][2];
};

static uint32_t state_new(struct counter *c) {
    return c->edges->n_states++;
}

static uint32_t frac_state(struct counter *c, int at, bool lo, bool hi) {
    uint32_t *known = &c->frac_of[at][lo][hi];
    if (*known != NO_STATE || mxc_grammar_failed(c->b))
        return *known;
    uint32_t s = *known = state_new(c);
    bool done = at && (!lo || (at >= c->lo->n_frac && !c->lo->excluded)) &&
                (!hi || !c->hi->excluded || at < c->hi->n_frac);
    if (done)
        mxc_grammar_edge(c->b, c->edges, s, -1, 1);
    if (at == c->n_frac)
        return s;
    if (!lo && !hi) {
        mxc_grammar_edge(c->b, c->edges, s, c->any, frac_state(c, at + 1, false, false));
        return s;
    }
    for (int d = '0'; d <= '9'; d++) {
        if ((lo && d < frac_digit(c->lo, at)) || (hi && d > frac_digit(c->hi, at)))
            continue;
        mxc_grammar_edge(c->b, c->edges, s, c->digit[d - '0'],
                         frac_state(c, at + 1, lo && d == frac_digit(c->lo, at),
                                    hi && d == frac_digit(c->hi, at)));
    }
    return s;
}

/* All digits before the point are read. */
static void whole_done(struct counter *c, uint32_t s, bool lo, bool hi, int64_t rest) {
    bool done = !rest && (!lo || (!c->lo->n_frac && !c->lo->excluded)) &&
                (!hi || !c->hi->excluded || c->hi->n_frac);
    if (done)
        mxc_grammar_edge(c->b, c->edges, s, -1, 1);
    if (c->n_frac)
        mxc_grammar_edge(c->b, c->edges, s, c->point, frac_state(c, 0, lo, hi));
}

/* State with `left` digits before the point still to read, of a number of n; at the lower or upper
 * bound's own digits so far, or free. */
static uint32_t whole_state(struct counter *c, int n, int left, bool lo, bool hi, int64_t rest) {
    uint32_t *known = NULL;
    if (mxc_grammar_failed(c->b))
        return 0;
    bool free_first = left == n; /* the first digit is no zero */
    if (!lo && !hi && !free_first) {
        known = &c->free_of[(int64_t)left * c->divisor + rest];
        if (*known != NO_STATE)
            return *known;
    }
    uint32_t s = state_new(c);
    if (known)
        *known = s;
    if (!left) {
        whole_done(c, s, lo, hi, rest);
        return s;
    }
    bool plain = !lo && !hi && c->divisor == 1 && !free_first;
    if (plain) {
        mxc_grammar_edge(c->b, c->edges, s, c->any, whole_state(c, n, left - 1, false, false, 0));
        return s;
    }
    for (int d = free_first && n > 1 ? '1' : '0'; d <= '9'; d++) {
        int at = n - left;
        if ((lo && d < c->lo->whole[at]) || (hi && d > c->hi->whole[at]))
            continue;
        mxc_grammar_edge(c->b, c->edges, s, c->digit[d - '0'],
                         whole_state(c, n, left - 1, lo && d == c->lo->whole[at],
                                     hi && d == c->hi->whole[at],
                                     (rest * 10 + d - '0') % c->divisor));
    }
    return s;
}

static int compare(const struct side *a, const struct side *b) {
    if (a->n_whole != b->n_whole)
        return a->n_whole < b->n_whole ? -1 : 1;
    int order = memcmp(a->whole, b->whole, (size_t)a->n_whole);
    for (int i = 0; !order && (i < a->n_frac || i < b->n_frac); i++)
        order = frac_digit(a, i) - frac_digit(b, i);
    return order;
}

/* Magnitudes from lo to hi, from state `from` on. */
static void magnitudes(struct mxc_grammar_builder *b, struct mxc_gedges *edges, uint32_t from,
                       const struct side *lo, const struct side *hi, int n_frac, int64_t divisor) {
    struct counter c = {.b = b, .edges = edges, .lo = lo, .hi = hi, .n_frac = n_frac};
    if (compare(lo, hi) > 0)
        return;
    c.divisor = divisor;
    size_t n_free = ((size_t)hi->n_whole + 1) * (size_t)divisor;
    c.free_of = mxc_mem_array(n_free, sizeof *c.free_of);
    if (!c.free_of) {
        (void)mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n_free; i++)
        c.free_of[i] = NO_STATE;
    memset(c.frac_of, 0xff, sizeof c.frac_of);
    for (int d = 0; d < 10; d++)
        c.digit[d] = mxc_grammar_add_byte(b, (uint8_t)('0' + d), (uint8_t)('0' + d));
    c.any = mxc_grammar_add_byte(b, '0', '9');
    c.point = mxc_grammar_add_byte(b, '.', '.');
    for (int n = lo->n_whole; n <= hi->n_whole && !mxc_grammar_failed(b); n++)
        mxc_grammar_edge(b, edges, from, -1,
                         whole_state(&c, n, n, n == lo->n_whole, n == hi->n_whole, 0));
    mxc_mem_free(c.free_of);
}

static void no_bound(struct side *s, int n_whole, int n_frac) {
    *s = (struct side){.n_whole = n_whole, .n_frac = n_frac};
    memset(s->whole, '9', (size_t)n_whole);
    memset(s->frac, '9', (size_t)n_frac);
}

int32_t mxc_grammar_add_range(struct mxc_grammar_builder *b, const struct mxc_grange *r,
                              const char *where) {
    struct side min, max, lo, hi, zero = {.whole = "0", .n_whole = 1};
    struct mxc_gedges edges;
    int64_t divisor = r->multiple_of ? r->multiple_of : 1;
    if (divisor > MAX_DIVISOR)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "%s: multipleOf %lld; the limit is %d", where,
                                (long long)divisor, MAX_DIVISOR);
    side_of(&r->min, r->min_excluded, &min);
    side_of(&r->max, r->max_excluded, &max);
    int digits = FREE_DIGITS;
    if (r->has_min && min.n_whole > digits)
        digits = min.n_whole;
    if (r->has_max && max.n_whole > digits)
        digits = max.n_whole;
    if (digits > MAX_INT)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "%s: a bound of %d digits; the limit is %d", where,
                                digits, MAX_INT);
    /* With fractions, no more digits than a double tells apart: the bounds hold for readers that
     * compare doubles. */
    int whole = 1;
    if (r->has_min && min.n_whole > whole)
        whole = min.n_whole;
    if (r->has_max && max.n_whole > whole)
        whole = max.n_whole;
    int n_frac = r->n_frac;
    if (n_frac > MAX_FRAC - whole)
        n_frac = MAX_FRAC - whole > 0 ? MAX_FRAC - whole : 0;
    if (n_frac < r->n_frac && (min.n_frac > n_frac || max.n_frac > n_frac))
        return mxc_grammar_fail(b, MXC_E_UNSUPPORTED,
                                "%s: a bound with more than %d digits behind the point", where,
                                n_frac);
    mxc_grammar_edges_init(&edges);
    bool min_negative = !r->has_min || r->min.negative;
    bool max_negative = r->has_max && r->max.negative;
    if (!max_negative) { /* 0 and more */
        lo = r->has_min && !r->min.negative ? min : zero;
        if (r->has_max)
            hi = max;
        else
            no_bound(&hi, digits, n_frac);
        magnitudes(b, &edges, 0, &lo, &hi, n_frac, divisor);
    }
    if (min_negative) { /* less than 0, behind a minus sign */
        uint32_t minus = edges.n_states++;
        lo = max_negative ? max : zero;
        lo.excluded = max_negative ? max.excluded : true; /* no -0 */
        if (r->has_min)
            hi = min;
        else
            no_bound(&hi, digits, n_frac);
        mxc_grammar_edge(b, &edges, 0, mxc_grammar_add_byte(b, '-', '-'), minus);
        magnitudes(b, &edges, minus, &lo, &hi, n_frac, divisor);
    }
    return mxc_grammar_edges_finish(b, &edges);
}

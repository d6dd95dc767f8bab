/* Strings and numbers of a JSON Schema: lengths, patterns, formats, bounds.
 * Out: nodes. Equal strings become one rule, so that their token masks are shared.
 * Invariants: lengths count characters (code points); pattern and format hold for the string's
 * value, so their texts are escaped where JSON wants it; bounds hold exactly. */
#include "gen/grammar/schema.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

#define SECOND  "[0-5][0-9]"
#define CLOCK   "(?:[01][0-9]|2[0-3]):" SECOND ":" SECOND
#define ZONE    "(?:Z|[+-](?:[01][0-9]|2[0-3]):" SECOND ")"
#define LEAP_YY "(?:0[48]|[2468][048]|[13579][26])"
#define DATE                                                                                       \
    "(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"                            \
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"                          \
    "(?:[12][0-9]" LEAP_YY "|(?:1[26]|2[048])00)-02-29)"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
#define HOST  LABEL "(?:\\." LABEL "){0,6}"
#define H16   "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16 "){2}|"        \
    "(?:" H16 ":){1,4}(?::" H16 "){3}|(?:" H16 ":){1,3}(?::" H16 "){4}|"                           \
    "(?:" H16 ":){1,2}(?::" H16 "){5}|" H16 ":(?::" H16 "){6}|::(?:" H16 "(?::" H16                \
    "){0,6})?|(?:" H16 ":){1,7}:)"
#define WORD "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"

static const struct {
    const char *name, *pattern; /* NULL: says nothing about the text */
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" CLOCK "(?:\\.[0-9]{1,6})?" ZONE "$"},
    {"date-time", "^" DATE "T" CLOCK "(?:\\.[0-9]{1,6})?" ZONE "$"},
    {"duration", "^P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,2}M(?:[0-9]{1,3}D)?)?|"
                 "[0-9]{1,3}M(?:[0-9]{1,3}D)?|[0-9]{1,4}D)(?:T(?:[0-9]{1,3}H(?:[0-9]{1,2}M"
                 "(?:[0-9]{1,2}S)?)?|[0-9]{1,3}M(?:[0-9]{1,2}S)?|[0-9]{1,4}S))?|T(?:[0-9]{1,3}H"
                 "(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,3}M(?:[0-9]{1,2}S)?|[0-9]{1,4}S))$"},
    {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"email", "^" WORD "(?:\\." WORD "){0,3}@" LABEL "(?:\\." LABEL "){1,4}$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
    {"ipv6", "^" IPV6 "$"},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]{0,15}://" HOST "(?::[0-9]{1,4})?"
            "(?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]{0,64}){0,16}"
            "(?:\\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]{0,128})?"
            "(?:#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]{0,64})?$"},
    {"password", NULL},
};

static bool find_format(struct mxc_schema *s, const json_t *value, const char **pattern) {
    const char *name = json_string_value(value);
    if (!name) {
        (void)mxc_schema_fail(s, MXC_E_ARG, "format is not a text");
        return false;
    }
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name)) {
            *pattern = formats[i].pattern;
            return true;
        }
    (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED, "the format %.60s of strings is not supported",
                          name);
    return false;
}

static int32_t pattern_node(struct mxc_schema *s, struct mxc_str pattern, const char *key) {
    char where[300];
    size_t mark = mxc_schema_enter(s, key, NULL, -1);
    struct mxc_str path = mxc_str_of(mxc_schema_where(s));
    if (path.length > 200)
        path.length = 200;
    memcpy(where, "schema, ", 8);
    memcpy(where + 8, path.ptr, path.length);
    where[8 + path.length] = 0;
    int32_t node = mxc_grammar_add_pattern(s->b, pattern, MXC_GREGEX_JSON, where);
    mxc_schema_leave(s, mark);
    return node;
}

static int32_t content(struct mxc_schema *s, struct mxc_str pattern, const char *format,
                       int64_t min, int64_t max) {
    struct mxc_grammar_builder *b = s->b;
    int32_t node = pattern.ptr ? pattern_node(s, pattern, "pattern") : -1;
    if (format) {
        int32_t form = pattern_node(s, mxc_str_of(format), "format");
        node = node < 0 ? form : mxc_grammar_add_and(b, node, form);
    }
    if (node >= 0 && !min && max < 0)
        return node;
    int32_t length =
        mxc_grammar_add_repeat(b, mxc_grammar_add_json_any_char(b), (int32_t)min, (int32_t)max);
    return node < 0 ? length : mxc_grammar_add_and(b, length, node);
}

int32_t mxc_schema_string(struct mxc_schema *s, const json_t *schema) {
    struct mxc_grammar_builder *b = s->b;
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *form = json_object_get(schema, "format");
    const char *format = NULL;
    int64_t min = 0, max = -1;
    struct mxc_buf key;
    uint64_t rule;
    if (!mxc_schema_count(s, schema, "minLength", &min) ||
        !mxc_schema_count(s, schema, "maxLength", &max))
        return -1;
    if (pattern && !json_is_string(pattern))
        return mxc_schema_fail(s, MXC_E_ARG, "pattern is not a text");
    if (form && !find_format(s, form, &format))
        return -1;
    if (max > MXC_GRAMMAR_MAX_REPEAT) /* shorter texts satisfy it as well */
        max = MXC_GRAMMAR_MAX_REPEAT;
    if (min > MXC_GRAMMAR_MAX_REPEAT)
        return mxc_schema_fail(s, MXC_E_LIMIT, "minLength %lld; the limit is %d", (long long)min,
                               MXC_GRAMMAR_MAX_REPEAT);
    if (max >= 0 && min > max)
        return mxc_schema_fail(s, MXC_E_ARG, "minLength %lld is more than maxLength %lld",
                               (long long)min, (long long)max);
    if (!pattern && !format && !min && max < 0)
        return mxc_grammar_json_shared(b, MXC_G_JSON_STRING);
    struct mxc_str text = {json_string_value(pattern), json_string_length(pattern)};
    mxc_buf_init(&key, 2 * MXC_GRAMMAR_MAX_TEXT);
    mxc_buf_printf(&key, "%lld %lld %zu ", (long long)min, (long long)max, text.length);
    mxc_buf_append(&key, text.ptr ? text.ptr : "", text.length);
    mxc_buf_puts(&key, format ? format : "");
    struct mxc_str name = {mxc_buf_text(&key), key.length};
    int32_t node = -1;
    if (key.failed) {
        node = mxc_schema_fail(s, key.full ? MXC_E_LIMIT : MXC_E_NOMEM,
                               key.full ? "a pattern of more than %d bytes" : "out of memory",
                               MXC_GRAMMAR_MAX_TEXT);
    } else if (mxc_map_get(&b->regular, name, &rule)) {
        node = mxc_grammar_add_ref(b, (int32_t)rule);
    } else {
        int32_t quote = mxc_grammar_add_text(b, "\"");
        node = mxc_grammar_add_seq(b, (int32_t[]){quote, content(s, text, format, min, max), quote},
                                   3);
        node = mxc_grammar_add_kept(b, "string", node);
        if (node >= 0 && !mxc_map_put(&b->regular, name, (uint64_t)b->nodes[node].u.rule))
            node = mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    }
    mxc_buf_fini(&key);
    return node;
}

/* ---- numbers */

struct bounds {
    struct mxc_grange range;
    bool any; /* something is bounded */
};

/* One bound; the tighter of two counts. false: failed. */
static bool bound(struct mxc_schema *s, const json_t *schema, const char *key, bool upper,
                  bool excluded, struct bounds *b, double *tightest) {
    const json_t *v = json_object_get(schema, key);
    struct mxc_grange *r = &b->range;
    struct mxc_gdecimal d;
    if (!v || (excluded && json_is_false(v)))
        return true;
    if (!json_is_number(v)) {
        (void)mxc_schema_fail(s, MXC_E_ARG, "%s is not a number", key);
        return false;
    }
    double real = json_number_value(v);
    bool ok = json_is_integer(v) ? mxc_grammar_decimal_of_int(json_integer_value(v), &d)
                                 : mxc_grammar_decimal_of(real, &d);
    if (!ok) {
        (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED, "%s %g cannot be honoured exactly", key, real);
        return false;
    }
    b->any = true;
    bool has = upper ? r->has_max : r->has_min;
    bool tighter = !has || (upper ? real < *tightest : real > *tightest) ||
                   (!(upper ? real > *tightest : real < *tightest) && excluded);
    if (!tighter)
        return true;
    *tightest = real;
    if (upper) {
        r->has_max = true;
        r->max = d;
        r->max_excluded = excluded;
    } else {
        r->has_min = true;
        r->min = d;
        r->min_excluded = excluded;
    }
    return true;
}

static bool all_bounds(struct mxc_schema *s, const json_t *schema, struct bounds *b) {
    double lo = 0, hi = 0;
    return bound(s, schema, "minimum", false, false, b, &lo) &&
           bound(s, schema, "exclusiveMinimum", false, true, b, &lo) &&
           bound(s, schema, "maximum", true, false, b, &hi) &&
           bound(s, schema, "exclusiveMaximum", true, true, b, &hi);
}

/* multipleOf: a whole number, or 0.1, 0.01, ..., which is a number of digits. */
static bool multiple(struct mxc_schema *s, const json_t *schema, bool *integer, struct bounds *b) {
    const json_t *v = json_object_get(schema, "multipleOf");
    double real = json_number_value(v);
    struct mxc_gdecimal d;
    if (!v)
        return true;
    if (!json_is_number(v) || !(real > 0)) {
        (void)mxc_schema_fail(s, MXC_E_ARG, "multipleOf is not a number above 0");
        return false;
    }
    if (real == floor(real) && real < 1e15) {
        *integer = true;
        b->range.multiple_of = (int64_t)real;
        b->any = true;
        return true;
    }
    if (!mxc_grammar_decimal_of(real, &d) || strcmp(d.digits, "1") != 0) {
        (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED, "multipleOf %g is not supported", real);
        return false;
    }
    if (!*integer) /* of integers, any is a multiple of 0.1 */
        b->range.n_frac = d.n_frac;
    b->any = b->any || !*integer;
    return true;
}

static bool number_format(struct mxc_schema *s, const json_t *schema, struct bounds *b) {
    const json_t *form = json_object_get(schema, "format");
    const char *name = json_string_value(form);
    if (!form)
        return true;
    if (name && !strcmp(name, "int32")) {
        json_t *limits = json_pack("{s:I,s:I}", "minimum", (json_int_t)INT32_MIN, "maximum",
                                   (json_int_t)INT32_MAX);
        bool ok = limits && all_bounds(s, limits, b);
        json_decref(limits);
        if (!limits)
            (void)mxc_grammar_fail(s->b, MXC_E_NOMEM, "out of memory");
        return ok;
    }
    if (name && (!strcmp(name, "int64") || !strcmp(name, "float") || !strcmp(name, "double")))
        return true;
    /* a format of strings beside several types */
    if (name && json_is_array(json_object_get(schema, "type")))
        return true;
    (void)mxc_schema_fail(s, MXC_E_UNSUPPORTED, "the format %.60s of numbers is not supported",
                          name ? name : "(no text)");
    return false;
}

int32_t mxc_schema_number(struct mxc_schema *s, const json_t *schema, bool integer) {
    struct bounds b = {.range.n_frac = 15};
    if (!number_format(s, schema, &b) || !all_bounds(s, schema, &b) ||
        !multiple(s, schema, &integer, &b))
        return -1;
    if (!b.any)
        return mxc_grammar_json_shared(s->b, integer ? MXC_G_JSON_INTEGER : MXC_G_JSON_NUMBER);
    if (integer)
        b.range.n_frac = 0;
    return mxc_grammar_add_kept(s->b, integer ? "integer" : "number",
                                mxc_grammar_add_range(s->b, &b.range, mxc_schema_where(s)));
}

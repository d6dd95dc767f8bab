/* Global functions of a template and its clock: range, dict, namespace, cycler, joiner,
 * raise_exception, strftime_now.
 * In: evaluated arguments. Out: a value. range is lazy and bounded as in Jinja2's sandbox; lipsum
 * is refused, since a prompt must be reproducible.
 * strftime is our own, because the C library's follows locale and zone. It reads the run's clock
 * only, so that one render sees one time. */
#include "text/jinja/run.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANGE = 100000 };

#define FUNCTION(name)                                                                             \
    static bool name(struct mxc_jrun *run, const struct mxc_jargs *args, struct mxc_jval *out)

FUNCTION(g_range) {
    int64_t bounds[3] = {0, 0, 1};
    if (args->n_kw || args->n < 1 || args->n > 3)
        return mxc_j_fail(run, "TypeError", "range expected 1 to 3 arguments, got %zu", args->n);
    for (size_t i = 0; i < args->n; i++)
        if (!mxc_j_arg_int(run, args->v[i], &bounds[args->n == 1 ? 1 : i]))
            return false;
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (!step)
        return mxc_j_fail(run, "ValueError", "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    else if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
    if (n > MAX_RANGE)
        return mxc_j_fail(run, "OverflowError",
                          "Range too big. The sandbox blocks ranges larger "
                          "than MAX_RANGE (100000).");
    struct mxc_jrange *range = mxc_j_alloc(run, 1, sizeof *range);
    if (!range)
        return false;
    *range = (struct mxc_jrange){start, stop, step, (size_t)n};
    *out = mxc_j_of(MJ_RANGE, range);
    return true;
}

static bool fill_dict(struct mxc_jrun *run, const char *what, const struct mxc_jargs *args,
                      struct mxc_jdict *d) {
    struct mxc_jval pair, parts;
    struct mxc_jiter *it;
    int more;
    if (args->n > 1)
        return mxc_j_fail(run, "TypeError", "%s expected at most 1 argument, got %zu", what,
                          args->n);
    if (args->n && args->v[0].type == MJ_DICT) {
        const struct mxc_jdict *from = args->v[0].u.d;
        d->user = from->user;
        for (size_t i = 0; i < from->n; i++)
            if (!mxc_j_dict_put(run, d, from->e[i].key, from->e[i].value))
                return false;
    } else if (args->n) {
        if (!mxc_j_iter(run, args->v[0], &it))
            return false;
        while ((more = mxc_j_next(run, it, &pair)) > 0) {
            if (!mxc_j_collect(run, pair, &parts))
                return false;
            if (parts.u.q->n != 2)
                return mxc_j_fail(
                    run, "ValueError",
                    "dictionary update sequence element has length %zu; 2 is required",
                    parts.u.q->n);
            if (!mxc_j_dict_put(run, d, parts.u.q->v[0], parts.u.q->v[1]))
                return false;
        }
        if (more < 0)
            return false;
    }
    for (size_t i = 0; i < args->n_kw; i++)
        if (!mxc_j_dict_put(run, d, mxc_j_str_val(args->kw[i].name), args->kw[i].v))
            return false;
    return true;
}

FUNCTION(g_dict) {
    return mxc_j_dict(run, out) && fill_dict(run, "dict", args, out->u.d);
}

FUNCTION(g_namespace) {
    if (!mxc_j_dict(run, out) || !fill_dict(run, "namespace", args, out->u.d))
        return false;
    out->type = MJ_NS;
    return true;
}

FUNCTION(g_cycler) {
    struct mxc_jcycler *c = mxc_j_alloc(run, 1, sizeof *c);
    if (!args->n || args->n_kw)
        return mxc_j_fail(run, "RuntimeError", "at least one item has to be provided");
    if (!c || !(c->v = mxc_j_alloc(run, args->n, sizeof *c->v)))
        return false;
    memcpy(c->v, args->v, args->n * sizeof *c->v);
    c->n = args->n;
    *out = mxc_j_of(MJ_CYCLER, c);
    return true;
}

FUNCTION(g_joiner) {
    struct mxc_jval slots[MJ_MAX_SLOTS];
    struct mxc_jcycler *c = mxc_j_alloc(run, 1, sizeof *c);
    if (!c || !mxc_j_bind(run, "joiner", "sep", 0, args, slots) ||
        !(c->v = mxc_j_alloc(run, 1, sizeof *c->v)))
        return false;
    c->v[0] = slots[0];
    if (slots[0].type == MJ_MISSING && !mxc_j_text(run, ", ", &c->v[0]))
        return false;
    *out = mxc_j_of(MJ_JOINER, c);
    return true;
}

FUNCTION(g_raise) {
    struct mxc_jval slots[MJ_MAX_SLOTS], text;
    (void)out;
    if (!mxc_j_bind(run, "raise_exception", "message", 1, args, slots) ||
        !mxc_j_to_str(run, slots[0], &text))
        return false;
    return mxc_j_fail(run, "TemplateError", "%.*s",
                      (int)(text.u.s->len < 300 ? text.u.s->len : 300), text.u.s->p);
}

FUNCTION(g_strftime) {
    struct mxc_jval slots[MJ_MAX_SLOTS];
    struct mxc_jstr *format = NULL;
    return mxc_j_bind(run, "strftime_now", "format", 1, args, slots) &&
           mxc_j_arg_str(run, slots[0], &format) && mxc_j_strftime(run, format, &run->now, out);
}

FUNCTION(g_lipsum) {
    (void)args;
    (void)out;
    return mxc_j_fail(run, "TemplateRuntimeError",
                      "lipsum is refused: a prompt must be reproducible");
}

const struct mxc_jfunc mxc_j_funcs[] = {
    {"range", g_range},           {"dict", g_dict},     {"namespace", g_namespace},
    {"cycler", g_cycler},         {"joiner", g_joiner}, {"raise_exception", g_raise},
    {"strftime_now", g_strftime}, {"lipsum", g_lipsum}, {NULL, NULL}};

/* --- strftime in the C locale, with glibc's flags --- */

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};

static int iso_week(const struct tm *tm, int *year) {
    int monday = (tm->tm_wday + 6) % 7, week = (tm->tm_yday - monday + 10) / 7;
    *year = tm->tm_year + 1900;
    int y = *year;
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (week < 1) {
        y = --*year;
        bool leap_before = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
        int yday = tm->tm_yday + 365 + leap_before;
        return (yday - monday + 10) / 7;
    }
    if (week == 53 && tm->tm_yday - monday + 3 >= 365 + leap) {
        ++*year;
        return 1;
    }
    return week;
}

/* A number directive: value, width and padding. false: not one. */
static bool number_of(char c, const struct tm *tm, int *value, int *width, char *pad) {
    int iso_year, week = iso_week(tm, &iso_year), hour12 = tm->tm_hour % 12 ? tm->tm_hour % 12 : 12;
    *width = 2;
    *pad = '0';
    switch (c) {
    case 'd':
        *value = tm->tm_mday;
        return true;
    case 'e':
        *value = tm->tm_mday;
        *pad = ' ';
        return true;
    case 'H':
    case 'k':
        *value = tm->tm_hour;
        *pad = c == 'k' ? ' ' : '0';
        return true;
    case 'I':
    case 'l':
        *value = hour12;
        *pad = c == 'l' ? ' ' : '0';
        return true;
    case 'j':
        *value = tm->tm_yday + 1;
        *width = 3;
        return true;
    case 'm':
        *value = tm->tm_mon + 1;
        return true;
    case 'M':
        *value = tm->tm_min;
        return true;
    case 'S':
        *value = tm->tm_sec;
        return true;
    case 'f':
        *value = 0;
        *width = 6;
        return true;
    case 'y':
        *value = (tm->tm_year + 1900) % 100;
        return true;
    case 'C':
        *value = (tm->tm_year + 1900) / 100;
        return true;
    case 'Y':
        *value = tm->tm_year + 1900;
        *width = 1;
        return true;
    case 'G':
        *value = iso_year;
        *width = 1;
        return true;
    case 'g':
        *value = iso_year % 100;
        return true;
    case 'V':
        *value = week;
        return true;
    case 'U':
        *value = (tm->tm_yday + 7 - tm->tm_wday) / 7;
        return true;
    case 'W':
        *value = (tm->tm_yday + 7 - (tm->tm_wday + 6) % 7) / 7;
        return true;
    case 'u':
        *value = tm->tm_wday ? tm->tm_wday : 7;
        *width = 1;
        return true;
    case 'w':
        *value = tm->tm_wday;
        *width = 1;
        return true;
    default:
        return false;
    }
}

static const char *composite_of(char c) {
    switch (c) {
    case 'c':
        return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
        return "%m/%d/%y";
    case 'F':
        return "%Y-%m-%d";
    case 'T':
    case 'X':
        return "%H:%M:%S";
    case 'R':
        return "%H:%M";
    case 'r':
        return "%I:%M:%S %p";
    default:
        return NULL;
    }
}

static bool put_time(struct mxc_jsb *sb, const char *f, size_t len, const struct tm *tm, bool user);

static bool put_directive(struct mxc_jsb *sb, char c, char flag, const struct tm *tm, bool user) {
    char text[64];
    int value, width;
    char pad;
    const char *composite = composite_of(c);
    if (composite)
        return put_time(sb, composite, strlen(composite), tm, user);
    if (number_of(c, tm, &value, &width, &pad)) {
        pad = flag == '_' ? ' ' : flag == '0' ? '0' : pad;
        if (flag == '-')
            width = 1;
        (void)snprintf(text, sizeof text, pad == '0' ? "%0*d" : "%*d", width, value);
    } else if (c == 'a' || c == 'A') {
        (void)snprintf(text, sizeof text, "%.*s", c == 'a' ? 3 : 9, days[tm->tm_wday]);
    } else if (c == 'b' || c == 'B' || c == 'h') {
        (void)snprintf(text, sizeof text, "%.*s", c == 'B' ? 9 : 3, months[tm->tm_mon]);
    } else if (c == 'p' || c == 'P') {
        (void)snprintf(text, sizeof text, "%s",
                       c == 'p' ? (tm->tm_hour < 12 ? "AM" : "PM")
                                : (tm->tm_hour < 12 ? "am" : "pm"));
    } else if (c == 'z' || c == 'Z') {
        return true; /* a clock without a zone */
    } else if (c == 'n' || c == 't' || c == '%') {
        (void)snprintf(text, sizeof text, "%c", c == 'n' ? '\n' : c == 't' ? '\t' : '%');
    } else {
        (void)snprintf(text, sizeof text, "%%%c", c);
    }
    for (char *p = text; *p && (flag == '^' || flag == '#'); p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 32);
    return mxc_j_put_text(sb, text, user);
}

static bool put_time(struct mxc_jsb *sb, const char *f, size_t len, const struct tm *tm,
                     bool user) {
    for (size_t i = 0; i < len; i++) {
        if (f[i] != '%' || i + 1 >= len) {
            if (!mxc_j_put(sb, f + i, 1, NULL, user))
                return false;
            continue;
        }
        char flag = 0;
        i++;
        if (f[i] && strchr("-_0^#", f[i]) && i + 1 < len)
            flag = f[i++];
        if (!put_directive(sb, f[i], flag, tm, user))
            return false;
    }
    return true;
}

bool mxc_j_strftime(struct mxc_jrun *run, const struct mxc_jstr *format, const struct tm *tm,
                    struct mxc_jval *out) {
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    return put_time(&sb, format->p, format->len, tm, mxc_j_any_tainted(format)) &&
           mxc_j_sb_done(&sb, out);
}

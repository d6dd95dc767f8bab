/* Look-ups in the generated Unicode tables: binary searches over runs, ranges and sorted records.
 * In: code points, names of categories and properties. Out: category, membership, lower case,
 * decomposition, composition, combining class.
 * A run holds its start above the low 8 bits and its value in them. Nothing here is on a hot path;
 * the tokenisers build direct tables from it. */
#include "text/unicode.h"

#include <strings.h>

/* Index of the last run whose start (value >> 8) is at most cp; -1 when there is none. */
static int last_run(const uint32_t *runs, int n, uint32_t cp) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (runs[mid] >> 8 <= cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo - 1;
}

enum mxc_unicode_category mxc_unicode_category_of(uint32_t cp) {
    if (cp > 0x10FFFF)
        return MXC_UNICODE_CN;
    int i = last_run(mxc_unicode_category_runs, MXC_UNICODE_CATEGORY_RUNS_COUNT, cp);
    return (enum mxc_unicode_category)(mxc_unicode_category_runs[i] & 0xFF);
}

enum mxc_unicode_break mxc_unicode_break_of(uint32_t cp) {
    int i = last_run(mxc_unicode_break_runs, MXC_UNICODE_BREAK_RUNS_COUNT, cp);
    return (enum mxc_unicode_break)(mxc_unicode_break_runs[i] & 0xFF);
}

unsigned mxc_unicode_script_of(uint32_t cp) {
    int i = last_run(mxc_unicode_script_runs, MXC_UNICODE_SCRIPT_RUNS_COUNT, cp);
    return mxc_unicode_script_runs[i] & 0xFF;
}

bool mxc_unicode_in(enum mxc_unicode_set set, uint32_t cp) {
    int lo = mxc_unicode_set_index[set] / 2, hi = mxc_unicode_set_index[set + 1] / 2;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (cp > mxc_unicode_set_ranges[2 * mid + 1])
            lo = mid + 1;
        else if (cp < mxc_unicode_set_ranges[2 * mid])
            hi = mid;
        else
            return true;
    }
    return false;
}

static bool is_name(struct mxc_str s, const char *name) {
    return s.length < 32 && !strncasecmp(s.ptr, name, s.length) && !name[s.length];
}

bool mxc_unicode_set_by_name(struct mxc_str name, enum mxc_unicode_set *set) {
    static const char *const names[MXC_N_UNICODE_SETS] = {
        "White_Space", "Alphabetic", "Han",   "Hiragana", "Katakana", "Hangul",     "Thai",
        "Latin",       "Cyrillic",   "Greek", "Arabic",   "Hebrew",   "Devanagari", "Bengali",
        "Tamil",       "Lao",        "Khmer", "Myanmar",  "Tibetan"};
    for (int i = 0; i < MXC_N_UNICODE_SETS; i++)
        if (is_name(name, names[i])) {
            *set = (enum mxc_unicode_set)i;
            return true;
        }
    if (is_name(name, "Space") || is_name(name, "Alpha")) {
        *set = is_name(name, "Space") ? MXC_UNICODE_SET_SPACE : MXC_UNICODE_SET_ALPHABETIC;
        return true;
    }
    return false;
}

bool mxc_unicode_categories_by_name(struct mxc_str name, uint32_t *mask) {
    static const char codes[] = "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
    static const struct {
        const char *name;
        char major;
    } longs[] = {{"Letter", 'L'}, {"Mark", 'M'},   {"Number", 'N'},    {"Punctuation", 'P'},
                 {"Punct", 'P'},  {"Symbol", 'S'}, {"Separator", 'Z'}, {"Other", 'C'}};
    char major = 0;
    uint32_t found = 0;
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        if (is_name(name, longs[i].name))
            major = longs[i].major;
    if (name.length == 1)
        major = name.ptr[0];
    for (int i = 0; i < MXC_N_UNICODE_CATEGORIES; i++) {
        const char *c = codes + 2 * i;
        if (c[0] == major || (name.length == 2 && name.ptr[0] == c[0] && name.ptr[1] == c[1]))
            found |= 1u << i;
        if (mxc_str_is(name, "L&") || mxc_str_is(name, "LC"))
            if (i == MXC_UNICODE_LL || i == MXC_UNICODE_LU || i == MXC_UNICODE_LT)
                found |= 1u << i;
    }
    if (found)
        *mask = found;
    return found != 0;
}

/* Record of `width` words whose first is cp; NULL: none. */
static const uint32_t *record(const uint32_t *table, int n_words, int width, uint32_t cp) {
    int lo = 0, hi = n_words / width;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (table[mid * width] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo * width < n_words && table[lo * width] == cp ? table + lo * width : NULL;
}

int mxc_unicode_lower(uint32_t cp, uint32_t out[2]) {
    const uint32_t *r = record(mxc_unicode_lowers, MXC_UNICODE_LOWERS_COUNT, 3, cp);
    out[0] = r ? r[1] : cp;
    out[1] = r ? r[2] : 0;
    return r && r[2] ? 2 : 1;
}

uint8_t mxc_unicode_ccc(uint32_t cp) {
    int i = last_run(mxc_unicode_ccc_runs, MXC_UNICODE_CCC_RUNS_COUNT, cp);
    return i < 0 ? 0 : (uint8_t)(mxc_unicode_ccc_runs[i] & 0xFF);
}

int mxc_unicode_decompose(uint32_t cp, bool compat, const uint32_t **out) {
    const uint32_t *r = record(mxc_unicode_decompositions, MXC_UNICODE_DECOMPOSITIONS_COUNT, 3, cp);
    if (!r || !(r[1 + compat] & 0xFF))
        return 0;
    *out = mxc_unicode_decomposition_pool + (r[1 + compat] >> 8);
    return (int)(r[1 + compat] & 0xFF);
}

uint32_t mxc_unicode_compose(uint32_t a, uint32_t b) {
    int lo = 0, hi = MXC_UNICODE_COMPOSITIONS_COUNT / 3;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const uint32_t *r = mxc_unicode_compositions + 3 * mid;
        if (r[0] < a || (r[0] == a && r[1] < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    const uint32_t *r = mxc_unicode_compositions + 3 * lo;
    return lo < MXC_UNICODE_COMPOSITIONS_COUNT / 3 && r[0] == a && r[1] == b ? r[2] : 0;
}

bool mxc_unicode_is_space(uint32_t cp) {
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return mxc_unicode_in(MXC_UNICODE_SET_SPACE, cp);
}

bool mxc_unicode_is_word(uint32_t cp) {
    enum mxc_unicode_category c = mxc_unicode_category_of(cp);
    return c == MXC_UNICODE_ND || c == MXC_UNICODE_PC || c == MXC_UNICODE_MC ||
           c == MXC_UNICODE_ME || c == MXC_UNICODE_MN ||
           mxc_unicode_in(MXC_UNICODE_SET_ALPHABETIC, cp);
}

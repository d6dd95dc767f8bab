/* Python's character classes and case mappings over utf8proc: simple mappings come from there, the
 * ones that make several characters from the table (Unicode SpecialCasing). In: code points or
 * strings. Out: strings whose bytes keep the taint of the character they came from. */
#include "text/jinja/run.h"

#include <utf8proc.h>

static utf8proc_category_t category(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool mxc_j_is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool mxc_j_is_line_end(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool mxc_j_is_printable(uint32_t cp) {
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

bool mxc_j_is_alpha(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool mxc_j_is_digit(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool mxc_j_is_alnum(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return mxc_j_is_alpha(cp) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_NO;
}

bool mxc_j_is_upper(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) ||
           (cp >= 0x24B6 && cp <= 0x24CF);
}

bool mxc_j_is_lower(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA ||
           (cp >= 0x2170 && cp <= 0x217F) || (cp >= 0x24D0 && cp <= 0x24E9) ||
           (cp >= 0x2B0 && cp <= 0x2B8);
}

bool mxc_j_is_title(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

static bool is_cased(uint32_t cp) {
    return mxc_j_is_upper(cp) || mxc_j_is_lower(cp) || mxc_j_is_title(cp);
}

static bool is_case_ignorable(uint32_t cp) {
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x387 || cp == 0x2018 ||
               cp == 0x2019 || cp == 0x2024 || cp == 0x2027;
    }
}

/* Characters whose upper or title form is more than one character. */
static const struct {
    uint16_t cp, upper[3], title[3];
} special[] = {
    // clang-format off
    
{0xDF, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
    {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}},
    {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
    {0x1FB3, {0x391, 0x399}, {0x1FBC}},
    {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}},
    {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}},
    {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
    {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
    {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
    {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
    {0xFB00, {0x46, 0x46}, {0x46, 0x66}},
    {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}},
    {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}},
    {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}},
    // clang-format on
};

static const uint16_t *find_special(uint32_t cp, bool title) {
    size_t low = 0, high = sizeof special / sizeof *special;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (special[mid].cp == cp)
            return title ? special[mid].title : special[mid].upper;
        if (special[mid].cp < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static bool put_upper(struct mxc_jsb *sb, uint32_t cp, bool title, bool user) {
    const uint16_t *many = cp >= 0xDF ? find_special(cp, title) : NULL;
    if (many) {
        for (int i = 0; i < 3 && many[i]; i++)
            if (!mxc_j_put_char(sb, many[i], user))
                return false;
        return true;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    return mxc_j_put_char(sb, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)), user);
}

/* A capital sigma at offset ends a word (then it becomes the final form). */
static bool final_sigma(const struct mxc_jstr *s, size_t offset, size_t next) {
    uint32_t cp = 0;
    bool cased = false;
    for (size_t i = offset; i > 0;) {
        size_t j = i - 1;
        while (j > 0 && ((unsigned char)s->p[j] & 0xC0) == 0x80)
            j--;
        mxc_j_decode(s->p + j, i - j, &cp);
        i = j;
        if (is_case_ignorable(cp))
            continue;
        cased = is_cased(cp);
        break;
    }
    if (!cased)
        return false;
    for (size_t i = next; i < s->len;) {
        i += mxc_j_decode(s->p + i, s->len - i, &cp);
        if (!is_case_ignorable(cp))
            return !is_cased(cp);
    }
    return true;
}

static bool put_lower(struct mxc_jsb *sb, const struct mxc_jstr *s, size_t offset, size_t next,
                      uint32_t cp, bool user) {
    if (cp == 0x3A3)
        return mxc_j_put_char(sb, final_sigma(s, offset, next) ? 0x3C2 : 0x3C3, user);
    if (cp == 0x130)
        return mxc_j_put_char(sb, 'i', user) && mxc_j_put_char(sb, 0x307, user);
    return mxc_j_put_char(sb, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), user);
}

static bool put_folded(struct mxc_jsb *sb, uint32_t cp, bool user) {
    utf8proc_int32_t folded[8];
    int last = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, folded, 8, UTF8PROC_CASEFOLD, &last);
    if (n < 0 || n > 8)
        return mxc_j_put_char(sb, cp, user);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (!mxc_j_put_char(sb, (uint32_t)folded[i], user))
            return false;
    return true;
}

/* The jinja title filter starts a word behind these. */
static bool starts_word(uint32_t cp) {
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || mxc_j_is_space(cp);
}

bool mxc_j_put_case(struct mxc_jsb *sb, const struct mxc_jstr *s, enum mxc_jcase how) {
    bool in_word = false;
    for (size_t i = 0, next; i < s->len; i = next) {
        uint32_t cp;
        next = i + mxc_j_decode(s->p + i, s->len - i, &cp);
        bool user = mxc_j_tainted(s, i), ok;
        if ((i & 63) == 0 && !mxc_j_step(sb->run, 1))
            return false;
        switch (how) {
        case MJ_UPPER:
            ok = put_upper(sb, cp, false, user);
            break;
        case MJ_CAPITALIZE:
            ok = i ? put_lower(sb, s, i, next, cp, user) : put_upper(sb, cp, true, user);
            break;
        case MJ_SWAPCASE:
            ok = mxc_j_is_upper(cp)   ? put_lower(sb, s, i, next, cp, user)
                 : mxc_j_is_lower(cp) ? put_upper(sb, cp, false, user)
                                      : mxc_j_put_char(sb, cp, user);
            break;
        case MJ_CASEFOLD:
            ok = put_folded(sb, cp, user);
            break;
        case MJ_TITLECASE:
            ok = in_word ? put_lower(sb, s, i, next, cp, user) : put_upper(sb, cp, true, user);
            in_word = is_cased(cp);
            break;
        case MJ_TITLE:
            if (starts_word(cp)) {
                ok = mxc_j_put_char(sb, cp, user);
                in_word = false;
            } else {
                ok = in_word ? put_lower(sb, s, i, next, cp, user) : put_upper(sb, cp, false, user);
                in_word = true;
            }
            break;
        default:
            ok = put_lower(sb, s, i, next, cp, user);
        }
        if (!ok)
            return false;
    }
    return true;
}

bool mxc_j_case(struct mxc_jrun *run, const struct mxc_jstr *s, enum mxc_jcase how,
                struct mxc_jval *out) {
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    if (!mxc_j_put_case(&sb, s, how) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = s->markup;
    return true;
}

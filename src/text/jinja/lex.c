/* Lexer: template text to tokens on demand. In: UTF-8 text. Out: data with the whitespace rules of
 * trim_blocks, lstrip_blocks and the signs - and + applied, and the tokens inside tags. Newlines of
 * all kinds become '\n' and one at the very end is dropped, as in Jinja2. Comments and raw blocks
 * never reach the parser as tags. */
#include "text/jinja/ast.h"

#include "base/mem.h"

#include <utf8proc.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mxc_j_syntax(struct mxc_err *err, int line, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    (void)mxc_err_at(err, MXC_E_TEMPLATE, line, "line %d: TemplateSyntaxError: %s", line, text);
    return false;
}

static bool lex_nomem(struct mxc_jlex *lex) {
    (void)mxc_err_nomem(lex->err);
    return false;
}

bool mxc_j_lex_init(struct mxc_jlex *lex, struct mxc_arena *arena, const char *text, size_t length,
                    struct mxc_err *err) {
    *lex = (struct mxc_jlex){.arena = arena, .err = err, .line = 1};
    char *copy = mxc_arena_dup(arena, text, length);
    if (!copy)
        return lex_nomem(lex);
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < length && text[i + 1] == '\n';
        } else {
            copy[n++] = text[i];
        }
    }
    n -= n && copy[n - 1] == '\n';
    copy[n] = 0;
    lex->src = copy;
    lex->n = n;
    return true;
}

static char at(const struct mxc_jlex *lex, size_t i) {
    return i < lex->n ? lex->src[i] : 0;
}

static size_t skip_space(const struct mxc_jlex *lex, size_t i) {
    while (i < lex->n) {
        uint32_t cp;
        size_t n = mxc_j_decode(lex->src + i, lex->n - i, &cp);
        if (!mxc_j_is_space(cp))
            break;
        i += n;
    }
    return i;
}

static size_t skip_space_back(const struct mxc_jlex *lex, size_t from, size_t i) {
    while (i > from) {
        size_t j = i - 1;
        while (j > from && ((unsigned char)lex->src[j] & 0xC0) == 0x80)
            j--;
        uint32_t cp;
        mxc_j_decode(lex->src + j, i - j, &cp);
        if (!mxc_j_is_space(cp))
            break;
        i = j;
    }
    return i;
}

static void move_to(struct mxc_jlex *lex, size_t pos) {
    for (size_t i = lex->pos; i < pos; i++)
        lex->line += lex->src[i] == '\n';
    lex->pos = pos;
}

/* "%}" or "#}" at i, with the optional sign and what it strips: end of the match, or 0. */
static size_t match_end(const struct mxc_jlex *lex, size_t i, char mark) {
    char sign = at(lex, i);
    bool has_sign = sign == '-' || sign == '+';
    size_t j = i + has_sign;
    if (at(lex, j) != mark || at(lex, j + 1) != '}')
        return 0;
    j += 2;
    if (sign == '-')
        return skip_space(lex, j);
    return !has_sign && at(lex, j) == '\n' ? j + 1 : j;
}

/* Where the data [from, to) before a tag ends, by the tag's sign and lstrip_blocks. */
static size_t data_end(const struct mxc_jlex *lex, size_t from, size_t to, char sign, bool block) {
    if (sign == '-')
        return skip_space_back(lex, from, to);
    if (sign == '+' || !block)
        return to;
    size_t start = to;
    while (start > from && lex->src[start - 1] != '\n')
        start--;
    bool line_start = start > from || from == 0 || lex->src[from - 1] == '\n';
    return line_start && skip_space(lex, start) >= to ? start : to;
}

static bool word_at(const struct mxc_jlex *lex, size_t i, const char *word) {
    size_t n = strlen(word);
    return lex->n - i >= n && i <= lex->n && !memcmp(lex->src + i, word, n);
}

/* The end of a raw block's opening tag at i, or 0. */
static size_t match_raw(const struct mxc_jlex *lex, size_t i) {
    size_t j = i + 2;
    j += at(lex, j) == '-' || at(lex, j) == '+';
    j = skip_space(lex, j);
    if (!word_at(lex, j, "raw"))
        return 0;
    j = skip_space(lex, j + 3);
    if (at(lex, j) == '-' && at(lex, j + 1) == '%' && at(lex, j + 2) == '}')
        return skip_space(lex, j + 3);
    return at(lex, j) == '%' && at(lex, j + 1) == '}' ? j + 2 : 0;
}

static void set_data(const struct mxc_jlex *lex, struct mxc_jtoken *token, int line, size_t from,
                     size_t to) {
    *token = (struct mxc_jtoken){
        .type = MJ_T_DATA, .line = line, .p = lex->src + from, .len = to - from};
}

/* Behind an opening raw tag: its text is data. */
static bool lex_raw(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    size_t from = lex->pos;
    int line = lex->line;
    if (from == lex->n) { /* as in Jinja2, nothing at all needs no end */
        set_data(lex, token, line, from, from);
        return true;
    }
    for (size_t i = from; i + 1 < lex->n; i++) {
        if (lex->src[i] != '{' || lex->src[i + 1] != '%')
            continue;
        char sign = at(lex, i + 2);
        size_t j = skip_space(lex, i + 2 + (sign == '-' || sign == '+'));
        if (!word_at(lex, j, "endraw"))
            continue;
        size_t end = match_end(lex, skip_space(lex, j + 6), '%');
        if (!end)
            continue;
        set_data(lex, token, line, from, data_end(lex, from, i, sign, true));
        move_to(lex, end);
        return true;
    }
    return mxc_j_syntax(lex->err, line, "Missing end of raw directive");
}

static bool lex_comment(struct mxc_jlex *lex, size_t from) {
    for (size_t i = from; i + 1 < lex->n; i++) {
        size_t end = match_end(lex, i, '#');
        if (end) {
            move_to(lex, end);
            return true;
        }
    }
    return mxc_j_syntax(lex->err, lex->line, "Missing end of comment tag");
}

/* Outside of tags: data up to the next tag. A tag found behind data is kept in has_begin. */
static bool lex_root(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    size_t from = lex->pos, i = from;
    int line = lex->line;
    for (; i < lex->n; i++)
        if (lex->src[i] == '{' && strchr("%{#", at(lex, i + 1)) && at(lex, i + 1))
            break;
    if (i >= lex->n) {
        set_data(lex, token, line, from, lex->n);
        move_to(lex, lex->n);
        return true;
    }
    char kind = lex->src[i + 1], sign = at(lex, i + 2);
    bool has_sign = sign == '-' || sign == '+';
    set_data(lex, token, line, from, data_end(lex, from, i, sign, kind != '{'));
    size_t raw = kind == '%' ? match_raw(lex, i) : 0;
    if (raw) {
        move_to(lex, raw);
        if (token->len) {
            lex->has_begin = true;
            lex->begin = MJ_T_DATA;
            return true;
        }
        return lex_raw(lex, token);
    }
    move_to(lex, i + 2 + has_sign);
    if (kind == '#')
        return lex_comment(lex, lex->pos);
    lex->has_begin = true;
    lex->begin = kind == '%' ? MJ_T_BLOCK_BEGIN : MJ_T_VAR_BEGIN;
    return true;
}

/* One escape at s (behind the backslash). Returns the bytes used, 0 for a broken one. */
static size_t unescape(const char *s, size_t n, char *out, size_t *n_out) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = strchr(from, s[0]);
    *n_out = 1;
    if (s[0] == '\n') {
        *n_out = 0;
        return 1;
    }
    if (s[0] && simple) {
        out[0] = to[simple - from];
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        uint32_t cp = 0;
        size_t i = 0;
        for (; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            cp = cp * 8 + (uint32_t)(s[i] - '0');
        *n_out = mxc_utf8_encode(cp, out);
        return i;
    }
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (!digits) {
        out[0] = '\\';
        out[1] = s[0];
        *n_out = 2;
        return s[0] == 'N' ? 0 : 1;
    }
    uint32_t cp = 0;
    for (size_t i = 1; i <= digits; i++) {
        int h = i < n ? mxc_hex_digit(s[i]) : -1;
        if (h < 0)
            return 0;
        cp = cp << 4 | (uint32_t)h;
    }
    if (cp > 0x10FFFF)
        return 0;
    *n_out = mxc_utf8_encode(cp, out);
    return digits + 1;
}

static bool lex_string(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    size_t from = lex->pos + 1, end = from;
    char quote = lex->src[lex->pos];
    while (end < lex->n && lex->src[end] != quote)
        end += lex->src[end] == '\\' ? 2 : 1;
    if (end >= lex->n)
        return mxc_j_syntax(lex->err, lex->line, "unexpected char '%c' at %zu", quote, lex->pos);
    char *text = mxc_arena_alloc(lex->arena, end - from + 8);
    if (!text)
        return lex_nomem(lex);
    size_t n = 0;
    for (size_t i = from; i < end;) {
        if (lex->src[i] != '\\') {
            text[n++] = lex->src[i++];
            continue;
        }
        size_t n_out, used;
        unsigned char c = (unsigned char)lex->src[i + 1];
        if (c >= 0x80) { /* not an escape: both stay */
            text[n++] = lex->src[i++];
            continue;
        }
        used = unescape(lex->src + i + 1, end - i - 1, text + n, &n_out);
        if (!used)
            return mxc_j_syntax(lex->err, lex->line, "malformed escape '\\%c' in a string", c);
        n += n_out;
        i += used + 1;
    }
    *token = (struct mxc_jtoken){.type = MJ_T_STRING, .line = lex->line, .p = text, .len = n};
    move_to(lex, end + 1);
    return true;
}

/* digit (_? digit)* */
static size_t match_digits(const struct mxc_jlex *lex, size_t i, int base) {
    size_t end = i;
    for (;;) {
        size_t j = end + (end > i && at(lex, end) == '_');
        int h = mxc_hex_digit(at(lex, j));
        if (h < 0 || h >= base)
            return end;
        end = j + 1;
    }
}

static bool lex_number(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    size_t from = lex->pos, end = match_digits(lex, from, 10), fraction = end;
    bool after_dot = from && lex->src[from - 1] == '.';
    if (!after_dot && at(lex, end) == '.' && match_digits(lex, end + 1, 10) > end + 1)
        fraction = match_digits(lex, end + 1, 10);
    size_t exponent = fraction;
    if (!after_dot && (at(lex, fraction) | 32) == 'e') {
        size_t i = fraction + 1;
        i += at(lex, i) == '+' || at(lex, i) == '-';
        if (match_digits(lex, i, 10) > i)
            exponent = match_digits(lex, i, 10);
    }
    int base = 10, radix = at(lex, from + 1) | 32;
    size_t digits = from;
    bool is_float = exponent > end;
    if (!is_float && lex->src[from] == '0') {
        base = radix == 'x' ? 16 : radix == 'o' ? 8 : radix == 'b' ? 2 : 1;
        digits = from + 2 + (at(lex, from + 2) == '_');
        end = base > 1 ? match_digits(lex, digits, base) : digits;
        if (base == 1 || end == digits) { /* only zeros make a decimal that starts with 0 */
            base = 10;
            digits = from;
            end = match_digits(lex, from, 1);
        }
    }
    if (is_float)
        end = exponent;
    char text[128];
    size_t n = 0;
    for (size_t i = digits; i < end; i++) {
        if (n + 1 >= sizeof text)
            return mxc_j_syntax(lex->err, lex->line, "a number is too long");
        if (lex->src[i] != '_')
            text[n++] = lex->src[i];
    }
    text[n] = 0;
    *token = (struct mxc_jtoken){.type = is_float ? MJ_T_FLOAT : MJ_T_INT, .line = lex->line};
    if (is_float) {
        if (!mxc_parse_f64(text, &token->f))
            token->f = strtod(text, NULL);
    } else {
        errno = 0;
        token->i = strtoll(text, NULL, base);
        if (errno)
            return mxc_j_syntax(lex->err, lex->line, "integer %s is out of range", text);
    }
    move_to(lex, end);
    return true;
}

static bool is_word(uint32_t cp) {
    return cp == '_' || mxc_j_is_alnum(cp);
}

static bool lex_name(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    size_t end = lex->pos;
    while (end < lex->n) {
        uint32_t cp;
        size_t n = mxc_j_decode(lex->src + end, lex->n - end, &cp);
        if (!is_word(cp))
            break;
        end += n;
    }
    *token = (struct mxc_jtoken){
        .type = MJ_T_NAME, .line = lex->line, .p = lex->src + lex->pos, .len = end - lex->pos};
    move_to(lex, end);
    return true;
}

static bool lex_operator(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    static const struct {
        char text[3];
        int op;
    } two[] = {{"//", MJ_OP_FLOORDIV}, {"**", MJ_OP_POW}, {"==", MJ_OP_EQ},
               {"!=", MJ_OP_NE},       {"<=", MJ_OP_LE},  {">=", MJ_OP_GE}};
    char c = lex->src[lex->pos];
    size_t n = 1;
    int op = (unsigned char)c;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (c == two[i].text[0] && at(lex, lex->pos + 1) == two[i].text[1]) {
            op = two[i].op;
            n = 2;
        }
    if (n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c)))
        return mxc_j_syntax(lex->err, lex->line, "unexpected char '%c' at %zu", c, lex->pos);
    if (n == 1 && strchr("([{", c)) {
        if (lex->n_open == sizeof lex->open)
            return mxc_j_syntax(lex->err, lex->line, "brackets are nested too deep");
        lex->open[lex->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", c)) {
        if (!lex->n_open)
            return mxc_j_syntax(lex->err, lex->line, "unexpected '%c'", c);
        char expected = lex->open[--lex->n_open];
        if (expected != c)
            return mxc_j_syntax(lex->err, lex->line, "unexpected '%c', expected '%c'", c, expected);
    }
    *token = (struct mxc_jtoken){
        .type = MJ_T_OP, .line = lex->line, .op = op, .p = lex->src + lex->pos, .len = n};
    move_to(lex, lex->pos + n);
    return true;
}

/* The closing mark of the tag at the cursor: its end, or 0. */
static size_t match_close(const struct mxc_jlex *lex) {
    if (lex->n_open)
        return 0;
    if (lex->state == MJ_IN_BLOCK)
        return match_end(lex, lex->pos, '%');
    size_t i = lex->pos + (at(lex, lex->pos) == '-');
    if (at(lex, i) != '}' || at(lex, i + 1) != '}')
        return 0;
    return i > lex->pos ? skip_space(lex, i + 2) : i + 2;
}

static bool lex_inside(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    for (;;) {
        size_t end = match_close(lex);
        if (end) {
            *token = (struct mxc_jtoken){.type = lex->state == MJ_IN_BLOCK ? MJ_T_BLOCK_END
                                                                           : MJ_T_VAR_END,
                                         .line = lex->line,
                                         .p = lex->src + lex->pos,
                                         .len = 2};
            lex->state = MJ_IN_ROOT;
            move_to(lex, end);
            return true;
        }
        end = skip_space(lex, lex->pos);
        if (end == lex->pos)
            break;
        move_to(lex, end);
    }
    if (lex->pos >= lex->n) {
        *token = (struct mxc_jtoken){.type = MJ_T_EOF, .line = lex->line};
        return true;
    }
    uint32_t cp;
    mxc_j_decode(lex->src + lex->pos, lex->n - lex->pos, &cp);
    if (cp >= '0' && cp <= '9')
        return lex_number(lex, token);
    if (is_word(cp) && !mxc_j_is_digit(cp))
        return lex_name(lex, token);
    if (cp == '\'' || cp == '"')
        return lex_string(lex, token);
    if (cp >= 0x80)
        return mxc_j_syntax(lex->err, lex->line, "unexpected character U+%04X", cp);
    return lex_operator(lex, token);
}

bool mxc_j_lex_next(struct mxc_jlex *lex, struct mxc_jtoken *token) {
    if (lex->state != MJ_IN_ROOT)
        return lex_inside(lex, token);
    for (;;) {
        if (lex->has_begin) {
            lex->has_begin = false;
            if (lex->begin == MJ_T_DATA) {
                if (!lex_raw(lex, token))
                    return false;
            } else {
                lex->state = lex->begin == MJ_T_BLOCK_BEGIN ? MJ_IN_BLOCK : MJ_IN_VAR;
                *token = (struct mxc_jtoken){.type = lex->begin, .line = lex->line};
                return true;
            }
        } else if (lex->pos >= lex->n) {
            *token = (struct mxc_jtoken){.type = MJ_T_EOF, .line = lex->line};
            return true;
        } else if (!lex_root(lex, token)) {
            return false;
        }
        if (token->len)
            return true;
    }
}

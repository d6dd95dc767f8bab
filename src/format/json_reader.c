/* Pull reader for JSON: one pass over bytes in memory, for files too large for a tree.
 * In: a text that need not be valid. Out: one key, item or value per call, or an error with the
 * byte position; the cursor never passes the end.
 * Strings are scanned eight bytes at a time, and only those with bytes above 0x7F are checked as
 * UTF-8. A decoded string is never longer than its escaped form, so its space is known before.
 * Skipping uses a stack of closing brackets instead of recursion, and looks over what stands
 * between: whoever reads that part checks it. */
#include "format/json_reader.h"

#include <string.h>

enum { MAX_DEPTH = 128 };

#define ONES  0x0101010101010101u
#define HIGHS 0x8080808080808080u

void mxc_jr_init(struct mxc_jr *jr, const char *text, size_t length, const char *name,
                 struct mxc_err *err) {
    *jr = (struct mxc_jr){.begin = text, .p = text, .end = text + length, .name = name, .err = err};
    mxc_arena_init(&jr->arena, 256u << 20);
    if (length >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3))
        jr->p += 3;
}

void mxc_jr_fini(struct mxc_jr *jr) {
    mxc_arena_fini(&jr->arena);
}

enum mxc_code mxc_jr_fail(struct mxc_jr *jr, const char *what) {
    return mxc_err_at(jr->err, MXC_E_FORMAT, jr->p - jr->begin, "%s: %s at byte %td", jr->name,
                      what, jr->p - jr->begin);
}

char mxc_jr_peek(struct mxc_jr *jr) {
    while (jr->p < jr->end && (*jr->p == ' ' || *jr->p == '\n' || *jr->p == '\t' || *jr->p == '\r'))
        jr->p++;
    return jr->p < jr->end ? *jr->p : 0;
}

enum mxc_code mxc_jr_open(struct mxc_jr *jr, char first) {
    if (mxc_jr_peek(jr) != first)
        return mxc_jr_fail(jr, first == '{' ? "an object is expected" : "a list is expected");
    jr->p++;
    return MXC_OK;
}

enum mxc_code mxc_jr_item(struct mxc_jr *jr, size_t count, bool *more) {
    char c = mxc_jr_peek(jr);
    if (c == ']') {
        jr->p++;
        *more = false;
        return MXC_OK;
    }
    if (count) {
        if (c != ',')
            return mxc_jr_fail(jr, "\",\" or \"]\" is expected");
        jr->p++;
        if (mxc_jr_peek(jr) == ']')
            return mxc_jr_fail(jr, "\",\" before \"]\"");
    }
    *more = true;
    return MXC_OK;
}

enum mxc_code mxc_jr_key(struct mxc_jr *jr, size_t count, bool *more, struct mxc_str *key) {
    char c = mxc_jr_peek(jr);
    if (c == '}') {
        jr->p++;
        *more = false;
        return MXC_OK;
    }
    if (count) {
        if (c != ',')
            return mxc_jr_fail(jr, "\",\" or \"}\" is expected");
        jr->p++;
    }
    *more = true;
    enum mxc_code code = mxc_jr_string(jr, key);
    if (code)
        return code;
    if (mxc_jr_peek(jr) != ':')
        return mxc_jr_fail(jr, "\":\" is expected");
    jr->p++;
    return MXC_OK;
}

/* Stops at the first quote, backslash, control character or the end. *any: OR of bytes passed. */
static const char *scan(const char *p, const char *end, uint64_t *any) {
    uint64_t seen = *any;
    while (end - p >= 8) {
        uint64_t w, q, b;
        memcpy(&w, p, 8);
        q = w ^ ONES * '"';
        b = w ^ ONES * '\\';
        uint64_t hit = (((q - ONES) & ~q) | ((b - ONES) & ~b) | ((w - ONES * 0x20) & ~w)) & HIGHS;
        if (hit) {
            int n = __builtin_ctzll(hit) / 8;
            seen |= n ? w << (64 - 8 * n) : 0;
            *any = seen;
            return p + n;
        }
        seen |= w;
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        seen |= (unsigned char)*p++;
    *any = seen;
    return p;
}

static bool valid_utf8(const char *p, const char *end) {
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x80) {
            p++;
        } else if (c >= 0xC2 && c <= 0xDF && end - p > 1 && ((unsigned char)p[1] & 0xC0) == 0x80) {
            p += 2;
        } else {
            uint32_t cp;
            size_t n = mxc_utf8_decode(p, (size_t)(end - p), &cp);
            if (cp == 0xFFFFFFFFu)
                return false;
            p += n;
        }
    }
    return true;
}

static bool hex4(const char *p, const char *end, uint32_t *out) {
    uint32_t v = 0;
    if (end - p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int h = mxc_hex_digit(p[i]);
        if (h < 0)
            return false;
        v = v << 4 | (uint32_t)h;
    }
    *out = v;
    return true;
}

/* At a backslash: writes the character (at most as many bytes as the escape has). */
static enum mxc_code unescape(struct mxc_jr *jr, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (jr->end - jr->p < 2)
        return mxc_jr_fail(jr, "a string without an end");
    char c = jr->p[1];
    const char *k = memchr(from, c, sizeof from - 1);
    if (k) {
        *(*out)++ = to[k - from];
        jr->p += 2;
        return MXC_OK;
    }
    uint32_t cp, low;
    if (c != 'u' || !hex4(jr->p + 2, jr->end, &cp))
        return mxc_jr_fail(jr, "a bad escape");
    if (cp >= 0xD800 && cp <= 0xDFFF) {
        if (cp > 0xDBFF || jr->end - jr->p < 12 || jr->p[6] != '\\' || jr->p[7] != 'u' ||
            !hex4(jr->p + 8, jr->end, &low) || low < 0xDC00 || low > 0xDFFF)
            return mxc_jr_fail(jr, "half a surrogate pair");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        jr->p += 6;
    }
    jr->p += 6;
    *out += mxc_utf8_encode(cp, *out);
    return MXC_OK;
}

/* Finds the closing quote of a string with escapes; p is inside it. */
static const char *find_close(const char *p, const char *end) {
    uint64_t any = 0;
    while (p < end) {
        p = scan(p, end, &any);
        if (p < end && *p == '\\')
            p += 2;
        else
            break;
    }
    return p < end && *p == '"' ? p : NULL;
}

enum mxc_code mxc_jr_string(struct mxc_jr *jr, struct mxc_str *out) {
    uint64_t any = 0;
    if (mxc_jr_peek(jr) != '"')
        return mxc_jr_fail(jr, "a string is expected");
    const char *start = ++jr->p, *p = scan(start, jr->end, &any);
    if (p < jr->end && *p == '"') {
        if (any & HIGHS && !valid_utf8(start, p))
            return mxc_jr_fail(jr, "a string that is not UTF-8");
        *out = (struct mxc_str){start, (size_t)(p - start)};
        jr->p = p + 1;
        return MXC_OK;
    }
    const char *close = find_close(p, jr->end);
    if (!close)
        return mxc_jr_fail(jr, "a string without an end, or with a control character");
    char *text = mxc_arena_alloc(&jr->arena, (size_t)(close - start) + 4), *w = text;
    if (!text)
        return mxc_err_nomem(jr->err);
    while (jr->p < close) {
        p = scan(jr->p, close, &any);
        memcpy(w, jr->p, (size_t)(p - jr->p));
        w += p - jr->p;
        jr->p = p;
        if (p < close) {
            enum mxc_code code = unescape(jr, &w);
            if (code)
                return code;
        }
    }
    if (any & HIGHS && !valid_utf8(text, w))
        return mxc_jr_fail(jr, "a string that is not UTF-8");
    *out = (struct mxc_str){text, (size_t)(w - text)};
    jr->p = close + 1;
    return MXC_OK;
}

enum mxc_code mxc_jr_uint(struct mxc_jr *jr, uint64_t *out) {
    char c = mxc_jr_peek(jr);
    uint64_t v = 0;
    if (c < '0' || c > '9')
        return mxc_jr_fail(jr, "a number of 0 or more is expected");
    while (jr->p < jr->end && *jr->p >= '0' && *jr->p <= '9') {
        v = v * 10 + (uint64_t)(*jr->p++ - '0');
        if (v >> 53)
            return mxc_jr_fail(jr, "a number that is too large");
    }
    if (jr->p < jr->end && (*jr->p == '.' || *jr->p == 'e' || *jr->p == 'E'))
        return mxc_jr_fail(jr, "a whole number is expected");
    *out = v;
    return MXC_OK;
}

static bool word(struct mxc_jr *jr, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(jr->end - jr->p) < n || memcmp(jr->p, text, n))
        return false;
    jr->p += n;
    return true;
}

enum mxc_code mxc_jr_bool(struct mxc_jr *jr, bool *out) {
    mxc_jr_peek(jr);
    if (word(jr, "true"))
        *out = true;
    else if (word(jr, "false"))
        *out = false;
    else
        return mxc_jr_fail(jr, "true or false is expected");
    return MXC_OK;
}

static enum mxc_code skip_string(struct mxc_jr *jr) {
    const char *close = find_close(jr->p + 1, jr->end);
    if (!close)
        return mxc_jr_fail(jr, "a string without an end, or with a control character");
    jr->p = close + 1;
    return MXC_OK;
}

/* Brackets are matched; what stands between is only looked over, as its reader checks it. */
enum mxc_code mxc_jr_skip(struct mxc_jr *jr, struct mxc_str *out) {
    char stack[MAX_DEPTH];
    int depth = 0;
    enum mxc_code code;
    mxc_jr_peek(jr);
    const char *start = jr->p;
    do {
        char c = mxc_jr_peek(jr);
        if (c == '"') {
            if ((code = skip_string(jr)))
                return code;
        } else if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH)
                return mxc_jr_fail(jr, "nested too deep");
            stack[depth++] = c == '{' ? '}' : ']';
            jr->p++;
        } else if (c == '}' || c == ']') {
            if (!depth || stack[--depth] != c)
                return mxc_jr_fail(jr, "a bracket that closes nothing");
            jr->p++;
        } else if (c == ',' || c == ':') {
            if (!depth)
                return mxc_jr_fail(jr, "a value is expected");
            jr->p++;
        } else if (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) {
            while (jr->p < jr->end && !strchr(" \t\r\n,:]}{[\"", *jr->p))
                jr->p++;
        } else {
            return mxc_jr_fail(jr, c ? "an unexpected character" : "the text ends too early");
        }
    } while (depth);
    if (out)
        *out = (struct mxc_str){start, (size_t)(jr->p - start)};
    return MXC_OK;
}

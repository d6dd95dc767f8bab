/* Precompiled character maps: a double-array trie (Darts-clone's layout) and a pool of texts, as
 * sentencepiece writes them and `tokenizers` copies them; and the grapheme clusters to which
 * `tokenizers` applies it.
 * In: bytes of a file. Out: replacements.
 * Invariants: no unit outside the array is read; a replacement is well-formed UTF-8. */
#include "text/charsmap.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <string.h>

enum { MAX_KEY_BYTES = 128, MAX_TEXT_BYTES = 4096 };

struct mxc_charsmap {
    uint32_t *units;
    size_t n_units;
    char *pool; /* NUL-terminated texts */
    size_t pool_bytes;
    bool leads[256]; /* bytes that begin a key */
};

static uint32_t read_u32(const char *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint32_t offset_of(uint32_t unit) {
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* Goes on by a byte; false: no key has it. */
static bool follow(const struct mxc_charsmap *m, uint32_t *at, uint8_t byte) {
    uint32_t to = *at ^ byte;
    if (to >= m->n_units || (m->units[to] & (1u << 31 | 0xFF)) != byte)
        return false;
    *at = to ^ offset_of(m->units[to]);
    return *at < m->n_units;
}

static enum mxc_code check_pool(const char *pool, size_t n, struct mxc_err *err) {
    for (size_t i = 0; i < n;) {
        const char *end = memchr(pool + i, 0, n - i);
        size_t k = end ? (size_t)(end - pool) - i : n - i;
        if (!end || k > MAX_TEXT_BYTES || !mxc_utf8_valid(pool + i, k))
            return mxc_err_set(err, MXC_E_FORMAT,
                               "the character map has a replacement that is malformed or longer "
                               "than %d bytes",
                               MAX_TEXT_BYTES);
        i += k + 1;
    }
    return MXC_OK;
}

enum mxc_code mxc_charsmap_new(struct mxc_str blob, struct mxc_charsmap **out,
                               struct mxc_err *err) {
    uint32_t bytes = blob.length >= 4 ? read_u32(blob.ptr) : 0;
    if (blob.length < 8 || bytes < 4 || bytes % 4 || bytes > blob.length - 4)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "the character map is damaged: %zu bytes, a trie of %u", blob.length,
                           bytes);
    const char *pool = blob.ptr + 4 + bytes;
    size_t pool_bytes = blob.length - 4 - bytes;
    enum mxc_code code = check_pool(pool, pool_bytes, err);
    if (code)
        return code;
    struct mxc_charsmap *m = mxc_mem_zalloc(1, sizeof *m);
    if (!m || !(m->units = mxc_mem_array(bytes / 4, 4)) ||
        !(m->pool = mxc_mem_dup(pool, pool_bytes))) {
        mxc_charsmap_free(m);
        return mxc_err_nomem(err);
    }
    m->n_units = bytes / 4;
    m->pool_bytes = pool_bytes;
    for (size_t i = 0; i < m->n_units; i++)
        m->units[i] = read_u32(blob.ptr + 4 + 4 * i);
    for (unsigned b = 0; b < 256; b++) {
        uint32_t at = offset_of(m->units[0]);
        m->leads[b] = follow(m, &at, (uint8_t)b);
    }
    *out = m;
    return MXC_OK;
}

void mxc_charsmap_free(struct mxc_charsmap *m) {
    if (!m)
        return;
    mxc_mem_free(m->units);
    mxc_mem_free(m->pool);
    mxc_mem_free(m);
}

size_t mxc_charsmap_find(const struct mxc_charsmap *m, const char *text, size_t length,
                         bool shortest, struct mxc_str *replacement) {
    uint32_t at = offset_of(m->units[0]), value = UINT32_MAX;
    size_t best = 0;
    if (!length || !m->leads[(uint8_t)text[0]])
        return 0;
    for (size_t i = 0; i < length && i < MAX_KEY_BYTES; i++) {
        uint32_t to = at ^ (uint8_t)text[i];
        if (!text[i] || !follow(m, &at, (uint8_t)text[i]))
            break;
        if (!(m->units[to] >> 8 & 1))
            continue;
        value = m->units[at] & 0x7FFFFFFF;
        best = i + 1;
        if (shortest)
            break;
    }
    if (!best || value >= m->pool_bytes || ((uint8_t)m->pool[value] & 0xC0) == 0x80)
        return 0;
    *replacement = mxc_str_of(m->pool + value);
    return best;
}

/* Hangul syllables, with and without a final consonant, beside the classes of the table. */
enum {
    BREAK_LV = MXC_BREAK_PICTURE + 1,
    BREAK_LVT,
    S_BASE = 0xAC00,
    S_COUNT = 11172,
    T_COUNT = 28
};

static int break_of(uint32_t cp) {
    if (cp - S_BASE < S_COUNT)
        return (cp - S_BASE) % T_COUNT ? BREAK_LVT : BREAK_LV;
    return (int)mxc_unicode_break_of(cp);
}

static bool hangul_joined(int a, int b) {
    if (a == MXC_BREAK_L)
        return b == MXC_BREAK_L || b == MXC_BREAK_V || b == BREAK_LV || b == BREAK_LVT;
    if (a == BREAK_LV || a == MXC_BREAK_V)
        return b == MXC_BREAK_V || b == MXC_BREAK_T;
    return (a == BREAK_LVT || a == MXC_BREAK_T) && b == MXC_BREAK_T;
}

/* Does a cluster go on between two characters? picture: the last that was not Extend or ZWJ was a
 * picture; odd: an odd number of regional indicators stands before. */
static bool joined(int a, int b, bool picture, bool odd) {
    bool a_ends = a == MXC_BREAK_CR || a == MXC_BREAK_LF || a == MXC_BREAK_CONTROL;
    bool b_begins = b == MXC_BREAK_CR || b == MXC_BREAK_LF || b == MXC_BREAK_CONTROL;
    if (a_ends || b_begins)
        return a == MXC_BREAK_CR && b == MXC_BREAK_LF;
    if (b == MXC_BREAK_EXTEND || b == MXC_BREAK_ZWJ || b == MXC_BREAK_SPACINGMARK ||
        a == MXC_BREAK_PREPEND || hangul_joined(a, b))
        return true;
    if (a == MXC_BREAK_ZWJ && b == MXC_BREAK_PICTURE)
        return picture;
    return a == MXC_BREAK_REGIONAL_INDICATOR && b == a && odd;
}

size_t mxc_grapheme_length(const char *text, size_t length) {
    uint32_t cp;
    size_t n = mxc_utf8_decode(text, length, &cp);
    if (n == length || (n == 1 && (unsigned char)text[1] < 0x80 && text[0] != '\r'))
        return n;
    int a = break_of(cp);
    bool picture = a == MXC_BREAK_PICTURE, odd = a == MXC_BREAK_REGIONAL_INDICATOR;
    while (n < length) {
        size_t k = mxc_utf8_decode(text + n, length - n, &cp);
        int b = break_of(cp);
        if (!joined(a, b, picture, odd))
            break;
        if (b != MXC_BREAK_EXTEND && b != MXC_BREAK_ZWJ)
            picture = b == MXC_BREAK_PICTURE;
        odd = b == MXC_BREAK_REGIONAL_INDICATOR && !odd;
        a = b;
        n += k;
    }
    return n;
}

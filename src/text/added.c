/* Added tokens as a sorted list of strings. At each position whose byte begins some token, the
 * range of entries that share the bytes read so far is narrowed by binary search; the longest
 * complete one wins. A match that is not allowed is passed over as a whole, as the reference does,
 * so that plain text never holds tokens found inside a blocked one. */
#include "text/added.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const char *text;
    size_t length;
    const struct mxc_tok_added *token;
};

struct mxc_added {
    struct entry *entries; /* sorted by bytes */
    size_t n;
    char *bytes;
    uint32_t first[257]; /* entries that begin with byte b: [first[b], first[b + 1]) */
};

static int by_text(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    size_t n = x->length < y->length ? x->length : y->length;
    int c = memcmp(x->text, y->text, n);
    if (c)
        return c;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->token->id > y->token->id) - (x->token->id < y->token->id);
}

enum mxc_code mxc_added_new(const struct mxc_added_entry *entries, size_t n, struct mxc_added **out,
                            struct mxc_err *err) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += entries[i].text.length;
    struct mxc_added *a = mxc_mem_zalloc(1, sizeof *a);
    if (!a || !(a->entries = mxc_mem_zalloc(n, sizeof *a->entries)) ||
        !(a->bytes = mxc_mem_alloc(bytes))) {
        mxc_added_free(a);
        return mxc_err_nomem(err);
    }
    bytes = 0;
    for (size_t i = 0; i < n; i++) {
        struct mxc_str s = entries[i].text;
        memcpy(a->bytes + bytes, s.ptr, s.length);
        a->entries[i] = (struct entry){a->bytes + bytes, s.length, entries[i].token};
        bytes += s.length;
    }
    a->n = n;
    if (n)
        qsort(a->entries, n, sizeof *a->entries, by_text);
    for (unsigned b = 0, i = 0; b <= 256; b++) {
        while (i < n && (unsigned char)a->entries[i].text[0] < b)
            i++;
        a->first[b] = i;
    }
    *out = a;
    return MXC_OK;
}

void mxc_added_free(struct mxc_added *added) {
    if (!added)
        return;
    mxc_mem_free(added->entries);
    mxc_mem_free(added->bytes);
    mxc_mem_free(added);
}

bool mxc_added_is_empty(const struct mxc_added *added) {
    return added->n == 0;
}

/* The longest entry that text begins with; NULL: none. */
static const struct entry *longest(const struct mxc_added *a, const char *text, size_t length) {
    unsigned char c = (unsigned char)text[0];
    size_t lo = a->first[c], hi = a->first[c + 1];
    const struct entry *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        if (a->entries[lo].length == depth) {
            best = &a->entries[lo];
            while (lo < hi && a->entries[lo].length == depth)
                lo++; /* one text twice: the first counts */
        }
        if (depth >= length || lo >= hi)
            break;
        c = (unsigned char)text[depth];
        size_t from = lo, to = hi;
        while (from < to) { /* first entry whose byte at depth is >= c */
            size_t mid = from + (to - from) / 2;
            if ((unsigned char)a->entries[mid].text[depth] < c)
                from = mid + 1;
            else
                to = mid;
        }
        lo = from;
        to = hi;
        while (from < to) { /* first entry whose byte is > c */
            size_t mid = from + (to - from) / 2;
            if ((unsigned char)a->entries[mid].text[depth] <= c)
                from = mid + 1;
            else
                to = mid;
        }
        hi = from;
    }
    return best;
}

static size_t char_before(struct mxc_str text, size_t at, uint32_t *cp) {
    size_t i = at - 1;
    while (i > 0 && ((unsigned char)text.ptr[i] & 0xC0) == 0x80)
        i--;
    mxc_utf8_decode(text.ptr + i, at - i, cp);
    return i;
}

/* The reference's word test here counts the two joiners, too. */
static bool is_word(uint32_t cp) {
    return mxc_unicode_is_word(cp) || cp == 0x200C || cp == 0x200D;
}

static bool stands_alone(struct mxc_str text, size_t start, size_t end) {
    uint32_t cp;
    if (start > 0) {
        char_before(text, start, &cp);
        if (is_word(cp))
            return false;
    }
    if (end < text.length) {
        mxc_utf8_decode(text.ptr + end, text.length - end, &cp);
        if (is_word(cp))
            return false;
    }
    return true;
}

static bool allowed(const struct mxc_tok_added *token, const uint8_t *tags, size_t start,
                    size_t end, enum mxc_added_mode mode) {
    if (mode == MXC_ADDED_NO_SPECIAL)
        return !token->special;
    if (!token->control)
        return true;
    return mode == MXC_ADDED_ALL && (!tags || !memchr(tags + start, 1, end - start));
}

bool mxc_added_next(const struct mxc_added *added, struct mxc_str text, const uint8_t *tags,
                    enum mxc_added_mode mode, size_t from, size_t done,
                    struct mxc_added_match *match, size_t *resume) {
    for (size_t i = from; i < text.length;) {
        unsigned char c = (unsigned char)text.ptr[i];
        const struct entry *e = NULL;
        if (added->first[c] < added->first[c + 1])
            e = longest(added, text.ptr + i, text.length - i);
        if (!e) {
            i++;
            continue;
        }
        size_t start = i, end = i + e->length;
        i = end;
        if (!allowed(e->token, tags, start, end, mode) ||
            (e->token->single_word && !stands_alone(text, start, end)))
            continue;
        *resume = end;
        while (e->token->lstrip && start > done) {
            uint32_t cp;
            size_t k = char_before(text, start, &cp);
            if (k < done || !mxc_unicode_is_space(cp))
                break;
            start = k;
        }
        while (e->token->rstrip && end < text.length) {
            uint32_t cp;
            size_t n = mxc_utf8_decode(text.ptr + end, text.length - end, &cp);
            if (!mxc_unicode_is_space(cp))
                break;
            end += n;
        }
        if (end > *resume)
            *resume = end;
        *match = (struct mxc_added_match){start, end, e->token->id};
        return true;
    }
    return false;
}

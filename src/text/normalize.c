/* Normalisers. Unicode forms work on segments: a bitmap per form tells which code points are inert
 * (no decomposition, class 0, never the second of a composition); inert runs are copied, and what
 * lies between is decomposed, ordered and composed together with the inert character before it. */
#include "text/normalize.h"

#include "base/mem.h"
#include "text/normalize_map.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_CPS = 0x110000,
    S_BASE = 0xAC00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11A7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

struct step {
    struct mxc_tok_step spec; /* strings owned below */
    char *pattern, *content;
    struct mxc_regex *regex;
    uint8_t *active; /* Unicode forms: bit per code point, set when not inert */
    struct mxc_charsmap *map;
    struct mxc_trie kept; /* texts that a map leaves alone; no nodes: none */
};

struct mxc_normalizer {
    struct step *steps;
    size_t n_steps;
};

void mxc_text_init(struct mxc_text *text, bool tagged) {
    *text = (struct mxc_text){.tagged = tagged};
}

void mxc_text_fini(struct mxc_text *text) {
    mxc_mem_free(text->data);
    mxc_mem_free(text->tags);
    mxc_text_init(text, text->tagged);
}

void mxc_text_clear(struct mxc_text *text) {
    text->length = text->max_bytes = 0;
    text->failed = text->full = false;
}

void mxc_text_begin(struct mxc_text *text, size_t origin) {
    /* One character becomes 18 at most by NFKD (U+FDFA), and a space three bytes. */
    enum { GROWTH = 32, SLACK = 1 << 12 };
    mxc_text_clear(text);
    text->max_bytes = origin < MXC_TEXT_MAX_BYTES / (2 * GROWTH) ? GROWTH * origin + SLACK : 0;
}

static size_t max_bytes(const struct mxc_text *text) {
    return text->max_bytes ? text->max_bytes : MXC_TEXT_MAX_BYTES;
}

enum mxc_code mxc_text_status(const struct mxc_text *text, struct mxc_err *err) {
    if (!text->failed)
        return MXC_OK;
    return text->full
               ? mxc_err_set(err, MXC_E_LIMIT, "text is longer than %zu bytes%s", max_bytes(text),
                             text->max_bytes ? " after steps of the tokeniser" : "")
               : mxc_err_nomem(err);
}

static bool reserve(struct mxc_text *text, size_t more) {
    size_t need, cap = text->capacity ? text->capacity : 64;
    if (text->failed)
        return false;
    if (!mxc_size_add(text->length, more, &need) || need > max_bytes(text)) {
        text->failed = text->full = true;
        return false;
    }
    if (need <= text->capacity)
        return true;
    while (cap < need)
        cap = cap > need / 2 ? cap * 2 : need;
    char *data = mxc_mem_realloc(text->data, cap, 1);
    if (data)
        text->data = data;
    uint8_t *tags = text->tagged && data ? mxc_mem_realloc(text->tags, cap, 1) : NULL;
    if (tags)
        text->tags = tags;
    if (!data || (text->tagged && !tags)) {
        text->failed = true;
        return false;
    }
    text->capacity = cap;
    return true;
}

void mxc_text_append(struct mxc_text *text, const char *bytes, size_t length, const uint8_t *tags,
                     uint8_t tag) {
    if (!length || !reserve(text, length))
        return;
    memcpy(text->data + text->length, bytes, length);
    if (text->tagged) {
        if (tags)
            memcpy(text->tags + text->length, tags, length);
        else
            memset(text->tags + text->length, tag, length);
    }
    text->length += length;
}

static void append_cp(struct mxc_text *text, uint32_t cp, uint8_t tag) {
    char bytes[4];
    size_t n = mxc_utf8_encode(cp, bytes);
    mxc_text_append(text, bytes, n, NULL, tag);
}

static const uint8_t *tags_at(const struct mxc_text *text, size_t i) {
    return text->tagged && text->tags ? text->tags + i : NULL;
}

static uint8_t tag_of(const struct mxc_text *text, size_t i, size_t n) {
    uint8_t tag = 0;
    for (size_t k = 0; text->tagged && k < n; k++)
        tag |= text->tags[i + k];
    return tag;
}

/* Unicode forms */

static void mark(uint8_t *active, uint32_t cp) {
    active[cp >> 3] |= (uint8_t)(1u << (cp & 7));
}

static bool is_active(const uint8_t *active, uint32_t cp) {
    return active[cp >> 3] >> (cp & 7) & 1;
}

static uint8_t *build_active(bool compat, bool compose) {
    uint8_t *a = mxc_mem_zalloc(N_CPS / 8, 1);
    if (!a)
        return NULL;
    for (int i = 0; i < MXC_UNICODE_DECOMPOSITIONS_COUNT; i += 3)
        if (mxc_unicode_decompositions[i + 1 + compat] & 0xFF) {
            uint32_t cp = mxc_unicode_decompositions[i];
            const uint32_t *d = NULL;
            int n = mxc_unicode_decompose(cp, compat, &d);
            bool stable = false; /* composes back to itself and nothing follows into it */
            if (compose && n == 2)
                stable = mxc_unicode_compose(d[0], d[1]) == cp;
            if (!stable)
                mark(a, cp);
        }
    for (int i = 0; i < MXC_UNICODE_CCC_RUNS_COUNT; i++)
        if (mxc_unicode_ccc_runs[i] & 0xFF) {
            uint32_t end =
                i + 1 < MXC_UNICODE_CCC_RUNS_COUNT ? mxc_unicode_ccc_runs[i + 1] >> 8 : N_CPS;
            for (uint32_t cp = mxc_unicode_ccc_runs[i] >> 8; cp < end; cp++)
                mark(a, cp);
        }
    if (compose) {
        for (int i = 0; i < MXC_UNICODE_COMPOSITIONS_COUNT; i += 3)
            mark(a, mxc_unicode_compositions[i + 1]);
        for (uint32_t cp = V_BASE; cp < V_BASE + V_COUNT; cp++)
            mark(a, cp);
        for (uint32_t cp = T_BASE + 1; cp < T_BASE + T_COUNT; cp++)
            mark(a, cp);
    } else {
        for (uint32_t cp = S_BASE; cp < S_BASE + S_COUNT; cp++)
            mark(a, cp);
    }
    return a;
}

struct item {
    uint32_t cp, order; /* order keeps the sort stable */
    uint8_t ccc, tag;
};

struct segment {
    struct item *items;
    size_t n, capacity;
    bool failed;
};

static void push(struct segment *s, uint32_t cp, uint8_t tag) {
    if (s->n == s->capacity) {
        size_t cap = s->capacity ? s->capacity * 2 : 64;
        struct item *p = mxc_mem_realloc(s->items, cap, sizeof *p);
        if (!p) {
            s->failed = true;
            return;
        }
        s->items = p;
        s->capacity = cap;
    }
    s->items[s->n] = (struct item){cp, (uint32_t)s->n, mxc_unicode_ccc(cp), tag};
    s->n++;
}

static void push_decomposed(struct segment *s, uint32_t cp, uint8_t tag, bool compat) {
    const uint32_t *d;
    int n = mxc_unicode_decompose(cp, compat, &d);
    if (cp >= S_BASE && cp < S_BASE + S_COUNT) {
        uint32_t k = cp - S_BASE;
        push(s, L_BASE + k / (V_COUNT * T_COUNT), tag);
        push(s, V_BASE + k % (V_COUNT * T_COUNT) / T_COUNT, tag);
        if (k % T_COUNT)
            push(s, T_BASE + k % T_COUNT, tag);
    } else if (n) {
        for (int i = 0; i < n; i++)
            push(s, d[i], tag);
    } else {
        push(s, cp, tag);
    }
}

static int by_ccc(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->ccc != y->ccc)
        return x->ccc < y->ccc ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static void order_marks(struct segment *s) {
    for (size_t i = 0; i < s->n;) {
        size_t j = i + 1;
        if (s->items[i].ccc) {
            while (j < s->n && s->items[j].ccc)
                j++;
            if (j - i > 1)
                qsort(s->items + i, j - i, sizeof *s->items, by_ccc);
        }
        i = j;
    }
}

static uint32_t compose_pair(uint32_t a, uint32_t b) {
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b - (T_BASE + 1) < T_COUNT - 1)
        return a + (b - T_BASE);
    return mxc_unicode_compose(a, b);
}

static void compose(struct segment *s) {
    size_t out = 0, starter = SIZE_MAX;
    uint8_t last = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct item x = s->items[i];
        bool adjacent = starter != SIZE_MAX && out == starter + 1;
        if (starter != SIZE_MAX && (adjacent || last < x.ccc) && (adjacent || last)) {
            uint32_t c = compose_pair(s->items[starter].cp, x.cp);
            if (c) {
                s->items[starter].cp = c;
                s->items[starter].tag |= x.tag;
                continue;
            }
        }
        if (!x.ccc)
            starter = out;
        last = x.ccc;
        s->items[out++] = x;
    }
    s->n = out;
}

static void flush_segment(struct segment *s, bool composed, struct mxc_text *out) {
    order_marks(s);
    if (composed)
        compose(s);
    for (size_t i = 0; i < s->n; i++)
        append_cp(out, s->items[i].cp, s->items[i].tag);
    s->n = 0;
}

static void run_form(const struct step *step, const struct mxc_text *in, struct mxc_text *out) {
    bool compat = step->spec.kind == MXC_TOK_NFKC || step->spec.kind == MXC_TOK_NFKD;
    bool composed = step->spec.kind == MXC_TOK_NFC || step->spec.kind == MXC_TOK_NFKC;
    struct segment seg = {0};
    size_t copied = 0, previous = 0; /* previous: start of the last inert character, if any */
    bool open = false;
    for (size_t i = 0; i < in->length;) {
        uint32_t cp;
        if ((unsigned char)in->data[i] < 0x80 && !open) {
            previous = i++;
            continue;
        }
        size_t n = mxc_utf8_decode(in->data + i, in->length - i, &cp);
        if (cp < N_CPS && is_active(step->active, cp)) {
            if (!open) {
                open = true;
                size_t from = i > copied ? previous : i;
                mxc_text_append(out, in->data + copied, from - copied, tags_at(in, copied), 0);
                if (from < i) {
                    uint32_t before;
                    mxc_utf8_decode(in->data + from, i - from, &before);
                    push_decomposed(&seg, before, tag_of(in, from, i - from), compat);
                }
            }
            push_decomposed(&seg, cp, tag_of(in, i, n), compat);
        } else {
            if (open)
                flush_segment(&seg, composed, out);
            if (open)
                copied = i;
            open = false;
            previous = i;
        }
        i += n;
    }
    if (open)
        flush_segment(&seg, composed, out);
    else
        mxc_text_append(out, in->data + copied, in->length - copied, tags_at(in, copied), 0);
    out->failed |= seg.failed;
    mxc_mem_free(seg.items);
}

/* Other steps */

/* What BERT calls ideographs. */
static bool is_cjk(uint32_t cp) {
    static const uint32_t blocks[][2] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                         {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (cp >= blocks[i][0] && cp <= blocks[i][1])
            return true;
    return false;
}

/* -1: dropped. */
static int64_t bert_clean(uint32_t cp) {
    if (cp == '\t' || cp == '\n' || cp == '\r')
        return ' ';
    enum mxc_unicode_category c = mxc_unicode_category_of(cp);
    if (cp == 0xFFFD || c == MXC_UNICODE_CC || c == MXC_UNICODE_CF || c == MXC_UNICODE_CO)
        return -1;
    return mxc_unicode_is_space(cp) ? ' ' : (int64_t)cp;
}

static int64_t nmt_clean(uint32_t cp) {
    if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
        cp == 0x8F || cp == 0x9F)
        return -1;
    if (cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
        (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
        cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

/* Character number cp of n bytes at i. */
static void map_one(enum mxc_tok_step_kind kind, const struct mxc_text *in, size_t i, size_t n,
                    uint32_t cp, struct mxc_text *out) {
    enum mxc_unicode_category c = MXC_UNICODE_CN;
    int64_t to = cp;
    uint32_t low[2];
    switch (kind) {
    case MXC_TOK_LOWERCASE:
        for (int k = mxc_unicode_lower(cp, low), j = 0; j < k; j++)
            append_cp(out, low[j], tag_of(in, i, n));
        return;
    case MXC_TOK_STRIP_ACCENTS:
    case MXC_TOK_STRIP_NONSPACING:
        c = mxc_unicode_category_of(cp);
        if (c == MXC_UNICODE_MN ||
            (kind == MXC_TOK_STRIP_ACCENTS && (c == MXC_UNICODE_MC || c == MXC_UNICODE_ME)))
            return;
        break;
    case MXC_TOK_BERT_CJK:
        if (is_cjk(cp)) {
            mxc_text_append(out, " ", 1, NULL, tag_of(in, i, n));
            mxc_text_append(out, in->data + i, n, tags_at(in, i), 0);
            mxc_text_append(out, " ", 1, NULL, tag_of(in, i, n));
            return;
        }
        break;
    default:
        to = kind == MXC_TOK_NMT ? nmt_clean(cp) : bert_clean(cp);
        break;
    }
    if (to == cp)
        mxc_text_append(out, in->data + i, n, tags_at(in, i), 0);
    else if (to >= 0)
        append_cp(out, (uint32_t)to, tag_of(in, i, n));
}

static void run_map(enum mxc_tok_step_kind kind, const struct mxc_text *in, struct mxc_text *out) {
    for (size_t i = 0; i < in->length;) {
        size_t k = i;
        for (unsigned char c; k < in->length; k++) { /* nothing changes there */
            c = (unsigned char)in->data[k];
            if (c < ' ' || c >= 0x7F || (kind == MXC_TOK_LOWERCASE && c >= 'A' && c <= 'Z'))
                break;
        }
        mxc_text_append(out, in->data + i, k - i, tags_at(in, i), 0);
        if ((i = k) == in->length)
            break;
        uint32_t cp;
        size_t n = mxc_utf8_decode(in->data + i, in->length - i, &cp);
        map_one(kind, in, i, n, cp, out);
        i += n;
    }
}

static void run_strip(const struct step *step, const struct mxc_text *in, struct mxc_text *out) {
    size_t start = 0, end = in->length;
    uint32_t cp;
    while (step->spec.left && start < end) {
        size_t n = mxc_utf8_decode(in->data + start, end - start, &cp);
        if (!mxc_unicode_is_space(cp))
            break;
        start += n;
    }
    while (step->spec.right && end > start) {
        size_t k = end - 1;
        while (k > start && ((unsigned char)in->data[k] & 0xC0) == 0x80)
            k--;
        mxc_utf8_decode(in->data + k, end - k, &cp);
        if (!mxc_unicode_is_space(cp))
            break;
        end = k;
    }
    mxc_text_append(out, in->data + start, end - start, tags_at(in, start), 0);
}

static void run_replace_string(const struct step *step, const struct mxc_text *in,
                               struct mxc_text *out) {
    struct mxc_str pat = step->spec.pattern, with = step->spec.content;
    size_t copied = 0;
    for (size_t i = 0; i + pat.length <= in->length;) {
        const char *hit = memchr(in->data + i, pat.ptr[0], in->length - i - (pat.length - 1));
        if (!hit)
            break;
        i = (size_t)(hit - in->data);
        if (memcmp(hit, pat.ptr, pat.length)) {
            i++;
            continue;
        }
        mxc_text_append(out, in->data + copied, i - copied, tags_at(in, copied), 0);
        mxc_text_append(out, with.ptr, with.length, NULL, tag_of(in, i, pat.length));
        i += pat.length;
        copied = i;
    }
    mxc_text_append(out, in->data + copied, in->length - copied, tags_at(in, copied), 0);
}

static size_t advance(const struct mxc_text *in, size_t at, size_t chars) {
    while (chars-- && at < in->length) {
        at++;
        while (at < in->length && ((unsigned char)in->data[at] & 0xC0) == 0x80)
            at++;
    }
    return at;
}

static enum mxc_code run_replace_regex(const struct step *step, const struct mxc_text *in,
                                       struct mxc_text *out, struct mxc_regex_scratch *scratch,
                                       struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    uint8_t *classes = mxc_mem_alloc(in->length);
    if (!classes)
        return mxc_err_nomem(err);
    size_t n = mxc_regex_classify(step->regex, in->data, in->length, classes);
    size_t at = 0, byte = 0; /* characters and bytes done */
    for (size_t from = 0; from <= n;) {
        size_t s, e;
        bool found;
        if ((code = mxc_regex_next(step->regex, scratch, classes, n, from, &found, &s, &e, err)) ||
            !found)
            break;
        size_t bs = advance(in, byte, s - at), be = advance(in, bs, e - s);
        mxc_text_append(out, in->data + byte, bs - byte, tags_at(in, byte), 0);
        mxc_text_append(out, step->spec.content.ptr, step->spec.content.length, NULL,
                        tag_of(in, bs, be - bs));
        at = e;
        byte = be;
        from = e > s ? e : e + 1;
    }
    mxc_text_append(out, in->data + byte, in->length - byte, tags_at(in, byte), 0);
    mxc_mem_free(classes);
    return code;
}

enum mxc_code mxc_normalizer_run(const struct mxc_normalizer *normalizer, struct mxc_text *text,
                                 struct mxc_text *spare, struct mxc_regex_scratch *scratch,
                                 struct mxc_err *err) {
    size_t origin = text->length;
    for (size_t i = 0; i < normalizer->n_steps && !text->failed && text->length; i++) {
        const struct step *step = &normalizer->steps[i];
        enum mxc_code code = MXC_OK;
        mxc_text_begin(spare, origin);
        switch (step->spec.kind) {
        case MXC_TOK_LOWERCASE:
        case MXC_TOK_STRIP_ACCENTS:
        case MXC_TOK_STRIP_NONSPACING:
        case MXC_TOK_BERT_CLEAN:
        case MXC_TOK_BERT_CJK:
        case MXC_TOK_NMT:
            run_map(step->spec.kind, text, spare);
            break;
        case MXC_TOK_CHARSMAP:
            mxc_normalize_charsmap(step->map, text, spare);
            break;
        case MXC_TOK_SPM_TEXT:
            mxc_normalize_spm(&step->spec, step->map, step->kept.nodes ? &step->kept : NULL, text,
                              spare);
            break;
        case MXC_TOK_STRIP_SPACE:
            run_strip(step, text, spare);
            break;
        case MXC_TOK_PREPEND:
            mxc_text_append(spare, step->spec.content.ptr, step->spec.content.length, NULL, 0);
            mxc_text_append(spare, text->data, text->length, text->tags, 0);
            break;
        case MXC_TOK_REPLACE:
            if (step->regex)
                code = run_replace_regex(step, text, spare, scratch, err);
            else
                run_replace_string(step, text, spare);
            break;
        default:
            run_form(step, text, spare);
        }
        if (code)
            return code;
        struct mxc_text swap = *text;
        *text = *spare;
        *spare = swap;
    }
    return mxc_text_status(text, err);
}

static enum mxc_code init_step(struct step *step, const struct mxc_tok_step *spec,
                               struct mxc_err *err) {
    enum mxc_tok_step_kind kind = spec->kind;
    step->spec = *spec;
    step->pattern = mxc_mem_dup(spec->pattern.ptr, spec->pattern.length);
    step->content = mxc_mem_dup(spec->content.ptr, spec->content.length);
    if (!step->pattern || !step->content)
        return mxc_err_nomem(err);
    step->spec.pattern.ptr = step->pattern;
    step->spec.content.ptr = step->content;
    if (kind == MXC_TOK_REPLACE && !spec->pattern.length)
        return mxc_err_set(err, MXC_E_FORMAT, "normalizer Replace: empty pattern");
    if (kind == MXC_TOK_REPLACE && spec->is_regex)
        return mxc_regex_new(spec->pattern, &step->regex, err);
    if (kind <= MXC_TOK_NFKD) {
        step->active = build_active(kind == MXC_TOK_NFKC || kind == MXC_TOK_NFKD,
                                    kind == MXC_TOK_NFC || kind == MXC_TOK_NFKC);
        return step->active ? MXC_OK : mxc_err_nomem(err);
    }
    if (kind == MXC_TOK_CHARSMAP || (kind == MXC_TOK_SPM_TEXT && spec->content.length))
        return mxc_charsmap_new(spec->content, &step->map, err);
    if (kind > MXC_TOK_REPLACE)
        return mxc_err_set(err, MXC_E_INTERNAL, "step %d is no normalizer", (int)kind);
    return MXC_OK;
}

enum mxc_code mxc_normalizer_new(const struct mxc_tok_steps *steps, struct mxc_normalizer **out,
                                 struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    struct mxc_normalizer *n = mxc_mem_zalloc(1, sizeof *n);
    if (!n || !(n->steps = mxc_mem_zalloc(steps->count, sizeof *n->steps))) {
        mxc_normalizer_free(n);
        return mxc_err_nomem(err);
    }
    for (size_t i = 0; i < steps->count && !code; i++) {
        n->n_steps++;
        code = init_step(&n->steps[i], &steps->items[i], err);
    }
    if (code)
        mxc_normalizer_free(n);
    else
        *out = n;
    return code;
}

void mxc_normalizer_free(struct mxc_normalizer *normalizer) {
    if (!normalizer)
        return;
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        struct step *s = &normalizer->steps[i];
        mxc_mem_free(s->pattern);
        mxc_mem_free(s->content);
        mxc_mem_free(s->active);
        mxc_regex_free(s->regex);
        mxc_charsmap_free(s->map);
        mxc_trie_fini(&s->kept);
    }
    mxc_mem_free(normalizer->steps);
    mxc_mem_free(normalizer);
}

enum mxc_code mxc_normalizer_protect(struct mxc_normalizer *normalizer,
                                     const struct mxc_tokdesc *desc, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < normalizer->n_steps && !code; i++) {
        struct step *s = &normalizer->steps[i];
        bool any = false;
        if (s->spec.kind != MXC_TOK_SPM_TEXT || !s->map)
            continue;
        uint8_t *wanted = mxc_mem_zalloc(desc->n_ids, 1);
        if (!wanted)
            return mxc_err_nomem(err);
        for (uint32_t id = 0; id < desc->n_ids; id++)
            if (desc->tokens[id].type == MXC_TOKEN_USER)
                any = (wanted[id] = true);
        if (any && !s->kept.nodes)
            code = mxc_trie_init(&s->kept, desc, wanted, MXC_TOK_MAX_PATH_BYTES, err);
        mxc_mem_free(wanted);
    }
    return code;
}

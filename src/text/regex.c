/* Regular expressions over character classes: sweeps the borders of a pattern's sets to find the
 * classes, builds the two-level table code point -> class, writes each set as a PCRE2 byte class,
 * compiles and runs. The table: 4,352 pages of 256 code points; pages of one class are shared. */
#include "text/regex.h"

#include "base/mem.h"
#include "text/regex_parse.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_PAGES = 0x110000 / 256,
    MAX_CLASSES = 256,
    MATCH_LIMIT = 50000000,
    JIT_STACK_START = 32 << 10,
    JIT_STACK_MAX = 16 << 20
};

struct mxc_regex {
    pcre2_code *code;
    bool jit;
    uint16_t page[N_PAGES]; /* index into blocks */
    uint8_t *blocks;        /* [n_blocks][256] */
    size_t n_blocks;
};

struct mxc_regex_scratch {
    pcre2_general_context *general;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static void *pcre_alloc(size_t bytes, void *user) {
    (void)user;
    return mxc_mem_alloc(bytes);
}

static void pcre_free(void *p, void *user) {
    (void)user;
    mxc_mem_free(p);
}

typedef uint64_t signature[MXC_REGEX_MAX_SETS / 64];

struct classes {
    struct mxc_regex *regex;
    const struct mxc_regex_parsed *parsed;
    uint32_t *borders; /* sorted starts of intervals */
    size_t n_borders;
    signature *sig; /* [n_classes]: bit s: the class is in set s */
    size_t n_classes;
    uint16_t uniform[MAX_CLASSES]; /* block of pages that are all of this class; 0xFFFF: none yet */
    size_t blocks_capacity;
};

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static enum mxc_code collect_borders(struct classes *c, struct mxc_err *err) {
    size_t n = 1;
    for (size_t i = 0; i < c->parsed->n_sets; i++)
        n += 2 * c->parsed->sets[i].n_ranges;
    c->borders = mxc_mem_array(n, sizeof *c->borders);
    if (!c->borders)
        return mxc_err_nomem(err);
    n = 0;
    c->borders[n++] = 0;
    for (size_t i = 0; i < c->parsed->n_sets; i++) {
        const struct mxc_charset *s = &c->parsed->sets[i];
        for (size_t k = 0; k < s->n_ranges; k++) {
            c->borders[n++] = s->bounds[2 * k];
            c->borders[n++] = s->bounds[2 * k + 1] + 1;
        }
    }
    qsort(c->borders, n, sizeof *c->borders, by_value);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (c->borders[i] < 0x110000 && (!m || c->borders[m - 1] != c->borders[i]))
            c->borders[m++] = c->borders[i];
    c->n_borders = m;
    return MXC_OK;
}

static bool class_of(struct classes *c, uint32_t cp, size_t *out) {
    signature sig = {0};
    for (size_t s = 0; s < c->parsed->n_sets; s++)
        if (mxc_charset_has(&c->parsed->sets[s], cp))
            sig[s / 64] |= (uint64_t)1 << s % 64;
    for (size_t k = 0; k < c->n_classes; k++)
        if (!memcmp(c->sig[k], sig, sizeof sig)) {
            *out = k;
            return true;
        }
    if (c->n_classes == MAX_CLASSES)
        return false;
    memcpy(c->sig[c->n_classes], sig, sizeof sig);
    *out = c->n_classes++;
    return true;
}

static uint8_t *new_block(struct classes *c) {
    struct mxc_regex *r = c->regex;
    if (r->n_blocks == c->blocks_capacity) {
        size_t cap = c->blocks_capacity ? c->blocks_capacity * 2 : 64;
        uint8_t *p = mxc_mem_realloc(r->blocks, cap, 256);
        if (!p)
            return NULL;
        r->blocks = p;
        c->blocks_capacity = cap;
    }
    return r->blocks + 256 * r->n_blocks++;
}

/* Fills pages from the intervals in order. */
static enum mxc_code fill_table(struct classes *c, struct mxc_err *err) {
    size_t i = 0, class = 0;
    memset(c->uniform, 0xFF, sizeof c->uniform);
    for (uint32_t page = 0; page < N_PAGES; page++) {
        uint32_t base = page * 256;
        bool split =
            i < c->n_borders && c->borders[i] < base + 256 &&
            (c->borders[i] > base || (i + 1 < c->n_borders && c->borders[i + 1] < base + 256));
        if (!split) {
            if (i < c->n_borders && c->borders[i] == base && !class_of(c, base, &class))
                goto too_many;
            i += i < c->n_borders && c->borders[i] == base;
            if (c->uniform[class] == 0xFFFF) {
                uint8_t *b = new_block(c);
                if (!b)
                    return mxc_err_nomem(err);
                memset(b, (int)class, 256);
                c->uniform[class] = (uint16_t)(c->regex->n_blocks - 1);
            }
            c->regex->page[page] = c->uniform[class];
            continue;
        }
        uint8_t *b = new_block(c);
        if (!b)
            return mxc_err_nomem(err);
        c->regex->page[page] = (uint16_t)(c->regex->n_blocks - 1);
        for (uint32_t k = 0; k < 256; k++) {
            if (i < c->n_borders && c->borders[i] == base + k) {
                i++;
                if (!class_of(c, base + k, &class))
                    goto too_many;
            }
            b[k] = (uint8_t) class;
        }
    }
    return MXC_OK;
too_many:
    return mxc_err_set(err, MXC_E_UNSUPPORTED,
                       "regular expression: more than %d classes of characters", MAX_CLASSES);
}

/* Members of set s as a PCRE2 byte class. */
static void write_set(const struct classes *c, size_t s, struct mxc_buf *out) {
    bool any = false;
    for (size_t k = 0; k < c->n_classes; k++) {
        if (!(c->sig[k][s / 64] >> s % 64 & 1))
            continue;
        size_t last = k;
        while (last + 1 < c->n_classes && c->sig[last + 1][s / 64] >> s % 64 & 1)
            last++;
        mxc_buf_puts(out, any ? "" : "[");
        mxc_buf_printf(out, last > k ? "\\x%02X-\\x%02X" : "\\x%02X", (unsigned)k, (unsigned)last);
        k = last;
        any = true;
    }
    mxc_buf_puts(out, any ? "]" : "(?!)");
}

static enum mxc_code compile(struct classes *c, struct mxc_err *err) {
    struct mxc_buf out;
    pcre2_general_context *general = NULL;
    pcre2_compile_context *context = NULL;
    enum mxc_code code = MXC_OK;
    mxc_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < c->parsed->out.length; i++) {
        char x = c->parsed->out.data[i];
        if (x == MXC_REGEX_SET_MARK)
            write_set(c, (size_t)(unsigned char)c->parsed->out.data[++i] - 1, &out);
        else
            mxc_buf_putc(&out, x);
    }
    if ((code = mxc_buf_status(&out, err)))
        goto out;
    general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    context = general ? pcre2_compile_context_create(general) : NULL;
    if (!context) {
        code = mxc_err_nomem(err);
        goto out;
    }
    int error;
    PCRE2_SIZE at;
    c->regex->code = pcre2_compile((PCRE2_SPTR)mxc_buf_text(&out), out.length,
                                   PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C,
                                   &error, &at, context);
    if (!c->regex->code) {
        char why[120];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        code = error == PCRE2_ERROR_HEAP_FAILED
                   ? mxc_err_nomem(err)
                   : mxc_err_set(err, MXC_E_UNSUPPORTED, "regular expression: %s", why);
        goto out;
    }
    /* without JIT (no executable memory allowed) the interpreter matches */
    c->regex->jit = pcre2_jit_compile(c->regex->code, PCRE2_JIT_COMPLETE) == 0;
out:
    if (context)
        pcre2_compile_context_free(context);
    if (general)
        pcre2_general_context_free(general);
    mxc_buf_fini(&out);
    return code;
}

enum mxc_code mxc_regex_new(struct mxc_str pattern, struct mxc_regex **out, struct mxc_err *err) {
    struct classes c = {0};
    struct mxc_regex_parsed *parsed = mxc_mem_zalloc(1, sizeof *parsed);
    enum mxc_code code = parsed ? mxc_regex_parse(pattern, parsed, err) : mxc_err_nomem(err);
    if (code)
        goto out;
    c.parsed = parsed;
    c.regex = mxc_mem_zalloc(1, sizeof *c.regex);
    c.sig = mxc_mem_zalloc(MAX_CLASSES, sizeof *c.sig);
    if (!c.regex || !c.sig) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if (!(code = collect_borders(&c, err)) && !(code = fill_table(&c, err)))
        code = compile(&c, err);
out:
    mxc_mem_free(c.borders);
    mxc_mem_free(c.sig);
    if (parsed)
        mxc_regex_parsed_fini(parsed);
    mxc_mem_free(parsed);
    if (code)
        mxc_regex_free(c.regex);
    else
        *out = c.regex;
    return code;
}

void mxc_regex_free(struct mxc_regex *regex) {
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    mxc_mem_free(regex->blocks);
    mxc_mem_free(regex);
}

enum mxc_code mxc_regex_scratch_new(struct mxc_regex_scratch **out, struct mxc_err *err) {
    struct mxc_regex_scratch *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s || !(s->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL)) ||
        !(s->data = pcre2_match_data_create(1, s->general)) ||
        !(s->context = pcre2_match_context_create(s->general)) ||
        !(s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, s->general))) {
        mxc_regex_scratch_free(s);
        return mxc_err_nomem(err);
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out = s;
    return MXC_OK;
}

void mxc_regex_scratch_free(struct mxc_regex_scratch *scratch) {
    if (!scratch)
        return;
    pcre2_jit_stack_free(scratch->stack);
    pcre2_match_context_free(scratch->context);
    pcre2_match_data_free(scratch->data);
    pcre2_general_context_free(scratch->general);
    mxc_mem_free(scratch);
}

size_t mxc_regex_classify(const struct mxc_regex *regex, const char *text, size_t length,
                          uint8_t *classes) {
    const uint8_t *ascii = regex->blocks + 256 * (size_t)regex->page[0];
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    uint8_t *out = classes;
    while (p < end) {
        uint32_t c = *p;
        if (c < 0x80) {
            *out++ = ascii[c];
            p++;
            continue;
        }
        if (c < 0xE0) {
            c = (c & 0x1F) << 6 | (p[1] & 0x3F);
            p += 2;
        } else if (c < 0xF0) {
            c = (c & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
            p += 3;
        } else {
            c = (c & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 |
                (p[3] & 0x3F);
            p += 4;
        }
        *out++ = regex->blocks[256 * (size_t)regex->page[c >> 8] + (c & 0xFF)];
    }
    return (size_t)(out - classes);
}

enum mxc_code mxc_regex_next(const struct mxc_regex *regex, struct mxc_regex_scratch *scratch,
                             const uint8_t *classes, size_t n, size_t start, bool *found,
                             size_t *match_start, size_t *match_end, struct mxc_err *err) {
    int rc = (regex->jit ? pcre2_jit_match : pcre2_match)(regex->code, classes, n, start, 0,
                                                          scratch->data, scratch->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *found = false;
        return MXC_OK;
    }
    if (rc < 0) {
        char why[120];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return rc == PCRE2_ERROR_NOMEMORY
                   ? mxc_err_nomem(err)
                   : mxc_err_set(err, MXC_E_LIMIT, "pre-tokeniser expression: %s", why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(scratch->data);
    *found = true;
    *match_start = v[0];
    *match_end = v[1];
    return MXC_OK;
}

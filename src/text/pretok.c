/* Pre-tokenisers. Everything is one of four operations on the list of pieces: split by a pattern
 * (with the reference's five behaviours), put a space before pieces that have none, turn spaces
 * into the metaspace character, or cut where the script changes. Byte-to-character mapping is the
 * model's business. */
#include "text/pretok.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <string.h>

enum op_kind { OP_SPLIT, OP_PREFIX_SPACE, OP_METASPACE, OP_SCRIPTS };

struct op {
    enum op_kind kind;
    struct mxc_regex *regex; /* OP_SPLIT: this, or the literal text */
    char *literal;           /* also the metaspace character */
    size_t literal_length;
    enum mxc_tok_behavior behavior;
    enum mxc_tok_prepend prepend;
    bool invert;
};

struct mxc_pretok {
    struct op *ops; /* [2 * steps at most] */
    size_t n_ops;
};

/* GPT-2's pattern, as published: what a ByteLevel step splits by. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void mxc_pretok_scratch_fini(struct mxc_pretok_scratch *scratch) {
    mxc_mem_free(scratch->pieces.items);
    mxc_mem_free(scratch->spare.items);
    mxc_mem_free(scratch->classes);
    mxc_text_fini(&scratch->spare_text);
    *scratch = (struct mxc_pretok_scratch){0};
}

static bool grow(struct mxc_pieces *p, size_t need) {
    size_t cap = p->capacity ? p->capacity : 64;
    while (cap < need)
        cap *= 2;
    struct mxc_piece *items = mxc_mem_realloc(p->items, cap, sizeof *items);
    if (!items)
        return false;
    p->items = items;
    p->capacity = cap;
    return true;
}

static inline bool add(struct mxc_pieces *p, size_t start, size_t end) {
    if (start == end)
        return true;
    if (p->count == p->capacity && !grow(p, p->count + 1))
        return false;
    p->items[p->count++] = (struct mxc_piece){(uint32_t)start, (uint32_t)(end - start)};
    return true;
}

/* Applies a behaviour to the ranges of one piece, which arrive in order and cover it. */
struct splitter {
    const struct op *op;
    struct mxc_pieces *out;
    bool any, previous_match, pending, ok;
    size_t pending_start, pending_end;
};

static void range(struct splitter *s, size_t start, size_t end, bool match) {
    if (start == end)
        return;
    match ^= s->op->invert;
    bool extend = false;
    switch (s->op->behavior) {
    case MXC_TOK_REMOVED:
        if (match)
            return;
        break;
    case MXC_TOK_ISOLATED:
        break;
    case MXC_TOK_CONTIGUOUS:
        extend = s->any && match == s->previous_match;
        break;
    case MXC_TOK_MERGED_WITH_PREVIOUS:
        extend = s->any && match && !s->previous_match;
        break;
    case MXC_TOK_MERGED_WITH_NEXT:
        if (s->pending && match)
            s->ok &= add(s->out, s->pending_start, s->pending_end);
        else if (s->pending)
            start = s->pending_start;
        s->pending = match;
        s->pending_start = start;
        s->pending_end = end;
        if (match)
            return;
        break;
    }
    if (extend) {
        struct mxc_piece *last = &s->out->items[s->out->count - 1];
        last->length = (uint32_t)(end - last->start);
    } else {
        s->ok &= add(s->out, start, end);
    }
    s->any = true;
    s->previous_match = match;
}

static void finish(struct splitter *s) {
    if (s->pending)
        s->ok &= add(s->out, s->pending_start, s->pending_end);
}

static void split_literal(const struct op *op, const char *data, struct mxc_piece piece,
                          struct splitter *s) {
    size_t begin = piece.start, end = begin + piece.length, at = begin, n = op->literal_length;
    for (size_t i = begin; i + n <= end;) {
        const char *hit = memchr(data + i, op->literal[0], end - i - (n - 1));
        if (!hit)
            break;
        i = (size_t)(hit - data);
        if (memcmp(hit, op->literal, n)) {
            i++;
            continue;
        }
        range(s, at, i, false);
        range(s, i, i + n, true);
        i += n;
        at = i;
    }
    range(s, at, end, false);
}

/* Byte offset after `chars` more characters. */
static inline size_t skip_chars(const char *data, size_t byte, size_t chars) {
    while (chars--) {
        unsigned char c = (unsigned char)data[byte];
        byte += c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    }
    return byte;
}

static enum mxc_code split_regex(const struct op *op, const char *data, struct mxc_piece piece,
                                 uint8_t *classes, struct splitter *s,
                                 struct mxc_regex_scratch *scratch, struct mxc_err *err) {
    size_t n = mxc_regex_classify(op->regex, data + piece.start, piece.length, classes);
    size_t done = 0, byte = piece.start;
    for (size_t from = 0; from <= n;) {
        size_t ms, me;
        bool found;
        enum mxc_code code =
            mxc_regex_next(op->regex, scratch, classes, n, from, &found, &ms, &me, err);
        if (code)
            return code;
        if (!found)
            break;
        if (me == ms) { /* an empty match cuts nothing off */
            from = me + 1;
            continue;
        }
        size_t bs = skip_chars(data, byte, ms - done), be = skip_chars(data, bs, me - ms);
        range(s, byte, bs, false);
        range(s, bs, be, true);
        done = from = me;
        byte = be;
    }
    range(s, byte, piece.start + piece.length, false);
    return MXC_OK;
}

static enum mxc_code run_split(const struct op *op, const struct mxc_text *text,
                               struct mxc_pretok_scratch *scratch, struct mxc_regex_scratch *regex,
                               struct mxc_err *err) {
    struct mxc_pieces *in = &scratch->pieces, *out = &scratch->spare;
    out->count = 0;
    if (op->regex && scratch->classes_capacity < text->length) {
        mxc_mem_free(scratch->classes);
        scratch->classes = mxc_mem_alloc(text->length);
        scratch->classes_capacity = scratch->classes ? text->length : 0;
        if (!scratch->classes)
            return mxc_err_nomem(err);
    }
    for (size_t i = 0; i < in->count; i++) {
        struct splitter s = {.op = op, .out = out, .ok = true};
        enum mxc_code code = MXC_OK;
        if (op->regex)
            code = split_regex(op, text->data, in->items[i], scratch->classes, &s, regex, err);
        else
            split_literal(op, text->data, in->items[i], &s);
        if (code)
            return code;
        finish(&s);
        if (!s.ok)
            return mxc_err_nomem(err);
    }
    struct mxc_pieces swap = *in;
    *in = *out;
    *out = swap;
    return MXC_OK;
}

/* As the reference cuts: spaces belong to what stands before them, and those at the beginning of a
 * piece are dropped. */
static bool cut_scripts(const char *data, struct mxc_piece piece, struct mxc_pieces *out) {
    size_t end = (size_t)piece.start + piece.length, from = end;
    unsigned last = 0;
    for (size_t i = piece.start; i < end;) {
        uint32_t cp;
        size_t n = mxc_utf8_decode(data + i, end - i, &cp);
        unsigned script = mxc_unicode_script_of(cp);
        if (script && script != last) {
            if (from < i && !add(out, from, i))
                return false;
            from = i;
        }
        last = script ? script : last;
        i += n;
    }
    return add(out, from, end);
}

static enum mxc_code run_scripts(const struct mxc_text *text, struct mxc_pretok_scratch *scratch,
                                 struct mxc_err *err) {
    struct mxc_pieces *in = &scratch->pieces, *out = &scratch->spare;
    out->count = 0;
    for (size_t i = 0; i < in->count; i++)
        if (!cut_scripts(text->data, in->items[i], out))
            return mxc_err_nomem(err);
    struct mxc_pieces swap = *in;
    *in = *out;
    *out = swap;
    return MXC_OK;
}

/* Copies piece by piece into the spare text, rewriting on the way. origin: bytes before all steps.
 */
static enum mxc_code run_rewrite(const struct op *op, struct mxc_text *text, size_t origin,
                                 bool at_start, struct mxc_pretok_scratch *scratch,
                                 struct mxc_err *err) {
    struct mxc_text *out = &scratch->spare_text;
    mxc_text_begin(out, origin);
    for (size_t i = 0; i < scratch->pieces.count; i++) {
        struct mxc_piece *piece = &scratch->pieces.items[i];
        const char *p = text->data + piece->start, *end = p + piece->length;
        size_t start = out->length;
        if (op->kind == OP_PREFIX_SPACE) {
            if (*p != ' ')
                mxc_text_append(out, " ", 1, NULL, 0);
            mxc_text_append(out, p, piece->length, NULL, 0);
        } else {
            bool has = *p == ' ' || (piece->length >= op->literal_length &&
                                     !memcmp(p, op->literal, op->literal_length));
            bool first = at_start && piece->start == 0;
            if (!has && (op->prepend == MXC_TOK_PREPEND_ALWAYS ||
                         (op->prepend == MXC_TOK_PREPEND_FIRST && first)))
                mxc_text_append(out, op->literal, op->literal_length, NULL, 0);
            while (p < end) {
                const char *space = memchr(p, ' ', (size_t)(end - p));
                mxc_text_append(out, p, (size_t)((space ? space : end) - p), NULL, 0);
                if (space)
                    mxc_text_append(out, op->literal, op->literal_length, NULL, 0);
                p = space ? space + 1 : end;
            }
        }
        if (out->failed)
            return mxc_text_status(out, err);
        *piece = (struct mxc_piece){(uint32_t)start, (uint32_t)(out->length - start)};
    }
    mxc_text_clear(text);
    mxc_text_append(text, out->data, out->length, NULL, 0);
    return mxc_text_status(text, err);
}

enum mxc_code mxc_pretok_run(const struct mxc_pretok *pretok, struct mxc_text *text, bool at_start,
                             struct mxc_pretok_scratch *scratch, struct mxc_regex_scratch *regex,
                             struct mxc_err *err) {
    size_t origin = text->length;
    scratch->pieces.count = 0;
    if (!add(&scratch->pieces, 0, origin))
        return mxc_err_nomem(err);
    for (size_t i = 0; i < pretok->n_ops; i++) {
        const struct op *op = &pretok->ops[i];
        enum mxc_code code = op->kind == OP_SPLIT ? run_split(op, text, scratch, regex, err)
                             : op->kind == OP_SCRIPTS
                                 ? run_scripts(text, scratch, err)
                                 : run_rewrite(op, text, origin, at_start, scratch, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

static enum mxc_code add_split(struct mxc_pretok *pretok, struct mxc_str pattern, bool is_regex,
                               enum mxc_tok_behavior behavior, bool invert, struct mxc_err *err) {
    struct op *op = &pretok->ops[pretok->n_ops++];
    op->kind = OP_SPLIT;
    op->behavior = behavior;
    op->invert = invert;
    if (!pattern.length)
        return mxc_err_set(err, MXC_E_FORMAT, "pre-tokenizer Split: empty pattern");
    if (is_regex)
        return mxc_regex_new(pattern, &op->regex, err);
    op->literal = mxc_mem_dup(pattern.ptr, pattern.length);
    op->literal_length = pattern.length;
    return op->literal ? MXC_OK : mxc_err_nomem(err);
}

static enum mxc_code add_step(struct mxc_pretok *pretok, const struct mxc_tok_step *step,
                              struct mxc_err *err) {
    struct op *op;
    switch (step->kind) {
    case MXC_TOK_SPLIT:
        return add_split(pretok, step->pattern, step->is_regex, step->behavior, step->invert, err);
    case MXC_TOK_BYTE_LEVEL:
        if (step->add_prefix_space)
            pretok->ops[pretok->n_ops++].kind = OP_PREFIX_SPACE;
        return step->use_regex ? add_split(pretok, MXC_STR(byte_level_pattern), true,
                                           MXC_TOK_ISOLATED, false, err)
                               : MXC_OK;
    case MXC_TOK_METASPACE:
        if (!step->pattern.length)
            return mxc_err_set(err, MXC_E_FORMAT, "pre-tokenizer Metaspace: empty replacement");
        op = &pretok->ops[pretok->n_ops++];
        op->kind = OP_METASPACE;
        op->prepend = step->prepend;
        op->literal = mxc_mem_dup(step->pattern.ptr, step->pattern.length);
        op->literal_length = step->pattern.length;
        if (!op->literal)
            return mxc_err_nomem(err);
        return step->split
                   ? add_split(pretok, step->pattern, false, MXC_TOK_MERGED_WITH_NEXT, false, err)
                   : MXC_OK;
    case MXC_TOK_SCRIPTS:
        pretok->ops[pretok->n_ops++].kind = OP_SCRIPTS;
        return MXC_OK;
    default:
        return mxc_err_set(err, MXC_E_INTERNAL, "step %d is no pre-tokenizer", (int)step->kind);
    }
}

enum mxc_code mxc_pretok_new(const struct mxc_tok_steps *steps, struct mxc_pretok **out,
                             struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    struct mxc_pretok *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p || !(p->ops = mxc_mem_zalloc(steps->count, 2 * sizeof *p->ops))) {
        mxc_mem_free(p);
        return mxc_err_nomem(err);
    }
    for (size_t i = 0; i < steps->count && !code; i++)
        code = add_step(p, &steps->items[i], err);
    if (code)
        mxc_pretok_free(p);
    else
        *out = p;
    return code;
}

void mxc_pretok_free(struct mxc_pretok *pretok) {
    if (!pretok)
        return;
    for (size_t i = 0; i < pretok->n_ops; i++) {
        mxc_regex_free(pretok->ops[i].regex);
        mxc_mem_free(pretok->ops[i].literal);
    }
    mxc_mem_free(pretok->ops);
    mxc_mem_free(pretok);
}

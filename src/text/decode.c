/* Decoding: the plan (which decoders, in which order), one token's bytes, and the assembly of
 * bytes into characters. UTF-8 is taken apart as RFC 3629 and the Unicode standard say: a malformed
 * sequence ends at the first byte that cannot continue it. */
#include "text/decode_plan.h"
#include "text/tokenizer.h"
#include "text/tokenizer_priv.h"

#include "base/byte_chars.h"

#include <string.h>

enum { MAX_HELD = 1 << 24 };

/* Whole characters at the start of p. > 0: so many well-formed bytes; < 0: so many bytes of a
 * malformed sequence; 0: the bytes may begin a character, more are needed. n > 0. */
static ptrdiff_t scan(const unsigned char *p, size_t n) {
    size_t i = 0;
    while (i < n) {
        unsigned char c = p[i], lo = 0x80, hi = 0xBF;
        size_t need;
        if (c < 0x80) {
            i++;
            continue;
        }
        if (c >= 0xC2 && c <= 0xDF)
            need = 1;
        else if (c >= 0xE0 && c <= 0xEF)
            need = 2;
        else if (c >= 0xF0 && c <= 0xF4)
            need = 3;
        else
            return i ? (ptrdiff_t)i : -1;
        lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
        hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        for (size_t k = 1; k <= need; k++) {
            if (i + k >= n)
                return (ptrdiff_t)i;
            if (p[i + k] < lo || p[i + k] > hi)
                return i ? (ptrdiff_t)i : -(ptrdiff_t)k;
            lo = 0x80;
            hi = 0xBF;
        }
        i += need + 1;
    }
    return (ptrdiff_t)i;
}

static void put_replacement(struct mxc_buf *out, size_t times) {
    while (times--)
        mxc_buf_append(out, "\xEF\xBF\xBD", 3);
}

/* Appends bytes as text; per_byte: one U+FFFD for each bad byte, not for each bad sequence. Returns
 * how many bytes at the end were left because they may go on (0 when final). */
static size_t put_lossy(struct mxc_buf *out, const char *bytes, size_t n, bool per_byte,
                        bool final) {
    size_t i = 0;
    while (i < n) {
        ptrdiff_t k = scan((const unsigned char *)bytes + i, n - i);
        if (k > 0) {
            mxc_buf_append(out, bytes + i, (size_t)k);
            i += (size_t)k;
        } else if (k < 0) {
            put_replacement(out, per_byte ? (size_t)-k : 1);
            i += (size_t)-k;
        } else {
            if (!final)
                return n - i;
            put_replacement(out, per_byte ? n - i : 1);
            i = n;
        }
    }
    return 0;
}

size_t mxc_decode_scan(const char *bytes, size_t n, bool *valid) {
    ptrdiff_t k = scan((const unsigned char *)bytes, n);
    *valid = k > 0;
    return k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n;
}

static enum mxc_code unfit(struct mxc_err *err, const char *what) {
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "decoder %s is not supported", what);
}

/* A step on the text of one token. */
static enum mxc_code plan_text(struct mxc_decode_plan *p, const struct mxc_tok_step *s, bool fused,
                               struct mxc_err *err) {
    if (fused || p->n_strip || p->mode == MXC_DECODE_BYTE_LEVEL)
        return unfit(err, "Replace, Metaspace, WordPiece, CTC or BPEDecoder after Fuse");
    if (s->is_regex)
        return unfit(err, "Replace with a regular expression");
    if ((s->kind == MXC_TOK_REPLACE || s->kind == MXC_TOK_METASPACE) && !s->pattern.length)
        return unfit(err, "Replace with an empty pattern");
    if (p->n_texts == sizeof p->texts / sizeof *p->texts)
        return unfit(err, "of more than 8 steps on tokens");
    p->texts[p->n_texts++] = s;
    p->hold_space |= s->kind == MXC_TOK_WORD_SUFFIX;
    p->drop_repeats |= s->kind == MXC_TOK_CTC;
    return MXC_OK;
}

enum mxc_code mxc_decode_plan_init(struct mxc_decode_plan *plan, const struct mxc_tokdesc *desc,
                                   struct mxc_err *err) {
    struct mxc_decode_plan p = {.join_spaces = !desc->has_decoder};
    bool fused = false, spm = desc->model == MXC_TOK_SPM || desc->sentencepiece;
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < desc->decoders.count && !code; i++) {
        const struct mxc_tok_step *s = &desc->decoders.items[i];
        bool whole = fused || p.mode == MXC_DECODE_BYTE_LEVEL;
        switch (s->kind) {
        case MXC_TOK_BYTE_LEVEL:
        case MXC_TOK_BYTE_FALLBACK:
            if (s->kind == MXC_TOK_BYTE_LEVEL && p.n_texts)
                return unfit(err, "ByteLevel after Replace or Metaspace");
            if (p.mode != MXC_DECODE_PLAIN || fused)
                return unfit(err, "ByteLevel or ByteFallback at this place");
            p.mode =
                s->kind == MXC_TOK_BYTE_LEVEL ? MXC_DECODE_BYTE_LEVEL : MXC_DECODE_BYTE_FALLBACK;
            break;
        case MXC_TOK_FUSE:
            fused = true;
            break;
        case MXC_TOK_STRIP:
            if (whole && (s->n_stop || p.n_strip))
                return unfit(err, "Strip at the end of fused text, or twice");
            if (!whole) {
                code = plan_text(&p, s, fused, err);
                break;
            }
            p.strip = s->content;
            p.n_strip = s->n_start;
            p.strip_again = s->strip_extra;
            break;
        case MXC_TOK_REPLACE:
        case MXC_TOK_METASPACE:
        case MXC_TOK_WORDS:
        case MXC_TOK_CTC:
        case MXC_TOK_WORD_SUFFIX:
            code = plan_text(&p, s, fused, err);
            break;
        default:
            return mxc_err_set(err, MXC_E_INTERNAL, "step %d is no decoder", (int)s->kind);
        }
    }
    if (code)
        return code;
    p.whole_runs = p.mode == MXC_DECODE_BYTE_FALLBACK && !spm;
    p.strip_tokens = spm;
    *plan = p;
    return MXC_OK;
}

/* Value of "<0xNN>"; -1: something else. */
static int byte_token(const struct mxc_tokdesc *desc, uint32_t id) {
    struct mxc_str s = mxc_tokdesc_bytes(desc, id);
    if (s.length != 6 || memcmp(s.ptr, "<0x", 3) || s.ptr[5] != '>')
        return -1;
    bool spm = desc->model == MXC_TOK_SPM || desc->sentencepiece;
    if (spm && desc->tokens[id].type != MXC_TOKEN_BYTE)
        return -1;
    int h = mxc_hex_digit(s.ptr[3]), l = mxc_hex_digit(s.ptr[4]);
    return h < 0 || l < 0 ? -1 : h * 16 + l;
}

static void unmap(struct mxc_str s, struct mxc_buf *out) {
    size_t before = out->length;
    for (size_t i = 0; i < s.length;) {
        uint32_t cp;
        size_t n = mxc_utf8_decode(s.ptr + i, s.length - i, &cp);
        int byte = mxc_cp_to_byte(cp);
        if (byte < 0) { /* not spelled in the map: it stands for itself */
            out->length = before;
            mxc_buf_append(out, s.ptr, s.length);
            return;
        }
        mxc_buf_putc(out, (char)byte);
        i += n;
    }
}

/* Replaces pat in buf[from, length), in place through a copy at its end. */
static void replace(struct mxc_buf *buf, size_t from, struct mxc_str pat, struct mxc_str with) {
    size_t end = buf->length, at = from;
    bool hit = false;
    for (size_t i = from; i + pat.length <= end && pat.length && !hit; i++)
        hit = !memcmp(buf->data + i, pat.ptr, pat.length);
    if (!hit)
        return;
    while (at < end && !buf->failed) {
        if (end - at >= pat.length && !memcmp(buf->data + at, pat.ptr, pat.length)) {
            mxc_buf_append(buf, with.ptr, with.length);
            at += pat.length;
        } else {
            mxc_buf_putc(buf, buf->data[at++]);
        }
    }
    if (buf->failed)
        return;
    memmove(buf->data + from, buf->data + end, buf->length - end);
    buf->length -= end - from;
    buf->data[buf->length] = 0;
}

static void cut(struct mxc_buf *buf, size_t from, size_t n) {
    memmove(buf->data + from, buf->data + from + n, buf->length - from - n);
    buf->length -= n;
    buf->data[buf->length] = 0;
}

/* What the reference does to English text that was cut into words. */
static void clean_up(struct mxc_buf *buf, size_t from) {
    static const struct {
        const char *what, *with;
    } rules[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                 {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                 {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules && !buf->failed; i++)
        replace(buf, from, mxc_str_of(rules[i].what), mxc_str_of(rules[i].with));
}

static void join_word(const struct mxc_tok_step *step, bool first, struct mxc_buf *buf,
                      size_t from) {
    struct mxc_str prefix = step->content;
    size_t n = buf->length - from;
    if (first)
        return;
    if (n >= prefix.length && !memcmp(buf->data + from, prefix.ptr, prefix.length)) {
        cut(buf, from, prefix.length);
    } else if (mxc_buf_putc(buf, ' ')) {
        memmove(buf->data + from + 1, buf->data + from, n);
        buf->data[from] = ' ';
    }
}

/* Up to n_start copies of the character go from the beginning, n_stop from the end. */
static void strip_token(const struct mxc_tok_step *step, struct mxc_buf *buf, size_t from) {
    struct mxc_str c = step->content;
    if (!c.length)
        return;
    for (uint32_t i = 0; i < step->n_start && buf->length - from >= c.length; i++) {
        if (memcmp(buf->data + from, c.ptr, c.length))
            break;
        cut(buf, from, c.length);
    }
    for (uint32_t i = 0; i < step->n_stop && buf->length - from >= c.length; i++) {
        if (memcmp(buf->data + buf->length - c.length, c.ptr, c.length))
            break;
        cut(buf, buf->length - c.length, c.length);
    }
}

/* One step over the token at buf[from, length). */
static void apply(const struct mxc_tok_step *step, bool first, struct mxc_buf *buf, size_t from) {
    const struct mxc_str none = {"", 0}, space = {" ", 1};
    switch (step->kind) {
    case MXC_TOK_METASPACE:
        replace(buf, from, step->pattern,
                first && step->prepend != MXC_TOK_PREPEND_NEVER ? none : space);
        break;
    case MXC_TOK_WORDS:
        join_word(step, first, buf, from);
        break;
    case MXC_TOK_CTC:
        replace(buf, from, step->pattern, none);
        break;
    case MXC_TOK_WORD_SUFFIX:
        replace(buf, from, step->content, space);
        break;
    case MXC_TOK_STRIP:
        strip_token(step, buf, from);
        break;
    default:
        replace(buf, from, step->pattern, step->content);
        break;
    }
    if (step->cleanup && !buf->failed)
        clean_up(buf, from);
    if (step->cleanup && step->kind == MXC_TOK_CTC && !buf->failed)
        replace(buf, from, step->content, space);
}

/* Shown even where special tokens are not. */
static bool is_spm_unknown(const struct mxc_tokdesc *desc, uint32_t id) {
    return id == desc->unk && (desc->model == MXC_TOK_SPM || desc->sentencepiece);
}

void mxc_decode_plan_token(const struct mxc_decode_plan *plan, const struct mxc_tokdesc *desc,
                           uint32_t id, bool first, struct mxc_buf *out, bool *is_byte) {
    struct mxc_str s = mxc_tokdesc_bytes(desc, id);
    int byte = plan->mode == MXC_DECODE_BYTE_FALLBACK ? byte_token(desc, id) : -1;
    *is_byte = byte >= 0;
    if (byte >= 0) {
        mxc_buf_putc(out, (char)byte);
        return;
    }
    if (plan->join_spaces && !first)
        mxc_buf_putc(out, ' ');
    size_t from = out->length;
    bool literal = desc->added_literal && desc->tokens[id].added;
    if (plan->mode == MXC_DECODE_BYTE_LEVEL && !literal) {
        unmap(s, out);
        return;
    }
    if (is_spm_unknown(desc, id))
        s = MXC_STR(" \xE2\x81\x87 "); /* that library's sign for it */
    mxc_buf_append(out, s.ptr, s.length);
    for (size_t i = 0; i < plan->n_texts && !out->failed; i++)
        apply(plan->texts[i], first, out, from);
}

bool mxc_tokenizer_piece(const struct mxc_tokenizer *t, uint32_t id, struct mxc_buf *bytes) {
    bool is_byte;
    if (id < t->desc.n_ids)
        mxc_decode_plan_token(&t->plan, &t->desc, id, false, bytes, &is_byte);
    return !bytes->failed;
}

void mxc_decode_stream_init(struct mxc_decode_stream *stream, const struct mxc_tokenizer *t,
                            bool skip_special) {
    *stream = (struct mxc_decode_stream){
        .tokenizer = t, .skip_special = skip_special, .to_strip = t->plan.n_strip};
    mxc_buf_init(&stream->held, MAX_HELD);
    mxc_buf_init(&stream->scratch, MAX_HELD);
}

void mxc_decode_stream_fini(struct mxc_decode_stream *stream) {
    mxc_buf_fini(&stream->held);
    mxc_buf_fini(&stream->scratch);
}

/* Drops what the plan strips from the text that was just appended at `from`. */
static void strip(struct mxc_decode_stream *s, struct mxc_buf *text, size_t from) {
    struct mxc_str c = s->tokenizer->plan.strip;
    size_t drop = 0;
    while (s->to_strip && from + drop < text->length) {
        if (!c.length || text->length - from - drop < c.length ||
            memcmp(text->data + from + drop, c.ptr, c.length)) {
            s->to_strip = 0;
            break;
        }
        drop += c.length;
        s->to_strip--;
    }
    if (drop)
        cut(text, from, drop);
}

/* The same as sentencepiece has it, on the token in scratch. */
static void strip_token_of_spm(struct mxc_decode_stream *s, uint32_t id, bool is_byte) {
    const struct mxc_decode_plan *plan = &s->tokenizer->plan;
    struct mxc_str c = plan->strip;
    bool stays = is_byte || is_spm_unknown(&s->tokenizer->desc, id);
    if (!stays && s->scratch.length >= c.length && !memcmp(s->scratch.data, c.ptr, c.length))
        cut(&s->scratch, 0, c.length);
    if (s->scratch.length || !plan->strip_again)
        s->to_strip = 0;
}

/* Held bytes, and then new ones, become text. */
static void assemble(struct mxc_decode_stream *s, struct mxc_buf *text, const char *bytes, size_t n,
                     bool final) {
    bool per_byte = s->tokenizer->plan.mode == MXC_DECODE_BYTE_FALLBACK;
    if (s->held.length) {
        mxc_buf_append(&s->held, bytes, n);
        if (s->held.failed)
            return;
        size_t rest = put_lossy(text, s->held.data, s->held.length, per_byte, final);
        memmove(s->held.data, s->held.data + s->held.length - rest, rest);
        s->held.length = rest;
    } else {
        size_t rest = put_lossy(text, bytes, n, per_byte, final);
        mxc_buf_append(&s->held, bytes + n - rest, rest);
    }
}

/* Ends a run of byte tokens that was held as a whole. */
static void end_run(struct mxc_decode_stream *s, struct mxc_buf *text) {
    size_t n = s->held.length;
    if (!n)
        return;
    if (mxc_utf8_valid(s->held.data, n))
        mxc_buf_append(text, s->held.data, n);
    else
        put_replacement(text, n);
    s->held.length = 0;
}

static enum mxc_code status(struct mxc_decode_stream *s, struct mxc_buf *text,
                            struct mxc_err *err) {
    if (mxc_buf_status(&s->held, err) || mxc_buf_status(&s->scratch, err))
        return mxc_err_nomem(err);
    return mxc_buf_status(text, err);
}

enum mxc_code mxc_decode_stream_push(struct mxc_decode_stream *s, uint32_t id, struct mxc_buf *text,
                                     struct mxc_err *err) {
    const struct mxc_tokenizer *t = s->tokenizer;
    bool is_byte, hold = s->whole_runs && t->plan.whole_runs;
    size_t from = text->length;
    if (id >= t->desc.n_ids || !t->desc.tokens[id].type ||
        (s->skip_special && mxc_tokenizer_is_special(t, id) && !is_spm_unknown(&t->desc, id)))
        return MXC_OK;
    if (t->plan.drop_repeats && s->started && s->last == id)
        return MXC_OK;
    mxc_buf_clear(&s->scratch);
    if (s->space_held)
        mxc_buf_putc(&s->scratch, ' ');
    mxc_decode_plan_token(&t->plan, &t->desc, id, !s->started, &s->scratch, &is_byte);
    s->started = true;
    s->last = id;
    s->space_held =
        t->plan.hold_space && s->scratch.length && s->scratch.data[s->scratch.length - 1] == ' ';
    if (s->space_held)
        cut(&s->scratch, s->scratch.length - 1, 1);
    if (t->plan.strip_tokens && s->to_strip && s->scratch.data)
        strip_token_of_spm(s, id, is_byte);
    if (is_byte && hold) {
        mxc_buf_append(&s->held, s->scratch.data, s->scratch.length);
    } else if (t->plan.mode == MXC_DECODE_BYTE_FALLBACK && !is_byte) {
        if (hold)
            end_run(s, text);
        else
            assemble(s, text, "", 0, true);
        assemble(s, text, mxc_buf_text(&s->scratch), s->scratch.length, true);
    } else {
        assemble(s, text, mxc_buf_text(&s->scratch), s->scratch.length, false);
    }
    if (!text->failed && !t->plan.strip_tokens)
        strip(s, text, from);
    return status(s, text, err);
}

enum mxc_code mxc_decode_stream_flush(struct mxc_decode_stream *s, struct mxc_buf *text,
                                      struct mxc_err *err) {
    size_t from = text->length;
    if (s->whole_runs && s->tokenizer->plan.whole_runs)
        end_run(s, text);
    else
        assemble(s, text, "", 0, true);
    if (!text->failed && !s->tokenizer->plan.strip_tokens)
        strip(s, text, from);
    return status(s, text, err);
}

enum mxc_code mxc_tokenizer_decode(const struct mxc_tokenizer *t, const uint32_t *ids, size_t n,
                                   bool skip_special, struct mxc_buf *text, struct mxc_err *err) {
    struct mxc_decode_stream s;
    enum mxc_code code = MXC_OK;
    mxc_decode_stream_init(&s, t, skip_special);
    s.whole_runs = true;
    for (size_t i = 0; i < n && !code; i++)
        code = mxc_decode_stream_push(&s, ids[i], text, err);
    if (!code)
        code = mxc_decode_stream_flush(&s, text, err);
    mxc_decode_stream_fini(&s);
    return code;
}

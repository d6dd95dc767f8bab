/* Tokeniser: owns the description and what was built from it, and runs the encoder: join spans,
 * find added tokens, normalise, find normalised added tokens, cut, merge, frame with BOS and EOS.
 */
#include "text/tokenizer.h"

#include "base/mem.h"
#include "text/tokenizer_priv.h"

#include <string.h>

/* What a user-defined piece of sentencepiece looks like in normalised text. GGUF spells spaces in
 * them as spaces; in that library's own files a space never matches. */
static void append_spm(struct mxc_text *text, struct mxc_str s, bool own_file) {
    for (size_t i = 0; i < s.length; i++) {
        bool meta = s.ptr[i] == ' ' && !own_file;
        mxc_text_append(text, meta ? "\xE2\x96\x81" : s.ptr + i, meta ? 3 : 1, NULL, 0);
    }
}

/* Normalised texts of the added tokens that are matched after normalisation. */
static enum mxc_code normalized_entries(struct mxc_tokenizer *t, struct mxc_text *texts,
                                        struct mxc_added_entry *entries, size_t *n,
                                        struct mxc_err *err) {
    struct mxc_text spare;
    struct mxc_regex_scratch *scratch = NULL;
    enum mxc_code code = mxc_regex_scratch_new(&scratch, err);
    size_t k = 0;
    mxc_text_init(&spare, false);
    for (size_t i = 0; i < t->desc.n_added && !code; i++) {
        const struct mxc_tok_added *a = &t->desc.added[i];
        struct mxc_str s = mxc_tokdesc_bytes(&t->desc, a->id);
        if (!a->normalized)
            continue;
        bool spm = t->desc.model == MXC_TOK_SPM || t->desc.sentencepiece;
        if (spm)
            append_spm(&texts[k], s, t->desc.sentencepiece);
        else
            mxc_text_append(&texts[k], s.ptr, s.length, NULL, 0);
        if (texts[k].failed)
            code = mxc_err_nomem(err);
        else if (!spm)
            code = mxc_normalizer_run(t->normalizer, &texts[k], &spare, scratch, err);
        if (!code && texts[k].length) {
            entries[k] = (struct mxc_added_entry){{texts[k].data, texts[k].length}, a};
            k++;
        }
    }
    mxc_text_fini(&spare);
    mxc_regex_scratch_free(scratch);
    *n = k;
    return code;
}

static enum mxc_code build_added(struct mxc_tokenizer *t, struct mxc_err *err) {
    size_t n = t->desc.n_added, k = 0;
    struct mxc_added_entry *entries = mxc_mem_zalloc(n, sizeof *entries);
    struct mxc_text *texts = mxc_mem_zalloc(n, sizeof *texts);
    t->flags = mxc_mem_zalloc(t->desc.n_ids, 1);
    enum mxc_code code = entries && texts && t->flags ? MXC_OK : mxc_err_nomem(err);
    for (size_t i = 0; i < n && !code; i++) {
        const struct mxc_tok_added *a = &t->desc.added[i];
        t->flags[a->id] =
            (uint8_t)((a->special ? MXC_FLAG_SPECIAL : 0) | (a->control ? MXC_FLAG_CONTROL : 0));
        if (!a->normalized)
            entries[k++] = (struct mxc_added_entry){mxc_tokdesc_bytes(&t->desc, a->id), a};
    }
    if (!code)
        code = mxc_added_new(entries, k, &t->raw, err);
    if (!code)
        code = normalized_entries(t, texts, entries, &k, err);
    if (!code)
        code = mxc_added_new(entries, k, &t->normalized, err);
    for (size_t i = 0; i < n && texts; i++)
        mxc_text_fini(&texts[i]);
    mxc_mem_free(texts);
    mxc_mem_free(entries);
    return code;
}

static enum mxc_code build_model(struct mxc_tokenizer *t, struct mxc_err *err) {
    switch (t->desc.model) {
    case MXC_TOK_UNIGRAM:
        return mxc_unigram_new(&t->desc, &t->unigram, err);
    case MXC_TOK_WORDPIECE:
    case MXC_TOK_WORDLEVEL:
        return mxc_wordpiece_new(&t->desc, &t->wordpiece, err);
    case MXC_TOK_BPE_BYTES:
    case MXC_TOK_BPE_CHARS:
    case MXC_TOK_SPM:
    case MXC_TOK_TIKTOKEN:
        break;
    }
    return mxc_bpe_new(&t->desc, &t->bpe, err);
}

enum mxc_code mxc_tokenizer_new(struct mxc_tokdesc *desc, struct mxc_tokenizer **out,
                                struct mxc_err *err) {
    struct mxc_tokenizer *t = mxc_mem_zalloc(1, sizeof *t);
    enum mxc_code code = t ? MXC_OK : mxc_err_nomem(err);
    if (!t) {
        mxc_tokdesc_fini(desc);
        return code;
    }
    t->desc = *desc;
    mxc_tokdesc_init(desc);
    if (!t->desc.n_slots)
        code = mxc_err_set(err, MXC_E_FORMAT, "the vocabulary is empty");
    if (!code)
        code = mxc_decode_plan_init(&t->plan, &t->desc, err);
    if (!code)
        code = mxc_normalizer_new(&t->desc.normalizers, &t->normalizer, err);
    if (!code)
        code = mxc_normalizer_protect(t->normalizer, &t->desc, err);
    if (!code)
        code = mxc_pretok_new(&t->desc.pretokenizers, &t->pretok, err);
    if (!code)
        code = build_added(t, err);
    if (!code)
        code = build_model(t, err);
    if (code)
        mxc_tokenizer_free(t);
    else
        *out = t;
    return code;
}

void mxc_tokenizer_free(struct mxc_tokenizer *t) {
    if (!t)
        return;
    mxc_normalizer_free(t->normalizer);
    mxc_pretok_free(t->pretok);
    mxc_bpe_free(t->bpe);
    mxc_unigram_free(t->unigram);
    mxc_wordpiece_free(t->wordpiece);
    mxc_added_free(t->raw);
    mxc_added_free(t->normalized);
    mxc_mem_free(t->flags);
    mxc_tokdesc_fini(&t->desc);
    mxc_mem_free(t);
}

struct mxc_str mxc_tokenizer_spelling(const struct mxc_tokenizer *t, uint32_t id) {
    return mxc_tokdesc_bytes(&t->desc, id);
}

uint32_t mxc_tokenizer_id(const struct mxc_tokenizer *t, struct mxc_str spelling) {
    return mxc_tokdesc_find(&t->desc, spelling);
}

bool mxc_tokenizer_is_special(const struct mxc_tokenizer *t, uint32_t id) {
    return id < t->desc.n_ids && t->flags[id] & MXC_FLAG_SPECIAL;
}

bool mxc_tokenizer_is_control(const struct mxc_tokenizer *t, uint32_t id) {
    return id < t->desc.n_ids && t->flags[id] & MXC_FLAG_CONTROL;
}

size_t mxc_tokenizer_n_ids(const struct mxc_tokenizer *t) {
    return t->desc.n_ids;
}

const struct mxc_tokdesc *mxc_tokenizer_desc(const struct mxc_tokenizer *t) {
    return &t->desc;
}

/* Encoding */

struct encoder {
    const struct mxc_tokenizer *t;
    enum mxc_added_mode mode;
    struct mxc_text text, segment, spare; /* whole input; the part at work */
    struct mxc_text part;                 /* between normalised added tokens; not tagged */
    struct mxc_pretok_scratch pretok;
    struct mxc_regex_scratch *regex;
    struct mxc_bpe_scratch *bpe; /* one of these two, or none */
    struct mxc_unigram_scratch *unigram;
    struct mxc_ids *ids;
    struct mxc_err *err;
};

/* Replaces malformed UTF-8; a replacement is trusted when all its bytes were. */
static enum mxc_code sanitize(struct encoder *e) {
    struct mxc_text *in = &e->text, *out = &e->segment;
    for (size_t i = 0; i < in->length;) {
        bool valid;
        size_t n = mxc_decode_scan(in->data + i, in->length - i, &valid);
        const uint8_t *tags = in->tagged ? in->tags + i : NULL;
        if (valid)
            mxc_text_append(out, in->data + i, n, tags, 0);
        else
            mxc_text_append(out, "\xEF\xBF\xBD", 3, NULL, tags && memchr(tags, 1, n) ? 1 : 0);
        i += n;
    }
    struct mxc_text swap = *in;
    *in = *out;
    *out = swap;
    return mxc_text_status(in, e->err);
}

static enum mxc_code join(struct encoder *e, const struct mxc_text_span *spans, size_t n) {
    size_t total = 0;
    bool any_trusted = false, any_untrusted = false;
    for (size_t i = 0; i < n; i++) {
        if (!mxc_size_add(total, spans[i].length, &total) || total > MXC_TOKENIZER_MAX_BYTES)
            return mxc_err_set(e->err, MXC_E_LIMIT, "text is longer than %d bytes",
                               MXC_TOKENIZER_MAX_BYTES);
        if (spans[i].length) {
            any_trusted |= spans[i].trusted;
            any_untrusted |= !spans[i].trusted;
        }
    }
    bool tagged = any_trusted && any_untrusted && e->mode == MXC_ADDED_ALL;
    if (!any_trusted && e->mode == MXC_ADDED_ALL)
        e->mode = MXC_ADDED_NO_CONTROL;
    mxc_text_init(&e->text, tagged);
    mxc_text_init(&e->segment, tagged);
    mxc_text_init(&e->spare, tagged);
    mxc_text_init(&e->part, false);
    for (size_t i = 0; i < n; i++)
        mxc_text_append(&e->text, spans[i].text, spans[i].length, NULL, !spans[i].trusted);
    if (e->text.failed)
        return mxc_err_nomem(e->err);
    return mxc_utf8_valid(e->text.data, e->text.length) ? MXC_OK : sanitize(e);
}

static enum mxc_code push(struct encoder *e, uint32_t id) {
    return mxc_ids_push(e->ids, id) ? MXC_OK : mxc_err_nomem(e->err);
}

static enum mxc_code encode_piece(struct encoder *e, const char *text, size_t length) {
    if (e->bpe)
        return mxc_bpe_encode(e->t->bpe, e->bpe, text, length, e->ids, e->err);
    if (e->unigram)
        return mxc_unigram_encode(e->t->unigram, e->unigram, text, length, e->ids, e->err);
    return mxc_wordpiece_encode(e->t->wordpiece, text, length, e->ids, e->err);
}

/* Text without added tokens, normalised. */
static enum mxc_code encode_part(struct encoder *e, struct mxc_text *text, bool at_start) {
    if (!text->length)
        return MXC_OK;
    enum mxc_code code = mxc_pretok_run(e->t->pretok, text, at_start, &e->pretok, e->regex, e->err);
    for (size_t i = 0; i < e->pretok.pieces.count && !code; i++) {
        struct mxc_piece p = e->pretok.pieces.items[i];
        code = encode_piece(e, text->data + p.start, p.length);
    }
    return code;
}

/* Text between added tokens of the first kind: [start, end) of the whole. */
static enum mxc_code encode_segment(struct encoder *e, size_t start, size_t end) {
    struct mxc_text *seg = &e->segment;
    enum mxc_code code;
    if (start == end)
        return MXC_OK;
    mxc_text_clear(seg);
    mxc_text_append(seg, e->text.data + start, end - start,
                    e->text.tagged ? e->text.tags + start : NULL, 0);
    if (seg->failed)
        return mxc_err_nomem(e->err);
    if ((code = mxc_normalizer_run(e->t->normalizer, seg, &e->spare, e->regex, e->err)))
        return code;
    if (mxc_added_is_empty(e->t->normalized))
        return encode_part(e, seg, start == 0);
    struct mxc_added_match m;
    size_t done = 0, from = 0;
    for (bool more = true; more;) {
        struct mxc_str all = {seg->data, seg->length};
        more = mxc_added_next(e->t->normalized, all, seg->tagged ? seg->tags : NULL, e->mode, from,
                              done, &m, &from);
        size_t stop = more ? m.start : seg->length;
        mxc_text_clear(&e->part);
        if (stop > done)
            mxc_text_append(&e->part, seg->data + done, stop - done, NULL, 0);
        if (e->part.failed)
            return mxc_err_nomem(e->err);
        if ((code = encode_part(e, &e->part, start == 0 && done == 0)) ||
            (more && (code = push(e, m.id))))
            return code;
        done = more ? m.end : stop;
    }
    return MXC_OK;
}

static enum mxc_code encode_all(struct encoder *e) {
    enum mxc_code code;
    struct mxc_added_match m;
    size_t done = 0, from = 0;
    struct mxc_str all = {e->text.data, e->text.length};
    const uint8_t *tags = e->text.tagged ? e->text.tags : NULL;
    while (mxc_added_next(e->t->raw, all, tags, e->mode, from, done, &m, &from)) {
        if ((code = encode_segment(e, done, m.start)) || (code = push(e, m.id)))
            return code;
        done = m.end;
    }
    return encode_segment(e, done, all.length);
}

enum mxc_code mxc_tokenizer_encode(const struct mxc_tokenizer *t, const struct mxc_text_span *spans,
                                   size_t n_spans, struct mxc_encode_options options,
                                   struct mxc_ids *ids, struct mxc_err *err) {
    struct encoder e = {.t = t, .ids = ids, .err = err};
    size_t before = ids->count;
    e.mode = options.parse_special ? MXC_ADDED_ALL : MXC_ADDED_NO_SPECIAL;
    enum mxc_code code = join(&e, spans, n_spans);
    if (!code)
        code = mxc_regex_scratch_new(&e.regex, err);
    if (!code && t->bpe)
        code = mxc_bpe_scratch_new(e.text.length, &e.bpe, err);
    if (!code && t->unigram)
        code = mxc_unigram_scratch_new(&e.unigram, err);
    for (size_t i = 0; options.add_special && i < t->desc.prefix.count && !code; i++)
        code = push(&e, t->desc.prefix.items[i]);
    if (!code && e.text.length)
        code = encode_all(&e);
    for (size_t i = 0; options.add_special && i < t->desc.suffix.count && !code; i++)
        code = push(&e, t->desc.suffix.items[i]);
    mxc_bpe_scratch_free(e.bpe);
    mxc_unigram_scratch_free(e.unigram);
    mxc_regex_scratch_free(e.regex);
    mxc_pretok_scratch_fini(&e.pretok);
    mxc_text_fini(&e.text);
    mxc_text_fini(&e.segment);
    mxc_text_fini(&e.spare);
    mxc_text_fini(&e.part);
    if (code)
        ids->count = before;
    return code;
}

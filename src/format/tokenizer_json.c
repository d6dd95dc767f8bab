/* tokenizer.json: one walk over the top level. The model is read where it stands (vocabulary at
 * once, merges as soon as there is a vocabulary); small sections are remembered and read through
 * jansson afterwards, added tokens after the model, so that any order of keys works. */
#include "format/tokenizer_json.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/json_reader.h"
#include "format/tokenizer_config.h"
#include "format/tokenizer_json_steps.h"

#include <string.h>

enum { MAX_SECTION_BYTES = 4 << 20, MERGES_AT_ONCE = 64, ARENA_RESET_BYTES = 1 << 18 };

struct file {
    struct mxc_jr jr;
    struct mxc_tokdesc *desc;
    struct mxc_str normalizer, pretokenizer, post, decoder, added, merges, unk; /* texts */
    bool has_model, has_vocab, has_merges, has_prefix, vocab_is_list;
    struct mxc_str type;
    uint64_t unk_id, max_chars;
};

static enum mxc_code read_vocab(struct file *f) {
    struct mxc_jr *jr = &f->jr;
    struct mxc_str key;
    uint64_t id;
    bool more;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        if (!(code = mxc_jr_uint(jr, &id)) &&
            (code = mxc_tokdesc_add_token(f->desc, id, key, 0, MXC_TOKEN_NORMAL, jr->err)))
            mxc_err_context(jr->err, "%s: model.vocab", jr->name);
        if (jr->arena.used_bytes > ARENA_RESET_BYTES)
            mxc_arena_fini(&jr->arena);
    }
    f->has_vocab = true;
    return code ? code : mxc_tokdesc_index(f->desc, jr->err);
}

static enum mxc_code read_real(struct mxc_jr *jr, double *out) {
    struct mxc_str s;
    char text[64];
    enum mxc_code code = mxc_jr_skip(jr, &s);
    if (code)
        return code;
    if (!s.length || s.length >= sizeof text)
        return mxc_jr_fail(jr, "not a number");
    memcpy(text, s.ptr, s.length);
    text[s.length] = 0;
    return mxc_parse_f64(text, out) ? MXC_OK : mxc_jr_fail(jr, "not a number");
}

static enum mxc_code read_scored_token(struct mxc_jr *jr, struct mxc_str *token, double *score) {
    bool more;
    enum mxc_code code;
    if ((code = mxc_jr_open(jr, '[')) || (code = mxc_jr_item(jr, 0, &more)))
        return code;
    if (!more)
        return mxc_jr_fail(jr, "an empty token");
    if ((code = mxc_jr_string(jr, token)) || (code = mxc_jr_item(jr, 1, &more)))
        return code;
    if (!more)
        return mxc_jr_fail(jr, "a token without a score");
    if ((code = read_real(jr, score)) || (code = mxc_jr_item(jr, 2, &more)))
        return code;
    return more ? mxc_jr_fail(jr, "a token of more than two parts") : MXC_OK;
}

/* Unigram: [["token", score], ...]; ids are places in the list. */
static enum mxc_code read_scored(struct file *f) {
    struct mxc_jr *jr = &f->jr;
    struct mxc_str token;
    double score = 0;
    bool more = true;
    enum mxc_code code = mxc_jr_open(jr, '[');
    for (uint32_t id = 0; !code; id++) {
        if ((code = mxc_jr_item(jr, id, &more)) || !more)
            break;
        if ((code = read_scored_token(jr, &token, &score)))
            break;
        if ((code = mxc_tokdesc_add_token(f->desc, id, token, (float)score, MXC_TOKEN_NORMAL,
                                          jr->err)) ||
            (code = mxc_tokdesc_set_score(f->desc, id, score, jr->err)))
            mxc_err_context(jr->err, "%s: model.vocab", jr->name);
        if (jr->arena.used_bytes > ARENA_RESET_BYTES)
            mxc_arena_fini(&jr->arena);
    }
    f->has_vocab = f->vocab_is_list = true;
    return code ? code : mxc_tokdesc_index(f->desc, jr->err);
}

/* "left right", or ["left", "right"]. */
static enum mxc_code read_merge(struct mxc_jr *jr, struct mxc_tok_pair *pair) {
    enum mxc_code code;
    bool more;
    if (mxc_jr_peek(jr) == '[') {
        if ((code = mxc_jr_open(jr, '[')) || (code = mxc_jr_item(jr, 0, &more)) ||
            (code = mxc_jr_string(jr, &pair->left)) || (code = mxc_jr_item(jr, 1, &more)) ||
            (code = mxc_jr_string(jr, &pair->right)) || (code = mxc_jr_item(jr, 2, &more)))
            return code;
        return more ? mxc_jr_fail(jr, "a merge of more than two parts") : MXC_OK;
    }
    struct mxc_str s;
    if ((code = mxc_jr_string(jr, &s)))
        return code;
    const char *space = memchr(s.ptr, ' ', s.length);
    if (!space || memchr(space + 1, ' ', (size_t)(s.ptr + s.length - space - 1)))
        return mxc_jr_fail(jr, "a merge that is not two parts");
    pair->left = (struct mxc_str){s.ptr, (size_t)(space - s.ptr)};
    pair->right = (struct mxc_str){space + 1, (size_t)(s.ptr + s.length - space - 1)};
    return MXC_OK;
}

static enum mxc_code read_merges(struct file *f) {
    struct mxc_jr *jr = &f->jr;
    struct mxc_tok_pair pairs[MERGES_AT_ONCE];
    size_t n = 0;
    bool more = true;
    enum mxc_code code = mxc_jr_open(jr, '[');
    for (size_t i = 0; !code && more; i++) {
        if ((code = mxc_jr_item(jr, i, &more)) || (more && (code = read_merge(jr, &pairs[n++]))))
            break;
        if (n == MERGES_AT_ONCE || !more) {
            if ((code = mxc_tokdesc_add_merges(f->desc, pairs, n, false, jr->err)))
                mxc_err_context(jr->err, "%s: model.merges", jr->name);
            n = 0;
            if (jr->arena.used_bytes > ARENA_RESET_BYTES)
                mxc_arena_fini(&jr->arena);
        }
    }
    return code;
}

/* Runs read with the cursor at a remembered text. */
static enum mxc_code at(struct file *f, struct mxc_str text, enum mxc_code (*read)(struct file *)) {
    const char *p = f->jr.p;
    f->jr.p = text.ptr;
    enum mxc_code code = read(f);
    f->jr.p = p;
    return code;
}

static enum mxc_code keep_string(struct file *f, struct mxc_str *out) {
    struct mxc_str s;
    if (mxc_jr_peek(&f->jr) != '"')
        return mxc_jr_skip(&f->jr, NULL); /* null */
    enum mxc_code code = mxc_jr_string(&f->jr, &s);
    if (code)
        return code;
    s.ptr = mxc_arena_dup(&f->desc->arena, s.ptr, s.length);
    *out = s;
    return s.ptr ? MXC_OK : mxc_err_nomem(f->jr.err);
}

/* Fields that would change ids if they were ignored: only null and 0 pass. */
static enum mxc_code refuse_unless_empty(struct file *f, const char *name) {
    struct mxc_str text;
    enum mxc_code code = mxc_jr_skip(&f->jr, &text);
    if (code || mxc_str_is(text, "null") || mxc_str_is(text, "0") || mxc_str_is(text, "0.0"))
        return code;
    return mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED, "%s: model.%s is not supported", f->jr.name,
                       name);
}

/* null or a number. */
static enum mxc_code keep_uint(struct file *f, uint64_t *out) {
    return mxc_jr_peek(&f->jr) == 'n' ? mxc_jr_skip(&f->jr, NULL) : mxc_jr_uint(&f->jr, out);
}

static enum mxc_code read_vocab_of_either_kind(struct file *f) {
    if (f->has_vocab)
        return mxc_jr_fail(&f->jr, "a second \"vocab\"");
    return mxc_jr_peek(&f->jr) == '[' ? read_scored(f) : read_vocab(f);
}

static enum mxc_code read_model_field(struct file *f, struct mxc_str key) {
    struct mxc_tokdesc *d = f->desc;
    if (mxc_str_is(key, "type"))
        return keep_string(f, &f->type);
    if (mxc_str_is(key, "unk_token"))
        return keep_string(f, &f->unk);
    if (mxc_str_is(key, "unk_id"))
        return keep_uint(f, &f->unk_id);
    if (mxc_str_is(key, "max_input_chars_per_word"))
        return keep_uint(f, &f->max_chars);
    if (mxc_str_is(key, "vocab"))
        return read_vocab_of_either_kind(f);
    if (mxc_str_is(key, "merges")) {
        f->has_merges = true;
        return f->has_vocab && !f->vocab_is_list ? read_merges(f) : mxc_jr_skip(&f->jr, &f->merges);
    }
    if (mxc_str_is(key, "fuse_unk"))
        return mxc_jr_bool(&f->jr, &d->fuse_unk);
    if (mxc_str_is(key, "byte_fallback"))
        return mxc_jr_bool(&f->jr, &d->byte_fallback);
    if (mxc_str_is(key, "ignore_merges"))
        return mxc_jr_bool(&f->jr, &d->ignore_merges);
    if (mxc_str_is(key, "dropout"))
        return refuse_unless_empty(f, "dropout");
    if (mxc_str_is(key, "continuing_subword_prefix")) { /* merges are read with it */
        enum mxc_code code = keep_string(f, &d->word_prefix);
        f->has_prefix = true;
        if (!code && d->word_prefix.length && d->n_merges)
            code = mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED,
                               "%s: model.continuing_subword_prefix after the merges", f->jr.name);
        return code;
    }
    if (mxc_str_is(key, "end_of_word_suffix"))
        return keep_string(f, &d->word_suffix);
    return mxc_jr_skip(&f->jr, NULL);
}

static enum mxc_code finish_bpe(struct file *f) {
    if (!f->has_merges)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.merges is missing", f->jr.name);
    f->desc->model = MXC_TOK_BPE_CHARS;
    return f->merges.ptr ? at(f, f->merges, read_merges) : MXC_OK;
}

static enum mxc_code finish_unigram(struct file *f) {
    if (f->unk_id != UINT64_MAX && f->unk_id >= f->desc->n_ids)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.unk_id is not in the vocabulary",
                           f->jr.name);
    f->desc->unk = f->unk_id == UINT64_MAX ? MXC_TOK_NO_ID : (uint32_t)f->unk_id;
    f->desc->model = MXC_TOK_UNIGRAM;
    return MXC_OK;
}

static enum mxc_code finish_words(struct file *f, bool pieces) {
    f->desc->model = pieces ? MXC_TOK_WORDPIECE : MXC_TOK_WORDLEVEL;
    f->desc->max_word_chars = f->max_chars < UINT32_MAX ? (uint32_t)f->max_chars : UINT32_MAX;
    if (pieces && !f->has_prefix)
        return mxc_tokdesc_dup(f->desc, MXC_STR("##"), &f->desc->word_prefix, f->jr.err);
    return MXC_OK;
}

static enum mxc_code finish_model(struct file *f) {
    struct mxc_str type = f->type;
    if (!type.ptr && f->vocab_is_list)
        type = MXC_STR("Unigram");
    else if (!type.ptr)
        type = MXC_STR("BPE");
    bool unigram = mxc_str_is(type, "Unigram"), bpe = mxc_str_is(type, "BPE");
    bool pieces = mxc_str_is(type, "WordPiece");
    if (!unigram && !bpe && !pieces && !mxc_str_is(type, "WordLevel"))
        return mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED,
                           "%s: tokenizer model \"%.*s\" is not supported", f->jr.name,
                           (int)(type.length < 40 ? type.length : 40), type.ptr);
    if (!f->has_vocab)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.vocab is missing", f->jr.name);
    if (unigram != f->vocab_is_list)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.vocab is not of the kind %.*s has",
                           f->jr.name, (int)type.length, type.ptr);
    if (unigram)
        return finish_unigram(f);
    if (f->unk.ptr) {
        f->desc->unk = mxc_tokdesc_find(f->desc, f->unk);
        if (f->desc->unk == MXC_TOK_NO_ID && bpe)
            return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: unk_token is not in the vocabulary",
                               f->jr.name);
    }
    return bpe ? finish_bpe(f) : finish_words(f, pieces);
}

static enum mxc_code read_model(struct file *f) {
    struct mxc_str key;
    bool more;
    enum mxc_code code;
    if (f->has_model)
        return mxc_jr_fail(&f->jr, "a second \"model\"");
    f->has_model = true;
    if ((code = mxc_jr_open(&f->jr, '{')))
        return code;
    for (size_t n = 0;; n++) {
        if ((code = mxc_jr_key(&f->jr, n, &more, &key)))
            return code;
        if (!more)
            return finish_model(f);
        if ((code = read_model_field(f, key)))
            return code;
    }
}

static enum mxc_code read_added_one(struct file *f) {
    struct mxc_jr *jr = &f->jr;
    struct mxc_tok_added a = {.normalized = true};
    struct mxc_str key, content = {0};
    uint64_t id = UINT64_MAX;
    bool more, has_normalized = false;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        bool *flag = mxc_str_is(key, "special")       ? &a.special
                     : mxc_str_is(key, "lstrip")      ? &a.lstrip
                     : mxc_str_is(key, "rstrip")      ? &a.rstrip
                     : mxc_str_is(key, "single_word") ? &a.single_word
                     : mxc_str_is(key, "normalized")  ? &a.normalized
                                                      : NULL;
        has_normalized |= flag == &a.normalized;
        if (flag)
            code = mxc_jr_bool(jr, flag);
        else if (mxc_str_is(key, "id"))
            code = mxc_jr_uint(jr, &id);
        else if (mxc_str_is(key, "content"))
            code = mxc_jr_string(jr, &content);
        else
            code = mxc_jr_skip(jr, NULL);
    }
    if (code)
        return code;
    if (!content.length || id == UINT64_MAX)
        return mxc_jr_fail(jr, "an added token without id or content");
    if (!has_normalized)
        a.normalized = !a.special;
    uint32_t known = mxc_tokdesc_find(f->desc, content);
    if (known == MXC_TOK_NO_ID) {
        known = (uint32_t)id;
        code = mxc_tokdesc_add_token(f->desc, id, content, 0, MXC_TOKEN_USER, jr->err);
    }
    a.id = known;
    if (!code && a.special)
        f->desc->tokens[known].type = MXC_TOKEN_CONTROL;
    if (!code)
        code = mxc_tokdesc_add_added(f->desc, &a, jr->err);
    if (code)
        mxc_err_context(jr->err, "%s: added_tokens", jr->name);
    return code;
}

static enum mxc_code read_added(struct file *f) {
    bool more;
    enum mxc_code code = MXC_OK;
    if (mxc_jr_peek(&f->jr) == 'n')
        return mxc_jr_skip(&f->jr, NULL); /* null */
    if (mxc_jr_peek(&f->jr) != '[')
        return mxc_jr_fail(&f->jr, "added_tokens is not a list");
    if ((code = mxc_jr_open(&f->jr, '[')))
        return code;
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_item(&f->jr, n, &more)) || !more)
            break;
        code = read_added_one(f);
        if (f->jr.arena.used_bytes > ARENA_RESET_BYTES)
            mxc_arena_fini(&f->jr.arena);
    }
    return code;
}

static enum mxc_code read_top(struct file *f) {
    struct mxc_jr *jr = &f->jr;
    struct mxc_str key;
    bool more;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        struct mxc_str *section = mxc_str_is(key, "normalizer")       ? &f->normalizer
                                  : mxc_str_is(key, "pre_tokenizer")  ? &f->pretokenizer
                                  : mxc_str_is(key, "post_processor") ? &f->post
                                  : mxc_str_is(key, "decoder")        ? &f->decoder
                                  : mxc_str_is(key, "added_tokens")   ? &f->added
                                                                      : NULL;
        code = mxc_str_is(key, "model") ? read_model(f) : mxc_jr_skip(jr, section);
    }
    if (code)
        return code;
    if (mxc_jr_peek(jr))
        return mxc_jr_fail(jr, "text after the end");
    if (!f->has_model)
        return mxc_err_set(jr->err, MXC_E_FORMAT, "%s: \"model\" is missing", jr->name);
    return MXC_OK;
}

typedef enum mxc_code section_fn(const json_t *node, struct mxc_tokdesc *desc, struct mxc_err *err);

static enum mxc_code read_section(struct file *f, struct mxc_str text, section_fn *fn) {
    json_t *root = NULL;
    enum mxc_code code = MXC_OK;
    if (!text.ptr || mxc_str_is(text, "null"))
        return MXC_OK;
    if (text.length > MAX_SECTION_BYTES)
        return mxc_err_set(f->jr.err, MXC_E_LIMIT, "%s: a section of %zu bytes", f->jr.name,
                           text.length);
    if ((code = mxc_json_parse(text.ptr, text.length, f->jr.name, &root, f->jr.err)))
        return code;
    code = fn(root, f->desc, f->jr.err);
    json_decref(root);
    if (code)
        mxc_err_context(f->jr.err, "%s", f->jr.name);
    return code;
}

enum mxc_code mxc_tokenizer_json_parse(const char *text, size_t length, const char *name,
                                       struct mxc_tokdesc *desc, struct mxc_err *err) {
    struct mxc_tokdesc d;
    mxc_tokdesc_init(&d);
    struct file f = {.desc = &d, .unk_id = UINT64_MAX, .max_chars = 100};
    mxc_jr_init(&f.jr, text, length, name, err);
    enum mxc_code code = read_top(&f);
    if (!code && f.added.ptr)
        code = at(&f, f.added, read_added);
    if (!code)
        code = read_section(&f, f.normalizer, mxc_tokenizer_json_normalizer);
    if (!code)
        code = read_section(&f, f.pretokenizer, mxc_tokenizer_json_pretokenizer);
    if (!code)
        code = read_section(&f, f.post, mxc_tokenizer_json_post);
    if (!code)
        code = read_section(&f, f.decoder, mxc_tokenizer_json_decoder);
    for (size_t i = 0; i < d.pretokenizers.count && !code; i++) {
        if (d.pretokenizers.items[i].kind != MXC_TOK_BYTE_LEVEL)
            continue;
        if (d.model != MXC_TOK_BPE_CHARS && d.model != MXC_TOK_BPE_BYTES)
            code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "%s: pre_tokenizer: ByteLevel is only supported with BPE", name);
        d.model = MXC_TOK_BPE_BYTES;
    }
    mxc_jr_fini(&f.jr);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

enum mxc_code mxc_tokenizer_json_load(const char *folder, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) {
    struct mxc_tokdesc d;
    struct mxc_file file;
    char *path = mxc_path_join(folder, "tokenizer.json");
    if (!path)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    if (!mxc_file_exists(path))
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "%s: no such file", path);
    if (code || (code = mxc_file_open(path, &file, err))) {
        mxc_mem_free(path);
        return code;
    }
    code = mxc_tokenizer_json_parse((const char *)file.data, file.size, path, &d, err);
    mxc_file_close(&file);
    mxc_mem_free(path);
    if (code)
        return code;
    code = mxc_tokenizer_config_apply(folder, &d, err);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

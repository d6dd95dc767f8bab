/* tokenizer.json: one walk over the top level. The model is read where it stands (vocabulary at
 * once, merges as soon as there is a vocabulary); small sections are remembered and read through
 * jansson afterwards, added tokens after the model, so that any order of keys works. */
#include "format/tokenizer_json.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/json_reader.h"
#include "format/tokenizer_json_steps.h"

#include <string.h>

enum {
    MAX_SECTION_BYTES = 4 << 20,
    MAX_CONFIG_BYTES = 16 << 20,
    MERGES_AT_ONCE = 64,
    ARENA_RESET_BYTES = 1 << 18
};

struct file {
    struct mxc_jr jr;
    struct mxc_tokdesc *desc;
    struct mxc_str normalizer, pretokenizer, post, decoder, added, merges, unk; /* texts */
    bool has_model, has_vocab, has_merges, vocab_is_list;
    struct mxc_str type;
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

/* Fields that would change ids if they were ignored: only null, "" and 0 pass. */
static enum mxc_code refuse_unless_empty(struct file *f, const char *name) {
    struct mxc_str text;
    enum mxc_code code = mxc_jr_skip(&f->jr, &text);
    if (code || mxc_str_is(text, "null") || mxc_str_is(text, "\"\"") || mxc_str_is(text, "0") ||
        mxc_str_is(text, "0.0"))
        return code;
    return mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED, "%s: model.%s is not supported", f->jr.name,
                       name);
}

static enum mxc_code read_model_field(struct file *f, struct mxc_str key) {
    struct mxc_tokdesc *d = f->desc;
    if (mxc_str_is(key, "type"))
        return keep_string(f, &f->type);
    if (mxc_str_is(key, "unk_token"))
        return keep_string(f, &f->unk);
    if (mxc_str_is(key, "vocab") && mxc_jr_peek(&f->jr) == '[') {
        f->vocab_is_list = true;
        return mxc_jr_skip(&f->jr, NULL);
    }
    if (mxc_str_is(key, "vocab"))
        return f->has_vocab ? mxc_jr_fail(&f->jr, "a second \"vocab\"") : read_vocab(f);
    if (mxc_str_is(key, "merges")) {
        f->has_merges = true;
        return f->has_vocab ? read_merges(f) : mxc_jr_skip(&f->jr, &f->merges);
    }
    if (mxc_str_is(key, "fuse_unk"))
        return mxc_jr_bool(&f->jr, &d->fuse_unk);
    if (mxc_str_is(key, "byte_fallback"))
        return mxc_jr_bool(&f->jr, &d->byte_fallback);
    if (mxc_str_is(key, "ignore_merges"))
        return mxc_jr_bool(&f->jr, &d->ignore_merges);
    if (mxc_str_is(key, "dropout"))
        return refuse_unless_empty(f, "dropout");
    if (mxc_str_is(key, "continuing_subword_prefix"))
        return refuse_unless_empty(f, "continuing_subword_prefix");
    if (mxc_str_is(key, "end_of_word_suffix"))
        return refuse_unless_empty(f, "end_of_word_suffix");
    return mxc_jr_skip(&f->jr, NULL);
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
            break;
        if ((code = read_model_field(f, key)))
            return code;
    }
    if (f->type.ptr && !mxc_str_is(f->type, "BPE"))
        return mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED,
                           "%s: tokenizer model \"%.*s\" is not supported", f->jr.name,
                           (int)(f->type.length < 40 ? f->type.length : 40), f->type.ptr);
    if (f->vocab_is_list)
        return mxc_err_set(f->jr.err, MXC_E_UNSUPPORTED,
                           "%s: tokenizer model \"Unigram\" is not supported", f->jr.name);
    if (!f->has_vocab)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.vocab is missing", f->jr.name);
    if (f->merges.ptr && (code = at(f, f->merges, read_merges)))
        return code;
    if (!f->has_merges)
        return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: model.merges is missing", f->jr.name);
    if (f->unk.ptr) {
        f->desc->unk = mxc_tokdesc_find(f->desc, f->unk);
        if (f->desc->unk == MXC_TOK_NO_ID)
            return mxc_err_set(f->jr.err, MXC_E_FORMAT, "%s: unk_token is not in the vocabulary",
                               f->jr.name);
    }
    return MXC_OK;
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
    struct file f = {.desc = &d};
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
    d.model = MXC_TOK_BPE_CHARS;
    for (size_t i = 0; i < d.pretokenizers.count; i++)
        if (d.pretokenizers.items[i].kind == MXC_TOK_BYTE_LEVEL)
            d.model = MXC_TOK_BPE_BYTES;
    mxc_jr_fini(&f.jr);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

/* tokenizer_config.json and special_tokens_map.json */

/* "text", or {"content": "text", ...}; NULL: neither. */
static const char *token_text(const json_t *value) {
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static enum mxc_code mark_special(struct mxc_tokdesc *desc, uint32_t id, struct mxc_err *err) {
    struct mxc_tok_added a = {.id = id, .special = true};
    if (desc->tokens[id].added)
        a = desc->added[desc->tokens[id].added - 1];
    a.special = true;
    desc->tokens[id].type = MXC_TOKEN_CONTROL;
    return mxc_tokdesc_add_added(desc, &a, err);
}

/* bos_token and so on. force: the token becomes special even if it was not listed as added. */
static enum mxc_code read_named(const json_t *root, const char *key, struct mxc_tokdesc *desc,
                                uint32_t *id, bool force, struct mxc_err *err) {
    const char *text = token_text(json_object_get(root, key));
    uint32_t found = text ? mxc_tokdesc_find(desc, mxc_str_of(text)) : MXC_TOK_NO_ID;
    if (found == MXC_TOK_NO_ID || !text[0])
        return MXC_OK;
    *id = found;
    return force || desc->tokens[found].added ? mark_special(desc, found, err) : MXC_OK;
}

static enum mxc_code read_special_list(const json_t *list, struct mxc_tokdesc *desc,
                                       struct mxc_err *err) {
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, item) {
        const char *text = token_text(item);
        uint32_t id = text ? mxc_tokdesc_find(desc, mxc_str_of(text)) : MXC_TOK_NO_ID;
        enum mxc_code code = MXC_OK;
        if (id != MXC_TOK_NO_ID && text[0])
            code = mark_special(desc, id, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

/* Tokens that only tokenizer_config.json lists. */
static enum mxc_code read_added_decoder(const json_t *map, struct mxc_tokdesc *desc,
                                        struct mxc_err *err) {
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)(uintptr_t)map, key, item) {
        struct mxc_tok_added a = {0};
        const char *text = token_text(item);
        int64_t id;
        enum mxc_code code;
        if (!text || !text[0] || !mxc_parse_i64(key, &id) || id < 0)
            return mxc_err_set(err, MXC_E_FORMAT, "added_tokens_decoder.%s: bad entry", key);
        if ((code = mxc_json_get_bool(item, "special", &a.special, err)) ||
            (code = mxc_json_get_bool(item, "lstrip", &a.lstrip, err)) ||
            (code = mxc_json_get_bool(item, "rstrip", &a.rstrip, err)) ||
            (code = mxc_json_get_bool(item, "single_word", &a.single_word, err)) ||
            (code = mxc_json_get_bool(item, "normalized", &a.normalized, err)))
            return code;
        uint32_t known = mxc_tokdesc_find(desc, mxc_str_of(text));
        if (known != MXC_TOK_NO_ID && desc->tokens[known].added) {
            if (a.special && (code = mark_special(desc, known, err)))
                return code;
            continue;
        }
        if (known == MXC_TOK_NO_ID && (uint64_t)id < desc->n_ids && desc->tokens[id].type)
            continue; /* tokenizer.json says otherwise, and its ids are what weights were made for
                       */
        if (known == MXC_TOK_NO_ID) {
            if ((code = mxc_tokdesc_add_token(desc, (uint64_t)id, mxc_str_of(text), 0,
                                              MXC_TOKEN_USER, err)))
                return code;
            known = (uint32_t)id;
        }
        a.id = known;
        if (a.special)
            desc->tokens[known].type = MXC_TOKEN_CONTROL;
        if ((code = mxc_tokdesc_add_added(desc, &a, err)))
            return code;
    }
    return MXC_OK;
}

static enum mxc_code read_names(const json_t *root, struct mxc_tokdesc *desc, struct mxc_err *err) {
    enum mxc_code code;
    uint32_t ignored;
    if ((code = read_named(root, "bos_token", desc, &desc->bos, true, err)) ||
        (code = read_named(root, "eos_token", desc, &desc->eos, true, err)) ||
        (code = read_named(root, "pad_token", desc, &desc->pad, false, err)) ||
        (code = read_named(root, "unk_token", desc, &ignored, false, err)) ||
        (code = read_special_list(json_object_get(root, "additional_special_tokens"), desc, err)) ||
        (code = read_special_list(json_object_get(root, "extra_special_tokens"), desc, err)))
        return code;
    return MXC_OK;
}

/* add_bos_token and add_eos_token, when they are said, overrule the post-processor. */
static enum mxc_code read_framing(const json_t *root, const char *key, struct mxc_tokdesc *desc,
                                  struct mxc_err *err) {
    bool is_bos = !strcmp(key, "add_bos_token"), want;
    struct mxc_tok_ids *ids = is_bos ? &desc->prefix : &desc->suffix;
    uint32_t id = is_bos ? desc->bos : desc->eos;
    if (!json_is_boolean(json_object_get(root, key)) || id == MXC_TOK_NO_ID)
        return MXC_OK;
    want = json_is_true(json_object_get(root, key));
    size_t i = is_bos ? 0 : ids->count - 1;
    bool there = ids->count && ids->items[i] == id;
    if (there && !want) {
        ids->count--;
        if (is_bos)
            memmove(ids->items, ids->items + 1, ids->count * sizeof *ids->items);
    }
    if (there || !want)
        return MXC_OK;
    enum mxc_code code = mxc_tokdesc_add_id(desc, ids, id, err);
    if (!code && is_bos) {
        memmove(ids->items + 1, ids->items, (ids->count - 1) * sizeof *ids->items);
        ids->items[0] = id;
    }
    return code;
}

static enum mxc_code apply_file(const char *folder, const char *file, bool is_config,
                                struct mxc_tokdesc *desc, struct mxc_err *err) {
    char *path = mxc_path_join(folder, file);
    json_t *root = NULL;
    enum mxc_code code = path ? MXC_OK : mxc_err_nomem(err);
    if (code || !mxc_file_exists(path))
        goto out;
    if ((code = mxc_json_load(path, MAX_CONFIG_BYTES, &root, err)))
        goto out;
    if (!json_is_object(root)) {
        code = mxc_err_set(err, MXC_E_FORMAT, "%s: an object is expected", path);
        goto out;
    }
    if (is_config)
        code = read_added_decoder(json_object_get(root, "added_tokens_decoder"), desc, err);
    if (!code)
        code = read_names(root, desc, err);
    if (!code && is_config && !(code = read_framing(root, "add_bos_token", desc, err)))
        code = read_framing(root, "add_eos_token", desc, err);
    if (code)
        mxc_err_context(err, "%s", path);
out:
    json_decref(root);
    mxc_mem_free(path);
    return code;
}

static enum mxc_code find_ends(struct mxc_tokdesc *desc, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    if (desc->eos != MXC_TOK_NO_ID)
        code = mxc_tokdesc_add_id(desc, &desc->end_ids, desc->eos, err);
    return code ? code : mxc_tokdesc_add_known_ends(desc, err);
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
    if (!(code = apply_file(folder, "special_tokens_map.json", false, &d, err)) &&
        !(code = apply_file(folder, "tokenizer_config.json", true, &d, err)))
        code = find_ends(&d, err);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

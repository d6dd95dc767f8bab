/* tokenizer_config.json, special_tokens_map.json and added_tokens.json: what they say about ids,
 * over the description that a vocabulary file gave.
 * In: a folder, a description with its index. Out: added and special tokens, bos, eos, pad, the ids
 * around a text, the ids that end a turn. Files that are not there say nothing. */
#include "format/tokenizer_config.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

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

/* {"token": id}, of checkpoints without a tokenizer.json. */
enum mxc_code mxc_tokenizer_config_apply_added(const char *folder, struct mxc_tokdesc *desc,
                                               struct mxc_err *err) {
    char *path = mxc_path_join(folder, "added_tokens.json");
    json_t *root = NULL, *value;
    const char *key;
    enum mxc_code code = path ? MXC_OK : mxc_err_nomem(err);
    if (code || !mxc_file_exists(path) ||
        (code = mxc_json_load(path, MAX_CONFIG_BYTES, &root, err)))
        goto out;
    json_object_foreach(root, key, value) {
        struct mxc_tok_added a = {0};
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        uint32_t known = mxc_tokdesc_find(desc, mxc_str_of(key));
        if (!key[0] || id < 0)
            code = mxc_err_set(err, MXC_E_FORMAT, "\"%s\": bad entry", key);
        else if (known == MXC_TOK_NO_ID)
            code =
                mxc_tokdesc_add_token(desc, (uint64_t)id, mxc_str_of(key), 0, MXC_TOKEN_USER, err);
        a.id = known == MXC_TOK_NO_ID ? (uint32_t)id : known;
        if (!code && !desc->tokens[a.id].added)
            code = mxc_tokdesc_add_added(desc, &a, err);
        if (code) {
            mxc_err_context(err, "%s", path);
            break;
        }
    }
out:
    json_decref(root);
    mxc_mem_free(path);
    return code;
}

enum mxc_code mxc_tokenizer_config_apply(const char *folder, struct mxc_tokdesc *desc,
                                         struct mxc_err *err) {
    enum mxc_code code = apply_file(folder, "special_tokens_map.json", false, desc, err);
    if (!code)
        code = apply_file(folder, "tokenizer_config.json", true, desc, err);
    return code ? code : find_ends(desc, err);
}

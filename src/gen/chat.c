/* Reading the text side of a checkpoint: tokeniser, templates (HF files in the order in which HF
 * looks, or GGUF metadata), EOS ids from every source.
 * Out: struct mxc_chat, complete or not at all. A broken template is kept as the error it gave. */
#include "gen/chat.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/gguf_tokenizer.h"
#include "format/tokenizer_file.h"

#include <string.h>

enum { MAX_TEMPLATE_BYTES = 4 << 20, MAX_CONFIG_BYTES = 64 << 20 };

static enum mxc_code set_text(char **to, const char *text, size_t length, struct mxc_err *err) {
    if (!*to && !(*to = mxc_mem_dup(text, length)))
        return mxc_err_nomem(err);
    return MXC_OK;
}

/* tokenizer_config.json: a string, or a list of {"name", "template"}. */
static enum mxc_code texts_from_value(struct mxc_chat *chat, const json_t *value, const char *path,
                                      struct mxc_err *err) {
    if (json_is_string(value))
        return set_text(&chat->text, json_string_value(value), json_string_length(value), err);
    if (!json_is_array(value))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: chat_template is neither text nor a list", path);
    size_t i;
    const json_t *item;
    enum mxc_code code = MXC_OK;
    json_array_foreach(value, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (!name || !json_is_string(text))
            return mxc_err_set(err, MXC_E_FORMAT,
                               "%s: chat_template[%zu] lacks \"name\" or \"template\"", path, i);
        char **to = !strcmp(name, "default")    ? &chat->text
                    : !strcmp(name, "tool_use") ? &chat->tool_text
                                                : NULL;
        if (to && (code = set_text(to, json_string_value(text), json_string_length(text), err)))
            return code;
    }
    return MXC_OK;
}

static enum mxc_code text_from_json(struct mxc_chat *chat, const char *path, struct mxc_err *err) {
    json_t *root;
    enum mxc_code code = mxc_json_load(path, MAX_CONFIG_BYTES, &root, err);
    if (code)
        return code;
    const json_t *value = json_object_get(root, "chat_template");
    if (value && !json_is_null(value))
        code = texts_from_value(chat, value, path, err);
    json_decref(root);
    return code;
}

static enum mxc_code load_folder_templates(struct mxc_chat *chat, const char *folder,
                                           struct mxc_err *err) {
    static const struct {
        const char *name;
        bool json, tools;
    } files[] = {{"chat_template.jinja", false, false},
                 {"additional_chat_templates/tool_use.jinja", false, true},
                 {"chat_template.json", true, false},
                 {"tokenizer_config.json", true, false}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char **to = files[i].tools ? &chat->tool_text : &chat->text;
        if (*to)
            continue;
        size_t length;
        char *path = mxc_path_join(folder, files[i].name);
        if (!path)
            return mxc_err_nomem(err);
        enum mxc_code code = MXC_OK;
        if (mxc_file_exists(path))
            code = files[i].json ? text_from_json(chat, path, err)
                                 : mxc_file_read(path, MAX_TEMPLATE_BYTES, to, &length, err);
        mxc_mem_free(path);
        if (code)
            return code;
    }
    return MXC_OK;
}

static enum mxc_code load_gguf(struct mxc_chat *chat, const char *path, struct mxc_tokdesc *desc,
                               struct mxc_err *err) {
    static const struct {
        const char *key;
        bool tools;
    } keys[] = {{"tokenizer.chat_template", false}, {"tokenizer.chat_template.tool_use", true}};
    struct mxc_gguf *gguf;
    enum mxc_code code = mxc_gguf_open(path, &gguf, err);
    if (code)
        return code;
    for (size_t i = 0; i < 2 && !code; i++) {
        struct mxc_str text = {NULL, 0};
        code = mxc_gguf_get_string(gguf, keys[i].key, &text, err);
        if (!code && text.length)
            code = set_text(keys[i].tools ? &chat->tool_text : &chat->text, text.ptr, text.length,
                            err);
    }
    if (!code) {
        code = mxc_gguf_tokenizer_load(gguf, desc, err);
        if (code)
            (void)mxc_err_context(err, "%s", path);
    }
    mxc_gguf_close(gguf);
    return code;
}

static bool has_token(void *user, const char *spelling) {
    return mxc_tokenizer_id(user, mxc_str_of(spelling)) != MXC_TOK_NO_ID;
}

/* NUL-terminated spelling of a token, or NULL when there is none; false: out of memory. */
static bool spelling_of(const struct mxc_tokenizer *tokenizer, uint32_t id, char **out) {
    *out = NULL;
    if (id == MXC_TOK_NO_ID)
        return true;
    struct mxc_str s = mxc_tokenizer_spelling(tokenizer, id);
    return !s.length || (*out = mxc_mem_dup(s.ptr, s.length));
}

static enum mxc_code compile(struct mxc_chat *chat, struct mxc_err *err) {
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    struct mxc_chat_template_source sources[2];
    struct mxc_jinja_token tokens[4];
    char *spellings[4] = {NULL, NULL, NULL, NULL};
    size_t n_sources = 0, n_tokens = 0;
    enum mxc_code code = MXC_OK;
    if (chat->text)
        sources[n_sources++] = (struct mxc_chat_template_source){chat->tool_text ? "default" : NULL,
                                                                 chat->text, strlen(chat->text)};
    if (chat->tool_text)
        sources[n_sources++] =
            (struct mxc_chat_template_source){"tool_use", chat->tool_text, strlen(chat->tool_text)};
    if (chat->tokenizer) {
        const struct mxc_tokdesc *d = mxc_tokenizer_desc(chat->tokenizer);
        const uint32_t ids[] = {d->bos, d->eos, d->pad, d->unk};
        for (int i = 0; i < 4; i++) {
            if (!spelling_of(chat->tokenizer, ids[i], &spellings[i])) {
                code = mxc_err_nomem(err);
                goto out;
            }
            if (spellings[i])
                tokens[n_tokens++] = (struct mxc_jinja_token){names[i], spellings[i]};
        }
    }
    if (!n_sources) {
        (void)mxc_err_set(&chat->template_err, MXC_E_TEMPLATE, "the model has no chat template");
        goto out;
    }
    code = mxc_chat_template_new(sources, n_sources, tokens, n_tokens, true, &chat->templates,
                                 &chat->template_err);
    if (code == MXC_E_NOMEM)
        (void)mxc_err_nomem(err);
    else
        code = MXC_OK; /* the error is told to those who want to use the template */
out:
    for (int i = 0; i < 4; i++)
        mxc_mem_free(spellings[i]);
    return code;
}

/* What follows from tokeniser and template texts. */
static enum mxc_code describe(struct mxc_chat *chat, struct mxc_err *err) {
    chat->bos_id = -1;
    if (chat->tokenizer && mxc_tokenizer_desc(chat->tokenizer)->bos != MXC_TOK_NO_ID)
        chat->bos_id = (int32_t)mxc_tokenizer_desc(chat->tokenizer)->bos;
    chat->marks = mxc_reasoning_find(mxc_str_of(chat->text), chat->tokenizer ? has_token : NULL,
                                     chat->tokenizer);
    return compile(chat, err);
}

static void add_eos(struct mxc_chat *chat, int64_t id, int32_t vocab) {
    if (id < 0 || id > INT32_MAX || (vocab && id >= vocab))
        return;
    for (int32_t i = 0; i < chat->n_eos_ids; i++)
        if (chat->eos_ids[i] == id)
            return;
    if (chat->n_eos_ids < MXC_MAX_CHAT_EOS)
        chat->eos_ids[chat->n_eos_ids++] = (int32_t)id;
}

enum mxc_code mxc_chat_open(const char *path, const struct mxc_config *config, int32_t vocab,
                            struct mxc_chat **chat, struct mxc_err *err) {
    struct mxc_tokdesc desc;
    const char *file = NULL;
    enum mxc_code code;
    struct mxc_chat *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c)
        return mxc_err_nomem(err);
    if (mxc_gguf_is_path(path)) {
        code = load_gguf(c, path, &desc, err);
    } else {
        code = load_folder_templates(c, path, err);
        if (!code)
            code = mxc_tokenizer_load(path, &desc, &file, err);
    }
    if (code)
        goto out;
    code = mxc_tokenizer_new(&desc, &c->tokenizer, err);
    if (code) {
        (void)mxc_err_context(err, "%s%s%s", path, file ? "/" : "", file ? file : "");
        goto out;
    }
    if ((code = describe(c, err)))
        goto out;
    const struct mxc_tokdesc *d = mxc_tokenizer_desc(c->tokenizer);
    for (int i = 0; config && i < config->n_eos; i++)
        add_eos(c, config->eos[i], vocab);
    if (d->eos != MXC_TOK_NO_ID)
        add_eos(c, d->eos, vocab);
    for (size_t i = 0; i < d->end_ids.count; i++)
        add_eos(c, d->end_ids.items[i], vocab);
    *chat = c;
    c = NULL;
out:
    mxc_chat_close(c);
    return code;
}

enum mxc_code mxc_chat_new(struct mxc_tokenizer *tokenizer, const char *template_text,
                           struct mxc_chat **chat, struct mxc_err *err) {
    struct mxc_chat *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c) {
        mxc_tokenizer_free(tokenizer);
        return mxc_err_nomem(err);
    }
    c->tokenizer = tokenizer;
    enum mxc_code code = MXC_OK;
    if (template_text)
        code = set_text(&c->text, template_text, strlen(template_text), err);
    if (!code)
        code = describe(c, err);
    if (code) {
        mxc_chat_close(c);
        return code;
    }
    *chat = c;
    return MXC_OK;
}

void mxc_chat_close(struct mxc_chat *chat) {
    if (!chat)
        return;
    mxc_chat_template_free(chat->templates);
    mxc_tokenizer_free(chat->tokenizer);
    mxc_mem_free(chat->text);
    mxc_mem_free(chat->tool_text);
    mxc_mem_free(chat);
}

enum mxc_code mxc_chat_render(const struct mxc_chat *chat, const json_t *variables,
                              const struct mxc_jinja_options *options,
                              struct mxc_jinja_result *result, struct mxc_err *err) {
    if (!chat->templates) {
        if (err)
            *err = chat->template_err;
        return chat->template_err.code;
    }
    return mxc_chat_template_render(chat->templates, NULL, variables, options, result, err);
}

enum mxc_code mxc_chat_text(const struct mxc_chat *chat, const char *text, size_t length,
                            struct mxc_encode_options options, struct mxc_ids *ids,
                            struct mxc_err *err) {
    struct mxc_text_span span = {text, length, true};
    size_t first = ids->count;
    enum mxc_code code = mxc_tokenizer_encode(chat->tokenizer, &span, 1, options, ids, err);
    if (code || !options.add_special || chat->bos_id < 0 || ids->count - first < 2)
        return code;
    uint32_t bos = (uint32_t)chat->bos_id;
    const struct mxc_tok_ids *prefix = &mxc_tokenizer_desc(chat->tokenizer)->prefix;
    if (!prefix->count || prefix->items[prefix->count - 1] != bos)
        return code; /* none was added */
    if (ids->items[first] == bos && ids->items[first + 1] == bos) {
        memmove(ids->items + first, ids->items + first + 1,
                (ids->count - first - 1) * sizeof *ids->items);
        ids->count--;
    }
    return MXC_OK;
}

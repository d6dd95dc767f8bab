/* Which tokeniser file of a folder is read, and with what beside it.
 * In: a folder. Out: a complete description, or an error that names the file. */
#include "format/tokenizer_file.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "format/sentencepiece.h"
#include "format/tiktoken.h"
#include "format/tokenizer_config.h"
#include "format/tokenizer_json.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* A JSON file of the folder; *root NULL when it is not there. */
static enum mxc_code load_json(const char *folder, const char *name, json_t **root,
                               struct mxc_err *err) {
    char *path = mxc_path_join(folder, name);
    enum mxc_code code = path ? MXC_OK : mxc_err_nomem(err);
    *root = NULL;
    if (!code && mxc_file_exists(path))
        code = mxc_json_load(path, MAX_CONFIG_BYTES, root, err);
    mxc_mem_free(path);
    return code;
}

static enum mxc_code parse_ranks(const char *folder, const struct mxc_file *file,
                                 struct mxc_tokdesc *desc, struct mxc_err *err) {
    json_t *config = NULL, *beside = NULL;
    struct mxc_tiktoken_hints hints = {0};
    enum mxc_code code = load_json(folder, "config.json", &config, err);
    if (!code)
        code = load_json(folder, "tokenizer_config.json", &beside, err);
    if (!code) {
        hints.model_type = json_string_value(json_object_get(config, "model_type"));
        hints.has_specials = json_object_size(json_object_get(beside, "added_tokens_decoder")) > 0;
        code =
            mxc_tiktoken_parse((const char *)file->data, file->size, file->path, hints, desc, err);
    }
    json_decref(config);
    json_decref(beside);
    return code;
}

static enum mxc_code parse(const char *folder, const char *name, const struct mxc_file *file,
                           struct mxc_tokdesc *desc, struct mxc_err *err) {
    size_t n = strlen(name);
    if (!strcmp(name, "tekken.json"))
        return mxc_tekken_parse((const char *)file->data, file->size, file->path, desc, err);
    /* a sentencepiece model begins with the key of its first piece, which is no base64 */
    bool message = !file->size || file->data[0] == '\n';
    if (strcmp(name + n - 9, ".tiktoken") != 0 && (message || strcmp(name, "tokenizer.model") != 0))
        return mxc_sentencepiece_parse(file->data, file->size, file->path, desc, err);
    return parse_ranks(folder, file, desc, err);
}

static enum mxc_code load(const char *folder, const char *name, const char *path,
                          struct mxc_tokdesc *desc, struct mxc_err *err) {
    struct mxc_file file;
    struct mxc_tokdesc d;
    enum mxc_code code = mxc_file_open(path, &file, err);
    if (code)
        return code;
    code = parse(folder, name, &file, &d, err);
    mxc_file_close(&file);
    if (code)
        return code;
    if (!(code = mxc_tokenizer_config_apply_added(folder, &d, err)))
        code = mxc_tokenizer_config_apply(folder, &d, err);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

enum mxc_code mxc_tokenizer_load(const char *folder, struct mxc_tokdesc *desc, const char **file,
                                 struct mxc_err *err) {
    static const char *const names[] = {
        "tokenizer.json",          "tekken.json",   "tokenizer.model",   "spiece.model",
        "sentencepiece.bpe.model", "qwen.tiktoken", "tokenizer.tiktoken"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = mxc_path_join(folder, names[i]);
        if (!path)
            return mxc_err_nomem(err);
        bool there = mxc_file_exists(path);
        enum mxc_code code = MXC_OK;
        if (there)
            code = i ? load(folder, names[i], path, desc, err)
                     : mxc_tokenizer_json_load(folder, desc, err);
        mxc_mem_free(path);
        if (there && !code)
            *file = names[i];
        if (there)
            return code;
    }
    return mxc_err_set(err, MXC_E_NOT_FOUND,
                       "%s: no tokenizer.json (nor tekken.json, tokenizer.model or qwen.tiktoken)",
                       folder);
}

/* The small sections of a tokenizer.json, from jansson trees to steps of the description:
 * normalizer, pre_tokenizer, decoder, post_processor.
 * In: a section, possibly a Sequence of sections up to eight deep. Out: steps in their order, or
 * ids around a text. A type that is not known is refused by name: a tokeniser that is nearly right
 * is wrong.
 * Class-like pre-tokenisers (Digits, Punctuation, Whitespace and others) become splits by an
 * equivalent pattern, so text/ has fewer kinds to run. Nothing may follow ByteLevel, whose pieces
 * are no longer text. */
#include "format/tokenizer_json_steps.h"

#include "base/mem.h"
#include "format/base64.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 8 };

#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"

typedef enum mxc_code add_fn(const char *type, const json_t *node, struct mxc_tokdesc *desc,
                             struct mxc_err *err);

/* Calls add for a node, or for each member of a Sequence (list under `members`). */
static enum mxc_code walk(const json_t *node, const char *what, const char *members, int depth,
                          add_fn *add, struct mxc_tokdesc *desc, struct mxc_err *err) {
    const char *type = NULL;
    if (!node || json_is_null(node))
        return MXC_OK;
    if (depth > MAX_DEPTH)
        return mxc_err_set(err, MXC_E_LIMIT, "%s: nested too deep", what);
    if (!json_is_object(node))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: an object is expected", what);
    enum mxc_code code = mxc_json_get_string(node, "type", &type, err);
    if (!code && !type)
        code = mxc_err_set(err, MXC_E_FORMAT, "type is missing");
    if (!code && !strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(node, members), *item;
        size_t i;
        if (!json_is_array(list))
            code = mxc_err_set(err, MXC_E_FORMAT, "Sequence without a list \"%s\"", members);
        json_array_foreach((json_t *)(uintptr_t)list, i, item) {
            if ((code = walk(item, what, members, depth + 1, add, desc, err)))
                return code;
        }
    } else if (!code) {
        code = add(type, node, desc, err);
    }
    if (code && depth == 0)
        mxc_err_context(err, "%s", what);
    return code;
}

static enum mxc_code refuse(const char *type, struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "\"%s\" is not supported", type);
}

static enum mxc_code get_str(const json_t *node, const char *key, struct mxc_str *out,
                             struct mxc_err *err) {
    const json_t *v = json_object_get(node, key);
    if (!json_is_string(v))
        return mxc_err_set(err, MXC_E_FORMAT, "\"%s\": a string is expected", key);
    *out = (struct mxc_str){json_string_value(v), json_string_length(v)};
    return MXC_OK;
}

/* {"String": ...} or {"Regex": ...}; older files have a plain string. */
static enum mxc_code get_pattern(const json_t *node, struct mxc_tok_step *step,
                                 struct mxc_err *err) {
    const json_t *p = json_object_get(node, "pattern");
    if (json_is_string(p))
        return get_str(node, "pattern", &step->pattern, err);
    step->is_regex = json_object_get(p, "Regex") != NULL;
    enum mxc_code code = get_str(p, step->is_regex ? "Regex" : "String", &step->pattern, err);
    if (code)
        mxc_err_context(err, "pattern");
    return code;
}

static enum mxc_code add_kind(struct mxc_tokdesc *desc, enum mxc_tok_step_kind kind,
                              struct mxc_err *err) {
    struct mxc_tok_step step = {.kind = kind};
    return mxc_tokdesc_add_step(desc, &desc->normalizers, &step, err);
}

/* The four parts of BertNormalizer in the order in which it does them. */
static enum mxc_code add_bert(const json_t *node, struct mxc_tokdesc *desc, struct mxc_err *err) {
    bool clean = true, cjk = true, lower = true, accents;
    enum mxc_code code;
    if ((code = mxc_json_get_bool(node, "clean_text", &clean, err)) ||
        (code = mxc_json_get_bool(node, "handle_chinese_chars", &cjk, err)) ||
        (code = mxc_json_get_bool(node, "lowercase", &lower, err)))
        return code;
    accents = lower; /* unless it is said */
    if ((code = mxc_json_get_bool(node, "strip_accents", &accents, err)) ||
        (clean && (code = add_kind(desc, MXC_TOK_BERT_CLEAN, err))) ||
        (cjk && (code = add_kind(desc, MXC_TOK_BERT_CJK, err))) ||
        (accents && (code = add_kind(desc, MXC_TOK_NFD, err))) ||
        (accents && (code = add_kind(desc, MXC_TOK_STRIP_NONSPACING, err))) ||
        (lower && (code = add_kind(desc, MXC_TOK_LOWERCASE, err))))
        return code;
    return MXC_OK;
}

static enum mxc_code add_precompiled(const json_t *node, struct mxc_tokdesc *desc,
                                     struct mxc_err *err) {
    struct mxc_tok_step step = {.kind = MXC_TOK_CHARSMAP};
    struct mxc_str text;
    char *bytes;
    size_t n;
    enum mxc_code code = get_str(node, "precompiled_charsmap", &text, err);
    if (code || !text.length)
        return code;
    if ((code = mxc_base64_decode(text, &bytes, &n, err)))
        return mxc_err_context(err, "precompiled_charsmap");
    step.content = (struct mxc_str){bytes, n};
    code = mxc_tokdesc_add_step(desc, &desc->normalizers, &step, err);
    mxc_mem_free(bytes);
    return code;
}

static enum mxc_code add_normalizer(const char *type, const json_t *node, struct mxc_tokdesc *desc,
                                    struct mxc_err *err) {
    static const struct {
        const char *name;
        enum mxc_tok_step_kind kind;
    } plain[] = {{"NFC", MXC_TOK_NFC},
                 {"NFD", MXC_TOK_NFD},
                 {"NFKC", MXC_TOK_NFKC},
                 {"NFKD", MXC_TOK_NFKD},
                 {"Lowercase", MXC_TOK_LOWERCASE},
                 {"Nmt", MXC_TOK_NMT},
                 {"StripAccents", MXC_TOK_STRIP_ACCENTS}};
    struct mxc_tok_step step = {0};
    enum mxc_code code = MXC_OK;
    bool known = false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !known; i++)
        if ((known = !strcmp(type, plain[i].name)))
            step.kind = plain[i].kind;
    if (!strcmp(type, "BertNormalizer"))
        return add_bert(node, desc, err);
    if (!strcmp(type, "Precompiled"))
        return add_precompiled(node, desc, err);
    if (known) {
        /* no fields */
    } else if (!strcmp(type, "Strip")) {
        step.kind = MXC_TOK_STRIP_SPACE;
        step.left = step.right = true;
        if (!(code = mxc_json_get_bool(node, "strip_left", &step.left, err)))
            code = mxc_json_get_bool(node, "strip_right", &step.right, err);
    } else if (!strcmp(type, "Prepend")) {
        step.kind = MXC_TOK_PREPEND;
        code = get_str(node, "prepend", &step.content, err);
    } else if (!strcmp(type, "Replace")) {
        step.kind = MXC_TOK_REPLACE;
        if (!(code = get_pattern(node, &step, err)))
            code = get_str(node, "content", &step.content, err);
    } else {
        return refuse(type, err);
    }
    return code ? code : mxc_tokdesc_add_step(desc, &desc->normalizers, &step, err);
}

enum mxc_code mxc_tokenizer_json_normalizer(const json_t *node, struct mxc_tokdesc *desc,
                                            struct mxc_err *err) {
    return walk(node, "normalizer", "normalizers", 0, add_normalizer, desc, err);
}

static enum mxc_code get_behavior(const json_t *node, enum mxc_tok_behavior *out,
                                  struct mxc_err *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    enum mxc_code code = mxc_json_get_string(node, "behavior", &name, err);
    if (code || !name)
        return code;
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum mxc_tok_behavior)i;
            return MXC_OK;
        }
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "behavior \"%s\" is not supported", name);
}

/* Shared with the decoder of that name. */
static enum mxc_code get_metaspace(const json_t *node, struct mxc_tok_step *step,
                                   struct mxc_err *err) {
    const char *scheme = NULL;
    bool prefix = true;
    enum mxc_code code;
    step->kind = MXC_TOK_METASPACE;
    step->split = true;
    if ((code = get_str(node, "replacement", &step->pattern, err)) ||
        (code = mxc_json_get_bool(node, "add_prefix_space", &prefix, err)) ||
        (code = mxc_json_get_bool(node, "split", &step->split, err)) ||
        (code = mxc_json_get_string(node, "prepend_scheme", &scheme, err)))
        return code;
    if (!scheme)
        scheme = prefix ? "always" : "never";
    if (!strcmp(scheme, "always"))
        step->prepend = MXC_TOK_PREPEND_ALWAYS;
    else if (!strcmp(scheme, "first"))
        step->prepend = MXC_TOK_PREPEND_FIRST;
    else if (!strcmp(scheme, "never"))
        step->prepend = MXC_TOK_PREPEND_NEVER;
    else
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "prepend_scheme \"%s\" is not supported",
                           scheme);
    return MXC_OK;
}

static enum mxc_code add_pretokenizer(const char *type, const json_t *node,
                                      struct mxc_tokdesc *desc, struct mxc_err *err) {
    struct mxc_tok_step step = {.kind = MXC_TOK_SPLIT, .behavior = MXC_TOK_ISOLATED};
    enum mxc_code code = MXC_OK;
    int64_t length = 5;
    char pattern[32];
    for (size_t i = 0; i < desc->pretokenizers.count; i++)
        if (desc->pretokenizers.items[i].kind == MXC_TOK_BYTE_LEVEL)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "\"%s\" after ByteLevel is not supported",
                               type);
    if (!strcmp(type, "Split")) {
        if (!(code = get_pattern(node, &step, err)) &&
            !(code = get_behavior(node, &step.behavior, err)))
            code = mxc_json_get_bool(node, "invert", &step.invert, err);
    } else if (!strcmp(type, "ByteLevel")) {
        step.kind = MXC_TOK_BYTE_LEVEL;
        step.use_regex = step.add_prefix_space = true;
        if (!(code = mxc_json_get_bool(node, "use_regex", &step.use_regex, err)))
            code = mxc_json_get_bool(node, "add_prefix_space", &step.add_prefix_space, err);
    } else if (!strcmp(type, "Metaspace")) {
        code = get_metaspace(node, &step, err);
    } else if (!strcmp(type, "Digits")) {
        bool individual = false;
        code = mxc_json_get_bool(node, "individual_digits", &individual, err);
        step.behavior = individual ? MXC_TOK_ISOLATED : MXC_TOK_CONTIGUOUS;
        step.is_regex = true;
        step.pattern = MXC_STR("\\p{N}");
    } else if (!strcmp(type, "Punctuation")) {
        code = get_behavior(node, &step.behavior, err);
        step.is_regex = true;
        step.pattern = MXC_STR(PUNCTUATION);
    } else if (!strcmp(type, "Whitespace")) {
        step.behavior = MXC_TOK_REMOVED;
        step.is_regex = step.invert = true;
        step.pattern = MXC_STR("[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+");
    } else if (!strcmp(type, "WhitespaceSplit")) {
        step.behavior = MXC_TOK_REMOVED;
        step.is_regex = true;
        step.pattern = MXC_STR("\\s");
    } else if (!strcmp(type, "BertPreTokenizer")) {
        step.behavior = MXC_TOK_REMOVED;
        step.is_regex = true;
        step.pattern = MXC_STR("\\s");
        if ((code = mxc_tokdesc_add_step(desc, &desc->pretokenizers, &step, err)))
            return code;
        step.behavior = MXC_TOK_ISOLATED;
        step.pattern = MXC_STR(PUNCTUATION);
    } else if (!strcmp(type, "CharDelimiterSplit")) {
        step.behavior = MXC_TOK_REMOVED;
        code = get_str(node, "delimiter", &step.pattern, err);
    } else if (!strcmp(type, "UnicodeScripts")) {
        step.kind = MXC_TOK_SCRIPTS;
    } else if (!strcmp(type, "FixedLength")) {
        code = mxc_json_get_int(node, "length", 1, 1000, &length, err);
        (void)snprintf(pattern, sizeof pattern, "[\\s\\S]{1,%d}", (int)length);
        step.is_regex = true;
        step.pattern = mxc_str_of(pattern);
    } else {
        return refuse(type, err);
    }
    return code ? code : mxc_tokdesc_add_step(desc, &desc->pretokenizers, &step, err);
}

enum mxc_code mxc_tokenizer_json_pretokenizer(const json_t *node, struct mxc_tokdesc *desc,
                                              struct mxc_err *err) {
    return walk(node, "pre_tokenizer", "pretokenizers", 0, add_pretokenizer, desc, err);
}

static enum mxc_code add_decoder(const char *type, const json_t *node, struct mxc_tokdesc *desc,
                                 struct mxc_err *err) {
    struct mxc_tok_step step = {0};
    int64_t start = 0, stop = 0;
    enum mxc_code code = MXC_OK;
    if (!strcmp(type, "ByteLevel")) {
        step.kind = MXC_TOK_BYTE_LEVEL;
    } else if (!strcmp(type, "ByteFallback")) {
        step.kind = MXC_TOK_BYTE_FALLBACK;
    } else if (!strcmp(type, "Fuse")) {
        step.kind = MXC_TOK_FUSE;
    } else if (!strcmp(type, "Metaspace")) {
        code = get_metaspace(node, &step, err);
    } else if (!strcmp(type, "Replace")) {
        step.kind = MXC_TOK_REPLACE;
        if (!(code = get_pattern(node, &step, err)))
            code = get_str(node, "content", &step.content, err);
    } else if (!strcmp(type, "Strip")) {
        step.kind = MXC_TOK_STRIP;
        if (!(code = get_str(node, "content", &step.content, err)) &&
            !(code = mxc_json_get_int(node, "start", 0, 1000, &start, err)))
            code = mxc_json_get_int(node, "stop", 0, 1000, &stop, err);
        step.n_start = (uint32_t)start;
        step.n_stop = (uint32_t)stop;
    } else if (!strcmp(type, "WordPiece")) {
        step.kind = MXC_TOK_WORDS;
        step.cleanup = true;
        if (!(code = get_str(node, "prefix", &step.content, err)))
            code = mxc_json_get_bool(node, "cleanup", &step.cleanup, err);
    } else if (!strcmp(type, "CTC")) {
        step.kind = MXC_TOK_CTC;
        step.cleanup = true;
        if (!(code = get_str(node, "pad_token", &step.pattern, err)) &&
            !(code = get_str(node, "word_delimiter_token", &step.content, err)))
            code = mxc_json_get_bool(node, "cleanup", &step.cleanup, err);
    } else if (!strcmp(type, "BPEDecoder")) {
        step.kind = MXC_TOK_WORD_SUFFIX;
        code = get_str(node, "suffix", &step.content, err);
    } else {
        return refuse(type, err);
    }
    return code ? code : mxc_tokdesc_add_step(desc, &desc->decoders, &step, err);
}

enum mxc_code mxc_tokenizer_json_decoder(const json_t *node, struct mxc_tokdesc *desc,
                                         struct mxc_err *err) {
    desc->has_decoder = node && !json_is_null(node);
    return walk(node, "decoder", "decoders", 0, add_decoder, desc, err);
}

static enum mxc_code add_checked_id(const json_t *value, struct mxc_tokdesc *desc,
                                    struct mxc_tok_ids *ids, struct mxc_err *err) {
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || (uint64_t)id >= desc->n_ids || !desc->tokens[id].type)
        return mxc_err_set(err, MXC_E_FORMAT, "a special token's id is not in the vocabulary");
    return mxc_tokdesc_add_id(desc, ids, (uint32_t)id, err);
}

/* "single" is a list of {"SpecialToken": {id}} around one {"Sequence": {"id": "A"}}. */
static enum mxc_code add_template(const json_t *node, struct mxc_tokdesc *desc,
                                  struct mxc_err *err) {
    const json_t *single = json_object_get(node, "single"), *item;
    const json_t *specials = json_object_get(node, "special_tokens");
    struct mxc_tok_ids *to = &desc->prefix;
    size_t i, k;
    if (!json_is_array(single))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "\"single\" is not a list");
    json_array_foreach((json_t *)(uintptr_t)single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken"), *id;
        if (json_object_get(item, "Sequence")) {
            to = &desc->suffix;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_is_array(ids))
            return mxc_err_set(err, MXC_E_FORMAT, "special token \"%s\" has no ids",
                               name ? name : "?");
        json_array_foreach((json_t *)(uintptr_t)ids, k, id) {
            enum mxc_code code = add_checked_id(id, desc, to, err);
            if (code)
                return code;
        }
    }
    return MXC_OK;
}

static enum mxc_code add_post(const char *type, const json_t *node, struct mxc_tokdesc *desc,
                              struct mxc_err *err) {
    enum mxc_code code;
    if (!strcmp(type, "ByteLevel"))
        return MXC_OK; /* it only moves offsets */
    if (desc->prefix.count || desc->suffix.count)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "\"%s\" after another that adds tokens", type);
    if (!strcmp(type, "TemplateProcessing"))
        return add_template(node, desc, err);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        code = add_checked_id(json_array_get(json_object_get(node, "cls"), 1), desc, &desc->prefix,
                              err);
        return code ? code
                    : add_checked_id(json_array_get(json_object_get(node, "sep"), 1), desc,
                                     &desc->suffix, err);
    }
    return refuse(type, err);
}

enum mxc_code mxc_tokenizer_json_post(const json_t *node, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) {
    return walk(node, "post_processor", "processors", 0, add_post, desc, err);
}

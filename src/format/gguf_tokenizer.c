/* Tokenisers from GGUF metadata. The file names its pre-tokeniser; the patterns behind the names
 * are those the models were published with, applied one after another, each to the pieces of the
 * one before. Control and unknown tokens are special, user-defined ones are always matched. */
#include "format/gguf_tokenizer.h"

#include "base/mem.h"
#include "format/split_patterns.h"

#include <string.h>
#include <strings.h>

enum { MERGES_AT_ONCE = 64 };

#define CONTRACTIONS MXC_SPLIT_CONTRACTIONS
#define NEWLINES     MXC_SPLIT_NEWLINES
#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"                           \
    "\\s+(?!\\S)|\\s+"
/* Letters of the cased scripts, as DeepSeek's first tokeniser lists them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                 \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"         \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                  \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                       \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}"                 \
    "\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"         \
    "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"                           \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"                 \
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}"          \
    "\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"                  \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"         \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}"                  \
    "\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}"                 \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"                 \
    "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}"         \
    "\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

struct pre {
    const char *names; /* between and around them one space */
    bool ignore_merges, add_bos;
    bool nfc; /* the published tokeniser normalises, though files do not say so */
    const char *patterns[7];
};

static const struct pre pres[] = {
    {" default ",
     false,
     false,
     false,
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" gpt-2 gpt2 phi-2 mpt olmo jais jina-es jina-de jina-v1-en jina-v2-es jina-v2-de ",
     false,
     false,
     false,
     {GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral ",
     true,
     true,
     false,
     {MXC_SPLIT_CL100K("\\p{N}{1,3}")}},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", false, false, false, {MXC_SPLIT_CL100K("\\p{N}{1,3}")}},
    {" qwen2 ", false, false, true, {MXC_SPLIT_CL100K("\\p{N}")}},
    {" deepseek-r1-qwen stablelm2 hunyuan-dense ",
     false,
     false,
     false,
     {MXC_SPLIT_CL100K("\\p{N}")}},
    {" qwen35 ", false, false, true, {MXC_SPLIT_QWEN35}},
    {" smollm starcoder starcoder2 refact command-r codeshell ",
     false,
     false,
     false,
     {"\\p{N}", GPT2}},
    {" deepseek-llm ",
     false,
     false,
     false,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
      "\\s+$", "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}+"}},
    {" deepseek-coder ",
     false,
     false,
     false,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
      "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}"}},
    {" deepseek-v3 ",
     false,
     false,
     false,
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
      "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES}},
    {" tekken ", true, true, false, {MXC_SPLIT_O200K("", "\\p{N}")}},
    {" gpt-4o llama4 ", false, false, false, {MXC_SPLIT_O200K(CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {" falcon ", false, false, false, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" bailingmoe bailingmoe2 llada-moe ",
     false,
     false,
     false,
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                   "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
};

static const struct pre *find_pre(struct mxc_str name) {
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        for (const char *p = pres[i].names; (p = strchr(p, ' ')) && p[1]; p++)
            if (!strncmp(p + 1, name.ptr, name.length) && p[1 + name.length] == ' ')
                return &pres[i];
    return NULL;
}

/* BERT's files mark the beginning of words (U+2581) instead of what continues them ("##"). */
static struct mxc_str respell(struct mxc_str s, int64_t type, char *buffer, size_t size) {
    if (type != MXC_TOKEN_NORMAL || s.length + 2 > size)
        return s;
    if (mxc_str_starts(s, "\xE2\x96\x81"))
        return (struct mxc_str){s.ptr + 3, s.length - 3};
    memcpy(buffer, "##", 2);
    memcpy(buffer + 2, s.ptr, s.length);
    return (struct mxc_str){buffer, s.length + 2};
}

/* Tokens, with scores and types where the file has them. */
static enum mxc_code read_tokens(const struct mxc_gguf *gguf, bool bert, struct mxc_tokdesc *d,
                                 struct mxc_err *err) {
    char buffer[1024];
    const struct mxc_gguf_value *tokens = NULL, *scores = NULL, *types = NULL;
    enum mxc_code code;
    if ((code = mxc_gguf_get_strings(gguf, "tokenizer.ggml.tokens", &tokens, err)) ||
        (code = mxc_gguf_get_reals(gguf, "tokenizer.ggml.scores", &scores, err)) ||
        (code = mxc_gguf_get_ints(gguf, "tokenizer.ggml.token_type", &types, err)))
        return code;
    if (!tokens || !tokens->count)
        return mxc_err_set(err, MXC_E_FORMAT, "tokenizer.ggml.tokens is missing or empty");
    if ((scores && scores->count != tokens->count) || (types && types->count != tokens->count))
        return mxc_err_set(err, MXC_E_FORMAT, "tokenizer.ggml.%s has %zu entries for %zu tokens",
                           scores && scores->count != tokens->count ? "scores" : "token_type",
                           scores && scores->count != tokens->count ? scores->count : types->count,
                           tokens->count);
    struct mxc_str s;
    size_t cursor = 0;
    for (size_t id = 0; mxc_gguf_next_string(tokens, &cursor, &s); id++) {
        int64_t type = types ? mxc_gguf_int_at(types, id) : MXC_TOKEN_NORMAL;
        float score = scores ? (float)mxc_gguf_real_at(scores, id) : 0;
        if (type < MXC_TOKEN_NORMAL || type > MXC_TOKEN_BYTE)
            type = MXC_TOKEN_NORMAL;
        if (bert)
            s = respell(s, type, buffer, sizeof buffer);
        code = mxc_tokdesc_add_token(d, id, s, score == score ? score : 0, (enum mxc_tok_type)type,
                                     err);
        if (code)
            return code;
    }
    return mxc_tokdesc_index(d, err);
}

/* User-defined tokens of sentencepiece models are matched in the normalised text. */
static enum mxc_code read_added(const struct mxc_gguf *gguf, bool spm, struct mxc_tokdesc *d,
                                struct mxc_err *err) {
    struct mxc_str name = {"", 0};
    enum mxc_code code = mxc_gguf_get_string(gguf, "general.name", &name, err);
    bool phi3 = false; /* its specials take the white space after them in */
    for (size_t i = 0; i + 4 <= name.length; i++)
        phi3 |= !strncasecmp(name.ptr + i, "phi3", 4) ||
                (i + 5 <= name.length && !strncasecmp(name.ptr + i, "phi-3", 5));
    for (uint32_t id = 0; id < d->n_ids && !code; id++) {
        enum mxc_tok_type type = (enum mxc_tok_type)d->tokens[id].type;
        if (!d->tokens[id].length ||
            (type != MXC_TOKEN_CONTROL && type != MXC_TOKEN_UNKNOWN && type != MXC_TOKEN_USER))
            continue;
        struct mxc_str s = mxc_tokdesc_bytes(d, id);
        struct mxc_tok_added a = {.id = id,
                                  .special = type != MXC_TOKEN_USER,
                                  .normalized = spm && type == MXC_TOKEN_USER};
        a.rstrip = phi3 && !mxc_str_is(s, "<unk>") && !mxc_str_is(s, "<s>") &&
                   !mxc_str_is(s, "<|endoftext|>");
        code = mxc_tokdesc_add_added(d, &a, err);
    }
    return code;
}

static enum mxc_code read_merges(const struct mxc_gguf *gguf, struct mxc_tokdesc *d,
                                 struct mxc_err *err) {
    const struct mxc_gguf_value *merges = NULL;
    struct mxc_tok_pair pairs[MERGES_AT_ONCE];
    struct mxc_str s;
    size_t n = 0, cursor = 0, index = 0;
    enum mxc_code code = mxc_gguf_get_strings(gguf, "tokenizer.ggml.merges", &merges, err);
    if (code)
        return code;
    if (!merges)
        return mxc_err_set(err, MXC_E_FORMAT, "tokenizer.ggml.merges is missing");
    while (!code && mxc_gguf_next_string(merges, &cursor, &s)) {
        const char *space = s.length ? memchr(s.ptr + 1, ' ', s.length - 1) : NULL;
        if (!space)
            return mxc_err_set(err, MXC_E_FORMAT, "tokenizer.ggml.merges[%zu] is not two parts",
                               index);
        pairs[n].left = (struct mxc_str){s.ptr, (size_t)(space - s.ptr)};
        pairs[n].right = (struct mxc_str){space + 1, (size_t)(s.ptr + s.length - space - 1)};
        index++;
        if (++n == MERGES_AT_ONCE) {
            code = mxc_tokdesc_add_merges(d, pairs, n, true, err);
            n = 0;
        }
    }
    return code ? code : mxc_tokdesc_add_merges(d, pairs, n, true, err);
}

static enum mxc_code read_bpe(const struct mxc_gguf *gguf, struct mxc_tokdesc *d, bool *add_bos,
                              struct mxc_err *err) {
    struct mxc_str name = MXC_STR("default");
    enum mxc_code code = mxc_gguf_get_string(gguf, "tokenizer.ggml.pre", &name, err);
    if (code)
        return code;
    const struct pre *pre = find_pre(name);
    if (!pre)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "tokenizer.ggml.pre \"%.*s\" is not supported",
                           (int)(name.length < 60 ? name.length : 60), name.ptr);
    d->model = MXC_TOK_BPE_BYTES;
    d->ignore_merges = pre->ignore_merges;
    d->has_decoder = d->added_literal = true;
    *add_bos = pre->add_bos;
    struct mxc_tok_step nfc = {.kind = MXC_TOK_NFC};
    if (pre->nfc)
        code = mxc_tokdesc_add_step(d, &d->normalizers, &nfc, err);
    for (size_t i = 0; pre->patterns[i] && !code; i++) {
        struct mxc_tok_step step = {.kind = MXC_TOK_SPLIT,
                                    .behavior = MXC_TOK_ISOLATED,
                                    .is_regex = true,
                                    .pattern = mxc_str_of(pre->patterns[i])};
        code = mxc_tokdesc_add_step(d, &d->pretokenizers, &step, err);
    }
    struct mxc_tok_step bytes = {.kind = MXC_TOK_BYTE_LEVEL};
    if (!code)
        code = mxc_tokdesc_add_step(d, &d->decoders, &bytes, err);
    return code ? code : read_merges(gguf, d, err);
}

/* Steps that sentencepiece-like models share. */
static enum mxc_code add_meta_steps(struct mxc_tokdesc *d, struct mxc_err *err) {
    static const char meta[] = "\xE2\x96\x81";
    struct mxc_tok_step prepend = {.kind = MXC_TOK_PREPEND, .content = MXC_STR(meta)};
    struct mxc_tok_step spaces = {
        .kind = MXC_TOK_REPLACE, .pattern = MXC_STR(" "), .content = MXC_STR(meta)};
    const struct mxc_tok_step decoders[] = {
        {.kind = MXC_TOK_REPLACE, .pattern = MXC_STR(meta), .content = MXC_STR(" ")},
        {.kind = MXC_TOK_BYTE_FALLBACK},
        {.kind = MXC_TOK_FUSE},
        {.kind = MXC_TOK_STRIP, .content = MXC_STR(" "), .n_start = 1}};
    enum mxc_code code = MXC_OK;
    d->byte_fallback = d->has_decoder = true;
    if (d->add_space_prefix)
        code = mxc_tokdesc_add_step(d, &d->normalizers, &prepend, err);
    if (!code)
        code = mxc_tokdesc_add_step(d, &d->normalizers, &spaces, err);
    for (size_t i = 0; i < (d->add_space_prefix ? 4u : 3u) && !code; i++)
        code = mxc_tokdesc_add_step(d, &d->decoders, &decoders[i], err);
    return code;
}

static enum mxc_code read_spm(const struct mxc_gguf *gguf, struct mxc_tokdesc *d,
                              struct mxc_err *err) {
    d->model = MXC_TOK_SPM;
    d->add_space_prefix = true;
    d->unk = 0;
    d->bos = 1;
    d->eos = 2;
    enum mxc_code code =
        mxc_gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &d->add_space_prefix, err);
    return code ? code : add_meta_steps(d, err);
}

/* Merges over characters, with U+2581 for spaces and bytes for what is unknown. */
static enum mxc_code read_gemma4(const struct mxc_gguf *gguf, struct mxc_tokdesc *d,
                                 struct mxc_err *err) {
    d->model = MXC_TOK_BPE_CHARS;
    d->fuse_unk = true;
    d->bos = 2;
    d->eos = 1;
    d->unk = 3;
    enum mxc_code code = add_meta_steps(d, err);
    return code ? code : read_merges(gguf, d, err);
}

/* Unigram as sentencepiece has it; the character map stands in the file as an array of bytes. */
static enum mxc_code read_t5(const struct mxc_gguf *gguf, struct mxc_tokdesc *d, bool *add_eos,
                             struct mxc_err *err) {
    struct mxc_tok_step step = {
        .kind = MXC_TOK_SPM_TEXT, .add_prefix_space = true, .escape = true, .strip_extra = true};
    struct mxc_tok_step spaces = {
        .kind = MXC_TOK_REPLACE, .pattern = MXC_STR("\xE2\x96\x81"), .content = MXC_STR(" ")};
    struct mxc_tok_step fuse = {.kind = MXC_TOK_FUSE};
    struct mxc_tok_step strip = {.kind = MXC_TOK_STRIP, .content = MXC_STR(" "), .n_start = 1};
    const struct mxc_gguf_value *map = NULL;
    char *bytes = NULL;
    enum mxc_code code;
    d->model = MXC_TOK_UNIGRAM;
    d->sentencepiece = d->has_decoder = *add_eos = true;
    d->unk = 2;
    d->eos = 1;
    d->pad = 0;
    if ((code = mxc_gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &step.add_prefix_space,
                                  err)) ||
        (code = mxc_gguf_get_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces",
                                  &step.strip_extra, err)) ||
        (code = mxc_gguf_get_ints(gguf, "tokenizer.ggml.precompiled_charsmap", &map, err)))
        return code;
    if (map && map->count) {
        if (!(bytes = mxc_mem_alloc(map->count)))
            return mxc_err_nomem(err);
        for (size_t i = 0; i < map->count; i++)
            bytes[i] = (char)mxc_gguf_int_at(map, i);
        step.content = (struct mxc_str){bytes, map->count};
    }
    for (uint32_t id = 0; id < d->n_ids && !code; id++)
        code = mxc_tokdesc_set_score(d, id, (double)d->tokens[id].score, err);
    strip.strip_extra = step.strip_extra;
    d->add_space_prefix = step.add_prefix_space;
    if (!code && !(code = mxc_tokdesc_add_step(d, &d->normalizers, &step, err)) &&
        !(code = mxc_tokdesc_add_step(d, &d->decoders, &spaces, err)) &&
        !(code = mxc_tokdesc_add_step(d, &d->decoders, &fuse, err)))
        code = mxc_tokdesc_add_step(d, &d->decoders, &strip, err);
    mxc_mem_free(bytes);
    return code;
}

/* WordPiece for English in lower case. The tokens are spelled again when they are read. */
static enum mxc_code read_bert(struct mxc_tokdesc *d, struct mxc_err *err) {
    static const enum mxc_tok_step_kind kinds[] = {MXC_TOK_BERT_CLEAN, MXC_TOK_BERT_CJK,
                                                   MXC_TOK_NFD, MXC_TOK_STRIP_NONSPACING,
                                                   MXC_TOK_LOWERCASE};
    static const char *const patterns[] = {"\\s", "[\\p{P}!-/:-@\\[-`{-~]"};
    struct mxc_tok_step words = {.kind = MXC_TOK_WORDS, .content = MXC_STR("##"), .cleanup = true};
    enum mxc_code code = mxc_tokdesc_dup(d, MXC_STR("##"), &d->word_prefix, err);
    d->model = MXC_TOK_WORDPIECE;
    d->max_word_chars = 100;
    d->has_decoder = true;
    d->unk = 100;
    d->bos = 101;
    d->eos = 102;
    d->pad = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !code; i++) {
        struct mxc_tok_step step = {.kind = kinds[i]};
        code = mxc_tokdesc_add_step(d, &d->normalizers, &step, err);
    }
    for (int i = 0; i < 2 && !code; i++) {
        struct mxc_tok_step step = {.kind = MXC_TOK_SPLIT,
                                    .behavior = i ? MXC_TOK_ISOLATED : MXC_TOK_REMOVED,
                                    .is_regex = true,
                                    .pattern = mxc_str_of(patterns[i])};
        code = mxc_tokdesc_add_step(d, &d->pretokenizers, &step, err);
    }
    return code ? code : mxc_tokdesc_add_step(d, &d->decoders, &words, err);
}

static enum mxc_code read_id(const struct mxc_gguf *gguf, const char *key, size_t n_ids,
                             uint32_t *out, struct mxc_err *err) {
    int64_t id = *out == MXC_TOK_NO_ID ? -1 : (int64_t)*out;
    enum mxc_code code = mxc_gguf_get_int(gguf, key, -1, UINT32_MAX, &id, err);
    /* files carry placeholders such as 4294967295 for "none" */
    if (!code)
        *out = id < 0 || (uint64_t)id >= n_ids ? MXC_TOK_NO_ID : (uint32_t)id;
    return code;
}

static enum mxc_code read_ends(const struct mxc_gguf *gguf, struct mxc_tokdesc *d,
                               struct mxc_err *err) {
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    enum mxc_code code = MXC_OK;
    if (d->eos != MXC_TOK_NO_ID)
        code = mxc_tokdesc_add_id(d, &d->end_ids, d->eos, err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !code; i++) {
        uint32_t id = MXC_TOK_NO_ID;
        code = read_id(gguf, keys[i], d->n_ids, &id, err);
        if (!code && id != MXC_TOK_NO_ID && id != d->eos)
            code = mxc_tokdesc_add_id(d, &d->end_ids, id, err);
    }
    return code ? code : mxc_tokdesc_add_known_ends(d, err);
}

static enum mxc_code read_all(const struct mxc_gguf *gguf, struct mxc_tokdesc *d,
                              struct mxc_err *err) {
    struct mxc_str model = {NULL, 0};
    bool add_bos = false, add_eos = false;
    enum mxc_code code = mxc_gguf_get_string(gguf, "tokenizer.ggml.model", &model, err);
    if (code)
        return code;
    if (!model.ptr)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "the file has no tokenizer.ggml.model");
    bool spm = mxc_str_is(model, "llama"), gemma4 = mxc_str_is(model, "gemma4");
    bool t5 = mxc_str_is(model, "t5"), bert = mxc_str_is(model, "bert");
    if (!spm && !gemma4 && !t5 && !bert && !mxc_str_is(model, "gpt2"))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "tokenizer.ggml.model \"%.*s\" is not supported",
                           (int)(model.length < 60 ? model.length : 60), model.ptr);
    if ((code = read_tokens(gguf, bert, d, err)) || (code = read_added(gguf, spm || t5, d, err)))
        return code;
    code = spm      ? read_spm(gguf, d, err)
           : gemma4 ? read_gemma4(gguf, d, err)
           : t5     ? read_t5(gguf, d, &add_eos, err)
           : bert   ? read_bert(d, err)
                    : read_bpe(gguf, d, &add_bos, err);
    add_bos |= spm || gemma4 || bert;
    add_eos |= bert;
    if (code || (code = read_id(gguf, "tokenizer.ggml.bos_token_id", d->n_ids, &d->bos, err)) ||
        (code = read_id(gguf, "tokenizer.ggml.eos_token_id", d->n_ids, &d->eos, err)) ||
        (bert &&
         (code = read_id(gguf, "tokenizer.ggml.seperator_token_id", d->n_ids, &d->eos, err))) ||
        (code = read_id(gguf, "tokenizer.ggml.padding_token_id", d->n_ids, &d->pad, err)) ||
        (code = read_id(gguf, "tokenizer.ggml.unknown_token_id", d->n_ids, &d->unk, err)) ||
        (code = mxc_gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &add_bos, err)) ||
        (code = mxc_gguf_get_bool(gguf, "tokenizer.ggml.add_eos_token", &add_eos, err)))
        return code;
    if (mxc_str_is(model, "gpt2"))
        d->unk = MXC_TOK_NO_ID; /* byte-level: nothing is unknown, whatever the file names */
    if (add_bos && d->bos != MXC_TOK_NO_ID)
        code = mxc_tokdesc_add_id(d, &d->prefix, d->bos, err);
    if (!code && add_eos && d->eos != MXC_TOK_NO_ID)
        code = mxc_tokdesc_add_id(d, &d->suffix, d->eos, err);
    return code ? code : read_ends(gguf, d, err);
}

enum mxc_code mxc_gguf_tokenizer_load(const struct mxc_gguf *gguf, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) {
    struct mxc_tokdesc d;
    mxc_tokdesc_init(&d);
    enum mxc_code code = read_all(gguf, &d, err);
    if (code) {
        mxc_tokdesc_fini(&d);
        mxc_err_context(err, "%s", mxc_gguf_file(gguf)->path);
    } else {
        *desc = d;
    }
    return code;
}

/* Vocabularies with ranks. Tokens are spelled in GPT-2's map of bytes, so that they are text as
 * every other byte-level vocabulary's; ranks become scores, the lowest rank the best.
 * In: a file in memory. Out: the description, with the pattern and special tokens of the family.
 * Facts: Llama 3 has 256 special tokens after its ranks, Llama 4 2048, Qwen 208, Qwen 3.5 and later
 * 33; tekken has its special tokens (1000) before the ranks and leaves ranks out that do not fit
 * its vocabulary. */
#include "format/tiktoken.h"

#include "base/byte_chars.h"
#include "base/mem.h"
#include "format/base64.h"
#include "format/json_reader.h"
#include "format/split_patterns.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 4096, MAX_LINE_BYTES = 8192, ARENA_RESET_BYTES = 1 << 18 };

/* A run of special tokens: one spelling, or a format with a number from first on. */
struct specials {
    const char *spelling;
    int count, first; /* count 0: the spelling as it is */
};

struct family {
    const char *model_types; /* between and around them one space */
    size_t n_ranks;          /* of the published vocabulary */
    const char *pattern;
    bool nfc, add_bos;
    const char *bos, *eos, *pad;
    const struct specials *specials;
    int n_reserved; /* special tokens in all; the last kind of the list fills up to it */
};

static const struct specials llama3[] = {{"<|begin_of_text|>", 0, 0},
                                         {"<|end_of_text|>", 0, 0},
                                         {"<|reserved_special_token_%d|>", 2, 0},
                                         {"<|finetune_right_pad_id|>", 0, 0},
                                         {"<|step_id|>", 0, 0},
                                         {"<|start_header_id|>", 0, 0},
                                         {"<|end_header_id|>", 0, 0},
                                         {"<|eom_id|>", 0, 0},
                                         {"<|eot_id|>", 0, 0},
                                         {"<|python_tag|>", 0, 0},
                                         {"<|image|>", 0, 0},
                                         {"<|reserved_special_token_%d|>", 244, 2},
                                         {NULL, 0, 0}};
static const struct specials llama4[] = {
    {"<|begin_of_text|>", 0, 0},
    {"<|end_of_text|>", 0, 0},
    {"<|fim_prefix|>", 0, 0},
    {"<|fim_middle|>", 0, 0},
    {"<|fim_suffix|>", 0, 0},
    {"<|header_start|>", 0, 0},
    {"<|header_end|>", 0, 0},
    {"<|eom|>", 0, 0},
    {"<|eot|>", 0, 0},
    {"<|step|>", 0, 0},
    {"<|text_post_train_reserved_special_token_%d|>", 6, 0},
    {"<|python_start|>", 0, 0},
    {"<|python_end|>", 0, 0},
    {"<|finetune_right_pad|>", 0, 0},
    {"<|text_post_train_reserved_special_token_%d|>", 61, 8},
    {"<|image_start|>", 0, 0},
    {"<|image_end|>", 0, 0},
    {"<|vision_reserved_special_token_%d|>", 2, 0},
    {"<|tile_x_separator|>", 0, 0},
    {"<|tile_y_separator|>", 0, 0},
    {"<|vision_reserved_special_token_%d|>", 4, 2},
    {"<|image|>", 0, 0},
    {"<|vision_reserved_special_token_%d|>", 1, 6},
    {"<|patch|>", 0, 0},
    {"<|vision_reserved_special_token_%d|>", 1041, 7},
    {"<|reasoning_reserved_special_token_%d|>", 8, 0},
    {"<|reasoning_thinking_start|>", 0, 0},
    {"<|reasoning_thinking_end|>", 0, 0},
    {"<|reserved_special_token_%d|>", 2048, 0}, /* as many as are left */
    {NULL, 0, 0}};
static const struct specials qwen[] = {{"<|endoftext|>", 0, 0},
                                       {"<|im_start|>", 0, 0},
                                       {"<|im_end|>", 0, 0},
                                       {"<|extra_%d|>", 205, 0},
                                       {NULL, 0, 0}};
static const struct specials qwen35[] = {{"<|endoftext|>", 0, 0},
                                         {"<|im_start|>", 0, 0},
                                         {"<|im_end|>", 0, 0},
                                         {"<|object_ref_start|>", 0, 0},
                                         {"<|object_ref_end|>", 0, 0},
                                         {"<|box_start|>", 0, 0},
                                         {"<|box_end|>", 0, 0},
                                         {"<|quad_start|>", 0, 0},
                                         {"<|quad_end|>", 0, 0},
                                         {"<|vision_start|>", 0, 0},
                                         {"<|vision_end|>", 0, 0},
                                         {"<|vision_pad|>", 0, 0},
                                         {"<|image_pad|>", 0, 0},
                                         {"<|video_pad|>", 0, 0},
                                         {"<tool_call>", 0, 0},
                                         {"</tool_call>", 0, 0},
                                         {"<|fim_prefix|>", 0, 0},
                                         {"<|fim_middle|>", 0, 0},
                                         {"<|fim_suffix|>", 0, 0},
                                         {"<|fim_pad|>", 0, 0},
                                         {"<|repo_name|>", 0, 0},
                                         {"<|file_sep|>", 0, 0},
                                         {"<tool_response>", 0, 0},
                                         {"</tool_response>", 0, 0},
                                         {"<think>", 0, 0},
                                         {"</think>", 0, 0},
                                         {"<|audio_start|>", 0, 0},
                                         {"<|audio_end|>", 0, 0},
                                         {"<tts_pad>", 0, 0},
                                         {"<tts_text_bos>", 0, 0},
                                         {"<tts_text_eod>", 0, 0},
                                         {"<tts_text_bos_single>", 0, 0},
                                         {"<|audio_pad|>", 0, 0},
                                         {NULL, 0, 0}};
static const struct specials tekken[] = {{"<unk>", 0, 0},
                                         {"<s>", 0, 0},
                                         {"</s>", 0, 0},
                                         {"[INST]", 0, 0},
                                         {"[/INST]", 0, 0},
                                         {"[AVAILABLE_TOOLS]", 0, 0},
                                         {"[/AVAILABLE_TOOLS]", 0, 0},
                                         {"[TOOL_RESULTS]", 0, 0},
                                         {"[/TOOL_RESULTS]", 0, 0},
                                         {"[TOOL_CALLS]", 0, 0},
                                         {"[IMG]", 0, 0},
                                         {"<pad>", 0, 0},
                                         {"[IMG_BREAK]", 0, 0},
                                         {"[IMG_END]", 0, 0},
                                         {"[PREFIX]", 0, 0},
                                         {"[MIDDLE]", 0, 0},
                                         {"[SUFFIX]", 0, 0},
                                         {"[SYSTEM_PROMPT]", 0, 0},
                                         {"[/SYSTEM_PROMPT]", 0, 0},
                                         {"[TOOL_CONTENT]", 0, 0},
                                         {NULL, 0, 0}};

static const struct family families[] = {
    {" llama mllama ", 128000, MXC_SPLIT_CL100K("\\p{N}{1,3}"), false, true, "<|begin_of_text|>",
     "<|end_of_text|>", "<|finetune_right_pad_id|>", llama3, 256},
    {" llama4 llama4_text ", 200000, MXC_SPLIT_O200K(MXC_SPLIT_CONTRACTIONS "?", "\\p{N}{1,3}"),
     false, true, "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad|>", llama4, 2048},
    {" qwen qwen2 qwen3 ", 151643, MXC_SPLIT_CL100K("\\p{N}"), true, false, NULL, "<|endoftext|>",
     NULL, qwen, 208},
    {" qwen3_5 qwen3_5_text ", 248044, MXC_SPLIT_QWEN35, true, false, NULL, "<|endoftext|>", NULL,
     qwen35, 33},
};

static const struct family *find_family(const char *model_type, size_t n_ranks) {
    size_t n = sizeof families / sizeof *families;
    for (size_t i = 0; i < n; i++)
        if (families[i].n_ranks == n_ranks)
            return &families[i];
    size_t length = model_type ? strlen(model_type) : 0;
    for (size_t i = 0; i < n && length; i++)
        for (const char *p = families[i].model_types; (p = strchr(p, ' ')) && p[1]; p++)
            if (!strncmp(p + 1, model_type, length) && p[1 + length] == ' ')
                return &families[i];
    return NULL;
}

/* A token of raw bytes with its rank. Two ranks of one token, or two tokens of one rank, are
 * damage; the first shows when all are indexed. */
static enum mxc_code add_ranked(struct mxc_tokdesc *d, uint64_t id, uint64_t rank,
                                struct mxc_str base64, struct mxc_err *err) {
    char bytes[MAX_TOKEN_BYTES / 4 * 3], spelling[MAX_TOKEN_BYTES / 4 * 3 * 2];
    size_t n, at = 0;
    if (base64.length > MAX_TOKEN_BYTES)
        return mxc_err_set(err, MXC_E_FORMAT, "the token of rank %llu is too long",
                           (unsigned long long)rank);
    if (!mxc_base64_into(base64, bytes, &n) || !n)
        return mxc_err_set(err, MXC_E_FORMAT, "the token of rank %llu is not base64",
                           (unsigned long long)rank);
    if (id < d->n_ids && d->tokens[id].type)
        return mxc_err_set(err, MXC_E_FORMAT, "rank %llu stands twice", (unsigned long long)rank);
    for (size_t i = 0; i < n; i++)
        at += mxc_utf8_encode(mxc_byte_to_cp((uint8_t)bytes[i]), spelling + at);
    return mxc_tokdesc_add_token(d, id, (struct mxc_str){spelling, at}, -(float)rank,
                                 MXC_TOKEN_NORMAL, err);
}

static enum mxc_code index_ranked(struct mxc_tokdesc *d, struct mxc_err *err) {
    enum mxc_code code = mxc_tokdesc_index(d, err);
    for (uint32_t id = 0; id < d->n_ids && !code; id++)
        if (d->tokens[id].type && mxc_tokdesc_find(d, mxc_tokdesc_bytes(d, id)) != id)
            return mxc_err_set(err, MXC_E_FORMAT, "token %u stands twice", id);
    return code;
}

static enum mxc_code add_special(struct mxc_tokdesc *d, uint64_t id, struct mxc_str spelling,
                                 bool special, struct mxc_err *err) {
    struct mxc_tok_added a = {.id = (uint32_t)id, .special = special};
    enum mxc_code code = mxc_tokdesc_add_token(d, id, spelling, 0,
                                               special ? MXC_TOKEN_CONTROL : MXC_TOKEN_USER, err);
    return code ? code : mxc_tokdesc_add_added(d, &a, err);
}

/* At most n special tokens from first_id on, as a family lists them; *used: how many. */
static enum mxc_code add_specials(struct mxc_tokdesc *d, const struct specials *list,
                                  uint64_t first_id, int n, int *used, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    *used = 0;
    for (; list->spelling && !code; list++) {
        for (int k = 0; k < (list->count ? list->count : 1) && *used < n && !code; k++) {
            char text[64];
            if (list->count) /* the formats are those above */
                (void)snprintf(text, sizeof text, "%.*s%d|>", (int)strlen(list->spelling) - 4,
                               list->spelling, list->first + k);
            else
                (void)snprintf(text, sizeof text, "%s", list->spelling);
            code = add_special(d, first_id + (uint64_t)*used, mxc_str_of(text), true, err);
            ++*used;
        }
    }
    return code;
}

static enum mxc_code add_steps(struct mxc_tokdesc *d, struct mxc_str pattern, bool nfc,
                               struct mxc_err *err) {
    struct mxc_tok_step form = {.kind = MXC_TOK_NFC}, bytes = {.kind = MXC_TOK_BYTE_LEVEL};
    struct mxc_tok_step split = {
        .kind = MXC_TOK_SPLIT, .behavior = MXC_TOK_ISOLATED, .is_regex = true, .pattern = pattern};
    enum mxc_code code = nfc ? mxc_tokdesc_add_step(d, &d->normalizers, &form, err) : MXC_OK;
    d->model = MXC_TOK_TIKTOKEN;
    d->ignore_merges = d->has_decoder = d->added_literal = true;
    if (!code)
        code = mxc_tokdesc_add_step(d, &d->pretokenizers, &split, err);
    return code ? code : mxc_tokdesc_add_step(d, &d->decoders, &bytes, err);
}

static enum mxc_code finish(struct mxc_tokdesc *d, const struct family *f, bool has_specials,
                            struct mxc_err *err) {
    int used = 0;
    enum mxc_code code = index_ranked(d, err);
    if (!code && !has_specials)
        code = add_specials(d, f->specials, d->n_ids, f->n_reserved, &used, err);
    if (!code)
        code = add_steps(d, mxc_str_of(f->pattern), f->nfc, err);
    if (code)
        return code;
    d->bos = f->bos ? mxc_tokdesc_find(d, mxc_str_of(f->bos)) : MXC_TOK_NO_ID;
    d->eos = mxc_tokdesc_find(d, mxc_str_of(f->eos));
    d->pad = f->pad ? mxc_tokdesc_find(d, mxc_str_of(f->pad)) : MXC_TOK_NO_ID;
    return f->add_bos && d->bos != MXC_TOK_NO_ID ? mxc_tokdesc_add_id(d, &d->prefix, d->bos, err)
                                                 : MXC_OK;
}

static enum mxc_code read_line(struct mxc_tokdesc *d, struct mxc_str line, struct mxc_err *err) {
    char digits[24];
    int64_t rank;
    const char *space = memchr(line.ptr, ' ', line.length);
    size_t n = space ? (size_t)(line.ptr + line.length - space) - 1 : 0;
    if (!n || n >= sizeof digits)
        return mxc_err_set(err, MXC_E_FORMAT, "not a token and its rank");
    memcpy(digits, space + 1, n);
    digits[n] = 0;
    if (!mxc_parse_i64(digits, &rank) || rank < 0)
        return mxc_err_set(err, MXC_E_FORMAT, "\"%s\" is no rank", digits);
    return add_ranked(d, (uint64_t)rank, (uint64_t)rank,
                      (struct mxc_str){line.ptr, (size_t)(space - line.ptr)}, err);
}

static enum mxc_code read_lines(struct mxc_tokdesc *d, const char *text, size_t size,
                                struct mxc_err *err) {
    size_t number = 1;
    for (size_t i = 0; i < size; number++) {
        const char *end = memchr(text + i, '\n', size - i);
        size_t n = end ? (size_t)(end - text) - i : size - i, next = i + n + 1;
        if (n && text[i + n - 1] == '\r')
            n--;
        enum mxc_code code = MXC_OK;
        if (n > MAX_LINE_BYTES)
            code = mxc_err_set(err, MXC_E_FORMAT, "the line is too long");
        else if (n)
            code = read_line(d, (struct mxc_str){text + i, n}, err);
        if (code) {
            mxc_err_context(err, "line %zu", number);
            return code;
        }
        i = next;
    }
    if (!d->n_ids)
        return mxc_err_set(err, MXC_E_FORMAT, "the vocabulary is empty");
    return MXC_OK;
}

enum mxc_code mxc_tiktoken_parse(const char *text, size_t size, const char *name,
                                 struct mxc_tiktoken_hints hints, struct mxc_tokdesc *desc,
                                 struct mxc_err *err) {
    struct mxc_tokdesc d;
    mxc_tokdesc_init(&d);
    enum mxc_code code = read_lines(&d, text, size, err);
    const struct family *f = code ? NULL : find_family(hints.model_type, d.n_ids);
    if (!code && !f)
        code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "the split pattern of this vocabulary (%zu ranks, model_type %s) is not "
                           "known",
                           d.n_ids, hints.model_type ? hints.model_type : "not given");
    if (!code)
        code = finish(&d, f, hints.has_specials, err);
    if (code) {
        mxc_tokdesc_fini(&d);
        mxc_err_context(err, "%s", name);
    } else {
        *desc = d;
    }
    return code;
}

/* tekken.json */

struct tekken {
    struct mxc_jr jr;
    struct mxc_tokdesc *desc;
    struct mxc_str vocab, specials, pattern; /* the first two: texts */
    uint64_t size, n_specials;
};

static enum mxc_code read_config(struct tekken *t) {
    struct mxc_jr *jr = &t->jr;
    struct mxc_str key;
    bool more;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        if (mxc_str_is(key, "pattern")) {
            if (!(code = mxc_jr_string(jr, &t->pattern)))
                code = mxc_tokdesc_dup(t->desc, t->pattern, &t->pattern, jr->err);
        } else if (mxc_str_is(key, "default_vocab_size")) {
            code = mxc_jr_uint(jr, &t->size);
        } else if (mxc_str_is(key, "default_num_special_tokens")) {
            code = mxc_jr_uint(jr, &t->n_specials);
        } else {
            code = mxc_jr_skip(jr, NULL);
        }
    }
    return code;
}

/* {"rank", "token_bytes" or "token_str", "is_control"} */
static enum mxc_code read_entry(struct tekken *t, bool special) {
    struct mxc_jr *jr = &t->jr;
    struct mxc_str key, bytes = {0};
    uint64_t rank = UINT64_MAX;
    bool more, control = true;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        if (mxc_str_is(key, "rank"))
            code = mxc_jr_uint(jr, &rank);
        else if (mxc_str_is(key, special ? "token_str" : "token_bytes"))
            code = mxc_jr_string(jr, &bytes);
        else if (special && mxc_str_is(key, "is_control"))
            code = mxc_jr_bool(jr, &control);
        else
            code = mxc_jr_skip(jr, NULL);
    }
    if (code)
        return code;
    if (rank == UINT64_MAX || !bytes.length)
        return mxc_jr_fail(jr, "a token without rank or text");
    if (special && rank >= t->n_specials)
        return mxc_jr_fail(jr, "a special token's rank is too large");
    if (special)
        return add_special(t->desc, rank, bytes, control, jr->err);
    if (rank >= t->size - t->n_specials)
        return MXC_OK; /* the vocabulary ends before it */
    return add_ranked(t->desc, rank + t->n_specials, rank, bytes, jr->err);
}

static enum mxc_code read_entries(struct tekken *t, struct mxc_str text, bool special) {
    struct mxc_jr *jr = &t->jr;
    bool more;
    if (!text.ptr)
        return MXC_OK;
    jr->p = text.ptr;
    if (mxc_jr_peek(jr) == 'n')
        return MXC_OK; /* null */
    enum mxc_code code = mxc_jr_open(jr, '[');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_item(jr, n, &more)) || !more)
            break;
        code = read_entry(t, special);
        if (jr->arena.used_bytes > ARENA_RESET_BYTES)
            mxc_arena_fini(&jr->arena);
    }
    return code;
}

/* Those that the file does not list: Mistral's own, then numbered fillers. */
static enum mxc_code fill_specials(struct tekken *t, bool listed) {
    struct mxc_tokdesc *d = t->desc;
    struct mxc_err *err = t->jr.err;
    int used;
    enum mxc_code code = MXC_OK;
    if (!listed)
        code = add_specials(d, tekken, 0, (int)t->n_specials, &used, err);
    for (uint64_t id = 0; id < t->n_specials && !code; id++) {
        char text[32];
        if (d->tokens[id].type)
            continue;
        (void)snprintf(text, sizeof text, "<SPECIAL_%d>", (int)id);
        code = add_special(d, id, mxc_str_of(text), true, err);
    }
    return code;
}

static enum mxc_code read_tekken(struct tekken *t) {
    struct mxc_jr *jr = &t->jr;
    struct mxc_tokdesc *d = t->desc;
    struct mxc_str key;
    bool more;
    enum mxc_code code = mxc_jr_open(jr, '{');
    for (size_t n = 0; !code; n++) {
        if ((code = mxc_jr_key(jr, n, &more, &key)) || !more)
            break;
        if (mxc_str_is(key, "config"))
            code = read_config(t);
        else
            code = mxc_jr_skip(jr, mxc_str_is(key, "vocab")            ? &t->vocab
                                   : mxc_str_is(key, "special_tokens") ? &t->specials
                                                                       : NULL);
    }
    if (code)
        return code;
    if (!t->vocab.ptr || !t->pattern.length)
        return mxc_jr_fail(jr, "\"vocab\" or \"config.pattern\" is missing");
    if (!t->n_specials || t->size <= t->n_specials || t->size > MXC_TOK_MAX_ID)
        return mxc_jr_fail(jr, "config: the sizes of the vocabulary do not fit");
    if ((code = read_entries(t, t->vocab, false)))
        return code;
    if (!d->n_ids)
        return mxc_jr_fail(jr, "the vocabulary is empty");
    if ((code = index_ranked(d, jr->err)) || (code = read_entries(t, t->specials, true)) ||
        (code = fill_specials(t, t->specials.ptr && t->specials.length > 4)))
        return code;
    if ((code = add_steps(d, t->pattern, false, jr->err)))
        return code;
    d->bos = mxc_tokdesc_find(d, MXC_STR("<s>"));
    d->eos = mxc_tokdesc_find(d, MXC_STR("</s>"));
    d->pad = mxc_tokdesc_find(d, MXC_STR("<pad>"));
    return d->bos == MXC_TOK_NO_ID ? MXC_OK : mxc_tokdesc_add_id(d, &d->prefix, d->bos, jr->err);
}

enum mxc_code mxc_tekken_parse(const char *text, size_t size, const char *name,
                               struct mxc_tokdesc *desc, struct mxc_err *err) {
    struct mxc_tokdesc d;
    struct tekken t = {.desc = &d, .size = 131072, .n_specials = 1000};
    mxc_tokdesc_init(&d);
    mxc_jr_init(&t.jr, text, size, name, err);
    enum mxc_code code = read_tekken(&t);
    mxc_jr_fini(&t.jr);
    if (code)
        mxc_tokdesc_fini(&d);
    else
        *desc = d;
    return code;
}

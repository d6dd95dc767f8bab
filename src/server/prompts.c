/* From the JSON of a request to token ids: text, ids, lists, and messages. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "gen/budget.h"
#include "gen/prompt.h"
#include "server/api.h"
#include "server/fields.h"

#include <stdio.h>
#include <string.h>

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

void mxc_prompts_fini(struct mxc_prompts *prompts) {
    for (int i = 0; i < prompts->n; i++) {
        mxc_mem_free((int32_t *)(uintptr_t)prompts->items[i].ids);
        mxc_pictures_release(prompts->items[i].pictures);
        if (prompts->echoes)
            mxc_mem_free(prompts->echoes[i]);
    }
    mxc_mem_free(prompts->items);
    mxc_mem_free(prompts->echoes);
    *prompts = (struct mxc_prompts){NULL, 0, NULL};
}

static enum mxc_code make_room(int n, bool echo, struct mxc_prompts *out, struct mxc_fault *fault) {
    out->items = mxc_mem_zalloc((size_t)n, sizeof *out->items);
    if (echo)
        out->echoes = mxc_mem_zalloc((size_t)n, sizeof *out->echoes);
    if (!out->items || (echo && !out->echoes)) {
        mxc_mem_free(out->items);
        mxc_mem_free(out->echoes);
        *out = (struct mxc_prompts){NULL, 0, NULL};
        return nomem(fault);
    }
    out->n = n;
    return MXC_OK;
}

enum mxc_code mxc_prompts_check_bytes(const struct mxc_params *params, size_t bytes,
                                      const char *param, struct mxc_fault *fault) {
    size_t most = (size_t)params->info.context * (size_t)params->info.max_token_bytes;
    if (bytes <= most)
        return MXC_OK;
    return mxc_fault_set(fault, MXC_E_CONTEXT, param,
                         "%s: %zu bytes of text; a context of %d tokens holds %zu at most", param,
                         bytes, params->info.context, most);
}

/* Bytes of text in messages: contents, and text parts of them. */
static size_t text_bytes(const json_t *messages) {
    size_t i, k, sum = 0;
    const json_t *m, *part;
    json_array_foreach(messages, i, m) {
        const json_t *content = json_object_get(m, "content");
        sum += json_string_length(content);
        if (!json_is_array(content))
            continue;
        json_array_foreach(content, k, part) {
            sum += json_string_length(json_object_get(part, "text"));
        }
    }
    return sum;
}

/* Moves ids (below 2^22, so both types read the same) into a prompt. */
static enum mxc_code set_ids(struct mxc_job_prompt *to, struct mxc_ids *ids,
                             struct mxc_fault *fault) {
    if (!ids->count)
        return mxc_fault_set(fault, MXC_E_ARG, "prompt", "prompt: it has no tokens");
    if (ids->count > INT32_MAX)
        return mxc_fault_set(fault, MXC_E_LIMIT, "prompt", "prompt: too many tokens");
    to->ids = (const int32_t *)(const void *)ids->items;
    to->n_ids = (int32_t)ids->count;
    *ids = (struct mxc_ids){0};
    return MXC_OK;
}

static enum mxc_code add_text(const struct mxc_params *params, const json_t *text, bool special,
                              struct mxc_ids *ids, struct mxc_fault *fault) {
    struct mxc_err err;
    if (mxc_prompts_check_bytes(params, json_string_length(text), "prompt", fault))
        return MXC_E_CONTEXT;
    struct mxc_encode_options options = {.add_special = special, .parse_special = true};
    enum mxc_code code = mxc_chat_text(params->chat, json_string_value(text),
                                       json_string_length(text), options, ids, &err);
    return code ? mxc_fault_set(fault, code, "prompt", "prompt: %s", err.message) : MXC_OK;
}

static enum mxc_code add_id(const json_t *id, int32_t vocab, size_t i, struct mxc_ids *ids,
                            struct mxc_fault *fault) {
    json_int_t n = json_integer_value(id);
    if (n < 0 || n >= vocab)
        return mxc_fault_set(fault, MXC_E_ARG, "prompt",
                             "prompt[%zu]: token %lld is not in the vocabulary of %d", i,
                             (long long)n, vocab);
    return mxc_ids_push(ids, (uint32_t)n) ? MXC_OK : nomem(fault);
}

/* One prompt: text, a list of ids, or a list of ids and text. */
static enum mxc_code read_one(const json_t *value, const struct mxc_params *params,
                              struct mxc_job_prompt *to, struct mxc_fault *fault) {
    struct mxc_ids ids = {0};
    enum mxc_code code = MXC_OK;
    size_t i;
    const json_t *item;
    if (json_is_string(value)) {
        code = add_text(params, value, true, &ids, fault);
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, item) {
            if (json_is_integer(item))
                code = add_id(item, params->info.vocab, i, &ids, fault);
            else if (json_is_string(item))
                code = add_text(params, item, i == 0, &ids, fault);
            else
                code = mxc_fault_set(fault, MXC_E_ARG, "prompt",
                                     "prompt[%zu]: neither text nor a token id", i);
            if (code)
                break;
        }
    } else {
        code = mxc_field_wrong(fault, "prompt", "text, or a list of token ids", value);
    }
    if (!code)
        code = set_ids(to, &ids, fault);
    mxc_ids_fini(&ids);
    return code;
}

static enum mxc_code text_of(const struct mxc_chat *chat, const struct mxc_job_prompt *prompt,
                             char **out, struct mxc_fault *fault) {
    struct mxc_buf text;
    struct mxc_err err;
    mxc_buf_init(&text, 1 << 30);
    enum mxc_code code =
        mxc_tokenizer_decode(chat->tokenizer, (const uint32_t *)(const void *)prompt->ids,
                             (size_t)prompt->n_ids, true, &text, &err);
    if (!code && !(*out = mxc_buf_take(&text)))
        code = mxc_err_nomem(&err);
    mxc_buf_fini(&text);
    return code ? mxc_fault_set(fault, code, "echo", "echo: %s", err.message) : MXC_OK;
}

/* Whether the list holds several prompts, and not one prompt's parts. */
static bool is_batch(const json_t *value, bool mixed) {
    if (!json_is_array(value) || !json_array_size(value))
        return false;
    size_t i, n_ids = 0, n_texts = 0;
    const json_t *item;
    json_array_foreach(value, i, item) {
        n_ids += json_is_integer(item);
        n_texts += json_is_string(item);
    }
    if (n_ids == json_array_size(value))
        return false;
    return !(mixed && n_ids && n_texts && n_ids + n_texts == json_array_size(value));
}

enum mxc_code mxc_prompts_read(const json_t *json, const struct mxc_params *params, bool echo,
                               bool mixed, struct mxc_prompts *out, struct mxc_fault *fault) {
    const json_t *value = mxc_field(json, "prompt");
    struct mxc_prompts made = {NULL, 0, NULL};
    if (!value)
        return mxc_fault_set(fault, MXC_E_ARG, "prompt", "prompt: it is missing");
    bool batch = is_batch(value, mixed);
    size_t n = batch ? json_array_size(value) : 1;
    if (n * (size_t)params->n > MXC_MAX_PROMPTS)
        return mxc_fault_set(fault, MXC_E_ARG, "prompt",
                             "prompt: %zu prompts with n %d; the limit is %d answers", n, params->n,
                             MXC_MAX_PROMPTS);
    enum mxc_code code = make_room((int)n, echo, &made, fault);
    for (size_t i = 0; i < n && !code; i++) {
        code = read_one(batch ? json_array_get(value, i) : value, params, &made.items[i], fault);
        if (!code && echo)
            code = text_of(params->chat, &made.items[i], &made.echoes[i], fault);
    }
    if (code)
        mxc_prompts_fini(&made);
    else
        *out = made;
    return code;
}

enum mxc_code mxc_prompts_one(struct mxc_ids *ids, bool inside, struct mxc_prompts *out,
                              struct mxc_fault *fault) {
    struct mxc_prompts made = {NULL, 0, NULL};
    enum mxc_code code = make_room(1, false, &made, fault);
    if (!code)
        code = set_ids(&made.items[0], ids, fault);
    if (code) {
        mxc_prompts_fini(&made);
        return code;
    }
    made.items[0].inside = inside;
    *out = made;
    return MXC_OK;
}

/* ---- messages */

/* What gen/prompt.h leaves to its caller: entries are objects, and there is some content. */
static enum mxc_code check_messages(const json_t *messages, struct mxc_fault *fault) {
    size_t i;
    const json_t *m;
    char name[48];
    if (!messages)
        return mxc_fault_set(fault, MXC_E_ARG, "messages", "messages: it is missing");
    if (!json_is_array(messages))
        return mxc_field_wrong(fault, "messages", "a list", messages);
    if (!json_array_size(messages))
        return mxc_fault_set(fault, MXC_E_ARG, "messages", "messages: the list is empty");
    json_array_foreach(messages, i, m) {
        (void)snprintf(name, sizeof name, "messages[%zu]", i);
        if (!json_is_object(m))
            return mxc_field_wrong(fault, name, "an object", m);
        const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
        bool may_lack =
            role && json_is_string(role) && !strcmp(json_string_value(role), "assistant");
        (void)snprintf(name, sizeof name, "messages[%zu].role", i);
        if (!json_is_string(role))
            return role ? mxc_field_wrong(fault, name, "a string", role)
                        : mxc_fault_set(fault, MXC_E_ARG, name, "%s: it is missing", name);
        (void)snprintf(name, sizeof name, "messages[%zu].content", i);
        if ((!content || json_is_null(content)) && !may_lack)
            return mxc_fault_set(fault, MXC_E_ARG, name, "%s: it is missing", name);
        if (content && !json_is_null(content) && !json_is_string(content) &&
            !json_is_array(content))
            return mxc_field_wrong(fault, name, "text or a list of parts", content);
    }
    return MXC_OK;
}

/* Whether the last message is the assistant's, with text and without calls. */
static bool ends_with_answer(const json_t *messages) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    if (!role || strcmp(role, "assistant") != 0 ||
        json_array_size(json_object_get(last, "tool_calls")))
        return false;
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    const char *text = json_string_value(content);
    return text && text[strspn(text, " \t\r\n")];
}

/* Effort, budget and switches of thinking, and the template's variables; the client's own win. */
static enum mxc_code read_thinking(const json_t *json, const struct mxc_chat *chat,
                                   struct mxc_thinking *out, struct mxc_fault *fault) {
    struct mxc_thinking_request request = {.effort = json_object_get(json, "reasoning_effort"),
                                           .thinking = json_object_get(json, "thinking"),
                                           .enable = json_object_get(json, "enable_thinking"),
                                           .kwargs = json_object_get(json, "chat_template_kwargs"),
                                           .budget = -1};
    struct mxc_err err;
    enum mxc_code code =
        mxc_field_int(json, "thinking_budget", -1, INT32_MAX, &request.budget, fault);
    if (code)
        return code;
    code = mxc_thinking_read(chat, &request, out, &err);
    return code ? mxc_fault_from(fault, &err, "reasoning_effort") : MXC_OK;
}

static enum mxc_code read_format(const struct mxc_exchange *x, const json_t *json, bool *no_split,
                                 struct mxc_fault *fault) {
    struct mxc_str format = {NULL, 0};
    enum mxc_code code = mxc_field_text(json, "reasoning_format", &format, fault);
    *no_split = x->server->options.reasoning_inline;
    if (code || !format.ptr)
        return code;
    *no_split = mxc_str_is(format, "none");
    if (!*no_split && !mxc_str_is(format, "auto") && !mxc_str_is(format, "deepseek"))
        return mxc_fault_set(fault, MXC_E_ARG, "reasoning_format",
                             "reasoning_format: not auto, deepseek or none");
    return MXC_OK;
}

enum mxc_code mxc_chat_input_read(const struct mxc_exchange *x, const json_t *json,
                                  const struct mxc_chat *chat,
                                  const struct mxc_constraint *constraint,
                                  struct mxc_chat_input *out, struct mxc_fault *fault) {
    struct mxc_chat_input in = {.messages = mxc_field(json, "messages")};
    struct mxc_thinking thinking;
    json_t *tools = mxc_constraint_tools(constraint);
    bool generation = true, go_on = false;
    enum mxc_code code = check_messages(in.messages, fault);
    if (code)
        return code;
    if ((code = read_thinking(json, chat, &thinking, fault)))
        return code;
    in.variables = thinking.variables;
    in.budget = thinking.budget;
    if (tools && json_object_set(in.variables, "tools", tools))
        code = nomem(fault);
    if (!code)
        code = read_format(x, json, &in.no_split, fault);
    if (!code)
        code = mxc_field_bool(json, "add_generation_prompt", &generation, fault);
    bool asked = mxc_field(json, "add_generation_prompt") != NULL;
    go_on = !(asked && generation) && ends_with_answer(in.messages);
    if (!code)
        code = mxc_field_bool(json, "continue_final_message", &go_on, fault);
    in.no_generation_prompt = !generation;
    in.continue_final = go_on;
    if (code)
        json_decref(in.variables);
    else
        *out = in;
    return code;
}

enum mxc_code mxc_chat_input_build(const struct mxc_params *params,
                                   const struct mxc_chat_input *input, struct mxc_prompts *out,
                                   struct mxc_fault *fault) {
    if (mxc_prompts_check_bytes(params, text_bytes(input->messages), "messages", fault))
        return MXC_E_CONTEXT;
    const struct mxc_prompt_input build = {.messages = input->messages,
                                           .variables = input->variables,
                                           .no_generation_prompt = input->no_generation_prompt,
                                           .continue_final = input->continue_final,
                                           .vision = params->vision,
                                           .pictures = &params->pictures};
    struct mxc_prompt_ids built;
    struct mxc_err err;
    enum mxc_code code = mxc_prompt_build(params->chat, &build, &built, &err);
    if (code)
        return mxc_fault_from(fault, &err, "messages");
    code = mxc_prompts_one(&built.ids, built.inside, out, fault);
    if (code)
        mxc_pictures_release(built.pictures);
    else
        out->items[0].pictures = built.pictures;
    mxc_ids_fini(&built.ids);
    return code;
}

/* Messages to ids. What a template wants (content as text or as parts, arguments as an object or as
 * text) is found out by rendering a needle, once per template, when a request first depends on it.
 */
#define _GNU_SOURCE
#include "gen/prompt.h"

#include "base/mem.h"
#include "gen/marks.h"
#include "gen/tools/tools.h"

#include <string.h>

enum { NO = 1, YES = 2 };
static const char needle[] = "mXcNeEdLe";

static bool uses_tools(const struct mxc_chat *chat, const json_t *variables) {
    return chat->tool_text && json_array_size(json_object_get(variables, "tools"));
}

static struct mxc_chat_habits *habits_for(struct mxc_chat *chat, const json_t *variables) {
    return uses_tools(chat, variables) ? &chat->tool_habits : &chat->habits;
}

/* Renders one user message (and a call by the assistant, when there are arguments) with the content
 * given: YES when the needle shows and what is unwanted does not, NO, or 0 without memory. Takes
 * both values in. */
static int shows_needle(const struct mxc_chat *chat, const json_t *variables, json_t *content,
                        json_t *arguments, const char *unwanted) {
    struct mxc_jinja_result result;
    int verdict = 0;
    json_t *call =
        arguments ? json_pack("{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]}", "role", "assistant", "content",
                              json_string(""), "tool_calls", "type", "function", "id", "call00001",
                              "function", "name", "f", "arguments", arguments)
                  : NULL;
    json_t *vars = json_object();
    json_t *messages = json_pack("[{s:s,s:o}]", "role", "user", "content", content);
    bool ok = vars && messages && content && (!arguments || call) &&
              (!call || !json_array_append(messages, call)) &&
              (!variables || !json_object_update(vars, (json_t *)(uintptr_t)variables)) &&
              !json_object_set(vars, "messages", messages);
    if (ok) {
        enum mxc_code code = mxc_chat_render(chat, vars, NULL, &result, NULL);
        if (!code) {
            bool yes = result.text && strstr(result.text, needle) &&
                       (!unwanted || !strstr(result.text, unwanted));
            verdict = yes ? YES : NO;
            mxc_jinja_result_fini(&result);
        } else if (code != MXC_E_NOMEM) {
            verdict = NO;
        }
    }
    json_decref(call);
    json_decref(messages);
    json_decref(vars);
    return verdict;
}

static json_t *text_parts(const char *text, size_t length) {
    return json_pack("[{s:s,s:s%}]", "type", "text", "text", text, length);
}

/* The three below: YES, NO, or 0 without memory. */
static int takes_text(struct mxc_chat *chat, const json_t *variables) {
    struct mxc_chat_habits *h = habits_for(chat, variables);
    int known = atomic_load(&h->text);
    if (!known) {
        known = shows_needle(chat, variables, json_string(needle), NULL, NULL);
        atomic_store(&h->text, known);
    }
    return known;
}

/* A template that knows only text prints the list itself. */
static int takes_parts(struct mxc_chat *chat, const json_t *variables) {
    struct mxc_chat_habits *h = habits_for(chat, variables);
    int known = atomic_load(&h->parts);
    if (!known) {
        json_t *parts = text_parts(needle, strlen(needle));
        known = shows_needle(chat, variables, parts, NULL, "type");
        atomic_store(&h->parts, known);
    }
    return known;
}

static int takes_object_arguments(struct mxc_chat *chat, const json_t *variables) {
    struct mxc_chat_habits *h = habits_for(chat, variables);
    int known = atomic_load(&h->object_arguments);
    if (!known) {
        json_t *object = json_pack("{s:s}", needle, needle);
        if (!object)
            return 0;
        /* in quotes of this kind it is the object's printed form, which is not JSON */
        known = shows_needle(chat, variables, json_string("x"), object, "'mXcNeEdLe'");
        if (known == NO) {
            json_t *text = json_string("{\"a\": \"mXcNeEdLe\"}");
            if (!text)
                return 0;
            int shows_text = shows_needle(chat, variables, json_string("x"), text, NULL);
            known = shows_text == NO ? YES : shows_text ? NO : 0; /* neither: as most want it */
        }
        atomic_store(&h->object_arguments, known);
    }
    return known;
}

/* The pictures of a prompt that is being built; NULL members: it may have none. */
struct sights {
    struct mxc_pictures *pictures;
    const struct mxc_marks *marks;
};

/* Text parts joined by newlines, and the names of marks, as a string; NULL: out of memory. */
static json_t *join_parts(const json_t *parts, const struct sights *sights) {
    struct mxc_buf text;
    size_t i;
    const json_t *part;
    bool after_picture = true;
    mxc_buf_init(&text, SIZE_MAX / 2);
    json_array_foreach(parts, i, part) {
        const json_t *value = json_object_get(part, "text");
        bool picture = mxc_picture_is_part(part);
        if (!after_picture)
            (void)mxc_buf_putc(&text, '\n');
        if (picture)
            (void)mxc_buf_puts(&text, sights->marks->name);
        else
            (void)mxc_buf_append(&text, json_string_value(value), json_string_length(value));
        after_picture = picture;
    }
    json_t *joined = text.failed ? NULL : json_stringn(mxc_buf_text(&text), text.length);
    mxc_buf_fini(&text);
    return joined;
}

static bool has_picture(const json_t *parts) {
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        if (mxc_picture_is_part(part))
            return true;
    }
    return false;
}

/* A part that is a picture: into the set, and as templates spell it. */
static enum mxc_code take_picture(const struct sights *sights, json_t *parts, size_t index,
                                  size_t message, struct mxc_err *err) {
    if (!sights->pictures)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "messages[%zu].content[%zu]: the model takes no images", message, index);
    enum mxc_code code = mxc_pictures_add_part(sights->pictures, json_array_get(parts, index), err);
    if (code)
        return code == MXC_E_NOMEM
                   ? code
                   : mxc_err_context(err, "messages[%zu].content[%zu]", message, index);
    return json_array_set_new(parts, index, json_pack("{s:s}", "type", "image"))
               ? mxc_err_nomem(err)
               : MXC_OK;
}

static enum mxc_code check_parts(const struct sights *sights, json_t *parts, size_t message,
                                 struct mxc_err *err) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type)
            return mxc_err_set(err, MXC_E_ARG, "messages[%zu].content[%zu] has no type", message,
                               i);
        if (mxc_picture_is_part(part)) {
            enum mxc_code code = take_picture(sights, parts, i, message, err);
            if (code)
                return code;
            continue;
        }
        if (!strncmp(type, "video", 5) || !strcmp(type, "input_video"))
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "messages[%zu].content[%zu]: video is not supported; send frames "
                               "of it as images",
                               message, i);
        if (strcmp(type, "text") != 0)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "messages[%zu].content[%zu]: parts of type \"%.40s\" are not "
                               "supported",
                               message, i, type);
        if (!json_is_string(json_object_get(part, "text")))
            return mxc_err_set(err, MXC_E_ARG, "messages[%zu].content[%zu].text is not text",
                               message, i);
    }
    return MXC_OK;
}

/* Brings a message's content into the form that the template takes. */
static enum mxc_code set_content(struct mxc_chat *chat, const json_t *variables,
                                 const struct sights *sights, json_t *message, size_t index,
                                 struct mxc_err *err) {
    json_t *content = json_object_get(message, "content"), *wanted = NULL;
    if (!content || json_is_null(content)) {
        wanted = json_string("");
    } else if (json_is_array(content)) {
        enum mxc_code code = check_parts(sights, content, index, err);
        if (code)
            return code;
        int parts = has_picture(content) ? (sights->marks->natural ? YES : NO)
                                         : takes_parts(chat, variables);
        if (parts == YES)
            return MXC_OK;
        wanted = parts ? join_parts(content, sights) : NULL;
    } else if (!json_is_string(content)) {
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].content is neither text nor a list",
                           index);
    } else {
        int text = takes_text(chat, variables);
        int parts = text == NO ? takes_parts(chat, variables) : NO;
        if (!text || !parts)
            return mxc_err_nomem(err);
        if (parts == NO)
            return MXC_OK;
        wanted = text_parts(json_string_value(content), json_string_length(content));
    }
    return json_object_set_new(message, "content", wanted) ? mxc_err_nomem(err) : MXC_OK;
}

/* Arguments of calls, which have been checked: OpenAI has them as JSON text, templates mostly as an
 * object. */
static enum mxc_code set_arguments(struct mxc_chat *chat, const json_t *variables, json_t *calls,
                                   struct mxc_err *err) {
    size_t i;
    json_t *call;
    int object = takes_object_arguments(chat, variables);
    if (!object)
        return mxc_err_nomem(err);
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function");
        json_t *arguments = json_object_get(function, "arguments"), *wanted = NULL;
        size_t length = json_string_length(arguments);
        if (object == YES) {
            enum mxc_code code = length ? mxc_json_parse(json_string_value(arguments), length,
                                                         "arguments", &wanted, err)
                                        : MXC_OK;
            if (code)
                return code;
            if (!length)
                wanted = json_is_object(arguments) ? json_incref(arguments) : json_object();
        } else if (length) {
            wanted = json_incref(arguments);
        } else {
            char *text = json_is_object(arguments) ? mxc_json_dump(arguments) : NULL;
            if (text || !json_is_object(arguments))
                wanted = json_string(text ? text : "{}");
            mxc_mem_free(text);
        }
        if (json_object_set_new(function, "arguments", wanted))
            return mxc_err_nomem(err);
    }
    return MXC_OK;
}

/* Calls and answers: checked, with the ids that the template takes, and written out as text for a
 * template that knows nothing of them. *messages may be replaced. */
static enum mxc_code set_calls(const char *text, const json_t *variables, json_t **messages,
                               struct mxc_err *err) {
    const json_t *tools = json_object_get(variables, "tools");
    const struct mxc_tool_shape *shape = mxc_tool_shape_find(mxc_str_of(text), NULL, NULL);
    enum mxc_code code = mxc_tools_check_history(*messages, mxc_tool_shape_id_length(shape), err);
    bool knows_calls = !text || strstr(text, "tool_calls");
    bool knows_tools = !text || mxc_tool_template_knows(mxc_str_of(text));
    bool has_calls = json_array_size(tools) && !knows_tools;
    json_t *written;
    for (size_t i = 0; i < json_array_size(*messages) && !knows_calls; i++)
        has_calls = has_calls ||
                    json_array_size(json_object_get(json_array_get(*messages, i), "tool_calls"));
    if (code || !has_calls)
        return code;
    code = mxc_tools_write_out(shape, *messages, tools, !knows_tools, &written, err);
    if (!code) {
        json_decref(*messages);
        *messages = written;
    }
    return code;
}

static enum mxc_code normalise(struct mxc_chat *chat, const json_t *messages,
                               const json_t *variables, const struct sights *sights, json_t **out,
                               struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    size_t i;
    json_t *message;
    if (!json_is_array(messages) || !json_array_size(messages))
        return mxc_err_set(err, MXC_E_ARG, "messages is not a list with at least one message");
    if (variables && !json_is_object(variables))
        return mxc_err_set(err, MXC_E_ARG, "the template's variables are not an object");
    json_t *copy = json_deep_copy(messages);
    if (!copy)
        return mxc_err_nomem(err);
    const char *text = uses_tools(chat, variables) ? chat->tool_text : chat->text;
    bool knows_developer = text && strstr(text, "developer");
    for (i = 0; !code && i < json_array_size(copy); i++)
        if (!json_is_string(json_object_get(json_array_get(copy, i), "role")))
            code = mxc_err_set(err, MXC_E_ARG, "messages[%zu] has no role", i);
    if (!code)
        code = set_calls(text, variables, &copy, err);
    json_array_foreach(copy, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        json_t *calls = json_object_get(message, "tool_calls");
        if (code)
            break;
        if (!strcmp(role, "developer") && !knows_developer &&
            json_object_set_new(message, "role", json_string("system"))) {
            code = mxc_err_nomem(err);
            break;
        }
        code = set_content(chat, variables, sights, message, i, err);
        if (!code && calls && !json_is_null(calls))
            code = set_arguments(chat, variables, calls, err);
        if (code)
            break;
    }
    if (code) {
        json_decref(copy);
        return code;
    }
    *out = copy;
    return MXC_OK;
}

enum mxc_code mxc_prompt_normalise(struct mxc_chat *chat, const json_t *messages,
                                   const json_t *variables, json_t **out, struct mxc_err *err) {
    const struct sights none = {0};
    return normalise(chat, messages, variables, &none, out, err);
}

/* The text of the last message, white space at its ends apart; empty when it has none. */
static struct mxc_str final_text(const json_t *messages) {
    const json_t *content =
        json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    struct mxc_str s = {json_string_value(content), json_string_length(content)};
    while (s.length && strchr(" \t\r\n", s.ptr[0]))
        s.ptr++, s.length--;
    while (s.length && strchr(" \t\r\n", s.ptr[s.length - 1]))
        s.length--;
    return s;
}

enum mxc_code mxc_prompt_cut_final(const json_t *messages, const char *text, size_t *length,
                                   struct mxc_err *err) {
    struct mxc_str final = final_text(messages);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0 || !final.length)
        return mxc_err_set(err, MXC_E_ARG,
                           "only an assistant message with text at the end can be continued");
    const char *found = NULL, *from = text, *end = text + *length, *at;
    while ((at = memmem(from, (size_t)(end - from), final.ptr, final.length))) {
        found = at;
        from = at + 1;
    }
    if (!found)
        return mxc_err_set(err, MXC_E_TEMPLATE,
                           "chat template: the message to continue does not show in its text");
    *length = (size_t)(found - text) + final.length;
    return MXC_OK;
}

/* Processors of models that see have the tokeniser add its special tokens, unless the text begins
 * with BOS already; tokenisers of text models leave that to the template. */
static bool wants_special(const struct mxc_chat *chat, const struct mxc_prompt_input *input,
                          const char *text) {
    struct mxc_buf bos;
    const uint32_t id = (uint32_t)chat->bos_id;
    if (!input->vision || chat->bos_id < 0)
        return input->vision != NULL;
    mxc_buf_init(&bos, 4096);
    bool there = !mxc_tokenizer_decode(chat->tokenizer, &id, 1, false, &bos, NULL) && bos.length &&
                 !strncmp(text, mxc_buf_text(&bos), bos.length);
    mxc_buf_fini(&bos);
    return !there;
}

static enum mxc_code encode(const struct mxc_chat *chat, const struct mxc_jinja_result *result,
                            size_t length, bool special, struct mxc_ids *ids, struct mxc_err *err) {
    struct mxc_encode_options options = {.add_special = special, .parse_special = true};
    size_t n = 0;
    struct mxc_text_span *spans = mxc_mem_array(result->n_spans, sizeof *spans);
    if (!spans)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < result->n_spans && result->spans[i].offset < length; i++) {
        const struct mxc_jinja_span *s = &result->spans[i];
        size_t rest = length - s->offset;
        spans[n++] = (struct mxc_text_span){result->text + s->offset,
                                            s->length < rest ? s->length : rest, s->trusted};
    }
    enum mxc_code code = mxc_tokenizer_encode(chat->tokenizer, spans, n, options, ids, err);
    mxc_mem_free(spans);
    return code;
}

/* The same around pictures: marks in place, tokens, and the layout, whose tokens become the ids. */
static enum mxc_code encode_pictures(const struct mxc_chat *chat, const struct sights *sights,
                                     const struct mxc_jinja_result *result, size_t length,
                                     bool special, struct mxc_ids *ids, struct mxc_err *err) {
    const struct mxc_encode_options options = {.add_special = special, .parse_special = true};
    int32_t image = mxc_vision_image_token(mxc_pictures_vision(sights->pictures));
    struct mxc_marked marked = {0};
    uint8_t *is_mark = NULL;
    struct mxc_ids plain = {0};
    struct mxc_prompt laid = {0};
    enum mxc_code code =
        mxc_marks_place(sights->marks, sights->pictures, result, length, &marked, err);
    if (code)
        return code;
    if ((code = mxc_tokenizer_encode(chat->tokenizer, marked.spans, marked.n_spans, options, &plain,
                                     err)))
        goto out;
    is_mark = mxc_mem_zalloc(plain.count, 1);
    if (!is_mark) {
        code = mxc_err_nomem(err);
        goto out;
    }
    /* a control token of the template's own text: what a message says never becomes one */
    for (size_t i = 0; i < plain.count; i++)
        is_mark[i] = (int32_t)plain.items[i] == image;
    const struct mxc_vision_text text = {(const int32_t *)plain.items, is_mark,
                                         (int32_t)plain.count};
    if ((code = mxc_pictures_lay_out(sights->pictures, &text, err)))
        goto out;
    mxc_pictures_prompt(sights->pictures, &laid);
    for (int32_t i = 0; i < laid.n_tokens && !code; i++)
        if (!mxc_ids_push(ids, (uint32_t)laid.tokens[i]))
            code = mxc_err_nomem(err);
out:
    mxc_marked_fini(&marked);
    mxc_ids_fini(&plain);
    mxc_mem_free(is_mark);
    return code;
}

/* Renders and encodes; sights: with members, or none. */
static enum mxc_code build(struct mxc_chat *chat, const struct mxc_prompt_input *input,
                           const struct sights *sights, struct mxc_prompt_ids *prompt,
                           struct mxc_err *err) {
    struct mxc_jinja_result result;
    json_t *messages = NULL, *vars = NULL;
    enum mxc_code code = normalise(chat, input->messages, input->variables, sights, &messages, err);
    if (code)
        return code;
    bool generation = !input->no_generation_prompt && !input->continue_final;
    vars = json_object();
    if (!vars || json_object_set_new(vars, "add_generation_prompt", json_boolean(generation)) ||
        (input->variables && json_object_update(vars, (json_t *)(uintptr_t)input->variables)) ||
        json_object_set(vars, "messages", messages)) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if ((code = mxc_chat_render(chat, vars, NULL, &result, err)))
        goto out;
    size_t length = result.length;
    bool special = wants_special(chat, input, result.text);
    if (input->continue_final)
        code = mxc_prompt_cut_final(messages, result.text, &length, err);
    if (!code)
        code = mxc_pictures_count(sights->pictures)
                   ? encode_pictures(chat, sights, &result, length, special, &prompt->ids, err)
                   : encode(chat, &result, length, special, &prompt->ids, err);
    if (!code)
        prompt->inside = mxc_reasoning_is_open(chat->marks, (struct mxc_str){result.text, length});
    mxc_jinja_result_fini(&result);
out:
    json_decref(vars);
    json_decref(messages);
    return code;
}

/* Whether any part of the messages is a picture. */
static bool any_picture(const json_t *messages) {
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message) {
        if (has_picture(json_object_get(message, "content")))
            return true;
    }
    return false;
}

enum mxc_code mxc_prompt_build(struct mxc_chat *chat, const struct mxc_prompt_input *input,
                               struct mxc_prompt_ids *out, struct mxc_err *err) {
    struct mxc_prompt_ids prompt = {.inside = false};
    struct mxc_marks marks;
    struct sights sights = {0};
    enum mxc_code code = MXC_OK;
    if (input->vision && any_picture(input->messages)) {
        code = mxc_marks_init(&marks, chat, input->vision, input->variables, err);
        if (code)
            return code;
        sights.marks = &marks;
        code = mxc_pictures_new(input->vision, input->pictures, &sights.pictures, err);
    }
    if (!code)
        code = build(chat, input, &sights, &prompt, err);
    if (sights.marks)
        mxc_marks_fini(&marks);
    if (code) {
        mxc_pictures_release(sights.pictures);
        mxc_ids_fini(&prompt.ids);
        return code;
    }
    prompt.pictures = sights.pictures;
    *out = prompt;
    return MXC_OK;
}

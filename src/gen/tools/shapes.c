/* The table of wire shapes, and the choice of one from a template's text. The order counts: what is
 * more special stands first. Sources are the chat templates of the models named. */
#define _GNU_SOURCE
#include "gen/tools/shapes.h"

#include <string.h>

#define DS_CALLS_BEGIN                                                                             \
    "<\xEF\xBD\x9Ctool\xE2\x96\x81"                                                                \
    "calls\xE2\x96\x81"                                                                            \
    "begin\xEF\xBD\x9C>"
#define DS_CALLS_END                                                                               \
    "<\xEF\xBD\x9Ctool\xE2\x96\x81"                                                                \
    "calls\xE2\x96\x81"                                                                            \
    "end\xEF\xBD\x9C>"
#define DS_CALL_BEGIN                                                                              \
    "<\xEF\xBD\x9Ctool\xE2\x96\x81"                                                                \
    "call\xE2\x96\x81"                                                                             \
    "begin\xEF\xBD\x9C>"
#define DS_CALL_END                                                                                \
    "<\xEF\xBD\x9Ctool\xE2\x96\x81"                                                                \
    "call\xE2\x96\x81"                                                                             \
    "end\xEF\xBD\x9C>"
#define DS_SEP "<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>"
#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C"

static const struct mxc_tool_shape shapes[] = {
    /* gpt-oss; the split of channels leaves calls in exactly this form (reasoning.h) */
    {.name = "harmony",
     .detect = {"<|channel|>", "commentary"},
     .body = MXC_TOOL_JSON,
     .call_open = "<|channel|>commentary to=functions.",
     .after_name = "<|message|>",
     .written_after = " <|constrain|>json<|message|>",
     .call_close = "<|call|>",
     .ends = true,
     .trigger = " to=functions.",
     .shown = {"<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"}},
    {.name = "gemma",
     .detect = {"<|tool_call>", "<tool_call|>"},
     .body = MXC_TOOL_GEMMA,
     .call_open = "<|tool_call>call:",
     .call_close = "<tool_call|>",
     .between = "",
     .shown = {"<|tool_call>", "<tool_call|>", "<|\"|>"}},
    {.name = "dsml", /* DeepSeek V3.2 */
     .detect = {DSML, "function_calls>"},
     .body = MXC_TOOL_XML,
     .open = "<" DSML "function_calls>\n",
     .close = "\n</" DSML "function_calls>",
     .between = "\n",
     .call_open = "<" DSML "invoke name=\"",
     .after_name = "\">\n",
     .param_open = "<" DSML "parameter name=\"",
     .key_end = "\"",
     .value_open = ">",
     .value_close = "</" DSML "parameter>\n",
     .typed = true,
     .call_close = "</" DSML "invoke>",
     .shown = {DSML}},
    {.name = "dsml-v4", /* DeepSeek V4 */
     .detect = {DSML, "tool_calls>"},
     .body = MXC_TOOL_XML,
     .open = "<" DSML "tool_calls>\n",
     .close = "\n</" DSML "tool_calls>",
     .between = "\n",
     .call_open = "<" DSML "invoke name=\"",
     .after_name = "\">\n",
     .param_open = "<" DSML "parameter name=\"",
     .key_end = "\"",
     .value_open = ">",
     .value_close = "</" DSML "parameter>\n",
     .typed = true,
     .call_close = "</" DSML "invoke>",
     .shown = {DSML}},
    {.name = "deepseek", /* V3, R1 */
     .detect = {DS_CALLS_BEGIN, "```json"},
     .body = MXC_TOOL_JSON,
     .open = DS_CALLS_BEGIN,
     .close = DS_CALLS_END,
     .between = "\n",
     .call_open = DS_CALL_BEGIN "function" DS_SEP,
     .after_name = "\n```json\n",
     .call_close = "\n```" DS_CALL_END,
     .shown = {DS_CALLS_BEGIN, DS_CALLS_END, DS_CALL_BEGIN, DS_CALL_END, DS_SEP}},
    {.name = "deepseek-v3.1",
     .detect = {DS_CALLS_BEGIN},
     .token = DS_CALLS_BEGIN,
     .body = MXC_TOOL_JSON,
     .open = DS_CALLS_BEGIN,
     .close = DS_CALLS_END,
     .between = "",
     .call_open = DS_CALL_BEGIN,
     .after_name = DS_SEP,
     .call_close = DS_CALL_END,
     .shown = {DS_CALLS_BEGIN, DS_CALLS_END, DS_CALL_BEGIN, DS_CALL_END, DS_SEP}},
    {.name = "kimi",
     .detect = {"<|tool_calls_section_begin|>"},
     .token = "<|tool_calls_section_begin|>",
     .body = MXC_TOOL_JSON,
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .between = "",
     .call_open = "<|tool_call_begin|>functions.",
     .after_name = "<|tool_call_argument_begin|>",
     .written_after = ":0<|tool_call_argument_begin|>",
     .call_close = "<|tool_call_end|>",
     .shown = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
               "<|tool_call_argument_begin|>", "<|tool_call_end|>"}},
    {.name = "mistral-args",
     .detect = {"[TOOL_CALLS]", "[ARGS]"},
     .token = "[ARGS]",
     .body = MXC_TOOL_JSON,
     .between = "",
     .call_open = "[TOOL_CALLS]",
     .after_name = "[ARGS]",
     .id_length = 9,
     .shown = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
    {.name = "mistral",
     .detect = {"[TOOL_CALLS]"},
     .token = "[TOOL_CALLS]",
     .body = MXC_TOOL_OBJECTS,
     .open = "[TOOL_CALLS]",
     .between = ", ",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .id_length = 9,
     .shown = {"[TOOL_CALLS]"}},
    {.name = "cohere",
     .detect = {"<|START_ACTION|>"},
     .token = "<|START_ACTION|>",
     .body = MXC_TOOL_OBJECTS,
     .open = "<|START_ACTION|>",
     .close = "<|END_ACTION|>",
     .between = ",\n    ",
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .list = true,
     .shown = {"<|START_ACTION|>", "<|END_ACTION|>"}},
    {.name = "cohere-action", /* Command-R of 2024 */
     .detect = {"Action:", "```json", "tool_name"},
     .body = MXC_TOOL_OBJECTS,
     .open = "Action: ```json\n",
     .close = "\n```",
     .between = ",\n    ",
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .list = true},
    {.name = "invoke", /* MiniMax M2 */
     .detect = {"<minimax:tool_call>", "<invoke name="},
     .body = MXC_TOOL_XML,
     .open = "<minimax:tool_call>\n",
     .close = "\n</minimax:tool_call>",
     .between = "\n",
     .call_open = "<invoke name=\"",
     .after_name = "\">\n",
     .param_open = "<parameter name=\"",
     .key_end = "\"",
     .value_open = ">",
     .value_close = "</parameter>\n",
     .call_close = "</invoke>",
     .shown = {"<minimax:tool_call>", "</minimax:tool_call>"}},
    {.name = "qwen-xml", /* Qwen3-Coder, Nemotron 3, Step 3.5 */
     .detect = {"<tool_call>", "<function=", "<parameter="},
     .body = MXC_TOOL_XML,
     .open = "<tool_call>\n",
     .close = "\n</tool_call>",
     .call_open = "<function=",
     .after_name = ">\n",
     .param_open = "<parameter=",
     .key_end = ">",
     .value_close = "</parameter>\n",
     .call_close = "</function>",
     .framed = true,
     .shown = {"<tool_call>", "</tool_call>"}},
    {.name = "seed-xml", /* Seed-OSS */
     .detect = {"<seed:tool_call>"},
     .body = MXC_TOOL_XML,
     .open = "<seed:tool_call>\n",
     .close = "\n</seed:tool_call>",
     .between = "\n",
     .call_open = "<function=",
     .after_name = ">\n",
     .param_open = "<parameter=",
     .key_end = ">",
     .value_close = "</parameter>\n",
     .call_close = "</function>",
     .shown = {"<seed:tool_call>", "</seed:tool_call>"}},
    {.name = "glm", /* GLM 4.5 and later, Laguna */
     .detect = {"<tool_call>", "<arg_key>"},
     .body = MXC_TOOL_XML,
     .call_open = "<tool_call>",
     .between = "\n",
     .after_name = "\n",
     .param_open = "<arg_key>",
     .key_end = "</arg_key>",
     .value_open = "\n<arg_value>",
     .value_close = "</arg_value>\n",
     .call_close = "</tool_call>",
     .shown = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
               "</arg_value>"}},
    {.name = "solar",
     .detect = {"<|tool_call:begin|>"},
     .token = "<|tool_call:begin|>",
     .body = MXC_TOOL_JSON,
     .open = "<|tool_calls|>",
     .close = "<|calls|>",
     .between = "",
     .call_open = "<|tool_call:begin|>",
     .before_name = "<|tool_call:name|>",
     .after_name = "<|tool_call:args|>",
     .call_close = "<|tool_call:end|>",
     .shown = {"<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>",
               "<|tool_call:args|>", "<|tool_call:end|>"}},
    {.name = "phi",
     .detect = {"<|/tool_call|>"},
     .token = "<|/tool_call|>",
     .body = MXC_TOOL_OBJECTS,
     .open = "<|tool_call|>",
     .close = "<|/tool_call|>",
     .between = ", ",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .shown = {"<|tool_call|>", "<|/tool_call|>"}},
    {.name = "granite", /* before 4 */
     .detect = {"<|tool_call|>"},
     .body = MXC_TOOL_OBJECTS,
     .open = "<|tool_call|>",
     .also = "<tool_call>",
     .between = ", ",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .shown = {"<|tool_call|>"}},
    {.name = "apertus",
     .detect = {"<|tools_prefix|>"},
     .token = "<|tools_prefix|>",
     .body = MXC_TOOL_OBJECTS,
     .open = "<|tools_prefix|>",
     .close = "<|tools_suffix|>",
     .between = ", ",
     .list = true,
     .shown = {"<|tools_prefix|>", "<|tools_suffix|>"}},
    {.name = "pythonic-marked", /* LFM2 */
     .detect = {"<|tool_call_start|>"},
     .token = "<|tool_call_start|>",
     .body = MXC_TOOL_PYTHONIC,
     .open = "<|tool_call_start|>",
     .close = "<|tool_call_end|>",
     .between = ", ",
     .shown = {"<|tool_call_start|>", "<|tool_call_end|>"}},
    {.name = "functionary",
     .detect = {">>>all"},
     .body = MXC_TOOL_JSON,
     .call_open = ">>>",
     .between = "",
     .after_name = "\n"},
    {.name = "functools", /* Firefunction */
     .detect = {"functools["},
     .body = MXC_TOOL_OBJECTS,
     .open = "functools",
     .between = ", ",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true},
    {.name = "tool-calls", /* Apriel, MiniMax M1 */
     .detect = {"<tool_calls>"},
     .body = MXC_TOOL_OBJECTS,
     .open = "<tool_calls>",
     .close = "</tool_calls>",
     .between = ", ",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .shown = {"<tool_calls>", "</tool_calls>"}},
    {.name = "hermes", /* Hermes, Qwen 2.5 and 3, Granite 4, and whoever is told to */
     .detect = {"<tool_call>"},
     .body = MXC_TOOL_OBJECTS,
     .open = "<tool_call>\n",
     .close = "\n</tool_call>",
     .name_key = "name",
     .arguments_key = "arguments",
     .shown = {"<tool_call>", "</tool_call>"}},
    {.name = "function-tag", /* Llama 3.1 when it is told so */
     .detect = {"<function=", "</function>"},
     .body = MXC_TOOL_JSON,
     .call_open = "<function=",
     .between = "",
     .after_name = ">",
     .call_close = "</function>"},
    {.name = "gigachat",
     .detect = {"function call", "<|role_sep|>"},
     .body = MXC_TOOL_OBJECTS,
     .open = "<|message_sep|>\n\nfunction call<|role_sep|>\n",
     .also = "function call<|role_sep|>\n",
     .name_key = "name",
     .arguments_key = "arguments",
     .shown = {"<|role_sep|>", "<|message_sep|>"}},
    {.name = "llama-json", /* Llama 3.1 to 3.3 */
     .detect = {"\"parameters\":", "ipython"},
     .body = MXC_TOOL_OBJECTS,
     .open = "<|python_tag|>",
     .bare = true,
     .between = "; ",
     .name_key = "name",
     .arguments_key = "parameters",
     .shown = {"<|python_tag|>"}},
    {.name = "pythonic", /* Llama 3.2 and 4 */
     .detect = {"func_name1("},
     .body = MXC_TOOL_PYTHONIC,
     .open = "<|python_start|>",
     .close = "<|python_end|>",
     .bare = true,
     .between = ", ",
     .shown = {"<|python_start|>", "<|python_end|>"}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static bool contains(struct mxc_str text, const char *needle) {
    return text.ptr && text.length && memmem(text.ptr, text.length, needle, strlen(needle));
}

static bool shows(const struct mxc_tool_shape *shape, struct mxc_str text) {
    for (size_t i = 0; i < 3 && shape->detect[i]; i++)
        if (!contains(text, shape->detect[i]))
            return false;
    return shape->detect[0] != NULL;
}

bool mxc_tool_template_knows(struct mxc_str text) {
    return contains(text, "tools") || contains(text, "functions");
}

const struct mxc_tool_shape *
mxc_tool_shape_find(struct mxc_str template_text,
                    bool (*has_token)(void *user, const char *spelling), void *user) {
    bool knows = mxc_tool_template_knows(template_text);
    for (size_t i = 0; knows && i < N_SHAPES; i++)
        if (shows(&shapes[i], template_text))
            return &shapes[i];
    /* a template that speaks of no tools gets the generic shape, whatever the vocabulary has */
    for (size_t i = 0; knows && has_token && i < N_SHAPES; i++)
        if (shapes[i].token && has_token(user, shapes[i].token))
            return &shapes[i];
    return mxc_tool_shape_named("hermes");
}

static bool has_token(void *user, const char *spelling) {
    return mxc_tokenizer_id(user, mxc_str_of(spelling)) != MXC_TOK_NO_ID;
}

const struct mxc_tool_shape *mxc_tool_shape_of(const struct mxc_chat *chat) {
    const char *text = chat->tool_text ? chat->tool_text : chat->text;
    return mxc_tool_shape_find(mxc_str_of(text), chat->tokenizer ? has_token : NULL,
                               chat->tokenizer);
}

const struct mxc_tool_shape *mxc_tool_shape_named(const char *name) {
    for (size_t i = 0; i < N_SHAPES; i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    return NULL;
}

const char *mxc_tool_shape_name(const struct mxc_tool_shape *shape) {
    return shape->name;
}

const char *mxc_tool_shape_list(size_t i) {
    return i < N_SHAPES ? shapes[i].name : NULL;
}

const char *const *mxc_tool_shape_shown(const struct mxc_tool_shape *shape, size_t *n) {
    *n = 0;
    while (*n < sizeof shape->shown / sizeof *shape->shown && shape->shown[*n])
        ++*n;
    return shape->shown;
}

int mxc_tool_shape_id_length(const struct mxc_tool_shape *shape) {
    return shape->id_length;
}

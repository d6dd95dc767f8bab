/* Session: what run and generate have in common: options, model, engine, one answer. */
#ifndef MXC_CLI_SESSION_H
#define MXC_CLI_SESSION_H

#include "base/json.h"
#include "cli/answer.h"
#include "cli/options.h"

struct mxc_session {
    const struct mxc_command *command;
    struct mxc_model_args model_args;
    struct mxc_sampling_args sampling;
    const char *prompt, *file, *system, *template_vars;
    int64_t max_tokens;
    struct mxc_arg_list stop;
    bool no_chat_template, show_reasoning, json, stats, ignore_eos;

    struct mlxcel_model *model;
    struct mlxcel_engine *engine;
    struct mlxcel_logit_bias biases[MXC_ARG_LIST_MAX];
};

#define MXC_SESSION_ARGS(s)                                                                          \
    {MXC_ARG_TEXT, "-p, --prompt", "TEXT", "the prompt; else standard input", &(s)->prompt, 0, 0,    \
     NULL},                                                                                          \
        {MXC_ARG_TEXT, "-f, --file", "FILE", "take the prompt from a file", &(s)->file, 0, 0, NULL}, \
        {MXC_ARG_TEXT, "-sys, --system", "TEXT", "system message", &(s)->system, 0, 0, NULL},        \
        {MXC_ARG_INT,                                                                                \
         "-n, --max-tokens, --n-predict, --predict",                                                 \
         "N",                                                                                        \
         "tokens to generate; -1: to EOS or the context (-1)",                                       \
         &(s)->max_tokens,                                                                           \
         -1,                                                                                         \
         1 << 30,                                                                                    \
         NULL},                                                                                      \
        {MXC_ARG_LIST,                                                                               \
         "-r, --stop, --reverse-prompt",                                                             \
         "TEXT",                                                                                     \
         "end the answer before TEXT",                                                               \
         &(s)->stop,                                                                                 \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_FLAG,                                                                               \
         "--ignore-eos",                                                                             \
         NULL,                                                                                       \
         "go on after end-of-sequence tokens",                                                       \
         &(s)->ignore_eos,                                                                           \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_FLAG,                                                                               \
         "--no-chat-template",                                                                       \
         NULL,                                                                                       \
         "complete the prompt as raw text",                                                          \
         &(s)->no_chat_template,                                                                     \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_TEXT,                                                                               \
         "--chat-template-kwargs",                                                                   \
         "JSON",                                                                                     \
         "an object of more template variables",                                                     \
         &(s)->template_vars,                                                                        \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_FLAG,                                                                               \
         "--show-reasoning",                                                                         \
         NULL,                                                                                       \
         "print what the model thinks too",                                                          \
         &(s)->show_reasoning,                                                                       \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_FLAG, "--stats", NULL, "print a line of figures after an answer",                   \
         &(s)->stats,  0,         0,    NULL},                                                       \
    {                                                                                                \
        MXC_ARG_FLAG, "--json", NULL, "print the answer as one JSON object", &(s)->json, 0, 0,       \
            NULL                                                                                     \
    }

void mxc_session_init(struct mxc_session *session, const struct mxc_command *command);
/* Opens the model and starts the engine. 0 or an exit status. */
int mxc_session_open(struct mxc_session *session, const char *model);
void mxc_session_fini(struct mxc_session *session);
/* The prompt of -p, -f or standard input, owned by the caller (mxc_mem_free). */
int mxc_session_prompt(const struct mxc_session *session, char **prompt);
/* Answers `messages` (an array; NULL: raw is the prompt) and prints. 0 or an exit status. */
int mxc_session_answer(struct mxc_session *session, const json_t *messages, const char *raw,
                       struct mxc_answer *answer);
/* One prompt, one answer. 0 or an exit status. */
int mxc_session_one_shot(struct mxc_session *session);
/* {"role": role, "content": content}; NULL: out of memory, or content is not UTF-8. */
json_t *mxc_session_message(const char *role, const char *content, size_t length);

#endif

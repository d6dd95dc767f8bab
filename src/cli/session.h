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
    const char *name; /* MODEL */
    const char *prompt, *file, *system, *template_vars;
    int64_t max_tokens, image_min_pixels, image_max_pixels, image_megapixels;
    const char *image_background;
    struct mxc_arg_list stop, images;
    bool no_chat_template, show_reasoning, json, stats, ignore_eos;

    struct mlxcel_model *model;
    struct mlxcel_engine *engine;
    struct mlxcel_logit_bias biases[MXC_ARG_LIST_MAX];
};

/* Sets defaults and reads the command line. 0 or an exit status; *exit_now: help was printed. */
int mxc_session_parse(struct mxc_session *session, const struct mxc_command *command, int argc,
                      char **argv, bool *exit_now);
/* Opens the model and starts the engine. 0 or an exit status. */
int mxc_session_open(struct mxc_session *session);
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
/* A message of the user behind `messages`; the first one brings the session's pictures along. */
json_t *mxc_session_user(const struct mxc_session *session, const json_t *messages,
                         const char *content);

#endif

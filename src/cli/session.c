/* Session: model, engine, prompt, one answer. */
#define _GNU_SOURCE
#include "cli/session.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/term.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROMPT = 64 << 20 };

void mxc_session_init(struct mxc_session *session, const struct mxc_command *command) {
    *session = (struct mxc_session){.command = command, .max_tokens = -1};
}

/* What can be told to be wrong before a model is loaded. 0 or an exit status. */
static int check(const struct mxc_session *s) {
    const char *command = s->command->name;
    struct mxc_err err;
    json_t *vars = NULL;
    if (s->prompt && s->file)
        return mxc_term_usage(command, "--prompt and --file exclude each other");
    if (s->no_chat_template && (s->system || s->template_vars))
        return mxc_term_usage(command, "%s needs a chat template",
                              s->system ? "--system" : "--chat-template-kwargs");
    if (s->system && !mxc_utf8_valid(s->system, strlen(s->system)))
        return mxc_term_usage(command, "--system: not valid UTF-8");
    if (!s->template_vars)
        return 0;
    if (mxc_json_parse(s->template_vars, strlen(s->template_vars), "--chat-template-kwargs", &vars,
                       &err))
        return mxc_term_usage(command, "%s", err.message);
    bool object = json_is_object(vars);
    json_decref(vars);
    return object ? 0 : mxc_term_usage(command, "--chat-template-kwargs: not a JSON object");
}

int mxc_session_open(struct mxc_session *s, const char *model) {
    struct mlxcel_model_options options;
    struct mlxcel_error error;
    int status = check(s);
    if (status)
        return status;
    status = mxc_options_model(s->command->name, &s->model_args, &options);
    if (status)
        return status;
    if (!s->model_args.max_sequences)
        options.max_sequences = 1;
    mxc_term_catch_interrupt();
    status = mxc_options_open(s->command->name, &s->model_args, model, &options, &s->model);
    if (status)
        return status;
    if (mlxcel_engine_new(s->model, &s->engine, &error))
        return mxc_term_fail(&error);
    return 0;
}

void mxc_session_fini(struct mxc_session *session) {
    mlxcel_engine_free(session->engine);
    mlxcel_model_close(session->model);
    session->engine = NULL;
    session->model = NULL;
}

static int read_input(char **prompt, size_t *length) {
    struct mxc_buf buf;
    char chunk[65536];
    int status = 0;
    mxc_buf_init(&buf, MAX_PROMPT);
    for (;;) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR && !mxc_term_interrupted())
            continue;
        if (n < 0)
            status = mxc_term_error("standard input: %s", strerror(errno));
        if (n <= 0 || !mxc_buf_append(&buf, chunk, (size_t)n))
            break;
    }
    struct mxc_err err;
    if (!status && mxc_buf_status(&buf, &err))
        status = mxc_term_error("standard input: %s", err.message);
    *length = buf.length;
    if (!status && !(*prompt = mxc_buf_take(&buf)))
        status = mxc_term_error("out of memory");
    mxc_buf_fini(&buf);
    return status;
}

int mxc_session_prompt(const struct mxc_session *s, char **prompt) {
    const char *source = s->file ? s->file : "standard input";
    struct mxc_err err;
    size_t length;
    if (s->prompt) {
        *prompt = mxc_mem_strdup(s->prompt);
        return *prompt ? 0 : mxc_term_error("out of memory");
    }
    if (s->file) {
        if (mxc_file_read(s->file, MAX_PROMPT, prompt, &length, &err))
            return mxc_term_error("%s", err.message);
    } else {
        int status = read_input(prompt, &length);
        if (status)
            return status;
    }
    if (memchr(*prompt, 0, length))
        return mxc_term_error("%s: a prompt with a NUL character", source);
    if (length && (*prompt)[length - 1] == '\n')
        (*prompt)[length - 1] = 0;
    return 0;
}

int mxc_session_answer(struct mxc_session *s, const json_t *messages, const char *raw,
                       struct mxc_answer *answer) {
    struct mlxcel_request request;
    struct mxc_answer_options options = {
        .show_reasoning = s->show_reasoning, .json = s->json, .stats = s->stats};
    mlxcel_request_init(s->model, &request);
    int status = mxc_options_sampling(s->command->name, &s->sampling, s->biases, &request);
    if (status)
        return status;
    char *text = NULL;
    if (messages) {
        if (!(text = mxc_json_dump(messages)))
            return mxc_term_error("out of memory");
        request.messages_json = text;
        request.template_json = s->template_vars;
    } else {
        request.prompt = raw;
    }
    request.max_tokens = s->max_tokens;
    request.stop = s->stop.items;
    request.n_stop = s->stop.n;
    request.ignore_eos = s->ignore_eos;
    status = mxc_answer_run(s->engine, &request, &options, answer);
    if (!status && s->json)
        status = mxc_answer_json(s->model, answer);
    if (!status && s->stats)
        mxc_answer_stats(s->model, answer);
    mxc_mem_free(text);
    return status;
}

json_t *mxc_session_message(const char *role, const char *content, size_t length) {
    return json_pack("{s:s, s:s%}", "role", role, "content", content, length);
}

int mxc_session_one_shot(struct mxc_session *s) {
    char *prompt = NULL;
    json_t *messages = NULL;
    struct mxc_answer answer;
    mxc_answer_init(&answer);
    int status = mxc_session_prompt(s, &prompt);
    if (status)
        goto out;
    if (!mxc_utf8_valid(prompt, strlen(prompt))) {
        status = mxc_term_error("the prompt is not valid UTF-8");
        goto out;
    }
    if (!s->no_chat_template) {
        messages = json_array();
        bool ok = messages != NULL;
        if (ok && s->system)
            ok = !json_array_append_new(
                messages, mxc_session_message("system", s->system, strlen(s->system)));
        ok = ok &&
             !json_array_append_new(messages, mxc_session_message("user", prompt, strlen(prompt)));
        if (!ok) {
            status = mxc_term_error("out of memory");
            goto out;
        }
    }
    status = mxc_session_answer(s, messages, prompt, &answer);
    if (!status && answer.finish == MLXCEL_FINISH_CANCELLED && mxc_term_interrupted())
        status = 130;
out:
    json_decref(messages);
    mxc_mem_free(prompt);
    mxc_answer_fini(&answer);
    return status;
}

/* Session: what run and generate share: command line, checks, model, engine, prompt, one answer.
 * In: argv; the prompt from -p, -f or standard input, either of which may be a pipe. Out: a printed
 * answer and an exit status.
 * What can be wrong in the options is told before a model is loaded, since loading may take long.
 * The strings of the struct borrow from argv; model and engine are its own. The model is opened for
 * one sequence. */
#define _GNU_SOURCE
#include "cli/session.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROMPT = 64 << 20 };

int mxc_session_parse(struct mxc_session *s, const struct mxc_command *command, int argc,
                      char **argv, bool *exit_now) {
    const char *words[1], *model = NULL;
    *s = (struct mxc_session){.command = command, .max_tokens = -1};
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "-m, --model", "MODEL", "the model, if not the first word", &model, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-p, --prompt", "TEXT", "the prompt; else standard input", &s->prompt, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-f, --file", "FILE", "take the prompt from a file", &s->file, 0, 0, NULL},
        {MXC_ARG_TEXT, "-sys, --system", "TEXT", "system message", &s->system, 0, 0, NULL},
        {MXC_ARG_INT, "-n, --max-tokens, --n-predict, --predict", "N",
         "tokens to generate; -1: to EOS or the context (-1)", &s->max_tokens, -1, 1 << 30, NULL},
        {MXC_ARG_LIST, "-r, --stop, --reverse-prompt", "TEXT", "end the answer before TEXT",
         &s->stop, 0, 0, NULL},
        {MXC_ARG_FLAG, "--ignore-eos", NULL, "go on after end-of-sequence tokens", &s->ignore_eos,
         0, 0, NULL},
        {MXC_ARG_LIST, "--image", "FILE", "a picture, before the text of the (first) message",
         &s->images, 0, 0, NULL},
        {MXC_ARG_INT, "--image-min-pixels", "N", "of a picture after resizing (the model's)",
         &s->image_min_pixels, 0, INT64_C(1) << 40, NULL},
        {MXC_ARG_INT, "--image-max-pixels", "N",
         "of a picture after resizing (the model's, at most 1048576)", &s->image_max_pixels, 0,
         INT64_C(1) << 40, NULL},
        {MXC_ARG_INT, "--image-max-megapixels", "N",
         "of a picture as it comes, in Mi pixels; more is refused (64)", &s->image_megapixels, 1,
         1 << 20, NULL},
        {MXC_ARG_TEXT, "--image-background", "RRGGBB", "colour under transparent pixels (ffffff)",
         &s->image_background, 0, 0, NULL},
        {MXC_ARG_FLAG, "--no-chat-template", NULL, "complete the prompt as raw text",
         &s->no_chat_template, 0, 0, NULL},
        {MXC_ARG_TEXT, "--chat-template-kwargs", "JSON", "an object of more template variables",
         &s->template_vars, 0, 0, NULL},
        {MXC_ARG_FLAG, "--show-reasoning", NULL, "print what the model thinks too",
         &s->show_reasoning, 0, 0, NULL},
        {MXC_ARG_FLAG, "--stats", NULL, "print a line of figures after an answer", &s->stats, 0, 0,
         NULL},
        {MXC_ARG_FLAG, "--json", NULL, "print the answer as one JSON object", &s->json, 0, 0, NULL},
        MXC_MODEL_ARGS(&s->model_args),
        MXC_SAMPLING_ARGS(&s->sampling),
    };
    int n = mxc_args_parse(command, args, MXC_COUNT(args), argc, argv, words, 1, exit_now);
    if (n < 0 || *exit_now)
        return n < 0 ? 2 : 0;
    if ((n == 1) == (model != NULL))
        return mxc_term_usage(command->name, n ? "MODEL is given twice" : "MODEL is missing");
    s->name = n ? words[0] : model;
    return 0;
}

/* What can be told to be wrong before a model is loaded. 0 or an exit status. */
static int check(const struct mxc_session *s) {
    const char *command = s->command->name;
    struct mxc_err err;
    json_t *vars = NULL;
    if (s->prompt && s->file)
        return mxc_term_usage(command, "--prompt and --file exclude each other");
    if (s->images.n && s->no_chat_template)
        return mxc_term_usage(command, "--image needs a chat template");
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

int mxc_session_open(struct mxc_session *s) {
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
    status = mxc_options_open(&s->model_args, s->name, &options, &s->model);
    if (status)
        return status;
    struct mlxcel_model_info info;
    mlxcel_model_info(s->model, &info);
    if (s->images.n && !info.sees)
        return mxc_term_error("--image: %s sees no pictures (model type %s)", s->name,
                              info.model_type);
    if (s->images.n && !s->image_max_pixels && info.image_max_pixels)
        mxc_term_note("a picture is resized to at most %lld pixels (--image-max-pixels)",
                      (long long)info.image_max_pixels);
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

/* All of a stream that may be a pipe: standard input, or what the user named. */
static int read_stream(int fd, const char *name, char **text, size_t *length) {
    struct mxc_buf buf;
    struct mxc_err err;
    char chunk[65536];
    int status = 0;
    mxc_buf_init(&buf, MAX_PROMPT);
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR && !mxc_term_interrupted())
            continue;
        if (n < 0)
            status = mxc_term_error("%s: cannot read: %s", name, strerror(errno));
        if (n <= 0 || !mxc_buf_append(&buf, chunk, (size_t)n))
            break;
    }
    if (!status && mxc_buf_status(&buf, &err))
        status = mxc_term_error("%s: %s", name, err.message);
    *length = buf.length;
    if (!status && !(*text = mxc_buf_take(&buf)))
        status = mxc_term_error("out of memory");
    mxc_buf_fini(&buf);
    return status;
}

int mxc_session_prompt(const struct mxc_session *s, char **prompt) {
    const char *source = s->file ? s->file : "standard input";
    char *text = NULL;
    size_t length;
    if (s->prompt) {
        *prompt = mxc_mem_strdup(s->prompt);
        return *prompt ? 0 : mxc_term_error("out of memory");
    }
    int fd = s->file ? open(s->file, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (fd < 0)
        return mxc_term_error("%s: cannot open: %s", source, strerror(errno));
    int status = read_stream(fd, source, &text, &length);
    if (s->file)
        (void)close(fd);
    if (!status && memchr(text, 0, length))
        status = mxc_term_error("%s: a prompt with a NUL character", source);
    if (status) {
        mxc_mem_free(text);
        return status;
    }
    if (length && text[length - 1] == '\n')
        text[length - 1] = 0;
    *prompt = text;
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
        request.images = s->images.items; /* the conversation's first message */
        request.n_images = s->images.n;
        request.image_min_pixels = s->image_min_pixels;
        request.image_max_pixels = s->image_max_pixels;
        request.image_limit_pixels = s->image_megapixels << 20;
        request.image_background = s->image_background;
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

json_t *mxc_session_user(const struct mxc_session *s, const json_t *messages, const char *content) {
    size_t i;
    const json_t *m;
    bool first = s->images.n > 0;
    json_array_foreach(messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        first = first && strcmp(role, "user") != 0;
    }
    if (!first)
        return mxc_session_message("user", content, strlen(content));
    json_t *parts = json_array();
    bool ok = parts != NULL;
    for (size_t j = 0; ok && j < s->images.n; j++)
        ok = !json_array_append_new(
            parts, json_pack("{s:s,s:s}", "type", "image", "url", s->images.items[j]));
    ok = ok &&
         !json_array_append_new(parts, json_pack("{s:s,s:s}", "type", "text", "text", content));
    json_t *message = ok ? json_pack("{s:s,s:O}", "role", "user", "content", parts) : NULL;
    json_decref(parts);
    return message;
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
        ok = ok && !json_array_append_new(messages, mxc_session_user(s, messages, prompt));
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

/* mlxcel trace: ids, logits, layer norms and greedy ids of one prompt into a safetensors file,
 * under the names that golden files use, so that the two can be compared tensor by tensor.
 * In: a model and a prompt as ids, text or messages. Out: the file; nothing on standard output.
 * The precision is exact unless the user says otherwise, and all rows have logits: the figures are
 * meant for comparison with a reference, not for speed. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options.h"
#include "cli/term.h"
#include "format/safetensors_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MESSAGES = 64 << 20 };

struct trace {
    struct mxc_model_args model_args;
    const char *ids, *prompt, *messages, *template_vars, *out;
    int64_t steps;
    struct mlxcel_model *model;
    int32_t *prompt_ids;
    size_t n_ids;
};

/* "1,2,3" */
static int parse_ids(struct trace *t) {
    size_t n = 1;
    for (const char *p = t->ids; *p; p++)
        n += *p == ',';
    int32_t *ids = mxc_mem_array(n, sizeof *ids);
    if (!ids)
        return mxc_term_error("out of memory");
    const char *p = t->ids;
    for (size_t i = 0; i < n; i++) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || *end != (i + 1 < n ? ',' : 0)) {
            mxc_mem_free(ids);
            return mxc_term_usage("trace", "--ids: not a list of token ids: \"%s\"", t->ids);
        }
        ids[i] = (int32_t)v;
        p = end + 1;
    }
    t->prompt_ids = ids;
    t->n_ids = n;
    return 0;
}

static int tokenize_messages(struct trace *t) {
    struct mlxcel_error error;
    struct mxc_err err;
    char *text;
    size_t length;
    if (mxc_file_read(t->messages, MAX_MESSAGES, &text, &length, &err))
        return mxc_term_err(&err);
    int status = 0;
    if (mlxcel_tokenize_messages(t->model, text, t->template_vars, &t->prompt_ids, &t->n_ids,
                                 &error))
        status = mxc_term_error("%s: %s", t->messages, error.message);
    mxc_mem_free(text);
    return status;
}

static int get_ids(struct trace *t) {
    struct mlxcel_error error;
    if (t->ids)
        return parse_ids(t);
    if (t->messages)
        return tokenize_messages(t);
    if (mlxcel_tokenize(t->model, t->prompt, strlen(t->prompt),
                        MLXCEL_ADD_SPECIAL | MLXCEL_PARSE_SPECIAL, &t->prompt_ids, &t->n_ids,
                        &error))
        return mxc_term_fail(&error);
    return 0;
}

static int write_trace(const struct trace *t, const struct mlxcel_trace *trace) {
    struct mxc_err err;
    const int64_t n = (int64_t)trace->n_tokens;
    int32_t *positions = mxc_mem_array(trace->n_tokens, sizeof *positions);
    if (!positions)
        return mxc_term_error("out of memory");
    for (size_t i = 0; i < trace->n_tokens; i++)
        positions[i] = (int32_t)i;
    const struct mxc_write_tensor tensors[] = {
        {"input_ids", MXC_WRITE_I32, 1, {n}, t->prompt_ids},
        {"position_ids", MXC_WRITE_I32, 1, {n}, positions},
        {"logits", MXC_WRITE_F32, 2, {n, trace->vocab}, trace->logits},
        {"layer_l2", MXC_WRITE_F32, 2, {trace->layers + 2, n}, trace->layer_l2},
        {"greedy_ids", MXC_WRITE_I32, 1, {(int64_t)trace->n_steps}, trace->greedy_ids},
    };
    int status = 0;
    if (mxc_safetensors_write(t->out, tensors, MXC_COUNT(tensors), &err))
        status = mxc_term_err(&err);
    mxc_mem_free(positions);
    return status;
}

static int check(const struct trace *t) {
    if ((t->ids != NULL) + (t->prompt != NULL) + (t->messages != NULL) != 1)
        return mxc_term_usage("trace", "give one of --ids, --prompt and --messages");
    if (!t->out)
        return mxc_term_usage("trace", "-o OUT.safetensors is missing");
    return 0;
}

static int run_trace(struct trace *t, const char *name) {
    struct mlxcel_model_options options;
    struct mlxcel_trace *trace = NULL;
    struct mlxcel_error error;
    int status = mxc_options_model("trace", &t->model_args, &options);
    if (status)
        return status;
    options.all_logits = true;
    options.max_sequences = 1;
    status = mxc_options_open(&t->model_args, name, &options, &t->model);
    if (status)
        return status;
    status = get_ids(t);
    if (!status &&
        mlxcel_trace_new(t->model, t->prompt_ids, t->n_ids, (size_t)t->steps, &trace, &error))
        status = mxc_term_fail(&error);
    if (!status)
        status = write_trace(t, trace);
    mlxcel_trace_free(trace);
    mlxcel_free(t->prompt_ids);
    mlxcel_model_close(t->model);
    return status;
}

static int run(int argc, char **argv) {
    struct trace t = {.steps = 24, .model_args.precision = "exact"};
    const char *words[1];
    bool exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "--ids", "N,...", "token ids as they are", &t.ids, 0, 0, NULL},
        {MXC_ARG_TEXT, "-p, --prompt", "TEXT", "raw text, special tokens added and parsed",
         &t.prompt, 0, 0, NULL},
        {MXC_ARG_TEXT, "--messages", "FILE", "a JSON list of messages, through the chat template",
         &t.messages, 0, 0, NULL},
        {MXC_ARG_TEXT, "--chat-template-kwargs", "JSON", "an object of more template variables",
         &t.template_vars, 0, 0, NULL},
        {MXC_ARG_INT, "--steps", "N", "greedy steps after the prompt (24)", &t.steps, 0, 1 << 20,
         NULL},
        {MXC_ARG_TEXT, "-o, --output", "FILE", "the safetensors file to write", &t.out, 0, 0, NULL},
        MXC_MODEL_ARGS(&t.model_args),
    };
    int n =
        mxc_args_parse(&mxc_command_trace, args, MXC_COUNT(args), argc, argv, words, 1, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("trace", "MODEL is missing");
    int status = check(&t);
    return status ? status : run_trace(&t, words[0]);
}

const struct mxc_command mxc_command_trace = {
    "trace", "MODEL (--ids N,... | --prompt TEXT | --messages FILE) -o OUT [options]",
    "write logits and layer norms of a prompt to a file", run};

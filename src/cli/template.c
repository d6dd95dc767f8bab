/* mlxcel template: renders a chat template with the variables it is given.
 * In: a model or a template file; one JSON object of variables, or with --jsonl one per line. Out:
 * the rendered text as a JSON string, or an object with error, code and position, one line each.
 * A line that cannot be rendered does not end a --jsonl run, so outputs stay aligned with inputs; a
 * single object that cannot is status 1. MLXCEL_TEMPLATE_NOW fixes the clock for tests. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/lines.h"
#include "cli/options.h"
#include "cli/term.h"
#include "gen/chat.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TEMPLATE = 4 << 20, MAX_INPUT = 64 << 20 };

struct render {
    struct mxc_chat *chat;
    struct mxc_jinja_options options;
    struct tm now;
};

static int print_error(const struct mxc_err *err) {
    json_t *o = json_pack("{s:o, s:s}", "error", mxc_term_json(err->message), "code",
                          mxc_code_info(err->code)->name);
    if (o && err->position >= 0)
        (void)json_object_set_new(o, "position", json_integer(err->position));
    return mxc_term_put_json(o);
}

/* One object to one line. *failed: it was an error object. 0 or an exit status. */
static int render(const struct render *r, const char *text, size_t length, const char *name,
                  bool *failed) {
    struct mxc_jinja_result result;
    struct mxc_err err;
    json_t *variables;
    *failed = true;
    if (mxc_json_parse(text, length, name, &variables, &err))
        return print_error(&err);
    enum mxc_code code = MXC_OK;
    if (!json_is_object(variables))
        code = mxc_err_set(&err, MXC_E_ARG, "%s: not a JSON object", name);
    if (!code)
        code = mxc_chat_render(r->chat, variables, &r->options, &result, &err);
    json_decref(variables);
    if (code)
        return print_error(&err);
    int status = mxc_term_put_json(json_stringn(result.text, result.length));
    mxc_jinja_result_fini(&result);
    *failed = false;
    return status;
}

static int render_lines(const struct render *r, const char *path) {
    struct mxc_lines lines;
    bool failed;
    int status = 0;
    if (!mxc_lines_open(&lines, path))
        return 1;
    while (!status && mxc_lines_next(&lines)) {
        char name[64];
        (void)snprintf(name, sizeof name, "line %zu", lines.number);
        status = render(r, lines.line, lines.length, name, &failed);
    }
    int closed = mxc_lines_close(&lines);
    return status ? status : closed;
}

static int render_whole(const struct render *r, const char *path) {
    struct mxc_lines lines;
    struct mxc_buf input;
    bool failed = true;
    if (!mxc_lines_open(&lines, path))
        return 1;
    mxc_buf_init(&input, MAX_INPUT);
    while (mxc_lines_next(&lines) && mxc_buf_append(&input, lines.line, lines.length))
        (void)mxc_buf_putc(&input, '\n');
    struct mxc_err err;
    int status = mxc_lines_close(&lines);
    if (!status && mxc_buf_status(&input, &err))
        status = mxc_term_err(&err);
    if (!status)
        status = render(r, mxc_buf_text(&input), input.length, "input", &failed);
    mxc_buf_fini(&input);
    return status ? status : failed;
}

static int open_file(struct render *r, const char *path) {
    struct mxc_err err;
    char *text;
    size_t length;
    if (mxc_file_read(path, MAX_TEMPLATE, &text, &length, &err))
        return mxc_term_err(&err);
    enum mxc_code code = strlen(text) == length
                             ? mxc_chat_new(NULL, text, &r->chat, &err)
                             : mxc_err_set(&err, MXC_E_TEMPLATE, "%s: holds a NUL byte", path);
    mxc_mem_free(text);
    return code ? mxc_term_err(&err) : 0;
}

static int open_model(struct render *r, const struct mxc_model_args *m, const char *name) {
    struct mxc_err err;
    char *path;
    int status = mxc_options_resolve(m, name, &path);
    if (status)
        return status;
    if (mxc_chat_open(path, NULL, 0, &r->chat, &err))
        status = mxc_term_err(&err);
    mxc_mem_free(path);
    return status;
}

static int run(int argc, char **argv) {
    struct mxc_model_args m = {0};
    const char *words[2], *file = NULL;
    bool jsonl = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "--template", "FILE", "a Jinja template, in place of MODEL", &file, 0, 0,
         NULL},
        {MXC_ARG_FLAG, "--jsonl", NULL, "one object per input line, one result per output line",
         &jsonl, 0, 0, NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &m.models_dir, 0, 0, NULL},
    };
    int n = mxc_args_parse(&mxc_command_template, args, MXC_COUNT(args), argc, argv, words,
                           file ? 1 : 2, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!file && !n)
        return mxc_term_usage("template", "give MODEL or --template FILE");
    if (file && n > 1)
        return mxc_term_usage("template", "MODEL and --template exclude each other");
    struct render r = {0};
    struct mxc_err err;
    const char *clock = getenv("MLXCEL_TEMPLATE_NOW"), *input = NULL;
    if (n > (file ? 0 : 1))
        input = words[n - 1];
    if (clock) {
        if (mxc_chat_template_clock(clock, &r.now, &err))
            return mxc_term_usage("template", "MLXCEL_TEMPLATE_NOW: %s", err.message);
        r.options.now = &r.now;
    }
    int status = file ? open_file(&r, file) : open_model(&r, &m, words[0]);
    if (!status)
        status = jsonl ? render_lines(&r, input) : render_whole(&r, input);
    mxc_chat_close(r.chat);
    return status;
}

const struct mxc_command mxc_command_template = {
    "template", "(MODEL | --template FILE) [options] [INPUT.json|-]",
    "render a chat template with given variables", run};

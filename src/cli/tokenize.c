/* mlxcel tokenize: lines of text to arrays of token ids, and back.
 * In: a model, of which only the tokeniser is opened; lines of a file or standard input, as plain
 * text, as JSON strings, or as JSON arrays of ids. Out: one line per input line.
 * JSON lines (--jsonl) can carry line breaks and NULs that plain lines cannot. The first bad line
 * ends the run with its number, so that outputs never get out of step with inputs. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "base/mem.h"
#include "cli/lines.h"
#include "cli/options.h"
#include "cli/term.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tokenize {
    struct mlxcel_model *model;
    bool jsonl, decode;
    unsigned flags;
};

static int bad_line(const struct mxc_lines *lines, const char *what) {
    return mxc_term_error("%s: line %zu: %s", lines->name, lines->number, what);
}

static int encode(const struct tokenize *t, const struct mxc_lines *lines, const char *text,
                  size_t length) {
    struct mlxcel_error error;
    int32_t *ids;
    size_t n;
    if (mlxcel_tokenize(t->model, text, length, t->flags, &ids, &n, &error))
        return bad_line(lines, error.message);
    (void)putchar('[');
    for (size_t i = 0; i < n; i++)
        (void)printf(i ? ",%d" : "%d", ids[i]);
    (void)puts("]");
    mlxcel_free(ids);
    return 0;
}

static int print_decoded(const struct tokenize *t, const struct mxc_lines *lines,
                         const int32_t *ids, size_t n) {
    struct mlxcel_error error;
    char *text;
    size_t length;
    if (mlxcel_detokenize(t->model, ids, n, false, &text, &length, &error))
        return bad_line(lines, error.message);
    int status = 0;
    if (t->jsonl) {
        status = mxc_term_put_json(json_stringn(text, length));
    } else {
        (void)fwrite(text, 1, length, stdout);
        (void)putchar('\n');
    }
    mlxcel_free(text);
    return status;
}

static int decode_array(const struct tokenize *t, const struct mxc_lines *lines,
                        const json_t *array) {
    size_t n = json_array_size(array);
    int32_t *ids = mxc_mem_array(n, sizeof *ids);
    int status = ids ? 0 : mxc_term_error("out of memory");
    for (size_t i = 0; !status && i < n; i++) {
        const json_t *id = json_array_get(array, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            status = bad_line(lines, "not an array of token ids");
        else
            ids[i] = (int32_t)v;
    }
    if (!status)
        status = print_decoded(t, lines, ids, n);
    mxc_mem_free(ids);
    return status;
}

static int json_line(const struct tokenize *t, const struct mxc_lines *lines) {
    struct mxc_err err;
    json_t *value;
    if (mxc_json_parse(lines->line, lines->length, "JSON", &value, &err))
        return bad_line(lines, err.message);
    int status;
    if (json_is_string(value) && !t->decode)
        status = encode(t, lines, json_string_value(value), json_string_length(value));
    else if (json_is_array(value))
        status = decode_array(t, lines, value);
    else
        status = bad_line(lines, t->decode ? "not an array of token ids"
                                           : "neither a JSON string nor an array of token ids");
    json_decref(value);
    return status;
}

static int map_lines(const struct tokenize *t, struct mxc_lines *lines) {
    int status = 0;
    while (!status && mxc_lines_next(lines)) {
        if (t->jsonl || t->decode)
            status = json_line(t, lines);
        else
            status = encode(t, lines, lines->line, lines->length);
    }
    return status;
}

static int run(int argc, char **argv) {
    struct tokenize t = {0};
    struct mxc_model_args m = {0};
    const char *words[2];
    bool exit_now, add_special = false, parse_special = false;
    const struct mxc_arg args[] = {
        {MXC_ARG_FLAG, "--add-special", NULL, "add BOS and the like", &add_special, 0, 0, NULL},
        {MXC_ARG_FLAG, "--parse-special", NULL, "control tokens in the text become tokens",
         &parse_special, 0, 0, NULL},
        {MXC_ARG_FLAG, "--decode", NULL, "lines are JSON id arrays: print their text", &t.decode, 0,
         0, NULL},
        {MXC_ARG_FLAG, "--jsonl", NULL, "lines are JSON: a string to encode, an array to decode",
         &t.jsonl, 0, 0, NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &m.models_dir, 0, 0, NULL},
    };
    int n = mxc_args_parse(&mxc_command_tokenize, args, MXC_COUNT(args), argc, argv, words, 2,
                           &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("tokenize", "MODEL is missing");
    t.flags = (add_special ? MLXCEL_ADD_SPECIAL : 0u) | (parse_special ? MLXCEL_PARSE_SPECIAL : 0u);
    struct mlxcel_model_options options;
    int status = mxc_options_model("tokenize", &m, &options);
    options.tokenizer_only = true;
    if (!status)
        status = mxc_options_open(&m, words[0], &options, &t.model);
    if (status)
        return status;
    struct mxc_lines lines;
    status = 1;
    if (mxc_lines_open(&lines, n > 1 ? words[1] : NULL)) {
        status = map_lines(&t, &lines);
        int closed = mxc_lines_close(&lines);
        status = status ? status : closed;
    }
    mlxcel_model_close(t.model);
    return status;
}

const struct mxc_command mxc_command_tokenize = {"tokenize", "MODEL [options] [FILE|-]",
                                                 "print the token ids of each line", run};

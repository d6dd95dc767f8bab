/* mlxcel surgery validate FILE [MODEL]: what a document of operations on weights says, and, with a
 * model, how many of its tensors each operation changes. Nothing is run and nothing is written.
 * In: paths. Out: one line for each operation, or the error that loading would give. */
#include "cli/commands.h"

#include "base/mem.h"
#include "cli/options.h"
#include "cli/term.h"
#include "format/config.h"
#include "format/weights.h"
#include "surgery/surgery.h"

#include <stdio.h>
#include <string.h>

static int run_validate(int argc, char **argv);
static const struct mxc_command validate = {
    "surgery validate", "FILE [MODEL] [options]",
    "check a document, and with MODEL what it would do to it", run_validate};

static void print_notes(const struct mxc_surgery *surgery, bool applied) {
    struct mxc_surgery_note note;
    size_t n = 0;
    while (mxc_surgery_note(surgery, n, &note)) {
        (void)printf("#%zu %-12s %s (%s)", n++, note.op, note.pattern, note.detail);
        if (applied)
            (void)printf(": %zu tensors", note.n_tensors);
        if (*note.left)
            (void)printf("; %s", note.left);
        (void)putchar('\n');
    }
    (void)printf("%s: %zu operations, valid\n", mxc_surgery_file(surgery, 0), n);
}

static int try_on(const char *path, const char *file) {
    struct mxc_config *config = NULL;
    struct mxc_weights *weights = NULL;
    struct mxc_surgery *surgery = NULL;
    struct mxc_err err;
    int status = 0;
    if (mxc_surgery_open(file, &surgery, &err) ||
        (path &&
         (mxc_config_open(path, &config, &err) || mxc_weights_open(path, config, &weights, &err) ||
          mxc_surgery_apply(surgery, config, weights, &err))))
        status = mxc_term_err(&err);
    else
        print_notes(surgery, path != NULL);
    mxc_weights_close(weights);
    mxc_surgery_close(surgery);
    mxc_config_close(config);
    return status;
}

static int run_validate(int argc, char **argv) {
    struct mxc_model_args where = {.models_dir = NULL};
    const char *words[2];
    char *path = NULL;
    bool exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &where.models_dir, 0, 0, NULL},
    };
    int n = mxc_args_parse(&validate, args, MXC_COUNT(args), argc, argv, words, 2, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("surgery validate", "FILE is missing");
    int status = n > 1 ? mxc_options_resolve(&where, words[1], &path) : 0;
    if (!status)
        status = try_on(path, words[0]);
    mxc_mem_free(path);
    return status;
}

static int run(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        printf("Usage: mlxcel %s %s\n\n%s\n", validate.name, validate.usage, validate.summary);
        return 0;
    }
    if (!strcmp(word, "validate"))
        return run_validate(argc - 1, argv + 1);
    if (!*word)
        return mxc_term_usage("surgery", "say validate");
    return mxc_term_usage("surgery", "\"%.40s\": must be validate", word);
}

const struct mxc_command mxc_command_surgery = {"surgery", "validate FILE [MODEL]",
                                                "check a document of operations on weights", run};

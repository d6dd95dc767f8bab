/* Command-line options: matching, conversion, bounds, help.
 * In: argv and a table of options. Out: values written where the table points, positional words
 * borrowed from argv, or a usage error on standard error.
 * Options may follow positional words; "--" ends them; "--name=value" works for long names only. A
 * lone "-" is positional (standard input). Values are taken as they come, so "-n -1" works.
 * What is given twice: the last value wins, lists append. */
#define _GNU_SOURCE
#include "cli/args.h"

#include "base/str.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>

/* Whether one of the names of "-n, --max-tokens" is the text. */
static bool has_name(const char *names, const char *text, size_t length) {
    while (*names) {
        size_t n = strcspn(names, ",");
        if (n == length && !memcmp(names, text, n))
            return true;
        names += n;
        names += strspn(names, ", ");
    }
    return false;
}

static const struct mxc_arg *find(const struct mxc_arg *args, size_t n, const char *text,
                                  size_t length) {
    for (size_t i = 0; i < n; i++)
        if (args[i].kind != MXC_ARG_HEADING && has_name(args[i].names, text, length))
            return &args[i];
    return NULL;
}

static void suggest(const struct mxc_arg *args, size_t n, const char *text, char *out,
                    size_t size) {
    unsigned best = 4;
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (args[i].kind == MXC_ARG_HEADING)
            continue;
        for (const char *p = args[i].names; *p;) {
            char name[64];
            size_t length = strcspn(p, ",");
            (void)snprintf(name, sizeof name, "%.*s", (int)length, p);
            unsigned d = mxc_str_distance(name, text);
            if (d < best && !strncmp(name, "--", 2)) {
                best = d;
                (void)snprintf(out, size, "; did you mean %s?", name);
            }
            p += length;
            p += strspn(p, ", ");
        }
    }
}

static void print_arg(const struct mxc_arg *a) {
    char left[96];
    (void)snprintf(left, sizeof left, "  %s%s%s", a->names, a->metavar ? " " : "",
                   a->metavar ? a->metavar : "");
    if (strlen(left) < 34)
        printf("%-34s%s\n", left, a->help);
    else
        printf("%s\n%-34s%s\n", left, "", a->help);
}

static void print_help(const struct mxc_command *command, const struct mxc_arg *args, size_t n) {
    printf("%s\n\nUsage: mlxcel %s %s\n\n", command->summary, command->name, command->usage);
    for (size_t i = 0; i < n; i++) {
        if (args[i].kind == MXC_ARG_HEADING)
            printf("%s\n", args[i].help);
        else
            print_arg(&args[i]);
    }
    printf("  -h, --help                      this text\n");
}

/* Stores value; false after a usage error was printed. */
static bool store(const struct mxc_command *command, const struct mxc_arg *a, const char *name,
                  const char *value) {
    bool bounded = a->min != 0 || a->max != 0;
    int64_t i;
    double r;
    switch (a->kind) {
    case MXC_ARG_INT:
        if (!mxc_parse_i64(value, &i)) {
            mxc_term_usage(command->name, "%s: \"%s\" is not an integer", name, value);
            return false;
        }
        if (bounded && ((double)i < a->min || (double)i > a->max)) {
            mxc_term_usage(command->name, "%s: %s is not in [%.0f, %.0f]", name, value, a->min,
                           a->max);
            return false;
        }
        *(int64_t *)a->value = i;
        return true;
    case MXC_ARG_REAL:
        if (!mxc_parse_f64(value, &r) || r != r) {
            mxc_term_usage(command->name, "%s: \"%s\" is not a number", name, value);
            return false;
        }
        if (bounded && (r < a->min || r > a->max)) {
            mxc_term_usage(command->name, "%s: %s is not in [%g, %g]", name, value, a->min, a->max);
            return false;
        }
        *(double *)a->value = r;
        return true;
    case MXC_ARG_TEXT:
        *(const char **)a->value = value;
        return true;
    case MXC_ARG_LIST: {
        struct mxc_arg_list *list = a->value;
        if (list->n == MXC_ARG_LIST_MAX) {
            mxc_term_usage(command->name, "%s: given more than %d times", name, MXC_ARG_LIST_MAX);
            return false;
        }
        list->items[list->n++] = value;
        return true;
    }
    default:
        return true;
    }
}

/* One option at argv[*i]; moves *i past its value. false after a usage error. */
static bool option(const struct mxc_command *command, const struct mxc_arg *args, size_t n,
                   int argc, char **argv, int *i) {
    const char *word = argv[*i], *equals = strchr(word, '=');
    bool is_long = !strncmp(word, "--", 2);
    size_t length = is_long && equals ? (size_t)(equals - word) : strlen(word);
    const struct mxc_arg *a = find(args, n, word, length);
    if (!a) {
        char hint[96];
        suggest(args, n, word, hint, sizeof hint);
        mxc_term_usage(command->name, "unknown option %.*s%s", (int)length, word, hint);
        return false;
    }
    if (a->given)
        *a->given = true;
    if (a->kind == MXC_ARG_FLAG) {
        if (is_long && equals) {
            mxc_term_usage(command->name, "%.*s takes no value", (int)length, word);
            return false;
        }
        *(bool *)a->value = true;
        return true;
    }
    const char *value = is_long && equals ? equals + 1 : NULL;
    if (!value) {
        if (*i + 1 >= argc) {
            mxc_term_usage(command->name, "%s needs a value", word);
            return false;
        }
        value = argv[++*i];
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)length, word);
    return store(command, a, name, value);
}

int mxc_args_parse(const struct mxc_command *command, const struct mxc_arg *args, size_t n_args,
                   int argc, char **argv, const char **positional, int max_positional,
                   bool *exit_now) {
    int n = 0;
    bool options = true;
    *exit_now = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (options && !strcmp(word, "--")) {
            options = false;
        } else if (options && (!strcmp(word, "-h") || !strcmp(word, "--help"))) {
            print_help(command, args, n_args);
            *exit_now = true;
            return 0;
        } else if (options && word[0] == '-' && word[1]) {
            if (!option(command, args, n_args, argc, argv, &i))
                return -1;
        } else if (n == max_positional) {
            mxc_term_usage(command->name, "unexpected argument \"%s\"", word);
            return -1;
        } else {
            positional[n++] = word;
        }
    }
    return n;
}

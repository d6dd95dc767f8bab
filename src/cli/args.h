/* Command-line options: one table per subcommand makes the parser, the help text and the "did you
 * mean". Every option of a table is honoured by its subcommand; an unknown one is a usage error. */
#ifndef MXC_CLI_ARGS_H
#define MXC_CLI_ARGS_H

#include "mlxcel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mxc_arg_kind {
    MXC_ARG_FLAG,   /* value: bool, set to true */
    MXC_ARG_INT,    /* int64_t in [min, max] */
    MXC_ARG_REAL,   /* double in [min, max] */
    MXC_ARG_TEXT,   /* const char *, borrowed from argv */
    MXC_ARG_LIST,   /* struct mxc_arg_list, may be given again */
    MXC_ARG_HEADING /* a line of the help text */
};

enum { MXC_ARG_LIST_MAX = 64 };
struct mxc_arg_list {
    const char *items[MXC_ARG_LIST_MAX];
    size_t n;
};

struct mxc_arg {
    enum mxc_arg_kind kind;
    const char *names; /* "-n, --max-tokens, --n-predict"; all but the first two are aliases */
    const char *metavar;
    const char *help;
    void *value;
    double min, max; /* INT, REAL; both 0: no bound */
    bool *given;     /* set to true when the option was seen; may be NULL */
};

struct mxc_command {
    const char *name;
    const char *usage;                 /* "MODEL [options]" */
    const char *summary;               /* one line */
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand; returns the exit status */
};

/* Parses options and up to max_positional other words. "--" ends the options. Prints help and sets
 * *exit_now for -h/--help. Returns the number of positional words, or -1 after a usage error was
 * printed (exit status 2). */
int mxc_args_parse(const struct mxc_command *command, const struct mxc_arg *args, size_t n_args,
                   int argc, char **argv, const char **positional, int max_positional,
                   bool *exit_now);

#define MXC_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif

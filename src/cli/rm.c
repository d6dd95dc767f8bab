/* mlxcel rm: deletes models from the store.
 * In: names, and a yes on the terminal for each unless --yes is given; without a terminal --yes is
 * needed. Out: the entries gone from disk, a line for each on standard error.
 * A name that fails does not stop the others; the status tells the last failure. What may be
 * deleted is decided in store/remove.c, never outside the store. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "cli/term.h"
#include "store/store.h"

#include <stdio.h>
#include <unistd.h>

static bool confirm(const char *name) {
    (void)fprintf(stderr, "remove %s? [y/N] ", name);
    int c = getchar(), rest = c;
    while (rest != '\n' && rest != EOF)
        rest = getchar();
    return c == 'y' || c == 'Y';
}

static int run(int argc, char **argv) {
    const char *root = NULL, *names[64];
    bool yes = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_FLAG, "-y, --yes", NULL, "do not ask", &yes, 0, 0, NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)", &root, 0,
         0, NULL},
    };
    int n =
        mxc_args_parse(&mxc_command_rm, args, MXC_COUNT(args), argc, argv, names, 64, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("rm", "MODEL is missing");
    if (!yes && !mxc_term_is_tty(STDIN_FILENO))
        return mxc_term_usage("rm", "standard input is not a terminal: give --yes");
    struct mxc_store *store;
    struct mxc_err err;
    if (mxc_store_open(root, &store, &err))
        return mxc_term_err(&err);
    int status = 0;
    for (int i = 0; i < n; i++) {
        uint64_t freed;
        char size[16];
        if (!yes && !confirm(names[i]))
            continue;
        if (mxc_store_remove(store, names[i], &freed, &err))
            status = mxc_term_err(&err);
        else
            mxc_term_note("removed %s (%s)", names[i], mxc_term_size(freed, size));
    }
    mxc_store_close(store);
    return status;
}

const struct mxc_command mxc_command_rm = {"rm", "MODEL... [options]",
                                           "delete models from the store", run};

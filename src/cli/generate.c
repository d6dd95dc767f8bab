/* mlxcel generate: one prompt, one answer.
 * In: the command line, and the prompt from it, a file or standard input. Out: the answer on
 * standard output and an exit status.
 * All of it is session.c's; the command differs from run only in that it never starts a
 * conversation, also on a terminal. */
#include "cli/commands.h"
#include "cli/session.h"

static int run(int argc, char **argv) {
    struct mxc_session s;
    bool exit_now;
    int status = mxc_session_parse(&s, &mxc_command_generate, argc, argv, &exit_now);
    if (status || exit_now)
        return status;
    status = mxc_session_open(&s);
    if (!status)
        status = mxc_session_one_shot(&s);
    mxc_session_fini(&s);
    return status;
}

const struct mxc_command mxc_command_generate = {"generate", "MODEL [options]",
                                                 "answer one prompt (alias: gen)", run};

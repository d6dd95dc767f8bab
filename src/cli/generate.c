/* mlxcel generate: one prompt, one answer. */
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/term.h"

static int run(int argc, char **argv) {
    struct mxc_session s;
    const char *words[1], *model = NULL;
    bool exit_now;
    mxc_session_init(&s, &mxc_command_generate);
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "-m, --model", "MODEL", "the model, if not the first word", &model, 0, 0,
         NULL},
        MXC_SESSION_ARGS(&s),
        MXC_MODEL_ARGS(&s.model_args),
        MXC_SAMPLING_ARGS(&s.sampling),
    };
    int n = mxc_args_parse(s.command, args, MXC_COUNT(args), argc, argv, words, 1, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if ((n == 1) == (model != NULL))
        return mxc_term_usage(s.command->name, n ? "MODEL is given twice" : "MODEL is missing");
    int status = mxc_session_open(&s, n ? words[0] : model);
    if (!status)
        status = mxc_session_one_shot(&s);
    mxc_session_fini(&s);
    return status;
}

const struct mxc_command mxc_command_generate = {"generate", "MODEL [options]",
                                                 "answer one prompt (alias: gen)", run};

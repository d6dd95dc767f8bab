/* The subcommands: one file each. */
#ifndef MXC_CLI_COMMANDS_H
#define MXC_CLI_COMMANDS_H

#include "cli/args.h"

extern const struct mxc_command mxc_command_run;
extern const struct mxc_command mxc_command_generate;
extern const struct mxc_command mxc_command_inspect;
extern const struct mxc_command mxc_command_list;
extern const struct mxc_command mxc_command_rm;
extern const struct mxc_command mxc_command_arch;
extern const struct mxc_command mxc_command_download;
extern const struct mxc_command mxc_command_tokenize;
extern const struct mxc_command mxc_command_template;
extern const struct mxc_command mxc_command_bench;
extern const struct mxc_command mxc_command_trace;
extern const struct mxc_command mxc_command_serve;
extern const struct mxc_command mxc_command_surgery;
extern const struct mxc_command mxc_command_xla;

#endif

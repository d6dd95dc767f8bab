/* mlxcel: picks the subcommand by the first word; each has a file of its own.
 * In: argv. Out: the exit status: 0, 1 (runtime error), 2 (usage error), 130 (stopped by Ctrl-C).
 * Closed standard streams are filled before anything else, so that no model file is opened as
 * descriptor 1 and written to. A standard output that could not be written turns success into 1. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/str.h"
#include "cli/term.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct mxc_command *const commands[] = {
    &mxc_command_run,      &mxc_command_generate, &mxc_command_inspect,  &mxc_command_list,
    &mxc_command_rm,       &mxc_command_arch,     &mxc_command_download, &mxc_command_tokenize,
    &mxc_command_template, &mxc_command_bench,    &mxc_command_trace,    &mxc_command_serve,
    &mxc_command_surgery,  &mxc_command_xla,
};

static void print_help(void) {
    printf("mlxcel %s: runs language models from the checkpoints people have\n\n"
           "Usage: mlxcel COMMAND [options]\n\n",
           mlxcel_version());
    for (size_t i = 0; i < MXC_COUNT(commands); i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\nMODEL is a folder, a .gguf file, owner/name, a name in the store, or shapes-vl (a\n"
           "small model that comes with the program).\n"
           "mlxcel COMMAND --help tells the options of a command.\n");
}

static const struct mxc_command *find(const char *name) {
    if (!strcmp(name, "gen"))
        name = "generate";
    for (size_t i = 0; i < MXC_COUNT(commands); i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static const char *nearest(const char *name) {
    const char *best = NULL;
    unsigned distance = 4;
    for (size_t i = 0; i < MXC_COUNT(commands); i++) {
        unsigned d = mxc_str_distance(commands[i]->name, name);
        if (d < distance) {
            distance = d;
            best = commands[i]->name;
        }
    }
    return best;
}

/* A standard stream that was closed is taken by something that fails, so that no file which is
 * opened later gets its number and what is printed. */
static void hold_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Whether the program was started under another name that stands for `serve`. */
static bool is_server_name(const char *program) {
    return program && mxc_str_ends(mxc_str_of(program), "mlxcel-server");
}

static int run(const struct mxc_command *command, int argc, char **argv) {
    int status = command->run(argc, argv);
    if (fflush(stdout) || ferror(stdout))
        return status ? status : mxc_term_error("cannot write to standard output");
    return status;
}

int main(int argc, char **argv) {
    hold_standard_streams();
    if (is_server_name(argv[0]) && !(argc == 2 && !strcmp(argv[1], "--version")))
        return run(&mxc_command_serve, argc, argv);
    if (argc < 2) {
        print_help();
        return 2;
    }
    const char *name = argv[1];
    char *help[] = {argv[0], argc > 2 ? argv[2] : NULL, "--help", NULL};
    if (!strcmp(name, "help") && argc == 3) { /* help COMMAND is COMMAND --help */
        argv = help;
        name = help[1];
    } else if (!strcmp(name, "-h") || !strcmp(name, "--help") || !strcmp(name, "help")) {
        print_help();
        return 0;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        printf("mlxcel %s\n", mlxcel_version());
        return 0;
    }
    const struct mxc_command *command = find(name);
    if (!command) {
        const char *hint = nearest(name);
        return mxc_term_usage(NULL, "unknown command \"%s\"%s%s%s", name,
                              hint ? "; did you mean " : "", hint ? hint : "", hint ? "?" : "");
    }
    return run(command, argc - 1, argv + 1);
}

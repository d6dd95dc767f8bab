/* Lines: reads a file or standard input line by line, for the subcommands that map lines to lines.
 */
#ifndef MXC_CLI_LINES_H
#define MXC_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct mxc_lines {
    FILE *file;
    const char *name; /* for messages */
    char *line;       /* the current line without its '\n'; may hold NUL bytes */
    size_t length, capacity;
    size_t number; /* of the current line, from 1 */
};

/* path NULL or "-": standard input. false after a message. */
bool mxc_lines_open(struct mxc_lines *lines, const char *path);
/* false at the end or after a read error (which mxc_lines_close reports). */
bool mxc_lines_next(struct mxc_lines *lines);
/* 0, or 1 after a message when reading failed. */
int mxc_lines_close(struct mxc_lines *lines);

#endif

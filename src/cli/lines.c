/* Lines: getline with names and errors. */
#define _GNU_SOURCE
#include "cli/lines.h"

#include "cli/term.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool mxc_lines_open(struct mxc_lines *lines, const char *path) {
    bool standard = !path || !strcmp(path, "-");
    *lines = (struct mxc_lines){.name = standard ? "standard input" : path};
    lines->file = standard ? stdin : fopen(path, "re");
    if (!lines->file)
        (void)mxc_term_error("%s: cannot open: %s", path, strerror(errno));
    return lines->file != NULL;
}

bool mxc_lines_next(struct mxc_lines *lines) {
    ssize_t n = getline(&lines->line, &lines->capacity, lines->file);
    if (n < 0)
        return false;
    lines->length = (size_t)n;
    if (n && lines->line[n - 1] == '\n')
        lines->line[--lines->length] = 0;
    lines->number++;
    return true;
}

int mxc_lines_close(struct mxc_lines *lines) {
    int status = 0;
    if (ferror(lines->file))
        status = mxc_term_error("%s: cannot read: %s", lines->name, strerror(errno));
    if (lines->file != stdin)
        (void)fclose(lines->file);
    free(lines->line); /* getline's */
    return status;
}

/* Lines: getline with names, numbers and errors.
 * In: a path, or standard input. Out: one line at a time, in a buffer that the next call
 * overwrites.
 * A line may hold NUL bytes and be of any length; only its '\n' is cut off. Read errors are told
 * once, at close, so that loops have one condition. The buffer is getline's, hence free and not
 * mxc_mem_free. */
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

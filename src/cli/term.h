/* Terminal: messages, colours, progress, Ctrl-C. Errors go to standard error, answers to standard
 * output; colours and progress only where the stream is a terminal. */
#ifndef MXC_CLI_TERM_H
#define MXC_CLI_TERM_H

#include "base/json.h"
#include "mlxcel.h"

#include <stdbool.h>

#define MXC_TERM_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* "mlxcel: error: ..." on standard error. Returns 1, the exit status of a runtime error. */
int mxc_term_error(const char *fmt, ...) MXC_TERM_PRINTF(1, 2);
/* The message of *error. Returns the exit status for it: 2 for a usage error, else 1. */
int mxc_term_fail(const struct mlxcel_error *error);
struct mxc_err;
int mxc_term_err(const struct mxc_err *err); /* the same for an internal error */
/* A usage error with a pointer to the subcommand's --help. Returns 2. */
int mxc_term_usage(const char *command, const char *fmt, ...) MXC_TERM_PRINTF(2, 3);
void mxc_term_note(const char *fmt, ...) MXC_TERM_PRINTF(1, 2); /* dim, on standard error */

bool mxc_term_is_tty(int fd);
/* Escape codes, or "" when the stream is not a terminal or NO_COLOR is set. */
const char *mxc_term_dim(int fd);
const char *mxc_term_bold(int fd);
const char *mxc_term_reset(int fd);

/* A progress line on standard error that appears after a second: "packing  42 %". total 0: bytes
 * only. Call it as often as you like; done clears it. Off with MLXCEL_NO_PROGRESS or no terminal
 * (then one line every ten seconds, unless MLXCEL_NO_PROGRESS is set). */
struct mxc_progress {
    const char *what;
    uint64_t started_ns, shown_ns;
    bool visible;
};
void mxc_progress_start(struct mxc_progress *progress, const char *what);
void mxc_progress_bytes(struct mxc_progress *progress, uint64_t done, uint64_t total);
void mxc_progress_fraction(struct mxc_progress *progress, double fraction);
void mxc_progress_done(struct mxc_progress *progress);

/* Ctrl-C: the first raises a flag, a second within the same wait ends the program with 130. */
void mxc_term_catch_interrupt(void);
bool mxc_term_interrupted(void);
void mxc_term_clear_interrupt(void);

/* Peak resident memory of this process, bytes. */
uint64_t mxc_term_peak_bytes(void);
/* "1.5 GB" into text. Returns text. */
const char *mxc_term_size(uint64_t bytes, char text[16]);

/* A JSON string; bytes that are not UTF-8 (of a path) become U+FFFD. NULL: out of memory. */
json_t *mxc_term_json(const char *text);
/* Prints the value as one line on standard output and takes it over. 0, or 1 after a message when
 * there is no memory (value NULL counts as that). */
int mxc_term_put_json(json_t *value);

#endif

/* Terminal: messages, colours, progress, Ctrl-C, sizes for people.
 * In: text, streams, environment (TERM, NO_COLOR, MLXCEL_NO_PROGRESS). Out: errors and notes on
 * standard error, exit statuses for them.
 * Progress begins after 0.7 s, then comes ten times a second on a terminal and every 10 s in a log.
 * The first Ctrl-C only counts; the second ends the program at once, for when nobody looks at the
 * count.
 * The count of interrupts is the one global, written by the signal handler. */
#define _GNU_SOURCE
#include "cli/term.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int mxc_term_error(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)fflush(stdout);
    (void)fputs("mlxcel: error: ", stderr);
    (void)vfprintf(stderr, fmt, ap);
    (void)fputc('\n', stderr);
    va_end(ap);
    return 1;
}

int mxc_term_fail(const struct mlxcel_error *error) {
    mxc_term_error("%s", error->message);
    return mxc_code_info((enum mxc_code)error->status)->exit_status == 2 ? 2 : 1;
}

int mxc_term_err(const struct mxc_err *err) {
    mxc_term_error("%s", err->message);
    return mxc_code_info(err->code)->exit_status == 2 ? 2 : 1;
}

int mxc_term_usage(const char *command, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)fputs("mlxcel: error: ", stderr);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (command)
        (void)fprintf(stderr, " (mlxcel %s --help)\n", command);
    else
        (void)fprintf(stderr, " (mlxcel --help)\n");
    return 2;
}

void mxc_term_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)fputs(mxc_term_dim(STDERR_FILENO), stderr);
    (void)vfprintf(stderr, fmt, ap);
    (void)fputs(mxc_term_reset(STDERR_FILENO), stderr);
    (void)fputc('\n', stderr);
    va_end(ap);
}

bool mxc_term_is_tty(int fd) {
    return isatty(fd) == 1;
}

static bool coloured(int fd) {
    const char *term = getenv("TERM");
    return mxc_term_is_tty(fd) && !getenv("NO_COLOR") && !(term && !strcmp(term, "dumb"));
}

const char *mxc_term_dim(int fd) {
    return coloured(fd) ? "\033[2m" : "";
}

const char *mxc_term_bold(int fd) {
    return coloured(fd) ? "\033[1m" : "";
}

const char *mxc_term_reset(int fd) {
    return coloured(fd) ? "\033[0m" : "";
}

const char *mxc_term_size(uint64_t bytes, char text[16]) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.5 && u < 5) {
        v /= 1000;
        u++;
    }
    (void)snprintf(text, 16, u && v < 99.95 ? "%.1f %s" : "%.0f %s", v, units[u]);
    return text;
}

void mxc_progress_start(struct mxc_progress *progress, const char *what) {
    *progress = (struct mxc_progress){.what = what, .started_ns = mxc_clock_ns()};
}

/* Whether the line is due now. */
static bool due(struct mxc_progress *p) {
    if (getenv("MLXCEL_NO_PROGRESS"))
        return false;
    uint64_t now = mxc_clock_ns(), since = p->shown_ns ? p->shown_ns : p->started_ns;
    uint64_t wait = !p->shown_ns                     ? 700000000u
                    : mxc_term_is_tty(STDERR_FILENO) ? 100000000u
                                                     : 10000000000u;
    if (now - since < wait)
        return false;
    p->shown_ns = now;
    p->visible = true;
    return true;
}

static void show(const struct mxc_progress *p, const char *text) {
    bool tty = mxc_term_is_tty(STDERR_FILENO);
    (void)fprintf(stderr, tty ? "\r\033[K%s %s" : "%s %s\n", p->what, text);
    (void)fflush(stderr);
}

void mxc_progress_bytes(struct mxc_progress *progress, uint64_t done, uint64_t total) {
    if (!due(progress))
        return;
    char a[16], b[16], text[96];
    double seconds = (double)(progress->shown_ns - progress->started_ns) * 1e-9;
    mxc_term_size(done, a);
    if (total)
        (void)snprintf(text, sizeof text, "%3.0f %%  %s of %s  %.1f MB/s",
                       100 * (double)done / (double)total, a, mxc_term_size(total, b),
                       (double)done / seconds / 1e6);
    else
        (void)snprintf(text, sizeof text, "%s  %.1f MB/s", a, (double)done / seconds / 1e6);
    show(progress, text);
}

void mxc_progress_fraction(struct mxc_progress *progress, double fraction) {
    if (!due(progress))
        return;
    char text[16];
    (void)snprintf(text, sizeof text, "%3.0f %%", 100 * fraction);
    show(progress, text);
}

void mxc_progress_done(struct mxc_progress *progress) {
    if (progress->visible && mxc_term_is_tty(STDERR_FILENO))
        (void)fputs("\r\033[K", stderr);
    progress->visible = false;
}

static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (++interrupts > 1)
        _exit(130);
}

void mxc_term_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

bool mxc_term_interrupted(void) {
    return interrupts > 0;
}

void mxc_term_clear_interrupt(void) {
    interrupts = 0;
}

uint64_t mxc_term_peak_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

json_t *mxc_term_json(const char *text) {
    struct mxc_buf buf;
    uint32_t cp;
    size_t length = strlen(text), n;
    mxc_buf_init(&buf, SIZE_MAX / 2);
    for (size_t i = 0; (n = mxc_utf8_decode(text + i, length - i, &cp)); i += n)
        (void)mxc_buf_utf8(&buf, cp == UINT32_MAX ? 0xFFFD : cp);
    json_t *value = buf.failed ? NULL : json_stringn(mxc_buf_text(&buf), buf.length);
    mxc_buf_fini(&buf);
    return value;
}

int mxc_term_put_json(json_t *value) {
    char *text = value ? mxc_json_dump(value) : NULL;
    json_decref(value);
    if (!text)
        return mxc_term_error("out of memory");
    (void)puts(text);
    mxc_mem_free(text);
    return 0;
}

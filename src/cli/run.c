/* mlxcel run: a conversation on a terminal, or one answer with -p, -f or when standard input is not
 * a terminal.
 * In: the command line, then lines edited by libedit, with a history file under MLXCEL_CACHE_DIR or
 * ~/.cache/mlxcel. Out: answers on standard output, notes on standard error.
 * Invariant: the list of messages is what the model has seen as a conversation: a turn that failed
 * takes its question out again, so the next turn starts from a whole one.
 * Ctrl-C stops the answer that runs, or at the prompt the program (130). */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/session.h"
#include "cli/term.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000, MAX_LINE = 1 << 20 };

struct repl {
    struct mxc_session *session;
    json_t *messages;
    EditLine *el;
    History *history;
    char *history_path; /* NULL: none */
    bool continued;     /* the line before ended with a backslash */
};

/* libedit hands the prompt no user pointer through its public getter, so the client data is it. */
static char *prompt_text(EditLine *el) {
    static char first[] = ">>> ", more[] = "... ";
    struct repl *r = NULL;
    (void)el_get(el, EL_CLIENTDATA, &r);
    return r && r->continued ? more : first;
}

static char *find_history_path(void) {
    const char *cache = getenv("MLXCEL_CACHE_DIR"), *home = getenv("HOME");
    char *dir = cache ? mxc_mem_strdup(cache) : home ? mxc_path_join(home, ".cache/mlxcel") : NULL;
    char *path = dir && !mxc_dir_make(dir, NULL) ? mxc_path_join(dir, "history") : NULL;
    mxc_mem_free(dir);
    return path;
}

static bool repl_open(struct repl *r, struct mxc_session *session) {
    HistEvent event;
    *r = (struct repl){.session = session, .messages = json_array()};
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8"); /* else line editing drops what is not ASCII */
    r->el = el_init("mlxcel", stdin, stdout, stderr);
    r->history = history_init();
    if (!r->messages || !r->el || !r->history)
        return false;
    (void)history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(r->history, &event, H_SETUNIQUE, 1);
    (void)el_set(r->el, EL_CLIENTDATA, r);
    (void)el_set(r->el, EL_PROMPT, prompt_text);
    (void)el_set(r->el, EL_EDITOR, "emacs");
    (void)el_set(r->el, EL_HIST, history, r->history);
    if ((r->history_path = find_history_path()))
        (void)history(r->history, &event, H_LOAD, r->history_path);
    return true;
}

static void repl_close(struct repl *r) {
    HistEvent event;
    if (r->history && r->history_path)
        (void)history(r->history, &event, H_SAVE, r->history_path);
    if (r->history)
        history_end(r->history);
    if (r->el)
        el_end(r->el);
    mxc_mem_free(r->history_path);
    json_decref(r->messages);
}

/* One entry: lines that end with a backslash go on. NULL: end of input or Ctrl-C. */
static char *read_entry(struct repl *r) {
    struct mxc_buf entry;
    HistEvent event;
    mxc_buf_init(&entry, MAX_LINE);
    r->continued = false;
    for (;;) {
        int length = 0;
        errno = 0;
        const char *line = el_gets(r->el, &length);
        if (!line || length <= 0 || mxc_term_interrupted()) {
            mxc_buf_fini(&entry);
            return NULL;
        }
        size_t n = (size_t)length;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        bool more = n && line[n - 1] == '\\';
        (void)mxc_buf_append(&entry, line, more ? n - 1 : n);
        if (!more)
            break;
        (void)mxc_buf_putc(&entry, '\n');
        r->continued = true;
    }
    if (entry.length)
        (void)history(r->history, &event, H_ENTER, mxc_buf_text(&entry));
    return mxc_buf_take(&entry);
}

static bool reset_messages(struct repl *r) {
    const char *system = r->session->system;
    return !json_array_clear(r->messages) &&
           (!system || !json_array_append_new(
                           r->messages, mxc_session_message("system", system, strlen(system))));
}

/* A line that starts with '/'. false: leave. */
static bool command(struct repl *r, const char *line) {
    if (!strcmp(line, "/exit") || !strcmp(line, "/bye") || !strcmp(line, "/quit"))
        return false;
    if (!strcmp(line, "/clear")) {
        if (!reset_messages(r))
            (void)mxc_term_error("out of memory");
        else
            mxc_term_note("the conversation is empty");
    } else if (!strcmp(line, "/stats")) {
        r->session->stats = !r->session->stats;
        mxc_term_note("figures are %s", r->session->stats ? "on" : "off");
    } else {
        if (strcmp(line, "/help") != 0)
            mxc_term_note("unknown command %s", line);
        mxc_term_note("/clear  forget the conversation\n/stats  figures on or off\n"
                      "/exit   leave (also Ctrl-D)\nA line that ends with \\ goes on.");
    }
    return true;
}

static int turn(struct repl *r, const char *line) {
    struct mxc_answer answer;
    mxc_answer_init(&answer);
    int status = 0;
    if (json_array_append_new(r->messages, mxc_session_user(r->session, r->messages, line))) {
        (void)mxc_term_error("the line is not valid UTF-8");
        goto out;
    }
    status = r->session->no_chat_template
                 ? mxc_session_answer(r->session, NULL, line, &answer)
                 : mxc_session_answer(r->session, r->messages, NULL, &answer);
    size_t last = json_array_size(r->messages);
    if (status || r->session->no_chat_template ||
        json_array_append_new(
            r->messages,
            mxc_session_message("assistant", mxc_buf_text(&answer.text), answer.text.length)))
        (void)json_array_remove(r->messages, last - 1);
    mxc_term_clear_interrupt();
out:
    mxc_answer_fini(&answer);
    return status;
}

static int converse(struct mxc_session *session) {
    struct repl r;
    int status = 0;
    if (!repl_open(&r, session) || !reset_messages(&r)) {
        repl_close(&r);
        return mxc_term_error("cannot set up line editing");
    }
    mxc_term_note("Ctrl-C stops an answer, Ctrl-D leaves, /help tells more");
    for (;;) {
        mxc_term_clear_interrupt();
        char *line = read_entry(&r);
        if (!line)
            break;
        bool go_on = true;
        if (*line == '/')
            go_on = command(&r, line);
        else if (*line)
            (void)turn(&r, line); /* a failed turn was reported; the conversation goes on */
        mxc_mem_free(line);
        if (!go_on)
            break;
    }
    if (mxc_term_interrupted())
        status = 130;
    (void)putchar('\n');
    repl_close(&r);
    return status;
}

static int run(int argc, char **argv) {
    struct mxc_session s;
    bool exit_now;
    int status = mxc_session_parse(&s, &mxc_command_run, argc, argv, &exit_now);
    if (status || exit_now)
        return status;
    bool one_shot = s.prompt || s.file || !mxc_term_is_tty(STDIN_FILENO);
    if (s.json && !one_shot)
        return mxc_term_usage(s.command->name, "--json needs --prompt, --file or standard input");
    status = mxc_session_open(&s);
    if (!status)
        status = one_shot ? mxc_session_one_shot(&s) : converse(&s);
    mxc_session_fini(&s);
    return status;
}

const struct mxc_command mxc_command_run = {"run", "MODEL [options]",
                                            "talk to a model, or answer one prompt with -p", run};

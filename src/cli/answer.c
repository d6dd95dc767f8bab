/* Answer: submits one request, prints what streams back, and tells the figures.
 * In: an engine, a request, how to print. Out: text on standard output as it comes, the whole
 * answer in struct mxc_answer, an exit status.
 * Ctrl-C, or a standard output that cannot be written, cancels the request; the loop still runs to
 * its DONE event, so that the engine is never left with a request nobody reads. It wakes ten times
 * a second to see them.
 * With --json nothing streams: the object is printed at the end. */
#define _GNU_SOURCE
#include "cli/answer.h"

#include "base/json.h"
#include "cli/term.h"

#include <stdio.h>
#include <unistd.h>

enum { MAX_TEXT = 64 << 20 };

void mxc_answer_init(struct mxc_answer *answer) {
    *answer = (struct mxc_answer){0};
    mxc_buf_init(&answer->text, MAX_TEXT);
    mxc_buf_init(&answer->reasoning, MAX_TEXT);
}

void mxc_answer_fini(struct mxc_answer *answer) {
    mxc_buf_fini(&answer->text);
    mxc_buf_fini(&answer->reasoning);
}

static void print_text(const struct mxc_answer_options *o, const struct mlxcel_event *e) {
    if (o->json || o->quiet)
        return;
    if (o->show_reasoning && e->reasoning_length) {
        (void)fputs(mxc_term_dim(STDOUT_FILENO), stdout);
        (void)fwrite(e->reasoning, 1, e->reasoning_length, stdout);
        (void)fputs(mxc_term_reset(STDOUT_FILENO), stdout);
    }
    (void)fwrite(e->text, 1, e->text_length, stdout);
    (void)fflush(stdout);
}

static void done(struct mxc_answer *a, const struct mlxcel_event *e) {
    a->finish = e->finish;
    a->queue_seconds = e->queue_seconds;
    a->prompt_seconds = e->prompt_seconds;
    a->generate_seconds = e->generate_seconds;
}

int mxc_answer_run(struct mlxcel_engine *engine, const struct mlxcel_request *request,
                   const struct mxc_answer_options *options, struct mxc_answer *answer) {
    struct mlxcel_error error;
    struct mlxcel_event e;
    struct mxc_progress progress;
    uint64_t id;
    bool cancelled = false, ended_line = true;
    mxc_progress_start(&progress, "reading the prompt");
    if (mlxcel_engine_submit(engine, request, &id, &error)) {
        int status = mxc_term_fail(&error);
        if (error.status == MLXCEL_TEMPLATE)
            mxc_term_note("--no-chat-template completes the prompt as raw text");
        return status;
    }
    for (;;) {
        if ((mxc_term_interrupted() || ferror(stdout)) && !cancelled) {
            mlxcel_engine_cancel(engine, id);
            cancelled = true;
        }
        if (!mlxcel_engine_next(engine, 100, &e) || e.request != id)
            continue;
        answer->n_prompt = e.n_prompt;
        answer->n_cached = e.n_cached;
        answer->n_generated = e.n_generated;
        if (e.type == MLXCEL_EVENT_PROMPT && e.n_prompt_done < e.n_prompt) {
            mxc_progress_fraction(&progress, (double)e.n_prompt_done / (double)e.n_prompt);
            continue;
        }
        mxc_progress_done(&progress);
        if (e.type == MLXCEL_EVENT_DONE)
            break;
        if (e.type != MLXCEL_EVENT_TEXT)
            continue;
        (void)mxc_buf_append(&answer->text, e.text, e.text_length);
        (void)mxc_buf_append(&answer->reasoning, e.reasoning, e.reasoning_length);
        if (e.text_length)
            ended_line = e.text[e.text_length - 1] == '\n';
        print_text(options, &e);
    }
    done(answer, &e);
    if (!options->json && !options->quiet && !ended_line)
        (void)putchar('\n');
    (void)fflush(stdout);
    if (e.finish == MLXCEL_FINISH_ERROR)
        return mxc_term_fail(&e.error);
    return 0;
}

static double rate(int64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

void mxc_answer_stats(const struct mlxcel_model *model, const struct mxc_answer *a) {
    struct mlxcel_model_info info;
    char peak[16];
    mlxcel_model_info(model, &info);
    mxc_term_note("load %.2f s | prompt %lld tokens, %.1f tokens/s | generated %lld tokens, "
                  "%.1f tokens/s | peak memory %s",
                  info.load_seconds, (long long)a->n_prompt,
                  rate(a->n_prompt - a->n_cached, a->prompt_seconds), (long long)a->n_generated,
                  rate(a->n_generated - 1, a->generate_seconds),
                  mxc_term_size(mxc_term_peak_bytes(), peak));
}

static const char *finish_name(mlxcel_finish finish) {
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return names[finish];
}

int mxc_answer_json(const struct mlxcel_model *model, const struct mxc_answer *a) {
    struct mlxcel_model_info info;
    mlxcel_model_info(model, &info);
    json_t *o = json_pack(
        "{s:s%, s:s%, s:s, s:{s:I, s:I, s:I}, s:{s:f, s:f, s:f, s:f}, s:I}", "text",
        mxc_buf_text(&a->text), a->text.length, "reasoning", mxc_buf_text(&a->reasoning),
        a->reasoning.length, "finish_reason", finish_name(a->finish), "usage", "prompt_tokens",
        (json_int_t)a->n_prompt, "cached_tokens", (json_int_t)a->n_cached, "completion_tokens",
        (json_int_t)a->n_generated, "timings", "load_seconds", info.load_seconds, "queue_seconds",
        a->queue_seconds, "prompt_seconds", a->prompt_seconds, "generate_seconds",
        a->generate_seconds, "peak_memory_bytes", (json_int_t)mxc_term_peak_bytes());
    return mxc_term_put_json(o);
}

/* The fake job of fake.h. */
#define _GNU_SOURCE
#include "fake.h"

#include "base/mem.h"
#include "server/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *fake_quotes(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    assert_non_null(copy);
    for (size_t i = 0; i <= strlen(text); i++)
        copy[i] = text[i] == '\'' ? '"' : text[i];
    return copy;
}

json_t *fake_json(const char *text) {
    char *copy = fake_quotes(text);
    json_error_t why;
    json_t *value = json_loads(copy, JSON_DECODE_ANY, &why);
    if (!value)
        fail_msg("%s: %s", copy, why.text);
    free(copy);
    return value;
}

static const char *const replacements[] = {"null", "5", "\"x\"", "[]", "[[]]", "{}", "true"};
enum { N_REPLACEMENTS = sizeof replacements / sizeof *replacements };

static size_t mutate(json_t *root, json_t *at, void (*check)(const json_t *request)) {
    size_t n = 0, i;
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(at, next, key, value) {
        json_t *kept = json_incref(value);
        n += mutate(root, value, check);
        for (i = 0; i < N_REPLACEMENTS; i++, n++) {
            json_t *other = json_loads(replacements[i], JSON_DECODE_ANY, NULL);
            assert_int_equal(json_object_set_new(at, key, other), 0);
            check(root);
        }
        assert_int_equal(json_object_set_new(at, key, kept), 0);
    }
    json_array_foreach(at, i, value) {
        json_t *kept = json_incref(value);
        n += mutate(root, value, check);
        for (size_t k = 0; k < N_REPLACEMENTS; k++, n++) {
            json_t *other = json_loads(replacements[k], JSON_DECODE_ANY, NULL);
            assert_int_equal(json_array_set_new(at, i, other), 0);
            check(root);
        }
        assert_int_equal(json_array_set_new(at, i, kept), 0);
    }
    return n;
}

size_t fake_mutate(json_t *request, void (*check)(const json_t *request)) {
    return mutate(request, request, check);
}

void fake_expect_fault(enum mxc_code code, const struct mxc_fault *fault, const json_t *request) {
    size_t n = strlen(fault->param);
    if ((code != MXC_E_ARG && code != MXC_E_UNSUPPORTED) || mxc_fault_http(fault) != 400 || !n ||
        strncmp(fault->err.message, fault->param, n) != 0)
        fail_msg("%s: %d \"%s\" of \"%s\"", json_dumps(request, 0), code, fault->err.message,
                 fault->param);
}

void fake_init(struct fake *f, const struct mxc_format *format, const char *id, void *state) {
    *f = (struct fake){.x = {.id = "req_1"}};
    f->job = (struct mxc_job){.x = &f->x,
                              .format = format,
                              .state = state,
                              .created = 1700000000,
                              .choices = &f->choice,
                              .n_choices = 1,
                              .n_prompts = 1};
    (void)snprintf(f->job.id, sizeof f->job.id, "%s", id);
    f->job.params.info.name = "tiny";
    f->job.params.gen.request.sampling.temperature = 0.8F;
    f->job.params.gen.request.sampling.top_p = 1;
    f->choice = (struct mxc_choice){.job = &f->job, .stop = -1};
    mxc_buf_init(&f->choice.answer, 1 << 20);
    mxc_buf_init(&f->choice.thought, 1 << 20);
    mxc_buf_init(&f->out, 1 << 20);
}

void fake_fini(struct fake *f) {
    for (size_t i = 0; i < f->choice.n_calls; i++) {
        mxc_mem_free(f->choice.calls[i].id);
        mxc_mem_free(f->choice.calls[i].name);
        mxc_buf_fini(&f->choice.calls[i].arguments);
    }
    mxc_mem_free(f->choice.calls);
    mxc_buf_fini(&f->choice.answer);
    mxc_buf_fini(&f->choice.thought);
    mxc_buf_fini(&f->out);
    f->job.format->free_state(f->job.state);
}

static void keep(struct mxc_choice *c, const struct fake_delta *d) {
    if (d->kind == MXC_DELTA_TEXT)
        assert_true(mxc_buf_puts(&c->answer, d->text));
    if (d->kind == MXC_DELTA_THOUGHT)
        assert_true(mxc_buf_puts(&c->thought, d->text));
    if (d->kind == MXC_DELTA_ARGUMENTS)
        assert_true(mxc_buf_puts(&c->calls[d->call].arguments, d->text));
    if (d->kind != MXC_DELTA_CALL)
        return;
    c->calls = mxc_mem_realloc(c->calls, c->n_calls + 1, sizeof *c->calls);
    assert_non_null(c->calls);
    c->calls[c->n_calls] =
        (struct mxc_call){.id = mxc_mem_strdup(d->id), .name = mxc_mem_strdup(d->name)};
    mxc_buf_init(&c->calls[c->n_calls++].arguments, 1 << 20);
}

void fake_say(struct fake *f, const struct fake_delta *deltas, size_t n, bool stream) {
    for (size_t i = 0; i < n; i++) {
        const struct fake_delta *d = &deltas[i];
        char *text = fake_quotes(d->text ? d->text : "");
        const struct fake_delta quoted = {d->kind, text, d->call, d->id, d->name};
        const struct mxc_delta delta = {.kind = d->kind,
                                        .text = mxc_str_of(text),
                                        .call = d->call,
                                        .call_id = d->id,
                                        .call_name = d->name};
        keep(&f->choice, &quoted);
        if (stream)
            f->job.format->delta(&f->job, &f->choice, &delta, &f->out);
        free(text);
    }
}

void fake_finish(struct fake *f, enum mxc_done_reason reason, int stop, bool stream) {
    f->choice.finished = true;
    f->choice.reason = reason;
    f->choice.stop = stop;
    f->choice.stats.n_prompt = 10;
    f->choice.stats.n_cached = 4;
    f->choice.stats.n_generated = 5;
    if (stream) {
        f->job.format->done(&f->job, &f->choice, &f->out);
        f->job.format->end(&f->job, &f->out);
    } else {
        f->job.format->whole(&f->job, &f->out);
    }
}

void fake_expect(struct fake *f, const char *wanted) {
    char *text = fake_quotes(wanted);
    assert_false(f->out.failed);
    assert_string_equal(mxc_buf_text(&f->out), text);
    free(text);
    mxc_buf_clear(&f->out);
}

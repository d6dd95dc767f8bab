/* A job without a server: what a model would have said goes through a format as the real job sends
 * it, and comes out as text. JSON in tests is written with ' for ". */
#ifndef MXC_TESTS_SERVER_FAKE_H
#define MXC_TESTS_SERVER_FAKE_H

#include "test.h"

#include "server/job.h"

struct fake_delta {
    enum mxc_delta_kind kind;
    const char *text;
    size_t call;
    const char *id, *name; /* of MXC_DELTA_CALL */
};

struct fake {
    struct mxc_exchange x;
    struct mxc_job job;
    struct mxc_choice choice;
    struct mxc_buf out;
};

/* Quotes exchanged; the caller frees it with free. */
char *fake_quotes(const char *text);
json_t *fake_json(const char *text);
/* Calls check with the request once per value in it and replacement: null, a number, text, a list,
 * an object, true, and the value left out. Returns how many that were. */
size_t fake_mutate(json_t *request, void (*check)(const json_t *request));
/* A fault of a request: 400, and it names a field at the beginning of its message. */
void fake_expect_fault(enum mxc_code code, const struct mxc_fault *fault, const json_t *request);
/* Moves state in. */
void fake_init(struct fake *fake, const struct mxc_format *format, const char *id, void *state);
void fake_fini(struct fake *fake);
/* Keeps the texts; with the format's delta function when the job streams. */
void fake_say(struct fake *fake, const struct fake_delta *deltas, size_t n, bool stream);
/* The end, with 10 prompt tokens of which 4 were cached, and 5 generated ones. */
void fake_finish(struct fake *fake, enum mxc_done_reason reason, int stop, bool stream);
/* The output is exactly this text, with ' for ". */
void fake_expect(struct fake *fake, const char *wanted);

#endif

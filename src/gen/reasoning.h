/* Reasoning: splits streamed text into what stands between a model's thinking marks and the answer.
 * A mark opens only where nothing but white space was said before, so an answer may speak about the
 * marks; text without an opening mark comes out byte for byte. White space around the marks belongs
 * to neither part. One stream, one thread. */
#ifndef MXC_GEN_REASONING_H
#define MXC_GEN_REASONING_H

#include "base/buf.h"
#include "base/str.h"

#include <stdbool.h>

enum { MXC_MAX_MARK_TOKENS = 8 };
struct mxc_reasoning_marks { /* all static */
    const char *open, *close;
    /* gpt-oss: every message has a header "<|channel|>analysis<|message|>" and the like. Messages
     * to functions come out in the answer as "<|channel|>commentary
     * to=NAME<|message|>{...}<|call|>", whatever the order of the header was; the shape "harmony"
     * of tools.h reads them. */
    bool channels;
    const char *shown[MXC_MAX_MARK_TOKENS]; /* special tokens of the marks, other than the marks */
};
/* The marks that a chat template (or, when it shows none, a vocabulary) speaks of; NULL: none.
 * has_token may be NULL. */
const struct mxc_reasoning_marks *
mxc_reasoning_find(struct mxc_str template_text,
                   bool (*has_token)(void *user, const char *spelling), void *user);
/* Whether a prompt leaves the model inside an open mark: it ends with it, white space apart. */
bool mxc_reasoning_is_open(const struct mxc_reasoning_marks *marks, struct mxc_str prompt);

struct mxc_reasoning {
    const struct mxc_reasoning_marks *marks; /* NULL: everything is answer */
    bool inside;
    bool answered; /* something other than white space came outside of marks */
    bool closed;   /* a mark was closed: white space before the answer is dropped */
    bool started;  /* inside: something other than white space came */
    struct mxc_buf held;
    unsigned char state; /* from here on: channels */
    bool to_function, has_answer, has_thought, apart;
};

/* inside: the prompt ended with an open mark. */
void mxc_reasoning_init(struct mxc_reasoning *split, const struct mxc_reasoning_marks *marks,
                        bool inside);
void mxc_reasoning_fini(struct mxc_reasoning *split);
/* Appends what is certain to answer and thought. */
enum mxc_code mxc_reasoning_push(struct mxc_reasoning *split, const char *text, size_t length,
                                 struct mxc_buf *answer, struct mxc_buf *thought,
                                 struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_reasoning_finish(struct mxc_reasoning *split, struct mxc_buf *answer,
                                   struct mxc_buf *thought, struct mxc_err *err) MXC_MUST;

/* Of one text that is read on, for marks with channels: how many bytes are dealt with. (channels.c)
 */
size_t mxc_channels_consume(struct mxc_reasoning *split, const char *text, size_t length, bool more,
                            struct mxc_buf *answer, struct mxc_buf *thought);

#endif

/* Inside of the tokeniser: decoders as one plan that works token by token, so that whole and
 * streamed decoding are the same code. */
#ifndef MXC_TEXT_DECODE_PLAN_H
#define MXC_TEXT_DECODE_PLAN_H

#include "base/buf.h"
#include "base/tokdesc.h"

enum mxc_decode_mode { MXC_DECODE_PLAIN, MXC_DECODE_BYTE_LEVEL, MXC_DECODE_BYTE_FALLBACK };

struct mxc_decode_plan {
    const struct mxc_tok_step *texts[8]; /* steps on the text of one token, in order; borrowed */
    size_t n_texts;
    enum mxc_decode_mode mode;
    bool join_spaces;     /* no decoder at all */
    bool hold_space;      /* a space at the end of a token waits for the next token */
    bool drop_repeats;    /* a token like the one before gives nothing */
    bool strip_tokens;    /* the strip is for the first token, unless it is a byte or unknown */
    bool strip_again;     /* and for the next while there is no text */
    bool whole_runs;      /* a malformed run of byte tokens is spoiled as a whole */
    struct mxc_str strip; /* one character */
    uint32_t n_strip;     /* how many of it are dropped at the beginning */
};

/* MXC_E_UNSUPPORTED names the decoder that does not fit. desc is borrowed. */
enum mxc_code mxc_decode_plan_init(struct mxc_decode_plan *plan, const struct mxc_tokdesc *desc,
                                   struct mxc_err *err) MXC_MUST;
/* Appends the bytes of one token after the per-token steps; *is_byte: it is one byte of a run.
 * first: no token came before. */
void mxc_decode_plan_token(const struct mxc_decode_plan *plan, const struct mxc_tokdesc *desc,
                           uint32_t id, bool first, struct mxc_buf *out, bool *is_byte);

#endif

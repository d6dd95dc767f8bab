/* Deltas: token ids of one answer to text deltas. Decoding holds unfinished characters back, stop
 * strings are looked for in the raw text (also inside a thought), then reasoning is split off. All
 * deltas joined equal what the whole answer would give at once, and each is valid UTF-8. One
 * answer, one thread. */
#ifndef MXC_GEN_DELTAS_H
#define MXC_GEN_DELTAS_H

#include "gen/reasoning.h"
#include "gen/stops.h"
#include "text/tokenizer.h"

enum { MXC_MAX_SHOWN = 16 };

struct mxc_deltas_options {
    const char *const *stops;
    size_t n_stops;
    const struct mxc_reasoning_marks *marks; /* NULL: no split */
    bool inside;                             /* the prompt ended inside an open mark */
    bool keep_special;                       /* special tokens are text too */
    const char *const *shown;                /* spellings of special tokens that are, always */
    size_t n_shown;                          /* at most MXC_MAX_SHOWN are looked at */
};

struct mxc_deltas {
    const struct mxc_tokenizer *tokenizer;
    bool keep_special;
    struct {
        uint32_t id;
        const char *spelling;
    } shown[MXC_MAX_SHOWN + MXC_MAX_MARK_TOKENS + 2]; /* special tokens that are text */
    size_t n_shown;
    struct mxc_decode_stream decode;
    struct mxc_stops stops;
    struct mxc_reasoning split;
    struct mxc_buf raw, cut;        /* between the stages */
    struct mxc_buf answer, thought; /* the delta; valid until the next call */
};

enum mxc_code mxc_deltas_init(struct mxc_deltas *deltas, const struct mxc_tokenizer *tokenizer,
                              const struct mxc_deltas_options *options,
                              struct mxc_err *err) MXC_MUST;
void mxc_deltas_fini(struct mxc_deltas *deltas);
/* Puts what became certain into answer and thought (empty before). *stopped: a stop string was
 * found, the answer is complete, and its index is deltas->stops.hit. */
enum mxc_code mxc_deltas_push(struct mxc_deltas *deltas, uint32_t id, bool *stopped,
                              struct mxc_err *err) MXC_MUST;
/* The last token has been pushed: what was withheld comes out. A stop string may still be found. */
enum mxc_code mxc_deltas_finish(struct mxc_deltas *deltas, bool *stopped,
                                struct mxc_err *err) MXC_MUST;

#endif

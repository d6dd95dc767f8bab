/* Pre-tokenisers: cut a text into pieces that the model sees one by one. A plan is immutable. */
#ifndef MXC_TEXT_PRETOK_H
#define MXC_TEXT_PRETOK_H

#include "text/normalize.h"

struct mxc_pretok;

struct mxc_piece {
    uint32_t start, length; /* bytes of the text */
};

struct mxc_pieces {
    struct mxc_piece *items;
    size_t count, capacity;
};

/* Per-call scratch; zero it to begin with. */
struct mxc_pretok_scratch {
    struct mxc_pieces pieces, spare;
    struct mxc_text spare_text; /* not tagged */
    uint8_t *classes;
    size_t classes_capacity;
};

void mxc_pretok_scratch_fini(struct mxc_pretok_scratch *scratch);

enum mxc_code mxc_pretok_new(const struct mxc_tok_steps *steps, struct mxc_pretok **out,
                             struct mxc_err *err) MXC_MUST;
void mxc_pretok_free(struct mxc_pretok *pretok);
/* Cuts text into scratch->pieces; the text may be rewritten (prefix spaces, U+2581). at_start: the
 * text is the beginning of the whole input. No piece is empty. text->length < 2^31. */
enum mxc_code mxc_pretok_run(const struct mxc_pretok *pretok, struct mxc_text *text, bool at_start,
                             struct mxc_pretok_scratch *scratch, struct mxc_regex_scratch *regex,
                             struct mxc_err *err) MXC_MUST;

#endif

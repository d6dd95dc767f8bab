/* Inside of the tokeniser: what its files share. */
#ifndef MXC_TEXT_TOKENIZER_PRIV_H
#define MXC_TEXT_TOKENIZER_PRIV_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decode_plan.h"
#include "text/normalize.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

struct mxc_tokenizer {
    struct mxc_tokdesc desc;
    struct mxc_normalizer *normalizer;
    struct mxc_pretok *pretok;
    struct mxc_bpe *bpe; /* one of these three, by desc.model */
    struct mxc_unigram *unigram;
    struct mxc_wordpiece *wordpiece;
    struct mxc_added *raw;        /* matched before normalisation */
    struct mxc_added *normalized; /* matched after, by their normalised text */
    uint8_t *flags;               /* per id: FLAG_* */
    struct mxc_decode_plan plan;
};

enum { MXC_FLAG_SPECIAL = 1, MXC_FLAG_CONTROL = 2 };

/* Length of the well-formed prefix (*valid), or of the malformed sequence at the start. n > 0. */
size_t mxc_decode_scan(const char *bytes, size_t n, bool *valid);

#endif

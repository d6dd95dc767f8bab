/* Unigram: a piece of text to the ids of its most probable cut. Linear in the length of the piece.
 * Immutable; scratch is per call.
 *
 * The path is that of `tokenizers` (sums in double precision, of equal sums the one whose last
 * token begins first; runs of unknown characters are one unknown token), or, for a description that
 * says sentencepiece, that library's (sums kept in single precision, user-defined tokens
 * preferred). Unknown characters cost 10 more than the worst token. */
#ifndef MXC_TEXT_UNIGRAM_H
#define MXC_TEXT_UNIGRAM_H

#include "base/tokdesc.h"
#include "text/ids.h"

struct mxc_unigram;
struct mxc_unigram_scratch;

/* desc is borrowed. Special tokens never come out of it. */
enum mxc_code mxc_unigram_new(const struct mxc_tokdesc *desc, struct mxc_unigram **out,
                              struct mxc_err *err) MXC_MUST;
void mxc_unigram_free(struct mxc_unigram *unigram);
enum mxc_code mxc_unigram_scratch_new(struct mxc_unigram_scratch **out,
                                      struct mxc_err *err) MXC_MUST;
void mxc_unigram_scratch_free(struct mxc_unigram_scratch *scratch);
/* Appends the ids of text (well-formed UTF-8, shorter than 2^31). MXC_E_FORMAT: an unknown
 * character, and the vocabulary has no unknown token. */
enum mxc_code mxc_unigram_encode(const struct mxc_unigram *unigram,
                                 struct mxc_unigram_scratch *scratch, const char *text,
                                 size_t length, struct mxc_ids *ids, struct mxc_err *err) MXC_MUST;
/* Steps of the walk so far: what the work is counted in by tests. */
uint64_t mxc_unigram_steps(const struct mxc_unigram_scratch *scratch);

#endif

/* Merging: one piece of text to ids, by BPE ranks or by sentencepiece scores. O(n log n) in the
 * length of a piece. Immutable; scratch is per call. */
#ifndef MXC_TEXT_BPE_H
#define MXC_TEXT_BPE_H

#include "base/tokdesc.h"
#include "text/ids.h"

struct mxc_bpe;

struct mxc_bpe_scratch;

/* desc is borrowed and must outlive the result. Control tokens never come out of merging. */
enum mxc_code mxc_bpe_new(const struct mxc_tokdesc *desc, struct mxc_bpe **out,
                          struct mxc_err *err) MXC_MUST;
void mxc_bpe_free(struct mxc_bpe *bpe);
/* text_bytes: length of all text to come, a hint for the size of the word cache. */
enum mxc_code mxc_bpe_scratch_new(size_t text_bytes, struct mxc_bpe_scratch **out,
                                  struct mxc_err *err) MXC_MUST;
void mxc_bpe_scratch_free(struct mxc_bpe_scratch *scratch);
/* Pairs looked at so far (n * n for short pieces): what the work is counted in by tests. */
uint64_t mxc_bpe_steps(const struct mxc_bpe_scratch *scratch);
/* Appends the ids of text (well-formed UTF-8, not empty, shorter than 2^31). */
enum mxc_code mxc_bpe_encode(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *scratch,
                             const char *text, size_t length, struct mxc_ids *ids,
                             struct mxc_err *err) MXC_MUST;

#endif

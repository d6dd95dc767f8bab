/* Inside of the normaliser: the steps that use a precompiled character map. */
#ifndef MXC_TEXT_NORMALIZE_MAP_H
#define MXC_TEXT_NORMALIZE_MAP_H

#include "text/charsmap.h"
#include "text/normalize.h"
#include "text/trie.h"

/* Appends the mapped text to out: clusters of fewer than 6 bytes as a whole by the shortest key at
 * their start, else character by character, as `tokenizers` does. */
void mxc_normalize_charsmap(const struct mxc_charsmap *map, const struct mxc_text *in,
                            struct mxc_text *out);
/* Appends the text as sentencepiece normalises it. map and kept may be NULL. */
void mxc_normalize_spm(const struct mxc_tok_step *step, const struct mxc_charsmap *map,
                       const struct mxc_trie *kept, const struct mxc_text *in,
                       struct mxc_text *out);

#endif

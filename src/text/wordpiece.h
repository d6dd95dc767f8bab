/* WordPiece and WordLevel: one word to ids, by the longest token that begins it, then the longest
 * ones that continue it; a word that cannot be cut to its end, or has more than max_word_chars
 * characters, is one unknown token. WordLevel: the word as it is, or unknown. Immutable. */
#ifndef MXC_TEXT_WORDPIECE_H
#define MXC_TEXT_WORDPIECE_H

#include "base/tokdesc.h"
#include "text/ids.h"

struct mxc_wordpiece;

/* desc is borrowed. Special tokens never come out of it, the unknown token apart. */
enum mxc_code mxc_wordpiece_new(const struct mxc_tokdesc *desc, struct mxc_wordpiece **out,
                                struct mxc_err *err) MXC_MUST;
void mxc_wordpiece_free(struct mxc_wordpiece *wordpiece);
/* Appends the ids of a word (well-formed UTF-8, not empty). MXC_E_FORMAT: it is unknown, and the
 * vocabulary has no unknown token. */
enum mxc_code mxc_wordpiece_encode(const struct mxc_wordpiece *wordpiece, const char *text,
                                   size_t length, struct mxc_ids *ids,
                                   struct mxc_err *err) MXC_MUST;

#endif

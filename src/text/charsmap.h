/* The precompiled character map of sentencepiece: what begins a text is replaced by another text.
 * Format: 4 bytes length of a double-array trie (little endian), its 32-bit units, and then the
 * replacements, each ended by a zero byte. Immutable. */
#ifndef MXC_TEXT_CHARSMAP_H
#define MXC_TEXT_CHARSMAP_H

#include "base/err.h"
#include "base/str.h"

struct mxc_charsmap;

/* Borrows nothing. MXC_E_FORMAT: sizes that do not fit, replacements that are not UTF-8 or longer
 * than 4096 bytes. Units are checked as they are used. */
enum mxc_code mxc_charsmap_new(struct mxc_str blob, struct mxc_charsmap **out,
                               struct mxc_err *err) MXC_MUST;
void mxc_charsmap_free(struct mxc_charsmap *map);
/* Longest (or shortest) key at the start of text: its length and what it becomes; 0: none. Keys are
 * looked for in the first 128 bytes. */
size_t mxc_charsmap_find(const struct mxc_charsmap *map, const char *text, size_t length,
                         bool shortest, struct mxc_str *replacement);

/* Length of the grapheme cluster (UAX 29) at the start of text; conjuncts of Indic scripts (rule
 * GB9c) are cut. length > 0. */
size_t mxc_grapheme_length(const char *text, size_t length);

#endif

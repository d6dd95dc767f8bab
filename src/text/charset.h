/* Sets of code points as sorted, disjoint ranges. Failure to allocate is sticky (failed). */
#ifndef MXC_TEXT_CHARSET_H
#define MXC_TEXT_CHARSET_H

#include "text/unicode.h"

struct mxc_charset {
    uint32_t *bounds; /* first and last of each range, both included */
    size_t n_ranges, capacity;
    bool failed;
};

void mxc_charset_init(struct mxc_charset *set);
void mxc_charset_fini(struct mxc_charset *set);
/* These append; call mxc_charset_settle before any use of the set. */
void mxc_charset_add(struct mxc_charset *set, uint32_t first, uint32_t last);
void mxc_charset_add_categories(struct mxc_charset *set, uint32_t mask);
void mxc_charset_add_property(struct mxc_charset *set, enum mxc_unicode_set property);
void mxc_charset_add_word(struct mxc_charset *set); /* as mxc_unicode_is_word */
void mxc_charset_add_set(struct mxc_charset *set, const struct mxc_charset *other);
/* Sorts and merges. */
void mxc_charset_settle(struct mxc_charset *set);
/* On settled sets; the result is settled. */
void mxc_charset_negate(struct mxc_charset *set);
void mxc_charset_close_case(struct mxc_charset *set); /* adds all case variants of its members */
bool mxc_charset_has(const struct mxc_charset *set, uint32_t cp);
bool mxc_charset_equal(const struct mxc_charset *a, const struct mxc_charset *b);

#endif

/* Added tokens: strings that are found in the text before the model sees it, leftmost and longest
 * first. Immutable. */
#ifndef MXC_TEXT_ADDED_H
#define MXC_TEXT_ADDED_H

#include "base/tokdesc.h"

struct mxc_added;

enum mxc_added_mode {
    MXC_ADDED_ALL,        /* control tokens only where no byte is tagged */
    MXC_ADDED_NO_CONTROL, /* all text is untrusted */
    MXC_ADDED_NO_SPECIAL  /* specials are plain text */
};

/* A token to match and the text it is matched by. */
struct mxc_added_entry {
    struct mxc_str text; /* not empty */
    const struct mxc_tok_added *token;
};

struct mxc_added_match {
    size_t start, end; /* with the white space that lstrip and rstrip take in */
    uint32_t id;
};

/* Texts are copied; tokens are borrowed and must outlive the result. */
enum mxc_code mxc_added_new(const struct mxc_added_entry *entries, size_t n, struct mxc_added **out,
                            struct mxc_err *err) MXC_MUST;
void mxc_added_free(struct mxc_added *added);
bool mxc_added_is_empty(const struct mxc_added *added);
/* The next match at or after from; *resume is where to search next time. tags: see normalize.h,
 * NULL: none. false: no more. */
bool mxc_added_next(const struct mxc_added *added, struct mxc_str text, const uint8_t *tags,
                    enum mxc_added_mode mode, size_t from, size_t done,
                    struct mxc_added_match *match, size_t *resume);

#endif

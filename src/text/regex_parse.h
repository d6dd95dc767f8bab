/* Inside of regex: the parser's product. */
#ifndef MXC_TEXT_REGEX_PARSE_H
#define MXC_TEXT_REGEX_PARSE_H

#include "base/buf.h"
#include "text/charset.h"

enum { MXC_REGEX_MAX_SETS = 128, MXC_REGEX_SET_MARK = 1 };

/* out holds PCRE2 syntax in which a set is the byte MXC_REGEX_SET_MARK and its index + 1. */
struct mxc_regex_parsed {
    struct mxc_buf out;
    struct mxc_charset sets[MXC_REGEX_MAX_SETS];
    size_t n_sets;
};

/* Call fini in any case. */
enum mxc_code mxc_regex_parse(struct mxc_str pattern, struct mxc_regex_parsed *parsed,
                              struct mxc_err *err) MXC_MUST;
void mxc_regex_parsed_fini(struct mxc_regex_parsed *parsed);

#endif

/* Regular expressions of tokenisers, read as Oniguruma (the reference's engine) reads them, run by
 * PCRE2 over character classes: every set of characters in a pattern is built from our Unicode 16
 * tables, code points that no set tells apart share one class (a byte), the text becomes a string
 * of classes, and PCRE2 matches bytes. So PCRE2's own Unicode version, its \s and its case rules
 * play no part. What Oniguruma and PCRE2 would read differently is translated or refused by name.
 * A regex is immutable and may be used from many threads, each with its own scratch. */
#ifndef MXC_TEXT_REGEX_H
#define MXC_TEXT_REGEX_H

#include "base/err.h"
#include "base/str.h"

struct mxc_regex;
struct mxc_regex_scratch;

/* MXC_E_FORMAT for a broken pattern, MXC_E_UNSUPPORTED for syntax that is named in the message. */
enum mxc_code mxc_regex_new(struct mxc_str pattern, struct mxc_regex **out,
                            struct mxc_err *err) MXC_MUST;
void mxc_regex_free(struct mxc_regex *regex);

enum mxc_code mxc_regex_scratch_new(struct mxc_regex_scratch **out, struct mxc_err *err) MXC_MUST;
void mxc_regex_scratch_free(struct mxc_regex_scratch *scratch);

/* One class per character of well-formed UTF-8; classes has room for length bytes. Returns the
 * number of characters. */
size_t mxc_regex_classify(const struct mxc_regex *regex, const char *text, size_t length,
                          uint8_t *classes);
/* First match at or after start within classes[0, n), in characters. Lookbehind sees what stands
 * before start. MXC_E_LIMIT when the pattern backtracks without end. */
enum mxc_code mxc_regex_next(const struct mxc_regex *regex, struct mxc_regex_scratch *scratch,
                             const uint8_t *classes, size_t n, size_t start, bool *found,
                             size_t *match_start, size_t *match_end, struct mxc_err *err) MXC_MUST;

#endif

/* Pull reader for large JSON files: a cursor over bytes in memory, no tree. Strings without escapes
 * are borrowed from the text, others are decoded into the reader's arena. Depth is bounded. After
 * an error the reader must not be used further. Messages begin with the name and carry the byte
 * position. */
#ifndef MXC_FORMAT_JSON_READER_H
#define MXC_FORMAT_JSON_READER_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

struct mxc_jr {
    const char *begin, *p, *end;
    const char *name;
    struct mxc_arena arena; /* decoded strings; the caller may empty it when it holds none */
    struct mxc_err *err;
};

void mxc_jr_init(struct mxc_jr *jr, const char *text, size_t length, const char *name,
                 struct mxc_err *err);
void mxc_jr_fini(struct mxc_jr *jr);

/* First byte of the next value or mark, white space passed over; 0 at the end. */
char mxc_jr_peek(struct mxc_jr *jr);
/* Opens an object or list: first is '{' or '['. */
enum mxc_code mxc_jr_open(struct mxc_jr *jr, char first) MXC_MUST;
/* In an object: the next key, *more false at its end (which is passed). count: members so far. */
enum mxc_code mxc_jr_key(struct mxc_jr *jr, size_t count, bool *more, struct mxc_str *key) MXC_MUST;
/* In a list: whether another element follows; passes the end. */
enum mxc_code mxc_jr_item(struct mxc_jr *jr, size_t count, bool *more) MXC_MUST;
enum mxc_code mxc_jr_string(struct mxc_jr *jr, struct mxc_str *out) MXC_MUST;
enum mxc_code mxc_jr_uint(struct mxc_jr *jr, uint64_t *out) MXC_MUST; /* below 2^53 */
enum mxc_code mxc_jr_bool(struct mxc_jr *jr, bool *out) MXC_MUST;
/* Passes over any value; *out (NULL is fine) is its text. */
enum mxc_code mxc_jr_skip(struct mxc_jr *jr, struct mxc_str *out) MXC_MUST;
/* MXC_E_FORMAT: what, at the current position. */
enum mxc_code mxc_jr_fail(struct mxc_jr *jr, const char *what);

#endif

/* Normalisers: Unicode forms, case, accents, replacement. Texts carry an optional tag per byte that
 * says which bytes came from untrusted input; a tag follows its character through every step, and
 * a character made of several is tagged when one of them was. */
#ifndef MXC_TEXT_NORMALIZE_H
#define MXC_TEXT_NORMALIZE_H

#include "base/tokdesc.h"
#include "text/regex.h"

/* Growing text of at most MXC_TEXT_MAX_BYTES. Failed appends are sticky, as in mxc_buf. */
enum { MXC_TEXT_MAX_BYTES = 1 << 30 };
struct mxc_text {
    char *data;
    uint8_t *tags; /* NULL unless tagged */
    size_t length, capacity;
    size_t max_bytes;          /* 0: MXC_TEXT_MAX_BYTES */
    bool tagged, failed, full; /* full: the maximum is why it failed */
};
/* MXC_OK, or MXC_E_LIMIT / MXC_E_NOMEM when an append failed. */
enum mxc_code mxc_text_status(const struct mxc_text *text, struct mxc_err *err) MXC_MUST;

void mxc_text_init(struct mxc_text *text, bool tagged);
void mxc_text_fini(struct mxc_text *text);
void mxc_text_clear(struct mxc_text *text); /* the maximum, too */
/* Clears text, which is to hold what a step makes of a text that had `origin` bytes in the
 * beginning: steps that make it longer and longer are stopped. */
void mxc_text_begin(struct mxc_text *text, size_t origin);
/* tags: one per byte, or NULL for all `tag`. */
void mxc_text_append(struct mxc_text *text, const char *bytes, size_t length, const uint8_t *tags,
                     uint8_t tag);

struct mxc_normalizer;

/* Borrows nothing of steps. */
enum mxc_code mxc_normalizer_new(const struct mxc_tok_steps *steps, struct mxc_normalizer **out,
                                 struct mxc_err *err) MXC_MUST;
void mxc_normalizer_free(struct mxc_normalizer *normalizer);
/* Keeps user-defined tokens of a sentencepiece model as they are (its character map leaves them
 * out). desc is not kept. */
enum mxc_code mxc_normalizer_protect(struct mxc_normalizer *normalizer,
                                     const struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;
/* Normalises text in place; spare is scratch of the same kind. Well-formed UTF-8 in and out. */
enum mxc_code mxc_normalizer_run(const struct mxc_normalizer *normalizer, struct mxc_text *text,
                                 struct mxc_text *spare, struct mxc_regex_scratch *scratch,
                                 struct mxc_err *err) MXC_MUST;

#endif

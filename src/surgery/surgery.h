/* Surgery: operations on weights while a model is loaded, as a YAML document lists them
 * (docs/surgery.md). They change what a view of weights hands out before anything has looked at
 * it, so every backend and every vision tower sees the result; files are never written.
 * Errors read "FILE: surgery operation #N (op): cause", N counted from 0.
 * Thread rules: one thread opens, applies and closes; in between it is read-only. */
#ifndef MXC_SURGERY_SURGERY_H
#define MXC_SURGERY_SURGERY_H

#include "format/config.h"
#include "format/weights.h"

struct mxc_surgery;

/* Reads and checks a document, and that its sources are there; they are not opened yet. */
enum mxc_code mxc_surgery_open(const char *path, struct mxc_surgery **surgery,
                               struct mxc_err *err) MXC_MUST;
/* After the weights it was applied to. NULL is fine. */
void mxc_surgery_close(struct mxc_surgery *surgery);
/* Does the operations, in order, on weights that nothing has looked into yet, and says nothing: the
 * notes tell what was left alone. Once only. The
 * weights borrow from the surgery afterwards, also after an error, when some operations may have
 * been done: then close both. */
enum mxc_code mxc_surgery_apply(struct mxc_surgery *surgery, const struct mxc_config *config,
                                struct mxc_weights *weights, struct mxc_err *err) MXC_MUST;

struct mxc_surgery_note {
    const char *op, *pattern; /* borrowed */
    char detail[96];          /* "factor 0.5" */
    size_t n_tensors;         /* that it changed; 0 before it was applied */
    char left[320];           /* what it matched and left alone, and why; "": nothing */
};
/* false: there is no such operation. */
bool mxc_surgery_note(const struct mxc_surgery *surgery, size_t index,
                      struct mxc_surgery_note *note);
/* Memory that changed tensors take. */
uint64_t mxc_surgery_bytes(const struct mxc_surgery *surgery);
/* The document and then its sources; NULL behind the last one. Borrowed. */
const char *mxc_surgery_file(const struct mxc_surgery *surgery, size_t index);

#endif

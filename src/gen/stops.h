/* Stop strings on streamed text. The text ends where the earliest stop string begins; of several
 * that begin there the first of the list counts. What could still become one is withheld, so what
 * comes out does not depend on how the text was cut into pieces. One stream, one thread. */
#ifndef MXC_GEN_STOPS_H
#define MXC_GEN_STOPS_H

#include "base/buf.h"

#include <stdbool.h>

enum { MXC_MAX_STOPS = 64, MXC_MAX_STOP_BYTES = 4096 /* all together */ };

struct mxc_stops {
    char *text; /* the strings, one after another; owned */
    size_t begin[MXC_MAX_STOPS + 1];
    int n;
    bool starts[256]; /* whether a string starts with the byte */
    struct mxc_buf held;
    int hit; /* index of the string that ended the text, -1: none yet */
};

/* Copies the strings. MXC_E_ARG: an empty one, not UTF-8, or more than the limits. */
enum mxc_code mxc_stops_init(struct mxc_stops *stops, const char *const *strings, size_t n,
                             struct mxc_err *err) MXC_MUST;
void mxc_stops_fini(struct mxc_stops *stops);
/* Appends to out what is certain. After a hit all further text is dropped. */
enum mxc_code mxc_stops_push(struct mxc_stops *stops, const char *text, size_t length,
                             struct mxc_buf *out, struct mxc_err *err) MXC_MUST;
/* No more text comes: releases what was withheld, up to a stop string in it. */
enum mxc_code mxc_stops_finish(struct mxc_stops *stops, struct mxc_buf *out,
                               struct mxc_err *err) MXC_MUST;

#endif

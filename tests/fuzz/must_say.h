/* For fuzz targets: a refusal has one line of text. With MXC_FUZZ_SAY set it is printed. */
#ifndef MXC_TESTS_FUZZ_MUST_SAY_H
#define MXC_TESTS_FUZZ_MUST_SAY_H

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_say(const struct mxc_err *err) {
    if (!err->message[0] || strchr(err->message, '\n'))
        abort();
    if (getenv("MXC_FUZZ_SAY"))
        puts(err->message);
}

#endif

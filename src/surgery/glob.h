/* Globs over tensor names: "*" any text (dots too), "?" one byte, "[a-c]" and "[!a-c]" a class,
 * "{a,b}" one of several texts (not nested), "\" takes what follows literally. A run of stars is
 * one star. Thread rules: a parsed glob is read-only. */
#ifndef MXC_SURGERY_GLOB_H
#define MXC_SURGERY_GLOB_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>

enum { MXC_GLOB_STARS = 16, MXC_GLOB_ALTERNATIVES = 256 };

struct mxc_glob {
    const char *const *alternatives; /* without braces */
    size_t n;
};
/* The glob lives in the arena. MXC_E_FORMAT: brackets or braces do not close, or braces are nested;
 * MXC_E_LIMIT: more alternatives or stars than above. */
enum mxc_code mxc_glob_parse(struct mxc_arena *arena, const char *text, struct mxc_glob *glob,
                             struct mxc_err *err) MXC_MUST;
/* What each star took, from left to right; every star but the last takes as little as it can. */
struct mxc_glob_match {
    struct mxc_str stars[MXC_GLOB_STARS];
    size_t n_stars;
};
/* match may be NULL. Time: the product of both lengths at most. */
bool mxc_glob_matches(const struct mxc_glob *glob, const char *name, struct mxc_glob_match *match);
/* Stars of a text, runs counted once: of an alternative, or of a key that takes over what they
 * matched. */
size_t mxc_glob_stars(const char *text);

#endif

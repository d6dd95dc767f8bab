/* Names of the store: owner/name:tag, paths inside a repository, and the choice among .gguf files.
 * Everything that becomes part of a path on disk passes through here. */
#ifndef MXC_STORE_NAMES_H
#define MXC_STORE_NAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { MXC_REPO_PART_MAX = 96 };

struct mxc_repo_name {
    char owner[MXC_REPO_PART_MAX + 1]; /* "" for a bare name */
    char name[MXC_REPO_PART_MAX + 1];
    char tag[MXC_REPO_PART_MAX + 1]; /* "" without one */
};

/* "owner/name", "name", each with ":tag". Parts are 1 to 96 of A-Z a-z 0-9 . _ - and do not start
 * with '.' or '-' nor hold ".."; anything else is MXC_E_ARG. */
enum mxc_code mxc_repo_name_parse(const char *text, struct mxc_repo_name *name,
                                  struct mxc_err *err) MXC_MUST;
/* A relative path of plain components (no "", ".", "..", backslash or control character) of at
 * most 255 bytes each, 1,023 in all. */
bool mxc_repo_path_valid(const char *path);
/* The last component. */
const char *mxc_path_base(const char *path);
bool mxc_text_ends(const char *text, const char *suffix); /* ASCII case ignored */

/* Length of what the parts of a split .gguf ("x-00001-of-00003.gguf") share, or of the name without
 * ".gguf"; *part is 1 for a file that is not split. */
size_t mxc_gguf_stem(const char *name, unsigned *part);
/* Picks one model among paths (only .gguf that are no projector count; parts of one model count
 * once): the one that tag names, else the only one, else, with usual, the first of the usual
 * quantisations. MXC_E_NOT_FOUND: none fits; MXC_E_ARG: several, named in the message. */
enum mxc_code mxc_gguf_pick(const char *const *paths, size_t n, const char *tag, bool usual,
                            size_t *index, struct mxc_err *err) MXC_MUST;

#endif

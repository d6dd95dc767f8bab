/* What the files of this folder share: the open store, the names it keeps inside a root. */
#ifndef MXC_STORE_INTERNAL_H
#define MXC_STORE_INTERNAL_H

#include "store/names.h"
#include "store/store.h"

#define MXC_STORE_STAGING  ".partial"         /* under the root: unfinished downloads */
#define MXC_STORE_UPDATING ".mlxcel-updating" /* in an entry while its files are exchanged */
#define MXC_STORE_MANIFEST ".mlxcel.json"     /* in an entry: what was downloaded */

struct mxc_store {
    char *root;
    char *default_org;
    char *hf_cache; /* folder with models--owner--name, or NULL */
};

/* Parses a name and gives a bare one the owner of the only entry so called, else the default. */
enum mxc_code mxc_store_name(const struct mxc_store *store, const char *text,
                             struct mxc_repo_name *name, struct mxc_err *err) MXC_MUST;
/* <root>/<owner>/<name>, or under <root>/.partial; NULL: out of memory. */
char *mxc_store_entry_path(const struct mxc_store *store, const struct mxc_repo_name *name);
char *mxc_store_staging_path(const struct mxc_store *store, const struct mxc_repo_name *name);
/* Removes the owner's folder and .partial when they are empty. */
void mxc_store_tidy(const struct mxc_store *store, const struct mxc_repo_name *name);

#endif

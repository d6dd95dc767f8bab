/* Deleting an entry of the store, finished or half downloaded.
 * In: owner/name, from the user. Out: the entry and its staging folder gone, the bytes that were
 * freed, and empty parent folders tidied.
 * Only what <root>/<owner>/<name> names is deleted, reached without following a link; an entry that
 * is itself a link loses the link, not its target. It is renamed into .partial first, so that a
 * half-deleted entry is never taken for a model. */
#define _GNU_SOURCE
#include "store/internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "store/tree.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void mxc_store_tidy(const struct mxc_store *store, const struct mxc_repo_name *name) {
    char *paths[] = {
        mxc_text_printf("%s/" MXC_STORE_STAGING "/%s", store->root, name->owner),
        mxc_text_printf("%s/" MXC_STORE_STAGING, store->root),
        mxc_text_printf("%s/%s", store->root, name->owner),
    };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        if (paths[i])
            (void)rmdir(paths[i]); /* fails, as it should, when something is in it */
        mxc_mem_free(paths[i]);
    }
}

/* Moves the entry to <root>/.partial/<owner>/<name>.removed-<pid> and deletes it there. */
static enum mxc_code remove_entry(const struct mxc_store *store, const struct mxc_repo_name *name,
                                  const char *path, struct mxc_err *err) {
    char *dir = mxc_text_printf("%s/" MXC_STORE_STAGING "/%s", store->root, name->owner);
    char *aside =
        dir ? mxc_text_printf("%s/%s.removed-%ld", dir, name->name, (long)getpid()) : NULL;
    enum mxc_code code = MXC_OK;
    if (!aside)
        code = mxc_err_nomem(err);
    else if (!(code = mxc_dir_make(dir, err)) && !(code = mxc_tree_remove(aside, err))) {
        if (rename(path, aside) < 0)
            code = mxc_file_error(err, path, "rename");
        else
            code = mxc_tree_remove(aside, err);
    }
    mxc_mem_free(aside);
    mxc_mem_free(dir);
    return code;
}

enum mxc_code mxc_store_remove(const struct mxc_store *store, const char *text,
                               uint64_t *freed_bytes, struct mxc_err *err) {
    struct mxc_repo_name name;
    enum mxc_code code = mxc_store_name(store, text, &name, err);
    if (code)
        return code;
    if (name.tag[0])
        return mxc_err_set(err, MXC_E_ARG, "%s: a whole entry is removed, not one of its files",
                           text);
    char *owner = mxc_path_join(store->root, name.owner);
    char *path = mxc_store_entry_path(store, &name);
    char *staging = mxc_store_staging_path(store, &name);
    struct mxc_tree_sum sum = {0}, rest = {0};
    struct stat st;
    bool entry = false;
    if (!owner || !path || !staging) {
        code = mxc_err_nomem(err);
        goto out;
    }
    bool half = mxc_dir_exists(staging);
    if (!lstat(owner, &st) && !S_ISDIR(st.st_mode)) {
        code =
            mxc_err_set(err, MXC_E_ARG, "%s: a link out of the store; nothing was removed", owner);
        goto out;
    }
    entry = !lstat(path, &st);
    if (!entry && !half) {
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "no model %s/%s in the store %.200s", name.owner,
                           name.name, store->root);
        goto out;
    }
    if ((entry && S_ISDIR(st.st_mode) && (code = mxc_tree_sum(path, &sum, err))) ||
        (half && (code = mxc_tree_sum(staging, &rest, err))) ||
        (code = mxc_tree_remove(staging, err)))
        goto out;
    if (entry && (code = remove_entry(store, &name, path, err)))
        goto out;
    mxc_store_tidy(store, &name);
    if (freed_bytes)
        *freed_bytes = sum.bytes + rest.bytes;
out:
    mxc_mem_free(staging);
    mxc_mem_free(path);
    mxc_mem_free(owner);
    return code;
}

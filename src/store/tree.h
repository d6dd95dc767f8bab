/* Folders on disk: what an entry holds, and deleting one without ever leaving it. */
#ifndef MXC_STORE_TREE_H
#define MXC_STORE_TREE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names in dir (not ".", ".."), sorted, hidden ones left out. A dir that does not exist is empty.
 */
struct mxc_names {
    char **items;
    size_t n;
};
enum mxc_code mxc_names_read(const char *dir, struct mxc_names *names,
                             struct mxc_err *err) MXC_MUST;
void mxc_names_fini(struct mxc_names *names);

struct mxc_tree_sum {
    uint64_t bytes, n_files;
    int64_t modified; /* of the newest file, seconds since 1970 */
};
/* Sums regular files (and links to them; linked folders are not entered). */
enum mxc_code mxc_tree_sum(const char *dir, struct mxc_tree_sum *sum, struct mxc_err *err) MXC_MUST;
/* Deletes path and what is below it. Links are deleted, not followed; other mounts are not entered.
 * A path that does not exist is fine. */
enum mxc_code mxc_tree_remove(const char *path, struct mxc_err *err) MXC_MUST;
/* printf into fresh memory (mxc_mem_free); NULL: out of memory. */
char *mxc_text_printf(const char *fmt, ...) MXC_PRINTF(1, 2);

#endif

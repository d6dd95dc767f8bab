/* A Hugging-Face-compatible hub: what a repository holds, and which of its files a model needs. */
#ifndef MXC_STORE_HUB_H
#define MXC_STORE_HUB_H

#include "store/http.h"
#include "store/names.h"

struct mxc_hub_file {
    char *path; /* valid by mxc_repo_path_valid */
    uint64_t bytes;
    char hash[65]; /* lower-case hexadecimal */
    bool sha256;   /* else git's blob SHA-1 */
    bool take;     /* set by select */
};

struct mxc_hub_listing {
    char commit[72]; /* "" when the hub does not say */
    char *at;        /* what to ask for: the commit, or else the revision */
    struct mxc_hub_file *files;
    size_t n;
};

/* How requests are made: tries, pauses, cancellation. */
struct mxc_hub_patience {
    unsigned retries, retry_ms;
    bool (*tick)(void *user);
    /* Called before a pause of ms; false cancels. The callee sleeps. */
    bool (*pause)(unsigned ms, const char *why, void *user);
    void *user;
};

/* GET {endpoint}/api/models/{repo}/revision/{revision} and .../tree/{commit}?recursive=1, page by
 * page. Paths that are not plain are MXC_E_FORMAT. */
enum mxc_code mxc_hub_list(struct mxc_http *http, const struct mxc_repo_name *repo,
                           const char *revision, const struct mxc_hub_patience *patience,
                           struct mxc_hub_listing *listing, struct mxc_err *err) MXC_MUST;
void mxc_hub_listing_fini(struct mxc_hub_listing *listing);
/* {endpoint}/{repo}/resolve/{at}/{path}; NULL: out of memory. */
char *mxc_hub_file_url(const struct mxc_http *http, const struct mxc_repo_name *repo,
                       const struct mxc_hub_listing *listing, const struct mxc_hub_file *file);

struct mxc_hub_choice {
    const char *tag; /* "" or a .gguf's */
    const char *const *include;
    size_t n_include;
    const char *const *exclude;
    size_t n_exclude;
};
/* Sets take. MXC_E_NOT_FOUND: nothing that a model needs; MXC_E_ARG: several .gguf. */
enum mxc_code mxc_hub_select(struct mxc_hub_listing *listing, const struct mxc_hub_choice *choice,
                             struct mxc_err *err) MXC_MUST;

/* Pause before the try-th further try (0 first): doubled each time, at most 30 s, or wait_s. */
unsigned mxc_hub_pause_ms(const struct mxc_hub_patience *patience, unsigned tries, unsigned wait_s);

#endif

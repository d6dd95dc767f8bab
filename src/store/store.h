/* Model store: where models lie on this machine. An entry is the folder <root>/<owner>/<name>/ with
 * what a checkpoint needs (config.json and *.safetensors, or one or more .gguf). Downloads are put
 * together under <root>/.partial/ and moved into place by one rename, so whatever has an entry's
 * name is whole. The Hugging Face cache is read, never written.
 *
 * root: the argument > MLXCEL_MODELS_DIR > ${MLXCEL_CACHE_DIR:-~/.cache/mlxcel}/models.
 * Thread rules: a store is read-only after open; list, resolve and download may run on any thread.
 */
#ifndef MXC_STORE_STORE_H
#define MXC_STORE_STORE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_store;

/* root: NULL or "" takes the environment's. The folder need not exist yet. */
enum mxc_code mxc_store_open(const char *root, struct mxc_store **store,
                             struct mxc_err *err) MXC_MUST;
void mxc_store_close(struct mxc_store *store);
const char *mxc_store_root(const struct mxc_store *store);

enum mxc_model_kind {
    MXC_MODEL_UNKNOWN, /* a folder without weights (a tokenizer alone, say) */
    MXC_MODEL_SAFETENSORS,
    MXC_MODEL_GGUF
};
const char *mxc_model_kind_name(enum mxc_model_kind kind); /* "safetensors", "gguf", "unknown" */

enum mxc_model_source {
    MXC_PLACE_PATH,
    MXC_PLACE_STORE,
    MXC_PLACE_HF_CACHE,
    MXC_PLACE_BUNDLED /* came with the program: ../share/mlxcel/models beside its folder, or the
                         models folder of the source tree that it was built in */
};

struct mxc_model_place {
    char *path; /* folder, or .gguf file: what mxc_config_open and mxc_weights_open take */
    char *name; /* "owner/name", or the last part of a path */
    enum mxc_model_kind kind;
    enum mxc_model_source source;
};

/* Finds MODEL: a folder or .gguf file that exists; owner/name; or a bare name, which stands for
 * MLXCEL_DEFAULT_ORG/name (mlx-community) or for the one entry of the store so named. A suffix
 * ":tag" picks the .gguf file whose name holds tag (case ignored) when an entry has several. The
 * store comes before the Hugging Face cache (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub),
 * and that before what came with the program.
 * MXC_E_NOT_FOUND says where it looked and names the nearest entry; MXC_E_ARG: a folder with
 * several .gguf files and no tag, or a name that is none. *place is then untouched. */
enum mxc_code mxc_store_resolve(const struct mxc_store *store, const char *model,
                                struct mxc_model_place *place, struct mxc_err *err) MXC_MUST;
void mxc_model_place_fini(struct mxc_model_place *place);

struct mxc_store_entry {
    char *name; /* "owner/name" */
    char *path;
    uint64_t bytes; /* of all its files */
    uint64_t n_files;
    int64_t modified; /* seconds since 1970: the newest file */
    enum mxc_model_kind kind;
};

struct mxc_store_list {
    struct mxc_store_entry *entries; /* sorted by name */
    size_t n;
};

/* A root that does not exist is an empty list. Unfinished downloads are not listed. */
enum mxc_code mxc_store_list(const struct mxc_store *store, struct mxc_store_list *list,
                             struct mxc_err *err) MXC_MUST;
void mxc_store_list_fini(struct mxc_store_list *list);

/* Deletes the entry owner/name (or a bare name, as in resolve) and its unfinished download. Only
 * inside this store; a symbolic link is removed itself, never what it points to. The entry
 * disappears by one rename before its files are deleted. freed_bytes may be NULL. */
enum mxc_code mxc_store_remove(const struct mxc_store *store, const char *name,
                               uint64_t *freed_bytes, struct mxc_err *err) MXC_MUST;

/* ---- download ---- */

enum mxc_download_phase {
    MXC_DOWNLOAD_LISTING, /* asking the hub what there is; totals are 0 */
    MXC_DOWNLOAD_TRANSFER,
    MXC_DOWNLOAD_VERIFYING, /* hashing bytes that an earlier run left */
    MXC_DOWNLOAD_WAITING    /* before another try; note says why */
};

struct mxc_download_progress {
    enum mxc_download_phase phase;
    const char *file; /* path in the repository, or NULL */
    const char *note; /* one line, or NULL */
    size_t file_index, n_files;
    uint64_t file_done, file_bytes; /* file_done counts bytes of earlier runs too */
    uint64_t done, bytes;           /* of the whole download */
    uint64_t received;              /* in this run, for a rate */
};
/* Called often (up to some hundred times a second) on the downloading thread; false cancels. */
typedef bool mxc_download_progress_fn(const struct mxc_download_progress *progress, void *user);

struct mxc_download_request {
    const char *repo;      /* owner/name, or a bare name of the default org; ":tag" as in resolve */
    const char *revision;  /* branch, tag or commit; NULL: main */
    const char *local_dir; /* write there instead of the store; NULL: the store */
    const char *endpoint;  /* NULL: HF_ENDPOINT, or the public hub */
    const char *token;     /* NULL: HF_TOKEN, if set */
    const char *const *include; /* glob patterns: take these files, not the usual choice */
    size_t n_include;
    const char *const *exclude;
    size_t n_exclude;
    unsigned retries;                   /* further tries without progress; 0: 5 */
    unsigned retry_ms;                  /* first pause, doubled each time up to 30 s; 0: 1000 */
    mxc_download_progress_fn *progress; /* or NULL */
    void *user;
};

struct mxc_download_result {
    char *path;        /* the entry's folder (or local_dir) */
    char *name;        /* owner/name */
    char commit[72];   /* what revision stood for; "" when the hub does not say */
    uint64_t bytes;    /* of all files */
    uint64_t received; /* over the network in this run */
    size_t n_files;
};

/* Fetches a repository from a Hugging-Face-compatible hub. Taken by default: configuration,
 * tokeniser and template files and *.safetensors, or one .gguf (all its parts) where there are no
 * safetensors or a tag asks for it. Every file's size and hash (SHA-256, or git's SHA-1 for small
 * ones) is verified; an interrupted run is taken up where it stopped; files that the entry already
 * has unchanged are not fetched again. Certificates are verified (MLXCEL_EXTRA_CA_CERTS adds a
 * PEM file); plain http is refused unless the host is a loopback address or
 * MLXCEL_ALLOW_INSECURE_ENDPOINT is set; the token is never sent to another host. Errors:
 * MXC_E_NOT_FOUND, MXC_E_NETWORK, MXC_E_FORMAT (a hub's answer, a wrong hash), MXC_E_IO (disk),
 * MXC_E_BUSY (another process downloads the same entry), MXC_E_CANCELLED, MXC_E_ARG. */
enum mxc_code mxc_store_download(const struct mxc_store *store,
                                 const struct mxc_download_request *request,
                                 struct mxc_download_result *result, struct mxc_err *err) MXC_MUST;
void mxc_download_result_fini(struct mxc_download_result *result);

#endif

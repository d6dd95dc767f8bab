/* The hub's API: revision -> commit -> list of files with sizes and hashes, and the choice among
 * them. The hub is not trusted: names, sizes and hashes are checked before they are used, pages are
 * counted, and a next page must lie on the same host. */
#define _GNU_SOURCE
#include "store/hub.h"

#include "base/json.h"
#include "base/mem.h"
#include "store/digest.h"
#include "store/tree.h"

#include <fnmatch.h>
#include <string.h>
#include <strings.h>

enum { MAX_ANSWER_BYTES = 64 << 20, MAX_PAGES = 1000, MAX_FILES = 100000 };

/* Percent-encodes all but unreserved characters, and '/' where keep_slash. */
static bool put_encoded(struct mxc_buf *out, const char *text, bool keep_slash) {
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c) || (keep_slash && c == '/');
        if (plain ? !mxc_buf_putc(out, (char)c) : !mxc_buf_printf(out, "%%%02X", c))
            return false;
    }
    return true;
}

static char *api_url(const struct mxc_http *http, const struct mxc_repo_name *repo,
                     const char *what, const char *revision, const char *query) {
    struct mxc_buf url;
    mxc_buf_init(&url, 8192);
    bool fine = mxc_buf_printf(&url, "%s/api/models/%s/%s/%s/", mxc_http_endpoint(http),
                               repo->owner, repo->name, what) &&
                put_encoded(&url, revision, false) && mxc_buf_puts(&url, query);
    char *text = fine ? mxc_buf_take(&url) : NULL;
    mxc_buf_fini(&url);
    return text;
}

char *mxc_hub_file_url(const struct mxc_http *http, const struct mxc_repo_name *repo,
                       const struct mxc_hub_listing *listing, const struct mxc_hub_file *file) {
    struct mxc_buf url;
    mxc_buf_init(&url, 8192);
    bool fine = mxc_buf_printf(&url, "%s/%s/%s/resolve/", mxc_http_endpoint(http), repo->owner,
                               repo->name) &&
                put_encoded(&url, listing->at, false) && mxc_buf_putc(&url, '/') &&
                put_encoded(&url, file->path, true);
    char *text = fine ? mxc_buf_take(&url) : NULL;
    mxc_buf_fini(&url);
    return text;
}

unsigned mxc_hub_pause_ms(const struct mxc_hub_patience *patience, unsigned tries,
                          unsigned wait_s) {
    uint64_t ms = (uint64_t)patience->retry_ms << (tries < 10 ? tries : 10);
    if (ms > 30000)
        ms = 30000;
    if ((uint64_t)wait_s * 1000 > ms)
        ms = (uint64_t)wait_s * 1000;
    return (unsigned)ms;
}

/* GET and parse, with tries. */
static enum mxc_code get_json(struct mxc_http *http, const char *url,
                              const struct mxc_hub_patience *patience, json_t **root,
                              struct mxc_http_reply *reply, struct mxc_err *err) {
    struct mxc_buf text;
    enum mxc_code code;
    struct mxc_err local;
    if (!err)
        err = &local;
    mxc_buf_init(&text, MAX_ANSWER_BYTES);
    for (unsigned tries = 0;; tries++) {
        code = mxc_http_text(http, url, patience->tick, patience->user, &text, reply, err);
        if (!code || !reply->again || tries >= patience->retries)
            break;
        if (!patience->pause(mxc_hub_pause_ms(patience, tries, reply->wait_s), err->message,
                             patience->user)) {
            code = mxc_err_set(err, MXC_E_CANCELLED, "cancelled");
            break;
        }
    }
    if (!code)
        code = mxc_json_parse(mxc_buf_text(&text), text.length, url, root, err);
    mxc_buf_fini(&text);
    return code;
}

void mxc_hub_listing_fini(struct mxc_hub_listing *listing) {
    for (size_t i = 0; i < listing->n; i++)
        mxc_mem_free(listing->files[i].path);
    mxc_mem_free(listing->files);
    mxc_mem_free(listing->at);
    *listing = (struct mxc_hub_listing){0};
}

/* {"type": "file", "oid": "<sha1>", "size": 1, "path": "x", "lfs": {"oid": "<sha256>", ...}} */
static enum mxc_code add_file(const json_t *item, struct mxc_hub_listing *listing, size_t *room,
                              struct mxc_err *err) {
    const char *type = "file", *path = NULL, *oid = NULL;
    int64_t size = -1, lfs_size = -1;
    const json_t *lfs = json_object_get(item, "lfs");
    enum mxc_code code;
    if ((code = mxc_json_get_string(item, "type", &type, err)) ||
        (code = mxc_json_get_string(item, "path", &path, err)))
        return code;
    if (strcmp(type, "file") != 0)
        return MXC_OK;
    if (!path || !mxc_repo_path_valid(path))
        return mxc_err_set(err, MXC_E_FORMAT, "a file name that is not safe: \"%.200s\"",
                           path ? path : "");
    bool sha256 = json_is_object(lfs);
    if ((code = mxc_json_get_int(item, "size", 0, INT64_MAX, &size, err)) ||
        (code = mxc_json_get_string(sha256 ? lfs : item, "oid", &oid, err)) ||
        (sha256 && (code = mxc_json_get_int(lfs, "size", 0, INT64_MAX, &lfs_size, err))))
        return mxc_err_context(err, "%s", path);
    if (sha256 && lfs_size >= 0)
        size = lfs_size;
    if (oid && !strncmp(oid, "sha256:", 7))
        oid += 7;
    if (size < 0 || !oid || !mxc_digest_valid(oid, sha256))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: no size or no %s hash", path,
                           sha256 ? "SHA-256" : "git");
    if (listing->n == *room) {
        *room = *room ? *room * 2 : 32;
        struct mxc_hub_file *more = mxc_mem_realloc(listing->files, *room, sizeof *more);
        if (!more)
            return mxc_err_nomem(err);
        listing->files = more;
    }
    if (listing->n >= MAX_FILES)
        return mxc_err_set(err, MXC_E_LIMIT, "more than %d files", MAX_FILES);
    struct mxc_hub_file file = {.bytes = (uint64_t)size, .sha256 = sha256};
    memcpy(file.hash, oid, strlen(oid) + 1);
    if (!(file.path = mxc_mem_strdup(path)))
        return mxc_err_nomem(err);
    listing->files[listing->n++] = file;
    return MXC_OK;
}

static bool same_host(const struct mxc_http *http, const char *url) {
    const char *endpoint = mxc_http_endpoint(http);
    size_t n = strlen(endpoint);
    return !strncmp(url, endpoint, n) && url[n] == '/';
}

static enum mxc_code read_tree(struct mxc_http *http, const struct mxc_repo_name *repo,
                               const struct mxc_hub_patience *patience,
                               struct mxc_hub_listing *listing, struct mxc_err *err) {
    size_t room = 0;
    enum mxc_code code = MXC_OK;
    char *url = api_url(http, repo, "tree", listing->at, "?recursive=1&expand=0");
    for (int page = 0; url && !code; page++) {
        struct mxc_http_reply reply;
        json_t *root = NULL;
        const json_t *item;
        size_t i;
        code = get_json(http, url, patience, &root, &reply, err);
        mxc_mem_free(url);
        url = NULL;
        if (!code && !json_is_array(root))
            code = mxc_err_set(err, MXC_E_FORMAT, "the list of files is not an array");
        if (!code)
            json_array_foreach(root, i,
                               item) if ((code = add_file(item, listing, &room, err))) break;
        json_decref(root);
        if (code || !reply.next[0])
            return code;
        if (page >= MAX_PAGES || !same_host(http, reply.next))
            return mxc_err_set(err, MXC_E_FORMAT, "the list of files has no end on this host");
        url = mxc_mem_strdup(reply.next);
    }
    return code ? code : mxc_err_nomem(err);
}

enum mxc_code mxc_hub_list(struct mxc_http *http, const struct mxc_repo_name *repo,
                           const char *revision, const struct mxc_hub_patience *patience,
                           struct mxc_hub_listing *listing, struct mxc_err *err) {
    struct mxc_hub_listing out = {0};
    struct mxc_http_reply reply;
    json_t *root = NULL;
    const char *sha = "";
    char *url = api_url(http, repo, "revision", revision, "");
    enum mxc_code code =
        url ? get_json(http, url, patience, &root, &reply, err) : mxc_err_nomem(err);
    if (code)
        goto out;
    if ((code = mxc_json_get_string(root, "sha", &sha, err)))
        goto out;
    if (strlen(sha) < sizeof out.commit && strspn(sha, "0123456789abcdef") == strlen(sha))
        memcpy(out.commit, sha, strlen(sha) + 1);
    if (!(out.at = mxc_mem_strdup(out.commit[0] ? out.commit : revision))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    code = read_tree(http, repo, patience, &out, err);
out:
    json_decref(root);
    mxc_mem_free(url);
    if (code) {
        mxc_hub_listing_fini(&out);
        mxc_err_context(err, "%s/%s (%s)", repo->owner, repo->name, revision);
    } else {
        *listing = out;
    }
    return code;
}

/* ---- choice ---- */

static bool matches(const char *const *patterns, size_t n, const char *path) {
    for (size_t i = 0; i < n; i++)
        if (!fnmatch(patterns[i], path, 0) || !fnmatch(patterns[i], mxc_path_base(path), 0))
            return true;
    return false;
}

/* Configuration, tokeniser, templates. */
static bool is_companion(const char *path) {
    static const char *const patterns[] = {"*.json",     "*.jinja",   "*.model",
                                           "merges.txt", "vocab.txt", "*.tiktoken"};
    if (!strncmp(path, "additional_chat_templates/", 26) && mxc_text_ends(path, ".jinja"))
        return true;
    return !strchr(path, '/') && path[0] != '.' && !mxc_text_ends(path, ".bin.index.json") &&
           matches(patterns, sizeof patterns / sizeof patterns[0], path);
}

static bool is_safetensors(const char *path) {
    return !strchr(path, '/') && path[0] != '.' && mxc_text_ends(path, ".safetensors");
}

static enum mxc_code select_gguf(struct mxc_hub_listing *listing,
                                 const struct mxc_hub_choice *choice, struct mxc_err *err) {
    const char **paths = mxc_mem_array(listing->n, sizeof *paths);
    if (!paths)
        return mxc_err_nomem(err);
    size_t n = 0, index = 0;
    for (size_t i = 0; i < listing->n; i++)
        if (!matches(choice->exclude, choice->n_exclude, listing->files[i].path))
            paths[n++] = listing->files[i].path;
    enum mxc_code code = mxc_gguf_pick(paths, n, choice->tag, true, &index, err);
    if (!code) {
        unsigned part;
        const char *path = paths[index];
        size_t base = (size_t)(mxc_path_base(path) - path);
        size_t stem = base + mxc_gguf_stem(path + base, &part);
        for (size_t i = 0; i < listing->n; i++) {
            struct mxc_hub_file *file = &listing->files[i];
            size_t length = strlen(file->path);
            file->take = length > base && length == strlen(path) &&
                         !strncmp(file->path, path, stem) &&
                         base + mxc_gguf_stem(file->path + base, &part) == stem;
        }
    }
    mxc_mem_free(paths);
    return code;
}

enum mxc_code mxc_hub_select(struct mxc_hub_listing *listing, const struct mxc_hub_choice *choice,
                             struct mxc_err *err) {
    bool safetensors = false, numbered = false, any = false;
    for (size_t i = 0; i < listing->n; i++) {
        listing->files[i].take = false;
        safetensors |= is_safetensors(listing->files[i].path);
        numbered |=
            !strncmp(listing->files[i].path, "model", 5) && is_safetensors(listing->files[i].path);
    }
    if (!choice->n_include && (choice->tag[0] || !safetensors)) {
        enum mxc_code code = select_gguf(listing, choice, err);
        /* A repository with a tokeniser alone is worth having too. */
        if (code != MXC_E_NOT_FOUND || choice->tag[0])
            return code;
    }
    for (size_t i = 0; i < listing->n; i++) {
        struct mxc_hub_file *file = &listing->files[i];
        if (choice->n_include)
            file->take = matches(choice->include, choice->n_include, file->path);
        else if (is_safetensors(file->path)) /* Mistral ships its weights twice */
            file->take = !numbered || strncasecmp(file->path, "consolidated", 12) != 0;
        else
            file->take = is_companion(file->path);
        file->take &= !matches(choice->exclude, choice->n_exclude, file->path) &&
                      strncmp(mxc_path_base(file->path), ".mlxcel", 7) != 0; /* ours */
        any |= file->take;
    }
    return any ? MXC_OK : mxc_err_set(err, MXC_E_NOT_FOUND, "no file that a model needs");
}

/* Download of a repository into the store. Files arrive in a staging folder, one by one, named by
 * their hash, so that an interrupted run goes on where it stopped whatever happened in between;
 * each is verified before it gets its name. A new entry is put together in the staging folder and
 * appears by one rename; an existing one is marked while its files are exchanged. */
#define _GNU_SOURCE
#include "store/internal.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/digest.h"
#include "store/hub.h"
#include "store/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static const char default_endpoint[] = "https://huggingface.co";

struct job {
    const struct mxc_download_request *request;
    struct mxc_http *http;
    struct mxc_repo_name repo;
    struct mxc_hub_listing listing;
    struct mxc_hub_patience patience;
    struct mxc_download_progress progress;
    char *entry;      /* the folder to fill */
    char *staging;    /* where files arrive */
    json_t *manifest; /* of an earlier download into entry, or NULL */
    int lock;
};

/* ---- progress ---- */

static bool report(struct job *job, enum mxc_download_phase phase, const char *note) {
    job->progress.phase = phase;
    job->progress.note = note;
    return !job->request->progress || job->request->progress(&job->progress, job->request->user);
}

static bool on_tick(void *user) {
    struct job *job = user;
    return report(job, job->progress.phase, NULL);
}

static bool on_pause(unsigned ms, const char *why, void *user) {
    struct job *job = user;
    enum mxc_download_phase phase = job->progress.phase;
    for (unsigned slept = 0;; slept += 50) {
        if (!report(job, MXC_DOWNLOAD_WAITING, why))
            return false;
        if (slept >= ms)
            break;
        unsigned step = ms - slept < 50 ? ms - slept : 50;
        struct timespec pause = {.tv_nsec = (long)step * 1000000};
        (void)nanosleep(&pause, NULL);
    }
    job->progress.phase = phase;
    return true;
}

static enum mxc_code cancelled(struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_CANCELLED, "cancelled; what has arrived is kept");
}

/* ---- staging ---- */

/* <staging>/<hash of the path>-<hash of the content>[suffix] */
static char *staged_path(const struct job *job, const struct mxc_hub_file *file,
                         const char *suffix) {
    return mxc_text_printf("%s/%016llx-%s%s", job->staging,
                           (unsigned long long)mxc_hash_bytes(file->path, strlen(file->path), 0),
                           file->hash, suffix);
}

/* Only one process fills an entry. The lock file goes with the staging folder, so whoever gets a
 * lock on a file that is gone starts over. */
static enum mxc_code take_lock(struct job *job, struct mxc_err *err) {
    char *path = mxc_path_join(job->staging, "lock");
    enum mxc_code code = path ? MXC_OK : mxc_err_nomem(err);
    for (int tries = 0; !code; tries++) {
        struct stat st;
        if ((code = mxc_dir_make(job->staging, err)))
            break;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 && errno == ENOENT && tries < 8)
            continue;
        if (fd < 0) {
            code = mxc_file_error(err, path, "create");
        } else if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int why = errno;
            close(fd);
            errno = why;
            code =
                errno == EWOULDBLOCK
                    ? mxc_err_set(err, MXC_E_BUSY, "%s/%s is being downloaded by another process",
                                  job->repo.owner, job->repo.name)
                    : mxc_file_error(err, path, "lock");
        } else if (fstat(fd, &st) < 0 || !st.st_nlink) {
            close(fd);
            if (tries >= 8)
                code = mxc_err_set(err, MXC_E_BUSY, "%s: cannot be locked", path);
        } else {
            job->lock = fd;
            break;
        }
    }
    mxc_mem_free(path);
    return code;
}

static const json_t *manifest_file(const struct job *job, const char *path) {
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(job->manifest, "files"), i, item) {
        const char *name = json_string_value(json_object_get(item, "path"));
        if (name && !strcmp(name, path))
            return item;
    }
    return NULL;
}

static bool has_size(const char *path, uint64_t bytes) {
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

/* Whether the entry holds this very file from an earlier download. */
static bool is_kept(const struct job *job, const struct mxc_hub_file *file) {
    const json_t *item = manifest_file(job, file->path);
    const char *hash = json_string_value(json_object_get(item, "hash"));
    char *path = hash && !strcmp(hash, file->hash) ? mxc_path_join(job->entry, file->path) : NULL;
    bool kept = path && has_size(path, file->bytes);
    mxc_mem_free(path);
    return kept;
}

static uint64_t size_of(const char *path) {
    struct stat st;
    return path && !stat(path, &st) && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

/* ---- one file ---- */

struct transfer {
    struct job *job;
    const struct mxc_hub_file *file;
    struct mxc_digest *digest; /* of the first have bytes */
    char *partial;
    int fd;
    uint64_t have;
    bool anew;          /* started from the first byte again once already */
    enum mxc_code code; /* why begin or write returned false */
    struct mxc_err err;
};

static void show(struct transfer *t) {
    struct mxc_download_progress *p = &t->job->progress;
    p->done = p->done - p->file_done + t->have;
    p->file_done = t->have;
}

static bool restart(struct transfer *t) {
    if (ftruncate(t->fd, 0) < 0 || lseek(t->fd, 0, SEEK_SET) < 0) {
        t->code = mxc_file_error(&t->err, t->partial, "truncate");
        return false;
    }
    if (!mxc_digest_reset(t->digest)) {
        t->code = mxc_err_set(&t->err, MXC_E_INTERNAL, "the hash cannot be started");
        return false;
    }
    t->have = 0;
    show(t);
    return true;
}

static bool on_begin(uint64_t start, void *user) {
    struct transfer *t = user;
    t->job->progress.phase = MXC_DOWNLOAD_TRANSFER;
    return start == t->have || restart(t);
}

static bool on_write(const void *data, size_t length, void *user) {
    struct transfer *t = user;
    if (length > t->file->bytes - t->have) {
        t->code = mxc_err_set(&t->err, MXC_E_FORMAT, "longer than the %llu bytes announced",
                              (unsigned long long)t->file->bytes);
        return false;
    }
    for (size_t used = 0; used < length;) {
        ssize_t n = write(t->fd, (const char *)data + used, length - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            t->code = mxc_file_error(&t->err, t->partial, "write");
            return false;
        }
        (void)mxc_digest_add(t->digest, (const char *)data + used, (size_t)n);
        used += (size_t)n;
        t->have += (uint64_t)n;
    }
    t->job->progress.received += length;
    show(t);
    if (on_tick(t->job))
        return true;
    t->code = cancelled(&t->err);
    return false;
}

static bool on_transfer_tick(void *user) {
    struct transfer *t = user;
    return on_tick(t->job);
}

/* Hashes what an earlier run left. */
static enum mxc_code hash_rest(struct transfer *t, struct mxc_err *err) {
    uint64_t left = size_of(t->partial);
    enum { CHUNK = 1 << 20 };
    if (!mxc_digest_reset(t->digest))
        return mxc_err_set(err, MXC_E_INTERNAL, "the hash cannot be started");
    if (left > t->file->bytes)
        return restart(t) ? MXC_OK : mxc_err_set(err, t->code, "%s", t->err.message);
    char *chunk = left ? mxc_mem_alloc(CHUNK) : NULL;
    if (left && !chunk)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    while (left && !code) {
        ssize_t n = read(t->fd, chunk, left < CHUNK ? (size_t)left : CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            code = mxc_file_error(err, t->partial, "read");
            break;
        }
        (void)mxc_digest_add(t->digest, chunk, (size_t)n);
        left -= (uint64_t)n;
        t->have += (uint64_t)n;
        show(t);
        if (!report(t->job, MXC_DOWNLOAD_VERIFYING, NULL))
            code = cancelled(err);
    }
    mxc_mem_free(chunk);
    return code;
}

/* One request for what is missing. *again: worth another try. */
static enum mxc_code request_rest(struct transfer *t, const char *url, bool *again,
                                  unsigned *wait_s, struct mxc_err *err) {
    struct mxc_http_reply reply;
    struct mxc_http_get get = {.url = url,
                               .from = t->have,
                               .begin = on_begin,
                               .write = on_write,
                               .tick = on_transfer_tick,
                               .user = t};
    t->code = MXC_OK;
    enum mxc_code code = mxc_http_get(t->job->http, &get, &reply, err);
    *again = reply.again;
    *wait_s = reply.wait_s;
    if (code == MXC_E_CANCELLED)
        return cancelled(err);
    if (code == MXC_E_IO && t->code) {
        *again = false;
        return mxc_err_set(err, t->code, "%s", t->err.message);
    }
    if (code && reply.status == 416 && t->have) { /* the server does not know this part: all anew */
        *again = !t->anew && restart(t);
        t->anew = true;
        return code;
    }
    if (!code && t->have != t->file->bytes) {
        *again = true;
        code = mxc_err_set(err, MXC_E_NETWORK, "ended after %llu of %llu bytes",
                           (unsigned long long)t->have, (unsigned long long)t->file->bytes);
    }
    return code;
}

/* MXC_OK: the hash is right. */
static enum mxc_code verify(struct transfer *t, struct mxc_err *err) {
    char hex[MXC_DIGEST_HEX] = "";
    if (!mxc_digest_hex(t->digest, hex))
        return mxc_err_set(err, MXC_E_INTERNAL, "the hash cannot be computed");
    if (strcmp(hex, t->file->hash) != 0)
        return mxc_err_set(err, MXC_E_FORMAT, "wrong hash: %s, not %s as the hub says", hex,
                           t->file->hash);
    return MXC_OK;
}

static enum mxc_code transfer(struct transfer *t, const char *url, struct mxc_err *err) {
    const struct mxc_hub_patience *patience = &t->job->patience;
    bool resumed = t->have > 0;
    for (unsigned tries = 0;;) {
        bool again = false;
        unsigned wait_s = 0;
        uint64_t before = t->have;
        enum mxc_code code = MXC_OK;
        if (t->have < t->file->bytes)
            code = request_rest(t, url, &again, &wait_s, err);
        if (!code && !(code = verify(t, err)))
            return MXC_OK;
        if (code == MXC_E_FORMAT && t->have == t->file->bytes) {
            /* What an earlier run left may be at fault: once more from the start. */
            if (!restart(t) || !resumed)
                return code;
            resumed = false;
            continue;
        }
        if (t->have > before)
            tries = 0;
        if (!again || tries >= patience->retries)
            return code;
        if (!patience->pause(mxc_hub_pause_ms(patience, tries++, wait_s), err->message,
                             patience->user))
            return cancelled(err);
    }
}

static enum mxc_code fetch_file(struct job *job, const struct mxc_hub_file *file,
                                struct mxc_err *err) {
    struct transfer t = {.job = job, .file = file, .fd = -1};
    char *done = staged_path(job, file, "");
    char *url = mxc_hub_file_url(job->http, &job->repo, &job->listing, file);
    enum mxc_code code = MXC_OK;
    t.partial = staged_path(job, file, ".partial");
    if (!done || !url || !t.partial) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if (mxc_file_exists(done) &&
        has_size(done, file->bytes)) { /* verified before it got its name */
        t.have = file->bytes;
        show(&t);
        goto out;
    }
    if ((code = mxc_digest_new(file->sha256, file->bytes, &t.digest, err)))
        goto out;
    t.fd = open(t.partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (t.fd < 0) {
        code = mxc_file_error(err, t.partial, "create");
        goto out;
    }
    if ((code = hash_rest(&t, err)) || (code = transfer(&t, url, err)))
        goto out;
    if (fsync(t.fd) < 0)
        code = mxc_file_error(err, t.partial, "sync");
    else if (rename(t.partial, done) < 0)
        code = mxc_file_error(err, done, "rename");
out:
    if (t.fd >= 0)
        close(t.fd);
    mxc_digest_free(t.digest);
    mxc_mem_free(t.partial);
    mxc_mem_free(url);
    mxc_mem_free(done);
    return code;
}

/* ---- putting the entry together ---- */

/* Moves one staged file to its place under folder. */
static enum mxc_code place_file(const struct job *job, const struct mxc_hub_file *file,
                                const char *folder, struct mxc_err *err) {
    char *from = staged_path(job, file, ""), *to = mxc_path_join(folder, file->path);
    enum mxc_code code = from && to ? MXC_OK : mxc_err_nomem(err);
    char *slash = code ? NULL : strrchr(to, '/');
    if (slash) {
        *slash = 0;
        code = mxc_dir_make(to, err);
        *slash = '/';
    }
    if (!code && rename(from, to) < 0)
        code = mxc_file_error(err, to, "rename");
    mxc_mem_free(to);
    mxc_mem_free(from);
    return code;
}

static json_t *manifest_entry(const struct mxc_hub_file *file) {
    return json_pack("{s:s, s:I, s:s}", "path", file->path, "bytes", (json_int_t)file->bytes,
                     "hash", file->hash);
}

/* What this download took, and what an earlier one took and the hub still has. */
static enum mxc_code write_manifest(const struct job *job, const char *folder,
                                    struct mxc_err *err) {
    char name[2 * MXC_REPO_PART_MAX + 2];
    (void)snprintf(name, sizeof name, "%s/%s", job->repo.owner, job->repo.name);
    const char *revision = job->request->revision ? job->request->revision : "main";
    json_t *files = json_array();
    bool fine = files != NULL;
    for (size_t i = 0; fine && i < job->listing.n; i++) {
        const struct mxc_hub_file *file = &job->listing.files[i];
        if (file->take || is_kept(job, file))
            fine = !json_array_append_new(files, manifest_entry(file));
    }
    json_t *root = fine ? json_pack("{s:s, s:s, s:s, s:O}", "repo", name, "revision", revision,
                                    "commit", job->listing.commit, "files", files)
                        : NULL;
    json_decref(files);
    char *text = root ? mxc_json_dump(root) : NULL;
    char *path = mxc_path_join(folder, MXC_STORE_MANIFEST);
    enum mxc_code code =
        text && path ? mxc_file_write(path, text, strlen(text), err) : mxc_err_nomem(err);
    mxc_mem_free(path);
    mxc_mem_free(text);
    json_decref(root);
    return code;
}

/* Files of an earlier download that the hub no longer has, or has otherwise, go. */
static void drop_stale(const struct job *job) {
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(job->manifest, "files"), i, item) {
        const char *path = json_string_value(json_object_get(item, "path"));
        const char *hash = json_string_value(json_object_get(item, "hash"));
        bool stale = path && hash && mxc_repo_path_valid(path);
        for (size_t j = 0; stale && j < job->listing.n; j++) {
            const struct mxc_hub_file *file = &job->listing.files[j];
            if (!strcmp(file->path, path) && (file->take || !strcmp(file->hash, hash)))
                stale = false;
        }
        char *full = stale ? mxc_path_join(job->entry, path) : NULL;
        if (full)
            (void)unlink(full);
        mxc_mem_free(full);
    }
}

static enum mxc_code place_all(const struct job *job, const char *folder, struct mxc_err *err) {
    enum mxc_code code = mxc_dir_make(folder, err);
    for (size_t i = 0; !code && i < job->listing.n; i++)
        if (job->listing.files[i].take && !is_kept(job, &job->listing.files[i]))
            code = place_file(job, &job->listing.files[i], folder, err);
    return code ? code : write_manifest(job, folder, err);
}

static enum mxc_code place_new(const struct job *job, struct mxc_err *err) {
    char *tree = mxc_path_join(job->staging, "tree");
    char *parent = mxc_mem_strdup(job->entry);
    enum mxc_code code = tree && parent ? MXC_OK : mxc_err_nomem(err);
    char *slash = code ? NULL : strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = 0;
        code = mxc_dir_make(parent, err);
    }
    if (!code)
        code = place_all(job, tree, err);
    if (!code && rename(tree, job->entry) < 0)
        code = mxc_file_error(err, job->entry, "rename");
    mxc_mem_free(parent);
    mxc_mem_free(tree);
    return code;
}

static enum mxc_code place_into(const struct job *job, struct mxc_err *err) {
    char *mark = mxc_path_join(job->entry, MXC_STORE_UPDATING);
    enum mxc_code code = mark ? mxc_file_write(mark, "", 0, err) : mxc_err_nomem(err);
    if (!code) {
        drop_stale(job);
        code = place_all(job, job->entry, err);
    }
    if (!code && unlink(mark) < 0)
        code = mxc_file_error(err, mark, "delete");
    mxc_mem_free(mark);
    return code;
}

/* ---- the whole ---- */

static enum mxc_code check_room(const struct job *job, uint64_t missing, struct mxc_err *err) {
    struct statvfs vfs;
    if (statvfs(job->staging, &vfs) < 0)
        return MXC_OK;
    uint64_t room = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (missing <= room)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_IO, "%s: %llu MB are needed, %llu MB are free", job->staging,
                       (unsigned long long)(missing >> 20), (unsigned long long)(room >> 20));
}

static enum mxc_code fetch_all(struct job *job, struct mxc_err *err) {
    struct mxc_download_progress *p = &job->progress;
    uint64_t missing = 0;
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < job->listing.n; i++) {
        const struct mxc_hub_file *file = &job->listing.files[i];
        if (!file->take)
            continue;
        if (file->bytes > UINT64_MAX / 4 - p->bytes)
            return mxc_err_set(err, MXC_E_FORMAT, "the files' sizes add up to nonsense");
        p->n_files++;
        p->bytes += file->bytes;
        char *done = staged_path(job, file, ""), *partial = staged_path(job, file, ".partial");
        uint64_t here = size_of(done) + size_of(partial);
        if (!is_kept(job, file) && here < file->bytes)
            missing += file->bytes - here;
        mxc_mem_free(partial);
        mxc_mem_free(done);
    }
    if ((code = check_room(job, missing, err)))
        return code;
    for (size_t i = 0; !code && i < job->listing.n; i++) {
        const struct mxc_hub_file *file = &job->listing.files[i];
        if (!file->take)
            continue;
        p->file = file->path;
        p->file_bytes = file->bytes;
        p->file_done = 0;
        if (is_kept(job, file)) {
            p->done += file->bytes;
            p->file_done = file->bytes;
        } else if ((code = fetch_file(job, file, err))) {
            mxc_err_context(err, "%s", file->path);
        }
        if (!code && !report(job, MXC_DOWNLOAD_TRANSFER, NULL))
            code = cancelled(err);
        p->file_index++;
    }
    return code;
}

/* Nothing missing, and the manifest says so already. */
static bool is_whole(const struct job *job) {
    char *mark = mxc_path_join(job->entry, MXC_STORE_UPDATING);
    const char *commit = json_string_value(json_object_get(job->manifest, "commit"));
    bool whole = mark && commit && !strcmp(commit, job->listing.commit) && !mxc_file_exists(mark);
    for (size_t i = 0; whole && i < job->listing.n; i++)
        whole = !job->listing.files[i].take || is_kept(job, &job->listing.files[i]);
    mxc_mem_free(mark);
    return whole;
}

static enum mxc_code set_paths(struct job *job, const struct mxc_store *store,
                               struct mxc_err *err) {
    const char *local = job->request->local_dir;
    job->entry = local ? mxc_mem_strdup(local) : mxc_store_entry_path(store, &job->repo);
    for (size_t n = job->entry ? strlen(job->entry) : 0; n > 1 && job->entry[n - 1] == '/'; n--)
        job->entry[n - 1] = 0;
    if (job->entry)
        job->staging = local ? mxc_text_printf("%s.partial", job->entry)
                             : mxc_store_staging_path(store, &job->repo);
    char *path = job->entry ? mxc_path_join(job->entry, MXC_STORE_MANIFEST) : NULL;
    if (!job->staging || !path) {
        mxc_mem_free(path);
        return mxc_err_nomem(err);
    }
    /* A manifest that cannot be read is as good as none. */
    if (mxc_file_exists(path) && mxc_json_load(path, 64 << 20, &job->manifest, NULL))
        job->manifest = NULL;
    mxc_mem_free(path);
    return MXC_OK;
}

static enum mxc_code run(struct job *job, const struct mxc_store *store, struct mxc_err *err) {
    const struct mxc_download_request *request = job->request;
    struct mxc_hub_choice choice = {.tag = job->repo.tag,
                                    .include = request->include,
                                    .n_include = request->n_include,
                                    .exclude = request->exclude,
                                    .n_exclude = request->n_exclude};
    const char *revision = request->revision && *request->revision ? request->revision : "main";
    enum mxc_code code;
    if (!report(job, MXC_DOWNLOAD_LISTING, NULL))
        return cancelled(err);
    if ((code = mxc_hub_list(job->http, &job->repo, revision, &job->patience, &job->listing, err)))
        return code;
    if ((code = mxc_hub_select(&job->listing, &choice, err)))
        return mxc_err_context(err, "%s/%s", job->repo.owner, job->repo.name);
    if ((code = set_paths(job, store, err)) || (code = take_lock(job, err)) ||
        (code = fetch_all(job, err)))
        return code;
    if (!is_whole(job))
        code = mxc_dir_exists(job->entry) ? place_into(job, err) : place_new(job, err);
    struct mxc_err rest;
    if (!code && mxc_tree_remove(job->staging, &rest)) /* the model is there all the same */
        mxc_log(MXC_LOG_WARN, "%s", rest.message);
    return code;
}

static enum mxc_code fill_result(const struct job *job, struct mxc_download_result *result,
                                 struct mxc_err *err) {
    struct mxc_download_result out = {.bytes = job->progress.bytes,
                                      .received = job->progress.received,
                                      .n_files = job->progress.n_files};
    memcpy(out.commit, job->listing.commit, sizeof out.commit);
    out.path = mxc_mem_strdup(job->entry);
    out.name = mxc_text_printf("%s/%s", job->repo.owner, job->repo.name);
    if (!out.path || !out.name) {
        mxc_download_result_fini(&out);
        return mxc_err_nomem(err);
    }
    *result = out;
    return MXC_OK;
}

static const char *first_of(const char *given, const char *variable, const char *fallback) {
    const char *value = given && *given ? given : getenv(variable);
    return value && *value ? value : fallback;
}

enum mxc_code mxc_store_download(const struct mxc_store *store,
                                 const struct mxc_download_request *request,
                                 struct mxc_download_result *result, struct mxc_err *err) {
    struct job job = {.request = request, .lock = -1};
    struct mxc_err local;
    if (!err)
        err = &local;
    job.patience =
        (struct mxc_hub_patience){.retries = request->retries ? request->retries : 5,
                                  .retry_ms = request->retry_ms ? request->retry_ms : 1000,
                                  .tick = on_tick,
                                  .pause = on_pause,
                                  .user = &job};
    enum mxc_code code = mxc_repo_name_parse(request->repo, &job.repo, err);
    if (code)
        return code;
    if (!job.repo.owner[0])
        memcpy(job.repo.owner, store->default_org, strlen(store->default_org) + 1);
    code = mxc_http_open(first_of(request->endpoint, "HF_ENDPOINT", default_endpoint),
                         first_of(request->token, "HF_TOKEN", NULL), &job.http, err);
    if (!code)
        code = run(&job, store, err);
    if (!code)
        code = fill_result(&job, result, err);
    if (job.lock >= 0)
        close(job.lock);
    if (!code && !request->local_dir)
        mxc_store_tidy(store, &job.repo);
    mxc_http_close(job.http);
    mxc_hub_listing_fini(&job.listing);
    json_decref(job.manifest);
    mxc_mem_free(job.entry);
    mxc_mem_free(job.staging);
    return code;
}

void mxc_download_result_fini(struct mxc_download_result *result) {
    mxc_mem_free(result->path);
    mxc_mem_free(result->name);
    *result = (struct mxc_download_result){0};
}

/* Wheels: download with resumption, verification, unpacking into place. See wheel.h.
 * In: a pin, an index that is not trusted. Out: a plugin on disk, put there by one rename after the
 * whole wheel was verified against the pin. What has arrived of a wheel stays in plugins/.partial
 * under its hash, so that another run goes on from there; a lock on that file keeps a second
 * process out. The link "plugin" is exchanged by a rename, too. */
#define _GNU_SOURCE
#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "store/wheel.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/digest.h"
#include "store/http.h"
#include "store/pip_index.h"
#include "store/tree.h"
#include "store/xla_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <zip.h>

enum { CHUNK = 1 << 20, MAX_PAGE_BYTES = 16 << 20 };
#define MAX_PLUGIN_BYTES (UINT64_C(4) << 30)

/* Hashes and sizes are of the files that were fetched and opened when the pins were made. */
static const struct mxc_wheel_pin pins[] = {
    {"cpu", "lammps-jax-pjrt-cpu", "0.11.2",
     "lammps_jax_pjrt_cpu-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
     "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1", 62711338,
     "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"},
    {"cuda12", "jax-cuda12-pjrt", "0.11.2",
     "jax_cuda12_pjrt-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
     "2133b3afc63307c016ae4980f166b2b3de199759363ead74f7d550eaae953463", 188235313,
     "jax_plugins/xla_cuda12/xla_cuda_plugin.so"},
    {"cuda13", "jax-cuda13-pjrt", "0.11.2",
     "jax_cuda13_pjrt-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
     "e5ff589d43064913bb74027682d89639c7ea48f9f81c2bae6fc75117e913f93e", 134162640,
     "jax_plugins/xla_cuda13/xla_cuda_plugin.so"},
    {"rocm", "jax-rocm7-pjrt", "0.11.2", "jax_rocm7_pjrt-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
     "f673c6b3ffec3001e259c766ab85415926cfe12f548429f0a41c410b62b0937b", 139991500,
     "jax_plugins/xla_rocm7/xla_rocm_plugin.so"},
};

enum mxc_code mxc_wheel_pin_find(const char *kind, const struct mxc_wheel_pin **pin,
                                 struct mxc_err *err) {
    struct utsname name;
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++) {
        if (strcmp(pins[i].kind, kind) != 0)
            continue;
        if (!uname(&name) && strcmp(name.machine, "x86_64") != 0)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "no wheel is pinned for %s: get a plugin yourself and give its path "
                               "(MLXCEL_XLA_PLUGIN)",
                               name.machine);
        *pin = &pins[i];
        return MXC_OK;
    }
    return mxc_err_set(err, MXC_E_ARG,
                       "\"%.40s\" is not a kind of plugin: cpu, cuda12, cuda13, rocm", kind);
}

struct job {
    const struct mxc_wheel_request *request;
    const struct mxc_wheel_pin *pin;
    char *root;    /* xla/ */
    char *plugins; /* xla/plugins */
    char *folder;  /* xla/plugins/<kind>-<version> */
    char *path;    /* of the plugin there */
    char *partial; /* the wheel, as far as it is there */
    int fd;        /* of partial, locked; -1: closed */
    struct mxc_wheel_progress progress;
};

static bool report(struct job *job, const char *doing, uint64_t done, uint64_t total) {
    job->progress = (struct mxc_wheel_progress){.doing = doing, .done = done, .total = total};
    return !job->request->progress || job->request->progress(&job->progress, job->request->user);
}

static bool on_tick(void *user) {
    struct job *job = user;
    return report(job, job->progress.doing, job->progress.done, job->progress.total);
}

static enum mxc_code cancelled(struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_CANCELLED, "cancelled; what has arrived is kept");
}

/* ---- places ---- */

static enum mxc_code find_places(struct job *job, struct mxc_err *err) {
    const struct mxc_wheel_pin *pin = job->pin;
    if (job->request->root) {
        job->root = mxc_mem_strdup(job->request->root);
    } else {
        struct mxc_xla_place place;
        enum mxc_code code = mxc_xla_place_find(&place, err);
        if (code)
            return code;
        job->root = place.root;
        place.root = NULL;
        mxc_xla_place_fini(&place);
        if (!job->root)
            return mxc_err_set(err, MXC_E_NOT_FOUND,
                               "there is no folder to install to: set MLXCEL_CACHE_DIR or HOME");
    }
    job->plugins = job->root ? mxc_path_join(job->root, "plugins") : NULL;
    if (job->plugins) {
        job->folder = mxc_text_printf("%s/%s-%s", job->plugins, pin->kind, pin->version);
        job->path =
            mxc_text_printf("%s/%s-%s/%s", job->plugins, pin->kind, pin->version, pin->plugin);
        job->partial = mxc_text_printf("%s/.partial/%s", job->plugins, pin->sha256);
    }
    return job->folder && job->path && job->partial ? MXC_OK : mxc_err_nomem(err);
}

static enum mxc_code make_parent(char *path, struct mxc_err *err) {
    char *slash = strrchr(path, '/');
    *slash = 0;
    enum mxc_code code = mxc_dir_make(path, err);
    *slash = '/';
    return code;
}

static enum mxc_code open_partial(struct job *job, struct mxc_err *err) {
    enum mxc_code code = make_parent(job->partial, err);
    if (code)
        return code;
    job->fd = open(job->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (job->fd < 0)
        return mxc_file_error(err, job->partial, "create");
    if (flock(job->fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? mxc_err_set(err, MXC_E_BUSY, "another process is installing this plugin")
                   : mxc_file_error(err, job->partial, "lock");
    return MXC_OK;
}

/* ---- download ---- */

struct transfer {
    struct job *job;
    struct mxc_digest *digest; /* of the first have bytes */
    uint64_t have;
    enum mxc_code code; /* why begin or write returned false */
    struct mxc_err err;
};

static bool restart(struct transfer *t) {
    if (ftruncate(t->job->fd, 0) < 0 || lseek(t->job->fd, 0, SEEK_SET) < 0) {
        t->code = mxc_file_error(&t->err, t->job->partial, "truncate");
        return false;
    }
    t->have = 0;
    return mxc_digest_reset(t->digest);
}

static bool on_begin(uint64_t start, void *user) {
    struct transfer *t = user;
    return start == t->have || restart(t);
}

static bool on_write(const void *data, size_t length, void *user) {
    struct transfer *t = user;
    if (length > t->job->pin->bytes - t->have) {
        t->code =
            mxc_err_set(&t->err, MXC_E_FORMAT, "%s is longer than the %llu bytes it must have",
                        t->job->pin->file, (unsigned long long)t->job->pin->bytes);
        return false;
    }
    for (size_t used = 0; used < length;) {
        ssize_t n = write(t->job->fd, (const char *)data + used, length - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            t->code = mxc_file_error(&t->err, t->job->partial, "write");
            return false;
        }
        (void)mxc_digest_add(t->digest, (const char *)data + used, (size_t)n);
        used += (size_t)n;
        t->have += (uint64_t)n;
    }
    if (report(t->job, "downloading", t->have, t->job->pin->bytes))
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
    char *chunk = mxc_mem_alloc(CHUNK);
    if (!chunk)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    for (;;) {
        ssize_t n = read(t->job->fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            code = mxc_file_error(err, t->job->partial, "read");
        if (n <= 0)
            break;
        (void)mxc_digest_add(t->digest, chunk, (size_t)n);
        t->have += (uint64_t)n;
    }
    mxc_mem_free(chunk);
    if (!code && t->have > t->job->pin->bytes && !restart(t))
        code = mxc_err_set(err, MXC_E_IO, "%s", t->err.message);
    return code;
}

/* One request for what is missing. *again: worth another try. */
static enum mxc_code request_rest(struct transfer *t, struct mxc_http *http, const char *url,
                                  bool *again, unsigned *wait_s, struct mxc_err *err) {
    struct mxc_http_reply reply;
    const struct mxc_http_get get = {.url = url,
                                     .from = t->have,
                                     .begin = on_begin,
                                     .write = on_write,
                                     .tick = on_transfer_tick,
                                     .user = t};
    t->code = MXC_OK;
    enum mxc_code code = mxc_http_get(http, &get, &reply, err);
    *again = reply.again;
    *wait_s = reply.wait_s;
    if (code == MXC_E_CANCELLED)
        return cancelled(err);
    if (code == MXC_E_IO && t->code) {
        *again = false;
        return mxc_err_set(err, t->code, "%s", t->err.message);
    }
    if (code && reply.status == 416 && t->have)
        *again = restart(t);
    if (!code && t->have != t->job->pin->bytes) {
        *again = true;
        code =
            mxc_err_set(err, MXC_E_NETWORK, "%s: ended after %llu of %llu bytes", t->job->pin->file,
                        (unsigned long long)t->have, (unsigned long long)t->job->pin->bytes);
    }
    return code;
}

static bool pause_ms(struct job *job, uint64_t ms, const char *why) {
    for (uint64_t slept = 0; slept < ms; slept += 50) {
        if (!report(job, why, job->progress.done, job->progress.total))
            return false;
        uint64_t step = ms - slept < 50 ? ms - slept : 50;
        struct timespec rest = {.tv_nsec = (long)step * 1000000};
        (void)nanosleep(&rest, NULL);
    }
    return true;
}

/* Waits before try number `tries`; false: there is none left, or it was cancelled. */
static bool patient(struct job *job, unsigned tries, unsigned wait_s, const char *why) {
    unsigned most = job->request->retries ? job->request->retries : 5;
    uint64_t ms = job->request->retry_ms ? job->request->retry_ms : 1000;
    for (unsigned i = 0; i < tries && ms < 30000; i++)
        ms *= 2;
    ms = ms < 30000 ? ms : 30000;
    ms = ms > (uint64_t)wait_s * 1000 ? ms : (uint64_t)wait_s * 1000;
    return tries < most && pause_ms(job, ms, why);
}

static enum mxc_code verify(struct transfer *t, struct mxc_err *err) {
    char hex[MXC_DIGEST_HEX] = "";
    if (!mxc_digest_hex(t->digest, hex))
        return mxc_err_set(err, MXC_E_INTERNAL, "the hash cannot be computed");
    if (!strcmp(hex, t->job->pin->sha256))
        return MXC_OK;
    (void)restart(t); /* what is wrong is not gone on from */
    return mxc_err_set(err, MXC_E_FORMAT, "%s has the wrong hash: %s, not %s", t->job->pin->file,
                       hex, t->job->pin->sha256);
}

/* Where the index has the wheel, owned by the caller. */
static enum mxc_code ask_index(struct job *job, struct mxc_http *http, char **url,
                               struct mxc_err *err) {
    const struct mxc_wheel_pin *pin = job->pin;
    struct mxc_http_reply reply;
    struct mxc_buf text;
    char hash[65];
    mxc_buf_init(&text, MAX_PAGE_BYTES);
    char *page = mxc_text_printf("%s/%s/", mxc_http_endpoint(http), pin->project);
    enum mxc_code code = page ? MXC_OK : mxc_err_nomem(err);
    for (unsigned tries = 0; !code; tries++) {
        if (!report(job, "asking the index", 0, 0)) {
            code = cancelled(err);
            break;
        }
        code = mxc_http_text(http, page, on_tick, job, &text, &reply, err);
        if (!code || !reply.again || !patient(job, tries, reply.wait_s, err->message))
            break;
        code = MXC_OK;
    }
    if (!code)
        code =
            mxc_pip_index_file(mxc_buf_text(&text), text.length, page, pin->file, url, hash, err);
    if (!code && *hash && strcmp(hash, pin->sha256) != 0) {
        mxc_mem_free(*url);
        *url = NULL;
        code = mxc_err_set(err, MXC_E_FORMAT, "the package index has another %s: hash %s, not %s",
                           pin->file, hash, pin->sha256);
    }
    mxc_buf_fini(&text);
    mxc_mem_free(page);
    return code;
}

static enum mxc_code fetch(struct transfer *t, struct mxc_http *http, const char *url,
                           struct mxc_err *err) {
    for (unsigned tries = 0;;) {
        bool again = false;
        unsigned wait_s = 0;
        uint64_t before = t->have;
        enum mxc_code code = request_rest(t, http, url, &again, &wait_s, err);
        if (!code)
            return MXC_OK;
        if (t->have > before)
            tries = 0;
        if (!again || !patient(t->job, tries++, wait_s, err->message))
            return code;
    }
}

/* Leaves the whole, verified wheel in job->partial. */
static enum mxc_code download(struct job *job, struct mxc_err *err) {
    struct transfer t = {.job = job};
    struct mxc_http *http = NULL;
    char *index = NULL, *url = NULL;
    enum mxc_code code = mxc_digest_new(true, 0, &t.digest, err);
    if (code || (code = hash_rest(&t, err)))
        goto out;
    if (t.have < job->pin->bytes) {
        if ((code = mxc_pip_index_find(job->request->index_url, &index, err)) ||
            (code = mxc_http_open(index, NULL, &http, err)) ||
            (code = ask_index(job, http, &url, err)) || (code = fetch(&t, http, url, err)))
            goto out;
    }
    code = verify(&t, err);
out:
    mxc_digest_free(t.digest);
    mxc_http_close(http);
    mxc_mem_free(url);
    mxc_mem_free(index);
    return code;
}

/* ---- unpacking ---- */

static enum mxc_code copy_out(struct job *job, zip_file_t *from, int to, uint64_t bytes,
                              const char *path, struct mxc_err *err) {
    char *chunk = mxc_mem_alloc(CHUNK);
    enum mxc_code code = chunk ? MXC_OK : mxc_err_nomem(err);
    uint64_t done = 0;
    while (!code) {
        zip_int64_t n = zip_fread(from, chunk, CHUNK);
        if (n < 0 || (n == 0 && done != bytes))
            code = mxc_err_set(err, MXC_E_FORMAT, "%s: %s cannot be unpacked: %s", job->pin->file,
                               job->pin->plugin, n < 0 ? zip_file_strerror(from) : "it ends early");
        if (n <= 0)
            break;
        for (zip_int64_t used = 0; !code && used < n;) {
            ssize_t w = write(to, chunk + used, (size_t)(n - used));
            if (w < 0 && errno != EINTR)
                code = mxc_file_error(err, path, "write");
            else if (w > 0)
                used += w;
        }
        done += (uint64_t)n;
        if (!code && !report(job, "unpacking", done, bytes))
            code = cancelled(err);
    }
    mxc_mem_free(chunk);
    return code;
}

/* The plugin out of the verified wheel, beside its place, then renamed. */
static enum mxc_code unpack(struct job *job, struct mxc_err *err) {
    int why = 0, fd = -1;
    zip_t *zip = zip_open(job->partial, ZIP_RDONLY, &why);
    zip_file_t *file = NULL;
    zip_stat_t st;
    char *tmp = mxc_text_printf("%s.%ld.tmp", job->path, (long)getpid());
    enum mxc_code code = tmp ? make_parent(job->path, err) : mxc_err_nomem(err);
    if (code)
        goto out;
    if (!zip || zip_stat(zip, job->pin->plugin, 0, &st) < 0 || !(st.valid & ZIP_STAT_SIZE) ||
        st.size > MAX_PLUGIN_BYTES || !(file = zip_fopen(zip, job->pin->plugin, 0))) {
        code = mxc_err_set(err, MXC_E_FORMAT, "%s: %s cannot be found in it: %s", job->pin->file,
                           job->pin->plugin, zip ? zip_strerror(zip) : "not a zip file");
        goto out;
    }
    (void)unlink(tmp);
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (fd < 0) {
        code = mxc_file_error(err, tmp, "create");
        goto out;
    }
    code = copy_out(job, file, fd, st.size, tmp, err);
    if (!code && fsync(fd) < 0)
        code = mxc_file_error(err, tmp, "sync");
    if (close(fd) < 0 && !code)
        code = mxc_file_error(err, tmp, "close");
    if (!code && rename(tmp, job->path) < 0)
        code = mxc_file_error(err, job->path, "rename");
    if (code)
        (void)unlink(tmp);
out:
    if (file)
        (void)zip_fclose(file);
    if (zip)
        zip_discard(zip);
    mxc_mem_free(tmp);
    return code;
}

/* ---- in place ---- */

/* Points <root>/plugin at it. */
static enum mxc_code choose(const struct job *job, struct mxc_err *err) {
    char *link = mxc_path_join(job->root, "plugin");
    char *tmp = mxc_text_printf("%s/plugin.%ld.tmp", job->root, (long)getpid());
    char *target =
        mxc_text_printf("plugins/%s-%s/%s", job->pin->kind, job->pin->version, job->pin->plugin);
    enum mxc_code code = link && tmp && target ? MXC_OK : mxc_err_nomem(err);
    if (!code) {
        (void)unlink(tmp);
        if (symlink(target, tmp) < 0)
            code = mxc_file_error(err, tmp, "create");
        else if (rename(tmp, link) < 0)
            code = mxc_file_error(err, link, "rename");
    }
    mxc_mem_free(target);
    mxc_mem_free(tmp);
    mxc_mem_free(link);
    return code;
}

/* Other versions of the kind, and what is left of downloads. */
static enum mxc_code tidy(const struct job *job, struct mxc_err *err) {
    struct mxc_names names = {0};
    char *prefix = mxc_text_printf("%s-", job->pin->kind);
    char *partial = mxc_path_join(job->plugins, ".partial");
    enum mxc_code code =
        prefix && partial ? mxc_names_read(job->plugins, &names, err) : mxc_err_nomem(err);
    const char *ours = code ? "" : strrchr(job->folder, '/') + 1;
    for (size_t i = 0; !code && i < names.n; i++) {
        if (strncmp(names.items[i], prefix, strlen(prefix)) != 0 || !strcmp(names.items[i], ours))
            continue;
        char *path = mxc_path_join(job->plugins, names.items[i]);
        code = path ? mxc_tree_remove(path, err) : mxc_err_nomem(err);
        mxc_mem_free(path);
    }
    if (!code) {
        (void)unlink(job->partial);
        (void)rmdir(partial);
    }
    mxc_names_fini(&names);
    mxc_mem_free(partial);
    mxc_mem_free(prefix);
    return code;
}

enum mxc_code mxc_wheel_install(const struct mxc_wheel_request *request, char **path,
                                struct mxc_err *err) {
    struct job job = {.request = request, .pin = request->pin, .fd = -1};
    enum mxc_code code = find_places(&job, err);
    if (!code && !mxc_file_exists(job.path) &&
        ((code = open_partial(&job, err)) || (code = download(&job, err)) ||
         (code = unpack(&job, err)) || (code = tidy(&job, err))))
        goto out;
    if (!code && !(code = choose(&job, err))) {
        *path = job.path;
        job.path = NULL;
    }
out:
    if (job.fd >= 0)
        close(job.fd);
    mxc_mem_free(job.partial);
    mxc_mem_free(job.path);
    mxc_mem_free(job.folder);
    mxc_mem_free(job.plugins);
    mxc_mem_free(job.root);
    return code;
}

#endif

/* Records in memory: a table of keys, a list from the last used to the one used longest ago, and a
 * short queue of what is to be written. The engine's thread only looks at those, under the mutex,
 * and reads files; writing, hashing, SQLite and eviction are the cache's own thread's.
 * Invariants: an entry is in the table only after its file has its name; the sum of bytes counts a
 * record before it is written; the mutex is never held during input and output; on the list a
 * record is behind those it goes on from, so that what goes first is the end of a prefix. */
#define _GNU_SOURCE
#include "server/prompt_cache.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "server/prompt_index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    KEY = MXC_BLAKE2B_BYTES,
    MAX_RECORDS = 1 << 16,
    MAX_QUEUED_BYTES = 8 << 20,
    N_BUCKETS = 1 << 14,
    TICK_MS = 100,
    FLUSH_S = 60,
    CLOSE_S = 5,
    RETRY_S = 60, /* after a failed write */
    FOLDER = 4000,
    PATH = FOLDER + 80,
    LINE = PATH + 256
};

struct entry {
    struct entry *next;            /* in its bucket */
    struct entry *newer, *older;   /* by use */
    uint8_t key[KEY], parent[KEY]; /* parent: zeros for the first */
    uint64_t bytes, used;
    bool touched; /* used is newer than the index's */
};

struct job {
    struct job *next;
    uint8_t *record; /* NULL: the row of a record that is gone */
    size_t n_bytes;
    uint8_t key[KEY], parent[KEY], model[KEY];
};

struct view { /* of one model */
    struct mxc_prompt_cache *cache;
    struct mxc_shelf shelf;
    uint8_t model[KEY];
    bool attached, refused;
};

struct mxc_prompt_cache {
    struct mxc_prompt_cache_options options;
    char folder[FOLDER];
    int lock; /* descriptor */
    struct mxc_prompt_index *index;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t more;   /* the queue is not empty, stop, or wake_ns changed */
    bool stop, ready, warned, room_wanted;
    atomic_bool quit; /* as stop, for what reads long files */
    struct entry *buckets[N_BUCKETS], *newest, *oldest;
    uint64_t n_entries, bytes, used, n_found, n_written, n_damaged;
    struct job *head, **tail;
    size_t queued_bytes;
    uint64_t wake_ns, mute_ns; /* 0: none; until when nothing is written */
    struct view views[MXC_HOST_MAX_MODELS];
};

static void warn(const struct mxc_prompt_cache *c, const char *what) {
    char line[LINE];
    (void)snprintf(line, sizeof line, "prompt cache: %.*s", LINE - 32, what);
    if (c->options.warn)
        c->options.warn(line, c->options.user);
}

/* Once per server: a damaged disk would fill the log. */
static void warn_once(struct mxc_prompt_cache *c, const char *what) {
    pthread_mutex_lock(&c->mutex);
    bool said = c->warned;
    c->warned = true;
    pthread_mutex_unlock(&c->mutex);
    if (!said)
        warn(c, what);
}

/* ---- the table and the list; locked */

static struct entry **place_of(struct mxc_prompt_cache *c, const uint8_t key[KEY]) {
    uint32_t hash;
    memcpy(&hash, key, sizeof hash); /* keys are digests */
    struct entry **link = &c->buckets[hash % N_BUCKETS];
    while (*link && memcmp((*link)->key, key, KEY) != 0)
        link = &(*link)->next;
    return link;
}

static void unlink_use(struct mxc_prompt_cache *c, struct entry *e) {
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

static void make_newest(struct mxc_prompt_cache *c, struct entry *e) {
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
    e->used = ++c->used;
    e->touched = true;
}

/* Marks e and all it goes on from as used now, the first block last. */
static void touch(struct mxc_prompt_cache *c, struct entry *e) {
    for (uint64_t n = 0; e && n <= c->n_entries; e = *place_of(c, e->parent), n++) {
        unlink_use(c, e);
        make_newest(c, e);
    }
}

static void take_out(struct mxc_prompt_cache *c, struct entry **link) {
    struct entry *e = *link;
    *link = e->next;
    unlink_use(c, e);
    c->n_entries--;
    c->bytes -= e->bytes;
    mxc_mem_free(e);
}

static void path_of(const struct mxc_prompt_cache *c, const uint8_t key[KEY], const char *suffix,
                    char out[PATH]) {
    char hex[2 * KEY + 1];
    for (int i = 0; i < KEY; i++)
        (void)snprintf(hex + 2 * (size_t)i, 3, "%02x", key[i]);
    (void)snprintf(out, PATH, "%s/%s%s", c->folder, hex, suffix);
}

/* ---- the engine's side */

static void key_of(const struct view *v, const uint8_t digest[KEY], uint8_t key[KEY]) {
    struct mxc_blake2b hash;
    mxc_blake2b_init(&hash);
    mxc_blake2b_add(&hash, v->model, KEY);
    mxc_blake2b_add(&hash, digest, KEY);
    mxc_blake2b_end(&hash, key);
}

static bool on_find(void *user, const uint8_t digest[KEY]) {
    struct view *v = user;
    struct mxc_prompt_cache *c = v->cache;
    uint8_t key[KEY];
    key_of(v, digest, key);
    pthread_mutex_lock(&c->mutex);
    struct entry *e = *place_of(c, key);
    bool found = e != NULL;
    if (e)
        touch(c, e);
    for (const struct job *j = c->head; j && !found; j = j->next)
        found = j->record && !memcmp(j->key, key, KEY); /* on its way */
    pthread_mutex_unlock(&c->mutex);
    return found;
}

static void queue(struct mxc_prompt_cache *c, struct job *job) {
    pthread_mutex_lock(&c->mutex);
    *c->tail = job;
    c->tail = &job->next;
    c->queued_bytes += job->n_bytes;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->mutex);
}

static void tell_damaged(struct mxc_prompt_cache *c, const char *path) {
    char line[LINE];
    pthread_mutex_lock(&c->mutex);
    c->n_damaged++;
    pthread_mutex_unlock(&c->mutex);
    (void)snprintf(line, sizeof line, "%s is damaged; it is ignored, as others will be", path);
    warn_once(c, line);
}

/* The record is no good, or not wanted: its entry, file and row go. */
static void drop(struct mxc_prompt_cache *c, const uint8_t key[KEY]) {
    char path[PATH];
    pthread_mutex_lock(&c->mutex);
    struct entry **link = place_of(c, key);
    bool found = *link != NULL;
    if (found)
        take_out(c, link);
    pthread_mutex_unlock(&c->mutex);
    if (!found)
        return;
    path_of(c, key, ".kv", path);
    (void)unlink(path);
    struct job *job = mxc_mem_zalloc(1, sizeof *job);
    if (!job)
        return; /* a row without its file does no harm */
    memcpy(job->key, key, KEY);
    queue(c, job);
}

static bool on_get(void *user, const uint8_t digest[KEY], uint8_t **record, size_t *n_bytes) {
    struct view *v = user;
    struct mxc_prompt_cache *c = v->cache;
    uint8_t key[KEY];
    char path[PATH], *bytes = NULL;
    size_t n = 0;
    struct mxc_err err;
    key_of(v, digest, key);
    pthread_mutex_lock(&c->mutex);
    const struct entry *e = *place_of(c, key);
    uint64_t expected = e ? e->bytes : 0;
    pthread_mutex_unlock(&c->mutex);
    if (!expected)
        return false;
    path_of(c, key, ".kv", path);
    enum mxc_code code = mxc_file_read(path, (size_t)expected, &bytes, &n, &err);
    if (code == MXC_E_NOMEM)
        return false;
    struct mxc_record r;
    bool good = !code && n == expected && mxc_record_check((const uint8_t *)bytes, n);
    if (good) {
        memcpy(&r, bytes, sizeof r);
        good = !memcmp(r.model, v->model, KEY) && !memcmp(r.digest, digest, KEY);
    }
    if (!good) {
        mxc_mem_free(bytes);
        drop(c, key);
        tell_damaged(c, path);
        return false;
    }
    pthread_mutex_lock(&c->mutex);
    c->n_found++;
    pthread_mutex_unlock(&c->mutex);
    *record = (uint8_t *)bytes;
    *n_bytes = n;
    return true;
}

static bool on_has_room(void *user) {
    struct mxc_prompt_cache *c = ((struct view *)user)->cache;
    pthread_mutex_lock(&c->mutex);
    bool room = c->queued_bytes < MAX_QUEUED_BYTES;
    c->room_wanted |= !room;
    pthread_mutex_unlock(&c->mutex);
    return room;
}

static void on_put(void *user, uint8_t *record, size_t n_bytes) {
    static const uint8_t none[KEY];
    struct view *v = user;
    struct mxc_prompt_cache *c = v->cache;
    struct mxc_record r;
    struct job *job = mxc_mem_zalloc(1, sizeof *job);
    if (!job || n_bytes > c->options.max_bytes) {
        mxc_mem_free(job);
        mxc_mem_free(record);
        return;
    }
    memcpy(&r, record, sizeof r);
    *job = (struct job){.record = record, .n_bytes = n_bytes};
    key_of(v, r.digest, job->key);
    if (memcmp(r.parent, none, KEY) != 0)
        key_of(v, r.parent, job->parent);
    memcpy(job->model, v->model, KEY);
    queue(c, job);
}

static void on_forget(void *user, const uint8_t digest[KEY]) {
    struct view *v = user;
    uint8_t key[KEY];
    key_of(v, digest, key);
    drop(v->cache, key);
}

static void on_wake_in(void *user, uint64_t ns) {
    struct mxc_prompt_cache *c = ((struct view *)user)->cache;
    uint64_t at = mxc_clock_ns() + ns;
    pthread_mutex_lock(&c->mutex);
    if (!c->wake_ns || at < c->wake_ns)
        c->wake_ns = at;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->mutex);
}

/* ---- the cache's thread: writing */

/* Makes room for bytes behind parent (zeros: the first block) and counts them in. false: it cannot
 * be, or not without what they go on from. */
static bool reserve(struct mxc_prompt_cache *c, uint64_t bytes, const uint8_t parent[KEY]) {
    char path[PATH];
    uint8_t key[KEY];
    struct mxc_err err;
    for (;;) {
        pthread_mutex_lock(&c->mutex);
        bool fits = c->bytes + bytes <= c->options.max_bytes && c->n_entries < MAX_RECORDS;
        struct entry *e =
            fits || (c->oldest && !memcmp(c->oldest->key, parent, KEY)) ? NULL : c->oldest;
        if (fits)
            c->bytes += bytes;
        if (e) {
            memcpy(key, e->key, KEY);
            take_out(c, place_of(c, key));
        }
        pthread_mutex_unlock(&c->mutex);
        if (!e)
            return fits;
        path_of(c, key, ".kv", path);
        (void)unlink(path);
        enum mxc_code code = mxc_prompt_index_remove(c->index, key, &err);
        (void)code; /* a row without its file does no harm */
    }
}

static bool write_all(int fd, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes += done;
        n -= (size_t)done;
    }
    return true;
}

/* Not synced: after a power failure the checksum tells. */
static bool write_file(struct mxc_prompt_cache *c, const struct job *job) {
    char path[PATH], part[PATH], line[LINE];
    path_of(c, job->key, ".kv", path);
    path_of(c, job->key, ".part", part);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    bool ok = fd >= 0 && write_all(fd, job->record, job->n_bytes);
    int why = errno;
    if (fd >= 0 && close(fd))
        ok = false;
    if (ok && rename(part, path)) {
        why = errno;
        ok = false;
    }
    if (!ok) {
        (void)unlink(part);
        (void)snprintf(line, sizeof line, "%s: cannot write: %s", part, strerror(why));
        warn_once(c, line);
        c->mute_ns = mxc_clock_ns() + (uint64_t)RETRY_S * 1000000000;
    }
    return ok;
}

static bool is_there(struct mxc_prompt_cache *c, const uint8_t key[KEY]) {
    pthread_mutex_lock(&c->mutex);
    bool there = *place_of(c, key) != NULL;
    pthread_mutex_unlock(&c->mutex);
    return there;
}

/* Returns when it was used last. */
static uint64_t add_entry(struct mxc_prompt_cache *c, struct entry *e) {
    pthread_mutex_lock(&c->mutex);
    struct entry **link = place_of(c, e->key);
    *link = e;
    c->n_entries++;
    c->n_written++;
    make_newest(c, e);
    touch(c, e);
    e->touched = false;
    uint64_t used = e->used;
    pthread_mutex_unlock(&c->mutex);
    return used;
}

static void put_record(struct mxc_prompt_cache *c, const struct job *job) {
    static const uint8_t none[KEY];
    struct mxc_err err;
    if (mxc_clock_ns() < c->mute_ns)
        return;
    /* The engine has computed it anew, so the one that is there was not to be had: it is replaced,
     * as it may be damaged. */
    pthread_mutex_lock(&c->mutex);
    struct entry **there = place_of(c, job->key);
    if (*there)
        take_out(c, there);
    struct entry *parent = *place_of(c, job->parent);
    bool follows = parent || !memcmp(job->parent, none, KEY);
    if (parent)
        touch(c, parent);
    pthread_mutex_unlock(&c->mutex);
    if (!follows)
        return; /* what it goes on from had to make room: it would never be found */
    struct entry *e = mxc_mem_zalloc(1, sizeof *e);
    if (!e)
        return;
    mxc_record_seal(job->record, job->n_bytes, job->model);
    if (!reserve(c, job->n_bytes, job->parent)) {
        mxc_mem_free(e);
        return;
    }
    if (!write_file(c, job)) {
        pthread_mutex_lock(&c->mutex);
        c->bytes -= job->n_bytes;
        pthread_mutex_unlock(&c->mutex);
        mxc_mem_free(e);
        return;
    }
    memcpy(e->key, job->key, KEY);
    memcpy(e->parent, job->parent, KEY);
    e->bytes = job->n_bytes;
    struct mxc_prompt_row row = {.bytes = e->bytes};
    memcpy(row.key, e->key, KEY);
    memcpy(row.parent, e->parent, KEY);
    row.used = add_entry(c, e);
    if (mxc_prompt_index_put(c->index, &row, &err))
        warn_once(c, err.message); /* found until the server ends */
}

static void work_off(struct mxc_prompt_cache *c, struct job *job) {
    struct mxc_err err;
    if (job->record) {
        put_record(c, job);
    } else {
        enum mxc_code code = mxc_prompt_index_remove(c->index, job->key, &err);
        (void)code; /* a row without its file does no harm */
    }
    mxc_mem_free(job->record);
    mxc_mem_free(job);
}

/* Tells the index in which order records were used. */
static void save_order(struct mxc_prompt_cache *c) {
    enum { BATCH = 256 };
    struct mxc_prompt_row rows[BATCH];
    struct mxc_err err;
    size_t n;
    do {
        n = 0;
        pthread_mutex_lock(&c->mutex);
        for (struct entry *e = c->newest; e && n < BATCH; e = e->older) {
            if (!e->touched)
                continue;
            rows[n] = (struct mxc_prompt_row){.bytes = e->bytes, .used = e->used};
            memcpy(rows[n].key, e->key, KEY);
            memcpy(rows[n++].parent, e->parent, KEY);
            e->touched = false;
        }
        pthread_mutex_unlock(&c->mutex);
        enum mxc_code code = n ? mxc_prompt_index_begin(c->index, &err) : MXC_OK;
        for (size_t i = 0; i < n && !code; i++)
            code = mxc_prompt_index_put(c->index, &rows[i], &err);
        if (n && !code)
            code = mxc_prompt_index_end(c->index, &err);
        (void)code; /* then the order is an older one */
    } while (n == BATCH);
}

/* ---- the cache's thread: beginning */

static bool add_row(void *user, const struct mxc_prompt_row *row) {
    struct mxc_prompt_cache *c = user;
    char path[PATH];
    struct stat st;
    path_of(c, row->key, ".kv", path);
    if (lstat(path, &st) || c->n_entries >= MAX_RECORDS)
        return true;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != row->bytes) {
        tell_damaged(c, path);
        return true; /* sweep takes it away */
    }
    struct entry *e = mxc_mem_zalloc(1, sizeof *e);
    if (!e)
        return false;
    memcpy(e->key, row->key, KEY);
    memcpy(e->parent, row->parent, KEY);
    e->bytes = row->bytes;
    pthread_mutex_lock(&c->mutex);
    struct entry **link = place_of(c, e->key);
    if (*link) {
        mxc_mem_free(e);
    } else {
        *link = e;
        c->n_entries++;
        c->bytes += e->bytes;
        make_newest(c, e);
        e->touched = false;
    }
    pthread_mutex_unlock(&c->mutex);
    return true;
}

static bool key_of_name(const char *name, uint8_t key[KEY]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < KEY; i++) {
        const char *hi = *name ? strchr(digits, *name++) : NULL;
        const char *lo = hi && *name ? strchr(digits, *name++) : NULL;
        if (!lo)
            return false;
        key[i] = (uint8_t)((hi - digits) * 16 + (lo - digits));
    }
    return !strcmp(name, ".kv");
}

/* Files that the index does not know: of a process that was killed, of a damaged index. */
static void sweep(struct mxc_prompt_cache *c) {
    DIR *dir = opendir(c->folder);
    uint8_t key[KEY];
    if (!dir)
        return;
    for (const struct dirent *d; (d = readdir(dir));) {
        struct mxc_str name = mxc_str_of(d->d_name);
        if (mxc_str_ends(name, ".part") ||
            (mxc_str_ends(name, ".kv") && !(key_of_name(d->d_name, key) && is_there(c, key))))
            (void)unlinkat(dirfd(dir), d->d_name, 0);
    }
    (void)closedir(dir);
}

static enum mxc_code begin(struct mxc_prompt_cache *c, struct mxc_err *err) {
    static const uint8_t none[KEY];
    char path[PATH];
    bool renewed = false;
    enum mxc_code code = mxc_dir_make(c->folder, err);
    if (code)
        return code;
    if (chmod(c->folder, 0700))
        return mxc_file_error(err, c->folder, "protect");
    (void)snprintf(path, sizeof path, "%s/lock", c->folder);
    c->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    if (c->lock < 0)
        return mxc_file_error(err, path, "open");
    if (flock(c->lock, LOCK_EX | LOCK_NB))
        return mxc_err_set(err, MXC_E_BUSY, "another server uses %s", c->folder);
    (void)snprintf(path, sizeof path, "%s/index.db", c->folder);
    if ((code = mxc_prompt_index_open(path, &c->index, &renewed, err)))
        return code;
    if (renewed)
        warn_once(c, "its index was damaged, or of another version: it begins anew");
    if ((code = mxc_prompt_index_each(c->index, add_row, c, err)))
        return code;
    sweep(c);
    (void)reserve(c, 0, none); /* the limit may be a lower one now */
    return MXC_OK;
}

/* ---- the cache's thread: models */

enum mxc_code mxc_prompt_identity(struct mxc_host *host, int model, struct mxc_prompt_index *index,
                                  const atomic_bool *stop, uint8_t identity[MXC_BLAKE2B_BYTES],
                                  struct mxc_err *err) {
    static const char program[] = "/proc/self/exe";
    struct mxc_host_info info;
    struct mxc_blake2b hash;
    uint8_t digest[MXC_BLAKE2B_BYTES];
    const char *plan = mxc_host_plan(host, model), *path;
    mxc_host_info(host, model, &info);
    mxc_blake2b_init(&hash);
    mxc_blake2b_add(&hash, plan, strlen(plan) + 1);
    enum mxc_code code = mxc_prompt_index_digest(NULL, program, stop, digest, err);
    mxc_blake2b_add(&hash, digest, sizeof digest);
    if (!code && mxc_dir_exists(info.path)) {
        char *config = mxc_path_join(info.path, "config.json");
        code =
            config ? mxc_prompt_index_digest(NULL, config, stop, digest, err) : mxc_err_nomem(err);
        mxc_blake2b_add(&hash, digest, sizeof digest);
        mxc_mem_free(config);
    }
    for (size_t i = 0; !code && (path = mxc_host_file(host, model, i)); i++) {
        code = mxc_prompt_index_digest(index, path, stop, digest, err);
        mxc_blake2b_add(&hash, digest, sizeof digest);
    }
    if (!code)
        mxc_blake2b_end(&hash, identity);
    return code;
}

/* Becomes the shelf of the models that are ready by now. */
static void attach(struct mxc_prompt_cache *c) {
    int n = mxc_host_count(c->options.host), waiting = 0;
    for (int i = 0; i < n; i++) {
        struct view *v = &c->views[i];
        struct mxc_host_info info;
        struct mxc_err err;
        mxc_host_info(c->options.host, i, &info);
        waiting += info.state == MXC_HOST_LOADING;
        if (v->attached || v->refused || info.state != MXC_HOST_READY)
            continue;
        v->refused = info.embeds;
        if (v->refused)
            continue;
        v->cache = c;
        v->shelf =
            (struct mxc_shelf){on_find, on_get, on_has_room, on_put, on_forget, on_wake_in, v};
        enum mxc_code code =
            mxc_prompt_identity(c->options.host, i, c->index, &c->quit, v->model, &err);
        if (code) {
            v->refused = true;
            if (code != MXC_E_CANCELLED)
                warn(c, err.message);
            continue;
        }
        mxc_host_set_shelf(c->options.host, i, &v->shelf);
        v->attached = true;
    }
    pthread_mutex_lock(&c->mutex);
    c->ready = !waiting;
    pthread_mutex_unlock(&c->mutex);
}

/* ---- the cache's thread */

static void wait_until(struct mxc_prompt_cache *c, uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)pthread_cond_timedwait(&c->more, &c->mutex, &t); /* mxc_clock_ns is the monotonic clock */
}

/* Takes the next job; NULL: it is time for something else. */
static struct job *next_job(struct mxc_prompt_cache *c, uint64_t until_ns, bool *wake, bool *stop) {
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        uint64_t now = mxc_clock_ns(), end = until_ns;
        *wake = c->wake_ns && c->wake_ns <= now;
        if (c->wake_ns && c->wake_ns < end)
            end = c->wake_ns;
        if (*wake)
            c->wake_ns = 0;
        if (c->head || *wake || now >= until_ns || c->stop)
            break;
        wait_until(c, end);
    }
    struct job *job = c->head;
    if (job) {
        c->head = job->next;
        if (!c->head)
            c->tail = &c->head;
    }
    *stop = c->stop && !job;
    pthread_mutex_unlock(&c->mutex);
    return job;
}

static void job_done(struct mxc_prompt_cache *c, size_t n_bytes) {
    pthread_mutex_lock(&c->mutex);
    c->queued_bytes -= n_bytes;
    bool wake = c->room_wanted && c->queued_bytes < MAX_QUEUED_BYTES / 2;
    if (wake)
        c->room_wanted = false;
    pthread_mutex_unlock(&c->mutex);
    if (wake)
        mxc_host_wake(c->options.host);
}

/* At the end: asks the engines for what they have not put yet, and lets go of them. */
static void collect(struct mxc_prompt_cache *c) {
    uint64_t end = mxc_clock_ns() + (uint64_t)CLOSE_S * 1000000000;
    bool wake, stop;
    for (int i = 0; i < MXC_HOST_MAX_MODELS; i++) {
        bool left = c->views[i].attached;
        while (left && mxc_clock_ns() < end) {
            left = mxc_host_shelve(c->options.host, i);
            for (struct job *job; (job = next_job(c, 0, &wake, &stop));) {
                size_t n_bytes = job->n_bytes;
                work_off(c, job);
                job_done(c, n_bytes);
            }
        }
        if (c->views[i].attached)
            mxc_host_set_shelf(c->options.host, i, NULL);
    }
}

static void *run(void *arg) {
    struct mxc_prompt_cache *c = arg;
    struct mxc_err err;
    uint64_t flush_ns = mxc_clock_ns();
    bool stop = false, wake = false, works = true;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* of this thread */
    if (begin(c, &err)) {
        warn(c, err.message);
        works = false;
        pthread_mutex_lock(&c->mutex);
        c->ready = true; /* it will not come to be more so */
        pthread_mutex_unlock(&c->mutex);
    }
    while (!stop) {
        pthread_mutex_lock(&c->mutex);
        bool ready = c->ready;
        pthread_mutex_unlock(&c->mutex);
        uint64_t now = mxc_clock_ns();
        if (works && !ready)
            attach(c);
        if (works && now - flush_ns > (uint64_t)FLUSH_S * 1000000000) {
            save_order(c);
            flush_ns = now;
        }
        uint64_t pause_ms = ready ? 1000 * FLUSH_S : TICK_MS;
        struct job *job = next_job(c, now + pause_ms * 1000000, &wake, &stop);
        if (job) {
            size_t n_bytes = job->n_bytes;
            work_off(c, job);
            job_done(c, n_bytes);
        }
        if (wake)
            mxc_host_wake(c->options.host);
    }
    if (works) {
        collect(c);
        save_order(c);
    }
    return NULL;
}

/* ---- life */

enum mxc_code mxc_prompt_cache_open(const struct mxc_prompt_cache_options *options,
                                    struct mxc_prompt_cache **cache, struct mxc_err *err) {
    struct mxc_prompt_cache *c = mxc_mem_zalloc(1, sizeof *c);
    pthread_condattr_t attributes;
    if (!c)
        return mxc_err_nomem(err);
    c->options = *options;
    c->lock = -1;
    c->tail = &c->head;
    int n = snprintf(c->folder, sizeof c->folder, "%s/prompts", options->state_dir);
    if (n < 0 || n >= FOLDER) {
        mxc_mem_free(c);
        return mxc_err_set(err, MXC_E_ARG, "the path of the state folder is too long");
    }
    pthread_mutex_init(&c->mutex, NULL); /* these cannot fail with such attributes */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->more, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!mxc_thread_start(&c->thread, run, c)) {
        pthread_cond_destroy(&c->more);
        pthread_mutex_destroy(&c->mutex);
        mxc_mem_free(c);
        return mxc_err_set(err, MXC_E_NOMEM, "the prompt cache's thread cannot be started");
    }
    *cache = c;
    return MXC_OK;
}

void mxc_prompt_cache_close(struct mxc_prompt_cache *c) {
    if (!c)
        return;
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    atomic_store(&c->quit, true);
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    mxc_prompt_index_close(c->index);
    if (c->lock >= 0)
        (void)close(c->lock);
    while (c->newest)
        take_out(c, place_of(c, c->newest->key));
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->mutex);
    mxc_mem_free(c);
}

void mxc_prompt_cache_get_stats(struct mxc_prompt_cache *c, struct mxc_prompt_cache_stats *stats) {
    *stats = (struct mxc_prompt_cache_stats){.ready = true};
    if (!c)
        return;
    pthread_mutex_lock(&c->mutex);
    *stats = (struct mxc_prompt_cache_stats){.n_records = c->n_entries,
                                             .bytes = c->bytes,
                                             .n_found = c->n_found,
                                             .n_written = c->n_written,
                                             .n_damaged = c->n_damaged,
                                             .ready = c->ready};
    pthread_mutex_unlock(&c->mutex);
}

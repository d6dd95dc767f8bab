/* POST /slots/ID. Blocks go between engine and file one at a time, so that those who generate wait
 * no longer than for one of them; what is evicted meanwhile ends a save with an error and a restore
 * early. One save at a time, so that the limit of the folder holds. */
#define _GNU_SOURCE
#include "server/slots.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "server/api.h"
#include "server/json_depth.h"
#include "server/prompt_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SLOTS = 1024, MAX_NAME = 128, PATH = 4096, MAX_BODY = 64 << 10 };

struct kept {
    uint8_t digest[MXC_BLAKE2B_BYTES];
    int32_t n_tokens; /* 0: nothing */
};

struct mxc_slots {
    struct mxc_host *host;
    char *folder;
    uint64_t max_bytes;
    pthread_mutex_t mutex; /* guards kept */
    pthread_mutex_t files; /* one save at a time; guards identities */
    bool known[MXC_HOST_MAX_MODELS];
    uint8_t identities[MXC_HOST_MAX_MODELS][MXC_BLAKE2B_BYTES];
    struct kept kept[MXC_HOST_MAX_MODELS][MAX_SLOTS];
};

enum mxc_code mxc_slots_new(struct mxc_host *host, const char *folder, uint64_t max_bytes,
                            struct mxc_slots **slots, struct mxc_err *err) {
    enum mxc_code code = folder ? mxc_dir_make(folder, err) : MXC_OK;
    if (code)
        return code;
    struct mxc_slots *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s || (folder && !(s->folder = mxc_mem_strdup(folder)))) {
        mxc_mem_free(s);
        return mxc_err_nomem(err);
    }
    s->host = host;
    s->max_bytes = max_bytes;
    pthread_mutex_init(&s->mutex, NULL); /* cannot fail with default attributes */
    pthread_mutex_init(&s->files, NULL);
    *slots = s;
    return MXC_OK;
}

void mxc_slots_free(struct mxc_slots *s) {
    if (!s)
        return;
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->files);
    mxc_mem_free(s->folder);
    mxc_mem_free(s);
}

static void set_kept(struct mxc_slots *s, int model, int slot, const uint8_t *digest,
                     int32_t n_tokens) {
    pthread_mutex_lock(&s->mutex);
    struct kept *k = &s->kept[model][slot];
    k->n_tokens = n_tokens;
    memcpy(k->digest, digest, sizeof k->digest);
    pthread_mutex_unlock(&s->mutex);
}

static struct kept get_kept(struct mxc_slots *s, int model, int slot) {
    pthread_mutex_lock(&s->mutex);
    struct kept k = s->kept[model][slot];
    pthread_mutex_unlock(&s->mutex);
    return k;
}

void mxc_slots_note(struct mxc_slots *s, int model, int slot,
                    const struct mxc_request_stats *stats) {
    if (slot >= 0 && slot < MAX_SLOTS)
        set_kept(s, model, slot, stats->kept, stats->n_kept);
}

/* ---- one action */

struct action {
    struct mxc_exchange *x;
    struct mxc_slots *slots;
    int model, slot;
    char name[MAX_NAME + 1], path[PATH];
    uint8_t identity[MXC_BLAKE2B_BYTES];
    int32_t n_tokens;
    uint64_t n_bytes;
    struct mxc_fault *fault;
};

static enum mxc_code from(struct action *a, const struct mxc_err *err) {
    /* what is wrong is what was asked for, not the server */
    bool asked = err->code == MXC_E_NOT_FOUND || err->code == MXC_E_FORMAT;
    return mxc_fault_set(a->fault, asked ? MXC_E_ARG : err->code, NULL, "%s", err->message);
}

static bool is_plain(const char *name) {
    size_t n = strlen(name);
    if (n < 1 || n > MAX_NAME || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!(name[i] >= '0' && name[i] <= '9') &&
            !((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z') && !strchr("._-", name[i]))
            return false;
    return true;
}

/* The field "filename" of the body. */
static enum mxc_code read_name(struct action *a) {
    const struct mxc_buf *body = &a->x->body;
    json_t *json = NULL;
    struct mxc_err err;
    if (!a->slots->folder)
        return mxc_fault_status(a->fault, MXC_E_UNSUPPORTED, 501,
                                "slots are not saved: the server was started without "
                                "--slot-save-path");
    if (body->length > MAX_BODY ||
        mxc_json_shape(mxc_buf_text(body), body->length, 8, 64) != MXC_JSON_FINE ||
        mxc_json_parse(mxc_buf_text(body), body->length, "body", &json, &err) ||
        !json_is_object(json)) {
        json_decref(json);
        return mxc_fault_set(a->fault, MXC_E_ARG, "filename",
                             "filename: the body must be a small JSON object with it");
    }
    const char *name = json_string_value(json_object_get(json, "filename"));
    bool plain = name && is_plain(name);
    if (plain)
        (void)snprintf(a->name, sizeof a->name, "%s", name);
    json_decref(json);
    if (!plain)
        return mxc_fault_set(a->fault, MXC_E_ARG, "filename",
                             "filename: not a plain name of at most %d letters, digits and ._-, "
                             "that begins with no dot",
                             MAX_NAME);
    int n = snprintf(a->path, sizeof a->path, "%s/%s", a->slots->folder, a->name);
    return n > 0 && n < PATH - 16
               ? MXC_OK
               : mxc_fault_set(a->fault, MXC_E_ARG, "filename", "filename: too long");
}

/* Under the lock of files. */
static enum mxc_code identify(struct action *a) {
    struct mxc_slots *s = a->slots;
    struct mxc_err err;
    if (!s->known[a->model]) {
        if (mxc_prompt_identity(s->host, a->model, NULL, NULL, s->identities[a->model], &err))
            return from(a, &err);
        s->known[a->model] = true;
    }
    memcpy(a->identity, s->identities[a->model], sizeof a->identity);
    return MXC_OK;
}

/* Bytes of the folder's files but the one that is replaced. */
static uint64_t folder_bytes(const struct action *a) {
    uint64_t sum = 0;
    struct stat st;
    DIR *dir = opendir(a->slots->folder);
    for (const struct dirent *d; dir && (d = readdir(dir));)
        if (strcmp(d->d_name, a->name) != 0 &&
            !fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
    if (dir)
        (void)closedir(dir);
    return sum;
}

static enum mxc_code write_record(struct action *a, FILE *file, const uint8_t *digest, int32_t i,
                                  uint64_t most) {
    uint8_t *record;
    size_t n;
    struct mxc_err err;
    if (mxc_host_kept_record(a->slots->host, a->model, digest, i, &record, &n, &err))
        return from(a, &err);
    mxc_record_seal(record, n, a->identity);
    enum mxc_code code = MXC_OK;
    if (n > most || a->n_bytes > most - n)
        code = mxc_fault_set(a->fault, MXC_E_LIMIT, NULL,
                             "the slot takes more than the %llu bytes that are left of "
                             "--slot-save-bytes",
                             (unsigned long long)most);
    else if (fwrite(record, 1, n, file) != n)
        code = mxc_fault_set(a->fault, MXC_E_IO, NULL, "%s: cannot write: %s", a->name,
                             strerror(errno));
    a->n_bytes += n;
    mxc_mem_free(record);
    return code;
}

static enum mxc_code save(struct action *a) {
    struct kept kept = get_kept(a->slots, a->model, a->slot);
    char part[PATH];
    enum mxc_code code = identify(a);
    if (code)
        return code;
    if (!kept.n_tokens)
        return mxc_fault_set(a->fault, MXC_E_ARG, NULL,
                             "slot %d holds nothing: no prompt of %d tokens or more ran in it",
                             a->slot, MXC_KV_BLOCK);
    uint64_t there = folder_bytes(a), max = a->slots->max_bytes;
    (void)snprintf(part, sizeof part, "%.*s.part", PATH - 8, a->path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        if (fd >= 0)
            (void)close(fd);
        return mxc_fault_set(a->fault, MXC_E_IO, NULL, "%s: cannot create: %s", a->name,
                             strerror(errno));
    }
    int32_t n_blocks = kept.n_tokens / MXC_KV_BLOCK;
    for (int32_t i = 0; i < n_blocks && !code; i++)
        code = mxc_exchange_is_gone(a->x)
                   ? mxc_fault_set(a->fault, MXC_E_CANCELLED, NULL, "the client went away")
                   : write_record(a, file, kept.digest, i, there < max ? max - there : 0);
    bool closed = !fclose(file);
    if (!code && (!closed || rename(part, a->path)))
        code = mxc_fault_set(a->fault, MXC_E_IO, NULL, "%s: cannot write: %s", a->name,
                             strerror(errno));
    if (code)
        (void)unlink(part);
    a->n_tokens = kept.n_tokens;
    return code;
}

/* Reads the next record. *record NULL: the end. */
static enum mxc_code read_record(struct action *a, FILE *file, uint64_t left, uint8_t **record,
                                 size_t *n_bytes) {
    struct mxc_record head = {.version = 0};
    size_t got = fread(&head, 1, sizeof head, file);
    uint64_t n = sizeof head + (uint64_t)head.extra_bytes + MXC_BLAKE2B_BYTES;
    *record = NULL;
    if (!got && feof(file))
        return MXC_OK;
    for (int k = 0; k < MXC_N_KV_KINDS && got == sizeof head && n <= left; k++)
        n = head.block_bytes[k] <= left ? n + head.block_bytes[k] : left + 1;
    bool fine = got == sizeof head && n <= left;
    uint8_t *made = fine ? mxc_mem_alloc((size_t)n) : NULL;
    if (fine && !made)
        return mxc_fault_set(a->fault, MXC_E_NOMEM, NULL, "out of memory");
    if (fine) {
        memcpy(made, &head, sizeof head);
        fine = fread(made + sizeof head, 1, (size_t)n - sizeof head, file) ==
                   (size_t)n - sizeof head &&
               mxc_record_check(made, (size_t)n);
    }
    if (fine && memcmp(head.model, a->identity, sizeof head.model) != 0) {
        mxc_mem_free(made);
        return mxc_fault_set(a->fault, MXC_E_ARG, "filename",
                             "filename: \"%s\" is of another model, program or setting", a->name);
    }
    if (!fine) {
        mxc_mem_free(made);
        return mxc_fault_set(a->fault, MXC_E_ARG, "filename",
                             "filename: \"%s\" is damaged, or no saved slot", a->name);
    }
    *record = made;
    *n_bytes = (size_t)n;
    return MXC_OK;
}

static enum mxc_code restore_from(struct action *a, FILE *file, uint64_t size) {
    uint8_t last[MXC_BLAKE2B_BYTES], *record;
    size_t n;
    struct mxc_err err;
    for (;;) {
        enum mxc_code code = read_record(a, file, size - a->n_bytes, &record, &n);
        if (code)
            return code;
        if (!record)
            break;
        code = mxc_host_adopt(a->slots->host, a->model, record, &err);
        memcpy(last, record + offsetof(struct mxc_record, digest), sizeof last);
        mxc_mem_free(record);
        if (code == MXC_E_LIMIT && a->n_tokens)
            break; /* as much as there is room for */
        if (code)
            return from(a, &err);
        a->n_bytes += n;
        a->n_tokens += MXC_KV_BLOCK;
        set_kept(a->slots, a->model, a->slot, last, a->n_tokens);
    }
    return MXC_OK;
}

static enum mxc_code restore(struct action *a) {
    struct stat st = {.st_size = 0};
    enum mxc_code code = identify(a);
    if (code)
        return code;
    int fd = open(a->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    bool regular = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
    FILE *file = regular ? fdopen(fd, "r") : NULL;
    if (!file) {
        if (fd >= 0)
            (void)close(fd);
        return mxc_fault_set(a->fault, MXC_E_ARG, "filename", "filename: there is no \"%s\"",
                             a->name);
    }
    code = restore_from(a, file, (uint64_t)st.st_size);
    (void)fclose(file);
    return code;
}

static void answer(const struct action *a, const char *n_tokens, const char *n_bytes,
                   const char *time, uint64_t start_ns) {
    mxc_reply_json(a->x, 200,
                   json_pack("{s:i,s:s,s:i,s:I,s:{s:f}}", "id_slot", a->slot, "filename", a->name,
                             n_tokens, a->n_tokens, n_bytes, (json_int_t)a->n_bytes, "timings",
                             time, (double)(mxc_clock_ns() - start_ns) * 1e-6));
}

static enum mxc_code with_file(struct action *a, bool saves) {
    uint64_t start = mxc_clock_ns();
    enum mxc_code code = read_name(a);
    if (code)
        return code;
    pthread_mutex_lock(&a->slots->files);
    code = saves ? save(a) : restore(a);
    pthread_mutex_unlock(&a->slots->files);
    if (!code && saves)
        answer(a, "n_saved", "n_written", "save_ms", start);
    else if (!code)
        answer(a, "n_restored", "n_read", "restore_ms", start);
    return code;
}

static enum mxc_code erase(struct action *a) {
    static const uint8_t none[MXC_BLAKE2B_BYTES];
    struct kept kept = get_kept(a->slots, a->model, a->slot);
    int32_t n = kept.n_tokens ? mxc_host_forget(a->slots->host, a->model, kept.digest) : 0;
    set_kept(a->slots, a->model, a->slot, none, 0);
    mxc_reply_json(a->x, 200, json_pack("{s:i,s:i}", "id_slot", a->slot, "n_erased", n));
    return MXC_OK;
}

enum mxc_code mxc_post_slot(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct action a = {.x = x, .slots = x->server->slots, .fault = fault};
    struct mxc_host_info info;
    int64_t slot;
    const char *action = mxc_exchange_query(x, "action");
    if (x->server->options.no_slots)
        return mxc_fault_status(fault, MXC_E_UNSUPPORTED, 501,
                                "/slots is switched off (--no-slots)");
    enum mxc_code code = mxc_model_of_query(x, &info, &a.model, fault);
    if (code)
        return code;
    if (!mxc_parse_i64(x->tail, &slot) || slot < 0 || slot >= info.parallel || slot >= MAX_SLOTS)
        return mxc_fault_set(fault, MXC_E_ARG, NULL, "\"%s\" is no slot from 0 to %d", x->tail,
                             info.parallel - 1);
    a.slot = (int)slot;
    if (action && !strcmp(action, "save"))
        return with_file(&a, true);
    if (action && !strcmp(action, "restore"))
        return with_file(&a, false);
    if (action && !strcmp(action, "erase"))
        return erase(&a);
    return mxc_fault_set(fault, MXC_E_ARG, "action", "action: not save, restore or erase");
}

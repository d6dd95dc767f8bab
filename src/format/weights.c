/* Weights: finds a checkpoint's tensor files, opens them and makes one list of logical tensors.
 * In: a folder, a .safetensors or a .gguf file, and the config for its quantization. Out: tensors
 * by logical name. Invariants: names are unique; every tensor's bytes agree with shape and storage;
 * files stay mapped until close. */
#define _GNU_SOURCE
#include "format/weights.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/config.h"
#include "format/gguf.h"
#include "format/gguf_names.h"
#include "format/hf_join.h"
#include "format/mlx_join.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_INDEX = 64 << 20, MAX_SHARDS = 10000, MAX_FILE_NAME = 255 };

static const char index_name[] = "model.safetensors.index.json";

struct mxc_weights {
    char *path; /* folder or file, for messages */
    struct mxc_safetensors **shards;
    size_t n_shards;
    struct mxc_gguf **ggufs;
    size_t n_ggufs;
    struct mxc_tensor *tensors;
    size_t n_tensors, capacity;
    struct mxc_map by_name; /* -> index; borrows names */
    struct mxc_arena arena; /* logical names of GGUF tensors, shard names */
};

static enum mxc_code add_tensor(struct mxc_weights *w, const struct mxc_tensor *t,
                                struct mxc_err *err) {
    uint64_t seen;
    if (mxc_map_get(&w->by_name, mxc_str_of(t->name), &seen))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s stands in %s too", t->file->path,
                           t->name, w->tensors[seen].file->path);
    if (w->n_tensors == w->capacity) {
        size_t next = w->capacity ? w->capacity * 2 : 256;
        struct mxc_tensor *grown = mxc_mem_realloc(w->tensors, next, sizeof *grown);
        if (!grown)
            return mxc_err_nomem(err);
        w->tensors = grown;
        w->capacity = next;
    }
    if (!mxc_map_put_borrowed(&w->by_name, mxc_str_of(t->name), w->n_tensors))
        return mxc_err_nomem(err);
    w->tensors[w->n_tensors++] = *t;
    return MXC_OK;
}

static void advise(const struct mxc_file *file) {
    if (file->size)
        (void)madvise((void *)(uintptr_t)file->data, file->size, MADV_SEQUENTIAL);
}

/* Opens one shard and adds its tensors; with only_new, those that are known already are skipped. */
static enum mxc_code add_shard(struct mxc_weights *w, const char *path, bool only_new,
                               struct mxc_err *err) {
    struct mxc_safetensors *st;
    struct mxc_safetensors **grown = mxc_mem_realloc(w->shards, w->n_shards + 1, sizeof *grown);
    if (!grown)
        return mxc_err_nomem(err);
    w->shards = grown;
    enum mxc_code code = mxc_safetensors_open(path, &st, err);
    if (code)
        return code;
    w->shards[w->n_shards++] = st;
    advise(&st->file);
    for (size_t i = 0; !code && i < st->n_tensors; i++) {
        const struct mxc_st_tensor *from = &st->tensors[i];
        struct mxc_tensor t = {.name = from->name,
                               .storage = from->storage,
                               .n_dims = from->n_dims,
                               .file = &st->file,
                               .data = from->data,
                               .bytes = from->end - from->begin};
        uint64_t seen;
        memcpy(t.shape, from->shape, sizeof t.shape);
        if (!only_new || !mxc_map_get(&w->by_name, mxc_str_of(t.name), &seen))
            code = add_tensor(w, &t, err);
    }
    return code;
}

/* A list of file names that grows in the arena of w. */
struct names {
    const char **items;
    size_t n, capacity;
};

static enum mxc_code add_name(struct mxc_weights *w, struct names *names, const char *name,
                              struct mxc_err *err) {
    if (names->n == MAX_SHARDS)
        return mxc_err_set(err, MXC_E_LIMIT, "%s: more than %d tensor files", w->path, MAX_SHARDS);
    if (names->n == names->capacity) {
        size_t next = names->capacity ? names->capacity * 2 : 16;
        const char **grown = mxc_mem_realloc(names->items, next, sizeof *grown);
        if (!grown)
            return mxc_err_nomem(err);
        names->items = grown;
        names->capacity = next;
    }
    const char *copy = mxc_arena_strdup(&w->arena, name);
    if (!copy)
        return mxc_err_nomem(err);
    names->items[names->n++] = copy;
    return MXC_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The folder's *.safetensors files, sorted. If some start with "model", only those. */
static enum mxc_code list_folder(struct mxc_weights *w, struct names *names, bool *pickle,
                                 struct mxc_err *err) {
    DIR *dir = opendir(w->path);
    if (!dir)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "%s: cannot read the folder", w->path);
    enum mxc_code code = MXC_OK;
    bool model = false;
    struct dirent *e;
    while (!code && (e = readdir(dir))) {
        struct mxc_str name = mxc_str_of(e->d_name);
        *pickle = *pickle || mxc_str_ends(name, ".bin") || mxc_str_ends(name, ".pt") ||
                  mxc_str_ends(name, ".pth");
        if (!mxc_str_ends(name, ".safetensors") || name.ptr[0] == '.')
            continue;
        bool own = mxc_str_starts(name, "model");
        if (own && !model)
            names->n = 0;
        model = model || own;
        if (own || !model)
            code = add_name(w, names, e->d_name, err);
    }
    closedir(dir);
    if (names->n)
        qsort(names->items, names->n, sizeof *names->items, by_text);
    return code;
}

static enum mxc_code open_named(struct mxc_weights *w, const char *name, bool only_new,
                                struct mxc_err *err) {
    char *path = mxc_path_join(w->path, name);
    if (!path)
        return mxc_err_nomem(err);
    enum mxc_code code = add_shard(w, path, only_new, err);
    mxc_mem_free(path);
    return code;
}

static enum mxc_code check_shard_name(const json_t *value, const char *tensor,
                                      struct mxc_err *err) {
    const char *name = json_string_value(value);
    if (!name)
        return mxc_err_set(err, MXC_E_FORMAT, "weight_map value of %.200s is not a file name",
                           tensor);
    size_t n = strlen(name);
    if (strchr(name, '/') || !strcmp(name, ".."))
        return mxc_err_set(err, MXC_E_FORMAT, "weight_map: %.200s: path leaves the model folder",
                           name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127)
            return mxc_err_set(err, MXC_E_FORMAT, "weight_map: bad shard name for %.200s", tensor);
    if (!n || n > MAX_FILE_NAME || n != json_string_length(value) || !strcmp(name, "."))
        return mxc_err_set(err, MXC_E_FORMAT, "weight_map: bad shard name for %.200s", tensor);
    return MXC_OK;
}

/* Every tensor that the index names must stand in the shard that it names. One that is in no file
 * is left to whoever asks for it: indices are often left over from before a conversion. */
static enum mxc_code check_index(const struct mxc_weights *w, json_t *map, struct mxc_err *err) {
    const char *tensor;
    json_t *value;
    size_t absent = 0;
    json_object_foreach(map, tensor, value) {
        uint64_t at;
        if (!mxc_map_get(&w->by_name, mxc_str_of(tensor), &at)) {
            absent++;
            continue;
        }
        const char *path = w->tensors[at].file->path, *slash = strrchr(path, '/');
        if (strcmp(slash ? slash + 1 : path, json_string_value(value)))
            return mxc_err_set(err, MXC_E_FORMAT, "weight_map: tensor %.200s is in %s, not in %s",
                               tensor, slash ? slash + 1 : path, json_string_value(value));
    }
    if (absent)
        mxc_log(MXC_LOG_WARN, "%s: %zu tensors of %s are in no file", w->path, absent, index_name);
    return MXC_OK;
}

static enum mxc_code open_index_map(struct mxc_weights *w, json_t *map, struct mxc_err *err) {
    struct names names = {0};
    struct mxc_map seen;
    const char *tensor;
    json_t *value;
    enum mxc_code code = MXC_OK;
    mxc_map_init(&seen);
    json_object_foreach(map, tensor, value) {
        uint64_t known;
        if ((code = check_shard_name(value, tensor, err)))
            goto out;
        struct mxc_str name = mxc_str_of(json_string_value(value));
        if (mxc_map_get(&seen, name, &known))
            continue;
        if (!mxc_map_put_borrowed(&seen, name, 1)) {
            code = mxc_err_nomem(err);
            goto out;
        }
        if ((code = add_name(w, &names, name.ptr, err)))
            goto out;
    }
    if (!names.n) {
        code = mxc_err_set(err, MXC_E_FORMAT, "weight_map names no file");
        goto out;
    }
    qsort(names.items, names.n, sizeof *names.items, by_text);
    for (size_t i = 0; !code && i < names.n; i++)
        code = open_named(w, names.items[i], false, err);
    if (code)
        goto out;
    /* Files that a stale index does not know add what is new. */
    names.n = 0;
    bool pickle = false;
    code = list_folder(w, &names, &pickle, err);
    for (size_t i = 0; !code && i < names.n; i++) {
        uint64_t known;
        struct mxc_str name = mxc_str_of(names.items[i]);
        if (mxc_str_starts(name, "model") && !mxc_map_get(&seen, name, &known))
            code = open_named(w, names.items[i], true, err);
    }
    if (!code)
        code = check_index(w, map, err);
out:
    mxc_map_fini(&seen);
    mxc_mem_free(names.items);
    return code;
}

static enum mxc_code open_index(struct mxc_weights *w, const char *path, struct mxc_err *err) {
    json_t *root = NULL;
    enum mxc_code code = mxc_json_load(path, MAX_INDEX, &root, err);
    if (code)
        return code;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        code = mxc_err_set(err, MXC_E_FORMAT, "weight_map is missing or not an object");
    else
        code = open_index_map(w, map, err);
    json_decref(root);
    if (code)
        (void)mxc_err_context(err, "%s", path);
    return code;
}

static enum mxc_code open_folder(struct mxc_weights *w, struct mxc_err *err) {
    char *index = mxc_path_join(w->path, index_name);
    if (!index)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    struct names names = {0};
    bool pickle = false;
    if (mxc_file_exists(index)) {
        code = open_index(w, index, err);
        goto out;
    }
    if ((code = list_folder(w, &names, &pickle, err)))
        goto out;
    if (!names.n)
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "%s: no weights: no .safetensors file%s", w->path,
                           pickle ? " (pickle files such as pytorch_model.bin are not read)" : "");
    for (size_t i = 0; !code && i < names.n; i++)
        code = open_named(w, names.items[i], false, err);
out:
    mxc_mem_free(names.items);
    mxc_mem_free(index);
    return code;
}

/* The pieces of quantised matrices become one tensor each. */
static enum mxc_code join_pieces(struct mxc_weights *w, const json_t *quantization,
                                 struct mxc_err *err) {
    bool *gone = mxc_mem_zalloc(w->n_tensors + 1, sizeof *gone);
    if (!gone)
        return mxc_err_nomem(err);
    struct mxc_join join = {.tensors = w->tensors,
                            .n = w->n_tensors,
                            .by_name = &w->by_name,
                            .quantization = quantization,
                            .gone = gone,
                            .arena = &w->arena,
                            .err = err};
    enum mxc_code code = mxc_hf_join(&join);
    if (!code)
        code = mxc_mlx_join(&join);
    size_t n = 0;
    for (size_t i = 0; !code && i < w->n_tensors; i++)
        if (!gone[i])
            w->tensors[n++] = w->tensors[i];
    if (!code) {
        w->n_tensors = n;
        mxc_map_fini(&w->by_name);
        for (size_t i = 0; !code && i < n; i++) {
            const struct mxc_tensor *t = &w->tensors[i];
            uint64_t seen;
            if (mxc_map_get(&w->by_name, mxc_str_of(t->name), &seen))
                code = mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s is there in two forms",
                                   t->file->path, t->name);
            else if (!mxc_map_put_borrowed(&w->by_name, mxc_str_of(t->name), i))
                code = mxc_err_nomem(err);
        }
    }
    mxc_mem_free(gone);
    return code;
}

/* Heads of layer `layer`: a number, or a list with one per layer. */
static enum mxc_code heads_of(const struct mxc_gguf *g, const char *arch, const char *which,
                              size_t layer, int64_t *heads, struct mxc_err *err) {
    char key[128];
    const struct mxc_gguf_value *list = NULL;
    (void)snprintf(key, sizeof key, "%s.attention.%s", arch, which);
    const struct mxc_gguf_value *v = mxc_gguf_find(g, key);
    if (!v)
        return MXC_OK;
    if (v->type != MXC_GGUF_ARRAY)
        return mxc_gguf_get_int(g, key, 1, 65536, heads, err);
    enum mxc_code code = mxc_gguf_get_ints(g, key, &list, err);
    if (!code && layer < list->count)
        *heads = mxc_gguf_int_at(list, layer);
    return code;
}

static enum mxc_code set_permutation(const struct mxc_gguf *g, const char *arch,
                                     const struct mxc_gguf_tensor *from, struct mxc_tensor *t,
                                     struct mxc_err *err) {
    char which = mxc_gguf_permutes(arch) ? mxc_gguf_q_or_k(from->name) : 0;
    if (!which)
        return MXC_OK;
    size_t layer = (size_t)strtoul(from->name + 4, NULL, 10);
    int64_t heads = 0, rows = t->shape[t->n_dims == 1 ? 0 : t->n_dims - 2];
    enum mxc_code code = heads_of(g, arch, "head_count", layer, &heads, err);
    if (!code && which == 'k')
        code = heads_of(g, arch, "head_count_kv", layer, &heads, err);
    if (code)
        return code;
    bool block = mxc_storage_info(t->storage)->block > 1;
    if (heads < 1 || heads > 65536 || rows % (2 * heads) || t->n_dims > 2 ||
        (t->n_dims == 1 && block))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "%s: tensor %s: %lld rows do not divide into %lld heads of even size",
                           mxc_gguf_file(g)->path, from->name, (long long)rows, (long long)heads);
    t->permuted_heads = (uint32_t)heads;
    return MXC_OK;
}

static enum mxc_code add_gguf_tensors(struct mxc_weights *w, const struct mxc_gguf *g,
                                      const char *arch, struct mxc_err *err) {
    const struct mxc_file *file = mxc_gguf_file(g);
    enum mxc_code code = mxc_gguf_check_tensors(g, err);
    for (size_t i = 0; !code && i < mxc_gguf_n_tensors(g); i++) {
        const struct mxc_gguf_tensor *from = mxc_gguf_tensor_at(g, i);
        char name[256];
        if (mxc_gguf_is_config_tensor(from->name))
            continue;
        if (!mxc_gguf_logical_name(arch, from->name, name, sizeof name))
            return mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s: name too long", file->path,
                               from->name);
        struct mxc_tensor t = {.name = mxc_arena_strdup(&w->arena, name),
                               .storage = from->storage,
                               .n_dims = from->n_dims,
                               .file = file,
                               .data = from->data,
                               .bytes = from->bytes};
        if (!t.name)
            return mxc_err_nomem(err);
        for (int d = 0; d < t.n_dims; d++)
            t.shape[d] = (int64_t)from->dims[t.n_dims - 1 - d];
        if (t.n_dims == 1 && mxc_str_ends(mxc_str_of(name), ".shared_expert_gate.weight")) {
            t.n_dims = 2; /* files drop extents of 1 */
            t.shape[1] = t.shape[0];
            t.shape[0] = 1;
        }
        code = set_permutation(g, arch, from, &t, err);
        if (!code)
            code = add_tensor(w, &t, err);
    }
    return code;
}

/* Path of part i of n, from the path of any part: "...-00001-of-00003.gguf". NULL with *err set. */
static char *part_path(const char *path, int64_t i, int64_t n, struct mxc_err *err) {
    char tail[32];
    size_t length = strlen(path), cut;
    (void)snprintf(tail, sizeof tail, "-of-%05lld.gguf", (long long)n);
    cut = strlen(tail) + 6;
    if (length <= cut || strcmp(path + length - strlen(tail), tail)) {
        (void)mxc_err_set(err, MXC_E_FORMAT,
                          "%s: split.count is %lld, but the file's name does not end in "
                          "-00001-of-%05lld.gguf: the other parts cannot be found",
                          path, (long long)n, (long long)n);
        return NULL;
    }
    char *part = mxc_mem_alloc(length + 8);
    if (!part)
        (void)mxc_err_nomem(err);
    else
        (void)snprintf(part, length + 8, "%.*s-%05lld%s", (int)(length - cut), path, (long long)i,
                       tail);
    return part;
}

static enum mxc_code add_gguf(struct mxc_weights *w, const char *path, struct mxc_err *err) {
    struct mxc_gguf **grown = mxc_mem_realloc(w->ggufs, w->n_ggufs + 1, sizeof *grown);
    if (!grown)
        return mxc_err_nomem(err);
    w->ggufs = grown;
    enum mxc_code code = mxc_gguf_open(path, &w->ggufs[w->n_ggufs], err);
    if (!code)
        advise(mxc_gguf_file(w->ggufs[w->n_ggufs++]));
    return code;
}

static enum mxc_code open_gguf(struct mxc_weights *w, struct mxc_err *err) {
    int64_t n_parts = 1;
    struct mxc_str arch = {0};
    char text[64];
    enum mxc_code code = add_gguf(w, w->path, err);
    if (code)
        return code;
    const struct mxc_gguf *g = w->ggufs[0];
    if ((code = mxc_gguf_get_string(g, "general.architecture", &arch, err)) ||
        (code = mxc_gguf_get_int(g, "split.count", 0, MAX_SHARDS, &n_parts, err)))
        return code;
    if (!arch.length || arch.length >= sizeof text)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: general.architecture is missing", w->path);
    memcpy(text, arch.ptr, arch.length);
    text[arch.length] = 0;
    if ((code = add_gguf_tensors(w, g, text, err)))
        return code;
    for (int64_t i = 1; !code && i <= n_parts && n_parts > 1; i++) {
        char *part = part_path(w->path, i, n_parts, err);
        if (!part)
            return err ? err->code : MXC_E_FORMAT;
        if (strcmp(part, w->path)) {
            code = add_gguf(w, part, err);
            if (!code)
                code = add_gguf_tensors(w, w->ggufs[w->n_ggufs - 1], text, err);
        }
        mxc_mem_free(part);
    }
    if (!code && !w->n_tensors)
        code = mxc_err_set(err, MXC_E_FORMAT, "%s: no tensors", w->path);
    return code;
}

enum mxc_code mxc_weights_open(const char *path, const struct mxc_config *config,
                               struct mxc_weights **weights, struct mxc_err *err) {
    struct mxc_weights *w = mxc_mem_zalloc(1, sizeof *w);
    if (!w)
        return mxc_err_nomem(err);
    mxc_arena_init(&w->arena, 0);
    mxc_map_init(&w->by_name);
    enum mxc_code code = MXC_OK;
    bool gguf = mxc_gguf_is_path(path);
    if (!(w->path = mxc_mem_strdup(path)))
        code = mxc_err_nomem(err);
    else if (gguf)
        code = open_gguf(w, err);
    else if (mxc_dir_exists(path))
        code = open_folder(w, err);
    else if (mxc_str_ends(mxc_str_of(path), ".safetensors"))
        code = add_shard(w, path, false, err);
    else
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "%s: no such model folder or .gguf file", path);
    if (!code && !gguf)
        code = join_pieces(w, config ? config->quantization : NULL, err);
    if (code) {
        mxc_weights_close(w);
        return code;
    }
    *weights = w;
    return MXC_OK;
}

void mxc_weights_close(struct mxc_weights *weights) {
    if (!weights)
        return;
    for (size_t i = 0; i < weights->n_shards; i++)
        mxc_safetensors_close(weights->shards[i]);
    for (size_t i = 0; i < weights->n_ggufs; i++)
        mxc_gguf_close(weights->ggufs[i]);
    mxc_mem_free(weights->shards);
    mxc_mem_free(weights->ggufs);
    mxc_mem_free(weights->tensors);
    mxc_map_fini(&weights->by_name);
    mxc_arena_fini(&weights->arena);
    mxc_mem_free(weights->path);
    mxc_mem_free(weights);
}

size_t mxc_weights_count(const struct mxc_weights *weights) {
    return weights->n_tensors;
}

const struct mxc_tensor *mxc_weights_at(const struct mxc_weights *weights, size_t index) {
    return index < weights->n_tensors ? &weights->tensors[index] : NULL;
}

void mxc_weights_set(struct mxc_weights *weights, size_t index, const struct mxc_tensor *tensor) {
    struct mxc_tensor *t = &weights->tensors[index];
    const char *name = t->name;
    *t = *tensor;
    t->name = name;
}

const struct mxc_tensor *mxc_weights_find(const struct mxc_weights *weights, const char *name) {
    uint64_t index;
    return mxc_map_get(&weights->by_name, mxc_str_of(name), &index) ? &weights->tensors[index]
                                                                    : NULL;
}

static void print_shape(char *out, size_t size, int n_dims, const int64_t *shape) {
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < n_dims && used < size; i++) {
        int n = shape[i] < 0 ? snprintf(out + used, size - used, "%sany", i ? ", " : "")
                             : snprintf(out + used, size - used, "%s%lld", i ? ", " : "",
                                        (long long)shape[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

static bool is_weight(enum mxc_storage s) {
    return mxc_storage_info(s)->quantised || s == MXC_ST_F32 || s == MXC_ST_F16 || s == MXC_ST_BF16;
}

/* Where a tensor that is not there should be: the one file, or the folder of several. */
static const char *whole_path(const struct mxc_weights *w) {
    return w->n_shards == 1 ? w->shards[0]->file.path : w->path;
}

enum mxc_code mxc_weights_get(const struct mxc_weights *weights, const char *name, int n_dims,
                              const int64_t *shape, const struct mxc_tensor **tensor,
                              struct mxc_err *err) {
    const struct mxc_tensor *t = mxc_weights_find(weights, name);
    if (!t)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "%s: missing tensor %s", whole_path(weights),
                           name);
    if (!is_weight(t->storage))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: tensor %s: dtype %s is not one of a weight",
                           t->file->path, name, mxc_storage_info(t->storage)->name);
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++)
        same = shape[i] < 0 || shape[i] == t->shape[i];
    if (!same) {
        char is[128], want[128];
        print_shape(is, sizeof is, t->n_dims, t->shape);
        print_shape(want, sizeof want, n_dims, shape);
        return mxc_err_set(err, MXC_E_FORMAT,
                           "%s: tensor %s: %s [%s] where the config asks for [%s]", t->file->path,
                           name, t->n_dims == n_dims ? "shape" : "rank of shape", is, want);
    }
    *tensor = t;
    return MXC_OK;
}

uint64_t mxc_weights_bytes(const struct mxc_weights *weights) {
    uint64_t sum = 0;
    for (size_t i = 0; i < weights->n_tensors; i++)
        sum += weights->tensors[i].bytes + weights->tensors[i].companion_bytes;
    return sum;
}

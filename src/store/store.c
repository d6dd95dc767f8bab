/* The store: where it is, what is in it, and which folder or file a MODEL argument means. Reads the
 * environment once, at open; reads the disk at every call. Never writes (remove.c and download.c
 * do). An entry with the mark of an interrupted update is refused rather than half-read. */
#define _GNU_SOURCE
#include "store/internal.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/tree.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <strings.h>

/* ---- open ---- */

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* "~" and "~/x" become HOME; NULL: out of memory. */
static char *expand(const char *path) {
    const char *home = environment("HOME");
    if (path[0] == '~' && (!path[1] || path[1] == '/') && home)
        return mxc_text_printf("%s%s", home, path + 1);
    return mxc_mem_strdup(path);
}

static char *default_root(void) {
    const char *models = environment("MLXCEL_MODELS_DIR"), *cache = environment("MLXCEL_CACHE_DIR");
    if (models)
        return expand(models);
    char *base = expand(cache ? cache : "~/.cache/mlxcel");
    char *root = base ? mxc_path_join(base, "models") : NULL;
    mxc_mem_free(base);
    return root;
}

static char *default_hf_cache(void) {
    const char *hub = environment("HF_HUB_CACHE"), *home = environment("HF_HOME");
    if (hub)
        return expand(hub);
    char *base = expand(home ? home : "~/.cache/huggingface");
    char *cache = base ? mxc_path_join(base, "hub") : NULL;
    mxc_mem_free(base);
    return cache;
}

enum mxc_code mxc_store_open(const char *root, struct mxc_store **store, struct mxc_err *err) {
    const char *org = environment("MLXCEL_DEFAULT_ORG");
    struct mxc_store *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    s->root = root && *root ? expand(root) : default_root();
    s->default_org = mxc_mem_strdup(org ? org : "mlx-community");
    s->hf_cache = default_hf_cache();
    enum mxc_code code = MXC_OK;
    struct mxc_repo_name name;
    if (!s->root || !s->default_org || !s->hf_cache)
        code = mxc_err_nomem(err);
    else if (mxc_repo_name_parse(s->default_org, &name, NULL) || name.owner[0] || name.tag[0])
        code = mxc_err_set(err, MXC_E_ARG, "MLXCEL_DEFAULT_ORG: \"%.100s\" is not an owner's name",
                           s->default_org);
    for (size_t n = s->root ? strlen(s->root) : 0; n > 1 && s->root[n - 1] == '/'; n--)
        s->root[n - 1] = 0;
    if (code)
        mxc_store_close(s);
    else
        *store = s;
    return code;
}

void mxc_store_close(struct mxc_store *store) {
    if (!store)
        return;
    mxc_mem_free(store->root);
    mxc_mem_free(store->default_org);
    mxc_mem_free(store->hf_cache);
    mxc_mem_free(store);
}

const char *mxc_store_root(const struct mxc_store *store) {
    return store->root;
}

const char *mxc_model_kind_name(enum mxc_model_kind kind) {
    return kind == MXC_MODEL_SAFETENSORS ? "safetensors"
           : kind == MXC_MODEL_GGUF      ? "gguf"
                                         : "unknown";
}

/* ---- names and paths ---- */

char *mxc_store_entry_path(const struct mxc_store *store, const struct mxc_repo_name *name) {
    return mxc_text_printf("%s/%s/%s", store->root, name->owner, name->name);
}

char *mxc_store_staging_path(const struct mxc_store *store, const struct mxc_repo_name *name) {
    return mxc_text_printf("%s/" MXC_STORE_STAGING "/%s/%s", store->root, name->owner, name->name);
}

static bool has_entry(const struct mxc_store *store, const char *owner, const char *name) {
    char *path = mxc_text_printf("%s/%s/%s", store->root, owner, name);
    bool found = path && mxc_dir_exists(path);
    mxc_mem_free(path);
    return found;
}

enum mxc_code mxc_store_name(const struct mxc_store *store, const char *text,
                             struct mxc_repo_name *name, struct mxc_err *err) {
    struct mxc_repo_name out;
    enum mxc_code code = mxc_repo_name_parse(text, &out, err);
    if (code)
        return code;
    const char *owner = store->default_org;
    struct mxc_names owners = {0};
    if (!out.owner[0] && !has_entry(store, owner, out.name)) {
        size_t found = 0;
        if ((code = mxc_names_read(store->root, &owners, err)))
            return code;
        for (size_t i = 0; i < owners.n; i++)
            if (strlen(owners.items[i]) <= MXC_REPO_PART_MAX &&
                has_entry(store, owners.items[i], out.name) && !found++)
                owner = owners.items[i];
        if (found > 1)
            code = mxc_err_set(err, MXC_E_ARG, "%zu owners in the store have a model %s; say which",
                               found, out.name);
    }
    if (!code && !out.owner[0])
        memcpy(out.owner, owner, strlen(owner) + 1);
    if (!code)
        *name = out;
    mxc_names_fini(&owners);
    return code;
}

/* ---- what a folder is ---- */

struct folder {
    struct mxc_names names;
    bool safetensors, config, gguf, tokenizer, updating;
};

static enum mxc_code read_folder(const char *path, struct folder *folder, struct mxc_err *err) {
    struct folder out = {0};
    enum mxc_code code = mxc_names_read(path, &out.names, err);
    if (code)
        return code;
    for (size_t i = 0; i < out.names.n; i++) {
        const char *name = out.names.items[i];
        out.safetensors |= mxc_text_ends(name, ".safetensors");
        out.gguf |= mxc_text_ends(name, ".gguf");
        out.config |= !strcmp(name, "config.json");
        out.tokenizer |= !strcmp(name, "tokenizer.json");
    }
    char *mark = mxc_path_join(path, MXC_STORE_UPDATING);
    if (!mark) {
        mxc_names_fini(&out.names);
        return mxc_err_nomem(err);
    }
    out.updating = mxc_file_exists(mark);
    mxc_mem_free(mark);
    *folder = out;
    return MXC_OK;
}

static enum mxc_model_kind folder_kind(const struct folder *folder) {
    return folder->safetensors ? MXC_MODEL_SAFETENSORS
           : folder->gguf      ? MXC_MODEL_GGUF
                               : MXC_MODEL_UNKNOWN;
}

/* From a folder to what the loader takes: the folder, or the .gguf file in it. */
static enum mxc_code place_of(const char *path, const char *tag, char **file,
                              enum mxc_model_kind *kind, struct mxc_err *err) {
    struct folder folder;
    enum mxc_code code = read_folder(path, &folder, err);
    if (code)
        return code;
    enum mxc_model_kind k = folder_kind(&folder);
    char *out = NULL;
    if (folder.updating) {
        code = mxc_err_set(err, MXC_E_FORMAT, "%s: an update was interrupted; download it again",
                           path);
    } else if (folder.gguf && (k == MXC_MODEL_GGUF || tag[0])) {
        size_t index;
        code = mxc_gguf_pick((const char *const *)folder.names.items, folder.names.n, tag, false,
                             &index, err);
        if (code)
            mxc_err_context(err, "%s", path);
        else if (!(out = mxc_path_join(path, folder.names.items[index])))
            code = mxc_err_nomem(err);
        k = MXC_MODEL_GGUF;
    } else if (tag[0]) {
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "%s: no .gguf file for \"%s\"", path, tag);
    } else if (!(out = mxc_mem_strdup(path))) {
        code = mxc_err_nomem(err);
    }
    mxc_names_fini(&folder.names);
    if (code)
        return code;
    *file = out;
    *kind = k;
    return MXC_OK;
}

/* ---- the Hugging Face cache ---- */

/* A snapshot grows file by file: it is taken only when the shards that its index names are there.
 */
static bool snapshot_whole(const char *path) {
    struct folder folder;
    if (read_folder(path, &folder, NULL))
        return false;
    bool whole = folder.gguf || (folder.safetensors && folder.config);
    mxc_names_fini(&folder.names);
    char *index = mxc_path_join(path, "model.safetensors.index.json");
    json_t *root = NULL, *map, *value;
    const char *key;
    if (whole && index && mxc_file_exists(index)) {
        if (mxc_json_load(index, 64 << 20, &root, NULL))
            whole = false;
        map = root ? json_object_get(root, "weight_map") : NULL;
        json_object_foreach(map, key, value) {
            const char *name = json_string_value(value);
            char *shard = name && mxc_repo_path_valid(name) ? mxc_path_join(path, name) : NULL;
            whole = whole && shard && mxc_file_exists(shard);
            mxc_mem_free(shard);
            if (!whole)
                break;
        }
    }
    json_decref(root);
    mxc_mem_free(index);
    return whole;
}

/* The snapshot of main (or the only one) of a repository; NULL when there is none. */
static char *hf_snapshot(const struct mxc_store *store, const struct mxc_repo_name *name) {
    char *repo = mxc_text_printf("%s/models--%s--%s", store->hf_cache, name->owner, name->name);
    char *ref = repo ? mxc_path_join(repo, "refs/main") : NULL;
    char *snapshots = repo ? mxc_path_join(repo, "snapshots") : NULL;
    char *commit = NULL, *path = NULL;
    size_t length;
    struct mxc_names names = {0};
    if (ref && snapshots && !mxc_file_read(ref, 256, &commit, &length, NULL)) {
        commit[strcspn(commit, "\r\n")] = 0;
        if (mxc_repo_path_valid(commit))
            path = mxc_path_join(snapshots, commit);
    } else if (snapshots && !mxc_names_read(snapshots, &names, NULL) && names.n == 1) {
        path = mxc_path_join(snapshots, names.items[0]);
    }
    if (path && (!mxc_dir_exists(path) || !snapshot_whole(path))) {
        mxc_mem_free(path);
        path = NULL;
    }
    mxc_names_fini(&names);
    mxc_mem_free(commit);
    mxc_mem_free(snapshots);
    mxc_mem_free(ref);
    mxc_mem_free(repo);
    return path;
}

/* ---- resolve ---- */

static enum mxc_code not_found(const struct mxc_store *store, const char *model,
                               struct mxc_err *err) {
    struct mxc_store_list list = {0};
    const char *near = NULL;
    unsigned best = 1 + (unsigned)strlen(model) / 3;
    if (!mxc_store_list(store, &list, NULL))
        for (size_t i = 0; i < list.n; i++) {
            const char *name = list.entries[i].name;
            unsigned whole = mxc_str_distance(model, name);
            unsigned part = mxc_str_distance(model, mxc_path_base(name));
            unsigned distance = whole < part ? whole : part;
            if (distance < best) {
                best = distance;
                near = name;
            }
        }
    enum mxc_code code = mxc_err_set(
        err, MXC_E_NOT_FOUND,
        "no model \"%.200s\": no such folder or .gguf file, not in the store %.150s%s%.100s%s",
        model, store->root, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    mxc_store_list_fini(&list);
    return code;
}

static enum mxc_code resolve_path(const char *model, struct mxc_model_place *out,
                                  struct mxc_err *err) {
    char *path = expand(model);
    if (!path)
        return mxc_err_nomem(err);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    enum mxc_code code = MXC_OK;
    out->source = MXC_PLACE_PATH;
    if (mxc_dir_exists(path)) {
        code = place_of(path, "", &out->path, &out->kind, err);
    } else if (!mxc_file_exists(path)) {
        code = MXC_E_NOT_FOUND;
    } else if (!mxc_text_ends(path, ".gguf")) {
        code = mxc_err_set(err, MXC_E_UNSUPPORTED, "%.300s: a model is a folder or a .gguf file",
                           path);
    } else {
        out->kind = MXC_MODEL_GGUF;
        if (!(out->path = mxc_mem_strdup(path)))
            code = mxc_err_nomem(err);
    }
    if (!code && !(out->name = mxc_mem_strdup(mxc_path_base(path))))
        code = mxc_err_nomem(err);
    mxc_mem_free(path);
    return code;
}

/* A model that came with the program, by its bare name: the folder's path, or NULL. */
static char *bundled(const char *name) {
    static const char *const places[] = {"share/mlxcel/models", "../models"};
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    char *path = NULL;
    if (n <= 0 || strchr(name, '/'))
        return NULL;
    program[n] = 0;
    for (int up = 0; up < 2; up++) { /* PREFIX/bin/mlxcel, SOURCE/build/PRESET/mlxcel */
        char *slash = strrchr(program, '/');
        if (!slash)
            return NULL;
        *slash = 0;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        path = mxc_text_printf("%s/%s/%s", program, places[i], name);
        if (path && mxc_dir_exists(path))
            return path;
        mxc_mem_free(path);
    }
    return NULL;
}

static enum mxc_code resolve_name(const struct mxc_store *store, const char *model,
                                  struct mxc_model_place *out, struct mxc_err *err) {
    struct mxc_repo_name name;
    enum mxc_code code = mxc_store_name(store, model, &name, err);
    if (code)
        return code;
    char *path = mxc_store_entry_path(store, &name);
    if (!path)
        return mxc_err_nomem(err);
    out->source = MXC_PLACE_STORE;
    if (!mxc_dir_exists(path)) {
        mxc_mem_free(path);
        path = hf_snapshot(store, &name);
        out->source = MXC_PLACE_HF_CACHE;
    }
    if (!path) {
        path = bundled(model);
        out->source = MXC_PLACE_BUNDLED;
    }
    if (!path)
        return not_found(store, model, err);
    code = place_of(path, name.tag, &out->path, &out->kind, err);
    mxc_mem_free(path);
    if (!code && !(out->name = mxc_text_printf("%s/%s", name.owner, name.name)))
        code = mxc_err_nomem(err);
    return code;
}

enum mxc_code mxc_store_resolve(const struct mxc_store *store, const char *model,
                                struct mxc_model_place *place, struct mxc_err *err) {
    struct mxc_model_place out = {0};
    struct mxc_repo_name name;
    if (!*model)
        return mxc_err_set(err, MXC_E_ARG, "the model's name is empty");
    enum mxc_code code = resolve_path(model, &out, err);
    if (code == MXC_E_NOT_FOUND) {
        mxc_model_place_fini(&out);
        /* What cannot be a name was meant as a path. */
        code = mxc_repo_name_parse(model, &name, NULL) ? not_found(store, model, err)
                                                       : resolve_name(store, model, &out, err);
    }
    if (code)
        mxc_model_place_fini(&out);
    else
        *place = out;
    return code;
}

void mxc_model_place_fini(struct mxc_model_place *place) {
    mxc_mem_free(place->path);
    mxc_mem_free(place->name);
    *place = (struct mxc_model_place){0};
}

/* ---- list ---- */

static enum mxc_code add_entry(const struct mxc_store *store, const char *owner, const char *name,
                               struct mxc_store_list *list, size_t *room, struct mxc_err *err) {
    struct mxc_store_entry entry = {0};
    struct mxc_repo_name parsed;
    struct mxc_tree_sum sum;
    struct folder folder = {0};
    enum mxc_code code = MXC_OK;
    entry.name = mxc_text_printf("%s/%s", owner, name);
    entry.path = mxc_text_printf("%s/%s/%s", store->root, owner, name);
    if (!entry.name || !entry.path) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if (mxc_repo_name_parse(entry.name, &parsed, NULL) || parsed.tag[0] ||
        !mxc_dir_exists(entry.path))
        goto out; /* not something that a name can mean */
    if ((code = read_folder(entry.path, &folder, err)) ||
        (code = mxc_tree_sum(entry.path, &sum, err)))
        goto out;
    if (folder.updating || !sum.n_files)
        goto out;
    entry.kind = folder_kind(&folder);
    entry.bytes = sum.bytes;
    entry.n_files = sum.n_files;
    entry.modified = sum.modified;
    if (list->n == *room) {
        *room = *room ? *room * 2 : 16;
        struct mxc_store_entry *more = mxc_mem_realloc(list->entries, *room, sizeof *more);
        if (!more) {
            code = mxc_err_nomem(err);
            goto out;
        }
        list->entries = more;
    }
    list->entries[list->n++] = entry;
    entry = (struct mxc_store_entry){0};
out:
    mxc_names_fini(&folder.names);
    mxc_mem_free(entry.name);
    mxc_mem_free(entry.path);
    return code;
}

enum mxc_code mxc_store_list(const struct mxc_store *store, struct mxc_store_list *list,
                             struct mxc_err *err) {
    struct mxc_store_list out = {0};
    struct mxc_names owners = {0}, names = {0};
    size_t room = 0;
    enum mxc_code code = mxc_names_read(store->root, &owners, err);
    for (size_t i = 0; !code && i < owners.n; i++) {
        char *path = mxc_path_join(store->root, owners.items[i]);
        if (!path)
            code = mxc_err_nomem(err);
        else if (mxc_dir_exists(path))
            code = mxc_names_read(path, &names, err);
        for (size_t j = 0; !code && j < names.n; j++)
            code = add_entry(store, owners.items[i], names.items[j], &out, &room, err);
        mxc_names_fini(&names);
        mxc_mem_free(path);
    }
    mxc_names_fini(&owners);
    if (code)
        mxc_store_list_fini(&out);
    else
        *list = out;
    return code;
}

void mxc_store_list_fini(struct mxc_store_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        mxc_mem_free(list->entries[i].name);
        mxc_mem_free(list->entries[i].path);
    }
    mxc_mem_free(list->entries);
    *list = (struct mxc_store_list){0};
}

/* The image side of an OpenXLA session: walks the rows of the contract in xla_image.h in their
 * order. In: a checkpoint's path and a policy. Out: the model's eye and where its tower runs, or
 * nothing and the reason.
 * Families are qualified by name here, not by what the registry knows: a new vision family is text
 * only on OpenXLA until somebody adds its row. What the files must hold is mxc_vision_open's. */
#include "engine/xla_image.h"

#include "base/mem.h"
#include "format/config.h"
#include "format/weights.h"
#include "models/vision_family.h"

#include <stdio.h>
#include <string.h>

#define REBUILD "rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"

bool mxc_xla_has_backend(void) {
#ifdef MLXCEL_XLA
    return true;
#else
    return false;
#endif
}

bool mxc_xla_has_device_runtime(void) {
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    return true;
#else
    return false;
#endif
}

/* ---- policy */

static size_t trim(const char **text) {
    static const char blanks[] = " \t\r\n";
    const char *p = *text ? *text : "";
    p += strspn(p, blanks);
    size_t n = strlen(p);
    while (n && strchr(blanks, p[n - 1]))
        n--;
    *text = p;
    return n;
}

enum mxc_code mxc_xla_vision_parse(const char *text, enum mxc_xla_vision *policy,
                                   struct mxc_err *err) {
    static const struct {
        const char *word;
        enum mxc_xla_vision policy;
    } words[] = {{"", MXC_XLA_VISION_AUTO},
                 {"auto", MXC_XLA_VISION_AUTO},
                 {"host", MXC_XLA_VISION_HOST},
                 {"device", MXC_XLA_VISION_DEVICE},
                 {"iree", MXC_XLA_VISION_DEVICE}};
    size_t n = trim(&text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == n && !memcmp(words[i].word, text, n)) {
            *policy = words[i].policy;
            return MXC_OK;
        }
    return mxc_err_set(err, MXC_E_CONFIG,
                       "MLXCEL_XLA_VISION_BACKEND: \"%.*s\" must be auto, host, device or iree",
                       n < 40 ? (int)n : 40, text);
}

/* ---- families */

struct qualified {
    const char *family;
    /* Whether tower and projector are the pair that was qualified; else writes what is not. NULL:
     * the family has one pair. */
    bool (*pair)(const json_t *root, char *why, size_t size);
    bool host_alone; /* the tower on the host is part of the qualified pair: no device needed */
};

/* The word under the key; "" when it is not there. */
static const char *word_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* CLIP or SigLIP, and two linears with an activation between them. */
static bool llava_pair(const json_t *root, char *why, size_t size) {
    const json_t *tower = json_object_get(root, "vision_config");
    const char *type = word_of(tower, "model_type"), *shape = word_of(root, "mm_projector_type");
    if (!json_is_object(tower)) {
        (void)snprintf(why, size, "it has no vision_config");
        return false;
    }
    if (*type && strcmp(type, "clip_vision_model") != 0 &&
        strcmp(type, "siglip_vision_model") != 0) {
        (void)snprintf(why, size, "vision_config.model_type is \"%.40s\", not CLIP or SigLIP",
                       type);
        return false;
    }
    if (*shape && strcmp(shape, "mlp2x_gelu") != 0) {
        (void)snprintf(why, size, "mm_projector_type is \"%.40s\", not mlp2x_gelu", shape);
        return false;
    }
    const char *act = word_of(root, "projector_hidden_act");
    if (*act && strcmp(act, "gelu") != 0) {
        (void)snprintf(why, size, "projector_hidden_act is \"%.40s\", not gelu", act);
        return false;
    }
    return true;
}

static const struct qualified qualified[] = {
    {"llava", llava_pair, true}, {"qwen2_vl", NULL, false}, {"qwen2_5_vl", NULL, false},
    {"qwen3_vl", NULL, false},   {"mllama", NULL, false},   {"gemma3", NULL, false},
    {"idefics3", NULL, false},
};

static const struct qualified *find_qualified(const char *family) {
    for (size_t i = 0; i < sizeof qualified / sizeof *qualified; i++)
        if (!strcmp(qualified[i].family, family))
            return &qualified[i];
    return NULL;
}

static void set_note(struct mxc_xla_image_note *note, enum mxc_xla_image_kind kind,
                     const char *what, const char *why) {
    note->kind = kind;
    (void)snprintf(note->text, sizeof note->text, "%s%s", what, why);
}

/* The family's row, or NULL and the reason. Fails on a model_type that is none. */
static enum mxc_code judge(const struct mxc_config *config, const struct mxc_family **family,
                           const struct qualified **row, struct mxc_xla_image_note *note,
                           struct mxc_err *err) {
    const char *type = config->model_type;
    char why[160];
    *row = NULL;
    enum mxc_code code = mxc_family_find(config, family, err);
    if (code && code != MXC_E_UNSUPPORTED)
        return mxc_err_context(err, "config.json");
    bool eye = json_is_object(json_object_get(config->root, "vision_config"));
    const struct qualified *found = code ? NULL : find_qualified((*family)->name);
    if (config->from_gguf || (code ? !eye : !(*family)->vision)) {
        (void)snprintf(why, sizeof why, "%.60s %s", type,
                       code ? "has no vision_config" : "is a text model");
        set_note(note, MXC_XLA_IMAGE_TEXT_ONLY, "", why);
    } else if (!found) {
        (void)snprintf(why, sizeof why, "%.60s is not qualified for pictures on OpenXLA", type);
        set_note(note, MXC_XLA_IMAGE_NOT_QUALIFIED, "", why);
    } else if (found->pair && !found->pair(config->root, why, sizeof why)) {
        set_note(note, MXC_XLA_IMAGE_MISMATCH,
                 "FamilyMismatch: not the pair of tower and projector that is qualified for "
                 "OpenXLA: ",
                 why);
    } else {
        *row = found;
    }
    return MXC_OK;
}

/* ---- feature */

static enum mxc_code check_feature(const struct qualified *row, enum mxc_xla_vision policy,
                                   const char *given, struct mxc_err *err) {
    if (mxc_xla_has_device_runtime() || (row->host_alone && policy != MXC_XLA_VISION_DEVICE))
        return MXC_OK;
    if (row->host_alone) {
        size_t n = trim(&given);
        return mxc_err_set(
            err, MXC_E_CONFIG,
            "MLXCEL_XLA_VISION_BACKEND=%.*s: the vision tower of %s would run on a "
            "device, but this build lacks the device runtime (feature xla-device): " REBUILD
            ", or take auto or host",
            (int)n, given, row->family);
    }
    return mxc_err_set(err, MXC_E_CONFIG,
                       "%s: the image path needs the device runtime (feature xla-device), which "
                       "this build lacks: " REBUILD "%s",
                       row->family,
                       policy == MXC_XLA_VISION_HOST
                           ? "; under the policy host the tower would run, but the session itself "
                             "could not run without it"
                           : "");
}

/* ---- files */

/* Of a qualified family nothing may be missing: what mxc_vision_open takes for a text model. */
static enum mxc_code check_parts(const struct mxc_family *family, const struct mxc_config *config,
                                 const struct mxc_weights *weights, struct mxc_err *err) {
    const struct mxc_vision_family *eye = family->vision;
    char name[MXC_MAX_WEIGHT_NAME];
    if (!json_is_object(json_object_get(config->root, "vision_config")))
        return mxc_err_set(err, MXC_E_CONFIG, "config.json: vision_config: missing");
    for (const char *const *p = eye->prefixes; *p; p++) {
        (void)snprintf(name, sizeof name, "%s%s", *p, eye->probe);
        if (mxc_weights_find(weights, name))
            return MXC_OK;
    }
    return mxc_err_set(err, MXC_E_CONFIG,
                       "safetensors: tensor %s%s: missing (the vision tower of %s)",
                       eye->prefixes[0], eye->probe, family->name);
}

static enum mxc_code open_files(const char *path, const struct mxc_family *family,
                                const struct mxc_config *config, struct mxc_vision **vision,
                                struct mxc_err *err) {
    struct mxc_weights *weights = NULL;
    struct mxc_err own;
    enum mxc_code code = mxc_weights_open(path, config, &weights, &own);
    if (!code)
        code = check_parts(family, config, weights, &own);
    if (!code)
        code = mxc_vision_open(path, config, weights, vision, &own);
    mxc_weights_close(weights);
    if (!code)
        return MXC_OK;
    if (code == MXC_E_NOT_FOUND ||
        code == MXC_E_UNSUPPORTED) /* not there, or not for this family */
        own.code = code = MXC_E_CONFIG;
    if (code != MXC_E_NOMEM && !strstr(own.message, path))
        (void)mxc_err_context(&own, "%s", path);
    if (err)
        *err = own;
    return code;
}

enum mxc_code mxc_xla_image_preprocessor_load(const char *model_dir,
                                              const struct mxc_xla_image_options *options,
                                              struct mxc_xla_image **out, struct mxc_err *err) {
    enum mxc_xla_vision policy;
    struct mxc_xla_image_note note;
    struct mxc_config *config = NULL;
    const struct mxc_family *family;
    const struct qualified *row;
    struct mxc_xla_image *image = NULL;
    enum mxc_code code = mxc_xla_vision_parse(options->policy, &policy, err);
    if (code || (code = mxc_config_open(model_dir, &config, err)) ||
        (code = judge(config, &family, &row, &note, err)))
        goto out;
    if (row) {
        if ((code = check_feature(row, policy, options->policy, err)))
            goto out;
        if (!(image = mxc_mem_zalloc(1, sizeof *image))) {
            code = mxc_err_nomem(err);
            goto out;
        }
        if ((code = open_files(model_dir, family, config, &image->vision, err)))
            goto out;
        image->device = policy != MXC_XLA_VISION_HOST && mxc_xla_has_device_runtime();
        image->may_fall_back = image->device && policy == MXC_XLA_VISION_AUTO;
        set_note(&note, image->device ? MXC_XLA_IMAGE_DEVICE : MXC_XLA_IMAGE_HOST, family->name,
                 image->device ? ": the vision tower runs on the device"
                               : ": the vision tower runs on the host");
    }
    if (options->note)
        *options->note = note;
    *out = image;
    image = NULL;
out:
    mxc_xla_image_free(image);
    mxc_config_close(config);
    return code;
}

void mxc_xla_image_free(struct mxc_xla_image *image) {
    if (!image)
        return;
    mxc_vision_close(image->vision);
    mxc_mem_free(image);
}

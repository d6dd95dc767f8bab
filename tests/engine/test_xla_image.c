/* The contract of engine/xla_image.h, row by row: which checkpoint, under which policy, in which
 * build, gives what, with the text of every error. Checkpoints are made up here from those of
 * tests/data: a folder holds only what the row is about. Rows of the other builds are passed over,
 * so all of them are seen when the three combinations of CMake options are tested. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/xla_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN  MXC_TEST_DATA "/golden/"
#define REBUILD "rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"

enum { NO = 1, YES = 2, ANY = NO | YES }; /* the device runtime is built in */

enum parts {
    WHOLE,        /* every file of the source */
    CONFIG_ONLY,  /* config.json alone */
    NO_PROCESSOR, /* without preprocessor_config.json and processor_config.json */
    NO_WEIGHTS,
    NOTHING
};

/* A checkpoint: a source of tests/data/golden, what is left out, and changes. */
struct made {
    const char *source;
    enum parts parts;
    const char *edit; /* JSON merged into config.json; a null deletes the key. NULL: none */
    const char *file, *from,
        *to; /* bytes of a file that are other ones, as many; or file is text */
};

struct row {
    const char *name;
    struct made made;
    const char *policy;
    int runtime;
    enum mxc_code code;
    const char *text; /* of the error, or the note; $ stands for the folder */
    enum mxc_xla_image_kind kind;
    bool falls_back;
};

#define TEXT     MXC_XLA_IMAGE_TEXT_ONLY
#define UNKNOWN  MXC_XLA_IMAGE_NOT_QUALIFIED
#define MISMATCH MXC_XLA_IMAGE_MISMATCH
#define HOST     MXC_XLA_IMAGE_HOST
#define DEVICE   MXC_XLA_IMAGE_DEVICE

#define LLAMA                                                                                      \
    { "llama", WHOLE, NULL, NULL, NULL, NULL }
#define LLAVA                                                                                      \
    { "llava_clip_llama", WHOLE, NULL, NULL, NULL, NULL }
#define SIGLIP                                                                                     \
    { "llava_siglip_qwen2", WHOLE, NULL, NULL, NULL, NULL }
#define QWEN2_VL                                                                                   \
    { "qwen2_vl", WHOLE, NULL, NULL, NULL, NULL }
#define BARE(s)                                                                                    \
    { s, CONFIG_ONLY, NULL, NULL, NULL, NULL }
#define EDIT(s, parts, json)                                                                       \
    { s, parts, json, NULL, NULL, NULL }
#define BYTES(s, file, from, to)                                                                   \
    { s, WHOLE, NULL, file, from, to }

#define BAD_POLICY(word)                                                                           \
    "MLXCEL_XLA_VISION_BACKEND: \"" word "\" must be auto, host, device or iree"
#define PAIR "FamilyMismatch: not the pair of tower and projector that is qualified for OpenXLA: "
#define LACKS_PAIR(word)                                                                           \
    "MLXCEL_XLA_VISION_BACKEND=" word ": the vision tower of llava would run on a device, but "    \
    "this build lacks the device runtime (feature xla-device): " REBUILD ", or take auto or host"
#define LACKS(family)                                                                              \
    family ": the image path needs the device runtime (feature xla-device), which this build "     \
           "lacks: " REBUILD
#define NO_SESSION                                                                                 \
    "; under the policy host the tower would run, but the session itself could not run without it"

static const struct row rows[] = {
    /* policy spelling, before anything is looked at */
    {"bad policy, llama", LLAMA, "gpu", ANY, MXC_E_CONFIG, BAD_POLICY("gpu"), 0, 0},
    {"bad policy, qwen2_vl", QWEN2_VL, "Device", ANY, MXC_E_CONFIG, BAD_POLICY("Device"), 0, 0},
    {"bad policy, nothing there",
     {"llama", NOTHING, NULL, NULL, NULL, NULL},
     "device,host",
     ANY,
     MXC_E_CONFIG,
     BAD_POLICY("device,host"),
     0,
     0},
    {"bad policy, blanks around", LLAVA, " on device ", ANY, MXC_E_CONFIG, BAD_POLICY("on device"),
     0, 0},
    {"a prefix of a word", LLAVA, "hos", ANY, MXC_E_CONFIG, BAD_POLICY("hos"), 0, 0},
    /* config.json, before the family */
    {"no config.json",
     {"qwen2_vl", NOTHING, NULL, NULL, NULL, NULL},
     "auto",
     ANY,
     MXC_E_NOT_FOUND,
     "$/config.json: cannot open: No such file or directory",
     0,
     0},
    {"config.json is no JSON", BYTES("llama", "config.json", NULL, "{\"model_type\": "), "auto",
     ANY, MXC_E_FORMAT, "$/config.json: line 1: unexpected token near end of file", 0, 0},
    {"config.json without model_type", EDIT("llama", CONFIG_ONLY, "{\"model_type\": null}"), "host",
     ANY, MXC_E_FORMAT, "$/config.json: model_type is missing", 0, 0},
    {"config.json with a size that is none",
     EDIT("qwen2_vl", CONFIG_ONLY, "{\"hidden_size\": \"many\"}"), "device", ANY, MXC_E_FORMAT,
     "$/config.json: hidden_size: not an integer", 0, 0},
    /* text only */
    {"llama", LLAMA, NULL, ANY, MXC_OK, "llama is a text model", TEXT, 0},
    {"llama, device", LLAMA, "device", ANY, MXC_OK, "llama is a text model", TEXT, 0},
    {"llama, host", LLAMA, "host", ANY, MXC_OK, "llama is a text model", TEXT, 0},
    {"llama, iree", LLAMA, "iree", ANY, MXC_OK, "llama is a text model", TEXT, 0},
    {"llama, config.json alone", BARE("llama"), "", ANY, MXC_OK, "llama is a text model", TEXT, 0},
    {"a type nobody knows", EDIT("llama", CONFIG_ONLY, "{\"model_type\": \"nobody\"}"), "", ANY,
     MXC_OK, "nobody has no vision_config", TEXT, 0},
    /* vision families that are not qualified */
    {"pixtral", EDIT("llama", CONFIG_ONLY, "{\"model_type\": \"pixtral\", \"vision_config\": {}}"),
     "device", ANY, MXC_OK, "pixtral is not qualified for pictures on OpenXLA", UNKNOWN, 0},
    {"molmo", EDIT("llama", CONFIG_ONLY, "{\"model_type\": \"molmo\", \"vision_config\": {}}"),
     NULL, ANY, MXC_OK, "molmo is not qualified for pictures on OpenXLA", UNKNOWN, 0},
    /* FamilyMismatch */
    {"llava with another tower",
     EDIT("llava_clip_llama", WHOLE, "{\"vision_config\": {\"model_type\": \"pixtral\"}}"),
     "device", ANY, MXC_OK, PAIR "vision_config.model_type is \"pixtral\", not CLIP or SigLIP",
     MISMATCH, 0},
    {"llava with another projector",
     EDIT("llava_clip_llama", CONFIG_ONLY, "{\"mm_projector_type\": \"linear\"}"), "iree", ANY,
     MXC_OK, PAIR "mm_projector_type is \"linear\", not mlp2x_gelu", MISMATCH, 0},
    {"llava with another activation",
     EDIT("llava_clip_llama", CONFIG_ONLY, "{\"projector_hidden_act\": \"relu\"}"), "host", ANY,
     MXC_OK, PAIR "projector_hidden_act is \"relu\", not gelu", MISMATCH, 0},
    {"llava without a tower", EDIT("llava_clip_llama", CONFIG_ONLY, "{\"vision_config\": null}"),
     NULL, ANY, MXC_OK, PAIR "it has no vision_config", MISMATCH, 0},
    /* llava */
    {"llava, device", LLAVA, "device", NO, MXC_E_CONFIG, LACKS_PAIR("device"), 0, 0},
    {"llava, iree", LLAVA, " iree", NO, MXC_E_CONFIG, LACKS_PAIR("iree"), 0, 0},
    {"llava, device, config.json alone", BARE("llava_clip_llama"), "device", NO, MXC_E_CONFIG,
     LACKS_PAIR("device"), 0, 0},
    {"llava, auto", LLAVA, "auto", NO, MXC_OK, "llava: the vision tower runs on the host", HOST, 0},
    {"llava, none given", LLAVA, NULL, NO, MXC_OK, "llava: the vision tower runs on the host", HOST,
     0},
    {"llava, host", LLAVA, "host", ANY, MXC_OK, "llava: the vision tower runs on the host", HOST,
     0},
    {"llava, auto", LLAVA, "auto", YES, MXC_OK, "llava: the vision tower runs on the device",
     DEVICE, true},
    {"llava, empty", LLAVA, "", YES, MXC_OK, "llava: the vision tower runs on the device", DEVICE,
     true},
    {"llava, blank", LLAVA, " \t", YES, MXC_OK, "llava: the vision tower runs on the device",
     DEVICE, true},
    {"llava, device", LLAVA, "device", YES, MXC_OK, "llava: the vision tower runs on the device",
     DEVICE, false},
    {"llava, iree", LLAVA, "iree\n", YES, MXC_OK, "llava: the vision tower runs on the device",
     DEVICE, false},
    {"llava with SigLIP, host", SIGLIP, "host", ANY, MXC_OK,
     "llava: the vision tower runs on the host", HOST, 0},
    {"llava with SigLIP, device", SIGLIP, "device", YES, MXC_OK,
     "llava: the vision tower runs on the device", DEVICE, false},
    /* qwen2_vl */
    {"qwen2_vl, none given", QWEN2_VL, NULL, NO, MXC_E_CONFIG, LACKS("qwen2_vl"), 0, 0},
    {"qwen2_vl, auto", QWEN2_VL, "auto", NO, MXC_E_CONFIG, LACKS("qwen2_vl"), 0, 0},
    {"qwen2_vl, device", QWEN2_VL, "device", NO, MXC_E_CONFIG, LACKS("qwen2_vl"), 0, 0},
    {"qwen2_vl, iree", QWEN2_VL, "iree", NO, MXC_E_CONFIG, LACKS("qwen2_vl"), 0, 0},
    {"qwen2_vl, host", QWEN2_VL, "host", NO, MXC_E_CONFIG, LACKS("qwen2_vl") NO_SESSION, 0, 0},
    {"qwen2_vl, host", QWEN2_VL, "host", YES, MXC_OK, "qwen2_vl: the vision tower runs on the host",
     HOST, 0},
    {"qwen2_vl, auto", QWEN2_VL, "auto", YES, MXC_OK,
     "qwen2_vl: the vision tower runs on the device", DEVICE, true},
    {"qwen2_vl, device", QWEN2_VL, "device", YES, MXC_OK,
     "qwen2_vl: the vision tower runs on the device", DEVICE, false},
    {"qwen2_vl, iree", QWEN2_VL, "iree", YES, MXC_OK,
     "qwen2_vl: the vision tower runs on the device", DEVICE, false},
    {"qwen2_vl, config.json alone", BARE("qwen2_vl"), "auto", NO, MXC_E_CONFIG, LACKS("qwen2_vl"),
     0, 0},
    {"qwen2_vl, config.json alone", BARE("qwen2_vl"), "auto", YES, MXC_E_CONFIG,
     "$: no weights: no .safetensors file", 0, 0},
    /* files, after the feature */
    {"qwen2_vl without a processor", EDIT("qwen2_vl", NO_PROCESSOR, NULL), "device", YES,
     MXC_E_CONFIG,
     "$: neither preprocessor_config.json nor an image_processor in processor_config.json", 0, 0},
    {"qwen2_vl without a processor, no runtime", EDIT("qwen2_vl", NO_PROCESSOR, NULL), "device", NO,
     MXC_E_CONFIG, LACKS("qwen2_vl"), 0, 0},
    {"llava without a processor", EDIT("llava_clip_llama", NO_PROCESSOR, NULL), "host", ANY,
     MXC_E_CONFIG,
     "$: neither preprocessor_config.json nor an image_processor in processor_config.json", 0, 0},
    {"llava without weights", EDIT("llava_clip_llama", NO_WEIGHTS, NULL), "host", ANY, MXC_E_CONFIG,
     "$: no weights: no .safetensors file", 0, 0},
    {"llava, half a projector",
     BYTES("llava_clip_llama", "model.safetensors", "multi_modal_projector.linear_2.weight",
           "multi_modal_projector.linear_9.weight"),
     "host", ANY, MXC_E_CONFIG,
     "config.json: vision: $/model.safetensors: missing tensor "
     "multi_modal_projector.linear_2.weight",
     0, 0},
    {"qwen2_vl, half a projector",
     BYTES("qwen2_vl", "model.safetensors", "visual.merger.mlp.2.weight",
           "visual.merger.mlp.9.weight"),
     "auto", YES, MXC_E_CONFIG,
     "config.json: vision: $/model.safetensors: missing tensor visual.merger.mlp.2.weight", 0, 0},
    {"qwen2_vl without its tower",
     BYTES("qwen2_vl", "model.safetensors", "visual.patch_embed.proj.weight",
           "visual.patch_embed.pro9.weight"),
     "host", YES, MXC_E_CONFIG,
     "$: safetensors: tensor visual.patch_embed.proj.weight: missing (the vision tower of "
     "qwen2_vl)",
     0, 0},
    {"qwen2_vl without vision_config", EDIT("qwen2_vl", WHOLE, "{\"vision_config\": null}"),
     "device", YES, MXC_E_CONFIG, "$: config.json: vision_config: missing", 0, 0},
    {"qwen2_vl, a processor of another family",
     BYTES("qwen2_vl", "preprocessor_config.json", NULL,
           "{\"image_processor_type\": \"CLIPImageProcessor\"}"),
     "auto", YES, MXC_E_CONFIG,
     "$: preprocessor_config.json or processor_config.json: image_processor_type: a processor of "
     "clip does not go with qwen2_vl",
     0, 0},
    {"llava, a processor that is no JSON",
     BYTES("llava_clip_llama", "preprocessor_config.json", NULL, "{\"size\": 56"), "host", ANY,
     MXC_E_FORMAT, "$/preprocessor_config.json: line 1: '}' expected near end of file", 0, 0},
    {"llava, weights cut short", BYTES("llava_clip_llama", "model.safetensors", NULL, "\x08"),
     "host", ANY, MXC_E_FORMAT, "$/model.safetensors: too short for a safetensors file: 1 bytes", 0,
     0},
};

/* The other families behave as qwen2_vl; one of each result. */
static const char *const like_qwen2_vl[] = {"qwen2_5_vl", "qwen3_vl", "mllama", "gemma3",
                                            "idefics3"};

/* ---- folders */

static const char *const files[] = {"config.json", "preprocessor_config.json",
                                    "processor_config.json", "model.safetensors"};

static void merge(json_t *into, json_t *edit) {
    const char *key;
    json_t *value, *old;
    json_object_foreach(edit, key, value) {
        old = json_object_get(into, key);
        if (json_is_null(value))
            (void)json_object_del(into, key);
        else if (json_is_object(value) && json_is_object(old))
            merge(old, value);
        else
            assert_int_equal(json_object_set(into, key, value), 0);
    }
}

/* Puts one file into the folder, changed as asked. */
static void put(const struct made *m, const char *folder, const char *name) {
    enum { MOST = 8 << 20 };
    char from[512], to[512];
    char *data = NULL, *at;
    size_t length = 0;
    bool changed = m->file && !strcmp(m->file, name);
    (void)snprintf(from, sizeof from, GOLDEN "%s/%s", m->source, name);
    (void)snprintf(to, sizeof to, "%s/%s", folder, name);
    if (changed && !m->from) { /* a text of its own */
        assert_int_equal(mxc_file_write(to, m->to, strlen(m->to), NULL), MXC_OK);
        return;
    }
    if (!mxc_file_exists(from))
        return;
    if (!changed && !(m->edit && !strcmp(name, "config.json"))) {
        assert_int_equal(symlink(from, to), 0);
        return;
    }
    assert_int_equal(mxc_file_read(from, MOST, &data, &length, NULL), MXC_OK);
    if (changed) {
        assert_int_equal(strlen(m->from), strlen(m->to));
        at = memmem(data, length, m->from, strlen(m->from));
        assert_non_null(at);
        memcpy(at, m->to, strlen(m->to));
    } else {
        json_t *root = NULL, *edit = json_loads(m->edit, 0, NULL);
        assert_non_null(edit);
        assert_int_equal(mxc_json_parse(data, length, name, &root, NULL), MXC_OK);
        merge(root, edit);
        mxc_mem_free(data);
        data = mxc_json_dump(root);
        assert_non_null(data);
        length = strlen(data);
        json_decref(root);
        json_decref(edit);
    }
    assert_int_equal(mxc_file_write(to, data, length, NULL), MXC_OK);
    mxc_mem_free(data);
}

static void make(const struct made *m, char folder[64]) {
    (void)snprintf(folder, 64, "/tmp/mlxcel-xla-image-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool processor = strstr(files[i], "processor") != NULL;
        bool weights = strstr(files[i], "safetensors") != NULL;
        if (m->parts == NOTHING || (m->parts == CONFIG_ONLY && i > 0) ||
            (m->parts == NO_PROCESSOR && processor) || (m->parts == NO_WEIGHTS && weights))
            continue;
        put(m, folder, files[i]);
    }
}

static void drop(const char *folder) {
    char path[512];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

/* ---- rows */

/* $ in what is expected stands for the folder. */
static bool says(const char *text, const char *expected, const char *folder) {
    char whole[1024];
    size_t n = 0;
    for (const char *p = expected; *p; p++)
        n += (size_t)(*p == '$' ? snprintf(whole + n, sizeof whole - n, "%s", folder)
                                : snprintf(whole + n, sizeof whole - n, "%c", *p));
    return !strcmp(text, whole);
}

static bool is_of_this_build(const struct row *row) {
    return row->runtime & (mxc_xla_has_device_runtime() ? YES : NO);
}

static void check_row(const struct row *row) {
    char folder[64];
    struct mxc_err err = {.code = MXC_OK, .message = ""};
    struct mxc_xla_image_note note = {.text = ""};
    struct mxc_xla_image mark, *image = &mark;
    const struct mxc_xla_image_options options = {.policy = row->policy, .note = &note};
    make(&row->made, folder);
    enum mxc_code code = mxc_xla_image_preprocessor_load(folder, &options, &image, &err);
    const char *text = code ? err.message : note.text;
    if (code != row->code || !says(text, row->text, folder))
        fail_msg("%s: %s, \"%s\"", row->name, mxc_code_info(code)->name, text);
    drop(folder);
    if (code) { /* outputs are as they were */
        assert_int_equal(err.code, code);
        assert_ptr_equal(image, &mark);
        assert_string_equal(note.text, "");
        return;
    }
    if (note.kind != row->kind)
        fail_msg("%s: kind %d", row->name, note.kind);
    if (note.kind != HOST && note.kind != DEVICE) {
        assert_null(image);
        return;
    }
    assert_non_null(image);
    assert_non_null(mxc_vision_tower(image->vision));
    assert_int_equal(image->device, note.kind == DEVICE);
    assert_int_equal(image->may_fall_back, row->falls_back);
    mxc_xla_image_free(image);
}

static void every_row(void **state) {
    (void)state;
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (is_of_this_build(&rows[i])) {
            check_row(&rows[i]);
            n++;
        }
    assert_true(n >= 40);
}

static void other_families(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof like_qwen2_vl / sizeof *like_qwen2_vl; i++) {
        const char *family = like_qwen2_vl[i];
        char lacks[256], host_lacks[512], on_host[80], on_device[80];
        (void)snprintf(lacks, sizeof lacks, "%s" LACKS(""), family);
        (void)snprintf(host_lacks, sizeof host_lacks, "%s" NO_SESSION, lacks);
        (void)snprintf(on_host, sizeof on_host, "%s: the vision tower runs on the host", family);
        (void)snprintf(on_device, sizeof on_device, "%s: the vision tower runs on the device",
                       family);
        const struct made whole = {family, WHOLE, NULL, NULL, NULL, NULL};
        const struct made bare = {family, CONFIG_ONLY, NULL, NULL, NULL, NULL};
        const struct row own[] = {
            {family, whole, "auto", NO, MXC_E_CONFIG, lacks, 0, 0},
            {family, whole, "device", NO, MXC_E_CONFIG, lacks, 0, 0},
            {family, whole, "iree", NO, MXC_E_CONFIG, lacks, 0, 0},
            {family, whole, "host", NO, MXC_E_CONFIG, host_lacks, 0, 0},
            {family, whole, "host", YES, MXC_OK, on_host, HOST, false},
            {family, whole, "auto", YES, MXC_OK, on_device, DEVICE, true},
            {family, whole, "device", YES, MXC_OK, on_device, DEVICE, false},
            {family, whole, "iree", YES, MXC_OK, on_device, DEVICE, false},
            {family, bare, "iree", YES, MXC_E_CONFIG, "$: no weights: no .safetensors file", 0, 0},
        };
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            if (is_of_this_build(&own[k]))
                check_row(&own[k]);
    }
}

/* A .gguf file has no eye; a path that is not there is its own error. */
static void other_paths(void **state) {
    (void)state;
    struct mxc_err err = {.message = ""};
    struct mxc_xla_image_note note = {.text = ""};
    struct mxc_xla_image *image = NULL;
    const struct mxc_xla_image_options options = {.policy = "device", .note = &note};
    static const char gguf[] = GOLDEN "llama_gguf_q4_1/model.gguf";
    assert_int_equal(mxc_xla_image_preprocessor_load(gguf, &options, &image, &err), MXC_OK);
    assert_null(image);
    assert_int_equal(note.kind, TEXT);
    assert_int_equal(mxc_xla_image_preprocessor_load("/nowhere", &options, &image, &err),
                     MXC_E_NOT_FOUND);
    assert_string_equal(err.message, "/nowhere: no such model folder or .gguf file");
    const struct mxc_xla_image_options quiet = {.policy = NULL, .note = NULL};
    assert_int_equal(mxc_xla_image_preprocessor_load(gguf, &quiet, &image, NULL), MXC_OK);
}

/* Every allocation that can fail does, once: no leak, nothing given out. */
static void failing_allocations(void **state) {
    (void)state;
    const struct mxc_xla_image_options options = {.policy = "host", .note = NULL};
    bool done = false;
    for (size_t n = 1; !done; n += n < 40 ? 1 : 7) {
        struct mxc_xla_image *image = NULL;
        struct mxc_err err = {.message = ""};
        mxc_mem_fail_at(n);
        enum mxc_code code =
            mxc_xla_image_preprocessor_load(GOLDEN "llava_clip_llama", &options, &image, &err);
        mxc_mem_fail_at(0);
        done = !code;
        assert_true(code ? !image : image != NULL);
        if (code)
            assert_int_equal(code, MXC_E_NOMEM);
        mxc_xla_image_free(image);
    }
}

/* The build's own word, against the options that CMake passed. */
static void this_build(void **state) {
    (void)state;
#ifdef MLXCEL_XLA
    assert_true(mxc_xla_has_backend());
#else
    assert_false(mxc_xla_has_backend());
    assert_false(mxc_xla_has_device_runtime());
#endif
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    assert_true(mxc_xla_has_device_runtime());
#else
    assert_false(mxc_xla_has_device_runtime());
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_build),          cmocka_unit_test(every_row),
        cmocka_unit_test(other_families),      cmocka_unit_test(other_paths),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* mlxcel xla: plugins and devices of the OpenXLA backend, and the programs it makes.
 * In: the command line; pip's configuration and MLXCEL_XLA_PLUGIN (read below). Out: a plugin in
 * the store, a table of devices, or StableHLO text on standard output. The second word picks what
 * is done; each has options of its own. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "cli/options.h"
#include "cli/term.h"
#include "store/store.h"
#include "store/wheel.h"

#include <stdio.h>
#include <string.h>

#ifdef MLXCEL_XLA_DEVICE_RUNTIME
#include "base/mem.h"
#endif

/* ---- install ---- */

static int run_install(int argc, char **argv);
static const struct mxc_command install = {
    "xla install", "cpu|cuda12|cuda13|rocm [options]",
    "fetch a device plugin from the configured Python package index", run_install};

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

static bool show(const struct mxc_wheel_progress *p, void *user) {
    struct mxc_progress *bar = user;
    bar->what = p->doing;
    mxc_progress_bytes(bar, p->done, p->total);
    return !mxc_term_interrupted();
}

static int fetch(const char *kind, const char *index_url) {
    struct mxc_wheel_request request = {.index_url = index_url, .progress = show};
    struct mxc_progress bar;
    struct mxc_err err;
    char *path = NULL, size[16];
    if (mxc_wheel_pin_find(kind, &request.pin, &err))
        return mxc_term_err(&err);
    request.user = &bar;
    mxc_term_catch_interrupt();
    mxc_progress_start(&bar, "downloading");
    enum mxc_code code = mxc_wheel_install(&request, &path, &err);
    mxc_progress_done(&bar);
    if (code == MXC_E_CANCELLED) {
        mxc_term_note("stopped; the same command goes on from here");
        return 130;
    }
    if (code)
        return mxc_term_err(&err);
    mxc_term_note("%s %s (%s): the plugin of --backend xla from now on", request.pin->project,
                  request.pin->version, mxc_term_size(request.pin->bytes, size));
    (void)puts(path);
    mxc_mem_free(path);
    return 0;
}

#else

static int fetch(const char *kind, const char *index_url) {
    (void)kind, (void)index_url;
    return mxc_term_error("this build lacks the device runtime (feature xla-device): rebuild with "
                          "-DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON");
}

#endif

static int run_install(int argc, char **argv) {
    const char *index_url = NULL, *words[1];
    bool exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "-i, --index-url", "URL", "the index (default: pip's, PIP_INDEX_URL)",
         &index_url, 0, 0, NULL},
    };
    int n = mxc_args_parse(&install, args, MXC_COUNT(args), argc, argv, words, 1, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("xla install", "the kind is missing: cpu, cuda12, cuda13 or rocm");
    return fetch(words[0], index_url);
}

/* ---- devices ---- */

static int run_devices(int argc, char **argv);
static const struct mxc_command devices = {
    "xla devices", "[options]", "show what a device plugin finds on this machine", run_devices};

static int put_devices_json(const struct mlxcel_xla_devices *d) {
    json_t *items = json_array();
    bool ok = items != NULL;
    for (int i = 0; ok && i < d->n_devices; i++)
        ok = !json_array_append_new(
            items, json_pack("{s:o, s:o, s:I, s:I}", "kind", mxc_term_json(d->devices[i].kind),
                             "description", mxc_term_json(d->devices[i].description),
                             "memory_bytes", (json_int_t)d->devices[i].memory_bytes, "in_use_bytes",
                             (json_int_t)d->devices[i].in_use_bytes));
    if (!ok) {
        json_decref(items);
        return mxc_term_put_json(NULL);
    }
    return mxc_term_put_json(
        json_pack("{s:o, s:o, s:o, s:[i,i], s:o}", "plugin", mxc_term_json(d->plugin), "platform",
                  mxc_term_json(d->platform), "version", mxc_term_json(d->version), "pjrt_api",
                  d->api_major, d->api_minor, "devices", items));
}

static int run_devices(int argc, char **argv) {
    const char *plugin = NULL;
    bool json = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "--xla-plugin", "FILE",
         "the plugin (default MLXCEL_XLA_PLUGIN, else the one installed)", &plugin, 0, 0, NULL},
        {MXC_ARG_FLAG, "--json", NULL, "one line of JSON", &json, 0, 0, NULL},
    };
    int n = mxc_args_parse(&devices, args, MXC_COUNT(args), argc, argv, NULL, 0, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    struct mlxcel_xla_devices *d = NULL;
    struct mlxcel_error error;
    if (mlxcel_xla_devices_new(plugin, &d, &error))
        return mxc_term_fail(&error);
    int status = 0;
    if (json) {
        status = put_devices_json(d);
    } else {
        printf("plugin    %s\nplatform  %s\nversion   %.*s\nPJRT API  %d.%d\n", d->plugin,
               d->platform, (int)strcspn(d->version, "\n"), d->version, d->api_major, d->api_minor);
        for (int i = 0; i < d->n_devices; i++) {
            const struct mlxcel_xla_device *one = &d->devices[i];
            char size[16], used[16];
            printf("device %-2d %s", i, *one->kind ? one->kind : one->description);
            if (one->memory_bytes)
                printf(", memory %s", mxc_term_size(one->memory_bytes, size));
            if (one->in_use_bytes)
                printf(", %s in use", mxc_term_size(one->in_use_bytes, used));
            printf("\n");
        }
    }
    mlxcel_xla_devices_free(d);
    return status;
}

/* ---- emit ---- */

static int run_emit(int argc, char **argv);
static const struct mxc_command emit = {"xla emit", "MODEL [options]",
                                        "print the StableHLO text of a model's program", run_emit};

static int run_emit(int argc, char **argv) {
    struct mxc_model_args where = {.models_dir = NULL};
    const char *precision = NULL, *words[1];
    int64_t prefill = 0, decode = 0, context = 256;
    bool unrolled = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_INT, "--decode", "N", "a step of N sequences, one token of each (1)", &decode, 1,
         4096, NULL},
        {MXC_ARG_INT, "--prefill", "N", "N tokens of one prompt, instead", &prefill, 1, 4096, NULL},
        {MXC_ARG_INT, "-c, --context", "N", "room for so many tokens of a sequence (256)", &context,
         1, INT32_MAX, NULL},
        {MXC_ARG_FLAG, "--unrolled", NULL, "layers one after the other, not as a loop", &unrolled,
         0, 0, NULL},
        {MXC_ARG_TEXT, "--xla-precision", "WORD", "inputs of dots: f32, f16, bf16 (f32)",
         &precision, 0, 0, NULL},
        MXC_SURGERY_ARG(&where),
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &where.models_dir, 0, 0, NULL},
    };
    int n = mxc_args_parse(&emit, args, MXC_COUNT(args), argc, argv, words, 1, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("xla emit", "MODEL is missing");
    if (prefill && decode)
        return mxc_term_usage("xla emit", "--decode and --prefill exclude each other");
    struct mxc_store *store;
    struct mxc_model_place place;
    struct mxc_err err;
    if (mxc_store_open(where.models_dir, &store, &err))
        return mxc_term_err(&err);
    enum mxc_code code = mxc_store_resolve(store, words[0], &place, &err);
    mxc_store_close(store);
    if (code)
        return mxc_term_err(&err);
    const struct mlxcel_xla_program program = {.decode = !prefill,
                                               .rows = (int32_t)(prefill  ? prefill
                                                                 : decode ? decode
                                                                          : 1),
                                               .context = (int32_t)context,
                                               .unrolled = unrolled,
                                               .precision = precision,
                                               .surgery = where.surgery};
    struct mlxcel_error error;
    char *text = NULL;
    int status = 0;
    if (mlxcel_xla_emit(place.path, &program, &text, &error))
        status = mxc_term_fail(&error);
    else
        (void)fputs(text, stdout);
    mlxcel_free(text);
    mxc_model_place_fini(&place);
    return status;
}

/* ---- the word ---- */

static void print_help(void) {
    static const struct mxc_command *const all[] = {&install, &devices, &emit};
    printf("Usage: mlxcel xla install|devices|emit [options]\n\n%s\n\n", mxc_command_xla.summary);
    for (size_t i = 0; i < MXC_COUNT(all); i++)
        printf("  %s %s\n      %s\n", all[i]->name, all[i]->usage, all[i]->summary);
}

static int run(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        print_help();
        return 0;
    }
    if (!strcmp(word, "install"))
        return run_install(argc - 1, argv + 1);
    if (!strcmp(word, "devices"))
        return run_devices(argc - 1, argv + 1);
    if (!strcmp(word, "emit"))
        return run_emit(argc - 1, argv + 1);
    if (!*word)
        return mxc_term_usage("xla", "say install, devices or emit");
    return mxc_term_usage("xla", "\"%.40s\": must be install, devices or emit", word);
}

const struct mxc_command mxc_command_xla = {"xla", "install|devices|emit [options]",
                                            "plugins, devices and programs of the OpenXLA backend",
                                            run};

/* mlxcel download: a repository of a Hugging-Face-compatible hub into the store.
 * In: the command line, HF_ENDPOINT and HF_TOKEN (read by store/). Out: the files on disk, progress
 * on standard error, the path on standard output.
 * Ctrl-C is passed to the download through the progress function's answer; what has arrived stays
 * and the same command goes on from there. All checking and writing is store/'s. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "cli/term.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

static bool show(const struct mxc_download_progress *p, void *user) {
    struct mxc_progress *bar = user;
    switch (p->phase) {
    case MXC_DOWNLOAD_LISTING:
        bar->what = "listing";
        break;
    case MXC_DOWNLOAD_VERIFYING:
        bar->what = "verifying";
        break;
    case MXC_DOWNLOAD_WAITING:
        bar->what = p->note ? p->note : "waiting";
        break;
    case MXC_DOWNLOAD_TRANSFER:
        bar->what = p->file ? p->file : "downloading";
        break;
    }
    mxc_progress_bytes(bar, p->done, p->bytes);
    return !mxc_term_interrupted();
}

static int run(int argc, char **argv) {
    struct mxc_download_request request = {0};
    struct mxc_arg_list include = {0}, exclude = {0};
    const char *root = NULL, *words[1];
    bool exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "--revision", "REV", "branch, tag or commit (main)", &request.revision, 0, 0,
         NULL},
        {MXC_ARG_LIST, "--include", "GLOB", "take these files, not the usual choice", &include, 0,
         0, NULL},
        {MXC_ARG_LIST, "--exclude", "GLOB", "leave these files out", &exclude, 0, 0, NULL},
        {MXC_ARG_TEXT, "--local-dir", "DIR", "write there, not into the store", &request.local_dir,
         0, 0, NULL},
        {MXC_ARG_TEXT, "--endpoint", "URL", "the hub (default HF_ENDPOINT)", &request.endpoint, 0,
         0, NULL},
        {MXC_ARG_TEXT, "--token", "TOKEN", "access token (default HF_TOKEN)", &request.token, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)", &root, 0,
         0, NULL},
    };
    int n = mxc_args_parse(&mxc_command_download, args, MXC_COUNT(args), argc, argv, words, 1,
                           &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (!n)
        return mxc_term_usage("download", "MODEL is missing");
    struct mxc_progress bar;
    struct mxc_store *store;
    struct mxc_download_result result;
    struct mxc_err err;
    request.repo = words[0];
    request.include = include.items;
    request.n_include = include.n;
    request.exclude = exclude.items;
    request.n_exclude = exclude.n;
    request.progress = show;
    request.user = &bar;
    mxc_term_catch_interrupt();
    if (mxc_store_open(root, &store, &err))
        return mxc_term_err(&err);
    mxc_progress_start(&bar, "downloading");
    enum mxc_code code = mxc_store_download(store, &request, &result, &err);
    mxc_progress_done(&bar);
    mxc_store_close(store);
    if (code == MXC_E_CANCELLED) {
        mxc_term_note("stopped; the same command goes on from here");
        return 130;
    }
    if (code)
        return mxc_term_err(&err);
    char size[16];
    mxc_term_note("%s: %zu files, %s", result.name, result.n_files,
                  mxc_term_size(result.bytes, size));
    (void)puts(result.path);
    mxc_download_result_fini(&result);
    return 0;
}

const struct mxc_command mxc_command_download = {"download", "MODEL [options]",
                                                 "fetch a model from a hub into the store", run};

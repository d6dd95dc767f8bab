/* mlxcel list: what the store holds.
 * In: the command line and the store's folder. Out: on standard output a table, names only (-q), or
 * a JSON array. An empty store is no error; as a table it is told on standard error.
 * Paths are bytes that need not be UTF-8: JSON gets them through mxc_term_json. Nothing is written
 * to disk. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "cli/term.h"
#include "store/store.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int print_json(const struct mxc_store_list *list) {
    json_t *array = json_array();
    for (size_t i = 0; array && i < list->n; i++) {
        const struct mxc_store_entry *e = &list->entries[i];
        (void)json_array_append_new(
            array, json_pack("{s:s, s:o, s:I, s:I, s:I, s:s}", "name", e->name, "path",
                             mxc_term_json(e->path), "bytes", (json_int_t)e->bytes, "files",
                             (json_int_t)e->n_files, "modified", (json_int_t)e->modified, "kind",
                             mxc_model_kind_name(e->kind)));
    }
    return mxc_term_put_json(array);
}

static void print_table(const struct mxc_store_list *list, bool verbose) {
    if (!list->n) {
        mxc_term_note("the store is empty");
        return;
    }
    (void)printf("%s%-44s %-12s %10s  %s%s\n", mxc_term_bold(STDOUT_FILENO), "NAME", "KIND", "SIZE",
                 "MODIFIED", mxc_term_reset(STDOUT_FILENO));
    for (size_t i = 0; i < list->n; i++) {
        const struct mxc_store_entry *e = &list->entries[i];
        char size[16], date[32] = "";
        time_t when = (time_t)e->modified;
        struct tm tm;
        if (localtime_r(&when, &tm))
            (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
        (void)printf("%-44s %-12s %10s  %s\n", e->name, mxc_model_kind_name(e->kind),
                     mxc_term_size(e->bytes, size), date);
        if (verbose)
            (void)printf("  %s, %llu files\n", e->path, (unsigned long long)e->n_files);
    }
}

static int run(int argc, char **argv) {
    const char *root = NULL;
    bool json = false, quiet = false, verbose = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_FLAG, "--json", NULL, "a JSON array", &json, 0, 0, NULL},
        {MXC_ARG_FLAG, "-q, --quiet", NULL, "names only", &quiet, 0, 0, NULL},
        {MXC_ARG_FLAG, "-v, --verbose", NULL, "paths too", &verbose, 0, 0, NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)", &root, 0,
         0, NULL},
    };
    int n =
        mxc_args_parse(&mxc_command_list, args, MXC_COUNT(args), argc, argv, NULL, 0, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    struct mxc_store *store = NULL;
    struct mxc_store_list list;
    struct mxc_err err;
    int status = 0;
    if (mxc_store_open(root, &store, &err) || mxc_store_list(store, &list, &err)) {
        mxc_store_close(store);
        return mxc_term_err(&err);
    }
    if (json)
        status = print_json(&list);
    else if (quiet)
        for (size_t i = 0; i < list.n; i++)
            (void)puts(list.entries[i].name);
    else
        print_table(&list, verbose);
    mxc_store_list_fini(&list);
    mxc_store_close(store);
    return status;
}

const struct mxc_command mxc_command_list = {"list", "[options]", "list the models in the store",
                                             run};

/* mlxcel arch: the architectures this build runs.
 * In: the command line. Out: on standard output, each family with its config.json and GGUF names,
 * as text or as a JSON array.
 * The list is the library's own (mlxcel_family_at), so it cannot differ from what opens. No file
 * and no model is touched. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "cli/term.h"

#include <stdio.h>

static json_t *names_json(const char *const *names) {
    json_t *array = json_array();
    for (size_t i = 0; array && names && names[i]; i++)
        (void)json_array_append_new(array, json_string(names[i]));
    return array;
}

static int print_json(void) {
    struct mlxcel_family f;
    json_t *array = json_array();
    for (size_t i = 0; array && mlxcel_family_at(i, &f); i++)
        (void)json_array_append_new(array,
                                    json_pack("{s:s, s:s, s:o, s:o}", "name", f.name, "summary",
                                              f.summary, "model_types", names_json(f.model_types),
                                              "gguf_architectures", names_json(f.gguf_archs)));
    return mxc_term_put_json(array);
}

static void print_names(const char *label, const char *const *names) {
    if (!names || !names[0])
        return;
    (void)printf("            %s", label);
    for (size_t i = 0; names[i]; i++)
        (void)printf("%s%s", i ? ", " : " ", names[i]);
    (void)putchar('\n');
}

static int run(int argc, char **argv) {
    bool json = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_FLAG, "--json", NULL, "a JSON array", &json, 0, 0, NULL},
    };
    int n =
        mxc_args_parse(&mxc_command_arch, args, MXC_COUNT(args), argc, argv, NULL, 0, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (json)
        return print_json();
    struct mlxcel_family f;
    for (size_t i = 0; mlxcel_family_at(i, &f); i++) {
        (void)printf("%-12s%s\n", f.name, f.summary);
        print_names("config.json model_type:", f.model_types);
        print_names("GGUF architecture:", f.gguf_archs);
    }
    return 0;
}

const struct mxc_command mxc_command_arch = {"arch", "[options]",
                                             "list the supported architectures", run};

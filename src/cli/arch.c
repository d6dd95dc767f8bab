/* mlxcel arch: the architectures this build runs.
 * In: the command line. Out: on standard output, each family with its config.json and GGUF names,
 * as text, as a JSON array, or as the tables of docs/models.md.
 * The list is the library's own (mlxcel_family_at), so it cannot differ from what opens. No file
 * and no model is touched. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "cli/term.h"
#include "quant/storage.h"

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
        (void)json_array_append_new(
            array, json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", f.name, "summary", f.summary,
                             "notes", f.notes, "model_types", names_json(f.model_types),
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

/* ---- docs/models.md */

static void put_cell(const char *const *names) {
    (void)fputs(" |", stdout);
    for (size_t i = 0; names && names[i]; i++)
        (void)printf("%s `%s`", i ? "," : "", names[i]);
}

/* Where the numbers of a storage come from; NULL: not one that weights come in. */
static const char *source_of(enum mxc_storage storage) {
    static const char *const sources[MXC_N_STORAGES] = {
        [MXC_ST_F32] = "safetensors, GGUF",
        [MXC_ST_F16] = "safetensors, GGUF",
        [MXC_ST_BF16] = "safetensors, GGUF",
        [MXC_ST_Q4_0] = "GGUF",
        [MXC_ST_Q4_1] = "GGUF",
        [MXC_ST_Q5_0] = "GGUF",
        [MXC_ST_Q5_1] = "GGUF",
        [MXC_ST_Q8_0] = "GGUF",
        [MXC_ST_Q2_K] = "GGUF",
        [MXC_ST_Q3_K] = "GGUF",
        [MXC_ST_Q4_K] = "GGUF",
        [MXC_ST_Q5_K] = "GGUF",
        [MXC_ST_Q6_K] = "GGUF",
        [MXC_ST_IQ4_NL] = "GGUF",
        [MXC_ST_IQ4_XS] = "GGUF",
        [MXC_ST_MXFP4_BLOCK] = "GGUF",
        [MXC_ST_TQ1_0] = "GGUF",
        [MXC_ST_TQ2_0] = "GGUF",
        [MXC_ST_MLX_AFFINE] = "MLX: 2, 3, 4, 5, 6, 8 bits, groups of 32, 64, 128, per module",
        [MXC_ST_MXFP4] = "MLX mxfp4, gpt-oss experts",
        [MXC_ST_MXFP8] = "MLX mxfp8",
        [MXC_ST_NVFP4] = "MLX nvfp4, compressed-tensors",
        [MXC_ST_GPTQ] = "GPTQ",
        [MXC_ST_AWQ] = "AWQ",
        [MXC_ST_INT_GROUPS] = "compressed-tensors int4 and int8",
        [MXC_ST_FP8] = "fp8 (e4m3, e5m2) with scales per tensor, row or block",
    };
    return sources[storage];
}

static int print_markdown(void) {
    struct mlxcel_family f;
    (void)puts(
        "| family | models | `model_type` | GGUF architecture | notes |\n|---|---|---|---|---|");
    for (size_t i = 0; mlxcel_family_at(i, &f); i++) {
        (void)printf("| %s | %s", f.name, f.summary);
        put_cell(f.model_types);
        put_cell(f.gguf_archs);
        (void)printf(" | %s |\n", f.notes);
    }
    (void)puts("\n| storage | numbers in a block | bytes | found in |\n|---|---|---|---|");
    for (int s = 0; s < MXC_N_STORAGES; s++) {
        const struct mxc_storage_info *info = mxc_storage_info((enum mxc_storage)s);
        const char *source = source_of((enum mxc_storage)s);
        if (source && info->block)
            (void)printf("| %s | %u | %u | %s |\n", info->name, info->block, info->block_bytes,
                         source);
        else if (source)
            (void)printf("| %s | | | %s |\n", info->name, source);
    }
    return 0;
}

static int run(int argc, char **argv) {
    bool json = false, markdown = false, exit_now;
    const struct mxc_arg args[] = {
        {MXC_ARG_FLAG, "--json", NULL, "a JSON array", &json, 0, 0, NULL},
        {MXC_ARG_FLAG, "--markdown", NULL, "tables, formats too", &markdown, 0, 0, NULL},
    };
    int n =
        mxc_args_parse(&mxc_command_arch, args, MXC_COUNT(args), argc, argv, NULL, 0, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if (json)
        return print_json();
    if (markdown)
        return print_markdown();
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

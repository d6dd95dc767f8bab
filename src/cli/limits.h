/* What bounds a model on this machine: the figures behind `mlxcel bench --limits`. */
#ifndef MXC_CLI_LIMITS_H
#define MXC_CLI_LIMITS_H

#include "base/json.h"
#include "mlxcel.h"

enum { MXC_LIMITS_ROWS = 32, MXC_LIMITS_MISSING = 4 };

/* Matrices of one shape, storage and layout. */
struct mxc_limits_row {
    struct mlxcel_matrix first;
    int32_t count;
    uint64_t bytes; /* of all of them */
};

/* What one token takes: operations (a multiply-add is two) by the kind of number they are made of,
 * and bytes. */
struct mxc_limits_work {
    double int8, bf16, f32;
    double bytes;       /* of weights that every step reads */
    double slice_bytes; /* of experts, read by each token for itself */
    double all_slices;  /* all experts: no step reads more */
};

struct mxc_limits_report {
    struct mlxcel_limits machine;
    struct mxc_limits_row rows[MXC_LIMITS_ROWS];
    int n_rows;
    struct mxc_limits_work prompt, output; /* output: what is only done for wanted outputs */
    double kv_bytes;                       /* of one token in the cache */
    char missing[MXC_LIMITS_MISSING][240];
    int n_missing;
};

/* machine is measured by the caller, before the model takes memory. */
void mxc_limits_look(struct mxc_limits_report *report, const struct mlxcel_model *model,
                     const struct mlxcel_limits *machine, int threads, int cores);
/* Seconds that the machine cannot go below for a test; *bound names what holds it: "int8", "bf16",
 * "f32" or "read". 0: not known. */
double mxc_limits_seconds(const struct mxc_limits_report *report, const struct mlxcel_bench *test,
                          const char **bound);
/* plan: what the backend says of the model in one line. */
void mxc_limits_print(const struct mxc_limits_report *report, const char *plan, int threads);
/* NULL: out of memory. */
json_t *mxc_limits_json(const struct mxc_limits_report *report);

#endif

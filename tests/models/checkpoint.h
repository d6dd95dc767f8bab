/* Test checkpoints: a config from JSON text, and a safetensors file of zeros with the tensors that
 * a graph asks for, changed where a test wants it. */
#ifndef MXC_TESTS_CHECKPOINT_H
#define MXC_TESTS_CHECKPOINT_H

#include "models/blocks.h"

/* model_type and max_position come from the object. Aborts the test on bad JSON. */
struct mxc_config test_config(const char *json);
void test_config_fini(struct mxc_config *config);
/* base with the members of change put over it; a null member is removed. */
struct mxc_config test_config_change(const char *base, const char *change);
/* tests/data/models/NAME.json */
char *test_data(const char *name);

struct test_tensor {
    const char *name;
    int n_dims;
    int64_t shape[3];
    const float *data; /* F32 numbers, or NULL: F16 zeros */
};

struct test_change {
    const char *drop;         /* NULL, or the name of a tensor that is left out */
    const char *reshape;      /* NULL, or the name of one whose first extent is one more */
    struct test_tensor extra; /* name NULL: none */
};

/* Writes the graph's tensors to a new folder and opens them. */
struct test_checkpoint {
    char dir[64];
    struct mxc_weights *weights;
};
void test_checkpoint_open(const struct mxc_graph *graph, const struct test_change *change,
                          struct test_checkpoint *checkpoint);
void test_checkpoint_close(struct test_checkpoint *checkpoint);

#endif

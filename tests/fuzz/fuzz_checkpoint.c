/* A folder of safetensors -> config, weights, graph. Input: config.json,
 * model.safetensors.index.json, model.safetensors and another shard "b", cut by lines "%%"; an
 * empty part is no file. Invariants: no crash; a result or one error line; every row that opens can
 * be read. */
#define _GNU_SOURCE
#include "scratch.h"

#include "models/family.h"

#include "must_say.h"
#include "safetensors_mutate.h"
#include "use_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model.safetensors", "b.safetensors"};
    struct mxc_config *c = NULL;
    struct mxc_weights *w = NULL;
    struct mxc_graph *graph;
    struct mxc_err err = {0};
    scratch_parts(names, 4, data, size);
    if (mxc_config_open(scratch_folder(), &c, &err) ||
        mxc_weights_open(scratch_folder(), c, &w, &err)) {
        must_say(&err);
    } else {
        use_weights(w);
        if (mxc_model_graph(c, w, &graph, &err))
            must_say(&err);
        else
            mxc_graph_free(graph);
    }
    mxc_weights_close(w);
    mxc_config_close(c);
    return 0;
}

#ifdef MXC_FUZZ
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return mutate_part(data, size, max_size, seed);
}
#endif

/* config.json -> config -> its family's graph, without weights. Invariants: no crash; a result or
 * one error line; a graph that is finished and checked. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/config.h"
#include "models/family.h"

#include "json_mutate.h"
#include "must_say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

MUTATE_JSON_INPUT

static void build(const struct mxc_config *c) {
    const struct mxc_family *family;
    struct mxc_graph *g = NULL;
    struct mxc_err err = {0};
    if (mxc_family_find(c, &family, &err)) {
        must_say(&err);
        return;
    }
    if (mxc_graph_new(family->name, &g, &err))
        abort();
    if (family->build(c, NULL, g, &err))
        must_say(&err);
    else if (!g->n_nodes || !g->n_weights)
        abort();
    mxc_graph_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_config *c;
    struct mxc_err err = {0};
    (void)scratch_write("config.json", data, size);
    if (mxc_config_open(scratch_folder(), &c, &err)) {
        must_say(&err);
        return 0;
    }
    if (!c->model_type || !c->text || c->n_eos < 0 || c->n_eos > MXC_MAX_EOS)
        abort();
    build(c);
    mxc_config_close(c);
    return 0;
}

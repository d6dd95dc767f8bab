/* Families: the only place where a model family's weight names and shapes appear. One C file per
 * family and one line in registry.c. */
#ifndef MXC_MODELS_FAMILY_H
#define MXC_MODELS_FAMILY_H

#include "base/err.h"
#include "format/config.h"
#include "format/weights.h"
#include "graph/graph.h"

struct mxc_vision_family;
struct mxc_family {
    const char *name;    /* "llama" */
    const char *summary; /* one line for `mlxcel arch` */
    const char *notes;   /* what is special, and the keys that decide it; docs/models.md */
    const char *const *model_types; /* config.json model_type values, NULL-ended */
    const char *const *gguf_archs;  /* general.architecture values, NULL-ended */
    /* Reads hyper-parameters and writes the graph; the weights view is only looked at for what a
     * checkpoint may or may not hold (tied head, biases, rope_freqs), never for numbers in bulk. */
    enum mxc_code (*build)(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err);
    const struct mxc_vision_family *vision; /* how it sees; NULL: text only */
};

/* NULL-ended list of all families. */
const struct mxc_family *const *mxc_family_list(void);
/* The family of a checkpoint; an unknown model_type is MXC_E_UNSUPPORTED that names the nearest
 * supported one. */
enum mxc_code mxc_family_find(const struct mxc_config *config, const struct mxc_family **family,
                              struct mxc_err *err) MXC_MUST;
/* find + new + build + finish + every weight present with its shape (errors name the tensor). The
 * caller frees *graph. */
enum mxc_code mxc_model_graph(const struct mxc_config *config, const struct mxc_weights *weights,
                              struct mxc_graph **graph, struct mxc_err *err) MXC_MUST;
/* The same without the head: the rows behind the final norm (graph.hidden_out), for embeddings. */
enum mxc_code mxc_model_hidden_graph(const struct mxc_config *config,
                                     const struct mxc_weights *weights, struct mxc_graph **graph,
                                     struct mxc_err *err) MXC_MUST;

#endif

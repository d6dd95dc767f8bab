/* Trace: logits, layer norms and a greedy continuation of one prompt, for people who port a family
 * and for comparing with a reference. Thread rules: the thread that may use the backend. */
#ifndef MXC_ENGINE_TRACE_H
#define MXC_ENGINE_TRACE_H

#include "backend/backend.h"

struct mxc_trace {
    int32_t n_tokens, vocab, n_layers, n_steps;
    float *logits; /* [n_tokens][vocab] */
    float
        *layer_l2; /* [n_layers + 2][n_tokens]: input of layer 0, each layer's output, final norm */
    int32_t *greedy; /* [n_steps] greedy continuation with the cache, EOS ignored */
};

/* ids: n_tokens >= 1 of them, each below the vocabulary. max_rows: the plan's, whose max_out must
 * be as large. Owned by the caller: mxc_trace_free. */
enum mxc_code mxc_trace_new(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                            const struct mxc_graph *graph, int32_t max_rows, const int32_t *ids,
                            int32_t n_tokens, int32_t n_steps, struct mxc_trace **trace,
                            struct mxc_err *err) MXC_MUST;
void mxc_trace_free(struct mxc_trace *trace);

#endif

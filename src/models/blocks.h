/* Blocks: what the families of the llama line share. A family reads its hyper-parameters with
 * mxc_hyper_read, corrects what is its own (biases, norms, windows) and writes the graph with
 * mxc_blocks_decoder. Nothing here keeps state. */
#ifndef MXC_MODELS_BLOCKS_H
#define MXC_MODELS_BLOCKS_H

#include "models/family.h"

/* Whether a part of a layer has a bias, as config and file say. */
enum mxc_presence {
    MXC_ABSENT,
    MXC_PRESENT,
    MXC_BY_FILE /* present when the checkpoint holds the tensor in layer 0 */
};

/* A decoder's hyper-parameters, checked: every number is in range and heads divide. */
struct mxc_hyper {
    int32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab;
    int64_t max_position; /* 0: unknown */
    float eps;
    enum mxc_act act;
    enum mxc_presence qkv_bias, o_bias, mlp_bias;
    bool qk_norm;              /* per-head RMS norm of q and k */
    int32_t window;            /* sliding window of the layers that have one; 0: none has */
    int32_t window_from;       /* first layer with a window, when layer_types is NULL */
    const json_t *layer_types; /* "full_attention" / "sliding_attention" per layer, or NULL */
    struct mxc_rope rope;
};

/* Reads the keys of Hugging Face's llama-like configs; a missing or absurd one is an error that
 * names the key. default_head_dim: 0 takes hidden / heads when head_dim is not given. Biases come
 * out by attention_bias and mlp_bias when given, else (and for a GGUF always) by file; window is 0.
 * Options that would change the arithmetic and that no family here has are MXC_E_UNSUPPORTED by
 * name. */
enum mxc_code mxc_hyper_read(const struct mxc_config *config, const struct mxc_weights *weights,
                             int32_t default_head_dim, struct mxc_hyper *hyper,
                             struct mxc_err *err) MXC_MUST;
/* The window keys of Qwen: use_sliding_window, sliding_window, max_window_layers, layer_types. */
enum mxc_code mxc_hyper_read_windows(const struct mxc_config *config, struct mxc_hyper *hyper,
                                     struct mxc_err *err) MXC_MUST;
/* rope_scaling, rope_parameters, rope_theta, partial_rotary_factor in old and new spellings, and a
 * GGUF's rope_freqs.weight; see rope_config.c. */
enum mxc_code mxc_rope_read(const struct mxc_config *config, const struct mxc_weights *weights,
                            int32_t head_dim, int64_t max_position, struct mxc_rope *rope,
                            struct mxc_err *err) MXC_MUST;

/* Embedding, layers, final norm and head, with every layer value marked. prefix: before
 * "embed_tokens", "layers" and "norm" ("model."). The head is `head` ("lm_head.weight") when the
 * checkpoint holds it, else the embedding table. Returns the logits value. */
int32_t mxc_blocks_decoder(struct mxc_graph *graph, const struct mxc_config *config,
                           const struct mxc_weights *weights, const struct mxc_hyper *hyper,
                           const char *prefix, const char *head);

/* The name of list (NULL-ended) nearest to text; NULL for an empty list. */
const char *mxc_models_nearest(const char *text, const char *const *list);

#endif

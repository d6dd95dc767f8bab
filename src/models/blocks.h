/* Blocks: what decoder families are made of. A family reads its hyper-parameters with
 * mxc_hyper_read, corrects what is its own, opens a decoder and runs it with a layer function of
 * its own, which composes norms, attention and feed-forward blocks; mxc_layer_llama is the
 * plainest. Nothing here keeps state; graph errors are sticky, so layers are straight lines without
 * checks. */
#ifndef MXC_MODELS_BLOCKS_H
#define MXC_MODELS_BLOCKS_H

#include "models/family.h"

/* Whether a part of a layer has a bias, as config and file say. */
enum mxc_presence {
    MXC_ABSENT,
    MXC_PRESENT,
    MXC_BY_FILE /* present when the checkpoint holds the tensor in the layer */
};

enum mxc_norm_kind { MXC_NORM_RMS, MXC_NORM_LAYER };

/* A decoder's hyper-parameters, checked: every number is in range and heads divide. */
struct mxc_hyper {
    int32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab;
    int64_t max_position; /* 0: unknown */
    enum mxc_norm_kind norm;
    float eps, norm_offset; /* offset: RMS norms multiply by w + offset */
    enum mxc_act act;
    enum mxc_presence qkv_bias, o_bias, mlp_bias, norm_bias;
    bool qk_norm; /* q and k are normalised, as qk_norm_kind says */
    enum mxc_qk_norm qk_norm_kind;
    float attn_scale;          /* of q . k; 1 / sqrt(head_dim) unless a family changes it */
    float attn_softcap;        /* 0: none */
    float logit_softcap;       /* 0: none */
    float embed_scale;         /* 1: none; and so on */
    float residual_scale;      /* of what a branch adds */
    float logit_scale;         /* logits are multiplied by it */
    int32_t window;            /* sliding window of the layers that have one; 0: none has */
    int32_t window_from;       /* first layer with a window, when layer_types is NULL */
    const json_t *layer_types; /* "full_attention" / "sliding_attention" per layer, or NULL */
    struct mxc_rope rope;
};

/* What a family's config may say that others may not. */
struct mxc_hyper_rules {
    int32_t head_dim;           /* when head_dim is not given; 0: hidden / heads */
    const char *eps_key;        /* NULL: "rms_norm_eps" */
    double eps;                 /* when not given; 0: 1e-6 */
    double theta;               /* rope_theta when not given; 0: 1e4 */
    double rotary_part;         /* partial_rotary_factor when not given; 0: 1 */
    int32_t rotary;             /* what partial_rotary_factor is a share of; 0: head_dim */
    const char *rope_section;   /* of rope_parameters keyed by layer type, or NULL */
    const char *act_key, *act;  /* NULL: "hidden_act", "silu" */
    const char *const *accepts; /* keys that the family reads itself, NULL-ended; NULL: none */
    bool no_ffn;                /* intermediate_size is not needed */
};
/* Reads the keys of Hugging Face's llama-like configs; a missing or absurd one is an error that
 * names the key. rules: NULL for the plainest. Biases come out by attention_bias and mlp_bias when
 * given, else (and for a GGUF always) by file; window is 0. Options that would change the
 * arithmetic and that are not in rules->accepts are MXC_E_UNSUPPORTED by name. */
enum mxc_code mxc_hyper_read(const struct mxc_config *config, const struct mxc_weights *weights,
                             const struct mxc_hyper_rules *rules, struct mxc_hyper *hyper,
                             struct mxc_err *err) MXC_MUST;
/* The window keys of Qwen: use_sliding_window, sliding_window, max_window_layers, layer_types. */
enum mxc_code mxc_hyper_read_windows(const struct mxc_config *config, struct mxc_hyper *hyper,
                                     struct mxc_err *err) MXC_MUST;
/* sliding_window, absent: `absent` (0: none); null: none; a GGUF's 0 too. Every layer has it. */
enum mxc_code mxc_hyper_read_window(const struct mxc_config *config, int32_t absent,
                                    struct mxc_hyper *hyper, struct mxc_err *err) MXC_MUST;
/* layer_types when given, else layer_types stays NULL. */
enum mxc_code mxc_hyper_read_layer_types(const struct mxc_config *config, struct mxc_hyper *hyper,
                                         struct mxc_err *err) MXC_MUST;
/* A positive number of the config, into a float; absent leaves *out. */
enum mxc_code mxc_read_positive(const json_t *text, const char *key, float *out,
                                struct mxc_err *err) MXC_MUST;
/* The name of an activation. */
enum mxc_code mxc_read_act(const json_t *object, const char *key, const char *absent,
                           enum mxc_act *act, struct mxc_err *err) MXC_MUST;
/* rope_scaling, rope_parameters, rope_theta, partial_rotary_factor in old and new spellings, and a
 * GGUF's rope_freqs.weight; see rope_config.c. rules: theta, rotary_part and rope_section are read.
 */
enum mxc_code mxc_rope_read(const struct mxc_config *config, const struct mxc_weights *weights,
                            const struct mxc_hyper_rules *rules, int32_t rotary,
                            int64_t max_position, struct mxc_rope *rope,
                            struct mxc_err *err) MXC_MUST;

/* A decoder being written. Families may change what belongs to the current layer (rope, window)
 * and names before and inside their layer function. */
struct mxc_decoder {
    struct mxc_graph *g;
    const struct mxc_config *config;
    const struct mxc_weights *weights; /* NULL: as the config says */
    struct mxc_hyper h;
    const char *prefix;              /* "model." */
    const char *embed, *norm, *head; /* "embed_tokens", "norm", "lm_head.weight" */
    const char *attn, *o_proj;       /* "self_attn", "o_proj" */
    const char *qkv;                 /* fused projection, or NULL for q_proj, k_proj, v_proj */
    const char *q_norm, *k_norm;     /* "q_norm", "k_norm" */
    const char *sinks;               /* NULL: none */
    const char *mlp;                 /* "mlp" */
    const char *gate_up;             /* fused, or NULL for gate_proj and up_proj */
    const char *up, *down;           /* of mxc_block_mlp */
    int32_t extra_rows;              /* of the table, beyond the vocabulary */
    bool unit_head;                  /* logits of x / column norms of the head */
    const void *family;              /* whatever the layer function needs */
    int32_t rope, window;            /* of the current layer */
    int32_t layer;
};
/* Reads the hyper-parameters into d->h and sets the customary names; the prefix is the one under
 * which the checkpoint has its table ("model.", or what vision models put around the language
 * model). rules: NULL for the plainest. */
enum mxc_code mxc_decoder_open(struct mxc_decoder *d, struct mxc_graph *g,
                               const struct mxc_config *config, const struct mxc_weights *weights,
                               const struct mxc_hyper_rules *rules, struct mxc_err *err) MXC_MUST;
/* Writes layer d->layer: value in, value out. */
typedef int32_t mxc_layer_fn(struct mxc_decoder *d, int32_t x);
/* Embedding, layers, final norm and head (none with the graph's hidden_out), with every layer value
 * marked, and finishes the graph.
 * Layers begin with the rope of d->h and the window that d->h gives them. The head is d->head when
 * the checkpoint holds it, else the embedding table. */
enum mxc_code mxc_decoder_run(struct mxc_decoder *d, mxc_layer_fn *layer,
                              struct mxc_err *err) MXC_MUST;
/* Attention and gated feed-forward, each behind its norm. */
int32_t mxc_layer_llama(struct mxc_decoder *d, int32_t x);

/* ---- pieces. Names are of modules in the current layer ("input_layernorm"). */
/* Whether the checkpoint holds PREFIXlayers.LAYER.NAME. false without a checkpoint. */
bool mxc_block_has(const struct mxc_decoder *d, const char *name);
struct mxc_linear_part mxc_block_part(const struct mxc_decoder *d, const char *parent,
                                      const char *module, int64_t out, int64_t in,
                                      enum mxc_presence bias);
int32_t mxc_block_norm(const struct mxc_decoder *d, int32_t x, const char *module);
/* Projections, attention and output projection of normalised rows; residual: value or MXC_NONE. */
int32_t mxc_block_attention(const struct mxc_decoder *d, int32_t x, int32_t residual);
/* Gated feed-forward: down(act(gate x) * up x). */
int32_t mxc_block_glu(const struct mxc_decoder *d, int32_t x, int32_t residual);
/* The same with a width and a module of its own (shared experts). */
int32_t mxc_block_glu_of(const struct mxc_decoder *d, const char *parent, int32_t width, int32_t x,
                         int32_t residual);
/* Plain feed-forward: down(act(up x)), modules d->up and d->down. */
int32_t mxc_block_mlp(const struct mxc_decoder *d, int32_t x, int32_t residual);

/* ---- mixture of experts; see moe.c for the spellings of their weights. */
struct mxc_moe_hyper {
    struct mxc_moe_attr attr;
    const char *parent; /* "mlp" */
    const char *router; /* "gate" */
    enum mxc_presence router_bias;
    const char *choice;               /* vector added for the choice ("gate.bias"), or NULL */
    const char *gate, *up, *down;     /* "gate_proj", "up_proj", "down_proj" */
    bool interleaved;                 /* fused gate_up: rows take turns, else halves */
    bool biases;                      /* experts have biases */
    int32_t shared_width;             /* 0: no shared experts */
    const char *shared, *shared_gate; /* modules; shared_gate: NULL for none */
    int32_t first_dense, step;        /* layers below first_dense, and those where (layer + 1) % */
    const json_t *dense;              /* step is not 0 or that are listed, are dense */
};
/* Reads what most configs share, under the keys of Qwen, Mixtral, DeepSeek and gpt-oss: number of
 * experts, experts per token, width, norm_topk_prob, first_k_dense_replace, decoder_sparse_step,
 * mlp_only_layers; sets the customary names and softmax scores. */
enum mxc_code mxc_moe_read(const struct mxc_config *config, const struct mxc_hyper *hyper,
                           struct mxc_moe_hyper *moe, struct mxc_err *err) MXC_MUST;
/* n_group, topk_group, routed_scaling_factor of DeepSeek's and Ling's configs. */
enum mxc_code mxc_moe_read_groups(const struct mxc_config *config, struct mxc_moe_hyper *moe,
                                  struct mxc_err *err) MXC_MUST;
extern const char *const mxc_moe_keys[]; /* what mxc_moe_read reads, for mxc_hyper_rules.accepts */
bool mxc_moe_is_dense(const struct mxc_moe_hyper *moe, int32_t layer);
/* Routed and shared experts of normalised rows; the residual is added. */
int32_t mxc_block_moe(const struct mxc_decoder *d, const struct mxc_moe_hyper *moe, int32_t x,
                      int32_t residual);

/* Every weight of the graph in the checkpoint with its shape; errors name the tensor. */
enum mxc_code mxc_models_check_weights(const struct mxc_graph *graph,
                                       const struct mxc_weights *weights,
                                       struct mxc_err *err) MXC_MUST;

/* The name of list (NULL-ended) nearest to text; NULL for an empty list. */
const char *mxc_models_nearest(const char *text, const char *const *list);

#endif

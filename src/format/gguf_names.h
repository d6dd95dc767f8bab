/* Names of GGUF tensors and architectures in Hugging Face spelling. Pure functions. */
#ifndef MXC_FORMAT_GGUF_NAMES_H
#define MXC_FORMAT_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". A name without a counterpart
 * is kept as it is ("rope_freqs.weight"). false: the result does not fit in size bytes. */
bool mxc_gguf_logical_name(const char *arch, const char *name, char *out, size_t size);
/* Tensors that are part of the config (longrope's factors), not weights. */
bool mxc_gguf_is_config_tensor(const char *name);
/* model_type of an architecture ("qwen2moe" -> "qwen2_moe"); unknown ones are kept. */
const char *mxc_gguf_model_type(const char *arch);
/* True when files of this architecture hold q and k rows in interleaved order: row 2i + a of a head
 * is row i + a * head_dim / 2 of the original. */
bool mxc_gguf_permutes(const char *arch);
/* The tensor that permutation applies to: 'q', 'k', or 0. */
char mxc_gguf_q_or_k(const char *name);

#endif

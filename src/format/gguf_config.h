/* GGUF metadata as a config object in Hugging Face spelling. */
#ifndef MXC_FORMAT_GGUF_CONFIG_H
#define MXC_FORMAT_GGUF_CONFIG_H

#include "base/json.h"
#include "format/gguf.h"

/* *root is owned by the caller (json_decref). Errors name file and key. What a family needs and the
 * file does not say is simply absent from *root. eos_token_id is a list: the ids that the metadata
 * names (eos, eot, eom) and control tokens whose text is known to end a turn. */
enum mxc_code mxc_gguf_config(const struct mxc_gguf *gguf, json_t **root,
                              struct mxc_err *err) MXC_MUST;

#endif

/* Vocabularies of byte-level BPE that give ranks instead of merges: lines of "base64 rank"
 * (tokenizer.model of Llama 3 and 4, qwen.tiktoken), and Mistral's tekken.json. Such files hold
 * neither the pattern that cuts a text nor, in the first form, the special tokens: those follow
 * from the model's family, which is told by config.json or by the number of ranks. */
#ifndef MXC_FORMAT_TIKTOKEN_H
#define MXC_FORMAT_TIKTOKEN_H

#include "base/tokdesc.h"

struct mxc_tiktoken_hints {
    const char *model_type; /* of config.json; NULL: not known */
    bool has_specials;      /* tokenizer_config.json lists the special tokens */
};

/* Both fill *desc, which the caller has not initialised, and leave it untouched on failure; name
 * stands in messages. MXC_E_UNSUPPORTED: a family that is not known. */
enum mxc_code mxc_tiktoken_parse(const char *text, size_t size, const char *name,
                                 struct mxc_tiktoken_hints hints, struct mxc_tokdesc *desc,
                                 struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_tekken_parse(const char *text, size_t size, const char *name,
                               struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;

#endif

/* The tokeniser inside a GGUF file: gpt2-style byte-level BPE (by the name of its pre-tokeniser)
 * and llama-style sentencepiece. */
#ifndef MXC_FORMAT_GGUF_TOKENIZER_H
#define MXC_FORMAT_GGUF_TOKENIZER_H

#include "base/tokdesc.h"
#include "format/gguf.h"

/* Fills *desc, which the caller has not initialised and which borrows nothing of the file;
 * untouched on failure. MXC_E_NOT_FOUND: the file has no tokeniser. MXC_E_UNSUPPORTED names a model
 * or a pre-tokeniser that we do not know. */
enum mxc_code mxc_gguf_tokenizer_load(const struct mxc_gguf *gguf, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) MXC_MUST;

#endif

/* The tokeniser of a checkpoint's folder, whatever file it is in. The first of these that is there
 * is taken, and the others are not looked at:
 *   tokenizer.json           the `tokenizers` format
 *   tekken.json              Mistral's ranks
 *   tokenizer.model          sentencepiece, or lines of ranks, as its first byte tells
 *   spiece.model, sentencepiece.bpe.model   sentencepiece
 *   qwen.tiktoken, tokenizer.tiktoken       lines of ranks
 * Beside it special_tokens_map.json and tokenizer_config.json are read, added_tokens.json (not with
 * tokenizer.json, which holds the same), and for ranks the model_type of config.json. */
#ifndef MXC_FORMAT_TOKENIZER_FILE_H
#define MXC_FORMAT_TOKENIZER_FILE_H

#include "base/tokdesc.h"

/* Fills *desc, which the caller has not initialised, and *file, the base name of what was taken (a
 * constant); both untouched on failure. MXC_E_NOT_FOUND: none of the files is there. */
enum mxc_code mxc_tokenizer_load(const char *folder, struct mxc_tokdesc *desc, const char **file,
                                 struct mxc_err *err) MXC_MUST;

#endif

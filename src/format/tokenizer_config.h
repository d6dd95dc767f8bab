/* The files beside a vocabulary that bear on ids. Errors name the file. */
#ifndef MXC_FORMAT_TOKENIZER_CONFIG_H
#define MXC_FORMAT_TOKENIZER_CONFIG_H

#include "base/tokdesc.h"

/* special_tokens_map.json and tokenizer_config.json of the folder: names of special tokens, tokens
 * that only they list, whether BOS and EOS are added. Fills end_ids. */
enum mxc_code mxc_tokenizer_config_apply(const char *folder, struct mxc_tokdesc *desc,
                                         struct mxc_err *err) MXC_MUST;
/* added_tokens.json, for checkpoints without a tokenizer.json (which has these tokens itself). */
enum mxc_code mxc_tokenizer_config_apply_added(const char *folder, struct mxc_tokdesc *desc,
                                               struct mxc_err *err) MXC_MUST;

#endif

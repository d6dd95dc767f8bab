/* tokenizer.json (the Hugging Face tokenizers format), and the facts of tokenizer_config.json and
 * special_tokens_map.json that bear on ids. Large files are streamed, not parsed to a tree. */
#ifndef MXC_FORMAT_TOKENIZER_JSON_H
#define MXC_FORMAT_TOKENIZER_JSON_H

#include "base/tokdesc.h"

/* Reads folder/tokenizer.json and, where they exist, the other two. Fills *desc, which the caller
 * has not initialised; untouched on failure. MXC_E_NOT_FOUND: no tokenizer.json.
 * MXC_E_UNSUPPORTED names a model or step that we do not do. Errors name the file. */
enum mxc_code mxc_tokenizer_json_load(const char *folder, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) MXC_MUST;
/* The same for one tokenizer.json in memory; name stands in messages. */
enum mxc_code mxc_tokenizer_json_parse(const char *text, size_t length, const char *name,
                                       struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;

#endif

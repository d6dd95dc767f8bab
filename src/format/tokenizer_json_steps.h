/* Inside of tokenizer_json: the small sections (normalizer, pre_tokenizer, post_processor,
 * decoder) as steps of the description. Sequences are flattened; what is not supported is refused
 * by name. A null section adds nothing. */
#ifndef MXC_FORMAT_TOKENIZER_JSON_STEPS_H
#define MXC_FORMAT_TOKENIZER_JSON_STEPS_H

#include "base/json.h"
#include "base/tokdesc.h"

enum mxc_code mxc_tokenizer_json_normalizer(const json_t *node, struct mxc_tokdesc *desc,
                                            struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_tokenizer_json_pretokenizer(const json_t *node, struct mxc_tokdesc *desc,
                                              struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_tokenizer_json_decoder(const json_t *node, struct mxc_tokdesc *desc,
                                         struct mxc_err *err) MXC_MUST;
/* Needs the vocabulary and the added tokens. */
enum mxc_code mxc_tokenizer_json_post(const json_t *node, struct mxc_tokdesc *desc,
                                      struct mxc_err *err) MXC_MUST;

#endif

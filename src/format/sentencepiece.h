/* tokenizer.model of sentencepiece: a protobuf message with pieces, the normaliser and the options
 * of training. Kinds unigram and bpe; others are refused by name. */
#ifndef MXC_FORMAT_SENTENCEPIECE_H
#define MXC_FORMAT_SENTENCEPIECE_H

#include "base/tokdesc.h"

/* Reads a model in memory; name stands in messages. Fills *desc, which the caller has not
 * initialised; untouched on failure. BOS goes before a text for bpe models that have one, EOS after
 * it for unigram models without BOS; files beside the model may say otherwise. */
enum mxc_code mxc_sentencepiece_parse(const void *data, size_t size, const char *name,
                                      struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;

#endif

/* Vocabulary files without JSON trees: a first byte 's' is followed by a sentencepiece model, 't'
 * by lines of ranks, 'k' by a tekken.json. What loads encodes and decodes a text. Invariants: no
 * crash; a result or one error line; ids within the vocabulary; well-formed text back. */
#include "format/sentencepiece.h"
#include "format/tiktoken.h"
#include "text/tokenizer.h"

#include "use_tokenizer.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_tokdesc desc;
    struct mxc_err err = {0};
    const struct mxc_tiktoken_hints hints = {.model_type = "qwen"};
    enum mxc_code code;
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    if (data[0] == 't')
        code = mxc_tiktoken_parse(text, size - 1, "f", hints, &desc, &err);
    else if (data[0] == 'k')
        code = mxc_tekken_parse(text, size - 1, "f", &desc, &err);
    else
        code = mxc_sentencepiece_parse(text, size - 1, "f", &desc, &err);
    use_tokenizer(code, &desc, &err);
    return 0;
}

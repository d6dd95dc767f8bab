/* tokenizer.json -> tokeniser. What loads encodes and decodes a text. Invariants: no crash; a
 * result or one error line; ids within the vocabulary; well-formed text back. */
#include "format/tokenizer_json.h"
#include "text/tokenizer.h"

#include "json_mutate.h"
#include "use_tokenizer.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

MUTATE_JSON_INPUT

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_tokdesc desc;
    struct mxc_err err = {0};
    enum mxc_code code = mxc_tokenizer_json_parse((const char *)data, size, "f", &desc, &err);
    use_tokenizer(code, &desc, &err);
    return 0;
}

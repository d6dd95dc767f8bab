/* A folder with a tokeniser -> tokeniser. Input: tokenizer.json, tokenizer_config.json,
 * special_tokens_map.json, added_tokens.json, config.json, tokenizer.model, cut by lines "%%"; an
 * empty part is no file. Invariants as for fuzz_tokenizer_json. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/tokenizer_file.h"

#include "safetensors_mutate.h"
#include "use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "config.json",           "tokenizer.model"};
    struct mxc_tokdesc desc;
    struct mxc_err err = {0};
    const char *file;
    scratch_parts(names, 6, data, size);
    enum mxc_code code = mxc_tokenizer_load(scratch_folder(), &desc, &file, &err);
    use_tokenizer(code, &desc, &err);
    return 0;
}

#ifdef MXC_FUZZ
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return mutate_part(data, size, max_size, seed);
}
#endif

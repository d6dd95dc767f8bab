/* For fuzz targets of safetensors: mutators that change the tree of a header and keep its length
 * right, and that work on one part of an input of several files. */
#ifndef MXC_TESTS_FUZZ_SAFETENSORS_MUTATE_H
#define MXC_TESTS_FUZZ_SAFETENSORS_MUTATE_H

#include "json_mutate.h"
#include "scratch.h"

#ifdef MXC_FUZZ
/* A safetensors file; what is none, or the data one time in eight, has its bytes changed. */
static inline size_t mutate_safetensors(uint8_t *data, size_t size, size_t max_size,
                                        unsigned seed) {
    uint64_t length = 0;
    if (size >= 8)
        memcpy(&length, data, 8);
    if (seed % 8 == 0 || size < 8 || length > size - 8 || length < 2)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t header = (size_t)length, rest = size - 8 - header, room = max_size - 8 - rest;
    uint8_t *text = malloc(room), *tail = malloc(rest + 1);
    if (!text || !tail || header > room)
        abort();
    memcpy(text, data + 8, header);
    memcpy(tail, data + 8 + header, rest);
    header = mutate_json(text, header, room, seed / 8);
    length = header;
    memcpy(data, &length, 8);
    memcpy(data + 8, text, header);
    memcpy(data + 8 + header, tail, rest);
    free(text);
    free(tail);
    return 8 + header + rest;
}

static inline size_t mutate_text(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint64_t length = 0;
    if (size >= 8)
        memcpy(&length, data, 8);
    return length && length < size ? mutate_safetensors(data, size, max_size, seed)
                                   : mutate_json(data, size, max_size, seed);
}

/* One part of an input that is cut by lines "%%"; safetensors or JSON, as it looks. */
static inline size_t mutate_part(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    size_t starts[SCRATCH_MAX + 1] = {0}, n = 1, skip = sizeof SCRATCH_CUT - 1;
    for (size_t at = 0; n < SCRATCH_MAX;) {
        uint8_t *cut = at < size ? memmem(data + at, size - at, SCRATCH_CUT, skip) : NULL;
        if (!cut)
            break;
        at = (size_t)(cut - data) + skip;
        starts[n++] = at;
    }
    size_t i = seed % n, begin = starts[i], end = i + 1 < n ? starts[i + 1] - skip : size;
    size_t rest = size - end, room = max_size - begin - rest;
    if (!room)
        return LLVMFuzzerMutate(data, size, max_size);
    uint8_t *part = malloc(room + 1), *tail = malloc(rest + 1);
    if (!part || !tail || end - begin > room)
        abort();
    memcpy(part, data + begin, end - begin);
    memcpy(tail, data + end, rest);
    size_t length = mutate_text(part, end - begin, room, seed / 8);
    memcpy(data + begin, part, length);
    memcpy(data + begin + length, tail, rest);
    free(part);
    free(tail);
    return begin + length + rest;
}
#endif

#endif

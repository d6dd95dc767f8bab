/* For fuzz targets of JSON: a mutator that changes the tree, so that what is behind the syntax is
 * reached. One node is replaced, removed, repeated, taken from elsewhere or, for a number, moved;
 * one time in eight libFuzzer changes bytes instead. Only in programs with libFuzzer. */
#ifndef MXC_TESTS_FUZZ_JSON_MUTATE_H
#define MXC_TESTS_FUZZ_JSON_MUTATE_H

#ifdef MXC_FUZZ
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* A place in the tree: an object and a key, or an array and an index. */
struct mutate_place {
    json_t *parent;
    const char *key;
    size_t index;
};

static uint32_t mutate_next(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Counts places in *n; number `want` is written to *place. */
static void mutate_walk(json_t *node, size_t want, size_t *n, struct mutate_place *place) {
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_object(node)) {
        json_object_foreach(node, key, child) {
            if ((*n)++ == want)
                *place = (struct mutate_place){node, key, 0};
            mutate_walk(child, want, n, place);
        }
    } else if (json_is_array(node)) {
        json_array_foreach(node, i, child) {
            if ((*n)++ == want)
                *place = (struct mutate_place){node, NULL, i};
            mutate_walk(child, want, n, place);
        }
    }
}

static json_t *mutate_at(const struct mutate_place *p) {
    return p->key ? json_object_get(p->parent, p->key) : json_array_get(p->parent, p->index);
}

static json_t *mutate_odd(uint32_t *state) {
    static const char *const values[] = {
        "0",          "1",          "-1",          "2",
        "3",          "7",          "256",         "65536",
        "2e9",        "{}",         "1e308",       "-1e308",
        "1e-300",     "0.5",        "null",        "true",
        "false",      "[]",         "\"\"",        "\"x\"",
        "[0,1,2]",    "[null]",     "[[],{}]",     "{\"a\":{\"a\":[]}}",
        "4294967296", "2147483647", "-2147483648", "9223372036854775807"};
    size_t i = mutate_next(state) % (sizeof values / sizeof *values);
    return json_loads(values[i], JSON_DECODE_ANY, NULL);
}

static json_t *mutate_number(const json_t *old, uint32_t *state) {
    uint32_t how = mutate_next(state) % 6;
    if (json_is_integer(old)) {
        uint64_t v = (uint64_t)json_integer_value(old);
        uint64_t out[] = {v + 1, v - 1, v * 2, v / 2, (uint64_t)0 - v, mutate_next(state) % 64};
        return json_integer((json_int_t)out[how]);
    }
    double v = json_real_value(old);
    double out[] = {v + 1, -v, v * 2, v / 2, 1 / (v + 1e-9), 0};
    return json_real(out[how]);
}

static json_t *mutate_string(const json_t *old, uint32_t *state) {
    uint8_t text[96] = {0};
    size_t n = json_string_length(old);
    n = n < sizeof text / 2 ? n : sizeof text / 2;
    memcpy(text, json_string_value(old), n);
    n = LLVMFuzzerMutate(text, n, sizeof text);
    if (mutate_next(state) % 4)
        for (size_t i = 0; i < n; i++)
            text[i] &= 0x7F;
    return json_stringn((const char *)text, n);
}

static json_t *mutate_value(json_t *root, json_t *old, size_t n, uint32_t *state) {
    struct mutate_place other = {0};
    size_t count = 0;
    if (mutate_next(state) % 2 && json_is_number(old))
        return mutate_number(old, state);
    if (mutate_next(state) % 2 && json_is_string(old))
        return mutate_string(old, state);
    if (mutate_next(state) % 3)
        return mutate_odd(state);
    mutate_walk(root, mutate_next(state) % n, &count, &other);
    return other.parent ? json_deep_copy(mutate_at(&other)) : NULL;
}

static void mutate_tree(json_t *root, uint32_t *state) {
    struct mutate_place p = {0};
    size_t n = 0, count = 0;
    mutate_walk(root, SIZE_MAX, &n, &p);
    if (!n)
        return;
    mutate_walk(root, mutate_next(state) % n, &count, &p);
    uint32_t how = mutate_next(state) % 8;
    if (how == 0) {
        if (p.key)
            (void)json_object_del(p.parent, p.key);
        else
            (void)json_array_remove(p.parent, p.index);
        return;
    }
    json_t *value = mutate_value(root, mutate_at(&p), n, state);
    if (!p.key && how == 1)
        (void)json_array_insert_new(p.parent, p.index, value);
    else if (p.key)
        (void)json_object_set_new(p.parent, p.key, value);
    else
        (void)json_array_set_new(p.parent, p.index, value);
}

/* The new size; the bytes are in data. */
static size_t mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint32_t state = seed;
    json_t *root =
        mutate_next(&state) % 8 ? json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL) : NULL;
    if (!root)
        return LLVMFuzzerMutate(data, size, max_size);
    for (uint32_t i = mutate_next(&state) % 3 + 1; i; i--)
        mutate_tree(root, &state);
    size_t n = json_dumpb(root, (char *)data, max_size, JSON_COMPACT);
    json_decref(root);
    return n && n <= max_size ? n : LLVMFuzzerMutate(data, size, max_size);
}

#define MUTATE_JSON_INPUT                                                                          \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);    \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {   \
        return mutate_json(data, size, max_size, seed);                                            \
    }
#else
#define MUTATE_JSON_INPUT
#endif

#endif

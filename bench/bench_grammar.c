/* bench_grammar [VOCABULARY]: what a constrained token costs. VOCABULARY is a folder with a
 * tokenizer.json or a .tiktoken file; without one, 151,000 tokens are made up. A long JSON text
 * that fits a nested schema is fed token by token (the longest allowed token each time), first with
 * an empty mask cache and then with a full one; each step applies the mask to logits and samples,
 * and is compared with sampling alone. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/sample.h"
#include "format/tokenizer_json.h"
#include "gen/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MADE_UP = 151000, MAX_STEPS = 20000, ROUNDS = 2, SAMPLES = 100 /* that are timed */ };

struct bench {
    struct mxc_grammar_piece *pieces;
    size_t n, capacity;
    struct mxc_map ids; /* bytes -> id */
    struct mxc_arena arena;
    struct mxc_grammar_vocab *vocab;
    int32_t eos;
    float *raw, *logits;
    struct mxc_sample_work work;
    double mask_us[MAX_STEPS], sample_us[MAX_STEPS];
    size_t n_steps;
};

static const char schema_text[] =
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"},\"id\":{\"type\":"
    "\"integer\","
    "\"minimum\":1},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":40}},"
    "\"people\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{"
    "\"type\":"
    "\"string\"},\"role\":{\"enum\":[\"author\",\"editor\",\"reader\"]},\"score\":{\"type\":"
    "\"number\","
    "\"minimum\":0,\"maximum\":1},\"mail\":{\"type\":[\"string\",\"null\"]},\"notes\":{\"type\":"
    "\"array\","
    "\"items\":{\"$ref\":\"#/$defs/note\"}}},\"required\":[\"name\",\"role\",\"notes\"],"
    "\"additionalProperties\":false}},\"extra\":{\"type\":\"object\"}},\"required\":[\"title\","
    "\"id\","
    "\"people\"],\"additionalProperties\":false,\"$defs\":{\"note\":{\"type\":\"object\","
    "\"properties\":"
    "{\"text\":{\"type\":\"string\"},\"day\":{\"type\":\"string\",\"format\":\"date\"},\"replies\":"
    "{\"type\":"
    "\"array\",\"items\":{\"$ref\":\"#/$defs/note\"}}},\"required\":[\"text\"]}}}";

static void die(const char *what) {
    fprintf(stderr, "bench_grammar: %s\n", what);
    exit(1);
}

/* This thread's own time: neighbours on the machine do not count. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void add(struct bench *b, const char *bytes, size_t length, bool special) {
    if (b->n == b->capacity) {
        b->capacity = b->capacity ? b->capacity * 2 : 1024;
        b->pieces = mxc_mem_realloc(b->pieces, b->capacity, sizeof *b->pieces);
    }
    char *copy = mxc_arena_dup(&b->arena, bytes, length);
    if (!b->pieces || !copy)
        die("out of memory");
    b->pieces[b->n] = (struct mxc_grammar_piece){{copy, length}, special};
    if (!special && length && !mxc_map_put(&b->ids, b->pieces[b->n].bytes, b->n))
        die("out of memory");
    b->n++;
}

static void make_up(struct bench *b) {
    static const char *const parts[] = {"an", "the", "re",  "con",      "ti",           "on",
                                        "s",  "er",  "qu",  "il",       "ing",          "Pro",
                                        "X",  "_",   "get", "\xc3\xa9", "\xe4\xbd\xa0", "om"};
    static const char *const ends[] = {"", "\"", "\",", "\":", "()", ".", "\n", ");", " ", "}"};
    uint64_t seed = 88172645463325252u;
    char text[64];
    uint64_t known;
    for (int c = 0; c < 256; c++)
        add(b, &(char){(char)c}, 1, false);
    while (b->n < MADE_UP) {
        size_t n = 0;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        uint64_t r = seed >> 8;
        if (r & 1)
            text[n++] = ' ';
        for (uint64_t k = 1 + (r >> 1) % 5; k; k--, r /= 18) {
            const char *p = parts[(r >> 4) % 18];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        const char *end = ends[seed >> 40 & 7 ? 0 : (seed >> 44) % 10];
        memcpy(text + n, end, strlen(end));
        n += strlen(end);
        if (!mxc_map_get(&b->ids, (struct mxc_str){text, n}, &known))
            add(b, text, n, false);
    }
}

static int base64(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static void load_tiktoken(struct bench *b, const char *path) {
    FILE *f = fopen(path, "rb");
    char line[4096], bytes[4096];
    if (!f)
        die("cannot open the vocabulary");
    while (fgets(line, sizeof line, f)) {
        size_t n = 0;
        uint32_t bits = 0;
        int have = 0;
        for (const char *c = line; base64(*c) >= 0; c++) {
            bits = bits << 6 | (uint32_t)base64(*c);
            have += 6;
            if (have >= 8) {
                have -= 8;
                bytes[n++] = (char)(bits >> have & 0xff);
            }
        }
        add(b, bytes, n, false);
    }
    (void)fclose(f);
}

static void load_tokenizer(struct bench *b, const char *folder) {
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    struct mxc_err err;
    if (mxc_tokenizer_json_load(folder, &desc, &err) || mxc_tokenizer_new(&desc, &t, &err))
        die(err.message);
    for (uint32_t id = 0; id < mxc_tokenizer_n_ids(t); id++) {
        struct mxc_buf piece;
        mxc_buf_init(&piece, 1 << 20);
        bool special = mxc_tokenizer_is_special(t, id);
        (void)mxc_tokenizer_piece(t, id, &piece);
        add(b, mxc_buf_text(&piece), piece.length, special);
        mxc_buf_fini(&piece);
    }
    mxc_tokenizer_free(t);
}

/* A text of the schema, about 8 KB. */
static void make_text(struct mxc_buf *out) {
    static const char *const words[] = {
        "the",     "engine",         "reads",         "a",   "graph", "and", "returns", "tokens",
        "quickly", "\\\"quoted\\\"", "J\xc3\xbcrgen", "data"};
    unsigned w = 0;
    mxc_buf_puts(out,
                 "{\"title\": \"A report\", \"id\": 4711, \"tags\": [\"one\", \"two words here\"], "
                 "\"people\": [");
    for (int i = 0; i < 12; i++) {
        mxc_buf_printf(
            out,
            "%s{\"name\": \"Person %d\", \"role\": \"editor\", \"score\": 0.%d, \"mail\": "
            "null, \"notes\": [",
            i ? ", " : "", i, 17 * i % 100);
        for (int k = 0; k < 3; k++) {
            mxc_buf_printf(out, "%s{\"text\": \"", k ? ", " : "");
            for (int j = 0; j < 25; j++)
                mxc_buf_printf(out, "%s%s", j ? " " : "", words[w++ * 7 % 12]);
            mxc_buf_printf(out, "\", \"day\": \"2026-0%d-1%d\", \"replies\": []}", k + 1, k);
        }
        mxc_buf_puts(out, "]}");
    }
    mxc_buf_puts(out, "], \"extra\": {\"k\": [1, 2.5, {\"deep\": true}]}}");
    if (out->failed)
        die("out of memory");
}

static double us_since(uint64_t from) {
    return (double)(cpu_ns() - from) * 1e-3;
}

static void step(struct bench *b, struct mxc_grammar_state *s, struct mxc_sampler *sampler,
                 bool constrained, size_t i) {
    struct mxc_logit_filter f = mxc_grammar_filter(s);
    struct mxc_err err;
    int32_t id;
    memcpy(b->logits, b->raw, b->n * sizeof *b->logits);
    uint64_t from = cpu_ns();
    if (constrained)
        f.apply(f.user, b->logits, (int32_t)b->n);
    b->mask_us[i] = us_since(from);
    if (mxc_grammar_state_error(s))
        die(mxc_grammar_state_error(s)->message);
    if (i >= SAMPLES)
        return;
    from = cpu_ns();
    if (mxc_sampler_next(sampler, &b->work, b->logits, NULL, 0, &id, &err))
        die(err.message);
    b->sample_us[i] = us_since(from);
}

/* Feeds the text. Returns microseconds of advancing per token. */
static double run(struct bench *b, struct mxc_grammar_masks *masks, const struct mxc_buf *text,
                  bool constrained) {
    struct mxc_grammar_state *s = NULL;
    struct mxc_sampling params;
    struct mxc_sampler sampler;
    struct mxc_err err;
    double advance = 0;
    mxc_sampling_init(&params);
    params.temperature = 0.7f;
    params.top_p = 0.95f;
    if (mxc_grammar_state_new(masks, NULL, &s, &err) ||
        mxc_sampler_init(&sampler, &params, (int32_t)b->n, &err))
        die(err.message);
    b->n_steps = 0;
    for (size_t at = 0; at < text->length && b->n_steps < MAX_STEPS;) {
        uint64_t id = 0;
        size_t n = text->length - at < 32 ? text->length - at : 32;
        step(b, s, &sampler, constrained, b->n_steps++);
        uint64_t from = cpu_ns();
        for (; n; n--) /* the longest token that the grammar takes */
            if (mxc_map_get(&b->ids, (struct mxc_str){text->data + at, n}, &id) &&
                mxc_grammar_advance(s, (int32_t)id, &err) == MXC_OK)
                break;
        if (!n)
            die("the text does not fit the schema");
        advance += us_since(from);
        at += n;
    }
    if (!mxc_grammar_accepts_end(s))
        die("the text is not whole");
    mxc_sampler_fini(&sampler);
    mxc_grammar_state_free(s);
    return advance / (double)b->n_steps;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(struct bench *b, const char *name, double advance) {
    double mask = 0, sample = 0;
    size_t n = b->n_steps;
    for (size_t i = 0; i < n; i++) {
        mask += b->mask_us[i];
        sample += i < SAMPLES ? b->sample_us[i] : 0;
    }
    double first = b->mask_us[0];
    qsort(b->mask_us, n, sizeof *b->mask_us, by_value);
    printf("%-22s %6zu %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.2f\n", name, n, first,
           mask / (double)n, b->mask_us[n / 2], b->mask_us[n * 99 / 100], b->mask_us[n - 1],
           sample / SAMPLES, advance);
}

static struct mxc_grammar *compile(double *us) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err;
    json_t *schema = json_loads(schema_text, 0, NULL);
    uint64_t from = cpu_ns();
    if (mxc_grammar_parse_schema(schema, MXC_JSON_SPACED, &g, &err))
        die(err.message);
    *us = us_since(from);
    json_decref(schema);
    return g;
}

int main(int argc, char **argv) {
    struct bench *b = mxc_mem_zalloc(1, sizeof *b);
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_masks_stats stats;
    struct mxc_buf text;
    struct mxc_err err;
    double us;
    if (!b)
        die("out of memory");
    mxc_map_init(&b->ids);
    mxc_arena_init(&b->arena, 0);
    if (argc < 2)
        make_up(b);
    else if (strstr(argv[1], ".tiktoken"))
        load_tiktoken(b, argv[1]);
    else
        load_tokenizer(b, argv[1]);
    b->eos = (int32_t)b->n;
    add(b, "</s>", 4, true);
    uint64_t from = cpu_ns();
    if (mxc_grammar_vocab_new_pieces(b->pieces, b->n, &b->eos, 1, &b->vocab, &err))
        die(err.message);
    printf("%zu tokens; trie: %.1f ms, %.1f MB\n", b->n, us_since(from) * 1e-3,
           (double)mxc_grammar_vocab_bytes(b->vocab) * 1e-6);
    b->raw = mxc_mem_array(b->n, sizeof *b->raw);
    b->logits = mxc_mem_array(b->n, sizeof *b->logits);
    if (!b->raw || !b->logits || mxc_sample_work_init(&b->work, (int32_t)b->n, 1, &err))
        die("out of memory");
    for (size_t i = 0; i < b->n; i++)
        b->raw[i] = (float)(i * 2654435761u % 1000003) * 1e-5f;
    mxc_buf_init(&text, 1 << 20);
    make_text(&text);
    struct mxc_grammar *g = compile(&us);
    printf("schema: %zu states, compiled in %.2f ms\n", mxc_grammar_n_states(g), us * 1e-3);
    printf("microseconds per token %5s %9s %9s %9s %9s %9s %9s %9s\n", "tokens", "first", "mask",
           "median", "p99", "max", "sample", "advance");
    for (int round = 0; round < ROUNDS; round++) {
        if (round)
            g = compile(&us);
        if (mxc_grammar_masks_new(g, b->vocab, 0, &masks, &err))
            die(err.message);
        report(b, "free", run(b, masks, &text, false));
        report(b, "constrained, cold", run(b, masks, &text, true));
        report(b, "constrained, warm", run(b, masks, &text, true));
        mxc_grammar_masks_get_stats(masks, &stats);
        if (round + 1 < ROUNDS)
            mxc_grammar_masks_unref(masks);
    }
    printf("mask cache: %zu entries, %.1f KB, %llu hits, %llu misses\n", stats.n_entries,
           (double)stats.used_bytes * 1e-3, (unsigned long long)stats.n_hits,
           (unsigned long long)stats.n_misses);
    mxc_grammar_masks_unref(masks);
    mxc_grammar_vocab_free(b->vocab);
    mxc_sample_work_fini(&b->work);
    mxc_buf_fini(&text);
    mxc_map_fini(&b->ids);
    mxc_arena_fini(&b->arena);
    mxc_mem_free(b->pieces);
    mxc_mem_free(b->raw);
    mxc_mem_free(b->logits);
    mxc_mem_free(b);
    return 0;
}

/* Tokeniser description: growth of its arrays, the index of spellings, resolution of merges.
 * In: tokens, merges and steps as readers find them in files. Out: a description in which every
 * merge and added token names a token that exists, or an error that tells which does not.
 * A slot of the index holds 32 bits of hash and the id, so most misses read no spelling. The seed
 * is drawn per description: a crafted vocabulary cannot aim at one slot.
 * Merges are looked up in batches that prefetch slots and tokens, since cache misses are what they
 * cost. */
#include "base/tokdesc.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

void mxc_tokdesc_init(struct mxc_tokdesc *desc) {
    *desc = (struct mxc_tokdesc){
        .unk = MXC_TOK_NO_ID, .bos = MXC_TOK_NO_ID, .eos = MXC_TOK_NO_ID, .pad = MXC_TOK_NO_ID};
    mxc_arena_init(&desc->arena, 64u << 20);
    desc->seed = (mxc_clock_ns() ^ (uint64_t)(uintptr_t)desc) * 0x9E3779B97F4A7C15u | 1;
}

void mxc_tokdesc_fini(struct mxc_tokdesc *desc) {
    mxc_mem_free(desc->bytes);
    mxc_mem_free(desc->tokens);
    mxc_mem_free(desc->scores);
    mxc_mem_free(desc->merges);
    mxc_mem_free_aligned(desc->slots, desc->n_slots * sizeof *desc->slots);
    mxc_mem_free(desc->added);
    mxc_arena_fini(&desc->arena);
    mxc_tokdesc_init(desc);
}

/* Makes room for `need` elements, doubling. */
static bool grow(void **items, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity)
        return true;
    size_t cap = *capacity ? *capacity : 256;
    while (cap < need)
        if (!mxc_size_mul(cap, 2, &cap))
            return false;
    void *p = mxc_mem_realloc(*items, cap, size);
    if (!p)
        return false;
    *items = p;
    *capacity = cap;
    return true;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t r = (__uint128_t)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static uint64_t load8(const char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static uint64_t load4(const char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* Multiply-fold over eight bytes at a time; the tail is read with overlap. */
static inline uint64_t hash_of(uint64_t seed, struct mxc_str s) {
    const char *p = s.ptr;
    size_t n = s.length;
    uint64_t h = seed ^ n * 0xA0761D6478BD642Fu;
    if (n >= 8) {
        for (; n > 8; n -= 8, p += 8)
            h = mix(h ^ load8(p), 0xE7037ED1A0B428DBu);
        h = mix(h ^ load8(p + n - 8), 0x8EBC6AF09C88C6E3u);
    } else if (n >= 4) {
        h = mix(h ^ (load4(p) << 32 | load4(p + n - 4)), 0x8EBC6AF09C88C6E3u);
    } else if (n) {
        uint64_t v = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 |
                     (unsigned char)p[n - 1];
        h = mix(h ^ v, 0x8EBC6AF09C88C6E3u);
    }
    return mix(h, seed | 1);
}

struct mxc_str mxc_tokdesc_bytes(const struct mxc_tokdesc *desc, uint32_t id) {
    if (id >= desc->n_ids || !desc->tokens[id].type)
        return (struct mxc_str){"", 0};
    return (struct mxc_str){desc->bytes + desc->tokens[id].offset, desc->tokens[id].length};
}

/* Short spellings are the rule: no call for them. */
static inline bool same_bytes(const char *a, const char *b, size_t n) {
    if (n > 8)
        return !memcmp(a, b, n);
    if (n >= 4)
        return load4(a) == load4(b) && load4(a + n - 4) == load4(b + n - 4);
    return !n || (a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1]);
}

static inline bool same(const struct mxc_tokdesc *desc, uint32_t id, struct mxc_str s) {
    const struct mxc_tok_token *t = &desc->tokens[id];
    return t->length == s.length && t->type && same_bytes(desc->bytes + t->offset, s.ptr, s.length);
}

static uint32_t find_hashed(const struct mxc_tokdesc *desc, struct mxc_str s, uint64_t hash) {
    size_t mask = desc->n_slots - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        uint64_t slot = desc->slots[i];
        if (!slot)
            return MXC_TOK_NO_ID;
        if (slot >> 32 == hash >> 32 && same(desc, (uint32_t)slot - 1, s))
            return (uint32_t)slot - 1;
    }
}

uint32_t mxc_tokdesc_find(const struct mxc_tokdesc *desc, struct mxc_str s) {
    if (!desc->n_slots || s.length > desc->max_token_bytes)
        return MXC_TOK_NO_ID;
    return find_hashed(desc, s, hash_of(desc->seed, s));
}

static void insert(struct mxc_tokdesc *desc, uint32_t id) {
    struct mxc_str s = mxc_tokdesc_bytes(desc, id);
    uint64_t hash = hash_of(desc->seed, s);
    size_t mask = desc->n_slots - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        uint64_t slot = desc->slots[i];
        if (!slot) {
            desc->slots[i] = hash >> 32 << 32 | (id + 1);
            desc->n_indexed++;
            return;
        }
        if (slot >> 32 == hash >> 32 && same(desc, (uint32_t)slot - 1, s)) {
            if ((uint32_t)slot - 1 > id)
                desc->slots[i] = slot >> 32 << 32 | (id + 1);
            return;
        }
    }
}

enum mxc_code mxc_tokdesc_index(struct mxc_tokdesc *desc, struct mxc_err *err) {
    size_t n = 1024;
    while (n < desc->n_ids * 2 + 512)
        n *= 2;
    size_t bytes = n * sizeof *desc->slots; /* n is at most four times MXC_TOK_MAX_ID */
    uint64_t *slots = mxc_mem_aligned(64, bytes, bytes >= MXC_TOK_HUGE_BYTES);
    if (!slots)
        return mxc_err_nomem(err);
    mxc_mem_free_aligned(desc->slots, desc->n_slots * sizeof *slots);
    desc->slots = slots;
    desc->n_slots = n;
    desc->n_indexed = 0;
    for (size_t id = 0; id < desc->n_ids; id++)
        if (desc->tokens[id].type)
            insert(desc, (uint32_t)id);
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_add_token(struct mxc_tokdesc *desc, uint64_t id, struct mxc_str bytes,
                                    float score, enum mxc_tok_type type, struct mxc_err *err) {
    if (id >= MXC_TOK_MAX_ID)
        return mxc_err_set(err, MXC_E_FORMAT, "token id %llu is too large (limit %d)",
                           (unsigned long long)id, MXC_TOK_MAX_ID - 1);
    if (bytes.length > MXC_TOK_MAX_TOKEN_BYTES)
        return mxc_err_set(err, MXC_E_FORMAT, "token %llu is %zu bytes long (limit %d)",
                           (unsigned long long)id, bytes.length, MXC_TOK_MAX_TOKEN_BYTES);
    if (id < desc->n_ids && desc->tokens[id].type) {
        if (same(desc, (uint32_t)id, bytes)) {
            desc->tokens[id].type = (uint8_t)type;
            return MXC_OK;
        }
        struct mxc_str old = mxc_tokdesc_bytes(desc, (uint32_t)id);
        return mxc_err_set(err, MXC_E_FORMAT, "id %llu stands for both \"%.*s\" and \"%.*s\"",
                           (unsigned long long)id, (int)(old.length < 60 ? old.length : 60),
                           old.ptr, (int)(bytes.length < 60 ? bytes.length : 60), bytes.ptr);
    }
    if (desc->n_bytes + bytes.length > UINT32_MAX)
        return mxc_err_set(err, MXC_E_LIMIT, "the vocabulary is larger than 4 GiB");
    if (!grow((void **)&desc->bytes, &desc->bytes_capacity, desc->n_bytes + bytes.length + 1, 1) ||
        !grow((void **)&desc->tokens, &desc->tokens_capacity, (size_t)id + 1, sizeof *desc->tokens))
        return mxc_err_nomem(err);
    if (id >= desc->n_ids) {
        memset(desc->tokens + desc->n_ids, 0,
               ((size_t)id + 1 - desc->n_ids) * sizeof *desc->tokens);
        desc->n_ids = (size_t)id + 1;
    }
    if (bytes.length)
        memcpy(desc->bytes + desc->n_bytes, bytes.ptr, bytes.length);
    desc->tokens[id] = (struct mxc_tok_token){.offset = (uint32_t)desc->n_bytes,
                                              .length = (uint32_t)bytes.length,
                                              .score = score,
                                              .type = (uint8_t)type};
    desc->n_bytes += bytes.length;
    if (bytes.length > desc->max_token_bytes)
        desc->max_token_bytes = bytes.length;
    if (desc->n_slots) {
        if ((desc->n_indexed + 1) * 2 > desc->n_slots)
            return mxc_tokdesc_index(desc, err);
        insert(desc, (uint32_t)id);
    }
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_set_score(struct mxc_tokdesc *desc, uint32_t id, double score,
                                    struct mxc_err *err) {
    if (!isfinite(score))
        return mxc_err_set(err, MXC_E_FORMAT, "the score of token %u is not finite", id);
    if (!grow((void **)&desc->scores, &desc->scores_capacity, (size_t)id + 1, sizeof *desc->scores))
        return mxc_err_nomem(err);
    while (desc->n_scores <= id)
        desc->scores[desc->n_scores++] = 0;
    desc->scores[id] = score;
    return MXC_OK;
}

/* Merges usually make the tokens in id order: the guess saves a lookup. */
static uint32_t find_result(const struct mxc_tokdesc *desc, struct mxc_str a, struct mxc_str b,
                            uint32_t guess, char *scratch) {
    if (guess < desc->n_ids) {
        const struct mxc_tok_token *t = &desc->tokens[guess];
        const char *p = desc->bytes + t->offset;
        if (t->type && t->length == a.length + b.length && same_bytes(p, a.ptr, a.length) &&
            same_bytes(p + a.length, b.ptr, b.length))
            return guess;
    }
    if (a.length + b.length > desc->max_token_bytes)
        return MXC_TOK_NO_ID;
    memcpy(scratch, a.ptr, a.length);
    memcpy(scratch + a.length, b.ptr, b.length);
    return mxc_tokdesc_find(desc, (struct mxc_str){scratch, a.length + b.length});
}

static enum mxc_code no_token(struct mxc_err *err, size_t rank, const char *what, struct mxc_str a,
                              struct mxc_str b) {
    return mxc_err_set(err, MXC_E_FORMAT, "merge %zu: %s \"%.*s%.*s\" is not in the vocabulary",
                       rank, what, (int)(a.length < 60 ? a.length : 60), a.ptr,
                       (int)(b.length < 60 ? b.length : 60), b.ptr);
}

enum { MERGE_BATCH = 64 };

static enum mxc_code add_batch(struct mxc_tokdesc *desc, const struct mxc_tok_pair *pairs, size_t n,
                               bool lenient, char *scratch, struct mxc_err *err) {
    uint64_t hash[MERGE_BATCH][2];
    for (size_t i = 0; i < n; i++) {
        hash[i][0] = hash_of(desc->seed, pairs[i].left);
        hash[i][1] = hash_of(desc->seed, pairs[i].right);
        __builtin_prefetch(&desc->slots[hash[i][0] & (desc->n_slots - 1)]);
        __builtin_prefetch(&desc->slots[hash[i][1] & (desc->n_slots - 1)]);
    }
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            uint32_t id = (uint32_t)desc->slots[hash[i][k] & (desc->n_slots - 1)];
            if (id)
                __builtin_prefetch(&desc->tokens[id - 1]);
        }
    uint32_t guess = desc->n_merges ? desc->merges[desc->n_merges - 1].result + 1 : 0;
    for (size_t i = 0; i < n; i++) {
        struct mxc_tok_merge m;
        struct mxc_str none = {"", 0};
        m.left = find_hashed(desc, pairs[i].left, hash[i][0]);
        m.right = find_hashed(desc, pairs[i].right, hash[i][1]);
        struct mxc_str tail = pairs[i].right; /* without the prefix of what continues a word */
        size_t skip = desc->word_prefix.length;
        if (skip && tail.length >= skip)
            tail = (struct mxc_str){tail.ptr + skip, tail.length - skip};
        m.result = m.left == MXC_TOK_NO_ID || m.right == MXC_TOK_NO_ID
                       ? MXC_TOK_NO_ID
                       : find_result(desc, pairs[i].left, tail, guess, scratch);
        if (m.result == MXC_TOK_NO_ID) {
            if (lenient)
                continue;
            if (m.left == MXC_TOK_NO_ID)
                return no_token(err, desc->n_merges, "left part", pairs[i].left, none);
            if (m.right == MXC_TOK_NO_ID)
                return no_token(err, desc->n_merges, "right part", pairs[i].right, none);
            return no_token(err, desc->n_merges, "result", pairs[i].left, pairs[i].right);
        }
        guess = m.result + 1;
        desc->merges[desc->n_merges++] = m;
    }
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_add_merges(struct mxc_tokdesc *desc, const struct mxc_tok_pair *pairs,
                                     size_t n, bool lenient, struct mxc_err *err) {
    if (desc->n_merges + n >= INT32_MAX)
        return mxc_err_set(err, MXC_E_LIMIT, "too many merges");
    if (!desc->n_slots)
        return mxc_err_set(err, MXC_E_FORMAT, "merges without a vocabulary");
    if (!grow((void **)&desc->merges, &desc->merges_capacity, desc->n_merges + n,
              sizeof *desc->merges))
        return mxc_err_nomem(err);
    char *scratch = mxc_mem_alloc(desc->max_token_bytes + 1);
    if (!scratch)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < n && !code; i += MERGE_BATCH)
        code = add_batch(desc, pairs + i, n - i < MERGE_BATCH ? n - i : MERGE_BATCH, lenient,
                         scratch, err);
    mxc_mem_free(scratch);
    return code;
}

static bool dup_str(struct mxc_tokdesc *desc, struct mxc_str *s) {
    if (!s->length)
        return true;
    s->ptr = mxc_arena_dup(&desc->arena, s->ptr, s->length);
    return s->ptr != NULL;
}

enum mxc_code mxc_tokdesc_dup(struct mxc_tokdesc *desc, struct mxc_str text, struct mxc_str *out,
                              struct mxc_err *err) {
    if (!dup_str(desc, &text))
        return mxc_err_nomem(err);
    *out = text;
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_add_step(struct mxc_tokdesc *desc, struct mxc_tok_steps *steps,
                                   const struct mxc_tok_step *step, struct mxc_err *err) {
    if (steps->count >= 64)
        return mxc_err_set(err, MXC_E_LIMIT, "more than 64 steps in one list");
    if (steps->count == steps->capacity) {
        size_t cap = steps->capacity ? steps->capacity * 2 : 4;
        struct mxc_tok_step *items = mxc_arena_array(&desc->arena, cap, sizeof *items);
        if (!items)
            return mxc_err_nomem(err);
        if (steps->count)
            memcpy(items, steps->items, steps->count * sizeof *items);
        steps->items = items;
        steps->capacity = cap;
    }
    struct mxc_tok_step copy = *step;
    if (!dup_str(desc, &copy.pattern) || !dup_str(desc, &copy.content))
        return mxc_err_nomem(err);
    steps->items[steps->count++] = copy;
    return MXC_OK;
}

/* Published vocabularies leave turn markers such as <|user|> unmarked; their look tells. */
static bool looks_special(struct mxc_str s) {
    return (mxc_str_starts(s, "<|") && mxc_str_ends(s, "|>") && s.length > 4) ||
           (mxc_str_starts(s, "<\xEF\xBD\x9C") && mxc_str_ends(s, "\xEF\xBD\x9C>"));
}

enum mxc_code mxc_tokdesc_add_added(struct mxc_tokdesc *desc, const struct mxc_tok_added *added,
                                    struct mxc_err *err) {
    struct mxc_str bytes = mxc_tokdesc_bytes(desc, added->id);
    if (!bytes.length)
        return mxc_err_set(err, MXC_E_FORMAT, "added token %u has no text", added->id);
    struct mxc_tok_token *token = &desc->tokens[added->id];
    struct mxc_tok_added *a;
    if (!token->added) {
        if (!grow((void **)&desc->added, &desc->added_capacity, desc->n_added + 1, sizeof *a))
            return mxc_err_nomem(err);
        token->added = (uint32_t)++desc->n_added & 0xFFFFFF; /* ids are below 2^22 */
    }
    a = &desc->added[token->added - 1];
    *a = *added;
    a->control = added->special || looks_special(bytes);
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_add_id(struct mxc_tokdesc *desc, struct mxc_tok_ids *ids, uint32_t id,
                                 struct mxc_err *err) {
    if (ids->count >= 1024)
        return mxc_err_set(err, MXC_E_LIMIT, "more than 1024 ids in one list");
    uint32_t *items = mxc_arena_array(&desc->arena, ids->count + 1, sizeof *items);
    if (!items)
        return mxc_err_nomem(err);
    if (ids->count)
        memcpy(items, ids->items, ids->count * sizeof *items);
    items[ids->count] = id;
    ids->items = items;
    ids->count++;
    return MXC_OK;
}

enum mxc_code mxc_tokdesc_add_end(struct mxc_tokdesc *desc, const char *spelling,
                                  struct mxc_err *err) {
    uint32_t id = mxc_tokdesc_find(desc, mxc_str_of(spelling));
    if (id == MXC_TOK_NO_ID)
        return MXC_OK;
    for (size_t i = 0; i < desc->end_ids.count; i++)
        if (desc->end_ids.items[i] == id)
            return MXC_OK;
    return mxc_tokdesc_add_id(desc, &desc->end_ids, id, err);
}

enum mxc_code mxc_tokdesc_add_known_ends(struct mxc_tokdesc *desc, struct mxc_err *err) {
    static const char *const names[] = {"<|im_end|>",    "<|eot_id|>",        "<|eom_id|>",
                                        "<|eot|>",       "<|eom|>",           "<|end|>",
                                        "<end_of_turn>", "<end_of_utterance>"};
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !code; i++) {
        uint32_t id = mxc_tokdesc_find(desc, mxc_str_of(names[i]));
        if (id != MXC_TOK_NO_ID && desc->tokens[id].type == MXC_TOKEN_CONTROL)
            code = mxc_tokdesc_add_end(desc, names[i], err);
    }
    return code;
}

/* Merging. A piece becomes symbols in a linked list; pairs that may merge wait in a binary heap of
 * (rank, position) keys, stale keys are recognised by the rank stored at the position. Short pieces
 * use a plain scan instead. Where no token holds U+2581 after another character, a text is cut
 * before each such U+2581 first: merges never cross there, and the cut words hit the word cache.
 * The merge table is open addressing over (left, right) with a 32-bit tag beside the index. */
#include "text/bpe.h"

#include "base/mem.h"
#include "base/byte_chars.h"

#include <string.h>

enum {
    SHORT_PIECE = 32,     /* symbols merged by scanning */
    CACHE_KEY_BYTES = 22, /* longer words are not cached */
    CACHE_IDS = 10,
    CACHE_MIN = 64,
    CACHE_MAX = 16384,
    META_BYTES = 3,
    MAX_AFFIX = 64
};

#define NO_RANK UINT32_MAX
#define NO_ID   MXC_TOK_NO_ID
static const char meta[] = "\xE2\x96\x81";

struct mxc_bpe {
    const struct mxc_tokdesc *desc;
    uint64_t *slots; /* tag << 32 | merge index + 1 */
    size_t mask;
    uint32_t byte_ids[256]; /* byte-level symbol, or <0xNN> token; NO_ID: none */
    uint32_t ascii_ids[128];
    bool cut_at_meta, all_bytes;
    bool by_score; /* any pair that makes a token merges, best score first */
    bool affixes;  /* symbols are spelled with a prefix or suffix by their place in the word */
};

struct symbol {
    uint32_t id;
    int32_t prev, next;     /* -1: none */
    uint32_t start, length; /* bytes, for sentencepiece; length 0: merged away */
    uint32_t rank;          /* of the pair with next; NO_RANK: none */
    uint32_t result;
};

struct word {
    uint8_t key_length, n_ids; /* key_length 0: free */
    char key[CACHE_KEY_BYTES];
    uint32_t ids[CACHE_IDS];
};

struct mxc_bpe_scratch {
    struct symbol *symbols;
    uint64_t *heap;
    size_t n_symbols, capacity, n_heap, heap_capacity;
    uint64_t steps; /* pairs that were looked at */
    struct word *cache;
    size_t cache_mask;
    char *mapped; /* MXC_TOK_TIKTOKEN: the word as its tokens are spelled */
    size_t mapped_capacity;
};

bool mxc_ids_push(struct mxc_ids *ids, uint32_t id) {
    if (ids->count == ids->capacity) {
        size_t cap = ids->capacity ? ids->capacity * 2 : 64;
        uint32_t *p = mxc_mem_realloc(ids->items, cap, sizeof *p);
        if (!p)
            return false;
        ids->items = p;
        ids->capacity = cap;
    }
    ids->items[ids->count++] = id;
    return true;
}

void mxc_ids_fini(struct mxc_ids *ids) {
    mxc_mem_free(ids->items);
    *ids = (struct mxc_ids){0};
}

static uint64_t hash_pair(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
}

/* Rank (index) of a pair; NO_RANK: it does not merge. */
static inline uint32_t find_merge(const struct mxc_bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t h = hash_pair(left, right);
    for (size_t i = (size_t)h & bpe->mask;; i = (i + 1) & bpe->mask) {
        uint64_t slot = bpe->slots[i];
        if (!slot)
            return NO_RANK;
        if (slot >> 32 == h >> 32) {
            uint32_t k = (uint32_t)slot - 1;
            const struct mxc_tok_merge *m = &bpe->desc->merges[k];
            if (m->left == left && m->right == right)
                return k;
        }
    }
}

static bool is_control(const struct mxc_tokdesc *desc, uint32_t id) {
    return desc->tokens[id].type == MXC_TOKEN_CONTROL || desc->tokens[id].type == MXC_TOKEN_UNKNOWN;
}

static enum mxc_code build_merges(struct mxc_bpe *bpe, struct mxc_err *err) {
    const struct mxc_tokdesc *d = bpe->desc;
    size_t n = 16;
    while (n * 3 < d->n_merges * 4) /* at most three quarters full */
        n *= 2;
    size_t bytes = n * sizeof *bpe->slots; /* merges are fewer than 2^31 */
    bpe->slots = mxc_mem_aligned(64, bytes, bytes >= MXC_TOK_HUGE_BYTES);
    bpe->mask = n - 1;
    if (!bpe->slots)
        return mxc_err_nomem(err);
    enum { AHEAD = 16 };
    for (size_t k = 0; k < d->n_merges; k++) {
        const struct mxc_tok_merge *m = &d->merges[k];
        if (k + AHEAD < d->n_merges) {
            const struct mxc_tok_merge *a = m + AHEAD;
            __builtin_prefetch(&bpe->slots[hash_pair(a->left, a->right) & bpe->mask], 1);
        }
        if (is_control(d, m->result))
            continue;
        uint64_t h = hash_pair(m->left, m->right);
        uint64_t slot = h >> 32 << 32 | (k + 1);
        size_t i = (size_t)h & bpe->mask;
        for (; bpe->slots[i]; i = (i + 1) & bpe->mask) {
            const struct mxc_tok_merge *o = &d->merges[(uint32_t)bpe->slots[i] - 1];
            if (o->left == m->left && o->right == m->right)
                break; /* a repeated pair: the last one counts */
        }
        bpe->slots[i] = slot;
    }
    return MXC_OK;
}

/* Does the spelling hold U+2581 anywhere but in a run at its beginning? */
static bool meta_inside(struct mxc_str s) {
    bool lead = true;
    for (size_t i = 0; i < s.length;) {
        if (s.length - i >= META_BYTES && !memcmp(s.ptr + i, meta, META_BYTES)) {
            if (!lead)
                return true;
            i += META_BYTES;
        } else {
            lead = false;
            i++;
        }
    }
    return false;
}

static bool can_cut(const struct mxc_tokdesc *d) {
    if (d->word_prefix.length || d->word_suffix.length)
        return false;
    if (d->model == MXC_TOK_SPM) {
        for (uint32_t id = 0; id < d->n_ids; id++)
            if (meta_inside(mxc_tokdesc_bytes(d, id)))
                return false;
        return true;
    }
    for (size_t k = 0; k < d->n_merges; k++)
        if (meta_inside(mxc_tokdesc_bytes(d, d->merges[k].result)))
            return false;
    return d->model == MXC_TOK_BPE_CHARS && !d->ignore_merges;
}

static uint32_t find_plain(const struct mxc_tokdesc *d, const char *bytes, size_t n) {
    uint32_t id = mxc_tokdesc_find(d, (struct mxc_str){bytes, n});
    return id != NO_ID && is_control(d, id) ? NO_ID : id;
}

/* Vocabularies whose tokens are spelled in GPT-2's map of bytes. */
static bool spelled_bytes(const struct mxc_tokdesc *d) {
    return d->model == MXC_TOK_BPE_BYTES || d->model == MXC_TOK_TIKTOKEN;
}

static void find_byte_ids(struct mxc_bpe *bpe) {
    const struct mxc_tokdesc *d = bpe->desc;
    bpe->all_bytes = true;
    for (unsigned b = 0; b < 256; b++) {
        char spelling[8];
        size_t n;
        if (spelled_bytes(d)) {
            n = mxc_utf8_encode(mxc_byte_to_cp((uint8_t)b), spelling);
            bpe->byte_ids[b] = find_plain(d, spelling, n);
        } else {
            static const char digits[] = "0123456789ABCDEF";
            memcpy(spelling, "<0x00>", 6);
            spelling[3] = digits[b >> 4];
            spelling[4] = digits[b & 15];
            bpe->byte_ids[b] = mxc_tokdesc_find(d, (struct mxc_str){spelling, 6});
        }
        bpe->all_bytes &= bpe->byte_ids[b] != NO_ID;
    }
    for (unsigned c = 0; c < 128; c++) {
        char one = (char)c;
        bpe->ascii_ids[c] = find_plain(d, &one, 1);
    }
}

enum mxc_code mxc_bpe_new(const struct mxc_tokdesc *desc, struct mxc_bpe **out,
                          struct mxc_err *err) {
    struct mxc_bpe *bpe = mxc_mem_zalloc(1, sizeof *bpe);
    if (!bpe)
        return mxc_err_nomem(err);
    bpe->desc = desc;
    if (desc->word_prefix.length > MAX_AFFIX || desc->word_suffix.length > MAX_AFFIX) {
        mxc_mem_free(bpe);
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "a prefix or suffix of words of more than %d bytes", MAX_AFFIX);
    }
    enum mxc_code code = build_merges(bpe, err);
    if (code) {
        mxc_bpe_free(bpe);
        return code;
    }
    find_byte_ids(bpe);
    bpe->by_score = desc->model == MXC_TOK_SPM || desc->model == MXC_TOK_TIKTOKEN;
    bpe->affixes = desc->word_prefix.length || desc->word_suffix.length;
    bpe->cut_at_meta =
        !spelled_bytes(desc) && can_cut(desc) && find_plain(desc, meta, META_BYTES) != NO_ID;
    if (desc->model == MXC_TOK_TIKTOKEN && !bpe->all_bytes) {
        mxc_bpe_free(bpe);
        return mxc_err_set(err, MXC_E_FORMAT, "the vocabulary lacks some of the 256 bytes");
    }
    *out = bpe;
    return MXC_OK;
}

void mxc_bpe_free(struct mxc_bpe *bpe) {
    if (!bpe)
        return;
    mxc_mem_free_aligned(bpe->slots, (bpe->mask + 1) * sizeof *bpe->slots);
    mxc_mem_free(bpe);
}

enum mxc_code mxc_bpe_scratch_new(size_t text_bytes, struct mxc_bpe_scratch **out,
                                  struct mxc_err *err) {
    size_t n = CACHE_MIN;
    while (n < CACHE_MAX && n < text_bytes / 4)
        n *= 2;
    struct mxc_bpe_scratch *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s || !(s->cache = mxc_mem_zalloc(n, sizeof *s->cache))) {
        mxc_mem_free(s);
        return mxc_err_nomem(err);
    }
    s->cache_mask = n - 1;
    *out = s;
    return MXC_OK;
}

void mxc_bpe_scratch_free(struct mxc_bpe_scratch *scratch) {
    if (!scratch)
        return;
    mxc_mem_free(scratch->symbols);
    mxc_mem_free(scratch->heap);
    mxc_mem_free(scratch->cache);
    mxc_mem_free(scratch->mapped);
    mxc_mem_free(scratch);
}

uint64_t mxc_bpe_steps(const struct mxc_bpe_scratch *scratch) {
    return scratch->steps;
}

/* Symbols */

static bool reserve(struct mxc_bpe_scratch *s, size_t n) {
    if (n <= s->capacity)
        return true;
    size_t cap = s->capacity ? s->capacity : 256;
    while (cap < n)
        cap *= 2;
    struct symbol *symbols = mxc_mem_realloc(s->symbols, cap, sizeof *symbols);
    if (!symbols)
        return false;
    s->symbols = symbols;
    s->capacity = cap;
    return true;
}

static void put(struct mxc_bpe_scratch *s, uint32_t id, size_t start, size_t length) {
    struct symbol *x = &s->symbols[s->n_symbols++];
    x->id = id;
    x->start = (uint32_t)start;
    x->length = (uint32_t)length;
}

/* Id of a character spelled with what its place in the word asks for; affixes are short. */
static uint32_t find_affixed(const struct mxc_bpe *bpe, const char *text, size_t n, bool first,
                             bool last) {
    const struct mxc_tokdesc *d = bpe->desc;
    struct mxc_str before = first ? MXC_STR("") : d->word_prefix;
    struct mxc_str after = last ? d->word_suffix : MXC_STR("");
    char spelling[2 * MAX_AFFIX + 8], *p = spelling;
    if (before.length)
        memcpy(p, before.ptr, before.length);
    p += before.length;
    if (d->model == MXC_TOK_BPE_BYTES) {
        p += mxc_utf8_encode(mxc_byte_to_cp((uint8_t)text[0]), p);
    } else {
        memcpy(p, text, n);
        p += n;
    }
    if (after.length)
        memcpy(p, after.ptr, after.length);
    p += after.length;
    return find_plain(d, spelling, (size_t)(p - spelling));
}

/* Room for `length` symbols is there: a character gives at most as many symbols as bytes. */
static void split_chars(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s, const char *text,
                        size_t length) {
    const struct mxc_tokdesc *d = bpe->desc;
    bool after_unk = false;
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        uint32_t id;
        if (d->model == MXC_TOK_BPE_BYTES)
            n = 1;
        if (bpe->affixes) {
            id = find_affixed(bpe, text + i, n, i == 0, i + n == length);
        } else if (d->model == MXC_TOK_BPE_BYTES) {
            id = bpe->byte_ids[c];
        } else {
            id = n == 1 ? bpe->ascii_ids[c] : find_plain(d, text + i, n);
        }
        if (id != NO_ID || d->model == MXC_TOK_SPM) {
            put(s, id, i, n);
            after_unk = false;
        } else if (d->byte_fallback && d->model == MXC_TOK_BPE_CHARS) {
            bool whole = true;
            for (size_t k = 0; k < n; k++)
                whole &= bpe->byte_ids[(unsigned char)text[i + k]] != NO_ID;
            if (whole) {
                for (size_t k = 0; k < n; k++)
                    put(s, bpe->byte_ids[(unsigned char)text[i + k]], i + k, 1);
                after_unk = false;
            } else if (d->unk != NO_ID && !(d->fuse_unk && after_unk)) {
                put(s, d->unk, i, n);
                after_unk = true;
            }
        } else if (d->unk != NO_ID && !(d->fuse_unk && after_unk)) {
            put(s, d->unk, i, n);
            after_unk = true;
        }
        i += n;
    }
}

/* Scores as ranks: the best is the lowest. */
static uint32_t score_rank(float score) {
    uint32_t u;
    memcpy(&u, &score, sizeof u);
    u = u >> 31 ? ~u : u | 0x80000000u; /* ascending with the score */
    u = ~u;
    return u == NO_RANK ? NO_RANK - 1 : u;
}

static inline void rank_pair(const struct mxc_bpe *bpe, const char *text, struct symbol *a,
                             const struct symbol *b) {
    const struct mxc_tokdesc *d = bpe->desc;
    if (!bpe->by_score) {
        a->rank = find_merge(bpe, a->id, b->id);
        a->result = a->rank == NO_RANK ? NO_ID : d->merges[a->rank].result;
        return;
    }
    a->rank = NO_RANK;
    a->result = find_plain(d, text + a->start, a->length + b->length);
    if (a->result != NO_ID && d->tokens[a->result].type != MXC_TOKEN_BYTE)
        a->rank = score_rank(d->tokens[a->result].score);
}

static void merge_short(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s, const char *text) {
    struct symbol *x = s->symbols;
    size_t n = s->n_symbols;
    s->steps += n * n;
    for (size_t i = 0; i + 1 < n; i++)
        rank_pair(bpe, text, &x[i], &x[i + 1]);
    if (n)
        x[n - 1].rank = NO_RANK;
    for (;;) {
        size_t best = 0;
        uint32_t rank = NO_RANK;
        for (size_t i = 0; i + 1 < n; i++)
            if (x[i].rank < rank) {
                rank = x[i].rank;
                best = i;
            }
        if (rank == NO_RANK)
            break;
        x[best].id = x[best].result;
        x[best].length += x[best + 1].length;
        x[best].rank = NO_RANK;
        memmove(&x[best + 1], &x[best + 2], (n - best - 2) * sizeof *x);
        n--;
        if (best + 1 < n)
            rank_pair(bpe, text, &x[best], &x[best + 1]);
        if (best)
            rank_pair(bpe, text, &x[best - 1], &x[best]);
    }
    s->n_symbols = n;
}

static bool heap_push(struct mxc_bpe_scratch *s, uint64_t key) {
    if (s->n_heap == s->heap_capacity) {
        size_t cap = s->heap_capacity ? s->heap_capacity * 2 : 256;
        uint64_t *p = mxc_mem_realloc(s->heap, cap, sizeof *p);
        if (!p)
            return false;
        s->heap = p;
        s->heap_capacity = cap;
    }
    size_t i = s->n_heap++;
    while (i && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct mxc_bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0, n = s->n_heap;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n)
            break;
        if (k + 1 < n && s->heap[k + 1] < s->heap[k])
            k++;
        if (s->heap[k] >= last)
            break;
        s->heap[i] = s->heap[k];
        i = k;
    }
    if (n)
        s->heap[i] = last;
    return top;
}

static bool offer(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s, const char *text,
                  int32_t at) {
    struct symbol *a = &s->symbols[at];
    s->steps++;
    a->rank = NO_RANK;
    if (a->next < 0)
        return true;
    rank_pair(bpe, text, a, &s->symbols[a->next]);
    return a->rank == NO_RANK || heap_push(s, (uint64_t)a->rank << 32 | (uint32_t)at);
}

static enum mxc_code merge_long(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s,
                                const char *text, struct mxc_err *err) {
    struct symbol *x = s->symbols;
    int32_t n = (int32_t)s->n_symbols;
    s->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        x[i].prev = i - 1;
        x[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++)
        if (!offer(bpe, s, text, i))
            return mxc_err_nomem(err);
    while (s->n_heap) {
        uint64_t key = heap_pop(s);
        struct symbol *a = &x[(uint32_t)key];
        if (!a->length || a->rank != key >> 32 || a->next < 0)
            continue;
        struct symbol *b = &x[a->next];
        a->id = a->result;
        a->length += b->length;
        b->length = 0;
        a->next = b->next;
        if (b->next >= 0)
            x[b->next].prev = (int32_t)(uint32_t)key;
        if (!offer(bpe, s, text, (int32_t)(uint32_t)key) ||
            (a->prev >= 0 && !offer(bpe, s, text, a->prev)))
            return mxc_err_nomem(err);
    }
    size_t out = 0;
    for (int32_t i = 0; i >= 0 && i < n; i = x[i].next)
        x[out++] = x[i]; /* out never passes i */
    s->n_symbols = out;
    return MXC_OK;
}

static bool emit(const struct mxc_bpe *bpe, const struct mxc_bpe_scratch *s, const char *text,
                 struct mxc_ids *ids) {
    const struct mxc_tokdesc *d = bpe->desc;
    bool after_unk = false;
    for (size_t i = 0; i < s->n_symbols; i++) {
        const struct symbol *x = &s->symbols[i];
        if (x->id != NO_ID) {
            after_unk = false;
            if (!mxc_ids_push(ids, x->id))
                return false;
            continue;
        }
        /* sentencepiece: a character that is no token */
        if (bpe->all_bytes) {
            for (uint32_t k = 0; k < x->length; k++)
                if (!mxc_ids_push(ids, bpe->byte_ids[(unsigned char)text[x->start + k]]))
                    return false;
        } else if (d->unk != NO_ID && !after_unk) {
            after_unk = true;
            if (!mxc_ids_push(ids, d->unk))
                return false;
        }
    }
    return true;
}

/* The whole word as one token, for models that look there first. */
static uint32_t find_whole(const struct mxc_tokdesc *d, const char *text, size_t length) {
    char spelling[512];
    size_t n = 0;
    if (length > d->max_token_bytes || length > sizeof spelling / 2)
        return NO_ID;
    for (size_t i = 0; i < length && spelled_bytes(d); i++)
        n += mxc_utf8_encode(mxc_byte_to_cp((uint8_t)text[i]), spelling + n);
    uint32_t id = spelled_bytes(d) ? find_plain(d, spelling, n) : find_plain(d, text, length);
    return id != NO_ID && d->tokens[id].type == MXC_TOKEN_NORMAL ? id : NO_ID;
}

/* The word as its tokens are spelled, with one symbol per byte; room for the symbols is there. */
static bool split_mapped(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s, const char *text,
                         size_t length) {
    if (s->mapped_capacity < 2 * length) {
        char *p = mxc_mem_realloc(s->mapped, length, 2);
        if (!p)
            return false;
        s->mapped = p;
        s->mapped_capacity = 2 * length;
    }
    for (size_t i = 0, at = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];
        size_t n = mxc_utf8_encode(mxc_byte_to_cp(byte), s->mapped + at);
        put(s, bpe->byte_ids[byte], at, n);
        at += n;
    }
    return true;
}

static enum mxc_code encode_word(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s,
                                 const char *text, size_t length, struct mxc_ids *ids,
                                 struct mxc_err *err) {
    if (bpe->desc->ignore_merges) {
        uint32_t id = find_whole(bpe->desc, text, length);
        if (id != NO_ID)
            return mxc_ids_push(ids, id) ? MXC_OK : mxc_err_nomem(err);
    }
    s->n_symbols = 0;
    if (!reserve(s, length))
        return mxc_err_nomem(err);
    if (bpe->desc->model == MXC_TOK_TIKTOKEN) {
        if (!split_mapped(bpe, s, text, length))
            return mxc_err_nomem(err);
        text = s->mapped;
    } else {
        split_chars(bpe, s, text, length);
    }
    if (s->n_symbols <= SHORT_PIECE) {
        merge_short(bpe, s, text);
    } else {
        enum mxc_code code = merge_long(bpe, s, text, err);
        if (code)
            return code;
    }
    return emit(bpe, s, text, ids) ? MXC_OK : mxc_err_nomem(err);
}

static size_t cache_slot(const struct mxc_bpe_scratch *s, const char *text, size_t length) {
    uint64_t a = 0, b = 0;
    if (length >= 8) {
        memcpy(&a, text, 8);
        memcpy(&b, text + length - 8, 8);
        if (length > 16) {
            uint64_t c;
            memcpy(&c, text + 8, 8);
            b ^= c * 0xE7037ED1A0B428DBu;
        }
    } else {
        memcpy(&a, text, length);
    }
    uint64_t h = (a ^ b * 0xA0761D6478BD642Fu ^ length) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 40 ^ h >> 20) & s->cache_mask;
}

static enum mxc_code encode_cached(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *s,
                                   const char *text, size_t length, struct mxc_ids *ids,
                                   struct mxc_err *err) {
    if (length > CACHE_KEY_BYTES)
        return encode_word(bpe, s, text, length, ids, err);
    struct word *w = &s->cache[cache_slot(s, text, length)];
    if (w->key_length == length && !memcmp(w->key, text, length)) {
        for (unsigned k = 0; k < w->n_ids; k++)
            if (!mxc_ids_push(ids, w->ids[k]))
                return mxc_err_nomem(err);
        return MXC_OK;
    }
    size_t before = ids->count;
    enum mxc_code code = encode_word(bpe, s, text, length, ids, err);
    if (code || ids->count - before > CACHE_IDS)
        return code;
    w->key_length = (uint8_t)length;
    memcpy(w->key, text, length);
    w->n_ids = (uint8_t)(ids->count - before);
    if (w->n_ids)
        memcpy(w->ids, ids->items + before, w->n_ids * sizeof *w->ids);
    return MXC_OK;
}

enum mxc_code mxc_bpe_encode(const struct mxc_bpe *bpe, struct mxc_bpe_scratch *scratch,
                             const char *text, size_t length, struct mxc_ids *ids,
                             struct mxc_err *err) {
    if (!bpe->cut_at_meta)
        return encode_cached(bpe, scratch, text, length, ids, err);
    size_t start = 0, at = 0;
    while (at < length) {
        const char *hit = memchr(text + at, meta[0], length - at);
        size_t i = hit ? (size_t)(hit - text) : length;
        if (hit && (length - i < META_BYTES || memcmp(hit, meta, META_BYTES))) {
            at = i + 1;
            continue;
        }
        bool run = i >= META_BYTES && !memcmp(text + i - META_BYTES, meta, META_BYTES);
        if (i > start && !(hit && run)) {
            enum mxc_code code = encode_cached(bpe, scratch, text + start, i - start, ids, err);
            if (code)
                return code;
            start = i;
        }
        at = i + (hit ? META_BYTES : 0);
    }
    if (start < length)
        return encode_cached(bpe, scratch, text + start, length - start, ids, err);
    return MXC_OK;
}

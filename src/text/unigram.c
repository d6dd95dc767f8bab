/* Unigram: forward over the places of the text with the best way to each, all tokens that begin
 * there from the trie; then backward along the best way.
 * In: text, vocabulary with scores. Out: ids.
 * Work: places times the longest token at most, which the trie bounds by MXC_TOK_MAX_PATH_BYTES.
 * Words that repeat are looked up in a small cache first; equal words give equal ids. */
#include "text/unigram.h"

#include "base/mem.h"
#include "text/trie.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { UNKNOWN_COST = 10, CACHE_SLOTS = 4096, CACHE_KEY_BYTES = 24, CACHE_IDS = 9 };

#define NO_ID MXC_TOK_NO_ID

struct mxc_unigram {
    const struct mxc_tokdesc *desc;
    struct mxc_trie trie;
    double unk_score, max_score;
    uint32_t byte_ids[256];
};

struct node { /* the best way that ends at a place */
    double score;
    uint32_t start, id; /* start == own place: no way yet */
};

struct cut {
    uint32_t start, end, id;
};

struct word {
    uint8_t key_length, n_ids; /* key_length 0: free */
    char key[CACHE_KEY_BYTES];
    uint32_t ids[CACHE_IDS];
};

struct mxc_unigram_scratch {
    struct node *nodes;
    struct cut *cuts;
    size_t capacity;
    uint64_t steps;
    struct word *cache;
};

static double score_of(const struct mxc_tokdesc *d, uint32_t id) {
    return id < d->n_scores ? d->scores[id] : 0;
}

/* Special tokens and turn markers are not for users to spell. For sentencepiece, byte tokens are no
 * text either. */
static bool takes_part(const struct mxc_tokdesc *d, uint32_t id) {
    unsigned type = d->tokens[id].type, added = d->tokens[id].added;
    if (type == MXC_TOKEN_NONE || type == MXC_TOKEN_CONTROL || type == MXC_TOKEN_UNKNOWN ||
        (added && d->added[added - 1].control))
        return false;
    return !d->sentencepiece || (type != MXC_TOKEN_BYTE && type != MXC_TOKEN_UNUSED);
}

static void find_bounds(struct mxc_unigram *u) {
    const struct mxc_tokdesc *d = u->desc;
    double lowest = DBL_MAX;
    u->max_score = FLT_MIN;
    for (uint32_t id = 0; id < d->n_ids; id++) {
        unsigned type = d->tokens[id].type;
        if (d->sentencepiece ? type != MXC_TOKEN_NORMAL : id >= d->n_scores || !type)
            continue;
        lowest = fmin(lowest, score_of(d, id));
        u->max_score = fmax(u->max_score, score_of(d, id));
    }
    u->unk_score = (lowest < DBL_MAX ? lowest : 0) - UNKNOWN_COST;
    if (d->sentencepiece)
        u->unk_score = (float)u->unk_score;
}

static void find_bytes(struct mxc_unigram *u) {
    static const char digits[] = "0123456789ABCDEF";
    for (unsigned b = 0; b < 256; b++) {
        char spelling[] = "<0x00>";
        spelling[3] = digits[b >> 4];
        spelling[4] = digits[b & 15];
        u->byte_ids[b] = mxc_tokdesc_find(u->desc, (struct mxc_str){spelling, 6});
    }
}

enum mxc_code mxc_unigram_new(const struct mxc_tokdesc *desc, struct mxc_unigram **out,
                              struct mxc_err *err) {
    struct mxc_unigram *u = mxc_mem_zalloc(1, sizeof *u);
    uint8_t *wanted = mxc_mem_zalloc(desc->n_ids, 1);
    enum mxc_code code = u && wanted ? MXC_OK : mxc_err_nomem(err);
    if (!code) {
        u->desc = desc;
        for (uint32_t id = 0; id < desc->n_ids; id++)
            wanted[id] = id < desc->n_scores && takes_part(desc, id);
        code = mxc_trie_init(&u->trie, desc, wanted, MXC_TOK_MAX_PATH_BYTES, err);
    }
    mxc_mem_free(wanted);
    if (code) {
        mxc_unigram_free(u);
        return code;
    }
    find_bounds(u);
    find_bytes(u);
    *out = u;
    return MXC_OK;
}

void mxc_unigram_free(struct mxc_unigram *u) {
    if (!u)
        return;
    mxc_trie_fini(&u->trie);
    mxc_mem_free(u);
}

enum mxc_code mxc_unigram_scratch_new(struct mxc_unigram_scratch **out, struct mxc_err *err) {
    struct mxc_unigram_scratch *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s || !(s->cache = mxc_mem_zalloc(CACHE_SLOTS, sizeof *s->cache))) {
        mxc_mem_free(s);
        return mxc_err_nomem(err);
    }
    *out = s;
    return MXC_OK;
}

void mxc_unigram_scratch_free(struct mxc_unigram_scratch *s) {
    if (!s)
        return;
    mxc_mem_free(s->nodes);
    mxc_mem_free(s->cuts);
    mxc_mem_free(s->cache);
    mxc_mem_free(s);
}

uint64_t mxc_unigram_steps(const struct mxc_unigram_scratch *scratch) {
    return scratch->steps;
}

static bool reserve(struct mxc_unigram_scratch *s, size_t n) {
    if (n <= s->capacity)
        return true;
    size_t cap = s->capacity ? s->capacity : 256;
    while (cap < n)
        cap *= 2;
    struct node *nodes = mxc_mem_realloc(s->nodes, cap, sizeof *nodes);
    if (nodes)
        s->nodes = nodes;
    struct cut *cuts = nodes ? mxc_mem_realloc(s->cuts, cap, sizeof *cuts) : NULL;
    if (!cuts)
        return false;
    s->cuts = cuts;
    s->capacity = cap;
    return true;
}

static inline void offer(const struct mxc_unigram *u, struct node *nodes, size_t start, size_t end,
                         double score, uint32_t id) {
    struct node *to = &nodes[end];
    double sum = score + nodes[start].score;
    if (u->desc->sentencepiece)
        sum = (float)sum;
    if (to->start == end || sum > to->score)
        *to = (struct node){sum, (uint32_t)start, id};
}

static void forward(const struct mxc_unigram *u, struct mxc_unigram_scratch *s, const char *text,
                    size_t length) {
    const struct mxc_tokdesc *d = u->desc;
    struct node *nodes = s->nodes;
    for (size_t i = 0; i <= length; i++)
        nodes[i] = (struct node){0, (uint32_t)i, NO_ID};
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t one = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        bool single = false;
        uint32_t at = 0;
        for (size_t k = i; k < length; k++) {
            s->steps++;
            if (!(at = mxc_trie_step(&u->trie, at, (uint8_t)text[k])))
                break;
            uint32_t id = u->trie.nodes[at].id;
            if (id == NO_ID)
                continue;
            size_t n = k + 1 - i;
            double score = d->scores[id];
            if (d->sentencepiece && d->tokens[id].type == MXC_TOKEN_USER)
                score = (double)((float)n * (float)u->max_score) - 0.1;
            offer(u, nodes, i, i + n, score, id);
            single |= n == one;
        }
        if (!single)
            offer(u, nodes, i, i + one, u->unk_score, d->unk);
        i += one;
    }
}

/* Bytes of an unknown piece, or the unknown token. */
static enum mxc_code put_unknown(const struct mxc_unigram *u, const char *text, size_t length,
                                 struct mxc_ids *ids, struct mxc_err *err) {
    bool all = u->desc->byte_fallback;
    for (size_t i = 0; i < length && all; i++)
        all = u->byte_ids[(unsigned char)text[i]] != NO_ID;
    for (size_t i = 0; i < length && all; i++)
        if (!mxc_ids_push(ids, u->byte_ids[(unsigned char)text[i]]))
            return mxc_err_nomem(err);
    if (all)
        return MXC_OK;
    if (u->desc->unk == NO_ID)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "a character is not in the vocabulary, which has no unknown token");
    return mxc_ids_push(ids, u->desc->unk) ? MXC_OK : mxc_err_nomem(err);
}

static enum mxc_code backward(const struct mxc_unigram *u, struct mxc_unigram_scratch *s,
                              const char *text, size_t length, struct mxc_ids *ids,
                              struct mxc_err *err) {
    const struct mxc_tokdesc *d = u->desc;
    size_t n = s->capacity;
    for (size_t end = length; end; end = s->nodes[end].start)
        s->cuts[--n] = (struct cut){s->nodes[end].start, (uint32_t)end, s->nodes[end].id};
    for (; n < s->capacity; n++) {
        struct cut c = s->cuts[n];
        if (c.id != d->unk) {
            if (!mxc_ids_push(ids, c.id))
                return mxc_err_nomem(err);
            continue;
        }
        while (n + 1 < s->capacity && s->cuts[n + 1].id == d->unk)
            c.end = s->cuts[++n].end;
        struct mxc_str run = {text + c.start, c.end - c.start};
        uint32_t id = d->sentencepiece ? NO_ID : mxc_tokdesc_find(d, run);
        if (id != NO_ID && takes_part(d, id)) {
            if (!mxc_ids_push(ids, id))
                return mxc_err_nomem(err);
            continue;
        }
        enum mxc_code code = put_unknown(u, run.ptr, run.length, ids, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

static struct word *cache_slot(struct mxc_unigram_scratch *s, const char *text, size_t length) {
    uint64_t a[3] = {0};
    memcpy(a, text, length);
    uint64_t h = (a[0] ^ a[1] * 0xA0761D6478BD642Fu ^ a[2] * 0xE7037ED1A0B428DBu ^ length) *
                 0x9E3779B97F4A7C15u;
    return &s->cache[(h >> 40 ^ h >> 20) % CACHE_SLOTS];
}

enum mxc_code mxc_unigram_encode(const struct mxc_unigram *u, struct mxc_unigram_scratch *s,
                                 const char *text, size_t length, struct mxc_ids *ids,
                                 struct mxc_err *err) {
    struct word *w = length <= CACHE_KEY_BYTES ? cache_slot(s, text, length) : NULL;
    if (w && w->key_length == length && !memcmp(w->key, text, length)) {
        for (unsigned k = 0; k < w->n_ids; k++)
            if (!mxc_ids_push(ids, w->ids[k]))
                return mxc_err_nomem(err);
        return MXC_OK;
    }
    if (!reserve(s, length + 1))
        return mxc_err_nomem(err);
    size_t before = ids->count;
    forward(u, s, text, length);
    enum mxc_code code = backward(u, s, text, length, ids, err);
    if (code || !w || ids->count - before > CACHE_IDS)
        return code;
    w->key_length = (uint8_t)length;
    memcpy(w->key, text, length);
    w->n_ids = (uint8_t)(ids->count - before);
    if (w->n_ids)
        memcpy(w->ids, ids->items + before, w->n_ids * sizeof *w->ids);
    return MXC_OK;
}

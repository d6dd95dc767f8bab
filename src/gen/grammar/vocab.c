/* A vocabulary as a trie of token bytes, in depth-first order: a node's subtree, and the tokens in
 * it, are one run of the arrays, so a walk is one pass that jumps over what the grammar refuses.
 * In: pieces, or a tokenizer. Out: an immutable vocabulary.
 * Invariants: nodes[n] closes the last run; a special token lies under the byte FF, which no text
 * holds, and ends with FE; tokens with FE or FF in their text have no place in the trie. */
#include "gen/grammar/run.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const char *ptr;
    uint32_t length;
    int32_t id;
};

static int by_bytes(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int order = memcmp(x->ptr, y->ptr, x->length < y->length ? x->length : y->length);
    if (order)
        return order;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t common(const struct entry *a, const struct entry *b) {
    uint32_t n = 0;
    while (n < a->length && n < b->length && a->ptr[n] == b->ptr[n])
        n++;
    return n;
}

/* entries are sorted; only those longer than min_length count. */
static bool trie_build(const struct entry *entries, size_t n, uint32_t min_length,
                       struct mxc_gtrie *trie) {
    size_t n_nodes = 1, n_ids = 0;
    const struct entry *last = &(struct entry){"", 0, 0};
    for (size_t i = 0; i < n; i++) {
        if (entries[i].length <= min_length)
            continue;
        n_nodes += entries[i].length - common(last, &entries[i]);
        n_ids++;
        last = &entries[i];
    }
    struct mxc_gtrie t = {.nodes = mxc_mem_zalloc(n_nodes + 1, sizeof *t.nodes),
                          .ids = mxc_mem_array(n_ids ? n_ids : 1, sizeof *t.ids)};
    uint32_t open[MXC_GTRIE_MAX_TOKEN + 1]; /* node at each depth of the last token */
    uint32_t depth = 0;
    if (!t.nodes || !t.ids || n_nodes >= UINT32_MAX) {
        mxc_mem_free(t.nodes);
        mxc_mem_free(t.ids);
        return false;
    }
    open[0] = 0;
    t.n = 1;
    last = &(struct entry){"", 0, 0};
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = &entries[i];
        if (e->length <= min_length)
            continue;
        uint32_t same = common(last, e);
        for (; depth > same; depth--)
            t.nodes[open[depth]].next = t.n;
        for (; depth < e->length; depth++) {
            open[depth + 1] = t.n;
            t.nodes[t.n++] = (struct mxc_gtrie_node){
                .token = t.n_ids, .byte = (uint8_t)e->ptr[depth], .depth = (uint8_t)(depth + 1)};
        }
        t.ids[t.n_ids++] = e->id;
        last = e;
    }
    for (;; depth--) {
        t.nodes[open[depth]].next = t.n;
        if (!depth)
            break;
    }
    t.nodes[t.n] = (struct mxc_gtrie_node){.next = t.n, .token = t.n_ids};
    *trie = t;
    return true;
}

static bool in_trie(const struct mxc_grammar_vocab *v, int32_t id) {
    struct mxc_str s = mxc_grammar_vocab_token(v, id);
    if (!s.length || s.length > MXC_GTRIE_MAX_TOKEN)
        return false;
    if (v->special[id])
        return s.length > 2;
    for (size_t i = 0; i < s.length; i++)
        if ((uint8_t)s.ptr[i] >= 0xfe)
            return false;
    return true;
}

/* The length that few tokens exceed. */
static uint32_t long_bytes(const struct entry *entries, size_t n, uint32_t *longest) {
    size_t of_length[MXC_GTRIE_MAX_TOKEN + 1] = {0}, longer = 0;
    uint32_t at = MXC_GTRIE_MAX_TOKEN;
    size_t few = n / 512 < MXC_GTRIE_FEW ? n / 512 : MXC_GTRIE_FEW;
    for (size_t i = 0; i < n; i++)
        of_length[entries[i].length]++;
    *longest = MXC_GTRIE_MAX_TOKEN;
    while (*longest && !of_length[*longest])
        --*longest;
    for (; at > 1 && longer + of_length[at] <= few + 2; at--)
        longer += of_length[at];
    return at;
}

static enum mxc_code build(const struct mxc_grammar_piece *pieces, size_t n,
                           struct mxc_grammar_vocab *v) {
    size_t total = 0, at = 0, used = 0;
    for (size_t i = 0; i < n; i++)
        if (!mxc_size_add(total, pieces[i].bytes.length + 2, &total) || total >= UINT32_MAX)
            return MXC_E_LIMIT;
    v->n = (int32_t)n;
    v->n_words = (n + 63) / 64;
    struct entry *entries = mxc_mem_array(n ? n : 1, sizeof *entries);
    v->offsets = mxc_mem_array(n + 1, sizeof *v->offsets);
    v->bytes = mxc_mem_alloc(total ? total : 1);
    v->special = mxc_mem_zalloc(n ? n : 1, 1);
    v->eos = mxc_mem_zalloc(v->n_words + 1, sizeof *v->eos);
    v->usable = mxc_mem_zalloc(v->n_words + 1, sizeof *v->usable);
    if (!entries || !v->offsets || !v->bytes || !v->special || !v->eos || !v->usable) {
        mxc_mem_free(entries);
        return MXC_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        struct mxc_str s = pieces[i].bytes;
        v->offsets[i] = (uint32_t)at;
        v->special[i] = pieces[i].special;
        if (pieces[i].special)
            v->bytes[at++] = (char)0xff;
        if (s.length)
            memcpy(v->bytes + at, s.ptr, s.length);
        at += s.length;
        if (pieces[i].special)
            v->bytes[at++] = (char)0xfe;
        v->offsets[i + 1] = (uint32_t)at;
        if (!in_trie(v, (int32_t)i))
            continue;
        struct mxc_str own = mxc_grammar_vocab_token(v, (int32_t)i);
        entries[used++] = (struct entry){own.ptr, (uint32_t)own.length, (int32_t)i};
        v->usable[i / 64] |= (uint64_t)1 << i % 64;
    }
    v->long_bytes = long_bytes(entries, used, &v->max_bytes);
    qsort(entries, used, sizeof *entries, by_bytes);
    bool ok = trie_build(entries, used, 0, &v->all) &&
              trie_build(entries, used, v->long_bytes, &v->longs);
    mxc_mem_free(entries);
    v->total_bytes = sizeof *v + total + (n + 1) * sizeof *v->offsets + n + v->n_words * 16 +
                     ((size_t)v->all.n + v->longs.n + 2) * sizeof(struct mxc_gtrie_node) +
                     ((size_t)v->all.n_ids + v->longs.n_ids) * sizeof(int32_t);
    return ok ? MXC_OK : MXC_E_NOMEM;
}

enum mxc_code mxc_grammar_vocab_new_pieces(const struct mxc_grammar_piece *pieces, size_t n,
                                           const int32_t *eos, size_t n_eos,
                                           struct mxc_grammar_vocab **out, struct mxc_err *err) {
    if (n > MXC_TOK_MAX_ID)
        return mxc_err_set(err, MXC_E_LIMIT, "a vocabulary of %zu tokens; the limit is %d", n,
                           MXC_TOK_MAX_ID);
    struct mxc_grammar_vocab *v = mxc_mem_zalloc(1, sizeof *v);
    if (!v)
        return mxc_err_nomem(err);
    enum mxc_code code = build(pieces, n, v);
    if (code) {
        mxc_grammar_vocab_free(v);
        return code == MXC_E_NOMEM
                   ? mxc_err_nomem(err)
                   : mxc_err_set(err, code, "a vocabulary of more than 4 GiB of text");
    }
    for (size_t i = 0; i < n_eos; i++)
        if (eos[i] >= 0 && eos[i] < v->n)
            v->eos[eos[i] / 64] |= (uint64_t)1 << eos[i] % 64;
    *out = v;
    return MXC_OK;
}

enum mxc_code mxc_grammar_vocab_new(const struct mxc_tokenizer *tokenizer, const int32_t *eos,
                                    size_t n_eos, struct mxc_grammar_vocab **out,
                                    struct mxc_err *err) {
    size_t n = mxc_tokenizer_n_ids(tokenizer);
    struct mxc_grammar_piece *pieces = mxc_mem_zalloc(n ? n : 1, sizeof *pieces);
    size_t *begin = mxc_mem_array(n + 1, sizeof *begin);
    struct mxc_buf text;
    enum mxc_code code = MXC_OK;
    mxc_buf_init(&text, (size_t)1 << 31);
    if (!pieces || !begin) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)i;
        begin[i] = text.length;
        pieces[i].special = mxc_tokenizer_is_special(tokenizer, id);
        if (!pieces[i].special)
            (void)mxc_tokenizer_piece(tokenizer, id, &text);
    }
    begin[n] = text.length;
    if ((code = mxc_buf_status(&text, err)))
        goto out;
    for (size_t i = 0; i < n; i++)
        pieces[i].bytes = pieces[i].special ? mxc_tokenizer_spelling(tokenizer, (uint32_t)i)
                                            : (struct mxc_str){mxc_buf_text(&text) + begin[i],
                                                               begin[i + 1] - begin[i]};
    code = mxc_grammar_vocab_new_pieces(pieces, n, eos, n_eos, out, err);
out:
    mxc_mem_free(pieces);
    mxc_mem_free(begin);
    mxc_buf_fini(&text);
    return code;
}

void mxc_grammar_vocab_free(struct mxc_grammar_vocab *v) {
    if (!v)
        return;
    mxc_mem_free(v->all.nodes);
    mxc_mem_free(v->all.ids);
    mxc_mem_free(v->longs.nodes);
    mxc_mem_free(v->longs.ids);
    mxc_mem_free(v->offsets);
    mxc_mem_free(v->bytes);
    mxc_mem_free(v->special);
    mxc_mem_free(v->eos);
    mxc_mem_free(v->usable);
    mxc_mem_free(v);
}

size_t mxc_grammar_vocab_bytes(const struct mxc_grammar_vocab *v) {
    return v->total_bytes;
}

int32_t mxc_grammar_vocab_n_ids(const struct mxc_grammar_vocab *v) {
    return v->n;
}

/* Trie over spellings of a vocabulary: all tokens that begin at a place of a text. Immutable. */
#ifndef MXC_TEXT_TRIE_H
#define MXC_TEXT_TRIE_H

#include "base/tokdesc.h"

struct mxc_trie_node {
    uint32_t first; /* its first child; children stand together, sorted by byte */
    uint32_t id;    /* of the token that ends here; MXC_TOK_NO_ID: none */
    uint16_t n;     /* children */
    uint8_t byte;   /* on the way into it */
};

struct mxc_trie {
    struct mxc_trie_node *nodes; /* 0 is the root */
    size_t n_nodes;
};

/* In the trie: ids for which `wanted` (n_ids flags). Of equal spellings the lowest id counts. A
 * spelling longer than max_bytes: MXC_E_UNSUPPORTED, named. */
enum mxc_code mxc_trie_init(struct mxc_trie *trie, const struct mxc_tokdesc *desc,
                            const uint8_t *wanted, size_t max_bytes, struct mxc_err *err) MXC_MUST;
void mxc_trie_fini(struct mxc_trie *trie);

/* Child of a node by a byte; 0: none. */
static inline uint32_t mxc_trie_step(const struct mxc_trie *trie, uint32_t node, uint8_t byte) {
    const struct mxc_trie_node *x = &trie->nodes[node], *c = trie->nodes + x->first;
    uint32_t lo = 0, n = x->n;
    while (n > 4) { /* the last child whose byte is not greater stays in [lo, lo + n) */
        uint32_t half = n / 2;
        if (c[lo + half].byte <= byte)
            lo += half;
        n -= half;
    }
    for (uint32_t i = lo; i < lo + n; i++)
        if (c[i].byte == byte)
            return x->first + i;
    return 0;
}

/* Longest token at the start of text: its length, and the id; 0: none. */
size_t mxc_trie_longest(const struct mxc_trie *trie, const char *text, size_t length, uint32_t *id);

#endif

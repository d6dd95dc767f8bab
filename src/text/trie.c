/* Trie: built breadth first from the sorted spellings, so that the children of a node stand
 * together. In: a vocabulary and flags. Out: nodes of 12 bytes.
 * Time to build: a sort of the ids and one pass over all bytes; memory: at most one node per byte
 * of the vocabulary. A walk takes as many steps as the longest token has bytes, whatever the text.
 */
#include "text/trie.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct spelling {
    const char *ptr;
    uint32_t length, id;
};

struct range { /* of spellings that share the node's path */
    uint32_t lo, hi, depth;
};

static int by_bytes(const void *a, const void *b) {
    const struct spelling *x = a, *y = b;
    uint32_t n = x->length < y->length ? x->length : y->length;
    int order = n ? memcmp(x->ptr, y->ptr, n) : 0;
    if (order)
        return order;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Nodes that distinct spellings need: each adds what it does not share with the one before. */
static size_t count_nodes(const struct spelling *s, size_t n) {
    size_t nodes = 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t same = 0;
        while (i && same < s[i].length && same < s[i - 1].length &&
               s[i].ptr[same] == s[i - 1].ptr[same])
            same++;
        nodes += s[i].length - same;
    }
    return nodes;
}

static void fill(struct mxc_trie *trie, const struct spelling *s, struct range *ranges) {
    size_t used = 1;
    for (size_t k = 0; k < used; k++) {
        struct range r = ranges[k];
        struct mxc_trie_node *node = &trie->nodes[k];
        node->id = MXC_TOK_NO_ID;
        node->first = (uint32_t)used;
        uint32_t i = r.lo;
        for (; i < r.hi && s[i].length == r.depth; i++)
            if (node->id == MXC_TOK_NO_ID)
                node->id = s[i].id;
        while (i < r.hi) {
            uint32_t from = i;
            char byte = s[i].ptr[r.depth];
            while (i < r.hi && s[i].ptr[r.depth] == byte)
                i++;
            ranges[used] = (struct range){from, i, r.depth + 1};
            trie->nodes[used++].byte = (uint8_t)byte;
            node->n++;
        }
    }
}

enum mxc_code mxc_trie_init(struct mxc_trie *trie, const struct mxc_tokdesc *desc,
                            const uint8_t *wanted, size_t max_bytes, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    struct range *ranges = NULL;
    struct mxc_trie t = {0};
    size_t n = 0;
    struct spelling *s = mxc_mem_array(desc->n_ids, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    for (uint32_t id = 0; id < desc->n_ids; id++) {
        struct mxc_str x = mxc_tokdesc_bytes(desc, id);
        if (!wanted[id] || !x.length)
            continue;
        if (x.length > max_bytes) {
            code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "token %u is %zu bytes long (limit %zu for this kind of model)", id,
                               x.length, max_bytes);
            goto out;
        }
        s[n++] = (struct spelling){x.ptr, (uint32_t)x.length, id};
    }
    if (n)
        qsort(s, n, sizeof *s, by_bytes);
    t.n_nodes = count_nodes(s, n);
    t.nodes = mxc_mem_zalloc(t.n_nodes, sizeof *t.nodes);
    ranges = mxc_mem_array(t.n_nodes, sizeof *ranges);
    if (!t.nodes || !ranges || t.n_nodes > UINT32_MAX) {
        code = mxc_err_nomem(err);
        goto out;
    }
    ranges[0] = (struct range){0, (uint32_t)n, 0};
    fill(&t, s, ranges);
    *trie = t;
    t.nodes = NULL;
out:
    mxc_mem_free(t.nodes);
    mxc_mem_free(ranges);
    mxc_mem_free(s);
    return code;
}

void mxc_trie_fini(struct mxc_trie *trie) {
    mxc_mem_free(trie->nodes);
    *trie = (struct mxc_trie){0};
}

size_t mxc_trie_longest(const struct mxc_trie *trie, const char *text, size_t length,
                        uint32_t *id) {
    size_t best = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        node = mxc_trie_step(trie, node, (uint8_t)text[i]);
        if (!node)
            break;
        if (trie->nodes[node].id != MXC_TOK_NO_ID) {
            best = i + 1;
            *id = trie->nodes[node].id;
        }
    }
    return best;
}

/* Regular combinations that alternatives and sequences cannot say: text in both of two languages,
 * and text of one that is none of some strings. Both are products of two DFAs, which become a graph
 * of byte edges.
 * In: nodes without references. Out: a node.
 * Invariants: repetitions are written out for this, so sizes are bounded by the limits of nfa.c and
 * dfa.c and by MAX_PAIRS. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_PAIRS = 1 << 17 };
#define DEAD UINT32_MAX

struct pair {
    uint32_t x, y;
};

struct product {
    struct mxc_grammar_builder *b;
    const struct mxc_grammar *x, *y;
    bool without;           /* y's texts are taken away */
    struct mxc_map numbers; /* pair -> place in pairs */
    struct pair *pairs;
    size_t n, capacity;
    struct mxc_gedges edges;
};

static struct mxc_grammar *compile(struct mxc_grammar_builder *b, int32_t node) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err;
    if (mxc_grammar_failed(b) || node < 0)
        return NULL;
    b->unroll_all = true;
    enum mxc_code code = mxc_grammar_compile(b, node, &g, &err);
    b->unroll_all = false;
    if (code) {
        (void)mxc_grammar_fail(b, code, "%s", err.message);
        return NULL;
    }
    if (g->n_rules > 1) {
        mxc_grammar_free(g);
        (void)mxc_grammar_fail(b, MXC_E_LIMIT,
                               "a repetition is too long to combine with another "
                               "condition on the same text");
        return NULL;
    }
    return g;
}

/* The state in the graph: 2 + its place. */
static uint32_t number(struct product *p, uint32_t x, uint32_t y) {
    struct pair pair = {x, y};
    uint64_t at;
    struct mxc_str key = {(const char *)&pair, sizeof pair};
    if (mxc_map_get(&p->numbers, key, &at))
        return (uint32_t)at + 2;
    if (p->n >= MAX_PAIRS)
        (void)mxc_grammar_fail(p->b, MXC_E_LIMIT,
                               "conditions on one text need more than %d states together; the "
                               "limit is %d",
                               MAX_PAIRS, MAX_PAIRS);
    else if (!mxc_grammar_grow((void **)&p->pairs, &p->capacity, p->n + 1, sizeof *p->pairs) ||
             !mxc_map_put(&p->numbers, key, p->n))
        (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
    if (mxc_grammar_failed(p->b))
        return 0;
    p->pairs[p->n++] = pair;
    return (uint32_t)p->n + 1;
}

static uint32_t next_y(const struct product *p, uint32_t y, unsigned byte) {
    const struct mxc_gedge *e =
        y == DEAD ? NULL : mxc_grammar_find(p->y, &p->y->states[y], (uint8_t)byte);
    return e ? e->to : DEAD;
}

static void expand(struct product *p, size_t i) {
    struct pair at = p->pairs[i];
    const struct mxc_gstate *s = &p->x->states[at.x];
    bool final_y = at.y != DEAD && p->y->states[at.y].final;
    if (s->final && final_y != p->without)
        mxc_grammar_edge(p->b, &p->edges, (uint32_t)i + 2, -1, 1);
    for (uint32_t e = 0; e < s->n_edges; e++) {
        const struct mxc_gedge *edge = &p->x->edges[s->edges + e];
        for (unsigned lo = edge->lo; lo <= edge->hi && !mxc_grammar_failed(p->b);) {
            uint32_t y = next_y(p, at.y, lo);
            unsigned hi = lo;
            while (hi < edge->hi && next_y(p, at.y, hi + 1) == y)
                hi++;
            if (y != DEAD || p->without)
                mxc_grammar_edge(p->b, &p->edges, (uint32_t)i + 2,
                                 mxc_grammar_add_byte(p->b, (uint8_t)lo, (uint8_t)hi),
                                 number(p, edge->to, y));
            lo = hi + 1;
        }
    }
}

static int32_t combine(struct mxc_grammar_builder *b, int32_t x, int32_t y, bool without) {
    struct mxc_grammar *gx = compile(b, x), *gy = compile(b, y);
    struct product p = {.b = b, .x = gx, .y = gy, .without = without};
    int32_t node = -1;
    mxc_map_init(&p.numbers);
    if (gx && gy) {
        mxc_grammar_edges_init(&p.edges);
        mxc_grammar_edge(b, &p.edges, 0, -1, number(&p, gx->rules[0].start, gy->rules[0].start));
        for (size_t i = 0; i < p.n && !mxc_grammar_failed(b); i++)
            expand(&p, i);
        p.edges.n_states = (uint32_t)p.n + 2;
        node = mxc_grammar_edges_finish(b, &p.edges);
    }
    mxc_grammar_free(gx);
    mxc_grammar_free(gy);
    mxc_map_fini(&p.numbers);
    mxc_mem_free(p.pairs);
    return node;
}

int32_t mxc_grammar_add_and(struct mxc_grammar_builder *b, int32_t x, int32_t y) {
    return combine(b, x, y, false);
}

int32_t mxc_grammar_add_without(struct mxc_grammar_builder *b, int32_t x,
                                const struct mxc_str *strings, size_t n) {
    if (!n)
        return x;
    int32_t *items = mxc_mem_array(n, sizeof *items);
    if (!items)
        return mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        items[i] = mxc_grammar_add_literal(b, strings[i]);
    int32_t y = mxc_grammar_add_alt(b, items, n);
    mxc_mem_free(items);
    return combine(b, x, y, true);
}

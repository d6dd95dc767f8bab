/* Inside the grammar folder: expression nodes that the front ends make (builder.c), the NFA they
 * become (nfa.c), and the automaton (dfa.c) that masks walk.
 *
 * The automaton is a set of rules. A rule is a DFA over bytes and calls of other rules; a counted
 * rule repeats its DFA min to max times, with the count in the frame, so that {0,10000} costs one
 * copy. Parsing a text keeps a set of threads (state, count, frame): the frame is what to go on
 * with when the thread's rule ends. */
#ifndef MXC_GEN_GRAMMAR_IR_H
#define MXC_GEN_GRAMMAR_IR_H

#include "base/arena.h"
#include "base/map.h"
#include "gen/grammar/grammar.h"
#include "text/charset.h"

/* ---- expressions */

enum mxc_gnode_kind {
    MXC_G_EMPTY,
    MXC_G_LITERAL,
    MXC_G_CLASS, /* one character */
    MXC_G_BYTE,  /* one byte of [lo, hi] */
    MXC_G_SEQ,
    MXC_G_ALT,
    MXC_G_REPEAT,
    MXC_G_REF,
    MXC_G_GRAPH /* an NFA of nodes */
};

struct mxc_gedge_node {
    uint32_t from, to;
    int32_t label; /* a node; -1: nothing is consumed */
};
struct mxc_ggraph { /* begins in state 0, ends in state 1 */
    uint32_t n_states, n_edges;
    const struct mxc_gedge_node *edges;
};

struct mxc_gnode {
    uint8_t kind, lo, hi;
    bool has_ref;
    uint32_t size; /* about how many NFA states it takes; saturates */
    uint32_t n;    /* bytes, ranges, items */
    union {
        const char *bytes;
        const uint32_t *bounds; /* [2 * n] */
        const int32_t *items;
        struct {
            int32_t item, min, max;
        } repeat;
        int32_t rule;
        const struct mxc_ggraph *graph;
    } u;
};

struct mxc_gdef {
    const char *name;
    int32_t node; /* -1: not set yet */
    uint32_t n_refs;
    bool keep; /* never inlined: its states are shared by all who call it */
};

enum mxc_gshared { /* rules of JSON that are made once per builder */
                   MXC_G_JSON_VALUE,
                   MXC_G_JSON_OBJECT,
                   MXC_G_JSON_STRING,
                   MXC_G_JSON_NUMBER,
                   MXC_G_JSON_INTEGER,
                   MXC_G_JSON_KEY,
                   MXC_G_N_SHARED
};

struct mxc_grammar_builder {
    struct mxc_arena arena;
    struct mxc_gnode *nodes;
    size_t n_nodes, node_capacity;
    struct mxc_gdef *defs;
    size_t n_defs, def_capacity;
    int32_t shared[MXC_G_N_SHARED]; /* rules; -1: not made */
    enum mxc_json_space space;
    bool unroll_all;        /* repetitions are written out however long (product.c) */
    struct mxc_map regular; /* schema strings: pattern and bounds -> rule */
    struct mxc_err err;     /* the first failure */
    json_t *owned;          /* array of schemas made by merging; kept alive */
};

/* Sets the first failure; always -1. */
int32_t mxc_grammar_fail(struct mxc_grammar_builder *b, enum mxc_code code, const char *fmt, ...)
    MXC_PRINTF(3, 4);
static inline bool mxc_grammar_failed(const struct mxc_grammar_builder *b) {
    return b->err.code != MXC_OK;
}
int32_t mxc_grammar_add_byte(struct mxc_grammar_builder *b, uint8_t lo, uint8_t hi);
/* Settled or not; empty sets give a node that matches nothing. */
int32_t mxc_grammar_add_charset(struct mxc_grammar_builder *b, struct mxc_charset *set);
/* Edges are copied. */
int32_t mxc_grammar_add_graph(struct mxc_grammar_builder *b, const struct mxc_gedge_node *edges,
                              size_t n_edges, uint32_t n_states);
int32_t mxc_grammar_add_text(struct mxc_grammar_builder *b, const char *text);
int32_t mxc_grammar_add_optional(struct mxc_grammar_builder *b, int32_t item);
static inline int32_t mxc_grammar_add_pair(struct mxc_grammar_builder *b, int32_t x, int32_t y) {
    return mxc_grammar_add_seq(b, (int32_t[]){x, y}, 2);
}
/* A rule that stays one: node behind a call. */
int32_t mxc_grammar_add_kept(struct mxc_grammar_builder *b, const char *name, int32_t node);
/* True when a repeat is written out, false when it becomes a counted rule. */
bool mxc_grammar_unrolled(const struct mxc_grammar_builder *b, const struct mxc_gnode *repeat);

/* Growable edge list for graphs; failure is sticky in the builder. */
struct mxc_gedges {
    struct mxc_gedge_node *items;
    size_t n, capacity;
    uint32_t n_states;
};
void mxc_grammar_edges_init(struct mxc_gedges *edges); /* with states 0 and 1 */
void mxc_grammar_edge(struct mxc_grammar_builder *b, struct mxc_gedges *edges, uint32_t from,
                      int32_t label, uint32_t to);
/* The node; frees the list. */
int32_t mxc_grammar_edges_finish(struct mxc_grammar_builder *b, struct mxc_gedges *edges);

/* items = room for need elements. false: out of memory. */
bool mxc_grammar_grow(void **items, size_t *capacity, size_t need, size_t size);

/* ---- regular combinations (product.c): of nodes without references */

/* Text in both. */
int32_t mxc_grammar_add_and(struct mxc_grammar_builder *b, int32_t x, int32_t y);
/* Text of x that is none of the strings. */
int32_t mxc_grammar_add_without(struct mxc_grammar_builder *b, int32_t x,
                                const struct mxc_str *strings, size_t n);

/* ---- front-end parts */

enum mxc_gregex_mode {
    MXC_GREGEX_WHOLE, /* the whole text matches */
    MXC_GREGEX_JSON   /* content of a JSON string in which the pattern occurs (ECMA-262's search) */
};
int32_t mxc_grammar_add_pattern(struct mxc_grammar_builder *b, struct mxc_str pattern,
                                enum mxc_gregex_mode mode, const char *where);
/* One character of the set as it stands inside a JSON string. */
int32_t mxc_grammar_add_json_chars(struct mxc_grammar_builder *b, struct mxc_charset *set);
int32_t mxc_grammar_add_json_any_char(struct mxc_grammar_builder *b);
int32_t mxc_grammar_json_shared(struct mxc_grammar_builder *b, enum mxc_gshared which);
/* White space after { [ : , and before } ]. */
int32_t mxc_grammar_add_json_space(struct mxc_grammar_builder *b);
/* A JSON value as text. */
int32_t mxc_grammar_add_json_const(struct mxc_grammar_builder *b, const json_t *value,
                                   const char *where);

/* A number's decimal text between bounds; digits are those of |bound| * 10^n_frac. */
struct mxc_gdecimal {
    bool negative;
    char digits[40]; /* without leading zeros; "0" for zero */
    int32_t n_frac;
};
bool mxc_grammar_decimal_of(double value, struct mxc_gdecimal *out); /* false: not exact enough */
bool mxc_grammar_decimal_of_int(int64_t value, struct mxc_gdecimal *out);
struct mxc_grange {
    bool has_min, has_max, min_excluded, max_excluded;
    struct mxc_gdecimal min, max;
    int32_t n_frac;      /* digits after the point at most; 0: integers */
    int64_t multiple_of; /* integers: of this; 0: no matter */
};
int32_t mxc_grammar_add_range(struct mxc_grammar_builder *b, const struct mxc_grange *range,
                              const char *where);

/* ---- NFA */

enum mxc_nfa_kind { MXC_NFA_EPS, MXC_NFA_BYTE, MXC_NFA_CALL };
struct mxc_nfa_edge {
    uint32_t from, to;
    uint32_t rule;
    uint8_t kind, lo, hi;
};
struct mxc_nfa_rule {
    uint32_t start, end;
    int32_t min, max;
    bool counted, productive, nullable;
    const char *name; /* borrowed from the builder; "" when it has none */
};
struct mxc_nfa {
    struct mxc_nfa_edge *edges; /* sorted by from after mxc_nfa_build */
    size_t n_edges, edge_capacity;
    uint32_t *first; /* [n_states + 1] into edges */
    uint32_t n_states;
    struct mxc_nfa_rule *rules; /* 0: the root */
    size_t n_rules, rule_capacity;
    uint8_t *useful; /* [n_states]: the end of its rule can be reached */
};
/* Expands the node and what it calls; trims; refuses left recursion. */
enum mxc_code mxc_nfa_build(const struct mxc_grammar_builder *b, int32_t root, struct mxc_nfa *nfa,
                            struct mxc_err *err) MXC_MUST;
void mxc_nfa_fini(struct mxc_nfa *nfa);

/* ---- automaton */

struct mxc_gedge {
    uint32_t to;
    uint8_t lo, hi;
};
struct mxc_gcall {
    uint32_t rule, to;
    bool tail; /* nothing can follow in this rule: the callee goes on with our frame */
};
struct mxc_gstate {
    uint32_t edges, calls, rule;
    uint32_t jump; /* into jumps, counted from 1; 0: look through the edges */
    uint16_t n_edges;
    bool final, plain; /* plain: not final, no calls */
    uint32_t n_calls;
};
struct mxc_grule {
    uint32_t start;
    int32_t min, max; /* counted; min >= 1, max -1: no bound */
    bool counted;
    uint64_t first[4], follow[4]; /* bytes it can begin with, that can come right behind it */
};
struct mxc_grammar {
    struct mxc_gstate *states;
    struct mxc_gedge *edges; /* sorted by lo, not overlapping, per state */
    struct mxc_gcall *calls;
    struct mxc_grule *rules; /* 0: the root */
    uint8_t (*jumps)[256];   /* edge number + 1, 0: none */
    size_t n_states, n_edges, n_calls, n_rules, n_jumps;
    size_t state_capacity, edge_capacity, call_capacity, rule_capacity, jump_capacity;
};
enum mxc_code mxc_grammar_compile(const struct mxc_grammar_builder *b, int32_t root,
                                  struct mxc_grammar **out, struct mxc_err *err) MXC_MUST;
/* The edge of a byte; NULL: none. */
static inline const struct mxc_gedge *mxc_grammar_find(const struct mxc_grammar *g,
                                                       const struct mxc_gstate *s, uint8_t byte) {
    if (!s->n_edges)
        return NULL;
    const struct mxc_gedge *e = g->edges + s->edges;
    if (s->jump) {
        uint8_t i = g->jumps[s->jump - 1][byte];
        return i ? e + i - 1 : NULL;
    }
    for (uint32_t i = 0; i < s->n_edges; i++)
        if (byte >= e[i].lo && byte <= e[i].hi)
            return e + i;
    return NULL;
}

#endif

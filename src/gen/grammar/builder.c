/* The builder: expression nodes in an arena, rules that refer to them, and one sticky error.
 * In: literals, classes, sequences, choices, repetitions, references. Out: node numbers, and a
 * grammar at the end (nfa.c and dfa.c do that).
 * Invariants: a node's parts have lower numbers than the node, so only references make cycles;
 * after a failure nothing is added. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NODES = 1 << 21, UNROLL_SIZE = 96, MAX_SIZE = 1 << 30 };

bool mxc_grammar_grow(void **items, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity)
        return true;
    size_t n = *capacity ? *capacity : 16;
    while (n < need)
        if (!mxc_size_mul(n, 2, &n))
            return false;
    void *p = mxc_mem_realloc(*items, n, size);
    if (!p)
        return false;
    *items = p;
    *capacity = n;
    return true;
}

int32_t mxc_grammar_fail(struct mxc_grammar_builder *b, enum mxc_code code, const char *fmt, ...) {
    char text[sizeof b->err.message];
    if (mxc_grammar_failed(b))
        return -1;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)mxc_err_set(&b->err, code, "%s", text);
    return -1;
}

static int32_t nomem(struct mxc_grammar_builder *b) {
    if (b->arena.max_bytes && b->arena.used_bytes > b->arena.max_bytes / 2)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "the grammar needs more than %zu bytes; %zu used",
                                b->arena.max_bytes, b->arena.used_bytes);
    return mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
}

enum mxc_code mxc_grammar_builder_new(enum mxc_json_space space, struct mxc_grammar_builder **out,
                                      struct mxc_err *err) {
    struct mxc_grammar_builder *b = mxc_mem_zalloc(1, sizeof *b);
    if (!b)
        return mxc_err_nomem(err);
    mxc_arena_init(&b->arena, MXC_GRAMMAR_MAX_MEMORY);
    mxc_map_init(&b->regular);
    b->space = space;
    for (int i = 0; i < MXC_G_N_SHARED; i++)
        b->shared[i] = -1;
    *out = b;
    return MXC_OK;
}

void mxc_grammar_builder_free(struct mxc_grammar_builder *b) {
    if (!b)
        return;
    mxc_arena_fini(&b->arena);
    mxc_map_fini(&b->regular);
    mxc_mem_free(b->nodes);
    mxc_mem_free(b->defs);
    json_decref(b->owned);
    mxc_mem_free(b);
}

enum mxc_code mxc_grammar_builder_finish(struct mxc_grammar_builder *b, int32_t root,
                                         struct mxc_grammar **out, struct mxc_err *err) {
    if (mxc_grammar_failed(b))
        return mxc_err_set(err, b->err.code, "%s", b->err.message);
    if (root < 0 || (size_t)root >= b->n_nodes)
        return mxc_err_set(err, MXC_E_ARG, "the grammar is empty");
    for (size_t i = 0; i < b->n_defs; i++)
        if (b->defs[i].node < 0)
            return mxc_err_set(err, MXC_E_ARG, "the rule %s is not defined", b->defs[i].name);
    return mxc_grammar_compile(b, root, out, err);
}

static uint32_t saturate(uint64_t size) {
    return size < MAX_SIZE ? (uint32_t)size : MAX_SIZE;
}

static int32_t push(struct mxc_grammar_builder *b, const struct mxc_gnode *node) {
    if (mxc_grammar_failed(b))
        return -1;
    if (b->n_nodes >= MAX_NODES)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "the grammar needs more than %d parts", MAX_NODES);
    if (!mxc_grammar_grow((void **)&b->nodes, &b->node_capacity, b->n_nodes + 1, sizeof *b->nodes))
        return mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    b->nodes[b->n_nodes] = *node;
    return (int32_t)b->n_nodes++;
}

static bool valid(const struct mxc_grammar_builder *b, int32_t node) {
    return node >= 0 && (size_t)node < b->n_nodes && !mxc_grammar_failed(b);
}

int32_t mxc_grammar_add_literal(struct mxc_grammar_builder *b, struct mxc_str bytes) {
    struct mxc_gnode node = {.kind = bytes.length ? MXC_G_LITERAL : MXC_G_EMPTY};
    if (mxc_grammar_failed(b))
        return -1;
    if (bytes.length > MXC_GRAMMAR_MAX_TEXT)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "a literal of %zu bytes; the limit is %d",
                                bytes.length, MXC_GRAMMAR_MAX_TEXT);
    node.n = node.size = (uint32_t)bytes.length;
    if (bytes.length && !(node.u.bytes = mxc_arena_dup(&b->arena, bytes.ptr, bytes.length)))
        return nomem(b);
    return push(b, &node);
}

int32_t mxc_grammar_add_text(struct mxc_grammar_builder *b, const char *text) {
    return mxc_grammar_add_literal(b, mxc_str_of(text));
}

int32_t mxc_grammar_add_special(struct mxc_grammar_builder *b, struct mxc_str spelling) {
    /* The bytes FF and FE never occur in text: FF opens a special token's path in the vocabulary's
     * trie, FE closes it, so that no special token is the beginning of another. */
    int32_t parts[3] = {mxc_grammar_add_byte(b, 0xff, 0xff), mxc_grammar_add_literal(b, spelling),
                        mxc_grammar_add_byte(b, 0xfe, 0xfe)};
    if (!spelling.length)
        return mxc_grammar_fail(b, MXC_E_ARG, "a special token without spelling");
    return mxc_grammar_add_seq(b, parts, 3);
}

int32_t mxc_grammar_add_byte(struct mxc_grammar_builder *b, uint8_t lo, uint8_t hi) {
    return push(b, &(struct mxc_gnode){.kind = MXC_G_BYTE, .lo = lo, .hi = hi, .size = 1});
}

int32_t mxc_grammar_add_charset(struct mxc_grammar_builder *b, struct mxc_charset *set) {
    struct mxc_gnode node = {.kind = MXC_G_CLASS};
    if (mxc_grammar_failed(b))
        return -1;
    mxc_charset_settle(set);
    if (set->failed)
        return nomem(b);
    if (!set->n_ranges)
        return mxc_grammar_add_alt(b, NULL, 0);
    size_t n = set->n_ranges;
    uint32_t *bounds = mxc_arena_array(&b->arena, n, 2 * sizeof *bounds);
    if (!bounds)
        return nomem(b);
    memcpy(bounds, set->bounds, n * 2 * sizeof *bounds);
    node.u.bounds = bounds;
    node.n = (uint32_t)n;
    node.size = bounds[2 * n - 1] < 0x80 ? 1 : saturate(6 + n / 4);
    return push(b, &node);
}

int32_t mxc_grammar_add_class(struct mxc_grammar_builder *b, const struct mxc_code_range *ranges,
                              size_t n, bool negated) {
    struct mxc_charset set;
    mxc_charset_init(&set);
    for (size_t i = 0; i < n; i++)
        mxc_charset_add(&set, ranges[i].first, ranges[i].last);
    mxc_charset_settle(&set);
    if (negated && !set.failed)
        mxc_charset_negate(&set);
    int32_t node = mxc_grammar_add_charset(b, &set);
    mxc_charset_fini(&set);
    return node;
}

static int32_t group(struct mxc_grammar_builder *b, enum mxc_gnode_kind kind, const int32_t *items,
                     size_t n) {
    struct mxc_gnode node = {.kind = (uint8_t)kind, .n = (uint32_t)n};
    uint64_t size = kind == MXC_G_ALT;
    if (n > MAX_NODES)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "a group of %zu parts; the limit is %d", n,
                                MAX_NODES);
    for (size_t i = 0; i < n; i++) {
        if (!valid(b, items[i]))
            return -1;
        size += b->nodes[items[i]].size;
        node.has_ref |= b->nodes[items[i]].has_ref;
    }
    if (mxc_grammar_failed(b))
        return -1;
    if (n == 1)
        return items[0];
    if (!n && kind == MXC_G_SEQ)
        return push(b, &(struct mxc_gnode){.kind = MXC_G_EMPTY});
    int32_t *copy = mxc_arena_array(&b->arena, n ? n : 1, sizeof *copy);
    if (!copy)
        return nomem(b);
    if (n)
        memcpy(copy, items, n * sizeof *copy);
    node.u.items = copy;
    node.size = saturate(size);
    return push(b, &node);
}

int32_t mxc_grammar_add_seq(struct mxc_grammar_builder *b, const int32_t *items, size_t n) {
    return group(b, MXC_G_SEQ, items, n);
}

int32_t mxc_grammar_add_alt(struct mxc_grammar_builder *b, const int32_t *items, size_t n) {
    return group(b, MXC_G_ALT, items, n);
}

int32_t mxc_grammar_add_optional(struct mxc_grammar_builder *b, int32_t item) {
    return mxc_grammar_add_repeat(b, item, 0, 1);
}

bool mxc_grammar_unrolled(const struct mxc_grammar_builder *b, const struct mxc_gnode *repeat) {
    int64_t copies = repeat->u.repeat.max < 0 ? (int64_t)repeat->u.repeat.min + 1
                                              : (int64_t)repeat->u.repeat.max;
    return copies <= 1 || copies * b->nodes[repeat->u.repeat.item].size <= UNROLL_SIZE ||
           b->unroll_all;
}

int32_t mxc_grammar_add_repeat(struct mxc_grammar_builder *b, int32_t item, int32_t min,
                               int32_t max) {
    if (!valid(b, item))
        return -1;
    if (min < 0 || (max >= 0 && max < min))
        return mxc_grammar_fail(b, MXC_E_ARG, "a repetition of %d to %d times", min, max);
    if (min > MXC_GRAMMAR_MAX_REPEAT || max > MXC_GRAMMAR_MAX_REPEAT)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "a repetition of %d times; the limit is %d",
                                max > min ? max : min, MXC_GRAMMAR_MAX_REPEAT);
    struct mxc_gnode node = {.kind = MXC_G_REPEAT, .has_ref = b->nodes[item].has_ref};
    node.u.repeat.item = item;
    node.u.repeat.min = min;
    node.u.repeat.max = max;
    if (!max)
        return push(b, &(struct mxc_gnode){.kind = MXC_G_EMPTY});
    if (mxc_grammar_unrolled(b, &node)) {
        uint64_t copies = max < 0 ? (uint64_t)min + 1 : (uint64_t)max;
        node.size = saturate(copies * b->nodes[item].size + 1);
    } else {
        node.size = 1;
        node.has_ref = true;
    }
    return push(b, &node);
}

int32_t mxc_grammar_add_rule(struct mxc_grammar_builder *b, struct mxc_str name) {
    if (mxc_grammar_failed(b))
        return -1;
    if (b->n_defs >= MXC_GRAMMAR_MAX_RULES)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "more than %d rules", MXC_GRAMMAR_MAX_RULES);
    char *copy = mxc_arena_dup(&b->arena, name.ptr, name.length);
    if (!copy)
        return nomem(b);
    if (!mxc_grammar_grow((void **)&b->defs, &b->def_capacity, b->n_defs + 1, sizeof *b->defs))
        return nomem(b);
    b->defs[b->n_defs] = (struct mxc_gdef){.name = copy, .node = -1};
    return (int32_t)b->n_defs++;
}

void mxc_grammar_set_rule(struct mxc_grammar_builder *b, int32_t rule, int32_t node) {
    if (rule < 0 || !valid(b, node))
        return;
    b->defs[rule].node = node;
}

int32_t mxc_grammar_add_ref(struct mxc_grammar_builder *b, int32_t rule) {
    struct mxc_gnode node = {.kind = MXC_G_REF, .has_ref = true, .size = 1};
    if (mxc_grammar_failed(b) || rule < 0)
        return -1;
    node.u.rule = rule;
    b->defs[rule].n_refs++;
    return push(b, &node);
}

int32_t mxc_grammar_add_kept(struct mxc_grammar_builder *b, const char *name, int32_t node) {
    int32_t rule = mxc_grammar_add_rule(b, mxc_str_of(name));
    if (rule < 0 || !valid(b, node))
        return -1;
    b->defs[rule].node = node;
    b->defs[rule].keep = true;
    return mxc_grammar_add_ref(b, rule);
}

/* ---- graphs */

int32_t mxc_grammar_add_graph(struct mxc_grammar_builder *b, const struct mxc_gedge_node *edges,
                              size_t n_edges, uint32_t n_states) {
    struct mxc_gnode node = {.kind = MXC_G_GRAPH};
    uint64_t size = n_states;
    for (size_t i = 0; i < n_edges; i++) {
        if (edges[i].label < 0)
            continue;
        if (!valid(b, edges[i].label))
            return -1;
        size += b->nodes[edges[i].label].size;
        node.has_ref |= b->nodes[edges[i].label].has_ref;
    }
    if (mxc_grammar_failed(b))
        return -1;
    struct mxc_ggraph *graph = mxc_arena_alloc(&b->arena, sizeof *graph);
    struct mxc_gedge_node *copy = mxc_arena_array(&b->arena, n_edges ? n_edges : 1, sizeof *copy);
    if (!graph || !copy || n_edges > UINT32_MAX)
        return nomem(b);
    if (n_edges)
        memcpy(copy, edges, n_edges * sizeof *copy);
    *graph = (struct mxc_ggraph){.n_states = n_states, .n_edges = (uint32_t)n_edges, .edges = copy};
    node.u.graph = graph;
    node.size = saturate(size);
    return push(b, &node);
}

void mxc_grammar_edges_init(struct mxc_gedges *edges) {
    *edges = (struct mxc_gedges){.n_states = 2};
}

void mxc_grammar_edge(struct mxc_grammar_builder *b, struct mxc_gedges *edges, uint32_t from,
                      int32_t label, uint32_t to) {
    if (mxc_grammar_failed(b))
        return;
    if (!mxc_grammar_grow((void **)&edges->items, &edges->capacity, edges->n + 1,
                          sizeof *edges->items)) {
        (void)nomem(b);
        return;
    }
    edges->items[edges->n++] = (struct mxc_gedge_node){from, to, label};
}

int32_t mxc_grammar_edges_finish(struct mxc_grammar_builder *b, struct mxc_gedges *edges) {
    int32_t node = mxc_grammar_add_graph(b, edges->items, edges->n, edges->n_states);
    mxc_mem_free(edges->items);
    *edges = (struct mxc_gedges){0};
    return node;
}

/* ---- small front ends */

int32_t mxc_grammar_add_choice(struct mxc_grammar_builder *b, const struct mxc_str *choices,
                               size_t n) {
    size_t total = 0;
    if (!n)
        return mxc_grammar_fail(b, MXC_E_ARG, "a choice of no strings");
    for (size_t i = 0; i < n; i++) {
        if (!mxc_utf8_valid(choices[i].ptr, choices[i].length))
            return mxc_grammar_fail(b, MXC_E_ARG, "choice %zu is not UTF-8", i);
        total += choices[i].length + 1;
        if (total > MXC_GRAMMAR_MAX_TEXT)
            return mxc_grammar_fail(b, MXC_E_LIMIT, "choices of more than %d bytes (%zu so far)",
                                    MXC_GRAMMAR_MAX_TEXT, total);
    }
    int32_t *items = mxc_mem_array(n, sizeof *items);
    if (!items)
        return nomem(b);
    for (size_t i = 0; i < n; i++)
        items[i] = mxc_grammar_add_literal(b, choices[i]);
    int32_t node = mxc_grammar_add_alt(b, items, n);
    mxc_mem_free(items);
    return node;
}

/* How much of stop's beginning is matched when `byte` follows a match of `at` bytes. */
static size_t kmp(struct mxc_str stop, size_t at, uint8_t byte) {
    for (size_t n = at + 1; n; n--)
        if ((uint8_t)stop.ptr[n - 1] == byte && !memcmp(stop.ptr, stop.ptr + at - (n - 1), n - 1))
            return n;
    return 0;
}

/* Places inside a character: what the next byte may be, and the place after it. */
static const struct {
    uint8_t lo, hi, next;
} utf8_places[][9] = {{{0x00, 0x7f, 0},
                       {0xc2, 0xdf, 1},
                       {0xe0, 0xe0, 3},
                       {0xe1, 0xec, 2},
                       {0xed, 0xed, 4},
                       {0xee, 0xef, 2},
                       {0xf0, 0xf0, 6},
                       {0xf1, 0xf3, 5},
                       {0xf4, 0xf4, 7}},
                      {{0x80, 0xbf, 0}},
                      {{0x80, 0xbf, 1}},
                      {{0xa0, 0xbf, 1}},
                      {{0x80, 0x9f, 1}},
                      {{0x80, 0xbf, 2}},
                      {{0x90, 0xbf, 2}},
                      {{0x80, 0x8f, 2}}};
enum { N_PLACES = 8 };

int32_t mxc_grammar_add_until(struct mxc_grammar_builder *b, struct mxc_str stop) {
    if (!stop.length || stop.length > 255)
        return mxc_grammar_fail(b, MXC_E_ARG, "a stop text of %zu bytes; it takes 1 to 255",
                                stop.length);
    struct mxc_gedges edges;
    mxc_grammar_edges_init(&edges);
    /* State 2 + at * N_PLACES + place; between characters the text may end. */
    edges.n_states = 2 + (uint32_t)stop.length * N_PLACES;
    mxc_grammar_edge(b, &edges, 0, -1, 2);
    for (size_t at = 0; at < stop.length && !mxc_grammar_failed(b); at++) {
        for (uint32_t place = 0; place < N_PLACES; place++) {
            uint32_t from = 2 + (uint32_t)at * N_PLACES + place;
            if (!place)
                mxc_grammar_edge(b, &edges, from, -1, 1);
            for (int i = 0; i < 9 && (utf8_places[place][i].hi); i++) {
                uint32_t lo = utf8_places[place][i].lo, hi = utf8_places[place][i].hi;
                for (uint32_t c = lo; c <= hi;) {
                    size_t next = kmp(stop, at, (uint8_t)c);
                    uint32_t last = c; /* the run of bytes that lead to the same place */
                    while (last < hi && kmp(stop, at, (uint8_t)(last + 1)) == next)
                        last++;
                    if (next < stop.length)
                        mxc_grammar_edge(
                            b, &edges, from, mxc_grammar_add_byte(b, (uint8_t)c, (uint8_t)last),
                            2 + (uint32_t)next * N_PLACES + utf8_places[place][i].next);
                    c = last + 1;
                }
            }
        }
    }
    return mxc_grammar_edges_finish(b, &edges);
}

/* ---- one-call front ends */

static enum mxc_code finish(struct mxc_grammar_builder *b, int32_t root, struct mxc_grammar **out,
                            struct mxc_err *err) {
    enum mxc_code code = mxc_grammar_builder_finish(b, root, out, err);
    mxc_grammar_builder_free(b);
    return code;
}

enum mxc_code mxc_grammar_parse_gbnf(struct mxc_str text, struct mxc_grammar **out,
                                     struct mxc_err *err) {
    struct mxc_grammar_builder *b = NULL;
    enum mxc_code code = mxc_grammar_builder_new(MXC_JSON_SPACED, &b, err);
    return code ? code : finish(b, mxc_grammar_add_gbnf(b, text), out, err);
}

enum mxc_code mxc_grammar_parse_schema(const json_t *schema, enum mxc_json_space space,
                                       struct mxc_grammar **out, struct mxc_err *err) {
    struct mxc_grammar_builder *b = NULL;
    enum mxc_code code = mxc_grammar_builder_new(space, &b, err);
    return code ? code : finish(b, mxc_grammar_add_schema(b, schema), out, err);
}

enum mxc_code mxc_grammar_json_object(enum mxc_json_space space, struct mxc_grammar **out,
                                      struct mxc_err *err) {
    struct mxc_grammar_builder *b = NULL;
    enum mxc_code code = mxc_grammar_builder_new(space, &b, err);
    return code ? code : finish(b, mxc_grammar_add_json_object(b), out, err);
}

enum mxc_code mxc_grammar_parse_regex(struct mxc_str pattern, struct mxc_grammar **out,
                                      struct mxc_err *err) {
    struct mxc_grammar_builder *b = NULL;
    enum mxc_code code = mxc_grammar_builder_new(MXC_JSON_SPACED, &b, err);
    return code ? code : finish(b, mxc_grammar_add_regex(b, pattern), out, err);
}

enum mxc_code mxc_grammar_choice(const struct mxc_str *choices, size_t n, struct mxc_grammar **out,
                                 struct mxc_err *err) {
    struct mxc_grammar_builder *b = NULL;
    enum mxc_code code = mxc_grammar_builder_new(MXC_JSON_SPACED, &b, err);
    return code ? code : finish(b, mxc_grammar_add_choice(b, choices, n), out, err);
}

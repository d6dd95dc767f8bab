/* Expressions to an NFA per rule. References become calls, unless the rule is used once or is tiny:
 * then its body is put in place, which lets the DFA merge it with its neighbours. Repetitions that
 * are too long to write out become counted rules.
 * In: nodes of a builder. Out: states and edges of all rules that the root needs, trimmed to what
 * can reach the end of its rule.
 * Invariants: no edge leads into the first state of a fragment or out of its last; no rule can call
 * itself before it has consumed a byte (that is refused). */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_INLINE_DEPTH = 200, INLINE_SIZE = 12, MAX_EDGES = 4 << 20 };

struct queued {
    int32_t node;
};

struct maker {
    const struct mxc_grammar_builder *b;
    struct mxc_nfa *nfa;
    struct queued *bodies; /* [rule] */
    size_t body_capacity;
    int32_t *rule_of_def; /* [n_defs] NFA rule, -1: none yet */
    uint8_t *active;      /* [n_defs] its body is being put in place */
    int depth;
    enum mxc_code code;
    struct mxc_err *err;
};

static void fail(struct maker *m, enum mxc_code code) {
    if (!m->code)
        m->code = code;
}

static uint32_t state_new(struct maker *m) {
    if (m->nfa->n_states >= MXC_GRAMMAR_MAX_NFA) {
        if (!m->code)
            fail(m, mxc_err_set(m->err, MXC_E_LIMIT,
                                "the grammar needs more than %d places before it is compiled; the "
                                "limit is %d",
                                MXC_GRAMMAR_MAX_NFA, MXC_GRAMMAR_MAX_NFA));
        return 0;
    }
    return m->nfa->n_states++;
}

static void edge(struct maker *m, const struct mxc_nfa_edge *e) {
    struct mxc_nfa *n = m->nfa;
    if (m->code)
        return;
    if (n->n_edges >= MAX_EDGES) {
        fail(m,
             mxc_err_set(m->err, MXC_E_LIMIT, "the grammar needs more than %d edges", MAX_EDGES));
        return;
    }
    if (!mxc_grammar_grow((void **)&n->edges, &n->edge_capacity, n->n_edges + 1,
                          sizeof *n->edges)) {
        fail(m, mxc_err_nomem(m->err));
        return;
    }
    n->edges[n->n_edges++] = *e;
}

static void eps(struct maker *m, uint32_t from, uint32_t to) {
    edge(m, &(struct mxc_nfa_edge){.from = from, .to = to, .kind = MXC_NFA_EPS});
}

static void byte_edge(struct maker *m, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to) {
    edge(m,
         &(struct mxc_nfa_edge){.from = from, .to = to, .kind = MXC_NFA_BYTE, .lo = lo, .hi = hi});
}

/* A rule number for a body that is expanded later. */
static uint32_t rule_new(struct maker *m, int32_t node, int32_t min, int32_t max, bool counted,
                         const char *name) {
    struct mxc_nfa *n = m->nfa;
    if (m->code)
        return 0;
    if (n->n_rules >= MXC_GRAMMAR_MAX_RULES) {
        fail(m, mxc_err_set(m->err, MXC_E_LIMIT, "the grammar needs more than %d rules",
                            MXC_GRAMMAR_MAX_RULES));
        return 0;
    }
    if (!mxc_grammar_grow((void **)&n->rules, &n->rule_capacity, n->n_rules + 1,
                          sizeof *n->rules) ||
        !mxc_grammar_grow((void **)&m->bodies, &m->body_capacity, n->n_rules + 1,
                          sizeof *m->bodies)) {
        fail(m, mxc_err_nomem(m->err));
        return 0;
    }
    m->bodies[n->n_rules] = (struct queued){node};
    n->rules[n->n_rules] =
        (struct mxc_nfa_rule){.min = min, .max = max, .counted = counted, .name = name};
    return (uint32_t)n->n_rules++;
}

/* ---- characters */

struct char_frag {
    uint32_t from, to;
    uint32_t tail[4]; /* tail[k]: state from which k continuation bytes lead to `to`; 0: none */
    bool has[4];
};

static uint32_t tail_state(struct maker *m, struct char_frag *f, int k) {
    if (!k)
        return f->to;
    if (!f->has[k]) {
        f->has[k] = true;
        f->tail[k] = state_new(m);
        byte_edge(m, f->tail[k], 0x80, 0xbf, tail_state(m, f, k - 1));
    }
    return f->tail[k];
}

/* first and last are encoded in equally many bytes, which form one box of byte ranges. */
static void char_box(struct maker *m, struct char_frag *f, uint32_t first, uint32_t last) {
    char a[4], z[4];
    int n = (int)mxc_utf8_encode(first, a);
    (void)mxc_utf8_encode(last, z);
    uint32_t at = f->from;
    for (int i = 0; i < n; i++) {
        bool rest_full = true;
        for (int j = i + 1; j < n; j++)
            rest_full = rest_full && (uint8_t)a[j] == 0x80 && (uint8_t)z[j] == 0xbf;
        uint32_t to = rest_full ? tail_state(m, f, n - 1 - i) : state_new(m);
        byte_edge(m, at, (uint8_t)a[i], (uint8_t)z[i], to);
        if (rest_full)
            return;
        at = to;
    }
}

static void char_range(struct maker *m, struct char_frag *f, uint32_t first, uint32_t last) {
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
    for (int i = 0; i < 6; i++) {
        if (first > ends[i])
            continue;
        if (last > ends[i]) {
            char_range(m, f, first, ends[i]);
            char_range(m, f, ends[i] + 1, last);
            return;
        }
        if (i == 3) /* surrogates are no characters */
            return;
        break;
    }
    if (last > 0x10ffff)
        last = 0x10ffff;
    if (first > last)
        return;
    for (int i = 1; i < (last < 0x80 ? 1 : last < 0x800 ? 2 : last < 0x10000 ? 3 : 4); i++) {
        uint32_t low = (1u << 6 * i) - 1;
        if ((first & ~low) == (last & ~low))
            continue;
        if (first & low) {
            char_range(m, f, first, first | low);
            char_range(m, f, (first | low) + 1, last);
            return;
        }
        if ((last & low) != low) {
            char_range(m, f, first, (last & ~low) - 1);
            char_range(m, f, last & ~low, last);
            return;
        }
    }
    char_box(m, f, first, last);
}

/* ---- expansion */

static void expand(struct maker *m, int32_t node, uint32_t from, uint32_t to);

static void call(struct maker *m, uint32_t rule, uint32_t from, uint32_t to) {
    edge(m, &(struct mxc_nfa_edge){.from = from, .to = to, .kind = MXC_NFA_CALL, .rule = rule});
}

static void expand_ref(struct maker *m, int32_t def, uint32_t from, uint32_t to) {
    const struct mxc_gdef *d = &m->b->defs[def];
    const struct mxc_gnode *body = &m->b->nodes[d->node];
    bool small = body->size <= INLINE_SIZE && !body->has_ref;
    if (!d->keep && !m->active[def] && m->depth < MAX_INLINE_DEPTH && (small || d->n_refs == 1)) {
        m->active[def] = 1;
        expand(m, d->node, from, to);
        m->active[def] = 0;
        return;
    }
    if (m->rule_of_def[def] < 0)
        m->rule_of_def[def] = (int32_t)rule_new(m, d->node, 1, 1, false, d->name);
    call(m, (uint32_t)m->rule_of_def[def], from, to);
}

static void expand_repeat(struct maker *m, const struct mxc_gnode *r, uint32_t from, uint32_t to) {
    int32_t item = r->u.repeat.item, min = r->u.repeat.min, max = r->u.repeat.max;
    if (!mxc_grammar_unrolled(m->b, r)) {
        call(m, rule_new(m, item, min ? min : 1, max, true, ""), from, to);
        if (!min)
            eps(m, from, to);
        return;
    }
    for (int32_t i = 0; i < min && !m->code; i++) {
        uint32_t next = state_new(m);
        expand(m, item, from, next);
        from = next;
    }
    if (max < 0) {
        uint32_t loop = state_new(m), back = state_new(m);
        eps(m, from, loop);
        expand(m, item, loop, back);
        eps(m, back, loop);
        eps(m, loop, to);
        return;
    }
    for (int32_t i = min; i < max && !m->code; i++) {
        uint32_t next = state_new(m);
        eps(m, from, to);
        expand(m, item, from, next);
        from = next;
    }
    eps(m, from, to);
}

static void expand_graph(struct maker *m, const struct mxc_ggraph *g, uint32_t from, uint32_t to) {
    uint32_t base = m->nfa->n_states;
    for (uint32_t i = 0; i < g->n_states && !m->code; i++)
        (void)state_new(m);
    eps(m, from, base);
    eps(m, base + 1, to);
    for (uint32_t i = 0; i < g->n_edges && !m->code; i++) {
        const struct mxc_gedge_node *e = &g->edges[i];
        if (e->label < 0)
            eps(m, base + e->from, base + e->to);
        else
            expand(m, e->label, base + e->from, base + e->to);
    }
}

static void expand(struct maker *m, int32_t number, uint32_t from, uint32_t to) {
    const struct mxc_gnode *node = &m->b->nodes[number];
    struct char_frag frag = {.from = from, .to = to};
    if (m->code)
        return;
    m->depth++;
    switch ((enum mxc_gnode_kind)node->kind) {
    case MXC_G_EMPTY:
        eps(m, from, to);
        break;
    case MXC_G_LITERAL:
        for (uint32_t i = 0; i < node->n && !m->code; i++) {
            uint32_t next = i + 1 == node->n ? to : state_new(m);
            byte_edge(m, from, (uint8_t)node->u.bytes[i], (uint8_t)node->u.bytes[i], next);
            from = next;
        }
        break;
    case MXC_G_CLASS:
        for (uint32_t i = 0; i < node->n; i++)
            char_range(m, &frag, node->u.bounds[2 * i], node->u.bounds[2 * i + 1]);
        break;
    case MXC_G_BYTE:
        byte_edge(m, from, node->lo, node->hi, to);
        break;
    case MXC_G_SEQ:
        for (uint32_t i = 0; i < node->n && !m->code; i++) {
            uint32_t next = i + 1 == node->n ? to : state_new(m);
            expand(m, node->u.items[i], from, next);
            from = next;
        }
        break;
    case MXC_G_ALT:
        for (uint32_t i = 0; i < node->n && !m->code; i++)
            expand(m, node->u.items[i], from, to);
        break;
    case MXC_G_REPEAT:
        expand_repeat(m, node, from, to);
        break;
    case MXC_G_REF:
        expand_ref(m, node->u.rule, from, to);
        break;
    case MXC_G_GRAPH:
        expand_graph(m, node->u.graph, from, to);
        break;
    }
    m->depth--;
}

/* ---- analysis */

/* Counting sort by `from`. */
static bool index_edges(struct mxc_nfa *n) {
    struct mxc_nfa_edge *sorted = mxc_mem_array(n->n_edges ? n->n_edges : 1, sizeof *sorted);
    n->first = mxc_mem_zalloc((size_t)n->n_states + 2, sizeof *n->first);
    if (!sorted || !n->first) {
        mxc_mem_free(sorted);
        return false;
    }
    for (size_t i = 0; i < n->n_edges; i++)
        n->first[n->edges[i].from + 2]++;
    for (uint32_t s = 2; s <= n->n_states; s++)
        n->first[s] += n->first[s - 1];
    for (size_t i = 0; i < n->n_edges; i++)
        sorted[n->first[n->edges[i].from + 1]++] = n->edges[i];
    mxc_mem_free(n->edges);
    n->edges = sorted;
    n->edge_capacity = n->n_edges;
    return true;
}

/* Marks states from which the end of their rule can be reached, over bytes too or without any.
 * A call can be crossed once its rule's own start is marked. */
static bool mark(struct mxc_nfa *n, bool bytes, uint8_t *marked) {
    size_t n_in = n->n_edges;
    uint32_t *head = mxc_mem_array(n->n_states, sizeof *head);      /* edges into a state */
    uint32_t *waiting = mxc_mem_array(n->n_rules, sizeof *waiting); /* calls of a rule */
    uint32_t *next = mxc_mem_array(n_in ? n_in : 1, sizeof *next);
    uint32_t *next_wait = mxc_mem_array(n_in ? n_in : 1, sizeof *next_wait);
    uint32_t *stack = mxc_mem_array(n->n_states, sizeof *stack);
    uint32_t *rule_at = mxc_mem_array(n->n_states, sizeof *rule_at); /* rule that starts there */
    bool ok = head && waiting && next && next_wait && stack && rule_at;
    if (!ok)
        goto out;
    memset(head, 0xff, n->n_states * sizeof *head);
    memset(rule_at, 0xff, n->n_states * sizeof *rule_at);
    memset(waiting, 0xff, n->n_rules * sizeof *waiting);
    for (size_t i = 0; i < n_in; i++) {
        next[i] = head[n->edges[i].to];
        head[n->edges[i].to] = (uint32_t)i;
    }
    size_t top = 0;
    for (uint32_t r = 0; r < n->n_rules; r++) {
        rule_at[n->rules[r].start] = r;
        marked[n->rules[r].end] = 1;
        stack[top++] = n->rules[r].end;
    }
    while (top) {
        uint32_t s = stack[--top];
        for (uint32_t i = head[s]; i != UINT32_MAX; i = next[i]) {
            const struct mxc_nfa_edge *e = &n->edges[i];
            if (e->kind == MXC_NFA_BYTE && !bytes)
                continue;
            if (e->kind == MXC_NFA_CALL && !marked[n->rules[e->rule].start]) {
                next_wait[i] = waiting[e->rule];
                waiting[e->rule] = i;
            } else if (!marked[e->from]) {
                marked[e->from] = 1;
                stack[top++] = e->from;
            }
        }
        uint32_t r = rule_at[s];
        for (uint32_t i = r == UINT32_MAX ? r : waiting[r]; i != UINT32_MAX; i = next_wait[i])
            if (!marked[n->edges[i].from]) {
                marked[n->edges[i].from] = 1;
                stack[top++] = n->edges[i].from;
            }
        if (r != UINT32_MAX)
            waiting[r] = UINT32_MAX;
    }
out:
    mxc_mem_free(head);
    mxc_mem_free(waiting);
    mxc_mem_free(next);
    mxc_mem_free(next_wait);
    mxc_mem_free(stack);
    mxc_mem_free(rule_at);
    return ok;
}

/* Rules in the order of a depth-first search over "calls before it has consumed anything"; a rule
 * met again while it is open is left-recursive. */
struct left {
    const struct mxc_nfa *n;
    uint32_t *seen, *stack; /* states: rule number + 1 of the last visit; work list */
    uint32_t *calls, *call_end;
    size_t n_calls, call_capacity;
};

static bool first_calls(struct left *l, uint32_t rule) {
    const struct mxc_nfa *n = l->n;
    size_t top = 0;
    l->stack[top++] = n->rules[rule].start;
    l->seen[n->rules[rule].start] = rule + 1;
    while (top) {
        uint32_t s = l->stack[--top];
        for (uint32_t i = n->first[s]; i < n->first[s + 1]; i++) {
            const struct mxc_nfa_edge *e = &n->edges[i];
            if (e->kind == MXC_NFA_BYTE)
                continue;
            if (e->kind == MXC_NFA_CALL) {
                if (!mxc_grammar_grow((void **)&l->calls, &l->call_capacity, l->n_calls + 1,
                                      sizeof *l->calls))
                    return false;
                l->calls[l->n_calls++] = e->rule;
                if (!n->rules[e->rule].nullable)
                    continue;
            }
            if (l->seen[e->to] != rule + 1) {
                l->seen[e->to] = rule + 1;
                l->stack[top++] = e->to;
            }
        }
    }
    l->call_end[rule] = (uint32_t)l->n_calls;
    return true;
}

static enum mxc_code refuse_left(const struct mxc_nfa *n, const uint32_t *path, size_t length,
                                 struct mxc_err *err) {
    struct mxc_buf text;
    mxc_buf_init(&text, 300);
    const char *name = "";
    for (size_t i = 0; i < length; i++) {
        const char *part = n->rules[path[i]].name;
        if (!*part)
            continue;
        if (!*name)
            name = part;
        mxc_buf_printf(&text, "%s -> ", part);
    }
    enum mxc_code code = mxc_err_set(err, MXC_E_ARG,
                                     "left recursion: the rule %s refers to itself before it has "
                                     "consumed anything (%s%s)",
                                     name, mxc_buf_text(&text), name);
    mxc_buf_fini(&text);
    return code;
}

static enum mxc_code check_left(const struct mxc_nfa *n, struct mxc_err *err) {
    struct left l = {.n = n};
    enum mxc_code code = MXC_OK;
    uint32_t *at = mxc_mem_zalloc(n->n_rules, sizeof *at), *path = NULL;
    uint8_t *mode = mxc_mem_zalloc(n->n_rules, 1); /* 0 new, 1 open, 2 done */
    l.seen = mxc_mem_zalloc(n->n_states, sizeof *l.seen);
    l.stack = mxc_mem_array(n->n_states, sizeof *l.stack);
    l.call_end = mxc_mem_array(n->n_rules, sizeof *l.call_end);
    path = mxc_mem_array(n->n_rules, sizeof *path);
    bool ok = at && mode && l.seen && l.stack && l.call_end && path;
    for (uint32_t r = 0; ok && r < n->n_rules; r++) {
        at[r] = (uint32_t)l.n_calls;
        ok = first_calls(&l, r);
    }
    if (!ok) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (uint32_t root = 0; root < n->n_rules; root++) {
        size_t depth = 0;
        if (mode[root])
            continue;
        path[depth++] = root;
        mode[root] = 1;
        while (depth) {
            uint32_t r = path[depth - 1];
            if (at[r] == l.call_end[r]) {
                mode[r] = 2;
                depth--;
                continue;
            }
            uint32_t q = l.calls[at[r]++];
            if (mode[q] == 1) {
                size_t from = 0;
                while (path[from] != q)
                    from++;
                code = refuse_left(n, path + from, depth - from, err);
                goto out;
            }
            if (!mode[q]) {
                mode[q] = 1;
                path[depth++] = q;
            }
        }
    }
out:
    mxc_mem_free(at);
    mxc_mem_free(mode);
    mxc_mem_free(path);
    mxc_mem_free(l.seen);
    mxc_mem_free(l.stack);
    mxc_mem_free(l.calls);
    mxc_mem_free(l.call_end);
    return code;
}

/* Nullable rules and useful states. */
static enum mxc_code analyse(struct mxc_nfa *n, struct mxc_err *err) {
    uint8_t *empty = mxc_mem_zalloc(n->n_states, 1);
    n->useful = mxc_mem_zalloc(n->n_states, 1);
    enum mxc_code code = MXC_OK;
    if (!empty || !n->useful || !mark(n, false, empty) || !mark(n, true, n->useful)) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (uint32_t r = 0; r < n->n_rules; r++) {
        n->rules[r].nullable = empty[n->rules[r].start];
        n->rules[r].productive = n->useful[n->rules[r].start];
    }
    if (!n->rules[0].productive) {
        code = mxc_err_set(err, MXC_E_ARG, "the grammar matches nothing: no text ends it");
        goto out;
    }
    code = check_left(n, err);
out:
    mxc_mem_free(empty);
    return code;
}

enum mxc_code mxc_nfa_build(const struct mxc_grammar_builder *b, int32_t root, struct mxc_nfa *out,
                            struct mxc_err *err) {
    struct mxc_nfa nfa = {0};
    struct maker m = {.b = b, .nfa = &nfa, .err = err};
    m.rule_of_def = mxc_mem_array(b->n_defs ? b->n_defs : 1, sizeof *m.rule_of_def);
    m.active = mxc_mem_zalloc(b->n_defs ? b->n_defs : 1, 1);
    if (!m.rule_of_def || !m.active) {
        m.code = mxc_err_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < b->n_defs; i++)
        m.rule_of_def[i] = -1;
    (void)rule_new(&m, root, 1, 1, false, "");
    for (size_t r = 0; r < nfa.n_rules && !m.code; r++) {
        uint32_t start = state_new(&m), end = state_new(&m);
        nfa.rules[r].start = start;
        nfa.rules[r].end = end;
        expand(&m, m.bodies[r].node, start, end);
    }
    if (!m.code && !index_edges(&nfa))
        m.code = mxc_err_nomem(err);
    if (!m.code)
        m.code = analyse(&nfa, err);
out:
    mxc_mem_free(m.rule_of_def);
    mxc_mem_free(m.active);
    mxc_mem_free(m.bodies);
    if (m.code)
        mxc_nfa_fini(&nfa);
    else
        *out = nfa;
    return m.code;
}

void mxc_nfa_fini(struct mxc_nfa *nfa) {
    mxc_mem_free(nfa->edges);
    mxc_mem_free(nfa->first);
    mxc_mem_free(nfa->rules);
    mxc_mem_free(nfa->useful);
    *nfa = (struct mxc_nfa){0};
}

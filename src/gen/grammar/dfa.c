/* NFA rules to DFAs by subset construction. A call is a letter like any byte; a call of a rule that
 * can be empty may also be skipped, and in return no rule but the root ends before it has consumed
 * something, so that counted rules never turn without progress.
 * In: a trimmed NFA. Out: struct mxc_grammar.
 * Invariants: members of a subset are sorted, and have byte edges, calls, or are the rule's end;
 * work, states and members are bounded, so no grammar takes longer than a second or so. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_MEMBERS = 1 << 23, MAX_WORK = 1 << 28, JUMP_EDGES = 5, MAX_PASSES = 32 };

struct subset {
    size_t offset;
    uint32_t length;
};

struct target {
    uint32_t lo, hi, to;
};

struct det {
    const struct mxc_nfa *n;
    struct mxc_grammar *g;
    uint32_t *members;
    size_t n_members, member_capacity;
    struct subset *subsets; /* of this rule's states */
    size_t n_subsets, subset_capacity, first_state;
    uint32_t *slots; /* subset number + 1, 0: free */
    size_t n_slots;
    uint32_t *seen, generation, *stack; /* [n_states of the NFA] */
    struct target *bytes, *calls;
    size_t n_bytes, byte_capacity, n_calls, call_capacity;
    uint32_t *set; /* the closure at work */
    size_t n_set, set_capacity;
    uint64_t work;
    struct mxc_err *err;
};

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int by_rule(const void *a, const void *b) {
    const struct target *x = a, *y = b;
    return x->lo != y->lo ? (x->lo > y->lo) - (x->lo < y->lo) : (x->to > y->to) - (x->to < y->to);
}

static bool matters(const struct det *d, uint32_t state, uint32_t rule) {
    for (uint32_t i = d->n->first[state]; i < d->n->first[state + 1]; i++)
        if (d->n->edges[i].kind != MXC_NFA_EPS)
            return true;
    return state == d->n->rules[rule].end;
}

static void begin_set(struct det *d) {
    d->generation++;
    d->n_set = 0;
}

/* Adds what can be reached from a state without a byte. */
static enum mxc_code reach(struct det *d, uint32_t state, uint32_t rule) {
    size_t top = 0;
    if (d->seen[state] == d->generation || !d->n->useful[state])
        return MXC_OK;
    d->seen[state] = d->generation;
    d->stack[top++] = state;
    while (top) {
        uint32_t s = d->stack[--top];
        d->work += 1 + d->n->first[s + 1] - d->n->first[s];
        if (matters(d, s, rule)) {
            if (!mxc_grammar_grow((void **)&d->set, &d->set_capacity, d->n_set + 1, sizeof *d->set))
                return mxc_err_nomem(d->err);
            d->set[d->n_set++] = s;
        }
        for (uint32_t i = d->n->first[s]; i < d->n->first[s + 1]; i++) {
            const struct mxc_nfa_edge *e = &d->n->edges[i];
            bool free_step = e->kind == MXC_NFA_EPS ||
                             (e->kind == MXC_NFA_CALL && d->n->rules[e->rule].nullable);
            if (free_step && d->seen[e->to] != d->generation && d->n->useful[e->to]) {
                d->seen[e->to] = d->generation;
                d->stack[top++] = e->to;
            }
        }
    }
    return MXC_OK;
}

static enum mxc_code grow_slots(struct det *d) {
    size_t n = d->n_slots ? d->n_slots * 2 : 256;
    uint32_t *slots = mxc_mem_zalloc(n, sizeof *slots);
    if (!slots)
        return mxc_err_nomem(d->err);
    for (size_t i = 0; i < d->n_subsets; i++) {
        const struct subset *s = &d->subsets[i];
        size_t at =
            (size_t)mxc_hash_bytes(d->members + s->offset, s->length * sizeof *d->members, 0) &
            (n - 1);
        while (slots[at])
            at = (at + 1) & (n - 1);
        slots[at] = (uint32_t)i + 1;
    }
    mxc_mem_free(d->slots);
    d->slots = slots;
    d->n_slots = n;
    return MXC_OK;
}

static enum mxc_code state_new(struct det *d, uint32_t rule, bool final, uint32_t *out) {
    struct mxc_grammar *g = d->g;
    if (g->n_states >= MXC_GRAMMAR_MAX_STATES)
        return mxc_err_set(d->err, MXC_E_LIMIT,
                           "the grammar needs more than %d states; the limit is %d",
                           MXC_GRAMMAR_MAX_STATES, MXC_GRAMMAR_MAX_STATES);
    if (!mxc_grammar_grow((void **)&g->states, &g->state_capacity, g->n_states + 1,
                          sizeof *g->states))
        return mxc_err_nomem(d->err);
    *out = (uint32_t)g->n_states;
    g->states[g->n_states++] = (struct mxc_gstate){.rule = rule, .final = final};
    return MXC_OK;
}

/* The state of the set at work, new or known. */
static enum mxc_code intern(struct det *d, uint32_t rule, uint32_t *out) {
    enum mxc_code code;
    if (2 * (d->n_subsets + 1) > d->n_slots && (code = grow_slots(d)))
        return code;
    qsort(d->set, d->n_set, sizeof *d->set, by_number);
    d->work += d->n_set;
    size_t bytes = d->n_set * sizeof *d->set;
    size_t at = (size_t)mxc_hash_bytes(d->set, bytes, 0) & (d->n_slots - 1);
    for (; d->slots[at]; at = (at + 1) & (d->n_slots - 1)) {
        const struct subset *s = &d->subsets[d->slots[at] - 1];
        if (s->length == d->n_set && !memcmp(d->members + s->offset, d->set, bytes)) {
            *out = (uint32_t)(d->first_state + d->slots[at] - 1);
            return MXC_OK;
        }
    }
    if (d->n_members + d->n_set > MAX_MEMBERS)
        return mxc_err_set(d->err, MXC_E_LIMIT,
                           "the grammar is too ambiguous: sets of more than %d places; the limit "
                           "is %d",
                           MAX_MEMBERS, MAX_MEMBERS);
    if (!mxc_grammar_grow((void **)&d->members, &d->member_capacity, d->n_members + d->n_set,
                          sizeof *d->members) ||
        !mxc_grammar_grow((void **)&d->subsets, &d->subset_capacity, d->n_subsets + 1,
                          sizeof *d->subsets))
        return mxc_err_nomem(d->err);
    bool final = false;
    for (size_t i = 0; i < d->n_set; i++)
        final = final || d->set[i] == d->n->rules[rule].end;
    if ((code = state_new(d, rule, final, out)))
        return code;
    memcpy(d->members + d->n_members, d->set, bytes);
    d->subsets[d->n_subsets] = (struct subset){d->n_members, (uint32_t)d->n_set};
    d->n_members += d->n_set;
    d->slots[at] = (uint32_t)++d->n_subsets;
    return MXC_OK;
}

static enum mxc_code collect(struct det *d, const struct subset *s) {
    d->n_bytes = d->n_calls = 0;
    for (uint32_t k = 0; k < s->length; k++) {
        uint32_t state = d->members[s->offset + k];
        for (uint32_t i = d->n->first[state]; i < d->n->first[state + 1]; i++) {
            const struct mxc_nfa_edge *e = &d->n->edges[i];
            if (e->kind == MXC_NFA_EPS || !d->n->useful[e->to])
                continue;
            if (e->kind == MXC_NFA_BYTE) {
                if (!mxc_grammar_grow((void **)&d->bytes, &d->byte_capacity, d->n_bytes + 1,
                                      sizeof *d->bytes))
                    return mxc_err_nomem(d->err);
                d->bytes[d->n_bytes++] = (struct target){e->lo, e->hi, e->to};
            } else if (d->n->rules[e->rule].productive) {
                if (!mxc_grammar_grow((void **)&d->calls, &d->call_capacity, d->n_calls + 1,
                                      sizeof *d->calls))
                    return mxc_err_nomem(d->err);
                d->calls[d->n_calls++] = (struct target){e->rule, e->rule, e->to};
            }
        }
    }
    return MXC_OK;
}

static enum mxc_code add_edge(struct det *d, struct mxc_gstate *owner, uint32_t lo, uint32_t hi,
                              uint32_t to) {
    struct mxc_grammar *g = d->g;
    if (owner->n_edges) {
        struct mxc_gedge *last = &g->edges[owner->edges + owner->n_edges - 1u];
        if (last->to == to && last->hi + 1u == lo) {
            last->hi = (uint8_t)hi;
            return MXC_OK;
        }
    }
    if (!mxc_grammar_grow((void **)&g->edges, &g->edge_capacity, g->n_edges + 1, sizeof *g->edges))
        return mxc_err_nomem(d->err);
    g->edges[g->n_edges++] = (struct mxc_gedge){to, (uint8_t)lo, (uint8_t)hi};
    owner->n_edges++;
    return MXC_OK;
}

static enum mxc_code byte_edges(struct det *d, uint32_t rule, struct mxc_gstate *owner) {
    bool cut[257] = {false};
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < d->n_bytes; i++)
        cut[d->bytes[i].lo] = cut[d->bytes[i].hi + 1] = true;
    cut[0] = cut[256] = true;
    for (uint32_t lo = 0; !code && d->n_bytes && lo < 256;) {
        uint32_t hi = lo, to = 0;
        while (!cut[hi + 1])
            hi++;
        begin_set(d);
        for (size_t i = 0; i < d->n_bytes && !code; i++)
            if (d->bytes[i].lo <= lo && d->bytes[i].hi >= hi)
                code = reach(d, d->bytes[i].to, rule);
        d->work += d->n_bytes;
        if (!code && d->n_set && !(code = intern(d, rule, &to)))
            code = add_edge(d, owner, lo, hi, to);
        lo = hi + 1;
    }
    return code;
}

static enum mxc_code call_edges(struct det *d, uint32_t rule, struct mxc_gstate *owner) {
    struct mxc_grammar *g = d->g;
    enum mxc_code code = MXC_OK;
    if (d->n_calls)
        qsort(d->calls, d->n_calls, sizeof *d->calls, by_rule);
    for (size_t i = 0; i < d->n_calls && !code;) {
        uint32_t callee = d->calls[i].lo, to = 0;
        begin_set(d);
        for (; i < d->n_calls && d->calls[i].lo == callee && !code; i++)
            code = reach(d, d->calls[i].to, rule);
        if (code || (code = intern(d, rule, &to)))
            break;
        if (!mxc_grammar_grow((void **)&g->calls, &g->call_capacity, g->n_calls + 1,
                              sizeof *g->calls))
            return mxc_err_nomem(d->err);
        g->calls[g->n_calls++] = (struct mxc_gcall){.rule = callee, .to = to};
        owner->n_calls++;
    }
    return code;
}

static enum mxc_code one_rule(struct det *d, uint32_t rule) {
    const struct mxc_nfa_rule *r = &d->n->rules[rule];
    struct mxc_grammar *g = d->g;
    enum mxc_code code;
    uint32_t start = 0;
    d->n_members = d->n_subsets = 0;
    d->first_state = g->n_states;
    if (d->n_slots > 4096) { /* one large rule must not slow down thousands of small ones */
        mxc_mem_free(d->slots);
        d->slots = NULL;
        d->n_slots = 0;
    } else if (d->slots) {
        memset(d->slots, 0, d->n_slots * sizeof *d->slots);
    }
    begin_set(d);
    if ((code = reach(d, r->start, rule)) || (code = intern(d, rule, &start)))
        return code;
    for (size_t i = 0; i < d->n_subsets; i++) {
        struct mxc_gstate s = g->states[d->first_state + i];
        s.edges = (uint32_t)g->n_edges;
        s.calls = (uint32_t)g->n_calls;
        if ((code = collect(d, &d->subsets[i])) || (code = byte_edges(d, rule, &s)) ||
            (code = call_edges(d, rule, &s)))
            return code;
        g->states[d->first_state + i] = s;
        if (d->work > MAX_WORK)
            return mxc_err_set(d->err, MXC_E_LIMIT,
                               "the grammar is too ambiguous: compiling it takes more than %d "
                               "steps; the limit is %d",
                               MAX_WORK, MAX_WORK);
    }
    if (rule && g->states[start].final) { /* the empty text is the caller's to skip */
        struct mxc_gstate copy = g->states[start];
        uint32_t at = 0;
        if ((code = state_new(d, rule, false, &at)))
            return code;
        copy.final = false;
        g->states[at] = copy;
        start = at;
    }
    if (!mxc_grammar_grow((void **)&g->rules, &g->rule_capacity, g->n_rules + 1, sizeof *g->rules))
        return mxc_err_nomem(d->err);
    g->rules[g->n_rules++] = (struct mxc_grule){
        .start = start, .min = r->nullable ? 1 : r->min, .max = r->max, .counted = r->counted};
    return MXC_OK;
}

static bool join(uint64_t to[4], const uint64_t from[4]) {
    bool changed = false;
    for (int i = 0; i < 4; i++) {
        changed |= (from[i] & ~to[i]) != 0;
        to[i] |= from[i];
    }
    return changed;
}

/* Bytes that can come in a state while its rule lasts. */
static void first_of(const struct mxc_grammar *g, const struct mxc_gstate *s, uint64_t out[4]) {
    for (uint32_t e = 0; e < s->n_edges; e++)
        for (unsigned b = g->edges[s->edges + e].lo; b <= g->edges[s->edges + e].hi; b++)
            out[b / 64] |= (uint64_t)1 << b % 64;
    for (uint32_t c = 0; c < s->n_calls; c++)
        (void)join(out, g->rules[g->calls[s->calls + c].rule].first);
}

/* One pass over all rules' first sets, and one over the follow sets of what they call. Rules that
 * are called mostly have higher numbers, so few passes settle them. */
static bool pass(struct mxc_grammar *g) {
    bool changed = false;
    for (size_t r = g->n_rules; r--;) {
        uint64_t first[4] = {0};
        first_of(g, &g->states[g->rules[r].start], first);
        changed |= join(g->rules[r].first, first);
    }
    for (size_t i = 0; i < g->n_states; i++) {
        const struct mxc_gstate *s = &g->states[i];
        const struct mxc_grule *own = &g->rules[s->rule];
        for (uint32_t c = 0; c < s->n_calls; c++) {
            const struct mxc_gstate *to = &g->states[g->calls[s->calls + c].to];
            uint64_t *follow = g->rules[g->calls[s->calls + c].rule].follow, first[4] = {0};
            first_of(g, to, first);
            changed |= join(follow, first);
            if (to->final) {
                changed |= join(follow, own->follow);
                changed |= own->counted && join(follow, own->first);
            }
        }
    }
    return changed;
}

static void follow_sets(struct mxc_grammar *g) {
    int passes = 0;
    while (pass(g) && passes < MAX_PASSES)
        passes++;
    if (passes < MAX_PASSES)
        return;
    for (size_t r = 0; r < g->n_rules; r++) /* anything may follow: slower, and right */
        memset(g->rules[r].follow, 0xff, sizeof g->rules[r].follow);
}

/* Flags, tail calls, jump tables. */
static enum mxc_code settle(struct mxc_grammar *g, struct mxc_err *err) {
    for (size_t i = 0; i < g->n_states; i++) {
        struct mxc_gstate *s = &g->states[i];
        s->plain = !s->final && !s->n_calls;
        for (uint32_t c = 0; c < s->n_calls; c++) {
            const struct mxc_gstate *to = &g->states[g->calls[s->calls + c].to];
            g->calls[s->calls + c].tail =
                to->final && !to->n_edges && !to->n_calls && !g->rules[s->rule].counted;
        }
        if (s->n_edges < JUMP_EDGES || s->n_edges > 255)
            continue;
        if (!mxc_grammar_grow((void **)&g->jumps, &g->jump_capacity, g->n_jumps + 1,
                              sizeof *g->jumps))
            return mxc_err_nomem(err);
        uint8_t *jump = g->jumps[g->n_jumps++];
        memset(jump, 0, 256);
        for (uint32_t e = 0; e < s->n_edges; e++)
            for (unsigned b = g->edges[s->edges + e].lo; b <= g->edges[s->edges + e].hi; b++)
                jump[b] = (uint8_t)(e + 1);
        s->jump = (uint32_t)g->n_jumps;
    }
    follow_sets(g);
    return MXC_OK;
}

enum mxc_code mxc_grammar_compile(const struct mxc_grammar_builder *b, int32_t root,
                                  struct mxc_grammar **out, struct mxc_err *err) {
    struct mxc_nfa nfa = {0};
    struct det d = {.n = &nfa, .err = err};
    struct mxc_grammar *g = mxc_mem_zalloc(1, sizeof *g);
    enum mxc_code code = g ? mxc_nfa_build(b, root, &nfa, err) : mxc_err_nomem(err);
    if (code)
        goto out;
    d.g = g;
    d.seen = mxc_mem_zalloc(nfa.n_states, sizeof *d.seen);
    d.stack = mxc_mem_array(nfa.n_states, sizeof *d.stack);
    if (!d.seen || !d.stack) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (uint32_t r = 0; r < nfa.n_rules && !code; r++)
        code = one_rule(&d, r);
    if (!code)
        code = settle(g, err);
out:
    mxc_nfa_fini(&nfa);
    mxc_mem_free(d.members);
    mxc_mem_free(d.subsets);
    mxc_mem_free(d.slots);
    mxc_mem_free(d.seen);
    mxc_mem_free(d.stack);
    mxc_mem_free(d.bytes);
    mxc_mem_free(d.calls);
    mxc_mem_free(d.set);
    if (code)
        mxc_grammar_free(g);
    else
        *out = g;
    return code;
}

void mxc_grammar_free(struct mxc_grammar *g) {
    if (!g)
        return;
    mxc_mem_free(g->states);
    mxc_mem_free(g->edges);
    mxc_mem_free(g->calls);
    mxc_mem_free(g->rules);
    mxc_mem_free(g->jumps);
    mxc_mem_free(g);
}

size_t mxc_grammar_n_states(const struct mxc_grammar *g) {
    return g->n_states;
}

/* Model, see model.h: what the graph's layers have in common. In goes a finished graph, out come
 * KV groups, runs of like layers, and (through weights.c) stacks.
 *
 * A turn is the nodes of one layer or of a few (families alternate kinds of attention). Turns are
 * alike when node by node op, attributes and shapes are equal, weights are other ones of equal
 * shape or the same one in all turns, KV stores are of one group in even steps, and inputs come
 * from the same places: the same turn, the turn before, or the same value before all turns. What is
 * not understood is not rolled: it only costs compile time. */
#include "backend/xla/model.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_TURN_LAYERS = 8 };

struct finder {
    struct mxc_xla_model *model;
    const struct mxc_graph *g;
    int32_t *layer_node; /* [n_layers + 1] first node of a layer; -1: nodes are not together */
    bool *taken;         /* [n_weights] in a run already */
};

/* ---- KV */

static enum mxc_code find_groups(struct mxc_xla_model *m, struct mxc_err *err) {
    const struct mxc_graph *g = m->graph;
    m->groups = mxc_mem_zalloc((size_t)g->n_kvs, sizeof *m->groups);
    m->kv_places = mxc_mem_zalloc((size_t)g->n_kvs, sizeof *m->kv_places);
    if (!m->groups || !m->kv_places)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < g->n_kvs; i++) {
        const struct mxc_kv *kv = &g->kvs[i];
        struct mxc_xla_kv_group want = {.kind = kv->kind,
                                        .heads = kv->n_heads,
                                        .k_dim = kv->k_dim,
                                        .v_dim = kv->kind == MXC_KV_LATENT ? 0 : kv->v_dim};
        int32_t at = 0;
        while (at < m->n_groups &&
               (m->groups[at].kind != want.kind || m->groups[at].heads != want.heads ||
                m->groups[at].k_dim != want.k_dim || m->groups[at].v_dim != want.v_dim))
            at++;
        if (at == m->n_groups)
            m->groups[m->n_groups++] = want;
        m->kv_places[i] = (struct mxc_xla_place){at, m->groups[at].layers++};
        size_t numbers = (size_t)want.heads * ((size_t)want.k_dim + (size_t)want.v_dim), bytes;
        if (!mxc_size_mul(numbers, MXC_KV_BLOCK * sizeof(float), &bytes) ||
            !mxc_size_add(m->block_bytes[kv->kind], bytes, &m->block_bytes[kv->kind]))
            return mxc_err_nomem(err);
    }
    return MXC_OK;
}

/* ---- likeness */

static bool like_kvs(const struct finder *f, int32_t a, int32_t b) {
    return f->model->kv_places[a].stack == f->model->kv_places[b].stack;
}

static bool like_attention(const struct finder *f, const struct mxc_attn_attr *a,
                           const struct mxc_attn_attr *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->v_dim == b->v_dim && a->scale == b->scale &&
           a->softcap == b->softcap && a->window == b->window && a->rope == b->rope &&
           a->rope_offset == b->rope_offset && a->qk_norm == b->qk_norm &&
           a->qk_norm_eps == b->qk_norm_eps && a->qk_norm_offset == b->qk_norm_offset &&
           like_kvs(f, a->kv, b->kv);
}

static bool like_cross(const struct finder *f, const struct mxc_cross_attr *a,
                       const struct mxc_cross_attr *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->scale == b->scale && a->q_norm_eps == b->q_norm_eps &&
           like_kvs(f, a->kv, b->kv);
}

static bool like_attend(const struct mxc_attend_attr *a, const struct mxc_attend_attr *b) {
    return a->n_heads == b->n_heads && a->head_dim == b->head_dim && a->scale == b->scale &&
           a->rope == b->rope && a->positions == b->positions && a->range == b->range;
}

static bool like_moe(const struct mxc_moe_attr *a, const struct mxc_moe_attr *b) {
    return a->n_experts == b->n_experts && a->top_k == b->top_k && a->width == b->width &&
           a->score == b->score && a->normalise == b->normalise &&
           a->normalise_eps == b->normalise_eps && a->scale == b->scale &&
           a->n_groups == b->n_groups && a->top_groups == b->top_groups &&
           a->group_best == b->group_best && a->act == b->act;
}

/* Of nodes of one op. */
static bool like_attributes(const struct finder *f, const struct mxc_node *x,
                            const struct mxc_node *y) {
    switch (x->op) {
    case MXC_OP_ATTENTION:
        return like_attention(f, &x->u.attn, &y->u.attn);
    case MXC_OP_CROSS:
        return like_cross(f, &x->u.cross, &y->u.cross);
    case MXC_OP_ATTEND:
        return like_attend(&x->u.attend, &y->u.attend);
    case MXC_OP_MOE:
        return like_moe(&x->u.moe, &y->u.moe);
    case MXC_OP_EMBED:
        return x->u.embed.scale == y->u.embed.scale;
    case MXC_OP_RMS_NORM:
    case MXC_OP_LAYER_NORM:
        return x->u.norm.eps == y->u.norm.eps && x->u.norm.offset == y->u.norm.offset &&
               x->u.norm.groups == y->u.norm.groups;
    case MXC_OP_LINEAR:
        return x->u.linear.n_parts == y->u.linear.n_parts && x->u.linear.scale == y->u.linear.scale;
    case MXC_OP_HEADS_LINEAR:
        return x->u.heads.n_heads == y->u.heads.n_heads;
    case MXC_OP_GLU:
    case MXC_OP_ACT:
        return x->u.glu.act == y->u.glu.act;
    case MXC_OP_SOFTCAP:
        return x->u.softcap.cap == y->u.softcap.cap;
    case MXC_OP_ADD_POSITION:
        return x->u.position.offset == y->u.position.offset &&
               x->u.position.fixed == y->u.position.fixed;
    case MXC_OP_LOOKUP:
    case MXC_OP_GATHER:
        return x->u.lookup.index == y->u.lookup.index &&
               x->u.lookup.complement == y->u.lookup.complement;
    case MXC_OP_MERGE:
    case MXC_OP_MEAN_ROWS:
        return x->u.merge.rows == y->u.merge.rows;
    case MXC_OP_CONCAT:
        return x->u.concat.turns == y->u.concat.turns;
    case MXC_OP_ADD_LEVEL:
        return x->u.level.level == y->u.level.level;
    case MXC_OP_INPUT:
    case MXC_OP_TANH_SCALE:
    case MXC_OP_ROW_MASK:
    case MXC_OP_GATE:
    case MXC_OP_UNIT_COLUMNS:
    case MXC_OP_ADD:
    case MXC_OP_SELECT_OUT:
        return true; /* they have none */
    case MXC_N_OPS:
        break;
    }
    return false; /* not understood: not rolled */
}

static bool like_weights(const struct finder *f, const struct mxc_node *a,
                         const struct mxc_node *b) {
    for (int32_t i = 0; i < a->n_weights; i++) {
        int32_t x = a->weights[i], y = b->weights[i];
        if (x == y)
            continue;
        if (x == MXC_NONE || y == MXC_NONE || f->taken[x] || f->taken[y])
            return false;
        const struct mxc_weight *v = &f->g->weights[x], *w = &f->g->weights[y];
        if (v->role != w->role || v->n_dims != w->n_dims ||
            memcmp(v->shape, w->shape, (size_t)v->n_dims * sizeof *v->shape) != 0)
            return false;
    }
    return true;
}

static bool like_value(const struct finder *f, int32_t x, int32_t y) {
    const struct mxc_value *a = &f->g->values[x], *b = &f->g->values[y];
    return a->width == b->width && a->rows.kind == b->rows.kind && a->rows.slot == b->rows.slot &&
           a->rows.divisor == b->rows.divisor;
}

/* Whether a node is like the one a turn earlier, but for where its inputs come from. */
static bool like_nodes(const struct finder *f, const struct mxc_node *a, const struct mxc_node *b) {
    return a->op == b->op && a->n_in == b->n_in && a->n_weights == b->n_weights &&
           like_value(f, a->out, b->out) && like_attributes(f, a, b) && like_weights(f, a, b);
}

/* Source of an input seen from its turn: node of the same turn (>= 0), of the turn before
 * (-1 - node), or a value from outside. */
struct source {
    bool inside;
    int32_t node, value;
};

static struct source source_of(const struct finder *f, const struct mxc_xla_run *r, int32_t turn,
                               int32_t value) {
    int32_t first = r->node0 + turn * r->n_nodes, p = f->g->values[value].producer;
    if (p >= first)
        return (struct source){true, p - first, value};
    if (turn && p >= first - r->n_nodes)
        return (struct source){true, p - first, value};
    return (struct source){false, 0, value};
}

static int32_t *start_of(struct mxc_xla_run *r, int32_t node, bool inside) {
    for (int32_t i = 0; i < r->n_carried; i++)
        if (r->carried[i].node == node) {
            r->carried[i].inside |= inside;
            return &r->carried[i].start;
        }
    if (r->n_carried == MXC_XLA_MAX_CARRIED)
        return NULL;
    r->carried[r->n_carried].node = node;
    r->carried[r->n_carried].start = MXC_NONE;
    r->carried[r->n_carried].inside = inside;
    return &r->carried[r->n_carried++].start;
}

/* Inputs of turn `turn` >= 1 against those of turn 1, and turn 1's against the first turn's. */
static bool like_sources(const struct finder *f, struct mxc_xla_run *r, int32_t turn) {
    for (int32_t j = 0; j < r->n_nodes; j++) {
        const struct mxc_node *node = &f->g->nodes[r->node0 + turn * r->n_nodes + j];
        const struct mxc_node *second = &f->g->nodes[r->node0 + r->n_nodes + j];
        const struct mxc_node *first = &f->g->nodes[r->node0 + j];
        for (int32_t i = 0; i < node->n_in; i++) {
            struct source s = source_of(f, r, turn, node->in[i]);
            if (turn > 1) {
                struct source t = source_of(f, r, 1, second->in[i]);
                if (s.inside != t.inside || s.node != t.node || (!s.inside && s.value != t.value))
                    return false;
                continue;
            }
            struct source t = source_of(f, r, 0, first->in[i]);
            if (!s.inside || s.node >= 0) {
                if (s.inside != t.inside || s.node != t.node || (!s.inside && s.value != t.value))
                    return false;
                continue;
            }
            /* the turn before: the first turn reads something from outside */
            int32_t *start = start_of(r, s.node + r->n_nodes, true);
            if (t.inside || !start || (*start != MXC_NONE && *start != t.value) ||
                !like_value(f, s.value, t.value))
                return false;
            *start = t.value;
        }
    }
    return true;
}

static bool like_turn(const struct finder *f, struct mxc_xla_run *r, int32_t turn) {
    for (int32_t j = 0; j < r->n_nodes; j++) {
        int32_t at = r->node0 + turn * r->n_nodes + j;
        const struct mxc_node *node = &f->g->nodes[at], *before = node - r->n_nodes;
        if (!like_nodes(f, before, node))
            return false;
        /* a weight is in one turn only, or in all */
        for (int32_t i = 0; turn > 1 && i < node->n_weights; i++)
            if ((before->weights[i] == node->weights[i]) !=
                ((before - r->n_nodes)->weights[i] == before->weights[i]))
                return false;
        const struct mxc_xla_place *kv = f->model->kv_places;
        int32_t a = MXC_NONE, b = a, c = a;
        if (node->op == MXC_OP_ATTENTION) {
            a = node->u.attn.kv;
            b = before->u.attn.kv;
            c = turn > 1 ? (before - r->n_nodes)->u.attn.kv : MXC_NONE;
        } else if (node->op == MXC_OP_CROSS) {
            a = node->u.cross.kv;
            b = before->u.cross.kv;
            c = turn > 1 ? (before - r->n_nodes)->u.cross.kv : MXC_NONE;
        }
        if (c != MXC_NONE && kv[a].index - kv[b].index != kv[b].index - kv[c].index)
            return false;
    }
    return like_sources(f, r, turn);
}

/* A turn finds what the one before has left under the name of what the first turn reads, so those
 * must be different values that nobody reads for themselves. */
static bool starts_apart(const struct finder *f, const struct mxc_xla_run *r) {
    for (int32_t i = 0; i < r->n_carried; i++) {
        int32_t start = r->carried[i].start;
        for (int32_t k = 0; k < i && start != MXC_NONE; k++)
            if (r->carried[k].start == start)
                return false;
        for (int32_t n = 0; n < r->n_nodes; n++)
            for (int32_t k = 0; k < f->g->nodes[r->node0 + r->n_nodes + n].n_in; k++)
                if (f->g->nodes[r->node0 + r->n_nodes + n].in[k] == start)
                    return false;
    }
    return true;
}

/* What later nodes read must come from the last turn. */
static bool find_results(const struct finder *f, struct mxc_xla_run *r) {
    int32_t end = r->node0 + r->turns * r->n_nodes, last = end - r->n_nodes;
    for (int32_t i = end; i < f->g->n_nodes; i++)
        for (int32_t k = 0; k < f->g->nodes[i].n_in; k++) {
            int32_t p = f->g->values[f->g->nodes[i].in[k]].producer;
            if (p < r->node0 || p >= end)
                continue;
            if (p < last || !start_of(r, p - last, false))
                return false;
        }
    int32_t p = f->g->values[f->g->logits].producer;
    return (p < r->node0 || p >= end) && starts_apart(f, r);
}

/* One weight must not stand at two places of a run, nor in a node outside of it too. */
static bool weights_apart(const struct finder *f, const struct mxc_xla_run *r) {
    int32_t end = r->node0 + r->turns * r->n_nodes;
    for (int32_t i = 0; i < f->g->n_nodes; i++)
        for (int32_t k = 0; k < f->g->nodes[i].n_weights; k++) {
            int32_t w = f->g->nodes[i].weights[k];
            if (w == MXC_NONE)
                continue;
            if (i >= r->node0 && i < end) {
                int32_t j = (i - r->node0) % r->n_nodes;
                bool shared = f->g->nodes[r->node0 + j].weights[k] ==
                              f->g->nodes[r->node0 + r->n_nodes + j].weights[k];
                if (!shared && f->taken[w])
                    return false;
                if (!shared)
                    f->taken[w] = true;
            }
        }
    for (int32_t i = 0; i < f->g->n_nodes; i++)
        for (int32_t k = 0; (i < r->node0 || i >= end) && k < f->g->nodes[i].n_weights; k++)
            if (f->g->nodes[i].weights[k] != MXC_NONE && f->taken[f->g->nodes[i].weights[k]])
                return false;
    return true;
}

static int32_t layer_nodes(const struct finder *f, int32_t layer, int32_t n) {
    if (layer + n > f->g->n_layers)
        return 0;
    for (int32_t i = layer; i <= layer + n; i++)
        if (f->layer_node[i] < 0)
            return 0;
    return f->layer_node[layer + n] - f->layer_node[layer];
}

/* The longest run that starts at a layer with turns of n layers; turns < 2: none. */
static void try_run(const struct finder *f, int32_t layer, int32_t n, struct mxc_xla_run *r) {
    *r = (struct mxc_xla_run){.node0 = f->layer_node[layer], .n_nodes = layer_nodes(f, layer, n)};
    if (!r->n_nodes)
        return;
    r->turns = 1;
    while (layer_nodes(f, layer + r->turns * n, n) == r->n_nodes) {
        struct mxc_xla_run longer = *r;
        if (!like_turn(f, &longer, r->turns))
            return;
        *r = longer;
        r->turns++;
    }
}

static void forget(const struct finder *f, const struct mxc_xla_run *r) {
    for (int32_t i = r->node0; i < r->node0 + r->turns * r->n_nodes; i++)
        for (int32_t k = 0; k < f->g->nodes[i].n_weights; k++)
            if (f->g->nodes[i].weights[k] != MXC_NONE)
                f->taken[f->g->nodes[i].weights[k]] = false;
}

static void find_runs(struct finder *f) {
    for (int32_t layer = 0; layer < f->g->n_layers;) {
        struct mxc_xla_run best = {0};
        int32_t covered = 0;
        for (int32_t n = 1; n <= MAX_TURN_LAYERS; n++) {
            struct mxc_xla_run r;
            try_run(f, layer, n, &r);
            if (r.turns >= 2 && n * r.turns > covered) {
                best = r;
                covered = n * r.turns;
            }
        }
        if (covered && find_results(f, &best)) {
            if (weights_apart(f, &best)) {
                f->model->runs[f->model->n_runs++] = best;
                layer += covered;
                continue;
            }
            forget(f, &best);
        }
        layer++;
    }
}

/* First node of every layer; -1 where a layer's nodes do not stand together. */
static void find_layers(struct finder *f) {
    int32_t n = f->g->n_layers;
    for (int32_t i = 0; i <= n; i++)
        f->layer_node[i] = -1;
    for (int32_t i = 0; i < f->g->n_nodes; i++) {
        int32_t layer = f->g->nodes[i].layer;
        if (layer < 0 || layer >= n || (i && f->g->nodes[i - 1].layer == layer))
            continue;
        f->layer_node[layer] = f->layer_node[layer] == -1 ? i : -2;
        if (layer + 1 == n)
            for (f->layer_node[n] = i;
                 f->layer_node[n] < f->g->n_nodes && f->g->nodes[f->layer_node[n]].layer == layer;)
                f->layer_node[n]++;
    }
    for (int32_t i = 0; i < n; i++)
        if (f->layer_node[i + 1] < f->layer_node[i])
            f->layer_node[i] = -1;
}

enum mxc_code mxc_xla_model_check(const struct mxc_graph *g, mxc_xla_lower_fn *(*find)(enum mxc_op),
                                  struct mxc_err *err) {
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!find(g->nodes[i].op))
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "XLA: there is no lowering of %s (layer %d)",
                               mxc_op_name(g->nodes[i].op), g->nodes[i].layer);
    return MXC_OK;
}

enum mxc_code mxc_xla_model_new(const struct mxc_graph *graph, const struct mxc_weights *weights,
                                struct mxc_xla_model **out, struct mxc_err *err) {
    enum mxc_code code = mxc_xla_model_check(graph, mxc_xla_lower_find, err);
    if (code)
        return code;
    struct mxc_xla_model *m = mxc_mem_zalloc(1, sizeof *m);
    struct finder f = {.model = m, .g = graph};
    if (!m)
        return mxc_err_nomem(err);
    m->graph = graph;
    f.layer_node = mxc_mem_zalloc((size_t)graph->n_layers + 1, sizeof *f.layer_node);
    f.taken = mxc_mem_zalloc((size_t)graph->n_weights + 1, sizeof *f.taken);
    m->runs = mxc_mem_zalloc((size_t)graph->n_layers + 1, sizeof *m->runs);
    if (!f.layer_node || !f.taken || !m->runs) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if ((code = find_groups(m, err)))
        goto out;
    find_layers(&f);
    find_runs(&f);
    if ((code = mxc_xla_weights_plan(m, weights, err)))
        goto out;
    *out = m;
    m = NULL;
out:
    mxc_mem_free(f.layer_node);
    mxc_mem_free(f.taken);
    mxc_xla_model_free(m);
    return code;
}

void mxc_xla_model_free(struct mxc_xla_model *m) {
    if (!m)
        return;
    mxc_xla_weights_fini(m);
    mxc_mem_free(m->runs);
    mxc_mem_free(m->groups);
    mxc_mem_free(m->kv_places);
    mxc_mem_free(m);
}

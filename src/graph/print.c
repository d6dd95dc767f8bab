/* Graph for people: ropes, KV kinds, and one line per op with shapes, weight names and attributes;
 * and the count of parameters.
 * In: a finished graph. Out: text on a stream; write errors are the stream's to tell.
 * The text is compared by golden tests, so it holds nothing that varies from run to run, and
 * attributes at their default are left out. */
#include "graph/graph.h"

#include <inttypes.h>

static const char *const act_names[MXC_N_ACTS] = {
    [MXC_ACT_SILU] = "silu",
    [MXC_ACT_GELU] = "gelu",
    [MXC_ACT_GELU_TANH] = "gelu_tanh",
    [MXC_ACT_RELU] = "relu",
    [MXC_ACT_GELU_QUICK] = "gelu_quick",
    [MXC_ACT_SWIGLU_CLIP] = "swiglu_clip",
};
static const char *const qk_norm_names[] = {
    [MXC_QK_RMS_HEAD] = "rms_head",
    [MXC_QK_RMS_WHOLE] = "rms_whole",
    [MXC_QK_LAYER_HEADS] = "layer_heads",
};
static const char *const kv_names[MXC_N_KV_KINDS] = {
    [MXC_KV_FULL] = "full",
    [MXC_KV_WINDOW] = "window",
    [MXC_KV_LATENT] = "latent",
    [MXC_KV_CROSS] = "cross",
};
static const char *const scaling_names[] = {
    [MXC_ROPE_NONE] = "none", [MXC_ROPE_LINEAR] = "linear", [MXC_ROPE_DYNAMIC] = "dynamic",
    [MXC_ROPE_YARN] = "yarn", [MXC_ROPE_LLAMA3] = "llama3", [MXC_ROPE_LONGROPE] = "longrope",
};

const char *mxc_kv_kind_name(enum mxc_kv_kind kind) {
    return kv_names[kind];
}

static void print_tower_shape(const struct mxc_value *v, FILE *out) {
    (void)fprintf(out, "[N%d", v->rows.slot);
    if (v->rows.divisor > 1)
        (void)fprintf(out, "/%d", v->rows.divisor);
    (void)fprintf(out, ", %d]", v->width);
}

static void print_shape(const struct mxc_value *v, FILE *out) {
    if (v->rows.kind == MXC_ROWS_TOWER)
        print_tower_shape(v, out);
    else
        (void)fprintf(out, "[%c, %d]", v->rows.kind == MXC_ROWS_T ? 'T' : 'R', v->width);
}

static void print_weight(const struct mxc_graph *g, int32_t id, FILE *out) {
    const struct mxc_weight *w = &g->weights[id];
    (void)fprintf(out, "%s [", w->name);
    for (int i = 0; i < w->n_dims; i++)
        (void)fprintf(out, "%s%" PRId64, i ? ", " : "", w->shape[i]);
    (void)fputc(']', out);
    if (w->view.flat) {
        (void)fputs(" of", out);
        for (int i = 0; i < w->view.n_dims; i++)
            (void)fprintf(out, "%s%" PRId64, i ? " x " : " ", w->view.shape[i]);
    } else if (w->view.n_dims) {
        const struct mxc_weight_view *v = &w->view;
        (void)fprintf(out, " of rows %" PRId64 "+%" PRId64 "s+%" PRId64 "r", v->row0, v->stride,
                      v->row_step);
        if (v->transposed)
            (void)fprintf(out, " transposed, columns %" PRId64 "+%" PRId64 "c", v->col0,
                          v->col_step);
    }
}

static void print_moe(const struct mxc_moe_attr *a, FILE *out) {
    (void)fprintf(out, " %d of %d experts, %d wide, %s, %s", a->top_k, a->n_experts, a->width,
                  a->score == MXC_MOE_SIGMOID ? "sigmoid" : "softmax", act_names[a->act]);
    if (a->n_groups > 1)
        (void)fprintf(out, ", %d of %d groups by %s", a->top_groups, a->n_groups,
                      a->group_best ? "best" : "two best");
    if (a->normalise)
        (void)fprintf(out, ", normalised");
    if (a->scale != 1)
        (void)fprintf(out, ", scale %g", (double)a->scale);
}

static void print_attributes(const struct mxc_node *n, FILE *out) {
    switch (n->op) {
    case MXC_OP_EMBED:
        if (n->u.embed.scale != 1)
            (void)fprintf(out, " scale %g", (double)n->u.embed.scale);
        break;
    case MXC_OP_RMS_NORM:
        (void)fprintf(out, " eps %g", (double)n->u.norm.eps);
        if (n->u.norm.offset != 0)
            (void)fprintf(out, " offset %g", (double)n->u.norm.offset);
        if (n->u.norm.groups > 1)
            (void)fprintf(out, " groups %d", n->u.norm.groups);
        break;
    case MXC_OP_LINEAR:
        if (n->u.linear.scale != 1)
            (void)fprintf(out, " scale %g", (double)n->u.linear.scale);
        break;
    case MXC_OP_ATTENTION: {
        const struct mxc_attn_attr *a = &n->u.attn;
        (void)fprintf(out, " heads %d/%d x %d scale %g", a->n_heads, a->n_kv_heads, a->head_dim,
                      (double)a->scale);
        if (a->softcap != 0)
            (void)fprintf(out, " softcap %g", (double)a->softcap);
        if (a->window)
            (void)fprintf(out, " window %d", a->window);
        if (a->rope != MXC_NONE)
            (void)fprintf(out, " rope %d", a->rope);
        if (a->rope_offset)
            (void)fprintf(out, " from %d", a->rope_offset);
        if (n->weights[0] != MXC_NONE && a->qk_norm != MXC_QK_RMS_HEAD)
            (void)fprintf(out, " qk_norm %s", qk_norm_names[a->qk_norm]);
        if (a->v_dim && a->v_dim != a->head_dim)
            (void)fprintf(out, " v %d", a->v_dim);
        (void)fprintf(out, " kv %d", a->kv);
        break;
    }
    case MXC_OP_LAYER_NORM:
        (void)fprintf(out, " eps %g", (double)n->u.norm.eps);
        break;
    case MXC_OP_HEADS_LINEAR:
        (void)fprintf(out, " heads %d", n->u.heads.n_heads);
        break;
    case MXC_OP_ADD_POSITION:
        if (n->u.position.offset || n->u.position.fixed)
            (void)fprintf(out, " %s %d", n->u.position.fixed ? "row" : "offset",
                          n->u.position.offset);
        break;
    case MXC_OP_SOFTCAP:
        (void)fprintf(out, " cap %g", (double)n->u.softcap.cap);
        break;
    case MXC_OP_MOE:
        print_moe(&n->u.moe, out);
        break;
    case MXC_OP_LOOKUP:
        (void)fprintf(out, " index %d", n->u.lookup.index);
        if (n->weights[1] != MXC_NONE)
            (void)fputs(n->u.lookup.complement ? " times 1 - tanh(gate)" : " times tanh(gate)",
                        out);
        break;
    case MXC_OP_GATHER:
        (void)fprintf(out, " index %d", n->u.lookup.index);
        break;
    case MXC_OP_MERGE:
    case MXC_OP_MEAN_ROWS:
        (void)fprintf(out, " of %d", n->u.merge.rows);
        break;
    case MXC_OP_CONCAT:
        if (n->u.concat.turns)
            (void)fputs(" in turns", out);
        break;
    case MXC_OP_ATTEND:
        (void)fprintf(out, " heads %d x %d scale %g range %d", n->u.attend.n_heads,
                      n->u.attend.head_dim, (double)n->u.attend.scale, n->u.attend.range);
        if (n->u.attend.rope != MXC_NONE)
            (void)fprintf(out, " rope %d at index %d", n->u.attend.rope, n->u.attend.positions);
        break;
    case MXC_OP_CROSS:
        (void)fprintf(out, " heads %d/%d x %d scale %g kv %d", n->u.cross.n_heads,
                      n->u.cross.n_kv_heads, n->u.cross.head_dim, (double)n->u.cross.scale,
                      n->u.cross.kv);
        break;
    case MXC_OP_ADD_LEVEL:
        (void)fprintf(out, " level %d", n->u.level.level);
        break;
    case MXC_OP_ACT:
    case MXC_OP_GLU:
        (void)fprintf(out, " %s", act_names[n->u.glu.act]);
        break;
    case MXC_OP_ADD:
    case MXC_OP_GATE:
    case MXC_OP_INPUT:
    case MXC_OP_TANH_SCALE:
    case MXC_OP_ROW_MASK:
    case MXC_OP_UNIT_COLUMNS:
    case MXC_OP_SELECT_OUT:
    case MXC_N_OPS:
        break;
    }
}

static void print_node(const struct mxc_graph *g, const struct mxc_node *n, FILE *out) {
    const struct mxc_value *v = &g->values[n->out];
    const char *separator = "";
    (void)fprintf(out, "%%%d ", n->out);
    print_shape(v, out);
    (void)fprintf(out, " = %s(", mxc_op_name(n->op));
    for (int i = 0; i < n->n_in; i++, separator = ", ")
        (void)fprintf(out, "%s%%%d", separator, n->in[i]);
    for (int i = 0; i < n->n_weights; i++) {
        if (n->weights[i] == MXC_NONE)
            continue;
        (void)fputs(separator, out);
        print_weight(g, n->weights[i], out);
        separator = ", ";
    }
    (void)fputc(')', out);
    print_attributes(n, out);
    if (v->name[0])
        (void)fprintf(out, " -> %s", v->name);
    (void)fputc('\n', out);
}

static void print_rope(const struct mxc_rope *r, int32_t index, FILE *out) {
    (void)fprintf(out, "rope %d: dims %d, theta %g, scaling %s", index, r->dims, r->theta,
                  scaling_names[r->scaling]);
    if (r->scaling != MXC_ROPE_NONE)
        (void)fprintf(out, ", factor %g", r->factor);
    if (r->freq_factor[0] != 0)
        (void)fputs(", frequency table", out);
    if (r->sections[0] || r->sections[1] || r->sections[2])
        (void)fprintf(out, ", sections %d + %d + %d%s%s", r->sections[0], r->sections[1],
                      r->sections[2], r->sections_interleaved ? ", taking turns" : "",
                      r->restart ? ", each from the start" : "");
    (void)fprintf(out, "%s\n", r->interleaved ? ", interleaved" : "");
}

void mxc_graph_print(const struct mxc_graph *g, FILE *out) {
    (void)fprintf(out,
                  "graph %s: %d layers, hidden %d, vocab %d, context %" PRId64 ", %" PRIu64
                  " parameters%s%s\n",
                  g->family, g->n_layers, g->hidden, g->vocab, g->max_position,
                  mxc_graph_parameters(g), g->hidden_out ? ", hidden output" : "",
                  g->both_ways ? ", both ways" : "");
    for (int32_t i = 0; i < g->n_ropes; i++)
        print_rope(&g->ropes[i], i, out);
    for (int32_t i = 0; i < g->n_kvs; i++) {
        const struct mxc_kv *kv = &g->kvs[i];
        (void)fprintf(out, "kv %d: %s, %d heads x (%d + %d)", i, kv_names[kv->kind], kv->n_heads,
                      kv->k_dim, kv->v_dim);
        if (kv->window)
            (void)fprintf(out, ", window %d", kv->window);
        (void)fputc('\n', out);
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        print_node(g, &g->nodes[i], out);
}

uint64_t mxc_graph_parameters(const struct mxc_graph *g) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < g->n_weights; i++) {
        uint64_t n = 1;
        for (int j = 0; j < g->weights[i].n_dims; j++)
            n *= (uint64_t)g->weights[i].shape[j];
        if (__builtin_add_overflow(sum, n, &sum))
            return UINT64_MAX;
    }
    return sum;
}

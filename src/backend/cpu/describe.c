/* What a plan says of itself to people: one line, and matrix by matrix the layout and kernel that
 * was chosen for it. In: a plan whose weights are planned (packing changes nothing here). Out: text
 * and figures; nothing of it is read back by the program. */
#include "backend/cpu/cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const layouts[MXC_N_LAYOUTS] = {"F32", "F16", "BF16", "I4",
                                                   "I8",  "N4",  "I6",   "K6"};
static const char *const kernels[MXC_N_LAYOUTS] = {"matmul_f32", "matmul_f16", "matmul_bf16",
                                                   "matmul_i4",  "matmul_i8",  "matmul_n4",
                                                   "matmul_i6",  "matmul_k6"};

static void append(char *text, size_t size, const char *fmt, ...) MXC_PRINTF(3, 4);
static void append(char *text, size_t size, const char *fmt, ...) {
    size_t used = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text + used, size - used, fmt, ap);
    va_end(ap);
}

/* "avx512 fast: I4 g32 affine x 181, I8 g64 x 30; kv bf16" */
void mxc_cpu_describe(struct mxc_plan *plan) {
    enum { MOST = 8 };
    struct {
        const struct mxc_packed *packed;
        int n;
    } seen[MOST];
    int n_seen = 0;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        const struct mxc_packed *p = &plan->weights[i].slices->packed;
        int k = 0;
        if (!plan->weights[i].multiplied)
            continue;
        while (k < n_seen &&
               (seen[k].packed->layout != p->layout || seen[k].packed->group != p->group ||
                seen[k].packed->affine != p->affine))
            k++;
        if (k == MOST)
            continue;
        if (k == n_seen) {
            seen[n_seen].packed = p;
            seen[n_seen++].n = 0;
        }
        seen[k].n++;
    }
    size_t size = sizeof plan->describe;
    append(plan->describe, size, "%s %s:", mxc_cpu_level_name(plan->kernels->level),
           plan->exact ? "exact" : "fast");
    for (int k = 0; k < n_seen; k++) {
        const struct mxc_packed *p = seen[k].packed;
        append(plan->describe, size, "%s %s", k ? "," : "", layouts[p->layout]);
        if (p->group)
            append(plan->describe, size, " g%d%s", p->group, p->affine ? " affine" : "");
        append(plan->describe, size, " x %d", seen[k].n);
    }
    append(plan->describe, size, "; kv %s", plan->kv_type == MXC_KV_F32 ? "f32" : "bf16");
}

const char *mxc_cpu_plan_describe(const struct mxc_plan *plan) {
    return plan->describe;
}

/* How the nodes use a weight: rows that are wanted only, experts of a row. */
static void find_use(const struct mxc_plan *plan, int32_t weight, struct mxc_plan_matrix *out) {
    for (int32_t i = 0; i < plan->graph->n_nodes; i++) {
        const struct mxc_node *node = &plan->graph->nodes[i];
        for (int32_t k = 0; k < node->n_weights; k++) {
            if (node->weights[k] != weight || node->op == MXC_OP_EMBED)
                continue;
            if (node->op == MXC_OP_MOE && node->u.moe.top_k < out->slices)
                out->used = node->u.moe.top_k;
            out->outputs_only = plan->graph->values[node->out].rows.kind == MXC_ROWS_R;
        }
    }
}

bool mxc_cpu_plan_matrix(const struct mxc_plan *plan, int32_t index, struct mxc_plan_matrix *out) {
    int32_t i = 0;
    for (; i < plan->graph->n_weights; i++)
        if (plan->weights[i].multiplied && !index--)
            break;
    if (i == plan->graph->n_weights)
        return false;
    const struct mxc_cpu_weight *w = &plan->weights[i];
    const struct mxc_packed *p = &w->slices->packed;
    *out = (struct mxc_plan_matrix){.name = plan->graph->weights[i].name,
                                    .storage =
                                        mxc_storage_info(w->slices->view->tensor->storage)->name,
                                    .kernel = kernels[p->layout],
                                    .rows = p->n,
                                    .columns = p->k,
                                    .slices = w->n_slices,
                                    .used = w->n_slices,
                                    .bits = p->layout == MXC_LAYOUT_BF16 ? 16
                                            : p->group                   ? 8
                                                                         : 32};
    for (int32_t s = 0; s < w->n_slices; s++)
        out->bytes += mxc_packed_bytes(&w->slices[s].packed);
    append(out->layout, sizeof out->layout, "%s", layouts[p->layout]);
    if (p->group)
        append(out->layout, sizeof out->layout, " g%d%s", p->group, p->affine ? " affine" : "");
    find_use(plan, i, out);
    return true;
}

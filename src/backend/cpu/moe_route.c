/* Routing of a MOE: chooses the experts of every row from its router logits (the rule stands in
 * graph/graph.h), and lists the (row, rank) entries by expert, in blocks of at most
 * MXC_CPU_SMALL_ROWS that one matmul takes.
 * A row's choice depends on its own logits only, and selections are made by plain comparisons in
 * the order of the experts, so that it is the same in any company and on any worker. A NaN among
 * the logits never wins over a number, but experts are chosen all the same. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static void softmax(float *p, const float *logits, int32_t n) {
    float top = -INFINITY, sum = 0;
    for (int32_t e = 0; e < n; e++)
        top = logits[e] > top ? logits[e] : top;
    for (int32_t e = 0; e < n; e++)
        sum += p[e] = expf(logits[e] - top);
    for (int32_t e = 0; e < n; e++)
        p[e] /= sum;
}

static void sigmoid(float *p, const float *logits, int32_t n) {
    for (int32_t e = 0; e < n; e++)
        p[e] = 1.0f / (1.0f + expf(-logits[e]));
}

/* The largest of values[0 .. n) that is not taken; the lowest number among equals. */
static int32_t take_best(const float *values, uint8_t *taken, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || values[i] > values[best]))
            best = i;
    taken[best] = 1;
    return best;
}

static float group_score(const struct mxc_moe_attr *a, const float *choice, int32_t n) {
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (choice[i] > best) {
            second = best;
            best = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return a->group_best ? best : best + second;
}

/* Choices of all but the best groups become 0. */
static void cut_groups(const struct mxc_moe_attr *a, float *choice, float *scores, uint8_t *taken) {
    int32_t size = a->n_experts / a->n_groups;
    for (int32_t g = 0; g < a->n_groups; g++)
        scores[g] = group_score(a, choice + (ptrdiff_t)g * size, size);
    memset(taken, 0, (size_t)a->n_groups);
    for (int32_t i = 0; i < a->top_groups; i++)
        (void)take_best(scores, taken, a->n_groups);
    for (int32_t e = 0; e < a->n_experts; e++)
        if (!taken[e / size])
            choice[e] = 0;
}

void mxc_cpu_moe_choose(const struct mxc_moe_attr *a, const float *logits, const float *bias,
                        const struct mxc_cpu_moe *moe, int32_t *expert, float *share) {
    size_t n = (size_t)a->n_experts;
    float *score = moe->scores, *choice = score + n, *groups = choice + n, sum = 0;
    (a->score == MXC_MOE_SIGMOID ? sigmoid : softmax)(score, logits, a->n_experts);
    for (size_t e = 0; e < n; e++) {
        choice[e] = bias ? score[e] + bias[e] : score[e];
        if (isnan(choice[e]))
            choice[e] = -INFINITY;
    }
    if (a->n_groups > 1)
        cut_groups(a, choice, groups, moe->taken);
    memset(moe->taken, 0, n);
    for (int32_t i = 0; i < a->top_k; i++) {
        expert[i] = take_best(choice, moe->taken, a->n_experts);
        share[i] = score[expert[i]];
        sum += share[i];
    }
    for (int32_t i = 0; i < a->top_k; i++)
        share[i] = (a->normalise ? share[i] / (sum + a->normalise_eps) : share[i]) * a->scale;
}

int32_t mxc_cpu_moe_list(const struct mxc_moe_attr *a, int32_t n_rows, const int32_t *expert,
                         const struct mxc_cpu_moe *moe) {
    int32_t n = n_rows * a->top_k, n_blocks = 0, *next = moe->counts;
    memset(next, 0, (size_t)(a->n_experts + 1) * sizeof *next);
    for (int32_t i = 0; i < n; i++)
        next[expert[i] + 1]++;
    for (int32_t e = 0; e < a->n_experts; e++) {
        int32_t end = next[e] + next[e + 1];
        for (int32_t at = next[e]; at < end; at += MXC_CPU_SMALL_ROWS)
            moe->blocks[n_blocks++] = (struct mxc_cpu_moe_block){
                e, at, end - at < MXC_CPU_SMALL_ROWS ? end - at : MXC_CPU_SMALL_ROWS};
        next[e + 1] = end;
    }
    for (int32_t i = 0; i < n; i++) { /* next[e] now counts up from the expert's first place */
        moe->place[i] = next[expert[i]]++;
        moe->list[moe->place[i]] = i;
    }
    return n_blocks;
}

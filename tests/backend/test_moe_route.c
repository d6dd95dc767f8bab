/* Choosing experts where the numbers are awkward (ties, NaN, infinities, negative choices), and the
 * lists that are made of the choices. */
#include "test.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, ROWS = 100, TOP = 4 };

struct room {
    struct mxc_cpu_moe moe;
    int32_t expert[ROWS * TOP], list[ROWS * TOP], place[ROWS * TOP], counts[MOST + 1];
    float share[ROWS * TOP], scores[3 * MOST];
    uint8_t taken[MOST];
    struct mxc_cpu_moe_block blocks[ROWS * TOP];
};

static void room_init(struct room *r) {
    memset(r, 0, sizeof *r);
    r->moe = (struct mxc_cpu_moe){.expert = r->expert,
                                  .share = r->share,
                                  .list = r->list,
                                  .place = r->place,
                                  .blocks = r->blocks,
                                  .counts = r->counts,
                                  .scores = r->scores,
                                  .taken = r->taken};
}

static struct mxc_moe_attr attr_of(int32_t n_experts, int32_t top_k, enum mxc_moe_score score) {
    return (struct mxc_moe_attr){.n_experts = n_experts,
                                 .top_k = top_k,
                                 .score = score,
                                 .scale = 1,
                                 .n_groups = 1,
                                 .top_groups = 1};
}

static void expect(const struct mxc_moe_attr *a, const float *logits, const float *bias,
                   const int32_t *want) {
    struct room r;
    room_init(&r);
    mxc_cpu_moe_choose(a, logits, bias, &r.moe, r.expert, r.share);
    assert_memory_equal(r.expert, want, (size_t)a->top_k * sizeof *want);
}

static void test_ties(void **state) {
    (void)state;
    struct mxc_moe_attr a = attr_of(6, 3, MXC_MOE_SOFTMAX);
    expect(&a, (float[]){1, 2, 1, 2, 1, 0}, NULL, (int32_t[]){1, 3, 0});
    expect(&a, (float[]){0, 0, 0, 0, 0, 0}, NULL, (int32_t[]){0, 1, 2});
    a.n_groups = 3; /* groups 0 and 2 are equal: the lower number stays */
    a.top_groups = 1;
    a.top_k = 2;
    expect(&a, (float[]){3, 1, 0, 0, 1, 3}, NULL, (int32_t[]){0, 1});
}

static void test_faults(void **state) {
    (void)state;
    struct mxc_moe_attr a = attr_of(4, 2, MXC_MOE_SIGMOID);
    float bad[4] = {NAN, -3, NAN, -5};
    expect(&a, bad, NULL, (int32_t[]){1, 3}); /* numbers win */
    for (int i = 0; i < 4; i++)
        bad[i] = NAN;
    expect(&a, bad, NULL, (int32_t[]){0, 1});
    a.score = MXC_MOE_SOFTMAX;
    expect(&a, bad, NULL, (int32_t[]){0, 1});
    for (int i = 0; i < 4; i++)
        bad[i] = -INFINITY;
    expect(&a, bad, NULL, (int32_t[]){0, 1});
    struct room r; /* and the fault is seen in the shares */
    room_init(&r);
    mxc_cpu_moe_choose(&a, bad, NULL, &r.moe, r.expert, r.share);
    assert_true(isnan(r.share[0]) && isnan(r.share[1]));
}

/* Experts of groups that are out have a choice of 0, which can win over negative ones; their shares
 * are their scores all the same. */
static void test_cut_groups(void **state) {
    (void)state;
    struct mxc_moe_attr a = attr_of(4, 3, MXC_MOE_SIGMOID);
    a.n_groups = 2;
    a.top_groups = 1;
    a.group_best = true;
    float logits[4] = {0, 0, 0, 0}, bias[4] = {1, -2, -1, 0.25f}; /* choices 1.5 -1.5 -.5 .75 */
    struct room r;
    room_init(&r);
    mxc_cpu_moe_choose(&a, logits, bias, &r.moe, r.expert, r.share);
    assert_memory_equal(r.expert, ((int32_t[]){0, 2, 3}), 3 * sizeof(int32_t));
    for (int i = 0; i < 3; i++)
        assert_true(r.share[i] == 0.5f);
    a.normalise = true;
    a.scale = 3;
    mxc_cpu_moe_choose(&a, logits, bias, &r.moe, r.expert, r.share);
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(r.share[i] - 1) < 1e-6f);
}

static void test_lists(void **state) {
    (void)state;
    uint32_t seed = 5;
    for (int32_t n_rows = 1; n_rows <= ROWS; n_rows += 11) {
        struct room r;
        room_init(&r);
        struct mxc_moe_attr a = attr_of(9, TOP, MXC_MOE_SOFTMAX);
        int32_t n = n_rows * TOP, at = 0, last = -1;
        for (int32_t i = 0; i < n; i++) { /* most rows want expert 2 */
            seed = seed * 1664525u + 1013904223u;
            r.expert[i] = i % TOP == 1 ? 2 : (int32_t)(seed >> 20) % 9;
        }
        int32_t blocks = mxc_cpu_moe_list(&a, n_rows, r.expert, &r.moe);
        for (int32_t b = 0; b < blocks; b++) {
            const struct mxc_cpu_moe_block *block = &r.blocks[b];
            assert_int_equal(block->first, at);
            assert_in_range(block->n, 1, MXC_CPU_SMALL_ROWS);
            assert_true(block->expert >= last);
            for (int32_t i = at; i < at + block->n; i++) {
                assert_int_equal(r.expert[r.list[i]], block->expert);
                assert_int_equal(r.place[r.list[i]], i);
                assert_true(i == at || r.list[i] > r.list[i - 1]);
            }
            last = block->expert;
            at += block->n;
        }
        assert_int_equal(at, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ties), cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_cut_groups),
                                       cmocka_unit_test(test_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

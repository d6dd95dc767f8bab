/* Pace on machines that are made up: a step costs a fixed part, one for each sequence, and one for
 * each prompt row. */
#include "base/mem.h"
#include "engine/pace.h"
#include "test.h"

#include <string.h>

struct machine {
    double fixed, seq, row, mixed; /* ns; mixed: once in a step with prompt rows */
    double noise;                  /* of the next step only: a factor */
};

static double time_of(struct machine *m, int32_t n_seqs, int32_t n_rows) {
    double ns = m->fixed + m->seq * n_seqs + m->row * n_rows + (n_rows ? m->mixed : 0);
    if (m->noise > 0)
        ns *= m->noise;
    m->noise = 0;
    return ns;
}

/* One step beside a prompt that never ends; its rows. */
static int32_t step(struct mxc_pace *pace, struct machine *m, int32_t n_seqs) {
    int32_t rows = mxc_pace_rows(pace, n_seqs);
    mxc_pace_note(pace, n_seqs, rows, (uint64_t)time_of(m, n_seqs, rows));
    return rows;
}

static struct mxc_pace pace_of(double stall, int32_t most) {
    struct mxc_pace pace;
    assert_int_equal(mxc_pace_init(&pace, stall, most, 16, NULL), MXC_OK);
    return pace;
}

/* Rows settle where the step takes as long as it may, whatever the machine. */
static void settles(void **state) {
    (void)state;
    static const struct machine machines[] = {
        {2e6, 1e6, 4e5, 0, 0}, {2e6, 1e6, 4e5, 3e6, 0}, {5e7, 1e6, 2e6, 1e7, 0}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct machine m = machines[i];
        struct mxc_pace pace = pace_of(2.5, 256);
        for (int32_t n = 1; n <= 16; n *= 2) {
            double bare = time_of(&m, n, 0), longest = 0;
            int32_t least = 256, n_bare = 0;
            for (int k = 0; k < 200; k++) {
                int32_t rows = step(&pace, &m, n);
                n_bare += !rows;
                if (k < 20)
                    continue;
                longest = time_of(&m, n, rows) > longest ? time_of(&m, n, rows) : longest;
                if (rows && rows < least)
                    least = rows;
            }
            double wanted = (1.5 * bare - m.mixed) / m.row;
            wanted = wanted < 256 ? wanted : 256;
            if (wanted > MXC_PACE_LEAST) {
                assert_true(longest < 2.7 * bare);
                assert_true(least > 0.8 * wanted);
            } else {
                assert_int_equal(least, MXC_PACE_LEAST); /* prompts go on all the same */
            }
            assert_true(n_bare >= 3 && n_bare <= 5);
        }
        mxc_pace_fini(&pace);
    }
}

/* The first step beside an unknown prompt is a small one. */
static void begins_small(void **state) {
    (void)state;
    struct mxc_pace pace = pace_of(2.5, 256);
    struct machine m = {2e6, 1e6, 4e5, 0, 0};
    assert_int_equal(step(&pace, &m, 4), 0);
    assert_int_equal(step(&pace, &m, 4), MXC_PACE_LEAST);
    assert_int_equal(step(&pace, &m, 5), 0);
    assert_true(step(&pace, &m, 5) > MXC_PACE_LEAST); /* a row's cost is known by now */
    mxc_pace_fini(&pace);
}

static void noise_passes(void **state) {
    (void)state;
    struct mxc_pace pace = pace_of(2.5, 256);
    struct machine m = {2e6, 1e6, 1e5, 0, 0};
    int32_t before = 0;
    for (int i = 0; i < 30; i++)
        before = step(&pace, &m, 4);
    m.noise = 50;
    (void)step(&pace, &m, 4);
    assert_true(step(&pace, &m, 4) >= before / 2);
    for (int i = 0; i < 10; i++)
        (void)step(&pace, &m, 4);
    assert_true(step(&pace, &m, 4) > before * 9 / 10);
    /* the short end of a prompt, dear by its fixed part, tells nothing */
    mxc_pace_note(&pace, 4, 1, (uint64_t)(time_of(&m, 4, 1) + 2e6));
    assert_true(mxc_pace_rows(&pace, 4) > before * 9 / 10);
    mxc_pace_fini(&pace);
}

static void off_and_without_a_clock(void **state) {
    (void)state;
    struct mxc_pace pace = pace_of(0, 256);
    mxc_pace_note(&pace, 4, 0, 1000);
    mxc_pace_note(&pace, 4, 10, 100000000);
    assert_int_equal(mxc_pace_rows(&pace, 4), 256);
    mxc_pace_fini(&pace);
    pace = pace_of(2.5, 4); /* fewer than the least */
    struct machine still = {0, 0, 0, 0, 0};
    int32_t n_none = 0;
    for (int i = 0; i < 100; i++) {
        int32_t rows = step(&pace, &still, 4);
        assert_true(rows <= 4);
        n_none += !rows;
    }
    assert_true(n_none <= 2);
    assert_int_equal(mxc_pace_rows(&pace, 17), 4);
    mxc_pace_fini(&pace);
    mxc_mem_fail_at(1);
    assert_int_equal(mxc_pace_init(&pace, 2, 4, 16, NULL), MXC_E_NOMEM);
    mxc_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settles),
        cmocka_unit_test(begins_small),
        cmocka_unit_test(noise_passes),
        cmocka_unit_test(off_and_without_a_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

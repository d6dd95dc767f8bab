/* A controller without a model of the machine: the cost of a row is that of the last steps, with
 * what they cost besides (a fixed part, attention to a long prompt) spread over their rows. When
 * that part is small enough for the limit the number of rows settles where the step takes as long
 * as it may; else it goes down to the least, so that prompts always go on.
 * In: times of steps. Out: rows. When the machine does something else now and then, steps take
 * longer than they should: what a bare step takes follows the faster ones, and the slow ones only a
 * little, so that a busy machine makes for small steps. */
#include "engine/pace.h"

#include "base/mem.h"

enum { RETIME = 64 /* mixed steps, after which one without prompt rows is called for */ };

enum mxc_code mxc_pace_init(struct mxc_pace *pace, double stall, int32_t most, int32_t max_seqs,
                            struct mxc_err *err) {
    struct mxc_pace p = {.stall = stall, .most = most, .max_seqs = max_seqs};
    p.bare_ns = mxc_mem_zalloc((size_t)max_seqs + 1, sizeof *p.bare_ns);
    if (!p.bare_ns)
        return mxc_err_nomem(err);
    *pace = p;
    return MXC_OK;
}

void mxc_pace_fini(struct mxc_pace *pace) {
    mxc_mem_free(pace->bare_ns);
    *pace = (struct mxc_pace){0};
}

int32_t mxc_pace_rows(const struct mxc_pace *pace, int32_t n_seqs) {
    if (pace->stall <= 0 || n_seqs < 1 || n_seqs > pace->max_seqs)
        return pace->most;
    int32_t least = pace->most < MXC_PACE_LEAST ? pace->most : MXC_PACE_LEAST;
    double bare = pace->bare_ns[n_seqs];
    if (bare <= 0 || pace->n_mixed >= RETIME)
        return 0;
    if (pace->row_ns <= 0)
        return least;
    double rows = (pace->stall - 1) * bare / pace->row_ns;
    if (rows >= pace->most)
        return pace->most;
    return rows > least ? (int32_t)rows : least;
}

/* Follows a measured value; a part of the way down, and up to `most` times the old one. */
static double follow(double old, double now, double down, double most) {
    if (old <= 0)
        return now;
    if (now > old)
        return now < most * old ? now : most * old;
    return old + down * (now - old);
}

void mxc_pace_note(struct mxc_pace *pace, int32_t n_seqs, int32_t n_rows, uint64_t ns) {
    if (pace->stall <= 0 || n_seqs < 1 || n_seqs > pace->max_seqs)
        return;
    double took = ns ? (double)ns : 1; /* a clock that stands still */
    double *bare = &pace->bare_ns[n_seqs];
    if (!n_rows) {
        *bare = follow(*bare, took, 0.25, 1.05);
        pace->n_mixed = 0;
        return;
    }
    pace->n_mixed++;
    if (*bare <= 0)
        return;
    double row = took > *bare ? (took - *bare) / n_rows : 1e-3 * *bare;
    /* the end of a prompt: few rows seem dear, for the step's fixed part is theirs alone */
    if (n_rows < mxc_pace_rows(pace, n_seqs) / 2 && row > pace->row_ns)
        return;
    pace->row_ns = follow(pace->row_ns, row, 0.5, 1.5);
}

/* Pace: how many prompt rows a step may take while others generate, so that it lasts at most
 * `stall` times as long as a step without any. In: what steps took. Out: a number of rows.
 *
 * A step without prompt rows is timed for every number of sequences that generate; one is called
 * for (0 rows) when there is no such figure, or an old one. What the steps with prompt rows take
 * more gives the cost of a row. Only times depend on it: answers do not depend on how a prompt is
 * cut. Thread rules: the stepping thread only. */
#ifndef MXC_ENGINE_PACE_H
#define MXC_ENGINE_PACE_H

#include "base/err.h"

#include <stdint.h>

enum { MXC_PACE_LEAST = 8 };

struct mxc_pace {
    double stall;     /* 0: no limit but `most` */
    int32_t most;     /* rows, however fast they are */
    int32_t max_seqs; /* that generate in a step */
    double *bare_ns;  /* [max_seqs + 1] of a step without prompt rows; 0: not known */
    double row_ns;    /* of a prompt row; 0: not known */
    int32_t n_mixed;  /* steps with prompt rows since the last one without */
};

enum mxc_code mxc_pace_init(struct mxc_pace *pace, double stall, int32_t most, int32_t max_seqs,
                            struct mxc_err *err) MXC_MUST;
void mxc_pace_fini(struct mxc_pace *pace);
/* Most prompt rows of a step in which n_seqs (> 0) generate: at least MXC_PACE_LEAST (or `most`,
 * when that is less); 0: this step is one to be timed without. */
int32_t mxc_pace_rows(const struct mxc_pace *pace, int32_t n_seqs);
/* A step in which n_seqs generated, with n_rows prompt rows beside them, took that long. */
void mxc_pace_note(struct mxc_pace *pace, int32_t n_seqs, int32_t n_rows, uint64_t ns);

#endif

/* Choice: the form of a model's programs, by measurement. A decode program of the first two turns
 * of the longest run of like layers is compiled and run in each form that comes into question: like
 * layers as a loop or one after the other, products of one row as dots or as multiply-and-reduce.
 * The fastest is taken; layers one after the other compile in a time that grows with their number,
 * so many of them must win clearly. What was found is kept in the cache folder under a key of the
 * plugin, the processor and the program's text (so of all shapes), and later starts measure
 * nothing. Without such a folder, for small models, on several devices and for towers the default
 * is taken. */
#ifndef MXC_BACKEND_XLA_CHOICE_H
#define MXC_BACKEND_XLA_CHOICE_H

#include "backend/xla/plan.h"

/* Forms that were compared, for tests and logs. */
enum { MXC_XLA_MAX_FORMS = 4 };
struct mxc_xla_measured {
    int n; /* 0: nothing was measured */
    bool remembered;
    struct mxc_xla_form forms[MXC_XLA_MAX_FORMS];
    double seconds[MXC_XLA_MAX_FORMS]; /* of a run of two turns, the best of some */
};

/* What is taken where nothing is measured: a loop, dots, large matrices in pieces. */
struct mxc_xla_form mxc_xla_form_default(const struct mxc_xla_model *model);
/* Index of the best of measured forms, form 0 being the default. nodes: of the whole graph. */
int mxc_xla_form_best(const struct mxc_xla_measured *measured, int32_t nodes);
/* Sets plan->form, of which `narrow` is set already. The weights are packed. A model of fewer bytes
 * than `least` gets the default. measured may be NULL. */
enum mxc_code mxc_xla_form_choose(struct mxc_plan *plan, size_t least,
                                  struct mxc_xla_measured *measured, struct mxc_err *err) MXC_MUST;

#endif

/* The table of lowerings: one row per op in MXC_XLA_LOWERS. An op without a row is refused when a
 * model is made, by name. */
#include "backend/xla/lower.h"

mxc_xla_lower_fn *mxc_xla_lower_find(enum mxc_op op) {
#define X(NAME, name) [MXC_OP_##NAME] = mxc_xla_lower_##name,
    static mxc_xla_lower_fn *const table[MXC_N_OPS] = {MXC_XLA_LOWERS(X)};
#undef X
    return op < MXC_N_OPS ? table[op] : NULL;
}

/* Joins MLX's quantised matrices to one tensor each: X.weight (u32 words) with X.scales and, in
 * mode affine, X.biases; in modes mxfp4, mxfp8 and nvfp4 the scales are bytes and there are no
 * biases. Bits and group come from the config's quantization object (defaults, and overrides per
 * module under any spelling of the prefix), else from the shapes where they leave one reading only.
 */
#ifndef MXC_FORMAT_MLX_JOIN_H
#define MXC_FORMAT_MLX_JOIN_H

#include "format/join.h"

/* Errors name file and tensor: scales without weight or biases, shapes, bits or a mode that
 * contradict each other or the config. */
enum mxc_code mxc_mlx_join(struct mxc_join *join) MXC_MUST;

#endif

/* Joins MLX's weight + scales + biases to one quantised tensor.
 * Bits and group come from the config's quantization object (defaults, and overrides per module
 * under any spelling of the prefix), else from the shapes where they leave one reading only. */
#ifndef MXC_FORMAT_MLX_JOIN_H
#define MXC_FORMAT_MLX_JOIN_H

#include "base/json.h"
#include "base/map.h"
#include "format/weights.h"

/* tensors [n] as they stand in the files; by_name gives indices into it. quantization may be NULL.
 * Weights are changed in place; gone[i] becomes true for the scales and biases that were joined.
 * Errors name file and tensor: scales without weight or biases, shapes or bits that contradict
 * each other or the config, a mode other than affine. */
enum mxc_code mxc_mlx_join(struct mxc_tensor *tensors, size_t n, const struct mxc_map *by_name,
                           const json_t *quantization, bool *gone, struct mxc_err *err) MXC_MUST;

#endif

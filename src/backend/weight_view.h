/* Weight views: where a weight of a graph stands in a checkpoint. What weights.h finds by name is
 * seen through the weight's own view (graph.h), matrix by matrix of a stack; numbers are not read
 * but for vectors. Both backends plan their weights from these. */
#ifndef MXC_BACKEND_WEIGHT_VIEW_H
#define MXC_BACKEND_WEIGHT_VIEW_H

#include "format/view.h"
#include "format/weights.h"
#include "graph/graph.h"

/* Views of a weight: one for each matrix of a stack, else one for each of its tensors. */
int64_t mxc_weight_n_views(const struct mxc_weight *weight);
/* Whether all of its tensors are there, of the right shapes. To be asked before memory is taken for
 * the views: until then their number is only the graph's word. */
enum mxc_code mxc_weight_find(const struct mxc_weights *weights, const struct mxc_weight *weight,
                              struct mxc_err *err) MXC_MUST;
/* Fills views [n_views], which borrow the checkpoint's tensors, or those of a flat weight: flats
 * [n_views], the tensors under the weight's own shape, is written then (else it may be NULL) and
 * must outlive the views. What is cut from a tensor must lie in it (MXC_E_FORMAT names the tensor).
 * On failure both hold nothing of use. */
enum mxc_code mxc_weight_views(const struct mxc_weights *weights, const struct mxc_weight *weight,
                               struct mxc_view *views, struct mxc_tensor *flats,
                               struct mxc_err *err) MXC_MUST;
/* Decodes a vector (MXC_W_VECTOR) to out [slices][n]. row: room for the widest row of its tensors.
 */
void mxc_weight_vector(const struct mxc_weight *weight, const struct mxc_view *views, float *out,
                       float *row);

#endif

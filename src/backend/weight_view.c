/* Weight views, see weight_view.h. In: weights of a finished graph and an open checkpoint, whose
 * sizes are somebody else's word: sums and products of them are checked. Out: views that fit. */
#include "backend/weight_view.h"

#include "base/mem.h"

int64_t mxc_weight_n_views(const struct mxc_weight *w) {
    return w->role == MXC_W_STACK ? w->shape[0] : mxc_weight_tensors(w);
}

/* With no views only: is everything there? */
static enum mxc_code find_tensors(const struct mxc_weights *weights, const struct mxc_weight *w,
                                  struct mxc_view *views, struct mxc_err *err) {
    int64_t shape[MXC_MAX_VIEW_DIMS] = {0}, n = mxc_weight_tensors(w);
    int n_dims = mxc_weight_tensor_shape(w, shape);
    const struct mxc_tensor *tensor = NULL;
    for (int64_t i = 0; i < (views ? mxc_weight_n_views(w) : n); i++) {
        char name[MXC_MAX_WEIGHT_NAME];
        if (i < n) {
            mxc_weight_tensor_name(w, i, name);
            enum mxc_code code = mxc_weights_get(weights, name, n_dims, shape, &tensor, err);
            if (code)
                return code;
        }
        if (views)
            views[i] = mxc_view_whole(tensor);
    }
    return MXC_OK;
}

enum mxc_code mxc_weight_find(const struct mxc_weights *weights, const struct mxc_weight *w,
                              struct mxc_err *err) {
    return find_tensors(weights, w, NULL, err);
}

static enum mxc_code misfit(const struct mxc_tensor *t, struct mxc_err *err) {
    const char *path = t->file && t->file->path ? t->file->path : "";
    return mxc_err_set(err, MXC_E_FORMAT,
                       "%s: tensor %s: %lld rows of %lld do not hold what is cut from it", path,
                       t->name, (long long)mxc_tensor_rows(t), (long long)mxc_tensor_columns(t));
}

/* Where slice s of a matrix or stack stands in its tensor. */
static enum mxc_code view_slice(const struct mxc_weight *w, int64_t s, struct mxc_view *view,
                                struct mxc_err *err) {
    const struct mxc_weight_view *v = &w->view;
    size_t at = 0, skipped = 0;
    view->n = w->shape[w->n_dims - 2];
    view->k = w->shape[w->n_dims - 1];
    if (v->n_dims && !v->flat) {
        skipped = (size_t)v->stride;
        view->row0 = v->row0;
        view->row_step = v->row_step;
        view->col0 = v->col0;
        view->col_step = v->col_step;
        view->transposed = v->transposed;
    } else if (w->role == MXC_W_STACK && mxc_weight_tensors(w) == 1) {
        skipped = (size_t)view->n;
    }
    if (!mxc_size_mul((size_t)s, skipped, &at) || !mxc_size_add(at, (size_t)view->row0, &at) ||
        at > INT64_MAX / 2)
        return misfit(view->tensor, err);
    view->row0 = (int64_t)at;
    return mxc_view_fits(view) ? MXC_OK : misfit(view->tensor, err);
}

/* A vector that is cut from something counts numbers: the last one must be there. */
static enum mxc_code check_vector(const struct mxc_weight *w, const struct mxc_view *views,
                                  struct mxc_err *err) {
    const struct mxc_weight_view *v = &w->view;
    int64_t slices = w->n_dims > 1 ? w->shape[0] : 1, n = w->shape[w->n_dims - 1];
    int64_t n_views = mxc_weight_n_views(w);
    for (int64_t i = 0; v->n_dims && !v->flat && i < n_views; i++) {
        const struct mxc_tensor *t = views[i].tensor;
        size_t last, step, have;
        if (!mxc_size_mul((size_t)(n_views > 1 ? i : slices - 1), (size_t)v->stride, &last) ||
            !mxc_size_add(last, (size_t)v->row0, &last) ||
            !mxc_size_mul((size_t)(n - 1), (size_t)v->row_step, &step) ||
            !mxc_size_add(last, step, &last) ||
            !mxc_size_mul((size_t)mxc_tensor_rows(t), (size_t)mxc_tensor_columns(t), &have) ||
            last >= have)
            return misfit(t, err);
    }
    return MXC_OK;
}

/* The tensors of a flat weight under the weight's own shape. */
static enum mxc_code flatten(const struct mxc_weight *w, struct mxc_view *views,
                             struct mxc_tensor *flats, struct mxc_err *err) {
    int64_t shape[2] = {1, w->shape[w->n_dims - 1]};
    for (int i = mxc_weight_tensors(w) > 1 ? 1 : 0; i < w->n_dims - 1; i++)
        shape[0] *= w->shape[i];
    for (int64_t i = 0; i < mxc_weight_n_views(w); i++) {
        const struct mxc_tensor *t = views[i].tensor;
        if (!mxc_tensor_is_plain(t) ||
            mxc_tensor_rows(t) * mxc_tensor_columns(t) != shape[0] * shape[1])
            return misfit(t, err);
        flats[i] = mxc_tensor_reshape(t, 2, shape);
        views[i] = mxc_view_whole(&flats[i]);
    }
    return MXC_OK;
}

enum mxc_code mxc_weight_views(const struct mxc_weights *weights, const struct mxc_weight *w,
                               struct mxc_view *views, struct mxc_tensor *flats,
                               struct mxc_err *err) {
    enum mxc_code code = find_tensors(weights, w, views, err);
    if (!code && w->view.flat)
        code = flatten(w, views, flats, err);
    if (code || w->role == MXC_W_TABLE)
        return code;
    if (w->role == MXC_W_VECTOR)
        return check_vector(w, views, err);
    for (int64_t i = 0; !code && i < mxc_weight_n_views(w); i++)
        code = view_slice(w, i, &views[i], err);
    return code;
}

/* ---- vectors */

/* Number i of a tensor, whose row that it is in is kept in `row`. */
static float number_at(const struct mxc_tensor *tensor, int64_t i, float *row, int64_t *have) {
    int64_t columns = mxc_tensor_columns(tensor);
    if (*have != i / columns) {
        *have = i / columns;
        mxc_tensor_row(tensor, *have, row);
    }
    return row[i % columns];
}

void mxc_weight_vector(const struct mxc_weight *w, const struct mxc_view *views, float *out,
                       float *row) {
    const struct mxc_weight_view *v = &w->view;
    int64_t slices = w->n_dims > 1 ? w->shape[0] : 1, n = w->shape[w->n_dims - 1], have = -1;
    bool many = mxc_weight_n_views(w) > 1;
    int64_t step = v->n_dims ? v->row_step : 1; /* flat: 1 */
    int64_t stride = v->n_dims && !v->flat ? v->stride : many ? 0 : n;
    for (int64_t s = 0; s < slices; s++) {
        if (many)
            have = -1;
        for (int64_t i = 0; i < n; i++)
            out[s * n + i] =
                number_at(views[many ? s : 0].tensor, v->row0 + s * stride + i * step, row, &have);
    }
}

/* Tensors that become memory. In: a tensor of the weights, which stands in a file. Out: the same
 * tensor with the pieces that an operation changes copied, once however many operations follow.
 * Invariants: codes of MLX affine matrices and of storages with parts stay in their files; the
 * weights never hand out memory that has been released. */
#include "surgery/private.h"

#include "base/mem.h"
#include "quant/decode.h"

#include <string.h>

bool mxc_cut_is_float(const struct mxc_tensor *t) {
    return !t->parts && (t->storage == MXC_ST_F32 || t->storage == MXC_ST_F16 ||
                         t->storage == MXC_ST_BF16 || t->storage == MXC_ST_F64);
}

enum mxc_code mxc_cut_refuse(const struct mxc_patient *p, const struct mxc_tensor *t,
                             const char *why) {
    char name[MXC_STORAGE_NAME];
    mxc_tensor_storage_name(t, name);
    return mxc_err_set(p->err, MXC_E_UNSUPPORTED, "tensor %s is stored as %s: %s", t->name, name,
                       why);
}

/* bytes of memory, counted; NULL with the error set. */
static uint8_t *take(const struct mxc_patient *p, struct mxc_cut_memory *m, size_t bytes) {
    uint8_t *memory = mxc_mem_alloc(bytes ? bytes : 1);
    if (!memory) {
        (void)mxc_err_nomem(p->err);
        return NULL;
    }
    m->bytes += bytes;
    p->surgery->bytes += bytes;
    return memory;
}

static void copy_floats(const struct mxc_tensor *t, uint8_t *to) {
    size_t width = mxc_storage_info(t->storage)->block_bytes;
    size_t rows = (size_t)mxc_tensor_rows(t), row_bytes = (size_t)mxc_tensor_columns(t) * width;
    if (!t->permuted_heads) {
        memcpy(to, t->data, t->bytes);
        return;
    }
    if (t->n_dims > 1) {
        for (size_t r = 0; r < rows; r++)
            memcpy(to + r * row_bytes, mxc_tensor_row_data(t, (int64_t)r), row_bytes);
        return;
    }
    /* a bias: its numbers are rows of one column */
    struct mxc_tensor column = mxc_tensor_reshape(t, 2, (const int64_t[]){t->shape[0], 1});
    for (size_t i = 0; i < (size_t)t->shape[0]; i++)
        memcpy(to + i * width, mxc_tensor_row_data(&column, (int64_t)i), width);
}

static enum mxc_code own_data(const struct mxc_patient *p, struct mxc_tensor *t,
                              struct mxc_cut_memory *m) {
    if (m->data)
        return MXC_OK;
    if (!(m->data = take(p, m, t->bytes)))
        return MXC_E_NOMEM;
    if (mxc_cut_is_float(t)) {
        copy_floats(t, m->data);
        t->permuted_heads = 0;
    } else if (t->bytes) {
        memcpy(m->data, t->data, t->bytes);
    }
    t->data = m->data;
    return MXC_OK;
}

static enum mxc_code own_affine(const struct mxc_patient *p, struct mxc_tensor *t,
                                struct mxc_cut_memory *m) {
    size_t bytes = (size_t)mxc_tensor_rows(t) * ((size_t)mxc_tensor_columns(t) / t->group) *
                   mxc_storage_info(t->scale_storage)->block_bytes;
    if (m->scales)
        return MXC_OK;
    if (!m->biases) {
        if (!(m->biases = take(p, m, bytes)))
            return MXC_E_NOMEM;
        memcpy(m->biases, t->biases, bytes);
    }
    if (!(m->scales = take(p, m, bytes)))
        return MXC_E_NOMEM;
    memcpy(m->scales, t->scales, bytes);
    t->scales = m->scales;
    t->biases = m->biases;
    return MXC_OK;
}

static enum mxc_code own_parts(const struct mxc_patient *p, struct mxc_tensor *t,
                               struct mxc_cut_memory *m) {
    const struct mxc_quant_parts *from = t->parts;
    if (m->scales)
        return MXC_OK;
    struct mxc_quant_parts *parts = mxc_arena_alloc(&p->surgery->arena, sizeof *parts);
    if (!parts)
        return mxc_err_nomem(p->err);
    size_t last = (from->n ? (from->n - 1) / from->scale_rows : 0) * from->scale_step_r +
                  (from->n_groups ? from->n_groups - 1 : 0) * from->scale_step_g;
    if (!(m->scales = take(p, m, (last + 1) * sizeof(float))))
        return MXC_E_NOMEM;
    m->n_scales = last + 1;
    for (size_t i = 0; i <= last; i++) {
        float scale;
        size_t width = mxc_storage_info(from->scale_storage)->block_bytes;
        mxc_quant_decode(from->scale_storage, from->scales + i * width, 1, &scale);
        memcpy(m->scales + i * sizeof scale, &scale, sizeof scale);
    }
    *parts = *from;
    parts->scales = m->scales;
    parts->scale_storage = MXC_ST_F32;
    t->parts = parts;
    return MXC_OK;
}

enum mxc_code mxc_cut_own(const struct mxc_patient *p, size_t index, struct mxc_tensor *t,
                          struct mxc_cut_memory *memory) {
    struct mxc_cut_memory *m = &p->surgery->memory[index];
    const struct mxc_tensor before = *mxc_weights_at(p->weights, index);
    bool in_file = !m->bytes && !m->data && !m->scales;
    *t = before;
    enum mxc_code code = t->parts                          ? own_parts(p, t, m)
                         : t->storage == MXC_ST_MLX_AFFINE ? own_affine(p, t, m)
                                                           : own_data(p, t, m);
    if (code)
        return code;
    if (in_file && !t->parts && t->storage != MXC_ST_MLX_AFFINE)
        mxc_tensor_drop(&before, 0, mxc_tensor_rows(&before));
    mxc_weights_set(p->weights, index, t);
    *memory = *m;
    return MXC_OK;
}

void mxc_cut_set(const struct mxc_patient *p, size_t index, const struct mxc_tensor *t) {
    struct mxc_cut_memory *m = &p->surgery->memory[index];
    mxc_weights_set(p->weights, index, t);
    mxc_mem_free(m->data);
    mxc_mem_free(m->scales);
    mxc_mem_free(m->biases);
    p->surgery->bytes -= m->bytes;
    *m = (struct mxc_cut_memory){.data = NULL};
}

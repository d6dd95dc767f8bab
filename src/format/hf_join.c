/* Hugging Face's quantised matrices, see hf_join.h. In: raw tensors and the config's section. Out:
 * tensors with parts (quant/parts.h), every size of which agrees with the bytes that are there.
 * Which modules are quantised is told by their tensors; the config adds what bytes do not show. */
#include "format/hf_join.h"

#include "format/hf_quant.h"
#include "quant/decode.h"

#include <string.h>

struct hf {
    struct mxc_join *j;
    struct mxc_hf_quant q;
};

/* ---- pieces */

static enum mxc_code rename_to(struct hf *h, struct mxc_tensor *w, const char *module,
                               const char *suffix) {
    const struct mxc_tensor *other = mxc_join_find(h->j, module, suffix);
    if (other && other != w)
        return mxc_err_set(h->j->err, MXC_E_FORMAT, "%s: tensor %s: %s stands beside it",
                           w->file->path, w->name, other->name);
    const char *name = mxc_arena_printf(h->j->arena, "%s%s", module, suffix);
    if (!name)
        return mxc_err_nomem(h->j->err);
    w->name = name;
    return MXC_OK;
}

static enum mxc_code missing(struct hf *h, const struct mxc_tensor *w, const char *module,
                             const char *suffix) {
    return mxc_err_set(h->j->err, MXC_E_FORMAT, "%s: tensor %s: there is no %.300s%s beside it",
                       w->file->path, w->name, module, suffix);
}

static enum mxc_code bad_shape(struct hf *h, const struct mxc_tensor *t, const char *beside) {
    return mxc_err_set(h->j->err, MXC_E_FORMAT, "%s: tensor %s: its shape does not go with %s",
                       t->file->path, t->name, beside);
}

static bool is_word(enum mxc_storage s) {
    return s == MXC_ST_I32 || s == MXC_ST_U32;
}

static bool has_shape2(const struct mxc_tensor *t, int64_t a, int64_t b) {
    return t->n_dims == 2 && t->shape[0] == a && t->shape[1] == b;
}

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* A piece of one f32, f16 or bf16 number. */
static enum mxc_code read_scalar(struct hf *h, const struct mxc_tensor *t, float *out) {
    if (!mxc_join_is_float(t->storage) || mxc_join_numbers(t) != 1)
        return mxc_join_refuse(h->j, t, MXC_E_FORMAT, "it is not one float number");
    mxc_quant_decode(t->storage, t->data, 1, out);
    if (!(*out > 0 && *out <= 3.4e38f))
        return mxc_join_refuse(h->j, t, MXC_E_FORMAT, "it is not a positive number");
    return MXC_OK;
}

/* ---- group indices */

/* Checks indices and drops those that say nothing: column c in group c / group. */
static enum mxc_code settle_order(struct hf *h, const struct mxc_tensor *t,
                                  struct mxc_quant_parts *p) {
    bool plain = true;
    if (t->storage != MXC_ST_I32 || mxc_join_numbers(t) != (int64_t)p->k)
        return mxc_join_refuse(h->j, t, MXC_E_FORMAT,
                               "it is not one I32 number for each column of the matrix");
    for (size_t c = 0; c < p->k; c++) {
        uint32_t g = load_u32(t->data + 4 * c);
        if (g >= p->n_groups)
            return mxc_err_set(h->j->err, MXC_E_FORMAT,
                               "%s: tensor %s: group %d of column %zu is out of range: there are "
                               "%zu groups",
                               t->file->path, t->name, (int)g, c, p->n_groups);
        plain = plain && g == c / p->group;
    }
    p->order = plain ? NULL : t->data;
    return MXC_OK;
}

/* Columns of a group from what the config says and how many groups there are. */
static enum mxc_code settle_group(struct hf *h, const struct mxc_tensor *scales,
                                  struct mxc_quant_parts *p, int64_t given) {
    size_t group = given > 0 ? (size_t)given : 0, n = p->n_groups;
    if (!n)
        return mxc_join_refuse(h->j, scales, MXC_E_FORMAT, "it has no groups");
    if (n == 1)
        group = p->k;
    else if (!group && p->k % n == 0)
        group = p->k / n;
    if (!group || (p->k + group - 1) / group != n)
        return mxc_err_set(h->j->err, MXC_E_FORMAT,
                           "%s: tensor %s: %zu groups of %zu do not make up %zu columns",
                           scales->file->path, scales->name, n, group, p->k);
    p->group = group;
    return MXC_OK;
}

/* Where every zero point is the same, the matrix has one: it then needs no biases. */
static void settle_zeros(struct mxc_quant_parts *p, size_t words) {
    const uint32_t ones = p->bits == 4 ? 0x11111111u : p->bits == 8 ? 0x01010101u : 0x55555555u;
    const uint32_t mask = (1u << p->bits) - 1;
    if (p->bits == 3 || p->zero_layout == MXC_ZEROS_I8 || !words)
        return;
    uint32_t first = load_u32(p->zeros);
    if (first != (first & mask) * ones)
        return;
    for (size_t i = 1; i < words; i++)
        if (load_u32(p->zeros + 4 * i) != first)
            return;
    p->zero_point += (int)(first & mask);
    p->zero_layout = MXC_ZEROS_NONE;
    p->zeros = NULL;
}

/* ---- GPTQ and AWQ */

static enum mxc_code read_bits(struct hf *h, const struct mxc_tensor *w,
                               const struct mxc_tensor *order, struct mxc_quant_parts *p) {
    int64_t words = w->shape[0], bits = h->q.bits;
    if (order) {
        int64_t k = mxc_join_numbers(order), own = k > 0 ? words * 32 / k : 0;
        if (!own)
            return bad_shape(h, order, w->name);
        if (bits && own != bits && !h->q.dynamic)
            return mxc_err_set(
                h->j->err, MXC_E_FORMAT,
                "%s: tensor %s: %lld words for %lld columns are not the %lld bits of "
                "the config",
                w->file->path, w->name, (long long)words, (long long)k, (long long)bits);
        if (!own)
            return bad_shape(h, order, w->name);
        bits = own;
    }
    if (!bits)
        return mxc_join_refuse(h->j, w, MXC_E_FORMAT,
                               "its bits are unknown: no .g_idx and no quantization_config");
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return mxc_err_set(h->j->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: %lld bits are not supported (2, 3, 4 and 8 are)",
                           w->file->path, w->name, (long long)bits);
    if (words * 32 % bits || words * 32 / bits % 32 || w->shape[1] * bits % 32)
        return mxc_join_refuse(h->j, w, MXC_E_UNSUPPORTED, "its extents are no multiples of 32");
    p->bits = (uint32_t)bits;
    p->k = (size_t)(words * 32 / bits);
    p->n = (size_t)w->shape[1];
    return MXC_OK;
}

static enum mxc_code join_gptq(struct hf *h, struct mxc_tensor *w, const struct mxc_tensor *scales,
                               const struct mxc_tensor *zeros, const struct mxc_tensor *order,
                               struct mxc_quant_parts *p) {
    int64_t groups = scales->shape[0];
    enum mxc_code code = read_bits(h, w, order, p);
    if (code)
        return code;
    if (!has_shape2(zeros, groups, (int64_t)(p->n * p->bits / 32)))
        return bad_shape(h, zeros, w->name);
    p->layout = MXC_CODES_COLUMNS;
    p->n_groups = (size_t)groups;
    p->zero_layout = MXC_ZEROS_GROUPS;
    p->zero_point = h->q.zero_offset;
    bool even = groups > 0 && p->k % p->n_groups == 0;
    return settle_group(h, scales, p, h->q.dynamic && even ? 0 : h->q.group);
}

static enum mxc_code join_awq(struct hf *h, struct mxc_tensor *w, const struct mxc_tensor *scales,
                              const struct mxc_tensor *zeros, struct mxc_quant_parts *p) {
    int64_t groups = scales->shape[0];
    if (h->q.bits && h->q.bits != 4)
        return mxc_err_set(h->j->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: AWQ with %lld bits is not supported (4 are)",
                           w->file->path, w->name, (long long)h->q.bits);
    if (!has_shape2(zeros, groups, w->shape[1]))
        return bad_shape(h, zeros, w->name);
    p->layout = MXC_CODES_AWQ;
    p->bits = 4;
    p->k = (size_t)w->shape[0];
    p->n = (size_t)w->shape[1] * 8;
    p->n_groups = (size_t)groups;
    p->zero_layout = MXC_ZEROS_AWQ;
    return settle_group(h, scales, p, h->q.group);
}

/* .qweight: which of the two it is shows in the extents, and must be what the config says. */
static enum mxc_code join_qweight(struct hf *h, struct mxc_tensor *w) {
    struct mxc_join *j = h->j;
    char module[MXC_JOIN_MAX_NAME];
    enum mxc_code code = mxc_join_module(j, w, ".qweight", module);
    if (code)
        return code;
    struct mxc_tensor *scales = mxc_join_find(j, module, ".scales");
    struct mxc_tensor *zeros = mxc_join_find(j, module, ".qzeros");
    struct mxc_tensor *order = mxc_join_find(j, module, ".g_idx");
    if (!scales || !zeros)
        return missing(h, w, module, scales ? ".qzeros" : ".scales");
    if (!is_word(w->storage) || !is_word(zeros->storage))
        return mxc_join_refuse(j, is_word(w->storage) ? zeros : w, MXC_E_FORMAT,
                               "its dtype is not I32");
    if (!mxc_join_is_float(scales->storage))
        return mxc_join_refuse(j, scales, MXC_E_FORMAT, "its dtype is no float");
    if (w->n_dims != 2 || scales->n_dims != 2 || w->shape[0] < 1 || w->shape[1] < 1)
        return bad_shape(h, w->n_dims == 2 ? scales : w, w->n_dims == 2 ? w->name : "a matrix");
    bool awq = scales->shape[1] / 8 == w->shape[1] && scales->shape[1] % 8 == 0;
    if (!awq && scales->shape[1] != w->shape[1])
        return bad_shape(h, scales, w->name);
    if (h->q.method != MXC_HF_NONE && (h->q.method == MXC_HF_AWQ) != awq)
        return mxc_join_refuse(j, w, MXC_E_FORMAT,
                               awq ? "its shape is that of AWQ, not of the config's method"
                                   : "its shape is that of GPTQ, not of the config's method");
    struct mxc_quant_parts p = {.number = MXC_ST_U8,
                                .codes = w->data,
                                .scales = scales->data,
                                .zeros = zeros->data,
                                .scale_storage = scales->storage,
                                .scale_rows = 1,
                                .scale_step_r = 1};
    if (order && !mxc_join_numbers(order))
        order = NULL;
    code = awq ? join_awq(h, w, scales, zeros, &p) : join_gptq(h, w, scales, zeros, order, &p);
    if (!code && order && !awq)
        code = settle_order(h, order, &p);
    p.scale_step_g = p.n;
    if (!code)
        settle_zeros(&p, zeros->bytes / 4);
    if (!code)
        code = rename_to(h, w, module, ".weight");
    if (!code)
        code = mxc_join_parts(j, w, awq ? MXC_ST_AWQ : MXC_ST_GPTQ, &p);
    if (code)
        return code;
    w->shape[0] = (int64_t)p.n;
    w->shape[1] = (int64_t)p.k;
    w->scales_file = scales->file;
    mxc_join_take(j, w, scales);
    mxc_join_take(j, w, zeros);
    mxc_join_take(j, w, mxc_join_find(j, module, ".g_idx"));
    return MXC_OK;
}

/* ---- scales of compressed-tensors and fp8 */

/* Scales [..rows, groups] in row order, one a row, or one in all. */
static enum mxc_code plain_scales(struct hf *h, const struct mxc_tensor *w,
                                  const struct mxc_tensor *s, struct mxc_quant_parts *p) {
    int64_t numbers = mxc_join_numbers(s), n = (int64_t)p->n;
    p->scales = s->data;
    p->scale_storage = s->storage;
    p->scale_rows = 1;
    p->scale_step_g = 1;
    p->n_groups = 1;
    p->group = p->k;
    if (numbers == 1) {
        p->scale_step_r = 0;
    } else if (numbers == n) {
        p->scale_step_r = 1;
    } else if (w->n_dims == 3 && numbers == w->shape[0]) { /* one an expert */
        p->scale_rows = (size_t)w->shape[1];
        p->scale_step_r = 1;
    } else {
        if (numbers < 1 || s->n_dims < 2 || mxc_tensor_rows(s) != n)
            return bad_shape(h, s, w->name);
        p->n_groups = p->scale_step_r = (size_t)s->shape[s->n_dims - 1];
        return settle_group(h, s, p, 0);
    }
    return MXC_OK;
}

/* One scale for a block of rows and columns, the last ones of which may be smaller. */
static enum mxc_code block_scales(struct hf *h, const struct mxc_tensor *w,
                                  const struct mxc_tensor *s, struct mxc_quant_parts *p) {
    int64_t rows = h->q.block_rows ? h->q.block_rows : 128;
    int64_t columns = h->q.block_columns ? h->q.block_columns : 128;
    int64_t n = w->shape[w->n_dims - 2], k = (int64_t)p->k;
    int64_t down = (n + rows - 1) / rows, across = (k + columns - 1) / columns;
    if (s->n_dims != w->n_dims || s->shape[s->n_dims - 2] != down ||
        s->shape[s->n_dims - 1] != across || (w->n_dims == 3 && s->shape[0] != w->shape[0]))
        return plain_scales(h, w, s, p);
    if (w->n_dims == 3 && n % rows)
        return mxc_join_refuse(h->j, w, MXC_E_UNSUPPORTED,
                               "the rows of an expert are no whole number of blocks");
    p->scales = s->data;
    p->scale_storage = s->storage;
    p->scale_rows = (size_t)rows;
    p->scale_step_r = (size_t)across;
    p->scale_step_g = 1;
    p->n_groups = (size_t)across;
    p->group = (size_t)columns;
    return MXC_OK;
}

static struct mxc_quant_parts row_parts(const struct mxc_tensor *w, uint32_t bits) {
    size_t n = (size_t)mxc_tensor_rows(w);
    return (struct mxc_quant_parts){
        .number = MXC_ST_U8,
        .layout = MXC_CODES_ROWS,
        .bits = bits,
        .n = n,
        .row_bytes = n ? w->bytes / n : 0,
        .codes = w->data,
    };
}

/* .weight of fp8 or int8 with .weight_scale or .weight_scale_inv. */
static enum mxc_code join_weight(struct hf *h, struct mxc_tensor *w) {
    struct mxc_join *j = h->j;
    char module[MXC_JOIN_MAX_NAME];
    enum mxc_code code = mxc_join_module(j, w, ".weight", module);
    if (code)
        return code;
    struct mxc_tensor *s = mxc_join_find(j, module, ".weight_scale");
    if (!s)
        s = mxc_join_find(j, module, ".weight_scale_inv");
    bool integers = w->storage == MXC_ST_I8;
    if (!s && h->q.method != MXC_HF_NONE)
        return missing(h, w, module, ".weight_scale");
    if (!s)
        return MXC_OK; /* numbers that stand for themselves, or no weight */
    if (w->n_dims < 2 || w->n_dims > 3 || mxc_join_numbers(w) < 1)
        return bad_shape(h, w, "a matrix");
    if (!mxc_join_is_float(s->storage) && s->storage != MXC_ST_F8_E8M0)
        return mxc_join_refuse(j, s, MXC_E_FORMAT, "its dtype is no float");
    struct mxc_quant_parts p = row_parts(w, 8);
    p.k = (size_t)w->shape[w->n_dims - 1];
    struct mxc_tensor *zeros = mxc_join_find(j, module, ".weight_zero_point");
    if (integers) {
        p.layout = MXC_CODES_I8;
        p.zero_point = 128;
        code = plain_scales(h, w, s, &p);
    } else {
        p.number = w->storage;
        code = block_scales(h, w, s, &p);
    }
    if (!code && integers && zeros) {
        if (zeros->storage != MXC_ST_I8 || mxc_join_numbers(zeros) != (int64_t)(p.n * p.n_groups))
            return bad_shape(h, zeros, w->name);
        p.zero_layout = MXC_ZEROS_I8;
        p.zeros = zeros->data;
    }
    if (!code)
        code = mxc_join_parts(j, w, integers ? MXC_ST_INT_GROUPS : MXC_ST_FP8, &p);
    if (code)
        return code;
    w->scales_file = s->file;
    mxc_join_take(j, w, s);
    mxc_join_take(j, w, zeros);
    return MXC_OK;
}

/* ---- compressed-tensors' packed integers */

static enum mxc_code read_shape(struct hf *h, const struct mxc_tensor *w, const char *module,
                                int64_t shape[2]) {
    const struct mxc_tensor *t = mxc_join_find(h->j, module, ".weight_shape");
    if (!t)
        return missing(h, w, module, ".weight_shape");
    if ((t->storage != MXC_ST_I64 && t->storage != MXC_ST_I32) || mxc_join_numbers(t) != 2)
        return mxc_join_refuse(h->j, t, MXC_E_FORMAT, "it is not two integers");
    for (int i = 0; i < 2; i++) {
        if (t->storage == MXC_ST_I64) {
            memcpy(&shape[i], t->data + 8 * i, 8);
        } else {
            int32_t v;
            memcpy(&v, t->data + 4 * i, 4);
            shape[i] = v;
        }
        if (shape[i] < 1 || shape[i] > INT32_MAX)
            return mxc_join_refuse(h->j, t, MXC_E_FORMAT, "its numbers are out of range");
    }
    return MXC_OK;
}

static enum mxc_code packed_zeros(struct hf *h, const struct mxc_tensor *w,
                                  const struct mxc_tensor *zeros, struct mxc_quant_parts *p) {
    int64_t per = 32 / (int64_t)p->bits, n = (int64_t)p->n, groups = (int64_t)p->n_groups;
    p->zeros = zeros->data;
    if (zeros->storage == MXC_ST_I8 && mxc_join_numbers(zeros) == n * groups) {
        p->zero_layout = MXC_ZEROS_I8;
        return MXC_OK;
    }
    if (!is_word(zeros->storage) || mxc_join_numbers(zeros) != (n + per - 1) / per * groups)
        return bad_shape(h, zeros, w->name);
    p->zero_layout = MXC_ZEROS_WORDS;
    p->zero_point = 0;
    if (n % per == 0)
        settle_zeros(p, zeros->bytes / 4);
    return MXC_OK;
}

static enum mxc_code join_packed_ints(struct hf *h, struct mxc_tensor *w, const char *module,
                                      const struct mxc_tensor *s) {
    struct mxc_join *j = h->j;
    int64_t shape[2] = {1, 1};
    enum mxc_code code = read_shape(h, w, module, shape);
    if (code)
        return code;
    int64_t words = w->n_dims == 2 ? w->shape[1] : 0;
    int64_t bits = words * 32 / shape[1];
    if (w->n_dims != 2 || w->shape[0] != shape[0] || bits < 1 || words * 32 != bits * shape[1])
        return bad_shape(h, w, "its .weight_shape");
    if (bits != 2 && bits != 4 && bits != 8)
        return mxc_err_set(j->err, MXC_E_UNSUPPORTED,
                           "%s: tensor %s: %lld bits are not supported (2, 4 and 8 are)",
                           w->file->path, w->name, (long long)bits);
    struct mxc_quant_parts p = row_parts(w, (uint32_t)bits);
    p.k = (size_t)shape[1];
    p.zero_point = 1 << (bits - 1);
    struct mxc_tensor *zeros = mxc_join_find(j, module, ".weight_zero_point");
    struct mxc_tensor *order = mxc_join_find(j, module, ".weight_g_idx");
    if ((code = plain_scales(h, w, s, &p)) || (zeros && (code = packed_zeros(h, w, zeros, &p))) ||
        (order && (code = settle_order(h, order, &p))) ||
        (code = rename_to(h, w, module, ".weight")) ||
        (code = mxc_join_parts(j, w, MXC_ST_INT_GROUPS, &p)))
        return code;
    w->shape[1] = shape[1];
    mxc_join_take(j, w, zeros);
    mxc_join_take(j, w, order);
    return MXC_OK;
}

/* ---- e2m1 */

/* Bytes of two codes; scales [.., columns / group] of bytes, e4m3 or e8m0. */
static enum mxc_code join_e2m1(struct hf *h, struct mxc_tensor *w, const char *module,
                               const struct mxc_tensor *s) {
    struct mxc_join *j = h->j;
    bool nv = s->storage == MXC_ST_F8_E4M3;
    int64_t group = nv ? 16 : 32, bytes = w->n_dims ? w->shape[w->n_dims - 1] : 0;
    if (!nv && s->storage != MXC_ST_U8 && s->storage != MXC_ST_F8_E8M0)
        return mxc_join_refuse(j, s, MXC_E_FORMAT, "its dtype is not that of e4m3 or e8m0 scales");
    bool same = w->n_dims == s->n_dims && w->n_dims >= 2;
    for (int i = 0; same && i + 1 < w->n_dims; i++)
        same = w->shape[i] == s->shape[i];
    if (!same || bytes < 1 || bytes > INT64_MAX / 2 || bytes * 2 % group ||
        s->shape[s->n_dims - 1] != bytes * 2 / group || mxc_tensor_rows(w) < 1)
        return bad_shape(h, s, w->name);
    struct mxc_quant_parts p = row_parts(w, 4);
    p.number = MXC_ST_MXFP4;
    p.k = (size_t)bytes * 2;
    p.group = (size_t)group;
    p.n_groups = p.k / p.group;
    p.scales = s->data;
    p.scale_storage = nv ? MXC_ST_F8_E4M3 : MXC_ST_F8_E8M0;
    p.scale_rows = p.scale_step_g = 1;
    p.scale_step_r = p.n_groups;
    struct mxc_tensor *whole = mxc_join_find(j, module, ".weight_global_scale");
    p.divides = whole != NULL;
    if (!whole)
        whole = mxc_join_find(j, module, ".weight_scale_2");
    enum mxc_code code = MXC_OK;
    if (nv && !whole)
        return missing(h, w, module, ".weight_global_scale");
    if (nv && (code = read_scalar(h, whole, &p.factor)))
        return code;
    if ((code = rename_to(h, w, module, ".weight")) ||
        (code = mxc_join_parts(j, w, nv ? MXC_ST_NVFP4 : MXC_ST_MXFP4, &p)))
        return code;
    w->shape[w->n_dims - 1] = (int64_t)p.k;
    mxc_join_take(j, w, nv ? whole : NULL);
    return MXC_OK;
}

static enum mxc_code join_packed(struct hf *h, struct mxc_tensor *w, const char *suffix) {
    char module[MXC_JOIN_MAX_NAME];
    enum mxc_code code = mxc_join_module(h->j, w, suffix, module);
    if (code)
        return code;
    struct mxc_tensor *s = mxc_join_find(h->j, module, ".weight_scale");
    if (!s)
        return missing(h, w, module, ".weight_scale");
    if (w->storage == MXC_ST_U8)
        code = join_e2m1(h, w, module, s);
    else if (!is_word(w->storage))
        code = mxc_join_refuse(h->j, w, MXC_E_FORMAT, "its dtype is not I32 or U8");
    else if (!mxc_join_is_float(s->storage))
        code = mxc_join_refuse(h->j, s, MXC_E_FORMAT, "its dtype is no float");
    else
        code = join_packed_ints(h, w, module, s);
    if (code)
        return code;
    w->scales_file = s->file;
    mxc_join_take(h->j, w, s);
    mxc_join_take(h->j, w, mxc_join_find(h->j, module, ".weight_shape"));
    return MXC_OK;
}

/* gpt_oss: X_blocks [experts, rows, groups, 16] and X_scales [experts, rows, groups]. */
static enum mxc_code join_blocks(struct hf *h, struct mxc_tensor *w) {
    struct mxc_join *j = h->j;
    char module[MXC_JOIN_MAX_NAME];
    enum mxc_code code = mxc_join_module(j, w, "_blocks", module);
    if (code)
        return code;
    struct mxc_tensor *s = mxc_join_find(j, module, "_scales");
    if (!s)
        return missing(h, w, module, "_scales");
    bool same = w->n_dims >= 3 && w->n_dims == s->n_dims + 1 && w->shape[w->n_dims - 1] == 16 &&
                mxc_join_numbers(w) > 0;
    for (int i = 0; same && i < s->n_dims; i++)
        same = w->shape[i] == s->shape[i];
    if (!same || s->storage != MXC_ST_U8)
        return bad_shape(h, s, w->name);
    size_t groups = (size_t)s->shape[s->n_dims - 1];
    w->n_dims--;
    w->shape[w->n_dims - 1] = (int64_t)groups * 32;
    struct mxc_quant_parts p = row_parts(w, 4);
    p.number = MXC_ST_MXFP4;
    p.k = groups * 32;
    p.group = 32;
    p.n_groups = p.scale_step_r = groups;
    p.scales = s->data;
    p.scale_storage = MXC_ST_F8_E8M0;
    p.scale_rows = p.scale_step_g = 1;
    if ((code = rename_to(h, w, module, "")) || (code = mxc_join_parts(j, w, MXC_ST_MXFP4, &p)))
        return code;
    w->scales_file = s->file;
    mxc_join_take(j, w, s);
    return MXC_OK;
}

/* What quantised activations and caches would need; weights are not concerned. */
static bool is_activation_scale(struct mxc_str name) {
    static const char *const ends[] = {".input_scale",  ".input_zero_point",  ".input_global_scale",
                                       ".output_scale", ".output_zero_point", ".k_scale",
                                       ".v_scale",      ".input_scale_ub"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (mxc_str_ends(name, ends[i]))
            return true;
    return false;
}

static enum mxc_code join_one(struct hf *h, struct mxc_tensor *t) {
    struct mxc_str name = mxc_str_of(t->name);
    if (mxc_str_ends(name, ".qweight"))
        return join_qweight(h, t);
    if (mxc_str_ends(name, ".weight_packed"))
        return join_packed(h, t, ".weight_packed");
    if (mxc_str_ends(name, "_blocks") && t->storage == MXC_ST_U8)
        return join_blocks(h, t);
    if (mxc_str_ends(name, ".weight")) {
        if (t->storage == MXC_ST_I8 || t->storage == MXC_ST_F8_E4M3 || t->storage == MXC_ST_F8_E5M2)
            return join_weight(h, t);
        if (t->storage == MXC_ST_U8 && h->q.method == MXC_HF_FP8)
            return join_packed(h, t, ".weight");
    }
    if (h->q.method != MXC_HF_NONE && is_activation_scale(name))
        h->j->gone[t - h->j->tensors] = true;
    return MXC_OK;
}

enum mxc_code mxc_hf_join(struct mxc_join *j) {
    struct hf h = {.j = j};
    enum mxc_code code = mxc_hf_quant_read(j->quantization, &h.q, j->err);
    if (code) {
        (void)mxc_err_context(j->err, "config.json: quantization_config");
        return code;
    }
    for (size_t i = 0; !code && i < j->n; i++)
        if (!j->gone[i])
            code = join_one(&h, &j->tensors[i]);
    return code;
}

/* Attention, scalar: online softmax over pages, one column at a time; scores in units of log2.
 * Keys a column must not see never take part in arithmetic that reaches it: page slots past the
 * end may hold anything. The steps are those of the vector levels: blocks of MXC_ATTN_BLOCK keys
 * at absolute multiples, chunks of MXC_ATTN_CHUNK, then merge in chunk order. */
#include "backend/cpu/kernels/scalar/scalar.h"

#include <math.h>
#include <string.h>

enum { PAGE = MXC_ATTN_PAGE };

void mxc_scalar_append_f32(uint8_t *page, int32_t slot, const float *k, const float *v,
                           int32_t k_dim, int32_t v_dim) {
    float *kp = (float *)(void *)page + slot;
    for (int32_t i = 0; i < k_dim; i++)
        kp[(size_t)i * PAGE] = k[i];
    float *vp = (float *)(void *)(page + mxc_page_v(MXC_KV_F32, k_dim));
    memcpy(vp + (size_t)slot * (size_t)v_dim, v, (size_t)v_dim * sizeof *v);
}

void mxc_scalar_append_bf16(uint8_t *page, int32_t slot, const float *k, const float *v,
                            int32_t k_dim, int32_t v_dim) {
    uint16_t *kp = (uint16_t *)(void *)page + 2 * slot;
    for (int32_t i = 0; i < k_dim; i++)
        kp[(size_t)(i / 2) * 2 * PAGE + (size_t)(i % 2)] = mxc_f32_to_bf16(k[i]);
    uint16_t *vp = (uint16_t *)(void *)(page + mxc_page_v(MXC_KV_BF16, k_dim));
    vp += (size_t)(slot / 2) * 2 * (size_t)v_dim + (size_t)(slot % 2);
    for (int32_t i = 0; i < v_dim; i++)
        vp[2 * i] = mxc_f32_to_bf16(v[i]);
}

static float score(const struct mxc_attend *job, enum mxc_kv_type type, int32_t column,
                   const uint8_t *page, int32_t slot) {
    size_t d = (size_t)job->k_dim;
    float s = 0;
    if (type == MXC_KV_F32) {
        const float *q = (const float *)job->q + (size_t)column * d;
        const float *k = (const float *)(const void *)page + slot;
        for (size_t i = 0; i < d; i++)
            s += q[i] * k[i * PAGE];
    } else {
        const uint16_t *q = (const uint16_t *)job->q + (size_t)column * d;
        const uint16_t *k = (const uint16_t *)(const void *)page + 2 * slot;
        for (size_t i = 0; i < d; i++)
            s += mxc_bf16_to_f32(q[i]) * mxc_bf16_to_f32(k[i / 2 * 2 * PAGE + i % 2]);
    }
    if (job->softcap > 0)
        s = job->softcap * MXC_LOG2E * tanhf(s * (MXC_LN2 / job->softcap));
    return s;
}

static void add_value(const struct mxc_attend *job, enum mxc_kv_type type, const uint8_t *page,
                      int32_t slot, float p, float *o) {
    size_t d = (size_t)job->v_dim;
    page += mxc_page_v(type, job->k_dim);
    if (type == MXC_KV_F32) {
        const float *v = (const float *)(const void *)page + (size_t)slot * d;
        for (size_t i = 0; i < d; i++)
            o[i] += p * v[i];
    } else {
        const uint16_t *v = (const uint16_t *)(const void *)page;
        v += (size_t)(slot / 2) * 2 * d + (size_t)(slot % 2);
        p = mxc_bf16_to_f32(mxc_f32_to_bf16(p));
        for (size_t i = 0; i < d; i++)
            o[i] += p * mxc_bf16_to_f32(v[2 * i]);
    }
}

static void attend(const struct mxc_attend *job, enum mxc_kv_type type, int32_t k0,
                   struct mxc_attn_part *part) {
    size_t stride = mxc_attn_stride(job->v_dim);
    for (int32_t c = 0; c < job->n_columns; c++) {
        float m = MXC_ATTN_NONE, l = 0, *o = part->o + (size_t)c * stride, s[MXC_ATTN_BLOCK];
        memset(o, 0, stride * sizeof *o);
        for (int32_t b = k0; b < k0 + MXC_ATTN_CHUNK; b += MXC_ATTN_BLOCK) {
            int32_t first = job->begin[c] > b ? job->begin[c] : b;
            int32_t last = job->end[c] < b + MXC_ATTN_BLOCK ? job->end[c] : b + MXC_ATTN_BLOCK;
            if (first >= last)
                continue;
            float max = m, correction;
            for (int32_t t = first; t < last; t++) {
                const uint8_t *page = job->pages + (size_t)job->table[t / PAGE] * job->page_stride;
                s[t - b] = score(job, type, c, page, t % PAGE);
                max = s[t - b] > max ? s[t - b] : max;
            }
            correction = exp2f(m - max);
            m = max;
            l *= correction;
            for (int32_t i = 0; i < job->v_dim; i++)
                o[i] *= correction;
            for (int32_t t = first; t < last; t++) {
                const uint8_t *page = job->pages + (size_t)job->table[t / PAGE] * job->page_stride;
                float p = exp2f(s[t - b] - m);
                l += p;
                add_value(job, type, page, t % PAGE, p, o);
            }
        }
        part->m[c] = m;
        part->l[c] = l;
    }
}

void mxc_scalar_attend_f32(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, MXC_KV_F32, k0, part);
}

void mxc_scalar_attend_bf16(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, MXC_KV_BF16, k0, part);
}

void mxc_scalar_attn_merge(struct mxc_attn_part *total, const struct mxc_attn_part *part,
                           bool first, int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    for (int32_t c = 0; c < n_columns; c++) {
        float *to = total->o + (size_t)c * stride;
        const float *from = part->o + (size_t)c * stride;
        if (first) {
            total->m[c] = part->m[c];
            total->l[c] = part->l[c];
            memcpy(to, from, stride * sizeof *to);
            continue;
        }
        float m = total->m[c] > part->m[c] ? total->m[c] : part->m[c];
        float a = exp2f(total->m[c] - m), b = exp2f(part->m[c] - m);
        total->m[c] = m;
        total->l[c] = total->l[c] * a + part->l[c] * b;
        for (int32_t i = 0; i < v_dim; i++)
            to[i] = to[i] * a + from[i] * b;
    }
}

void mxc_scalar_attn_finish(const struct mxc_attn_part *total, const float *sinks, float *out,
                            size_t ld_out, int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    for (int32_t c = 0; c < n_columns; c++) {
        const float *o = total->o + (size_t)c * stride;
        float f = mxc_attn_factor(total->m[c], total->l[c], sinks ? sinks + c : NULL);
        for (int32_t i = 0; i < v_dim; i++)
            out[(size_t)c * ld_out + (size_t)i] = o[i] * f;
    }
}

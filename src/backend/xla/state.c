/* State: the KV arrays of a plan on the device, [layers, blocks, tokens, heads, dim] for each group
 * of like stores, and the small programs that copy, take out, put in and fill blocks of them. The
 * arrays have two blocks more than the engine knows: one that stays zero, for what tables leave
 * open, and one that rows of nobody write to; and up to an eighth more, so that sizes (and with
 * them programs) are few.
 * An exported block is, group by group, K then V of every layer. */
#include "backend/xla/plan.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/check.h"
#include "backend/xla/split.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum job { MAKE, COPY, EXPORT, IMPORT, PUT, N_JOBS };
static const char *const job_names[N_JOBS] = {"kv make", "kv copy", "kv export", "kv import",
                                              "kv put"};
enum { PUT_ROWS = 32 };

/* A program on the arrays of one kind; MAKE: of all kinds. Arguments: the arrays (not of MAKE;
 * donated but for EXPORT), then S32 numbers, then data. Results: arrays, or blocks of EXPORT. */
struct mxc_xla_state_program {
    struct mxc_xla_program *program;
    int kind;
    enum job job;
    struct mxc_xla_state_program *next;
};

/* Array i of the state: 2 * group + (V). */
static bool has_array(const struct mxc_state *state, int32_t i, int kind) {
    const struct mxc_xla_kv_group *g = &state->plan->model->groups[i / 2];
    return (kind < 0 || (int)g->kind == kind) && (i % 2 == 0 || g->v_dim);
}

static struct mxc_xla_shape array_shape(const struct mxc_state *state, int32_t i, int32_t blocks) {
    const struct mxc_xla_kv_group *g = &state->plan->model->groups[i / 2];
    return mxc_xla_kv_shape(g, i % 2, blocks ? blocks : state->blocks[g->kind]);
}

static int32_t n_arrays(const struct mxc_state *state) {
    return (int32_t)mxc_xla_state_arrays(state);
}

/* Axis of array i that devices share. */
static int array_axis(const struct mxc_state *state, int32_t i) {
    return mxc_xla_split_kv(&state->plan->model->groups[i / 2], state->plan->devices);
}

/* ---- programs */

struct writer {
    const struct mxc_state *state;
    struct mxc_hlo h;
    struct mxc_xla_param *in, *out; /* [2 * n_arrays + 2] shapes of all devices together */
    int *in_axis, *out_axis;
    struct mxc_hlo_value *results;
    int n_in, n_out;
    int kind;
    enum job job;
};

/* Data that every device has whole. */
static struct mxc_hlo_value argument(struct writer *w, struct mxc_xla_shape shape) {
    w->in[w->n_in] = (struct mxc_xla_param){shape, false};
    w->in_axis[w->n_in] = MXC_NONE;
    return mxc_hlo_named(&shape, "%%a%d", w->n_in++);
}

/* Array i of the state. */
static struct mxc_hlo_value array_argument(struct writer *w, int32_t i) {
    struct mxc_hlo_value v = argument(w, array_shape(w->state, i, 0));
    w->in[w->n_in - 1].donated = w->job != EXPORT;
    w->in_axis[w->n_in - 1] = array_axis(w->state, i);
    return v;
}

static void result(struct writer *w, struct mxc_hlo_value v, int axis) {
    w->out[w->n_out].shape = v.shape;
    w->out_axis[w->n_out] = axis;
    w->results[w->n_out++] = v;
}

static struct mxc_hlo_value pick(struct mxc_hlo *h, struct mxc_hlo_value ints, int64_t i) {
    return mxc_hlo_reshape(h, mxc_hlo_slice(h, ints, 0, i, i + 1), 0, NULL);
}

/* COPY, EXPORT, IMPORT: whole blocks. */
static void write_blocks(struct writer *w) {
    const struct mxc_state *s = w->state;
    struct mxc_hlo *h = &w->h;
    struct mxc_hlo_value arrays[MXC_HLO_MAX_PARTS], zero, block;
    int n = 0;
    for (int32_t i = 0; i < n_arrays(s); i++)
        if (has_array(s, i, w->kind))
            arrays[n++] = array_argument(w, i);
    struct mxc_hlo_value ints = argument(w, mxc_hlo_shape(MXC_XLA_S32, MXC_DIMS(2)));
    zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    n = 0;
    for (int32_t i = 0; i < n_arrays(s); i++) {
        if (!has_array(s, i, w->kind))
            continue;
        struct mxc_xla_shape one = array_shape(s, i, 1);
        struct mxc_hlo_value from[] = {zero, pick(h, ints, 0), zero, zero, zero};
        struct mxc_hlo_value to[] = {zero, pick(h, ints, 1), zero, zero, zero};
        block = w->job == IMPORT ? argument(w, one)
                                 : mxc_hlo_dynamic_slice(h, arrays[n], from, one.dims);
        if (w->job == EXPORT)
            result(w, block, MXC_NONE);
        else
            result(w, mxc_hlo_dynamic_update(h, arrays[n], block, to), array_axis(s, i));
        n++;
    }
}

/* Rows of the CROSS stores, in the order of the graph: K, then V, of every op. */
static void write_put(struct writer *w) {
    const struct mxc_state *s = w->state;
    const struct mxc_graph *g = s->plan->graph;
    struct mxc_hlo *h = &w->h;
    struct mxc_hlo_value arrays[MXC_HLO_MAX_PARTS] = {{{0}, {0}}};
    int64_t width = 0, at = 0;
    for (int32_t i = 0; i < n_arrays(s); i++)
        if (has_array(s, i, w->kind))
            arrays[i] = array_argument(w, i);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == MXC_OP_CROSS)
            width += 2 * (int64_t)g->nodes[i].u.cross.n_kv_heads * g->nodes[i].u.cross.head_dim;
    struct mxc_hlo_value slots = argument(w, mxc_hlo_shape(MXC_XLA_S32, MXC_DIMS(PUT_ROWS, 2)));
    struct mxc_hlo_value rows = argument(w, mxc_hlo_shape(MXC_XLA_F32, MXC_DIMS(PUT_ROWS, width)));
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mxc_cross_attr *a = &g->nodes[i].u.cross;
        if (g->nodes[i].op != MXC_OP_CROSS)
            continue;
        struct mxc_xla_place place = s->plan->model->kv_places[a->kv];
        int64_t n = (int64_t)a->n_kv_heads * a->head_dim;
        for (int v = 0; v < 2; v++, at += n) {
            struct mxc_hlo_value *array = &arrays[2 * place.stack + v];
            struct mxc_hlo_value part =
                mxc_hlo_reshape(h, mxc_hlo_slice(h, rows, 1, at, at + n),
                                MXC_DIMS(PUT_ROWS, a->n_kv_heads, a->head_dim));
            struct mxc_hlo_value index[2] = {
                mxc_hlo_splat(h, MXC_XLA_S32, place.index, MXC_DIMS(PUT_ROWS, 1)), slots};
            *array = mxc_hlo_scatter(h, *array, mxc_hlo_concat(h, index, 2, 1), part);
        }
    }
    for (int32_t i = 0; i < n_arrays(s); i++)
        if (has_array(s, i, w->kind))
            result(w, arrays[i], array_axis(s, i));
}

static void write_job(struct writer *w) {
    if (w->job == PUT) {
        write_put(w);
    } else if (w->job != MAKE) {
        write_blocks(w);
    } else {
        for (int32_t i = 0; i < n_arrays(w->state); i++)
            if (has_array(w->state, i, w->kind)) {
                struct mxc_xla_shape shape = array_shape(w->state, i, 0);
                result(w, mxc_hlo_splat(&w->h, shape.type, 0, shape.n_dims, shape.dims),
                       array_axis(w->state, i));
            }
    }
}

/* The signature, with how things lie on several devices. */
static void write_signature(const struct writer *w, int devices, struct mxc_buf *out) {
    char type[MXC_HLO_TYPE];
    int aliased = 0;
    (void)mxc_buf_puts(out, "module @kv {\n  func.func public @main(");
    for (int i = 0; i < w->n_in; i++) {
        (void)mxc_buf_printf(out, "%s%%a%d: %s {", i ? ", " : "", i,
                             mxc_hlo_type(&w->in[i].shape, type));
        mxc_xla_split_attribute(out, w->in[i].shape.n_dims, w->in_axis[i], devices);
        if (w->in[i].donated)
            (void)mxc_buf_printf(out, "%stf.aliasing_output = %d : i32", devices > 1 ? ", " : "",
                                 aliased++);
        (void)mxc_buf_puts(out, "}");
    }
    (void)mxc_buf_puts(out, ") -> (");
    for (int i = 0; i < w->n_out; i++) {
        (void)mxc_buf_printf(out, "%s%s {", i ? ", " : "", mxc_hlo_type(&w->out[i].shape, type));
        mxc_xla_split_attribute(out, w->out[i].shape.n_dims, w->out_axis[i], devices);
        (void)mxc_buf_puts(out, "}");
    }
    (void)mxc_buf_puts(out, ") {\n");
}

static enum mxc_code finish(struct writer *w, struct mxc_xla_program **program,
                            struct mxc_err *err) {
    int devices = w->state->plan->devices;
    char type[MXC_HLO_TYPE];
    struct mxc_buf out;
    mxc_buf_init(&out, MXC_HLO_MAX_BYTES);
    write_signature(w, devices, &out);
    (void)mxc_buf_append(&out, mxc_buf_text(&w->h.text), w->h.text.length);
    (void)mxc_buf_puts(&out, "    return ");
    for (int i = 0; i < w->n_out; i++)
        (void)mxc_buf_printf(&out, "%s%s", i ? ", " : "", w->results[i].name);
    (void)mxc_buf_puts(&out, " : ");
    for (int i = 0; i < w->n_out; i++)
        (void)mxc_buf_printf(&out, "%s%s", i ? ", " : "", mxc_hlo_type(&w->out[i].shape, type));
    (void)mxc_buf_puts(&out, "\n  }\n}\n");
    enum mxc_code code = mxc_buf_status(&w->h.text, err);
    if (!code)
        code = mxc_buf_status(&out, err);
    for (int i = 0; i < w->n_in; i++)
        w->in[i].shape = mxc_xla_split_part(&w->in[i].shape, w->in_axis[i], devices);
    for (int i = 0; i < w->n_out; i++)
        w->out[i].shape = mxc_xla_split_part(&w->out[i].shape, w->out_axis[i], devices);
    struct mxc_xla_compile_options options = {.inputs = w->in,
                                              .outputs = w->out,
                                              .n_inputs = w->n_in,
                                              .n_outputs = w->n_out,
                                              .n_partitions = devices,
                                              .spmd = devices > 1};
    if (!code)
        code = mxc_xla_compile(w->state->plan->client, job_names[w->job], mxc_buf_text(&out),
                               out.length, &options, program, err);
    mxc_buf_fini(&out);
    return code;
}

static enum mxc_code program_for(struct mxc_state *state, enum job job, int kind,
                                 struct mxc_xla_program **out, struct mxc_err *err) {
    for (struct mxc_xla_state_program *p = state->programs; p; p = p->next)
        if (p->job == job && p->kind == kind) {
            *out = p->program;
            return MXC_OK;
        }
    size_t room = 2 * (size_t)n_arrays(state) + 2;
    struct writer w = {.state = state, .kind = kind, .job = job};
    struct mxc_xla_state_program *p = mxc_mem_zalloc(1, sizeof *p);
    enum mxc_code code = MXC_E_NOMEM;
    mxc_hlo_init(&w.h);
    w.in = mxc_mem_zalloc(room, sizeof *w.in);
    w.out = mxc_mem_zalloc(room, sizeof *w.out);
    w.results = mxc_mem_zalloc(room, sizeof *w.results);
    w.in_axis = mxc_mem_zalloc(room, sizeof *w.in_axis);
    w.out_axis = mxc_mem_zalloc(room, sizeof *w.out_axis);
    if (!p || !w.in || !w.out || !w.results || !w.in_axis || !w.out_axis) {
        code = mxc_err_nomem(err);
        goto out;
    }
    write_job(&w);
    if ((code = finish(&w, &p->program, err)))
        goto out;
    *out = p->program;
    *p = (struct mxc_xla_state_program){p->program, kind, job, state->programs};
    state->programs = p;
    p = NULL;
out:
    mxc_mem_free(p);
    mxc_mem_free(w.in);
    mxc_mem_free(w.out);
    mxc_mem_free(w.results);
    mxc_mem_free(w.in_axis);
    mxc_mem_free(w.out_axis);
    mxc_hlo_fini(&w.h);
    return code;
}

/* ---- running them */

/* Runs a job: the arrays of the kind, then more [n_more][devices], which is the job's own to read.
 * exported: the blocks of EXPORT, from the first device; NULL: the arrays are taken back. */
static enum mxc_code run_job(struct mxc_state *state, enum job job, int kind,
                             struct mxc_xla_buffer *const *more, size_t n_more,
                             struct mxc_xla_buffer **exported, struct mxc_err *err) {
    struct mxc_xla_program *program = NULL;
    size_t devices = (size_t)state->plan->devices, arrays = mxc_xla_state_arrays(state);
    size_t n_in = n_more, n_out = 0;
    enum mxc_code code = program_for(state, job, kind, &program, err);
    if (code)
        return code;
    for (int32_t i = 0; i < n_arrays(state); i++)
        n_out += has_array(state, i, kind);
    n_in += job != MAKE ? n_out : 0;
    struct mxc_xla_buffer **in =
        mxc_mem_zalloc(devices * n_in + 1, sizeof(struct mxc_xla_buffer *));
    struct mxc_xla_buffer **out =
        mxc_mem_zalloc(devices * n_out + 1, sizeof(struct mxc_xla_buffer *));
    if (!in || !out) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (size_t d = 0, at = 0; d < devices; d++) {
        for (int32_t i = 0; job != MAKE && i < n_arrays(state); i++)
            if (has_array(state, i, kind))
                in[at++] = state->kv[d * arrays + (size_t)i];
        for (size_t i = 0; i < n_more; i++)
            in[at++] = more[i * devices + d];
    }
    code = mxc_xla_execute(program, in, devices * n_in, out, devices * n_out, err);
    for (size_t d = 0, at = 0; d < devices; d++)
        for (int32_t i = 0; i < n_arrays(state); i++) {
            if (!has_array(state, i, kind))
                continue;
            struct mxc_xla_buffer *made = out[at];
            if (exported && !d)
                exported[at] = made;
            else if (exported)
                mxc_xla_buffer_free(made);
            if (!exported) {
                mxc_xla_buffer_free(state->kv[d * arrays + (size_t)i]);
                state->kv[d * arrays + (size_t)i] = made;
            }
            at++;
        }
    state->lost |= code && !exported;
out:
    mxc_mem_free(in);
    mxc_mem_free(out);
    return code;
}

/* Data for a job, on every device: more [devices]. */
static enum mxc_code send(const struct mxc_state *state, const struct mxc_xla_shape *shape,
                          const void *data, struct mxc_xla_buffer **more, struct mxc_err *err) {
    return mxc_xla_split_upload(state->plan->client, state->plan->devices, shape, MXC_NONE, data,
                                MXC_XLA_COPY, more, err);
}

/* Room for n arguments of send. */
static struct mxc_xla_buffer **more_new(const struct mxc_state *state, size_t n) {
    return mxc_mem_zalloc(n * (size_t)state->plan->devices, sizeof(struct mxc_xla_buffer *));
}

static void more_free(const struct mxc_state *state, struct mxc_xla_buffer **more, size_t n) {
    for (size_t i = 0; more && i < n * (size_t)state->plan->devices; i++)
        mxc_xla_buffer_free(more[i]);
    mxc_mem_free(more);
}

static int32_t array_blocks(int32_t n) {
    int32_t need = n + 2, step = 1;
    while (step * 16 <= need)
        step *= 2;
    return (need + step - 1) / step * step;
}

enum mxc_code mxc_xla_state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                                struct mxc_state **out, struct mxc_err *err) {
    struct mxc_state *state = mxc_mem_zalloc(1, sizeof *state);
    enum mxc_code code = MXC_OK;
    if (!state)
        return mxc_err_nomem(err);
    state->plan = plan;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!plan->model->block_bytes[k])
            continue;
        if (n_blocks[k] < 1 || n_blocks[k] > INT32_MAX / 2) {
            code = mxc_err_set(err, MXC_E_ARG, "KV kind %s needs at least one block, not %d",
                               mxc_kv_kind_name((enum mxc_kv_kind)k), n_blocks[k]);
            goto out;
        }
        state->n_blocks[k] = n_blocks[k];
        state->blocks[k] = array_blocks(n_blocks[k]);
    }
    if (n_arrays(state) > MXC_HLO_MAX_PARTS) {
        code = mxc_err_set(err, MXC_E_UNSUPPORTED, "XLA: %d kinds of KV stores",
                           plan->model->n_groups);
        goto out;
    }
    state->kv =
        mxc_mem_zalloc((size_t)plan->devices * mxc_xla_state_arrays(state) + 1, sizeof *state->kv);
    if (!state->kv) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if (n_arrays(state) && (code = run_job(state, MAKE, -1, NULL, 0, NULL, err)))
        goto out;
    *out = state;
    state = NULL;
out:
    mxc_xla_state_free(state);
    return code;
}

void mxc_xla_state_free(struct mxc_state *state) {
    if (!state)
        return;
    for (size_t i = 0; state->kv && i < (size_t)state->plan->devices * mxc_xla_state_arrays(state);
         i++)
        mxc_xla_buffer_free(state->kv[i]);
    while (state->programs) {
        struct mxc_xla_state_program *p = state->programs;
        state->programs = p->next;
        mxc_xla_program_free(p->program);
        mxc_mem_free(p);
    }
    mxc_mem_free(state->kv);
    mxc_mem_free(state);
}

/* ---- blocks */

static enum mxc_code check_lost(const struct mxc_state *state, struct mxc_err *err) {
    return state->lost ? mxc_err_set(err, MXC_E_DEVICE_LOST,
                                     "XLA: the KV store was lost by an earlier failure")
                       : MXC_OK;
}

static enum mxc_code check_block(const struct mxc_state *state, enum mxc_kv_kind kind,
                                 int32_t block, struct mxc_err *err) {
    enum mxc_code code = mxc_kv_block_check(state->n_blocks, kind, block, err);
    return code ? code : check_lost(state, err);
}

static enum mxc_code numbers(const struct mxc_state *state, int32_t a, int32_t b,
                             struct mxc_xla_buffer **more, struct mxc_err *err) {
    const int32_t both[2] = {a, b};
    struct mxc_xla_shape shape = mxc_hlo_shape(MXC_XLA_S32, MXC_DIMS(2));
    return more ? send(state, &shape, both, more, err) : mxc_err_nomem(err);
}

void mxc_xla_state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to) {
    struct mxc_err err;
    if (check_block(state, kind, from, &err) || check_block(state, kind, to, &err) || from == to)
        return;
    struct mxc_xla_buffer **ints = more_new(state, 1);
    if (numbers(state, from, to, ints, &err) ||
        run_job(state, COPY, (int)kind, ints, 1, NULL, &err))
        state->lost = true; /* the next step says so */
    more_free(state, ints, 1);
}

enum mxc_code mxc_xla_state_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   void *bytes, struct mxc_err *err) {
    struct mxc_xla_buffer *blocks[MXC_HLO_MAX_PARTS] = {0};
    enum mxc_code code = check_block(state, kind, block, err);
    uint8_t *to = bytes;
    if (code)
        return code;
    struct mxc_xla_buffer **ints = more_new(state, 1);
    if (!(code = numbers(state, block, block, ints, err)))
        code = run_job(state, EXPORT, (int)kind, ints, 1, blocks, err);
    for (int i = 0; i < MXC_HLO_MAX_PARTS && blocks[i]; i++) {
        size_t n = 0;
        if (!code && mxc_xla_shape_bytes(mxc_xla_buffer_shape(blocks[i]), &n))
            code = mxc_xla_buffer_read(blocks[i], to, n, err);
        to += n;
        mxc_xla_buffer_free(blocks[i]);
    }
    more_free(state, ints, 1);
    return code;
}

enum mxc_code mxc_xla_state_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   const void *bytes, struct mxc_err *err) {
    enum mxc_code code = check_block(state, kind, block, err);
    size_t room = mxc_xla_state_arrays(state) + 1, n_more = 1;
    const uint8_t *from = bytes;
    if (code)
        return code;
    struct mxc_xla_buffer **more = more_new(state, room);
    code = numbers(state, block, block, more, err);
    for (int32_t i = 0; !code && i < n_arrays(state); i++) {
        struct mxc_xla_shape one;
        size_t n;
        if (!has_array(state, i, (int)kind))
            continue;
        one = array_shape(state, i, 1);
        code = mxc_xla_shape_bytes(&one, &n)
                   ? send(state, &one, from, more + n_more * (size_t)state->plan->devices, err)
                   : mxc_err_nomem(err);
        n_more += !code;
        from += code ? 0 : n;
    }
    if (!code)
        code = run_job(state, IMPORT, (int)kind, more, n_more, NULL, err);
    more_free(state, more, room);
    return code;
}

/* ---- rows of the CROSS stores */

static enum mxc_code put_rows(struct mxc_state *state, const int32_t *slots, const float *rows,
                              size_t width, struct mxc_err *err) {
    struct mxc_xla_shape a = mxc_hlo_shape(MXC_XLA_S32, MXC_DIMS(PUT_ROWS, 2));
    struct mxc_xla_shape b = mxc_hlo_shape(MXC_XLA_F32, MXC_DIMS(PUT_ROWS, (int64_t)width));
    struct mxc_xla_buffer **more = more_new(state, 2);
    enum mxc_code code = more ? send(state, &a, slots, more, err) : mxc_err_nomem(err);
    if (!code)
        code = send(state, &b, rows, more + state->plan->devices, err);
    if (!code)
        code = run_job(state, PUT, MXC_KV_CROSS, more, 2, NULL, err);
    more_free(state, more, 2);
    return code;
}

enum mxc_code mxc_xla_state_put(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                                int32_t n, const float *rows, size_t ld, struct mxc_err *err) {
    const struct mxc_graph *g = state->plan->graph;
    size_t width = 0;
    enum mxc_code code = mxc_kv_put_check(state->n_blocks, blocks, token0, n, rows, err);
    if (!code && n)
        code = check_lost(state, err);
    if (code)
        return code;
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == MXC_OP_CROSS)
            width +=
                2 * (size_t)g->nodes[i].u.cross.n_kv_heads * (size_t)g->nodes[i].u.cross.head_dim;
    float *part = mxc_mem_zalloc(PUT_ROWS * width, sizeof *part);
    code = part ? MXC_OK : mxc_err_nomem(err);
    for (int32_t at = 0; !code && at < n; at += PUT_ROWS) {
        int32_t slots[PUT_ROWS][2];
        for (int32_t i = 0; i < PUT_ROWS; i++) {
            int32_t token = token0 + at + i;
            slots[i][0] = mxc_xla_waste_block(state, MXC_KV_CROSS);
            slots[i][1] = i;
            if (at + i >= n)
                continue;
            slots[i][0] = blocks[token / MXC_KV_BLOCK];
            slots[i][1] = token % MXC_KV_BLOCK;
            memcpy(part + (size_t)i * width, rows + (size_t)(at + i) * ld, width * sizeof *part);
        }
        code = put_rows(state, &slots[0][0], part, width, err);
    }
    mxc_mem_free(part);
    return code;
}

#endif

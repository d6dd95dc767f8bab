/* bench_kernels [-t THREADS] [-s SECONDS] [-q QUANTISATION] [FILTER...]: times every row of
 * kernels.def (those whose "isa name" contains a FILTER) next to this machine's rulers, which are
 * measured again before each row, since a shared machine drifts. Matmuls: prefill (M = 512,
 * preparing the activations included) as share of the multiply-add peak, decode (M = 1 to 4 over
 * more weights than the caches hold) as share of the read bandwidth. Attention: causal prefill of
 * 512 and decode at depth 8192.
 */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/layout.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_NORM,
    KIND_LAYER_NORM,
    KIND_GLU,
    KIND_ACT,
    KIND_SOFTCAP,
    KIND_GATE,
    KIND_ADD,
    KIND_WEIGHTED_ADD,
    KIND_ROPE,
    KIND_PREPARE,
    KIND_MATMUL,
    KIND_PREPARE_Q,
    KIND_APPEND,
    KIND_ATTEND,
    KIND_MERGE,
    KIND_FINISH
};
static const struct row {
    enum mxc_cpu_level level;
    enum kind kind;
    int index;
    const char *name;
} rows[] = {
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name)                                            \
    {MXC_CPU_##LEVEL, KIND_##KIND, (int)(index), #isa " " #name},
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL
};

static struct mxc_team *team;
static double budget = 0.25;    /* seconds for one figure */
static const char *form_filter; /* only this quantisation */
static uint32_t state = 1;

static uint32_t rnd(void) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void *memory(size_t bytes) {
    void *p = mxc_mem_aligned(MXC_ALIGN, bytes + 16384, true); /* prefetch runs past the end */
    if (!p) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    return p;
}

static float *numbers(size_t n) {
    float *x = memory(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)rnd() * 0x1p-31f;
    return x;
}

/* Best time of fn over the budget, in seconds. */
static double best_time(mxc_team_fn *fn, void *arg) {
    uint64_t start = mxc_clock_ns();
    double best = 1e30;
    do {
        uint64_t t = mxc_clock_ns();
        mxc_team_run(team, fn, arg);
        double s = (double)(mxc_clock_ns() - t) * 1e-9;
        best = s < best ? s : best;
    } while ((double)(mxc_clock_ns() - start) * 1e-9 < budget);
    return best;
}

/* ---- matmul */

struct matmul {
    const struct mxc_kernels *kernels;
    struct mxc_packed w; /* the first of `copies` matrices that stand one after another */
    int copies;
    struct mxc_activation a;
    const float *x;
    float *out;
};

static void matmul_work(void *arg, int worker, int n) {
    struct matmul *b = arg;
    int32_t strips = mxc_packed_strips(&b->w);
    int32_t tiles = (b->a.m + MXC_PREPARE_TILE - 1) / MXC_PREPARE_TILE;
    for (int i = 0; i < b->copies; i++) {
        struct mxc_packed w = b->w;
        w.data += (size_t)i * mxc_packed_bytes(&w);
        int32_t r0 = tiles * worker / n * MXC_PREPARE_TILE;
        int32_t r1 = tiles * (worker + 1) / n * MXC_PREPARE_TILE;
        b->kernels->prepare[b->a.form](&b->a, b->x, (size_t)b->a.k, r0, r1 < b->a.m ? r1 : b->a.m);
        mxc_team_barrier(team);
        b->kernels->matmul[w.layout](&w, &b->a, strips * worker / n, strips * (worker + 1) / n,
                                     b->out, (size_t)w.n, NULL);
        mxc_team_barrier(team);
    }
}

/* A quantisation; all zero for float layouts. */
struct form {
    const char *name;
    int32_t group;
    bool affine, bf16_scales, small; /* small: a table of small numbers */
};

static struct mxc_packed shape_of(enum mxc_layout layout, int32_t n, int32_t k,
                                  const struct form *f) {
    static const int8_t tables[2][16] = {
        {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
        {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
    struct mxc_packed w = {.layout = layout,
                           .n = n,
                           .k = k,
                           .group = f->group,
                           .affine = f->affine,
                           .zero_point = f->affine || layout == MXC_LAYOUT_N4 ? 0 : 16,
                           .bf16_scales = f->bf16_scales,
                           .unit = 1};
    if (layout == MXC_LAYOUT_N4)
        memcpy(w.table, tables[f->small], sizeof w.table);
    size_t number = layout == MXC_LAYOUT_F32 ? 4 : 2;
    w.strip_bytes = f->group ? (size_t)(k / mxc_block_numbers(&w)) * mxc_block_bytes(&w)
                             : (size_t)k * MXC_STRIP * number;
    return w;
}

static struct mxc_packed matrix(enum mxc_layout layout, int32_t n, int32_t k, const struct form *f,
                                int copies) {
    struct mxc_packed w = shape_of(layout, n, k, f);
    bool integer = f->group > 0;
    size_t bytes = mxc_packed_bytes(&w) * (size_t)copies;
    w.data = memory(bytes);
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t u = rnd();
        if (layout == MXC_LAYOUT_F32)
            u = (u & 0x807FFFFF) | 0x3F000000;
        else if (!integer)
            u = (u & 0x807F807F) | (layout == MXC_LAYOUT_F16 ? 0x38003800 : 0x3F003F00);
        memcpy(w.data + i, &u, sizeof u);
    }
    if (integer)
        for (size_t i = 0; i < bytes; i += mxc_block_bytes(&w))
            for (size_t r = 0; r < MXC_STRIP * (f->affine ? 2u : 1u); r++) {
                float x = r < MXC_STRIP ? 0.01f : -0.08f;
                uint16_t h = f->bf16_scales ? mxc_f32_to_bf16(x) : mxc_f32_to_f16(x);
                memcpy(w.data + i + mxc_block_codes(&w) + 2 * r, &h, sizeof h);
            }
    return w;
}

static double peak_of(enum mxc_layout layout, enum mxc_cpu_level level) {
    if (mxc_layout_integer(layout))
        return mxc_ruler_int8_tops(team, level);
    double bf16 = layout == MXC_LAYOUT_BF16 ? mxc_ruler_bf16_tflops(team, level) : 0;
    return bf16 > 0 ? bf16 : mxc_ruler_f32_tflops(team, level);
}

static void bench_matmul_shape(const struct row *row, int32_t n, int32_t k, const struct form *f) {
    enum mxc_layout layout = (enum mxc_layout)row->index;
    struct matmul b = {.kernels = mxc_kernels_get(row->level), .copies = 1};
    int32_t m = 512;
    b.w = matrix(layout, n, k, f, 1);
    b.a = (struct mxc_activation){.form = mxc_packed_form(&b.w), .m = m, .k = k};
    size_t act = mxc_activation_bytes(b.a.form, m, k);
    b.a.data = memory(act);
    float *x = numbers((size_t)m * (size_t)k);
    b.x = x;
    b.out = memory((size_t)m * (size_t)n * sizeof(float));
    double peak = peak_of(layout, row->level), t = best_time(matmul_work, &b);
    double tops = 2.0 * m * n * k / t * 1e-12;
    printf("  %5dx%-5d %-10s prefill 512: %6.3f TOP/s, %3.0f%% of %.2f\n", n, k, f->name, tops,
           tops / peak * 100, peak);
    mxc_mem_free_aligned(b.w.data, mxc_packed_bytes(&b.w) + 16384);
    mxc_mem_free_aligned(b.a.data, act + 16384);
    mxc_mem_free_aligned(x, (size_t)m * (size_t)k * sizeof(float) + 16384);
    mxc_mem_free_aligned(b.out, (size_t)m * (size_t)n * sizeof(float) + 16384);
}

static void bench_matmul_decode(const struct row *row, const struct form *f) {
    enum mxc_layout layout = (enum mxc_layout)row->index;
    int32_t n = 4096, k = 2048, most = 8;
    struct mxc_packed one = shape_of(layout, n, k, f);
    int copies = (int)(((size_t)160 << 20) / mxc_packed_bytes(&one)) + 1;
    struct matmul b = {.kernels = mxc_kernels_get(row->level), .copies = copies};
    b.w = matrix(layout, n, k, f, copies);
    size_t bytes = mxc_packed_bytes(&b.w) * (size_t)copies;
    enum mxc_activation_form form = mxc_packed_form(&b.w);
    size_t act = mxc_activation_bytes(form, most, k);
    uint8_t *data = memory(act);
    float *x = numbers((size_t)most * (size_t)k);
    b.x = x;
    b.out = memory((size_t)most * (size_t)n * sizeof(float));
    for (int32_t m = 1; m <= most; m += m < 4 ? 1 : 2) {
        b.a = (struct mxc_activation){.form = form, .m = m, .k = k, .data = data};
        double read = mxc_ruler_read_gbs(team), t = best_time(matmul_work, &b);
        double gbs = (double)bytes / t * 1e-9;
        printf("  %5dx%-5d %-10s decode M=%d: %5.1f GB/s, %3.0f%% of %.1f read\n", n, k, f->name, m,
               gbs, gbs / read * 100, read);
    }
    mxc_mem_free_aligned(b.w.data, bytes + 16384);
    mxc_mem_free_aligned(data, act + 16384);
    mxc_mem_free_aligned(x, (size_t)most * (size_t)k * sizeof(float) + 16384);
    mxc_mem_free_aligned(b.out, (size_t)most * (size_t)n * sizeof(float) + 16384);
}

static void bench_matmul(const struct row *row) {
    static const int32_t shapes[][2] = {{576, 576},   {1536, 576},  {576, 1536},
                                        {2048, 2048}, {8192, 2048}, {2048, 8192}};
    static const struct form i4[] = {
        {"g16", 16, false, false, false}, {"g16 affine", 16, true, false, false},
        {"g32", 32, false, false, false}, {"g32 affine", 32, true, false, false},
        {"g64", 64, false, false, false}, {"g64 affine", 64, true, false, false}};
    static const struct form n4[] = {{"g16 small", 16, false, false, true},
                                     {"g32", 32, false, false, false},
                                     {"g32 bf16", 32, false, true, true}};
    static const struct form k6 = {"g16", 16, false, false, false};
    static const struct form none = {"", 0, false, false, false};
    const struct form *list = &none;
    size_t n = 1;
    if (row->index == MXC_LAYOUT_I4 || row->index == MXC_LAYOUT_I8) {
        list = i4;
        n = sizeof i4 / sizeof *i4;
    } else if (row->index == MXC_LAYOUT_N4) {
        list = n4;
        n = sizeof n4 / sizeof *n4;
    } else if (row->index == MXC_LAYOUT_I6) {
        list = i4 + 2; /* without groups of 16 */
        n = sizeof i4 / sizeof *i4 - 2;
    } else if (row->index == MXC_LAYOUT_K6) {
        list = &k6;
    }
    for (size_t i = 0; i < n; i++) {
        if (form_filter && strcmp(form_filter, list[i].name) != 0)
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (row->level == MXC_CPU_SCALAR && s)
                break;
            if (row->index == MXC_LAYOUT_K6 && shapes[s][1] % MXC_K6_BLOCK)
                continue;
            bench_matmul_shape(row, shapes[s][0], shapes[s][1], &list[i]);
        }
        bench_matmul_decode(row, &list[i]);
    }
}

/* ---- attention */

enum { HEADS = 8, DEPTH = 8192, PREFILL = 512, CHUNKS = DEPTH / MXC_ATTN_CHUNK };
struct attention {
    const struct mxc_kernels *kernels;
    enum mxc_kv_type type;
    int32_t dim, v_dim, group; /* group: query heads of a KV head */
    int layers;
    size_t page_bytes;
    uint8_t *pages;
    int32_t *table; /* [DEPTH / 32] */
    const uint8_t *q;
    float *out;
    struct mxc_attn_part *parts; /* [HEADS][CHUNKS], or one a worker */
};

static struct mxc_attend job_of(const struct attention *b, int layer, int head, int32_t n,
                                const int32_t *begin, const int32_t *end) {
    size_t of_head = b->page_bytes * (DEPTH / MXC_ATTN_PAGE);
    return (struct mxc_attend){.k_dim = b->dim,
                               .v_dim = b->v_dim,
                               .n_columns = n,
                               .q = b->q,
                               .pages = b->pages + (size_t)(layer * HEADS + head) * of_head,
                               .page_stride = b->page_bytes,
                               .table = b->table,
                               .begin = begin,
                               .end = end};
}

static void attention_decode(void *arg, int worker, int n) {
    struct attention *b = arg;
    int32_t begin[MXC_ATTN_COLUMNS] = {0}, end[MXC_ATTN_COLUMNS];
    for (int i = 0; i < MXC_ATTN_COLUMNS; i++)
        end[i] = DEPTH;
    for (int layer = 0; layer < b->layers; layer++) {
        int tasks = HEADS * CHUNKS;
        for (int t = tasks * worker / n; t < tasks * (worker + 1) / n; t++) {
            struct mxc_attend job = job_of(b, layer, t / CHUNKS, b->group, begin, end);
            b->kernels->attend[b->type](&job, t % CHUNKS * MXC_ATTN_CHUNK, b->parts + t);
        }
        mxc_team_barrier(team);
        for (int h = HEADS * worker / n; h < HEADS * (worker + 1) / n; h++) {
            struct mxc_attn_part *total = b->parts + h * CHUNKS;
            for (int i = 1; i < CHUNKS; i++)
                b->kernels->attn_merge(total, total + i, false, b->group, b->v_dim);
            b->kernels->attn_finish(total, NULL, b->out + h * MXC_ATTN_COLUMNS * b->dim,
                                    (size_t)b->v_dim, b->group, b->v_dim);
        }
        mxc_team_barrier(team);
    }
}

static void attention_prefill(void *arg, int worker, int n) {
    struct attention *b = arg;
    int32_t per = MXC_ATTN_COLUMNS / b->group, begin[MXC_ATTN_COLUMNS] = {0};
    per = per * b->group > 12 && b->group <= 12 ? 12 / b->group : per;
    for (int h = 0; h < HEADS; h++)
        for (int32_t t0 = worker * per; t0 < PREFILL; t0 += n * per) {
            int32_t tokens = PREFILL - t0 < per ? PREFILL - t0 : per, end[MXC_ATTN_COLUMNS];
            for (int32_t c = 0; c < tokens * b->group; c++)
                end[c] = t0 + c / b->group + 1;
            struct mxc_attend job = job_of(b, 0, h, tokens * b->group, begin, end);
            struct mxc_attn_part *total = b->parts + 2 * worker;
            for (int32_t k0 = 0; k0 < t0 + tokens; k0 += MXC_ATTN_CHUNK) {
                b->kernels->attend[b->type](&job, k0, total + 1);
                b->kernels->attn_merge(total, total + 1, !k0, job.n_columns, b->v_dim);
            }
            b->kernels->attn_finish(total, NULL, b->out + worker * MXC_ATTN_COLUMNS * b->dim,
                                    (size_t)b->v_dim, job.n_columns, b->v_dim);
        }
}

static void bench_attention(const struct row *row) {
    /* k, v, query heads of a KV head; the last is multi-head latent attention */
    static const int32_t shapes[][3] = {{64, 64, 3}, {64, 64, 4}, {128, 128, 4}, {576, 512, 16}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct attention b = {.kernels = mxc_kernels_get(row->level),
                              .type = (enum mxc_kv_type)row->index,
                              .dim = shapes[s][0],
                              .v_dim = shapes[s][1],
                              .group = shapes[s][2],
                              .layers = shapes[s][0] > 256 ? 1 : 8};
        int32_t n_pages = DEPTH / MXC_ATTN_PAGE;
        b.page_bytes = mxc_page_bytes(b.type, b.dim, b.v_dim);
        size_t bytes = b.page_bytes * (size_t)(n_pages * HEADS * b.layers);
        size_t q_bytes = (size_t)(MXC_ATTN_COLUMNS * b.dim) * 4;
        size_t part_bytes = sizeof *b.parts * HEADS * CHUNKS;
        b.pages = memory(bytes);
        b.table = memory((size_t)n_pages * sizeof *b.table);
        uint8_t *q = memory(q_bytes);
        b.out = memory(q_bytes * HEADS * 2);
        b.parts = memory(part_bytes);
        uint32_t mask = b.type == MXC_KV_F32 ? 0x807FFFFF : 0x807F807F;
        uint32_t one = b.type == MXC_KV_F32 ? 0x3E000000 : 0x3E003E00, u;
        for (size_t i = 0; i < bytes; i += 4) {
            u = (rnd() & mask) | one;
            memcpy(b.pages + i, &u, sizeof u);
        }
        for (size_t i = 0; i < q_bytes; i += 4) {
            u = (rnd() & mask) | one;
            memcpy(q + i, &u, sizeof u);
        }
        b.q = q;
        for (int32_t i = 0; i < n_pages; i++)
            b.table[i] = i;
        for (int32_t i = n_pages - 1; i > 0; i--) {
            int32_t j = (int32_t)(rnd() % (uint32_t)(i + 1)), t = b.table[i];
            b.table[i] = b.table[j];
            b.table[j] = t;
        }
        double peak = peak_of(b.type == MXC_KV_F32 ? MXC_LAYOUT_F32 : MXC_LAYOUT_BF16, row->level);
        double t = best_time(attention_prefill, &b);
        double tflops =
            2.0 * (b.dim + b.v_dim) * b.group * HEADS * (PREFILL * (PREFILL + 1.0) / 2) / t * 1e-12;
        printf("  dim %3d, %d queries a KV head: prefill 512 %.3f TFLOP/s, %2.0f%% of %.2f", b.dim,
               b.group, tflops, tflops / peak * 100, peak);
        double read = mxc_ruler_read_gbs(team);
        t = best_time(attention_decode, &b);
        double gbs = (double)bytes / t * 1e-9;
        printf("; decode at %d %.1f GB/s, %2.0f%% of %.1f read\n", DEPTH, gbs, gbs / read * 100,
               read);
        mxc_mem_free_aligned(b.pages, bytes + 16384);
        mxc_mem_free_aligned(b.table, (size_t)n_pages * sizeof *b.table + 16384);
        mxc_mem_free_aligned(q, q_bytes + 16384);
        mxc_mem_free_aligned(b.out, q_bytes * HEADS * 2 + 16384);
        mxc_mem_free_aligned(b.parts, part_bytes + 16384);
    }
}

/* ---- the others: ns for a row of 2048 numbers (a head of 128 where it is about heads) */

struct small {
    const struct row *row;
    float *x, *y, *z;
    uint8_t *bytes;
    struct mxc_attn_part *parts;
};
enum { ROW = 2048, HEAD = 128, REPEAT = 2000 };

static void small_work(void *arg, int worker, int n) {
    struct small *b = arg;
    const struct row *row = b->row;
    const struct mxc_kernels *k = mxc_kernels_get(row->level);
    struct mxc_activation a = {.form = (enum mxc_activation_form)row->index,
                               .m = MXC_PREPARE_TILE,
                               .k = ROW,
                               .data = b->bytes};
    (void)n;
    if (worker)
        return;
    for (int i = 0; i < REPEAT; i++)
        switch (row->kind) {
        case KIND_NORM:
            k->rms_norm(b->y, b->x, b->z, ROW, 1e-5f, 0);
            break;
        case KIND_LAYER_NORM:
            k->layer_norm(b->y, b->x, b->z, b->z, ROW, 1e-5f);
            break;
        case KIND_GLU:
            k->glu[row->index](b->y, b->x, b->z, ROW);
            break;
        case KIND_ACT:
            k->act[row->index](b->y, b->x, ROW);
            break;
        case KIND_SOFTCAP:
            k->softcap(b->y, b->x, 30, ROW);
            break;
        case KIND_GATE:
            k->gate(b->y, b->x, 0.5f, ROW);
            break;
        case KIND_WEIGHTED_ADD:
            k->weighted_add(b->y, b->x, 0.5f, i % 8 == 0, ROW);
            break;
        case KIND_ADD:
            k->add(b->y, b->x, b->z, ROW);
            break;
        case KIND_ROPE:
            (row->index ? k->rope_pairs : k->rope_half)(b->x, b->z, b->z, HEAD);
            break;
        case KIND_PREPARE: /* 24 rows every 24th time: as many rows as the others */
            if (i % MXC_PREPARE_TILE == 0)
                k->prepare[row->index](&a, b->x, ROW, 0, MXC_PREPARE_TILE);
            break;
        case KIND_PREPARE_Q:
            k->prepare_q[row->index](b->bytes, b->x, HEAD, 0.1f);
            break;
        case KIND_APPEND:
            k->append[row->index](b->bytes, i % 32, b->x, b->z, HEAD, HEAD);
            break;
        case KIND_MERGE:
            k->attn_merge(b->parts, b->parts + 1, false, 4, HEAD);
            break;
        case KIND_FINISH:
            k->attn_finish(b->parts, NULL, b->y, HEAD, 4, HEAD);
            break;
        default:
            break;
        }
}

static void bench_small(const struct row *row) {
    size_t n = (size_t)ROW * MXC_PREPARE_TILE, bytes = n * 8;
    struct small b = {.row = row, .x = numbers(n), .y = numbers(n), .z = numbers(n)};
    b.bytes = memory(bytes);
    b.parts = memory(2 * sizeof *b.parts);
    printf("  %.0f ns\n", best_time(small_work, &b) / REPEAT * 1e9);
    mxc_mem_free_aligned(b.x, n * sizeof(float) + 16384);
    mxc_mem_free_aligned(b.y, n * sizeof(float) + 16384);
    mxc_mem_free_aligned(b.z, n * sizeof(float) + 16384);
    mxc_mem_free_aligned(b.bytes, bytes + 16384);
    mxc_mem_free_aligned(b.parts, 2 * sizeof *b.parts + 16384);
}

static bool wanted(const char *name, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strstr(name, argv[i]))
            return true;
    return argc == 0;
}

int main(int argc, char **argv) {
    int threads = 1, i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (!strcmp(argv[i], "-t"))
            threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "-s"))
            budget = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "-q"))
            form_filter = argv[i + 1];
    }
    struct mxc_err err;
    if (mxc_team_new(threads, &team, &err)) {
        fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 1;
    }
    printf("threads %d, best level %s\n", mxc_team_size(team), mxc_cpu_level_name(mxc_cpu_best()));
    printf("read %.1f GB/s, int8 %.2f TOP/s, bf16 %.2f, f32 %.2f TFLOP/s\n",
           mxc_ruler_read_gbs(team), mxc_ruler_int8_tops(team, mxc_cpu_best()),
           mxc_ruler_bf16_tflops(team, mxc_cpu_best()), mxc_ruler_f32_tflops(team, mxc_cpu_best()));
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (rows[r].level > mxc_cpu_best() || !wanted(rows[r].name, argc - i, argv + i))
            continue;
        printf("%s\n", rows[r].name);
        if (rows[r].kind == KIND_MATMUL)
            bench_matmul(&rows[r]);
        else if (rows[r].kind == KIND_ATTEND)
            bench_attention(&rows[r]);
        else
            bench_small(&rows[r]);
        fflush(stdout);
    }
    mxc_team_free(team);
    return 0;
}

/* CPU backend internals: what the files of this folder share. The way of a model:
 *   weights.c   every weight of the graph: packed matrices, f32 vector, or mapped table;
 *               pack_weights.c fills them
 *   program.c   nodes -> fused ops, liveness -> places of values in one arena
 *   plan.c      compile, estimate, free; describe.c tells people what was chosen
 *   step.c      checks a step, cuts attention into tiles
 *   exec.c      one team run walks the ops; op_*.c do them, moe_route.c chooses experts
 *   state.c     KV pages
 * and of a tower, whose rows all come at once:
 *   tower_plan.c   ops -> segments that tiles of rows go through, places of values
 *   tower.c        checks an input, takes memory for it
 *   tower_exec.c   walks tiles and ops within a budget
 * A program is walked by every worker; an op ends with a barrier unless it is the last. Rows and
 * workers never change the arithmetic of a row: workers split output strips, rows or (tile, head)
 * pairs, and what they split is computed by kernels that promise equal bits (kernels/kernels.h). */
#ifndef MXC_BACKEND_CPU_CPU_H
#define MXC_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/team.h"

#include <stdatomic.h>

enum {
    MXC_CPU_LINE = 64,                     /* bytes of a cache line */
    MXC_CPU_LINE_FLOATS = 16,              /* numbers of a cache line */
    MXC_CPU_SMALL_ROWS = MXC_PREPARE_TILE, /* up to here every worker prepares all rows itself */
    MXC_CPU_ROW_UNIT = 6,                  /* workers that split rows do so at multiples of this */
    MXC_CPU_SHARED_SLACK = 512, /* bytes that rounding adds to a worker's prepared rows */
    MXC_CPU_GLU_FLOATS = 65536, /* a worker's gate and up numbers before they are combined */
    MXC_CPU_TOWER_ROWS = 384    /* most rows of a tower that go through its ops together */
};

struct mxc_backend {
    struct mxc_team *team;
};

/* One matrix of a weight: an expert's, a head's, or the only one. */
struct mxc_cpu_slice {
    const struct mxc_view *view; /* in plan->views */
    struct mxc_packed packed;    /* data lies in plan->packed */
    size_t offset;               /* there */
};

/* One weight of the graph. */
struct mxc_cpu_weight {
    struct mxc_cpu_slice *slices; /* of plan->slices; a vector's: one for each of its tensors */
    int32_t n_slices;
    bool multiplied; /* it is packed (a table may be that too) */
    bool exact;      /* packed as f32 in fast too */
    float *vector;   /* MXC_W_VECTOR: [slices][n]; in plan->vectors */
    bool columns;    /* norms of the columns are wanted */
    float *norms;    /* [columns] |W[:, j]| + 1e-7; in plan->vectors */
};

enum mxc_cpu_op_kind {
    MXC_CPU_NO_OP, /* the backend does not know the graph's op */
    MXC_CPU_EMBED,
    MXC_CPU_ADD_POSITION,
    MXC_CPU_NORM, /* RMS or layer norm */
    MXC_CPU_LINEAR,
    MXC_CPU_HEADS,
    MXC_CPU_ATTENTION,
    MXC_CPU_MOE,
    MXC_CPU_GLU,
    MXC_CPU_ACT,
    MXC_CPU_SOFTCAP,
    MXC_CPU_GATE,
    MXC_CPU_UNIT_COLUMNS,
    MXC_CPU_ADD,
    MXC_CPU_TANH_SCALE,
    MXC_CPU_ROW_MASK,
    MXC_CPU_ADD_LEVEL,
    MXC_CPU_INPUT, /* towers: no work, nor has MERGE any */
    MXC_CPU_LOOKUP,
    MXC_CPU_GATHER,
    MXC_CPU_MEAN_ROWS,
    MXC_CPU_CONCAT,
    MXC_CPU_ATTEND,
    MXC_CPU_MERGE,
    MXC_CPU_SELECT,
    MXC_CPU_COPY,
    MXC_CPU_COMPACT /* moves the step's output rows of a value to its front */
};

struct mxc_cpu_op {
    enum mxc_cpu_op_kind kind;
    const struct mxc_node *node;
    int32_t ticket;                /* index into plan->tickets; a MOE has the next one too */
    int32_t source, residual, out; /* values; MXC_NONE when absent. residual: the second input */
    bool rows_out;                 /* works on the R output rows, else on all T */
    /* LINEAR */
    const struct mxc_node *norm; /* rows are normalised before they are prepared, or NULL */
    bool select;                 /* rows are picked by out_row before they are prepared */
    bool glu;                    /* two parts, or two halves of one part, combined at once */
    enum mxc_act act;
    const struct mxc_node *after; /* ACT or SOFTCAP done on the finished columns, or NULL */
    bool forms[MXC_N_ACT_FORMS];  /* activation forms of the parts; MOE: of gate and up */
    /* ATTENTION */
    int32_t attention; /* index into plan->attentions */
    bool append_only;  /* last attention: with no output rows only K and V are wanted */
};

struct mxc_cpu_place {
    size_t offset; /* into the program's arena */
    int32_t ld;    /* numbers from row to row */
    bool used;
};

/* Towers: where a value stands. TILE: in a piece of memory that holds one tile of rows; the other
 * kinds hold all rows. */
enum mxc_cpu_home { MXC_CPU_TILE, MXC_CPU_FULL, MXC_CPU_BORROWED, MXC_CPU_RESULT };
struct mxc_cpu_tower_value {
    enum mxc_cpu_home home;
    int32_t root;        /* the value whose numbers it sees: a MERGE moves nothing */
    int32_t alias;       /* root whose place it takes over, row by row */
    int32_t first, last; /* ops; -1: not in this program */
    int32_t first_segment, last_segment;
};

/* Towers: ops [op0, op1) that every tile of rows goes through before the next tile. Rows are those
 * of the slot. */
struct mxc_cpu_segment {
    int32_t op0, op1, slot;
    int32_t tile, grain; /* most rows of a tile, and what they are a multiple of */
    bool attend;         /* one ATTEND: all rows at once */
};

struct mxc_cpu_program {
    struct mxc_cpu_op *ops;
    int32_t n_ops, n_tail;        /* the last n_tail ops only serve output rows */
    struct mxc_cpu_place *places; /* [graph->n_values] */
    size_t arena_bytes;           /* tower: of one tile */
    uint8_t *arena;               /* NULL until allocated; tower: always */
    /* towers */
    struct mxc_cpu_segment *segments;
    int32_t n_segments;
    struct mxc_cpu_tower_value *values; /* [graph->n_values] */
};

/* One attention node: its class (schedule) and where its pages are in a state. */
struct mxc_cpu_attention {
    const struct mxc_node *node;
    struct mxc_attn_attr attr; /* of a CROSS too */
    int32_t class_;
    size_t page_bytes;   /* one KV head's page */
    size_t block_bytes;  /* pages of all KV heads */
    size_t layer_offset; /* bytes per block of the kind that come before this node's */
};

/* Attention nodes of equal heads and window share one schedule a step. */
struct mxc_cpu_class {
    int32_t n_heads, n_kv_heads, window;
    enum mxc_kv_kind kind;
    int32_t columns_per_token; /* query heads of one KV head done at once */
    int32_t n_subs;            /* groups of such heads per KV head */
    int32_t tokens_per_tile;
};

/* Some consecutive rows of one span that see the same chunks of keys. */
struct mxc_cpu_tile {
    int32_t span, row0, n_rows;
    int32_t chunk0, chunk1;
    int32_t item0; /* first item of the tile when chunks are shared out */
};

struct mxc_cpu_schedule {
    struct mxc_cpu_tile *tiles; /* [max_rows] */
    int32_t n_tiles;
    bool own_heads; /* a worker appends and attends for KV heads of its own: no barrier between */
    bool share_chunks; /* an item is one chunk; else it is a tile with all its chunks */
    int32_t n_items;   /* (tile, KV head, sub[, chunk]) */
    int32_t pending0;  /* first of its counters */
};

struct mxc_cpu_rope {
    const struct mxc_rope *rope;
    int32_t half; /* dims / 2 */
    bool by_length;
    float factor;
    float inv_freq[MXC_MAX_ROPE_HALF];
    uint8_t axis[MXC_MAX_ROPE_HALF];
    float *cos, *sin; /* [max_rows][half], this step's */
};

/* Consecutive entries of a MOE's list, all of one expert. */
struct mxc_cpu_moe_block {
    int32_t expert, first, n; /* n <= SMALL_ROWS */
};

/* Which expert does which row: an entry is a (row, rank) pair, row * top_k + rank its number. */
struct mxc_cpu_moe {
    int32_t *expert;                  /* [entry number] */
    float *share;                     /* [entry number] p_e */
    int32_t *list;                    /* entry numbers by expert, then by number */
    int32_t *place;                   /* [entry number] where it is in the list */
    struct mxc_cpu_moe_block *blocks; /* the list in blocks */
    int32_t *counts;                  /* [n_experts + 1] */
    float *scores;                    /* [3 * n_experts] */
    uint8_t *taken;                   /* [n_experts] */
};

/* Room for the MOE ops of a graph: the largest of each. */
struct mxc_cpu_moe_room {
    size_t entries, experts;    /* max_rows * top_k; 0: no MOE */
    size_t hidden_ld, prepared; /* numbers of a hidden row; bytes of a prepared row */
};

/* What one worker has for itself. */
struct mxc_cpu_worker {
    struct mxc_cpu_run *run;
    int id, n;
    uint8_t *prepared[MXC_N_ACT_FORMS]; /* SMALL_ROWS rows, also one by one */
    float *rows;                        /* [SMALL_ROWS][plan->row_ld] */
    float *glu;                         /* gate and up strips; results of experts */
    struct mxc_cpu_moe moe;
    float *heads;  /* [2][MXC_ATTN_MAX_DIM] */
    float *query;  /* [ATTN_COLUMNS][ATTN_MAX_DIM] */
    float *result; /* [ATTN_COLUMNS][ATTN_MAX_DIM] */
    struct mxc_attn_part *part, *total;
};

struct mxc_plan {
    struct mxc_backend *backend;
    const struct mxc_graph *graph;
    const struct mxc_kernels *kernels;
    bool exact, tower;
    enum mxc_kv_type kv_type;
    int32_t max_rows, max_out, max_spans;

    struct mxc_cpu_weight *weights; /* [graph->n_weights] */
    struct mxc_cpu_slice *slices;
    size_t n_slices;
    struct mxc_view *views;   /* [n_slices] */
    struct mxc_tensor *flats; /* tensors that are seen under another shape */
    uint8_t *packed;
    size_t packed_bytes;
    float *vectors;
    size_t vectors_bytes;

    struct mxc_cpu_program fused, plain; /* plain: every value is there, for taps; made on demand */
    struct mxc_cpu_attention *attentions;
    struct mxc_cpu_class *classes;
    struct mxc_cpu_schedule *schedules; /* [n_classes] */
    struct mxc_cpu_rope *ropes;         /* [graph->n_ropes] */
    int32_t n_attentions, n_classes;
    size_t kv_block_bytes[MXC_N_KV_KINDS];

    int32_t form_k[MXC_N_ACT_FORMS]; /* widest input of a form; 0: form unused */
    int32_t row_ld, tap_width;       /* widest value's row stride; widest named value */
    size_t glu_floats;
    struct mxc_cpu_worker *workers;
    uint8_t *scratch; /* of all workers, shared activations, ropes, tiles */
    size_t scratch_bytes;
    uint8_t *shared[MXC_N_ACT_FORMS]; /* max_rows rows */
    float *row_factors; /* [max_rows][2] of q and k, when they are normed as a whole; else NULL */
    bool whole_norms;
    struct mxc_cpu_moe_room moe_room;
    int32_t *moe_expert;   /* [entries] */
    float *moe_share;      /* [entries] */
    float *moe_hidden;     /* [entries][hidden_ld] */
    uint8_t *moe_prepared; /* [entries] rows */

    uint8_t *parts; /* shared chunks: partial results, grown by run */
    size_t parts_bytes, part_stride;
    _Atomic int32_t *pending; /* per (tile, head, sub): chunks not done */
    size_t n_pending;
    int32_t *tables; /* block tables of a step with holes filled, grown by run */
    size_t n_tables;
    const int32_t **span_tables;    /* [max_spans][N_KV_KINDS] into tables */
    struct mxc_cpu_share *shares;   /* [n_tickets][workers] */
    uint32_t n_steps;               /* counts them, for shares */
    struct mxc_cpu_ticket *tickets; /* [n_tickets], see mxc_cpu_op.ticket */
    int32_t n_tickets;
    char describe[160];
};

/* What is taken of one worker's range of one op, on a line of its own: the step's number in the
 * upper half (another one: nothing yet), units from the front and from the back. */
struct mxc_cpu_share {
    _Alignas(MXC_CPU_LINE) _Atomic uint64_t taken;
};

/* A counter on a line of its own: the next item to take. */
struct mxc_cpu_ticket {
    _Alignas(MXC_CPU_LINE) _Atomic int32_t next;
};

struct mxc_state {
    struct mxc_plan *plan;
    int32_t n_blocks[MXC_N_KV_KINDS];
    uint8_t *pages[MXC_N_KV_KINDS]; /* [attention of the kind][block][KV head] pages */
    size_t bytes[MXC_N_KV_KINDS];
    bool huge; /* huge pages are asked for: there was a long sequence */
};

struct mxc_cpu_run {
    struct mxc_plan *plan;
    struct mxc_state *state;
    const struct mxc_step *step;
    const struct mxc_out *out;
    const struct mxc_cpu_program *program;
    float *tap_rows; /* [max_rows][widest named value]; NULL: no tap */
    /* a tower's, each worker has its own */
    struct mxc_tower *tower; /* NULL: a decoder's step */
    int32_t row0, n_rows;    /* the tile, in rows of the segment's slot */
};

/* ---- towers */

/* Keys that overlapping ranges see are a component: it has pages of its own, from its first row on,
 * so that what stands before it changes nothing. Tiles are rows of one component that see the same
 * chunks. */
struct mxc_cpu_component {
    int32_t row0, n_rows; /* keys */
    int32_t page0;        /* counted over all components */
    int32_t tile0;        /* its tiles are [tile0, next one's) of the order */
};
struct mxc_cpu_row_tile {
    int32_t row0, n_rows, component;
};
struct mxc_cpu_range {
    struct mxc_cpu_component *components; /* [n_components + 1] */
    struct mxc_cpu_row_tile *tiles;       /* [n_tiles] */
    int32_t *order;                       /* [n_tiles] by component */
    int32_t n_components, n_tiles, pages; /* pages: that one head has room for */
};

/* Angles of a rope at an index. */
struct mxc_cpu_angles {
    int32_t rope, positions;
    float *cos, *sin; /* [rows][half] */
};

/* Where a run stands. */
struct mxc_cpu_cursor {
    int32_t segment, row0, op;       /* op: from the segment's first */
    int32_t head0, component0, item; /* ATTEND */
    bool packed;
};

struct mxc_tower {
    struct mxc_plan *plan;
    const struct mxc_cpu_program *program;
    struct mxc_tower_input input;
    uint8_t *memory; /* all of the rest */
    size_t bytes;
    uint8_t *tile, *full;
    float *result;
    size_t *places; /* [n_values] of FULL roots, into full */
    struct mxc_cpu_range ranges[MXC_MAX_RANGES];
    struct mxc_cpu_angles *angles; /* [n_angles] */
    int32_t n_angles;
    uint8_t *pages;    /* [heads at once][pages] */
    int32_t *identity; /* [pages] 0, 1, 2, ... */
    struct mxc_cpu_cursor cursor;
    bool done;
    mxc_tap_fn *tap;
    void *tap_user;
    float *tap_rows;
};

/* Hands out pieces of one region; with base NULL it only counts. */
struct mxc_cpu_cutter {
    uint8_t *base;
    size_t used;
    bool overflow;
};
void *mxc_cpu_cut(struct mxc_cpu_cutter *cutter, size_t count, size_t size, size_t align);

/* ---- weights.c */
/* Resolves every weight and decides layouts; fills plan->weights and slices (all but data),
 * packed_bytes and vectors_bytes, exact and form_k. */
enum mxc_code mxc_cpu_weights_plan(struct mxc_plan *plan, const struct mxc_weights *weights,
                                   enum mxc_precision precision, struct mxc_err *err) MXC_MUST;
/* ---- pack_weights.c */
/* Allocates and fills what weights.c has measured. */
enum mxc_code mxc_cpu_weights_pack(struct mxc_plan *plan, const struct mxc_plan_options *options,
                                   struct mxc_err *err) MXC_MUST;
/* Rows of strips [strip0, strip1) alone: a matrix of its own. */
static inline struct mxc_packed mxc_cpu_strips(const struct mxc_packed *packed, int32_t strip0,
                                               int32_t strip1) {
    struct mxc_packed p = *packed;
    int32_t last = strip1 * MXC_STRIP < p.n ? strip1 * MXC_STRIP : p.n;
    p.data += (size_t)strip0 * p.strip_bytes;
    p.n = last - strip0 * MXC_STRIP;
    return p;
}
/* Offset of a matrix in plan->packed is a multiple of this. */
enum { MXC_CPU_PACK_ALIGN = 256, MXC_CPU_HUGE = 2 << 20 };

/* ---- program.c */
/* Numbers from row to row for a width: whole lines, an odd number of them, so that a column of
 * many rows does not fall into one cache set. */
int32_t mxc_cpu_ld(int32_t width);
enum mxc_code mxc_cpu_program_build(struct mxc_cpu_program *program, const struct mxc_plan *plan,
                                    bool fuse, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_cpu_program_allocate(struct mxc_cpu_program *program,
                                       struct mxc_err *err) MXC_MUST;
void mxc_cpu_program_fini(struct mxc_cpu_program *program);
/* Values that an op reads, prepared rows of a LINEAR with them; returns how many. */
int mxc_cpu_op_reads(const struct mxc_cpu_op *op, int32_t values[MXC_MAX_IN + 2]);

/* ---- tower_plan.c */
/* Cuts a tower's ops into segments and finds homes, row strides and places of tile values. fuse:
 * values may share places; else named ones are kept to the end. */
enum mxc_code mxc_cpu_tower_layout(struct mxc_cpu_program *program, const struct mxc_plan *plan,
                                   bool fuse, struct mxc_err *err) MXC_MUST;
/* Places of FULL values for a number of rows per slot: offsets [n_values] (of roots) and the bytes
 * of all. false: out of memory or of range. */
bool mxc_cpu_tower_place(const struct mxc_cpu_program *program, const struct mxc_graph *graph,
                         const int32_t *n_rows, size_t *offsets, size_t *bytes);

/* ---- step.c */
/* Checks a step against plan and state and makes tables and schedules for it. */
enum mxc_code mxc_cpu_step_begin(struct mxc_plan *plan, const struct mxc_state *state,
                                 const struct mxc_step *step, const struct mxc_out *out,
                                 struct mxc_err *err) MXC_MUST;
/* Keys [*begin, *end) that a row of a span sees; a row with an empty range of the CROSS store sees
 * all of it. */
void mxc_cpu_class_keys(const struct mxc_cpu_class *class_, const struct mxc_step *step,
                        const struct mxc_span *span, int32_t row, int32_t *begin, int32_t *end);

/* ---- exec.c */
enum mxc_code mxc_cpu_run(struct mxc_plan *plan, struct mxc_state *state,
                          const struct mxc_step *step, const struct mxc_out *out,
                          struct mxc_err *err) MXC_MUST;
/* Where a value is in this run, and its row stride. */
float *mxc_cpu_value(const struct mxc_cpu_run *run, int32_t value, size_t *ld);
/* Takes the next [*begin, *end) of n units from a counter, at most `chunk` of them; chunk 0:
 * the worker's fixed share, once (*turn counts from 0). false: nothing left. */
bool mxc_cpu_take(const struct mxc_cpu_worker *worker, int32_t ticket, int32_t n, int32_t chunk,
                  int32_t *turn, int32_t *begin, int32_t *end);
/* The same, but a worker first takes the units of its own range, from the front, so that it reads
 * one stream; then what others have left, from the back. Not in towers, which have no steps. */
bool mxc_cpu_take_near(const struct mxc_cpu_worker *worker, int32_t ticket, int32_t n,
                       int32_t chunk, int32_t *turn, int32_t *begin, int32_t *end);
/* Part [*begin, *end) of n units of work for a worker; borders are multiples of unit. */
void mxc_cpu_split(const struct mxc_cpu_worker *worker, int32_t n, int32_t unit, int32_t *begin,
                   int32_t *end);
static inline int32_t mxc_cpu_op_rows(const struct mxc_cpu_run *run, const struct mxc_cpu_op *op) {
    if (run->tower)
        return run->n_rows / run->plan->graph->values[op->out].rows.divisor;
    return op->rows_out ? run->step->n_out : run->step->n_rows;
}
static inline void mxc_cpu_barrier(const struct mxc_cpu_worker *worker) {
    mxc_team_barrier(worker->run->plan->backend->team);
}

/* ---- op_*.c: called by every worker; they return without a closing barrier */
void mxc_cpu_op_embed(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_rope_tables(struct mxc_cpu_worker *worker);
void mxc_cpu_op_rows_only(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_compact(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
/* One row of an RMS_NORM or LAYER_NORM node; y may be x. */
void mxc_cpu_norm_row(const struct mxc_plan *plan, const struct mxc_node *norm, float *y,
                      const float *x, int32_t width);
void mxc_cpu_op_linear(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
/* Units that a worker takes at a time when `bytes` of weights are read for m rows; 0: a fixed
 * share. Taking turns evens out cores that are slower or disturbed, and pays when a turn is long
 * against the counter's cost. */
int32_t mxc_cpu_turn(const struct mxc_cpu_worker *worker, int32_t m, int32_t n_units, size_t bytes);
void mxc_cpu_op_heads(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_moe(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_attention(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_lookup(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_gather(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_mean_rows(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);
void mxc_cpu_op_concat(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op);

/* ---- op_attend.c */
/* Heads whose K and V are kept in pages at once, and pages of one head for a number of rows. */
int32_t mxc_cpu_attend_heads(const struct mxc_plan *plan, const struct mxc_attend_attr *attr,
                             int32_t pages);
int32_t mxc_cpu_attend_pages(int32_t rows);
/* What is done at once of an ATTEND: some heads, the components whose pages fit. */
struct mxc_cpu_attend {
    int32_t head0, n_heads;
    int32_t component0, component1;
    int32_t item0, item1; /* of (head, tile) pairs */
};
/* K and V of the heads and components into pages; then items, taken from a ticket. */
void mxc_cpu_attend_pack(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                         const struct mxc_cpu_attend *what);
void mxc_cpu_attend_items(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                          const struct mxc_cpu_attend *what);

/* ---- tower.c */
enum mxc_code mxc_cpu_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                struct mxc_tower **tower, struct mxc_err *err) MXC_MUST;
const float *mxc_cpu_tower_output(const struct mxc_tower *tower, int32_t *rows);
void mxc_cpu_tower_free(struct mxc_tower *tower);
uint64_t mxc_cpu_tower_bytes(const struct mxc_plan *plan, const struct mxc_tower_input *input);
enum mxc_code mxc_cpu_tower_tap(struct mxc_tower *tower, mxc_tap_fn *tap, void *user,
                                struct mxc_err *err) MXC_MUST;
/* Row `row0` (of the slot) of a value, and its row stride. A TILE value: where the tile begins. */
float *mxc_cpu_tower_value(const struct mxc_tower *tower, int32_t value, int32_t row0, size_t *ld);

/* ---- tower_exec.c */
enum mxc_code mxc_cpu_tower_step(struct mxc_tower *tower, uint64_t budget, bool *done,
                                 struct mxc_err *err) MXC_MUST;
void mxc_cpu_tower_angles(struct mxc_tower *tower);

/* ---- moe_route.c */
/* Experts and shares of one row, top_k of each; bias may be NULL. Uses moe->scores and taken. */
void mxc_cpu_moe_choose(const struct mxc_moe_attr *attr, const float *logits, const float *bias,
                        const struct mxc_cpu_moe *moe, int32_t *expert, float *share);
/* Fills list, place and blocks of moe from the experts of n_rows rows; returns the number of
 * blocks. */
int32_t mxc_cpu_moe_list(const struct mxc_moe_attr *attr, int32_t n_rows, const int32_t *expert,
                         const struct mxc_cpu_moe *moe);

/* ---- state.c */
enum mxc_code mxc_cpu_state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                                struct mxc_state **state, struct mxc_err *err) MXC_MUST;
/* Huge pages from the first long sequence on: short ones would fill a page of every layer. */
void mxc_cpu_state_expect(struct mxc_state *state, const struct mxc_step *step);
void mxc_cpu_state_free(struct mxc_state *state);
void mxc_cpu_state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to);
enum mxc_code mxc_cpu_state_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   void *bytes, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_cpu_state_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   const void *bytes, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_cpu_state_put(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                                int32_t n, const float *rows, size_t ld,
                                struct mxc_err *err) MXC_MUST;
/* The pages of one attention node: page of (block, KV head) is at + block * block_bytes + head *
 * page_bytes. */
static inline uint8_t *mxc_cpu_state_pages(const struct mxc_state *state,
                                           const struct mxc_cpu_attention *attention,
                                           enum mxc_kv_kind kind) {
    return state->pages[kind] + attention->layer_offset * (size_t)state->n_blocks[kind];
}

/* ---- plan.c */
enum mxc_code mxc_cpu_compile(struct mxc_backend *backend, const struct mxc_graph *graph,
                              const struct mxc_weights *weights,
                              const struct mxc_plan_options *options, struct mxc_plan **out,
                              struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_cpu_estimate(struct mxc_backend *backend, const struct mxc_graph *graph,
                               const struct mxc_weights *weights,
                               const struct mxc_plan_options *options,
                               struct mxc_plan_memory *memory, struct mxc_err *err) MXC_MUST;
void mxc_cpu_plan_free(struct mxc_plan *plan);
void mxc_cpu_plan_memory(const struct mxc_plan *plan, struct mxc_plan_memory *memory);

/* ---- describe.c */
/* Fills plan->describe. */
void mxc_cpu_describe(struct mxc_plan *plan);
const char *mxc_cpu_plan_describe(const struct mxc_plan *plan);
bool mxc_cpu_plan_matrix(const struct mxc_plan *plan, int32_t index, struct mxc_plan_matrix *out);

#endif

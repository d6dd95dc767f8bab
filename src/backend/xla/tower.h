/* Tower: one run of a tower's graph on a device. The graph is cut into parts where its layers begin
 * and end; every part is a program, and like layers share one, so that a step of a run is some
 * parts and compiling does not grow with depth. Rows of slots are padded up to buckets.
 * tower_feed.c: buckets of an input and the arrays that a program reads of it. tower_program.c:
 * parts and their programs, kept with the plan. tower.c: runs. In: a plan and the planner's arrays.
 * Out: feature rows in host memory, valid until free. Thread rules: those of the backend. */
#ifndef MXC_BACKEND_XLA_TOWER_H
#define MXC_BACKEND_XLA_TOWER_H

#include "backend/xla/module.h"

/* Rows of queries that attend together, for a bucket of rows: at most all of them; and how many
 * such tiles there are. */
static inline int32_t mxc_xla_tower_tile(int32_t rows) {
    int32_t most = rows > 4096 ? 32 : 64;
    return rows < most ? rows : most;
}
static inline int32_t mxc_xla_tower_tiles(int32_t rows) {
    int32_t tile = mxc_xla_tower_tile(rows);
    return (rows + tile - 1) / tile;
}
/* First node of the graph whose angles are the node's (same rope, same positions). */
int32_t mxc_xla_tower_angles_node(const struct mxc_graph *graph, int32_t node);

/* ---- tower_feed.c */
/* Buckets of a checked input: rows of a slot go up to 16, 64, 256, 512, 1024, 2048, 4096, then
 * whole multiples of 2048, and from there to a multiple of every divisor of the slot; keys of a
 * range's tiles to a power of two from 64 on, and at most all rows. */
void mxc_xla_tower_buckets(const struct mxc_graph *graph, const struct mxc_tower_input *input,
                           struct mxc_xla_buckets *buckets);
/* Rows of a bucket of an extent. */
static inline int32_t mxc_xla_tower_bucket(const struct mxc_xla_buckets *buckets,
                                           struct mxc_extent extent) {
    return buckets->slots[extent.slot] / extent.divisor;
}
/* Writes one feed of a checked input to `to` (feed->n numbers of its type). Rows behind the real
 * ones: zeros, index -1, the range of the last real row. */
void mxc_xla_tower_fill(const struct mxc_graph *graph, const struct mxc_tower_input *input,
                        const struct mxc_xla_buckets *buckets, const struct mxc_xla_feed *feed,
                        void *to);

/* ---- tower_program.c */
/* Parts of a tower's graph and their programs. One set of modules for each combination of buckets;
 * sets that nobody runs are let go, oldest first, when there are many. */
struct mxc_xla_towers;
struct mxc_xla_tower_set {
    struct mxc_xla_buckets buckets;
    struct mxc_xla_module *modules;          /* [n_parts] */
    struct mxc_xla_tower_program **programs; /* [n_parts] NULL: not compiled yet */
    int32_t users;
    uint64_t last_use;
    struct mxc_xla_tower_set *next;
};
/* The plan is borrowed; its form must be settled. */
enum mxc_code mxc_xla_towers_new(struct mxc_plan *plan, struct mxc_xla_towers **towers,
                                 struct mxc_err *err) MXC_MUST;
void mxc_xla_towers_free(struct mxc_xla_towers *towers); /* NULL is fine */
/* Nodes of every part, in order. */
const struct mxc_xla_cut *mxc_xla_towers_parts(const struct mxc_xla_towers *towers, int32_t *n);
/* The set of these buckets, with its texts, for one user more; let_go takes it back. */
enum mxc_code mxc_xla_towers_take(struct mxc_xla_towers *towers,
                                  const struct mxc_xla_buckets *buckets,
                                  struct mxc_xla_tower_set **set, struct mxc_err *err) MXC_MUST;
void mxc_xla_towers_let_go(struct mxc_xla_tower_set *set);
/* The program of a part; compiles it, or finds it with a part whose text is the same. */
enum mxc_code mxc_xla_towers_program(struct mxc_xla_towers *towers, struct mxc_xla_tower_set *set,
                                     int32_t part, struct mxc_xla_program **program,
                                     struct mxc_err *err) MXC_MUST;

/* ---- tower.c: the tower functions of mxc_backend_ops */
enum mxc_code mxc_xla_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                struct mxc_tower **tower, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_xla_tower_step(struct mxc_tower *tower, uint64_t budget, bool *done,
                                 struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_xla_tower_tap(struct mxc_tower *tower, mxc_tap_fn *tap, void *user,
                                struct mxc_err *err) MXC_MUST;
const float *mxc_xla_tower_output(const struct mxc_tower *tower, int32_t *rows);
void mxc_xla_tower_free(struct mxc_tower *tower);
uint64_t mxc_xla_tower_bytes(const struct mxc_plan *plan, const struct mxc_tower_input *input);

#endif

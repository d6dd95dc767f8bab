/* Inside the grammar folder: what runs an automaton. Frames and threads (threads.c), the trie of a
 * vocabulary (vocab.c), cached masks (masks.c); state.c joins them. */
#ifndef MXC_GEN_GRAMMAR_RUN_H
#define MXC_GEN_GRAMMAR_RUN_H

#include "gen/grammar/ir.h"

#include <pthread.h>

/* ---- frames: where to go on when a rule ends. Equal frames have equal numbers. */

enum { MXC_FRAME_ROOT, MXC_FRAME_UNKNOWN, MXC_FRAME_FIRST };
#define MXC_FRAME_NONE UINT32_MAX

struct mxc_gframe {
    uint32_t state, count, parent;
    uint32_t depth;
};
struct mxc_gframes {
    struct mxc_gframe *items; /* from MXC_FRAME_FIRST on */
    size_t n, capacity;
    uint32_t *slots;
    size_t n_slots;
    bool failed; /* out of memory */
};
bool mxc_gframes_init(struct mxc_gframes *frames);
void mxc_gframes_fini(struct mxc_gframes *frames);
bool mxc_gframes_copy(struct mxc_gframes *to, const struct mxc_gframes *from);
/* MXC_FRAME_NONE: too deep, or out of memory (failed). */
uint32_t mxc_gframes_intern(struct mxc_gframes *frames, uint32_t state, uint32_t count,
                            uint32_t parent);
/* Forgets the frames from n on, which must be the newest. */
void mxc_gframes_truncate(struct mxc_gframes *frames, size_t n);

/* ---- threads */

struct mxc_gthread {
    uint32_t state, count, frame;
};
/* A list at the end of a growing array, so that a walk can hold one list per depth. */
struct mxc_gthreads {
    struct mxc_gthread *items;
    size_t capacity;
    bool failed, full; /* out of memory; more than MXC_GRAMMAR_MAX_STACKS */
    uint32_t work;     /* steps of walks, at most MXC_GWALK_MAX_WORK */
};
struct mxc_glist {
    size_t begin, n;
};
struct mxc_gends {
    bool root, unknown; /* the thread's text may end: the whole text, or the rule it began in */
};
bool mxc_gthreads_add(struct mxc_gthreads *t, struct mxc_glist *list, struct mxc_gthread thread);
/* Adds what follows without a byte: calls, loops, ends. */
struct mxc_gends mxc_gthreads_close(const struct mxc_grammar *g, struct mxc_gframes *frames,
                                    struct mxc_gthreads *t, struct mxc_glist *list);
/* Threads of `from` (closed) after one byte, as a list right behind it. */
struct mxc_glist mxc_gthreads_step(const struct mxc_grammar *g, struct mxc_gthreads *t,
                                   struct mxc_glist from, uint8_t byte);
static inline bool mxc_gthreads_plain(const struct mxc_grammar *g, const struct mxc_gthreads *t,
                                      struct mxc_glist list) {
    return list.n == 1 && g->states[t->items[list.begin].state].plain;
}

/* ---- trie: nodes in depth-first order */

enum { MXC_GTRIE_MAX_TOKEN = 255, MXC_GTRIE_FEW = 256 };

struct mxc_gtrie_node {
    uint32_t next;  /* the node behind this one's subtree */
    uint32_t token; /* first of its tokens in ids; they end where the next node's begin */
    uint8_t byte, depth;
};
struct mxc_gtrie {
    struct mxc_gtrie_node *nodes; /* [n + 1]; 0 is the root */
    int32_t *ids;
    uint32_t n, n_ids;
};
struct mxc_grammar_vocab {
    struct mxc_gtrie all, longs; /* longs: tokens of more than long_bytes, at most MXC_GTRIE_FEW */
    uint32_t long_bytes, max_bytes; /* max_bytes: of the longest token */
    uint32_t *offsets;              /* [n + 1] into bytes */
    char *bytes;
    uint8_t *special;
    uint64_t *eos;    /* bit per id */
    uint64_t *usable; /* tokens that have a place in the trie */
    int32_t n;
    size_t n_words, total_bytes;
};
static inline struct mxc_str mxc_grammar_vocab_token(const struct mxc_grammar_vocab *v,
                                                     int32_t id) {
    return (struct mxc_str){v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id]};
}
static inline bool mxc_grammar_bit(const uint64_t *bits, int32_t id) {
    return bits[id / 64] >> (id % 64) & 1;
}

/* ---- masks */

/* What a thread allows while its rule lasts; tokens that go on behind the rule's end begin at the
 * escapes (trie nodes), and are for the caller, who knows the frame. */
enum mxc_gmask_form { MXC_GMASK_BITS, MXC_GMASK_ALLOWED, MXC_GMASK_BANNED };
struct mxc_gmask {
    struct mxc_gmask *newer, *older, *chain;
    uint64_t key[2];
    size_t bytes;
    enum mxc_gmask_form form;
    bool ends;    /* the rule may end before any byte */
    bool clipped; /* tokens of the trie `longs` are to be walked besides */
    uint32_t n_ids, n_escapes;
    uint32_t *data; /* bits (as uint64), or ids; then escapes */
};

struct mxc_gwalk {
    const struct mxc_grammar *g;
    struct mxc_gframes *frames;
    struct mxc_gthreads *threads;
    const struct mxc_gtrie *trie;
    uint32_t max_depth;
    uint64_t *bits;         /* allowed tokens are set */
    const uint64_t *follow; /* bytes that lead on from an escape; NULL: none are recorded */
    uint32_t *escapes;
    size_t n_escapes, escape_capacity;
    bool failed;
};
/* Steps for one mask: a hostile grammar must not hold up the engine for longer. */
enum { MXC_GWALK_MAX_WORK = 1 << 24 };
/* Walks the trie below node `at` with the closed list. */
void mxc_gwalk_below(struct mxc_gwalk *walk, uint32_t at, struct mxc_glist list);

struct mxc_grammar_masks {
    struct mxc_grammar *grammar;
    const struct mxc_grammar_vocab *vocab;
    pthread_mutex_t lock; /* of all below */
    int refs;
    size_t max_bytes;
    struct mxc_gmask **table;
    size_t n_table;
    struct mxc_gmask *newest, *oldest;
    struct mxc_gframes frames;
    struct mxc_gthreads threads;
    uint64_t *bits;
    struct mxc_grammar_masks_stats stats;
};
/* With the lock held: the thread's mask, cached or made; release it before the lock. NULL: failed,
 * *code says why. */
const struct mxc_gmask *mxc_grammar_masks_get(struct mxc_grammar_masks *masks,
                                              struct mxc_gthread thread, enum mxc_code *code,
                                              struct mxc_err *err);
void mxc_grammar_masks_release(struct mxc_grammar_masks *masks, const struct mxc_gmask *mask);
/* bits |= the mask's tokens. */
void mxc_grammar_masks_or(const struct mxc_grammar_masks *masks, const struct mxc_gmask *mask,
                          uint64_t *bits, uint64_t *scratch);
/* The error of a failed list or frames. */
enum mxc_code mxc_grammar_run_error(const struct mxc_gframes *frames,
                                    const struct mxc_gthreads *threads, struct mxc_err *err);

#endif

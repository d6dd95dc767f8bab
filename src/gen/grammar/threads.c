/* Frames and threads: the pushdown at work. A text's readings are threads; frames are shared and
 * numbered, so that equal readings are found to be equal and joined.
 * In: an automaton and bytes. Out: lists of threads, and whether the text may end.
 * Invariants: at most MXC_GRAMMAR_MAX_STACKS threads in a list, frames at most
 * MXC_GRAMMAR_MAX_DEPTH deep; a frame's parent has a lower number. */
#include "gen/grammar/run.h"

#include "base/mem.h"

#include <string.h>

enum { FIRST_SLOTS = 64 };

bool mxc_gframes_init(struct mxc_gframes *f) {
    *f = (struct mxc_gframes){.n = MXC_FRAME_FIRST, .n_slots = FIRST_SLOTS};
    f->slots = mxc_mem_zalloc(f->n_slots, sizeof *f->slots);
    bool ok = f->slots && mxc_grammar_grow((void **)&f->items, &f->capacity, 16, sizeof *f->items);
    if (!ok) {
        mxc_gframes_fini(f);
        return false;
    }
    memset(f->items, 0, MXC_FRAME_FIRST * sizeof *f->items);
    return true;
}

void mxc_gframes_fini(struct mxc_gframes *f) {
    mxc_mem_free(f->items);
    mxc_mem_free(f->slots);
    *f = (struct mxc_gframes){0};
}

bool mxc_gframes_copy(struct mxc_gframes *to, const struct mxc_gframes *from) {
    struct mxc_gframes f = *from;
    f.items = mxc_mem_array(from->capacity, sizeof *f.items);
    f.slots = mxc_mem_array(from->n_slots, sizeof *f.slots);
    if (!f.items || !f.slots) {
        mxc_mem_free(f.items);
        mxc_mem_free(f.slots);
        return false;
    }
    memcpy(f.items, from->items, from->n * sizeof *f.items);
    memcpy(f.slots, from->slots, from->n_slots * sizeof *f.slots);
    *to = f;
    return true;
}

static size_t slot_of(const struct mxc_gframes *f, uint32_t state, uint32_t count,
                      uint32_t parent) {
    uint64_t h = (state * UINT64_C(0x9e3779b97f4a7c15)) ^ (count * UINT64_C(0xc2b2ae3d27d4eb4f)) ^
                 (parent * UINT64_C(0x165667b19e3779f9));
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return (size_t)(h >> 32) & (f->n_slots - 1);
}

static bool grow(struct mxc_gframes *f) {
    size_t n = f->n_slots * 2;
    uint32_t *slots = mxc_mem_zalloc(n, sizeof *slots);
    if (!slots)
        return false;
    mxc_mem_free(f->slots);
    f->slots = slots;
    f->n_slots = n;
    for (size_t i = MXC_FRAME_FIRST; i < f->n; i++) {
        size_t at = slot_of(f, f->items[i].state, f->items[i].count, f->items[i].parent);
        while (slots[at])
            at = (at + 1) & (n - 1);
        slots[at] = (uint32_t)i;
    }
    return true;
}

uint32_t mxc_gframes_intern(struct mxc_gframes *f, uint32_t state, uint32_t count,
                            uint32_t parent) {
    size_t at = slot_of(f, state, count, parent);
    for (; f->slots[at]; at = (at + 1) & (f->n_slots - 1)) {
        const struct mxc_gframe *i = &f->items[f->slots[at]];
        if (i->state == state && i->count == count && i->parent == parent)
            return f->slots[at];
    }
    uint32_t depth = parent < MXC_FRAME_FIRST ? 1 : f->items[parent].depth + 1;
    if (depth > MXC_GRAMMAR_MAX_DEPTH)
        return MXC_FRAME_NONE;
    if (2 * f->n >= f->n_slots) {
        if (!grow(f)) {
            f->failed = true;
            return MXC_FRAME_NONE;
        }
        at = slot_of(f, state, count, parent);
        while (f->slots[at])
            at = (at + 1) & (f->n_slots - 1);
    }
    if (!mxc_grammar_grow((void **)&f->items, &f->capacity, f->n + 1, sizeof *f->items)) {
        f->failed = true;
        return MXC_FRAME_NONE;
    }
    f->items[f->n] = (struct mxc_gframe){state, count, parent, depth};
    f->slots[at] = (uint32_t)f->n;
    return (uint32_t)f->n++;
}

/* Linear probing: the newest entry is nobody's obstacle, so it can simply go. */
void mxc_gframes_truncate(struct mxc_gframes *f, size_t n) {
    while (f->n > n) {
        uint32_t last = (uint32_t)--f->n;
        size_t at = slot_of(f, f->items[last].state, f->items[last].count, f->items[last].parent);
        while (f->slots[at] != last)
            at = (at + 1) & (f->n_slots - 1);
        f->slots[at] = 0;
    }
}

/* ---- threads */

bool mxc_gthreads_add(struct mxc_gthreads *t, struct mxc_glist *list, struct mxc_gthread thread) {
    for (size_t i = 0; i < list->n; i++) {
        const struct mxc_gthread *known = &t->items[list->begin + i];
        if (known->state == thread.state && known->frame == thread.frame &&
            known->count == thread.count)
            return true;
    }
    if (list->n >= MXC_GRAMMAR_MAX_STACKS) {
        t->full = true;
        return false;
    }
    size_t need = list->begin + list->n + 1;
    if (need > t->capacity &&
        !mxc_grammar_grow((void **)&t->items, &t->capacity, need, sizeof *t->items)) {
        t->failed = true;
        return false;
    }
    t->items[list->begin + list->n++] = thread;
    return true;
}

struct mxc_gends mxc_gthreads_close(const struct mxc_grammar *g, struct mxc_gframes *frames,
                                    struct mxc_gthreads *t, struct mxc_glist *list) {
    struct mxc_gends ends = {false, false};
    for (size_t i = 0; i < list->n; i++) {
        struct mxc_gthread now = t->items[list->begin + i];
        const struct mxc_gstate *s = &g->states[now.state];
        const struct mxc_grule *r = &g->rules[s->rule];
        for (uint32_t c = 0; c < s->n_calls; c++) {
            const struct mxc_gcall *call = &g->calls[s->calls + c];
            uint32_t frame =
                call->tail ? now.frame : mxc_gframes_intern(frames, call->to, now.count, now.frame);
            if (frame != MXC_FRAME_NONE)
                mxc_gthreads_add(t, list,
                                 (struct mxc_gthread){g->rules[call->rule].start, 0, frame});
        }
        if (!s->final)
            continue;
        bool leave = true;
        if (r->counted) {
            uint32_t count = now.count + 1;
            if (r->max < 0 && count > (uint32_t)r->min)
                count = (uint32_t)r->min;
            if (r->max < 0 || count < (uint32_t)r->max)
                mxc_gthreads_add(t, list, (struct mxc_gthread){r->start, count, now.frame});
            leave = count >= (uint32_t)r->min;
        }
        if (!leave)
            continue;
        if (now.frame == MXC_FRAME_ROOT)
            ends.root = true;
        else if (now.frame == MXC_FRAME_UNKNOWN)
            ends.unknown = true;
        else {
            const struct mxc_gframe *f = &frames->items[now.frame];
            mxc_gthreads_add(t, list, (struct mxc_gthread){f->state, f->count, f->parent});
        }
    }
    size_t kept = 0; /* what takes no byte has had its say */
    for (size_t i = 0; i < list->n; i++)
        if (g->states[t->items[list->begin + i].state].n_edges)
            t->items[list->begin + kept++] = t->items[list->begin + i];
    list->n = kept;
    return ends;
}

struct mxc_glist mxc_gthreads_step(const struct mxc_grammar *g, struct mxc_gthreads *t,
                                   struct mxc_glist from, uint8_t byte) {
    struct mxc_glist to = {from.begin + from.n, 0};
    for (size_t i = 0; i < from.n; i++) {
        struct mxc_gthread now = t->items[from.begin + i];
        const struct mxc_gedge *e = mxc_grammar_find(g, &g->states[now.state], byte);
        if (e)
            mxc_gthreads_add(t, &to, (struct mxc_gthread){e->to, now.count, now.frame});
    }
    return to;
}

enum mxc_code mxc_grammar_run_error(const struct mxc_gframes *frames,
                                    const struct mxc_gthreads *threads, struct mxc_err *err) {
    if (threads->full)
        return mxc_err_set(err, MXC_E_LIMIT,
                           "the grammar is too ambiguous: more than %d readings of the text are "
                           "open; the limit is %d",
                           MXC_GRAMMAR_MAX_STACKS, MXC_GRAMMAR_MAX_STACKS);
    if (threads->work > MXC_GWALK_MAX_WORK)
        return mxc_err_set(err, MXC_E_LIMIT,
                           "the grammar is too ambiguous: a token mask takes more than %d steps; "
                           "the limit is %d",
                           MXC_GWALK_MAX_WORK, MXC_GWALK_MAX_WORK);
    if (threads->failed || frames->failed)
        return mxc_err_nomem(err);
    return MXC_OK;
}

enum mxc_code mxc_grammar_accepts(const struct mxc_grammar *g, struct mxc_str text, bool *accepts,
                                  struct mxc_err *err) {
    struct mxc_gframes frames;
    struct mxc_gthreads threads = {0};
    struct mxc_glist list = {0, 0};
    struct mxc_gends ends = {false, false};
    enum mxc_code code = MXC_OK;
    if (!mxc_gframes_init(&frames))
        return mxc_err_nomem(err);
    mxc_gthreads_add(&threads, &list, (struct mxc_gthread){g->rules[0].start, 0, MXC_FRAME_ROOT});
    for (size_t i = 0; i <= text.length && !code; i++) {
        ends = mxc_gthreads_close(g, &frames, &threads, &list);
        if (i < text.length) {
            struct mxc_glist next = mxc_gthreads_step(g, &threads, list, (uint8_t)text.ptr[i]);
            if (next.n)
                memmove(threads.items, threads.items + next.begin, next.n * sizeof *threads.items);
            list.n = next.n;
            ends.root = false;
        }
        code = mxc_grammar_run_error(&frames, &threads, err);
    }
    if (!code)
        *accepts = ends.root;
    mxc_gframes_fini(&frames);
    mxc_mem_free(threads.items);
    return code;
}

/* One sequence under a grammar: the readings of what was generated, the mask of what may come next,
 * lazy triggers, and the engine's logit filter.
 * In: tokens. Out: bits per token.
 * Invariants: the readings lie at the beginning of `threads`, not closed; a failed call leaves them
 * and the frames as they were; the mask in `bits` is that of the threads in `known`. */
#include "gen/grammar/run.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { MAX_TRIGGERS = 16, KNOWN = 8, COMPACT_FRAMES = 4096, DEEP = MXC_GRAMMAR_MAX_DEPTH - 256 };

enum mode { WAITING, ACTIVE, ENDED };

struct trigger {
    char text[256];
    size_t length;
    int32_t token;
};

struct mxc_grammar_state {
    struct mxc_grammar_masks *masks;
    struct mxc_gframes frames;
    struct mxc_gthreads threads, walk;
    size_t n;
    enum mode mode;
    uint64_t *bits, *scratch; /* one block */
    struct mxc_gthread known[KNOWN];
    size_t n_known; /* 0: bits are of nothing */
    size_t live;    /* frames after the last compaction */
    struct trigger *triggers;
    size_t n_triggers, n_tail;
    char tail[256]; /* the last text while waiting */
    bool rearm, must, triggered;
    struct mxc_err err;
};

static const struct mxc_grammar *grammar_of(const struct mxc_grammar_state *s) {
    return s->masks->grammar;
}

static enum mxc_code run_error(const struct mxc_grammar_state *s, struct mxc_err *err) {
    return mxc_grammar_run_error(&s->frames,
                                 s->walk.full || s->walk.failed || s->walk.work > MXC_GWALK_MAX_WORK
                                     ? &s->walk
                                     : &s->threads,
                                 err);
}

static void clear_flags(struct mxc_grammar_state *s) {
    s->frames.failed = false;
    s->threads.full = s->threads.failed = s->walk.full = s->walk.failed = false;
    s->walk.work = 0;
}

static struct mxc_glist start_list(struct mxc_grammar_state *s, struct mxc_gthreads *t,
                                   size_t begin) {
    struct mxc_glist list = {begin, 0};
    const struct mxc_grammar *g = grammar_of(s);
    mxc_gthreads_add(t, &list, (struct mxc_gthread){g->rules[0].start, 0, MXC_FRAME_ROOT});
    return list;
}

static enum mxc_code copy_triggers(struct mxc_grammar_state *s, const struct mxc_grammar_lazy *lazy,
                                   struct mxc_err *err) {
    if (lazy->n_triggers > MAX_TRIGGERS)
        return mxc_err_set(err, MXC_E_LIMIT, "%zu grammar triggers; the limit is %d",
                           lazy->n_triggers, MAX_TRIGGERS);
    s->triggers = mxc_mem_zalloc(lazy->n_triggers, sizeof *s->triggers);
    if (!s->triggers)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < lazy->n_triggers; i++) {
        struct mxc_str text = lazy->triggers[i].text;
        if (text.length >= sizeof s->tail)
            return mxc_err_set(err, MXC_E_LIMIT, "a grammar trigger of %zu bytes; the limit is %zu",
                               text.length, sizeof s->tail - 1);
        if (!text.length && lazy->triggers[i].token < 0)
            return mxc_err_set(err, MXC_E_ARG, "grammar trigger %zu is empty", i);
        if (text.length)
            memcpy(s->triggers[i].text, text.ptr, text.length);
        s->triggers[i].length = text.length;
        s->triggers[i].token = lazy->triggers[i].token;
    }
    s->n_triggers = lazy->n_triggers;
    s->rearm = lazy->rearm;
    s->must = lazy->must;
    s->mode = WAITING;
    return MXC_OK;
}

static enum mxc_code alloc_bits(struct mxc_grammar_state *s, struct mxc_err *err) {
    size_t n = s->masks->vocab->n_words + 1;
    s->bits = mxc_mem_zalloc(n, 2 * sizeof *s->bits);
    if (!s->bits)
        return mxc_err_nomem(err);
    s->scratch = s->bits + n;
    return MXC_OK;
}

enum mxc_code mxc_grammar_state_new(struct mxc_grammar_masks *masks,
                                    const struct mxc_grammar_lazy *lazy,
                                    struct mxc_grammar_state **out, struct mxc_err *err) {
    struct mxc_grammar_state *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    s->masks = mxc_grammar_masks_ref(masks);
    s->mode = ACTIVE;
    enum mxc_code code = mxc_gframes_init(&s->frames) ? alloc_bits(s, err) : mxc_err_nomem(err);
    if (!code && lazy && lazy->n_triggers)
        code = copy_triggers(s, lazy, err);
    if (!code) {
        s->n = start_list(s, &s->threads, 0).n;
        code = run_error(s, err);
    }
    if (code)
        mxc_grammar_state_free(s);
    else
        *out = s;
    return code;
}

enum mxc_code mxc_grammar_state_dup(const struct mxc_grammar_state *from,
                                    struct mxc_grammar_state **out, struct mxc_err *err) {
    struct mxc_grammar_state *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    *s = *from;
    s->frames = (struct mxc_gframes){0};
    s->threads = s->walk = (struct mxc_gthreads){0};
    s->bits = s->scratch = NULL;
    s->triggers = NULL;
    s->n_known = 0;
    (void)mxc_grammar_masks_ref(s->masks);
    enum mxc_code code =
        mxc_gframes_copy(&s->frames, &from->frames) ? alloc_bits(s, err) : mxc_err_nomem(err);
    if (!code && from->n_triggers) {
        s->triggers = mxc_mem_array(from->n_triggers, sizeof *s->triggers);
        if (s->triggers)
            memcpy(s->triggers, from->triggers, from->n_triggers * sizeof *s->triggers);
        else
            code = mxc_err_nomem(err);
    }
    if (!code && !mxc_grammar_grow((void **)&s->threads.items, &s->threads.capacity,
                                   from->n ? from->n : 1, sizeof *s->threads.items))
        code = mxc_err_nomem(err);
    if (!code && from->n)
        memcpy(s->threads.items, from->threads.items, from->n * sizeof *s->threads.items);
    if (code)
        mxc_grammar_state_free(s);
    else
        *out = s;
    return code;
}

void mxc_grammar_state_free(struct mxc_grammar_state *s) {
    if (!s)
        return;
    mxc_gframes_fini(&s->frames);
    mxc_mem_free(s->threads.items);
    mxc_mem_free(s->walk.items);
    mxc_mem_free(s->bits);
    mxc_mem_free(s->triggers);
    mxc_grammar_masks_unref(s->masks);
    mxc_mem_free(s);
}

/* ---- masks */

static struct mxc_gthread resume(const struct mxc_grammar_state *s, uint32_t frame) {
    const struct mxc_gframe *f = &s->frames.items[frame];
    return (struct mxc_gthread){f->state, f->count, f->parent};
}

/* Walks a trie from nodes on with one thread whose frames are known. Returns whether the whole text
 * may end where the thread stands. */
static bool walk_thread(struct mxc_grammar_state *s, const struct mxc_gtrie *trie,
                        struct mxc_gthread thread, const uint32_t *nodes, size_t n) {
    struct mxc_gwalk w = {.g = grammar_of(s),
                          .frames = &s->frames,
                          .threads = &s->walk,
                          .trie = trie,
                          .max_depth = MXC_GTRIE_MAX_TOKEN,
                          .bits = s->bits};
    struct mxc_glist list = {0, 0};
    mxc_gthreads_add(&s->walk, &list, thread);
    struct mxc_gends ends = mxc_gthreads_close(w.g, w.frames, w.threads, &list);
    for (size_t i = 0; i < n; i++)
        mxc_gwalk_below(&w, nodes[i], list);
    return ends.root;
}

/* The readings behind themselves, to be closed: what takes no byte leaves a list then. */
static struct mxc_glist copy_list(struct mxc_grammar_state *s) {
    struct mxc_glist list = {s->n, 0};
    for (size_t i = 0; i < s->n; i++)
        mxc_gthreads_add(&s->threads, &list, s->threads.items[i]);
    return list;
}

/* The threads' masks; ends of rules add the threads of their frames to the list. */
static enum mxc_code fill(struct mxc_grammar_state *s, bool *ends, struct mxc_err *err) {
    static const uint32_t root = 0;
    const struct mxc_grammar_vocab *v = s->masks->vocab;
    struct mxc_glist list = copy_list(s);
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < list.n && !code; i++) {
        struct mxc_gthread t = s->threads.items[list.begin + i];
        if (t.frame >= MXC_FRAME_FIRST && s->frames.items[t.frame].depth > DEEP) {
            *ends |= walk_thread(s, &v->all, t, &root, 1);
            code = run_error(s, err);
            continue;
        }
        const struct mxc_gmask *m = mxc_grammar_masks_get(s->masks, t, &code, err);
        if (code)
            break;
        mxc_grammar_masks_or(s->masks, m, s->bits, s->scratch);
        if (m->ends && t.frame == MXC_FRAME_ROOT)
            *ends = true;
        else if (m->ends)
            mxc_gthreads_add(&s->threads, &list, resume(s, t.frame));
        if (m->n_escapes && t.frame != MXC_FRAME_ROOT) {
            const uint32_t *escapes =
                m->data + (m->form == MXC_GMASK_BITS ? 2 * v->n_words : (size_t)m->n_ids);
            (void)walk_thread(s, &v->all, resume(s, t.frame), escapes, m->n_escapes);
        }
        if (m->clipped)
            (void)walk_thread(s, &v->longs, t, &root, 1);
        mxc_grammar_masks_release(s->masks, m);
        code = run_error(s, err);
    }
    return code ? code : run_error(s, err);
}

static enum mxc_code active_mask(struct mxc_grammar_state *s, struct mxc_err *err) {
    const struct mxc_grammar_vocab *v = s->masks->vocab;
    bool ends = false;
    if (s->n_known == s->n && !memcmp(s->known, s->threads.items, s->n * sizeof *s->known))
        return MXC_OK;
    size_t n_frames = s->frames.n;
    s->n_known = 0;
    memset(s->bits, 0, v->n_words * sizeof *s->bits);
    clear_flags(s);
    (void)pthread_mutex_lock(&s->masks->lock);
    s->masks->threads.work = 0;
    enum mxc_code code = fill(s, &ends, err);
    (void)pthread_mutex_unlock(&s->masks->lock);
    mxc_gframes_truncate(&s->frames, n_frames);
    if (code)
        return code;
    uint64_t any = 0;
    for (size_t i = 0; i < v->n_words; i++) {
        s->bits[i] &= ~v->eos[i];
        any |= s->bits[i];
    }
    if (ends || !any)
        for (size_t i = 0; i < v->n_words; i++)
            s->bits[i] |= v->eos[i];
    if (s->n <= KNOWN) {
        memcpy(s->known, s->threads.items, s->n * sizeof *s->known);
        s->n_known = s->n;
    }
    return MXC_OK;
}

enum mxc_code mxc_grammar_mask(struct mxc_grammar_state *s, const uint64_t **bits,
                               struct mxc_err *err) {
    const struct mxc_grammar_vocab *v = s->masks->vocab;
    enum mxc_code code = MXC_OK;
    switch (s->mode) {
    case WAITING:
        if (!s->must || s->triggered) {
            *bits = NULL;
            return MXC_OK;
        }
        for (size_t i = 0; i < v->n_words; i++)
            s->bits[i] = ~v->eos[i];
        s->n_known = 0;
        break;
    case ENDED:
        memcpy(s->bits, v->eos, v->n_words * sizeof *s->bits);
        s->n_known = 0;
        break;
    case ACTIVE:
        code = active_mask(s, err);
        break;
    }
    if (!code)
        *bits = s->bits;
    return code;
}

/* ---- taking text in */

/* The readings after the bytes, as a list in `threads`; n 0: none. */
static struct mxc_glist feed(struct mxc_grammar_state *s, struct mxc_glist list,
                             struct mxc_str bytes) {
    const struct mxc_grammar *g = grammar_of(s);
    for (size_t i = 0; i < bytes.length && list.n; i++) {
        (void)mxc_gthreads_close(g, &s->frames, &s->threads, &list);
        list = mxc_gthreads_step(g, &s->threads, list, (uint8_t)bytes.ptr[i]);
    }
    return list;
}

/* Drops frames that no reading needs. On failure nothing changes: it is tried again later. */
static void compact(struct mxc_grammar_state *s) {
    size_t n = s->frames.n;
    if (n < COMPACT_FRAMES || n < 2 * s->live)
        return;
    struct mxc_gframes frames;
    uint32_t *to = mxc_mem_zalloc(n, sizeof *to);
    if (!to || !mxc_gframes_init(&frames)) {
        mxc_mem_free(to);
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        to[s->threads.items[i].frame] = 1;
    for (size_t i = n; i-- > MXC_FRAME_FIRST;)
        if (to[i])
            to[s->frames.items[i].parent] = 1;
    to[MXC_FRAME_ROOT] = MXC_FRAME_ROOT;
    for (size_t i = MXC_FRAME_FIRST; i < n && !frames.failed; i++) {
        const struct mxc_gframe *f = &s->frames.items[i];
        if (to[i])
            to[i] = mxc_gframes_intern(&frames, f->state, f->count, to[f->parent]);
    }
    if (frames.failed) {
        mxc_gframes_fini(&frames);
    } else {
        for (size_t i = 0; i < s->n; i++)
            s->threads.items[i].frame = to[s->threads.items[i].frame];
        mxc_gframes_fini(&s->frames);
        s->frames = frames;
        s->live = frames.n;
        s->n_known = 0;
    }
    mxc_mem_free(to);
}

static void adopt(struct mxc_grammar_state *s, struct mxc_glist list) {
    memmove(s->threads.items, s->threads.items + list.begin, list.n * sizeof *s->threads.items);
    s->n = list.n;
    compact(s);
}

/* Whether the text may end here, and whether it may go on. */
static bool ends_here(struct mxc_grammar_state *s, bool *goes_on) {
    const struct mxc_grammar *g = grammar_of(s);
    size_t n_frames = s->frames.n;
    struct mxc_glist list = copy_list(s);
    struct mxc_gends ends = mxc_gthreads_close(g, &s->frames, &s->threads, &list);
    *goes_on = false;
    for (size_t i = 0; i < list.n; i++)
        *goes_on = *goes_on || g->states[s->threads.items[list.begin + i].state].n_edges;
    mxc_gframes_truncate(&s->frames, n_frames);
    return ends.root;
}

static void wait_again(struct mxc_grammar_state *s) {
    bool goes_on;
    if (!s->rearm || !ends_here(s, &goes_on) || goes_on)
        return;
    s->mode = WAITING;
    s->n = start_list(s, &s->threads, 0).n; /* the room is there already */
    s->n_tail = 0;
    s->n_known = 0;
    mxc_gframes_truncate(&s->frames, MXC_FRAME_FIRST);
}

static enum mxc_code take(struct mxc_grammar_state *s, struct mxc_str bytes, bool *ok,
                          struct mxc_err *err) {
    size_t n_frames = s->frames.n;
    clear_flags(s);
    struct mxc_glist list = feed(s, copy_list(s), bytes);
    enum mxc_code code = run_error(s, err);
    *ok = !code && list.n;
    if (!*ok) {
        mxc_gframes_truncate(&s->frames, n_frames);
        return code;
    }
    adopt(s, list);
    wait_again(s);
    return MXC_OK;
}

static enum mxc_code begin(struct mxc_grammar_state *s, struct mxc_str rest, bool *ok,
                           struct mxc_err *err) {
    s->mode = ACTIVE;
    enum mxc_code code = take(s, rest, ok, err);
    if (!*ok)
        s->mode = WAITING;
    else
        s->triggered = true;
    return code;
}

/* While waiting: looks for a trigger. */
static enum mxc_code watch(struct mxc_grammar_state *s, int32_t id, struct mxc_str bytes,
                           struct mxc_err *err) {
    bool ok;
    for (size_t i = 0; i < s->n_triggers; i++)
        if (!s->triggers[i].length && s->triggers[i].token == id)
            return begin(s, (struct mxc_str){"", 0}, &ok, err);
    for (size_t k = 0; k < bytes.length; k++) {
        if (s->n_tail == sizeof s->tail) {
            memmove(s->tail, s->tail + 1, sizeof s->tail - 1);
            s->n_tail--;
        }
        s->tail[s->n_tail++] = bytes.ptr[k];
        for (size_t i = 0; i < s->n_triggers; i++) {
            const struct trigger *t = &s->triggers[i];
            if (!t->length || t->length > s->n_tail ||
                memcmp(s->tail + s->n_tail - t->length, t->text, t->length))
                continue;
            enum mxc_code code =
                begin(s, (struct mxc_str){bytes.ptr + k + 1, bytes.length - k - 1}, &ok, err);
            if (code || ok)
                return code;
        }
    }
    return MXC_OK;
}

static enum mxc_code not_allowed(struct mxc_err *err, int32_t id) {
    return mxc_err_set(err, MXC_E_ARG, "the grammar does not allow token %d here", id);
}

enum mxc_code mxc_grammar_advance(struct mxc_grammar_state *s, int32_t id, struct mxc_err *err) {
    const struct mxc_grammar_vocab *v = s->masks->vocab;
    bool ok = false;
    if (id < 0 || id >= v->n)
        return s->mode == WAITING ? MXC_OK : not_allowed(err, id);
    if (mxc_grammar_bit(v->eos, id)) {
        const uint64_t *bits = NULL;
        enum mxc_code code = mxc_grammar_mask(s, &bits, err);
        if (!code && bits && !mxc_grammar_bit(bits, id))
            code = not_allowed(err, id);
        if (!code)
            s->mode = ENDED;
        return code;
    }
    struct mxc_str bytes = mxc_grammar_vocab_token(v, id);
    if (s->mode == WAITING) {
        if (v->special[id])
            bytes = (struct mxc_str){bytes.ptr + 1, bytes.length - 2};
        return watch(s, id, bytes, err);
    }
    if (s->mode == ENDED || !mxc_grammar_bit(v->usable, id))
        return not_allowed(err, id);
    enum mxc_code code = take(s, bytes, &ok, err);
    return !code && !ok ? not_allowed(err, id) : code;
}

enum mxc_code mxc_grammar_advance_text(struct mxc_grammar_state *s, struct mxc_str text,
                                       struct mxc_err *err) {
    bool ok = false;
    if (s->mode == WAITING)
        return watch(s, -1, text, err);
    enum mxc_code code = s->mode == ENDED ? MXC_OK : take(s, text, &ok, err);
    if (!code && !ok)
        return mxc_err_set(err, MXC_E_ARG, "the grammar does not allow the given text");
    return code;
}

bool mxc_grammar_accepts_end(struct mxc_grammar_state *s) {
    bool goes_on;
    if (s->mode == ACTIVE) {
        clear_flags(s);
        return ends_here(s, &goes_on);
    }
    return s->mode == ENDED || !s->must || s->triggered;
}

bool mxc_grammar_is_active(const struct mxc_grammar_state *s) {
    return s->mode == ACTIVE;
}

/* The only byte that can follow; -1: none or several. */
static int only_byte(const struct mxc_grammar_state *s, struct mxc_glist list) {
    const struct mxc_grammar *g = grammar_of(s);
    int only = -1;
    for (size_t i = 0; i < list.n; i++) {
        const struct mxc_gstate *state = &g->states[s->threads.items[list.begin + i].state];
        for (uint32_t e = 0; e < state->n_edges; e++) {
            const struct mxc_gedge *edge = &g->edges[state->edges + e];
            if (edge->lo != edge->hi || (only >= 0 && only != edge->lo))
                return -1;
            only = edge->lo;
        }
    }
    return only;
}

enum mxc_code mxc_grammar_forced(struct mxc_grammar_state *s, size_t max_bytes,
                                 struct mxc_buf *bytes, struct mxc_err *err) {
    const struct mxc_grammar *g = grammar_of(s);
    size_t n_frames = s->frames.n;
    if (s->mode != ACTIVE)
        return MXC_OK;
    clear_flags(s);
    struct mxc_glist list = copy_list(s);
    for (size_t i = 0; i < max_bytes; i++) {
        struct mxc_gends ends = mxc_gthreads_close(g, &s->frames, &s->threads, &list);
        int byte = only_byte(s, list);
        if (ends.root || byte < 0 || byte >= 0xfe || run_error(s, NULL))
            break;
        mxc_buf_putc(bytes, (char)byte);
        list = mxc_gthreads_step(g, &s->threads, list, (uint8_t)byte);
    }
    enum mxc_code code = run_error(s, err);
    mxc_gframes_truncate(&s->frames, n_frames);
    return code ? code : mxc_buf_status(bytes, err);
}

/* ---- the engine's hook */

static void ban(float *logits, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        logits[i] = -INFINITY;
}

static void apply(void *user, float *logits, int32_t vocab) {
    struct mxc_grammar_state *s = user;
    const uint64_t *bits = NULL;
    size_t n = (size_t)vocab, known = (size_t)s->masks->vocab->n;
    if (s->err.code || mxc_grammar_mask(s, &bits, &s->err)) {
        ban(logits, 0, n);
        return;
    }
    if (!bits)
        return;
    size_t end = n < known ? n : known;
    for (size_t i = 0; i < end; i += 64) {
        size_t last = end - i < 64 ? end : i + 64;
        uint64_t banned = ~bits[i / 64];
        if (!~banned) {
            ban(logits, i, last);
            continue;
        }
        for (; banned; banned &= banned - 1) {
            size_t at = i + (size_t)__builtin_ctzll(banned);
            if (at >= last)
                break;
            logits[at] = -INFINITY;
        }
    }
    ban(logits, end, n);
}

static void accept(void *user, int32_t id) {
    struct mxc_grammar_state *s = user;
    struct mxc_err err;
    if (!s->err.code && mxc_grammar_advance(s, id, &err))
        s->err = err;
}

struct mxc_logit_filter mxc_grammar_filter(struct mxc_grammar_state *s) {
    return (struct mxc_logit_filter){.apply = apply, .accept = accept, .user = s};
}

const struct mxc_err *mxc_grammar_state_error(const struct mxc_grammar_state *s) {
    return s->err.code ? &s->err : NULL;
}

/* Masks of automaton states, made by walking the trie and cached. A mask belongs to a thread's
 * state and to what is left of its count, and does not depend on the frame below: where the rule
 * ends inside a token, the trie node is noted as an escape, and whoever knows the frame walks on
 * from there. So all strings of all schemas' properties share one mask, and what is walked per
 * token is small.
 * In: threads. Out: masks in the shortest of three forms (bits, allowed ids, banned ids).
 * Invariants: the cache's bytes are counted before an entry goes in and never exceed max_bytes;
 * counts are told apart only as far as a token of long_bytes can reach, and longer tokens, which
 * are few, are left to the caller (clipped). */
#include "gen/grammar/run.h"

#include "base/mem.h"

#include <string.h>

enum { TABLE = 4096, DEFAULT_BYTES = 16 << 20 };

static void set_tokens(uint64_t *bits, const struct mxc_gtrie *trie, uint32_t node) {
    for (uint32_t i = trie->nodes[node].token; i < trie->nodes[node + 1].token; i++)
        bits[trie->ids[i] / 64] |= (uint64_t)1 << trie->ids[i] % 64;
}

static void note_escape(struct mxc_gwalk *w, uint32_t node) {
    const struct mxc_gtrie_node *nodes = w->trie->nodes;
    bool goes_on = false; /* with a byte that can come behind the rule */
    for (uint32_t i = node + 1; i < nodes[node].next && !goes_on; i = nodes[i].next)
        goes_on = w->follow[nodes[i].byte / 64] >> nodes[i].byte % 64 & 1;
    if (!goes_on)
        return;
    if (!mxc_grammar_grow((void **)&w->escapes, &w->escape_capacity, w->n_escapes + 1,
                          sizeof *w->escapes)) {
        w->failed = true;
        return;
    }
    w->escapes[w->n_escapes++] = node;
}

/* As mxc_gthreads_step; most lists are one thread. */
static struct mxc_glist step(const struct mxc_gwalk *w, struct mxc_glist from, uint8_t byte) {
    struct mxc_gthreads *t = w->threads;
    if (from.n != 1 || from.begin + 2 > t->capacity)
        return mxc_gthreads_step(w->g, t, from, byte);
    struct mxc_gthread now = t->items[from.begin];
    const struct mxc_gedge *e = mxc_grammar_find(w->g, &w->g->states[now.state], byte);
    if (!e)
        return (struct mxc_glist){from.begin + 1, 0};
    now.state = e->to;
    t->items[from.begin + 1] = now;
    return (struct mxc_glist){from.begin + 1, 1};
}

void mxc_gwalk_below(struct mxc_gwalk *w, uint32_t at, struct mxc_glist list) {
    struct mxc_glist levels[MXC_GTRIE_MAX_TOKEN + 1];
    const struct mxc_gtrie_node *nodes = w->trie->nodes;
    uint32_t base = nodes[at].depth, end = nodes[at].next;
    levels[0] = list;
    for (uint32_t i = at + 1;
         i < end && !w->threads->full && w->threads->work <= MXC_GWALK_MAX_WORK;) {
        const struct mxc_gtrie_node *node = &nodes[i];
        uint32_t d = node->depth - base;
        if (node->depth > w->max_depth) {
            i = node->next;
            continue;
        }
        w->threads->work += (uint32_t)levels[d - 1].n;
        levels[d] = step(w, levels[d - 1], node->byte);
        if (!levels[d].n) {
            i = node->next;
            continue;
        }
        set_tokens(w->bits, w->trie, i);
        if (node->next > i + 1 && !mxc_gthreads_plain(w->g, w->threads, levels[d])) {
            struct mxc_gends ends = mxc_gthreads_close(w->g, w->frames, w->threads, &levels[d]);
            if (ends.unknown && w->follow)
                note_escape(w, i);
        }
        i++;
    }
}

/* ---- one mask */

static uint32_t count_bits(const uint64_t *bits, size_t n) {
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (uint32_t)__builtin_popcountll(bits[i]);
    return count;
}

/* Counts that no token can use up are equal, and so are those that only the few longest tokens can,
 * which are left to the caller then. */
static void key_of(const struct mxc_grammar_masks *m, struct mxc_gthread t, uint64_t key[2],
                   bool *clipped) {
    const struct mxc_grammar *g = m->grammar;
    const struct mxc_grammar_vocab *v = m->vocab;
    const struct mxc_grule *r = &g->rules[g->states[t.state].rule];
    uint64_t missing = 0, left = 0;
    *clipped = false;
    if (r->counted) {
        missing = t.count < (uint32_t)r->min ? (uint32_t)r->min - t.count : 0;
        left = r->max < 0 ? 0 : (uint32_t)r->max - t.count;
        uint64_t most = v->max_bytes, some = v->long_bytes;
        missing = missing > most ? most + 1 : missing > some ? some + 1 : missing;
        left = left > most ? most + 1 : left > some ? some + 1 : left;
        *clipped = missing == some + 1 || left == some + 1;
    }
    key[0] = t.state;
    key[1] = missing << 32 | left;
}

/* Bits and escapes to an entry in its shortest form. */
static struct mxc_gmask *pack(const struct mxc_grammar_masks *m, const struct mxc_gwalk *w) {
    const struct mxc_grammar_vocab *v = m->vocab;
    uint32_t n_allowed = count_bits(m->bits, v->n_words);
    uint32_t n_banned = v->all.n_ids - n_allowed;
    struct mxc_gmask form = {.n_escapes = (uint32_t)w->n_escapes};
    size_t n_data = v->n_words * 2, at = 0;
    if (n_allowed < n_data || n_banned < n_data) {
        form.form = n_allowed <= n_banned ? MXC_GMASK_ALLOWED : MXC_GMASK_BANNED;
        form.n_ids = n_allowed <= n_banned ? n_allowed : n_banned;
        n_data = form.n_ids;
    }
    form.bytes = sizeof form + (n_data + w->n_escapes) * sizeof(uint32_t);
    struct mxc_gmask *e = mxc_mem_alloc(form.bytes);
    if (!e)
        return NULL;
    *e = form;
    e->data = (uint32_t *)(e + 1);
    if (e->form == MXC_GMASK_BITS) {
        memcpy(e->data, m->bits, v->n_words * sizeof *m->bits);
    } else {
        for (size_t i = 0; i < v->n_words; i++) {
            uint64_t word = e->form == MXC_GMASK_ALLOWED ? m->bits[i] : v->usable[i] & ~m->bits[i];
            for (; word; word &= word - 1)
                e->data[at++] = (uint32_t)(i * 64 + (size_t)__builtin_ctzll(word));
        }
    }
    if (w->n_escapes)
        memcpy(e->data + n_data, w->escapes, w->n_escapes * sizeof *w->escapes);
    return e;
}

static struct mxc_gmask *make(struct mxc_grammar_masks *m, struct mxc_gthread thread, bool clipped,
                              enum mxc_code *code, struct mxc_err *err) {
    struct mxc_gwalk w = {.g = m->grammar,
                          .frames = &m->frames,
                          .threads = &m->threads,
                          .trie = &m->vocab->all,
                          .max_depth = clipped ? m->vocab->long_bytes : MXC_GTRIE_MAX_TOKEN,
                          .bits = m->bits,
                          .follow =
                              m->grammar->rules[m->grammar->states[thread.state].rule].follow};
    struct mxc_glist list = {0, 0};
    struct mxc_gmask *e = NULL;
    m->threads.full = m->threads.failed = m->frames.failed = false;
    memset(m->bits, 0, m->vocab->n_words * sizeof *m->bits);
    thread.frame = MXC_FRAME_UNKNOWN;
    mxc_gthreads_add(&m->threads, &list, thread);
    struct mxc_gends ends = mxc_gthreads_close(m->grammar, &m->frames, &m->threads, &list);
    mxc_gwalk_below(&w, 0, list);
    *code = mxc_grammar_run_error(&m->frames, &m->threads, err);
    mxc_gframes_truncate(&m->frames, MXC_FRAME_FIRST);
    if (!*code && (w.failed || !(e = pack(m, &w))))
        *code = mxc_err_nomem(err);
    if (e) {
        e->ends = ends.unknown;
        e->clipped = clipped;
    }
    mxc_mem_free(w.escapes);
    return e;
}

/* ---- the cache */

static size_t bucket(const struct mxc_grammar_masks *m, const uint64_t key[2]) {
    return (size_t)mxc_hash_bytes(key, 2 * sizeof *key, 0) & (m->n_table - 1);
}

static void unlink_entry(struct mxc_grammar_masks *m, struct mxc_gmask *e) {
    if (e->newer)
        e->newer->older = e->older;
    else
        m->newest = e->older;
    if (e->older)
        e->older->newer = e->newer;
    else
        m->oldest = e->newer;
}

static void link_entry(struct mxc_grammar_masks *m, struct mxc_gmask *e) {
    e->newer = NULL;
    e->older = m->newest;
    if (m->newest)
        m->newest->newer = e;
    else
        m->oldest = e;
    m->newest = e;
}

static void evict(struct mxc_grammar_masks *m) {
    struct mxc_gmask *e = m->oldest, **at = &m->table[bucket(m, e->key)];
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    unlink_entry(m, e);
    m->stats.used_bytes -= e->bytes;
    m->stats.n_entries--;
    m->stats.n_evicted++;
    mxc_mem_free(e);
}

const struct mxc_gmask *mxc_grammar_masks_get(struct mxc_grammar_masks *m,
                                              struct mxc_gthread thread, enum mxc_code *code,
                                              struct mxc_err *err) {
    uint64_t key[2];
    bool clipped;
    *code = MXC_OK;
    key_of(m, thread, key, &clipped);
    struct mxc_gmask **at = &m->table[bucket(m, key)];
    for (struct mxc_gmask *e = *at; e; e = e->chain)
        if (e->key[0] == key[0] && e->key[1] == key[1]) {
            m->stats.n_hits++;
            unlink_entry(m, e);
            link_entry(m, e);
            return e;
        }
    m->stats.n_misses++;
    struct mxc_gmask *e = make(m, thread, clipped, code, err);
    if (!e || e->bytes > m->max_bytes)
        return e;
    while (m->stats.used_bytes + e->bytes > m->max_bytes)
        evict(m);
    e->key[0] = key[0];
    e->key[1] = key[1];
    e->chain = *at;
    *at = e;
    link_entry(m, e);
    m->stats.used_bytes += e->bytes;
    m->stats.n_entries++;
    return e;
}

void mxc_grammar_masks_release(struct mxc_grammar_masks *m, const struct mxc_gmask *mask) {
    if (mask && mask->bytes > m->max_bytes)
        mxc_mem_free((void *)(uintptr_t)mask);
}

void mxc_grammar_masks_or(const struct mxc_grammar_masks *m, const struct mxc_gmask *mask,
                          uint64_t *bits, uint64_t *scratch) {
    const struct mxc_grammar_vocab *v = m->vocab;
    const uint64_t *words = (const uint64_t *)(const void *)mask->data;
    switch (mask->form) {
    case MXC_GMASK_BITS:
        for (size_t i = 0; i < v->n_words; i++)
            bits[i] |= words[i];
        break;
    case MXC_GMASK_ALLOWED:
        for (uint32_t i = 0; i < mask->n_ids; i++)
            bits[mask->data[i] / 64] |= (uint64_t)1 << mask->data[i] % 64;
        break;
    case MXC_GMASK_BANNED:
        memcpy(scratch, v->usable, v->n_words * sizeof *scratch);
        for (uint32_t i = 0; i < mask->n_ids; i++)
            scratch[mask->data[i] / 64] &= ~((uint64_t)1 << mask->data[i] % 64);
        for (size_t i = 0; i < v->n_words; i++)
            bits[i] |= scratch[i];
        break;
    }
}

enum mxc_code mxc_grammar_masks_new(struct mxc_grammar *grammar,
                                    const struct mxc_grammar_vocab *vocab, size_t max_bytes,
                                    struct mxc_grammar_masks **out, struct mxc_err *err) {
    struct mxc_grammar_masks *m = mxc_mem_zalloc(1, sizeof *m);
    if (!m) {
        mxc_grammar_free(grammar);
        return mxc_err_nomem(err);
    }
    m->grammar = grammar;
    m->vocab = vocab;
    m->refs = 1;
    m->max_bytes = max_bytes ? max_bytes : DEFAULT_BYTES;
    m->n_table = TABLE;
    (void)pthread_mutex_init(&m->lock, NULL);
    m->table = mxc_mem_zalloc(m->n_table, sizeof(struct mxc_gmask *));
    m->bits = mxc_mem_zalloc(vocab->n_words + 1, sizeof *m->bits);
    if (!m->table || !m->bits || !mxc_gframes_init(&m->frames)) {
        mxc_grammar_masks_unref(m);
        return mxc_err_nomem(err);
    }
    *out = m;
    return MXC_OK;
}

struct mxc_grammar_masks *mxc_grammar_masks_ref(struct mxc_grammar_masks *m) {
    __atomic_fetch_add(&m->refs, 1, __ATOMIC_RELAXED);
    return m;
}

void mxc_grammar_masks_unref(struct mxc_grammar_masks *m) {
    if (!m || __atomic_fetch_sub(&m->refs, 1, __ATOMIC_ACQ_REL) > 1)
        return;
    while (m->oldest)
        evict(m);
    (void)pthread_mutex_destroy(&m->lock);
    mxc_grammar_free(m->grammar);
    mxc_gframes_fini(&m->frames);
    mxc_mem_free(m->threads.items);
    mxc_mem_free(m->table);
    mxc_mem_free(m->bits);
    mxc_mem_free(m);
}

void mxc_grammar_masks_get_stats(struct mxc_grammar_masks *m,
                                 struct mxc_grammar_masks_stats *stats) {
    (void)pthread_mutex_lock(&m->lock);
    *stats = m->stats;
    (void)pthread_mutex_unlock(&m->lock);
}

/* Programs of towers. A graph is cut where the number of the layer changes; for a combination of
 * buckets every part gets its text at once, and its program when it is run for the first time.
 * Parts with equal texts are one program, so that a tower of thirty like layers is three or four.
 * In: a plan. Out: modules (what to feed, what comes out) and programs. */
#include "backend/xla/tower.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME
#include "backend/xla/plan.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_SETS = 12 };

struct mxc_xla_tower_program {
    char *text;
    size_t length;
    struct mxc_xla_program *program;
    int32_t users; /* parts of sets */
    struct mxc_xla_tower_program *next;
};

struct mxc_xla_towers {
    struct mxc_plan *plan;
    struct mxc_xla_cut *parts;
    int32_t n_parts, n_sets;
    struct mxc_xla_tower_set *sets;
    struct mxc_xla_tower_program *programs;
    uint64_t clock;
};

/* With parts NULL: only counts. */
static int32_t find_parts(const struct mxc_graph *g, struct mxc_xla_cut *parts) {
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        bool begins = !i || g->nodes[i].layer != g->nodes[i - 1].layer;
        n += begins;
        if (parts && begins)
            parts[n - 1].node0 = i;
        if (parts)
            parts[n - 1].node1 = i + 1;
    }
    return n;
}

enum mxc_code mxc_xla_towers_new(struct mxc_plan *plan, struct mxc_xla_towers **out,
                                 struct mxc_err *err) {
    struct mxc_xla_towers *t = mxc_mem_zalloc(1, sizeof *t);
    if (!t)
        return mxc_err_nomem(err);
    t->plan = plan;
    t->n_parts = find_parts(plan->graph, NULL);
    t->parts = mxc_mem_zalloc((size_t)t->n_parts, sizeof *t->parts);
    if (!t->parts) {
        mxc_mem_free(t);
        return mxc_err_nomem(err);
    }
    (void)find_parts(plan->graph, t->parts);
    *out = t;
    return MXC_OK;
}

const struct mxc_xla_cut *mxc_xla_towers_parts(const struct mxc_xla_towers *t, int32_t *n) {
    *n = t->n_parts;
    return t->parts;
}

/* ---- programs */

static void program_let_go(struct mxc_xla_towers *t, struct mxc_xla_tower_program *program) {
    if (!program || --program->users)
        return;
    struct mxc_xla_tower_program **at = &t->programs;
    while (*at != program)
        at = &(*at)->next;
    *at = program->next;
    mxc_xla_program_free(program->program);
    mxc_mem_free(program->text);
    mxc_mem_free(program);
}

static enum mxc_code program_new(struct mxc_xla_towers *t, const struct mxc_xla_module *m,
                                 struct mxc_xla_tower_program **out, struct mxc_err *err) {
    struct mxc_xla_tower_program *p = mxc_mem_zalloc(1, sizeof *p);
    enum mxc_code code = p ? MXC_OK : mxc_err_nomem(err);
    if (!code && !(p->text = mxc_mem_dup(m->text, m->length)))
        code = mxc_err_nomem(err);
    if (code || (code = mxc_xla_plan_program(t->plan, "tower", m, &p->program, err))) {
        if (p)
            mxc_mem_free(p->text);
        mxc_mem_free(p);
        return code;
    }
    p->length = m->length;
    p->next = t->programs;
    t->programs = p;
    *out = p;
    return MXC_OK;
}

enum mxc_code mxc_xla_towers_program(struct mxc_xla_towers *t, struct mxc_xla_tower_set *set,
                                     int32_t part, struct mxc_xla_program **program,
                                     struct mxc_err *err) {
    const struct mxc_xla_module *m = &set->modules[part];
    if (!set->programs[part]) {
        struct mxc_xla_tower_program *p = t->programs;
        while (p && (p->length != m->length || memcmp(p->text, m->text, m->length) != 0))
            p = p->next;
        enum mxc_code code = p ? MXC_OK : program_new(t, m, &p, err);
        if (code)
            return code;
        p->users++;
        set->programs[part] = p;
    }
    *program = set->programs[part]->program;
    return MXC_OK;
}

/* ---- sets */

static void set_free(struct mxc_xla_towers *t, struct mxc_xla_tower_set *set) {
    for (int32_t i = 0; i < t->n_parts; i++) {
        if (set->programs)
            program_let_go(t, set->programs[i]);
        if (set->modules)
            mxc_xla_module_fini(&set->modules[i]);
    }
    mxc_mem_free(set->modules);
    mxc_mem_free(set->programs);
    mxc_mem_free(set);
}

void mxc_xla_towers_free(struct mxc_xla_towers *t) {
    if (!t)
        return;
    while (t->sets) {
        struct mxc_xla_tower_set *set = t->sets;
        t->sets = set->next;
        set_free(t, set);
    }
    mxc_mem_free(t->parts);
    mxc_mem_free(t);
}

/* Lets the set go that nobody uses and whose last use is longest ago. */
static void make_room(struct mxc_xla_towers *t) {
    struct mxc_xla_tower_set **oldest = NULL;
    if (t->n_sets < MAX_SETS)
        return;
    for (struct mxc_xla_tower_set **at = &t->sets; *at; at = &(*at)->next)
        if (!(*at)->users && (!oldest || (*at)->last_use < (*oldest)->last_use))
            oldest = at;
    if (!oldest)
        return;
    struct mxc_xla_tower_set *set = *oldest;
    *oldest = set->next;
    t->n_sets--;
    set_free(t, set);
}

static enum mxc_code set_new(struct mxc_xla_towers *t, const struct mxc_xla_buckets *buckets,
                             struct mxc_xla_tower_set **out, struct mxc_err *err) {
    struct mxc_xla_tower_set *set = mxc_mem_zalloc(1, sizeof *set);
    enum mxc_code code = set ? MXC_OK : mxc_err_nomem(err);
    if (code)
        return code;
    set->buckets = *buckets;
    set->modules = mxc_mem_zalloc((size_t)t->n_parts, sizeof *set->modules);
    set->programs = mxc_mem_zalloc((size_t)t->n_parts, sizeof *set->programs);
    if (!set->modules || !set->programs)
        code = mxc_err_nomem(err);
    for (int32_t i = 0; !code && i < t->n_parts; i++)
        code = mxc_xla_module_make(t->plan->model, &set->buckets, &t->plan->form, &t->parts[i],
                                   &set->modules[i], err);
    if (code)
        set_free(t, set);
    else
        *out = set;
    return code;
}

static bool same_buckets(const struct mxc_xla_buckets *a, const struct mxc_xla_buckets *b) {
    return a->taps == b->taps && !memcmp(a->slots, b->slots, sizeof a->slots) &&
           !memcmp(a->keys, b->keys, sizeof a->keys);
}

enum mxc_code mxc_xla_towers_take(struct mxc_xla_towers *t, const struct mxc_xla_buckets *buckets,
                                  struct mxc_xla_tower_set **out, struct mxc_err *err) {
    struct mxc_xla_tower_set *set = t->sets;
    while (set && !same_buckets(&set->buckets, buckets))
        set = set->next;
    if (!set) {
        make_room(t);
        enum mxc_code code = set_new(t, buckets, &set, err);
        if (code)
            return code;
        set->next = t->sets;
        t->sets = set;
        t->n_sets++;
    }
    set->users++;
    set->last_use = ++t->clock;
    *out = set;
    return MXC_OK;
}

void mxc_xla_towers_let_go(struct mxc_xla_tower_set *set) {
    set->users--;
}
#endif

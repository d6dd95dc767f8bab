/* Sets of code points: ranges are appended freely and settled (sorted, merged) once.
 * In: ranges, general categories, Unicode properties, other sets. Out: membership, negation,
 * closure over case, equality.
 * Invariant: what compares, negates or looks up needs a settled set; settled sets are equal when
 * their bytes are. An allocation that fails only marks the set, so that builders check once at the
 * end. */
#include "text/charset.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_CP = 0x10FFFF };

void mxc_charset_init(struct mxc_charset *set) {
    *set = (struct mxc_charset){0};
}

void mxc_charset_fini(struct mxc_charset *set) {
    mxc_mem_free(set->bounds);
    mxc_charset_init(set);
}

void mxc_charset_add(struct mxc_charset *set, uint32_t first, uint32_t last) {
    if (set->failed)
        return;
    if (set->n_ranges == set->capacity) {
        size_t cap = set->capacity ? set->capacity * 2 : 8;
        uint32_t *p = mxc_mem_realloc(set->bounds, cap * 2, sizeof *p);
        if (!p) {
            set->failed = true;
            return;
        }
        set->bounds = p;
        set->capacity = cap;
    }
    set->bounds[2 * set->n_ranges] = first;
    set->bounds[2 * set->n_ranges + 1] = last;
    set->n_ranges++;
}

void mxc_charset_add_categories(struct mxc_charset *set, uint32_t mask) {
    for (int i = 0; i < MXC_UNICODE_CATEGORY_RUNS_COUNT; i++) {
        uint32_t run = mxc_unicode_category_runs[i];
        uint32_t end = i + 1 < MXC_UNICODE_CATEGORY_RUNS_COUNT
                           ? (mxc_unicode_category_runs[i + 1] >> 8) - 1
                           : LAST_CP;
        if (mask >> (run & 0xFF) & 1)
            mxc_charset_add(set, run >> 8, end);
    }
}

void mxc_charset_add_property(struct mxc_charset *set, enum mxc_unicode_set property) {
    for (int i = mxc_unicode_set_index[property]; i < mxc_unicode_set_index[property + 1]; i += 2)
        mxc_charset_add(set, mxc_unicode_set_ranges[i], mxc_unicode_set_ranges[i + 1]);
}

void mxc_charset_add_word(struct mxc_charset *set) {
    mxc_charset_add_property(set, MXC_UNICODE_SET_ALPHABETIC);
    mxc_charset_add_categories(set, 1u << MXC_UNICODE_ND | 1u << MXC_UNICODE_PC |
                                        1u << MXC_UNICODE_MC | 1u << MXC_UNICODE_ME |
                                        1u << MXC_UNICODE_MN);
}

void mxc_charset_add_set(struct mxc_charset *set, const struct mxc_charset *other) {
    set->failed |= other->failed;
    for (size_t i = 0; i < other->n_ranges; i++)
        mxc_charset_add(set, other->bounds[2 * i], other->bounds[2 * i + 1]);
}

static int by_first(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void mxc_charset_settle(struct mxc_charset *set) {
    uint32_t *b = set->bounds;
    size_t n = 0;
    if (!set->n_ranges)
        return;
    qsort(b, set->n_ranges, 2 * sizeof *b, by_first);
    for (size_t i = 1; i < set->n_ranges; i++) {
        if (b[2 * i] <= b[2 * n + 1] + 1) {
            if (b[2 * i + 1] > b[2 * n + 1])
                b[2 * n + 1] = b[2 * i + 1];
        } else {
            n++;
            b[2 * n] = b[2 * i];
            b[2 * n + 1] = b[2 * i + 1];
        }
    }
    set->n_ranges = n + 1;
}

void mxc_charset_negate(struct mxc_charset *set) {
    struct mxc_charset out;
    mxc_charset_init(&out);
    uint32_t next = 0;
    for (size_t i = 0; i < set->n_ranges; i++) {
        if (set->bounds[2 * i] > next)
            mxc_charset_add(&out, next, set->bounds[2 * i] - 1);
        next = set->bounds[2 * i + 1] + 1;
    }
    if (next <= LAST_CP)
        mxc_charset_add(&out, next, LAST_CP);
    out.failed |= set->failed;
    mxc_charset_fini(set);
    *set = out;
}

bool mxc_charset_has(const struct mxc_charset *set, uint32_t cp) {
    size_t lo = 0, hi = set->n_ranges;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (set->bounds[2 * mid + 1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n_ranges && set->bounds[2 * lo] <= cp;
}

void mxc_charset_close_case(struct mxc_charset *set) {
    struct mxc_charset bases;
    mxc_charset_init(&bases);
    for (int i = 0; i < MXC_UNICODE_FOLDS_COUNT; i += 2) {
        uint32_t cp = mxc_unicode_folds[i], base = mxc_unicode_folds[i + 1];
        if (mxc_charset_has(set, cp) || mxc_charset_has(set, base))
            mxc_charset_add(&bases, base, base);
    }
    mxc_charset_settle(&bases);
    for (int i = 0; i < MXC_UNICODE_FOLDS_COUNT; i += 2)
        if (mxc_charset_has(&bases, mxc_unicode_folds[i + 1]))
            mxc_charset_add(set, mxc_unicode_folds[i], mxc_unicode_folds[i]);
    mxc_charset_add_set(set, &bases);
    mxc_charset_fini(&bases);
    mxc_charset_settle(set);
}

bool mxc_charset_equal(const struct mxc_charset *a, const struct mxc_charset *b) {
    return a->n_ranges == b->n_ranges &&
           (!a->n_ranges || !memcmp(a->bounds, b->bounds, a->n_ranges * 2 * sizeof *a->bounds));
}

/* Layout: a prompt's tokens with its pictures in their places. Marks are told by where they came
 * from, never by their number alone. In: tokens, which of them are marks, prepared pictures. Out:
 * expanded tokens, where feature rows go, and what the family needs beside: positions on three axes
 * (Qwen), rows that see each other (Gemma 3), or what every token sees of the CROSS store (mllama).
 * All counts are bounded before anything is allocated. */
#include "base/mem.h"
#include "models/vision_family.h"

#include <string.h>

struct layout {
    const struct mxc_vision *v;
    const struct mxc_vision_text *text;
    const struct mxc_vision_picture *const *pictures;
    int32_t n_pictures;
    struct mxc_vision_layout out;
    struct mxc_err *err;
};

static int32_t marks_of(const struct layout *l, int32_t picture) {
    return l->v->family->mark_per_tile ? l->pictures[picture]->cost.n_tiles : 1;
}

static enum mxc_code check_marks(const struct layout *l) {
    int64_t have = 0, want = 0;
    for (int32_t i = 0; i < l->text->n_tokens; i++)
        have += l->text->is_mark[i] != 0;
    for (int32_t i = 0; i < l->n_pictures; i++)
        want += marks_of(l, i);
    if (have == want)
        return MXC_OK;
    if (!l->v->family->mark_per_tile)
        return mxc_err_set(l->err, MXC_E_ARG, "%d pictures for %lld places in the prompt",
                           l->n_pictures, (long long)have);
    return mxc_err_set(l->err, MXC_E_ARG, "%d pictures of %lld tiles for %lld places in the prompt",
                       l->n_pictures, (long long)want, (long long)have);
}

static void *numbers(const struct layout *l, int64_t n, size_t size) {
    void *out = n <= INT32_MAX ? mxc_mem_array(n > 0 ? (size_t)n : 1, size) : NULL;
    if (!out)
        (void)mxc_err_nomem(l->err);
    return out;
}

/* ---- features in place of the mark */

/* A mark: its token, its picture, and how many of the picture's features come before its own. */
struct place {
    int32_t token, picture, feature0, n;
};

/* The next place after the one given (token -1: the first); false: no more. */
static bool next_place(const struct layout *l, struct place *p, int32_t *mark) {
    int32_t i = p->token + 1;
    while (i < l->text->n_tokens && !l->text->is_mark[i])
        i++;
    if (i == l->text->n_tokens)
        return false;
    if (p->token < 0 || ++*mark == marks_of(l, p->picture)) {
        p->picture += p->token >= 0;
        *mark = 0;
    }
    p->token = i;
    p->n = l->pictures[p->picture]->cost.n_features / marks_of(l, p->picture);
    p->feature0 = *mark * p->n;
    return true;
}

/* keep: 1 leaves the mark in front of its features. */
static enum mxc_code expand(struct layout *l, int32_t keep) {
    struct place p = {.token = -1};
    int64_t n = l->text->n_tokens, runs = 0;
    int32_t mark = 0, from = 0, at = 0;
    while (next_place(l, &p, &mark)) {
        n += p.n - 1 + keep;
        runs++;
    }
    if (n > INT32_MAX)
        return mxc_err_set(l->err, MXC_E_LIMIT, "the pictures are %lld tokens", (long long)n);
    l->out.tokens = numbers(l, n, sizeof *l->out.tokens);
    l->out.runs = numbers(l, runs, sizeof *l->out.runs);
    if (!l->out.tokens || !l->out.runs)
        return MXC_E_NOMEM;
    p = (struct place){.token = -1};
    while (next_place(l, &p, &mark)) {
        for (; from < p.token + keep; from++)
            l->out.tokens[at++] = l->text->tokens[from];
        from = p.token + 1;
        l->out.runs[l->out.n_runs++] = (struct mxc_vision_run){at, p.n, p.picture, p.feature0};
        for (int32_t i = 0; i < p.n; i++)
            l->out.tokens[at++] = l->v->image_token;
    }
    for (; from < l->text->n_tokens; from++)
        l->out.tokens[at++] = l->text->tokens[from];
    l->out.n_tokens = at;
    return MXC_OK;
}

/* Text counts on; a picture's rows share one time and have their row's and column's number from
 * there on; what follows goes on after the largest of them. */
static enum mxc_code three_axes(struct layout *l) {
    int32_t n = l->out.n_tokens, at = 0, i = 0;
    int32_t *t = numbers(l, 3 * (int64_t)n, sizeof *t);
    if (!t)
        return MXC_E_NOMEM;
    l->out.positions = t;
    for (int32_t r = 0; r <= l->out.n_runs; r++) {
        const struct mxc_vision_run *run = &l->out.runs[r];
        int32_t end = r < l->out.n_runs ? run->row0 : n;
        for (; i < end; i++, at++)
            t[i] = t[n + i] = t[2 * (size_t)n + (size_t)i] = at;
        if (r == l->out.n_runs)
            break;
        const int32_t *grid = l->pictures[run->picture]->grid;
        int32_t down = grid[1] / l->v->shape.merge, across = grid[2] / l->v->shape.merge;
        for (int32_t k = 0; k < run->n_rows; k++, i++) {
            t[i] = at;
            t[n + i] = at + k / across;
            t[2 * (size_t)n + (size_t)i] = at + k % across;
        }
        at += down > across ? down : across;
    }
    l->out.rope_delta = at - n;
    return MXC_OK;
}

static enum mxc_code both_ways(struct layout *l) {
    int32_t n = l->out.n_tokens;
    l->out.row_end = numbers(l, n, sizeof *l->out.row_end);
    if (!l->out.row_end)
        return MXC_E_NOMEM;
    for (int32_t i = 0; i < n; i++)
        l->out.row_end[i] = i + 1;
    for (int32_t r = 0; r < l->out.n_runs; r++) {
        int32_t begin = l->out.runs[r].row0, end = begin + l->out.runs[r].n_rows;
        for (int32_t i = begin; i < end; i++)
            l->out.row_end[i] = end;
    }
    return MXC_OK;
}

/* Gemma 3's mark stays in front of the picture's tokens, and the picture's end follows them. */
static enum mxc_code check_ends(const struct layout *l) {
    const struct mxc_vision_text *text = l->text;
    for (int32_t i = 0; i < text->n_tokens; i++) {
        if (text->is_mark[i] &&
            (i + 1 == text->n_tokens || text->tokens[i + 1] != l->v->shape.end_token))
            return mxc_err_set(l->err, MXC_E_INTERNAL,
                               "token %d: a picture's start without its end", i);
    }
    return MXC_OK;
}

/* ---- the CROSS store */

/* Marks that follow each other are one group, and what comes after sees all its pictures. So that a
 * token sees one stretch, the store holds the tiles of a group's pictures first and their empty
 * tiles after. */
static enum mxc_code cross(struct layout *l) {
    const struct mxc_vision_text *text = l->text;
    int32_t n = text->n_tokens, store = 0, picture = 0;
    l->out.tokens = numbers(l, n, sizeof *l->out.tokens);
    l->out.cross_range = numbers(l, 2 * (int64_t)n, sizeof *l->out.cross_range);
    l->out.runs = numbers(l, 2 * (int64_t)l->n_pictures, sizeof *l->out.runs);
    if (!l->out.tokens || !l->out.cross_range || !l->out.runs)
        return MXC_E_NOMEM;
    memcpy(l->out.tokens, text->tokens, (size_t)n * sizeof *l->out.tokens);
    l->out.n_tokens = n;
    int32_t begin = 0, end = 0, first = 0;
    for (int32_t i = 0; i < n; i++) {
        if (text->is_mark[i]) {
            if (!i || !text->is_mark[i - 1]) {
                begin = end = store;
                first = picture;
            }
            const struct mxc_vision_cost *c = &l->pictures[picture]->cost;
            int32_t real = c->n_features / l->v->shape.tiles * c->n_tiles;
            l->out.runs[l->out.n_runs++] = (struct mxc_vision_run){end, real, picture++, 0};
            end += real;
        }
        l->out.cross_range[i] = begin;
        l->out.cross_range[n + i] = end;
        if (!text->is_mark[i] || (i + 1 < n && text->is_mark[i + 1]))
            continue;
        store = end;
        for (int32_t k = first; k < picture; k++) {
            const struct mxc_vision_cost *c = &l->pictures[k]->cost;
            int32_t real = c->n_features / l->v->shape.tiles * c->n_tiles;
            if (real == c->n_features)
                continue;
            l->out.runs[l->out.n_runs++] =
                (struct mxc_vision_run){store, c->n_features - real, k, real};
            store += c->n_features - real;
        }
    }
    return MXC_OK;
}

static enum mxc_code fill(struct layout *l) {
    int64_t features = 0;
    for (int32_t i = 0; i < l->n_pictures; i++)
        features += l->pictures[i]->cost.n_features;
    if (features > INT32_MAX)
        return mxc_err_set(l->err, MXC_E_LIMIT, "the pictures are %lld features",
                           (long long)features);
    enum mxc_code code = check_marks(l);
    if (code)
        return code;
    switch (l->v->family->layout) {
    case MXC_LAYOUT_CROSS:
        return cross(l);
    case MXC_LAYOUT_BOTH_WAYS:
        if ((code = check_ends(l)) || (code = expand(l, 1)))
            return code;
        return both_ways(l);
    case MXC_LAYOUT_MROPE:
        code = expand(l, 0);
        return code ? code : three_axes(l);
    case MXC_LAYOUT_PLAIN:
        break;
    }
    return expand(l, 0);
}

enum mxc_code mxc_vision_lay_out(const struct mxc_vision *vision,
                                 const struct mxc_vision_text *text,
                                 const struct mxc_vision_picture *const *pictures,
                                 int32_t n_pictures, struct mxc_vision_layout *layout,
                                 struct mxc_err *err) {
    struct layout l = {
        .v = vision, .text = text, .pictures = pictures, .n_pictures = n_pictures, .err = err};
    enum mxc_code code = fill(&l);
    if (code)
        mxc_vision_layout_fini(&l.out);
    else
        *layout = l.out;
    return code;
}

void mxc_vision_layout_fini(struct mxc_vision_layout *layout) {
    mxc_mem_free(layout->tokens);
    mxc_mem_free(layout->positions);
    mxc_mem_free(layout->row_end);
    mxc_mem_free(layout->cross_range);
    mxc_mem_free(layout->runs);
    *layout = (struct mxc_vision_layout){0};
}

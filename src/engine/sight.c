/* Sight: which picture is next, one piece of its tower, and where the features go.
 * A piece is measured in multiply-adds; how many make a piece's time is learned from the pieces
 * before. Features of a picture that another request has in the tower are waited for, since that
 * request stands before this one.
 * Invariants: a tower borrows its input from the request, so it ends with the request. */
#include "engine/sight.h"

#include "backend/backend.h"

#include <string.h>

enum { BUSY_NS = 20000000, IDLE_NS = 150000000 };
static const double first_rate = 10; /* multiply-adds a nanosecond, until one piece was timed */

void mxc_sight_init(struct mxc_sight *s, const struct mxc_engine_target *target,
                    uint64_t (*clock)(void), size_t feature_bytes) {
    *s = (struct mxc_sight){.ops = target->tower_ops ? target->tower_ops : target->ops,
                            .plan = target->tower,
                            .clock = clock,
                            .rate = first_rate,
                            .spare = target->spare_tower,
                            .spare_user = target->spare_user};
    mxc_features_init(&s->features, feature_bytes);
}

static void stop(struct mxc_sight *s) {
    if (s->tower)
        s->ops->tower_free(s->tower);
    s->tower = NULL;
    s->request = NULL;
}

void mxc_sight_fini(struct mxc_sight *s) {
    stop(s);
    mxc_features_fini(&s->features);
}

void mxc_sight_forget(struct mxc_sight *s, struct mxc_request *r) {
    if (s->request == r)
        stop(s);
    for (int32_t i = 0; i < r->n_pictures; i++) {
        mxc_features_give_back(&s->features, r->pictures[i].feature);
        r->pictures[i].feature = NULL;
    }
}

/* All features are there: the embedding runs get their rows. */
static void finish_request(struct mxc_request *r) {
    for (int32_t i = 0; i < r->n_embeds; i++) {
        struct mxc_embed_run *e = &r->embeds[i];
        if (e->rows)
            continue;
        const struct mxc_feature *f = r->pictures[e->picture].feature;
        e->rows = f->rows + (size_t)e->feature0 * (size_t)f->width;
    }
    r->seen = true;
}

/* The first picture of r without features; takes those that are kept. n_pictures: none. */
static int32_t next_picture(struct mxc_sight *s, struct mxc_request *r) {
    for (int32_t i = 0; i < r->n_pictures; i++) {
        struct mxc_request_picture *p = &r->pictures[i];
        if (!p->feature)
            p->feature = mxc_features_take(&s->features, p->digest);
        if (!p->feature)
            return i;
    }
    return r->n_pictures;
}

/* One piece; *done when the features were stored. */
static enum mxc_code run_piece(struct mxc_sight *s, uint64_t piece_ns, bool *done,
                               struct mxc_err *err) {
    struct mxc_request_picture *p = &s->request->pictures[s->picture];
    const double most = 1e18; /* a clock that stands still would let the rate grow without end */
    double wanted = s->rate * (double)piece_ns;
    uint64_t budget = (uint64_t)(wanted < most ? wanted : most), start = s->clock();
    *done = false;
    enum mxc_code code = s->ops->tower_step(s->tower, budget, done, err);
    uint64_t took = s->clock() - start;
    if (code || !*done) {
        if (took > 0) /* a step may overshoot: the rate follows what it did */
            s->rate = 0.5 * s->rate + 0.5 * (double)budget / (double)took;
        return code;
    }
    int32_t n_rows = 0;
    const float *rows = s->ops->tower_output(s->tower, &n_rows);
    if (n_rows != p->n_rows)
        return mxc_err_set(err, MXC_E_INTERNAL, "the tower gave %d rows for a picture of %d",
                           n_rows, p->n_rows);
    return mxc_features_add(&s->features, p->digest, rows, n_rows, p->width, &p->feature, err);
}

/* Takes the spare eye, if there is one and the failure was the backend's. No tower is under way. */
static bool take_spare(struct mxc_sight *s, enum mxc_code code, const struct mxc_err *why) {
    const struct mxc_backend_ops *ops;
    struct mxc_plan *plan;
    if (!s->spare || code == MXC_E_ARG || code == MXC_E_NOMEM || code == MXC_E_DEVICE_LOST)
        return false;
    if (s->spare(s->spare_user, why, &ops, &plan, NULL))
        return false;
    s->spare = NULL;
    s->ops = ops;
    s->plan = plan;
    s->rate = first_rate;
    return true;
}

struct mxc_request *mxc_sight_step(struct mxc_sight *s, struct mxc_request *const *requests,
                                   int32_t n_requests, bool busy, struct mxc_err *err) {
    if (!s->plan)
        return NULL;
    for (int32_t i = 0; i < n_requests && !s->tower; i++) {
        struct mxc_request *r = requests[i];
        if (r->seen)
            continue;
        int32_t picture = next_picture(s, r);
        if (picture == r->n_pictures) {
            finish_request(r);
            continue;
        }
        s->request = r;
        s->picture = picture;
        const struct mxc_tower_input *input = r->pictures[picture].input;
        enum mxc_code code = s->ops->tower_new(s->plan, input, &s->tower, err);
        if (code && take_spare(s, code, err))
            code = s->ops->tower_new(s->plan, input, &s->tower, err);
        if (code) {
            s->request = NULL;
            return r;
        }
    }
    if (!s->tower)
        return NULL;
    struct mxc_request *r = s->request;
    bool done;
    enum mxc_code code = run_piece(s, busy ? BUSY_NS : IDLE_NS, &done, err);
    if (code || done)
        stop(s);
    if (code && take_spare(s, code, err))
        return NULL; /* the picture begins again */
    if (code)
        return r;
    if (done && next_picture(s, r) == r->n_pictures)
        finish_request(r);
    return NULL;
}

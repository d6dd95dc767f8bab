/* Making, checking and keying requests. Everything a request will ever need is allocated here, on
 * the submitting thread, so that the stepping thread neither waits for memory nor fails for it.
 * Out: a request that the stepping thread can serve without another check. */
#include "engine/request.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

void mxc_request_params_init(struct mxc_request_params *params) {
    *params = (struct mxc_request_params){.max_tokens = -1, .n_logprobs = -1};
    mxc_sampling_init(&params->sampling);
    params->sampling.temperature = 0;
}

static enum mxc_code check_ids(const char *what, const int32_t *ids, int32_t n, int32_t vocab,
                               struct mxc_err *err) {
    if (n < 0 || n > MXC_MAX_STOP_IDS)
        return mxc_err_set(err, MXC_E_ARG, "%d %s; the limit is %d", n, what, MXC_MAX_STOP_IDS);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return mxc_err_set(err, MXC_E_ARG, "%s: token %d is not in the vocabulary of %d", what,
                               ids[i], vocab);
    return MXC_OK;
}

/* A row that sees ahead must see rows of its own embedding run only: then the run's digest says all
 * that its K and V depend on. No cut may part such rows, so a run must fit into a step. */
static enum mxc_code check_row_end(const struct mxc_prompt *p, int32_t max_rows,
                                   struct mxc_err *err) {
    int32_t run = 0;
    for (int32_t i = 0; i < p->n_tokens; i++) {
        if (p->row_end[i] <= i || p->row_end[i] > p->n_tokens)
            return mxc_err_set(err, MXC_E_ARG, "row_end[%d] is %d; it must be in [%d, %d]", i,
                               p->row_end[i], i + 1, p->n_tokens);
        if (p->row_end[i] == i + 1)
            continue;
        while (run < p->n_embeds && p->embeds[run].row0 + p->embeds[run].n_rows <= i)
            run++;
        const struct mxc_embed_run *e = run < p->n_embeds ? &p->embeds[run] : NULL;
        if (!e || e->row0 > i || p->row_end[i] > e->row0 + e->n_rows)
            return mxc_err_set(err, MXC_E_ARG, "row %d sees ahead out of its embedding run", i);
        if (e->n_rows > max_rows)
            return mxc_err_set(err, MXC_E_LIMIT,
                               "an image has %d rows that see each other; a step takes %d",
                               e->n_rows, max_rows);
    }
    return MXC_OK;
}

static enum mxc_code check_run(const struct mxc_prompt *p, const struct mxc_embed_run *e,
                               const char *what, int32_t i, struct mxc_err *err) {
    if (e->picture < 0 || e->picture >= p->n_pictures || e->feature0 < 0 ||
        (int64_t)e->feature0 + e->n_rows > p->pictures[e->picture].n_rows)
        return mxc_err_set(err, MXC_E_ARG, "%s run %d: rows [%d, %lld) of picture %d are not there",
                           what, i, e->feature0, (long long)e->feature0 + e->n_rows, e->picture);
    return MXC_OK;
}

static enum mxc_code check_embeds(const struct mxc_prompt *p, struct mxc_err *err) {
    int64_t end = 0;
    if (p->n_embeds < 0)
        return mxc_err_set(err, MXC_E_ARG, "n_embeds is %d", p->n_embeds);
    for (int32_t i = 0; i < p->n_embeds; i++) {
        const struct mxc_embed_run *e = &p->embeds[i];
        if (e->row0 < end || e->n_rows < 1 || (int64_t)e->row0 + e->n_rows > p->n_tokens)
            return mxc_err_set(err, MXC_E_ARG,
                               "embedding run %d: rows [%d, %lld) are out of order or not in the "
                               "prompt of %d",
                               i, e->row0, (long long)e->row0 + e->n_rows, p->n_tokens);
        end = (int64_t)e->row0 + e->n_rows;
        enum mxc_code code = e->rows ? MXC_OK : check_run(p, e, "embedding", i, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

/* The runs fill the store, and every row sees tokens that it holds. */
static enum mxc_code check_cross(const struct mxc_request_limits *limits,
                                 const struct mxc_prompt *p, struct mxc_err *err) {
    int64_t sum = 0;
    for (int32_t i = 0; i < p->n_cross_runs; i++) {
        const struct mxc_embed_run *e = &p->cross_runs[i];
        if (e->row0 != sum || e->n_rows < 1)
            return mxc_err_set(err, MXC_E_ARG, "cross run %d begins at %d, not at %lld", i, e->row0,
                               (long long)sum);
        enum mxc_code code = check_run(p, e, "cross", i, err);
        if (code)
            return code;
        sum += e->n_rows;
    }
    if (sum > limits->cross_tokens)
        return mxc_err_set(err, MXC_E_LIMIT,
                           "the pictures take %lld tokens of cross attention; there is room for %d",
                           (long long)sum, limits->cross_tokens);
    for (int32_t i = 0; i < p->n_tokens; i++) {
        int32_t begin = p->cross_range[i], end = p->cross_range[p->n_tokens + i];
        if (begin < 0 || begin > end || end > sum)
            return mxc_err_set(err, MXC_E_ARG, "cross_range[%d] is [%d, %d) of %lld", i, begin, end,
                               (long long)sum);
    }
    return MXC_OK;
}

static enum mxc_code check_pictures(const struct mxc_request_limits *limits,
                                    const struct mxc_prompt *p, struct mxc_err *err) {
    if (p->n_pictures < 0 || p->n_pictures > MXC_MAX_PICTURES)
        return mxc_err_set(err, MXC_E_LIMIT, "%d pictures; the limit is %d", p->n_pictures,
                           MXC_MAX_PICTURES);
    if (p->n_pictures && !limits->feature_width)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "the model does not see pictures");
    if ((p->cross_range != NULL) != (p->n_pictures > 0 && limits->cross_tokens > 0))
        return mxc_err_set(err, MXC_E_ARG, "cross_range does not go with the model");
    for (int32_t i = 0; i < p->n_pictures; i++)
        if (!p->pictures[i].input || p->pictures[i].n_rows < 1)
            return mxc_err_set(err, MXC_E_ARG, "picture %d has no input or no rows", i);
    return p->cross_range ? check_cross(limits, p, err) : MXC_OK;
}

/* Requests for hidden rows. */
static enum mxc_code check_rows(const struct mxc_request_limits *limits,
                                const struct mxc_graph *graph, const struct mxc_prompt *p,
                                const struct mxc_request_params *params, struct mxc_err *err) {
    if (!graph->hidden_out)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "the model was not opened for embeddings");
    if (!params->rows)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "the model was opened for embeddings: it generates no text");
    if (params->max_tokens)
        return mxc_err_set(err, MXC_E_ARG, "max_tokens is %d in a request for hidden rows",
                           params->max_tokens);
    if (p->n_tokens > limits->context)
        return mxc_err_set(err, MXC_E_CONTEXT, "the text has %d tokens; the context holds %d",
                           p->n_tokens, limits->context);
    if (graph->both_ways && p->n_tokens > limits->max_group_rows)
        return mxc_err_set(err, MXC_E_LIMIT,
                           "a text of %d tokens must run in one step; a step takes %d", p->n_tokens,
                           limits->max_group_rows);
    if (graph->both_ways && p->row_end)
        return mxc_err_set(err, MXC_E_ARG, "row_end is the engine's with an encoder");
    return MXC_OK;
}

/* A prompt (its pictures' tokens included) and what it may generate: one token at least where no
 * number is given. */
static enum mxc_code check_whole(const struct mxc_request_limits *limits,
                                 const struct mxc_prompt *p,
                                 const struct mxc_request_params *params, struct mxc_err *err) {
    int32_t more = params->max_tokens < 0 ? 1 : params->max_tokens;
    if ((int64_t)p->n_tokens + more <= limits->context)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_CONTEXT,
                       "the prompt has %d tokens, pictures included, and %d new tokens are asked "
                       "for: together more than the capacity of %d",
                       p->n_tokens, more, limits->context);
}

static enum mxc_code check(const struct mxc_request_limits *limits, const struct mxc_graph *graph,
                           const struct mxc_prompt *p, const struct mxc_request_params *params,
                           struct mxc_err *err) {
    enum mxc_code code;
    if (!params->event)
        return mxc_err_set(err, MXC_E_ARG, "a request needs an event function");
    if (p->n_tokens < 1)
        return mxc_err_set(err, MXC_E_ARG, "the prompt is empty");
    if ((params->rows || graph->hidden_out) && (code = check_rows(limits, graph, p, params, err)))
        return code;
    if (!params->rows && limits->admit_whole && (code = check_whole(limits, p, params, err)))
        return code;
    if (!params->rows && !limits->admit_whole && p->n_tokens >= limits->context)
        return mxc_err_set(err, MXC_E_CONTEXT,
                           "the prompt has %d tokens; the context holds %d with at least one "
                           "generated",
                           p->n_tokens, limits->context);
    for (int32_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= limits->table_rows)
            return mxc_err_set(err, MXC_E_ARG, "prompt token %d is %d, not in the vocabulary of %d",
                               i, p->tokens[i], limits->table_rows);
    if (params->max_tokens < -1)
        return mxc_err_set(err, MXC_E_ARG, "max_tokens is %d", params->max_tokens);
    if (params->n_logprobs < -1 || params->n_logprobs > MXC_MAX_TOP_LOGPROBS)
        return mxc_err_set(err, MXC_E_ARG, "n_logprobs: %d is not in [-1, %d]", params->n_logprobs,
                           MXC_MAX_TOP_LOGPROBS);
    if ((code = check_ids("EOS ids", params->eos_ids, params->n_eos_ids, limits->vocab, err)) ||
        (code = check_ids("stop ids", params->stop_ids, params->n_stop_ids, limits->vocab, err)) ||
        (code = mxc_sampling_check(&params->sampling, limits->vocab, err)) ||
        (code = check_pictures(limits, p, err)) || (code = check_embeds(p, err)))
        return code;
    return p->row_end ? check_row_end(p, limits->max_group_rows, err) : MXC_OK;
}

/* Of an encoder: every row sees all n. false: out of memory. */
static bool see_all(struct mxc_request *r, int32_t n) {
    r->row_end = mxc_mem_array((size_t)n, sizeof *r->row_end);
    r->reach = mxc_mem_array((size_t)n, sizeof *r->reach);
    for (int32_t i = 0; r->row_end && r->reach && i < n; i++)
        r->row_end[i] = r->reach[i] = n;
    return r->row_end && r->reach;
}

/* Copies n items; NULL source or n 0 gives NULL. false: out of memory. */
static bool copy(const void *from, int32_t n, size_t size, void *to_pointer) {
    void *to = NULL;
    if (from && n > 0) {
        to = mxc_mem_array((size_t)n, size);
        if (!to)
            return false;
        memcpy(to, from, (size_t)n * size);
    }
    memcpy(to_pointer, &to, sizeof to);
    return true;
}

static bool copy_pictures(struct mxc_request *r, const struct mxc_prompt *p, int32_t width) {
    r->seen = !p->n_pictures;
    if (!p->n_pictures)
        return true;
    r->pictures = mxc_mem_zalloc((size_t)p->n_pictures, sizeof *r->pictures);
    if (!r->pictures)
        return false;
    for (int32_t i = 0; i < p->n_pictures; i++) {
        r->pictures[i].input = p->pictures[i].input;
        r->pictures[i].n_rows = p->pictures[i].n_rows;
        r->pictures[i].width = width;
        memcpy(r->pictures[i].digest, p->pictures[i].digest, sizeof p->pictures[i].digest);
    }
    for (int32_t i = 0; i < p->n_cross_runs; i++)
        r->cross_tokens += p->cross_runs[i].n_rows;
    r->n_cross_runs = p->n_cross_runs;
    r->n_pictures = p->n_pictures;
    return true;
}

/* The length that RoPE's frequencies are fixed for. All lengths that give the frequencies of length
 * 1 count as 1, so that prompts of different lengths share cached blocks. */
static int32_t rope_length_of(const struct mxc_graph *graph, int32_t n_prompt) {
    float a[MXC_MAX_ROPE_HALF], b[MXC_MAX_ROPE_HALF], fa, fb;
    for (int32_t i = 0; i < graph->n_ropes; i++) {
        const struct mxc_rope *rope = &graph->ropes[i];
        if (!mxc_rope_length_dependent(rope))
            continue;
        mxc_rope_frequencies(rope, 1, a, &fa);
        mxc_rope_frequencies(rope, n_prompt, b, &fb);
        if (fa != fb || memcmp(a, b, (size_t)rope->dims / 2 * sizeof *a) != 0)
            return n_prompt;
    }
    return 1;
}

enum mxc_code mxc_request_new(const struct mxc_request_limits *limits,
                              const struct mxc_graph *graph, const struct mxc_blocks *blocks,
                              const struct mxc_prompt *p, const struct mxc_request_params *params,
                              struct mxc_request **request, struct mxc_err *err) {
    enum mxc_code code = check(limits, graph, p, params, err);
    if (code)
        return code;
    struct mxc_request *r = mxc_mem_zalloc(1, sizeof *r);
    if (!r)
        return mxc_err_nomem(err);
    atomic_init(&r->cancelled, false);
    r->table.node = -1;
    r->params = *params;
    r->params.eos_ids = r->params.stop_ids = NULL;
    if (params->rows) { /* every row must run, and KV without logits is nobody's prefix */
        r->params.no_cache = true;
        r->params.group = 0;
    }
    r->n_embeds = p->n_embeds;
    r->rope_delta = p->rope_delta;
    r->rope_length = rope_length_of(graph, p->n_tokens);
    r->adapter = p->adapter;
    r->cache_salt = p->cache_salt;
    r->n_prompt = r->n_tokens = p->n_tokens;
    r->stats.n_prompt = p->n_tokens;
    int64_t limit =
        params->max_tokens < 0 ? limits->context : (int64_t)p->n_tokens + params->max_tokens;
    r->limit = limit < limits->context ? (int32_t)limit : limits->context;
    r->tokens = mxc_mem_array((size_t)r->limit, sizeof *r->tokens);
    if (params->n_logprobs > 0)
        r->top = mxc_mem_array((size_t)params->n_logprobs, sizeof *r->top);
    bool ok = r->tokens && (params->n_logprobs <= 0 || r->top) &&
              copy(params->eos_ids, params->n_eos_ids, sizeof(int32_t), &r->params.eos_ids) &&
              copy(params->stop_ids, params->n_stop_ids, sizeof(int32_t), &r->params.stop_ids) &&
              copy(p->embeds, p->n_embeds, sizeof *r->embeds, &r->embeds) &&
              copy(p->row_end, p->n_tokens, sizeof(int32_t), &r->row_end) &&
              copy(p->row_end, p->n_tokens, sizeof(int32_t), &r->reach) &&
              copy(p->positions, p->n_tokens, 3 * sizeof(int32_t), &r->positions) &&
              (!graph->both_ways || see_all(r, p->n_tokens)) &&
              copy(p->cross_range, p->n_tokens, 2 * sizeof(int32_t), &r->cross_range) &&
              copy(p->cross_runs, p->n_cross_runs, sizeof *r->cross_runs, &r->cross_runs) &&
              copy_pictures(r, p, limits->feature_width);
    if (!ok) {
        code = mxc_err_nomem(err);
        goto out;
    }
    memcpy(r->tokens, p->tokens, (size_t)p->n_tokens * sizeof *r->tokens);
    for (int32_t i = 1; r->reach && i < r->n_prompt; i++)
        r->reach[i] = r->reach[i] > r->reach[i - 1] ? r->reach[i] : r->reach[i - 1];
    if ((code = mxc_sampler_init(&r->sampler, &params->sampling, limits->vocab, err)) ||
        (code = mxc_table_init(&r->table, blocks, r->limit, r->cross_tokens, err)))
        goto out;
    r->params.sampling = r->sampler.params;
    r->table.sealed = r->params.no_cache;
    r->fetched = r->params.no_cache;
    *request = r;
    r = NULL;
out:
    mxc_request_free(r);
    return code;
}

void mxc_request_free(struct mxc_request *r) {
    if (!r)
        return;
    mxc_sampler_fini(&r->sampler);
    mxc_table_fini(&r->table);
    mxc_mem_free((void *)(uintptr_t)r->params.eos_ids);
    mxc_mem_free((void *)(uintptr_t)r->params.stop_ids);
    mxc_mem_free(r->embeds);
    mxc_mem_free(r->row_end);
    mxc_mem_free(r->reach);
    mxc_mem_free(r->positions);
    mxc_mem_free(r->pictures);
    mxc_mem_free(r->cross_range);
    mxc_mem_free(r->cross_runs);
    mxc_mem_free(r->tokens);
    mxc_mem_free(r->top);
    mxc_mem_free(r);
}

int32_t mxc_request_position(const struct mxc_request *r, int32_t i, int axis) {
    if (i >= r->n_prompt)
        return i + r->rope_delta;
    return r->positions ? r->positions[(size_t)axis * (size_t)r->n_prompt + (size_t)i] : i;
}

bool mxc_request_may_cut(const struct mxc_request *r, int32_t n) {
    return !r->reach || n < 1 || n >= r->n_prompt || r->reach[n - 1] <= n;
}

static bool may_cut(void *user, int32_t n) {
    return mxc_request_may_cut(user, n);
}

static size_t put(uint8_t *out, size_t at, const void *bytes, size_t n) {
    assert(at + n <= MXC_MAX_BLOCK_EXTRA);
    memcpy(out + at, bytes, n);
    return at + n;
}

/* The text behind pictures that are not embedded depends on all of them: their digests as one. */
static size_t put_cross_digest(const struct mxc_request *r, uint8_t *out, size_t at) {
    uint64_t sum[4] = {0};
    for (int32_t i = 0; i < r->n_pictures; i++) {
        uint64_t part[4];
        memcpy(part, r->pictures[i].digest, sizeof part);
        for (int j = 0; j < 4; j++) /* an odd factor: no digest is lost, their order counts */
            sum[j] = sum[j] * UINT64_C(0x9e3779b97f4a7c15) + part[j] + 1;
    }
    return put(out, at, sum, sizeof sum);
}

/* Block 0: what holds for the whole sequence. Any block: which rows of which images lie where. */
static size_t block_extra(void *user, int32_t block, uint8_t *out) {
    const struct mxc_request *r = user;
    int32_t from = block * MXC_KV_BLOCK, to = from + MXC_KV_BLOCK;
    size_t n = 0;
    if (!block) {
        n = put(out, n, &r->cache_salt, sizeof r->cache_salt);
        n = put(out, n, &r->rope_length, sizeof r->rope_length);
        n = put(out, n, &r->adapter, sizeof r->adapter);
        if (r->cross_range)
            n = put_cross_digest(r, out, n);
    }
    for (int32_t i = 0; i < r->n_embeds; i++) {
        const struct mxc_embed_run *e = &r->embeds[i];
        int32_t lo = e->row0 > from ? e->row0 : from;
        int32_t hi = e->row0 + e->n_rows < to ? e->row0 + e->n_rows : to;
        if (lo >= hi)
            continue;
        int32_t where[4] = {lo - e->row0 + e->feature0, e->n_rows, lo - from, hi - lo};
        n = put(out, n, e->digest, sizeof e->digest);
        n = put(out, n, where, sizeof where);
    }
    for (int32_t i = from; i < to && (r->positions || r->rope_delta); i++)
        for (int axis = 0; axis < 3; axis++) {
            int32_t position = mxc_request_position(r, i, axis);
            n = put(out, n, &position, sizeof position);
        }
    for (int32_t i = from; i < to && i < r->n_prompt && r->row_end; i++) {
        int32_t ahead = r->row_end[i] - i;
        n = put(out, n, &ahead, sizeof ahead);
    }
    return n;
}

struct mxc_block_source mxc_request_source(struct mxc_request *r) {
    return (struct mxc_block_source){r->tokens, block_extra, r->row_end ? may_cut : NULL, r,
                                     r->n_prompt};
}

static bool same_array(const int32_t *a, const int32_t *b, size_t n) {
    return a == b || (a && b && !memcmp(a, b, n * sizeof *a));
}

bool mxc_request_same_prompt(const struct mxc_request *a, const struct mxc_request *b) {
    if (a->n_prompt != b->n_prompt || a->n_embeds != b->n_embeds ||
        a->n_pictures != b->n_pictures || !a->cross_range != !b->cross_range ||
        a->rope_length != b->rope_length || a->adapter != b->adapter ||
        a->cache_salt != b->cache_salt || a->rope_delta != b->rope_delta)
        return false;
    size_t n = (size_t)a->n_prompt;
    for (int32_t i = 0; i < a->n_embeds; i++)
        if (a->embeds[i].row0 != b->embeds[i].row0 || a->embeds[i].n_rows != b->embeds[i].n_rows ||
            memcmp(a->embeds[i].digest, b->embeds[i].digest, sizeof a->embeds[i].digest) != 0)
            return false;
    for (int32_t i = 0; i < a->n_pictures; i++)
        if (memcmp(a->pictures[i].digest, b->pictures[i].digest, sizeof a->pictures[i].digest) != 0)
            return false;
    return same_array(a->tokens, b->tokens, n) && same_array(a->row_end, b->row_end, n) &&
           same_array(a->positions, b->positions, 3 * n);
}

void mxc_request_cross(const struct mxc_request *r, int32_t i, int32_t *begin, int32_t *end) {
    int32_t row = i < r->n_prompt ? i : r->n_prompt - 1;
    *begin = r->cross_range ? r->cross_range[row] : 0;
    *end = r->cross_range ? r->cross_range[r->n_prompt + row] : 0;
}

const float *mxc_request_embedding(const struct mxc_request *r, int32_t row, int32_t width) {
    int32_t lo = 0, hi = r->n_embeds; /* the last run with row0 <= row */
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (r->embeds[mid].row0 <= row)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (!lo || row - r->embeds[lo - 1].row0 >= r->embeds[lo - 1].n_rows)
        return NULL;
    return r->embeds[lo - 1].rows + (size_t)(row - r->embeds[lo - 1].row0) * (size_t)width;
}

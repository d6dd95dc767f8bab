/* The fake backend: a slot per token and KV kind that holds a hash of what the row saw. Rows read
 * their predecessors through the span's tables, check that the slot is the one they mean, and yield
 * logits that depend on all of it. */
#include "fake_backend.h"

#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mxc_plan {
    struct fake_model *model;
};

struct slot {
    uint64_t chain, item;
    int32_t number; /* -1: never written */
};

struct mxc_state {
    struct fake_model *model;
    struct slot *slots[MXC_N_KV_KINDS];
};

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t z = (a ^ b * 0x9E3779B97F4A7C15u) + 0x7F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static enum mxc_code state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                               struct mxc_state **state, struct mxc_err *err) {
    struct mxc_state *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    s->model = plan->model;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        size_t n = (size_t)n_blocks[k] * MXC_KV_BLOCK;
        if (!n)
            continue;
        s->slots[k] = malloc(n * sizeof *s->slots[k]);
        for (size_t i = 0; i < n; i++)
            s->slots[k][i].number = -1;
    }
    plan->model->n_states++;
    *state = s;
    return MXC_OK;
}

static void state_free(struct mxc_state *state) {
    state->model->n_states--;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        free(state->slots[k]);
    mxc_mem_free(state);
}

static void state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to) {
    struct slot *s = state->slots[kind];
    memcpy(s + to * MXC_KV_BLOCK, s + from * MXC_KV_BLOCK, MXC_KV_BLOCK * sizeof *s);
    state->model->n_copies++;
}

enum { BLOCK_BYTES = MXC_KV_BLOCK * sizeof(struct slot) };

static void plan_memory(const struct mxc_plan *plan, struct mxc_plan_memory *memory) {
    *memory = (struct mxc_plan_memory){0};
    for (int32_t i = 0; i < plan->model->graph.n_kvs; i++)
        memory->kv_block_bytes[plan->model->kvs[i].kind] = BLOCK_BYTES;
}

static enum mxc_code state_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                  void *bytes, struct mxc_err *err) {
    (void)err;
    memcpy(bytes, state->slots[kind] + block * MXC_KV_BLOCK, BLOCK_BYTES);
    return MXC_OK;
}

static enum mxc_code state_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                  const void *bytes, struct mxc_err *err) {
    (void)err;
    memcpy(state->slots[kind] + block * MXC_KV_BLOCK, bytes, BLOCK_BYTES);
    return MXC_OK;
}

/* The slot of token `number`, through the span's table; a broken table gives a dummy and counts. */
static struct slot *slot_of(struct mxc_state *state, const struct mxc_span *span, int kind,
                            int32_t number) {
    static struct slot dummy;
    int32_t b = number / MXC_KV_BLOCK;
    if (number < 0 || b >= span->n_blocks[kind] || span->blocks[kind][b] < 0) {
        state->model->bad++;
        return &dummy;
    }
    return &state->slots[kind][span->blocks[kind][b] * MXC_KV_BLOCK + number % MXC_KV_BLOCK];
}

static const struct slot *read_slot(struct mxc_state *state, const struct mxc_span *span, int kind,
                                    int32_t number) {
    const struct slot *s = slot_of(state, span, kind, number);
    if (s->number != number)
        state->model->bad++;
    return s;
}

static uint64_t item_of(const struct mxc_step *step, const struct mxc_span *span, int32_t row,
                        int32_t number) {
    uint64_t h = mix((uint64_t)step->tokens[row], (uint64_t)span->rope_length);
    for (int32_t a = 0; a < step->n_axes; a++)
        h = mix(h, (uint64_t)step->positions[a * step->n_rows + row]);
    for (int32_t i = 0; i < step->n_splices; i++)
        if (step->splices[i].row == row)
            for (int j = 0; j < FAKE_HIDDEN; j++)
                h = mix(h, (uint64_t)(step->splices[i].embedding[j] * 1024.0f));
    /* rows seen ahead: they must be in the same span */
    int32_t end = step->row_end ? step->row_end[row] : number + 1;
    for (int32_t ahead = number + 1; ahead < end; ahead++) {
        int32_t other = row + ahead - number;
        if (other >= span->row0 + span->n_rows)
            return ~h;
        h = mix(h, (uint64_t)step->tokens[other] + 77);
    }
    return h;
}

static enum mxc_code run(struct mxc_plan *plan, struct mxc_state *state,
                         const struct mxc_step *step, const struct mxc_out *out,
                         struct mxc_err *err) {
    struct fake_model *m = plan->model;
    int32_t vocab = m->graph.vocab, next_out = 0, rows = 0;
    m->n_runs++;
    m->last_rows = step->n_rows;
    m->last_spans = step->n_spans;
    m->last_out = step->n_out;
    m->most_rows = step->n_rows > m->most_rows ? step->n_rows : m->most_rows;
    m->most_spans = step->n_spans > m->most_spans ? step->n_spans : m->most_spans;
    if (m->n_runs == m->fail_run_at)
        return mxc_err_set(err, m->fails ? m->fails : MXC_E_BACKEND, "the device fell over");
    for (int32_t i = 0; i < step->n_spans; i++) {
        const struct mxc_span *span = &step->spans[i];
        m->bad += span->row0 != rows || span->n_rows < 1;
        rows += span->n_rows;
        for (int32_t j = 0; j < span->n_rows; j++) {
            int32_t row = span->row0 + j, number = span->context + j;
            if (step->row_end && step->row_end[row] > span->context + span->n_rows)
                m->bad++;
            uint64_t item = item_of(step, span, row, number), chain = 1, seen = 0;
            for (int32_t k = 0; k < m->graph.n_kvs; k++) {
                const struct mxc_kv *kv = &m->kvs[k];
                int32_t from = kv->window && number + 1 > kv->window ? number + 1 - kv->window : 0;
                if (number > from)
                    chain = mix(chain, read_slot(state, span, (int)kv->kind, number - 1)->chain);
                /* every slot the row sees, in order */
                for (int32_t n = from; n < number; n++)
                    seen = mix(seen, read_slot(state, span, (int)kv->kind, n)->item);
            }
            struct slot slot = {mix(mix(chain, item), seen), item, number};
            for (int32_t k = 0; k < m->graph.n_kvs; k++)
                *slot_of(state, span, (int)m->kvs[k].kind, number) = slot;
            if (next_out < step->n_out && step->out_row[next_out] == row) {
                float *logits = out->logits + (size_t)next_out++ * (size_t)vocab;
                for (int32_t v = 0; v < vocab; v++)
                    logits[v] = (float)(mix(slot.chain, (uint64_t)v) >> 44) * 0x1p-16f - 8;
                if (step->tokens[row] == m->nan_token)
                    logits[3] = NAN;
            }
        }
    }
    m->bad += rows != step->n_rows || next_out != step->n_out;
    return MXC_OK;
}

/* ---- towers: FAKE_HIDDEN numbers a row, in so many steps */

struct mxc_tower {
    struct fake_model *model;
    int number, left;
    int32_t n_rows;
    float *rows;
    const struct mxc_tower_input *input;
};

static enum mxc_code tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                               struct mxc_tower **tower, struct mxc_err *err) {
    struct mxc_tower *t = mxc_mem_zalloc(1, sizeof *t);
    if (!t)
        return mxc_err_nomem(err);
    *t = (struct mxc_tower){.model = plan->model,
                            .number = ++plan->model->n_towers,
                            .left = plan->model->tower_pieces,
                            .n_rows = input->n_rows[0],
                            .input = input};
    t->rows = malloc((size_t)t->n_rows * FAKE_HIDDEN * sizeof *t->rows);
    plan->model->n_live_towers++;
    *tower = t;
    return MXC_OK;
}

static enum mxc_code tower_step(struct mxc_tower *t, uint64_t budget, bool *done,
                                struct mxc_err *err) {
    (void)budget;
    *done = --t->left == 0;
    if (*done && t->number == t->model->fail_tower_at)
        return mxc_err_set(err, t->model->fails ? t->model->fails : MXC_E_BACKEND,
                           "the tower fell over");
    for (int32_t i = 0; *done && i < t->n_rows * FAKE_HIDDEN; i++)
        t->rows[i] = fake_feature(t->input->rows[i]);
    return MXC_OK;
}

static const float *tower_output(const struct mxc_tower *t, int32_t *rows) {
    *rows = t->n_rows;
    return t->rows;
}

static void tower_free(struct mxc_tower *t) {
    t->model->n_live_towers--;
    free(t->rows);
    mxc_mem_free(t);
}

const struct mxc_backend_ops fake_backend = {.name = "fake",
                                             .state_new = state_new,
                                             .state_free = state_free,
                                             .state_copy = state_copy,
                                             .plan_memory = plan_memory,
                                             .state_export = state_export,
                                             .state_import = state_import,
                                             .run = run,
                                             .tower_new = tower_new,
                                             .tower_step = tower_step,
                                             .tower_output = tower_output,
                                             .tower_free = tower_free};

void fake_model_init(struct fake_model *model, bool full, int32_t window) {
    memset(model, 0, sizeof *model);
    model->nan_token = -1;
    model->graph.family = "fake";
    model->graph.vocab = FAKE_VOCAB;
    model->graph.hidden = FAKE_HIDDEN;
    model->graph.kvs = model->kvs;
    model->graph.ropes = model->ropes;
    if (full)
        model->kvs[model->graph.n_kvs++] = (struct mxc_kv){.kind = MXC_KV_FULL};
    if (window)
        model->kvs[model->graph.n_kvs++] = (struct mxc_kv){MXC_KV_WINDOW, 1, 1, 1, window};
}

struct mxc_engine_target fake_target(struct fake_model *model) {
    static struct mxc_plan plans[64];
    static int n;
    struct mxc_plan *plan = NULL;
    for (int i = 0; i < n && i < 64 && !plan; i++)
        if (plans[i].model == model)
            plan = &plans[i];
    if (!plan) {
        plan = &plans[n++ % 64];
        plan->model = model;
    }
    static const struct mxc_graph tower_graph = {.family = "fake", .vocab = FAKE_HIDDEN};
    return (struct mxc_engine_target){.ops = &fake_backend,
                                      .plan = plan,
                                      .graph = &model->graph,
                                      .tower = model->tower_pieces ? plan : NULL,
                                      .tower_graph = model->tower_pieces ? &tower_graph : NULL};
}

void fake_reference(struct fake_model *model, const struct mxc_prompt *p, int32_t n, int32_t *ids) {
    enum { MAX = 4096 };
    static int32_t table[MAX / MXC_KV_BLOCK], tokens[MAX], positions[3 * MAX], row_end[MAX];
    static struct mxc_splice splices[MAX];
    float logits[FAKE_VOCAB];
    struct fake_model m = *model; /* counters of the model under test stay as they are */
    struct mxc_plan plan = {&m};
    struct mxc_state *state = NULL;
    int32_t blocks[MXC_N_KV_KINDS] = {0}, axes = m.ropes[0].sections[0] && m.graph.n_ropes ? 3 : 1;
    for (int32_t b = 0; b < MAX / MXC_KV_BLOCK; b++)
        table[b] = MAX / MXC_KV_BLOCK - 1 - b;
    m.fail_run_at = 0;
    for (int32_t k = 0; k < m.graph.n_kvs; k++)
        blocks[m.kvs[k].kind] = MAX / MXC_KV_BLOCK;
    m.graph.kvs = m.kvs;
    if (state_new(&plan, blocks, &state, NULL))
        abort();
    memcpy(tokens, p->tokens, (size_t)p->n_tokens * sizeof *tokens);
    for (int32_t i = 0, done = 0; i < n; i++) {
        int32_t n_tokens = p->n_tokens + i, n_rows = n_tokens - done, n_splices = 0;
        for (int32_t r = 0; r < n_rows; r++) {
            int32_t t = done + r;
            for (int32_t a = 0; a < axes; a++)
                positions[a * n_rows + r] = t >= p->n_tokens ? t + p->rope_delta
                                            : p->positions   ? p->positions[a * p->n_tokens + t]
                                                             : t;
            row_end[r] = p->row_end && t < p->n_tokens ? p->row_end[t] : t + 1;
            for (int32_t e = 0; e < p->n_embeds && t < p->n_tokens; e++)
                if (t >= p->embeds[e].row0 && t < p->embeds[e].row0 + p->embeds[e].n_rows)
                    splices[n_splices++] = (struct mxc_splice){
                        r, p->embeds[e].rows + (t - p->embeds[e].row0) * FAKE_HIDDEN};
        }
        int32_t last = n_rows - 1;
        struct mxc_span span = {.n_rows = n_rows, .context = done, .rope_length = 1};
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            span.blocks[k] = table;
            span.n_blocks[k] = MAX / MXC_KV_BLOCK;
        }
        struct mxc_step step = {.n_rows = n_rows,
                                .tokens = tokens + done,
                                .positions = positions,
                                .n_axes = axes,
                                .row_end = row_end,
                                .n_spans = 1,
                                .spans = &span,
                                .n_out = 1,
                                .out_row = &last,
                                .n_splices = n_splices,
                                .splices = splices};
        struct mxc_out out = {.logits = logits};
        if (run(&plan, state, &step, &out, NULL))
            abort();
        int32_t best = 0;
        for (int32_t v = 1; v < FAKE_VOCAB; v++)
            best = logits[v] > logits[best] ? v : best;
        ids[i] = tokens[n_tokens] = best;
        done = n_tokens;
    }
    if (m.bad > model->bad)
        abort();
    state_free(state);
}

bool sink_event(void *user, const struct mxc_event *event) {
    struct sink *s = user;
    switch (event->kind) {
    case MXC_EVENT_PROGRESS:
        s->n_progress++;
        if (s->n || event->n_done < s->last_progress || event->n_done > event->n_total)
            s->n_done += 1000; /* out of order: no test expects this */
        s->last_progress = event->n_done;
        return true;
    case MXC_EVENT_TOKEN:
        if (event->index != s->n || s->n_done)
            s->n_done += 1000;
        s->logprobs[s->n] = event->logprob;
        s->n_top = event->n_top < 8 ? event->n_top : 8;
        if (s->n_top)
            memcpy(s->top, event->top, (size_t)s->n_top * sizeof *s->top);
        s->ids[s->n++] = event->id;
        if (s->cancel_in)
            mxc_engine_cancel(s->cancel_in, event->request);
        return s->n != s->stop_after;
    case MXC_EVENT_ROWS:
        s->n_done += 1000; /* nobody here asks for hidden rows */
        return true;
    case MXC_EVENT_DONE:
        s->n_done++;
        s->reason = event->reason;
        s->stop_id = event->stop_id;
        if (event->err)
            s->err = *event->err;
        s->stats = *event->stats;
        return true;
    }
    return true;
}

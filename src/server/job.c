/* Generations between the engine's thread and the HTTP thread.
 * A job is held by its exchange (until release) and by every choice in the engine (until DONE);
 * who lets go last frees it. The queue is guarded by the job's mutex; everything that is marked
 * "HTTP side" in job.h is touched by the exchange's HTTP thread only.
 * Bounds: a stream that lags max_stream_bytes behind is cut off, and its generation ends with the
 * next token; a whole reply may collect MAX_WHOLE bytes. A choice's DONE piece is made before it is
 * submitted, so that an end can always be delivered. */
#define _GNU_SOURCE
#include "server/job.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/constrain.h"
#include "server/internal.h"
#include "server/slots.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { MAX_WHOLE = 256 << 20, MAX_SLOTS = 1024 };

struct mxc_job_private {
    struct mxc_job *next, **back; /* in the server's list */
    atomic_int n_holders;
    pthread_mutex_t mutex;
    struct mxc_piece *head, **tail;
    size_t queued_bytes, max_bytes;
    uint64_t turn; /* in the fair order */
    bool cut;      /* the reader lags too far behind, or memory ran out */
    int n_over;
    /* HTTP side */
    bool begun, failed;
    int n_finished;
    struct mxc_fault fault; /* of the first choice that failed */
    struct mxc_buf *out;    /* while pieces are applied to a stream; NULL: whole */
    struct mxc_choice *current;
    const struct mxc_piece *current_piece;
};

struct mxc_jobs {
    pthread_mutex_t mutex;
    struct mxc_job *head;
    bool taken[MXC_HOST_MAX_MODELS][MAX_SLOTS];
    _Atomic uint64_t n_groups;
    /* fair share, in units of choices: where the queue is, and where each key's next one starts */
    uint64_t now, next_of[MXC_LIMITS_KEYS];
};

/* ---- the list */

enum mxc_code mxc_jobs_new(struct mxc_jobs **jobs, struct mxc_err *err) {
    struct mxc_jobs *j = mxc_mem_zalloc(1, sizeof *j);
    if (!j)
        return mxc_err_nomem(err);
    pthread_mutex_init(&j->mutex, NULL); /* cannot fail with default attributes */
    *jobs = j;
    return MXC_OK;
}

void mxc_jobs_free(struct mxc_jobs *jobs) {
    if (!jobs)
        return;
    pthread_mutex_destroy(&jobs->mutex);
    mxc_mem_free(jobs);
}

static void list_job(struct mxc_jobs *jobs, struct mxc_job *job) {
    pthread_mutex_lock(&jobs->mutex);
    job->private->next = jobs->head;
    job->private->back = &jobs->head;
    if (jobs->head)
        jobs->head->private->back = &job->private->next;
    jobs->head = job;
    pthread_mutex_unlock(&jobs->mutex);
}

static void unlist_job(struct mxc_jobs *jobs, struct mxc_job *job) {
    struct mxc_job_private *p = job->private;
    pthread_mutex_lock(&jobs->mutex);
    if (p->back) {
        *p->back = p->next;
        if (p->next)
            p->next->private->back = p->back;
    }
    pthread_mutex_unlock(&jobs->mutex);
}

/* The choice runs now: gives it the lowest free slot of its model. */
static void take_slot(struct mxc_choice *c) {
    struct mxc_jobs *jobs = c->job->x->server->jobs;
    bool *taken = jobs->taken[c->job->params.model];
    int limit = c->job->params.info.parallel;
    pthread_mutex_lock(&jobs->mutex);
    if (c->job->private->turn > jobs->now)
        jobs->now = c->job->private->turn;
    for (int i = 0; i < limit && i < MAX_SLOTS && c->slot < 0; i++)
        if (!taken[i]) {
            taken[i] = true;
            c->slot = i;
        }
    pthread_mutex_unlock(&jobs->mutex);
}

static void leave_slot(struct mxc_choice *c) {
    struct mxc_jobs *jobs = c->job->x->server->jobs;
    pthread_mutex_lock(&jobs->mutex);
    if (c->slot >= 0)
        jobs->taken[c->job->params.model][c->slot] = false;
    c->slot = -1;
    pthread_mutex_unlock(&jobs->mutex);
}

static json_t *slot_json(const struct mxc_host_info *info, int id, const struct mxc_choice *c) {
    if (!c)
        return json_pack("{s:i,s:i,s:b}", "id", id, "n_ctx", info->context, "is_processing", 0);
    const struct mxc_job *job = c->job;
    return json_pack("{s:i,s:i,s:b,s:I,s:s,s:i,s:i,s:i,s:b}", "id", id, "n_ctx", info->context,
                     "is_processing", 1, "id_task", (json_int_t)c->id, "request_id", job->x->id,
                     "n_prompt_tokens_processed", atomic_load(&c->n_prompt_done), "n_decoded",
                     atomic_load(&c->n_sampled), "choice", c->index, "stream", job->params.stream);
}

json_t *mxc_jobs_slots(struct mxc_jobs *jobs, const struct mxc_host_info *info, int model) {
    const struct mxc_choice *in_slot[MAX_SLOTS] = {NULL};
    json_t *list = json_array();
    int n = info->parallel < MAX_SLOTS ? info->parallel : MAX_SLOTS;
    bool ok = list != NULL;
    pthread_mutex_lock(&jobs->mutex);
    for (const struct mxc_job *job = jobs->head; job; job = job->private->next)
        for (int i = 0; i < job->n_choices && job->params.model == model; i++)
            if (job->choices[i].slot >= 0 && job->choices[i].slot < n)
                in_slot[job->choices[i].slot] = &job->choices[i];
    for (int i = 0; i < n && ok; i++)
        ok = !json_array_append_new(list, slot_json(info, i, in_slot[i]));
    pthread_mutex_unlock(&jobs->mutex);
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

/* ---- life */

static void free_pieces(struct mxc_piece *p) {
    while (p) {
        struct mxc_piece *next = p->next;
        mxc_mem_free(p);
        p = next;
    }
}

static void free_choice(struct mxc_choice *c) {
    mxc_constraint_detach(c);
    mxc_mem_free(c->last);
    mxc_buf_fini(&c->answer);
    mxc_buf_fini(&c->thought);
    free_pieces(c->pieces);
    for (size_t i = 0; i < c->n_calls; i++) {
        mxc_mem_free(c->calls[i].id);
        mxc_mem_free(c->calls[i].name);
        mxc_buf_fini(&c->calls[i].arguments);
    }
    mxc_mem_free(c->calls);
}

static void free_echoes(char **echoes, int n) {
    for (int i = 0; echoes && i < n; i++)
        mxc_mem_free(echoes[i]);
    mxc_mem_free(echoes);
}

static void drop_job(struct mxc_job *job) {
    struct mxc_job_private *p = job->private;
    if (atomic_fetch_sub(&p->n_holders, 1) != 1)
        return;
    struct mxc_exchange *x = job->x;
    unlist_job(x->server->jobs, job);
    free_pieces(p->head);
    for (int i = 0; i < job->n_choices; i++)
        free_choice(&job->choices[i]);
    mxc_mem_free(job->choices);
    free_echoes(job->echoes, job->n_prompts);
    mxc_constraint_free(job->constraint);
    if (job->format->free_state)
        job->format->free_state(job->state);
    mxc_params_fini(&job->params);
    pthread_mutex_destroy(&p->mutex);
    mxc_limits_leave(&x->server->limits, x->key);
    mxc_mem_free(p);
    mxc_mem_free(job);
    mxc_exchange_drop(x);
}

/* ---- loop thread */

static bool push(struct mxc_job *job, struct mxc_piece *piece, bool always) {
    struct mxc_job_private *p = job->private;
    pthread_mutex_lock(&p->mutex);
    bool fits = !p->cut && (always || p->queued_bytes + piece->bytes <= p->max_bytes);
    if (fits || always) {
        piece->next = NULL;
        *p->tail = piece;
        p->tail = &piece->next;
        p->queued_bytes += piece->bytes;
    } else {
        p->cut = true;
    }
    if (piece->kind == MXC_PIECE_DONE)
        p->n_over++;
    bool wake = job->params.stream || p->cut || p->n_over == job->n_choices;
    pthread_mutex_unlock(&p->mutex);
    if (wake)
        mxc_exchange_wake(job->x);
    return fits;
}

static bool fail_memory(struct mxc_job *job) {
    pthread_mutex_lock(&job->private->mutex);
    job->private->cut = true;
    pthread_mutex_unlock(&job->private->mutex);
    mxc_exchange_wake(job->x);
    return false;
}

static bool on_text(struct mxc_choice *c, const struct mxc_gen_event *in) {
    const struct mxc_event *token = in->token;
    size_t n_top = token ? (size_t)token->n_top : 0, top = n_top * sizeof(struct mxc_top_logprob);
    size_t bytes = sizeof(struct mxc_piece) + top + in->answer.length + in->thought.length;
    if (token)
        atomic_fetch_add(&c->n_sampled, 1);
    struct mxc_piece *p = mxc_mem_alloc(bytes);
    if (!p)
        return fail_memory(c->job);
    struct mxc_top_logprob *tops = (struct mxc_top_logprob *)(p + 1);
    char *text = (char *)tops + top;
    *p = (struct mxc_piece){.choice = c->index,
                            .kind = MXC_PIECE_TEXT,
                            .id = token ? token->id : -1,
                            .logprob = token ? token->logprob : 0,
                            .top = tops,
                            .n_top = (int32_t)n_top,
                            .answer = {text, in->answer.length},
                            .thought = {text + in->answer.length, in->thought.length},
                            .bytes = bytes};
    if (n_top)
        memcpy(tops, token->top, top);
    if (in->answer.length)
        memcpy(text, in->answer.ptr, in->answer.length);
    if (in->thought.length)
        memcpy(text + in->answer.length, in->thought.ptr, in->thought.length);
    if (push(c->job, p, false))
        return true;
    mxc_mem_free(p);
    return false;
}

static bool on_progress(struct mxc_choice *c, const struct mxc_event *in) {
    atomic_store(&c->n_prompt_done, in->n_done);
    if (!c->job->params.progress || !c->job->params.stream || !c->job->format->progress)
        return true;
    struct mxc_piece *p = mxc_mem_alloc(sizeof *p);
    if (!p)
        return fail_memory(c->job);
    *p = (struct mxc_piece){.choice = c->index,
                            .kind = MXC_PIECE_PROGRESS,
                            .n_done = in->n_done,
                            .n_total = in->n_total,
                            .n_cached = in->n_cached,
                            .bytes = sizeof *p};
    if (push(c->job, p, false))
        return true;
    mxc_mem_free(p);
    return false;
}

static void on_done(struct mxc_choice *c, const struct mxc_gen_event *in) {
    struct mxc_job *job = c->job;
    struct mxc_limits *limits = &job->x->server->limits;
    struct mxc_piece *last = c->last;
    c->last = NULL;
    c->reason = in->reason;
    c->stop_id = in->stop_id;
    c->stop = in->stop;
    c->stats = *in->stats;
    const struct mxc_err *why = in->err ? in->err : mxc_constraint_error(c);
    if (why) {
        c->reason = MXC_DONE_ERROR;
        c->err = *why;
    }
    mxc_slots_note(job->x->server->slots, job->params.model, c->slot, &c->stats);
    leave_slot(c);
    atomic_fetch_add(&limits->prompt_tokens, (uint64_t)c->stats.n_prompt);
    atomic_fetch_add(&limits->cached_tokens, (uint64_t)c->stats.n_cached);
    atomic_fetch_add(&limits->generated_tokens, (uint64_t)c->stats.n_generated);
    atomic_fetch_add(&limits->prompt_us, c->stats.prefill_ns / 1000);
    atomic_fetch_add(&limits->generate_us, c->stats.decode_ns / 1000);
    atomic_store(&c->over, true);
    *last = (struct mxc_piece){
        .choice = c->index, .kind = MXC_PIECE_DONE, .id = -1, .bytes = sizeof *last};
    (void)push(job, last, true);
    drop_job(job);
}

static bool on_event(void *user, const struct mxc_gen_event *event) {
    struct mxc_choice *c = user;
    if (event->kind == MXC_GEN_DONE) {
        on_done(c, event);
        return false;
    }
    if (c->slot < 0)
        take_slot(c);
    return event->kind == MXC_GEN_TEXT ? on_text(c, event) : on_progress(c, event->token);
}

/* ---- HTTP thread: pieces to deltas */

static bool keeps_whole(const struct mxc_job *job) {
    return !job->params.stream || job->format->keep_whole;
}

static void keep_call(struct mxc_choice *c, const struct mxc_delta *d) {
    struct mxc_job_private *p = c->job->private;
    if (d->kind == MXC_DELTA_ARGUMENTS) {
        if (d->call < c->n_calls)
            (void)mxc_buf_append(&c->calls[d->call].arguments, d->text.ptr, d->text.length);
        return;
    }
    struct mxc_call *grown = mxc_mem_realloc(c->calls, c->n_calls + 1, sizeof *grown);
    if (!grown) {
        p->failed = true;
        return;
    }
    c->calls = grown;
    struct mxc_call *call = &c->calls[c->n_calls];
    *call =
        (struct mxc_call){.id = mxc_mem_strdup(d->call_id), .name = mxc_mem_strdup(d->call_name)};
    mxc_buf_init(&call->arguments, MAX_WHOLE);
    c->n_calls++;
    if (!call->id || !call->name)
        p->failed = true;
}

/* Where every delta of a job ends up. */
static void emit(void *user, const struct mxc_delta *delta) {
    struct mxc_job *job = user;
    struct mxc_job_private *p = job->private;
    struct mxc_choice *c = p->current;
    struct mxc_delta d = *delta;
    d.piece = p->current_piece;
    p->current_piece = NULL;
    if (d.kind == MXC_DELTA_CALL || d.kind == MXC_DELTA_ARGUMENTS)
        keep_call(c, &d); /* also for streams: names and ids are needed at the end */
    if (p->failed)
        return;
    if (keeps_whole(job) && d.kind == MXC_DELTA_TEXT)
        (void)mxc_buf_append(&c->answer, d.text.ptr, d.text.length);
    if (keeps_whole(job) && d.kind == MXC_DELTA_THOUGHT)
        (void)mxc_buf_append(&c->thought, d.text.ptr, d.text.length);
    p->failed = c->answer.failed || c->thought.failed;
    if (p->out)
        job->format->delta(job, c, &d, p->out);
}

static void apply_text(struct mxc_job *job, struct mxc_choice *c, struct mxc_piece *piece) {
    struct mxc_job_private *p = job->private;
    p->current = c;
    p->current_piece = piece;
    if (piece->thought.length) {
        c->n_thoughts += piece->id >= 0;
        const struct mxc_delta d = {.kind = MXC_DELTA_THOUGHT, .text = piece->thought};
        emit(job, &d);
    }
    if (c->parser && piece->answer.length) {
        if (mxc_constraint_push(c, piece->answer, false, emit, job))
            p->failed = true;
        if (!c->enough && mxc_constraint_is_done(c)) {
            c->enough = true;
            mxc_host_cancel(job->x->server->host, job->params.model, c->id);
        }
    } else if (piece->answer.length) {
        const struct mxc_delta d = {.kind = MXC_DELTA_TEXT, .text = piece->answer};
        emit(job, &d);
    }
    if (p->current_piece && piece->id >= 0 && (job->params.logprobs || job->params.return_tokens)) {
        const struct mxc_delta d = {.kind = MXC_DELTA_TEXT, .text = {"", 0}};
        emit(job, &d); /* a token without text of its own */
    }
    p->current_piece = NULL;
}

static void apply_done(struct mxc_job *job, struct mxc_choice *c) {
    struct mxc_job_private *p = job->private;
    p->current = c;
    p->current_piece = NULL;
    if (c->parser && mxc_constraint_push(c, (struct mxc_str){"", 0}, true, emit, job))
        p->failed = true;
    c->finished = true;
    p->n_finished++;
    if (c->reason == MXC_DONE_CANCELLED && c->enough)
        c->reason = MXC_DONE_STOP;
    if (c->reason == MXC_DONE_ERROR || c->reason == MXC_DONE_CANCELLED) {
        struct mxc_fault fault;
        bool cancelled = c->reason == MXC_DONE_CANCELLED;
        (void)mxc_fault_set(&fault, cancelled ? MXC_E_BUSY : c->err.code, NULL, "%s",
                            cancelled ? "the generation was cancelled" : c->err.message);
        if (!p->fault.err.code)
            p->fault = fault;
        if (p->out)
            job->format->fault(job, &fault, p->out);
    } else if (p->out) {
        job->format->done(job, c, p->out);
    }
}

/* Takes the next piece out of the queue. NULL: there is none. */
static struct mxc_piece *pop(struct mxc_job *job) {
    struct mxc_job_private *p = job->private;
    pthread_mutex_lock(&p->mutex);
    struct mxc_piece *piece = p->head;
    if (piece) {
        p->head = piece->next;
        if (!p->head)
            p->tail = &p->head;
        p->queued_bytes -= piece->bytes;
    }
    pthread_mutex_unlock(&p->mutex);
    return piece;
}

/* Applies one piece; keeps it with the choice when its ids are wanted at the end. */
static void apply(struct mxc_job *job, struct mxc_piece *piece) {
    struct mxc_choice *c = &job->choices[piece->choice];
    bool keep = false;
    if (piece->kind == MXC_PIECE_DONE) {
        apply_done(job, c);
    } else if (piece->kind == MXC_PIECE_PROGRESS) {
        job->format->progress(job, c, piece, job->private->out);
    } else {
        apply_text(job, c, piece);
        keep = keeps_whole(job) && piece->id >= 0 &&
               (job->params.logprobs || job->params.return_tokens);
    }
    if (keep) {
        piece->next = NULL;
        *c->pieces_end = piece;
        c->pieces_end = &piece->next;
    } else {
        mxc_mem_free(piece);
    }
}

/* For the access log. */
static void tell_counts(struct mxc_job *job) {
    struct mxc_usage usage;
    mxc_job_usage(job, &usage);
    job->x->n_prompt = usage.prompt;
    job->x->n_cached = usage.cached;
    job->x->n_generated = usage.generated;
}

static bool is_cut(struct mxc_job *job) {
    pthread_mutex_lock(&job->private->mutex);
    bool cut = job->private->cut;
    pthread_mutex_unlock(&job->private->mutex);
    return cut;
}

static enum mxc_source_state read_job(void *user, struct mxc_buf *out, size_t max_bytes) {
    struct mxc_job *job = user;
    struct mxc_job_private *p = job->private;
    struct mxc_piece *piece = NULL;
    p->out = out;
    if (!p->begun && job->format->begin)
        job->format->begin(job, out);
    p->begun = true;
    if (is_cut(job))
        return MXC_SOURCE_CUT;
    while (out->length < max_bytes && (piece = pop(job)))
        apply(job, piece);
    p->out = NULL;
    if (p->failed)
        return MXC_SOURCE_CUT;
    if (p->n_finished == job->n_choices) {
        job->format->end(job, out);
        tell_counts(job);
        return MXC_SOURCE_END;
    }
    pthread_mutex_lock(&p->mutex);
    bool over = p->n_over == job->n_choices;
    pthread_mutex_unlock(&p->mutex);
    if (!out->length)
        return MXC_SOURCE_WAIT;
    return over ? MXC_SOURCE_LAST : MXC_SOURCE_MORE;
}

static bool settle_job(void *user, struct mxc_exchange *x) {
    struct mxc_job *job = user;
    struct mxc_job_private *p = job->private;
    struct mxc_fault fault;
    struct mxc_piece *piece;
    pthread_mutex_lock(&p->mutex);
    bool over = p->n_over == job->n_choices, cut = p->cut;
    pthread_mutex_unlock(&p->mutex);
    if (!over)
        return false;
    while ((piece = pop(job)))
        apply(job, piece);
    tell_counts(job);
    if (cut || p->failed) {
        (void)mxc_fault_set(&fault, MXC_E_NOMEM, NULL, "the answer does not fit the memory");
        mxc_reply_fault(x, &fault);
    } else if (p->fault.err.code) {
        mxc_reply_fault(x, &p->fault);
    } else {
        struct mxc_buf out;
        mxc_buf_init(&out, MAX_WHOLE);
        job->format->whole(job, &out);
        size_t length = out.length;
        char *text = out.failed ? NULL : mxc_buf_take(&out);
        mxc_buf_fini(&out);
        mxc_reply_text(x, 200, "application/json; charset=utf-8", text, length);
    }
    return true;
}

static void cancel_all(struct mxc_job *job) {
    for (int i = 0; i < job->n_choices; i++) {
        struct mxc_choice *c = &job->choices[i];
        if (c->submitted && !atomic_load(&c->over))
            mxc_host_cancel(job->x->server->host, job->params.model, c->id);
    }
}

static void job_gone(void *user) {
    cancel_all(user);
}

static void release_job(void *user) {
    drop_job(user);
}

static const struct mxc_source_ops ops = {
    .settle = settle_job, .read = read_job, .gone = job_gone, .release = release_job};

/* ---- start */

static void make_id(struct mxc_job *job) {
    uint64_t random[2] = {0, 0};
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random[0] = mxc_clock_ns(), random[1] = (uint64_t)(uintptr_t)job;
    (void)snprintf(job->id, sizeof job->id, "%s%016llx%08llx", job->format->id_prefix,
                   (unsigned long long)random[0], (unsigned long long)(random[1] >> 32));
}

/* What start moves in, into a job or back to nothing. */
static struct mxc_job *make_job(struct mxc_exchange *x, const struct mxc_job_start *s) {
    struct mxc_job *job = mxc_mem_zalloc(1, sizeof *job);
    struct mxc_job_private *p = mxc_mem_zalloc(1, sizeof *p);
    int n = s->n_prompts * s->params->n;
    struct mxc_choice *choices = mxc_mem_zalloc((size_t)n, sizeof *choices);
    if (!job || !p || !choices) {
        mxc_mem_free(job);
        mxc_mem_free(p);
        mxc_mem_free(choices);
        return NULL;
    }
    *job = (struct mxc_job){.x = x,
                            .format = s->format,
                            .params = *s->params,
                            .constraint = s->constraint,
                            .state = s->state,
                            .created = (int64_t)time(NULL),
                            .choices = choices,
                            .n_choices = n,
                            .n_prompts = s->n_prompts,
                            .echoes = s->echoes,
                            .private = p};
    *s->params = (struct mxc_params){0};
    make_id(job);
    atomic_init(&p->n_holders, 1);
    pthread_mutex_init(&p->mutex, NULL); /* cannot fail with default attributes */
    p->tail = &p->head;
    p->max_bytes = job->params.stream ? x->server->options.max_stream_bytes : MAX_WHOLE;
    for (int i = 0; i < n; i++) {
        struct mxc_choice *c = &choices[i];
        c->job = job;
        c->index = i;
        c->prompt = i / job->params.n;
        c->slot = -1;
        c->pieces_end = &c->pieces;
        mxc_buf_init(&c->answer, MAX_WHOLE);
        mxc_buf_init(&c->thought, MAX_WHOLE);
    }
    mxc_exchange_hold(x);
    return job;
}

/* Fair share among keys: a job's turn is where the queue is now, or behind what its key has queued
 * already, so that keys take turns whatever each of them asks for, and a key's own requests keep
 * their order. The field "priority" moves a request back. */
static void take_turn(struct mxc_job *job) {
    struct mxc_jobs *jobs = job->x->server->jobs;
    int key = job->x->key > 0 && job->x->key < MXC_LIMITS_KEYS ? job->x->key : 0;
    pthread_mutex_lock(&jobs->mutex);
    uint64_t turn = jobs->next_of[key] > jobs->now ? jobs->next_of[key] : jobs->now;
    jobs->next_of[key] = turn + (uint64_t)job->n_choices;
    job->private->turn = turn;
    pthread_mutex_unlock(&jobs->mutex);
    int64_t back = -(int64_t)job->params.gen.request.priority;
    uint64_t place = turn + (uint64_t)(back > 0 ? back : 0);
    job->params.gen.request.priority = place < INT32_MAX ? -(int32_t)place : -INT32_MAX;
}

static enum mxc_code submit(struct mxc_job *job, struct mxc_choice *c,
                            const struct mxc_job_prompt *prompt, uint64_t group,
                            struct mxc_fault *fault) {
    struct mxc_gen_params gen = job->params.gen;
    struct mxc_prompt engine_prompt = {
        .tokens = prompt->ids, .n_tokens = prompt->n_ids, .adapter = -1};
    if (prompt->pictures)
        mxc_pictures_prompt(prompt->pictures, &engine_prompt);
    gen.pictures = prompt->pictures;
    struct mxc_jobs *jobs = job->x->server->jobs;
    struct mxc_err err;
    uint64_t id;
    enum mxc_code code = mxc_constraint_attach(job->constraint, c, prompt->inside, fault);
    if (code)
        return code;
    if (!(c->last = mxc_mem_zalloc(1, sizeof *c->last)))
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    gen.event = on_event;
    gen.user = c;
    gen.inside = prompt->inside;
    gen.request.sampling.seed += (uint64_t)(c->index % job->params.n);
    gen.request.sampling.filter = c->filter;
    gen.request.group = job->params.n > 1 ? group : 0;
    gen.request.progress = true;
    atomic_fetch_add(&job->private->n_holders, 1); /* for the engine, until DONE */
    code =
        mxc_host_submit(job->x->server->host, job->params.model, &engine_prompt, &gen, &id, &err);
    if (!code) {
        pthread_mutex_lock(&jobs->mutex); /* /slots reads it */
        c->id = id;
        c->submitted = true;
        pthread_mutex_unlock(&jobs->mutex);
        return MXC_OK;
    }
    atomic_fetch_sub(&job->private->n_holders, 1);
    (void)mxc_fault_set(fault, code, NULL, "%s", err.message);
    if (code == MXC_E_BUSY)
        fault->retry_after = 1;
    return code;
}

enum mxc_code mxc_job_start(struct mxc_exchange *x, const struct mxc_job_start *s,
                            struct mxc_fault *fault) {
    struct mxc_server *server = x->server;
    enum mxc_code code = MXC_OK;
    struct mxc_job *job = NULL;
    int n = s->n_prompts * s->params->n, most = s->params->info.max_queue;
    if (n > most) {
        code = mxc_fault_set(fault, MXC_E_ARG, NULL,
                             "%d answers are asked for; the queue holds %d sequences", n, most);
    } else if (!mxc_limits_enter(&server->limits, x->key)) {
        code = mxc_fault_status(fault, MXC_E_BUSY, 429,
                                "the key has %d generations at a time, and they are all in use",
                                server->limits.max_per_key);
        fault->retry_after = 1;
    } else if (!(job = make_job(x, s))) {
        mxc_limits_leave(&server->limits, x->key);
        code = mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    }
    if (code) {
        mxc_params_fini(s->params);
        mxc_constraint_free(s->constraint);
        free_echoes(s->echoes, s->n_prompts);
        if (s->format->free_state)
            s->format->free_state(s->state);
        return code;
    }
    list_job(server->jobs, job);
    take_turn(job);
    uint64_t group = atomic_fetch_add(&server->jobs->n_groups, (uint64_t)s->n_prompts) + 1;
    for (int i = 0; i < job->n_choices && !code; i++) {
        struct mxc_choice *c = &job->choices[i];
        if (mxc_exchange_is_gone(x))
            code = mxc_fault_set(fault, MXC_E_CANCELLED, NULL, "the client went away");
        else
            code = submit(job, c, &s->prompts[c->prompt], group + (uint64_t)c->prompt, fault);
    }
    if (code) {
        cancel_all(job);
        drop_job(job);
        return code;
    }
    mxc_exchange_keep_json(x, "stop"); /* whose strings the params borrow */
    mxc_reply_source(x, job->params.stream ? "text/event-stream; charset=utf-8" : NULL, &ops, job);
    return MXC_OK;
}

/* ---- for formats */

void mxc_job_usage(const struct mxc_job *job, struct mxc_usage *usage) {
    *usage = (struct mxc_usage){0};
    int last_prompt = -1;
    for (int i = 0; i < job->n_choices; i++) {
        const struct mxc_choice *c = &job->choices[i];
        if (!c->finished)
            continue;
        usage->generated += c->stats.n_generated;
        usage->reasoning += c->n_thoughts;
        if (c->prompt == last_prompt)
            continue; /* choices of one prompt read it once */
        last_prompt = c->prompt;
        usage->prompt += c->stats.n_prompt;
        usage->cached += c->stats.n_cached;
    }
}

const char *mxc_choice_finish(const struct mxc_choice *c) {
    if (c->reason == MXC_DONE_LENGTH)
        return "length";
    return c->n_calls ? "tool_calls" : "stop";
}

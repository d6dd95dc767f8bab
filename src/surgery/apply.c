/* Opening a document, doing its operations on weights in order, and closing.
 * In: a path; a config and its weights. Out: changed tensors, how many each operation changed.
 * Invariants: a source is opened once, when the first operation needs it, and stays open as long as
 * the surgery, since a replaced tensor is borrowed from it. */
#include "surgery/private.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DOCUMENT = 16 << 20, MAX_KEY = 4096 };

enum mxc_code mxc_surgery_open(const char *path, struct mxc_surgery **surgery,
                               struct mxc_err *err) {
    char *text = NULL;
    size_t length = 0;
    enum mxc_code code = mxc_file_read(path, MAX_DOCUMENT, &text, &length, err);
    if (code) {
        (void)mxc_err_context(err, "surgery");
        return code;
    }
    struct mxc_surgery *s = mxc_mem_zalloc(1, sizeof *s);
    if (s)
        mxc_arena_init(&s->arena, 0);
    if (!s || !(s->path = mxc_arena_strdup(&s->arena, path)))
        code = mxc_err_nomem(err);
    else if ((code = mxc_surgery_parse(s, text, length, err)))
        (void)mxc_err_context(err, "%s", path);
    mxc_mem_free(text);
    if (code) {
        mxc_surgery_close(s);
        return code;
    }
    *surgery = s;
    return MXC_OK;
}

void mxc_surgery_close(struct mxc_surgery *s) {
    if (!s)
        return;
    for (size_t i = 0; s->memory && i < s->n_tensors; i++) {
        mxc_mem_free(s->memory[i].data);
        mxc_mem_free(s->memory[i].scales);
        mxc_mem_free(s->memory[i].biases);
    }
    for (size_t i = 0; i < s->n_sources; i++)
        mxc_weights_close(s->sources[i].weights);
    mxc_mem_free(s->memory);
    mxc_mem_free(s->sources);
    mxc_arena_fini(&s->arena);
    mxc_mem_free(s);
}

/* ---- sources */

static enum mxc_code find_in(const struct mxc_patient *p, size_t source, const char *name,
                             const struct mxc_tensor *like, const struct mxc_tensor **out) {
    struct mxc_cut_source *s = &p->surgery->sources[source];
    enum mxc_code code =
        s->weights ? MXC_OK : mxc_weights_open(s->path, p->config, &s->weights, p->err);
    if (code)
        return code;
    const struct mxc_tensor *t = mxc_weights_find(s->weights, name);
    if (!t)
        return mxc_err_set(p->err, MXC_E_NOT_FOUND, "%s has no tensor %s", s->path, name);
    if (t->n_dims != like->n_dims ||
        memcmp(t->shape, like->shape, (size_t)t->n_dims * sizeof *t->shape))
        return mxc_err_set(p->err, MXC_E_FORMAT,
                           "%s: tensor %s: %lld rows of %lld, but %s of the model has %lld of %lld",
                           s->path, name, (long long)mxc_tensor_rows(t),
                           (long long)mxc_tensor_columns(t), like->name,
                           (long long)mxc_tensor_rows(like), (long long)mxc_tensor_columns(like));
    *out = t;
    return MXC_OK;
}

/* source_key with its stars replaced by what those of the pattern took. */
static enum mxc_code key_of(const struct mxc_patient *p, const struct mxc_cut *cut,
                            const struct mxc_glob_match *match, struct mxc_buf *key) {
    size_t star = 0;
    for (const char *at = cut->key; *at; at++) {
        if (*at != '*') {
            (void)mxc_buf_putc(key, *at);
            continue;
        }
        while (at[1] == '*')
            at++;
        const struct mxc_str *s = &match->stars[star++];
        if (s->length)
            (void)mxc_buf_append(key, s->ptr, s->length);
    }
    return mxc_buf_status(key, p->err);
}

static enum mxc_code replace(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                             const struct mxc_glob_match *match) {
    const struct mxc_tensor *t = mxc_weights_at(p->weights, index), *source = NULL;
    struct mxc_buf key;
    mxc_buf_init(&key, MAX_KEY);
    enum mxc_code code = key_of(p, cut, match, &key);
    if (!code)
        code = find_in(p, cut->source[0], mxc_buf_text(&key), t, &source);
    if (!code)
        mxc_cut_set(p, index, source);
    mxc_buf_fini(&key);
    return code;
}

/* ---- operations */

static enum mxc_code operate(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                             const struct mxc_glob_match *match, enum mxc_cut_outcome *outcome) {
    const struct mxc_tensor *t = mxc_weights_at(p->weights, index), *a = NULL, *b = NULL;
    enum mxc_code code = MXC_OK;
    *outcome = MXC_CUT_CHANGED;
    switch (cut->kind) {
    case MXC_CUT_SCALE:
        return mxc_cut_scale(p, cut, index);
    case MXC_CUT_ADD:
        code = find_in(p, cut->source[0], t->name, t, &a);
        return code ? code : mxc_cut_add(p, cut, index, a);
    case MXC_CUT_PRUNE:
        return mxc_cut_prune(p, cut, index, outcome);
    case MXC_CUT_REPLACE:
        return replace(p, cut, index, match);
    case MXC_CUT_MIX:
        if ((code = find_in(p, cut->source[0], t->name, t, &a)) ||
            (code = find_in(p, cut->source[1], t->name, t, &b)))
            return code;
        return mxc_cut_mix(p, cut, index, a, b);
    }
    return code;
}

static enum mxc_code do_cut(const struct mxc_patient *p, struct mxc_cut *cut) {
    size_t n = mxc_weights_count(p->weights), matched = 0;
    for (size_t i = 0; i < n; i++) {
        struct mxc_glob_match match;
        enum mxc_cut_outcome outcome;
        if (!mxc_glob_matches(&cut->glob, mxc_weights_at(p->weights, i)->name, &match))
            continue;
        enum mxc_code code = operate(p, cut, i, &match, &outcome);
        if (code)
            return code;
        matched++;
        if (!cut->n[outcome]++)
            cut->first[outcome] = mxc_weights_at(p->weights, i)->name;
    }
    if (!matched)
        return mxc_err_set(p->err, MXC_E_NOT_FOUND, "no tensor matches the pattern \"%s\"",
                           cut->pattern);
    if (!cut->n[MXC_CUT_CHANGED])
        return mxc_err_set(p->err, MXC_E_NOT_FOUND,
                           "none of the %zu tensors that match the pattern \"%s\" has what is to "
                           "be pruned",
                           matched, cut->pattern);
    return MXC_OK;
}

enum mxc_code mxc_surgery_apply(struct mxc_surgery *s, const struct mxc_config *config,
                                struct mxc_weights *weights, struct mxc_err *err) {
    const struct mxc_patient p = {s, config, weights, err};
    if (!s->n_cuts)
        return MXC_OK;
    s->n_tensors = mxc_weights_count(weights);
    if (!(s->memory = mxc_mem_zalloc(s->n_tensors + 1, sizeof *s->memory)))
        return mxc_err_nomem(err);
    for (size_t i = 0; i < s->n_cuts; i++) {
        struct mxc_cut *cut = &s->cuts[i];
        enum mxc_code code = do_cut(&p, cut);
        if (code) {
            (void)mxc_err_context(err, "%s: surgery operation #%zu (%s)", s->path, i,
                                  mxc_cut_name(cut->kind));
            return code;
        }
    }
    return MXC_OK;
}

/* ---- facts */

static void say_left(const struct mxc_cut *cut, struct mxc_surgery_note *note) {
    static const char *const why[] = {[MXC_CUT_SHARED] = "keys and values that other heads share",
                                      [MXC_CUT_UNKNOWN] = "names that tell no part of a block"};
    for (int i = MXC_CUT_SHARED; i <= MXC_CUT_UNKNOWN; i++) {
        size_t at = strlen(note->left);
        if (cut->n[i])
            (void)snprintf(note->left + at, sizeof note->left - at,
                           "%s%zu left alone, %s (%.80s%s)", at ? "; " : "", cut->n[i], why[i],
                           cut->first[i], cut->n[i] > 1 ? ", ..." : "");
    }
}

bool mxc_surgery_note(const struct mxc_surgery *s, size_t index, struct mxc_surgery_note *note) {
    if (index >= s->n_cuts)
        return false;
    const struct mxc_cut *cut = &s->cuts[index];
    *note = (struct mxc_surgery_note){.op = mxc_cut_name(cut->kind),
                                      .pattern = cut->pattern,
                                      .n_tensors = cut->n[MXC_CUT_CHANGED]};
    say_left(cut, note);
    double x = (double)cut->amount;
    switch (cut->kind) {
    case MXC_CUT_SCALE:
        (void)snprintf(note->detail, sizeof note->detail, "factor %g", x);
        break;
    case MXC_CUT_ADD:
        (void)snprintf(note->detail, sizeof note->detail, "alpha %g", x);
        break;
    case MXC_CUT_PRUNE:
        (void)snprintf(note->detail, sizeof note->detail, "%zu of %s", cut->n_ids,
                       mxc_prune_names[cut->unit]);
        break;
    case MXC_CUT_REPLACE:
        (void)snprintf(note->detail, sizeof note->detail, "%.80s", cut->key);
        break;
    case MXC_CUT_MIX:
        (void)snprintf(note->detail, sizeof note->detail, "%s, ratio %g",
                       cut->slerp ? "slerp" : "lerp", x);
        break;
    }
    return true;
}

uint64_t mxc_surgery_bytes(const struct mxc_surgery *surgery) {
    return surgery ? surgery->bytes : 0;
}

const char *mxc_surgery_file(const struct mxc_surgery *surgery, size_t index) {
    if (!index)
        return surgery->path;
    return index <= surgery->n_sources ? surgery->sources[index - 1].path : NULL;
}

/* The pipeline of one answer: decode -> stop strings -> reasoning, each with its own withheld part.
 * In: ids of one answer in order. Out: what each made certain. Invariant: all deltas joined, the
 * last one of finish included, do not depend on where tokens or stages cut the text. */
#include "gen/deltas.h"

enum { MAX_DELTA_BYTES = 1 << 24 };

static void show(struct mxc_deltas *d, const char *spelling) {
    uint32_t id = mxc_tokenizer_id(d->tokenizer, mxc_str_of(spelling));
    if (id == MXC_TOK_NO_ID || !mxc_tokenizer_is_special(d->tokenizer, id) ||
        d->n_shown == sizeof d->shown / sizeof *d->shown)
        return;
    d->shown[d->n_shown].id = id;
    d->shown[d->n_shown++].spelling = spelling;
}

enum mxc_code mxc_deltas_init(struct mxc_deltas *deltas, const struct mxc_tokenizer *tokenizer,
                              const struct mxc_deltas_options *options, struct mxc_err *err) {
    struct mxc_deltas d = {.tokenizer = tokenizer, .keep_special = options->keep_special};
    enum mxc_code code = mxc_stops_init(&d.stops, options->stops, options->n_stops, err);
    if (code)
        return code;
    if (options->marks && !options->keep_special) {
        show(&d, options->marks->open);
        show(&d, options->marks->close);
        for (size_t i = 0; i < MXC_MAX_MARK_TOKENS && options->marks->shown[i]; i++)
            show(&d, options->marks->shown[i]);
    }
    for (size_t i = 0; i < options->n_shown && i < MXC_MAX_SHOWN && !options->keep_special; i++)
        show(&d, options->shown[i]);
    mxc_decode_stream_init(&d.decode, tokenizer, !options->keep_special);
    d.decode.whole_runs = true; /* joined deltas are the text of all ids, byte for byte */
    mxc_reasoning_init(&d.split, options->marks, options->inside);
    mxc_buf_init(&d.raw, MAX_DELTA_BYTES);
    mxc_buf_init(&d.cut, MAX_DELTA_BYTES);
    mxc_buf_init(&d.answer, MAX_DELTA_BYTES);
    mxc_buf_init(&d.thought, MAX_DELTA_BYTES);
    *deltas = d;
    return MXC_OK;
}

void mxc_deltas_fini(struct mxc_deltas *d) {
    mxc_decode_stream_fini(&d->decode);
    mxc_stops_fini(&d->stops);
    mxc_reasoning_fini(&d->split);
    mxc_buf_fini(&d->raw);
    mxc_buf_fini(&d->cut);
    mxc_buf_fini(&d->answer);
    mxc_buf_fini(&d->thought);
}

static void begin(struct mxc_deltas *d) {
    mxc_buf_clear(&d->raw);
    mxc_buf_clear(&d->cut);
    mxc_buf_clear(&d->answer);
    mxc_buf_clear(&d->thought);
}

/* raw -> cut -> answer and thought. */
static enum mxc_code pass_on(struct mxc_deltas *d, bool last, bool *stopped, struct mxc_err *err) {
    enum mxc_code code = mxc_buf_status(&d->raw, err);
    if (!code)
        code = mxc_stops_push(&d->stops, mxc_buf_text(&d->raw), d->raw.length, &d->cut, err);
    if (!code && last)
        code = mxc_stops_finish(&d->stops, &d->cut, err);
    if (!code)
        code = mxc_reasoning_push(&d->split, mxc_buf_text(&d->cut), d->cut.length, &d->answer,
                                  &d->thought, err);
    if (!code && (last || d->stops.hit >= 0))
        code = mxc_reasoning_finish(&d->split, &d->answer, &d->thought, err);
    if (!code)
        *stopped = d->stops.hit >= 0;
    return code;
}

enum mxc_code mxc_deltas_push(struct mxc_deltas *d, uint32_t id, bool *stopped,
                              struct mxc_err *err) {
    enum mxc_code code;
    size_t i = 0;
    begin(d);
    while (i < d->n_shown && id != d->shown[i].id)
        i++;
    if (i < d->n_shown) {
        /* decoding would leave the special token out; what comes after needs to see it */
        code = mxc_decode_stream_flush(&d->decode, &d->raw, err);
        (void)mxc_buf_puts(&d->raw, d->shown[i].spelling);
    } else {
        code = mxc_decode_stream_push(&d->decode, id, &d->raw, err);
    }
    return code ? code : pass_on(d, false, stopped, err);
}

enum mxc_code mxc_deltas_finish(struct mxc_deltas *d, bool *stopped, struct mxc_err *err) {
    begin(d);
    enum mxc_code code = mxc_decode_stream_flush(&d->decode, &d->raw, err);
    return code ? code : pass_on(d, true, stopped, err);
}

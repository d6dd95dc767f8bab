/* Each place of the withheld text is tried against every string: the first of the list that
 * matches, or could match when more text comes, decides about the place. Limits on the strings
 * bound the work and the withheld text. */
#include "gen/stops.h"

#include "base/mem.h"
#include "base/str.h"

#include <string.h>

enum mxc_code mxc_stops_init(struct mxc_stops *stops, const char *const *strings, size_t n,
                             struct mxc_err *err) {
    struct mxc_stops s = {.hit = -1};
    if (n > MXC_MAX_STOPS)
        return mxc_err_set(err, MXC_E_ARG, "%zu stop strings; the limit is %d", n, MXC_MAX_STOPS);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(strings[i]);
        if (!length)
            return mxc_err_set(err, MXC_E_ARG, "stop string %zu is empty", i);
        if (!mxc_utf8_valid(strings[i], length))
            return mxc_err_set(err, MXC_E_ARG, "stop string %zu is not UTF-8", i);
        if (length > MXC_MAX_STOP_BYTES - total)
            return mxc_err_set(err, MXC_E_ARG, "stop strings of more than %d bytes",
                               MXC_MAX_STOP_BYTES);
        total += length;
    }
    s.text = mxc_mem_alloc(total);
    if (!s.text)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(strings[i]);
        memcpy(s.text + s.begin[i], strings[i], length);
        s.begin[i + 1] = s.begin[i] + length;
        s.starts[(unsigned char)strings[i][0]] = true;
    }
    s.n = (int)n;
    mxc_buf_init(&s.held, 1 << 24);
    *stops = s;
    return MXC_OK;
}

void mxc_stops_fini(struct mxc_stops *stops) {
    mxc_buf_fini(&stops->held);
    mxc_mem_free(stops->text);
    *stops = (struct mxc_stops){.hit = -1};
}

enum verdict { NOTHING, MAYBE, HIT };

/* What the strings say about the text that begins here. more: the text may go on. */
static enum verdict look(const struct mxc_stops *s, const char *text, size_t length, bool more,
                         int *hit) {
    if (!s->starts[(unsigned char)text[0]])
        return NOTHING;
    for (int i = 0; i < s->n; i++) {
        size_t n = s->begin[i + 1] - s->begin[i], have = n < length ? n : length;
        if (memcmp(s->text + s->begin[i], text, have) != 0)
            continue;
        if (have == n) {
            *hit = i;
            return HIT;
        }
        if (more)
            return MAYBE;
    }
    return NOTHING;
}

static enum mxc_code scan(struct mxc_stops *s, bool more, struct mxc_buf *out,
                          struct mxc_err *err) {
    size_t at = 0, length = s->held.length;
    const char *text = mxc_buf_text(&s->held);
    enum verdict verdict = NOTHING;
    while (at < length && (verdict = look(s, text + at, length - at, more, &s->hit)) == NOTHING)
        at++;
    (void)mxc_buf_append(out, text, at);
    size_t rest = verdict == MAYBE ? length - at : 0;
    if (rest)
        memmove(s->held.data, s->held.data + at, rest);
    s->held.length = rest;
    if (s->held.data)
        s->held.data[rest] = 0;
    return mxc_buf_status(out, err);
}

enum mxc_code mxc_stops_push(struct mxc_stops *s, const char *text, size_t length,
                             struct mxc_buf *out, struct mxc_err *err) {
    if (s->hit >= 0 || !length)
        return MXC_OK;
    if (!s->n) {
        (void)mxc_buf_append(out, text, length);
        return mxc_buf_status(out, err);
    }
    if (!mxc_buf_append(&s->held, text, length))
        return mxc_buf_status(&s->held, err);
    return scan(s, true, out, err);
}

enum mxc_code mxc_stops_finish(struct mxc_stops *s, struct mxc_buf *out, struct mxc_err *err) {
    return s->hit >= 0 || !s->held.length ? MXC_OK : scan(s, false, out, err);
}

/* For fuzz targets of tokeniser files: what is done with a description. */
#ifndef MXC_TESTS_FUZZ_USE_TOKENIZER_H
#define MXC_TESTS_FUZZ_USE_TOKENIZER_H

#include "text/tokenizer.h"

#include "must_say.h"

#include <stdlib.h>
#include <string.h>

static void use_decode(const struct mxc_tokenizer *t, const struct mxc_ids *ids) {
    struct mxc_buf text;
    struct mxc_err err = {0};
    mxc_buf_init(&text, 1 << 20);
    if (mxc_tokenizer_decode(t, ids->items, ids->count, false, &text, &err))
        must_say(&err);
    else if (!mxc_utf8_valid(mxc_buf_text(&text), text.length))
        abort();
    mxc_buf_fini(&text);
}

enum { USE_RUN = 192 };

/* Runs of one letter, of spaces, of what repeats: what takes long with them shows on the clock. */
static size_t use_runs(char *text) {
    static const char *const units[] = {"a",         " ",   "ab", "\xC3\xA9", "\xE7\x8C\xAB",
                                        "e\xCC\x81", "A1 ", "\n"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t unit = strlen(units[i]);
        for (size_t end = n + USE_RUN; n + unit <= end; n += unit)
            memcpy(text + n, units[i], unit);
    }
    return n;
}

static void use_tokenizer(enum mxc_code code, struct mxc_tokdesc *desc, struct mxc_err *err) {
    static const char text[] = "The lamp <s> e\xCC\x81 \xEF\xAC\x81 12,\n  \xE7\x8C\xAB\xFF aaab";
    struct mxc_tokenizer *t = NULL;
    char runs[8 * USE_RUN];
    struct mxc_text_span spans[] = {
        {text, 14, true}, {text + 14, sizeof text - 15, false}, {runs, use_runs(runs), false}};
    struct mxc_ids ids = {0};
    if (!code)
        code = mxc_tokenizer_new(desc, &t, err);
    if (code) {
        must_say(err);
        return;
    }
    if (mxc_tokenizer_encode(t, spans, 3, (struct mxc_encode_options){true, true}, &ids, err))
        must_say(err);
    for (size_t i = 0; i < ids.count; i++)
        if (ids.items[i] >= mxc_tokenizer_n_ids(t))
            abort();
    use_decode(t, &ids);
    mxc_ids_fini(&ids);
    for (uint32_t id = 0; id < mxc_tokenizer_n_ids(t) && id < 300; id++)
        if (!mxc_ids_push(&ids, id))
            abort();
    use_decode(t, &ids);
    mxc_ids_fini(&ids);
    mxc_tokenizer_free(t);
}

#endif

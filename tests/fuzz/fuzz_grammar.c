/* Fuzz target: the first byte chooses a front end (GBNF, JSON Schema, regular expression, choice),
 * the rest is its text. What compiles is walked: masks of a small vocabulary, a token by the
 * input's bytes. Invariants: no crash; a refusal has one line of text; a token the mask allows is
 * taken, one it bans is not; a text that was walked to its end is accepted. */
#include "base/json.h"
#include "base/mem.h"
#include "gen/grammar/grammar.h"

#include "must_say.h"

#include <stdlib.h>
#include <string.h>

enum { N_MORE = 8, N = 256 + N_MORE + 1, MAX_STEPS = 48 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct mxc_grammar_vocab *vocab_new(struct mxc_grammar_piece *pieces, char *bytes) {
    static const char *const more[N_MORE] = {"\"",   "\",",      "\": \"",   "{\"",
                                             "true", "\xc3\xa4", "\xf0\x9f", "aaaaaaaa"};
    struct mxc_grammar_vocab *v = NULL;
    int32_t eos = N - 1;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i] = (struct mxc_grammar_piece){{bytes + i, 1}, false};
    }
    for (int i = 0; i < N_MORE; i++)
        pieces[256 + i] = (struct mxc_grammar_piece){mxc_str_of(more[i]), false};
    pieces[N - 1] = (struct mxc_grammar_piece){MXC_STR("</s>"), true};
    if (mxc_grammar_vocab_new_pieces(pieces, N, &eos, 1, &v, NULL))
        return NULL;
    return v;
}

static enum mxc_code parse(const uint8_t *data, size_t size, struct mxc_grammar **g,
                           struct mxc_err *err) {
    struct mxc_str text = {(const char *)data + 1, size - 1};
    json_t *schema;
    enum mxc_code code;
    switch (data[0] % 4) {
    case 0:
        return mxc_grammar_parse_gbnf(text, g, err);
    case 1:
        schema = json_loadb(text.ptr, text.length, JSON_DECODE_ANY, NULL);
        if (!schema)
            return mxc_err_set(err, MXC_E_ARG, "not JSON");
        code = mxc_grammar_parse_schema(schema, (enum mxc_json_space)(data[0] / 4 % 3), g, err);
        json_decref(schema);
        return code;
    case 2:
        return mxc_grammar_parse_regex(text, g, err);
    default:
        return mxc_grammar_choice(&text, 1, g, err);
    }
}

static void walk(struct mxc_grammar_state *s, const struct mxc_grammar *g,
                 const struct mxc_grammar_piece *pieces, const uint8_t *data, size_t size) {
    struct mxc_buf text;
    struct mxc_err err = {0};
    mxc_buf_init(&text, 1 << 16);
    for (size_t step = 0; step < MAX_STEPS; step++) {
        const uint64_t *bits = NULL;
        if (mxc_grammar_mask(s, &bits, &err))
            break; /* too many readings */
        int32_t from = data[step * 7 % size], id = -1;
        for (int32_t i = 0; i < N && id < 0; i++) {
            int32_t at = (from * 3 + i) % N;
            if (bits[at / 64] >> at % 64 & 1)
                id = at;
        }
        if (id < 0)
            abort(); /* EOS at least */
        int32_t banned = data[step % size];
        if (!(bits[banned / 64] >> banned % 64 & 1)) {
            enum mxc_code code = mxc_grammar_advance(s, banned, &err);
            if (code != MXC_E_ARG && code != MXC_E_LIMIT)
                abort();
        }
        if (mxc_grammar_advance(s, id, &err)) {
            if (err.code != MXC_E_LIMIT)
                abort();
            break;
        }
        if (id == N - 1) {
            bool yes = true;
            if (mxc_grammar_accepts(g, (struct mxc_str){mxc_buf_text(&text), text.length}, &yes,
                                    &err) == MXC_OK &&
                !yes)
                abort();
            break;
        }
        mxc_buf_append(&text, pieces[id].bytes.ptr, pieces[id].bytes.length);
    }
    mxc_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct mxc_grammar_piece pieces[N];
    static char bytes[256];
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_state *s = NULL;
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    if (size < 1)
        return 0;
    if (parse(data, size, &g, &err)) {
        must_say(&err);
        return 0;
    }
    struct mxc_grammar_vocab *v = vocab_new(pieces, bytes);
    if (!v || mxc_grammar_masks_new(g, v, 4096, &masks, &err) ||
        mxc_grammar_state_new(masks, NULL, &s, &err))
        abort();
    walk(s, g, pieces, data, size);
    mxc_grammar_state_free(s);
    mxc_grammar_masks_unref(masks);
    mxc_grammar_vocab_free(v);
    return 0;
}

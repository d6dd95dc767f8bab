/* Normalisers with a precompiled character map.
 * `tokenizers` looks a short grapheme cluster up by its shortest key and drops the rest of the
 * cluster; sentencepiece takes the longest key at each place. The models were trained with one or
 * the other, so both are here.
 * In and out: well-formed UTF-8 with tags; what a key became has the tags of the key. */
#include "text/normalize_map.h"

#include <string.h>

enum { SHORT_CLUSTER = 6 };
static const char meta[] = "\xE2\x96\x81";
enum { META_BYTES = 3 };

static const uint8_t *tags_at(const struct mxc_text *text, size_t i) {
    return text->tagged && text->tags ? text->tags + i : NULL;
}

static uint8_t tag_of(const struct mxc_text *text, size_t i, size_t n) {
    uint8_t tag = 0;
    for (size_t k = 0; text->tagged && k < n; k++)
        tag |= text->tags[i + k];
    return tag;
}

static size_t char_length(char c) {
    unsigned char u = (unsigned char)c;
    return u < 0x80 ? 1 : u < 0xE0 ? 2 : u < 0xF0 ? 3 : 4;
}

void mxc_normalize_charsmap(const struct mxc_charsmap *map, const struct mxc_text *in,
                            struct mxc_text *out) {
    struct mxc_str to;
    for (size_t i = 0; i < in->length;) {
        size_t n = mxc_grapheme_length(in->data + i, in->length - i), end = i + n;
        if (n < SHORT_CLUSTER && mxc_charsmap_find(map, in->data + i, n, true, &to)) {
            mxc_text_append(out, to.ptr, to.length, NULL, tag_of(in, i, n));
            i = end;
        }
        while (i < end) {
            size_t k = char_length(in->data[i]);
            if (mxc_charsmap_find(map, in->data + i, k, true, &to))
                mxc_text_append(out, to.ptr, to.length, NULL, tag_of(in, i, k));
            else
                mxc_text_append(out, in->data + i, k, tags_at(in, i), 0);
            i += k;
        }
    }
}

struct part {
    struct mxc_str text; /* what stands there after mapping */
    size_t length;       /* bytes of the input it came from */
    bool mapped;
};

static struct part next_part(const struct mxc_charsmap *map, const struct mxc_trie *kept,
                             const char *text, size_t length) {
    struct part p = {{text, 0}, 0, false};
    uint32_t id;
    if (kept)
        p.length = mxc_trie_longest(kept, text, length, &id);
    if (!p.length && map) {
        p.length = mxc_charsmap_find(map, text, length, false, &p.text);
        p.mapped = p.length != 0;
    }
    if (!p.length)
        p.length = char_length(text[0]);
    if (!p.mapped)
        p.text = (struct mxc_str){text, p.length};
    return p;
}

static void put_space(const struct mxc_tok_step *step, struct mxc_text *out, uint8_t tag) {
    mxc_text_append(out, step->escape ? meta : " ", step->escape ? META_BYTES : 1, NULL, tag);
}

static void put_part(const struct mxc_tok_step *step, const struct mxc_text *in, size_t at,
                     const struct part *p, size_t skip, struct mxc_text *out) {
    uint8_t tag = tag_of(in, at, p->length);
    const uint8_t *tags = p->mapped ? NULL : tags_at(in, at);
    for (size_t i = skip; i < p->text.length;) {
        size_t k = i;
        while (k < p->text.length && p->text.ptr[k] != ' ')
            k++;
        mxc_text_append(out, p->text.ptr + i, k - i, tags ? tags + i : NULL, tag);
        if (k < p->text.length)
            put_space(step, out, tags ? tags[k] : tag);
        i = k + 1;
    }
}

static void drop_spaces_at_end(const struct mxc_tok_step *step, struct mxc_text *out, size_t from) {
    struct mxc_str space = step->escape ? (struct mxc_str){meta, META_BYTES} : MXC_STR(" ");
    while (out->length >= from + space.length &&
           !memcmp(out->data + out->length - space.length, space.ptr, space.length))
        out->length -= space.length;
}

void mxc_normalize_spm(const struct mxc_tok_step *step, const struct mxc_charsmap *map,
                       const struct mxc_trie *kept, const struct mxc_text *in,
                       struct mxc_text *out) {
    size_t at = 0, from = out->length;
    while (step->strip_extra && at < in->length) {
        struct part p = next_part(map, kept, in->data + at, in->length - at);
        if (!mxc_str_is(p.text, " "))
            break;
        at += p.length;
    }
    if (at == in->length)
        return;
    if (step->add_prefix_space && !step->suffix)
        put_space(step, out, 0);
    bool after_space = step->strip_extra;
    while (at < in->length && !out->failed) {
        struct part p = next_part(map, kept, in->data + at, in->length - at);
        size_t skip = 0;
        while (after_space && skip < p.text.length && p.text.ptr[skip] == ' ')
            skip++;
        if (skip < p.text.length) {
            put_part(step, in, at, &p, skip, out);
            after_space = step->strip_extra && mxc_str_ends(p.text, " ");
        }
        at += p.length;
    }
    if (step->strip_extra && !out->failed)
        drop_spaces_at_end(step, out, from);
    if (step->add_prefix_space && step->suffix)
        put_space(step, out, 0);
}

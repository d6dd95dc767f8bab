/* WordPiece: one trie for both kinds of token; what continues a word is looked up from the node at
 * which the prefix of such tokens ends.
 * In: a word. Out: ids, all of the word or the unknown token.
 * Work: characters of the word times the longest token at most (MXC_TOK_MAX_PATH_BYTES), whatever
 * the file says about the longest word. */
#include "text/wordpiece.h"

#include "base/mem.h"
#include "text/trie.h"

#include <string.h>

#define NO_ID MXC_TOK_NO_ID

struct mxc_wordpiece {
    const struct mxc_tokdesc *desc;
    struct mxc_trie trie;
    uint32_t continued; /* node of the prefix */
    bool has_continued; /* false: no token has the prefix */
};

/* Special tokens and turn markers are not for users to spell. */
static bool takes_part(const struct mxc_tokdesc *d, uint32_t id) {
    unsigned type = d->tokens[id].type, added = d->tokens[id].added;
    return type != MXC_TOKEN_NONE && type != MXC_TOKEN_CONTROL && type != MXC_TOKEN_UNKNOWN &&
           !(added && d->added[added - 1].control);
}

enum mxc_code mxc_wordpiece_new(const struct mxc_tokdesc *desc, struct mxc_wordpiece **out,
                                struct mxc_err *err) {
    struct mxc_wordpiece *w = mxc_mem_zalloc(1, sizeof *w);
    uint8_t *wanted = mxc_mem_zalloc(desc->n_ids, 1);
    enum mxc_code code = w && wanted ? MXC_OK : mxc_err_nomem(err);
    if (!code) {
        w->desc = desc;
        for (uint32_t id = 0; id < desc->n_ids; id++)
            wanted[id] = takes_part(desc, id);
        if (desc->model == MXC_TOK_WORDPIECE)
            code = mxc_trie_init(&w->trie, desc, wanted, MXC_TOK_MAX_PATH_BYTES, err);
    }
    mxc_mem_free(wanted);
    if (code) {
        mxc_wordpiece_free(w);
        return code;
    }
    struct mxc_str prefix = desc->word_prefix;
    w->has_continued = desc->model == MXC_TOK_WORDPIECE;
    for (size_t i = 0; i < prefix.length && w->has_continued; i++) {
        w->continued = mxc_trie_step(&w->trie, w->continued, (uint8_t)prefix.ptr[i]);
        w->has_continued = w->continued != 0;
    }
    *out = w;
    return MXC_OK;
}

void mxc_wordpiece_free(struct mxc_wordpiece *w) {
    if (!w)
        return;
    mxc_trie_fini(&w->trie);
    mxc_mem_free(w);
}

static size_t count_chars(const char *text, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Longest token at text, from a node of the trie; 0: none. */
static size_t longest(const struct mxc_trie *trie, uint32_t node, const char *text, size_t length,
                      uint32_t *id) {
    size_t best = 0;
    for (size_t i = 0; i < length; i++) {
        if (!(node = mxc_trie_step(trie, node, (uint8_t)text[i])))
            break;
        if (trie->nodes[node].id != NO_ID) {
            best = i + 1;
            *id = trie->nodes[node].id;
        }
    }
    return best;
}

enum mxc_code mxc_wordpiece_encode(const struct mxc_wordpiece *w, const char *text, size_t length,
                                   struct mxc_ids *ids, struct mxc_err *err) {
    const struct mxc_tokdesc *d = w->desc;
    size_t before = ids->count, done = 0;
    if (d->model == MXC_TOK_WORDLEVEL) {
        uint32_t id = mxc_tokdesc_find(d, (struct mxc_str){text, length});
        if (id != NO_ID && takes_part(d, id))
            return mxc_ids_push(ids, id) ? MXC_OK : mxc_err_nomem(err);
    } else if (count_chars(text, length) <= d->max_word_chars) {
        while (done < length) {
            uint32_t id = NO_ID;
            size_t n = 0;
            if (!done || w->has_continued)
                n = longest(&w->trie, done ? w->continued : 0, text + done, length - done, &id);
            if (!n)
                break;
            if (!mxc_ids_push(ids, id))
                return mxc_err_nomem(err);
            done += n;
        }
        if (done == length)
            return MXC_OK;
    }
    ids->count = before;
    if (d->unk == NO_ID)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "a word is not in the vocabulary, which has no unknown token");
    return mxc_ids_push(ids, d->unk) ? MXC_OK : mxc_err_nomem(err);
}

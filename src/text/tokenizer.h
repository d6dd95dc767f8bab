/* Tokeniser: text to ids and back. Immutable after new; any number of threads may use one.
 *
 * Provenance: text comes in spans, each trusted (template text) or not (what a user wrote). Control
 * tokens are found only where every byte is trusted; neighbouring spans of equal trust are one. The
 * text is cut into pieces as a whole, so the ids are those of the joined text whenever untrusted
 * spans hold no control token's text. */
#ifndef MXC_TEXT_TOKENIZER_H
#define MXC_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/tokdesc.h"
#include "text/ids.h"

struct mxc_tokenizer;

/* Takes the description over (*desc is empty afterwards, also on failure). Models, steps and
 * patterns that are not supported: MXC_E_UNSUPPORTED, named. */
enum mxc_code mxc_tokenizer_new(struct mxc_tokdesc *desc, struct mxc_tokenizer **out,
                                struct mxc_err *err) MXC_MUST;
void mxc_tokenizer_free(struct mxc_tokenizer *tokenizer);

struct mxc_text_span {
    const char *text;
    size_t length;
    bool trusted;
};

enum { MXC_TOKENIZER_MAX_BYTES = 1 << 30 };

struct mxc_encode_options {
    bool add_special;   /* BOS and the like around the text, as the checkpoint says */
    bool parse_special; /* false: special tokens are plain text in trusted spans too */
};

/* Appends ids. Bytes that are not UTF-8 become U+FFFD. MXC_E_LIMIT: more than
 * MXC_TOKENIZER_MAX_BYTES, or a pre-tokeniser pattern that does not end. */
enum mxc_code mxc_tokenizer_encode(const struct mxc_tokenizer *tokenizer,
                                   const struct mxc_text_span *spans, size_t n_spans,
                                   struct mxc_encode_options options, struct mxc_ids *ids,
                                   struct mxc_err *err) MXC_MUST;

/* Text of ids, appended as well-formed UTF-8; ids that do not exist give nothing. */
enum mxc_code mxc_tokenizer_decode(const struct mxc_tokenizer *tokenizer, const uint32_t *ids,
                                   size_t n, bool skip_special, struct mxc_buf *text,
                                   struct mxc_err *err) MXC_MUST;
/* The bytes one token stands for (a part of a character, perhaps), appended; spaces as spaces,
 * nothing stripped. false: the buffer failed. */
bool mxc_tokenizer_piece(const struct mxc_tokenizer *tokenizer, uint32_t id, struct mxc_buf *bytes);
/* Spelling in the vocabulary; empty: no such token. Borrowed. */
struct mxc_str mxc_tokenizer_spelling(const struct mxc_tokenizer *tokenizer, uint32_t id);
/* Id of a spelling; MXC_TOK_NO_ID: none. */
uint32_t mxc_tokenizer_id(const struct mxc_tokenizer *tokenizer, struct mxc_str spelling);
/* Special: left out with skip_special. Control: special or a turn marker, never from users. */
bool mxc_tokenizer_is_special(const struct mxc_tokenizer *tokenizer, uint32_t id);
bool mxc_tokenizer_is_control(const struct mxc_tokenizer *tokenizer, uint32_t id);
/* Highest id + 1. A model's vocabulary may be larger (padding). */
size_t mxc_tokenizer_n_ids(const struct mxc_tokenizer *tokenizer);
/* bos, eos, pad, unk, end_ids and the other facts of the checkpoint. Borrowed. */
const struct mxc_tokdesc *mxc_tokenizer_desc(const struct mxc_tokenizer *tokenizer);

/* Streamed decoding: push ids, get the text that became certain. Pieces joined, with flush at the
 * end, equal the text of all ids with one exception that is meant: for byte-fallback vocabularies
 * of tokenizer.json, mxc_tokenizer_decode follows the reference and spoils a whole run of byte
 * tokens when its end is malformed; a stream has shown the good characters of the run by then, and
 * replaces only the bad bytes. */
struct mxc_decode_stream {
    const struct mxc_tokenizer *tokenizer;
    bool skip_special;
    bool whole_runs; /* hold runs of byte tokens to their end: exactly mxc_tokenizer_decode */
    bool started, failed;
    bool space_held;     /* private */
    uint32_t last;       /* private */
    uint32_t to_strip;   /* leading characters still to drop; set 0 if the ids continue a text */
    struct mxc_buf held; /* bytes of an unfinished character, or of a run */
    struct mxc_buf scratch;
};

void mxc_decode_stream_init(struct mxc_decode_stream *stream, const struct mxc_tokenizer *tokenizer,
                            bool skip_special);
void mxc_decode_stream_fini(struct mxc_decode_stream *stream);
/* Appends what is certain; bytes that can no longer become a character give U+FFFD. */
enum mxc_code mxc_decode_stream_push(struct mxc_decode_stream *stream, uint32_t id,
                                     struct mxc_buf *text, struct mxc_err *err) MXC_MUST;
/* Appends what is held; the stream may go on afterwards. */
enum mxc_code mxc_decode_stream_flush(struct mxc_decode_stream *stream, struct mxc_buf *text,
                                      struct mxc_err *err) MXC_MUST;

#endif

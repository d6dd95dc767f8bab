/* Tokeniser description: what format/ readers emit and text/ consumes. Plain data, one owner: big
 * arrays by the description itself, small strings and lists by its arena. Filling order: init, set
 * fields and add tokens, mxc_tokdesc_index, add merges, added tokens. Not thread-safe while it is
 * filled; may be read from many threads afterwards. */
#ifndef MXC_BASE_TOKDESC_H
#define MXC_BASE_TOKDESC_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum mxc_tok_model {
    MXC_TOK_BPE_BYTES, /* byte-level BPE: base symbols are bytes, spelled as GPT-2's 256 characters
                        */
    MXC_TOK_BPE_CHARS, /* BPE over characters, unknown ones as <0xNN> (byte_fallback) or unk */
    MXC_TOK_SPM,       /* sentencepiece BPE: merges any pair that is a token, best score first */
    MXC_TOK_TIKTOKEN,  /* byte-level, spelled as BPE_BYTES, but merges as SPM does */
    MXC_TOK_UNIGRAM,   /* the most probable path (scores); unknown characters as for BPE_CHARS */
    MXC_TOK_WORDPIECE, /* longest token first, within words; else the whole word is unknown */
    MXC_TOK_WORDLEVEL  /* whole words */
};

/* Types of a token, as GGUF numbers them; 0: the id is not in use. */
enum mxc_tok_type {
    MXC_TOKEN_NONE,
    MXC_TOKEN_NORMAL,
    MXC_TOKEN_UNKNOWN,
    MXC_TOKEN_CONTROL,
    MXC_TOKEN_USER,
    MXC_TOKEN_UNUSED,
    MXC_TOKEN_BYTE
};

struct mxc_tok_token {
    uint32_t offset, length; /* into mxc_tokdesc.bytes: the spelling in the file, UTF-8 */
    float score;
    uint32_t type : 8;   /* enum mxc_tok_type */
    uint32_t added : 24; /* its place in mxc_tokdesc.added, counted from 1; 0: not there */
};

struct mxc_tok_merge { /* the rank is the index */
    uint32_t left, right, result;
};

/* What Split-like steps do with a match. */
enum mxc_tok_behavior {
    MXC_TOK_REMOVED,
    MXC_TOK_ISOLATED,
    MXC_TOK_MERGED_WITH_PREVIOUS,
    MXC_TOK_MERGED_WITH_NEXT,
    MXC_TOK_CONTIGUOUS
};

enum mxc_tok_prepend { MXC_TOK_PREPEND_NEVER, MXC_TOK_PREPEND_FIRST, MXC_TOK_PREPEND_ALWAYS };

enum mxc_tok_step_kind {
    /* normalisers */
    MXC_TOK_NFC,
    MXC_TOK_NFD,
    MXC_TOK_NFKC,
    MXC_TOK_NFKD,
    MXC_TOK_LOWERCASE,
    MXC_TOK_STRIP_ACCENTS,
    MXC_TOK_STRIP_SPACE,      /* left, right */
    MXC_TOK_STRIP_NONSPACING, /* nonspacing marks only */
    MXC_TOK_BERT_CLEAN,       /* drops control characters, makes white space spaces */
    MXC_TOK_BERT_CJK,         /* spaces around CJK ideographs */
    MXC_TOK_NMT,              /* the clean-up of sentencepiece's "nmt" rules */
    MXC_TOK_CHARSMAP, /* content: sentencepiece's precompiled map, as `tokenizers` applies it */
    MXC_TOK_SPM_TEXT, /* content: such a map or empty; sentencepiece's whole normaliser: map,
                         strip_extra, escape, add_prefix_space, suffix */
    MXC_TOK_PREPEND,  /* content */
    MXC_TOK_REPLACE,  /* pattern, is_regex, content; also a decoder (without regex) */
    /* pre-tokenisers */
    MXC_TOK_SPLIT,      /* pattern, is_regex, behavior, invert */
    MXC_TOK_BYTE_LEVEL, /* add_prefix_space, use_regex; also a decoder */
    MXC_TOK_METASPACE,  /* pattern (the replacement), prepend, split; also a decoder */
    MXC_TOK_SCRIPTS,    /* cuts where the script of the text changes */
    /* decoders */
    MXC_TOK_BYTE_FALLBACK,
    MXC_TOK_FUSE,
    MXC_TOK_STRIP,      /* content, n_start, n_stop */
    MXC_TOK_WORDS,      /* WordPiece: content (the prefix of what continues a word), cleanup */
    MXC_TOK_CTC,        /* pattern (the pad token), content (the word delimiter), cleanup */
    MXC_TOK_WORD_SUFFIX /* BPEDecoder: content, the end of words, becomes a space */
};

struct mxc_tok_step {
    enum mxc_tok_step_kind kind;
    enum mxc_tok_behavior behavior;
    enum mxc_tok_prepend prepend;
    bool is_regex, invert, add_prefix_space, use_regex, split, left, right;
    bool strip_extra, escape, suffix; /* MXC_TOK_SPM_TEXT: extra spaces go, spaces become U+2581,
                                         the added space stands at the end */
    bool cleanup;                     /* no spaces before punctuation */
    uint32_t n_start, n_stop;
    struct mxc_str pattern, content;
};

struct mxc_tok_steps {
    struct mxc_tok_step *items; /* in the arena */
    size_t count, capacity;
};

/* A token that is matched in the text before the model sees it. Its bytes are those of the id. */
struct mxc_tok_added {
    uint32_t id;
    bool
        special; /* left out of decoded text on request; not matched when specials are not parsed */
    bool control; /* special, or looks like a turn marker: never matched in untrusted text */
    bool lstrip, rstrip, single_word, normalized;
};

struct mxc_tok_ids {
    uint32_t *items; /* in the arena */
    size_t count;
};

enum {
    MXC_TOK_MAX_ID = 1 << 22,
    MXC_TOK_MAX_TOKEN_BYTES = 1 << 16,
    MXC_TOK_MAX_PATH_BYTES = 1 << 10, /* longest token of Unigram and WordPiece vocabularies */
    MXC_TOK_HUGE_BYTES = 2 << 20      /* tables from this size on ask for huge pages */
};
#define MXC_TOK_NO_ID UINT32_MAX

struct mxc_tokdesc {
    struct mxc_arena arena;
    enum mxc_tok_model model;
    char *bytes; /* all token spellings, one after another */
    size_t n_bytes, bytes_capacity;
    struct mxc_tok_token *tokens; /* [n_ids]; ids with type NONE are holes */
    size_t n_ids, tokens_capacity;
    size_t max_token_bytes;
    double *scores; /* [n_scores], Unigram: scores in full precision; ids beyond have none */
    size_t n_scores, scores_capacity;
    struct mxc_tok_merge *merges;
    size_t n_merges, merges_capacity;
    uint64_t *slots; /* index: hash << 32 | id + 1, linear probing, at most half full */
    size_t n_slots, n_indexed;
    uint64_t seed;

    struct mxc_tok_steps normalizers, pretokenizers, decoders;
    bool has_decoder; /* false: pieces are joined by spaces, as the reference does */
    struct mxc_tok_added *added;
    size_t n_added, added_capacity;
    struct mxc_tok_ids prefix, suffix; /* ids around a text when specials are added */

    bool ignore_merges, byte_fallback, fuse_unk;
    bool added_literal;    /* byte-level: added tokens are spelled as they are, not mapped */
    bool add_space_prefix; /* SPM: a space before the text, dropped again when decoding */
    bool sentencepiece; /* sums of scores, unknown characters and decoded unknowns as that library
                           has them */
    struct mxc_str word_prefix;  /* WordPiece, BPE: spelled before what continues a word */
    struct mxc_str word_suffix;  /* BPE: spelled after the last character of a word */
    uint32_t max_word_chars;     /* WordPiece: longer words are unknown */
    uint32_t unk, bos, eos, pad; /* MXC_TOK_NO_ID: none */
    struct mxc_tok_ids end_ids;  /* every id that ends a turn, eos first; may be empty */
};

void mxc_tokdesc_init(struct mxc_tokdesc *desc);
void mxc_tokdesc_fini(struct mxc_tokdesc *desc);

/* Sets the token of an id; bytes are copied. MXC_E_FORMAT when the id is out of range, taken by
 * another spelling, or the spelling is too long. After mxc_tokdesc_index it is indexed at once. */
enum mxc_code mxc_tokdesc_add_token(struct mxc_tokdesc *desc, uint64_t id, struct mxc_str bytes,
                                    float score, enum mxc_tok_type type,
                                    struct mxc_err *err) MXC_MUST;
/* Score of an id, for Unigram. MXC_E_FORMAT when it is not finite. */
enum mxc_code mxc_tokdesc_set_score(struct mxc_tokdesc *desc, uint32_t id, double score,
                                    struct mxc_err *err) MXC_MUST;
/* Copies text into the arena. */
enum mxc_code mxc_tokdesc_dup(struct mxc_tokdesc *desc, struct mxc_str text, struct mxc_str *out,
                              struct mxc_err *err) MXC_MUST;
/* Builds the index of spellings. Of two ids with one spelling the lower is found. */
enum mxc_code mxc_tokdesc_index(struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;
/* MXC_TOK_NO_ID: no such token. Needs the index. */
uint32_t mxc_tokdesc_find(const struct mxc_tokdesc *desc, struct mxc_str bytes);
/* Spelling of an id; empty when there is none. Borrowed. */
struct mxc_str mxc_tokdesc_bytes(const struct mxc_tokdesc *desc, uint32_t id);

/* Appends n merges, next ranks in order; set word_prefix before. A part or a result that is no
 * token: MXC_E_FORMAT that names it, or skipped when lenient. */
struct mxc_tok_pair {
    struct mxc_str left, right;
};
enum mxc_code mxc_tokdesc_add_merges(struct mxc_tokdesc *desc, const struct mxc_tok_pair *pairs,
                                     size_t n, bool lenient, struct mxc_err *err) MXC_MUST;

/* Appends a step; strings of it are copied into the arena. */
enum mxc_code mxc_tokdesc_add_step(struct mxc_tokdesc *desc, struct mxc_tok_steps *steps,
                                   const struct mxc_tok_step *step, struct mxc_err *err) MXC_MUST;
/* Appends an added token, or replaces its flags when the id is there already. control is derived.
 */
enum mxc_code mxc_tokdesc_add_added(struct mxc_tokdesc *desc, const struct mxc_tok_added *added,
                                    struct mxc_err *err) MXC_MUST;
/* Appends an id to a list of at most 1024. */
enum mxc_code mxc_tokdesc_add_id(struct mxc_tokdesc *desc, struct mxc_tok_ids *ids, uint32_t id,
                                 struct mxc_err *err) MXC_MUST;
/* Adds to end_ids, once, the token of this spelling if there is one. */
enum mxc_code mxc_tokdesc_add_end(struct mxc_tokdesc *desc, const char *spelling,
                                  struct mxc_err *err) MXC_MUST;
/* Adds to end_ids the control tokens that are known by their spelling to end a turn. */
enum mxc_code mxc_tokdesc_add_known_ends(struct mxc_tokdesc *desc, struct mxc_err *err) MXC_MUST;

#endif

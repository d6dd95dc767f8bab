/* Structured output: what text is allowed, and which tokens come next.
 *
 *   front end -> struct mxc_grammar          immutable automaton over bytes (a pushdown of DFAs)
 *   tokenizer -> struct mxc_grammar_vocab    immutable trie of token bytes, once per tokenizer
 *   both      -> struct mxc_grammar_masks    shared cache of token masks, thread-safe
 *   masks     -> struct mxc_grammar_state    one per sequence, one thread; the engine's logit
 * filter
 *
 * Front ends: GBNF, JSON Schema, any JSON object, regular expression, choice of strings; the
 * builder joins all of them with literals into one grammar. Errors: MXC_E_ARG malformed (with line
 * and column, or a JSON pointer), MXC_E_UNSUPPORTED what cannot be honoured (keyword and pointer),
 * MXC_E_LIMIT a bound (both numbers), MXC_E_NOMEM. */
#ifndef MXC_GEN_GRAMMAR_GRAMMAR_H
#define MXC_GEN_GRAMMAR_GRAMMAR_H

#include "base/str.h"
#include "engine/sampling.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>

enum {
    MXC_GRAMMAR_MAX_TEXT = 1 << 20,   /* bytes of a GBNF text, a pattern, all choices together */
    MXC_GRAMMAR_MAX_NESTING = 128,    /* groups in groups, schemas in schemas */
    MXC_GRAMMAR_MAX_REPEAT = 1 << 16, /* {m,n}, maxLength, maxItems */
    MXC_GRAMMAR_MAX_RULES = 1 << 16,
    MXC_GRAMMAR_MAX_NFA = 1 << 20,     /* states before determinisation */
    MXC_GRAMMAR_MAX_STATES = 1 << 18,  /* states of the automaton */
    MXC_GRAMMAR_MAX_STACKS = 256,      /* readings of a text that are open at once */
    MXC_GRAMMAR_MAX_DEPTH = 1024,      /* calls inside calls in a text; deeper is not allowed */
    MXC_GRAMMAR_MAX_MEMORY = 256 << 20 /* bytes of a grammar while it is built */
};

/* White space in JSON text: none; at most one space after { [ : , and before } ] (the default); or
 * also a newline and at most 32 spaces or tabs there. */
enum mxc_json_space { MXC_JSON_SPACED, MXC_JSON_COMPACT, MXC_JSON_PRETTY };

/* ---- grammars: immutable, any thread */

struct mxc_grammar;

/* llama.cpp's GBNF, rule `root`. Left recursion is refused by name. */
enum mxc_code mxc_grammar_parse_gbnf(struct mxc_str text, struct mxc_grammar **out,
                                     struct mxc_err *err) MXC_MUST;
/* JSON Schema 2020-12, the part that docs/grammars.md lists; text that is generated satisfies the
 * schema, though not all text that does can be generated: properties come in the order declared,
 * and properties that are not declared only when additionalProperties says so (or none is
 * declared). */
enum mxc_code mxc_grammar_parse_schema(const json_t *schema, enum mxc_json_space space,
                                       struct mxc_grammar **out, struct mxc_err *err) MXC_MUST;
/* Any JSON object. */
enum mxc_code mxc_grammar_json_object(enum mxc_json_space space, struct mxc_grammar **out,
                                      struct mxc_err *err) MXC_MUST;
/* The whole text matches; no lookaround, references or lazy differences. */
enum mxc_code mxc_grammar_parse_regex(struct mxc_str pattern, struct mxc_grammar **out,
                                      struct mxc_err *err) MXC_MUST;
/* One of n >= 1 strings. */
enum mxc_code mxc_grammar_choice(const struct mxc_str *choices, size_t n, struct mxc_grammar **out,
                                 struct mxc_err *err) MXC_MUST;
void mxc_grammar_free(struct mxc_grammar *grammar);
size_t mxc_grammar_n_states(const struct mxc_grammar *grammar);
/* Whether the whole text is in the language. Slow; for tests and checks. MXC_E_LIMIT: too many
 * readings. */
enum mxc_code mxc_grammar_accepts(const struct mxc_grammar *grammar, struct mxc_str text,
                                  bool *accepts, struct mxc_err *err) MXC_MUST;

/* ---- builder: one thread. Nodes are numbers; a node may be used any number of times. After one
 * failure every call gives -1 and finish reports the first error, so nothing else needs a check.
 * Taking -1 gives -1. */

struct mxc_grammar_builder;
struct mxc_code_range {
    uint32_t first, last; /* code points, both included */
};

enum mxc_code mxc_grammar_builder_new(enum mxc_json_space space, struct mxc_grammar_builder **out,
                                      struct mxc_err *err) MXC_MUST;
void mxc_grammar_builder_free(struct mxc_grammar_builder *builder);
/* Compiles what `root` stands for. The builder may be used on afterwards. */
enum mxc_code mxc_grammar_builder_finish(struct mxc_grammar_builder *builder, int32_t root,
                                         struct mxc_grammar **out, struct mxc_err *err) MXC_MUST;

int32_t mxc_grammar_add_literal(struct mxc_grammar_builder *builder, struct mxc_str bytes);
/* A special token, by its spelling: matched by that token alone, never by text. (Tokens that are
 * not special, like Qwen's <tool_call>, are text: a literal matches them.) */
int32_t mxc_grammar_add_special(struct mxc_grammar_builder *builder, struct mxc_str spelling);
/* One character of (not of, when negated) the ranges. */
int32_t mxc_grammar_add_class(struct mxc_grammar_builder *builder,
                              const struct mxc_code_range *ranges, size_t n, bool negated);
int32_t mxc_grammar_add_seq(struct mxc_grammar_builder *builder, const int32_t *items, size_t n);
int32_t mxc_grammar_add_alt(struct mxc_grammar_builder *builder, const int32_t *items, size_t n);
/* min to max times; max -1: no bound. */
int32_t mxc_grammar_add_repeat(struct mxc_grammar_builder *builder, int32_t item, int32_t min,
                               int32_t max);
/* Any text (valid UTF-8, perhaps empty) in which the bytes of `stop` do not occur; usually followed
 * by a literal `stop`. */
int32_t mxc_grammar_add_until(struct mxc_grammar_builder *builder, struct mxc_str stop);
/* A rule that is defined later: refer to it with add_ref. The name is for messages. */
int32_t mxc_grammar_add_rule(struct mxc_grammar_builder *builder, struct mxc_str name);
void mxc_grammar_set_rule(struct mxc_grammar_builder *builder, int32_t rule, int32_t node);
int32_t mxc_grammar_add_ref(struct mxc_grammar_builder *builder, int32_t rule);

int32_t mxc_grammar_add_gbnf(struct mxc_grammar_builder *builder, struct mxc_str text);
/* schema is borrowed until finish. */
int32_t mxc_grammar_add_schema(struct mxc_grammar_builder *builder, const json_t *schema);
int32_t mxc_grammar_add_regex(struct mxc_grammar_builder *builder, struct mxc_str pattern);
int32_t mxc_grammar_add_choice(struct mxc_grammar_builder *builder, const struct mxc_str *choices,
                               size_t n);
int32_t mxc_grammar_add_json_value(struct mxc_grammar_builder *builder);
int32_t mxc_grammar_add_json_object(struct mxc_grammar_builder *builder);
/* A JSON string literal: the text, quoted and escaped. */
int32_t mxc_grammar_add_json_text(struct mxc_grammar_builder *builder, struct mxc_str text);

/* ---- vocabulary: immutable, any thread */

struct mxc_grammar_vocab;
struct mxc_grammar_piece {
    struct mxc_str bytes; /* what the token stands for; empty: never allowed */
    bool special;         /* bytes is the spelling; matched by add_special alone */
};

/* Ids below n; pieces are copied. Ids of eos that are out of range are ignored. Tokens of more than
 * 255 bytes are never allowed. */
enum mxc_code mxc_grammar_vocab_new_pieces(const struct mxc_grammar_piece *pieces, size_t n,
                                           const int32_t *eos, size_t n_eos,
                                           struct mxc_grammar_vocab **out,
                                           struct mxc_err *err) MXC_MUST;
/* All ids of the tokenizer, which is not kept. */
enum mxc_code mxc_grammar_vocab_new(const struct mxc_tokenizer *tokenizer, const int32_t *eos,
                                    size_t n_eos, struct mxc_grammar_vocab **out,
                                    struct mxc_err *err) MXC_MUST;
void mxc_grammar_vocab_free(struct mxc_grammar_vocab *vocab);
size_t mxc_grammar_vocab_bytes(const struct mxc_grammar_vocab *vocab);
int32_t mxc_grammar_vocab_n_ids(const struct mxc_grammar_vocab *vocab);

/* ---- masks: what a grammar and a vocabulary share among sequences; counted references, any
 * thread. Keep one per grammar for requests that use the same. */

struct mxc_grammar_masks;
struct mxc_grammar_masks_stats {
    uint64_t n_hits, n_misses, n_evicted;
    size_t used_bytes, n_entries;
};

/* Takes the grammar over, also on failure; the vocabulary must outlive the masks. max_bytes bounds
 * the cache (counted before an entry goes in; least recently used out first); 0: 16 MiB. */
enum mxc_code mxc_grammar_masks_new(struct mxc_grammar *grammar,
                                    const struct mxc_grammar_vocab *vocab, size_t max_bytes,
                                    struct mxc_grammar_masks **out, struct mxc_err *err) MXC_MUST;
struct mxc_grammar_masks *mxc_grammar_masks_ref(struct mxc_grammar_masks *masks);
void mxc_grammar_masks_unref(struct mxc_grammar_masks *masks); /* NULL is fine */
void mxc_grammar_masks_get_stats(struct mxc_grammar_masks *masks,
                                 struct mxc_grammar_masks_stats *stats);

/* ---- state: one sequence, one thread */

struct mxc_grammar_trigger {
    struct mxc_str text; /* 1 to 255 bytes; empty: the token */
    int32_t token;
};

/* Lazy grammars: anything goes until a trigger is seen in what is generated; the grammar begins
 * right behind it. When a token holds the trigger's end and more, and the grammar refuses that
 * rest, the trigger does not count. */
struct mxc_grammar_lazy {
    const struct mxc_grammar_trigger *triggers; /* at most 16; copied */
    size_t n_triggers;                          /* 0: not lazy */
    bool rearm; /* when the grammar can only end, wait for a trigger again (else: EOS) */
    bool must;  /* no EOS before the first trigger */
};

struct mxc_grammar_state;

/* Refers to masks. lazy may be NULL. */
enum mxc_code mxc_grammar_state_new(struct mxc_grammar_masks *masks,
                                    const struct mxc_grammar_lazy *lazy,
                                    struct mxc_grammar_state **out, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_grammar_state_dup(const struct mxc_grammar_state *state,
                                    struct mxc_grammar_state **out, struct mxc_err *err) MXC_MUST;
void mxc_grammar_state_free(struct mxc_grammar_state *state);
/* One bit per id, in words of 64; valid until the next call. Ids that are not the tokenizer's are
 * never allowed. EOS is allowed exactly when the text so far is a whole one; when nothing else can
 * follow, only EOS. NULL bits: everything is allowed (a lazy grammar that waits). */
enum mxc_code mxc_grammar_mask(struct mxc_grammar_state *state, const uint64_t **bits,
                               struct mxc_err *err) MXC_MUST;
/* Takes a token in. MXC_E_ARG: it was not allowed; the state is unchanged. */
enum mxc_code mxc_grammar_advance(struct mxc_grammar_state *state, int32_t id,
                                  struct mxc_err *err) MXC_MUST;
/* As advance, for text outside any token (an assistant prefill). */
enum mxc_code mxc_grammar_advance_text(struct mxc_grammar_state *state, struct mxc_str text,
                                       struct mxc_err *err) MXC_MUST;
/* Whether the text so far is a whole one. A lazy grammar that waits: true unless `must`. */
bool mxc_grammar_accepts_end(struct mxc_grammar_state *state);
/* Whether the grammar holds now (not waiting for a trigger, not ended). */
bool mxc_grammar_is_active(const struct mxc_grammar_state *state);
/* Appends the bytes that must come next, at most max_bytes; stops where the text may end or
 * there is a choice. */
enum mxc_code mxc_grammar_forced(struct mxc_grammar_state *state, size_t max_bytes,
                                 struct mxc_buf *bytes, struct mxc_err *err) MXC_MUST;

/* The engine's hook; the state must outlive the request. A failure (memory, a limit) bans every
 * token, which ends the request; mxc_grammar_state_error then says why. */
struct mxc_logit_filter mxc_grammar_filter(struct mxc_grammar_state *state);
/* NULL: none. */
const struct mxc_err *mxc_grammar_state_error(const struct mxc_grammar_state *state);

#endif

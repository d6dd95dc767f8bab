/* Inside the grammar folder: one schema being compiled. schema.c walks it, schema_object.c does
 * objects and arrays, schema_text.c strings and numbers, schema_merge.c joins and compares schemas.
 */
#ifndef MXC_GEN_GRAMMAR_SCHEMA_H
#define MXC_GEN_GRAMMAR_SCHEMA_H

#include "gen/grammar/ir.h"

struct mxc_schema {
    struct mxc_grammar_builder *b;
    const json_t *root;
    struct mxc_buf path; /* JSON pointer of what is being compiled, "#..." */
    struct mxc_map refs; /* address of a schema -> rule */
    int depth;
    uint32_t work; /* schemas looked at: references can multiply them */
};

enum { MXC_SCHEMA_MAX_WORK = 1 << 18 };
/* Counts one more schema looked at. false: too many. */
bool mxc_schema_spend(struct mxc_schema *s);
/* The node of a schema. */
int32_t mxc_schema_node(struct mxc_schema *s, const json_t *schema);
/* The same at a place below: key, or key and an index when key2 is NULL and index >= 0. */
int32_t mxc_schema_node_at(struct mxc_schema *s, const json_t *schema, const char *key,
                           const char *key2, int64_t index);
size_t mxc_schema_enter(struct mxc_schema *s, const char *key, const char *key2, int64_t index);
void mxc_schema_leave(struct mxc_schema *s, size_t mark);
/* "<pointer>: text"; -1. */
int32_t mxc_schema_fail(struct mxc_schema *s, enum mxc_code code, const char *fmt, ...)
    MXC_PRINTF(3, 4);
const char *mxc_schema_where(const struct mxc_schema *s);
/* A non-negative integer keyword; absent leaves *out. false: failed. */
bool mxc_schema_count(struct mxc_schema *s, const json_t *schema, const char *key, int64_t *out);

int32_t mxc_schema_object(struct mxc_schema *s, const json_t *schema);
int32_t mxc_schema_array(struct mxc_schema *s, const json_t *schema);
int32_t mxc_schema_string(struct mxc_schema *s, const json_t *schema);
int32_t mxc_schema_number(struct mxc_schema *s, const json_t *schema, bool integer);

/* The schema that a $ref means; NULL: failed. */
const json_t *mxc_schema_resolve(struct mxc_schema *s, const char *ref);
/* What satisfies both, owned by the builder; NULL: failed, named. */
json_t *mxc_schema_merge(struct mxc_schema *s, const json_t *a, const json_t *b);
/* Without the keys, owned by the builder. */
json_t *mxc_schema_without(struct mxc_schema *s, const json_t *schema, const char *const *keys);
/* Keywords that say nothing about what is valid. */
bool mxc_schema_is_annotation(const char *key);
/* Whether no text that we generate for a satisfies b. */
bool mxc_schema_excludes(struct mxc_schema *s, const json_t *a, const json_t *b, int depth);

#endif

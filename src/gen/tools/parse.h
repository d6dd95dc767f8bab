/* Inside of the parser: what its two files share. Every byte moves the machine alone, so that
 * results cannot depend on how the text was cut. */
#ifndef MXC_GEN_TOOLS_PARSE_H
#define MXC_GEN_TOOLS_PARSE_H

#include "gen/tools/json_scan.h"
#include "gen/tools/shapes.h"
#include "gen/tools/values.h"

enum mxc_tool_state {
    MXC_PARSE_TEXT,
    MXC_PARSE_FRAME, /* in a block, between calls */
    MXC_PARSE_OBJECT,
    MXC_PARSE_BEFORE_NAME,
    MXC_PARSE_NAME,
    MXC_PARSE_AFTER_NAME,
    MXC_PARSE_ARGUMENTS,
    MXC_PARSE_PARAMS,
    MXC_PARSE_KEY,
    MXC_PARSE_KEY_END,
    MXC_PARSE_VALUE_OPEN,
    MXC_PARSE_VALUE,
    MXC_PARSE_CALL_CLOSE,
    MXC_PARSE_DROP
};

/* Literals that are followed at once from one place; white space in them stands for any. */
struct mxc_marks {
    struct {
        struct mxc_str text;
        size_t at; /* SIZE_MAX: out of the race */
        int tag;
    } items[4];
    int n;
    bool active; /* some have begun */
};

/* One object of a call: {"name": ..., "arguments": ...}. */
struct mxc_call_object {
    unsigned char state;
    bool nested;  /* inside "function": {...} */
    bool escaped; /* in a key or name: a backslash came */
    bool done;    /* the arguments are complete */
    bool is_null; /* their value is null */
    struct mxc_buf word;
};

struct mxc_tool_parser {
    const struct mxc_tool_shape *shape;
    const struct mxc_tools *tools;
    struct mxc_rng rng;
    mxc_tool_event_fn *event;
    void *user;
    enum mxc_tool_state state;
    bool cancelled;
    enum mxc_code failed; /* what made a buffer fail */

    enum mxc_tool_event_kind out_kind; /* of what is collected in out */
    struct mxc_buf out;

    struct mxc_buf space; /* white space that may belong to a call */
    bool edge;            /* nothing but white space since the beginning or a call */
    bool after_call;

    struct mxc_buf held; /* the bytes of what may become a call */
    struct mxc_marks marks;
    size_t n_calls, n_block; /* in all; in this block */
    bool list, listed;       /* inside a list; it was closed */
    bool committed;          /* a call has begun */

    const struct mxc_tool *tool;
    char name[MXC_MAX_TOOL_NAME + 1];
    size_t n_name, skipped;
    bool started;        /* the arguments have */
    struct mxc_buf args; /* that wait for the name */
    struct mxc_json_scan scan;
    struct mxc_literal literal;
    struct mxc_call_object object;

    struct mxc_buf key, raw; /* XML; raw: a value, or the attribute before it */
    unsigned types;
    size_t n_params;
    bool as_string, first, line_feed; /* of the value */
    size_t match;                     /* bytes of value_close */
};

/* What became of a byte. */
enum mxc_fed { MXC_FED, MXC_FED_AGAIN /* it stands at the beginning of the new state */ };

void mxc_parse_put(struct mxc_tool_parser *p, enum mxc_tool_event_kind kind, const char *text,
                   size_t length);
/* Empties one of the parser's buffers and keeps its failure in mind. */
void mxc_parse_clear(struct mxc_tool_parser *p, struct mxc_buf *buf);
/* The candidate was none: it is text. */
enum mxc_fed mxc_parse_reject(struct mxc_tool_parser *p);
/* The candidate is a call of p->tool: begins it, with the arguments that wait. */
void mxc_parse_commit(struct mxc_tool_parser *p);
void mxc_parse_end_call(struct mxc_tool_parser *p, bool complete);
/* Something that cannot be: ends a call incomplete, or rejects the candidate. */
enum mxc_fed mxc_parse_fail(struct mxc_tool_parser *p, bool complete);
void mxc_parse_begin_object(struct mxc_tool_parser *p);
enum mxc_fed mxc_parse_object(struct mxc_tool_parser *p, char c);

#endif

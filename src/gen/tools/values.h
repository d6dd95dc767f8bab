/* Values that are not written as JSON, to JSON: Python's literals, Gemma's notation, and raw text
 * typed by a schema. */
#ifndef MXC_GEN_TOOLS_VALUES_H
#define MXC_GEN_TOOLS_VALUES_H

#include "base/json.h"
#include "base/str.h"
#include "gen/tools/json_scan.h"

enum { MXC_LITERAL_DEPTH = 64 };

enum mxc_notation {
    MXC_PYTHON_CALL,  /* from behind the opening to the closing parenthesis: keyword arguments */
    MXC_PYTHON_VALUE, /* one list, dict or tuple */
    MXC_GEMMA_VALUE   /* an object: {key:<|"|>text<|"|>,n:1} */
};

/* Follows one value by bytes and writes it as JSON. */
struct mxc_literal {
    enum mxc_notation notation;
    unsigned char state, match, digits;
    char quote; /* of the string inside; 0: Gemma's */
    bool is_key, comma;
    size_t n_keys;
    uint32_t cp;
    int depth;
    char stack[MXC_LITERAL_DEPTH]; /* the characters that close */
    struct mxc_buf word;
};

void mxc_literal_init(struct mxc_literal *literal, enum mxc_notation notation);
void mxc_literal_fini(struct mxc_literal *literal);
/* MXC_SCAN_GO, END or BAD. */
enum mxc_scan mxc_literal_push(struct mxc_literal *literal, char byte, struct mxc_buf *json);

/* Text inside a JSON string. */
void mxc_tool_escape(const char *text, size_t length, struct mxc_buf *json);

enum {
    MXC_TYPE_STRING = 1,
    MXC_TYPE_INTEGER = 2,
    MXC_TYPE_NUMBER = 4,
    MXC_TYPE_BOOLEAN = 8,
    MXC_TYPE_OBJECT = 16,
    MXC_TYPE_ARRAY = 32,
    MXC_TYPE_NULL = 64
};
/* The types that a parameter may have by the tool's schema; 0: it does not say. */
unsigned mxc_tool_types(const json_t *parameters, struct mxc_str key);
/* Raw text as JSON of one of the types, when it is that (white space around apart; True, False,
 * None and Python's lists and dicts too), else as a string. Without types: what reads as JSON, but
 * a string, is that. */
void mxc_tool_write_value(unsigned types, struct mxc_str raw, struct mxc_buf *json);

#endif

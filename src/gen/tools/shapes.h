/* The rows of the table of wire shapes: what the parser reads, and what the grammar writes.
 * A block is [open] calls [close]; a call is [call_open] body [call_close]. In literals white space
 * stands for any, and where two parts meet any may stand; the grammar writes it as it is here. */
#ifndef MXC_GEN_TOOLS_SHAPES_H
#define MXC_GEN_TOOLS_SHAPES_H

#include "gen/tools/tools.h"

enum mxc_tool_body {
    MXC_TOOL_OBJECTS,  /* JSON objects with name and arguments, alone or in a list; no call_open */
    MXC_TOOL_JSON,     /* [before_name] name after_name JSON */
    MXC_TOOL_GEMMA,    /* the same with Gemma's own notation of values */
    MXC_TOOL_XML,      /* name after_name {param_open key key_end [value_open] value value_close} */
    MXC_TOOL_PYTHONIC, /* [f(a=1), g()] */
};

struct mxc_tool_shape {
    const char *name;
    const char *detect[3]; /* all of them in the template; none: by name only */
    const char *token;     /* or this in the vocabulary */
    enum mxc_tool_body body;
    const char *open, *close; /* of a block; NULL: none */
    const char *also;         /* another open */
    const char *between;      /* calls of a block; NULL: a block holds one call, and a line feed
                                 stands between blocks */
    const char *call_open, *call_close;
    const char *before_name, *after_name; /* what stands before them is skipped */
    const char *written_after;            /* instead of after_name, when written */
    const char *param_open, *key_end, *value_open, *value_close; /* XML */
    const char *name_key, *arguments_key; /* OBJECTS; NULL: the key is the name */
    bool list;                            /* OBJECTS, when written: in a list */
    bool bare;                            /* may stand without open where the text begins */
    bool framed;                          /* XML: a line feed on both sides of a value */
    bool typed;                           /* XML: string="true" or "false" behind a key */
    bool ends;                            /* call_close ends the answer: never written */
    const char *trigger; /* end of call_open from which a lazy grammar holds; NULL: see enforce.c */
    int id_length;
    const char *shown[9]; /* special tokens of the shape, as mxc_tool_shape_shown */
};

#endif

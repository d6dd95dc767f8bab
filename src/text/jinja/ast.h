/* Syntax tree of a template, made by lex.c and parse_*.c and read by eval.c and exec.c. Nodes,
 * constants and names live in the template's arena and never change after compilation. */
#ifndef MXC_TEXT_JINJA_AST_H
#define MXC_TEXT_JINJA_AST_H

#include "base/map.h"
#include "text/jinja/value.h"

enum mxc_jkind {
    /* expressions */
    MJ_CONST,  /* value */
    MJ_NAME,   /* id */
    MJ_ATTR,   /* a.value */
    MJ_ITEM,   /* a[b] */
    MJ_SLICE,  /* a[b:c:d], parts may be NULL */
    MJ_CALL,   /* a(args) */
    MJ_FILTER, /* a|value(args); a NULL: the block's text */
    MJ_TEST,   /* a is value(args) */
    MJ_BINARY, /* a op b */
    MJ_UNARY,  /* op a: '-', '+', '!' */
    MJ_AND,
    MJ_OR,
    MJ_COMPARE, /* a, then items: MJ_OPERAND */
    MJ_OPERAND, /* op, a */
    MJ_CONCAT,  /* items */
    MJ_COND,    /* a if b else c */
    MJ_TUPLE_EXPR,
    MJ_LIST_EXPR,
    MJ_DICT_EXPR, /* items: key, value, key, value */
    MJ_NSREF,     /* id.value */
    /* statements */
    MJ_DATA,         /* value */
    MJ_OUTPUT,       /* items */
    MJ_IF,           /* a test, body, other */
    MJ_FOR,          /* a target, b source, c filter, body, other; op 1: recursive */
    MJ_SET,          /* a target, b value */
    MJ_SET_BLOCK,    /* a target, b filter chain or NULL, body */
    MJ_WITH,         /* items: target, value, ...; body */
    MJ_MACRO_DEF,    /* id, params, body */
    MJ_CALL_BLOCK,   /* a call, params, body */
    MJ_FILTER_BLOCK, /* a filter chain, body */
    MJ_GENERATION,   /* params, body */
    MJ_BLOCK,        /* id, params (none), body; op 1: scoped */
    MJ_BREAK,
    MJ_CONTINUE,
    MJ_REFUSED /* value: the tag's name (include, import, from, extends) */
};

enum { MJ_USES_CALLER = 1, MJ_USES_KWARGS = 2, MJ_USES_VARARGS = 4 };

struct mxc_jlist {
    struct mxc_jnode **v;
    size_t n, capacity;
};

struct mxc_jparams {
    int *ids;
    size_t n;
    struct mxc_jnode **defaults; /* of the last n_defaults parameters */
    size_t n_defaults;
    unsigned uses; /* MJ_USES_* */
    bool explicit_caller;
};

struct mxc_jcall {
    struct mxc_jlist args;
    struct mxc_jlist kwargs; /* values */
    struct mxc_jstr **names; /* of kwargs */
    struct mxc_jnode *dyn_args, *dyn_kwargs;
};

struct mxc_jnode {
    enum mxc_jkind kind;
    int op, line, id;
    unsigned height; /* of the tree below, bounds the recursion */
    struct mxc_jval value;
    struct mxc_jnode *a, *b, *c, *d;
    struct mxc_jlist items, body, other;
    struct mxc_jcall *call;
    struct mxc_jparams *params;
    const void *target; /* the filter's or test's definition, NULL: none of that name */
};

struct mxc_jinja {
    struct mxc_arena arena;
    struct mxc_jlist body, blocks;
    const char **names; /* by id */
    size_t n_names, names_capacity;
    struct mxc_map ids; /* name -> id */
    bool from_json;
};

/* --- lex.c --- */
enum mxc_jtok {
    MJ_T_EOF,
    MJ_T_DATA,
    MJ_T_VAR_BEGIN,
    MJ_T_VAR_END,
    MJ_T_BLOCK_BEGIN,
    MJ_T_BLOCK_END,
    MJ_T_NAME,
    MJ_T_STRING,
    MJ_T_INT,
    MJ_T_FLOAT,
    MJ_T_OP /* op: the character, or two-character codes below */
};
enum { /* operators of two characters */
       MJ_OP_FLOORDIV = 256,
       MJ_OP_POW,
       MJ_OP_EQ,
       MJ_OP_NE,
       MJ_OP_LE,
       MJ_OP_GE,
       MJ_OP_IN,
       MJ_OP_NOT_IN
};

struct mxc_jtoken {
    enum mxc_jtok type;
    int op, line;
    const char *p; /* name, data, decoded string */
    size_t len;
    int64_t i;
    double f;
};

struct mxc_jlex {
    struct mxc_arena *arena;
    struct mxc_err *err;
    const char *src;
    size_t n, pos;
    int line;
    enum { MJ_IN_ROOT, MJ_IN_VAR, MJ_IN_BLOCK } state;
    bool has_begin, failed; /* a tag was found behind the data that was returned */
    enum mxc_jtok begin;
    char open[256]; /* brackets not closed yet */
    size_t n_open;
};

/* Copies the text with its newlines made plain. */
bool mxc_j_lex_init(struct mxc_jlex *lex, struct mxc_arena *arena, const char *text, size_t length,
                    struct mxc_err *err);
bool mxc_j_lex_next(struct mxc_jlex *lex, struct mxc_jtoken *token);
/* "line N: TemplateSyntaxError: ..."; false. */
bool mxc_j_syntax(struct mxc_err *err, int line, const char *fmt, ...) MXC_PRINTF(3, 4);

/* --- parse --- */
struct mxc_jparse {
    struct mxc_jlex lex;
    struct mxc_jinja *jinja;
    struct mxc_err *err;
    struct mxc_jtoken cur, next;
    unsigned depth, blocks; /* of expressions in a tag, of tags in tags */
    bool soft, in_loop;     /* soft: below an if, where unknown filters fail only when they run */
    const struct mxc_jnode *unknown; /* a filter or test that does not exist, outside of an if */
    struct mxc_jmacro_use {
        struct mxc_jmacro_use *outer;
        unsigned uses, hidden;
    } * macro;
};

bool mxc_j_advance(struct mxc_jparse *p);
struct mxc_jnode *mxc_j_node(struct mxc_jparse *p, enum mxc_jkind kind, int line);
bool mxc_j_add(struct mxc_jparse *p, struct mxc_jlist *list, struct mxc_jnode *node);
/* Sets node->height from a child; NULL child is fine; false when the tree is too high. */
bool mxc_j_above(struct mxc_jparse *p, struct mxc_jnode *node, const struct mxc_jnode *child);
bool mxc_j_intern(struct mxc_jparse *p, const char *text, size_t len, int *id);
bool mxc_j_at_name(const struct mxc_jparse *p, const char *name);
bool mxc_j_at_op(const struct mxc_jparse *p, int op);
bool mxc_j_expect_op(struct mxc_jparse *p, int op);
bool mxc_j_expect_name(struct mxc_jparse *p, const char *name);
bool mxc_j_unexpected(struct mxc_jparse *p, const char *wanted);
bool mxc_j_nomem_at(struct mxc_jparse *p);
/* Expressions. flags for tuples below. NULL: error set. */
struct mxc_jnode *mxc_j_parse_expr(struct mxc_jparse *p, bool with_cond);
enum {
    MJ_NO_COND = 1,
    MJ_PARENS = 2,
    MJ_TARGET = 4,
    MJ_WITH_NS = 8,
    MJ_END_IN = 16,
    MJ_END_RECURSIVE = 32
};
struct mxc_jnode *mxc_j_parse_tuple(struct mxc_jparse *p, unsigned flags);
struct mxc_jnode *mxc_j_parse_filters(struct mxc_jparse *p, struct mxc_jnode *node, bool inlined);
struct mxc_jnode *mxc_j_parse_target(struct mxc_jparse *p, unsigned flags);
bool mxc_j_parse_template(struct mxc_jparse *p);

#endif

/* A render in progress, and the functions that eval.c, exec.c, filters and methods share. One
 * thread owns a run. Bounds: steps (every node, item and 64 bytes of string work), bytes of the
 * arena, bytes of output, depth of the C stack. */
#ifndef MXC_TEXT_JINJA_RUN_H
#define MXC_TEXT_JINJA_RUN_H

#include "text/jinja/ast.h"
#include "text/jinja/jinja.h"

struct mxc_jvar {
    int id;
    struct mxc_jval v;
};

struct mxc_jscope {
    struct mxc_jscope *parent;
    struct mxc_jvar *vars;
    size_t n, capacity;
    bool captured; /* a macro refers to it: it may not be used again */
};

struct mxc_jrun {
    const struct mxc_jinja *jinja;
    const struct mxc_jinja_options *options;
    struct mxc_arena arena, large; /* large: pieces that would leave a chunk half used */
    size_t max_bytes;
    struct mxc_err *err;
    bool failed;
    int line;
    uint64_t steps, max_steps;
    const char *stack_base;
    size_t max_stack;
    unsigned calls;           /* macro calls that are open */
    struct mxc_jval *globals; /* by name id */
    struct mxc_jscope root;
    struct mxc_jsb *out;          /* where statements write */
    struct mxc_jinja_span *spans; /* of the top output */
    size_t n_spans, spans_capacity;
    struct tm now;
};

enum mxc_jflow { MJ_NEXT, MJ_DO_BREAK, MJ_DO_CONTINUE, MJ_FAILED };

/* Sets "line N: kind: message" once (later errors are ignored); false. kind is Python's name. */
bool mxc_j_fail(struct mxc_jrun *run, const char *kind, const char *fmt, ...) MXC_PRINTF(3, 4);
bool mxc_j_limit(struct mxc_jrun *run, const char *what);
bool mxc_j_nomem(struct mxc_jrun *run);
bool mxc_j_step(struct mxc_jrun *run, uint64_t cost);
/* False when the C stack or the depth of calls is used up. */
bool mxc_j_stack(struct mxc_jrun *run);

/* --- eval.c --- */
bool mxc_j_eval(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *node,
                struct mxc_jval *out);
bool mxc_j_eval_args(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jcall *call,
                     struct mxc_jargs *args);
bool mxc_j_filter_chain(struct mxc_jrun *run, struct mxc_jscope *scope,
                        const struct mxc_jnode *node, struct mxc_jval value, struct mxc_jval *out);
/* --- ops.c --- */
bool mxc_j_binary(struct mxc_jrun *run, int op, struct mxc_jval a, struct mxc_jval b,
                  struct mxc_jval *out);
bool mxc_j_unary(struct mxc_jrun *run, int op, struct mxc_jval a, struct mxc_jval *out);
bool mxc_j_slice(struct mxc_jrun *run, struct mxc_jval v, const struct mxc_jval part[3],
                 struct mxc_jval *out);
/* --- attr.c --- */
bool mxc_j_getattr(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval name,
                   struct mxc_jval *out);
bool mxc_j_getitem(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval key,
                   struct mxc_jval *out);
/* The attribute proper; MJ_MISSING when there is none (attr filter). */
bool mxc_j_attribute(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval name,
                     struct mxc_jval *out);
/* --- exec.c --- */
enum mxc_jflow mxc_j_exec(struct mxc_jrun *run, struct mxc_jscope *scope,
                          const struct mxc_jlist *body);
bool mxc_j_assign(struct mxc_jrun *run, struct mxc_jscope *scope, const struct mxc_jnode *target,
                  struct mxc_jval v);
bool mxc_j_scope_set(struct mxc_jrun *run, struct mxc_jscope *scope, int id, struct mxc_jval v);
/* --- loop.c --- */
enum mxc_jflow mxc_j_exec_for(struct mxc_jrun *run, struct mxc_jscope *scope,
                              const struct mxc_jnode *node);
int mxc_j_next_filtered(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out);
bool mxc_j_loop_attr(struct mxc_jrun *run, struct mxc_jloop *loop, const struct mxc_jstr *name,
                     struct mxc_jval *out);
bool mxc_j_loop_call(struct mxc_jrun *run, struct mxc_jloop *loop, const struct mxc_jargs *args,
                     struct mxc_jval *out);
bool mxc_j_loop_repr(struct mxc_jsb *sb, struct mxc_jloop *loop);
/* --- call.c --- */
bool mxc_j_call(struct mxc_jrun *run, struct mxc_jval callee, const struct mxc_jargs *args,
                struct mxc_jval *out);
bool mxc_j_call_macro(struct mxc_jrun *run, const struct mxc_jmacro *macro,
                      const struct mxc_jargs *args, struct mxc_jval *out);
/* Matches arguments with "a,b,c" (the first `required` must be given); slots not given are
 * MJ_MISSING. A leading '/' in params: positional only. */
enum { MJ_MAX_SLOTS = 8 };
bool mxc_j_bind(struct mxc_jrun *run, const char *what, const char *params, size_t required,
                const struct mxc_jargs *args, struct mxc_jval slots[MJ_MAX_SLOTS]);
/* Typed arguments: MISSING leaves *out; a wrong type is a TypeError. */
bool mxc_j_arg_int(struct mxc_jrun *run, struct mxc_jval v, int64_t *out);
bool mxc_j_arg_str(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jstr **out);
/* --- tables --- */
/* a[0] is the value; rest: what follows it, unbound (for variadic ones). */
typedef bool mxc_j_filter_fn(struct mxc_jrun *run, struct mxc_jval *a, const struct mxc_jargs *rest,
                             struct mxc_jval *out);
struct mxc_jfilter {
    const char *name, *params; /* params NULL: takes any, reads rest */
    size_t required;
    mxc_j_filter_fn *fn;
};
struct mxc_jtest {
    const char *name;
    size_t n_args; /* besides the value */
    bool (*fn)(struct mxc_jrun *run, const struct mxc_jval *a, bool *out);
};
struct mxc_jfunc {
    const char *name;
    bool (*fn)(struct mxc_jrun *run, const struct mxc_jargs *args, struct mxc_jval *out);
};
struct mxc_jmethod_def {
    const char *name, *params; /* params NULL: reads args itself */
    size_t required;
    int op;
    bool (*fn)(struct mxc_jrun *run, const struct mxc_jmethod *method, struct mxc_jval *a,
               const struct mxc_jargs *args, struct mxc_jval *out);
};
extern const struct mxc_jfilter mxc_j_seq_filters[], mxc_j_str_filters[];
extern const struct mxc_jmethod_def mxc_j_str_methods[], mxc_j_dict_methods[], mxc_j_seq_methods[];
extern const struct mxc_jfunc mxc_j_funcs[];
const struct mxc_jfilter *mxc_j_find_filter(struct mxc_str name, bool from_json);
const struct mxc_jtest *mxc_j_find_test(struct mxc_str name);
bool mxc_j_call_filter(struct mxc_jrun *run, const struct mxc_jfilter *filter, struct mxc_jval v,
                       const struct mxc_jargs *args, struct mxc_jval *out);
bool mxc_j_call_test(struct mxc_jrun *run, const struct mxc_jtest *test, struct mxc_jval v,
                     const struct mxc_jargs *args, bool *out);
/* Attribute path of map, sort, ... ("a.b.0"); a missing one gives fallback unless MJ_MISSING. */
bool mxc_j_path(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval path,
                struct mxc_jval fallback, struct mxc_jval *out);
/* Text of strftime for tm; taint of the format. */
bool mxc_j_strftime(struct mxc_jrun *run, const struct mxc_jstr *format, const struct tm *tm,
                    struct mxc_jval *out);
/* Values of JSON data. user: mark strings and numbers. */
bool mxc_j_from_json(struct mxc_jrun *run, const json_t *json, bool user, struct mxc_jval *out);

#endif

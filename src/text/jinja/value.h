/* Values of the template interpreter and their strings.
 *
 * A value is 16 bytes; what it points at lives in the arena of its template (constants) or of its
 * render and is immutable, namespaces and iterators apart. Every string knows for every byte
 * whether it came from the user: `taint` holds one 0/1 byte per text byte, or is NULL and `user`
 * holds for all. Containers and numbers of the caller's variables carry `user` too, so that their
 * printed form is user content as a whole.
 * Fallible functions return false (or -1) after they have set the run's error. */
#ifndef MXC_TEXT_JINJA_VALUE_H
#define MXC_TEXT_JINJA_VALUE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_jrun;
struct mxc_jnode;
struct mxc_jscope;

enum mxc_jtype {
    MJ_MISSING, /* no value at all: an argument that was not given */
    MJ_UNDEF,
    MJ_NONE,
    MJ_BOOL,
    MJ_INT,
    MJ_FLOAT,
    MJ_STR,
    MJ_LIST,
    MJ_TUPLE,
    MJ_DICT,
    MJ_RANGE,
    MJ_VIEW, /* keys(), values(), items() */
    MJ_ITER,
    MJ_NS,
    MJ_MACRO,
    MJ_FUNC,
    MJ_METHOD,
    MJ_LOOP,
    MJ_CYCLER,
    MJ_JOINER
};

struct mxc_jval {
    uint8_t type;
    bool user; /* scalars: came from the caller's variables */
    union {
        bool b;
        int64_t i;
        double f;
        struct mxc_jundef *undef; /* NULL: nothing is known about it */
        struct mxc_jstr *s;
        struct mxc_jseq *q;
        struct mxc_jdict *d;
        struct mxc_jrange *range;
        struct mxc_jview *view;
        struct mxc_jiter *iter;
        struct mxc_jmacro *macro;
        const struct mxc_jfunc *func;
        struct mxc_jmethod *method;
        struct mxc_jloop *loop;
        struct mxc_jcycler *cycler;
        void *p;
    } u;
};

/* A buffer that the newest string at its end may still grow into, so that s = s + t is linear. */
struct mxc_jgrow {
    size_t used, capacity;
};

struct mxc_jstr {
    const char *p;
    const uint8_t *taint;
    size_t len, n_cp; /* n_cp: code points; SIZE_MAX: not counted yet */
    struct mxc_jgrow *grow;
    bool user, markup; /* markup: result of safe or escape */
};

enum mxc_jundef_kind { MJ_U_NAME, MJ_U_MEMBER, MJ_U_HINT, MJ_U_UNSAFE };

struct mxc_jundef {
    enum mxc_jundef_kind kind;
    const char *text; /* the name or hint */
    struct mxc_jval object, member;
};

struct mxc_jseq {
    struct mxc_jval *v;
    size_t n, capacity;
    bool user, group; /* group: an item of groupby, with .grouper and .list */
};

struct mxc_jentry {
    struct mxc_jval key, value;
};

struct mxc_jdict {
    struct mxc_jentry *e; /* insertion order */
    size_t n, capacity;
    uint32_t *index; /* entry + 1; NULL while small */
    size_t n_index;  /* power of two */
    bool user;
};

struct mxc_jrange {
    int64_t start, stop, step;
    size_t n;
};

enum mxc_jview_kind { MJ_KEYS, MJ_VALUES, MJ_ITEMS };

struct mxc_jview {
    struct mxc_jdict *d;
    enum mxc_jview_kind kind;
};

struct mxc_jargs {
    struct mxc_jval *v;
    size_t n;
    struct mxc_jkw {
        struct mxc_jstr *name;
        struct mxc_jval v;
    } * kw;
    size_t n_kw;
};

enum mxc_jiter_kind {
    MJ_IT_INDEX,
    MJ_IT_REVERSED,
    MJ_IT_MAP,
    MJ_IT_SELECT,
    MJ_IT_FOR,
    MJ_IT_BROKEN
};

/* Iterator: over an indexable source (list, tuple, text, dict, range, view), or lazily over
 * another iterator (map, select, a loop's filter). A broken one fails when it is read: Python's
 * generators find out late that their source is not iterable. */
struct mxc_jiter {
    enum mxc_jiter_kind kind;
    const char *type_name;
    struct mxc_jval source;
    size_t pos, n;           /* text: byte offsets */
    struct mxc_jiter *inner; /* lazy kinds; NULL: empty */
    struct mxc_jargs args;   /* map, select: arguments after the value */
    bool by_attribute, reject;
    const struct mxc_jnode *loop_node; /* MJ_IT_FOR */
    struct mxc_jscope *scope;
};

struct mxc_jmethod {
    struct mxc_jval self;
    const struct mxc_jmethod_def *def;
};

struct mxc_jmacro {
    const struct mxc_jnode *node;
    struct mxc_jscope *scope; /* where it was defined */
};

struct mxc_jcycler {
    struct mxc_jval *v;
    size_t n, pos;
};

static inline struct mxc_jval mxc_j_none(void) {
    return (struct mxc_jval){.type = MJ_NONE};
}
static inline struct mxc_jval mxc_j_bool(bool b) {
    return (struct mxc_jval){.type = MJ_BOOL, .u.b = b};
}
static inline struct mxc_jval mxc_j_int(int64_t i) {
    return (struct mxc_jval){.type = MJ_INT, .u.i = i};
}
static inline struct mxc_jval mxc_j_float(double f) {
    return (struct mxc_jval){.type = MJ_FLOAT, .u.f = f};
}
static inline struct mxc_jval mxc_j_of(enum mxc_jtype type, void *p) {
    return (struct mxc_jval){.type = (uint8_t)type, .u.p = p};
}
static inline struct mxc_jval mxc_j_str_val(struct mxc_jstr *s) {
    return (struct mxc_jval){.type = MJ_STR, .u.s = s};
}
static inline bool mxc_j_is_int(struct mxc_jval v) { /* as Python: bool is an int */
    return v.type == MJ_INT || v.type == MJ_BOOL;
}
static inline int64_t mxc_j_as_int(struct mxc_jval v) {
    return v.type == MJ_BOOL ? v.u.b : v.u.i;
}
static inline bool mxc_j_is_number(struct mxc_jval v) {
    return mxc_j_is_int(v) || v.type == MJ_FLOAT;
}
static inline double mxc_j_as_float(struct mxc_jval v) {
    return v.type == MJ_FLOAT ? v.u.f : (double)mxc_j_as_int(v);
}
static inline struct mxc_str mxc_j_slice_of(const struct mxc_jstr *s) {
    return (struct mxc_str){s->p, s->len};
}
static inline bool mxc_j_is(const struct mxc_jstr *s, const char *text) {
    return mxc_str_is(mxc_j_slice_of(s), text);
}

/* --- value.c: construction and Python's rules of truth, equality, order, hashing --- */
void *mxc_j_alloc(struct mxc_jrun *run, size_t count, size_t size); /* zeroed; NULL: error set */
/* Text that outlives the run (constants of this program). */
bool mxc_j_text(struct mxc_jrun *run, const char *text, struct mxc_jval *out);
bool mxc_j_seq(struct mxc_jrun *run, enum mxc_jtype type, size_t capacity, struct mxc_jval *out);
bool mxc_j_push(struct mxc_jrun *run, struct mxc_jseq *q, struct mxc_jval v);
bool mxc_j_pair(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, struct mxc_jval *out);
bool mxc_j_dict(struct mxc_jrun *run, struct mxc_jval *out);
/* Replaces or appends; an unhashable key is an error. */
bool mxc_j_dict_put(struct mxc_jrun *run, struct mxc_jdict *d, struct mxc_jval key,
                    struct mxc_jval value);
/* *out: the entry's value or NULL. */
bool mxc_j_dict_get(struct mxc_jrun *run, struct mxc_jdict *d, struct mxc_jval key,
                    struct mxc_jval **out);
bool mxc_j_undef_name(struct mxc_jrun *run, const char *name, struct mxc_jval *out);
bool mxc_j_undef_hint(struct mxc_jrun *run, const char *hint, struct mxc_jval *out);
bool mxc_j_undef_member(struct mxc_jrun *run, struct mxc_jval object, struct mxc_jval member,
                        bool is_unsafe, struct mxc_jval *out);
/* Sets the UndefinedError (or SecurityError) of v; false. */
bool mxc_j_undef_fail(struct mxc_jrun *run, struct mxc_jval v);

const char *mxc_j_type_name(struct mxc_jval v);
bool mxc_j_truth(struct mxc_jval v);
/* Error for what has no length. */
bool mxc_j_length(struct mxc_jrun *run, struct mxc_jval v, size_t *n);
bool mxc_j_equal(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, bool *equal);
/* op: '<', '>', 'l' (<=), 'g' (>=) */
bool mxc_j_order(struct mxc_jrun *run, struct mxc_jval a, struct mxc_jval b, char op, bool *result);
bool mxc_j_hash(struct mxc_jrun *run, struct mxc_jval v, uint64_t *hash);
bool mxc_j_contains(struct mxc_jrun *run, struct mxc_jval box, struct mxc_jval item, bool *found);
/* Stable sort of items by keys (both permuted); op of mxc_j_order. */
bool mxc_j_sort(struct mxc_jrun *run, struct mxc_jval *keys, struct mxc_jval *items, size_t n,
                bool reverse);

/* --- iter.c --- */
bool mxc_j_iter(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jiter **out);
bool mxc_j_iterable(struct mxc_jval v);
/* 1: *out is the next item; 0: the end; -1: error. */
int mxc_j_next(struct mxc_jrun *run, struct mxc_jiter *it, struct mxc_jval *out);
/* All items that are left as a list. */
bool mxc_j_collect(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval *out);
/* Item i of a sequence-like value with i < length. */
bool mxc_j_item(struct mxc_jrun *run, struct mxc_jval v, size_t i, struct mxc_jval *out);

/* --- str.c: strings and the builder --- */
/* Builder: grows in the run's arena; the top one writes to the result instead. */
struct mxc_jsb {
    struct mxc_jrun *run;
    struct mxc_buf *top; /* the output */
    char *p;
    uint8_t *taint; /* NULL while all bytes are of one kind */
    size_t len, capacity;
    bool user, failed;
};
void mxc_j_sb_init(struct mxc_jsb *sb, struct mxc_jrun *run);
bool mxc_j_put(struct mxc_jsb *sb, const char *p, size_t len, const uint8_t *taint, bool user);
bool mxc_j_put_text(struct mxc_jsb *sb, const char *text, bool user);
bool mxc_j_put_char(struct mxc_jsb *sb, uint32_t cp, bool user);
bool mxc_j_put_fill(struct mxc_jsb *sb, uint32_t cp, size_t n, bool user);
bool mxc_j_put_str(struct mxc_jsb *sb, const struct mxc_jstr *s);
bool mxc_j_put_part(struct mxc_jsb *sb, const struct mxc_jstr *s, size_t offset, size_t len);
bool mxc_j_sb_done(struct mxc_jsb *sb, struct mxc_jval *out);

/* Borrowed bytes, which must live as long as the run. */
bool mxc_j_str_new(struct mxc_jrun *run, const char *p, size_t len, bool user,
                   struct mxc_jval *out);
/* Bytes [offset, offset + len) of s, shared. */
bool mxc_j_str_part(struct mxc_jrun *run, const struct mxc_jstr *s, size_t offset, size_t len,
                    struct mxc_jval *out);
/* The other one itself where one is empty: both live as long as the run. */
bool mxc_j_str_concat(struct mxc_jrun *run, struct mxc_jstr *a, struct mxc_jstr *b,
                      struct mxc_jval *out);
size_t mxc_j_str_count(struct mxc_jstr *s);                   /* code points */
size_t mxc_j_str_offset(const struct mxc_jstr *s, size_t cp); /* byte offset of a code point */
bool mxc_j_tainted(const struct mxc_jstr *s, size_t offset);
bool mxc_j_any_tainted(const struct mxc_jstr *s);
/* First offset >= from where needle stands, or SIZE_MAX. Last one with rfind. */
size_t mxc_j_find(const struct mxc_jstr *s, size_t from, size_t to, const struct mxc_jstr *needle);
size_t mxc_j_rfind(const struct mxc_jstr *s, size_t from, size_t to, const struct mxc_jstr *needle);
size_t mxc_j_decode(const char *p, size_t len, uint32_t *cp); /* never 0 before the end */

/* --- unicode.c: Python's character classes and case mappings --- */
bool mxc_j_is_space(uint32_t cp);
bool mxc_j_is_line_end(uint32_t cp);
bool mxc_j_is_printable(uint32_t cp);
bool mxc_j_is_alpha(uint32_t cp);
bool mxc_j_is_digit(uint32_t cp); /* Nd */
bool mxc_j_is_alnum(uint32_t cp); /* \w without the underscore */
bool mxc_j_is_upper(uint32_t cp);
bool mxc_j_is_lower(uint32_t cp);
bool mxc_j_is_title(uint32_t cp);
enum mxc_jcase {
    MJ_LOWER,
    MJ_UPPER,
    MJ_TITLECASE,
    MJ_CAPITALIZE,
    MJ_SWAPCASE,
    MJ_CASEFOLD,
    MJ_TITLE
};
/* Maps s; each result byte has the taint of the character it came from. */
bool mxc_j_case(struct mxc_jrun *run, const struct mxc_jstr *s, enum mxc_jcase how,
                struct mxc_jval *out);
bool mxc_j_put_case(struct mxc_jsb *sb, const struct mxc_jstr *s, enum mxc_jcase how);

/* --- print.c: str(), repr(), json.dumps() --- */
bool mxc_j_put_val(struct mxc_jsb *sb, struct mxc_jval v); /* str(v) */
bool mxc_j_put_repr(struct mxc_jsb *sb, struct mxc_jval v);
bool mxc_j_to_str(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval *out);
void mxc_j_float_repr(double f, char out[40]);
struct mxc_jjson {
    bool ascii, sort_keys, has_indent;
    const struct mxc_jstr *indent, *item_separator, *key_separator; /* separators NULL: default */
};
bool mxc_j_put_json(struct mxc_jsb *sb, struct mxc_jval v, const struct mxc_jjson *how,
                    unsigned depth);

/* --- format.c --- */
bool mxc_j_percent(struct mxc_jrun *run, const struct mxc_jstr *format, struct mxc_jval args,
                   struct mxc_jval *out);
bool mxc_j_format(struct mxc_jrun *run, const struct mxc_jstr *format, const struct mxc_jargs *args,
                  struct mxc_jval *out);
bool mxc_j_escape(struct mxc_jrun *run, struct mxc_jval v, bool force, struct mxc_jval *out);

#endif

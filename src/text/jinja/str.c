/* Strings of the interpreter and their builder. In: bytes with or without taint. Out: immutable
 * strings in the run's arena. Substrings share their bytes; s + t grows in place when s ends its
 * buffer; the taint map exists only for strings that mix template and user text. The top builder
 * writes to the result and keeps spans instead of a map. */
#define _GNU_SOURCE
#include "text/jinja/run.h"

#include "base/mem.h"

#include <string.h>

enum { LARGE_BYTES = 8 << 10, GROW_MIN = 128 };

void *mxc_j_alloc(struct mxc_jrun *run, size_t count, size_t size) {
    size_t bytes, sum;
    if (!mxc_size_mul(count, size, &bytes) ||
        !mxc_size_add(bytes, run->arena.used_bytes + run->large.used_bytes, &sum) ||
        sum > run->max_bytes) {
        mxc_j_limit(run, "the template uses too much memory");
        return NULL;
    }
    void *p = mxc_arena_alloc(bytes >= LARGE_BYTES ? &run->large : &run->arena, bytes);
    if (!p)
        mxc_j_nomem(run);
    return p;
}

void mxc_j_sb_init(struct mxc_jsb *sb, struct mxc_jrun *run) {
    *sb = (struct mxc_jsb){.run = run};
}

static bool sb_room(struct mxc_jsb *sb, size_t len) {
    size_t need;
    if (!mxc_size_add(sb->len, len, &need))
        return sb->failed = true, mxc_j_limit(sb->run, "a string is too long");
    if (need <= sb->capacity)
        return true;
    size_t capacity = sb->capacity ? sb->capacity : 48;
    while (capacity < need)
        capacity += capacity < need / 2 ? need / 2 : capacity / 2 + 16;
    char *p = mxc_j_alloc(sb->run, capacity, 1);
    uint8_t *taint = p && sb->taint ? mxc_j_alloc(sb->run, capacity, 1) : NULL;
    if (!p || (sb->taint && !taint))
        return sb->failed = true, false;
    if (sb->len) {
        memcpy(p, sb->p, sb->len);
        if (taint)
            memcpy(taint, sb->taint, sb->len);
    }
    sb->p = p;
    sb->taint = taint;
    sb->capacity = capacity;
    return true;
}

/* Output: the bytes go to the buffer, the kind to the list of spans. */
static bool put_top(struct mxc_jsb *sb, const char *p, size_t len, bool user) {
    struct mxc_jrun *run = sb->run;
    struct mxc_jinja_span *last = run->n_spans ? &run->spans[run->n_spans - 1] : NULL;
    if (!last || last->trusted == user) {
        if (run->n_spans == run->spans_capacity) {
            size_t capacity = run->spans_capacity ? run->spans_capacity * 2 : 16;
            struct mxc_jinja_span *grown =
                mxc_mem_realloc(run->spans, capacity, sizeof *run->spans);
            if (!grown)
                return sb->failed = true, mxc_j_nomem(run);
            run->spans = grown;
            run->spans_capacity = capacity;
        }
        last = &run->spans[run->n_spans++];
        *last = (struct mxc_jinja_span){sb->top->length, 0, !user};
    }
    if (!mxc_buf_append(sb->top, p, len)) {
        sb->failed = true;
        if (mxc_buf_status(sb->top, NULL) == MXC_E_NOMEM)
            return mxc_j_nomem(run);
        return mxc_j_limit(run, "the output is too long");
    }
    last->length += len;
    return true;
}

static bool put_uniform(struct mxc_jsb *sb, const char *p, size_t len, bool user) {
    if (sb->top)
        return put_top(sb, p, len, user);
    if (!sb_room(sb, len))
        return false;
    if (!sb->len) {
        sb->user = user;
    } else if (!sb->taint && sb->user != user) {
        sb->taint = mxc_j_alloc(sb->run, sb->capacity, 1);
        if (!sb->taint)
            return sb->failed = true, false;
        memset(sb->taint, sb->user, sb->len);
    }
    memcpy(sb->p + sb->len, p, len);
    if (sb->taint)
        memset(sb->taint + sb->len, user, len);
    sb->len += len;
    return true;
}

bool mxc_j_put(struct mxc_jsb *sb, const char *p, size_t len, const uint8_t *taint, bool user) {
    if (sb->failed)
        return false;
    if (!len)
        return true;
    if (len >= 64 && !mxc_j_step(sb->run, len / 64))
        return sb->failed = true, false;
    if (!taint)
        return put_uniform(sb, p, len, user);
    for (size_t i = 0, j; i < len; i = j) {
        for (j = i + 1; j < len && taint[j] == taint[i]; j++)
            ;
        if (!put_uniform(sb, p + i, j - i, taint[i]))
            return false;
    }
    return true;
}

bool mxc_j_put_text(struct mxc_jsb *sb, const char *text, bool user) {
    return mxc_j_put(sb, text, strlen(text), NULL, user);
}

bool mxc_j_put_char(struct mxc_jsb *sb, uint32_t cp, bool user) {
    char bytes[4];
    return mxc_j_put(sb, bytes, mxc_utf8_encode(cp, bytes), NULL, user);
}

bool mxc_j_put_fill(struct mxc_jsb *sb, uint32_t cp, size_t n, bool user) {
    for (size_t i = 0; i < n; i++) {
        if ((i & 63) == 0 && !mxc_j_step(sb->run, 1))
            return sb->failed = true, false;
        if (!mxc_j_put_char(sb, cp, user))
            return false;
    }
    return true;
}

bool mxc_j_put_str(struct mxc_jsb *sb, const struct mxc_jstr *s) {
    return mxc_j_put(sb, s->p, s->len, s->taint, s->user);
}

bool mxc_j_put_part(struct mxc_jsb *sb, const struct mxc_jstr *s, size_t offset, size_t len) {
    return mxc_j_put(sb, s->p + offset, len, s->taint ? s->taint + offset : NULL, s->user);
}

static struct mxc_jstr *str_alloc(struct mxc_jrun *run, const char *p, size_t len) {
    struct mxc_jstr *s = mxc_j_alloc(run, 1, sizeof *s);
    if (s) {
        s->p = len ? p : "";
        s->len = len;
        s->n_cp = len ? SIZE_MAX : 0;
    }
    return s;
}

bool mxc_j_sb_done(struct mxc_jsb *sb, struct mxc_jval *out) {
    if (sb->failed)
        return false;
    struct mxc_jstr *s = str_alloc(sb->run, sb->p, sb->len);
    if (!s)
        return false;
    s->taint = sb->taint;
    s->user = sb->len && sb->user;
    if (sb->len >= GROW_MIN) {
        if (!(s->grow = mxc_j_alloc(sb->run, 1, sizeof *s->grow)))
            return false;
        *s->grow = (struct mxc_jgrow){sb->len, sb->capacity};
    }
    *out = mxc_j_str_val(s);
    return true;
}

bool mxc_j_str_new(struct mxc_jrun *run, const char *p, size_t len, bool user,
                   struct mxc_jval *out) {
    struct mxc_jstr *s = str_alloc(run, p, len);
    if (!s)
        return false;
    s->user = user && len;
    *out = mxc_j_str_val(s);
    return true;
}

bool mxc_j_str_part(struct mxc_jrun *run, const struct mxc_jstr *s, size_t offset, size_t len,
                    struct mxc_jval *out) {
    struct mxc_jstr *part = str_alloc(run, s->p + offset, len);
    if (!part)
        return false;
    part->taint = len && s->taint ? s->taint + offset : NULL;
    part->user = s->user && len;
    part->markup = s->markup;
    if (s->n_cp == s->len)
        part->n_cp = len;
    *out = mxc_j_str_val(part);
    return true;
}

/* True when b could be written behind a in a's own buffer. The bytes there are unused, so older
 * strings that share the buffer do not change. */
static bool append_in_place(struct mxc_jstr *a, const struct mxc_jstr *b) {
    struct mxc_jgrow *grow = a->grow;
    bool mixed = a->taint || b->taint || a->user != b->user;
    if (!grow || grow->used != a->len || grow->capacity - grow->used < b->len ||
        (mixed && !a->taint))
        return false;
    /* The builder's buffer belongs to this run's arena; const is only for readers. */
    memcpy((char *)(uintptr_t)a->p + a->len, b->p, b->len);
    if (a->taint) {
        uint8_t *taint = (uint8_t *)(uintptr_t)a->taint + a->len;
        if (b->taint)
            memcpy(taint, b->taint, b->len);
        else
            memset(taint, b->user, b->len);
    }
    grow->used += b->len;
    return true;
}

bool mxc_j_str_concat(struct mxc_jrun *run, struct mxc_jstr *a, struct mxc_jstr *b,
                      struct mxc_jval *out) {
    if (!a->len || !b->len) {
        *out = mxc_j_str_val(a->len ? a : b);
        return true;
    }
    if (!mxc_j_step(run, 1 + b->len / 64))
        return false;
    if (append_in_place(a, b)) {
        struct mxc_jstr *s = str_alloc(run, a->p, a->len + b->len);
        if (!s)
            return false;
        s->taint = a->taint;
        s->user = a->user;
        s->grow = a->grow;
        if (a->n_cp != SIZE_MAX && b->n_cp != SIZE_MAX)
            s->n_cp = a->n_cp + b->n_cp;
        *out = mxc_j_str_val(s);
        return true;
    }
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    size_t sum;
    if (mxc_size_add(a->len, b->len, &sum) && sum >= GROW_MIN)
        (void)sb_room(&sb, sum + sum / 2);
    return mxc_j_put_str(&sb, a) && mxc_j_put_str(&sb, b) && mxc_j_sb_done(&sb, out);
}

size_t mxc_j_decode(const char *p, size_t len, uint32_t *cp) {
    size_t n = mxc_utf8_decode(p, len, cp);
    if (n && *cp > 0x10FFFF)
        *cp = 0xFFFD;
    return n;
}

size_t mxc_j_str_count(struct mxc_jstr *s) {
    if (s->n_cp == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->len; i++)
            n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
        s->n_cp = n;
    }
    return s->n_cp;
}

size_t mxc_j_str_offset(const struct mxc_jstr *s, size_t cp) {
    if (s->n_cp == s->len)
        return cp < s->len ? cp : s->len;
    size_t i = 0;
    for (; i < s->len; i++)
        if (((unsigned char)s->p[i] & 0xC0) != 0x80 && cp-- == 0)
            break;
    return i;
}

bool mxc_j_tainted(const struct mxc_jstr *s, size_t offset) {
    return s->taint ? s->taint[offset] : s->user;
}

bool mxc_j_any_tainted(const struct mxc_jstr *s) {
    return s->taint ? memchr(s->taint, 1, s->len) != NULL : s->user;
}

size_t mxc_j_find(const struct mxc_jstr *s, size_t from, size_t to, const struct mxc_jstr *needle) {
    if (from > to || needle->len > to - from)
        return SIZE_MAX;
    if (!needle->len)
        return from;
    const char *hit = memmem(s->p + from, to - from, needle->p, needle->len); /* linear */
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

size_t mxc_j_rfind(const struct mxc_jstr *s, size_t from, size_t to,
                   const struct mxc_jstr *needle) {
    if (from > to || needle->len > to - from)
        return SIZE_MAX;
    for (size_t i = to - needle->len + 1; i-- > from;)
        if (!memcmp(s->p + i, needle->p, needle->len))
            return i;
    return SIZE_MAX;
}

/* The access log's line. Text: columns for reading; JSON: one object, numbers as numbers. */
#include "server/log.h"

#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>

/* Text that came from outside, quoted for JSON or bare, without control characters. */
static void put_text(struct mxc_buf *out, const char *text, bool quoted) {
    struct mxc_str s = mxc_str_of(text);
    uint32_t cp;
    size_t n;
    if (quoted)
        (void)mxc_buf_putc(out, '"');
    for (size_t i = 0; (n = mxc_utf8_decode(s.ptr + i, s.length - i, &cp)); i += n) {
        bool bad = cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || cp == UINT32_MAX;
        if (bad || (!quoted && cp == ' '))
            (void)mxc_buf_putc(out, bad ? '?' : '_');
        else if (quoted && (cp == '"' || cp == '\\'))
            (void)mxc_buf_printf(out, "\\%c", (char)cp);
        else
            (void)mxc_buf_append(out, s.ptr + i, n);
    }
    if (quoted)
        (void)mxc_buf_putc(out, '"');
}

static void put_json(struct mxc_buf *out, const char *name, const char *text) {
    (void)mxc_buf_printf(out, "%s\"%s\":", out->length ? "," : "{", name);
    put_text(out, text, true);
}

static bool as_json(const struct mxc_access *a, struct mxc_buf *out) {
    struct mxc_buf line;
    mxc_buf_init(&line, 1 << 16);
    put_json(&line, "time", a->time);
    put_json(&line, "id", a->id);
    put_json(&line, "client", a->client);
    put_json(&line, "method", a->method);
    put_json(&line, "path", a->path);
    (void)mxc_buf_printf(&line, ",\"status\":%d,\"ms\":%.1f,\"bytes_in\":%llu,\"bytes_out\":%llu",
                         a->status, a->ms, (unsigned long long)a->bytes_in,
                         (unsigned long long)a->bytes_out);
    if (a->key >= 0)
        (void)mxc_buf_printf(&line, ",\"key\":%d", a->key);
    if (a->model && *a->model)
        put_json(&line, "model", a->model);
    if (a->n_prompt >= 0)
        (void)mxc_buf_printf(&line,
                             ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,"
                             "\"generated_tokens\":%lld",
                             (long long)a->n_prompt, (long long)a->n_cached,
                             (long long)a->n_generated);
    put_json(&line, "end", a->end);
    (void)mxc_buf_putc(&line, '}');
    bool ok = !line.failed && mxc_buf_append(out, mxc_buf_text(&line), line.length);
    mxc_buf_fini(&line);
    return ok;
}

bool mxc_access_format(const struct mxc_access *a, enum mxc_log_style style, struct mxc_buf *out) {
    if (style == MXC_LOG_JSON)
        return as_json(a, out);
    (void)mxc_buf_printf(out, "%s ", a->time);
    put_text(out, a->id, false);
    (void)mxc_buf_putc(out, ' ');
    put_text(out, a->client, false);
    (void)mxc_buf_putc(out, ' ');
    put_text(out, a->method, false);
    (void)mxc_buf_putc(out, ' ');
    put_text(out, a->path, false);
    (void)mxc_buf_printf(out, " %d %.1f ms %llu>%llu bytes", a->status, a->ms,
                         (unsigned long long)a->bytes_in, (unsigned long long)a->bytes_out);
    if (a->key >= 0)
        (void)mxc_buf_printf(out, " key %d", a->key);
    if (a->n_prompt >= 0)
        (void)mxc_buf_printf(out, " tokens %lld(%lld cached)+%lld", (long long)a->n_prompt,
                             (long long)a->n_cached, (long long)a->n_generated);
    return mxc_buf_printf(out, " %s", a->end);
}

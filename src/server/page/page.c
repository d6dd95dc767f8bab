/* The chat page: GET / is index.html, GET /page/HASH/NAME are the files that it names. All of them
 * are embedded; nothing is read from disk. HASH is the hash of the files, so they never change at
 * their address and are cached for ever; index.html is asked for again every time, and answered
 * with 304 while it is the same. The page's policy lets nothing in that is not its own: no inline
 * script or style, no other origin, no frame, no form target. */
#include "server/api.h"

#include "server/http.h"
#include "server/page/files.h"

#include <stdio.h>
#include <string.h>

enum { N_HEADERS = 5 };

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

static const char *type_of(const char *name) {
    static const struct {
        const char *end, *type;
    } types[] = {{".html", "text/html; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".svg", "image/svg+xml"}};
    const char *end = strrchr(name, '.');
    for (size_t i = 0; end && i < sizeof types / sizeof *types; i++)
        if (!strcmp(end, types[i].end))
            return types[i].type;
    return "application/octet-stream";
}

static const struct mxc_page_file *find(const char *name) {
    for (size_t i = 0; i < mxc_page_n_files; i++)
        if (!strcmp(mxc_page_files[i].name, name))
            return &mxc_page_files[i];
    return NULL;
}

/* Whether the client has this version: its If-None-Match is "*" or has the tag. */
static bool has_it(const struct mxc_exchange *x, const char *tag) {
    const char *known = mxc_exchange_header(x, "If-None-Match");
    return known && (!strcmp(known, "*") || strstr(known, tag));
}

static enum mxc_code reply(struct mxc_exchange *x, const struct mxc_page_file *file,
                           const char *caching, struct mxc_fault *fault) {
    char tag[40];
    int before = x->private->n_headers;
    (void)snprintf(tag, sizeof tag, "\"%s\"", mxc_page_hash);
    mxc_reply_header(x, "Content-Security-Policy", policy);
    mxc_reply_header(x, "Referrer-Policy", "no-referrer");
    mxc_reply_header(x, "Cross-Origin-Resource-Policy", "same-origin");
    mxc_reply_header(x, "Cache-Control", caching);
    mxc_reply_header(x, "ETag", tag);
    if (x->private->n_headers != before + N_HEADERS) /* never without the policy */
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    if (has_it(x, tag))
        mxc_reply_static(x, 304, "", "", 0);
    else
        mxc_reply_static(x, 200, type_of(file->name), file->bytes, file->length);
    return MXC_OK;
}

enum mxc_code mxc_get_page(struct mxc_exchange *x, struct mxc_fault *fault) {
    const struct mxc_page_file *file = find("index.html");
    if (!file)
        return mxc_fault_status(fault, MXC_E_INTERNAL, 500, "the page was not built in");
    return reply(x, file, "no-cache", fault);
}

enum mxc_code mxc_get_page_file(struct mxc_exchange *x, struct mxc_fault *fault) {
    size_t n = strlen(mxc_page_hash);
    const struct mxc_page_file *file = NULL;
    if (!strncmp(x->tail, mxc_page_hash, n) && x->tail[n] == '/')
        file = find(x->tail + n + 1);
    if (!file || !strcmp(file->name, "index.html"))
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404, "%.100s: the page has no such file",
                                x->path);
    return reply(x, file, "public, max-age=31536000, immutable", fault);
}

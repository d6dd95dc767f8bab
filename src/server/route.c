/* The route table, made from surface.def, and its lookup: a few dozen string comparisons. */
#include "server/route.h"

#include "server/api.h"

#include <stdio.h>
#include <string.h>

static const struct mxc_route routes[] = {
#define MXC_ROUTE(method, path, api, flags, function, summary)                                     \
    {method, path, api, flags, function, summary},
#include "server/surface.def"
};

enum { N_ROUTES = sizeof routes / sizeof *routes };

/* Whether the path fits the pattern; the text of "*" goes to tail. */
static bool fits(const char *pattern, const char *path, char tail[256]) {
    const char *star = strchr(pattern, '*');
    size_t n = star ? (size_t)(star - pattern) : strlen(pattern);
    tail[0] = 0;
    if (!star)
        return !strcmp(pattern, path);
    if (strncmp(pattern, path, n) != 0)
        return false;
    const char *rest = path + n, *behind = star + 1;
    /* without more words behind it, "*" takes slashes too: names of models have them */
    size_t length = *behind ? strcspn(rest, "/") : strlen(rest);
    if (!length || length >= 256 || strcmp(rest + length, behind) != 0)
        return false;
    memcpy(tail, rest, length);
    tail[length] = 0;
    return true;
}

const struct mxc_route *mxc_route_find(const char *method, const char *path, char allow[64],
                                       char tail[256]) {
    const char *wanted = strcmp(method, "HEAD") != 0 ? method : "GET";
    const char *pattern = NULL; /* the first that fits, which is the narrowest */
    size_t used = 0;
    allow[0] = 0;
    for (int i = 0; i < N_ROUTES; i++) {
        if (!fits(routes[i].path, path, tail) || (pattern && strcmp(pattern, routes[i].path) != 0))
            continue;
        pattern = routes[i].path;
        if (!strcmp(routes[i].method, wanted))
            return &routes[i];
        const char *name = routes[i].method;
        int n = snprintf(allow + used, 64 - used, "%s%s%s", used ? ", " : "", name,
                         !strcmp(name, "GET") ? ", HEAD" : "");
        used += n > 0 && (size_t)n < 64 - used ? (size_t)n : 0;
    }
    if (used)
        (void)snprintf(allow + used, 64 - used, ", OPTIONS");
    tail[0] = 0;
    return NULL;
}

const struct mxc_route *mxc_route_at(size_t i) {
    return i < N_ROUTES ? &routes[i] : NULL;
}

enum mxc_api mxc_route_api(const char *path) {
    return !strncmp(path, "/v1/messages", 12) ? MXC_API_ANTHROPIC : MXC_API_OPENAI;
}

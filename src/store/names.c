/* Names of the store: parsing, validity, and the choice among several .gguf files.
 * In: names from users and hubs, neither of them trusted. Out: parts and paths that cannot leave a
 * folder (no "..", no leading dot or dash in a name), an index, or an error. Nothing here touches
 * the disk.
 * Of a model in parts only the first stands for it; mmproj files are no models. A tag that ends a
 * name beats one that occurs in it, so that Q4_K does not pick Q4_K_M. */
#define _GNU_SOURCE
#include "store/names.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool part_valid(const char *text, size_t length) {
    if (!length || length > MXC_REPO_PART_MAX || text[0] == '.' || text[0] == '-')
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && c != '.' && c != '_' && c != '-')
            return false;
        if (c == '.' && i + 1 < length && text[i + 1] == '.')
            return false;
    }
    return true;
}

enum mxc_code mxc_repo_name_parse(const char *text, struct mxc_repo_name *name,
                                  struct mxc_err *err) {
    struct mxc_repo_name out = {0};
    const char *slash = strchr(text, '/');
    const char *start = slash ? slash + 1 : text;
    const char *colon = strchr(start, ':');
    size_t n_owner = slash ? (size_t)(slash - text) : 0;
    size_t n_name = colon ? (size_t)(colon - start) : strlen(start);
    if ((slash && !part_valid(text, n_owner)) || !part_valid(start, n_name) ||
        (colon && !part_valid(colon + 1, strlen(colon + 1))))
        return mxc_err_set(err, MXC_E_ARG, "\"%.200s\" is not a model name (owner/name)", text);
    memcpy(out.owner, text, n_owner);
    memcpy(out.name, start, n_name);
    if (colon)
        memcpy(out.tag, colon + 1, strlen(colon + 1));
    *name = out;
    return MXC_OK;
}

bool mxc_repo_path_valid(const char *path) {
    if (strlen(path) > 1023)
        return false;
    for (const char *p = path;; p++) {
        size_t n = strcspn(p, "/");
        if (!n || n > 255 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 32 || p[i] == 127 || p[i] == '\\')
                return false;
        p += n;
        if (!*p)
            return true;
    }
}

const char *mxc_path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool mxc_text_ends(const char *text, const char *suffix) {
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && !strcasecmp(text + (a - b), suffix);
}

size_t mxc_gguf_stem(const char *name, unsigned *part) {
    size_t n = strlen(name) - (mxc_text_ends(name, ".gguf") ? 5 : 0);
    unsigned of;
    *part = 1;
    /* -00001-of-00003 */
    if (n > 15 && name[n - 15] == '-' && !strncmp(name + (n - 9), "-of-", 4) &&
        strspn(name + (n - 14), "0123456789") == 5 && strspn(name + (n - 5), "0123456789") == 5 &&
        sscanf(name + (n - 14), "%5u-of-%5u", part, &of) == 2)
        return n - 15;
    return n;
}

static bool is_model(const char *path) {
    const char *base = mxc_path_base(path);
    return mxc_text_ends(base, ".gguf") && strncasecmp(base, "mmproj", 6) != 0;
}

enum match { MATCH_NONE, MATCH_PART, MATCH_EXACT };

/* "Q4_K" is exact in "x-Q4_K.gguf" and a part of "x-Q4_K_M.gguf". */
static enum match match_tag(const char *path, const char *tag) {
    const char *base = mxc_path_base(path);
    unsigned part;
    size_t n = mxc_gguf_stem(base, &part), m = strlen(tag);
    if (n >= m && !strncasecmp(base + (n - m), tag, m) &&
        (n == m || strchr("-._", base[n - m - 1])))
        return MATCH_EXACT;
    if (!strcasecmp(base, tag))
        return MATCH_EXACT;
    for (size_t i = 0; i + m <= n; i++)
        if (!strncasecmp(base + i, tag, m))
            return MATCH_PART;
    return MATCH_NONE;
}

/* Counts models that match at least this well; *first is the first one. */
static size_t count(const char *const *paths, size_t n, const char *tag, enum match least,
                    size_t *first) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned part;
        (void)mxc_gguf_stem(mxc_path_base(paths[i]), &part);
        if (!is_model(paths[i]) || part != 1 || (tag && match_tag(paths[i], tag) < least))
            continue;
        if (!found++)
            *first = i;
    }
    return found;
}

static enum mxc_code ambiguous(const char *const *paths, size_t n, const char *tag, size_t found,
                               struct mxc_err *err) {
    char list[320] = "";
    size_t used = 0, shown = 0;
    for (size_t i = 0; i < n && shown < 6; i++) {
        unsigned part;
        const char *base = mxc_path_base(paths[i]);
        (void)mxc_gguf_stem(base, &part);
        if (!is_model(paths[i]) || part != 1 || (tag && match_tag(paths[i], tag) == MATCH_NONE))
            continue;
        int w = snprintf(list + used, sizeof list - used, "%s%s", shown ? ", " : "", base);
        if (w < 0 || (size_t)w >= sizeof list - used) {
            list[used] = 0;
            break;
        }
        used += (size_t)w;
        shown++;
    }
    return mxc_err_set(err, MXC_E_ARG,
                       "%zu .gguf files%s%s; pick one with its path or name:tag, of %s%s", found,
                       tag ? " match " : "", tag ? tag : "", list, found > shown ? ", ..." : "");
}

enum mxc_code mxc_gguf_pick(const char *const *paths, size_t n, const char *tag, bool usual,
                            size_t *index, struct mxc_err *err) {
    static const char *const usuals[] = {"Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q8_0"};
    size_t first = 0;
    if (tag && !*tag)
        tag = NULL;
    size_t found = tag ? count(paths, n, tag, MATCH_EXACT, &first) : 0;
    if (!found)
        found = count(paths, n, tag, MATCH_PART, &first);
    for (size_t i = 0; !tag && usual && found > 1 && i < sizeof usuals / sizeof usuals[0]; i++) {
        size_t at;
        if (count(paths, n, usuals[i], MATCH_EXACT, &at) == 1) {
            first = at;
            found = 1;
        }
    }
    if (!found)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "no .gguf file%s%s", tag ? " matches " : "",
                           tag ? tag : "");
    if (found > 1)
        return ambiguous(paths, n, tag, found, err);
    *index = first;
    return MXC_OK;
}

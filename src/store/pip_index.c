/* Package index: pip's configuration, and pages of files.
 * In: variables and INI files of the user, pages of a server that is not trusted. Out: addresses.
 * A page decides only where bytes come from; what they must be is pinned by the caller.
 * Of pip's configuration one key is read, index-url (or index_url), and a value of one line. */
#define _GNU_SOURCE
#include "store/pip_index.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/digest.h"
#include "store/tree.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_URL_BYTES = 4096 };

/* ---- configuration ---- */

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static struct mxc_str trim(struct mxc_str s) {
    while (s.length && strchr(" \t\r", s.ptr[0]))
        s.ptr++, s.length--;
    while (s.length && strchr(" \t\r", s.ptr[s.length - 1]))
        s.length--;
    return s;
}

static bool is_word(struct mxc_str s, const char *word) {
    if (s.length != strlen(word))
        return false;
    for (size_t i = 0; i < s.length; i++) {
        char c = s.ptr[i] == '_' ? '-' : s.ptr[i];
        if (strncasecmp(&c, &word[i], 1) != 0)
            return false;
    }
    return true;
}

/* index-url of an INI file's most telling section; an empty slice: it has none. */
static struct mxc_str index_of(const char *text) {
    static const char *const sections[] = {"global", "download", "install"};
    struct mxc_str found = {0};
    int found_in = -1, section = -1;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        struct mxc_str line = trim((struct mxc_str){p, n});
        p += n + (p[n] == '\n');
        if (!line.length || line.ptr[0] == '#' || line.ptr[0] == ';')
            continue;
        if (line.ptr[0] == '[') {
            section = -1;
            for (int i = 0; i < 3; i++)
                if (line.length == strlen(sections[i]) + 2 &&
                    is_word((struct mxc_str){line.ptr + 1, line.length - 2}, sections[i]))
                    section = i;
            continue;
        }
        const char *equals = memchr(line.ptr, '=', line.length);
        const char *colon = memchr(line.ptr, ':', line.length);
        if (!equals || (colon && colon < equals))
            equals = colon;
        if (!equals || section < found_in || section < 0 ||
            !is_word(trim((struct mxc_str){line.ptr, (size_t)(equals - line.ptr)}), "index-url"))
            continue;
        found = trim((struct mxc_str){equals + 1, line.length - (size_t)(equals + 1 - line.ptr)});
        found_in = section;
    }
    return found;
}

/* Sets *url when the file has an index. path is taken over; NULL: nothing to look at. */
static enum mxc_code look_into(char *path, char **url, struct mxc_err *err) {
    char *text = NULL;
    size_t length;
    enum mxc_code code = MXC_OK;
    if (path && !*url && mxc_file_exists(path)) {
        code = mxc_file_read(path, MAX_CONFIG_BYTES, &text, &length, err);
        struct mxc_str found = code ? (struct mxc_str){0} : index_of(text);
        if (found.length && !(*url = mxc_mem_dup(found.ptr, found.length)))
            code = mxc_err_nomem(err);
    }
    mxc_mem_free(text);
    mxc_mem_free(path);
    return code;
}

static char *below(const char *dir, const char *name) {
    return dir ? mxc_path_join(dir, name) : NULL;
}

enum mxc_code mxc_pip_index_find(const char *given, char **url, struct mxc_err *err) {
    const char *set = given && *given ? given : environment("PIP_INDEX_URL");
    const char *file = environment("PIP_CONFIG_FILE"), *home = environment("HOME"),
               *config = environment("XDG_CONFIG_HOME");
    char *found = NULL;
    enum mxc_code code = MXC_OK;
    if (set && !(found = mxc_mem_strdup(set)))
        return mxc_err_nomem(err);
    if (!found && file)
        code = look_into(mxc_mem_strdup(file), &found, err);
    if (!code && (!file || strcmp(file, "/dev/null") != 0)) {
        char *const paths[] = {below(environment("VIRTUAL_ENV"), "pip.conf"),
                               config ? below(config, "pip/pip.conf")
                                      : below(home, ".config/pip/pip.conf"),
                               below(home, ".pip/pip.conf"), mxc_mem_strdup("/etc/pip.conf"),
                               mxc_mem_strdup("/etc/xdg/pip/pip.conf")};
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
            if (code)
                mxc_mem_free(paths[i]);
            else
                code = look_into(paths[i], &found, err);
        }
    }
    if (!code && !found)
        code = mxc_err_set(err, MXC_E_NOT_FOUND,
                           "no Python package index is configured: set PIP_INDEX_URL, or index-url "
                           "in pip's configuration, or give --index-url");
    const char *host = found ? strstr(found, "//") : NULL;
    if (!code && host && memchr(host, '@', strcspn(host + 2, "/") + 2))
        code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "the package index's address holds a user name: that is not supported");
    if (code)
        mxc_mem_free(found);
    else
        *url = found;
    return code;
}

/* ---- pages ---- */

/* &amp; and the like in an attribute; in place. */
static void unescape(char *text) {
    static const struct {
        const char *name;
        char c;
    } entities[] = {
        {"&amp;", '&'}, {"&#38;", '&'}, {"&quot;", '"'}, {"&#x2b;", '+'}, {"&#43;", '+'}};
    char *to = text;
    for (const char *p = text; *p;) {
        size_t skip = 0;
        for (size_t i = 0; *p == '&' && i < sizeof entities / sizeof *entities; i++)
            if (!strncasecmp(p, entities[i].name, strlen(entities[i].name))) {
                *to++ = entities[i].c;
                skip = strlen(entities[i].name);
                break;
            }
        if (!skip)
            *to++ = *p;
        p += skip ? skip : 1;
    }
    *to = 0;
}

/* The value of href in a tag's text up to its '>', owned by the caller. */
static char *href_of(const char *tag, size_t length) {
    const char *p = tag, *end = tag + length;
    while ((p = memmem(p, (size_t)(end - p), "href", 4))) {
        p += 4;
        while (p < end && (*p == ' ' || *p == '='))
            p++;
        if (p == end || (*p != '"' && *p != '\''))
            continue;
        const char *close = memchr(p + 1, *p, (size_t)(end - p - 1));
        if (!close)
            return NULL;
        char *value = mxc_mem_dup(p + 1, (size_t)(close - p - 1));
        if (value)
            unescape(value);
        return value;
    }
    return NULL;
}

/* The address of the anchor whose text is the file's name, owned by the caller; NULL: none. */
static char *find_html(const char *text, const char *file) {
    for (const char *p = text; (p = strcasestr(p, "<a")); p += 2) {
        if (p[2] != ' ' && p[2] != '\t' && p[2] != '\n' && p[2] != '\r')
            continue;
        const char *end = strchr(p, '>');
        if (!end)
            return NULL;
        const char *name = end + 1 + strspn(end + 1, " \t\r\n");
        size_t n = strcspn(name, " \t\r\n<");
        if (n == strlen(file) && !memcmp(name, file, n))
            return href_of(p, (size_t)(end - p));
    }
    return NULL;
}

static enum mxc_code find_json(const char *text, size_t length, const char *file, char **href,
                               char sha256[65], struct mxc_err *err) {
    json_t *root, *item;
    size_t i;
    enum mxc_code code = mxc_json_parse(text, length, "the package index's page", &root, err);
    if (code)
        return code;
    json_array_foreach(json_object_get(root, "files"), i, item) {
        const char *name = json_string_value(json_object_get(item, "filename"));
        const char *url = json_string_value(json_object_get(item, "url"));
        const char *hash =
            json_string_value(json_object_get(json_object_get(item, "hashes"), "sha256"));
        if (!name || !url || strcmp(name, file) != 0)
            continue;
        if (!(*href = mxc_mem_strdup(url)))
            code = mxc_err_nomem(err);
        if (hash && mxc_digest_valid(hash, true))
            memcpy(sha256, hash, 65);
        break;
    }
    json_decref(root);
    return code;
}

/* "#sha256=..." off the end of an address. */
static void take_fragment(char *href, char sha256[65]) {
    char *fragment = strchr(href, '#');
    if (!fragment)
        return;
    *fragment++ = 0;
    if (!strncmp(fragment, "sha256=", 7) && mxc_digest_valid(fragment + 7, true))
        memcpy(sha256, fragment + 7, 65);
}

static enum mxc_code make_absolute(const char *page_url, const char *href, char **url,
                                   struct mxc_err *err) {
    char *full = NULL;
    CURLU *u = curl_url();
    if (!u)
        return mxc_err_nomem(err);
    bool fine = !curl_url_set(u, CURLUPART_URL, page_url, 0) &&
                !curl_url_set(u, CURLUPART_URL, href, 0) &&
                !curl_url_get(u, CURLUPART_URL, &full, 0) && strlen(full) < MAX_URL_BYTES;
    enum mxc_code code = MXC_OK;
    if (!fine)
        code = mxc_err_set(err, MXC_E_FORMAT, "the package index gives \"%.200s\" as an address",
                           href);
    else if (!(*url = mxc_mem_strdup(full)))
        code = mxc_err_nomem(err);
    curl_free(full);
    curl_url_cleanup(u);
    return code;
}

enum mxc_code mxc_pip_index_file(const char *text, size_t length, const char *page_url,
                                 const char *file, char **url, char sha256[65],
                                 struct mxc_err *err) {
    char *href = NULL, hash[65] = "";
    enum mxc_code code = MXC_OK;
    if (text[strspn(text, " \t\r\n")] == '{')
        code = find_json(text, length, file, &href, hash, err);
    else
        href = find_html(text, file);
    if (!code && !href)
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "the package index does not list %s", file);
    if (!code) {
        take_fragment(href, hash);
        code = make_absolute(page_url, href, url, err);
    }
    if (!code)
        memcpy(sha256, hash, sizeof hash);
    mxc_mem_free(href);
    return code;
}

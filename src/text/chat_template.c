/* Chat template: named, compiled templates of a model and the tokens they may print. In: template
 * texts, variables as JSON. Out: text with spans. Nothing changes after new, so threads share it.
 */
#include "text/chat_template.h"

#include "base/arena.h"
#include "base/mem.h"
#include "base/str.h"

#include <string.h>

struct mxc_chat_template {
    struct mxc_arena arena;
    struct named {
        const char *name;
        struct mxc_jinja *jinja;
    } * templates;
    size_t n_templates;
    struct mxc_jinja_token *tokens;
    size_t n_tokens;
};

static enum mxc_code copy_tokens(struct mxc_chat_template *chat,
                                 const struct mxc_jinja_token *tokens, size_t n,
                                 struct mxc_err *err) {
    chat->tokens = mxc_arena_array(&chat->arena, n, sizeof *chat->tokens);
    if (!chat->tokens)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        if (!tokens[i].text)
            continue;
        struct mxc_jinja_token *copy = &chat->tokens[chat->n_tokens];
        copy->name = mxc_arena_strdup(&chat->arena, tokens[i].name);
        copy->text = mxc_arena_strdup(&chat->arena, tokens[i].text);
        if (!copy->name || !copy->text)
            return mxc_err_nomem(err);
        chat->n_tokens++;
    }
    return MXC_OK;
}

enum mxc_code mxc_chat_template_new(const struct mxc_chat_template_source *sources,
                                    size_t n_sources, const struct mxc_jinja_token *tokens,
                                    size_t n_tokens, bool from_json,
                                    struct mxc_chat_template **chat, struct mxc_err *err) {
    if (!n_sources)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "the model has no chat template");
    struct mxc_chat_template *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c)
        return mxc_err_nomem(err);
    mxc_arena_init(&c->arena, 0);
    enum mxc_code code = copy_tokens(c, tokens, n_tokens, err);
    if (code != MXC_OK)
        goto out;
    c->templates = mxc_arena_array(&c->arena, n_sources, sizeof *c->templates);
    if (!c->templates) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < n_sources; i++) {
        const char *name = sources[i].name ? sources[i].name : "default";
        struct named *t = &c->templates[i];
        if (!(t->name = mxc_arena_strdup(&c->arena, name))) {
            code = mxc_err_nomem(err);
            goto out;
        }
        code = mxc_jinja_compile(sources[i].text, sources[i].length, from_json, &t->jinja, err);
        if (code != MXC_OK) {
            if (sources[i].name)
                code = mxc_err_context(err, "chat template '%s'", name);
            else
                code = mxc_err_context(err, "chat template");
            goto out;
        }
        c->n_templates++;
    }
out:
    if (code == MXC_OK)
        *chat = c;
    else
        mxc_chat_template_free(c);
    return code;
}

void mxc_chat_template_free(struct mxc_chat_template *chat) {
    if (!chat)
        return;
    for (size_t i = 0; i < chat->n_templates; i++)
        mxc_jinja_free(chat->templates[i].jinja);
    mxc_arena_fini(&chat->arena);
    mxc_mem_free(chat);
}

static const struct named *find(const struct mxc_chat_template *chat, const char *name) {
    for (size_t i = 0; i < chat->n_templates; i++)
        if (!strcmp(chat->templates[i].name, name))
            return &chat->templates[i];
    return NULL;
}

enum mxc_code mxc_chat_template_render(const struct mxc_chat_template *chat, const char *name,
                                       const json_t *vars, const struct mxc_jinja_options *options,
                                       struct mxc_jinja_result *result, struct mxc_err *err) {
    const struct named *t = NULL;
    if (name) {
        if (!(t = find(chat, name)))
            return mxc_err_set(err, MXC_E_NOT_FOUND, "there is no chat template '%s'", name);
    } else {
        if (json_array_size(json_object_get(vars, "tools")))
            t = find(chat, "tool_use");
        if (!t)
            t = find(chat, "default");
        if (!t)
            t = &chat->templates[0];
    }
    struct mxc_jinja_options full = options ? *options : (struct mxc_jinja_options){0};
    full.tokens = chat->tokens;
    full.n_tokens = chat->n_tokens;
    struct mxc_err local;
    struct mxc_err *e = err ? err : &local;
    enum mxc_code code = mxc_jinja_render(t->jinja, vars, &full, result, e);
    if (code == MXC_OK)
        return code;
    return chat->n_templates > 1 ? mxc_err_context(e, "chat template '%s'", t->name)
                                 : mxc_err_context(e, "chat template");
}

static bool digits(const char *text, size_t n, int *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *out = *out * 10 + (text[i] - '0');
    }
    return true;
}

enum mxc_code mxc_chat_template_clock(const char *text, struct tm *now, struct mxc_err *err) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    struct tm t = {0};
    int year = 0;
    bool ok = text && strlen(text) == 19 && digits(text, 4, &year) && text[4] == '-' &&
              digits(text + 5, 2, &t.tm_mon) && text[7] == '-' && digits(text + 8, 2, &t.tm_mday) &&
              (text[10] == 'T' || text[10] == ' ') && digits(text + 11, 2, &t.tm_hour) &&
              text[13] == ':' && digits(text + 14, 2, &t.tm_min) && text[16] == ':' &&
              digits(text + 17, 2, &t.tm_sec);
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (ok)
        ok = year >= 1 && t.tm_mon >= 1 && t.tm_mon <= 12 && t.tm_mday >= 1 && t.tm_hour < 24 &&
             t.tm_min < 60 && t.tm_sec < 60 &&
             t.tm_mday <= days[t.tm_mon - 1] + (leap && t.tm_mon == 2);
    if (!ok)
        return mxc_err_set(err, MXC_E_USAGE, "'%s' is no time like 2026-11-30T12:34:56",
                           text ? text : "");
    t.tm_mon--;
    t.tm_year = year - 1900;
    t.tm_yday = t.tm_mday - 1;
    for (int m = 0; m < t.tm_mon; m++)
        t.tm_yday += days[m] + (leap && m == 1);
    int before = year - 1; /* 1 January of year 1 was a Monday */
    t.tm_wday = (1 + before * 365 + before / 4 - before / 100 + before / 400 + t.tm_yday) % 7;
    t.tm_isdst = -1;
    *now = t;
    return MXC_OK;
}

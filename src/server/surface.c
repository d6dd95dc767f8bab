/* The list of flags, routes and fields as JSON. */
#include "server/surface.h"

#include "server/params.h"
#include "server/route.h"

#include <string.h>

struct flag {
    const char *kind, *names, *metavar, *environment, *help;
};
static const struct flag flags[] = {
#define MXC_FLAG(kind, names, metavar, environment, member, min, max, help)                        \
    {#kind, names, metavar, environment, help},
#include "server/surface.def"
};

static const struct {
    const char *names, *environment, *instead;
} refused[] = {
#define MXC_REFUSED(names, environment, instead) {names, environment, instead},
#include "server/surface.def"
};

static const struct {
    unsigned where;
    const char *name, *type, *state, *help;
} fields[] = {
#define MXC_FIELD_REAL(where, name, member, min, max, help)                                        \
    {where, name, "number", "honoured", help},
#define MXC_FIELD_INT(where, name, member, min, max, help)                                         \
    {where, name, "integer", "honoured", help},
#define MXC_FIELD_READ(where, name, type, help)    {where, name, type, "honoured", help},
#define MXC_FIELD_LABEL(where, name, help)         {where, name, "any", "label", help},
#define MXC_FIELD_ONLY(where, name, json, instead) {where, name, json, "only", instead},
#include "server/surface.def"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Takes item in; false: out of memory. */
static bool add(json_t *list, json_t *item) {
    return !json_array_append_new(list, item);
}

static bool add_flags(json_t *list, json_t *list_refused) {
    for (size_t i = 0; i < COUNT(flags); i++)
        if (strcmp(flags[i].kind, "HEADING") != 0 &&
            !add(list, json_pack("{s:s,s:s?,s:s?,s:s,s:s}", "names", flags[i].names, "value",
                                 flags[i].metavar, "environment", flags[i].environment, "help",
                                 flags[i].help, "kind", flags[i].kind)))
            return false;
    for (size_t i = 0; i < COUNT(refused); i++)
        if (!add(list_refused, json_pack("{s:s,s:s?,s:s}", "names", refused[i].names, "environment",
                                         refused[i].environment, "instead", refused[i].instead)))
            return false;
    return true;
}

static bool add_routes(json_t *list) {
    const struct mxc_route *r;
    for (size_t i = 0; (r = mxc_route_at(i)); i++)
        if (!add(list, json_pack("{s:s,s:s,s:b,s:b,s:s}", "method", r->method, "path", r->path,
                                 "public", (r->flags & MXC_ROUTE_PUBLIC) != 0, "json",
                                 (r->flags & MXC_ROUTE_JSON) != 0, "summary", r->summary)))
            return false;
    return true;
}

static bool add_fields(json_t *list) {
    static const struct {
        unsigned bit;
        const char *name;
    } groups[] = {{MXC_FIELDS_CHAT, "chat"},
                  {MXC_FIELDS_COMPLETION, "completions"},
                  {MXC_FIELDS_LLAMA, "completion"},
                  {MXC_FIELDS_MESSAGES, "messages"},
                  {MXC_FIELDS_RESPONSES, "responses"},
                  {MXC_FIELDS_EMBED, "embeddings"},
                  {MXC_FIELDS_TOKENIZE, "tokenize"},
                  {MXC_FIELDS_DETOKENIZE, "detokenize"},
                  {MXC_FIELDS_TEMPLATE, "apply-template"}};
    for (size_t i = 0; i < COUNT(fields); i++) {
        json_t *where = json_array();
        for (size_t k = 0; k < COUNT(groups); k++)
            if ((fields[i].where & groups[k].bit) && !add(where, json_string(groups[k].name))) {
                json_decref(where);
                return false;
            }
        if (!add(list,
                 json_pack("{s:s,s:o,s:s,s:s,s:s}", "name", fields[i].name, "routes", where, "type",
                           fields[i].type, "state", fields[i].state, "help", fields[i].help)))
            return false;
    }
    return true;
}

json_t *mxc_surface_json(void) {
    json_t *all = json_pack("{s:[],s:[],s:[],s:[]}", "flags", "refused_flags", "routes", "fields");
    if (all && add_flags(json_object_get(all, "flags"), json_object_get(all, "refused_flags")) &&
        add_routes(json_object_get(all, "routes")) && add_fields(json_object_get(all, "fields")))
        return all;
    json_decref(all);
    return NULL;
}

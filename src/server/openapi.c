/* /openapi.json: the routes and their fields as an OpenAPI 3.1 description, made from surface.def.
 * Schemas say what surface.def knows: types, ranges, the only values taken. */
#define _GNU_SOURCE
#include "server/api.h"

#include <math.h>
#include <string.h>

enum field_kind { REAL, INT, READ, LABEL, ONLY };

static const struct {
    unsigned where;
    enum field_kind kind;
    const char *name, *type; /* type: of READ; the value of ONLY */
    double min, max;
    const char *help;
} fields[] = {
#define MXC_FIELD_REAL(where, name, member, min, max, help) {where, REAL, name, "", min, max, help},
#define MXC_FIELD_INT(where, name, member, min, max, help)  {where, INT, name, "", min, max, help},
#define MXC_FIELD_READ(where, name, type, help)             {where, READ, name, type, 0, 0, help},
#define MXC_FIELD_LABEL(where, name, help)                  {where, LABEL, name, "", 0, 0, help},
#define MXC_FIELD_ONLY(where, name, json, help)             {where, ONLY, name, json, 0, 0, help},
#include "server/surface.def"
};

/* Which fields a route reads, and the one it needs. */
static const struct {
    const char *path;
    unsigned where;
    const char *needs;
} bodies[] = {{"/v1/chat/completions", MXC_FIELDS_CHAT, "messages"},
              {"/chat/completions", MXC_FIELDS_CHAT, "messages"},
              {"/v1/completions", MXC_FIELDS_COMPLETION, "prompt"},
              {"/v1/responses", MXC_FIELDS_RESPONSES, "input"},
              {"/v1/messages", MXC_FIELDS_MESSAGES, "messages"},
              {"/v1/messages/count_tokens", MXC_FIELDS_MESSAGES, "messages"},
              {"/completion", MXC_FIELDS_LLAMA, "prompt"},
              {"/completions", MXC_FIELDS_LLAMA, "prompt"},
              {"/infill", MXC_FIELDS_LLAMA, NULL},
              {"/v1/embeddings", MXC_FIELDS_EMBED, "input"},
              {"/embedding", MXC_FIELDS_EMBED, NULL},
              {"/embeddings", MXC_FIELDS_EMBED, NULL},
              {"/tokenize", 0, "content"},
              {"/detokenize", 0, "tokens"},
              {"/apply-template", 0, "messages"}};

/* {"type": [of the words "list or object", "null"]}; anything for words that are no types. */
static json_t *schema_of_words(const char *words) {
    static const struct {
        const char *word, *type;
    } types[] = {{"string", "string"},   {"list", "array"},    {"object", "object"},
                 {"integer", "integer"}, {"number", "number"}, {"boolean", "boolean"}};
    json_t *list = json_array();
    for (size_t i = 0; list && i < sizeof types / sizeof *types; i++)
        if (strstr(words, types[i].word) && json_array_append_new(list, json_string(types[i].type)))
            goto fail;
    if (!list || json_array_append_new(list, json_string("null")))
        goto fail;
    return json_pack("{s:o}", "type", list);
fail:
    json_decref(list);
    return NULL;
}

static json_t *schema_of(size_t i) {
    json_t *value, *schema = NULL;
    switch (fields[i].kind) {
    case REAL:
        schema = json_pack("{s:[s,s],s:f,s:f}", "type", "number", "null", "minimum", fields[i].min,
                           "maximum", fields[i].max);
        break;
    case INT:
        schema = json_pack("{s:[s,s],s:I,s:I}", "type", "integer", "null", "minimum",
                           (json_int_t)fields[i].min, "maximum", (json_int_t)fields[i].max);
        break;
    case READ:
        schema = schema_of_words(fields[i].type);
        break;
    case LABEL:
        schema = json_object();
        break;
    case ONLY:
        value = json_loads(fields[i].type, JSON_DECODE_ANY, NULL);
        schema = value ? json_pack("{s:[o,n]}", "enum", value) : NULL;
        break;
    }
    if (schema && !json_object_set_new(schema, "description", json_string(fields[i].help)))
        return schema;
    json_decref(schema);
    return NULL;
}

/* The schema of a route's body. */
static json_t *body_of(const struct mxc_route *route) {
    json_t *properties = json_object(), *schema = NULL;
    size_t b = 0, n = sizeof bodies / sizeof *bodies;
    while (b < n && strcmp(bodies[b].path, route->path) != 0)
        b++;
    bool ok = properties != NULL;
    for (size_t i = 0; ok && b < n && i < sizeof fields / sizeof *fields; i++)
        if (fields[i].where & bodies[b].where)
            ok = !json_object_set_new(properties, fields[i].name, schema_of(i));
    if (ok)
        schema = json_pack("{s:s,s:O}", "type", "object", "properties", properties);
    json_decref(properties);
    if (schema && b < n && bodies[b].needs &&
        json_object_set_new(schema, "required", json_pack("[s]", bodies[b].needs))) {
        json_decref(schema);
        schema = NULL;
    }
    if (!schema)
        return NULL;
    return json_pack("{s:b,s:{s:{s:o}}}", "required", 1, "content", "application/json", "schema",
                     schema);
}

static json_t *operation_of(const struct mxc_route *route, bool has_name) {
    json_t *o =
        json_pack("{s:s,s:{s:{s:s},s:{s:s}}}", "summary", route->summary, "responses", "200",
                  "description", "the answer", "default", "description", "an error object");
    bool ok = o != NULL;
    if (ok && (route->flags & MXC_ROUTE_JSON))
        ok = !json_object_set_new(o, "requestBody", body_of(route));
    if (ok && (route->flags & MXC_ROUTE_PUBLIC))
        ok = !json_object_set_new(o, "security", json_array());
    if (ok && has_name)
        ok = !json_object_set_new(o, "parameters",
                                  json_pack("[{s:s,s:s,s:b,s:{s:s}}]", "name", "name", "in", "path",
                                            "required", 1, "schema", "type", "string"));
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static bool add_route(json_t *paths, const struct mxc_route *route) {
    char path[256], method[16];
    size_t n = 0, m = strlen(route->method);
    for (const char *p = route->path; *p && n < sizeof path - 8; p++) {
        if (*p == '*') {
            memcpy(path + n, "{name}", 6);
            n += 6;
        } else {
            path[n++] = *p;
        }
    }
    path[n] = 0;
    for (size_t i = 0; i <= m && i < sizeof method; i++)
        method[i] = (char)(route->method[i] | (i < m ? 0x20 : 0));
    json_t *item = json_object_get(paths, path);
    if (!item && json_object_set_new(paths, path, json_object()))
        return false;
    return !json_object_set_new(json_object_get(paths, path), method,
                                operation_of(route, strchr(route->path, '*') != NULL));
}

enum mxc_code mxc_get_openapi(struct mxc_exchange *x, struct mxc_fault *fault) {
    const char *prefix = x->server->options.prefix;
    json_t *paths = json_object();
    const struct mxc_route *route;
    bool ok = paths != NULL;
    for (size_t i = 0; ok && (route = mxc_route_at(i)); i++)
        ok = add_route(paths, route);
    json_t *all =
        ok ? json_pack("{s:s,s:{s:s,s:s},s:[{s:s}],s:O,s:{s:{s:{s:s,s:s}}},s:[{s:[]},{}]}",
                       "openapi", "3.1.0", "info", "title", "mlxcel", "version", MLXCEL_VERSION,
                       "servers", "url", prefix && *prefix ? prefix : "/", "paths", paths,
                       "components", "securitySchemes", "key", "type", "http", "scheme", "bearer",
                       "security", "key")
           : NULL;
    json_decref(paths);
    if (!all)
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    mxc_reply_json(x, 200, all);
    return MXC_OK;
}

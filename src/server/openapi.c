/* /openapi.json: the routes and their fields as an OpenAPI 3.1 description, made from surface.def.
 * Schemas say what surface.def knows: types, ranges, the only values taken. */
#define _GNU_SOURCE
#include "server/api.h"

#include <assert.h>
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

/* What a route reads, what it needs, and a body to try. */
static const struct {
    const char *path;
    unsigned where;
    const char *needs, *example;
} bodies[] = {
    {"/v1/chat/completions", MXC_FIELDS_CHAT, "[\"messages\"]",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": 16}"},
    {"/chat/completions", MXC_FIELDS_CHAT, "[\"messages\"]",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": 16}"},
    {"/v1/completions", MXC_FIELDS_COMPLETION, "[\"prompt\"]",
     "{\"prompt\": \"Once upon a time\", \"max_tokens\": 16}"},
    {"/v1/responses", MXC_FIELDS_RESPONSES, "[\"input\"]",
     "{\"input\": \"Hello\", \"max_output_tokens\": 16}"},
    {"/v1/responses/input_tokens", MXC_FIELDS_RESPONSES, "[\"input\"]", "{\"input\": \"Hello\"}"},
    {"/v1/messages", MXC_FIELDS_MESSAGES, "[\"messages\", \"max_tokens\"]",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": 16}"},
    {"/v1/messages/count_tokens", MXC_FIELDS_MESSAGES, "[\"messages\"]",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}"},
    {"/completion", MXC_FIELDS_LLAMA, "[\"prompt\"]",
     "{\"prompt\": \"Once upon a time\", \"n_predict\": 16}"},
    {"/completions", MXC_FIELDS_LLAMA, "[\"prompt\"]",
     "{\"prompt\": \"Once upon a time\", \"n_predict\": 16}"},
    {"/infill", MXC_FIELDS_LLAMA, "[]",
     "{\"input_prefix\": \"def f(\", \"input_suffix\": \"return x\", \"n_predict\": 16}"},
    {"/v1/embeddings", MXC_FIELDS_EMBED, "[\"input\"]", "{\"input\": \"Hello\"}"},
    {"/embedding", MXC_FIELDS_EMBED, "[]", "{\"content\": \"Hello\"}"},
    {"/embeddings", MXC_FIELDS_EMBED, "[]", "{\"content\": \"Hello\"}"},
    {"/tokenize", MXC_FIELDS_TOKENIZE, "[\"content\"]", "{\"content\": \"Hello\"}"},
    {"/detokenize", MXC_FIELDS_DETOKENIZE, "[\"tokens\"]", "{\"tokens\": [1, 2]}"},
    {"/apply-template", MXC_FIELDS_TEMPLATE, "[\"messages\"]",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}"}};

#define CHATS    (MXC_FIELDS_CHAT | MXC_FIELDS_TEMPLATE)
#define MAKES    (MXC_FIELDS_CHAT | MXC_FIELDS_COMPLETION | MXC_FIELDS_LLAMA)
#define DIALECTS (MXC_FIELDS_MESSAGES | MXC_FIELDS_RESPONSES)
#define CONTENT                                                                                    \
    "{\"type\": [\"string\", \"array\", \"null\"], \"items\": {\"type\": \"object\", "             \
    "\"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": [\"text\", \"image_url\"]}, " \
    "\"text\": {\"type\": \"string\"}, \"image_url\": {\"type\": [\"object\", \"string\"], "       \
    "\"properties\": {\"url\": {\"type\": \"string\"}}}}}}"
#define FORMS "[\"text\", \"json_object\", \"json_schema\"]"

/* More than a type, where surface.def has no more: added to the schema of a field. */
static const struct {
    unsigned where;
    const char *name, *schema;
} details[] = {
    {CHATS, "messages",
     "{\"minItems\": 1, \"items\": {\"type\": \"object\", \"required\": [\"role\"], "
     "\"properties\": {\"role\": {\"enum\": [\"system\", \"developer\", \"user\", \"assistant\", "
     "\"tool\"]}, \"content\": " CONTENT ", \"tool_call_id\": {\"type\": \"string\"}}}}"},
    {MXC_FIELDS_MESSAGES, "messages",
     "{\"minItems\": 1, \"items\": {\"type\": \"object\", \"required\": [\"role\", \"content\"], "
     "\"properties\": {\"role\": {\"enum\": [\"user\", \"assistant\"]}, "
     "\"content\": {\"type\": [\"string\", \"array\"]}}}}"},
    {CHATS, "tools",
     "{\"items\": {\"type\": \"object\", \"required\": [\"type\", \"function\"], \"properties\": "
     "{\"type\": {\"const\": \"function\"}, \"function\": {\"type\": \"object\", \"required\": "
     "[\"name\"], \"properties\": {\"name\": {\"type\": \"string\", \"pattern\": "
     "\"^[A-Za-z0-9_-]{1,64}$\"}, \"description\": {\"type\": \"string\"}, \"parameters\": "
     "{\"type\": \"object\"}}}}}}"},
    {MXC_FIELDS_MESSAGES, "tools",
     "{\"items\": {\"type\": \"object\", \"required\": [\"name\", \"input_schema\"], "
     "\"properties\": {\"name\": {\"type\": \"string\", \"pattern\": \"^[A-Za-z0-9_-]{1,64}$\"}, "
     "\"description\": {\"type\": \"string\"}, \"input_schema\": {\"type\": \"object\"}}}}"},
    {MXC_FIELDS_RESPONSES, "tools",
     "{\"items\": {\"type\": \"object\", \"required\": [\"type\", \"name\"], \"properties\": "
     "{\"type\": {\"const\": \"function\"}, \"name\": {\"type\": \"string\", \"pattern\": "
     "\"^[A-Za-z0-9_-]{1,64}$\"}, \"parameters\": {\"type\": \"object\"}}}}"},
    {MXC_FIELDS_RESPONSES, "input",
     "{\"items\": {\"type\": \"object\", \"properties\": {\"type\": {\"enum\": [\"message\", "
     "\"function_call\", \"function_call_output\", \"reasoning\"]}, \"role\": {\"enum\": "
     "[\"system\", \"developer\", \"user\", \"assistant\"]}, \"content\": {\"type\": "
     "[\"string\", \"array\"]}}}}"},
    {MAKES, "response_format",
     "{\"properties\": {\"type\": {\"enum\": " FORMS "}, \"json_schema\": {\"type\": \"object\", "
     "\"properties\": {\"name\": {\"type\": \"string\"}, \"schema\": {\"type\": "
     "\"object\"}}}}}"},
    {MXC_FIELDS_RESPONSES, "text",
     "{\"properties\": {\"format\": {\"type\": \"object\", \"properties\": {\"type\": {\"enum\": "
     "" FORMS "}, \"name\": {\"type\": \"string\"}, \"schema\": {\"type\": \"object\"}}}}}"},
    {CHATS, "thinking",
     "{\"properties\": {\"type\": {\"enum\": [\"enabled\", \"disabled\", \"adaptive\"]}, "
     "\"budget_tokens\": {\"type\": \"integer\", \"minimum\": 0}}}"},
    {CHATS, "reasoning_effort",
     "{\"enum\": [\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", null]}"},
    {CHATS, "reasoning_format", "{\"enum\": [\"auto\", \"deepseek\", \"none\", null]}"},
    {MXC_FIELDS_CHAT | MXC_FIELDS_RESPONSES, "tool_choice",
     "{\"anyOf\": [{\"enum\": [\"auto\", \"none\", \"required\", null]}, {\"type\": "
     "\"object\"}]}"},
    {MXC_FIELDS_MESSAGES, "tool_choice",
     "{\"properties\": {\"type\": {\"enum\": [\"auto\", \"any\", \"tool\", \"none\"]}, "
     "\"name\": {\"type\": \"string\"}}}"},
    {MAKES, "stream_options", "{\"properties\": {\"include_usage\": {\"type\": \"boolean\"}}}"},
    {MAKES, "stop",
     "{\"minLength\": 1, \"maxItems\": 64, \"items\": {\"type\": \"string\", \"minLength\": 1}}"},
    {MXC_FIELDS_MESSAGES, "stop_sequences",
     "{\"items\": {\"type\": \"string\", \"minLength\": 1}}"},
    {MAKES, "stop_token_ids",
     "{\"maxItems\": 256, \"items\": {\"type\": \"integer\", \"minimum\": 0}}"},
    {MAKES, "dry_sequence_breakers",
     "{\"minItems\": 1, \"maxItems\": 64, \"items\": {\"type\": \"string\", \"minLength\": 1}}"},
    {MAKES, "guided_choice", "{\"minItems\": 1, \"items\": {\"type\": \"string\"}}"},
    {MAKES, "n", "{\"minimum\": 1, \"maximum\": 32}"},
    {MAKES | DIALECTS, "priority", "{\"minimum\": 0, \"maximum\": 1000}"},
    {MXC_FIELDS_CHAT, "top_logprobs", "{\"minimum\": 0, \"maximum\": 20}"},
    {MXC_FIELDS_RESPONSES, "top_logprobs", "{\"minimum\": 0, \"maximum\": 20}"},
    {MXC_FIELDS_COMPLETION, "logprobs", "{\"minimum\": 0, \"maximum\": 20}"},
    {MXC_FIELDS_LLAMA, "n_probs", "{\"minimum\": 0, \"maximum\": 128}"},
    {MAKES, "max_tokens", "{\"minimum\": -1, \"maximum\": 2147483647}"},
    {MAKES, "n_predict", "{\"minimum\": -2, \"maximum\": 2147483647}"},
    {MXC_FIELDS_CHAT, "max_completion_tokens", "{\"minimum\": 0, \"maximum\": 2147483647}"},
    {MXC_FIELDS_MESSAGES, "max_tokens", "{\"minimum\": 1, \"maximum\": 2147483647}"},
    {MXC_FIELDS_RESPONSES, "max_output_tokens", "{\"minimum\": 1, \"maximum\": 2147483647}"},
    {CHATS, "thinking_budget", "{\"minimum\": -1, \"maximum\": 2147483647}"},
    {MXC_FIELDS_EMBED, "encoding_format", "{\"enum\": [\"float\", \"base64\", null]}"},
    {MXC_FIELDS_EMBED, "dimensions", "{\"minimum\": 1}"},
    {MXC_FIELDS_DETOKENIZE, "tokens", "{\"items\": {\"type\": \"integer\", \"minimum\": 0}}"}};

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

/* Of the i-th field, in a route that reads `where`. */
static json_t *schema_of(size_t i, unsigned where) {
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
    bool ok = schema && !json_object_set_new(schema, "description", json_string(fields[i].help));
    for (size_t k = 0; ok && k < sizeof details / sizeof *details; k++)
        if ((details[k].where & where) && !strcmp(details[k].name, fields[i].name)) {
            value = json_loads(details[k].schema, 0, NULL);
            ok = value && !json_object_update(schema, value);
            json_decref(value);
        }
    if (ok)
        return schema;
    json_decref(schema);
    return NULL;
}

/* Takes "null" out of the types of the fields that a route needs, and names them. */
static bool add_needs(json_t *schema, json_t *properties, const char *text) {
    json_t *names = json_loads(text, 0, NULL), *name;
    size_t i;
    json_array_foreach(names, i, name) {
        json_t *property = json_object_get(properties, json_string_value(name));
        json_t *types = json_object_get(property, "type");
        size_t last = json_array_size(types);
        if (last > 1)
            (void)json_array_remove(types, last - 1); /* schema_of_words puts it there */
    }
    if (names && !json_array_size(names)) {
        json_decref(names);
        return true;
    }
    return names && !json_object_set_new(schema, "required", names);
}

/* The schema of a route's body, and a body to try. */
static json_t *body_of(const struct mxc_route *route) {
    json_t *properties = json_object(), *schema = NULL, *example = NULL;
    size_t b = 0, n = sizeof bodies / sizeof *bodies;
    while (b < n && strcmp(bodies[b].path, route->path) != 0)
        b++;
    assert(b < n);
    bool ok = properties != NULL;
    for (size_t i = 0; ok && i < sizeof fields / sizeof *fields; i++)
        if (fields[i].where & bodies[b].where)
            ok = !json_object_set_new(properties, fields[i].name, schema_of(i, bodies[b].where));
    if (ok)
        schema = json_pack("{s:s,s:O}", "type", "object", "properties", properties);
    if (schema && add_needs(schema, properties, bodies[b].needs))
        example = json_loads(bodies[b].example, 0, NULL);
    json_decref(properties);
    if (!example) {
        json_decref(schema);
        return NULL;
    }
    return json_pack("{s:b,s:{s:{s:o,s:o}}}", "required", 1, "content", "application/json",
                     "schema", schema, "example", example);
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

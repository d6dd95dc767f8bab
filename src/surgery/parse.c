/* The document: YAML into operations. In: its bytes and path. Out: operations with parsed globs,
 * numbers in range, and sources that are regular files, each listed once.
 * Everything is looked up by name and nothing is ignored: a key that an operation does not know, or
 * that stands twice, is an error. */
#include "surgery/private.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <yaml.h>

enum { MAX_CUTS = 1000, MAX_SOURCES = 1000, MAX_IDS = 1 << 20, MAX_KEYS = 16 };
enum { MAX_DEPTH = 16, MAX_ANCHORS = 100 };

static const char *const names[] = {"scale", "add", "prune", "replace", "interpolate"};
enum { N_KINDS = sizeof names / sizeof *names };

const char *const mxc_prune_names[] = {"attention_head", "layer", "mlp_channel"};
const char *const mxc_prune_fields[] = {"head_ids", "layer_ids", "channel_ids"};

const char *mxc_cut_name(enum mxc_surgery_kind kind) {
    return names[kind];
}

struct reader {
    struct mxc_surgery *surgery;
    yaml_document_t *document;
    struct mxc_err *err;
};

/* NULL: no scalar. */
static const char *text_of(const yaml_node_t *node, size_t *length) {
    if (!node || node->type != YAML_SCALAR_NODE)
        return NULL;
    *length = node->data.scalar.length;
    return (const char *)node->data.scalar.value;
}

static bool is_word(const yaml_node_t *node, const char *word) {
    size_t n = 0;
    const char *text = text_of(node, &n);
    return text && n == strlen(word) && !memcmp(text, word, n);
}

/* The value of a key, NULL: it is not there. */
static yaml_node_t *value_of(const struct reader *r, const yaml_node_t *map, const char *key) {
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top;
         pair++)
        if (is_word(yaml_document_get_node(r->document, pair->key), key))
            return yaml_document_get_node(r->document, pair->value);
    return NULL;
}

/* Only those keys, each once. allowed ends with NULL. */
static enum mxc_code check_keys(const struct reader *r, const yaml_node_t *map,
                                const char *const *allowed) {
    bool seen[MAX_KEYS] = {false};
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top;
         pair++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
        size_t n = 0, i = 0;
        const char *text = text_of(key, &n);
        if (!text)
            return mxc_err_set(r->err, MXC_E_FORMAT, "line %zu: a key is no text",
                               key ? key->start_mark.line + 1 : 0);
        while (allowed[i] && !is_word(key, allowed[i]))
            i++;
        if (!allowed[i])
            return mxc_err_set(r->err, MXC_E_FORMAT, "unknown field \"%.64s\"", text);
        if (seen[i])
            return mxc_err_set(r->err, MXC_E_FORMAT, "field %s stands twice", allowed[i]);
        seen[i] = true;
    }
    return MXC_OK;
}

static enum mxc_code read_text(const struct reader *r, const yaml_node_t *map, const char *key,
                               const char **out) {
    size_t n = 0;
    const yaml_node_t *node = value_of(r, map, key);
    const char *text = text_of(node, &n);
    if (!node)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s is missing", key);
    if (!text || memchr(text, 0, n))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s is not a text", key);
    if (!n)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s must not be empty", key);
    const char *copy = mxc_arena_dup(&r->surgery->arena, text, n);
    if (!copy)
        return mxc_err_nomem(r->err);
    *out = copy;
    return MXC_OK;
}

/* A plain scalar, so that "1" in quotes is text. */
static bool number_of(const yaml_node_t *node, double *out) {
    size_t n = 0;
    const char *text = text_of(node, &n);
    return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strlen(text) == n &&
           mxc_parse_f64(text, out);
}

/* YAML's words for what is no finite number. */
static bool is_infinite(const yaml_node_t *node) {
    static const char *const words[] = {".nan", ".NaN",  ".NAN",  ".inf",  ".Inf",
                                        ".INF", "-.inf", "-.Inf", "-.INF", "+.inf"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(node, words[i]))
            return true;
    return false;
}

/* otherwise: the value when the key is missing; NaN: it must not be. */
static enum mxc_code read_number(const struct reader *r, const yaml_node_t *map, const char *key,
                                 float otherwise, float *out) {
    double x = 0;
    const yaml_node_t *node = value_of(r, map, key);
    if (!node && isnan(otherwise))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s is missing", key);
    if (!node) {
        *out = otherwise;
        return MXC_OK;
    }
    if (!is_infinite(node) && !number_of(node, &x))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s is not a number", key);
    if (is_infinite(node) || !isfinite((float)x))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s must be finite", key);
    *out = (float)x;
    return MXC_OK;
}

static enum mxc_code read_word(const struct reader *r, const yaml_node_t *map, const char *key,
                               const char *const *words, size_t n_words, int *out) {
    const char *text = NULL;
    char list[128] = "";
    size_t used = 0;
    enum mxc_code code = read_text(r, map, key, &text);
    if (code)
        return code;
    for (size_t i = 0; i < n_words; i++) {
        if (!strcmp(text, words[i])) {
            *out = (int)i;
            return MXC_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 !i                ? ""
                                 : i + 1 < n_words ? ", "
                                                   : " or ",
                                 words[i]);
    }
    return mxc_err_set(r->err, MXC_E_FORMAT, "%s: \"%.64s\" is not %s", key, text, list);
}

/* Adds the file that a path of the document names, unless it is known. */
static enum mxc_code read_source(const struct reader *r, const yaml_node_t *map, const char *key,
                                 size_t *out) {
    struct mxc_surgery *s = r->surgery;
    const char *text = NULL, *slash = strrchr(s->path, '/');
    enum mxc_code code = read_text(r, map, key, &text);
    if (code)
        return code;
    const char *path = text;
    if (*text != '/' && slash)
        path = mxc_arena_printf(&s->arena, "%.*s%s", (int)(slash - s->path) + 1, s->path, text);
    if (!path)
        return mxc_err_nomem(r->err);
    if (!mxc_file_exists(path))
        return mxc_err_set(r->err, MXC_E_NOT_FOUND, "%s: there is no file %s", key, path);
    for (size_t i = 0; i < s->n_sources; i++)
        if (!strcmp(s->sources[i].path, path)) {
            *out = i;
            return MXC_OK;
        }
    if (s->n_sources == MAX_SOURCES)
        return mxc_err_set(r->err, MXC_E_LIMIT, "more than %d sources", (int)MAX_SOURCES);
    struct mxc_cut_source *grown = mxc_mem_realloc(s->sources, s->n_sources + 1, sizeof *grown);
    if (!grown)
        return mxc_err_nomem(r->err);
    s->sources = grown;
    s->sources[s->n_sources] = (struct mxc_cut_source){.path = path};
    *out = s->n_sources++;
    return MXC_OK;
}

static enum mxc_code read_ids(const struct reader *r, const yaml_node_t *map, struct mxc_cut *cut) {
    const char *field = mxc_prune_fields[cut->unit];
    for (int i = 0; i < MXC_N_PRUNES; i++)
        if (i != (int)cut->unit && value_of(r, map, mxc_prune_fields[i]))
            return mxc_err_set(r->err, MXC_E_FORMAT, "%s is not of granularity %s",
                               mxc_prune_fields[i], mxc_prune_names[cut->unit]);
    const yaml_node_t *node = value_of(r, map, field);
    if (!node)
        return mxc_err_set(r->err, MXC_E_FORMAT, "granularity %s requires %s",
                           mxc_prune_names[cut->unit], field);
    if (node->type != YAML_SEQUENCE_NODE)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s is not a list", field);
    size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (!n)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s must contain at least one id", field);
    if (n > MAX_IDS - r->surgery->n_ids) /* an alias is a list of its own */
        return mxc_err_set(r->err, MXC_E_LIMIT, "%s: more than %d ids in all", field, (int)MAX_IDS);
    r->surgery->n_ids += n;
    int64_t *ids = mxc_arena_array(&r->surgery->arena, n, sizeof *ids);
    if (!ids)
        return mxc_err_nomem(r->err);
    for (size_t i = 0; i < n; i++) {
        size_t length = 0;
        const yaml_node_t *item =
            yaml_document_get_node(r->document, node->data.sequence.items.start[i]);
        const char *text = text_of(item, &length);
        if (!text || item->data.scalar.style != YAML_PLAIN_SCALAR_STYLE ||
            !mxc_parse_i64(text, &ids[i]) || ids[i] < 0 || ids[i] > INT32_MAX)
            return mxc_err_set(r->err, MXC_E_FORMAT, "%s: item %zu is not a number from 0 on",
                               field, i);
    }
    cut->ids = ids;
    cut->n_ids = n;
    return MXC_OK;
}

/* The key's stars stand for those of the pattern, one for one. */
static enum mxc_code check_stars(const struct reader *r, const struct mxc_cut *cut) {
    size_t n = mxc_glob_stars(cut->key);
    for (size_t i = 0; n && i < cut->glob.n; i++) {
        size_t have = mxc_glob_stars(cut->glob.alternatives[i]);
        if (have != n)
            return mxc_err_set(r->err, MXC_E_FORMAT,
                               "source_key has %zu stars, the pattern has %zu", n, have);
    }
    return MXC_OK;
}

static enum mxc_code read_fields(const struct reader *r, const yaml_node_t *map,
                                 struct mxc_cut *cut) {
    static const char *const allowed[N_KINDS][MAX_KEYS] = {
        [MXC_CUT_SCALE] = {"op", "pattern", "factor"},
        [MXC_CUT_ADD] = {"op", "pattern", "source", "alpha"},
        [MXC_CUT_PRUNE] = {"op", "pattern", "granularity", "head_ids", "layer_ids", "channel_ids"},
        [MXC_CUT_REPLACE] = {"op", "pattern", "source", "source_key"},
        [MXC_CUT_MIX] = {"op", "pattern", "source_a", "source_b", "ratio", "method"},
    };
    static const char *const methods[] = {"lerp", "slerp"};
    enum mxc_code code = check_keys(r, map, allowed[cut->kind]);
    int word = 0;
    if (code || (code = read_text(r, map, "pattern", &cut->pattern)) ||
        (code = mxc_glob_parse(&r->surgery->arena, cut->pattern, &cut->glob, r->err)))
        return code;
    switch (cut->kind) {
    case MXC_CUT_SCALE:
        return read_number(r, map, "factor", NAN, &cut->amount);
    case MXC_CUT_ADD:
        if ((code = read_number(r, map, "alpha", 1, &cut->amount)))
            return code;
        return read_source(r, map, "source", &cut->source[0]);
    case MXC_CUT_PRUNE:
        if ((code = read_word(r, map, "granularity", mxc_prune_names, MXC_N_PRUNES, &word)))
            return code;
        cut->unit = (enum mxc_prune)word;
        return read_ids(r, map, cut);
    case MXC_CUT_REPLACE:
        if ((code = read_text(r, map, "source_key", &cut->key)) || (code = check_stars(r, cut)))
            return code;
        return read_source(r, map, "source", &cut->source[0]);
    case MXC_CUT_MIX:
        if ((code = read_number(r, map, "ratio", NAN, &cut->amount)))
            return code;
        if (cut->amount < 0 || cut->amount > 1)
            return mxc_err_set(r->err, MXC_E_FORMAT, "ratio must be in [0, 1]");
        if ((code = read_word(r, map, "method", methods, 2, &word)) ||
            (code = read_source(r, map, "source_a", &cut->source[0])))
            return code;
        cut->slerp = word == 1;
        return read_source(r, map, "source_b", &cut->source[1]);
    }
    return MXC_OK;
}

static enum mxc_code read_cut(const struct reader *r, const yaml_node_t *map, size_t index,
                              struct mxc_cut *cut) {
    size_t n = 0;
    int kind = 0;
    if (!map || map->type != YAML_MAPPING_NODE)
        return mxc_err_set(r->err, MXC_E_FORMAT, "surgery operation #%zu: it is not a mapping",
                           index);
    const yaml_node_t *node = value_of(r, map, "op");
    const char *op = text_of(node, &n);
    if (!op)
        return mxc_err_set(r->err, MXC_E_FORMAT, "surgery operation #%zu: op is missing", index);
    while (kind < N_KINDS && !is_word(node, names[kind]))
        kind++;
    if (kind == N_KINDS)
        return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                           "surgery operation #%zu (%.64s): unknown op; there are scale, add, "
                           "prune, replace and interpolate",
                           index, op);
    cut->kind = (enum mxc_surgery_kind)kind;
    enum mxc_code code = read_fields(r, map, cut);
    if (code)
        (void)mxc_err_context(r->err, "surgery operation #%zu (%s)", index, names[kind]);
    return code;
}

static enum mxc_code read_version(const struct reader *r, const yaml_node_t *root) {
    size_t n = 0;
    double version = 0;
    const yaml_node_t *node = value_of(r, root, "version");
    if (!node)
        return mxc_err_set(r->err, MXC_E_FORMAT, "version is missing; this program reads 1");
    if (!number_of(node, &version) || version != 1)
        return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                           "version %.32s is not supported; this program reads 1",
                           text_of(node, &n) ? text_of(node, &n) : "(no number)");
    return MXC_OK;
}

static enum mxc_code read_document(const struct reader *r) {
    static const char *const allowed[] = {"version", "operations", NULL};
    struct mxc_surgery *s = r->surgery;
    const yaml_node_t *root = yaml_document_get_root_node(r->document);
    if (!root || root->type != YAML_MAPPING_NODE)
        return mxc_err_set(r->err, MXC_E_FORMAT, "the document is not a mapping");
    enum mxc_code code = check_keys(r, root, allowed);
    if (code || (code = read_version(r, root)))
        return code;
    const yaml_node_t *list = value_of(r, root, "operations");
    if (!list)
        return MXC_OK;
    if (list->type != YAML_SEQUENCE_NODE)
        return mxc_err_set(r->err, MXC_E_FORMAT, "operations is not a list");
    size_t n = (size_t)(list->data.sequence.items.top - list->data.sequence.items.start);
    if (n > MAX_CUTS)
        return mxc_err_set(r->err, MXC_E_LIMIT, "more than %d operations", (int)MAX_CUTS);
    if (n && !(s->cuts = mxc_arena_array(&s->arena, n, sizeof *s->cuts)))
        return mxc_err_nomem(r->err);
    for (size_t i = 0; !code && i < n; i++)
        code = read_cut(r, yaml_document_get_node(r->document, list->data.sequence.items.start[i]),
                        i, &s->cuts[i]);
    s->n_cuts = n;
    return code;
}

static enum mxc_code bad_yaml(const yaml_parser_t *parser, struct mxc_err *err) {
    if (parser->error == YAML_MEMORY_ERROR)
        return mxc_err_nomem(err);
    return mxc_err_set(err, MXC_E_FORMAT, "line %zu: %s", parser->problem_mark.line + 1,
                       parser->problem ? parser->problem : "this is not YAML");
}

/* libyaml takes time with the square of the nesting, of the anchors and of the tag directives, so
 * its tokens are counted before it builds the document. */
static enum mxc_code check_token(const yaml_token_t *token, size_t *depth, size_t *anchors,
                                 struct mxc_err *err) {
    size_t line = token->start_mark.line + 1;
    switch (token->type) {
    case YAML_TAG_DIRECTIVE_TOKEN:
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "line %zu: %%TAG is not supported", line);
    case YAML_ANCHOR_TOKEN:
        if (++*anchors > MAX_ANCHORS)
            return mxc_err_set(err, MXC_E_LIMIT, "line %zu: more than %d anchors", line,
                               (int)MAX_ANCHORS);
        return MXC_OK;
    case YAML_BLOCK_SEQUENCE_START_TOKEN:
    case YAML_BLOCK_MAPPING_START_TOKEN:
    case YAML_FLOW_SEQUENCE_START_TOKEN:
    case YAML_FLOW_MAPPING_START_TOKEN:
        if (++*depth > MAX_DEPTH)
            return mxc_err_set(err, MXC_E_LIMIT, "line %zu: nested deeper than %d levels", line,
                               (int)MAX_DEPTH);
        return MXC_OK;
    case YAML_BLOCK_END_TOKEN:
    case YAML_FLOW_SEQUENCE_END_TOKEN:
    case YAML_FLOW_MAPPING_END_TOKEN:
        *depth -= *depth > 0;
        return MXC_OK;
    default:
        return MXC_OK;
    }
}

static enum mxc_code check_tokens(const char *text, size_t length, struct mxc_err *err) {
    yaml_parser_t parser;
    yaml_token_t token;
    size_t depth = 0, anchors = 0;
    bool last = false;
    enum mxc_code code = MXC_OK;
    if (!yaml_parser_initialize(&parser))
        return mxc_err_nomem(err);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    while (!code && !last) {
        if (!yaml_parser_scan(&parser, &token)) {
            code = bad_yaml(&parser, err);
            break;
        }
        code = check_token(&token, &depth, &anchors, err);
        last = token.type == YAML_STREAM_END_TOKEN;
        yaml_token_delete(&token);
    }
    yaml_parser_delete(&parser);
    return code;
}

enum mxc_code mxc_surgery_parse(struct mxc_surgery *s, const char *text, size_t length,
                                struct mxc_err *err) {
    yaml_parser_t parser;
    yaml_document_t document, next;
    enum mxc_code code = check_tokens(text, length, err);
    if (code)
        return code;
    if (!yaml_parser_initialize(&parser))
        return mxc_err_nomem(err);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    if (!yaml_parser_load(&parser, &document)) {
        code = bad_yaml(&parser, err);
        yaml_parser_delete(&parser);
        return code;
    }
    const struct reader r = {s, &document, err};
    code = read_document(&r);
    if (!code && !yaml_parser_load(&parser, &next)) {
        code = bad_yaml(&parser, err);
    } else if (!code) {
        if (yaml_document_get_root_node(&next))
            code = mxc_err_set(err, MXC_E_FORMAT, "there is more than one document");
        yaml_document_delete(&next);
    }
    yaml_document_delete(&document);
    yaml_parser_delete(&parser);
    return code;
}

/* The literal automaton: a stack of closing characters, and a word that is collected where a value
 * has no delimiter of its own. A comma is written when the next item begins, so trailing ones
 * vanish. Words that are neither numbers nor constants become strings: models forget quotes. */
#define _GNU_SOURCE
#include "gen/tools/values.h"

#include <string.h>

enum state {
    ITEM, /* a value, or the end of a list */
    VALUE,
    AFTER,
    KEYWORD,
    KEYWORD_NAME,
    EQUALS,
    KEY,
    COLON,
    STRING,
    ESCAPE,
    HEX,
    WORD,
    MARK /* inside Gemma's quote, before a string */
};
static const char gemma_quote[] = "<|\"|>";

void mxc_literal_init(struct mxc_literal *l, enum mxc_notation notation) {
    *l = (struct mxc_literal){.notation = notation, .state = VALUE};
    mxc_buf_init(&l->word, 1 << 16);
    if (notation == MXC_PYTHON_CALL) {
        l->state = KEYWORD;
        l->stack[l->depth++] = ')';
    }
}

void mxc_literal_fini(struct mxc_literal *l) {
    mxc_buf_fini(&l->word);
}

void mxc_tool_escape(const char *text, size_t length, struct mxc_buf *json) {
    size_t from = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        (void)mxc_buf_append(json, text + from, i - from);
        if (c == '\n')
            (void)mxc_buf_puts(json, "\\n");
        else if (c < 0x20)
            (void)mxc_buf_printf(json, "\\u%04x", (unsigned)c);
        else
            (void)mxc_buf_printf(json, "\\%c", c);
        from = i + 1;
    }
    (void)mxc_buf_append(json, text + from, length - from);
}

static void put_string(struct mxc_str text, struct mxc_buf *json) {
    (void)mxc_buf_putc(json, '"');
    mxc_tool_escape(text.ptr, text.length, json);
    (void)mxc_buf_putc(json, '"');
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static struct mxc_str trim(struct mxc_str s) {
    while (s.length && is_space(s.ptr[0]))
        s.ptr++, s.length--;
    while (s.length && is_space(s.ptr[s.length - 1]))
        s.length--;
    return s;
}

static bool is_json_number(struct mxc_str s) {
    struct mxc_json_scan scan;
    mxc_json_scan_init(&scan);
    if (!s.length || is_space(s.ptr[0]) || !strchr("-0123456789", s.ptr[0]))
        return false;
    for (size_t i = 0; i < s.length; i++)
        if (mxc_json_scan_push(&scan, s.ptr[i], NULL) != MXC_SCAN_GO)
            return false;
    return mxc_json_scan_push(&scan, ' ', NULL) == MXC_SCAN_BEFORE;
}

/* Python's constant as JSON's; NULL: none. */
static const char *constant(struct mxc_str s) {
    static const char *const names[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mxc_str_is(s, names[i][0]))
            return names[i][1];
    return NULL;
}

static void put_word(struct mxc_str s, struct mxc_buf *json) {
    const char *name = constant(s);
    bool ends_bare = s.length > 1 && s.ptr[s.length - 1] == '.';
    struct mxc_str whole = {s.ptr, s.length - ends_bare};
    if (name)
        (void)mxc_buf_puts(json, name);
    else if (is_json_number(s))
        (void)mxc_buf_append(json, s.ptr, s.length);
    else if (ends_bare && is_json_number(whole) && !memchr(whole.ptr, '.', whole.length))
        (void)mxc_buf_append(json, whole.ptr, whole.length);
    else
        put_string(s, json);
}

static void separate(struct mxc_literal *l, struct mxc_buf *json) {
    if (l->comma)
        (void)mxc_buf_puts(json, ", ");
    l->comma = false;
}

static enum mxc_scan close_level(struct mxc_literal *l, struct mxc_buf *json) {
    char c = l->stack[--l->depth];
    l->comma = false;
    bool object = c == '}' || (l->notation == MXC_PYTHON_CALL && !l->depth);
    if (l->notation == MXC_PYTHON_CALL && !l->depth && !l->n_keys)
        (void)mxc_buf_putc(json, '{');
    (void)mxc_buf_putc(json, object ? '}' : ']');
    l->state = AFTER;
    return l->depth ? MXC_SCAN_GO : MXC_SCAN_END;
}

static void begin_string(struct mxc_literal *l, char quote, bool is_key, struct mxc_buf *json) {
    separate(l, json);
    (void)mxc_buf_putc(json, '"');
    l->state = STRING;
    l->quote = quote;
    l->is_key = is_key;
    l->match = 0;
}

static enum mxc_scan begin_value(struct mxc_literal *l, char c, bool may_close,
                                 struct mxc_buf *json) {
    if (is_space(c))
        return MXC_SCAN_GO;
    if (may_close && l->depth && c == l->stack[l->depth - 1])
        return close_level(l, json);
    bool opens = c == '{' || c == '[' || (c == '(' && l->notation != MXC_GEMMA_VALUE);
    if (!l->depth && !opens) /* only a whole value knows its end */
        return MXC_SCAN_BAD;
    if (opens) {
        if (l->depth == MXC_LITERAL_DEPTH)
            return MXC_SCAN_BAD;
        separate(l, json);
        (void)mxc_buf_putc(json, c == '{' ? '{' : '[');
        l->stack[l->depth++] = c == '{' ? '}' : c == '[' ? ']' : ')';
        l->state = c == '{' ? KEY : ITEM;
    } else if (c == '"' || (c == '\'' && l->notation != MXC_GEMMA_VALUE)) {
        begin_string(l, c, false, json);
    } else if (c == '<' && l->notation == MXC_GEMMA_VALUE) {
        l->state = MARK;
        l->is_key = false;
        l->match = 1;
    } else if (strchr(",:=)]}", c)) {
        return MXC_SCAN_BAD;
    } else {
        l->state = WORD;
        l->is_key = false;
        mxc_buf_clear(&l->word);
        (void)mxc_buf_putc(&l->word, c);
    }
    return MXC_SCAN_GO;
}

static enum mxc_scan begin_key(struct mxc_literal *l, char c, struct mxc_buf *json) {
    if (is_space(c))
        return MXC_SCAN_GO;
    if (c == '}')
        return close_level(l, json);
    if (c == '"' || (c == '\'' && l->notation != MXC_GEMMA_VALUE)) {
        begin_string(l, c, true, json);
    } else if (c == '<' && l->notation == MXC_GEMMA_VALUE) {
        l->state = MARK;
        l->is_key = true;
        l->match = 1;
    } else if (strchr(",:=()[]{", c)) {
        return MXC_SCAN_BAD;
    } else {
        l->state = WORD;
        l->is_key = true;
        mxc_buf_clear(&l->word);
        (void)mxc_buf_putc(&l->word, c);
    }
    return MXC_SCAN_GO;
}

static enum mxc_scan after_value(struct mxc_literal *l, char c, struct mxc_buf *json) {
    char closing = l->stack[l->depth - 1];
    if (is_space(c))
        return MXC_SCAN_GO;
    if (c == closing)
        return close_level(l, json);
    if (c != ',')
        return MXC_SCAN_BAD;
    l->comma = true;
    l->state = closing == '}'                                    ? KEY
               : l->notation == MXC_PYTHON_CALL && l->depth == 1 ? KEYWORD
                                                                 : ITEM;
    return MXC_SCAN_GO;
}

static bool is_name_byte(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

static enum mxc_scan keyword(struct mxc_literal *l, char c, struct mxc_buf *json) {
    if (l->state == KEYWORD) {
        if (is_space(c))
            return MXC_SCAN_GO;
        if (c == ')')
            return close_level(l, json);
        if (!is_name_byte(c) || (c >= '0' && c <= '9'))
            return MXC_SCAN_BAD;
        mxc_buf_clear(&l->word);
        l->state = KEYWORD_NAME;
    }
    if (l->state == KEYWORD_NAME && is_name_byte(c)) {
        (void)mxc_buf_putc(&l->word, c);
        return MXC_SCAN_GO;
    }
    if (is_space(c)) {
        l->state = EQUALS;
        return MXC_SCAN_GO;
    }
    if (c != '=')
        return MXC_SCAN_BAD;
    (void)mxc_buf_puts(json, l->n_keys++ ? ", " : "{");
    l->comma = false;
    put_string((struct mxc_str){mxc_buf_text(&l->word), l->word.length}, json);
    (void)mxc_buf_puts(json, ": ");
    l->state = VALUE;
    return MXC_SCAN_GO;
}

static enum mxc_scan in_word(struct mxc_literal *l, char c, struct mxc_buf *json) {
    bool ends = l->is_key ? c == ':' || strchr(",{}[]()", c) != NULL : strchr(",)]}", c) != NULL;
    if (c && !ends) {
        (void)mxc_buf_putc(&l->word, c);
        return l->word.failed ? MXC_SCAN_BAD : MXC_SCAN_GO;
    }
    struct mxc_str word = trim((struct mxc_str){mxc_buf_text(&l->word), l->word.length});
    separate(l, json);
    if (!l->is_key) {
        put_word(word, json);
        l->state = AFTER;
        return after_value(l, c, json);
    }
    if (c != ':')
        return MXC_SCAN_BAD;
    put_string(word, json);
    (void)mxc_buf_puts(json, ": ");
    l->state = VALUE;
    return MXC_SCAN_GO;
}

static void end_string(struct mxc_literal *l, struct mxc_buf *json) {
    (void)mxc_buf_putc(json, '"');
    l->state = l->is_key ? COLON : AFTER;
}

/* Gemma's strings know no escapes; its quote begins with a byte that it holds once. */
static enum mxc_scan in_gemma_string(struct mxc_literal *l, char c, struct mxc_buf *json) {
    if (c == gemma_quote[l->match]) {
        if (!gemma_quote[++l->match])
            end_string(l, json);
        return MXC_SCAN_GO;
    }
    mxc_tool_escape(gemma_quote, l->match, json);
    l->match = c == gemma_quote[0];
    if (!l->match)
        mxc_tool_escape(&c, 1, json);
    return MXC_SCAN_GO;
}

static enum mxc_scan escape(struct mxc_literal *l, char c, struct mxc_buf *json) {
    static const char from[] = "abfnrtv\\'\"", *const to[] = {"\\u0007", "\\b", "\\f",     "\\n",
                                                              "\\r",     "\\t", "\\u000b", "\\\\",
                                                              "'",       "\\\""};
    const char *found = c ? strchr(from, c) : NULL;
    l->state = STRING;
    if (found) {
        (void)mxc_buf_puts(json, to[found - from]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        l->state = HEX;
        l->digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        l->cp = 0;
    } else if (c == '/') {
        (void)mxc_buf_putc(json, c);
    } else if (c != '\n') { /* Python keeps the backslash of an unknown one */
        (void)mxc_buf_puts(json, "\\\\");
        mxc_tool_escape(&c, 1, json);
    }
    return MXC_SCAN_GO;
}

static enum mxc_scan in_string(struct mxc_literal *l, char c, struct mxc_buf *json) {
    if (l->state == ESCAPE)
        return escape(l, c, json);
    if (l->state == HEX) {
        int digit = mxc_hex_digit(c);
        if (digit < 0)
            return MXC_SCAN_BAD;
        l->cp = l->cp << 4 | (uint32_t)digit;
        if (--l->digits)
            return MXC_SCAN_GO;
        l->state = STRING;
        if (l->cp < 0x10000) /* also half of a pair, as in JSON */
            (void)mxc_buf_printf(json, "\\u%04x", (unsigned)l->cp);
        else
            (void)mxc_buf_utf8(json, l->cp);
        return MXC_SCAN_GO;
    }
    if (!l->quote)
        return in_gemma_string(l, c, json);
    if (c == l->quote)
        end_string(l, json);
    else if (c == '\\')
        l->state = ESCAPE;
    else
        mxc_tool_escape(&c, 1, json);
    return MXC_SCAN_GO;
}

enum mxc_scan mxc_literal_push(struct mxc_literal *l, char c, struct mxc_buf *json) {
    switch ((enum state)l->state) {
    case ITEM:
        return begin_value(l, c, true, json);
    case VALUE:
        return begin_value(l, c, false, json);
    case AFTER:
        return after_value(l, c, json);
    case KEYWORD:
    case KEYWORD_NAME:
    case EQUALS:
        return keyword(l, c, json);
    case KEY:
        return begin_key(l, c, json);
    case COLON:
        if (is_space(c))
            return MXC_SCAN_GO;
        if (c != ':')
            return MXC_SCAN_BAD;
        (void)mxc_buf_puts(json, ": ");
        l->state = VALUE;
        return MXC_SCAN_GO;
    case WORD:
        return in_word(l, c, json);
    case MARK:
        if (c != gemma_quote[l->match])
            return MXC_SCAN_BAD;
        if (!gemma_quote[++l->match])
            begin_string(l, 0, l->is_key, json);
        return MXC_SCAN_GO;
    case STRING:
    case ESCAPE:
    case HEX:
    default:
        return in_string(l, c, json);
    }
}

/* ---- raw text, typed by a schema */

static unsigned type_named(const char *name) {
    static const char *const names[] = {"string", "integer", "number", "boolean",
                                        "object", "array",   "null"};
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return 1u << i;
    return 0;
}

static unsigned type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        return MXC_TYPE_STRING;
    case JSON_INTEGER:
        return MXC_TYPE_INTEGER | MXC_TYPE_NUMBER;
    case JSON_REAL:
        return MXC_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return MXC_TYPE_BOOLEAN;
    case JSON_OBJECT:
        return MXC_TYPE_OBJECT;
    case JSON_ARRAY:
        return MXC_TYPE_ARRAY;
    case JSON_NULL:
    default:
        return MXC_TYPE_NULL;
    }
}

/* "#/$defs/x" and the like; NULL: not there. */
static const json_t *resolve(const json_t *root, const char *ref) {
    if (strncmp(ref, "#/", 2) != 0)
        return NULL;
    const json_t *at = root;
    for (const char *part = ref + 2; at && *part;) {
        size_t n = strcspn(part, "/");
        at = json_object_getn(at, part, n);
        part += n + (part[n] == '/');
    }
    return at;
}

static unsigned types_of(const json_t *root, const json_t *schema, int depth) {
    static const char *const unions[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *item;
    const json_t *values = json_object_get(schema, "enum"), *fixed;
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    unsigned types = type_named(json_string_value(type));
    size_t i;
    if (depth > 8)
        return 0;
    json_array_foreach(type, i, item) types |= type_named(json_string_value(item));
    if (!types) {
        json_array_foreach(values, i, item) types |= type_of(item);
        if ((fixed = json_object_get(schema, "const")))
            types |= type_of(fixed);
    }
    for (size_t u = 0; u < 3 && !types; u++) {
        bool any = false; /* a branch that says nothing lets everything in */
        json_array_foreach(json_object_get(schema, unions[u]), i, item) {
            unsigned branch = types_of(root, item, depth + 1);
            any = any || (!branch && u < 2);
            types |= branch;
        }
        if (any)
            return 0;
    }
    if (!types && ref)
        types = types_of(root, resolve(root, ref), depth + 1);
    if (types && json_is_true(json_object_get(schema, "nullable")))
        types |= MXC_TYPE_NULL;
    return types;
}

unsigned mxc_tool_types(const json_t *parameters, struct mxc_str key) {
    const json_t *schema =
        json_object_getn(json_object_get(parameters, "properties"), key.ptr, key.length);
    if (!schema)
        schema = json_object_get(parameters, "additionalProperties");
    return types_of(parameters, schema, 0);
}

/* JSON of the text, control characters in strings apart; its types, 0: it is none. */
static unsigned read_json(struct mxc_str text, struct mxc_buf *json) {
    struct mxc_json_scan scan;
    enum mxc_scan at = MXC_SCAN_GO;
    size_t start = json->length;
    mxc_json_scan_init(&scan);
    for (size_t i = 0; i < text.length; i++) {
        if (at != MXC_SCAN_GO)
            return 0;
        at = mxc_json_scan_push(&scan, text.ptr[i], json);
    }
    if (at == MXC_SCAN_GO)
        at = mxc_json_scan_push(&scan, ' ', NULL);
    if (at != MXC_SCAN_END && at != MXC_SCAN_BEFORE)
        return 0;
    const char *copy = mxc_buf_text(json) + start;
    switch (*copy) {
    case '"':
        return MXC_TYPE_STRING;
    case '{':
        return MXC_TYPE_OBJECT;
    case '[':
        return MXC_TYPE_ARRAY;
    case 't':
    case 'f':
        return MXC_TYPE_BOOLEAN;
    case 'n':
        return MXC_TYPE_NULL;
    default:
        return strpbrk(copy, ".eE") ? MXC_TYPE_NUMBER : MXC_TYPE_NUMBER | MXC_TYPE_INTEGER;
    }
}

static unsigned read_python(struct mxc_str text, struct mxc_buf *json) {
    struct mxc_literal literal;
    enum mxc_scan at = MXC_SCAN_GO;
    const char *name = constant(text);
    if (name) {
        (void)mxc_buf_puts(json, name);
        return *name == 'n' ? MXC_TYPE_NULL : MXC_TYPE_BOOLEAN;
    }
    mxc_literal_init(&literal, MXC_PYTHON_VALUE);
    size_t i = 0;
    while (i < text.length && at == MXC_SCAN_GO)
        at = mxc_literal_push(&literal, text.ptr[i++], json);
    mxc_literal_fini(&literal);
    if (at != MXC_SCAN_END || i != text.length)
        return 0;
    return text.ptr[0] == '{' ? MXC_TYPE_OBJECT : MXC_TYPE_ARRAY;
}

void mxc_tool_write_value(unsigned types, struct mxc_str raw, struct mxc_buf *json) {
    unsigned wanted = (types ? types : ~0u) & ~(unsigned)MXC_TYPE_STRING;
    struct mxc_str text = trim(raw);
    struct mxc_buf made;
    mxc_buf_init(&made, SIZE_MAX / 2);
    unsigned found = wanted ? read_json(text, &made) : 0;
    if (wanted && !(found & wanted) && types) { /* untyped text is not read as Python */
        mxc_buf_clear(&made);
        found = read_python(text, &made);
    }
    if (made.failed)
        json->failed = true; /* passes it on */
    else if (found & wanted)
        (void)mxc_buf_append(json, made.data, made.length);
    else
        put_string(raw, json);
    mxc_buf_fini(&made);
}

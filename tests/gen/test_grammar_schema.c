/* JSON Schema: a table of schemas with texts whose verdicts come from another validator
 * (tests/data/grammar/schemas.json), cases by hand, and what is refused and how. */
#include "test.h"

#include "base/json.h"
#include "gen/grammar/grammar.h"

#include <stdio.h>
#include <string.h>

static bool accepts(const struct mxc_grammar *g, const char *text, size_t length) {
    bool yes = false;
    assert_int_equal(mxc_grammar_accepts(g, (struct mxc_str){text, length}, &yes, NULL), MXC_OK);
    return yes;
}

static void table(void **state) {
    (void)state;
    json_t *cases = NULL;
    struct mxc_err err = {0};
    if (mxc_json_load(MXC_TEST_DATA "/grammar/schemas.json", 16 << 20, &cases, &err))
        fail_msg("%s", err.message);
    size_t n_yes = 0, n_no = 0;
    assert_true(json_array_size(cases) >= 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct mxc_grammar *g = NULL;
        if (mxc_grammar_parse_schema(json_object_get(c, "schema"), MXC_JSON_SPACED, &g, &err))
            fail_msg("case %zu: %s", i, err.message);
        for (int no = 0; no < 2; no++) {
            const json_t *texts = json_object_get(c, no ? "no" : "yes");
            for (size_t k = 0; k < json_array_size(texts); k++) {
                const json_t *t = json_array_get(texts, k);
                if (accepts(g, json_string_value(t), json_string_length(t)) == (no != 0))
                    fail_msg("case %zu: %s %s", i, no ? "accepts" : "refuses",
                             json_string_value(t));
                n_yes += !no;
                n_no += no != 0;
            }
        }
        mxc_grammar_free(g);
    }
    assert_true(n_yes > 200 && n_no > 300);
    json_decref(cases);
}

static struct mxc_grammar *parse(const char *schema_text, enum mxc_json_space space) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    json_t *schema = json_loads(schema_text, JSON_DECODE_ANY, NULL);
    if (!schema)
        fail_msg("not JSON: %s", schema_text);
    if (mxc_grammar_parse_schema(schema, space, &g, &err))
        fail_msg("%s: %s", schema_text, err.message);
    json_decref(schema);
    return g;
}

struct by_hand {
    const char *schema;
    const char *yes[8], *no[12];
};

static void by_hand(void **state) {
    (void)state;
    static const struct by_hand cases[] = {
        {"true", {"1", "{\"a\": []}", "\"x\""}, {"", "nil", "[1,]"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"integer\"},\"c\":{\"type\":\"integer\"}},\"required\":[\"b\"]}",
         {"{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1, \"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"},
         {"{}", "{\"a\":1}", "{\"b\":1,\"a\":2}", "{\"b\":1,}", "{,\"b\":1}", "{\"b\":1,\"d\":1}",
          "{\"a\":1\"b\":2}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":"
         "{\"type\":\"integer\"}}",
         {"{}", "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"b\":1,\"aa\":2}", "{\"\":3}",
          "{\"\xc3\xa4\":1}"},
         {"{\"a\":1}", "{\"b\":null}", "{\"b\":1,\"a\":1}", "{\"b\":1,\"a\":null}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"k\"]}", {"{\"k\":[1]}"}, {"{}", "{\"j\":1}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,2]", "[1, 2, 3]"},
         {"[]", "[1]", "[1,2,3,4]", "[1,\"2\"]"}},
        {"{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false}",
         {"[]", "[\"a\"]", "[\"a\",1]"},
         {"[1]", "[\"a\",1,2]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"null\"}"
         ","
         "\"minItems\":2,\"maxItems\":3}",
         {"[\"a\",null]", "[\"a\",null,null]"},
         {"[\"a\"]", "[null,null]", "[\"a\",null,null,null]"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xc3\xa4\xf0\x9f\x98\x80\\n\"", "\"\\ud83d\\ude00x\""},
         {"\"a\"", "\"abcd\"", "\"\\n\"", "\"a\\n\\t\\u0041\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a\\\"\\\\n?$\"}",
         {"\"a\\\"\"", "\"a\\\"\\n\""},
         {"\"a\"", "\"a\"\"", "\"a\\\"\n\""}},
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}",
         {"-3", "0", "9", "10", "12"},
         {"-4", "13", "1.0", "-0", "01", "100"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":99,\"multipleOf\":50}",
         {"100", "1050", "99950"},
         {"50", "101", "99", "-100"}},
        {"{\"type\":\"integer\",\"minimum\":9223372036854775800}",
         {"9223372036854775800", "9999999999999999999"},
         {"9223372036854775799", "1", "922337203685477580"}},
        {"{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1}",
         {"0", "0.5", "0.999"},
         {"1", "1.0", "-0.1", "2", "0."}},
        {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":10.25}",
         {"-1.5", "-1.49", "0", "10.25", "10.249999", "9.99"},
         {"-1.51", "10.26", "11", "-2"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", {"1.25", "-3", "0.1"}, {"1.255", "1e2"}},
        {"{\"type\":[\"string\",\"null\"]}", {"null", "\"x\""}, {"1"}},
        {"{\"type\":\"integer\",\"nullable\":true}", {"null", "7"}, {"\"x\""}},
        {"{\"enum\":[\"red\",1,null,{\"a\":[1,2]}]}",
         {"\"red\"", "1", "null", "{\"a\": [1, 2]}"},
         {"\"blue\"", "2", "{\"a\":[1]}"}},
        {"{\"type\":\"string\",\"enum\":[\"red\",1]}", {"\"red\""}, {"1"}},
        {"{\"const\":\"a\\\"\xc3\xa4\"}", {"\"a\\\"\xc3\xa4\""}, {"\"a\""}},
        {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"x\"},\"v\":{\"type\":"
         "\"integer\"}},\"required\":[\"t\",\"v\"]},{\"type\":\"object\",\"properties\":{\"t\":"
         "{\"const\":\"xy\"}},\"required\":[\"t\"]}]}",
         {"{\"t\":\"x\",\"v\":1}", "{\"t\":\"xy\"}"},
         {"{\"t\":\"x\"}", "{\"t\":\"xy\",\"v\":1}"}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"x\"}},\"required\":"
         "[\"t\"]},{\"$ref\":\"#/$defs/"
         "y\"},{\"type\":\"null\"}],\"$defs\":{\"y\":{\"type\":\"object\","
         "\"properties\":{\"t\":{\"enum\":[\"y\"]}},\"required\":[\"t\"]}}}",
         {"null", "{\"t\":\"x\"}", "{\"t\":\"y\"}"},
         {"{\"t\":\"z\"}", "{}"}},
        {"{\"allOf\":[{\"$ref\":\"#/definitions/base\"},{\"properties\":{\"b\":{\"type\":"
         "\"boolean\"}},\"required\":[\"b\"]}],\"definitions\":{\"base\":{\"type\":\"object\","
         "\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":1}},\"required\":[\"a\"]}}}",
         {"{\"a\":1,\"b\":true}"},
         {"{\"a\":1}", "{\"b\":true}", "{\"a\":0,\"b\":true}"}},
        {"{\"$ref\":\"#/$defs/a~1b\",\"description\":\"d\",\"$defs\":{\"a/"
         "b\":{\"type\":\"null\"}}}",
         {"null"},
         {"1"}},
        {"{\"$ref\":\"#/$defs/"
         "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"kids\":"
         "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"kids\"]}}}",
         {"{\"kids\":[]}", "{\"kids\":[{\"kids\":[]},{\"kids\":[{\"kids\":[]}]}]}"},
         {"{}", "{\"kids\":[1]}", "{\"kids\":[{}]}"}},
        {"{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"}}}",
         {"{}", "{\"next\":{\"next\":{}}}"},
         {"{\"next\":1}"}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"1999-12-31\""},
         {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"1900-02-29\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"255.0.10.1\""},
         {"\"256.0.0.1\"", "\"1.1\""}},
        {"{\"type\":\"integer\",\"format\":\"int32\"}", {"2147483647"}, {"2147483648"}},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2,\"additionalProperties\":"
         "{\"type\":\"null\"}}",
         {"{\"a\":null}", "{\"a\":null,\"b\":null}"},
         {"{}", "{\"a\":null,\"b\":null,\"c\":null}"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_grammar *g = parse(cases[i].schema, MXC_JSON_SPACED);
        for (const char *const *t = cases[i].yes; t < cases[i].yes + 8 && *t; t++)
            if (!accepts(g, *t, strlen(*t)))
                fail_msg("%s refuses %s", cases[i].schema, *t);
        for (const char *const *t = cases[i].no; t < cases[i].no + 12 && *t; t++)
            if (accepts(g, *t, strlen(*t)))
                fail_msg("%s accepts %s", cases[i].schema, *t);
        mxc_grammar_free(g);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *schema, *part;
        enum mxc_code code;
    } cases[] = {
        {"5", "#: not a schema", MXC_E_ARG},
        {"{\"type\":\"strin\"}", "type strin is unknown", MXC_E_ARG},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}",
         "#/properties/a: the keyword not is not supported", MXC_E_UNSUPPORTED},
        {"{\"properties\":{\"a/b\":{\"items\":{\"uniqueItems\":true}}}}",
         "#/properties/a~1b/items: the keyword uniqueItems", MXC_E_UNSUPPORTED},
        {"{\"if\":{}}", "the keyword if", MXC_E_UNSUPPORTED},
        {"{\"patternProperties\":{\"a\":{}}}", "patternProperties", MXC_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"format\":\"regex\"}", "the format regex", MXC_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "#/pattern: pattern, character",
         MXC_E_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", "#/pattern: pattern, character", MXC_E_ARG},
        {"{\"type\":\"string\",\"pattern\":5}", "pattern is not a text", MXC_E_ARG},
        {"{\"type\":\"string\",\"minLength\":-1}", "minLength is not", MXC_E_ARG},
        {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", "minLength 5 is more", MXC_E_ARG},
        {"{\"type\":\"string\",\"minLength\":100000}", "minLength 100000; the limit is 65536",
         MXC_E_LIMIT},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "matches nothing", MXC_E_ARG},
        {"{\"type\":\"number\",\"multipleOf\":0.3}", "multipleOf 0.3", MXC_E_UNSUPPORTED},
        {"{\"type\":\"integer\",\"multipleOf\":0}", "multipleOf is not", MXC_E_ARG},
        {"{\"type\":\"integer\",\"minimum\":\"1\"}", "minimum is not a number", MXC_E_ARG},
        {"{\"enum\":[]}", "enum is not a list", MXC_E_ARG},
        {"{\"enum\":[\"a\"],\"minLength\":3}", "minLength beside enum", MXC_E_UNSUPPORTED},
        {"{\"$ref\":\"#/$defs/x\"}", "#/$defs/x leads nowhere", MXC_E_ARG},
        {"{\"$ref\":\"http://x/y\"}", "only pointers", MXC_E_UNSUPPORTED},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}", "", MXC_E_ARG},
        {"{\"$ref\":\"#/$defs/a\",\"type\":\"object\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/"
         "b\"},\"b\":"
         "{\"$ref\":\"#/$defs/a\"}}}",
         "the limit is", MXC_E_LIMIT},
        {"{\"anyOf\":[]}", "anyOf is not a list", MXC_E_ARG},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf: one value could",
         MXC_E_UNSUPPORTED},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "no value satisfies",
         MXC_E_ARG},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "pattern in two schemas",
         MXC_E_UNSUPPORTED},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":"
         "{\"b\":{}}}]}",
         "additionalProperties of one schema applies to the property b", MXC_E_UNSUPPORTED},
        {"{\"properties\":{\"a\":{}},\"minProperties\":1}", "minProperties 1", MXC_E_UNSUPPORTED},
        {"{\"type\":\"object\",\"properties\":[]}", "properties is not an object", MXC_E_ARG},
        {"{\"type\":\"object\",\"required\":[1]}", "required/0", MXC_E_ARG},
        {"{\"type\":\"array\",\"items\":[{}]}", "use prefixItems", MXC_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_grammar *g = NULL;
        struct mxc_err err = {0};
        json_t *schema = json_loads(cases[i].schema, JSON_DECODE_ANY, NULL);
        enum mxc_code code = mxc_grammar_parse_schema(schema, MXC_JSON_SPACED, &g, &err);
        if (code != cases[i].code || !strstr(err.message, cases[i].part))
            fail_msg("%s: code %d, %s", cases[i].schema, code, err.message);
        json_decref(schema);
    }
}

/* Sizes that a hostile request may ask for end soon, with a result or an error of both numbers. */
static void large(void **state) {
    (void)state;
    struct mxc_err err = {0};
    struct mxc_grammar *g = NULL;
    for (int optional = 0; optional < 2; optional++) {
        json_t *schema = json_pack("{s:s,s:{},s:[]}", "type", "object", "properties", "required");
        char name[32];
        for (int i = 0; i < 10000; i++) {
            (void)snprintf(name, sizeof name, "prop%d", i);
            json_object_set_new(json_object_get(schema, "properties"), name,
                                json_pack("{s:s}", "type", "string"));
            if (!optional)
                json_array_append_new(json_object_get(schema, "required"), json_string(name));
        }
        enum mxc_code code = mxc_grammar_parse_schema(schema, MXC_JSON_SPACED, &g, &err);
        assert_int_equal(code, optional ? MXC_E_LIMIT : MXC_OK);
        if (optional)
            assert_non_null(strstr(err.message, "the limit is"));
        else
            mxc_grammar_free(g);
        json_decref(schema);
    }
    /* references that double at each level: with siblings, in allOf, in oneOf */
    static const char *const doubling[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/d/%d\",\"minProperties\":0},"
        "\"b\":{\"$ref\":\"#/d/%d\",\"minProperties\":0}}}",
        "{\"allOf\":[{\"$ref\":\"#/d/%d\"},{\"$ref\":\"#/d/%d\"}]}",
        "{\"oneOf\":[{\"$ref\":\"#/d/%d\"},{\"$ref\":\"#/d/"
        "%d\"}],\"title\":\"t\",\"type\":\"object\"}"};
    for (size_t k = 0; k < 3; k++) {
        char text[300];
        json_t *list = json_array(), *schema;
        for (int i = 0; i < 40; i++) {
            (void)snprintf(text, sizeof text, doubling[k], i + 1, i + 1);
            json_array_append_new(list, json_loads(text, 0, NULL));
        }
        json_array_append_new(list, json_pack("{s:s}", "type", "object"));
        schema = json_pack("{s:s,s:o}", "$ref", "#/d/0", "d", list);
        enum mxc_code code = mxc_grammar_parse_schema(schema, MXC_JSON_SPACED, &g, &err);
        assert_int_equal(code, k == 2 ? MXC_E_UNSUPPORTED : MXC_E_LIMIT);
        json_decref(schema);
    }
    /* nested arrays and schemas */
    json_t *deep = json_object();
    for (int i = 0; i < 60; i++)
        deep = json_pack("{s:s,s:o}", "type", "array", "items", deep);
    assert_int_equal(mxc_grammar_parse_schema(deep, MXC_JSON_SPACED, &g, &err), MXC_OK);
    assert_true(mxc_grammar_n_states(g) < 2000);
    mxc_grammar_free(g);
    for (int i = 0; i < 200; i++)
        deep = json_pack("{s:s,s:o}", "type", "array", "items", deep);
    assert_int_equal(mxc_grammar_parse_schema(deep, MXC_JSON_SPACED, &g, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "128"));
    json_decref(deep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(refusals),
        cmocka_unit_test(large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Documents: what is well formed, and each error by its text. */
#include "surgery/patient.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static enum mxc_code parse(const char *yaml, struct mxc_surgery **surgery, struct mxc_err *err) {
    return mxc_surgery_open(files_text("dir/surgery.yaml", yaml), surgery, err);
}

static const char full[] = "version: 1\n"
                           "operations:\n"
                           "  - op: scale\n"
                           "    pattern: \"model.layers.*.o_proj.weight\"\n"
                           "    factor: 1.25\n"
                           "  - op: add\n"
                           "    pattern: 'a.*'\n"
                           "    source: ../donor.safetensors\n"
                           "  - {op: prune, granularity: attention_head, pattern: \"*\",\n"
                           "     head_ids: [3, 7]}\n"
                           "  - op: replace\n"
                           "    pattern: \"a.*.b\"\n"
                           "    source: ./near.safetensors\n"
                           "    source_key: \"c.*.d\"\n"
                           "  - op: interpolate\n"
                           "    pattern: \"*\"\n"
                           "    source_a: ../donor.safetensors\n"
                           "    source_b: near.safetensors\n"
                           "    ratio: 0.3\n"
                           "    method: slerp\n";

static void write_sources(void) {
    (void)files_text("donor.safetensors", "x");
    (void)files_text("dir/near.safetensors", "x");
}

static void expect_note(const struct mxc_surgery *s, size_t i, const char *want) {
    struct mxc_surgery_note note;
    char have[256];
    assert_true(mxc_surgery_note(s, i, &note));
    assert_int_equal(note.n_tensors, 0);
    (void)snprintf(have, sizeof have, "%s %s %s", note.op, note.pattern, note.detail);
    assert_string_equal(have, want);
}

static void well_formed(void **state) {
    (void)state;
    struct mxc_surgery *s = NULL;
    struct mxc_surgery_note note;
    struct mxc_err err = {.message = ""};
    write_sources();
    if (parse(full, &s, &err))
        fail_msg("%s", err.message);
    expect_note(s, 0, "scale model.layers.*.o_proj.weight factor 1.25");
    expect_note(s, 1, "add a.* alpha 1");
    expect_note(s, 2, "prune * 2 of attention_head");
    expect_note(s, 3, "replace a.*.b c.*.d");
    expect_note(s, 4, "interpolate * slerp, ratio 0.3");
    assert_false(mxc_surgery_note(s, 5, &note));
    /* the document, and each source once */
    assert_non_null(strstr(mxc_surgery_file(s, 0), "/dir/surgery.yaml"));
    assert_non_null(strstr(mxc_surgery_file(s, 1), "/dir/../donor.safetensors"));
    assert_non_null(strstr(mxc_surgery_file(s, 2), "/dir/./near.safetensors"));
    assert_non_null(strstr(mxc_surgery_file(s, 3), "/dir/near.safetensors"));
    assert_null(mxc_surgery_file(s, 4));
    mxc_surgery_close(s);
    static const char *const empty[] = {"version: 1\n", "version: 1\noperations: []\n"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(parse(empty[i], &s, &err), MXC_OK);
        assert_false(mxc_surgery_note(s, 0, &note));
        mxc_surgery_close(s);
    }
}

#define OP(text) "version: 1\noperations:\n  - {" text "}\n"

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *yaml, *why;
        enum mxc_code code;
    } rows[] = {
        {"", "the document is not a mapping", MXC_E_FORMAT},
        {"- 1\n", "the document is not a mapping", MXC_E_FORMAT},
        {"version: [1\n", "line 2: ", MXC_E_FORMAT},
        {"version: 1\n---\nversion: 1\n", "more than one document", MXC_E_FORMAT},
        {"operations: []\n", "version is missing", MXC_E_FORMAT},
        {"version: 99\n", "version 99 is not supported; this program reads 1", MXC_E_UNSUPPORTED},
        {"%YAML 1.1\n%TAG !a! tag:x\n---\nversion: 1\n", "line 2: %TAG is not supported",
         MXC_E_UNSUPPORTED},
        {"version: \"1\"\n", "version 1 is not supported", MXC_E_UNSUPPORTED},
        {"version: 1\nversion: 1\n", "field version stands twice", MXC_E_FORMAT},
        {"version: 1\nops: []\n", "unknown field \"ops\"", MXC_E_FORMAT},
        {"version: 1\noperations: 5\n", "operations is not a list", MXC_E_FORMAT},
        {"version: 1\noperations: [7]\n", "surgery operation #0: it is not a mapping",
         MXC_E_FORMAT},
        {OP("pattern: a"), "surgery operation #0: op is missing", MXC_E_FORMAT},
        {OP("op: teleport, pattern: a"),
         "surgery operation #0 (teleport): unknown op; there are scale", MXC_E_UNSUPPORTED},
        {"version: 1\noperations:\n  - {op: scale, pattern: a, factor: 1}\n  - {op: scale}\n",
         "surgery operation #1 (scale): pattern is missing", MXC_E_FORMAT},
        {OP("op: scale, pattern: \"a{0\", factor: 1"),
         "surgery operation #0 (scale): a { of the pattern is not closed", MXC_E_FORMAT},
        {OP("op: scale, pattern: [a], factor: 1"), "(scale): pattern is not a text", MXC_E_FORMAT},
        {OP("op: scale, pattern: a"), "(scale): factor is missing", MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: .nan"), "(scale): factor must be finite", MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: -.inf"), "(scale): factor must be finite",
         MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: 1e39"), "(scale): factor must be finite", MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: much"), "(scale): factor is not a number",
         MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: \"1\""), "(scale): factor is not a number",
         MXC_E_FORMAT},
        {OP("op: scale, pattern: a, factor: 1, alpha: 1"), "(scale): unknown field \"alpha\"",
         MXC_E_FORMAT},
        {OP("op: add, pattern: a"), "(add): source is missing", MXC_E_FORMAT},
        {OP("op: add, pattern: a, source: gone.safetensors"), "(add): source: there is no file ",
         MXC_E_NOT_FOUND},
        {OP("op: add, pattern: a, source: near.safetensors, alpha: .inf"),
         "(add): alpha must be finite", MXC_E_FORMAT},
        {OP("op: prune, pattern: a"), "(prune): granularity is missing", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: word, head_ids: [1]"),
         "(prune): granularity: \"word\" is not attention_head, layer or mlp_channel",
         MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: attention_head"),
         "(prune): granularity attention_head requires head_ids", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: layer"),
         "(prune): granularity layer requires layer_ids", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: mlp_channel, channel_ids: []"),
         "(prune): channel_ids must contain at least one id", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: layer, layer_ids: [1], head_ids: [1]"),
         "(prune): head_ids is not of granularity layer", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: layer, layer_ids: 3"),
         "(prune): layer_ids is not a list", MXC_E_FORMAT},
        {OP("op: prune, pattern: a, granularity: layer, layer_ids: [1, -2]"),
         "(prune): layer_ids: item 1 is not a number from 0 on", MXC_E_FORMAT},
        {OP("op: replace, pattern: a, source: near.safetensors"),
         "(replace): source_key is missing", MXC_E_FORMAT},
        {OP("op: replace, pattern: a, source: near.safetensors, source_key: \"\""),
         "(replace): source_key must not be empty", MXC_E_FORMAT},
        {OP("op: replace, pattern: \"a.*\", source: near.safetensors, source_key: \"*.*\""),
         "(replace): source_key has 2 stars, the pattern has 1", MXC_E_FORMAT},
        {OP("op: interpolate, pattern: a, source_a: near.safetensors, source_b: "
            "near.safetensors, ratio: 1.5, method: lerp"),
         "(interpolate): ratio must be in [0, 1]", MXC_E_FORMAT},
        {OP("op: interpolate, pattern: a, source_a: near.safetensors, source_b: "
            "near.safetensors, ratio: 0.5, method: cubic"),
         "(interpolate): method: \"cubic\" is not lerp or slerp", MXC_E_FORMAT},
        {OP("op: interpolate, pattern: a, source_a: near.safetensors, source_b: "
            "gone.safetensors, ratio: 0.5, method: lerp"),
         "(interpolate): source_b: there is no file ", MXC_E_NOT_FOUND},
    };
    write_sources();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_surgery *s = NULL;
        struct mxc_err err = {.message = ""};
        enum mxc_code code = parse(rows[i].yaml, &s, &err);
        if (code != rows[i].code || !strstr(err.message, rows[i].why) ||
            !strstr(err.message, "/dir/surgery.yaml: "))
            fail_msg("row %zu: %d \"%s\"", i, (int)code, err.message);
        assert_null(s);
    }
}

/* What libyaml would take minutes or gigabytes for is refused at once. */
static void hostile(void **state) {
    (void)state;
    enum { N = 200000 };
    static char yaml[16 * N];
    static const struct {
        const char *head, *unit, *why;
        int times;
    } rows[] = {
        {"version: 1\noperations: ", "[", "line 2: nested deeper than 16 levels", N},
        {"version: 1\noperations: ", "{a: ", "line 2: nested deeper than 16 levels", N},
        {"version: 1\noperations:\n", "- &a x\n", "line 103: more than 100 anchors", N},
        {"version: 1\noperations:\n- {op: prune, pattern: a, granularity: layer, layer_ids: &a [0",
         ", 0", "(prune): layer_ids: more than 1048576 ids in all", (1 << 20) / 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_surgery *s = NULL;
        struct mxc_err err = {.message = ""};
        size_t n = (size_t)snprintf(yaml, sizeof yaml, "%s", rows[i].head);
        for (int k = 0; k < rows[i].times; k++)
            n += (size_t)snprintf(yaml + n, sizeof yaml - n, "%s", rows[i].unit);
        if (strchr(rows[i].head, '&')) /* the same ids again */
            (void)snprintf(yaml + n, sizeof yaml - n,
                           "]}\n- {op: prune, pattern: a, granularity: "
                           "layer, layer_ids: *a}\n");
        assert_int_equal(parse(yaml, &s, &err), MXC_E_LIMIT);
        if (!strstr(err.message, rows[i].why))
            fail_msg("row %zu: \"%s\"", i, err.message);
    }
}

static void no_file(void **state) {
    (void)state;
    struct mxc_surgery *s = NULL;
    struct mxc_err err = {.message = ""};
    assert_int_equal(mxc_surgery_open(files_path("gone.yaml"), &s, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "gone.yaml"));
    mxc_surgery_close(NULL);
}

static void allocations(void **state) {
    (void)state;
    write_sources();
    const char *path = files_text("dir/surgery.yaml", full);
    for (uint64_t n = 1;; n++) {
        struct mxc_surgery *s = NULL;
        struct mxc_err err = {.message = ""};
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_surgery_open(path, &s, &err);
        mxc_mem_fail_at(0);
        if (!code) {
            assert_true(n > 5);
            mxc_surgery_close(s);
            return;
        }
        assert_int_equal(code, MXC_E_NOMEM);
        assert_null(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(well_formed), cmocka_unit_test(refused),
                                       cmocka_unit_test(hostile), cmocka_unit_test(no_file),
                                       cmocka_unit_test(allocations)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

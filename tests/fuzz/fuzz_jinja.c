/* Fuzz target: template text, and a render of what compiles. In: bytes; a first line "{...}" that
 * is JSON gives the variables. Invariants: no crash, a result or one error line, spans that cover
 * the text. Built with -fsanitize=fuzzer, or with MXC_FUZZ_REPLAY as a program that reads files. */
#include "text/jinja/jinja.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct mxc_jinja_result *r) {
    size_t at = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        if (r->spans[i].offset != at || !r->spans[i].length ||
            (i && r->spans[i].trusted == r->spans[i - 1].trusted))
            abort();
        at += r->spans[i].length;
    }
    if (at != r->length || strlen(r->text) > r->length)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char fallback[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi "
                                   "<|x|>\"}],\"n\":3,\"d\":{\"a\":[1,2.5]}}";
    const char *text = (const char *)data;
    const char *end = size && text[0] == '{' ? memchr(text, '\n', size) : NULL;
    json_t *vars = end ? json_loadb(text, (size_t)(end - text), JSON_ALLOW_NUL, NULL) : NULL;
    size_t skip = vars ? (size_t)(end - text) + 1 : 0;
    if (!json_is_object(vars)) {
        json_decref(vars);
        skip = 0;
        vars = json_loads(fallback, 0, NULL);
    }
    struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 30, .tm_wday = 1, .tm_yday = 333};
    struct mxc_jinja_options options = {
        .now = &now, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20, .max_steps = 200000};
    struct mxc_jinja_result result;
    struct mxc_jinja *jinja;
    struct mxc_err err = {0};
    if (vars && mxc_jinja_compile(text + skip, size - skip, true, &jinja, &err) == MXC_OK) {
        if (mxc_jinja_render(jinja, vars, &options, &result, &err) == MXC_OK) {
            check(&result);
            mxc_jinja_result_fini(&result);
        } else if (!err.message[0] || strchr(err.message, '\n')) {
            abort();
        }
        mxc_jinja_free(jinja);
    }
    json_decref(vars);
    return 0;
}

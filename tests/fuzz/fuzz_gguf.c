/* GGUF file -> metadata, tokeniser, config, weights and the family's graph; every value and the
 * outer rows are read, a text is encoded. Invariants: no crash; a result or one error line. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/gguf.h"
#include "format/gguf_tokenizer.h"
#include "models/family.h"

#include "use_tokenizer.h"
#include "use_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static double read_values(const struct mxc_gguf *g) {
    double sum = 0;
    for (size_t i = 0; i < mxc_gguf_n_values(g); i++) {
        const struct mxc_gguf_value *v = mxc_gguf_value_at(g, i);
        struct mxc_str s;
        size_t cursor = 0;
        while (mxc_gguf_next_string(v, &cursor, &s))
            sum += s.length ? s.ptr[s.length - 1] : 0;
        for (size_t k = 0; v->element != MXC_GGUF_STRING && k < v->count; k++)
            sum += mxc_gguf_real_at(v, k);
    }
    return sum;
}

static void use_graph(const struct mxc_config *c, const struct mxc_weights *w) {
    struct mxc_graph *graph;
    struct mxc_err err = {0};
    if (mxc_model_graph(c, w, &graph, &err))
        must_say(&err);
    else
        mxc_graph_free(graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_gguf *g;
    struct mxc_tokdesc desc;
    struct mxc_config *c = NULL;
    struct mxc_weights *w;
    struct mxc_err err = {0};
    const char *path = scratch_write("x.gguf", data, size);
    if (mxc_gguf_open(path, &g, &err)) {
        must_say(&err);
        return 0;
    }
    volatile double sum = read_values(g);
    (void)sum;
    enum mxc_code code = mxc_gguf_tokenizer_load(g, &desc, &err);
    use_tokenizer(code, &desc, &err);
    mxc_gguf_close(g);
    if (mxc_config_open(path, &c, &err))
        must_say(&err);
    if (mxc_weights_open(path, c, &w, &err)) {
        must_say(&err);
    } else {
        use_weights(w);
        if (c)
            use_graph(c, w);
        mxc_weights_close(w);
    }
    mxc_config_close(c);
    return 0;
}

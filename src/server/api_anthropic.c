/* Anthropic's routes: /v1/messages and /v1/messages/count_tokens. The header anthropic-version is
 * taken, whatever it says: there is one version of the shapes. */
#include "base/mem.h"
#include "server/anthropic.h"
#include "server/api.h"

enum mxc_code mxc_post_messages(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_dialect dialect;
    mxc_reply_header(x, "request-id", x->id); /* where Anthropic's clients look for it */
    enum mxc_code code = mxc_anthropic_read(x->json, false, &dialect, fault);
    if (code)
        return code;
    struct mxc_anthropic_state *state = mxc_mem_zalloc(1, sizeof *state);
    if (state) {
        state->stops = json_incref(json_object_get(dialect.chat, "stop"));
        code =
            mxc_dialect_start(x, &dialect, &mxc_anthropic_format, state, &state->n_prompt, fault);
    } else {
        code = mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    }
    mxc_dialect_fini(&dialect);
    return code;
}

enum mxc_code mxc_post_count_tokens(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_dialect dialect;
    int32_t n_prompt = 0;
    mxc_reply_header(x, "request-id", x->id);
    enum mxc_code code = mxc_anthropic_read(x->json, true, &dialect, fault);
    if (code)
        return code;
    code = mxc_dialect_count(x, &dialect, &n_prompt, fault);
    mxc_dialect_fini(&dialect);
    if (!code)
        mxc_reply_json(x, 200, json_pack("{s:i}", "input_tokens", n_prompt));
    return code;
}

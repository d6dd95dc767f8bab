/* Public text functions: tokenise, detokenise, render. */
#include "api/request.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_TEXT = 1 << 30 };

/* Hands a list out as int32 ids, never NULL. */
static mlxcel_status give_ids(struct mxc_ids *list, int32_t **ids, size_t *n_ids,
                              struct mlxcel_error *error) {
    if (!list->items && !(list->items = mxc_mem_alloc(sizeof *list->items))) {
        struct mxc_err err;
        return mxc_api_fail((mxc_err_nomem(&err), &err), error);
    }
    *ids = (int32_t *)list->items;
    *n_ids = list->count;
    return MLXCEL_OK;
}

mlxcel_status mlxcel_tokenize(const struct mlxcel_model *model, const char *text, size_t length,
                              unsigned flags, int32_t **ids, size_t *n_ids,
                              struct mlxcel_error *error) {
    const struct mxc_encode_options options = {.add_special = flags & MLXCEL_ADD_SPECIAL,
                                               .parse_special = flags & MLXCEL_PARSE_SPECIAL};
    struct mxc_ids list = {0};
    struct mxc_err err;
    if (mxc_chat_text(model->chat, text, length, options, &list, &err)) {
        mxc_ids_fini(&list);
        return mxc_api_fail(&err, error);
    }
    return give_ids(&list, ids, n_ids, error);
}

mlxcel_status mlxcel_tokenize_messages(const struct mlxcel_model *model, const char *messages_json,
                                       const char *template_json, int32_t **ids, size_t *n_ids,
                                       struct mlxcel_error *error) {
    const struct mlxcel_request request = {.messages_json = messages_json,
                                           .template_json = template_json};
    struct mxc_prompt_ids built;
    struct mxc_err err;
    if (mxc_api_messages(model, &request, &built, &err))
        return mxc_api_fail(&err, error);
    mxc_pictures_release(built.pictures);
    return give_ids(&built.ids, ids, n_ids, error);
}

mlxcel_status mlxcel_detokenize(const struct mlxcel_model *model, const int32_t *ids, size_t n_ids,
                                bool skip_special, char **text, size_t *length,
                                struct mlxcel_error *error) {
    struct mxc_buf buf;
    struct mxc_err err;
    mxc_buf_init(&buf, MAX_TEXT);
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0)
            return mxc_api_error(error, MXC_E_ARG, "token id %d is negative", ids[i]);
    enum mxc_code code = mxc_tokenizer_decode(model->chat->tokenizer, (const uint32_t *)ids, n_ids,
                                              skip_special, &buf, &err);
    size_t n = buf.length;
    char *out = code ? NULL : mxc_buf_take(&buf);
    if (!code && !out)
        code = mxc_err_nomem(&err);
    mxc_buf_fini(&buf);
    if (code)
        return mxc_api_fail(&err, error);
    *text = out;
    if (length)
        *length = n;
    return MLXCEL_OK;
}

mlxcel_status mlxcel_render(const struct mlxcel_model *model, const char *variables_json,
                            char **text, size_t *length, struct mlxcel_error *error) {
    struct mxc_jinja_result result;
    struct mxc_err err;
    json_t *variables;
    if (mxc_json_parse(variables_json, strlen(variables_json), "template variables", &variables,
                       &err))
        return mxc_api_fail(&err, error);
    enum mxc_code code = MXC_OK;
    char *out = NULL;
    size_t n = 0;
    if (!json_is_object(variables))
        code = mxc_err_set(&err, MXC_E_ARG, "template variables: not a JSON object");
    if (!code)
        code = mxc_chat_render(model->chat, variables, NULL, &result, &err);
    json_decref(variables);
    if (!code) {
        if (!(out = mxc_mem_dup(result.text, result.length)))
            code = mxc_err_nomem(&err);
        n = result.length;
        mxc_jinja_result_fini(&result);
    }
    if (code)
        return mxc_api_fail(&err, error);
    *text = out;
    if (length)
        *length = n;
    return MLXCEL_OK;
}

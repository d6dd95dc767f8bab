/* Faults as the API families show them. */
#include "server/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(struct mxc_fault *fault, enum mxc_code code, const char *fmt, va_list ap) {
    char text[sizeof fault->err.message];
    *fault = (struct mxc_fault){.status = 0};
    (void)vsnprintf(text, sizeof text, fmt, ap);
    (void)mxc_err_set(&fault->err, code, "%s", text);
}

enum mxc_code mxc_fault_set(struct mxc_fault *fault, enum mxc_code code, const char *param,
                            const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(fault, code, fmt, ap);
    va_end(ap);
    if (param)
        (void)snprintf(fault->param, sizeof fault->param, "%s", param);
    return code;
}

enum mxc_code mxc_fault_status(struct mxc_fault *fault, enum mxc_code code, int status,
                               const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(fault, code, fmt, ap);
    va_end(ap);
    fault->status = status;
    return code;
}

enum mxc_code mxc_fault_from(struct mxc_fault *fault, const struct mxc_err *err,
                             const char *param) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]";
    size_t n = strspn(err->message, plain);
    bool named = n && n < sizeof fault->param && !strncmp(err->message + n, ": ", 2);
    enum mxc_code code = err->code;
    if (code == MXC_E_FORMAT || code == MXC_E_LIMIT) /* 413 is for whole bodies */
        code = MXC_E_ARG;
    (void)mxc_fault_set(fault, code, NULL, "%s", err->message);
    if (code == MXC_E_NOMEM)
        return code;
    if (named)
        (void)snprintf(fault->param, sizeof fault->param, "%.*s", (int)n, err->message);
    else if (param)
        (void)snprintf(fault->param, sizeof fault->param, "%s", param);
    return code;
}

int mxc_fault_http(const struct mxc_fault *fault) {
    return fault->status ? fault->status : mxc_code_info(fault->err.code)->http_status;
}

/* Types of statuses that no code stands for. */
static const char *type_of(const struct mxc_fault *fault, bool anthropic) {
    static const struct {
        int status;
        const char *openai, *anthropic;
    } types[] = {{401, "authentication_error", "authentication_error"},
                 {403, "permission_error", "permission_error"},
                 {404, "not_found_error", "not_found_error"},
                 {413, "invalid_request_error", "request_too_large"},
                 {429, "rate_limit_error", "rate_limit_error"},
                 {503, "unavailable_error", "overloaded_error"}};
    const struct mxc_code_info *info = mxc_code_info(fault->err.code);
    for (size_t i = 0; fault->status && i < sizeof types / sizeof *types; i++)
        if (types[i].status == fault->status)
            return anthropic ? types[i].anthropic : types[i].openai;
    return anthropic ? info->anthropic_type : info->openai_type;
}

json_t *mxc_fault_json(const struct mxc_fault *fault, enum mxc_api api, const char *request_id) {
    const char *type = type_of(fault, api == MXC_API_ANTHROPIC);
    if (api == MXC_API_ANTHROPIC) {
        json_t *body = json_pack("{s:s,s:{s:s,s:s}}", "type", "error", "error", "type", type,
                                 "message", fault->err.message);
        if (body && request_id &&
            json_object_set_new(body, "request_id", json_string(request_id))) {
            json_decref(body);
            return NULL;
        }
        return body;
    }
    return json_pack("{s:{s:i,s:s,s:s,s:s?}}", "error", "code", mxc_fault_http(fault), "message",
                     fault->err.message, "type", type, "param",
                     fault->param[0] ? fault->param : NULL);
}

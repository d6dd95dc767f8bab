/* Fault: an error on its way to a client: what is wrong, with which field, and the body each API
 * family shows it in. Statuses and types come from the one table of base/err.h. */
#ifndef MXC_SERVER_FAULT_H
#define MXC_SERVER_FAULT_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

enum mxc_api { MXC_API_OPENAI, MXC_API_ANTHROPIC, MXC_API_LLAMA };

struct mxc_fault {
    struct mxc_err err;
    int status;      /* 0: the code's own */
    char param[96];  /* the field, "messages[2].content"; "": none */
    int retry_after; /* seconds; 0: no such header */
};

/* Sets the fault and returns code. param NULL: none. A message should start with the field's name.
 */
enum mxc_code mxc_fault_set(struct mxc_fault *fault, enum mxc_code code, const char *param,
                            const char *fmt, ...) MXC_PRINTF(4, 5);
/* As mxc_fault_set, with a status of its own (401, 404, 405, 413, 429 ...). */
enum mxc_code mxc_fault_status(struct mxc_fault *fault, enum mxc_code code, int status,
                               const char *fmt, ...) MXC_PRINTF(4, 5);
/* From an error of another module; the field is what its message starts with ("tools[2].type:
 * ..."), else param (NULL: none). Out of memory names no field. MXC_E_FORMAT counts as MXC_E_ARG:
 * the file at fault is the request. Returns the code. */
enum mxc_code mxc_fault_from(struct mxc_fault *fault, const struct mxc_err *err, const char *param);
int mxc_fault_http(const struct mxc_fault *fault);
/* The body: {"error": {code, message, type, param}}, or Anthropic's {"type": "error", ...}. NULL:
 * out of memory. request_id may be NULL. */
json_t *mxc_fault_json(const struct mxc_fault *fault, enum mxc_api api, const char *request_id);

#endif

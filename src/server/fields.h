/* Fields: typed access to a request's JSON. Absent and null leave *out as it is; a wrong type or a
 * value out of range is MXC_E_ARG whose message and param name the field. */
#ifndef MXC_SERVER_FIELDS_H
#define MXC_SERVER_FIELDS_H

#include "base/str.h"
#include "server/fault.h"

/* The value, NULL when absent or null. Borrowed. */
const json_t *mxc_field(const json_t *object, const char *name);
/* Whole numbers, 8.0 too. */
enum mxc_code mxc_field_int(const json_t *object, const char *name, int64_t min, int64_t max,
                            int64_t *out, struct mxc_fault *fault) MXC_MUST;
enum mxc_code mxc_field_real(const json_t *object, const char *name, double min, double max,
                             double *out, struct mxc_fault *fault) MXC_MUST;
enum mxc_code mxc_field_bool(const json_t *object, const char *name, bool *out,
                             struct mxc_fault *fault) MXC_MUST;
/* Borrowed; may hold NUL. */
enum mxc_code mxc_field_text(const json_t *object, const char *name, struct mxc_str *out,
                             struct mxc_fault *fault) MXC_MUST;
/* type: "a list", "an object". Borrowed. */
enum mxc_code mxc_field_list(const json_t *object, const char *name, const json_t **out,
                             struct mxc_fault *fault) MXC_MUST;
enum mxc_code mxc_field_object(const json_t *object, const char *name, const json_t **out,
                               struct mxc_fault *fault) MXC_MUST;
/* "name: not <wanted>, but <what it is>". */
enum mxc_code mxc_field_wrong(struct mxc_fault *fault, const char *name, const char *wanted,
                              const json_t *value);
/* A list of token ids below vocab, appended to ids (room for all was made). */
enum mxc_code mxc_field_ids(const json_t *list, const char *name, int32_t vocab, int32_t *ids,
                            struct mxc_fault *fault) MXC_MUST;

#endif

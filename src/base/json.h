/* JSON through jansson: files, bounds, and typed access with errors that name the field. Large
 * tokenizer.json files have their own streaming reader (format/). */
#ifndef MXC_BASE_JSON_H
#define MXC_BASE_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parses text of length bytes; duplicate keys are an error; an integer beyond int64 becomes a real;
 * name appears in messages. The caller owns *root (json_decref). */
enum mxc_code mxc_json_parse(const char *text, size_t length, const char *name, json_t **root,
                             struct mxc_err *err) MXC_MUST;
/* Reads and parses a file of at most max_bytes. */
enum mxc_code mxc_json_load(const char *path, size_t max_bytes, json_t **root,
                            struct mxc_err *err) MXC_MUST;

/* Optional fields: absent or null leaves *out as it was; a wrong type or a value out of
 * [min, max] is MXC_E_FORMAT that names the key. Real fields take integers too. */
enum mxc_code mxc_json_get_int(const json_t *object, const char *key, int64_t min, int64_t max,
                               int64_t *out, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_json_get_real(const json_t *object, const char *key, double *out,
                                struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_json_get_bool(const json_t *object, const char *key, bool *out,
                                struct mxc_err *err) MXC_MUST;
/* *out is borrowed from object. */
enum mxc_code mxc_json_get_string(const json_t *object, const char *key, const char **out,
                                  struct mxc_err *err) MXC_MUST;
/* Compact UTF-8 text, owned by the caller (mxc_mem_free); NULL: out of memory. */
char *mxc_json_dump(const json_t *value);

#endif

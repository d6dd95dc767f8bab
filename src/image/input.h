/* Where a request's picture comes from: data URIs, bare base64, local files. What is at an http or
 * https address is fetched by the caller, under its own policy. Pure but for the file. */
#ifndef MXC_IMAGE_INPUT_H
#define MXC_IMAGE_INPUT_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

enum mxc_image_source {
    MXC_SOURCE_DATA,   /* data:... */
    MXC_SOURCE_HTTP,   /* http:// or https:// */
    MXC_SOURCE_FILE,   /* file:... */
    MXC_SOURCE_BASE64, /* nothing but base64 characters, and enough of them for a picture's start */
    MXC_SOURCE_OTHER   /* a path, or another scheme */
};
/* By its look only; schemes in any case, leading white space passed over. */
enum mxc_image_source mxc_image_source_of(struct mxc_str text);

/* The bytes of a data URI: media type and parameters are passed over (content decides), ";base64"
 * in any case, else percent-encoding. Base64 may hold white space and percent-encoded characters,
 * the URL alphabet, and leave its padding out. At most max_bytes, else MXC_E_LIMIT; what is
 * malformed is MXC_E_FORMAT. The caller frees *data (mxc_mem_free). */
enum mxc_code mxc_image_from_uri(struct mxc_str uri, size_t max_bytes, uint8_t **data, size_t *size,
                                 struct mxc_err *err) MXC_MUST;
/* The same from bare base64. */
enum mxc_code mxc_image_from_base64(struct mxc_str text, size_t max_bytes, uint8_t **data,
                                    size_t *size, struct mxc_err *err) MXC_MUST;
/* A regular file of at most max_bytes; errors name the path. */
enum mxc_code mxc_image_from_file(const char *path, size_t max_bytes, uint8_t **data, size_t *size,
                                  struct mxc_err *err) MXC_MUST;

#endif

/* Pictures of a prompt: from the parts of messages to what the engine takes. A picture's place
 * comes from the request's parts, never from what somebody wrote: the template's own mark, or,
 * where a template knows no pictures, a mark put there by us. Bytes are decoded and prepared here,
 * off the engine's thread. A set is counted: every request that uses it holds it until its end.
 * Thread rules: building by one thread; then read-only, hold and release from any thread. */
#ifndef MXC_GEN_PICTURES_H
#define MXC_GEN_PICTURES_H

#include "base/json.h"
#include "base/str.h"
#include "engine/engine.h"
#include "image/decode.h"
#include "image/input.h"
#include "models/vision.h"

struct mxc_picture_options {
    /* Zeros: the model's default. A part's "detail" changes it for its picture: "low" to at most
     * 512 x 512 pixels, "high" (and "original"), where no max_pixels is given, to 4 Mi or what the
     * files say, if that is less. */
    struct mxc_vision_budget budget;
    struct mxc_image_options image; /* zeros: 64 megapixels on white */
    size_t max_bytes;               /* of one file; 0: 32 MiB */
    int32_t max_pictures;           /* of a request; 0: 64 */
    int32_t max_tokens;             /* that pictures may take together; 0: any number */
    /* Fetches what is neither a data URI nor base64 (a path, a file: or http(s): address), under
     * the caller's policy. NULL: refused. *data is freed with mxc_mem_free. */
    enum mxc_code (*fetch)(void *user, struct mxc_str where, enum mxc_image_source source,
                           uint8_t **data, size_t *size, struct mxc_err *err);
    void *fetch_user;
};

struct mxc_pictures;
/* vision is borrowed as long as the set lives. options may be NULL. */
enum mxc_code mxc_pictures_new(const struct mxc_vision *vision,
                               const struct mxc_picture_options *options,
                               struct mxc_pictures **pictures, struct mxc_err *err) MXC_MUST;
struct mxc_pictures *mxc_pictures_hold(struct mxc_pictures *pictures); /* NULL is fine */
void mxc_pictures_release(struct mxc_pictures *pictures);              /* NULL is fine */
int32_t mxc_pictures_count(const struct mxc_pictures *pictures);       /* NULL: 0 */
/* Whether a part of a message is a picture, by its type. */
bool mxc_picture_is_part(const json_t *part);
/* Adds the picture of a part: {"type": "image_url", "image_url": {"url": ...} or "..."}, {"type":
 * "input_image", "image_url": ...}, {"type": "image", "image" | "url" | "data" | "source": ...};
 * source: {"type": "base64", "data": ...} or {"type": "url", "url": ...}. "detail" beside the url
 * or in the part: "auto", "low", "high". Errors do not name the place; the caller does. */
enum mxc_code mxc_pictures_add_part(struct mxc_pictures *pictures, const json_t *part,
                                    struct mxc_err *err) MXC_MUST;
/* Adds the picture in the bytes of a file. */
enum mxc_code mxc_pictures_add(struct mxc_pictures *pictures, const void *data, size_t size,
                               struct mxc_err *err) MXC_MUST;
const struct mxc_vision_picture *mxc_pictures_at(const struct mxc_pictures *pictures, int32_t i);
const struct mxc_vision *mxc_pictures_vision(const struct mxc_pictures *pictures);
/* Lays the prompt out around the pictures; once. */
enum mxc_code mxc_pictures_lay_out(struct mxc_pictures *pictures,
                                   const struct mxc_vision_text *text,
                                   struct mxc_err *err) MXC_MUST;
/* Fills tokens, positions, pictures and runs of a prompt; borrowed from the set, which must have
 * been laid out and must live until the request's DONE event. */
void mxc_pictures_prompt(const struct mxc_pictures *pictures, struct mxc_prompt *prompt);

#endif

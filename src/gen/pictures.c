/* Pictures of a prompt: where the bytes come from, decoding, preparing for the tower, and the
 * arrays that a prompt borrows. Invariants: pictures are in the order of the messages; the set owns
 * every array that it hands out; after lay_out nothing changes. */
#include "gen/pictures.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

enum { DEFAULT_BYTES = 32 << 20, DEFAULT_PICTURES = 64 };
enum { LOW_PIXELS = 512 * 512, HIGH_PIXELS = 4 << 20 };
enum { MOST_NAME = 200 }; /* bytes of a picture's name in an error */

struct mxc_pictures {
    atomic_int n_holders;
    const struct mxc_vision *vision;
    struct mxc_picture_options options;
    bool max_given; /* options.budget.max_pixels is the caller's */
    struct mxc_vision_picture *items;
    int32_t n, cap;
    int64_t n_tokens;
    bool laid_out;
    struct mxc_vision_layout layout;
    struct mxc_prompt_picture *prompt; /* [n] */
    struct mxc_embed_run *runs;        /* [layout.n_runs] */
};

enum mxc_code mxc_pictures_new(const struct mxc_vision *vision,
                               const struct mxc_picture_options *options,
                               struct mxc_pictures **pictures, struct mxc_err *err) {
    struct mxc_pictures *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    atomic_init(&p->n_holders, 1);
    p->vision = vision;
    p->options.image = mxc_image_defaults;
    if (options) {
        p->options = *options;
        if (!options->image.max_pixels) {
            p->options.image = mxc_image_defaults;
        }
    }
    if (!p->options.max_bytes)
        p->options.max_bytes = DEFAULT_BYTES;
    if (!p->options.max_pictures)
        p->options.max_pictures = DEFAULT_PICTURES;
    struct mxc_vision_budget budget, *asked = &p->options.budget;
    mxc_vision_default_budget(vision, &budget);
    p->max_given = asked->max_pixels > 0;
    if (!asked->min_pixels)
        asked->min_pixels = budget.min_pixels;
    if (!asked->max_pixels)
        asked->max_pixels = budget.max_pixels && budget.max_pixels < asked->min_pixels
                                ? asked->min_pixels
                                : budget.max_pixels;
    *pictures = p;
    return MXC_OK;
}

struct mxc_pictures *mxc_pictures_hold(struct mxc_pictures *p) {
    if (p)
        (void)atomic_fetch_add(&p->n_holders, 1);
    return p;
}

void mxc_pictures_release(struct mxc_pictures *p) {
    if (!p || atomic_fetch_sub(&p->n_holders, 1) != 1)
        return;
    for (int32_t i = 0; i < p->n; i++)
        mxc_vision_picture_fini(&p->items[i]);
    if (p->laid_out)
        mxc_vision_layout_fini(&p->layout);
    mxc_mem_free(p->items);
    mxc_mem_free(p->prompt);
    mxc_mem_free(p->runs);
    mxc_mem_free(p);
}

int32_t mxc_pictures_count(const struct mxc_pictures *p) {
    return p ? p->n : 0;
}

const struct mxc_vision_picture *mxc_pictures_at(const struct mxc_pictures *p, int32_t i) {
    return &p->items[i];
}

const struct mxc_vision *mxc_pictures_vision(const struct mxc_pictures *p) {
    return p->vision;
}

/* ---- preparing */

static enum mxc_code make_room(struct mxc_pictures *p, struct mxc_err *err) {
    if (p->n >= p->options.max_pictures)
        return mxc_err_set(err, MXC_E_LIMIT, "more than %d pictures in a request",
                           p->options.max_pictures);
    if (p->n < p->cap)
        return MXC_OK;
    int32_t want = p->cap ? 2 * p->cap : 4;
    void *grown = mxc_mem_realloc(p->items, (size_t)want, sizeof *p->items);
    if (!grown)
        return mxc_err_nomem(err);
    p->items = grown;
    p->cap = want;
    return MXC_OK;
}

/* Before anything is decoded: a picture that cannot fit is not worth the work. */
static enum mxc_code check_tokens(const struct mxc_pictures *p, const struct mxc_image_info *info,
                                  const struct mxc_vision_cost *cost, struct mxc_err *err) {
    int64_t n = p->n_tokens + cost->n_tokens;
    if (!p->options.max_tokens || n <= p->options.max_tokens)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_CONTEXT,
                       "a picture of %d x %d pixels is %d tokens, all of them together %lld; the "
                       "context holds %d",
                       info->width, info->height, cost->n_tokens, (long long)n,
                       p->options.max_tokens);
}

static enum mxc_code add(struct mxc_pictures *p, const struct mxc_vision_budget *budget,
                         const void *data, size_t size, struct mxc_err *err) {
    struct mxc_image_info info;
    struct mxc_vision_cost cost;
    struct mxc_image image = {0};
    enum mxc_code code = make_room(p, err);
    if (code || (code = mxc_image_probe(data, size, &p->options.image, &info, err)) ||
        (code = mxc_vision_measure(p->vision, info.width, info.height, budget, &cost, err)) ||
        (code = check_tokens(p, &info, &cost, err)) ||
        (code = mxc_image_decode(data, size, &p->options.image, &image, err)))
        return code;
    code = mxc_vision_prepare(p->vision, &image, budget, &p->items[p->n], err);
    mxc_image_fini(&image);
    if (!code) {
        p->n++;
        p->n_tokens += cost.n_tokens;
    }
    return code;
}

enum mxc_code mxc_pictures_add(struct mxc_pictures *p, const void *data, size_t size,
                               struct mxc_err *err) {
    return add(p, &p->options.budget, data, size, err);
}

/* ---- bytes */

static bool is_type(const json_t *part, const char *type) {
    const char *have = json_string_value(json_object_get(part, "type"));
    return have && !strcmp(have, type);
}

bool mxc_picture_is_part(const json_t *part) {
    return is_type(part, "image") || is_type(part, "image_url") || is_type(part, "input_image");
}

/* The text that says where a part's picture is, or NULL. */
static const json_t *where_of(const json_t *part) {
    static const char *const keys[] = {"image_url", "image", "url", "data", NULL};
    const json_t *source = json_object_get(part, "source");
    if (json_is_object(source)) {
        const json_t *data = json_object_get(source, "data");
        return data ? data : json_object_get(source, "url");
    }
    for (int i = 0; keys[i]; i++) {
        const json_t *v = json_object_get(part, keys[i]);
        if (json_is_object(v))
            v = json_object_get(v, "url");
        if (v)
            return v;
    }
    return NULL;
}

static enum mxc_code fetch(const struct mxc_pictures *p, struct mxc_str where, uint8_t **data,
                           size_t *size, struct mxc_err *err) {
    enum mxc_image_source source = mxc_image_source_of(where);
    switch (source) {
    case MXC_SOURCE_DATA:
        return mxc_image_from_uri(where, p->options.max_bytes, data, size, err);
    case MXC_SOURCE_BASE64:
        return mxc_image_from_base64(where, p->options.max_bytes, data, size, err);
    case MXC_SOURCE_HTTP:
    case MXC_SOURCE_FILE:
    case MXC_SOURCE_OTHER:
        break;
    }
    if (!p->options.fetch)
        return mxc_err_set(err, MXC_E_ARG,
                           source == MXC_SOURCE_HTTP
                               ? "pictures at addresses are not fetched; send a data: URI"
                               : "not a data: URI or base64; files are not read for a request");
    return p->options.fetch(p->options.fetch_user, where, source, data, size, err);
}

/* Whether a text names a picture, which errors then say, instead of holding it. */
static bool is_named(struct mxc_str where) {
    enum mxc_image_source source = mxc_image_source_of(where);
    return source != MXC_SOURCE_DATA && source != MXC_SOURCE_BASE64;
}

/* The budget of a part's picture: the set's, or what its detail makes of it. */
static enum mxc_code budget_of(const struct mxc_pictures *p, const json_t *part,
                               struct mxc_vision_budget *budget, struct mxc_err *err) {
    const json_t *detail = json_object_get(part, "detail"), *url;
    if (!detail && json_is_object(url = json_object_get(part, "image_url")))
        detail = json_object_get(url, "detail");
    const char *text = detail && !json_is_null(detail) ? json_string_value(detail) : "auto";
    *budget = p->options.budget;
    if (!text || (strcmp(text, "auto") != 0 && strcmp(text, "low") != 0 &&
                  strcmp(text, "high") != 0 && strcmp(text, "original") != 0))
        return mxc_err_set(err, MXC_E_ARG, "a picture's detail is not auto, low or high");
    if (!strcmp(text, "low") && (!budget->max_pixels || budget->max_pixels > LOW_PIXELS))
        budget->max_pixels = mxc_vision_limit(p->vision, LOW_PIXELS);
    /* without a default budget the files allow no more than that anyway */
    if ((!strcmp(text, "high") || !strcmp(text, "original")) && !p->max_given &&
        budget->max_pixels && budget->max_pixels < HIGH_PIXELS)
        budget->max_pixels = mxc_vision_limit(p->vision, HIGH_PIXELS);
    if (budget->max_pixels && budget->min_pixels > budget->max_pixels)
        budget->min_pixels = budget->max_pixels;
    return MXC_OK;
}

enum mxc_code mxc_pictures_add_part(struct mxc_pictures *p, const json_t *part,
                                    struct mxc_err *err) {
    const json_t *where = where_of(part);
    uint8_t *data = NULL;
    size_t size = 0;
    if (!json_is_string(where))
        return mxc_err_set(err, MXC_E_ARG, "a picture without a url or data that is text");
    struct mxc_str text = {json_string_value(where), json_string_length(where)};
    struct mxc_vision_budget budget;
    enum mxc_code code = budget_of(p, part, &budget, err);
    if (!code)
        code = fetch(p, text, &data, &size, err);
    if (!code && (code = add(p, &budget, data, size, err)) && is_named(text))
        code = mxc_err_context(err, "%.*s",
                               (int)(text.length < MOST_NAME ? text.length : MOST_NAME), text.ptr);
    mxc_mem_free(data);
    return code;
}

/* ---- the prompt */

static enum mxc_code make_arrays(struct mxc_pictures *p, struct mxc_err *err) {
    p->prompt = mxc_mem_zalloc((size_t)p->n, sizeof *p->prompt);
    p->runs = mxc_mem_zalloc((size_t)p->layout.n_runs, sizeof *p->runs);
    if (!p->prompt || !p->runs)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < p->n; i++) {
        p->prompt[i].input = &p->items[i].input;
        p->prompt[i].n_rows = p->items[i].cost.n_features;
        memcpy(p->prompt[i].digest, p->items[i].digest, sizeof p->items[i].digest);
    }
    for (int32_t i = 0; i < p->layout.n_runs; i++) {
        const struct mxc_vision_run *r = &p->layout.runs[i];
        p->runs[i] = (struct mxc_embed_run){
            .row0 = r->row0, .n_rows = r->n_rows, .picture = r->picture, .feature0 = r->feature0};
        memcpy(p->runs[i].digest, p->items[r->picture].digest, sizeof p->runs[i].digest);
    }
    return MXC_OK;
}

enum mxc_code mxc_pictures_lay_out(struct mxc_pictures *p, const struct mxc_vision_text *text,
                                   struct mxc_err *err) {
    const struct mxc_vision_picture **list = mxc_mem_array((size_t)p->n, sizeof *list);
    if (!list)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < p->n; i++)
        list[i] = &p->items[i];
    enum mxc_code code = mxc_vision_lay_out(p->vision, text, list, p->n, &p->layout, err);
    mxc_mem_free(list);
    if (code)
        return code;
    p->laid_out = true;
    return make_arrays(p, err);
}

void mxc_pictures_prompt(const struct mxc_pictures *p, struct mxc_prompt *prompt) {
    const struct mxc_vision_layout *l = &p->layout;
    prompt->tokens = l->tokens;
    prompt->n_tokens = l->n_tokens;
    prompt->positions = l->positions;
    prompt->rope_delta = l->rope_delta;
    prompt->row_end = l->row_end;
    prompt->pictures = p->prompt;
    prompt->n_pictures = p->n;
    if (l->cross_range) {
        prompt->cross_range = l->cross_range;
        prompt->cross_runs = p->runs;
        prompt->n_cross_runs = l->n_runs;
    } else {
        prompt->embeds = p->runs;
        prompt->n_embeds = l->n_runs;
    }
}

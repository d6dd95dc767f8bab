/* Pictures in prompts, with the tokeniser, template and eye of shapes-vl: where they may come from,
 * that their place comes from the request's parts and from nothing that somebody typed, and that
 * every failure is clean. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "base/mem.h"
#include "gen/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model[] = MXC_TEST_DATA "/../../models/shapes-vl";
static const char circle[] = MXC_TEST_DATA "/../../models/shapes-vl/examples/01-circle.png";
static const char star[] = MXC_TEST_DATA "/../../models/shapes-vl/examples/02-square-star.jpg";
enum { IMAGE_PAD_TOKENS = 53 /* of "What is this?" about the circle, as the reference counts */ };

struct fixture {
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_vision *vision;
    struct mxc_chat *chat;
};

static struct fixture open_model(void) {
    struct fixture f = {0};
    struct mxc_err err;
    if (mxc_config_open(model, &f.config, &err) ||
        mxc_weights_open(model, f.config, &f.weights, &err) ||
        mxc_vision_open(model, f.config, f.weights, &f.vision, &err) ||
        mxc_chat_open(model, f.config, 0, &f.chat, &err))
        fail_msg("%s", err.message);
    assert_non_null(f.vision);
    return f;
}

static void close_model(struct fixture *f) {
    mxc_chat_close(f->chat);
    mxc_vision_close(f->vision);
    mxc_weights_close(f->weights);
    mxc_config_close(f->config);
}

/* Serves the two files above and nothing else. */
static enum mxc_code fetch(void *user, struct mxc_str where, enum mxc_image_source source,
                           uint8_t **data, size_t *size, struct mxc_err *err) {
    int *n = user;
    (void)source;
    ++*n;
    const char *path = where.length == 6 ? circle : where.length == 4 ? star : NULL;
    return path ? mxc_image_from_file(path, 1 << 20, data, size, err)
                : mxc_err_set(err, MXC_E_ARG, "not served");
}

static enum mxc_code build(const struct fixture *f, const char *json,
                           const struct mxc_picture_options *options, struct mxc_prompt_ids *out,
                           struct mxc_err *err) {
    json_t *messages = json_loads(json, 0, NULL);
    assert_non_null(messages);
    const struct mxc_prompt_input input = {
        .messages = messages, .vision = f->vision, .pictures = options};
    enum mxc_code code = mxc_prompt_build(f->chat, &input, out, err);
    json_decref(messages);
    return code;
}

static void must_build(const struct fixture *f, const char *json, struct mxc_prompt_ids *out) {
    int n = 0;
    const struct mxc_picture_options options = {.fetch = fetch, .fetch_user = &n};
    struct mxc_err err;
    if (build(f, json, &options, out, &err))
        fail_msg("%s", err.message);
}

static void fini(struct mxc_prompt_ids *ids) {
    mxc_pictures_release(ids->pictures);
    mxc_ids_fini(&ids->ids);
}

static int count(const struct mxc_prompt_ids *ids, int32_t id) {
    int n = 0;
    for (size_t i = 0; i < ids->ids.count; i++)
        n += (int32_t)ids->ids.items[i] == id;
    return n;
}

static void in_its_place(void **state) {
    (void)state;
    struct fixture f = open_model();
    struct mxc_prompt_ids ids, text;
    int32_t pad = mxc_vision_image_token(f.vision);
    must_build(&f,
               "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":\"circle\"},"
               "{\"type\":\"text\",\"text\":\"What is this?\"}]}]",
               &ids);
    assert_int_equal(ids.ids.count, IMAGE_PAD_TOKENS);
    assert_int_equal(mxc_pictures_count(ids.pictures), 1);
    struct mxc_prompt prompt = {0};
    mxc_pictures_prompt(ids.pictures, &prompt);
    assert_int_equal(prompt.n_tokens, ids.ids.count);
    assert_memory_equal(prompt.tokens, ids.ids.items, ids.ids.count * sizeof(int32_t));
    assert_non_null(prompt.positions);
    assert_int_equal(prompt.n_pictures, 1);
    assert_int_equal(prompt.n_embeds, 1);
    assert_null(prompt.cross_range);
    assert_int_equal(prompt.embeds[0].n_rows, prompt.pictures[0].n_rows);
    assert_int_equal(count(&ids, pad), prompt.pictures[0].n_rows);
    for (int32_t i = 0; i < prompt.embeds[0].n_rows; i++)
        assert_int_equal(prompt.tokens[prompt.embeds[0].row0 + i], pad);
    fini(&ids);
    must_build(&f, "[{\"role\":\"user\",\"content\":\"What is this?\"}]", &text);
    assert_null(text.pictures);
    assert_int_equal(count(&text, pad), 0);
    fini(&text);
    close_model(&f);
}

/* Two pictures in two messages, spelled in different ways. */
static void in_order(void **state) {
    (void)state;
    struct fixture f = open_model();
    struct mxc_prompt_ids ids, one;
    must_build(
        &f,
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"First.\"},"
        "{\"type\":\"image_url\",\"image_url\":{\"url\":\"star\"}}]},"
        "{\"role\":\"assistant\",\"content\":\"Yes.\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"circle\"},"
        "{\"type\":\"text\",\"text\":\"And this?\"}]}]",
        &ids);
    must_build(&f,
               "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\","
               "\"url\":\"star\"}}]}]",
               &one);
    assert_int_equal(mxc_pictures_count(ids.pictures), 2);
    const struct mxc_vision_picture *a = mxc_pictures_at(ids.pictures, 0);
    assert_memory_equal(a->digest, mxc_pictures_at(one.pictures, 0)->digest, 32);
    assert_memory_not_equal(a->digest, mxc_pictures_at(ids.pictures, 1)->digest, 32);
    struct mxc_prompt prompt = {0};
    mxc_pictures_prompt(ids.pictures, &prompt);
    assert_int_equal(prompt.n_embeds, 2);
    assert_int_equal(prompt.embeds[0].picture, 0);
    assert_int_equal(prompt.embeds[1].picture, 1);
    assert_true(prompt.embeds[0].row0 < prompt.embeds[1].row0);
    fini(&ids);
    fini(&one);
    close_model(&f);
}

static char *base64_of(const char *path) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t *data;
    size_t size, n = 0;
    assert_int_equal(mxc_image_from_file(path, 1 << 20, &data, &size, NULL), MXC_OK);
    char *out = calloc(size / 3 * 4 + 5, 1);
    assert_non_null(out);
    for (size_t i = 0; i < size; i += 3) {
        uint32_t bits = (uint32_t)data[i] << 16 | (i + 1 < size ? (uint32_t)data[i + 1] << 8 : 0) |
                        (i + 2 < size ? data[i + 2] : 0);
        for (size_t k = 0; k < 4; k++)
            out[n++] = k > size - i ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
    mxc_mem_free(data);
    return out;
}

/* One picture in every spelling that clients have for it is one picture. */
static void spellings(void **state) {
    (void)state;
    static const char *const parts[] = {
        /* OpenAI's: an object or text; the URI as clients write it */
        "{'type':'image_url','image_url':{'url':'data:image/png;base64,%s'}}",
        "{'type':'image_url','image_url':'data:image/png;base64,%s'}",
        "{'type':'input_image','image_url':'data:image/png;base64,%s'}",
        "{'type':'input_image','image_url':{'url':'data:image/png;base64,%s','detail':'auto'}}",
        "{'type':'image_url','image_url':{'url':'DATA:Image/PNG;BASE64,%s'}}",
        "{'type':'image_url','image_url':{'url':' data:;name=a.png;base64,\\r\\n%s\\n'}}",
        "{'type':'image_url','image_url':{'url':'data:image/jpeg;charset=utf-8;base64,%s'}}",
        /* base64 and nothing else */
        "{'type':'image_url','image_url':{'url':'%s'}}", "{'type':'image_url','image_url':'%s'}",
        "{'type':'image','image':'%s'}", "{'type':'image','data':'%s'}",
        "{'type':'image','url':'%s'}",
        /* Anthropic's */
        "{'type':'image','source':{'type':'base64','media_type':'image/png','data':'%s'}}",
        "{'type':'image','source':{'type':'url','url':'data:image/png;base64,%s'}}"};
    struct fixture f = open_model();
    struct mxc_prompt_ids first;
    char *base64 = base64_of(circle);
    size_t room = strlen(base64) + 256, length = strlen(base64);
    char *part = calloc(room, 1), *json = calloc(room, 1);
    assert_true(part && json && base64[length - 1] == '=');
    must_build(&f, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":\"circle\"}]}]",
               &first);
    for (size_t i = 0; i < 2 * (sizeof parts / sizeof *parts); i++) {
        struct mxc_prompt_ids ids;
        struct mxc_err err;
        if (i == sizeof parts / sizeof *parts) /* and all of them without padding */
            base64[strcspn(base64, "=")] = 0;
        const char *at = strstr(parts[i % (sizeof parts / sizeof *parts)], "%s");
        int before = (int)(at - parts[i % (sizeof parts / sizeof *parts)]);
        (void)snprintf(part, room, "%.*s%s%s", before, at - before, base64, at + 2);
        for (char *p = part; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        (void)snprintf(json, room, "[{\"role\":\"user\",\"content\":[%s]}]", part);
        if (build(&f, json, NULL, &ids, &err))
            fail_msg("%.80s: %s", part, err.message);
        assert_int_equal(ids.ids.count, first.ids.count);
        assert_memory_equal(mxc_pictures_at(ids.pictures, 0)->digest,
                            mxc_pictures_at(first.pictures, 0)->digest, 32);
        fini(&ids);
    }
    fini(&first);
    free(base64);
    free(part);
    free(json);
    close_model(&f);
}

/* Several in one message, and in messages of every role, in their order. */
static void in_every_role(void **state) {
    (void)state;
#define CIRCLE "{\"type\":\"image_url\",\"image_url\":\"circle\"}"
#define STAR   "{\"type\":\"image_url\",\"image_url\":\"star\"}"
    struct fixture f = open_model();
    struct mxc_prompt_ids ids, one;
    must_build(&f, "[{\"role\":\"user\",\"content\":[" STAR "]}]", &one);
    must_build(&f,
               "[{\"role\":\"system\",\"content\":[" STAR
               ",{\"type\":\"text\",\"text\":\"Look.\"}]},"
               "{\"role\":\"user\",\"content\":[" CIRCLE
               ",{\"type\":\"text\",\"text\":\"and\"}," STAR "," CIRCLE
               "]},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\","
               "\"id\":\"call00001\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"content\":[" STAR "]}]",
               &ids);
    static const char order[] = "SCSCS";
    assert_int_equal(mxc_pictures_count(ids.pictures), 5);
    struct mxc_prompt prompt = {0};
    mxc_pictures_prompt(ids.pictures, &prompt);
    assert_int_equal(prompt.n_embeds, 5);
    int32_t end = 0;
    for (int32_t i = 0; i < 5; i++) {
        bool star_there = !memcmp(mxc_pictures_at(ids.pictures, i)->digest,
                                  mxc_pictures_at(one.pictures, 0)->digest, 32);
        assert_int_equal(star_there, order[i] == 'S');
        assert_int_equal(prompt.embeds[i].picture, i);
        assert_true(prompt.embeds[i].row0 >= end);
        end = prompt.embeds[i].row0 + prompt.embeds[i].n_rows;
    }
    fini(&ids);
    fini(&one);
    close_model(&f);
}

/* The chat with another template. */
static void with_template(struct fixture *f, const char *text) {
    struct mxc_err err;
    struct mxc_chat *other;
    assert_int_equal(mxc_chat_new(f->chat->tokenizer, text, &other, &err), MXC_OK);
    f->chat->tokenizer = NULL;
    mxc_chat_close(f->chat);
    f->chat = other;
}

/* A template that leaves pictures out, or shows them twice. */
static void places_that_do_not_match(void **state) {
    (void)state;
    static const struct {
        const char *template, *message;
    } cases[] = {
        {"{% for m in messages %}{% if m.role == 'user' %}[{% for p in m.content %}"
         "{{ '<|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}]{% endif %}{% endfor "
         "%}",
         "1 places for pictures, the request has 2"},
        {"{% for m in messages %}[{% for p in m.content %}"
         "{{ '<|image_pad|><|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}]"
         "{% endfor %}",
         "4 places for pictures, the request has 2"},
        {"{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}",
         "1 places for pictures, the request has 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f = open_model();
        struct mxc_prompt_ids ids;
        struct mxc_err err = {0};
        int n = 0;
        const struct mxc_picture_options options = {.fetch = fetch, .fetch_user = &n};
        with_template(&f, cases[i].template);
        enum mxc_code code = build(&f,
                                   "[{\"role\":\"system\",\"content\":[" STAR
                                   "]},{\"role\":\"user\",\"content\":[" CIRCLE "]}]",
                                   &options, &ids, &err);
        if (code != MXC_E_ARG || !strstr(err.message, cases[i].message))
            fail_msg("%s: code %d, %s", cases[i].template, (int)code, err.message);
        close_model(&f);
    }
}

/* What a user types is text: it neither makes a place nor takes one. */
static void typed_marks_are_text(void **state) {
    (void)state;
    struct fixture f = open_model();
    struct mxc_prompt_ids ids, typed;
    int32_t pad = mxc_vision_image_token(f.vision);
    must_build(&f,
               "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
               "\"<|vision_start|><|image_pad|><|vision_end|>\"},"
               "{\"type\":\"image\",\"url\":\"circle\"}]}]",
               &ids);
    must_build(&f, "[{\"role\":\"user\",\"content\":\"<|image_pad|> and <|image_pad|>\"}]", &typed);
    struct mxc_prompt prompt = {0};
    mxc_pictures_prompt(ids.pictures, &prompt);
    assert_int_equal(count(&ids, pad), prompt.pictures[0].n_rows);
    assert_int_equal(count(&typed, pad), 0);
    fini(&ids);
    fini(&typed);
    close_model(&f);
}

static void templates_without_pictures(void **state) {
    (void)state;
    struct fixture f = open_model();
    struct mxc_prompt_ids ids;
    int32_t pad = mxc_vision_image_token(f.vision);
    with_template(&f, "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}");
    must_build(&f,
               "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":\"circle\"},"
               "{\"type\":\"text\",\"text\":\"<|image_pad|> what?\"}]}]",
               &ids);
    struct mxc_prompt prompt = {0};
    mxc_pictures_prompt(ids.pictures, &prompt);
    assert_int_equal(count(&ids, pad), prompt.pictures[0].n_rows);
    assert_true(prompt.embeds[0].row0 >= 1 && prompt.embeds[0].row0 < 3); /* behind the bracket */
    struct mxc_buf buf;
    mxc_buf_init(&buf, 1 << 16);
    assert_int_equal(
        mxc_tokenizer_decode(f.chat->tokenizer, ids.ids.items, ids.ids.count, true, &buf, NULL),
        MXC_OK);
    assert_null(strstr(mxc_buf_text(&buf), "mxc")); /* the mark's name is gone */
    assert_non_null(strstr(mxc_buf_text(&buf), "what?]"));
    mxc_buf_fini(&buf);
    fini(&ids);
    close_model(&f);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *part, *message;
        enum mxc_code code;
    } cases[] = {
        {"{\"type\":\"image\"}", "content[0]: a picture without a url", MXC_E_ARG},
        {"{\"type\":\"image_url\",\"image_url\":{\"url\":7}}", "content[0]: a picture without",
         MXC_E_ARG},
        {"{\"type\":\"image_url\",\"image_url\":\"https://example.org/a.png\"}",
         "pictures at addresses are not fetched", MXC_E_ARG},
        {"{\"type\":\"image_url\",\"image_url\":\"/etc/passwd\"}", "files are not read", MXC_E_ARG},
        {"{\"type\":\"image_url\",\"image_url\":\"file:///etc/passwd\"}", "files are not read",
         MXC_E_ARG},
        {"{\"type\":\"image_url\",\"image_url\":\"data:image/png;base64,iVBORw0KGgo=\"}",
         "messages[0].content[0]: PNG", MXC_E_FORMAT},
        {"{\"type\":\"image_url\",\"image_url\":\"data:image/png;base64,!!!\"}",
         "messages[0].content[0]", MXC_E_FORMAT},
        {"{\"type\":\"image_url\",\"image_url\":\"data:text/plain,hello\"}",
         "messages[0].content[0]", MXC_E_FORMAT},
        {"{\"type\":\"video\"}", "content[0]: video is not supported", MXC_E_UNSUPPORTED},
    };
    struct fixture f = open_model();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[512];
        struct mxc_prompt_ids ids;
        struct mxc_err err = {0};
        (void)snprintf(json, sizeof json,
                       "[{\"role\":\"user\",\"content\":[%s,{\"type\":\"text\",\"text\":\"x\"}]}]",
                       cases[i].part);
        enum mxc_code code = build(&f, json, NULL, &ids, &err);
        if (!strstr(err.message, cases[i].message) ||
            (code != cases[i].code && code != MXC_E_UNSUPPORTED))
            fail_msg("%s: code %d, %s", cases[i].part, (int)code, err.message);
    }
    /* a model without an eye */
    struct mxc_prompt_ids ids;
    struct mxc_err err;
    struct fixture blind = f;
    blind.vision = NULL;
    assert_int_equal(
        build(&blind, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":\"circle\"}]}]",
              NULL, &ids, &err),
        MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "the model takes no images"));
    close_model(&f);
}

static void limits(void **state) {
    (void)state;
    struct fixture f = open_model();
    struct mxc_prompt_ids ids;
    struct mxc_err err;
    int n = 0;
    static const char two[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":"
                              "\"circle\"},{\"type\":\"image\",\"url\":\"star\"}]}]";
    struct mxc_picture_options options = {.fetch = fetch, .fetch_user = &n, .max_pictures = 1};
    assert_int_equal(build(&f, two, &options, &ids, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "more than 1 pictures"));
    options.max_pictures = 0;
    options.image.max_pixels = 100;
    assert_int_equal(build(&f, two, &options, &ids, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "messages[0].content[0]"));
    /* a smaller budget means fewer tokens */
    options.image.max_pixels = 0;
    assert_int_equal(build(&f, two, &options, &ids, &err), MXC_OK);
    size_t most = ids.ids.count;
    fini(&ids);
    options.budget.max_pixels = 56 * 56;
    assert_int_equal(build(&f, two, &options, &ids, &err), MXC_OK);
    assert_true(ids.ids.count < most);
    fini(&ids);
    close_model(&f);
}

static void out_of_memory(void **state) {
    (void)state;
    struct fixture f = open_model();
    static const char json[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":"
                               "\"circle\"},{\"type\":\"text\",\"text\":\"?\"}]}]";
    uint64_t n = 1;
    for (;; n++) {
        struct mxc_prompt_ids ids;
        struct mxc_err err;
        int fetched = 0;
        const struct mxc_picture_options options = {.fetch = fetch, .fetch_user = &fetched};
        mxc_mem_fail_at(n);
        enum mxc_code code = build(&f, json, &options, &ids, &err);
        mxc_mem_fail_at(0);
        if (!code) {
            fini(&ids);
            break;
        }
        assert_int_equal(code, MXC_E_NOMEM);
    }
    assert_true(n > 30);
    close_model(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_its_place),
        cmocka_unit_test(in_order),
        cmocka_unit_test(spellings),
        cmocka_unit_test(in_every_role),
        cmocka_unit_test(places_that_do_not_match),
        cmocka_unit_test(typed_marks_are_text),
        cmocka_unit_test(templates_without_pictures),
        cmocka_unit_test(refused),
        cmocka_unit_test(limits),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

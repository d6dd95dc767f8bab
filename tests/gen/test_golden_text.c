/* The text side of every golden checkpoint (folders and GGUF): the ids of each case's text, every
 * chat as the reference rendered and tokenised it. */
#define _GNU_SOURCE
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "gen/chat.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct totals {
    int folders, texts, chats;
};

static void same_ids(const char *where, const json_t *want, const struct mxc_ids *have) {
    if (json_array_size(want) != have->count)
        fail_msg("%s: %zu ids, expected %zu", where, have->count, json_array_size(want));
    for (size_t i = 0; i < have->count; i++)
        if (json_integer_value(json_array_get(want, i)) != have->items[i])
            fail_msg("%s: id %zu is %u", where, i, have->items[i]);
}

static void check_text(const struct mxc_chat *chat, const char *folder, const json_t *item,
                       struct totals *totals) {
    const struct mxc_encode_options options = {.add_special = true, .parse_special = true};
    const json_t *text = json_object_get(item, "text");
    struct mxc_ids ids = {0};
    struct mxc_err err;
    char where[512];
    if (!json_is_string(text))
        return;
    (void)snprintf(where, sizeof where, "%.64s: case %.64s", folder,
                   json_string_value(json_object_get(item, "name")));
    if (mxc_chat_text(chat, json_string_value(text), json_string_length(text), options, &ids, &err))
        fail_msg("%s: %s", where, err.message);
    same_ids(where, json_object_get(item, "ids"), &ids);
    mxc_ids_fini(&ids);
    totals->texts++;
}

static void check_chat(const struct mxc_chat *chat, const char *folder, const json_t *item,
                       struct totals *totals) {
    static const char *const keys[] = {"messages", "tools", "add_generation_prompt"};
    const struct mxc_encode_options plain = {.parse_special = true};
    struct mxc_jinja_result result;
    struct mxc_err err;
    char where[512];
    (void)snprintf(where, sizeof where, "%.64s: chat %.64s", folder,
                   json_string_value(json_object_get(item, "name")));
    json_t *variables = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(item, keys[i]);
        if (value && !json_is_null(value))
            assert_int_equal(json_object_set(variables, keys[i], value), 0);
    }
    enum mxc_code code = mxc_chat_render(chat, variables, NULL, &result, &err);
    json_decref(variables);
    const char *rendered = json_string_value(json_object_get(item, "rendered"));
    assert_non_null(rendered);
    if (code)
        fail_msg("%s: %s", where, err.message);
    if (strcmp(rendered, result.text))
        fail_msg("%s:\n%s\nexpected\n%s", where, result.text, rendered);
    struct mxc_ids ids = {0};
    assert_int_equal(mxc_chat_text(chat, result.text, result.length, plain, &ids, &err), MXC_OK);
    same_ids(where, json_object_get(item, "ids_no_special"), &ids);
    mxc_ids_fini(&ids);
    mxc_jinja_result_fini(&result);
    totals->chats++;
}

static void check_folder(const char *folder, struct totals *totals) {
    char path[512];
    struct mxc_err err;
    struct mxc_chat *chat;
    json_t *golden, *item;
    size_t i;
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%.64s/golden/golden.json", folder);
    assert_int_equal(mxc_json_load(path, 1 << 24, &golden, &err), MXC_OK);
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%.64s/model.gguf", folder);
    if (access(path, R_OK))
        (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%.64s", folder);
    if (mxc_chat_open(path, NULL, 0, &chat, &err))
        fail_msg("%s: %s", folder, err.message);
    json_array_foreach(json_object_get(golden, "cases"), i, item) {
        check_text(chat, folder, item, totals);
    }
    json_array_foreach(json_object_get(golden, "chat"), i, item) {
        check_chat(chat, folder, item, totals);
    }
    mxc_chat_close(chat);
    json_decref(golden);
    totals->folders++;
}

static void every_golden_folder(void **state) {
    (void)state;
    struct totals totals = {0};
    DIR *dir = opendir(MXC_TEST_DATA "/golden");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char config[512], gguf[512];
        (void)snprintf(config, sizeof config, MXC_TEST_DATA "/golden/%.64s/config.json", e->d_name);
        (void)snprintf(gguf, sizeof gguf, MXC_TEST_DATA "/golden/%.64s/model.gguf", e->d_name);
        if (e->d_name[0] != '.' && (!access(config, R_OK) || !access(gguf, R_OK)))
            check_folder(e->d_name, &totals);
    }
    closedir(dir);
    print_message("%d folders, %d texts, %d chats\n", totals.folders, totals.texts, totals.chats);
    assert_true(totals.folders >= 27 && totals.texts >= 70 && totals.chats >= 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_golden_folder)};
    return cmocka_run_group_tests_name("golden text", tests, NULL, NULL);
}

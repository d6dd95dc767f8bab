/* complete.c - the shortest useful program: one chat message, one streamed answer.
 *   cc complete.c $(pkg-config --cflags --libs mlxcel) && ./a.out MODEL "Why is the sky blue?" */
#include <mlxcel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const struct mlxcel_error *error) {
    fprintf(stderr, "%s\n", error->message);
    return 1;
}

/* A JSON list with one user message. Only what JSON needs escaped is escaped. */
static char *user_message(const char *text) {
    static const char head[] = "[{\"role\":\"user\",\"content\":\"", tail[] = "\"}]";
    char *json = malloc(sizeof head + 6 * strlen(text) + sizeof tail), *p = json;
    if (!json)
        return NULL;
    memcpy(p, head, sizeof head - 1);
    p += sizeof head - 1;
    for (; *text; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
            p += snprintf(p, 7, "\\u%04x", (unsigned)*text);
        else
            *p++ = *text;
    }
    memcpy(p, tail, sizeof tail);
    return json;
}

int main(int argc, char **argv) {
    struct mlxcel_model *model = NULL;
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_request request;
    struct mlxcel_event event;
    struct mlxcel_error error;
    uint64_t id;
    int status = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TEXT [MAX_TOKENS]\n", argv[0]);
        return 2;
    }
    char *messages = user_message(argv[2]);
    if (!messages)
        return 1;
    if (mlxcel_model_open(argv[1], NULL, &model, &error) ||
        mlxcel_engine_new(model, &engine, &error)) {
        status = fail(&error);
        goto out;
    }
    mlxcel_request_init(model, &request);
    request.messages_json = messages;
    request.max_tokens = argc > 3 ? atol(argv[3]) : 64;
    request.sampling.temperature = 0;
    if (mlxcel_engine_submit(engine, &request, &id, &error)) {
        status = fail(&error);
        goto out;
    }
    do {
        if (!mlxcel_engine_next(engine, -1, &event))
            break;
        if (event.type == MLXCEL_EVENT_TEXT) {
            fputs(event.text, stdout);
            fflush(stdout);
        }
    } while (event.type != MLXCEL_EVENT_DONE);
    printf("\n[%lld prompt tokens, %lld generated]\n", (long long)event.n_prompt,
           (long long)event.n_generated);
    if (event.finish == MLXCEL_FINISH_ERROR)
        status = fail(&event.error);
out:
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
    free(messages);
    return status;
}

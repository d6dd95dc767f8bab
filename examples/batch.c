/* batch.c - many prompts at once: they share the machine and each gets the answer it would get
 * alone. Reads one raw prompt per line from standard input, prints the answers in order.
 *   ./batch MODEL [MAX_TOKENS] < prompts.txt */
#include <mlxcel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 64, MAX_LINE = 4096, MAX_ANSWER = 65536 };

struct job {
    uint64_t id;
    char prompt[MAX_LINE];
    char answer[MAX_ANSWER];
    size_t length;
};

static struct job *job_of(struct job *jobs, int n, uint64_t id) {
    for (int i = 0; i < n; i++)
        if (jobs[i].id == id)
            return &jobs[i];
    return NULL;
}

static int submit_all(struct mlxcel_engine *engine, const struct mlxcel_model *model,
                      struct job *jobs, int n, long max_tokens, struct mlxcel_error *error) {
    for (int i = 0; i < n; i++) {
        struct mlxcel_request request;
        mlxcel_request_init(model, &request);
        request.prompt = jobs[i].prompt;
        request.max_tokens = max_tokens;
        request.sampling.temperature = 0;
        if (mlxcel_engine_submit(engine, &request, &jobs[i].id, error))
            return -1;
    }
    return 0;
}

static void collect(struct mlxcel_engine *engine, struct job *jobs, int n) {
    struct mlxcel_event event;
    for (int left = n; left && mlxcel_engine_next(engine, -1, &event);) {
        struct job *job = job_of(jobs, n, event.request);
        if (!job)
            continue;
        if (event.type == MLXCEL_EVENT_TEXT) {
            size_t more = strlen(event.text);
            if (job->length + more < sizeof job->answer) {
                memcpy(job->answer + job->length, event.text, more + 1);
                job->length += more;
            }
        } else if (event.type == MLXCEL_EVENT_DONE) {
            left--;
            if (event.finish == MLXCEL_FINISH_ERROR)
                fprintf(stderr, "request %llu: %s\n", (unsigned long long)event.request,
                        event.error.message);
        }
    }
}

int main(int argc, char **argv) {
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_error error;
    int n = 0, status = 1;
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [MAX_TOKENS] < prompts\n", argv[0]);
        return 2;
    }
    struct job *jobs = calloc(MAX_PROMPTS, sizeof *jobs);
    if (!jobs)
        return 1;
    while (n < MAX_PROMPTS && fgets(jobs[n].prompt, MAX_LINE, stdin)) {
        jobs[n].prompt[strcspn(jobs[n].prompt, "\n")] = 0;
        n++;
    }
    mlxcel_model_options_init(&options);
    options.max_sequences = 8;
    if (mlxcel_model_open(argv[1], &options, &model, &error) ||
        mlxcel_engine_new(model, &engine, &error) ||
        submit_all(engine, model, jobs, n, argc > 2 ? atol(argv[2]) : 16, &error)) {
        fprintf(stderr, "%s\n", error.message);
        goto out;
    }
    collect(engine, jobs, n);
    for (int i = 0; i < n; i++)
        printf("%d: %s\n", i, jobs[i].answer);
    status = 0;
out:
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
    free(jobs);
    return status;
}

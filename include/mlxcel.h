/* mlxcel.h - load language-model checkpoints and run them from C.
 *
 * Checkpoints: folders with config.json, tokenizer.json and safetensors (Hugging Face or
 * MLX-quantised), and .gguf files. One include, one library; link with `pkg-config --libs mlxcel`.
 *
 * Conventions
 *   Errors     A function that can fail returns an mlxcel_status, fills *error when it is not NULL
 *              and leaves its outputs untouched.
 *   Ownership  Parameters are borrowed for the call. What a function creates is released by the
 *              function its comment names. Text handed out as `char *` is released by mlxcel_free.
 *   Threads    A model may be shared by any number of threads for everything but opening and
 *              closing. An engine owns a thread; its functions may be called from any thread.
 *   Files      A model reads rows of its files while it runs: do not truncate or rewrite them in
 *              place (replace them by rename).
 *   Process    Threads of the library run with all signals blocked. Nothing survives fork. Numbers
 *              are read with the C locale's decimal point: leave LC_NUMERIC as it is. Threads that
 *              submit messages or render templates need 512 KiB of stack.
 *   Printing   The library never prints, exits or aborts. mlxcel_log_set receives diagnostics.
 *   Structs    Options are initialised by their _init function, so that new fields get defaults. */
#ifndef MLXCEL_H
#define MLXCEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLXCEL_API __attribute__((visibility("default")))
#else
#define MLXCEL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mlxcel_status {
    MLXCEL_OK = 0,
    MLXCEL_USAGE,
    MLXCEL_ARGUMENT,
    MLXCEL_NO_MEMORY,
    MLXCEL_IO,
    MLXCEL_NOT_FOUND,
    MLXCEL_FORMAT,
    MLXCEL_UNSUPPORTED,
    MLXCEL_LIMIT,
    MLXCEL_CONTEXT,
    MLXCEL_TEMPLATE,
    MLXCEL_NETWORK,
    MLXCEL_BUSY,
    MLXCEL_CANCELLED,
    MLXCEL_NOT_WIRED, /* the build lacks the device runtime */
    MLXCEL_BACKEND,
    MLXCEL_INTERNAL,
    MLXCEL_DEVICE_LOST, /* nothing more can be run: close engine and model, open them again */
    MLXCEL_CONFIG       /* options, checkpoint and build do not go together */
} mlxcel_status;

struct mlxcel_error {
    mlxcel_status status;
    int64_t position;  /* byte offset, line or index the message speaks of; -1: none */
    char message[512]; /* one line of UTF-8 that names the file or field and the cause */
};

MLXCEL_API const char *mlxcel_version(void); /* "0.1.0" */
/* "not_found", "format", ...; never NULL. */
MLXCEL_API const char *mlxcel_status_name(mlxcel_status status);
/* Releases text that a function of this header gave away; NULL is fine. */
MLXCEL_API void mlxcel_free(void *text);

typedef enum mlxcel_log_level {
    MLXCEL_LOG_ERROR,
    MLXCEL_LOG_WARN,
    MLXCEL_LOG_INFO,
    MLXCEL_LOG_DEBUG
} mlxcel_log_level;
/* line has no newline. May be called from any thread, also at the same time. */
typedef void mlxcel_log_fn(mlxcel_log_level level, const char *line, void *user);
/* Process-wide; set it before other threads use the library. NULL: silent (the default). */
MLXCEL_API void mlxcel_log_set(mlxcel_log_fn *sink, mlxcel_log_level max_level, void *user);

/* ---- models */

typedef enum mlxcel_precision {
    MLXCEL_PRECISION_AUTO,  /* fast for quantised and bf16 weights, exact otherwise */
    MLXCEL_PRECISION_EXACT, /* float32 activations and KV; reference comparisons */
    MLXCEL_PRECISION_FAST   /* int8 activations on quantised weights, bf16 on bf16 */
} mlxcel_precision;

struct mlxcel_model_options {
    const char *backend; /* "cpu", "xla"; NULL: MLXCEL_BACKEND or "cpu" */
    /* Of the backend "xla" (docs/xla.md), as their variables would say it; NULL: MLXCEL_XLA_PLUGIN
     * (else the plugin that "mlxcel xla install" fetched), -_PRECISION, -_CONTEXT_CAPACITY and
     * -_VISION_BACKEND. */
    const char *xla_plugin;           /* path of a PJRT plugin */
    const char *xla_precision;        /* "f32", "f16", "bf16", "auto" */
    const char *xla_context_capacity; /* tokens of a sequence, "1" to "2147483647" */
    const char *xla_vision_backend;   /* "auto", "host", "device", "iree" */
    const char *tp_size; /* devices that share the model, "1" to "1024"; NULL: MLXCEL_TP_SIZE, 1 */
    const char *surgery; /* document of operations on the weights (docs/surgery.md); NULL:
                            MLXCEL_SURGERY, if that is set; "": none */
    int threads;         /* 0: one per core */
    mlxcel_precision precision;
    int64_t context;     /* tokens a sequence may have, at least 2; 0: the model's limit, which a
                            larger value means too, with a warning in the log */
    int max_sequences;   /* sequences that run at the same time, 1 to 1024; default 8 */
    int max_chunk;       /* prompt tokens per step, 32 to 8192; default 512 */
    int64_t kv_tokens;   /* tokens of KV cache for all sequences; 0: context, within memory */
    bool force;          /* load even if memory does not suffice */
    bool tokenizer_only; /* no weights: only tokenise, detokenise, render work */
    bool all_logits;     /* buffers for the logits of every prompt row: mlxcel_trace_new needs it */
    /* Called with 0..1 while weights are packed, on the opening thread. false cancels. */
    bool (*progress)(void *user, double fraction);
    void *progress_user;
};
MLXCEL_API void mlxcel_model_options_init(struct mlxcel_model_options *options);

struct mlxcel_model;
/* path: a folder or a .gguf file. options may be NULL. Close with mlxcel_model_close. MLXCEL_LIMIT
 * when weights, activations and KV of one sequence (of `context` tokens, or 256 when that is 0) are
 * more than the memory that is available, unless options->force. */
MLXCEL_API mlxcel_status mlxcel_model_open(const char *path,
                                           const struct mlxcel_model_options *options,
                                           struct mlxcel_model **model, struct mlxcel_error *error);
/* Every engine of the model must have been freed. NULL is fine. */
MLXCEL_API void mlxcel_model_close(struct mlxcel_model *model);

struct mlxcel_model_info {
    const char *family;       /* "llama"; borrowed, like all text here, until the model is closed */
    const char *model_type;   /* as config.json has it */
    const char *quantisation; /* "none", "Q4_1", "MLX affine 4-bit g64", "mixed" */
    const char *plan;         /* what the backend made of it, one line; "" when tokenizer_only */
    uint64_t parameters, file_bytes; /* file_bytes: of the tensors in the files */
    int64_t context;                 /* tokens a sequence may have here */
    int64_t trained_context;         /* the model's own limit; 0: not known */
    int32_t vocab, hidden, layers;
    bool sees;                 /* pictures are taken */
    const char *vision_reason; /* why not, where that is this build's or the backend's doing; "" */
    /* Pixels of a picture after resizing, at most, unless a request says otherwise; 0: as the
     * checkpoint's files say. */
    int64_t image_max_pixels;
    double load_seconds;
};
MLXCEL_API void mlxcel_model_info(const struct mlxcel_model *model, struct mlxcel_model_info *info);

/* Memory that opening a checkpoint would take, without loading it. Bytes. */
struct mlxcel_memory {
    uint64_t weights, activations, kv, total;
    uint64_t overhead; /* program, tokenizer, sampling, by rule of thumb; part of total */
    uint64_t kv_full, kv_window, kv_latent, kv_cross; /* the parts of kv */
    uint64_t kv_per_token;                            /* of full and latent KV */
    uint64_t available;                               /* what the machine has left now */
    bool fits;
};
/* n_tokens: context per sequence (0: the model's limit); batch: number of sequences. */
MLXCEL_API mlxcel_status mlxcel_model_estimate(const char *path,
                                               const struct mlxcel_model_options *options,
                                               int64_t n_tokens, int batch,
                                               struct mlxcel_memory *memory,
                                               struct mlxcel_error *error);

/* What one picture of a size costs a model that sees: MLXCEL_UNSUPPORTED for another. */
struct mlxcel_image_cost {
    int32_t width, height; /* after resizing; of one tile, for models that cut pictures */
    int32_t tiles, tokens; /* tokens: in the prompt, marks around the picture included */
    int64_t patches;       /* that the vision tower works on */
    uint64_t bytes;        /* while the tower runs, and of what it gives */
    int64_t max_pixels;    /* within which it was resized; 0: what the checkpoint's files say */
};
/* width, height: 1 to 1048576, at most 64 Mi pixels; max_pixels: after resizing, 0: the model's. */
MLXCEL_API mlxcel_status mlxcel_image_estimate(const char *path,
                                               const struct mlxcel_model_options *options,
                                               int32_t width, int32_t height, int64_t max_pixels,
                                               struct mlxcel_image_cost *cost,
                                               struct mlxcel_error *error);
/* The model as a list of ops, and of the vision tower if there is one, for people and tests; the
 * weights are only looked at. Of the options (NULL: defaults) only surgery counts. *text is
 * released by mlxcel_free. */
MLXCEL_API mlxcel_status mlxcel_model_graph(const char *path,
                                            const struct mlxcel_model_options *options, char **text,
                                            struct mlxcel_error *error);

/* ---- text */

enum {
    MLXCEL_ADD_SPECIAL = 1,  /* BOS and whatever else the tokenizer's post-processor adds */
    MLXCEL_PARSE_SPECIAL = 2 /* control tokens written in the text become those tokens */
};
/* text need not be NUL-terminated. *ids is released by mlxcel_free. */
MLXCEL_API mlxcel_status mlxcel_tokenize(const struct mlxcel_model *model, const char *text,
                                         size_t length, unsigned flags, int32_t **ids,
                                         size_t *n_ids, struct mlxcel_error *error);
/* The text of ids as valid UTF-8 (bytes that form none are U+FFFD), control tokens included unless
 * skip_special. *text is NUL-terminated and released by mlxcel_free; length may be NULL. */
MLXCEL_API mlxcel_status mlxcel_detokenize(const struct mlxcel_model *model, const int32_t *ids,
                                           size_t n_ids, bool skip_special, char **text,
                                           size_t *length, struct mlxcel_error *error);
/* Renders the model's chat template. variables_json: an object with "messages" and, optionally,
 * "tools", "add_generation_prompt" and whatever else the template reads. *text is NUL-terminated
 * and released by mlxcel_free; length may be NULL. */
MLXCEL_API mlxcel_status mlxcel_render(const struct mlxcel_model *model, const char *variables_json,
                                       char **text, size_t *length, struct mlxcel_error *error);

/* The token ids of OpenAI-style messages (a JSON list) through the chat template, as a request
 * would use them: control tokens come from the template only, never from what a message says.
 * template_json: more template variables (an object), or NULL. *ids is released by mlxcel_free. */
MLXCEL_API mlxcel_status mlxcel_tokenize_messages(const struct mlxcel_model *model,
                                                  const char *messages_json,
                                                  const char *template_json, int32_t **ids,
                                                  size_t *n_ids, struct mlxcel_error *error);

/* ---- engine */

struct mlxcel_engine;
/* Starts a thread that runs the model. The model must outlive the engine. A model has one engine at
 * a time (it runs any number of requests): MLXCEL_BUSY for a second. */
MLXCEL_API mlxcel_status mlxcel_engine_new(struct mlxcel_model *model,
                                           struct mlxcel_engine **engine,
                                           struct mlxcel_error *error);
/* Cancels what is running, stops the thread, drops events that nobody took. No other call on the
 * engine may be under way. NULL is fine. */
MLXCEL_API void mlxcel_engine_free(struct mlxcel_engine *engine);

struct mlxcel_sampling {
    float temperature;                    /* 0: greedy; default 0.8, or the checkpoint's own */
    int32_t top_k;                        /* 0: off; default 40 */
    float top_p;                          /* 1: off; default 0.95 */
    float min_p;                          /* 0: off; default 0.05 */
    float typical_p;                      /* 1: off */
    float xtc_probability, xtc_threshold; /* probability 0: off */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0: off */
    int32_t penalty_last_n;                                        /* tokens looked at; -1: all */
    float dry_multiplier, dry_base;                                /* multiplier 0: off */
    int32_t dry_allowed_length, dry_last_n;
    int32_t mirostat; /* 0, 1, 2 */
    float mirostat_tau, mirostat_eta;
    uint64_t seed; /* 0: taken from the clock; the event stream reports nothing of it */
};

struct mlxcel_logit_bias {
    int32_t id;
    float bias; /* -INFINITY bans the token */
};

struct mlxcel_request {
    /* The prompt: exactly one of the three. */
    const int32_t *ids; /* token ids as they are */
    size_t n_ids;
    const char *prompt;        /* raw text: special tokens are added and parsed */
    const char *messages_json; /* a list of OpenAI-style messages, through the chat template */
    const char *template_json; /* more template variables (an object), or NULL */
    /* Pictures, for models that see: paths of files. They are put before the text of the last user
     * message, in their order, unless messages name one of them ({"type": "image", "url": PATH}).
     * Messages may hold pictures too, as data: URIs ({"type": "image_url", "image_url": {"url":
     * "data:..."}}); no other file or address in them is opened. */
    const char *const *images;
    size_t n_images;
    int64_t image_min_pixels, image_max_pixels; /* after resizing; 0: the model's default */
    int64_t image_limit_pixels;   /* of a picture as it comes; more is refused; 0: 64 Mi */
    const char *image_background; /* "RRGGBB" under transparent pixels; NULL: white */

    int64_t max_tokens; /* -1: to the end of the context */
    struct mlxcel_sampling sampling;
    const struct mlxcel_logit_bias *logit_bias;
    size_t n_logit_bias;
    const char *const *stop; /* texts that end the answer and are not part of it */
    size_t n_stop;
    bool ignore_eos;
    int32_t n_logprobs; /* most likely tokens reported per token, 0 to 64 */
    bool no_cache;      /* do not reuse or keep KV of this prompt's prefix */
};
/* Defaults: the checkpoint's generation_config where it speaks, else as commented above. */
MLXCEL_API void mlxcel_request_init(const struct mlxcel_model *model,
                                    struct mlxcel_request *request);

typedef enum mlxcel_event_type {
    MLXCEL_EVENT_PROMPT, /* a part of the prompt was worked off: n_prompt_done of n_prompt */
    MLXCEL_EVENT_TEXT,   /* text (may be empty) and, with every token, its id */
    MLXCEL_EVENT_DONE    /* the last event of a request */
} mlxcel_event_type;

typedef enum mlxcel_finish {
    MLXCEL_FINISH_NONE,
    MLXCEL_FINISH_STOP,   /* EOS or a stop text */
    MLXCEL_FINISH_LENGTH, /* max_tokens or the end of the context */
    MLXCEL_FINISH_CANCELLED,
    MLXCEL_FINISH_ERROR
} mlxcel_finish;

struct mlxcel_token_logprob {
    int32_t id;
    float logprob; /* natural log of the softmax of the raw logits; always finite */
};

struct mlxcel_event {
    uint64_t request;
    mlxcel_event_type type;
    const char *text;      /* TEXT: answer text that became final, valid UTF-8; never NULL */
    const char *reasoning; /* TEXT: the same inside a <think> block; never NULL */
    size_t text_length, reasoning_length; /* in bytes; the texts may hold NUL characters */
    int32_t id;    /* TEXT: token, or -1 when held-back text is released at the end */
    float logprob; /* TEXT: of the token; 0 unless logprobs were asked for */
    const struct mlxcel_token_logprob *top; /* TEXT: n_top most likely tokens, best first */
    int32_t n_top;
    int64_t n_prompt, n_prompt_done, n_cached, n_generated; /* tokens so far */
    mlxcel_finish finish;                                   /* DONE */
    struct mlxcel_error error;                              /* DONE with MLXCEL_FINISH_ERROR */
    double queue_seconds, prompt_seconds, generate_seconds; /* DONE */
};

/* Checks, tokenises and queues a request. *id names it in events and for cancel. MLXCEL_BUSY: too
 * many wait already (1024). */
MLXCEL_API mlxcel_status mlxcel_engine_submit(struct mlxcel_engine *engine,
                                              const struct mlxcel_request *request, uint64_t *id,
                                              struct mlxcel_error *error);
/* Asks a request to end; its DONE event still comes. An unknown or finished id is no error. */
MLXCEL_API void mlxcel_engine_cancel(struct mlxcel_engine *engine, uint64_t id);
/* Takes the next event of any request; waits at most timeout_ms (-1: as long as it takes, 0: not at
 * all). false: none came. What the event points to lives until the next call from this thread's
 * engine; one thread at a time may call it. */
MLXCEL_API bool mlxcel_engine_next(struct mlxcel_engine *engine, int timeout_ms,
                                   struct mlxcel_event *event);

/* ---- for people who port a family, and for benchmarks. MLXCEL_BUSY while the model has an
 * engine. */

/* Supported architectures; false when there is no such index. Text is static. */
struct mlxcel_family {
    const char *name, *summary, *notes;
    const char *const *model_types; /* config.json model_type values, NULL-ended */
    const char *const *gguf_archs;  /* general.architecture values, NULL-ended */
};
MLXCEL_API bool mlxcel_family_at(size_t index, struct mlxcel_family *family);

struct mlxcel_trace {
    size_t n_tokens, n_steps;
    int32_t vocab, layers;
    const float *logits;       /* [n_tokens][vocab] */
    const float *layer_l2;     /* [layers + 2][n_tokens]: input of layer 0, outputs, final norm */
    const int32_t *greedy_ids; /* [n_steps], with the cache, EOS ignored */
};
/* The model must have been opened with all_logits. Release with mlxcel_trace_free. */
MLXCEL_API mlxcel_status mlxcel_trace_new(struct mlxcel_model *model, const int32_t *ids,
                                          size_t n_ids, size_t n_steps, struct mlxcel_trace **trace,
                                          struct mlxcel_error *error);
MLXCEL_API void mlxcel_trace_free(struct mlxcel_trace *trace);

struct mlxcel_bench {
    int n_prompt;    /* prompt tokens per sequence */
    int n_gen;       /* decode steps */
    int n_depth;     /* tokens in the cache before the clock starts */
    int n_sequences; /* run together, at most max_sequences */
};
/* Runs once with random tokens (another seed, other tokens). */
MLXCEL_API mlxcel_status mlxcel_bench_run(struct mlxcel_model *model,
                                          const struct mlxcel_bench *bench, uint64_t seed,
                                          double *seconds, struct mlxcel_error *error);

/* What this machine can do, measured now with `threads` threads (0: one per core); a second or two.
 * 0 in a field: the machine has no such unit. */
struct mlxcel_limits {
    double read_gbs, int8_tops, bf16_tflops, f32_tflops;
};
MLXCEL_API mlxcel_status mlxcel_limits_measure(int threads, struct mlxcel_limits *limits,
                                               struct mlxcel_error *error);

/* What the backend made of one matrix of the model. Text is borrowed until the model is closed. */
struct mlxcel_matrix {
    const char *name, *storage; /* "model.layers.0.mlp.up_proj.weight"; "Q4_1", in the file */
    const char *kernel;         /* "matmul_i4" */
    char layout[32];            /* "I4 g32 affine" */
    int64_t rows, columns;      /* of one slice */
    int32_t slices, used;       /* experts: how many there are, and a token is multiplied with */
    uint64_t bytes;             /* in memory, of all slices */
    int32_t bits;               /* of what its products are made of: 8 (integers), 16 or 32 */
    bool outputs_only;          /* multiplied for tokens whose output is wanted, not for prompts */
};
/* false: no such index, or the backend does not tell. */
MLXCEL_API bool mlxcel_model_matrix(const struct mlxcel_model *model, int32_t index,
                                    struct mlxcel_matrix *matrix);
/* Bytes of keys and values of one token, as the backend keeps them. */
MLXCEL_API uint64_t mlxcel_model_kv_bytes(const struct mlxcel_model *model);

/* ---- OpenXLA devices (docs/xla.md) ---- */

struct mlxcel_xla_device {
    const char *kind, *description; /* "NVIDIA H200"; the plugin's own line */
    uint64_t memory_bytes;          /* that may be used; of a CPU: the machine's. 0: not known */
    uint64_t in_use_bytes;
};
struct mlxcel_xla_devices {
    const char *plugin;             /* path */
    const char *platform, *version; /* "cpu", "cuda"; free text */
    int api_major, api_minor;       /* of PJRT */
    int n_devices;
    const struct mlxcel_xla_device *devices;
};
/* What a plugin finds on this machine. plugin: a path; NULL: MLXCEL_XLA_PLUGIN, else the one that
 * "mlxcel xla install" fetched. MLXCEL_NOT_WIRED, MLXCEL_CONFIG: not in this build. */
MLXCEL_API mlxcel_status mlxcel_xla_devices_new(const char *plugin,
                                                struct mlxcel_xla_devices **devices,
                                                struct mlxcel_error *error);
MLXCEL_API void mlxcel_xla_devices_free(struct mlxcel_xla_devices *devices);

struct mlxcel_xla_program {
    bool decode;           /* one token of each of `rows` sequences; else `rows` tokens of one */
    int32_t rows;          /* 1 to 4096 */
    int32_t context;       /* tokens of a sequence */
    bool unrolled;         /* layers one after the other, not as a loop */
    const char *precision; /* "f32", "f16", "bf16", "auto"; NULL: MLXCEL_XLA_PRECISION */
    const char *surgery;   /* as of struct mlxcel_model_options */
};
/* StableHLO text of a checkpoint's program, for mlxcel_free. Needs no device. */
MLXCEL_API mlxcel_status mlxcel_xla_emit(const char *path, const struct mlxcel_xla_program *program,
                                         char **text, struct mlxcel_error *error);

#ifdef __cplusplus
}
#endif

#endif

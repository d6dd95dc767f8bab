/* Options that several subcommands share: which model, how to load it, how to sample. */
#ifndef MXC_CLI_OPTIONS_H
#define MXC_CLI_OPTIONS_H

#include "cli/args.h"

struct mxc_model_args {
    const char *models_dir, *backend, *precision, *cpu;
    const char *xla_plugin, *xla_precision, *xla_capacity, *xla_vision, *tp_size; /* of xla */
    const char *surgery;
    int64_t threads, context, max_sequences, max_chunk;
    bool force, verbose;
};

#define MXC_BACKEND_ARGS(m)                                                                        \
    {MXC_ARG_TEXT,  "--backend", "NAME", "cpu or xla (default MLXCEL_BACKEND, else cpu)",          \
     &(m)->backend, 0,           0,      NULL},                                                    \
        {MXC_ARG_TEXT,                                                                             \
         "--xla-plugin",                                                                           \
         "FILE",                                                                                   \
         "xla: PJRT plugin (default MLXCEL_XLA_PLUGIN, else the installed one)",                   \
         &(m)->xla_plugin,                                                                         \
         0,                                                                                        \
         0,                                                                                        \
         NULL},                                                                                    \
        {MXC_ARG_TEXT,                                                                             \
         "--xla-precision",                                                                        \
         "P",                                                                                      \
         "xla: f32, f16, bf16 into dots (default MLXCEL_XLA_PRECISION)",                           \
         &(m)->xla_precision,                                                                      \
         0,                                                                                        \
         0,                                                                                        \
         NULL},                                                                                    \
        {MXC_ARG_TEXT,                                                                             \
         "--xla-context-capacity",                                                                 \
         "N",                                                                                      \
         "xla: tokens of a sequence, prompt and answer (default MLXCEL_XLA_CONTEXT_CAPACITY)",     \
         &(m)->xla_capacity,                                                                       \
         0,                                                                                        \
         0,                                                                                        \
         NULL},                                                                                    \
        {MXC_ARG_TEXT,                                                                             \
         "--tp-size",                                                                              \
         "N",                                                                                      \
         "xla: devices that share the model (default MLXCEL_TP_SIZE, else 1)",                     \
         &(m)->tp_size,                                                                            \
         0,                                                                                        \
         0,                                                                                        \
         NULL},                                                                                    \
    {                                                                                              \
        MXC_ARG_TEXT, "--xla-vision-backend", "P",                                                 \
            "xla: auto, host or device (default MLXCEL_XLA_VISION_BACKEND)", &(m)->xla_vision, 0,  \
            0, NULL                                                                                \
    }

#define MXC_SURGERY_ARG(m)                                                                         \
    {                                                                                              \
        MXC_ARG_TEXT, "--surgery", "FILE",                                                         \
            "operations on the weights, YAML (default MLXCEL_SURGERY)", &(m)->surgery, 0, 0, NULL  \
    }

#define MXC_MODEL_ARGS(m)                                                                            \
    {MXC_ARG_HEADING, "", NULL, "Model:", NULL, 0, 0, NULL},                                         \
        {MXC_ARG_TEXT,                                                                               \
         "--models-dir",                                                                             \
         "DIR",                                                                                      \
         "model store (default MLXCEL_MODELS_DIR)",                                                  \
         &(m)->models_dir,                                                                           \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_INT, "-t, --threads", "N", "threads; 0: one per core", &(m)->threads, 0, 256,       \
         NULL},                                                                                      \
        {MXC_ARG_INT, "-c, --ctx-size", "N", "context of a sequence; 0: the model's", &(m)->context, \
         0,           1 << 30,          NULL},                                                       \
        {MXC_ARG_TEXT, "--precision", "P", "auto, exact or fast", &(m)->precision, 0, 0, NULL},      \
        MXC_BACKEND_ARGS(m), MXC_SURGERY_ARG(m),                                                     \
        {MXC_ARG_TEXT,                                                                               \
         "--cpu",                                                                                    \
         "LEVEL",                                                                                    \
         "scalar, avx2, avx512, neon or i8mm at most (default MLXCEL_CPU)",                          \
         &(m)->cpu,                                                                                  \
         0,                                                                                          \
         0,                                                                                          \
         NULL},                                                                                      \
        {MXC_ARG_INT,                                                                                \
         "-b, --batch-size, --prefill-chunk-size",                                                   \
         "N",                                                                                        \
         "prompt tokens per step (512)",                                                             \
         &(m)->max_chunk,                                                                            \
         32,                                                                                         \
         8192,                                                                                       \
         NULL},                                                                                      \
        {MXC_ARG_FLAG, "--force", NULL, "load the model even if memory does not suffice",            \
         &(m)->force,  0,         0,    NULL},                                                       \
    {                                                                                                \
        MXC_ARG_FLAG, "-v, --verbose", NULL, "log what the library does", &(m)->verbose, 0, 0,       \
            NULL                                                                                     \
    }

struct mxc_sampling_args {
    double temperature, top_p, min_p, typical_p, xtc_probability, xtc_threshold;
    double repetition_penalty, frequency_penalty, presence_penalty;
    double dry_multiplier, dry_base, mirostat_tau, mirostat_eta;
    int64_t top_k, penalty_last_n, dry_allowed_length, dry_last_n, mirostat, seed;
    bool set[19];
    struct mxc_arg_list logit_bias;
};

#define MXC_SAMPLING_ARGS(s)                                                                         \
    {MXC_ARG_HEADING,                                                                                \
     "",                                                                                             \
     NULL,                                                                                           \
     "Sampling (defaults: the checkpoint's own, else as shown):",                                    \
     NULL,                                                                                           \
     0,                                                                                              \
     0,                                                                                              \
     NULL},                                                                                          \
        {MXC_ARG_REAL, "--temp, --temperature", "T", "0: greedy (0.8)", &(s)->temperature, 0, 100,   \
         &(s)->set[0]},                                                                              \
        {MXC_ARG_INT, "--top-k", "N", "0: off (40)", &(s)->top_k, 0, 1 << 30, &(s)->set[1]},         \
        {MXC_ARG_REAL, "--top-p", "P", "1: off (0.95)", &(s)->top_p, 0, 1, &(s)->set[2]},            \
        {MXC_ARG_REAL, "--min-p", "P", "0: off (0.05)", &(s)->min_p, 0, 1, &(s)->set[3]},            \
        {MXC_ARG_REAL, "--typical, --typical-p", "P", "1: off (1)", &(s)->typical_p, 0, 1,           \
         &(s)->set[4]},                                                                              \
        {MXC_ARG_REAL, "--xtc-probability", "P", "0: off (0)", &(s)->xtc_probability, 0, 1,          \
         &(s)->set[5]},                                                                              \
        {MXC_ARG_REAL, "--xtc-threshold", "P", "(0.1)", &(s)->xtc_threshold, 0, 1, &(s)->set[6]},    \
        {MXC_ARG_REAL,                                                                               \
         "--repeat-penalty, --repetition-penalty",                                                   \
         "X",                                                                                        \
         "1: off (1)",                                                                               \
         &(s)->repetition_penalty,                                                                   \
         0.01,                                                                                       \
         100,                                                                                        \
         &(s)->set[7]},                                                                              \
        {MXC_ARG_REAL, "--frequency-penalty", "X", "0: off (0)", &(s)->frequency_penalty, -100,      \
         100,          &(s)->set[8]},                                                                \
        {MXC_ARG_REAL, "--presence-penalty", "X", "0: off (0)", &(s)->presence_penalty, -100,        \
         100,          &(s)->set[9]},                                                                \
        {MXC_ARG_INT,                                                                                \
         "--repeat-last-n",                                                                          \
         "N",                                                                                        \
         "tokens the penalties look at; -1: all (64)",                                               \
         &(s)->penalty_last_n,                                                                       \
         -1,                                                                                         \
         1 << 30,                                                                                    \
         &(s)->set[10]},                                                                             \
        {MXC_ARG_REAL, "--dry-multiplier", "X", "0: off (0)", &(s)->dry_multiplier, 0,               \
         100,          &(s)->set[11]},                                                               \
        {MXC_ARG_REAL, "--dry-base", "X", "(1.75)", &(s)->dry_base, 1, 100, &(s)->set[12]},          \
        {MXC_ARG_INT, "--dry-allowed-length", "N", "(2)", &(s)->dry_allowed_length, 1,               \
         1 << 20,     &(s)->set[13]},                                                                \
        {MXC_ARG_INT, "--dry-penalty-last-n", "N", "-1: all (-1)", &(s)->dry_last_n, -1,             \
         1 << 30,     &(s)->set[14]},                                                                \
        {MXC_ARG_INT, "--mirostat", "N", "0: off, 1 or 2 (0)", &(s)->mirostat, 0, 2, &(s)->set[15]}, \
        {MXC_ARG_REAL, "--mirostat-ent, --mirostat-tau", "X", "(5)", &(s)->mirostat_tau, 0.01, 100,  \
         &(s)->set[16]},                                                                             \
        {MXC_ARG_REAL, "--mirostat-lr, --mirostat-eta", "X", "(0.1)", &(s)->mirostat_eta, 0.0001, 1, \
         &(s)->set[17]},                                                                             \
        {MXC_ARG_INT, "-s, --seed", "N",          "0: from the clock (0)", &(s)->seed,               \
         0,           9e15,         &(s)->set[18]},                                                  \
    {                                                                                                \
        MXC_ARG_LIST, "-l, --logit-bias", "ID+X",                                                    \
            "add X to the logit of token ID; ID-inf bans it", &(s)->logit_bias, 0, 0, NULL           \
    }

/* Fills options from m. 0, or an exit status after a message was printed. */
int mxc_options_model(const char *command, const struct mxc_model_args *m,
                      struct mlxcel_model_options *options);
/* Cores this process may use. */
int mxc_options_cores(void);
/* Resolves MODEL to a path (mxc_mem_free) through the store. 0 or an exit status. */
int mxc_options_resolve(const struct mxc_model_args *m, const char *name, char **path);
/* Resolves and opens, with progress. 0 or an exit status. */
int mxc_options_open(const struct mxc_model_args *m, const char *name,
                     const struct mlxcel_model_options *options, struct mlxcel_model **model);
/* Overwrites what the command line gave. biases has room for MXC_ARG_LIST_MAX entries and must
 * outlive the request. 0 or an exit status. */
int mxc_options_sampling(const char *command, const struct mxc_sampling_args *s,
                         struct mlxcel_logit_bias *biases, struct mlxcel_request *request);

#endif

/* Params: what all generation routes have in common, read from a request's JSON: model, sampling,
 * length, stop, logprobs, streaming. The tables of surface.def say which field is which; fields
 * that a route knows and cannot honour are refused by name, unknown ones are ignored. */
#ifndef MXC_SERVER_PARAMS_H
#define MXC_SERVER_PARAMS_H

#include "gen/host.h"
#include "server/exchange.h"

enum { MXC_MAX_CHOICES = 32, MXC_MAX_PROMPTS = 256 };

/* Which spellings of a route are read. */
enum mxc_fields_of {
    MXC_FIELDS_CHAT = 1,
    MXC_FIELDS_COMPLETION = 2,
    MXC_FIELDS_LLAMA = 4,
    MXC_FIELDS_MESSAGES = 8,   /* read by anthropic_read.c */
    MXC_FIELDS_RESPONSES = 16, /* read by responses_read.c */
    MXC_FIELDS_EMBED = 32,     /* read by api_embeddings.c */
    MXC_FIELDS_TOKENIZE = 64,  /* these three by api_llama.c */
    MXC_FIELDS_DETOKENIZE = 128,
    MXC_FIELDS_TEMPLATE = 256
};

struct mxc_params {
    int model; /* index in the host */
    struct mxc_host_info info;
    struct mxc_chat *chat;
    const struct mxc_vision *vision; /* NULL: the model does not see */
    struct mxc_picture_options pictures;
    struct mxc_gen_params gen; /* its arrays are the ones below */
    int n;                     /* choices of each prompt */
    bool stream, include_usage, progress, timings, return_tokens;
    bool logprobs; /* asked for; gen.request.n_logprobs says how many alternatives */
    struct mxc_logit_bias *bias;
    struct mxc_token_list *breakers;
    int32_t *stop_ids;
    const char **stops; /* text borrowed from the JSON, which outlives submit */
};

/* The model that a request names: any name is the one model of a server that has one. Sets the
 * route's x->model. 404: unknown; 503: loading, or unavailable with the reason. */
enum mxc_code mxc_params_model(struct mxc_exchange *x, const json_t *json, int *model,
                               struct mxc_fault *fault) MXC_MUST;
/* Reads the common fields. Release with fini, also after a failure. */
enum mxc_code mxc_params_init(struct mxc_exchange *x, const json_t *json, enum mxc_fields_of fields,
                              struct mxc_params *params, struct mxc_fault *fault) MXC_MUST;
void mxc_params_fini(struct mxc_params *params);
/* MXC_E_UNSUPPORTED: a field that is known and refused asks for something. init checks it. */
enum mxc_code mxc_params_refused(const json_t *json, unsigned fields,
                                 struct mxc_fault *fault) MXC_MUST;

#endif

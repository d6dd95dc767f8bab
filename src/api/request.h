/* A public request made into what the engine takes: prompt ids and parameters. */
#ifndef MXC_API_REQUEST_H
#define MXC_API_REQUEST_H

#include "api/api.h"
#include "gen/generate.h"

struct mxc_api_prompt {
    int32_t *ids; /* owned */
    int32_t n_ids;
    struct mxc_pictures *pictures; /* owned, or NULL */
    bool no_split;                 /* reasoning is not looked for */
    bool inside;                   /* the prompt ends inside a thought */
};

/* Exactly one of ids, prompt and messages_json. */
enum mxc_code mxc_api_prompt_init(const struct mlxcel_model *model,
                                  const struct mlxcel_request *request,
                                  struct mxc_api_prompt *prompt, struct mxc_err *err) MXC_MUST;
void mxc_api_prompt_fini(struct mxc_api_prompt *prompt);

struct mxc_api_params {
    struct mxc_gen_params params;
    struct mxc_logit_bias *bias; /* owned */
};
/* params borrows arrays of request; event, user and the split are the caller's. */
enum mxc_code mxc_api_params_init(const struct mlxcel_request *request,
                                  struct mxc_api_params *params, struct mxc_err *err) MXC_MUST;
void mxc_api_params_fini(struct mxc_api_params *params);

/* The messages of a request, its template variables and pictures, to ids. */
enum mxc_code mxc_api_messages(const struct mlxcel_model *model,
                               const struct mlxcel_request *request, struct mxc_prompt_ids *out,
                               struct mxc_err *err) MXC_MUST;

#endif

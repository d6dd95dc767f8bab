/* Constrain: what a request asks of the form of its answer - structured output and tools - and what
 * that means for the engine (a logit filter) and for the text (a parser of calls). One constraint
 * belongs to one job. */
#ifndef MXC_SERVER_CONSTRAIN_H
#define MXC_SERVER_CONSTRAIN_H

#include "server/job.h"

struct mxc_constraint;
struct mxc_constraints;

/* What requests share: a vocabulary per model, and the masks of the grammars used last. Any thread.
 */
enum mxc_code mxc_constraints_new(struct mxc_constraints **all, struct mxc_err *err) MXC_MUST;
void mxc_constraints_free(struct mxc_constraints *all);

/* Reads response_format, json_schema, grammar, guided_regex, guided_choice and, with_tools, tools,
 * tool_choice and parallel_tool_calls. *out is NULL when nothing is asked for. Sets
 * params->gen.shown. */
enum mxc_code mxc_constraint_read(struct mxc_exchange *x, const json_t *json, bool with_tools,
                                  struct mxc_params *params, struct mxc_constraint **out,
                                  struct mxc_fault *fault) MXC_MUST;
void mxc_constraint_free(struct mxc_constraint *constraint); /* NULL is fine */
/* Bounds the tokens of thought (gen/budget.h), -1: no bound; makes a constraint when there is none.
 */
enum mxc_code mxc_constraint_budget(const struct mxc_params *params, int32_t budget,
                                    struct mxc_constraint **constraint,
                                    struct mxc_fault *fault) MXC_MUST;
/* The variable "tools" for the template, NULL: none. Borrowed. */
json_t *mxc_constraint_tools(const struct mxc_constraint *constraint);
/* Gives a choice its filter and its parser. inside: the answer begins inside a thought, and the
 * constraint behind it. constraint NULL: nothing. */
enum mxc_code mxc_constraint_attach(struct mxc_constraint *constraint, struct mxc_choice *c,
                                    bool inside, struct mxc_fault *fault) MXC_MUST;
void mxc_constraint_detach(struct mxc_choice *c);
/* Why the filter ended the generation; NULL: it did not. */
const struct mxc_err *mxc_constraint_error(const struct mxc_choice *c);
/* Passes answer text through the parser of calls: emit gets text and calls. last: no more comes. */
enum mxc_code mxc_constraint_push(struct mxc_choice *c, struct mxc_str text, bool last,
                                  void (*emit)(void *user, const struct mxc_delta *delta),
                                  void *user) MXC_MUST;
/* The one call of a request without parallel calls is complete. */
bool mxc_constraint_is_done(const struct mxc_choice *c);

#endif

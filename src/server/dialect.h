/* Dialect: other request families (Anthropic's messages, OpenAI's responses) as chat requests.
 * A family reads its own JSON into the JSON of a chat request and generates through the same code
 * as /v1/chat/completions; only the format of the answer is its own. Faults of that code speak of
 * the chat request's fields; they are renamed to the fields that the client sent.
 * Owned by one request. */
#ifndef MXC_SERVER_DIALECT_H
#define MXC_SERVER_DIALECT_H

#include "server/job.h"

enum { MXC_PLACE_BYTES = 96 };

/* Where a message of the chat request came from: an entry of the list, or */
enum { MXC_FROM_HEAD = -1 /* system, instructions */, MXC_FROM_HISTORY = -2 };

/* A field of the chat request (or ".member" inside a path) and what the family calls it. */
struct mxc_dialect_name {
    const char *chat, *own;
};

struct mxc_dialect {
    json_t *chat;                         /* the chat request; owned */
    json_t *messages;                     /* of chat; borrowed */
    const char *list, *head, *history;    /* the fields where messages come from */
    const struct mxc_dialect_name *names; /* ends with {NULL, NULL} */
    int32_t *origins;                     /* of the messages */
    size_t n_origins, capacity;
};

/* The names are static text. */
enum mxc_code mxc_dialect_init(struct mxc_dialect *dialect, const char *list, const char *head,
                               const struct mxc_dialect_name *names,
                               struct mxc_fault *fault) MXC_MUST;
void mxc_dialect_fini(struct mxc_dialect *dialect); /* zeroed is fine */
/* Appends a message (taken over, NULL: out of memory). */
enum mxc_code mxc_dialect_add(struct mxc_dialect *dialect, json_t *message, int32_t origin,
                              struct mxc_fault *fault) MXC_MUST;
/* Sets a field of the chat request (taken over, NULL: out of memory). */
enum mxc_code mxc_dialect_set(struct mxc_dialect *dialect, const char *name, json_t *value,
                              struct mxc_fault *fault) MXC_MUST;
/* Copies the fields that are there under the same name; names end with NULL. */
enum mxc_code mxc_dialect_copy(struct mxc_dialect *dialect, const json_t *json,
                               const char *const *names, struct mxc_fault *fault) MXC_MUST;
/* Renames what a fault of the chat request speaks of. */
void mxc_dialect_fault(const struct mxc_dialect *dialect, struct mxc_fault *fault);

/* ---- parts of a message; NULL: out of memory */

json_t *mxc_dialect_text(const json_t *text);
/* The one place where images become parts of a chat message; what the model makes of them is said
 * there. url: "data:image/png;base64,..." or an address. */
json_t *mxc_dialect_image(const char *url);
/* The content of a message: the text of a lone text part, else the parts. Takes parts over. */
json_t *mxc_dialect_content(json_t *parts);

/* ---- places in a request, for messages: "messages[2]", then ".content", then "[0]" */

struct mxc_place {
    char text[MXC_PLACE_BYTES];
};
struct mxc_place mxc_place_member(const struct mxc_place *outer, const char *name); /* outer NULL */
struct mxc_place mxc_place_item(const struct mxc_place *outer, size_t i);
/* "<place>: it is missing". */
enum mxc_code mxc_place_missing(const struct mxc_place *place, struct mxc_fault *fault);
/* object[name] as text; NULL when absent or null, which is an error when it is needed. */
enum mxc_code mxc_place_text(const json_t *object, const struct mxc_place *outer, const char *name,
                             bool needed, const json_t **out, struct mxc_fault *fault) MXC_MUST;

/* ---- generation */

/* As mxc_job_start for the chat request: moves state in, also on failure; *n_prompt (may be NULL)
 * gets the prompt's tokens before anything is generated. Faults are renamed. */
enum mxc_code mxc_dialect_start(struct mxc_exchange *x, struct mxc_dialect *dialect,
                                const struct mxc_format *format, void *state, int32_t *n_prompt,
                                struct mxc_fault *fault) MXC_MUST;
/* Only counts the prompt's tokens. */
enum mxc_code mxc_dialect_count(struct mxc_exchange *x, struct mxc_dialect *dialect,
                                int32_t *n_prompt, struct mxc_fault *fault) MXC_MUST;

#endif

/* Marks: where pictures stand in a rendered prompt. A template that knows pictures writes its own
 * mark for each part that is one; for another the mark is put into the text of the message, under a
 * name that nobody can guess. Only those places count: the mark's text in what somebody wrote is
 * text. One prompt, one thread. */
#ifndef MXC_GEN_MARKS_H
#define MXC_GEN_MARKS_H

#include "gen/chat.h"
#include "gen/pictures.h"

enum { MXC_MARK_NAME = 40 };

struct mxc_marks {
    struct mxc_buf token;     /* text of the model's image token */
    char name[MXC_MARK_NAME]; /* of a mark that we put, not in any text of the request */
    bool natural;             /* the template writes marks of its own */
};

enum mxc_code mxc_marks_init(struct mxc_marks *marks, struct mxc_chat *chat,
                             const struct mxc_vision *vision, const json_t *variables,
                             struct mxc_err *err) MXC_MUST;
void mxc_marks_fini(struct mxc_marks *marks);

/* Text spans of the first `length` bytes of a rendered prompt in which every mark is what the
 * family wants in its place. MXC_E_ARG when marks and pictures differ in number (both are told). */
struct mxc_marked {
    struct mxc_text_span *spans;
    size_t n_spans, cap;
    char **texts; /* owned replacements */
    size_t n_texts;
};
enum mxc_code mxc_marks_place(const struct mxc_marks *marks, const struct mxc_pictures *pictures,
                              const struct mxc_jinja_result *result, size_t length,
                              struct mxc_marked *marked, struct mxc_err *err) MXC_MUST;
void mxc_marked_fini(struct mxc_marked *marked);

#endif

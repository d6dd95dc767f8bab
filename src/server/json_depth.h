/* Shape of JSON text, looked at before it is parsed into a tree that takes many times its bytes. */
#ifndef MXC_SERVER_JSON_DEPTH_H
#define MXC_SERVER_JSON_DEPTH_H

#include "base/json.h"

enum mxc_json_shape { MXC_JSON_FINE, MXC_JSON_TOO_DEEP, MXC_JSON_TOO_MANY };

/* Whether lists and objects are nested at most max_depth deep and hold at most max_values values
 * together, by the memory that they take in a tree: a list counts as three more, an object as five,
 * a member's name as one. One pass, no recursion; text that is no JSON gets some answer and is
 * refused by the parser. */
enum mxc_json_shape mxc_json_shape(const char *text, size_t length, int max_depth,
                                   size_t max_values);

#endif

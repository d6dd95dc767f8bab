/* Counts brackets and separators outside of strings. */
#include "server/json_depth.h"

enum { OBJECT = 5, LIST = 3 };

enum mxc_json_shape mxc_json_shape(const char *text, size_t length, int max_depth,
                                   size_t max_values) {
    int depth = 0;
    size_t n_values = 1;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth)
                return MXC_JSON_TOO_DEEP;
            n_values += c == '{' ? OBJECT : LIST;
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',' || c == ':') {
            n_values++;
        }
        if (n_values > max_values)
            return MXC_JSON_TOO_MANY;
    }
    return MXC_JSON_FINE;
}

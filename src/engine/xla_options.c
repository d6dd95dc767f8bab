/* Options of OpenXLA sessions: environment, and text to values. In: what flags and variables say.
 * Out: a precision and a capacity, or an error that names the variable (flags have its name without
 * MLXCEL_, in lower case). */
#include "engine/xla_options.h"

#include <stdlib.h>
#include <string.h>

void mxc_xla_given_environment(struct mxc_xla_given *given) {
    const struct {
        const char **to, *name;
    } rows[] = {{&given->plugin, "MLXCEL_XLA_PLUGIN"},
                {&given->precision, "MLXCEL_XLA_PRECISION"},
                {&given->capacity, "MLXCEL_XLA_CONTEXT_CAPACITY"},
                {&given->vision, "MLXCEL_XLA_VISION_BACKEND"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!*rows[i].to)
            *rows[i].to = getenv(rows[i].name);
}

static bool is_blank(const char *text) {
    return !text || !text[strspn(text, " \t\r\n")];
}

static enum mxc_code read_capacity(const char *text, int32_t *capacity, struct mxc_err *err) {
    int64_t n = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && n <= INT32_MAX; p++)
        n = 10 * n + (*p - '0');
    if (*p || n < 1 || n > INT32_MAX)
        return mxc_err_set(err, MXC_E_CONFIG,
                           "MLXCEL_XLA_CONTEXT_CAPACITY: \"%.40s\" is not a whole number from 1 to "
                           "2147483647",
                           text);
    *capacity = (int32_t)n;
    return MXC_OK;
}

enum mxc_code mxc_xla_given_read(const struct mxc_xla_given *given,
                                 struct mxc_xla_settings *settings, struct mxc_err *err) {
    static const struct {
        const char *word;
        enum mxc_xla_precision precision;
    } words[] = {{"auto", MXC_XLA_PRECISION_AUTO},
                 {"f32", MXC_XLA_PRECISION_F32},
                 {"f16", MXC_XLA_PRECISION_F16},
                 {"bf16", MXC_XLA_PRECISION_BF16}};
    struct mxc_xla_settings s = {.precision = MXC_XLA_PRECISION_AUTO};
    enum mxc_code code =
        is_blank(given->capacity) ? MXC_OK : read_capacity(given->capacity, &s.capacity, err);
    if (code)
        return code;
    size_t i = 0, n = sizeof words / sizeof *words;
    const char *word = is_blank(given->precision) ? words[0].word : given->precision;
    while (i < n && strcmp(words[i].word, word) != 0)
        i++;
    if (i == n)
        return mxc_err_set(err, MXC_E_CONFIG,
                           "MLXCEL_XLA_PRECISION: \"%.40s\" must be f32, f16, bf16 or auto", word);
    s.precision = words[i].precision;
    *settings = s;
    return MXC_OK;
}

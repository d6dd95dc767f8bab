/* Options of OpenXLA sessions: environment, and text to values. In: what flags and variables say.
 * Out: a precision, a capacity and a number of devices, or an error that names the variable (flags
 * have its name without MLXCEL_, in lower case). */
#include "engine/xla_options.h"

#include <stdlib.h>
#include <string.h>

void mxc_xla_given_environment(struct mxc_xla_given *given) {
    const struct {
        const char **to, *name;
    } rows[] = {{&given->plugin, "MLXCEL_XLA_PLUGIN"},
                {&given->precision, "MLXCEL_XLA_PRECISION"},
                {&given->capacity, "MLXCEL_XLA_CONTEXT_CAPACITY"},
                {&given->vision, "MLXCEL_XLA_VISION_BACKEND"},
                {&given->tp_size, "MLXCEL_TP_SIZE"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!*rows[i].to)
            *rows[i].to = getenv(rows[i].name);
}

static bool is_blank(const char *text) {
    return !text || !text[strspn(text, " \t\r\n")];
}

/* Blank text leaves *out as it is. */
static enum mxc_code read_number(const char *name, const char *text, int32_t most, int32_t *out,
                                 struct mxc_err *err) {
    int64_t n = 0;
    const char *p = text;
    if (is_blank(text))
        return MXC_OK;
    for (; *p >= '0' && *p <= '9' && n <= INT32_MAX; p++)
        n = 10 * n + (*p - '0');
    if (*p || n < 1 || n > most)
        return mxc_err_set(err, MXC_E_CONFIG, "%s: \"%.40s\" is not a whole number from 1 to %d",
                           name, text, most);
    *out = (int32_t)n;
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
    enum { MOST_DEVICES = 1024 };
    struct mxc_xla_settings s = {.precision = MXC_XLA_PRECISION_AUTO, .devices = 1};
    enum mxc_code code =
        read_number("MLXCEL_XLA_CONTEXT_CAPACITY", given->capacity, INT32_MAX, &s.capacity, err);
    if (code ||
        (code = read_number("MLXCEL_TP_SIZE", given->tp_size, MOST_DEVICES, &s.devices, err)))
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

/* Errors: one code, one struct. A fallible function returns the code, fills *err (when it is not
 * NULL) and leaves its outputs untouched on failure. Context is prepended on the way up:
 *   mxc_err_context(err, "loading %s", path)  ->  "loading a.gguf: tensor x: ...".
 * Nothing in the library prints, exits or aborts. Thread rules: a struct belongs to one thread. */
#ifndef MXC_BASE_ERR_H
#define MXC_BASE_ERR_H

#include <stdint.h>

#define MXC_MUST         __attribute__((warn_unused_result))
#define MXC_PRINTF(f, a) __attribute__((format(printf, f, a)))

enum mxc_code {
    MXC_OK = 0,
    MXC_E_USAGE,       /* a command line or option that cannot be understood */
    MXC_E_ARG,         /* a value out of its documented range */
    MXC_E_NOMEM,       /* allocation failed */
    MXC_E_IO,          /* open, read, write, map failed */
    MXC_E_NOT_FOUND,   /* a model, file, tensor or key that is not there */
    MXC_E_FORMAT,      /* a malformed file */
    MXC_E_UNSUPPORTED, /* well-formed, but something we do not do */
    MXC_E_LIMIT,       /* a size, depth, output or time bound was exceeded */
    MXC_E_CONTEXT,     /* a prompt that does not fit the context */
    MXC_E_TEMPLATE,    /* a chat template raised or failed */
    MXC_E_NETWORK,     /* transfer failed */
    MXC_E_BUSY,        /* no capacity now */
    MXC_E_CANCELLED,
    MXC_E_NOT_WIRED, /* the build lacks the device runtime */
    MXC_E_BACKEND,   /* a backend failed while it ran */
    MXC_E_INTERNAL,
    MXC_E_DEVICE_LOST, /* a device that can no longer be used: reopen the backend */
    MXC_E_CONFIG,      /* InvalidConfig: options, checkpoint and build do not go together */
    MXC_N_CODES
};

struct mxc_err {
    enum mxc_code code;
    int64_t position;  /* byte offset, line or index the message speaks of; -1: none */
    char message[512]; /* NUL-terminated UTF-8, one line; cut when longer */
};

/* Sets *err (NULL is allowed) and returns code. position becomes -1. */
enum mxc_code mxc_err_set(struct mxc_err *err, enum mxc_code code, const char *fmt, ...)
    MXC_PRINTF(3, 4);
/* As mxc_err_set, with a position. */
enum mxc_code mxc_err_at(struct mxc_err *err, enum mxc_code code, int64_t position, const char *fmt,
                         ...) MXC_PRINTF(4, 5);
/* Puts "text: " before the message. Returns err->code, or MXC_E_INTERNAL when err is NULL. */
enum mxc_code mxc_err_context(struct mxc_err *err, const char *fmt, ...) MXC_PRINTF(2, 3);
/* Sets MXC_E_NOMEM with "out of memory". */
enum mxc_code mxc_err_nomem(struct mxc_err *err);

/* The one table: code -> name, process exit status (0, 1, 2), HTTP status, API error types. */
struct mxc_code_info {
    const char *name;
    int exit_status;
    int http_status;
    const char *openai_type;
    const char *anthropic_type;
};
/* Never NULL; an unknown code reads as MXC_E_INTERNAL. */
const struct mxc_code_info *mxc_code_info(enum mxc_code code);

#endif

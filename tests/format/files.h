/* Files that the format tests write: a scratch folder per program, and builders for the two
 * tensor formats. Every function fails the running test when it cannot do its work. */
#ifndef MXC_TESTS_FORMAT_FILES_H
#define MXC_TESTS_FORMAT_FILES_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Group setup and teardown: make and remove the folder. */
int files_setup(void **state);
int files_teardown(void **state);
/* "folder/name" in a static buffer that the next call but seven reuses. */
const char *files_path(const char *name);
/* Writes a file, making its folders; returns its path. */
const char *files_write(const char *name, const void *data, size_t length);
const char *files_text(const char *name, const char *text);
void files_remove(const char *name);

/* Appends 8 bytes of length, the header, and n_data bytes 0, 1, 2 ... */
void files_safetensors(struct mxc_buf *out, const char *header, size_t n_data);

/* Little-endian pieces of a GGUF file. */
void files_uint(struct mxc_buf *out, uint64_t value, size_t bytes);
void files_string(struct mxc_buf *out, const char *text);
void files_pad(struct mxc_buf *out, size_t alignment);

/* True when message holds every one of the space-separated words. */
void files_expect(const struct mxc_err *err, const char *words);

#endif

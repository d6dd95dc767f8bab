/* What the tests of pictures share: files of tests/data/image, noise, hashes. */
#ifndef MXC_TESTS_IMAGE_DATA_H
#define MXC_TESTS_IMAGE_DATA_H

#include "test.h"

#include "image/decode.h"

#include <jansson.h>
#include <stdbool.h>

struct file {
    char *data;
    size_t size;
};
/* Fail the test when the file is not there. */
struct file data_file(const char *name);
void data_free(struct file *file);
json_t *data_json(const char *name);
struct mxc_image data_image(const char *name); /* decoded */
/* As in tools/gen_image_cases.py: FNV-1a, 64 bits, 16 hexadecimal digits. */
void data_hash(const void *bytes, size_t length, char out[17]);
struct mxc_image data_noise(int width, int height, uint32_t seed);
/* Runs step with the first, second, ... allocation failing until it succeeds; step returns whether
 * it succeeded, having checked that a failure is MXC_E_NOMEM. Every run must be clean. */
void data_fail_each(bool (*step)(void *context), void *context);

#endif

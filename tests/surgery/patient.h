/* Small weights that the surgery tests write, open, operate on and read. Everything fails the
 * running test when it cannot be done. */
#ifndef MXC_TESTS_SURGERY_PATIENT_H
#define MXC_TESTS_SURGERY_PATIENT_H

#include "test.h"

#include "format/files.h"
#include "surgery/surgery.h"

#include <stdbool.h>

/* One tensor of a file. values: numbers to be stored as dtype (F32, F16, BF16), or NULL: words are
 * the bytes (U32). */
struct piece {
    const char *name, *dtype;
    int n_dims;
    int64_t shape[3];
    const float *values;
    const uint32_t *words;
};
/* Writes a safetensors file into the scratch folder; returns its path. */
const char *patient_file(const char *name, const struct piece *pieces, size_t n);

struct patient {
    struct mxc_config config;
    struct mxc_weights *weights;
    struct mxc_surgery *surgery;
    struct mxc_err err;
};
/* Opens weights with a config given as JSON. */
void patient_open(struct patient *p, const char *path, const char *config);
/* Writes the document surgery.yaml, opens and applies it. */
enum mxc_code patient_operate(struct patient *p, const char *yaml);
void patient_close(struct patient *p);
/* A tensor's numbers, decoded; they live until the next call but three. */
const float *patient_read(const struct patient *p, const char *name);
/* Whether they are exactly those. */
void patient_expect(const struct patient *p, const char *name, const float *want, size_t n);

#endif

/* Weights: one view over shards, safetensors and GGUF. Names are the logical ones of Hugging Face
 * checkpoints ("model.layers.0.self_attn.q_proj.weight"), whatever the file calls them; shapes are
 * row-major, outermost first. A quantised matrix is ONE logical tensor "....weight": scales,
 * biases, zero points and the like are attached to it, whatever the quantisation called its pieces;
 * GGUF's rope permutation of q and k rows is undone on read. Thread rules: after open the view is
 * read-only and may be read from any thread. */
#ifndef MXC_FORMAT_WEIGHTS_H
#define MXC_FORMAT_WEIGHTS_H

#include "base/err.h"
#include "base/file.h"
#include "quant/parts.h"
#include "quant/storage.h"

enum { MXC_MAX_DIMS = 5 };

struct mxc_tensor {
    const char *name; /* logical name */
    enum mxc_storage storage;
    int n_dims;
    int64_t shape[MXC_MAX_DIMS]; /* logical: [out, in] also for quantised matrices */
    const struct mxc_file *file; /* where data is, for messages and page dropping */
    const uint8_t *data;
    size_t bytes;
    /* Storages without a block of their own */
    uint32_t bits, group; /* of codes; numbers that share a scale */
    enum mxc_storage scale_storage;
    const uint8_t *scales, *biases; /* MLX affine: [out, in / group] */
    const struct mxc_file *scales_file, *biases_file;
    const struct mxc_quant_parts *parts; /* all of them but MLX affine; owned by the weights. data
                                            and bytes are those of the codes */
    size_t companion_bytes;              /* of scales, biases, zero points, order */
    /* GGUF llama-style q/k: number of heads whose rows are interleaved in the file; 0: plain */
    uint32_t permuted_heads;
};

struct mxc_weights;
struct mxc_config;

/* Opens every tensor file of a checkpoint: folder (safetensors, sharded or not) or .gguf file.
 * config gives the quantization section (bits and groups per module); it may be NULL for GGUF.
 * All headers are checked before anything is allocated for data. */
enum mxc_code mxc_weights_open(const char *path, const struct mxc_config *config,
                               struct mxc_weights **weights, struct mxc_err *err) MXC_MUST;
void mxc_weights_close(struct mxc_weights *weights);

size_t mxc_weights_count(const struct mxc_weights *weights);
const struct mxc_tensor *mxc_weights_at(const struct mxc_weights *weights, size_t index);
/* The index-th tensor becomes *tensor; its name stays (load-time surgery). Only while nothing else
 * has seen it; what *tensor points to is borrowed until close. */
void mxc_weights_set(struct mxc_weights *weights, size_t index, const struct mxc_tensor *tensor);
/* NULL when there is none. */
const struct mxc_tensor *mxc_weights_find(const struct mxc_weights *weights, const char *name);
/* As find, but a missing tensor or another shape is MXC_E_NOT_FOUND / MXC_E_FORMAT that names file
 * and tensor. n_dims and shape say what the family expects; -1 in shape accepts any extent. */
enum mxc_code mxc_weights_get(const struct mxc_weights *weights, const char *name, int n_dims,
                              const int64_t *shape, const struct mxc_tensor **tensor,
                              struct mxc_err *err) MXC_MUST;
/* Sum of bytes in files. */
uint64_t mxc_weights_bytes(const struct mxc_weights *weights);

/* How a tensor is stored, for people: "Q4_K", "MLX affine 4-bit g64", "GPTQ 4-bit g128", "int 8-bit
 * rows", "FP8 e4m3 128x128". "rows": a scale a row; nothing: one in all. Same text, same storage.
 */
enum { MXC_STORAGE_NAME = 48 };
void mxc_tensor_storage_name(const struct mxc_tensor *tensor, char name[MXC_STORAGE_NAME]);
/* Number of rows (product of all but the last extent; 1 for a vector) and their length. */
int64_t mxc_tensor_rows(const struct mxc_tensor *tensor);
int64_t mxc_tensor_columns(const struct mxc_tensor *tensor);
/* Whether every number of the tensor stands alone and in order, so that it may be seen under
 * another shape. */
bool mxc_tensor_is_plain(const struct mxc_tensor *tensor);
/* A plain tensor's numbers under another shape of as many numbers. */
struct mxc_tensor mxc_tensor_reshape(const struct mxc_tensor *tensor, int n_dims,
                                     const int64_t *shape);
/* Decodes one logical row to float: out[columns]. The scalar definition. Not for integer ids. */
void mxc_tensor_row(const struct mxc_tensor *tensor, int64_t row, float *out);
/* Where a row's numbers, blocks or codes begin in the file. Not for a tensor with parts, nor a
 * permuted bias. */
const uint8_t *mxc_tensor_row_data(const struct mxc_tensor *tensor, int64_t row);
/* Decodes rows [row, row + n_rows) to out[i * ld]: the same numbers. Storages that keep the codes
 * of a row far apart (GPTQ, AWQ) are read much faster in strips of 8 to 64 rows. */
void mxc_tensor_read(const struct mxc_tensor *tensor, int64_t row, int64_t n_rows, float *out,
                     size_t ld);
/* The group form, or false when the storage is not quantised. */
bool mxc_tensor_group_form(const struct mxc_tensor *tensor, struct mxc_group_form *form);
/* Codes, scales, biases of one logical row (only when there is a group form). */
void mxc_tensor_group_row(const struct mxc_tensor *tensor, int64_t row,
                          const struct mxc_group_row *out);
/* The same for a strip of rows: row i at codes + i * code_ld, scales + i * group_ld, biases too. */
void mxc_tensor_group_rows(const struct mxc_tensor *tensor, int64_t row, int64_t n_rows,
                           const struct mxc_group_row *out, size_t code_ld, size_t group_ld);
/* Drops the source pages of rows [row0, row1) (data, scales, biases). Where rows share all pages
 * (GPTQ, AWQ), nothing happens until row1 is the last. What is in no file stays. */
void mxc_tensor_drop(const struct mxc_tensor *tensor, int64_t row0, int64_t row1);

#endif

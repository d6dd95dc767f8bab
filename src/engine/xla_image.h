/* The image side of an OpenXLA session: what such a session can do with pictures is decided here,
 * once, from the checkpoint, the policy and the build. The comment of
 * mxc_xla_image_preprocessor_load is the contract; tests/engine/test_xla_image.c pins every row of
 * it, in all three builds. */
#ifndef MXC_ENGINE_XLA_IMAGE_H
#define MXC_ENGINE_XLA_IMAGE_H

#include "base/err.h"
#include "models/vision.h"

#include <stdbool.h>

enum mxc_xla_vision { MXC_XLA_VISION_AUTO, MXC_XLA_VISION_HOST, MXC_XLA_VISION_DEVICE };
/* The one place that reads a policy (MLXCEL_XLA_VISION_BACKEND, --xla-vision-backend): its words,
 * in lower case, with blanks around them or not; NULL and blank are auto. */
enum mxc_code mxc_xla_vision_parse(const char *text, enum mxc_xla_vision *policy,
                                   struct mxc_err *err) MXC_MUST;

/* The CMake options of this build. */
bool mxc_xla_has_backend(void);
bool mxc_xla_has_device_runtime(void);

enum mxc_xla_image_kind {
    MXC_XLA_IMAGE_TEXT_ONLY,
    MXC_XLA_IMAGE_NOT_QUALIFIED,
    MXC_XLA_IMAGE_MISMATCH, /* FamilyMismatch */
    MXC_XLA_IMAGE_HOST,
    MXC_XLA_IMAGE_DEVICE
};
/* What was decided, and why, in one line for people. */
struct mxc_xla_image_note {
    enum mxc_xla_image_kind kind;
    char text[256];
};

struct mxc_xla_image_options {
    const char *policy;              /* as given; NULL: none was */
    struct mxc_xla_image_note *note; /* filled when OK; may be NULL */
};

/* How a session sees. */
struct mxc_xla_image {
    struct mxc_vision *vision; /* owned; every tensor of the tower is there with its shape */
    bool device;               /* the tower runs on the device, else on the host's CPU backend */
    bool may_fall_back;        /* to the host, when the device cannot run it */
};

/* clang-format off */
/* The contract. model_dir: a folder with config.json and safetensors, or a .gguf file. NULL in *out
 * and MXC_OK: a session without pictures. On failure *out and the note are untouched.
 *
 *  checkpoint                      policy        runtime  result
 *  any                             another word  any      MXC_E_CONFIG: must be auto, host, device
 *                                                         or iree
 *  config.json missing or bad      any           any      the file's own error, which names it
 *  text only (llama; a .gguf)      any           any      OK, NULL: MXC_XLA_IMAGE_TEXT_ONLY
 *  a vision family that is not     any           any      OK, NULL: MXC_XLA_IMAGE_NOT_QUALIFIED,
 *  qualified for OpenXLA                                  and the note says which
 *  llava whose tower or projector  any           any      OK, NULL: MXC_XLA_IMAGE_MISMATCH
 *  is not the qualified pair                              (FamilyMismatch)
 *  llava                           device, iree  no       MXC_E_CONFIG: names the policy, the
 *                                                         missing feature, and how to rebuild
 *  llava                           auto, host    no       OK, tower on the host
 *  llava                           host          yes      OK, tower on the host
 *  llava                           auto          yes      OK, tower on the device; may fall back
 *  llava                           device, iree  yes      OK, tower on the device; never falls back
 *  qwen2_vl                        any           no       MXC_E_CONFIG: the image path needs the
 *                                                         device runtime, and how to rebuild; host:
 *                                                         the session itself could not run, either
 *  qwen2_vl                        host          yes      OK, tower on the host (the CPU backend)
 *  qwen2_vl                        auto          yes      OK, tower on the device; may fall back
 *  qwen2_vl                        device, iree  yes      OK, tower on the device; never falls back
 *  qwen2_5_vl, qwen3_vl, mllama,                          as qwen2_vl
 *  gemma3, idefics3
 *  one of the results "OK, tower", any           any      MXC_E_CONFIG or the format error, which
 *  but processor, tower or                                names file and tensor: never a lesser
 *  projector missing or bad                               capability
 *
 * The first row that hits decides, in the order policy spelling, config.json, family, pair,
 * feature, files: a folder with nothing but a config.json is OK, NULL for llama, and MXC_E_CONFIG
 * for qwen2_vl (without the device runtime the feature is named, with it the file that is missing).
 * No policy, an empty and a blank one are auto; iree is another word for device. Runtime: the CMake
 * option MLXCEL_XLA_DEVICE_RUNTIME (the feature xla-device); a build without MLXCEL_XLA counts as
 * "no". That a build lacks a feature is never told as "text only": what this binary cannot do and
 * what the checkpoint cannot do stay apart (docs/xla.md, "The decision").
 * Whether a device can really run the tower shows only when it is compiled or run: engine/load.c
 * and the engine fall back to the host then, where may_fall_back says so, with a line logged. */
/* clang-format on */
enum mxc_code mxc_xla_image_preprocessor_load(const char *model_dir,
                                              const struct mxc_xla_image_options *options,
                                              struct mxc_xla_image **out,
                                              struct mxc_err *err) MXC_MUST;
void mxc_xla_image_free(struct mxc_xla_image *image); /* NULL is fine */

#endif

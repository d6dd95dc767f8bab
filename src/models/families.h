/* The families that registry.c lists: one constant object per file, with names, and the function
 * that reads a config and writes the graph. Nobody outside this folder includes this; see family.h
 * for what a family is. */
#ifndef MXC_MODELS_FAMILIES_H
#define MXC_MODELS_FAMILIES_H

#include "models/family.h"

extern const struct mxc_family mxc_family_llama;
extern const struct mxc_family mxc_family_mistral;
extern const struct mxc_family mxc_family_qwen2;
extern const struct mxc_family mxc_family_qwen3;

#endif

/* The families that registry.c lists: one constant object per file, with names, and the function
 * that reads a config and writes the graph. Nobody outside this folder includes this; see family.h
 * for what a family is. */
#ifndef MXC_MODELS_FAMILIES_H
#define MXC_MODELS_FAMILIES_H

#include "models/family.h"

extern const struct mxc_family mxc_family_llama;
extern const struct mxc_family mxc_family_mistral;
extern const struct mxc_family mxc_family_mixtral;
extern const struct mxc_family mxc_family_qwen2;
extern const struct mxc_family mxc_family_qwen2_moe;
extern const struct mxc_family mxc_family_qwen3;
extern const struct mxc_family mxc_family_qwen3_moe;
extern const struct mxc_family mxc_family_gemma;
extern const struct mxc_family mxc_family_gemma2;
extern const struct mxc_family mxc_family_gemma3_text;
extern const struct mxc_family mxc_family_phi3;
extern const struct mxc_family mxc_family_smollm3;
extern const struct mxc_family mxc_family_olmo2;
extern const struct mxc_family mxc_family_granite;
extern const struct mxc_family mxc_family_cohere;
extern const struct mxc_family mxc_family_glm4;
extern const struct mxc_family mxc_family_starcoder2;
extern const struct mxc_family mxc_family_stablelm;
extern const struct mxc_family mxc_family_ernie4_5;
extern const struct mxc_family mxc_family_bailing_moe;
extern const struct mxc_family mxc_family_deepseek_v3;
extern const struct mxc_family mxc_family_gpt_oss;
extern const struct mxc_family mxc_family_qwen2_vl;
extern const struct mxc_family mxc_family_qwen2_5_vl;
extern const struct mxc_family mxc_family_qwen3_vl;
extern const struct mxc_family mxc_family_llava;
extern const struct mxc_family mxc_family_mllama;
extern const struct mxc_family mxc_family_gemma3;
extern const struct mxc_family mxc_family_idefics3;
extern const struct mxc_family mxc_family_bert;

#endif

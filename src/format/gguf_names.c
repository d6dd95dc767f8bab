/* Tables of names: GGUF -> Hugging Face, for tensors and architectures.
 * In: names out of a file. Out: the name that models/ asks for; what no table knows keeps its own,
 * so that a family can still find it or the list can show it.
 * A block's tensor is blk.N.STEM.(weight|bias); stems map one to one but for the norms around the
 * MLP, which gemma-like architectures (from gemma2 on) use differently.
 * Also here: which architectures store q and k with their rows permuted. */
#include "format/gguf_names.h"

#include <stdio.h>
#include <string.h>

struct pair {
    const char *from, *to;
};

static const struct pair stems[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_sinks", "self_attn.sinks"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.switch_mlp.gate_proj"},
    {"ffn_up_exps", "mlp.switch_mlp.up_proj"},
    {"ffn_down_exps", "mlp.switch_mlp.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

static const struct pair gemma_stems[] = {
    {"ffn_norm", "pre_feedforward_layernorm"},
};

static const struct pair tops[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const struct pair model_types[] = {
    {"qwen2moe", "qwen2_moe"}, {"qwen3moe", "qwen3_moe"},    {"qwen2vl", "qwen2_vl"},
    {"qwen3vl", "qwen3_vl"},   {"gemma3", "gemma3_text"},    {"bailingmoe", "bailing_moe"},
    {"gpt-oss", "gpt_oss"},    {"deepseek2", "deepseek_v3"}, {"mistral3", "mistral"},
};

static const char *lookup(const struct pair *pairs, size_t n, const char *text, size_t length) {
    for (size_t i = 0; i < n; i++)
        if (strlen(pairs[i].from) == length && !memcmp(pairs[i].from, text, length))
            return pairs[i].to;
    return NULL;
}

#define LOOKUP(table, text, length) lookup(table, sizeof table / sizeof *table, text, length)

bool mxc_gguf_logical_name(const char *arch, const char *name, char *out, size_t size) {
    const char *suffix = strrchr(name, '.'), *to = NULL;
    int n;
    if (suffix && !strncmp(name, "blk.", 4)) {
        const char *number = name + 4;
        size_t digits = strspn(number, "0123456789");
        const char *stem = number + digits + 1;
        if (digits && digits < 8 && number[digits] == '.' && stem < suffix) {
            size_t length = (size_t)(suffix - stem);
            if (!strncmp(arch, "gemma", 5) && strcmp(arch, "gemma"))
                to = LOOKUP(gemma_stems, stem, length);
            if (!to)
                to = LOOKUP(stems, stem, length);
        }
        n = to ? snprintf(out, size, "model.layers.%.*s.%s%s", (int)digits, number, to, suffix)
               : snprintf(out, size, "%s", name);
    } else {
        if (suffix)
            to = LOOKUP(tops, name, (size_t)(suffix - name));
        n = to ? snprintf(out, size, "%s%s", to, suffix) : snprintf(out, size, "%s", name);
    }
    return n >= 0 && (size_t)n < size;
}

const char *mxc_gguf_model_type(const char *arch) {
    const char *to = LOOKUP(model_types, arch, strlen(arch));
    return to ? to : arch;
}

bool mxc_gguf_permutes(const char *arch) {
    static const char *const names[] = {"llama",   "mistral", "mistral3", "granite",
                                        "minicpm", "smollm3", "arcee"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], arch))
            return true;
    return false;
}

char mxc_gguf_q_or_k(const char *name) {
    const char *suffix = strrchr(name, '.');
    if (!suffix || strncmp(name, "blk.", 4) || suffix - name < 8)
        return 0;
    if (!memcmp(suffix - 7, ".attn_q", 7))
        return 'q';
    return memcmp(suffix - 7, ".attn_k", 7) ? 0 : 'k';
}

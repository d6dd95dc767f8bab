/* Tables of names: GGUF -> Hugging Face, for tensors and architectures.
 * In: names out of a file. Out: the name that models/ asks for; what no table knows keeps its own,
 * so that a family can still find it or the list can show it.
 * A block's tensor is blk.N.STEM.(weight|bias); stems map one to one, but for what single
 * architectures use in their own way. "!" before a name: it stands without the suffix.
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
    {"attn_sinks", "!self_attn.sinks"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.embed_q"},
    {"attn_v_b", "self_attn.unembed_out"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.switch_mlp.gate_proj"},
    {"ffn_up_exps", "mlp.switch_mlp.up_proj"},
    {"ffn_down_exps", "mlp.switch_mlp.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"exp_probs_b", "!mlp.gate.e_score_correction_bias"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

/* Stems that an architecture uses in a way of its own. */
static const struct {
    const char *arch;
    struct pair pair;
} own_stems[] = {
    {"gemma2", {"ffn_norm", "pre_feedforward_layernorm"}},
    {"gemma3", {"ffn_norm", "pre_feedforward_layernorm"}},
    {"gemma3n", {"ffn_norm", "pre_feedforward_layernorm"}},
    {"glm4", {"post_attention_norm", "post_self_attn_layernorm"}},
    {"glm4", {"post_ffw_norm", "post_mlp_layernorm"}},
    {"glm4", {"ffn_up", "mlp.gate_up_proj"}},
    {"phi3", {"ffn_up", "mlp.gate_up_proj"}},
    {"gpt-oss", {"ffn_gate_inp", "mlp.router"}},
    {"qwen2moe", {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"}},
    {"qwen2moe", {"ffn_up_shexp", "mlp.shared_expert.up_proj"}},
    {"qwen2moe", {"ffn_down_shexp", "mlp.shared_expert.down_proj"}},
    {"bailingmoe2", {"exp_probs_b", "!mlp.gate.expert_bias"}},
    {"bailingmoe2", {"attn_qkv", "attention.query_key_value"}},
    {"bailingmoe2", {"attn_output", "attention.dense"}},
    {"bailingmoe2", {"attn_q_norm", "attention.query_layernorm"}},
    {"bailingmoe2", {"attn_k_norm", "attention.key_layernorm"}},
};

static const struct pair tops[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const struct pair model_types[] = {
    {"qwen2moe", "qwen2_moe"},         {"qwen3moe", "qwen3_moe"}, {"qwen2vl", "qwen2_vl"},
    {"qwen3vl", "qwen3_vl"},           {"gemma3", "gemma3_text"}, {"bailingmoe", "bailing_moe"},
    {"bailingmoe2", "bailing_moe_v2"}, {"gpt-oss", "gpt_oss"},    {"deepseek2", "deepseek_v3"},
    {"mistral3", "mistral"},           {"command-r", "cohere"},   {"ernie4_5-moe", "ernie4_5_moe"},
};

static const char *lookup(const struct pair *pairs, size_t n, const char *text, size_t length) {
    for (size_t i = 0; i < n; i++)
        if (strlen(pairs[i].from) == length && !memcmp(pairs[i].from, text, length))
            return pairs[i].to;
    return NULL;
}

#define LOOKUP(table, text, length) lookup(table, sizeof table / sizeof *table, text, length)

/* Experts in tensors of their own, as files of the first Mixtral have them: ffn_gate.EXPERT. */
static bool single_expert(const char *digits, int n_digits, const char *stem, size_t length,
                          const char *suffix, char *out, size_t size, int *n) {
    static const struct pair names[] = {{"ffn_gate", "w1"}, {"ffn_up", "w3"}, {"ffn_down", "w2"}};
    const char *dot = memchr(stem, '.', length);
    if (!dot)
        return false;
    size_t digits_at = (size_t)(dot - stem) + 1, left = length - digits_at;
    const char *to = LOOKUP(names, stem, digits_at - 1);
    if (!to || !left || left > 4 || strspn(dot + 1, "0123456789") != left)
        return false;
    *n = snprintf(out, size, "model.layers.%.*s.mlp.experts.%.*s.%s%s", n_digits, digits, (int)left,
                  dot + 1, to, suffix);
    return true;
}

static const char *block_stem(const char *arch, const char *stem, size_t length) {
    for (size_t i = 0; i < sizeof own_stems / sizeof *own_stems; i++) {
        const char *to =
            strcmp(own_stems[i].arch, arch) ? NULL : lookup(&own_stems[i].pair, 1, stem, length);
        if (to)
            return to;
    }
    return LOOKUP(stems, stem, length);
}

bool mxc_gguf_logical_name(const char *arch, const char *name, char *out, size_t size) {
    const char *suffix = strrchr(name, '.'), *to = NULL;
    int n = -1;
    if (suffix && !strncmp(name, "blk.", 4)) {
        const char *number = name + 4;
        size_t digits = strspn(number, "0123456789");
        const char *stem = number + digits + 1;
        if (digits && digits < 8 && number[digits] == '.' && stem < suffix) {
            size_t length = (size_t)(suffix - stem);
            to = block_stem(arch, stem, length);
            if (!to && single_expert(number, (int)digits, stem, length, suffix, out, size, &n))
                return n >= 0 && (size_t)n < size;
        }
        n = !to ? snprintf(out, size, "%s", name)
            : *to == '!'
                ? snprintf(out, size, "model.layers.%.*s.%s", (int)digits, number, to + 1)
                : snprintf(out, size, "model.layers.%.*s.%s%s", (int)digits, number, to, suffix);
    } else {
        if (suffix && !strcmp(arch, "bailingmoe2") && !strncmp(name, "token_embd.", 11))
            to = "model.word_embeddings";
        else if (suffix)
            to = LOOKUP(tops, name, (size_t)(suffix - name));
        n = to ? snprintf(out, size, "%s%s", to, suffix) : snprintf(out, size, "%s", name);
    }
    return n >= 0 && (size_t)n < size;
}

bool mxc_gguf_is_config_tensor(const char *name) {
    return !strcmp(name, "rope_factors_long.weight") || !strcmp(name, "rope_factors_short.weight");
}

const char *mxc_gguf_model_type(const char *arch) {
    const char *to = LOOKUP(model_types, arch, strlen(arch));
    return to ? to : arch;
}

bool mxc_gguf_permutes(const char *arch) {
    static const char *const names[] = {"llama",   "mistral", "mistral3", "granite",   "granitemoe",
                                        "minicpm", "smollm3", "arcee",    "bailingmoe"};
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

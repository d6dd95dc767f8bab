"""More text families: name -> (tokenizer name, family, config builder, init options), as textgen.text_families.

These folders are stored in 16 bits (bf16, and mxfp4 for gpt_oss) and keep the last rows of the longer prompt's logits
only, so that each stays small; the reference widens the weights and computes in float32.  Every config has something
that a loader which skips a key of its family gets wrong within the prompts' length.
"""
import numpy as np

from .common import base_cfg, draw

BF16 = {"dtype": "bf16", "whole": False}
TIED = {"emb_std": 0.12, "final_norm": 6.0}


def qk_norm_2d(name, shape, seed):
    """cohere: one norm weight a head and dimension, near 1 like the other norms."""
    if "_norm." in name and len(shape) == 2:
        return 1.0 + 0.15 * draw(name, shape, seed)
    return None


def oss_init(name, shape, seed):
    """gpt_oss: experts wide enough that both clamps of the activation cut something; sinks that matter."""
    x = draw(name, shape, seed)
    if name.endswith("experts.gate_up_proj"):
        return 3.0 * x / np.sqrt(shape[1])             # [expert, in, out]
    if name.endswith("experts.down_proj"):
        return 0.5 * x / np.sqrt(shape[1])
    if name.endswith(("gate_up_proj_bias", "down_proj_bias")):
        return 0.3 * x
    if name.endswith("sinks"):
        return 1.0 + 1.5 * x
    return None


def families(spec):
    b = spec.name == "B"
    hd = 32 if not b else 24
    two = {"num_hidden_layers": 2, "intermediate_size": 96, "torch_dtype": "bfloat16"}

    def cfg(arch, model_type, **kw):
        return lambda t: base_cfg(spec, t, arch, model_type, **{**two, **kw})

    F = {}
    # both soft caps bend what they get, the window is shorter than two of the prompts, the score scale is not head_dim's
    F["gemma2"] = ("unigram", "gemma2", cfg(
        "Gemma2ForCausalLM", "gemma2", num_hidden_layers=3, head_dim=hd, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
        sliding_window=32 if not b else 24, sliding_window_size=4096, cache_implementation="hybrid", query_pre_attn_scalar=hd + 8, attn_logit_softcapping=3.0, final_logit_softcapping=20.0,
        attention_bias=False, tie_word_embeddings=True), {"emb_std": 0.02, "norm_base": 0.0, "final_norm": 36.0, **BF16})
    # the published "gelu" means the tanh form; one key/value head
    F["gemma"] = ("unigram", "gemma", cfg(
        "GemmaForCausalLM", "gemma", head_dim=hd, hidden_act="gelu", num_key_value_heads=1, rms_norm_eps=1e-6, attention_bias=False, tie_word_embeddings=True),
        {"emb_std": 0.02, "norm_base": 0.0, "final_norm": 36.0, **BF16})
    # layers 0 and 2 are dense by decoder_sparse_step, layer 1 by mlp_only_layers, layer 3 has experts
    F["qwen2_moe"] = ("qwen", "qwen2_moe", cfg(
        "Qwen2MoeForCausalLM", "qwen2_moe", num_hidden_layers=4, num_experts=8, num_experts_per_tok=3 if not b else 2, moe_intermediate_size=24, shared_expert_intermediate_size=40, norm_topk_prob=False,
        decoder_sparse_step=2, mlp_only_layers=[1], use_sliding_window=False, sliding_window=1024, max_window_layers=4, qkv_bias=True, router_aux_loss_coef=0.001, output_router_logits=False), dict(BF16))
    oss = dict(head_dim=hd, hidden_act="silu", intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, experts_per_token=2, attention_bias=True, swiglu_limit=7.0,
               layer_types=["sliding_attention", "full_attention"], sliding_window=32 if not b else 24, rope_theta=150000.0, initial_context_length=1024, max_position_embeddings=8192, rms_norm_eps=1e-5,
               rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 1024, "rope_type": "yarn", "truncate": False},
               output_router_logits=False, router_aux_loss_coef=0.9)
    quant = {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}
    F["gpt_oss"] = ("llama3", "gpt_oss", cfg("GptOssForCausalLM", "gpt_oss", **oss, quantization_config=quant), {"init": oss_init, "mxfp4": True, **BF16})
    # the same weights, experts widened and transposed ([expert, in, out]) as fine-tuning tools write them
    F["gpt_oss_bf16"] = ("llama3", "gpt_oss", cfg("GptOssForCausalLM", "gpt_oss", **oss), {"init": oss_init, "mxfp4_values": True, **BF16})
    # the list says which layers rotate; the interval says something else and is not used beside a list
    F["smollm3"] = ("llama3", "smollm3", cfg(
        "SmolLM3ForCausalLM", "smollm3", num_hidden_layers=3, no_rope_layers=[1, 0, 1], no_rope_layer_interval=4, layer_types=["full_attention"] * 3, rope_theta=5000000.0,
        attention_bias=False, mlp_bias=False, use_sliding_window=False, max_window_layers=28, pretraining_tp=2, tie_word_embeddings=True), {**TIED, **BF16})
    F["olmo2"] = ("qwen", "olmo2", cfg("Olmo2ForCausalLM", "olmo2", attention_bias=False, rope_theta=500000.0), dict(BF16))
    F["granite"] = ("spm_metaspace", "granite", cfg(
        "GraniteForCausalLM", "granite", attention_bias=False, mlp_bias=False, embedding_multiplier=3.0, attention_multiplier=0.35, residual_multiplier=0.42, logits_scaling=4.0,
        tie_word_embeddings=False), {"emb_std": 0.4, "logit_std": 24.0, **BF16})
    coh = dict(rms_norm_eps=None, layer_norm_eps=1e-5, logit_scale=0.25, attention_bias=False, tie_word_embeddings=None, rope_theta=8000000.0, model_max_length=2048)
    F["cohere"] = ("qwen", "cohere", cfg("CohereForCausalLM", "cohere", **coh, use_qk_norm=False), {"emb_std": 0.12, "final_norm": 25.0, **BF16})
    F["cohere_qk_norm"] = ("qwen", "cohere", cfg("CohereForCausalLM", "cohere", **coh, use_qk_norm=True), {"emb_std": 0.12, "final_norm": 25.0, "init": qk_norm_2d, **BF16})
    F["glm4"] = ("qwen", "glm4", cfg(
        "Glm4ForCausalLM", "glm4", head_dim=hd, partial_rotary_factor=0.5, attention_bias=True), dict(BF16))
    F["starcoder2"] = ("llama3", "starcoder2", cfg(
        "Starcoder2ForCausalLM", "starcoder2", rms_norm_eps=None, norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", use_bias=True, sliding_window=48 if not b else 40, mlp_type="default", norm_type="layer_norm",
        embedding_dropout=0.1, residual_dropout=0.1, attention_dropout=0.1, intermediate_size=128, tie_word_embeddings=None), {"emb_std": 0.04, "final_norm": 18.0, **BF16})
    lm = dict(rms_norm_eps=None, layer_norm_eps=1e-5, hidden_dropout=0.0, partial_rotary_factor=0.25)
    F["stablelm"] = ("llama3", "stablelm", cfg("StableLmForCausalLM", "stablelm", **lm, use_qkv_bias=False), dict(BF16))
    F["stablelm_parallel"] = ("llama3", "stablelm", cfg(
        "StableLmForCausalLM", "stablelm", **lm, use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True), dict(BF16))
    F["ernie4_5"] = ("spm_legacy", "ernie4_5", cfg(
        "Ernie4_5ForCausalLM", "ernie4_5", head_dim=hd, use_bias=False, rope_theta=500000.0, tie_word_embeddings=True), {**TIED, **BF16})
    return F

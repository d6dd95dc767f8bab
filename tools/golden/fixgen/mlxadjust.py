"""Where mlx_lm leaves out something that transformers and the published configs have: the same model with that put back.

A check with an adjustment is recorded beside the plain one, as crosscheck_mlx_adjusted.
"""
import math
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn


def _windows(module, args_window, layers):
    """A window on some layers of a model whose block takes (x, mask, cache): prompts without a cache only."""
    block = module.TransformerBlock
    plain = block.__call__

    def call(self, x, mask=None, cache=None):
        if getattr(self, "_window", None):
            i = mx.arange(x.shape[1])
            mask = (i[:, None] >= i[None]) & (i[:, None] < i[None] + self._window)
        return plain(self, x, mask, cache)
    block.__call__ = call

    def after(model):
        for i, layer in enumerate(model.layers):
            if layers(i):
                layer._window = args_window
    return after


def gemma2(cfg):
    from mlx_lm.models import gemma2 as m
    return "the window on layers 0, 2, ...", _windows(m, cfg["sliding_window"], lambda i: i % 2 == 0)


def gemma(cfg):
    from mlx_lm.models import gemma as m
    m.nn = SimpleNamespace(**{k: getattr(nn, k) for k in dir(nn) if not k.startswith("__")})
    m.nn.gelu = nn.gelu_approx
    return "tanh form of gelu", lambda model: None


def starcoder2(cfg):
    from mlx_lm.models import starcoder2 as m
    m.nn = SimpleNamespace(**{k: getattr(nn, k) for k in dir(nn) if not k.startswith("__")})
    m.nn.gelu = nn.gelu_approx
    return "tanh form of gelu, the window on every layer", _windows(m, cfg["sliding_window"], lambda i: True)


def qwen2_moe(cfg):
    from mlx_lm.models import qwen2_moe as m
    sparse, layer, n = m.Qwen2MoeSparseMoeBlock, iter(range(10 ** 6)), cfg["num_experts"]

    def dense(i):
        return i in cfg.get("mlp_only_layers", []) or (i + 1) % cfg["decoder_sparse_step"] != 0
    m.Qwen2MoeSparseMoeBlock = lambda args: m.MLP(args.hidden_size, args.intermediate_size) if dense(next(layer)) else sparse(args)

    def sanitize(self, w):
        for i in range(cfg["num_hidden_layers"]):
            for p in ("gate_proj", "up_proj", "down_proj"):
                at = f"model.layers.{i}.mlp"
                if f"{at}.experts.0.{p}.weight" in w:
                    w[f"{at}.switch_mlp.{p}.weight"] = mx.stack([w.pop(f"{at}.experts.{e}.{p}.weight") for e in range(n)])
        return w
    m.Model.sanitize = sanitize
    return "dense layers by decoder_sparse_step and mlp_only_layers", lambda model: None


def gpt_oss(cfg):
    from mlx_lm.models import gpt_oss as m
    from mlx_lm.models import rope_utils
    rope_utils.math = SimpleNamespace(**{k: getattr(math, k) for k in dir(math) if not k.startswith("__")})
    rope_utils.math.floor = rope_utils.math.ceil = lambda x: x
    what = "unrounded bounds of yarn (truncate false)"
    if "quantization_config" not in cfg:
        def sanitize(self, w):
            out = {}
            for k, v in w.items():
                if k.endswith("experts.gate_up_proj"):
                    v = v.swapaxes(1, 2)
                    out[k.replace("gate_up_proj", "gate_proj.weight")] = mx.contiguous(v[:, ::2])
                    out[k.replace("gate_up_proj", "up_proj.weight")] = mx.contiguous(v[:, 1::2])
                elif k.endswith("experts.gate_up_proj_bias"):
                    out[k.replace("gate_up_proj_bias", "gate_proj.bias")] = v[:, ::2]
                    out[k.replace("gate_up_proj_bias", "up_proj.bias")] = v[:, 1::2]
                elif k.endswith("experts.down_proj"):
                    out[k + ".weight"] = mx.contiguous(v.swapaxes(1, 2))
                else:
                    out[k.replace("down_proj_bias", "down_proj.bias")] = v
            return out
        m.Model.sanitize = sanitize
        what += ", transposed experts"
    return what, lambda model: None


ADJUST = {f.__name__: f for f in (gemma2, gemma, starcoder2, qwen2_moe, gpt_oss)}

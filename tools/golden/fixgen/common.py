"""Shared helpers: set parameters, weight initialisation, file writing, margins.

Only numpy + safetensors + stdlib here, so that both environments (torch and mlx) can import it.
"""
import json
import os
import re
import zlib
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import save_file

N_NEW = 24          # greedy continuation length
LONG_TAIL = 8       # for long prompts only the last positions' logits are kept
MIN_MARGIN = 0.05   # the weakest top-1/top-2 gap allowed on a greedy path


@dataclass
class SetSpec:
    """What differs between set A and set B."""
    name: str
    seed: int
    hidden: int
    heads: int
    kv_heads: int
    inter: int
    layers: int
    eps: float
    theta: float
    bpe_vocab: int
    qhidden: int          # hidden size of the quantised family (multiple of 64)
    qheads: int
    qkv_heads: int
    qinter: int
    extra: dict = field(default_factory=dict)


SETS = {
    "A": SetSpec("A", 11, 64, 4, 2, 160, 3, 1e-5, 10000.0, 704, 128, 4, 2, 256, 2),
    "B": SetSpec("B", 5000, 96, 6, 2, 160, 2, 1e-6, 25000.0, 592, 128, 4, 1, 192, 2),
}


def kept_positions(case, n, whole):
    """Which rows of a case's logits are stored: all for the base families, else the last ones."""
    if case == "long":
        return list(range(n - LONG_TAIL, n))
    return "all" if whole or n <= 24 else list(range(n - 16, n))


def pick(a, positions):
    return a if positions == "all" else a[positions]


def pad_to(n, m=16):
    return (n + m - 1) // m * m


def draw(name, shape, seed):
    """One deterministic standard-normal tensor, keyed by (seed, parameter name)."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.standard_normal(tuple(shape)).astype(np.float32)


def init_param(name, shape, seed, **kw):
    return np.ascontiguousarray(_init(name, shape, seed, **kw), dtype=np.float32)


def _init(name, shape, seed, *, emb_std=1.0, logit_std=6.0, norm_base=1.0, dim=None,
               low_rows=(), gain=1.0, final_norm=None):
    """Weights with real spread.  `low_rows` are vocabulary ids (specials, padding) which get
    small embedding / head rows so that a greedy path rarely picks them."""
    x = draw(name, shape, seed)
    leaf = name.split(".")[-1]
    low = [i for i in low_rows]
    is_norm = any(t in name.lower() for t in ("norm", "ln_q", ".ln1", ".ln2", "layrnorm")) and len(shape) == 1
    if "lm_head" in name:
        x *= logit_std / np.sqrt(shape[-1])
        x[[i for i in low if i < shape[0]]] *= 0.15
        return x
    if "embed_tokens" in name or "word_embeddings" in name:
        x *= emb_std
        x[[i for i in low if i < shape[0]]] *= 0.3
        return x
    if leaf in ("bias", "e_score_correction_bias", "expert_bias"):
        return (0.15 if "bias" == leaf else 0.05) * x
    if is_norm:
        last = final_norm is not None and name.endswith(("model.norm.weight", "language_model.norm.weight"))
        if "vision" in name:
            return 1.0 + 0.15 * x
        return (final_norm if last else norm_base) + 0.15 * x
    if "gate" in leaf and len(shape) <= 1:            # tanh gates of cross attention
        return 0.8 + 0.2 * x
    if leaf in ("class_embedding", "cls_token"):
        return 0.8 * x
    if "tile_embedding" in name or "position_embedding" in name or "pos_embed" in name:
        return 0.4 * x
    if len(shape) >= 4:                                # convolutions
        fan = int(np.prod(shape[1:]))
        return x * gain / np.sqrt(fan)
    if len(shape) == 1:
        return x
    g = gain
    if any(t in name for t in ("q_proj", "k_proj")):
        g *= 1.2
    return x * g / np.sqrt(shape[-1])


def margins(logits):
    """top-1 minus top-2 for every row."""
    s = np.sort(np.asarray(logits, np.float32), axis=-1)
    return s[..., -1] - s[..., -2]


def rel_err(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.max(np.abs(a - b)) / max(1e-12, np.max(np.abs(b))))


def write_json(path, obj):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = json.dumps(obj, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n\s*(-?\d[-\d.eE+,\s]*)\]", lambda m: "[" + ", ".join(x.strip() for x in m.group(1).split(",")) + "]", text)
    assert json.loads(text) == obj or obj != obj, path       # lists of numbers on one line, nothing else changed
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def golden_path(folder, ext):
    """Goldens live in a subfolder: loaders that glob *.safetensors (mlx_vlm does) must not see them."""
    return os.path.join(folder, "golden", "golden." + ext)


def write_golden(folder, tensors, meta):
    tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
    os.makedirs(os.path.join(folder, "golden"), exist_ok=True)
    save_file(tensors, golden_path(folder, "safetensors"))
    write_json(golden_path(folder, "json"), meta)


def folder_size(folder):
    return sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(folder) for f in fs)


def base_cfg(spec, tok, arch, model_type, **kw):
    ids = {"bos_token_id": tok.id(tok.bos) if tok.bos else None, "eos_token_id": tok.id(tok.eos), "pad_token_id": tok.id(tok.pad)}
    cfg = {"architectures": [arch], "model_type": model_type, "hidden_size": spec.hidden,
           "intermediate_size": spec.inter, "num_hidden_layers": spec.layers,
           "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads,
           "rms_norm_eps": spec.eps, "rope_theta": spec.theta, "hidden_act": "silu",
           "max_position_embeddings": 2048, "vocab_size": pad_to(tok.size, 16), "tie_word_embeddings": False,
           "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
           "torch_dtype": "float32", "transformers_version": "4.45.0", **ids}
    cfg.update(kw)
    return {k: v for k, v in cfg.items() if v is not None}


def write_configs(folder, cfg, tok, gen_extra=None):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), cfg)
    gen = {"_from_model_config": True, "transformers_version": "4.45.0", "eos_token_id": [tok.id(tok.eos)], "pad_token_id": tok.id(tok.pad)}
    if tok.bos:
        gen["bos_token_id"] = tok.id(tok.bos)
    gen.update(gen_extra or {})
    write_json(os.path.join(folder, "generation_config.json"), gen)


def low_rows(tok, vocab):
    return [i for i in tok.special_ids()] + list(range(tok.size, vocab))


def search_seed(build, start, tries=150):
    """First seed whose greedy paths all have clear margins."""
    best = None
    for k in range(tries):
        r = build(start + k)
        if r is not None:
            return start + k, r
    raise RuntimeError("no seed with clear margins")

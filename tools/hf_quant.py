#!/usr/bin/env python3
"""Small matrices and checkpoints in Hugging Face's quantised layouts, with the numbers that they
stand for by the published formulas: what tests/data/quant and tests/data/golden/llama_(gptq|awq|ct|
fp8)* were made with. Everything is made here from fixed seeds.

    pip install numpy ml_dtypes
    python3 tools/hf_quant.py matrices tests/data/quant
    python3 tools/hf_quant.py checkpoints tests/data/golden

Every method is packed by one function and read back by another that looks at the packed words
only; expected numbers are those of the reader, in float32. Checkpoints are tiny llamas; logits,
layer norms and greedy tokens come from tools/ref_forward.py over the numbers read back.
"""
import json
import os
import shutil
import struct
import sys
import tempfile

import ml_dtypes
import numpy as np

from ref_forward import Model

NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64",
         "int8": "I8", "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def write_safetensors(path, tensors):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape)
        header[name] = dict(dtype=NAMES[a.dtype.name], shape=list(a.shape),
                            data_offsets=[at, at + a.nbytes])
        blobs.append(a.tobytes())
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


# ---- bit streams: codes along the last axis, lowest bits first, in 32-bit words

def pack_words(codes, bits):
    planes = (codes[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8)) & 1
    flat = np.packbits(planes.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(flat).view("<i4")


def unpack_words(words, bits):
    planes = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    return planes.reshape(*words.shape[:-1], -1, bits) @ (1 << np.arange(bits))


# ---- integer quantisation by rounding

def rounded(w, bits, group, symmetric, order=None):
    """codes [n, k], scales and zero points [n, groups]; order: the group of each column."""
    n, k = w.shape
    order = np.arange(k) // group if order is None else order
    groups, top = int(order.max()) + 1, 2 ** bits - 1
    scales, zeros = np.zeros((n, groups), np.float32), np.zeros((n, groups), np.int64)
    for g in range(groups):
        part = w[:, order == g]
        if symmetric:
            scales[:, g] = np.abs(part).max(1) / (2 ** (bits - 1) - .5)
            zeros[:, g] = 2 ** (bits - 1)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.round(-low / np.maximum(scales[:, g], 1e-8))
    scales = np.maximum(scales, 1e-6).astype(np.float16)
    zeros = np.clip(zeros, 0 if bits > 2 else 1, top)
    codes = np.round(w / scales[:, order].astype(np.float32)) + zeros[:, order]
    return np.clip(codes, 0, top).astype(np.uint8), scales, zeros


def gptq_pack(w, bits, group, symmetric, v2, order=None):
    codes, scales, zeros = rounded(w, bits, group, symmetric, order)
    if not v2:
        zeros = np.maximum(zeros, 1)
    k = w.shape[1]
    return {"qweight": pack_words(codes, bits).T, "scales": scales.T,
            "qzeros": pack_words((zeros.T - (0 if v2 else 1)).astype(np.uint8), bits),
            "g_idx": (np.arange(k) // group if order is None else order).astype(np.int32)}


def gptq_read(t, bits, v2):
    """scale[g, n] * (code - (zero + 1)), without the 1 in version 2; g = g_idx[column]."""
    codes = unpack_words(np.ascontiguousarray(t["qweight"].T), bits)
    zeros = unpack_words(t["qzeros"], bits) + (0 if v2 else 1)
    g = t["g_idx"]
    return (t["scales"].astype(np.float32)[g].T *
            (codes - zeros[g].T).astype(np.float32)).astype(np.float32)


def awq_words(codes):
    """[rows, n] -> [rows, n / 8]: column order[i] of eight at bits 4 i."""
    parts = codes.reshape(codes.shape[0], -1, 8)[..., AWQ_ORDER].astype(np.uint32)
    return (parts << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32).view(np.int32)


def awq_unwords(words):
    parts = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    out = np.empty(parts.shape, np.int64)
    out[..., AWQ_ORDER] = parts
    return out.reshape(words.shape[0], -1)


def awq_pack(w, group):
    codes, scales, zeros = rounded(w, 4, group, False)
    return {"qweight": awq_words(codes.T), "qzeros": awq_words(zeros.T), "scales": scales.T}


def awq_read(t, group):
    codes, zeros = awq_unwords(t["qweight"]), awq_unwords(t["qzeros"])
    s = np.repeat(t["scales"].astype(np.float32), group, 0)
    return (s * (codes - np.repeat(zeros, group, 0)).astype(np.float32)).T.astype(np.float32)


def ct_pack(w, bits, group, symmetric, dtype=BF16, order=None):
    """compressed-tensors, pack-quantized; group 0: one scale a row."""
    n, k = w.shape
    codes, scales, zeros = rounded(w, bits, group or k, symmetric, order)
    scales = scales.astype(np.float32).astype(dtype)
    out = {"weight_packed": pack_words(codes, bits), "weight_scale": scales,
           "weight_shape": np.array([n, k], np.int64)}
    if not symmetric:
        rows = -(-n // (32 // bits)) * (32 // bits)
        padded = np.zeros((rows, zeros.shape[1]), np.uint8)
        padded[:n] = zeros
        out["weight_zero_point"] = np.ascontiguousarray(pack_words(padded.T, bits).T)
    if order is not None:
        out["weight_g_idx"] = order.astype(np.int32)
    return out


def ct_read(t, bits):
    """(signed code - signed zero) * scale: both less 2^(bits - 1)."""
    n, k = t["weight_shape"]
    half = 2 ** (bits - 1)
    codes = unpack_words(t["weight_packed"], bits)[:, :k] - half
    groups = t["weight_scale"].shape[1]
    g = t.get("weight_g_idx", np.arange(k) // (k // groups))
    zeros = np.zeros((n, groups), np.int64)
    if "weight_zero_point" in t:
        zeros = unpack_words(np.ascontiguousarray(t["weight_zero_point"].T), bits).T[:n] - half
    return (t["weight_scale"].astype(np.float32)[:, g] *
            (codes - zeros[:, g]).astype(np.float32)).astype(np.float32)


def int8_pack(w, group, symmetric):
    """compressed-tensors, int-quantized; group: columns, 0 a row, -1 the whole tensor."""
    codes, scales, zeros = rounded(w, 8, group if group > 0 else w.shape[1], symmetric)
    scales = scales.astype(np.float32)
    if group < 0:
        scales = np.full((1,), scales.max(), np.float32)
        codes = np.clip(np.round(w / scales) + 128, 0, 255)
    out = {"weight": (codes.astype(np.int64) - 128).astype(np.int8), "weight_scale": scales}
    if not symmetric:
        out["weight_zero_point"] = (zeros - 128).astype(np.int8)
    return out


def int8_read(t):
    w, s = t["weight"].astype(np.float32), t["weight_scale"]
    if s.size == 1:
        return w * s.reshape(())
    k = w.shape[1] // s.shape[1]
    z = t.get("weight_zero_point", np.zeros(s.shape, np.int8)).astype(np.float32)
    return np.repeat(s, k, 1) * (w - np.repeat(z, k, 1))


def spread(s, shape, block):
    """A scale for each number of `shape` from one for each block."""
    return np.repeat(np.repeat(s, block[0], -2), block[1], -1)[..., :shape[-2], :shape[-1]]


def fp8_pack(w, dtype, block, scale_dtype=np.float32, name="weight_scale_inv"):
    """block: rows and columns of a scale; None: one scale in all."""
    top = float(ml_dtypes.finfo(dtype).max)
    if block is None:
        s = np.array(np.abs(w).max() / top, scale_dtype)
        return {"weight": (w / s.astype(np.float32)).astype(dtype), name: s}
    n, k = w.shape[-2:]
    down, across = -(-n // block[0]), -(-k // block[1])
    s = np.zeros((*w.shape[:-2], down, across), np.float32)
    for i in range(down):
        for j in range(across):
            part = w[..., i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]]
            s[..., i, j] = np.abs(part).max((-2, -1)) / top
    s = s.astype(scale_dtype)
    return {"weight": (w / spread(s.astype(np.float32), w.shape, block)).astype(dtype), name: s}


def fp8_read(t, block, name="weight_scale_inv"):
    w, s = t["weight"].astype(np.float32), t[name].astype(np.float32)
    return w * (s if block is None else spread(s, w.shape, block))


def nearest_e2m1(x):
    d = np.abs(np.abs(x)[..., None] - E2M1[:8])
    c = d.argmin(-1).astype(np.uint8)
    return np.where((x < 0) & (c > 0), c + 8, c).astype(np.uint8)


def nv_pack(w, modelopt):
    n, k = w.shape
    x = w.reshape(n, -1, 16)
    top = np.abs(x).max(-1) / 6
    whole = np.float32(448 / top.max())
    s = (top * whole).astype(E4M3)
    codes = nearest_e2m1(x / np.maximum(s.astype(np.float32) / whole, 1e-9)[..., None])
    codes = codes.reshape(n, k)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    if modelopt:
        return {"weight": packed, "weight_scale": s,
                "weight_scale_2": np.array(np.float32(1) / whole, np.float32)}
    return {"weight_packed": packed, "weight_scale": s,
            "weight_global_scale": np.array([whole], np.float32)}


def e2m1_read(packed, s, group):
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)
    return E2M1[codes] * np.repeat(s.astype(np.float32), group, -1)


def nv_read(t):
    s = t["weight_scale"].astype(np.float32)
    if "weight_scale_2" in t:
        return e2m1_read(t["weight"], s * t["weight_scale_2"], 16)
    return e2m1_read(t["weight_packed"], s / t["weight_global_scale"], 16)


def mx_pack(w):
    x = w.reshape(*w.shape[:-1], -1, 32)
    e = np.floor(np.log2(np.maximum(np.abs(x).max(-1), 1e-30))).astype(np.int32) - 2
    codes = nearest_e2m1(np.ldexp(x, -e[..., None])).reshape(w.shape)
    return codes[..., ::2] | codes[..., 1::2] << 4, (e + 127).astype(np.uint8)


def mx_read(packed, e):
    return e2m1_read(packed, np.ldexp(np.float32(1), e.astype(np.int32) - 127), 32)


# ---- matrices

def matrix(rng, n, k):
    return (rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1)) * .5)).astype(np.float32)


def permuted(rng, k, group):
    return rng.permutation(np.arange(k) // group).astype(np.int32)


def matrices(out):
    rng = np.random.default_rng(20240607)
    folders = {}

    def add(folder, quantization, module, tensors, expected, name=".weight"):
        f = folders.setdefault(folder, ({"model_type": "llama",
                                         "quantization_config": quantization}, {}, {}))
        for suffix, a in tensors.items():
            f[1][module + ("" if suffix.startswith("_") else ".") + suffix] = a
        f[2][module + name] = np.ascontiguousarray(expected, np.float32)

    for bits in (2, 3, 4, 8):
        for v2 in (False, True):
            folder = f"gptq{bits}" + ("v2" if v2 else "")
            q = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False,
                 "checkpoint_format": "gptq_v2" if v2 else "gptq"}
            for module, n, k, group, sym, order in (
                    ("plain", 32, 64, 32, False, None), ("sym", 64, 96, 32, True, None),
                    ("act", 32, 96, 32, False, permuted(rng, 96, 32)),
                    ("actsym", 32, 64, 32, True, permuted(rng, 64, 32))):
                t = gptq_pack(matrix(rng, n, k), bits, group, sym, v2, order)
                expected = gptq_read(t, bits, v2)
                if module == "sym":
                    del t["g_idx"]
                add(folder, q, module, t, expected)
    whole = gptq_pack(matrix(rng, 32, 96), 4, 96, False, False)
    q = {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False}
    add("gptqrow", q, "row", whole, gptq_read(whole, 4, False))

    q = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    for module, n, k in (("a", 40, 64), ("b", 8, 160)):
        t = awq_pack(matrix(rng, n, k), 32)
        add("awq", q, module, t, awq_read(t, 32))

    q = {"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"]}
    for bits in (4, 8):
        for module, group, sym in (("sym", 32, True), ("asym", 32, False), ("row", 0, True),
                                   ("rowasym", 0, False)):
            t = ct_pack(matrix(rng, 21, 64), bits, group, sym)
            add("ct", q, f"{module}{bits}", t, ct_read(t, bits))
    t = ct_pack(matrix(rng, 16, 96), 4, 32, False, np.float16, permuted(rng, 96, 32))
    add("ct", q, "act4", t, ct_read(t, 4))
    for module, group, sym in (("i8row", 0, True), ("i8asym", 0, False), ("i8group", 32, True),
                               ("i8groupasym", 16, False), ("i8whole", -1, True)):
        t = int8_pack(matrix(rng, 24, 64), group, sym)
        add("ct", q, module, t, int8_read(t))
    for module, dtype, block, scale in (("f8whole", E4M3, None, BF16), ("f8row", E4M3, (1, 96), BF16),
                                        ("f5row", E5M2, (1, 96), np.float32)):
        t = fp8_pack(matrix(rng, 20, 96), dtype, block, scale, "weight_scale")
        add("ct", q, module, t, fp8_read(t, block, "weight_scale"))
    t = nv_pack(matrix(rng, 12, 64), False)
    add("ct", q, "nv", t, nv_read(t))
    packed, e = mx_pack(matrix(rng, 12, 96))
    add("ct", q, "mx", {"weight_packed": packed, "weight_scale": e}, mx_read(packed, e))

    q = {"quant_method": "fp8", "weight_block_size": [48, 40], "activation_scheme": "dynamic"}
    t = fp8_pack(matrix(rng, 100, 90), E4M3, (48, 40))
    add("fp8", q, "block", t, fp8_read(t, (48, 40)))
    t = fp8_pack(matrix(rng, 3 * 96, 50).reshape(3, 96, 50), E4M3, (48, 40), BF16)
    add("fp8", q, "experts", t, fp8_read(t, (48, 40)))
    t = fp8_pack(matrix(rng, 10, 90), E5M2, None)
    t["input_scale"] = np.array(.5, np.float32)
    add("fp8", q, "whole", t, fp8_read(t, None))
    w = np.arange(256, dtype=np.uint8).reshape(2, 128)
    t = {"weight": w.view(E4M3), "weight_scale_inv": np.array(1, np.float32)}
    add("fp8", q, "all", t, fp8_read(t, None))
    t = {"weight": w.view(E5M2), "weight_scale_inv": np.array(1, np.float32)}
    add("fp8", q, "all5", t, fp8_read(t, None))

    q = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    t = nv_pack(matrix(rng, 12, 64), True)
    add("modelopt", q, "nv", t, nv_read(t))

    q = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    packed, e = mx_pack(matrix(rng, 3 * 10, 96).reshape(3, 10, 96))
    add("mxfp4", q, "experts.down_proj", {"_blocks": packed.reshape(3, 10, 3, 16), "_scales": e},
        mx_read(packed, e), "")

    for folder, (config, tensors, expected) in folders.items():
        path = os.path.join(out, folder)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        write_json(os.path.join(path, "config.json"), config)
        write_safetensors(os.path.join(path, "model.safetensors"), tensors)
        write_safetensors(os.path.join(path, "expected.safetensors"), expected)


# ---- checkpoints

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 256,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
CASES = {"short": [1, 17, 5, 40, 92, 8], "long": [1] + [(7 * i * i + 3 * i) % 93 + 3 for i in range(30)]}


def write_tokenizer(folder):
    """One token a character: enough for the checkpoint to open as any other."""
    names = ["<unk>", "<s>", "</s>"] + [chr(33 + i) for i in range(93)]
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    write_json(os.path.join(folder, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [dict(id=i, content=names[i], **special) for i in range(3)],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": False,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "byte_fallback": False, "vocab": {n: i for i, n in enumerate(names)},
                  "merges": []}})
    write_json(os.path.join(folder, "tokenizer_config.json"),
               {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                "tokenizer_class": "PreTrainedTokenizerFast"})


def llama_weights(rng):
    h, f, v, kv = 64, 128, 96, 32
    w = {"model.embed_tokens.weight": rng.standard_normal((v, h)),
         "lm_head.weight": rng.standard_normal((v, h)) * .6,
         "model.norm.weight": 1 + .2 * rng.standard_normal(h)}
    for i in range(2):
        p = f"model.layers.{i}."
        for n in ("input_layernorm", "post_attention_layernorm"):
            w[p + n + ".weight"] = 1 + .2 * rng.standard_normal(h)
        for n, a, b in (("self_attn.q_proj", h, h), ("self_attn.k_proj", kv, h),
                        ("self_attn.v_proj", kv, h), ("self_attn.o_proj", h, h),
                        ("mlp.gate_proj", f, h), ("mlp.up_proj", f, h), ("mlp.down_proj", h, f)):
            w[p + n + ".weight"] = rng.standard_normal((a, b)) * b ** -.5 * 1.7
    return {k: v.astype(np.float32) for k, v in w.items()}


def methods(rng):
    """name -> (quantization_config, pack, read)"""
    order = {64: permuted(rng, 64, 32), 128: permuted(rng, 128, 32)}
    ct = {"quant_method": "compressed-tensors", "quantization_status": "compressed",
          "ignore": ["lm_head"]}
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    channel = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return {
        "llama_gptq_q4": (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False,
             "checkpoint_format": "gptq"},
            lambda w: gptq_pack(w, 4, 32, False, False), lambda t: gptq_read(t, 4, False)),
        "llama_gptq_q8_act": (
            {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": True, "sym": True,
             "checkpoint_format": "gptq_v2"},
            lambda w: gptq_pack(w, 8, 32, True, True, order[w.shape[1]]),
            lambda t: gptq_read(t, 8, True)),
        "llama_awq": (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
             "zero_point": True, "modules_to_not_convert": None},
            lambda w: awq_pack(w, 32), lambda t: awq_read(t, 32)),
        "llama_ct_w4": (
            dict(ct, format="pack-quantized",
                 config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}),
            lambda w: ct_pack(w, 4, 32, False), lambda t: ct_read(t, 4)),
        "llama_ct_w8": (
            dict(ct, format="int-quantized",
                 config_groups={"group_0": {"targets": ["Linear"], "weights": channel}}),
            lambda w: int8_pack(w, 0, True), int8_read),
        "llama_fp8_block": (
            {"quant_method": "fp8", "weight_block_size": [48, 40], "activation_scheme": "dynamic"},
            lambda w: fp8_pack(w, E4M3, (48, 40)), lambda t: fp8_read(t, (48, 40))),
    }


def build(seed, pack, read, quantization):
    rng = np.random.default_rng(seed)
    stored, plain = {}, {}
    for name, w in llama_weights(rng).items():
        if w.ndim == 1 or "layers" not in name:
            stored[name] = w.astype(np.float16)
            plain[name] = stored[name].astype(np.float32)
            continue
        tensors = pack(w)
        for suffix, a in tensors.items():
            stored[name[:-len("weight")] + suffix] = a
        plain[name] = np.ascontiguousarray(read(tensors), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_json(os.path.join(folder, "config.json"), CONFIG)
        write_safetensors(os.path.join(folder, "model.safetensors"), plain)
        model = Model(folder, np.float64)
    return stored, model, dict(CONFIG, quantization_config=quantization)


def margins(model, ids, steps):
    """Greedy ids and by how much each led."""
    ids, out, lead = list(ids), [], []
    for _ in range(steps):
        last = model.forward(ids)[0][-1]
        best = int(last.argmax())
        lead.append(float(last[best] - np.delete(last, best).max()))
        out.append(best)
        ids.append(best)
    return out, lead


def checkpoints(out):
    for name, (quantization, pack, read) in methods(np.random.default_rng(5)).items():
        for seed in range(100, 1000):
            stored, model, config = build(seed, pack, read, quantization)
            greedy = {case: margins(model, ids, 24) for case, ids in CASES.items()}
            if min(min(lead) for _, lead in greedy.values()) > .03:
                break
        folder = os.path.join(out, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "golden"))
        write_json(os.path.join(folder, "config.json"), config)
        write_tokenizer(folder)
        write_safetensors(os.path.join(folder, "model.safetensors"), stored)
        tensors, cases = {}, []
        for case, ids in CASES.items():
            logits, l2 = model.forward(ids)
            tensors[f"{case}.logits"] = logits.astype(np.float32)
            tensors[f"{case}.layer_l2"] = l2.astype(np.float32)
            cases.append({"name": case, "ids": ids, "logits": f"{case}.logits",
                          "logits_positions": "all", "layer_l2": f"{case}.layer_l2",
                          "greedy_ids": greedy[case][0],
                          "greedy_margins": [round(x, 5) for x in greedy[case][1]]})
        write_safetensors(os.path.join(folder, "golden", "golden.safetensors"), tensors)
        write_json(os.path.join(folder, "golden", "golden.json"),
                   {"model": name, "family": "llama", "format": quantization["quant_method"],
                    "reference": "tools/ref_forward.py in float64 over the dequantised numbers",
                    "seed": seed, "cases": cases})
        print(name, seed, min(min(lead) for _, lead in greedy.values()))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("matrices", "checkpoints"):
        sys.exit(__doc__)
    (matrices if sys.argv[1] == "matrices" else checkpoints)(sys.argv[2])

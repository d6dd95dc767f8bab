#!/usr/bin/env python3
"""A plain numpy forward pass of the Llama, Mistral, Qwen2, Qwen3 and Gemma 3 (text) families: a
second opinion on the engine, for checkpoints that no golden exists for. Weights are decoded to
float, arithmetic is float32 (or float64 with --double), nothing is cached.

    pip install numpy            # and gguf, for .gguf files
    python3 tools/ref_forward.py MODEL --ids 1,2,3 [--steps N] -o OUT.safetensors
    python3 tools/ref_forward.py MODEL --golden     # compares with MODEL/golden
    python3 tools/ref_forward.py MODEL --compare OUT.safetensors

--compare reads what `mlxcel trace` wrote, runs its ids and fails when a logit differs by more than
1e-4 of the largest one, or a most likely or greedy token is another. OUT holds what `mlxcel trace`
writes: input_ids, position_ids, logits, layer_l2, greedy_ids.
"""
import argparse
import json
import math
import os
import re
import struct
import sys

import numpy as np

from rope_reference import frequencies

DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
GGUF_STEMS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
              "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
              "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
              "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA_STEMS = {"post_attention_norm": "post_attention_layernorm",
               "ffn_norm": "pre_feedforward_layernorm",
               "post_ffw_norm": "post_feedforward_layernorm"}
GGUF_TOPS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


# ---- files

def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, base, out = json.loads(data[8:8 + length]), 8 + length, {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[base + t["data_offsets"][0]:base + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, DTYPES[t["dtype"]])
        out[name] = a.reshape(t["shape"])
    return out


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, a in tensors.items():
        dtype = {v: k for k, v in DTYPES.items()}["<" + a.dtype.str[1:]]
        header[name] = dict(dtype=dtype, shape=list(a.shape), data_offsets=[at, at + a.nbytes])
        blobs.append(np.ascontiguousarray(a).tobytes())
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def mlx_affine(words, scales, biases, bits, group):
    """Codes are one little-endian bit stream a row."""
    rows, columns = words.shape[0], words.shape[1] * 32 // bits
    stream = np.unpackbits(words.view(np.uint8).reshape(rows, -1), axis=1, bitorder="little")
    codes = stream[:, :columns * bits].reshape(rows, columns, bits) @ (1 << np.arange(bits))
    codes = codes.reshape(rows, columns // group, group).astype(np.float32)
    w = codes * scales.astype(np.float32)[..., None] + biases.astype(np.float32)[..., None]
    return w.reshape(rows, columns)


def load_folder(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    raw = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            raw.update(read_safetensors(os.path.join(path, name)))
    quant, weights = config.get("quantization", {}), {}
    for name, a in raw.items():
        module = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        if module + ".scales" in raw:
            own = quant.get(module) if isinstance(quant.get(module), dict) else {}
            a = mlx_affine(a, raw[module + ".scales"], raw[module + ".biases"],
                           own.get("bits", quant["bits"]),
                           own.get("group_size", quant["group_size"]))
        weights[name] = a
    return config, weights


def load_gguf(path):
    from gguf import GGUFReader
    from gguf.quants import dequantize
    reader = GGUFReader(path)

    def get(key, default=None):
        field = reader.fields.get(key)
        return field.contents() if field else default

    arch = get("general.architecture")
    names = {"num_hidden_layers": "block_count", "hidden_size": "embedding_length",
             "num_attention_heads": "attention.head_count",
             "num_key_value_heads": "attention.head_count_kv",
             "head_dim": "attention.key_length", "rope_theta": "rope.freq_base",
             "rms_norm_eps": "attention.layer_norm_rms_epsilon",
             "max_position_embeddings": "context_length",
             "sliding_window": "attention.sliding_window"}
    config = {k: get(f"{arch}.{v}") for k, v in names.items()}
    config["model_type"], weights, stems = arch, {}, GGUF_STEMS
    if arch == "gemma3":  # norms hold 1 + weight in GGUF
        config.update(model_type="gemma3_text", norm_offset=0)
        stems = {**GGUF_STEMS, **GEMMA_STEMS}
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for t in reader.tensors:
        a = dequantize(t.data, t.tensor_type).astype(np.float32)
        name, suffix = t.name.rsplit(".", 1)
        m = re.fullmatch(r"blk\.(\d+)\.(.*)", name)
        if m:
            if arch == "llama" and m[2] in ("attn_q", "attn_k"):
                h = heads[m[2][-1]]
                a = a.reshape(h, -1, 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
            name = f"model.layers.{m[1]}.{stems[m[2]]}"
        weights[f"{GGUF_TOPS.get(name, name)}.{suffix}"] = a
    return config, weights


# ---- the model

def activation(name):
    if name in ("silu", "swish"):
        return lambda x: x / (1 + np.exp(-x))
    if name == "gelu":
        return lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if name == "relu":
        return lambda x: np.maximum(x, 0)
    return lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Model:
    def __init__(self, path, dtype=np.float32):
        c, self.w = load_gguf(path) if path.endswith(".gguf") else load_folder(path)
        self.c, self.dtype, self.family = c, dtype, c["model_type"]
        if self.family not in ("llama", "mistral", "qwen2", "qwen3", "gemma3_text"):
            sys.exit(f"model_type {self.family} is not done here")
        self.heads = c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads") or self.heads
        self.dim = (c.get("head_dim") or {"qwen3": 128, "gemma3_text": 256}.get(self.family) or
                    c["hidden_size"] // self.heads)
        self.eps = c.get("rms_norm_eps") or 1e-6
        self.gemma = self.family == "gemma3_text"
        self.act = activation(c.get("hidden_act") or c.get("hidden_activation") or
                              ("gelu_pytorch_tanh" if self.gemma else "silu"))
        self.scale = (c.get("query_pre_attn_scalar") or self.dim) ** -0.5
        self.offset = c.get("norm_offset", 1) if self.gemma else 0
        params = c.get("rope_scaling") or c.get("rope_parameters") or {}
        local = params.get("sliding_attention", {}).get("rope_theta")
        params = params.get("full_attention", params)
        self.local_rope = {"scaling": "none", "dims": self.dim,
                           "theta": local or c.get("rope_local_base_freq") or 1e4}
        kind = params.get("rope_type") or params.get("type") or "default"
        self.rope = dict(params, scaling="none" if kind == "default" else kind, dims=self.dim,
                         theta=(params.get("rope_theta") or c.get("rope_theta") or
                                (1e6 if self.gemma else 1e4)),
                         max_position=c.get("max_position_embeddings"))
        self.rope["original_max"] = (c.get("original_max_position_embeddings") or
                                     params.get("original_max_position_embeddings") or
                                     self.rope["max_position"])
        if "rope_freqs.weight" in self.w:
            self.rope["freq_factor"] = self.w["rope_freqs.weight"].tolist()

    def get(self, name):
        a = self.w.get(name)
        return None if a is None else a.astype(self.dtype, copy=False)

    def window(self, layer):
        c = self.c
        if self.family == "mistral":
            return c.get("sliding_window", 4096) or 0
        if self.gemma:
            here = (c["layer_types"][layer] == "sliding_attention" if c.get("layer_types") else
                    (layer + 1) % c.get("sliding_window_pattern", 6) != 0)
            return c.get("sliding_window", 4096) if here else 0
        if self.family == "llama" or not c.get("use_sliding_window"):
            return 0
        if c.get("layer_types"):
            here = c["layer_types"][layer] == "sliding_attention"
        else:
            here = layer >= c.get("max_window_layers", 28)
        return (c.get("sliding_window", 4096) or 0) if here else 0

    def norm(self, x, name):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dtype(self.eps))
        return y * (self.get(name + ".weight") + self.dtype(self.offset))

    def linear(self, x, name):
        y, bias = x @ self.get(name + ".weight").T, self.get(name + ".bias")
        return y if bias is None else y + bias

    def attention(self, x, name, layer, cos, sin):
        t, half, out = len(x), self.dim // 2, []
        q, k, v = (self.linear(x, f"{name}.{p}_proj").reshape(t, -1, self.dim) for p in "qkv")
        if self.family in ("qwen3", "gemma3_text"):
            q, k = self.norm(q, name + ".q_norm"), self.norm(k, name + ".k_norm")

        def rotate(a):
            a1, a2 = a[..., :half], a[..., half:]
            return np.concatenate((a1 * cos - a2 * sin, a2 * cos + a1 * sin), -1)

        q, k = rotate(q), rotate(k)
        rows, window = np.arange(t), self.window(layer)
        seen = rows[None] <= rows[:, None]
        if window:
            seen &= rows[None] > rows[:, None] - window
        for h in range(self.heads):
            kv = h * self.kv_heads // self.heads
            s = q[:, h] @ k[:, kv].T * self.dtype(self.scale)
            s = np.where(seen, s, -np.inf)
            s = np.exp(s - s.max(-1, keepdims=True))
            out.append(s / s.sum(-1, keepdims=True) @ v[:, kv])
        return self.linear(np.concatenate(out, -1), name + ".o_proj")

    def rotation(self, rope, n, length):
        inv_freq, factor = frequencies(rope, length or n)
        angles = np.arange(n)[:, None] * np.array(inv_freq)
        return [f(angles)[:, None].astype(self.dtype) * self.dtype(factor)
                for f in (np.cos, np.sin)]

    def forward(self, ids, length=None):
        """logits [T, vocab] and layer_l2 [layers + 2, T]; length: what the rope is told."""
        tables = [self.rotation(r, len(ids), length) for r in (self.rope, self.local_rope)]
        x = self.w["model.embed_tokens.weight"][np.array(ids)].astype(self.dtype)
        if self.gemma:
            x = x * self.dtype(np.float32(math.sqrt(self.c["hidden_size"])))
        norms = [np.linalg.norm(x, axis=-1)]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            turn = tables[1] if self.gemma and self.window(i) else tables[0]
            y = self.norm(x, p + "input_layernorm")
            y = self.attention(y, p + "self_attn", i, *turn)
            if self.gemma:
                y = self.norm(y, p + "post_attention_layernorm")
            x = x + y
            y = self.norm(x, p + ("pre_feedforward_layernorm" if self.gemma else
                                  "post_attention_layernorm"))
            y = self.act(self.linear(y, p + "mlp.gate_proj")) * self.linear(y, p + "mlp.up_proj")
            y = self.linear(y, p + "mlp.down_proj")
            if self.gemma:
                y = self.norm(y, p + "post_feedforward_layernorm")
            x = x + y
            norms.append(np.linalg.norm(x, axis=-1))
        x = self.norm(x, "model.norm")
        norms.append(np.linalg.norm(x, axis=-1))
        head = "lm_head" if "lm_head.weight" in self.w else "model.embed_tokens"
        return self.linear(x, head), np.array(norms)

    def greedy(self, ids, steps):
        length, ids, out = len(ids), list(ids), []
        for _ in range(steps):
            out.append(int(self.forward(ids, length)[0][-1].argmax()))
            ids.append(out[-1])
        return out


def compare(model, path):
    """Prints the worst differences of each case of MODEL/golden; False: one is too large."""
    folder = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), "golden")
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    tensors, good = read_safetensors(os.path.join(folder, "golden.safetensors")), True
    for case in golden["cases"]:
        logits, l2 = model.forward(case["ids"])
        want, want_l2 = tensors[case["logits"]], tensors[case["layer_l2"]]
        if case["logits_positions"] != "all":
            logits = logits[case["logits_positions"]]
            if l2.shape != want_l2.shape:
                l2 = l2[:, case["logits_positions"]]
        d = np.abs(logits - want).max() / np.abs(want).max()
        d_l2 = np.abs(l2 / want_l2 - 1).max() if l2.shape == want_l2.shape else math.inf
        same = model.greedy(case["ids"], 24) == case["greedy_ids"]
        print(f"{case['name']}: logits {d:.1e}, layer_l2 {d_l2:.1e}, greedy "
              f"{'equal' if same else 'DIFFERENT'}")
        good = good and d <= 1e-4 and d_l2 <= 1e-4 and same
    return good


def compare_trace(model, path):
    """As compare, for a file of `mlxcel trace`."""
    got = read_safetensors(path)
    want, l2 = model.forward(got["input_ids"].tolist())
    d = max(float(np.abs(a - b).max()) for a, b in zip(got["logits"], want))
    d /= float(np.abs(want).max())
    d_l2 = float(np.abs(got["layer_l2"] / l2 - 1).max())
    same = int((got["logits"].argmax(-1) == want.argmax(-1)).sum())
    steps = len(got["greedy_ids"])
    greedy = model.greedy(got["input_ids"].tolist(), steps) == got["greedy_ids"].tolist()
    print(f"{len(want)} tokens: logits {d:.1e}, layer_l2 {d_l2:.1e}, top-1 equal in {same}, "
          f"{steps} greedy tokens {'equal' if greedy else 'DIFFERENT'}")
    return d <= 1e-4 and d_l2 <= 1e-4 and same == len(want) and greedy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ids")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("--compare")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    path = os.path.join(args.model, "model.gguf")
    path = path if os.path.exists(path) else args.model
    model = Model(path, np.float64 if args.double else np.float32)
    if args.golden:
        sys.exit(0 if compare(model, path) else 1)
    if args.compare:
        sys.exit(0 if compare_trace(model, args.compare) else 1)
    if not args.ids or not args.output:
        parser.error("--ids and -o are needed")
    ids = [int(x) for x in args.ids.split(",")]
    logits, l2 = model.forward(ids)
    write_safetensors(args.output, {
        "input_ids": np.array(ids, np.int32),
        "position_ids": np.arange(len(ids), dtype=np.int32),
        "logits": logits.astype(np.float32),
        "layer_l2": l2.astype(np.float32),
        "greedy_ids": np.array(model.greedy(ids, args.steps), np.int32),
    })


if __name__ == "__main__":
    main()

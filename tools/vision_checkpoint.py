#!/usr/bin/env python3
"""Writes a checkpoint of Qwen2-VL-2B's shape with random bf16 weights, to measure with.

Usage: vision_checkpoint.py FOLDER [--gguf] [--layers N] [--vision-layers N]

FOLDER gets config, preprocessor file, tokeniser and chat template (those of the golden checkpoint
qwen2_vl; the vocabulary is padded) and model.safetensors, 4.4 GB. --gguf adds the same weights as
text.gguf and mmproj.gguf, the two files that llama.cpp takes. The same numbers every time: a
tensor's follow from its name. Needs numpy only.
"""
import argparse
import json
import os
import shutil
import struct
import zlib

import numpy

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "data",
                      "golden", "qwen2_vl")
HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 1536, 8960, 12, 2, 151936
WIDTH, VISION_HEADS, VISION_FFN, MERGE = 1280, 16, 5120, 4
TYPE_F32, TYPE_BF16 = 0, 30


def tensors(layers, vision_layers):
    """(name, shape), in the order of the file."""
    def linear(name, out, width, bias=True):
        yield name + ".weight", (out, width)
        if bias:
            yield name + ".bias", (out,)

    def norm(name, width, bias):
        yield name + ".weight", (width,)
        if bias:
            yield name + ".bias", (width,)

    head = HIDDEN // HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield from norm(p + "input_layernorm", HIDDEN, False)
        yield from linear(p + "self_attn.q_proj", HIDDEN, HIDDEN)
        yield from linear(p + "self_attn.k_proj", KV_HEADS * head, HIDDEN)
        yield from linear(p + "self_attn.v_proj", KV_HEADS * head, HIDDEN)
        yield from linear(p + "self_attn.o_proj", HIDDEN, HIDDEN, False)
        yield from norm(p + "post_attention_layernorm", HIDDEN, False)
        yield from linear(p + "mlp.gate_proj", FFN, HIDDEN, False)
        yield from linear(p + "mlp.up_proj", FFN, HIDDEN, False)
        yield from linear(p + "mlp.down_proj", HIDDEN, FFN, False)
    yield from norm("model.norm", HIDDEN, False)
    yield "visual.patch_embed.proj.weight", (WIDTH, 3, 2, 14, 14)
    for i in range(vision_layers):
        p = f"visual.blocks.{i}."
        yield from norm(p + "norm1", WIDTH, True)
        yield from linear(p + "attn.qkv", 3 * WIDTH, WIDTH)
        yield from linear(p + "attn.proj", WIDTH, WIDTH)
        yield from norm(p + "norm2", WIDTH, True)
        yield from linear(p + "mlp.fc1", VISION_FFN, WIDTH)
        yield from linear(p + "mlp.fc2", WIDTH, VISION_FFN)
    yield from norm("visual.merger.ln_q", WIDTH, True)
    yield from linear("visual.merger.mlp.0", MERGE * WIDTH, MERGE * WIDTH)
    yield from linear("visual.merger.mlp.2", HIDDEN, MERGE * WIDTH)


def numbers(name, shape):
    """bf16 as uint16: norms' weights are 1, everything else lies in +-[2^-7, 2^-5)."""
    if "norm" in name and name.endswith(".weight") or name == "visual.merger.ln_q.weight":
        return numpy.full(shape, 0x3F80, numpy.uint16)
    made = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(name.encode()))).integers(
        0, 1 << 16, numpy.prod(shape), numpy.uint16)
    return (made & 0x80FF | 0x3C00).reshape(shape)


def write_safetensors(path, listed):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in listed:
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in listed:
            numbers(name, shape).tofile(f)


# ---- GGUF


class Gguf:
    """Values first, then tensors (name, bf16 as uint16); wide ones stay bf16, vectors and kernels
    become f32."""

    def __init__(self):
        self.values, self.n_values, self.tensors = b"", 0, []

    @staticmethod
    def text(text):
        data = text.encode()
        return struct.pack("<Q", len(data)) + data

    def put(self, key, kind, packed):
        self.values += self.text(key) + struct.pack("<I", kind) + packed
        self.n_values += 1

    def put_int(self, key, value):
        self.put(key, 4, struct.pack("<I", value))

    def put_float(self, key, value):
        self.put(key, 6, struct.pack("<f", value))

    def put_bool(self, key, value):
        self.put(key, 7, struct.pack("<?", value))

    def put_text(self, key, value):
        self.put(key, 8, self.text(value))

    def put_list(self, key, kind, items):
        pack = {4: lambda v: struct.pack("<I", v), 5: lambda v: struct.pack("<i", v),
                6: lambda v: struct.pack("<f", v), 8: self.text}[kind]
        self.put(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(map(pack, items)))

    def add(self, name, make, shape):
        """make: gives the numbers when they are written."""
        self.tensors.append((name, make, shape))

    def write(self, path):
        infos, at = b"", 0
        for name, _, shape in self.tensors:
            wide = len(shape) == 2
            infos += self.text(name) + struct.pack("<I", len(shape))
            infos += struct.pack(f"<{len(shape)}Q", *reversed(shape))
            infos += struct.pack("<IQ", TYPE_BF16 if wide else TYPE_F32, at)
            size = int(numpy.prod(shape)) * (2 if wide else 4)
            at += size + -size % 32
        with open(path, "wb") as f:
            f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), self.n_values))
            f.write(self.values + infos)
            for _, make, shape in self.tensors:
                f.write(bytes(-f.tell() % 32))
                data = make()
                if len(shape) != 2:
                    data = (data.astype(numpy.uint32) << 16).view(numpy.float32)
                numpy.ascontiguousarray(data).tofile(f)


def text_gguf(listed, layers, folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    pieces = {i: (t, 1) for t, i in tokenizer["model"]["vocab"].items()}
    pieces |= {t["id"]: (t["content"], 3) for t in tokenizer["added_tokens"]}
    rows = [pieces.get(i, (f"[PAD{i}]", 5)) for i in range(VOCAB)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    g = Gguf()
    g.put_text("general.architecture", "qwen2vl")
    g.put_text("general.name", "random weights of Qwen2-VL-2B's shape")
    for key, value in (("block_count", layers), ("context_length", 32768),
                       ("embedding_length", HIDDEN), ("feed_forward_length", FFN),
                       ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS)):
        g.put_int("qwen2vl." + key, value)
    g.put_float("qwen2vl.attention.layer_norm_rms_epsilon", 1e-6)
    g.put_float("qwen2vl.rope.freq_base", 1e6)
    g.put_list("qwen2vl.rope.dimension_sections", 5, [16, 24, 24, 0])
    g.put_text("tokenizer.ggml.model", "gpt2")
    g.put_text("tokenizer.ggml.pre", "qwen2")
    g.put_list("tokenizer.ggml.tokens", 8, [r[0] for r in rows])
    g.put_list("tokenizer.ggml.token_type", 5, [r[1] for r in rows])
    g.put_list("tokenizer.ggml.merges", 8, merges)
    g.put_int("tokenizer.ggml.eos_token_id", json.load(
        open(os.path.join(folder, "config.json"), encoding="utf-8"))["eos_token_id"])
    g.put_bool("tokenizer.ggml.add_bos_token", False)
    with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as f:
        g.put_text("tokenizer.chat_template", f.read())
    spell = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, shape in listed:
        if name.startswith("visual."):
            continue
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, i, rest = stem.split(".", 3)
            stem = f"blk.{i}.{spell[rest]}"
        else:
            stem = spell[stem]
        g.add(f"{stem}.{kind}", lambda n=name, s=shape: numbers(n, s), shape)
    g.write(os.path.join(folder, "text.gguf"))


def eye_gguf(listed, vision_layers, folder):
    g = Gguf()
    g.put_text("general.architecture", "clip")
    g.put_text("clip.projector_type", "qwen2vl_merger")
    g.put_bool("clip.has_vision_encoder", True)
    for key, value in (("image_size", 560), ("patch_size", 14), ("embedding_length", WIDTH),
                       ("feed_forward_length", VISION_FFN), ("projection_dim", HIDDEN),
                       ("block_count", vision_layers), ("attention.head_count", VISION_HEADS),
                       ("spatial_merge_size", 2)):
        g.put_int("clip.vision." + key, value)
    g.put_float("clip.vision.attention.layer_norm_epsilon", 1e-6)
    g.put_list("clip.vision.image_mean", 6, [0.48145466, 0.4578275, 0.40821073])
    g.put_list("clip.vision.image_std", 6, [0.26862954, 0.26130258, 0.27577711])
    spell = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out",
             "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "visual.merger.ln_q": "v.post_ln",
             "visual.merger.mlp.0": "mm.0", "visual.merger.mlp.2": "mm.2"}
    for name, shape in listed:
        if not name.startswith("visual."):
            continue
        stem, kind = name.rsplit(".", 1)
        if stem == "visual.patch_embed.proj": # one kernel for each of the two frames
            for t in range(2):
                g.add("v.patch_embd.weight" + (".1" if t else ""),
                      lambda n=name, s=shape, t=t: numbers(n, s)[:, :, t],
                      (shape[0], shape[1], shape[3], shape[4]))
            continue
        if stem.startswith("visual.blocks."):
            _, _, i, rest = stem.split(".", 3)
            if rest == "attn.qkv":
                for k, part in enumerate("qkv"):
                    g.add(f"v.blk.{i}.attn_{part}.{kind}",
                          lambda n=name, s=shape, k=k: numbers(n, s)[k * WIDTH:(k + 1) * WIDTH],
                          (WIDTH, *shape[1:]))
                continue
            stem = f"v.blk.{i}.{spell[rest]}"
        else:
            stem = spell[stem]
        g.add(f"{stem}.{kind}", lambda n=name, s=shape: numbers(n, s), shape)
    g.write(os.path.join(folder, "mmproj.gguf"))


def write_config(folder, layers, vision_layers):
    with open(os.path.join(GOLDEN, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config |= {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": layers,
               "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6,
               "rope_theta": 1000000.0, "max_position_embeddings": 32768, "vocab_size": VOCAB,
               "tie_word_embeddings": True, "torch_dtype": "bfloat16",
               "max_window_layers": layers, "sliding_window": 32768,
               "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    config["vision_config"] |= {"depth": vision_layers, "embed_dim": WIDTH, "mlp_ratio": 4,
                                "num_heads": VISION_HEADS, "hidden_size": HIDDEN}
    with open(os.path.join(GOLDEN, "preprocessor_config.json"), encoding="utf-8") as f:
        processor = json.load(f) | {"min_pixels": 3136, "max_pixels": 12845056}
    for name, value in (("config.json", config), ("preprocessor_config.json", processor)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                 "generation_config.json"):
        shutil.copy(os.path.join(GOLDEN, name), folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder")
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vision-layers", type=int, default=32)
    a = parser.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    listed = list(tensors(a.layers, a.vision_layers))
    write_config(a.folder, a.layers, a.vision_layers)
    write_safetensors(os.path.join(a.folder, "model.safetensors"), listed)
    if a.gguf:
        text_gguf(listed, a.layers, a.folder)
        eye_gguf(listed, a.vision_layers, a.folder)


if __name__ == "__main__":
    main()

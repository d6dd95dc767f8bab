#!/usr/bin/env python3
"""From a picture to the first token: mlxcel beside its peers, taking turns in one run.

Usage: vision.py [--bench-program PROGRAM] [--peer transformers|llama.cpp] [--llama-cli PROGRAM]
                 [--python PYTHON] [--model FOLDER] [--pairs N] [--threads N] [--max-pixels N]

The model is a folder of tools/vision_checkpoint.py (made there when it is missing; with llama.cpp
as a peer it needs its --gguf). The picture is a drawn JPEG of 4000 x 3000 pixels. transformers run
under PYTHON, with torch, numpy and Pillow: bf16, scaled-dot-product attention, the same number of
threads. Prints a table: medians of the runs, and of the ratios pair by pair. Time of processors is
the figure to trust on a machine that others use.
"""
import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = ["decode", "resize", "tower", "projector", "prefill"]
PHOTO = """
import sys, numpy
from PIL import Image
y, x = numpy.mgrid[0:3000, 0:4000]
rgb = numpy.stack([127 + 100 * numpy.sin(x / 170 + y / 310), 127 + 90 * numpy.cos(x / 90 - y / 230),
                   127 + 80 * numpy.sin((x + y) / 400)], -1)
rgb = rgb + numpy.random.default_rng(3).normal(0, 8, rgb.shape)
Image.fromarray(rgb.clip(0, 255).astype("uint8")).save(sys.argv[1], quality=90)
"""


# ---- transformers: runs in a process of its own, with the protocol of bench_vision


def worker(model, photo, max_pixels, threads):
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, Qwen2VLForConditionalGeneration
    torch.set_num_threads(threads)
    net = Qwen2VLForConditionalGeneration.from_pretrained(model, dtype=torch.bfloat16,
                                                          attn_implementation="sdpa").eval()
    processor = AutoImageProcessor.from_pretrained(model, use_fast=False, max_pixels=max_pixels,
                                                   size={"shortest_edge": 3136,
                                                         "longest_edge": max_pixels})
    visual = net.model.visual
    image_token = net.config.image_token_id
    wall, cpu = {}, {}

    def timed(name, f):
        wall[name], cpu[name] = -time.perf_counter(), -time.process_time()
        value = f()
        wall[name] += time.perf_counter()
        cpu[name] += time.process_time()
        return value

    def decode():
        image = Image.open(photo).convert("RGB")
        image.load()
        return image

    merger = visual.merger
    plain = merger.forward
    merger.forward = lambda *a, **k: timed("projector", lambda: plain(*a, **k))
    print("ready", flush=True)
    for _ in sys.stdin:
        with torch.inference_mode():
            image = timed("decode", decode)
            made = timed("resize", lambda: processor(images=image, return_tensors="pt"))
            pixels, grid = made["pixel_values"], made["image_grid_thw"]
            out = timed("tower", lambda: visual(pixels.to(torch.bfloat16), grid_thw=grid))
            rows = getattr(out, "pooler_output", None) if not torch.is_tensor(out) else out
            if rows is None:
                rows = out[0]
            for t in (wall, cpu):
                t["tower"] -= t["projector"]
            n = rows.shape[0]
            text = [100 + 7 * i for i in range(20)]
            ids = torch.tensor([text[:10] + [image_token] * n + text[10:]])

            def prefill():
                embeds = net.model.language_model.embed_tokens(ids)
                embeds[0, 10:10 + n] = rows.to(embeds.dtype)
                t, h, w = (int(v) for v in grid[0])
                h, w = h // 2, w // 2
                at = torch.arange(10).expand(3, -1)
                square = torch.stack([torch.zeros(n, dtype=torch.long),
                                      torch.arange(h).repeat_interleave(w),
                                      torch.arange(w).repeat(h)]) + 10
                rest = torch.arange(10).expand(3, -1) + int(square.max()) + 1
                positions = torch.cat([at, square, rest], 1)[:, None]
                hidden = net.model.language_model(inputs_embeds=embeds, position_ids=positions,
                                                  use_cache=True).last_hidden_state
                return net.lm_head(hidden[:, -1])

            timed("prefill", prefill)
        print(json.dumps({"patches": pixels.shape[0], "prompt": ids.shape[1], **wall,
                          **{"cpu_" + k: v for k, v in cpu.items()}}), flush=True)


# ---- processes that wait for their turn


class Worker:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        if self.line() != "ready":
            sys.exit(f"{command[0]} does not start")

    def line(self):
        return self.process.stdout.readline().strip()

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        text = self.line()
        if not text:
            sys.exit("a run failed")
        return json.loads(text)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class LlamaCli:
    """llama.cpp's multimodal program: loads anew every time; it tells of the picture's tower and
    projector together, and of the prompt in two parts."""

    def __init__(self, a, photo):
        tokens = a.max_pixels // 784
        self.command = [a.llama_cli, "-m", os.path.join(a.model, "text.gguf"), "--mmproj",
                        os.path.join(a.model, "mmproj.gguf"), "--image", photo, "-p",
                        "What is this?", "-n", "1", "-t", str(a.threads), "-c", "4096",
                        "--image-max-tokens", str(tokens), "--no-warmup", "--temp", "0", "--perf",
                        "-lv", "5"]

    def run(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = subprocess.run(self.command, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        encode = re.search(r"encoding done in (\d+) ms", text)
        image = re.search(r"image decoded \(batch 1/1\) in (\d+) ms", text)
        total = re.search(r"prompt eval time = +([\d.]+) ms / +(\d+) tokens", text)
        if not (encode and image and total):
            sys.exit("llama.cpp's output is not understood:\n" + text[-2000:])
        tower = int(encode[1]) / 1000
        return {"tower": tower, "prefill": int(image[1]) / 1000, "prompt": int(total[2]),
                "cpu_all": after.ru_utime - before.ru_utime}

    def close(self):
        pass


# ---- the table


def median(runs, name):
    values = [r[name] for r in runs if name in r]
    return statistics.median(values) if values else None


def cell(value):
    return "" if value is None else f"{value:.2f} s"


def ratios(ours, theirs, names, theirs_names=None):
    have = [sum(t[n] for n in theirs_names or names) / sum(o[n] for n in names)
            for o, t in zip(ours, theirs)]
    return f"{statistics.median(have):.1f} ({min(have):.1f}-{max(have):.1f})"


def print_transformers(ours, theirs):
    print("| step | mlxcel | of processors | transformers | of processors | ratio | of processors |")
    print("|---|---|---|---|---|---|---|")
    for name in STEPS + ["all"]:
        names = STEPS if name == "all" else [name]
        for r in ours + theirs:
            r["all"] = sum(r[s] for s in STEPS)
            r["cpu_all"] = sum(r["cpu_" + s] for s in STEPS)
        print(f"| {'to the first token' if name == 'all' else name} | {cell(median(ours, name))} | "
              f"{cell(median(ours, 'cpu_' + name))} | {cell(median(theirs, name))} | "
              f"{cell(median(theirs, 'cpu_' + name))} | {ratios(ours, theirs, names)} | "
              f"{ratios(ours, theirs, ['cpu_' + n for n in names])} |")


def print_llama(ours, theirs):
    print("| step | mlxcel | llama.cpp | ratio |")
    print("|---|---|---|---|")
    for label, names, other in (("tower and projector", ["tower", "projector"], ["tower"]),
                                ("prefill of the picture's tokens", ["prefill"], ["prefill"])):
        mine = statistics.median(sum(r[n] for n in names) for r in ours)
        print(f"| {label} | {cell(mine)} | {cell(median(theirs, other[0]))} | "
              f"{ratios(ours, theirs, names, other)} |")
    mine = statistics.median(sum(r["cpu_" + s] for s in STEPS) for r in ours)
    print(f"| all, time of processors (llama.cpp: loading too) | {cell(mine)} | "
          f"{cell(median(theirs, 'cpu_all'))} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bench-program", default=os.path.join(ROOT, "build/bench/bench_vision"))
    parser.add_argument("--peer", default="transformers", choices=("transformers", "llama.cpp"))
    parser.add_argument("--llama-cli", default="llama-mtmd-cli")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--model", default=os.path.join(tempfile.gettempdir(), "mlxcel-vision-2b"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-pixels", type=int, default=672 * 672)
    parser.add_argument("--worker", metavar="PICTURE", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        worker(a.model, a.worker, a.max_pixels, a.threads)
        return
    if not os.path.exists(os.path.join(a.model, "model.safetensors")):
        subprocess.run([a.python, os.path.join(ROOT, "tools/vision_checkpoint.py"), a.model]
                       + (["--gguf"] if a.peer == "llama.cpp" else []), check=True)
    photo = os.path.join(a.model, "photo.jpg")
    if not os.path.exists(photo):
        subprocess.run([a.python, "-c", PHOTO, photo], check=True)
    mine = Worker([a.bench_program, a.model, photo, str(a.max_pixels), str(a.threads)])
    if a.peer == "transformers":
        other = Worker([a.python, os.path.abspath(__file__), "--worker", photo, "--model", a.model,
                        "--max-pixels", str(a.max_pixels), "--threads", str(a.threads)])
        mine.run()
        other.run()
    else:
        other = LlamaCli(a, photo)
        mine.run()
    ours, theirs = [], []
    for i in range(a.pairs):
        ours.append(mine.run())
        theirs.append(other.run())
        print(f"pair {i + 1}: tower {ours[-1]['tower']:.2f} s, {theirs[-1]['tower']:.2f} s",
              file=sys.stderr, flush=True)
    mine.close()
    other.close()
    print(f"{ours[0].get('patches')} patches, prompts of {ours[0]['prompt']} and "
          f"{theirs[0]['prompt']} tokens, {a.threads} threads, {a.pairs} pairs\n")
    (print_transformers if a.peer == "transformers" else print_llama)(ours, theirs)


if __name__ == "__main__":
    main()

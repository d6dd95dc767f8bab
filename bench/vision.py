#!/usr/bin/env python3
"""From a picture to the first token: mlxcel beside its peers, taking turns in one run.

Usage: vision.py [--bench-program PROGRAM] [--peer transformers|llama.cpp]... [--llama-cli PROGRAM]
                 [--python PYTHON] [--model FOLDER] [--pairs N] [--threads N] [--max-pixels N]

The model is a folder of tools/vision_checkpoint.py (made there when it is missing; llama.cpp takes
the same weights from its --gguf). The picture is a drawn JPEG of 4000 x 3000 pixels. transformers
run under PYTHON, with torch, numpy and Pillow: bf16, scaled-dot-product attention, the same number
of threads. Without --peer: transformers, and llama.cpp when PROGRAM is there. Prints tables of
README.md: medians of the runs, and of the ratios run by run (least to most). The second table is of
processor time, the one to trust on a machine that others use.
"""
import argparse
import json
import os
import re
import resource
import shutil
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
        return {"seen": tower, "prefill": int(image[1]) / 1000, "prompt": int(total[2]),
                "cpu_all": after.ru_utime - before.ru_utime}

    def close(self):
        pass


# ---- the tables

# What llama.cpp tells apart comes last: it says nothing of decoding, resizing and the prompt's text.
LINES = [(step, [step]) for step in STEPS] + [("to the first token", STEPS),
                                              ("tower and projector", ["tower", "projector"])]


def seconds(run, names, kind):
    if kind + "".join(names) == "towerprojector" and "seen" in run:
        return run["seen"]
    values = [run.get(kind + n) for n in names]
    return None if None in values else sum(values)


def cell(runs, names, kind):
    values = [seconds(r, names, kind) for r in runs]
    return "" if None in values else f"{statistics.median(values):.2f} s"


def ratio(ours, theirs, names, kind):
    pairs = [(seconds(o, names, kind), seconds(t, names, kind)) for o, t in zip(ours, theirs)]
    if any(t is None for _, t in pairs):
        return ""
    have = [t / o for o, t in pairs]
    return f"{statistics.median(have):.1f} ({min(have):.1f}-{max(have):.1f})"


def print_table(runs, kind):
    ours, peers = runs["mlxcel"], [n for n in runs if n != "mlxcel"]
    if kind:
        peers = [n for n in peers if any(kind + s in runs[n][0] for s in STEPS)]
    print("| " + " | ".join(["processor time" if kind else "step", "mlxcel"] + peers
                            + [f"{n} / mlxcel" for n in peers]) + " |")
    print("|---" * (2 + 2 * len(peers)) + "|")
    for label, names in LINES:
        cells = [cell(runs[n], names, kind) for n in ["mlxcel"] + peers]
        cells += [ratio(ours, runs[n], names, kind) for n in peers]
        print("| " + " | ".join([label] + cells) + " |")
    print()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bench-program", default=os.path.join(ROOT, "build/bench/bench_vision"))
    parser.add_argument("--peer", action="append", choices=("transformers", "llama.cpp"))
    parser.add_argument("--llama-cli", default="llama-mtmd-cli")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--model", default=os.path.join(tempfile.gettempdir(), "mlxcel-vision-2b"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-pixels", type=int, default=672 * 672)
    parser.add_argument("--worker", metavar="PICTURE", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.llama_cli = shutil.which(a.llama_cli)
    if not a.peer:
        a.peer = ["transformers"] + (["llama.cpp"] if a.llama_cli else [])
    if "llama.cpp" in a.peer and not a.llama_cli:
        parser.error("--llama-cli: there is no such program")
    if not os.path.exists(a.bench_program):
        parser.error(f"{a.bench_program} is not there: ./dev bench builds it")
    return a


def main():
    a = arguments()
    if a.worker:
        worker(a.model, a.worker, a.max_pixels, a.threads)
        return
    needed = ["model.safetensors"] + (["text.gguf", "mmproj.gguf"] if "llama.cpp" in a.peer else [])
    if not all(os.path.exists(os.path.join(a.model, n)) for n in needed):
        subprocess.run([a.python, os.path.join(ROOT, "tools/vision_checkpoint.py"), a.model]
                       + (["--gguf"] if "llama.cpp" in a.peer else []), check=True)
    photo = os.path.join(a.model, "photo.jpg")
    if not os.path.exists(photo):
        subprocess.run([a.python, "-c", PHOTO, photo], check=True)
    programs = {"mlxcel": Worker([a.bench_program, a.model, photo, str(a.max_pixels),
                                  str(a.threads)])}
    for name in a.peer:
        programs[name] = LlamaCli(a, photo) if name == "llama.cpp" else Worker(
            [a.python, os.path.abspath(__file__), "--worker", photo, "--model", a.model,
             "--bench-program", a.bench_program, "--max-pixels", str(a.max_pixels), "--threads",
             str(a.threads)])
    runs = {name: [] for name in programs}
    for program in programs.values():
        program.run()  # the first one warms up
    for i in range(a.pairs):
        for name, program in programs.items():
            runs[name].append(program.run())
            seen = seconds(runs[name][-1], ["tower", "projector"], "")
            print(f"run {i + 1}, {name}: tower and projector {seen:.2f} s", file=sys.stderr,
                  flush=True)
    for program in programs.values():
        program.close()
    prompts = ", ".join(f"{n} {r[0]['prompt']}" for n, r in runs.items())
    print(f"{runs['mlxcel'][0]['patches']} patches; tokens of the prompts: {prompts}; {a.threads} "
          f"threads, {a.pairs} runs of each in turns\n")
    print_table(runs, "")
    print_table(runs, "cpu_")


if __name__ == "__main__":
    main()

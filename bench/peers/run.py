#!/usr/bin/env python3
"""mlxcel and its peers on one machine, taking turns; medians as tables, JSON and a plot.

Usage: run.py PEERS.json [--program MLXCEL] [--kl BENCH_KL] [--threads N] [--minutes M] [--rounds N]
              [--only PART,...] [--keep] [--quick] [--prefix COMMAND] [--readme FILE] OUT

PEERS.json is what setup.py wrote. A round runs every cell once: one program on one model, the
programs of a model one after the other, in turned order every second round. The first round has
everything; what is slow (8k of context, peers that load for minutes) stands in it alone. Rounds
follow while the next one fits into the minutes. Parts: big, smol, batch, context, one, start,
accuracy; --keep leaves those that do not run as OUT/results.json has them, and the table says
so. Writes OUT/results.json (every sample), OUT/table.md and OUT/decode.svg; with --readme the
table goes between that file's marks, too, and the plot into docs/ beside it.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time

import report

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = "/usr/share/common-licenses/GPL-3"
GGUF = ["Q4_0", "Q4_1", "Q4_K_M", "Q8_0", "BF16"]
MLX = ["mlx4", "mlx8"]
SLOW = 240  # seconds that a cell may take


class Cell:
    """One program on one model: a command, and how to read what it prints."""

    def __init__(self, part, program, model, command, read, threads, once=False):
        self.part, self.program, self.model, self.command = part, program, model, command
        self.read, self.threads, self.once = read, threads, once

    def key(self):
        return f"{self.part}|{self.model}|t{self.threads}|{self.program}"


# ---- what programs print: {test: [samples]}


def test_name(n_prompt, n_gen, batch=1, depth=0):
    name = f"pp{n_prompt}" if n_prompt else f"tg{n_gen}"
    return name + (f" x{batch}" if batch > 1 else "") + (f" @{depth}" if depth else "")


def read_mlxcel(text):
    found = {}
    for r in json.loads(text):
        name = test_name(r["n_prompt"], r["n_gen"], r["n_batch"], r["n_depth"])
        found.setdefault(name, []).extend(r["samples_ts"])
        if r.get("share_of_limit"):
            found.setdefault(name + " share", []).append(r["share_of_limit"])
            found["read"] = [r["limits"]["read_gbs"]]
            found["int8"] = [r["limits"]["int8_tops"]]
            found["bf16"] = [r["limits"]["bf16_tflops"]]
    return found


def read_llama(text):
    found = {}
    for r in json.loads(text[text.index("["):]):
        depth = r.get("n_depth", 0)
        n_prompt = r["n_prompt"]
        if n_prompt and r["n_gen"]:  # ik_llama.cpp's way to say depth
            depth, n_prompt = n_prompt, 0
        name = test_name(n_prompt, r["n_gen"], 1, depth)
        found.setdefault(name, []).extend(r["samples_ts"])
    return found


def read_batched(text):
    """The Markdown table of llama-batched-bench: PP TG B N_KV T_PP S_PP T_TG S_TG T S."""
    found = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) >= 10 and cells[0].isdigit():
            found[test_name(0, int(cells[1]), int(cells[2]))] = [float(cells[7])]
    if not found:
        raise ValueError("no table")
    return found


def read_python(n_prompt, n_gen):
    def read(text):
        r = json.loads(text.strip().splitlines()[-1])
        return {f"pp{n_prompt}": r["pp"], f"tg{n_gen}": r["tg"]}
    return read


def read_kl(text):
    m = re.search(r"KL\S* *\|*.*?([\d.]+) per token.*top-1 equal ([\d.]+)", text, re.S)
    return {"kl": [float(m.group(1))], "top1": [float(m.group(2))]}


# ---- cells


class Maker:
    def __init__(self, a, peers):
        self.a, self.peers, self.cells, self.missing = a, peers, [], {}
        self.models = peers["models"]

    def path(self, size, kind):
        if kind in MLX or kind == "bf16":
            return f"{self.models}/{size}/{size}-{kind}"
        return f"{self.models}/{size}/{size}-{kind}.gguf"

    def have(self, peer, program=None):
        p = self.peers.get(peer, {"missing": "unknown"})
        why = p.get("missing")
        if not why and program and not os.path.exists(f"{p['bin']}/{program}"):
            why = f"no {program}"
        if why:
            self.missing[peer] = why
        return not why

    def add(self, part, program, model, command, read, threads=0, once=False):
        self.cells.append(Cell(part, program, model, command, read, threads or self.a.threads,
                               once))

    def mlxcel(self, part, size, kind, words, threads=0, once=False):
        t = threads or self.a.threads
        self.add(part, "mlxcel", f"{size} {kind}",
                 [self.a.program, "bench", self.path(size, kind), "-t", str(t), "--limits",
                  "--json", *words], read_mlxcel, t, once)

    def llama(self, part, size, kind, words, threads=0, once=False):
        """Both llama-bench programs; words may hold DEPTH, which they spell differently."""
        t = threads or self.a.threads
        for peer, more in (("llama.cpp", []), ("ik_llama.cpp", ["-rtr", "1"])):
            if not self.have(peer):
                continue
            mine = []
            for w in words:
                if not isinstance(w, tuple):
                    mine.append(w)
                elif peer == "llama.cpp":
                    mine += ["-p", "0", "-n", str(w[1]), "-d", ",".join(map(str, w[0]))]
                else:
                    mine += ["-p", "0", "-n", str(w[1])]
                    for d in w[0]:
                        mine += ["-gp", f"{d},{w[1]}"] if d else []
            self.add(part, peer, f"{size} {kind}",
                     [self.peers[peer]["bin"] + "/llama-bench", "-m", self.path(size, kind), "-t",
                      str(t), "-fa", "1", "-o", "json", *more, *mine], read_llama, t, once)

    def python(self, part, peer, size, kind, n_prompt, n_gen, runs, once=True):
        if self.have(peer):
            self.add(part, peer, f"{size} {kind}",
                     [self.peers[peer]["python"], HERE + "/python_peers.py", peer,
                      self.path(size, kind), *map(str, (n_prompt, n_gen, runs, self.a.threads))],
                     read_python(n_prompt, n_gen), 0, once)

    def formats(self, size, n_gen, runs):
        kinds = ["Q4_1", "BF16", "mlx4"] if self.a.quick else GGUF + MLX
        words = ["-p", "512", "-n", str(n_gen), "-r", str(runs)]
        for kind in kinds:
            self.mlxcel(size, size, "bf16" if kind == "BF16" else kind, words)
            if kind in MLX:
                if size == "smol" and not self.a.quick:
                    self.python(size, "mlx-lm", size, kind, 8, 2, 0)
                continue
            self.llama(size, size, kind, words)
            if self.a.quick:
                continue
            if kind in ("Q4_0", "Q4_1", "Q8_0"):
                self.python(size, "openvino", size, kind, 512, n_gen, runs, size == "big")
            if kind == "BF16":
                self.python(size, "torch", size, "bf16", 512, n_gen, runs)
                if size == "smol":
                    self.python(size, "mlx-lm", size, "bf16", 32, 8, 0)

    def batches(self, size, kind):
        # ik_llama.cpp's flash attention stops with GGML_ASSERT(S > 0) in a batch
        batches = "1,4,8" if self.a.quick else "1,2,4,8,16"
        self.mlxcel("batch", size, kind, ["-p", "0", "-n", "32", "-np", batches, "-r", "2"])
        for peer, more in (("llama.cpp", []), ("ik_llama.cpp", ["-rtr"])):
            if self.have(peer, "llama-batched-bench"):
                self.add("batch", peer, f"{size} {kind}",
                         [self.peers[peer]["bin"] + "/llama-batched-bench", "-m",
                          self.path(size, kind), "-t", str(self.a.threads), "-fa",
                          "on" if peer == "llama.cpp" else "off", "-c", "4096", "-npp", "64",
                          "-ntg", "32", "-npl", batches, *more], read_batched)

    def contexts(self, size, kind, depths):
        d = ",".join(map(str, depths))
        self.mlxcel("context", size, kind, ["-p", "0", "-n", "32", "-d", d, "-r", "1"], once=True)
        self.mlxcel("long", size, kind, ["-p", "512,8000", "-n", "0", "-r", "1"], once=True)
        self.llama("context", size, kind, [(depths, 32), "-r", "1"], once=True)
        if size == "smol":
            self.llama("long", size, kind, ["-p", "8000", "-n", "0", "-r", "1"], once=True)

    def starts(self, size, kind):
        path = self.path(size, kind)
        self.add("start", "mlxcel", f"{size} {kind}",
                 [self.a.program, "run", path, "-t", str(self.a.threads), "-p", "Hi", "-n", "1"],
                 None)
        if not path.endswith(".gguf"):
            return
        if self.have("llama.cpp", "llama-completion"):
            self.add("start", "llama.cpp", f"{size} {kind}",
                     [self.peers["llama.cpp"]["bin"] + "/llama-completion", "-m", path, "-t",
                      str(self.a.threads), "-p", "Hi", "-n", "1", "-no-cnv"], None)

    def make(self):
        q, only = self.a.quick, self.a.only.split(",") if self.a.only else []

        def want(part, quick=True):
            return part in only if only else (quick or not q)
        if want("big", False):
            self.formats("big", 64, 1)
        if want("smol"):
            self.formats("smol", 64 if q else 128, 2)
        if want("batch"):
            for size, kind in [("smol", "Q4_0")] if q else [("big", "Q4_0"), ("smol", "Q4_0")]:
                self.batches(size, kind)
        if want("one"):
            for size, kind in [("smol", "Q4_1")] if q else [("big", "Q4_0"), ("smol", "Q4_1")]:
                words = ["-p", "512", "-n", "64", "-r", "1"]
                self.mlxcel("one", size, kind, words, 1)
                self.llama("one", size, kind, words, 1)
        if want("start"):
            for size, kind in [("smol", "Q4_1")] if q else [("smol", "Q4_1"), ("smol", "mlx4"),
                                                            ("big", "Q4_0"), ("big", "mlx4")]:
                self.starts(size, kind)
        if want("context", False):
            self.contexts("smol", "Q4_0", [0, 1024, 2048, 4096, 8000])
            self.contexts("big", "Q4_0", [0, 2048, 8000])
        if want("accuracy") and os.path.exists(TEXT) and os.path.exists(self.a.kl):
            for kind in ["Q4_1"] if q else GGUF + MLX:
                self.add("accuracy", "mlxcel", f"smol {kind}",
                         [self.a.kl, self.path("smol", kind), TEXT, "512" if q else "4096"],
                         read_kl, once=True)
        return self.cells


# ---- running


def run_start(cell, prefix):
    """Three starts, after one that is not counted: files and memory are warm."""
    run_cell(cell, prefix)
    runs = [run_cell(cell, prefix) for _ in range(3)]
    why = next((w for _, w in runs if w), None)
    return ({}, why) if why else ({"seconds": [r["seconds"][0] for r, _ in runs]}, None)


def run_cell(cell, prefix):
    """({test: [samples]}, reason of a failure)"""
    t0 = time.perf_counter()
    try:
        with subprocess.Popen(prefix + cell.command, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
            try:
                out, err = process.communicate(timeout=SLOW)
            except subprocess.TimeoutExpired:
                process.kill()
                return {}, f"no answer in {SLOW} s"
    except OSError as e:
        return {}, str(e)
    wall = time.perf_counter() - t0
    if process.returncode:
        lines = err.decode(errors="replace").strip().splitlines() or ["failed"]
        told = [line for line in lines if re.search(r"error|assert", line, re.I)] or lines[-1:]
        return {}, told[0][:200]
    if cell.read:
        try:
            both = cell.read is read_batched  # one of them writes its table to stderr
            return cell.read((out + (err if both else b"")).decode(errors="replace")), None
        except (ValueError, KeyError, AttributeError, IndexError) as e:
            return {}, f"could not read its output ({e})"
    return {"seconds": [wall]}, None


def memory_of(cell, prefix):
    """Peak resident MB of a start."""
    code = ("import resource,subprocess,sys;subprocess.run(sys.argv[1:],stdin=subprocess.DEVNULL,"
            "stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss/1024)")
    done = subprocess.run([sys.executable, "-c", code, *prefix, *cell.command],
                          capture_output=True, text=True, check=False)
    return float(done.stdout) if not done.returncode else None


def machine():
    model, flags = "", []
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            if key.strip() == "flags":
                flags = [w for w in value.split() if w in ("avx2", "avx512f", "avx512_vnni",
                                                          "avx512_bf16")]
    return {"cpu": model, "cores": os.cpu_count(), "flags": flags}


def run_all(a, cells, results):
    prefix, start, last = shlex.split(a.prefix), time.monotonic(), 0
    for number in range(a.rounds):
        todo = [c for c in cells if not (number and c.once)]
        if number % 2:  # turned around inside each model, so that none is always the first
            todo = sorted(reversed(todo), key=lambda c: [x.model + x.part for x in cells].index(
                c.model + c.part))
        began = time.monotonic()
        if number and began - start + last > 60 * a.minutes:
            break
        for cell in todo:
            t0 = time.monotonic()
            found, why = (run_start if cell.part == "start" else run_cell)(cell, prefix)
            if cell.part == "start" and not number and not why:
                found["mb"] = [memory_of(cell, prefix) or 0]
            entry = results["cells"].setdefault(cell.key(), {
                "part": cell.part, "program": cell.program, "model": cell.model,
                "threads": cell.threads, "command": shlex.join(cell.command), "rounds": []})
            entry["rounds"].append({"tests": found} | ({"failed": why} if why else {}))
            took = time.monotonic() - t0
            if not number:
                last += 0 if cell.once else took
            text = why or ", ".join(f"{k} {report.median(v):.4g}" for k, v in found.items()
                                    if k[0] in "pt" or k in ("seconds", "kl"))
            print(f"[{number + 1}] {cell.program:12s} {cell.model:12s} {cell.part:8s} "
                  f"{took:5.1f} s  {text}", flush=True)
            with open(a.out + "/results.json", "w", encoding="utf-8") as f:
                json.dump(results, f, indent=1)
        results["rounds"] = number + 1
    results["minutes"] = round((time.monotonic() - start) / 60, 1)


def kept(out, cells):
    """What an earlier run measured of parts that do not run now."""
    with open(out + "/results.json", encoding="utf-8") as f:
        before = json.load(f)["cells"]
    now = {c.part for c in cells}
    return {key: cell for key, cell in before.items() if cell["part"] not in now}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers")
    parser.add_argument("--program", default="build/release/mlxcel")
    parser.add_argument("--kl", default="build/bench/bench_kl")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=38)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--readme")
    parser.add_argument("--report-only", action="store_true", help="tables of OUT/results.json")
    parser.add_argument("out")
    a = parser.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for name in ("program", "kl", "readme", "out"):
        setattr(a, name, os.path.abspath(getattr(a, name)) if getattr(a, name) else None)
    if a.report_only:
        with open(a.out + "/results.json", encoding="utf-8") as f:
            results = json.load(f)
    else:
        if a.quick:
            a.rounds = 1
        with open(a.peers, encoding="utf-8") as f:
            maker = Maker(a, json.load(f))
        cells = maker.make()
        if not cells:
            sys.exit("error: nothing to run")
        os.chdir(a.out)  # some peers leave a log where they run
        results = {"machine": machine(), "threads": a.threads, "missing": maker.missing,
                   "cells": kept(a.out, cells) if a.keep else {}}
        results["kept"] = sorted({c["part"] for c in results["cells"].values()})
        run_all(a, cells, results)
        with open(a.out + "/results.json", "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    table = report.table(results)
    with open(a.out + "/table.md", "w", encoding="utf-8") as f:
        f.write(table)
    with open(a.out + "/decode.svg", "w", encoding="utf-8") as f:
        f.write(report.plot(results))
    if a.readme:
        with open(os.path.join(os.path.dirname(a.readme), "docs/decode.svg"), "w",
                  encoding="utf-8") as f:
            f.write(report.plot(results))
        report.put_into(a.readme, table + "![tokens per second against context and batch]"
                        "(docs/decode.svg)\n")
    print(table)
    print(f"{a.out}/results.json, table.md, decode.svg")


if __name__ == "__main__":
    main()

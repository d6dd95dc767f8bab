#!/usr/bin/env python3
"""Compares `mlxcel tokenize` with reference ids.

    tools/oracle_tok.py [--show N] BINARY DIR [NAME=MODEL ...]

DIR holds NAME.jsonl files (one text or id list a line: text, ids, ids_plain, ids_add, decoded) and
META.json (bos_prefix per name). MODEL is a folder with a tokenizer.json, or a .gguf; without any,
every DIR/files/NAME.tokenizer.json is taken. Prints right/total per kind; exit status 1 when
something differs.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile


def ask(binary, model, flags, inputs):
    """One output value per input value; each line goes in and comes out as JSON."""
    text = "".join(json.dumps(x) + "\n" for x in inputs)
    run = subprocess.run([binary, "tokenize", model, "--jsonl", *flags, "-"], input=text,
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{model}: {run.stderr.strip()}")
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def compare(binary, name, model, folder, bos, show):
    with open(os.path.join(folder, name + ".jsonl")) as f:
        rows = [json.loads(line) for line in f]
    texts = [r for r in rows if "text" in r]
    jobs = [("ids", ["--parse-special"], texts, "text", lambda r: r["ids"]),
            ("ids_plain", [], texts, "text", lambda r: r.get("ids_plain", r["ids"])),
            ("ids_add", ["--parse-special", "--add-special"], texts, "text",
             lambda r: r.get("ids_add", bos + r["ids"])),
            ("decoded", ["--decode"], rows, "ids", lambda r: r.get("decoded", r.get("text")))]
    counts, wrong = [], 0
    for kind, flags, items, field, expected in jobs:
        got = ask(binary, model, flags, [r[field] for r in items])
        if len(got) != len(items):
            sys.exit(f"{name}: {len(got)} answers to {len(items)} {kind}")
        bad = [(r, g) for r, g in zip(items, got) if g != expected(r)]
        for r, g in bad[:show]:
            print(f"  {name} {kind} {r['i']}: {ascii(r[field])[:80]}\n    want "
                  f"{ascii(expected(r))[:160]}\n    got  {ascii(g)[:160]}")
        wrong += len(bad)
        counts.append(f"{kind} {len(items) - len(bad)}/{len(items)}")
    print(f"{name}: {', '.join(counts)}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", type=int, default=3, help="differences to print per kind")
    parser.add_argument("binary", metavar="BINARY")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("models", nargs="*", metavar="NAME=MODEL")
    args = parser.parse_args()
    with open(os.path.join(args.folder, "META.json")) as f:
        meta = json.load(f)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        pairs = [m.split("=", 1) for m in args.models]
        if not pairs:
            files = os.path.join(args.folder, "files")
            for file in sorted(os.listdir(files)):
                name = file.removesuffix(".tokenizer.json")
                model = os.path.join(scratch, name)
                os.mkdir(model)
                os.symlink(os.path.abspath(os.path.join(files, file)),
                           os.path.join(model, "tokenizer.json"))
                pairs.append([name, model])
        for name, model in pairs:
            bos = meta.get(name, {}).get("bos_prefix", [])
            wrong += compare(args.binary, name, model, args.folder, bos, args.show)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares `mlxcel template --template FILE --jsonl` with recorded renders of published templates.

usage: oracle_tmpl.py BINARY CASES.jsonl [TEMPLATE_DIR] [--show N]

CASES.jsonl has one case a line: template (its name), input (the variables), expected or error, and
for templates that need llama.cpp's from_json filter expected_with_from_json. TEMPLATE_DIR (default:
`templates` beside the cases) has NAME.jinja. Exits 1 when a case fails."""

import argparse
import collections
import json
import os
import subprocess
import sys


def find_template(folder, name):
    for suffix in (".jinja", ".jinja2", ".j2", ".txt", ""):
        path = os.path.join(folder, name + suffix)
        if os.path.isfile(path):
            return path
    raise SystemExit(f"no template {name} in {folder}")


def render(binary, path, inputs):
    lines = "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in inputs)
    env = dict(os.environ, MLXCEL_TEMPLATE_NOW="2026-11-30T12:34:56")
    run = subprocess.run([binary, "template", "--template", path, "--jsonl", "-"], env=env,
                         input=lines.encode(), capture_output=True, timeout=600, check=False)
    out = run.stdout.decode().split("\n")[:-1]
    if len(out) != len(inputs):
        raise SystemExit(f"{path}: {len(inputs)} inputs, {len(out)} lines, status "
                         f"{run.returncode}: {run.stderr.decode()[-500:]}")
    return [json.loads(line) for line in out]


def verdict(case, got):
    """None when right, else a sentence."""
    if isinstance(got, str):
        if got == case.get("expected") or got == case.get("expected_with_from_json"):
            return None
        want = case.get("expected")
        if want is None:
            return f"rendered, must fail with {case['error']}"
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b),
                  min(len(got), len(want)))
        return f"differs at {at}: got {got[at:at + 60]!r}, expected {want[at:at + 60]!r}"
    if "error" in case and "expected_with_from_json" not in case:
        return None
    return f"failed with {got}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("cases")
    parser.add_argument("templates", nargs="?")
    parser.add_argument("--show", type=int, default=20)
    args = parser.parse_args()
    folder = args.templates or os.path.join(os.path.dirname(args.cases), "templates")
    groups = collections.OrderedDict()
    with open(args.cases, encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            groups.setdefault(case["template"], []).append(case)
    passed, failed = 0, []
    for name, cases in groups.items():
        got = render(args.binary, find_template(folder, name), [c["input"] for c in cases])
        for case, result in zip(cases, got):
            why = verdict(case, result)
            if why:
                failed.append(f"{name} / {case['conv']}: {why}")
            else:
                passed += 1
    for text in failed[:args.show]:
        print(text)
    print(f"{passed} of {passed + len(failed)} cases agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

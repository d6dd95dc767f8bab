#!/usr/bin/env python3
"""Runs `mlxcel generate` on a folder of valid, broken and hostile checkpoints.

    oracle_bad.py BINARY DIR [--sanitized]

DIR holds index.jsonl: {case, kind, path, what, expect}, expect beginning with `error` (exit 1 and one
error line, which names the file that `naming FILE` says), `ok` (exit 0, the greedy tokens of
ok_base) or anything else (exit 0 or 1). Every case must end by itself, without a signal, within 5 s
and 100 MB resident; with --sanitized (a build with sanitizers) those two limits are 60 s and none.
Prints each breach and `N passed, N failed`; exit status 1 when there is any.
"""
import json
import os
import re
import resource
import subprocess
import sys
import time

MAX_SECONDS, MAX_RESIDENT_KB = 5, 100_000


def run(binary, path, seconds):
    """Exit status (or 'timeout'), standard output, error lines, resident peak in kB."""
    command = [binary, "generate", path, "-p", "hello", "-n", "4", "--temp", "0", "--json"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as p:
        try:
            out, err = p.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            return "timeout", "", []
    lines = [n for n in err.decode(errors="replace").splitlines() if "error" in n]
    return p.returncode, out.decode(errors="replace"), lines


def resident_kb(before):
    """The largest resident set of a child so far; the kernel keeps one maximum for all of them."""
    now = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return now if now > before else 0


def breach(case, status, out, errors, want):
    """What is wrong with an outcome; None: nothing."""
    expect = case["expect"]
    kind = re.split(r"[: ]", expect, maxsplit=1)[0]
    if status not in (0, 1):
        return f"status {status}"
    if status == 1 and len(errors) != 1:
        return f"{len(errors)} error lines"
    if kind == "error":
        if status != 1:
            return "was not refused"
        named = re.search(r"naming (\S+\.\S+)", expect)
        if named and named.group(1) not in errors[0]:
            return f"does not name {named.group(1)}: {errors[0]}"
    if kind == "ok":
        if status != 0:
            return f"was refused: {errors[0]}"
        if "same greedy tokens" in expect and "eos" not in expect and answer(out) != want:
            return f"answers {answer(out)!r}, not {want!r}"
    return None


def answer(out):
    try:
        return json.loads(out)["text"]
    except (ValueError, KeyError):
        return None


def main():
    arguments = [a for a in sys.argv[1:] if a != "--sanitized"]
    sanitized = len(arguments) != len(sys.argv) - 1
    if len(arguments) != 2:
        sys.exit(__doc__)
    binary, root = arguments
    with open(os.path.join(root, "index.jsonl"), encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    seconds = 60 if sanitized else MAX_SECONDS
    want, failed, peak = None, 0, 0
    for case in cases:
        start = time.monotonic()
        status, out, errors = run(binary, os.path.join(root, case["path"]), seconds)
        took = time.monotonic() - start
        grown = resident_kb(peak)
        peak = max(peak, grown)
        if case["case"] == "ok_base":
            want = answer(out)
        wrong = breach(case, status, out, errors, want)
        if not wrong and grown > MAX_RESIDENT_KB and not sanitized:
            wrong = f"{grown} kB resident"
        if wrong:
            failed += 1
            print(f"{case['case']} ({case['kind']}, {took:.1f} s): {wrong} | {case['what']}")
    print(f"largest resident set {peak} kB")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

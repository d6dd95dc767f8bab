#!/usr/bin/env python3
"""What a constrained token costs through the server: the same prompt is gone on with freely and under
a JSON schema, in turns; the server's own milliseconds per token, and the ratio pair by pair.

Usage: constrained.py PROGRAM MODEL [PAIRS [TOKENS]]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 30}, "role": {"enum": ["author", "editor", "reader"]},
    "score": {"type": "number"}, "notes": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "role", "score", "notes"], "additionalProperties": False}
SCHEMA = {"type": "object", "properties": {"people": {"type": "array", "minItems": 500,
                                                      "items": PERSON}},
          "required": ["people"], "additionalProperties": False}
FORMS = {"free": {"ignore_eos": True}, "schema": {"json_schema": SCHEMA}}


def ms_per_token(url, n, seed, temperature, form):
    body = {"prompt": "People of a newspaper, as JSON:", "n_predict": n, "seed": seed,
            "temperature": temperature, **form}
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        timings = json.load(reply)["timings"]
    assert timings["predicted_n"] == n, timings
    return timings["predicted_ms"] / n


def main(program, model, pairs=9, n=256):
    with tempfile.TemporaryDirectory() as state:
        server = subprocess.Popen(
            [program, "serve", model, "--port", "0", "--log-format", "none"], text=True,
            stdout=subprocess.PIPE, env={**os.environ, "MLXCEL_STATE_DIR": state})
        try:
            url = None
            for line in server.stdout:
                if line.startswith("listening on "):
                    url = line[13:].strip()
                if ": ready in" in line:
                    break
            for temperature in (0, 0.8):
                times = {name: [] for name in FORMS}
                for i in range(pairs + 1):  # the first pair warms up
                    for name, form in FORMS.items():
                        times[name].append(ms_per_token(url, n, i, temperature, form))
                ratios = [b / a for a, b in zip(*times.values())][1:]
                print(f"temperature {temperature}: " + ", ".join(
                    f"{name} {statistics.median(t[1:]):.3f} ms" for name, t in times.items())
                    + f" per token; ratio {statistics.median(ratios):.3f} "
                    f"({min(ratios):.3f}-{max(ratios):.3f})")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))

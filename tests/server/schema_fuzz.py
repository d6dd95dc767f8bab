"""schemathesis against the server by the server's own /openapi.json, for a bounded time: no status
of 500 or more, no request that hangs, and what the description says of methods, keys and content
types is true. It does not say everything that makes a request valid (a grammar that compiles, a
prompt that fits, what a tool needs when there is none), so which bodies are taken is not compared.

Environment: MXC_SCHEMA_SECONDS (30): for all runs together; MXC_SCHEMA_SEED (1).
"""
import os
import shutil
import subprocess
import sys
import tempfile

import harness
from harness import Server

SECONDS = int(os.environ.get("MXC_SCHEMA_SECONDS", "30"))
SEED = os.environ.get("MXC_SCHEMA_SEED", "1")
KEY = "a-key"


def fuzz(server, share, *words):
    folder = tempfile.mkdtemp()  # for what it keeps between runs
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "schemathesis.cli", "run", server.url + "/openapi.json",
             "--max-time", str(max(1, round(SECONDS * share))), "--request-timeout", "30",
             "--seed", SEED, "--no-shrink", "--suppress-health-check", "all", "--warnings", "off",
             "--exclude-checks", "positive_data_acceptance,negative_data_rejection", *words],
            cwd=folder, capture_output=True, text=True, timeout=SECONDS + 10 * harness.PATIENCE)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    harness.until(lambda: server.idle({"X-Api-Key": KEY}), "everything has ended")
    print(next(line for line in done.stdout.splitlines() if " generated" in line))


def test_text():
    """With a key, which public routes alone can do without."""
    with Server("-c", "256", "--log-format", "none", "--api-key", KEY) as s:
        fuzz(s, 0.6, "--header", "Authorization: Bearer " + KEY)


def test_pictures():
    with Server("-c", "256", "--log-format", "none", model=harness.SHAPES) as s:
        fuzz(s, 0.2, "--include-path-regex", "^/v1/(chat/completions|messages|responses)$")


def test_embeddings():
    bert = os.path.join(harness.DATA, "golden", "bert")
    with Server("--log-format", "none", model=bert) as s:
        fuzz(s, 0.2, "--include-path-regex", "embedding")


if __name__ == "__main__":
    harness.run(globals())

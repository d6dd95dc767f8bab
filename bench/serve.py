#!/usr/bin/env python3
"""mlxcel serve beside llama-server: same GGUF, same threads, runs that take turns, a table.

Usage: serve.py MODEL.gguf --load LOAD.PY --peer LLAMA-SERVER [--program MLXCEL] [--threads 2]
                [--streams 1,4,8] [--pairs 3] [--prompt 128] [--gen 64] [--seconds 12] [--json FILE]

LOAD.PY is the load generator: it takes --url --concurrency --requests --prompt-tokens --gen-tokens
--seed and prints one JSON object (gen_tok_s, ttft_ms, itl_ms, errors, cached_prompt_tokens). Every
run has a seed of its own, so that no prompt cache answers. Both servers stay up; only one works at a
time. --seconds is about the length of a run; the first run of each kind finds how many requests
that takes and does not count.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


NICE = int(os.environ.get("BENCH_NICE", "0"))  # of servers and clients: -15 on a machine that is shared


class Server:
    def __init__(self, name, command, port, env=None):
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, preexec_fn=lambda: os.nice(NICE), stdout=self.log, stderr=self.log,
                                        env={**os.environ, **(env or {})})
        end = time.monotonic() + 120
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                sys.exit(f"{name} does not come up:\n{self.log.read()[-2000:].decode('utf-8', 'replace')}")
            time.sleep(0.1)

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def run(args, server, streams, requests, seed):
    command = [sys.executable, args.load, "--url", server.url, "--concurrency", str(streams),
               "--requests", str(requests), "--prompt-tokens", str(args.prompt), "--gen-tokens",
               str(args.gen), "--seed", str(seed), "--warmup", "0"]
    done = subprocess.run(command, preexec_fn=lambda: os.nice(NICE), capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{server.name}: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    if result["errors"] or (result.get("cached_prompt_tokens") or 0) > 40 * streams * requests:
        sys.exit(f"{server.name}: {result}")
    return result


FIGURES = (("tokens/s", lambda r: r["gen_tok_s"]), ("TTFT p95, ms", lambda r: r["ttft_ms"]["p95"]),
           ("inter-token p95, ms", lambda r: r["itl_ms"]["p95"]))


def number(x):
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}"


def spread(values):
    return f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--load", required=True)
    p.add_argument("--peer", required=True)
    p.add_argument("--program", default="build/bench/mlxcel")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--streams", default="1,4,8")
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--json")
    args = p.parse_args()
    counts = [int(n) for n in args.streams.split(",")]
    slots, context = max(counts), 2048
    state, ports = tempfile.mkdtemp(), (free_port(), free_port())
    servers = [
        Server("mlxcel", [args.program, "serve", args.model, "-t", str(args.threads), "-np",
                          str(slots), "-c", str(context), "--port", str(ports[0]), "--log-format",
                          "none", "--state-dir", state], ports[0]),
        Server("llama-server", [args.peer, "-m", args.model, "-t", str(args.threads), "-np",
                                str(slots), "-c", str(context * slots), "-fa", "on", "--port",
                                str(ports[1])], ports[1],
               {"LD_LIBRARY_PATH": os.path.dirname(os.path.abspath(args.peer))})]
    seed, rows, raw = int(time.time()) % 1000000, [], []
    try:
        for streams in counts:
            requests = []
            for server in servers:
                seed += 1
                wall = run(args, server, streams, 1, seed)["wall_s"]
                requests.append(max(1, min(200, round(args.seconds / wall))))
            results = ([], [])
            for _ in range(args.pairs):
                for i, server in enumerate(servers):
                    seed += 1
                    results[i].append(run(args, server, streams, requests[i], seed))
                    raw.append({"server": server.name, **results[i][-1]})
                    print(f"  {streams} streams, {server.name}: " + ", ".join(
                        f"{name} {figure(results[i][-1])}" for name, figure in FIGURES),
                        file=sys.stderr, flush=True)
            for name, figure in FIGURES:
                ours, theirs = ([figure(r) for r in side] for side in results)
                ratio = [a / b for a, b in zip(ours, theirs)]
                rows.append((streams, name, spread(ours), spread(theirs),
                             f"{statistics.median(ratio):.2f} ({min(ratio):.2f}-{max(ratio):.2f})"))
    finally:
        for server in servers:
            server.stop()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(raw, f)
    print("| streams | | mlxcel | llama-server | ratio |\n|---|---|---|---|---|")
    last = None
    for streams, *cells in rows:
        print(f"| {streams if streams != last else ''} | " + " | ".join(cells) + " |")
        last = streams


if __name__ == "__main__":
    main()

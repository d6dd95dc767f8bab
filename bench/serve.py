#!/usr/bin/env python3
"""mlxcel serve beside llama-server: same GGUF, same threads, runs that take turns, a table.

Usage: serve.py MODEL.gguf --peer LLAMA-SERVER [--program MLXCEL] [--threads 2] [--streams 1,4,8]
                [--pairs 5] [--prompt 128] [--gen 64] [--seconds 8] [--json FILE]
                [--readme FILE]

A run is N streams that each ask /v1/chat/completions for --gen tokens, again and again, with prompts
of about --prompt tokens that nobody asked before, so that no prompt cache answers. Both servers stay
up; only one works at a time, and who goes first changes from pair to pair. --seconds is about the
length of a run; a first run of each kind finds how many requests that takes and does not count.
The table has the median of the runs and (least-most), and the same of the ratios pair by pair.
"""
import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Common words: a token each, more or less.
WORDS = ("about above again air all animal answer back ball bank bed bird blue boat body book bread "
         "bridge bring bus cake call car cat chair child city clean clock cloud coat cold cook cup "
         "dance dark day deep dog door dream drink east eye face family farm father field fire fish "
         "floor flower foot forest friend game garden glass gold grass green ground group hand hat "
         "head heart hill history home horse hour house ice island job kitchen lake lamp land leaf "
         "letter light line lion market milk money moon morning mother mountain music name night "
         "north number office page paper park party picture plan plant plate question rain red ring "
         "river road room salt sand school sea season ship shoe shop silver sister sky sleep snow "
         "song south star stone story street summer sun table teacher time town train tree water "
         "week west wheel white wind window winter woman wood word work year").split()
TEMPLATE = 30  # tokens that a chat template adds, more or less


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, port, folder, env=None):
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=folder,
                                        env={**os.environ, **(env or {})})
        end = time.monotonic() + 120
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.log.seek(0)
                text = self.log.read()[-2000:].decode("utf-8", "replace")
                sys.exit(f"{name} does not come up:\n{text}")
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


async def ask(port, text, n_gen, seconds):
    """One streamed answer: (time of the request, of each piece of text, usage)"""
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": n_gen,
                       "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    start, pieces, usage = time.perf_counter(), [], None
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(seconds):
            status = await reader.readline()
            if b" 200" not in status:
                raise RuntimeError((status + await reader.read(1000)).decode("utf-8", "replace"))
            while (line := await reader.readline()) and line.strip() != b"data: [DONE]":
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(line[5:])
                usage = event.get("usage") or usage
                if any(c["delta"].get("content") for c in event.get("choices", [])):
                    pieces.append(time.perf_counter())
    finally:
        writer.close()
    if not pieces or not usage or usage["completion_tokens"] != n_gen:
        raise RuntimeError(f"{len(pieces)} pieces of text, usage {usage}")
    return start, pieces, usage


def quantile(values, share):
    values = sorted(values)
    at = (len(values) - 1) * share
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def run(args, server, n_streams, n_requests, seed):
    """Figures of one run; ends the program when an answer is not what it should be."""
    async def stream(number, out):
        rng = random.Random(seed * 1000 + number)
        for _ in range(n_requests):
            text = " ".join(rng.choices(WORDS, k=max(1, args.prompt - TEMPLATE)))
            out.append(await ask(server.port, text, args.gen, 300))

    async def all_of():
        out = []
        await asyncio.gather(*(stream(i, out) for i in range(n_streams)))
        return out

    start = time.perf_counter()
    try:
        answers = asyncio.run(all_of())
    except (OSError, RuntimeError, TimeoutError, ValueError) as e:
        sys.exit(f"{server.name}: {e or 'no answer in time'}")
    wall = time.perf_counter() - start
    cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                 for _, _, u in answers)
    if cached > 2 * TEMPLATE * len(answers):
        sys.exit(f"{server.name}: {cached} prompt tokens came from a cache")
    gaps = [b - a for _, pieces, _ in answers for a, b in zip(pieces, pieces[1:])]
    first = [pieces[0] - asked for asked, pieces, _ in answers]
    ms = lambda values: {f"p{p}": 1e3 * quantile(values, p / 100) for p in (50, 95, 99)}
    return {"server": server.name, "streams": n_streams, "requests": len(answers), "wall_s": wall,
            "prompt_tokens": sum(u["prompt_tokens"] for _, _, u in answers), "cached": cached,
            "tok_s": args.gen * len(answers) / wall, "ttft_ms": ms(first), "itl_ms": ms(gaps)}


FIGURES = (("tokens/s", lambda r: r["tok_s"]), ("TTFT p95, ms", lambda r: r["ttft_ms"]["p95"]),
           ("inter-token p95, ms", lambda r: r["itl_ms"]["p95"]))


def number(x):
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}"


def spread(values, text=number):
    return f"{text(statistics.median(values))} ({text(min(values))}-{text(max(values))})"


def measure(args, servers, raw):
    rows, seed = [], random.SystemRandom().randrange(1 << 40)
    for n in (int(x) for x in args.streams.split(",")):
        counts, results = [], ([], [])
        for server in servers:
            seed += 1
            wall = run(args, server, n, 1, seed)["wall_s"]
            counts.append(max(2, min(200, round(args.seconds / wall))))
        for pair in range(args.pairs):
            for i in (0, 1) if pair % 2 == 0 else (1, 0):
                seed += 1
                r = run(args, servers[i], n, counts[i], seed)
                results[i].append(r)
                raw.append(r)
                print(f"  {n} streams, {servers[i].name}, {r['requests']} answers: "
                      + ", ".join(f"{name} {number(figure(r))}" for name, figure in FIGURES),
                      file=sys.stderr, flush=True)
        for name, figure in FIGURES:
            ours, theirs = ([figure(r) for r in side] for side in results)
            rows.append((n, name, spread(ours), spread(theirs),
                         spread([a / b for a, b in zip(ours, theirs)], lambda x: f"{x:.2f}")))
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("--peer", required=True, help="the program llama-server")
    p.add_argument("--program", default="build/bench/mlxcel")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--streams", default="1,4,8")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--seconds", type=float, default=8)
    p.add_argument("--json", help="the figures of every run")
    p.add_argument("--readme", help="puts the table between its two marks there")
    args = p.parse_args()
    for name in ("model", "peer", "program"):
        setattr(args, name, os.path.abspath(getattr(args, name)))
    slots, context = max(int(n) for n in args.streams.split(",")), 2048
    state, raw, servers = tempfile.mkdtemp(), [], []
    try:
        port = free_port()
        servers.append(Server("mlxcel", [
            args.program, "serve", args.model, "-t", str(args.threads), "-np", str(slots), "-c",
            str(context), "--port", str(port), "--log-format", "none", "--state-dir", state], port, state))
        port = free_port()
        servers.append(Server("llama-server", [
            args.peer, "-m", args.model, "-t", str(args.threads), "-np", str(slots), "-c",
            str(context * slots), "-fa", "on", "--port", str(port)], port, state,
            {"LD_LIBRARY_PATH": os.path.dirname(args.peer)}))
        rows = measure(args, servers, raw)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(state, ignore_errors=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(raw, f)
    text, last = "| streams | | mlxcel | llama-server | ratio |\n|---|---|---|---|---|\n", None
    for n, *cells in rows:
        text += f"| {n if n != last else ''} | " + " | ".join(cells) + " |\n"
        last = n
    print(text, end="")
    if args.readme:
        begin, end = "<!-- begin bench serve -->\n", "<!-- end bench serve -->\n"
        with open(args.readme, encoding="utf-8") as f:
            page = f.read()
        head, rest = page.split(begin, 1)
        with open(args.readme, "w", encoding="utf-8") as f:
            f.write(head + begin + text + end + rest.split(end, 1)[1])


if __name__ == "__main__":
    main()

"""Load: many clients at once - good ones, streamed and whole, ones that go away, that read slowly,
that ask nonsense. No good request may fail or get another answer than it gets alone; memory stays
flat; the server ends cleanly.

Environment: MXC_LOAD_SECONDS (60), MXC_LOAD_STREAMS (64), MXC_SANITIZE (not empty: a tiny model, no
look at memory). The model is the demo's SmolLM2 when it has been fetched, else a tiny one.
"""
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time

import harness
from harness import Server

SANITIZE = os.environ.get("MXC_SANITIZE", "")
SECONDS = float(os.environ.get("MXC_LOAD_SECONDS") or ("20" if "address" in SANITIZE else "60"))
STREAMS = int(os.environ.get("MXC_LOAD_STREAMS", "64"))
WORDS = ("time year people way day man thing woman life child world school state family student "
         "group country problem hand part place case week company system program question").split()


def demo_model():
    store = os.environ.get("MLXCEL_MODELS_DIR") or os.path.join(
        os.environ.get("MLXCEL_CACHE_DIR") or os.path.expanduser("~/.cache/mlxcel"), "models")
    path = os.path.join(store, "HuggingFaceTB", "SmolLM2-135M-Instruct",
                        "SmolLM2-135M-Instruct.Q4_1.gguf")
    return path if os.path.exists(path) and not SANITIZE else harness.MODEL


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def body_of(rng, tokens=None, prompt=None, **fields):
    return {"messages": [{"role": "user", "content": prompt or words(rng, rng.randint(3, 150))}],
            "temperature": 0, "ignore_eos": True,
            "max_tokens": tokens or rng.choice([1, 8, 24, 48]), **fields}


class Client:
    def __init__(self, server, seed, known, counts):
        self.s, self.rng, self.known, self.counts = server, random.Random(seed), known, counts
        self.reader = self.writer = None

    async def open(self, **options):
        self.reader, self.writer = await asyncio.open_connection(self.s.host, self.s.port, **options)

    def close(self, reset=False):
        if self.writer and reset:
            self.writer.transport.abort()
        elif self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def post(self, body, path="/v1/chat/completions", headers=()):
        """Sends a request and reads the reply's head: (status, headers)"""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json",
                f"Content-Length: {len(text)}", *headers]
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + text)
        await self.writer.drain()
        return await self.head()

    async def head(self):
        status = int((await self.reader.readline()).split()[1])
        headers = {}
        while line := (await self.reader.readline()).strip():
            name, value = line.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        return status, headers

    async def rest(self, headers, pause=0.0):
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        out = b""
        while True:
            n = int((await self.reader.readline()).strip(), 16)
            out += (await self.reader.readexactly(n + 2))[:n]
            if not n:
                return out
            if pause:
                await asyncio.sleep(pause)

    # ---- what a client does; each returns whether the connection may be used again

    async def good(self, pause=0.0, stream=None):
        stream = self.rng.random() < 0.8 if stream is None else stream
        which = self.rng.randrange(len(self.known)) if self.rng.random() < 0.4 else None
        body = body_of(self.rng, stream=stream)
        if which is not None:
            body = {**self.known[which][0], "stream": stream,
                    "cache_prompt": self.rng.random() < 0.8}
        status, headers = await self.post(body)
        text = await self.rest(headers, pause)
        assert status == 200, (status, text[:300])
        if stream:
            events = harness.events(text)
            assert events[-1] == "[DONE]", events[-2:]
            answer = "".join(c["delta"].get("content") or "" for e in events[:-1]
                             for c in e.get("choices", []))
            finish = [c["finish_reason"] for e in events[:-1] for c in e.get("choices", [])
                      if c["finish_reason"]]
            assert finish == ["length"], finish
        else:
            reply = json.loads(text)
            answer = reply["choices"][0]["message"]["content"]
            assert reply["usage"]["completion_tokens"] == body["max_tokens"], reply["usage"]
        if which is not None:
            assert answer == self.known[which][1], (which, answer, self.known[which][1])
            self.counts["compared"] += 1
        self.counts["good"] += 1
        return True

    async def slow(self):
        """Reads on only now and then, but reads."""
        await self.good(pause=0.02, stream=True)
        self.counts["slow"] += 1
        return True

    async def stuck(self):
        """Reads the head of a long answer and then nothing for a while."""
        self.close()
        await self.open(limit=4096)
        await self.post(body_of(self.rng, tokens=300, stream=True, logprobs=True, top_logprobs=20))
        await asyncio.sleep(self.rng.random() * 2)
        self.counts["stuck"] += 1
        self.close(reset=self.rng.random() < 0.5)
        return False

    async def away(self):
        """Goes away: at once, while it waits, during the prompt or the answer."""
        body = body_of(self.rng, tokens=200, stream=self.rng.random() < 0.6,
                       n=self.rng.choice([1, 1, 3]))
        asked = asyncio.ensure_future(self.post(body))
        done, _ = await asyncio.wait([asked], timeout=self.rng.choice([0, 0.01, 0.1, 0.5]))
        if done and self.rng.random() < 0.7:
            try:
                await asyncio.wait_for(self.reader.read(self.rng.choice([1, 1000])), 0.2)
            except asyncio.TimeoutError:
                pass
        asked.cancel()
        self.close(reset=self.rng.random() < 0.4)
        await asyncio.gather(asked, return_exceptions=True)
        self.counts["away"] += 1
        return False

    async def bad(self):
        cases = [(b"{not json", 400), (b"", 400), (b"[" * 500, 400),
                 ({"messages": []}, 400), ({"messages": 5}, 400),
                 (body_of(self.rng, temperature="hot"), 400),
                 (body_of(self.rng, prompt=words(self.rng, 20000)), 400),
                 (body_of(self.rng, n=5000), 400), (body_of(self.rng, tools=[{"type": 1}]), 400),
                 (body_of(self.rng, response_format={"type": "json_schema", "json_schema": 3}), 400)]
        body, expected = self.rng.choice(cases)
        status, headers = await self.post(body)
        text = await self.rest(headers)
        assert status == expected and b'"error"' in text, (body, status, text[:300])
        self.counts["bad"] += 1
        return headers.get("connection", "").lower() != "close"

    async def run(self, end):
        doings = [self.good] * 70 + [self.slow] * 5 + [self.stuck] * 3 + [self.away] * 12 + \
            [self.bad] * 10
        keep = False
        while time.monotonic() < end:
            if not keep or self.rng.random() < 0.3:
                self.close()
                await self.open()
            keep = await self.rng.choice(doings)()
        self.close()


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def state(s):
    """(time, memory in KB, tokens that went through the KV pool so far)"""
    m = s.metrics()
    tokens = m["llamacpp:prompt_tokens_total"] + m["llamacpp:tokens_predicted_total"] - \
        m["mlxcel_cached_tokens_total"]
    return time.monotonic(), rss(s.process.pid), tokens


async def watch(s, end, samples):
    while time.monotonic() < end:
        samples.append(await asyncio.to_thread(state, s))
        await asyncio.sleep(0.5)


async def storm(s, known, counts, samples):
    end = time.monotonic() + SECONDS
    clients = [Client(s, i, known, counts) for i in range(STREAMS)]
    watcher = asyncio.ensure_future(watch(s, end, samples))
    await asyncio.gather(*(c.run(end) for c in clients))
    await watcher


def flat(samples, pool):
    """Whether memory grew by at most 5 % after the warm-up: a quarter of the time, and until every
    page of the KV pool (of so many tokens) was used."""
    start, end = samples[0][0], samples[-1][0]
    warm = [i for i, (t, _, tokens) in enumerate(samples)
            if t - start >= 0.25 * (end - start) and tokens >= 2 * pool]
    if not warm or samples[warm[0]][0] - start > 0.6 * (end - start):
        print(f"     memory not judged: {samples[-1][2]:.0f} tokens went through a pool of {pool:.0f}")
        return True
    n = max(3, len(warm) // 5)
    before = statistics.median(samples[i][1] for i in warm[:n])
    after = statistics.median(samples[i][1] for i in warm[-n:])
    print(f"     memory: {before / 1024:.0f} MiB after {samples[warm[0]][0] - start:.0f} s of warm-up, "
          f"{after / 1024:.0f} MiB at the end ({after / before * 100 - 100:+.1f} %), "
          f"{max(kb for _, kb, _ in samples) / 1024:.0f} at most")
    return after <= max(1.05 * before, before + 4096)  # a tiny model's server is small itself


def test_storm():
    counts = dict.fromkeys(("good", "compared", "slow", "stuck", "away", "bad"), 0)
    samples = []
    model = demo_model()
    kv = "3M" if model == harness.MODEL else "64M"  # some thousand tokens: sequences make room
    print(f"     {STREAMS} clients, {SECONDS:.0f} s, "
          f"{'a tiny model' if model == harness.MODEL else os.path.basename(model)}")
    if model == harness.MODEL and not SANITIZE:
        print("     (./dev demo fetches SmolLM2, which is what this runs on when it is there)")
    with Server("-t", "2", "-np", "16", "-c", "1024", "--kv-bytes", kv, "--max-queue", "4000",
                "--timeout", "600", "--log-format", "none", "--prompt-cache-bytes", "64M",
                model=model) as s:
        rng = random.Random(0)
        known = []
        for n in (5, 40, 120, 200):
            body = body_of(rng, tokens=32, prompt=words(rng, n))
            status, reply = s.post("/v1/chat/completions", {**body, "cache_prompt": False})
            assert status == 200, reply
            known.append((body, reply["choices"][0]["message"]["content"]))
        start = time.monotonic()
        asyncio.run(storm(s, known, counts, samples))
        m = s.metrics()
        took = time.monotonic() - start
        print(f"     {counts}; {m['llamacpp:tokens_predicted_total'] / took:.0f} tokens/s")
        harness.until(s.idle, "everything has ended")
        harness.until(lambda: s.metrics()["mlxcel_connections"] == 1, "connections are closed")
        assert m["mlxcel_failed_steps_total"] == 0, m
        assert counts["good"] > STREAMS and counts["compared"] and counts["bad"], counts
        if not SANITIZE:
            assert flat(samples, m["mlxcel_kv_blocks"] * 32)
        start = time.monotonic()
        assert s.stop(signal.SIGTERM) == 0
        print(f"     ended in {time.monotonic() - start:.1f} s")
        assert not [x for x in s.errors if "draining" not in x], s.errors


def gaps(s, n, seconds, beside=None):
    """Times between the tokens of n streams, while beside() runs; milliseconds."""
    async def one(seed, out, end):
        c = Client(s, seed, [], {})
        await c.open()
        _, headers = await c.post(body_of(c.rng, tokens=1500, prompt=words(c.rng, 20), stream=True,
                                          cache_prompt=False))
        last = None
        while time.monotonic() < end:
            size = int((await c.reader.readline()).strip() or b"0", 16)
            if not size:
                break
            await c.reader.readexactly(size + 2)
            now = time.monotonic()
            if last:
                out.append((now - last) * 1000)
            last = now
        c.close(reset=True)

    async def all_of():
        out, end = [], time.monotonic() + seconds
        jobs = [one(i, out, end) for i in range(n)]
        await asyncio.gather(*jobs, *([beside(end)] if beside else []))
        return out
    out = asyncio.run(all_of())
    harness.until(s.idle, "everything has ended")
    return out


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def test_long_prompts_beside_streams():
    """Four streams alone and beside long prompts, turn about: their p99 stays under three times
    what it is alone. Judged where the streams alone are steady, so that other programs on the
    machine do not decide; tests/engine/test_sched.c has the rule on a clock of its own."""
    model = demo_model()
    long = 800 if model != harness.MODEL else 500
    with Server("-t", "2", "-np", "8", "-c", "2048", "--log-format", "none", "--prompt-cache-bytes",
                "none", model=model) as s:
        n = 0

        async def long_prompts(end):
            nonlocal n
            while time.monotonic() < end:
                c = Client(s, n, [], {})
                await c.open()
                asked = asyncio.ensure_future(c.post(body_of(
                    c.rng, tokens=1, prompt=words(c.rng, long), cache_prompt=False)))
                done, _ = await asyncio.wait([asked], timeout=max(0, end - time.monotonic()))
                if done:
                    status, headers = asked.result()
                    text = await c.rest(headers)
                    assert status == 200, (status, text[:300])
                    n += 1
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                c.close()

        alone, beside = [], []
        for _ in range(3):
            alone += gaps(s, 4, 1.5)
            beside += gaps(s, 4, 4, long_prompts)
        steady = at(alone, 0.99) < 1.6 * at(alone, 0.5)
        print(f"     {n} prompts of {long} words; inter-token ms of 4 streams")
        for share in (0.5, 0.9, 0.99):
            a, b = at(alone, share), at(beside, share)
            print(f"     p{share * 100:.0f}: alone {a:.1f}, beside them {b:.1f} ({b / a:.1f}x)")
        if SANITIZE or not steady:
            print("     not judged: the machine is not this test's alone")
            return
        assert n, "no long prompt came to its end"
        assert at(beside, 0.99) < 3 * at(alone, 0.99), "long prompts hold streams up"


if __name__ == "__main__":
    harness.run(globals())

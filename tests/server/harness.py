"""Starts the real program for the tests of the server and talks to it over loopback, with the
standard library only. A test is a function named test_*; run(globals()) runs them all and ends the
process with 1 when one failed.

Environment: MXC_PROGRAM (the program), MXC_TEST_DATA (tests/data), MXC_SOURCE (the tree).
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

PROGRAM = os.environ["MXC_PROGRAM"]
DATA = os.environ["MXC_TEST_DATA"]
SOURCE = os.environ.get("MXC_SOURCE", os.path.dirname(os.path.dirname(DATA)))
MODEL = os.path.join(DATA, "golden", "llama")
SHAPES = os.path.join(SOURCE, "models", "shapes-vl")  # sees; trained, so its answers make sense
# Sanitizers make everything slower; waits are generous, and never slept through.
PATIENCE = float(os.environ.get("MXC_TEST_PATIENCE", "60"))


class Server:
    """with Server("--flag", ...) as s: a server on a free port, ready; ended and checked after."""

    def __init__(self, *flags, model=MODEL, wait=True, env=None, address=("--port", "0"),
                 expect_exit=0):
        self.flags, self.models = flags, [model] if isinstance(model, str) else model
        self.wait, self.address, self.expect_exit = wait, address, expect_exit
        self.state = tempfile.mkdtemp()  # stored responses, unless the test says where
        self.env = {**os.environ, "MLXCEL_STATE_DIR": self.state, **(env or {})}
        self.url = self.host = self.port = None
        self.lines, self.errors = [], []

    def __enter__(self):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *self.models, "-t", "1", *self.address, *self.flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env, text=True)
        self.readers = [threading.Thread(target=self.keep, args=a, daemon=True) for a in
                        ((self.process.stdout, self.lines), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()
        until(lambda: any(x.startswith("listening on ") for x in self.lines)
              or self.process.poll() is not None, "the server listens")
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {self.errors}")
        self.url = next(x for x in self.lines if x.startswith("listening on "))[13:]
        found = re.match(r"https?://(.*):(\d+)", self.url)
        if found:
            self.host, self.port = found.group(1).strip("[]"), int(found.group(2))
        if self.wait:
            until(lambda: any(": ready in" in x for x in self.lines), "the model is loaded")
        return self

    def keep(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def stop(self, sig=signal.SIGTERM):
        """Ends the server; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        status = self.process.wait(timeout=PATIENCE)
        for reader in self.readers:
            reader.join(timeout=5)
        return status

    def __exit__(self, kind, *rest):
        try:
            self.check_exit(kind)
        finally:
            shutil.rmtree(self.state, ignore_errors=True)

    def check_exit(self, kind):
        try:
            status = self.stop()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server does not end")
        if kind is None:
            assert status == self.expect_exit, (status, self.errors[-20:])
        elif self.errors:
            print("\n".join(self.errors[-20:]), file=sys.stderr)

    # ---- requests

    def connect(self, timeout=None):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout or PATIENCE)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body bytes)"""
        connection = self.connect()
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body).encode()
                headers = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        """(status, parsed body)"""
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def chat(self, text="Hello", **fields):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def stream(self, path, body, headers=None):
        """The events of a stream: parsed JSON, and "[DONE]" as it is."""
        status, reply_headers, text = self.request("POST", path, {**body, "stream": True}, headers)
        assert status == 200, (status, text[:300])
        assert reply_headers["content-type"].startswith("text/event-stream"), reply_headers
        return events(text)

    def raw(self):
        """A plain socket, for what http.client would not send."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def metrics(self, headers=None):
        text = self.get("/metrics", headers)[2].decode()
        return {name: float(value) for name, value in
                (line.split() for line in text.splitlines() if not line.startswith("#"))}

    def idle(self, headers=None):
        m = self.metrics(headers)
        return not (m["llamacpp:requests_processing"] or m["llamacpp:requests_deferred"]
                    or m["mlxcel_kv_blocks_used"] or m["mlxcel_generations"])


def events(text):
    out = []
    for block in text.decode("utf-8").split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data:
            out.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return out


def until(condition, what, seconds=None):
    end = time.monotonic() + (seconds or PATIENCE)
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds or PATIENCE} s: {what}")
        time.sleep(0.01)


def long_request(**fields):
    """A request that generates for as long as the context lasts."""
    return {"messages": [{"role": "user", "content": "Go on"}], "ignore_eos": True, "seed": 1,
            **fields}


def send(sock, path, body, headers=()):
    """Sends a whole POST on a plain socket."""
    text = json.dumps(body).encode() if isinstance(body, dict) else body
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json",
            f"Content-Length: {len(text)}", *headers]
    sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + text)


def temporary(text="", suffix=""):
    handle, path = tempfile.mkstemp(suffix=suffix)
    with os.fdopen(handle, "w") as f:
        f.write(text)
    return path


def run(names):
    wanted, failed, count = sys.argv[1:], 0, 0
    for name, function in list(names.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        start, count = time.monotonic(), count + 1
        try:
            function()
            print(f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name} ({time.monotonic() - start:.1f} s)", flush=True)
            traceback.print_exc()
    print(f"{count - failed} passed, {failed} failed")
    sys.exit(failed != 0 or not count)

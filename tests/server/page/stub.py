"""A server that says what a test wants: the page's files from the source, /v1/models, /props, and
/v1/chat/completions by a function of the test. It keeps the bodies of the requests."""
import hashlib
import http.server
import json
import os
import socketserver
import threading
import time

FOLDER = os.path.join(os.environ["MXC_SOURCE"], "src", "server", "page")
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
          "require-trusted-types-for 'script'; trusted-types 'none'")
TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
         "svg": "image/svg+xml", "html": "text/html; charset=utf-8"}


def chunk(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def end(finish="stop", tokens=7, rate=12.5):
    """What stands behind an answer."""
    return [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}],
             "timings": {"predicted_n": tokens, "predicted_per_second": rate, "prompt_n": 20,
                         "prompt_per_second": 300.0, "cache_n": 4}},
            {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 24,
                                      "prompt_tokens_details": {"cached_tokens": 4}}}, "[DONE]"]


def sse(item):
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


class Refusal(Exception):
    def __init__(self, status, message, headers=None):
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)),
                            **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, refusal):
        body = json.dumps({"error": {"message": str(refusal), "code": refusal.status}}).encode()
        self.send(refusal.status, "application/json", body, refusal.headers)

    def is_refused(self):
        stub = self.server.stub
        key = self.headers.get("Authorization")
        stub.keys.append(key)
        if not stub.key or key == f"Bearer {stub.key}":
            return False
        self.refuse(Refusal(401, "an API key is needed"))
        return True

    def do_GET(self):
        stub, path = self.server.stub, self.path.split("?")[0]
        if path in ("/", f"{stub.prefix}/"):
            page = stub.read("index.html").replace(b"@HASH@", b"h1")
            self.send(200, TYPES["html"], page, {"Content-Security-Policy": POLICY})
        elif path.startswith(f"{stub.prefix}/page/h1/"):
            name = os.path.basename(path)
            self.send(200, TYPES[name.rsplit(".", 1)[1]], stub.read(name),
                      {"X-Content-Type-Options": "nosniff"})
        elif path == f"{stub.prefix}/v1/models":
            if not self.is_refused():
                self.send(200, "application/json", json.dumps({"data": stub.models}).encode())
        elif path == f"{stub.prefix}/props":
            body = {"default_generation_settings": {"params": {"temperature": 0.8, "top_k": 40}}}
            self.send(200, "application/json", json.dumps(body).encode())
        else:
            self.send(404, "text/plain", b"no such thing")

    def do_POST(self):
        stub = self.server.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.is_refused():
            return
        stub.bodies.append(body)
        try:
            items = iter(stub.answer(body))
            first = next(items)
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.pieces(first)
            for item in items:
                self.pieces(item)
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionAbortedError:  # the test's own: the connection is cut
            self.close_connection = True
        except OSError:
            stub.n_gone += 1
            self.close_connection = True

    def pieces(self, item):
        data = item if isinstance(item, bytes) else sse(item)
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()


class Stub(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """with Stub(answer) as s: answer(body) yields chunks, "[DONE]", or bytes that go out as they
    are; raises Refusal before the first, ConnectionAbortedError to cut the connection."""
    daemon_threads = True

    def __init__(self, answer, vision="supported", prefix="", key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.stub, self.answer, self.prefix, self.key = self, answer, prefix, key
        self.models = [{"id": "small", "status": "ready", "vision": vision,
                        "context_length": 2048, "quantisation": "q4", "backend": "cpu"},
                       {"id": "large", "status": "ready", "vision": "unavailable",
                        "vision_reason": "the build has no device runtime"},
                       {"id": "broken", "status": "unavailable", "error": "no such file"}]
        self.bodies, self.keys, self.n_gone = [], [], 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}{prefix}/"

    def read(self, name):
        with open(os.path.join(FOLDER, name), "rb") as f:
            return f.read()

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def say(*texts, **tail):
    """An answer function: these pieces, then the end."""
    def answer(body):
        yield chunk(role="assistant", content="")
        for text in texts:
            yield chunk(content=text)
        yield from end(**tail)
    return answer


def slowly(text, seconds):
    """Words of the text for ever, one every so often."""
    def answer(body):
        yield chunk(role="assistant", content="")
        while True:
            yield chunk(content=text)
            time.sleep(seconds)
    return answer


def page_hash():
    """As cmake/embed.cmake makes it."""
    names = sorted(n for n in os.listdir(FOLDER) if not n.endswith((".c", ".h")))
    lines = []
    for name in names:
        with open(os.path.join(FOLDER, name), "rb") as f:
            lines.append(f"{name} {hashlib.sha256(f.read()).hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

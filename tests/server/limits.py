"""What the server allows and refuses: keys, origins, methods, types, sizes, depth, addresses, TLS,
prefix, flags and variables."""
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading

import harness
from harness import MODEL, PROGRAM, Server


def ends(*flags, env=None):
    """Exit status and standard error of a server that does not start."""
    done = subprocess.run([PROGRAM, "serve", *flags], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stderr


def bearer(key):
    return {"Authorization": "Bearer " + key}


def test_keys():
    path = harness.temporary("# keys\nfile-key-1\n\n  file-key-2  \n")
    with Server("--api-key", "first,second", "--api-key-file", path,
                env={"LLAMA_API_KEY": "from-env"}) as s:
        for key in ("first", "second", "from-env", "file-key-1", "file-key-2"):
            assert s.get("/v1/models", bearer(key))[0] == 200, key
            assert s.get("/v1/models", {"X-Api-Key": key})[0] == 200, key
        assert s.get("/v1/models", {"authorization": "bearer  first "})[0] == 200
        for headers in ({}, bearer(""), bearer("firs"), bearer("firstx"), bearer("first,second"),
                        {"Authorization": "Basic first"}, {"X-Api-Key": "# keys"}):
            status, reply_headers, body = s.get("/v1/models", headers)
            assert status == 401, (headers, status)
            assert reply_headers["www-authenticate"] == "Bearer"
            assert json.loads(body)["error"]["type"] == "authentication_error"
        assert s.get("/health")[0] == 200
        assert s.get("/metrics")[0] == 401
        assert s.get("/v1/nope")[0] == 404

        with open(path, "w") as f:
            f.write("new-key\n")
        s.process.send_signal(signal.SIGHUP)
        harness.until(lambda: s.get("/v1/models", bearer("new-key"))[0] == 200, "the new key")
        assert s.get("/v1/models", bearer("file-key-1"))[0] == 401
        assert s.get("/v1/models", bearer("first"))[0] == 200
        os.unlink(path)
        s.process.send_signal(signal.SIGHUP)
        harness.until(lambda: any("keys stay" in x for x in s.errors), "a message")
        assert s.get("/v1/models", bearer("new-key"))[0] == 200
        secrets = "first second from-env file-key new-key".split()
        logged = "\n".join(s.errors + s.lines)
    assert not [x for x in secrets if x in logged], logged


def test_open_address_needs_a_key():
    status, text = ends(MODEL, "--host", "0.0.0.0", "--port", "0")
    assert status == 2 and "--insecure-no-key" in text, (status, text)
    with Server("--insecure-no-key", "--host", "0.0.0.0", wait=True) as s:
        s.host = "127.0.0.1"
        assert s.get("/health")[0] == 200
    with Server("--host", "0.0.0.0", "--api-key", "k") as s:
        s.host = "127.0.0.1"
        assert s.get("/v1/models")[0] == 401
        assert s.get("/v1/models", bearer("k"))[0] == 200


def test_cors():
    origin = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    with Server() as s:
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", headers=origin)
        assert status == 204 and "access-control-allow-origin" not in headers
        assert headers["allow"] == "POST, OPTIONS"
        assert "access-control-allow-origin" not in s.get("/health", origin)[1]
    with Server("--cors-origin", "http://a.example", "--api-key", "k") as s:
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", headers=origin)
        assert status == 204 and headers["access-control-allow-origin"] == "http://a.example"
        assert "Authorization" in headers["access-control-allow-headers"]
        assert "POST" in headers["access-control-allow-methods"] and headers["vary"] == "Origin"
        assert s.get("/health", origin)[1]["access-control-allow-origin"] == "http://a.example"
        # a page has to see why it was refused
        assert s.get("/v1/models", origin)[1]["access-control-allow-origin"] == "http://a.example"
        other = {"Origin": "http://b.example", "Access-Control-Request-Method": "POST"}
        assert "access-control-allow-origin" not in s.get("/health", other)[1]
        assert s.request("OPTIONS", "/v1/nope", headers=origin)[0] == 404
    with Server("--cors-origin", "*") as s:
        assert s.get("/health", origin)[1]["access-control-allow-origin"] == "*"


def test_methods_and_types():
    with Server() as s:
        status, headers, body = s.request("GET", "/v1/chat/completions")
        assert status == 405 and headers["allow"] == "POST, OPTIONS", headers
        status, headers, body = s.request("DELETE", "/v1/models")
        assert status == 405 and headers["allow"] == "GET, HEAD, OPTIONS", headers
        assert json.loads(body)["error"]["code"] == 405
        status, headers, body = s.request("HEAD", "/health")
        assert status == 200 and body == b"" and int(headers["content-length"]) > 0
        status, headers, body = s.request("HEAD", "/v1/nope")
        assert status == 404 and body == b""
        text = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
        for kind, wanted in (("application/json", 200), ("application/json; charset=utf-8", 200),
                             ("APPLICATION/JSON", 200), ("application/vnd.x+json", 200),
                             ("application/x-www-form-urlencoded", 415), ("text/plain", 415),
                             ("multipart/form-data; boundary=x", 415)):
            status = s.request("POST", "/v1/chat/completions", text, {"Content-Type": kind})[0]
            assert status == wanted, (kind, status)
        assert s.request("POST", "/v1/chat/completions", text)[0] == 200
        # a page of another origin may post without asking only what has no type, or a plain one
        page = {"Origin": "http://a.example"}
        for path in ("/v1/chat/completions", "/slots/0?action=erase", "/v1/responses/resp_1/cancel"):
            assert s.request("POST", path, text, page)[0] == 415, path
            assert s.request("POST", path, text, {**page, "Content-Type": "text/plain"})[0] == 415
        own = {"Origin": f"http://{s.host}:{s.port}", "Content-Type": "application/json"}
        assert s.request("POST", "/v1/chat/completions", text, own)[0] == 200
    with Server("--cors-origin", "http://a.example") as s:
        assert s.request("POST", "/v1/chat/completions", text, page)[0] == 200
    with Server() as s:
        for path in ("/v1/models/", "/V1/models", "//v1/models", "/v1/models/%2e%2e/x", "/%00"):
            assert s.get(path)[0] == 404, path


def test_request_ids():
    with Server() as s:
        assert s.get("/health", {"X-Request-Id": "my-id_1:2"})[1]["x-request-id"] == "my-id_1:2"
        made = s.get("/health")[1]["x-request-id"]
        assert made.startswith("req_") and made != s.get("/health")[1]["x-request-id"]
        for bad in ("a b", "x" * 60, "a\u00e9"):
            assert s.get("/health", {"X-Request-Id": bad.encode("latin-1")})[1][
                "x-request-id"].startswith("req_")


def test_body_limits():
    with Server("--max-body-mb", "1", "--max-header-kb", "8", "--max-json-depth", "20") as s:
        def post(content, **more):
            return s.chat(content, max_tokens=1, **more)
        status, reply = post("x" * (1 << 20))
        assert status == 413, reply
        status, reply = post("x", deep=json.loads("[" * 19 + "]" * 19))
        assert status == 200, reply
        status, reply = post("x", deep=json.loads("[" * 20 + "]" * 20))
        assert status == 400 and "20 levels" in reply["error"]["message"], reply
        status, _, body = s.get("/health", {"X-Long": "x" * 9000})
        assert status == 431 and json.loads(body)["error"]["code"] == 431, status
        # brackets in text are no depth
        assert post("[" * 500)[0] == 200
        # without a declared length
        with s.raw() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                         b"Content-Type: application/json\r\n\r\n")
            try:
                for _ in range(20):
                    sock.sendall(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
                sock.sendall(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
            sock.settimeout(harness.PATIENCE)
            try:
                head = sock.recv(64)
            except ConnectionResetError:
                head = b""
            assert head == b"" or b" 413 " in head, head
        harness.until(lambda: s.metrics()["mlxcel_body_bytes"] == 0, "bodies are forgotten")


def test_bodies_are_let_go():
    """Requests that wait or generate do not keep what they came in."""
    n, size = 12, 24 << 20
    with open(PROGRAM, "rb") as f:
        sanitised = b"__asan_init" in f.read()  # which keeps what is freed
    text = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000,
                       "ignore_eos": True, "stream": True, "unknown": "a" * size}).encode()
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n").encode()
    with Server("--parallel", str(n)) as s:
        def resident():
            with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
                return next(int(x.split()[1]) << 10 for x in f if x.startswith("VmRSS:"))
        before, sockets = resident(), []
        for _ in range(n):  # nobody reads their answers, so none of them ends
            sockets.append(s.raw())
            sockets[-1].sendall(head + text)
        for one in sockets:
            one.recv(1, socket.MSG_PEEK)
        after = resident()
        assert sanitised or after < before + n * size // 2, (before, after)
        for one in sockets:
            one.close()
        text = '{"messages": [{"role": "user", "content": "x"}], "unknown": [%s0]}' % ("{}, " * 400000)
        status, _, reply = s.request("POST", "/v1/chat/completions", text,
                                     {"Content-Type": "application/json"})
        assert status == 400 and b"2000000 values" in reply, reply[:300]


def test_chunked_and_continue():
    text = json.dumps({"content": "abc"}).encode()
    with Server() as s:
        with s.raw() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                         b"Content-Type: application/json\r\nConnection: close\r\n\r\n")
            for byte in text:
                sock.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
            sock.sendall(b"0\r\n\r\n")
            assert b" 200 " in read_all(sock)[:20]
        with s.raw() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                         b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(text))
            assert sock.recv(100).startswith(b"HTTP/1.1 100")
            sock.sendall(text)
            assert b" 200 " in read_all(sock)[:20]
        with s.raw() as sock: # refused before the body is asked for
            sock.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                         b"Content-Length: 5\r\n\r\n")
            assert b" 404 " in sock.recv(100)
        with s.raw() as sock: # two lengths are an attack, not a request
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            assert b" 200 " not in read_all(sock)[:20]
        with s.raw() as sock:
            sock.sendall(b"\x00\xff\r\n\r\n")
            assert b" 200 " not in read_all(sock)[:20]
        assert s.get("/health")[0] == 200


def read_all(sock):
    out = b""
    sock.settimeout(harness.PATIENCE)
    try:
        while True:
            piece = sock.recv(65536)
            if not piece:
                return out
            out += piece
    except ConnectionResetError:
        return out


def test_keep_alive_after_refusals():
    """Small refused bodies leave the connection usable."""
    with Server() as s:
        c = s.connect()
        for path, wanted in (("/v1/nope", 404), ("/health", 405), ("/tokenize", 200),
                             ("/v1/completions", 400)):
            c.request("POST", path, body=b'{"content": "x"}',
                      headers={"Content-Type": "application/json"})
            reply = c.getresponse()
            reply.read()
            assert reply.status == wanted, (path, reply.status)
        c.close()
        assert s.metrics()["mlxcel_requests_total"] >= 5


def test_prefix():
    with Server("--api-prefix", "/llm") as s:
        assert s.url.endswith("/llm")
        assert s.get("/llm/health")[0] == 200
        for path in ("/health", "/llmx/health", "/", "/llm/nope"):
            assert s.get(path)[0] == 404, path
    assert ends(MODEL, "--port", "0", "--api-prefix", "llm/")[0] == 2


def test_unix_socket():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "s.sock")
    with Server(address=("--host", path)) as s:
        assert s.url == "unix:" + path
        assert os.stat(path).st_mode & 0o777 == 0o600
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in read_all(sock)[:20]
        sock.close()
        status, text = ends(MODEL, "--host", path)
        assert status == 1 and "another server" in text, (status, text)
    assert not os.path.exists(path)
    open(path, "w").close()
    status, text = ends(MODEL, "--host", path)
    assert status == 1 and "no socket" in text, (status, text)
    shutil.rmtree(folder)


def sock_version(s, highest, context):
    """The TLS version agreed on with a client that knows none higher; None: refused."""
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = min(highest, ssl.TLSVersion.TLSv1_2)
        context.maximum_version = highest
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    try:
        with context.wrap_socket(s.raw()) as sock:
            return sock.version()
    except (ssl.SSLError, ConnectionError):
        return None


def test_tls():
    folder = tempfile.mkdtemp()
    key, cert = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout",
                           key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"],
                          capture_output=True)
    assert made.returncode == 0, made.stderr
    with Server("--ssl-key-file", key, "--ssl-cert-file", cert) as s:
        assert s.url.startswith("https://")
        context = ssl.create_default_context(cafile=cert)
        context.check_hostname = False
        with context.wrap_socket(s.raw()) as sock:
            body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3,
                               "stream": True}).encode()
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                         b"Content-Type: application/json\r\nConnection: close\r\n\r\n%s"
                         % (len(body), body))
            text = read_all(sock)
            assert b" 200 " in text[:20] and b"[DONE]" in text
        assert sock_version(s, ssl.TLSVersion.TLSv1_2, context) == "TLSv1.2"
        assert sock_version(s, ssl.TLSVersion.TLSv1_1, context) is None
        with s.raw() as sock: # plain HTTP on a TLS port
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " not in read_all(sock)[:20]
    status, text = ends(MODEL, "--port", "0", "--ssl-key-file", cert, "--ssl-cert-file", key)
    assert status == 1, (status, text)
    assert ends(MODEL, "--port", "0", "--ssl-key-file", key)[0] == 2
    shutil.rmtree(folder)


def test_caps_and_queue():
    with Server("--max-per-key", "1", "--api-key", "a,b", "-np", "1", "--max-queue", "8") as s:
        busy = [s.raw(), s.raw()]
        harness.send(busy[0], "/v1/chat/completions", harness.long_request(stream=True),
                     ["Authorization: Bearer a"])
        assert b" 200 " in busy[0].recv(20)
        for _ in range(20): # the first one may have reached its context's end meanwhile
            status, headers, body = s.request("POST", "/v1/chat/completions",
                                              harness.long_request(max_tokens=1), bearer("a"))
            assert status in (200, 429), body
            if status == 429:
                break
            busy.append(s.raw())
            harness.send(busy[-1], "/v1/chat/completions", harness.long_request(stream=True),
                         ["Authorization: Bearer a"])
        assert status == 429 and int(headers["retry-after"]) > 0, (status, headers)
        # another key has a place of its own
        status, _, body = s.request("POST", "/v1/chat/completions",
                                    harness.long_request(max_tokens=1), bearer("b"))
        assert status == 200, body
        for sock in busy:
            sock.close()
        harness.until(lambda: s.get("/metrics", bearer("a"))[2].find(b"mlxcel_generations 0\n") > 0,
                      "everything has ended")


def test_kv_pool_is_a_bound():
    """Bytes of KV decide what is taken in; what fits together only one after another waits."""
    status, text = ends(MODEL, "--port", "0", "--kv-bytes", "100k", "-c", "2048")
    assert status == 1 and re.search(r"2048 tokens takes [\d.]+ .iB; [\d.]+ .iB may", text), text
    with Server("--kv-bytes", "2M", "-c", "2048", "-np", "4") as s:
        blocks = s.metrics()["mlxcel_kv_blocks"]
        assert 64 <= blocks < 4 * 64, blocks # not what 4 sequences of 2048 tokens need
        status, reply = s.chat("word " * 5000)
        assert status == 400 and reply["error"]["type"] == "exceed_context_size_error", reply
        assert len(re.findall(r"\d+", reply["error"]["message"])) >= 2, reply
        def ask(i, out):
            out.append(s.chat(f"{i} " + "word " * 50, max_tokens=1500, ignore_eos=True,
                              cache_prompt=False))
        alone, crowd = [], []
        ask(3, alone)
        threads = [threading.Thread(target=ask, args=(3, crowd)) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for status, reply in crowd:
            assert status == 200, reply
            assert reply["choices"] == alone[0][1]["choices"], (reply, alone)
        m = s.metrics()
        assert m["mlxcel_kv_blocks"] == blocks and m["mlxcel_preempted_total"] > 0, m


def test_flags_and_variables():
    status, text = ends(MODEL, "-ngl", "99")
    assert status == 2 and "--backend" in text, text
    status, text = ends(MODEL, "--mmproj=x")
    assert status == 2 and "--mmproj is not supported" in text, text
    status, text = ends(MODEL, env={"LLAMA_ARG_N_GPU_LAYERS": "1"})
    assert status == 2 and "LLAMA_ARG_N_GPU_LAYERS" in text, text
    status, text = ends(MODEL, "--prot", "1")
    assert status == 2 and "did you mean --port" in text, text
    assert ends()[0] == 2
    assert ends(MODEL, env={"LLAMA_ARG_JINJA": "perhaps"})[0] == 2
    status, text = ends("/nonexistent/model")
    assert status == 1, text
    with Server(address=(), env={"LLAMA_ARG_PORT": "0", "LLAMA_ARG_CTX_SIZE": "300",
                                 "LLAMA_ARG_ALIAS": "named", "LLAMA_ARG_JINJA": "1"}) as s:
        model = json.loads(s.get("/v1/models")[2])["data"][0]
        assert model["meta"]["n_ctx"] == 300 and model["id"] == "named", model
    with Server("-c", "400", env={"LLAMA_ARG_CTX_SIZE": "300"}) as s:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["meta"]["n_ctx"] == 400
    link = os.path.join(tempfile.mkdtemp(), "mlxcel-server")
    os.symlink(PROGRAM, link)
    done = subprocess.run([link, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--api-key-file" in done.stdout


def test_a_failed_load_ends_the_server():
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write("{}")
    status, text = ends(folder, "--port", "0")
    assert status == 1 and "error" in text, (status, text)


def test_json_log():
    path = harness.temporary()
    with Server("--log-format", "json", "--log-file", path, "--api-key", "secret-key") as s:
        s.chat("private words", max_tokens=2)
        s.request("POST", "/v1/chat/completions?key=secret-key", {
            "messages": [{"role": "user", "content": "private words"}], "max_tokens": 2},
            bearer("secret-key"))
        s.get("/health?token=hidden", {"X-Request-Id": "mine"})
    lines = [json.loads(x) for x in open(path)]
    lines[1:] = sorted(lines[1:], key=lambda x: x["path"] == "/health")  # written when done
    assert [x["status"] for x in lines] == [401, 200, 200], lines
    assert lines[1]["generated_tokens"] == 2 and lines[1]["key"] == 0 and lines[1]["end"] == "ok"
    assert lines[2]["id"] == "mine" and lines[2]["path"] == "/health"
    text = open(path).read()
    assert "secret" not in text and "private" not in text and "hidden" not in text
    os.unlink(path)


if __name__ == "__main__":
    harness.run(globals())

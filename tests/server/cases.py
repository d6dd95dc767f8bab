"""Every case of cases/cases.jsonl against the server: the status is one of those allowed, and the
reply has the properties asked for. A case: id, method, endpoint, headers, body (JSON, "MODEL" is
the served one) or body_b64 or gen (made here), status, checks (path, operation, value), sse; needs
"vision": a model that sees.
"""
import base64
import http.client
import json
import os
import struct
import zlib

import harness

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases", "cases.jsonl")


def blank_png(n):
    """n x n pixels of one bit, all black."""
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    packer, row = zlib.compressobj(9), bytes(n // 8 + 1)
    rows = b"".join([packer.compress(row) for _ in range(n)] + [packer.flush()])
    return (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", n, n, 1, 0, 0, 0, 0))
            + part(b"IDAT", rows) + part(b"IEND", b""))


def made(kind, n, model):
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4,
            "temperature": 0}
    if kind == "text":
        body["messages"][0]["content"] = ("word " * (n // 5 + 1))[:n]
    elif kind == "deep":
        return json.dumps(body)[:-1].encode() + b', "x": ' + b"[" * n + b"]" * n + b"}"
    elif kind == "deep_content":
        return json.dumps(body).replace('"hi"', "[" * n + "]" * n).encode()
    elif kind == "messages":
        body["messages"] = [{"role": "assistant" if i % 2 else "user", "content": "x"}
                            for i in range(n + 1)]
    elif kind == "key":
        body["k" * n] = 1
    elif kind == "tools":
        function = {"description": "d" * 50, "parameters": {"type": "object", "properties": {}}}
        body["tools"] = [{"type": "function", "function": {"name": f"f{i}", **function}}
                         for i in range(n)]
    elif kind == "json_schema_props":
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}
        body["response_format"] = {"type": "json_schema",
                                   "json_schema": {"name": "p", "schema": schema}}
    elif kind == "png_bomb":
        url = "data:image/png;base64," + base64.b64encode(blank_png(n)).decode()
        body["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": url}}]
    else:
        raise AssertionError("unknown kind " + kind)
    return json.dumps(body).encode()


def body_of(case, model):
    if "body_b64" in case:
        return base64.b64decode(case["body_b64"]).replace(b'"MODEL"', json.dumps(model).encode())
    if "gen" in case:
        kind, n = case["gen"].split(":")
        return made(kind, int(n), model)
    if "body" not in case:
        return None
    body = dict(case["body"])
    if body.get("model") == "MODEL":
        body["model"] = model
    return json.dumps(body).encode()


def headers_of(case):
    out = {}
    for name, value in case["headers"].items():
        if value.startswith("repeat:"):
            _, letter, n = value.split(":")
            value = letter * int(n)
        out[name] = value
    return out


def send(server, case):
    connection = server.connect()
    try:
        try:
            connection.request(case["method"], case["endpoint"], body=body_of(case, "llama"),
                               headers=headers_of(case))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may answer early and close
        reply = connection.getresponse()
        return reply.status, reply.read(), {k.lower(): v for k, v in reply.getheaders()}
    finally:
        connection.close()


def at(value, path):
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def check_stream(case, text, headers):
    wanted = case["sse"]
    assert headers["content-type"].startswith("text/event-stream"), headers
    all_events = harness.events(text)
    assert all_events[-1] == "[DONE]", all_events[-1:]
    chunks = all_events[:-1]
    assert all(c["object"] == wanted["object"] for c in chunks)
    usage = [c for c in chunks if c.get("usage")]
    if wanted.get("usage") is True:
        assert len(usage) == 1 and usage[0]["choices"] == [] and chunks[-1] is usage[0]
    if wanted.get("usage") is False:
        assert not usage
    assert [c for c in chunks for choice in c["choices"] if choice.get("finish_reason")]
    assert not ("utf8" in case["id"] and "\ufffd" in text.decode())


def check_property(server, case, reply, path, operation, value):
    if path == "__repeat_same__":
        again = json.loads(send(server, case)[1])
        assert again["choices"][0] == reply["choices"][0]
        return
    if path == "__content_json__":
        choice = reply["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        return
    x = at(reply, path)
    ok = {"==": lambda: x == value, "in": lambda: x in value,
          "type": lambda: type(x).__name__ == value, "<=": lambda: x <= value,
          "len": lambda: len(x) == value, "sum": lambda: x == sum(at(reply, p) for p in value),
          "nonempty": lambda: bool(x), "startswith": lambda: x.startswith(value),
          "notcontains": lambda: value not in x}[operation]()
    assert ok, (path, operation, value, x)


def check(server, case):
    status, body, headers = send(server, case)
    assert status in case["status"], (status, body[:300])
    text = body.decode("utf-8")
    if status >= 400:
        reply = json.loads(text)
        assert isinstance(reply["error"], dict) and reply["error"]["message"], text[:200]
        assert reply["error"]["code"] == status
    elif case.get("sse"):
        check_stream(case, body, headers)
    elif case["checks"]:
        reply = json.loads(text)
        for path, operation, value in case["checks"]:
            check_property(server, case, reply, path, operation, value)


def run_cases(server, vision):
    """Returns how many there were."""
    failed, count = [], 0
    with open(CASES, encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    for case in cases:
        if vision or case.get("needs") != "vision":
            count += 1
            try:
                check(server, case)
            except (AssertionError, KeyError, IndexError, TypeError, ValueError, OSError,
                    http.client.HTTPException) as e:
                failed.append(f"{case['id']} ({case['expect']}): {type(e).__name__} {e}")
    harness.until(server.idle, "everything has ended")
    assert not failed, "\n".join(failed)
    return count


def test_cases():
    with harness.Server() as server:
        assert run_cases(server, False) == 119


def test_cases_where_the_model_sees():
    with harness.Server("-a", "llama", model=harness.SHAPES) as server:
        assert run_cases(server, True) == 130


if __name__ == "__main__":
    harness.run(globals())

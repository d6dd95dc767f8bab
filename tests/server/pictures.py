"""Pictures in requests to the real program: where they may come from, what they may cost, how the
second question about one is answered, and what is refused. The model is shapes-vl, which comes with
the program."""
import base64
import json
import os
import shutil
import struct
import tempfile
import zlib

import harness
from harness import DATA, Server

MODEL = os.path.join(DATA, "..", "..", "models", "shapes-vl")
EXAMPLES = os.path.join(MODEL, "examples")


def uri(name, kind="png"):
    with open(os.path.join(EXAMPLES, name), "rb") as f:
        return f"data:image/{kind};base64," + base64.b64encode(f.read()).decode()


def example(n=0):
    with open(os.path.join(EXAMPLES, "examples.json"), encoding="utf-8") as f:
        return [e for e in json.load(f) if len(e["images"]) == 1][n]


def png(width, height, pixel=b"\x00", colour=0, extra=b""):
    """One colour. colour: PNG's type; 0 is grey, 4 grey and alpha."""
    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    rows = zlib.compressobj(9)
    row = b"\x00" + pixel * width
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
            + extra + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def data(bytes_):
    return "data:image/png;base64," + base64.b64encode(bytes_).decode()


def ask(server, url, question="What is this?", part=None, **fields):
    parts = [part or {"type": "image_url", "image_url": {"url": url}},
             {"type": "text", "text": question}]
    return server.post("/v1/chat/completions",
                       {"messages": [{"role": "user", "content": parts}], "temperature": 0,
                        "max_tokens": 40, **fields})


def ask_text(server, question):
    return server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 4})


def refused(reply, word, status=400):
    code, body = reply
    assert code == status and word in body["error"]["message"], reply
    return body["error"]


def tokens(reply):
    code, body = reply
    assert code == 200, reply
    return body["usage"]["prompt_tokens"]


def test_refused_by_default():
    with Server(model=MODEL) as s:
        error = refused(ask(s, "http://127.0.0.1:1/a.png"), "--allow-media-domain")
        assert "messages[0].content[0]" in error["message"], error
        refused(ask(s, "file:///etc/hostname"), "--media-path")
        refused(ask(s, os.path.join(EXAMPLES, "01-circle.png")), "--media-path")
        assert s.get("/v1/models")[0] == 200
        status, models = s.request("GET", "/v1/models")[0::2]
        model = json.loads(models)["data"][0]
        assert status == 200 and "image" in model["modalities"]["input"], model
        assert "image_max_pixels" in model
        assert json.loads(s.get("/props")[2])["modalities"]["vision"] is True
        assert any("sees pictures" in x for x in s.lines), s.lines


def test_files_of_the_folder():
    e = example()
    folder = tempfile.mkdtemp()
    try:
        shutil.copy(os.path.join(EXAMPLES, e["images"][0]), os.path.join(folder, "in.png"))
        os.symlink("/etc/hostname", os.path.join(folder, "out.png"))
        with Server("--media-path", folder, model=MODEL) as s:
            for url in ("in.png", "file:///in.png", f"file://{folder}/in.png"):
                status, body = ask(s, url, e["question"])
                assert status == 200, body
                assert body["choices"][0]["message"]["content"] == e["answer"], (url, body)
            for url in ("out.png", "../in.png", "file:///etc/hostname", "."):
                refused(ask(s, url), "no such file under the media folder")
            refused(ask(s, "https://example.org/a.png"), "--allow-media-domain")
    finally:
        shutil.rmtree(folder)


def test_addresses_are_public_ones():
    with Server("--allow-media-domain", "localhost:80,127.0.0.1:9", model=MODEL) as s:
        refused(ask(s, "http://localhost/a.png"), "not at a public address")
        refused(ask(s, "http://127.0.0.1:9/a.png"), "not at a public address")
        refused(ask(s, "http://example.org/a.png"), "--allow-media-domain")
        refused(ask(s, "file:///a.png"), "--media-path")


def test_second_question():
    """About the same picture: neither the tower nor the prompt up to the question runs again."""
    first = example()
    url = uri(first["images"][0])
    with Server(model=MODEL) as s:
        _, cold = ask(s, url, first["question"])
        assert cold["choices"][0]["message"]["content"] == first["answer"]
        before = s.metrics()
        _, warm = ask(s, url, "What colour is it?")
        after = s.metrics()
        cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
        # whole blocks of 16 tokens, up to where the questions part: behind the picture
        text = tokens(ask_text(s, first["question"]))
        behind = cold["usage"]["prompt_tokens"] - text  # the picture, and what is before it
        assert cached % 16 == 0 and cached >= behind // 16 * 16 > 0, (warm["usage"], behind)
        assert warm["usage"]["prompt_tokens"] - cached < 16 + text, warm["usage"]
        assert after["mlxcel_image_features_hits_total"] == before["mlxcel_image_features_hits_total"] + 1
        assert after["mlxcel_image_features_misses_total"] == before["mlxcel_image_features_misses_total"] == 1
        assert after["mlxcel_image_feature_bytes"] == before["mlxcel_image_feature_bytes"] > 0


def test_every_place():
    """Pictures in system and tool messages, in all that clients write for one."""
    url = uri("01-circle.png")
    part = {"type": "image_url", "image_url": {"url": url}}
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    def chat(content, **fields):
        return {"messages": [{"role": "user", "content": "Look."},
                             {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "call00001", "content": content}],
                "max_tokens": 4, "temperature": 0, **fields}
    def talk(content):
        return {"max_tokens": 4, "temperature": 0, "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]}]}
    text = {"type": "text", "text": "Seen."}
    with Server(model=MODEL) as s:
        bare = tokens(ask(s, url)) - tokens(ask_text(s, "What is this?"))
        assert bare > 8
        for tools in ({}, {"tools": [tool]}):
            plain = tokens(s.post("/v1/chat/completions", chat([text], **tools)))
            seen = tokens(s.post("/v1/chat/completions", chat([text, part], **tools)))
            assert seen - plain >= bare, (seen, plain, bare)
        system = [{"role": "system", "content": [part]}, {"role": "user", "content": "Hi"}]
        n = tokens(s.post("/v1/chat/completions", {"messages": system, "max_tokens": 4}))
        assert n > bare
        encoded = url.split(",")[1]
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": encoded}}
        counts = []
        for content in ([text], [text, image]):
            status, body = s.post("/v1/messages", talk(content))
            assert status == 200, body
            counts.append(sum(body["usage"][k] or 0 for k in body["usage"] if k in (
                "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")))
        assert counts[1] - counts[0] >= bare, (counts, bare)
        for other in ({"type": "image_url", "image_url": url}, {"type": "image_url",
                                                                "image_url": encoded},
                      {"type": "input_image", "image_url": url}, image,
                      {"type": "image", "source": {"type": "url", "url": url}}):
            assert tokens(ask(s, "", part=other)) == tokens(ask(s, url)), other


def test_budgets():
    grey = data(png(1200, 900, b"\x80"))
    with Server(model=MODEL) as s:
        whole = tokens(ask(s, grey))
        # of the request
        small = tokens(ask(s, grey, mm_processor_kwargs={"max_pixels": 56 * 56}))
        assert small < whole
        size = {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}
        assert tokens(ask(s, grey, mm_processor_kwargs={"size": size})) == small
        tiny = data(png(28, 28))
        large = tokens(ask(s, tiny, mm_processor_kwargs={"min_pixels": 112 * 112}))
        assert large > tokens(ask(s, tiny))
        for kwargs, word in (({"max_pixels": 0}, "mm_processor_kwargs"),
                             ({"max_pixels": 1 << 40}, "mm_processor_kwargs"),
                             ({"max_pixels": "x"}, "mm_processor_kwargs.max_pixels"),
                             ({"size": 3}, "mm_processor_kwargs.size"),
                             ({"min_pixels": 9, "max_pixels": 8}, "above max_pixels"),
                             ({"do_pan_and_scan": True}, "do_pan_and_scan"), (7, "object")):
            status, body = ask(s, tiny, mm_processor_kwargs=kwargs)
            assert status == 400 and word in json.dumps(body), (kwargs, body)
        # of a picture
        def detailed(word):
            return ask(s, "", part={"type": "image_url",
                                    "image_url": {"url": grey, "detail": word}})
        assert tokens(detailed("auto")) == whole
        assert tokens(detailed("low")) <= whole
        assert tokens(detailed("high")) >= whole
        refused(detailed("fine"), "detail")
        status, body = s.post("/v1/responses", {
            "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": grey, "detail": "none"}]}],
            "max_output_tokens": 4})
        assert status == 400 and "detail" in body["error"]["message"], body
    # of the operator, for a model
    with Server("--image-max-pixels", "shapes-vl=3136", "--image-max-pixels", "1000000",
                model=MODEL) as s:
        assert any("at most 3136 pixels" in x for x in s.lines), s.lines
        assert tokens(ask(s, grey)) == small
        assert tokens(ask(s, grey, mm_processor_kwargs={"max_pixels": 1 << 20})) > small


def test_limits():
    e = example()
    with Server("--image-max-megapixels", "1", "--max-image-mb", "1", "-c", "256",
                model=MODEL) as s:
        refused(ask(s, data(png(2000, 2000))), "more than the limit of 1048576")
        error = ask(s, data(png(1000, 1000)), mm_processor_kwargs={"min_pixels": 1 << 20,
                                                                        "max_pixels": 1 << 20})
        refused(error, "the context holds 256")
        noise = png(28, 28, extra=struct.pack(">I", 2 << 20) + b"prVt" + bytes(2 << 20)
                    + struct.pack(">I", zlib.crc32(b"prVt" + bytes(2 << 20))))
        status, body = ask(s, data(noise))
        assert status in (400, 413), (status, body)
        assert ask(s, uri(e["images"][0]), e["question"])[0] == 200


def test_background():
    clear = data(png(56, 56, b"\x40\x00", colour=4))
    def logprob(server, url):
        status, body = ask(server, url, logprobs=True, top_logprobs=5, max_tokens=1)
        assert status == 200, body
        return body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    with Server(model=MODEL) as s:
        white = logprob(s, clear)
        assert white == logprob(s, data(png(56, 56, b"\xff")))
    with Server("--image-background", "#000000", model=MODEL) as s:
        black = logprob(s, clear)
        assert black == logprob(s, data(png(56, 56, b"\x00"))) != white


def test_refused_parts():
    with Server(model=MODEL) as s:
        for kind in ("video", "video_url", "input_video"):
            refused(ask(s, "", part={"type": kind, kind: {"url": "data:video/mp4;base64,AAAA"}}),
                    "video is not supported")
        refused(ask(s, data(b"\x00\x00\x00\x18ftypmp42" + bytes(64))), "video")
        refused(ask(s, data(b"II*\x00" + bytes(64))), "TIFF")
        refused(ask(s, data(b"P6\n2 2\n255\n" + bytes(12))), "PPM")
        refused(ask(s, data(png(64, 64)[:-20])), "PNG")
        # what somebody types is no picture
        status, body = s.post("/v1/chat/completions", {
            "messages": [{"role": "user",
                          "content": "<|vision_start|><|image_pad|><|vision_end|> What is this?"}],
            "max_tokens": 4, "temperature": 0})
        assert status == 200, body


harness.run(globals())

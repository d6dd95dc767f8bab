"""Embeddings over HTTP: OpenAI's shape and llama-server's, base64, dimensions, ids, batches, the
golden vectors, refusals, clients that go away."""
import base64
import json
import math
import os
import struct
import subprocess
import threading

import harness
from harness import DATA, MODEL, PROGRAM, Server, send, until

BERT = os.path.join(DATA, "golden", "bert")
BERT_CLS = os.path.join(DATA, "golden", "bert_cls")
EXACT = ("--precision", "exact")


def golden(folder):
    """[(text, ids, vector)]"""
    with open(os.path.join(folder, "golden", "golden.json"), encoding="utf-8") as f:
        cases = [c for c in json.load(f)["cases"] if "text" in c]
    with open(os.path.join(folder, "golden", "golden.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = []
    for c in cases:
        begin, end = header[c["name"] + ".embedding"]["data_offsets"]
        out.append((c["text"], c["ids"],
                    struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])))
    return out


def near(a, b, tolerance=1e-5):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b))


def vectors(server, path="/v1/embeddings", **body):
    status, reply = server.post(path, body)
    assert status == 200, reply
    return reply


def test_goldens_as_text_and_ids():
    for folder in (BERT, BERT_CLS):
        cases = golden(folder)
        with Server(*EXACT, model=folder) as s:
            reply = vectors(s, input=[text for text, _, _ in cases], model="any")
            assert reply["object"] == "list" and reply["model"] == os.path.basename(folder)
            assert [d["index"] for d in reply["data"]] == list(range(len(cases)))
            assert all(d["object"] == "embedding" for d in reply["data"])
            about = json.loads(s.get("/v1/models")[2])["data"][0]
            assert about["modalities"] == {"input": ["text"], "output": ["embeddings"]}
            total = sum(len(ids) for _, ids, _ in cases)
            assert reply["usage"] == {"prompt_tokens": total, "total_tokens": total}
            by_ids = vectors(s, input=[ids for _, ids, _ in cases])
            assert by_ids["data"] == reply["data"]
            for (text, ids, want), got in zip(cases, reply["data"]):
                assert near(got["embedding"], want), text
                one = vectors(s, input=text)["data"]
                assert one == [{**got, "index": 0}]  # the same bits alone
                assert vectors(s, input=ids)["data"] == one


def test_base64_and_dimensions():
    with Server(*EXACT, model=BERT) as s:
        whole = vectors(s, input="The lamp")["data"][0]["embedding"]
        text = vectors(s, input="The lamp", encoding_format="base64")["data"][0]["embedding"]
        assert list(struct.unpack("<64f", base64.b64decode(text, validate=True))) == \
            [struct.unpack("<f", struct.pack("<f", x))[0] for x in whole]
        for n in (1, 2, 3, 7, 64):
            few = vectors(s, input="The lamp", dimensions=n)["data"][0]["embedding"]
            norm = math.sqrt(sum(x * x for x in whole[:n]))
            assert near(few, [x / norm for x in whole[:n]], 1e-6), n
            text = vectors(s, input="The lamp", dimensions=n,
                           encoding_format="base64")["data"][0]["embedding"]
            assert len(base64.b64decode(text, validate=True)) == 4 * n


def test_llama_shape():
    with Server(*EXACT, model=BERT) as s:
        whole = vectors(s, input="The lamp")["data"][0]["embedding"]
        for path in ("/embedding", "/embeddings"):
            assert vectors(s, path, content="The lamp") == [{"index": 0, "embedding": [whole]}]
            assert vectors(s, path, input="The lamp") == [{"index": 0, "embedding": [whole]}]
        two = vectors(s, "/embedding", content=["The lamp", [2, 5, 3]])
        assert [t["index"] for t in two] == [0, 1] and two[0]["embedding"] == [whole]
        raw = vectors(s, "/embedding", content="The lamp", embd_normalize=-1)[0]["embedding"][0]
        norm = math.sqrt(sum(x * x for x in raw))
        assert abs(norm - 1) > 1e-3 and near([x / norm for x in raw], whole, 1e-6)
        status, reply = s.post("/embedding", {"content": "x", "embd_normalize": 1})
        assert status == 400 and reply["error"]["param"] == "embd_normalize"


def test_long_lists():
    texts = [f"the lamp {i} on the desk " * (1 + i % 3) for i in range(2048)]
    with Server("-np", "3", "--max-queue", "4", model=BERT) as s:
        data = vectors(s, input=texts)["data"]
        assert len(data) == 2048
        for i in (0, 1, 7, 8, 1000, 2047):
            assert vectors(s, input=texts[i])["data"][0]["embedding"] == data[i]["embedding"]
        status, reply = s.post("/v1/embeddings", {"input": texts + ["x"]})
        assert status == 400 and "2048" in reply["error"]["message"]
        until(s.idle, "nothing is left in the engine")


def test_many_clients():
    with Server("-np", "4", model=BERT) as s:
        want = [vectors(s, input=f"lamp number {i}")["data"] for i in range(16)]
        wrong = []

        def client(i):
            for _ in range(5):
                if vectors(s, input=f"lamp number {i}")["data"] != want[i]:
                    wrong.append(i)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


def test_refusals():
    cases = [
        ({}, "input", "missing"),
        ({"input": None}, "input", "missing"),
        ({"input": 3}, "input", "text"),
        ({"input": {}}, "input", "text"),
        ({"input": []}, "input", "list of 0"),
        ({"input": [[]]}, "input[0]", "no tokens"),
        ({"input": ["a", 3]}, "input[1]", "text"),
        ({"input": ["a", None]}, "input[1]", "text"),
        ({"input": [1, "a"]}, "input", "1"),
        ({"input": [607]}, "input", "607"),
        ({"input": [[-1]]}, "input[0]", "-1"),
        ({"input": "a", "dimensions": 0}, "dimensions", "0"),
        ({"input": "a", "dimensions": 65}, "dimensions", "65"),
        ({"input": "a", "dimensions": "3"}, "dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "a", "encoding_format": 1}, "encoding_format", "encoding_format"),
        ({"input": "a", "truncate": 1}, "truncate", "truncate"),
        ({"input": ["a", "lamp " * 600]}, "input[1]", "512"),
        ({"input": [5] * 513}, "input", "513"),
        ({"input": [[5]] * 2049}, "input", "2048"),
        ({"input": [[5] * 500] * 601}, "input", "300000"),
    ]
    with Server(model=BERT) as s:
        for body, param, word in cases:
            status, reply = s.post("/v1/embeddings", body)
            assert status == 400, (body, reply)
            assert reply["error"]["param"] == param, (str(body)[:80], reply)
            assert word in reply["error"]["message"], (str(body)[:80], reply)
        assert vectors(s, input=[5] * 512)["usage"]["prompt_tokens"] == 512
        long = vectors(s, input="lamp " * 600, truncate=True)
        assert long["usage"]["prompt_tokens"] == 512
        assert vectors(s, input=[5] * 600, truncate=True)["data"] == \
            vectors(s, input=[5] * 512)["data"]
        status, reply = s.post("/v1/completions", {"prompt": "a"})
        assert status == 400 and "generates no text" in reply["error"]["message"]
        assert s.post("/tokenize", {"content": "The lamp"})[0] == 200
        until(s.idle, "nothing is left in the engine")


def test_decoders():
    with Server() as s:
        status, reply = s.post("/v1/embeddings", {"input": "a"})
        assert status == 400 and "--embeddings" in reply["error"]["message"], reply
        assert reply["error"]["param"] == "model"
    got = {}
    for pooling in (None, "last", "mean", "cls", "max"):
        flags = ("--embeddings",) + (("--pooling", pooling) if pooling else ())
        with Server(*EXACT, *flags) as s:
            got[pooling] = vectors(s, input="Tell me about ferries")["data"][0]["embedding"]
            assert abs(sum(x * x for x in got[pooling]) - 1) < 1e-5
            assert s.chat()[0] == 400
    assert got[None] == got["last"]
    assert len({json.dumps(got[p]) for p in ("last", "mean", "cls", "max")}) == 4
    for flags in (("--pooling", "mean"), ("--embeddings", "--pooling", "rank")):
        ended = subprocess.run([PROGRAM, "serve", MODEL, "--port", "0", *flags], timeout=60,
                               capture_output=True, text=True, check=False)
        assert ended.returncode in (1, 2) and "pooling" in ended.stderr, ended.stderr
    with Server(env={"LLAMA_ARG_EMBEDDINGS": "1", "LLAMA_ARG_POOLING": "mean"}) as s:
        assert vectors(s, input="a")["usage"]["total_tokens"] > 0


def test_two_models():
    with Server(model=[BERT, MODEL]) as s:
        until(lambda: s.get("/health")[0] == 200, "both are loaded")
        assert vectors(s, input="a", model="bert")["model"] == "bert"
        status, reply = s.post("/v1/embeddings", {"input": "a", "model": "llama"})
        assert status == 400 and "llama" in reply["error"]["message"]
        assert s.post("/v1/embeddings", {"input": "a", "model": "other"})[0] == 404
        assert s.chat("Hi", model="llama", max_tokens=3)[0] == 200


def test_client_goes_away():
    with Server("-np", "2", model=BERT) as s:
        sock = s.raw()
        send(sock, "/v1/embeddings", {"input": [[5] * 500] * 600})
        until(lambda: not s.idle(), "it runs")
        sock.close()
        until(s.idle, "it was cancelled")
        assert vectors(s, input="a")["usage"]["total_tokens"] == 3


if __name__ == "__main__":
    harness.run(globals())

"""What llama-server's documentation calls with curl, and what must come back: the same words on the
command line, our own expectations. A row: the model, curl's words behind the address, and a function
of (status, parsed JSON or text) that says whether the answer is right.
"""
import base64
import json
import os
import subprocess

import harness
from harness import Server

JSON = ("--header", "Content-Type: application/json")
BEARER = ("-H", "Authorization: Bearer no-key")
TALK = {"messages": [{"role": "system", "content": "You answer in rhyme."},
                     {"role": "user", "content": "A verse about exceptions"}], "max_tokens": 8}
TOOL = {"type": "function", "function": {"name": "python", "description": "runs code",
        "parameters": {"type": "object", "properties": {"code": {"type": "string", "maxLength": 8}},
                       "required": ["code"], "additionalProperties": False}}}
PICTURE = os.path.join(harness.SHAPES, "examples", "01-circle.png")


def picture():
    with open(PICTURE, "rb") as f:
        return base64.b64encode(f.read()).decode()


def post(path, body, *words):
    return (path, "--request", "POST", *JSON, *words, "--data", json.dumps(body))


def unit(vector):
    return abs(sum(x * x for x in vector) - 1) < 1e-3


def streamed(text):
    events = [json.loads(x[6:]) for x in text.split("\n") if x.startswith("data: {")]
    return events and events[-1]["stop"] and "".join(e["content"] for e in events)


CALLS = [
    ("llama", ("/health",), lambda r: r == {"status": "ok"}),
    ("llama", ("/v1/health",), lambda r: r["status"] == "ok"),
    ("llama", post("/completion", {"prompt": "A site can be built in 10 simple steps:",
                                   "n_predict": 16}),
     lambda r: r["content"] and r["tokens_predicted"] == 16 and r["stop_type"] == "limit"
     and r["truncated"] is False and r["timings"]["predicted_n"] == 16
     and r["generation_settings"]["n_predict"] == 16 and r["model"] == "llama"),
    ("llama", post("/completion", {"prompt": "Steps:", "n_predict": 8, "stream": True}), streamed),
    ("llama", post("/completion", {"prompt": [12, 34, "text", 56], "n_predict": 2,
                                   "return_tokens": True}), lambda r: len(r["tokens"]) == 2),
    ("llama", post("/completion", {"prompt": ["one", [12, 34, 56], [12, "two"]], "n_predict": 2}),
     lambda r: [x["index"] for x in r] == [0, 1, 2]),
    ("llama", post("/completion", {"prompt": "x", "n_predict": 3, "n_probs": 2}),
     lambda r: [len(p["top_logprobs"]) for p in r["completion_probabilities"]] == [2] * 3),
    ("llama", post("/completion", {"prompt": "x", "n_predict": 0}), lambda r: r["content"] == ""),
    ("llama", post("/completion", {"prompt": "x", "n_predict": 40, "json_schema": {
        "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2, "type": "array"}}),
     lambda r: len(json.loads(r["content"])) == 2),
    ("llama", post("/completion", {"prompt": "x", "n_predict": 9, "grammar": 'root ::= "yes"'}),
     lambda r: r["content"] == "yes" and r["stop_type"] == "eos"),
    ("llama", post("/tokenize", {"content": "Hello world"}),
     lambda r: r["tokens"] and all(isinstance(t, int) for t in r["tokens"])),
    ("llama", post("/tokenize", {"content": "Hello world", "with_pieces": True,
                                 "add_special": False}),
     lambda r: "".join(t["piece"] for t in r["tokens"]) == "Hello world"),
    ("llama", post("/detokenize", {"tokens": [70, 71]}), lambda r: isinstance(r["content"], str)),
    ("llama", post("/apply-template", {"messages": TALK["messages"]}),
     lambda r: "You answer in rhyme." in r["prompt"] and "exceptions" in r["prompt"]),
    ("llama", ("/props",), lambda r: r["total_slots"] == 4 and r["chat_template"]
     and "temperature" in json.dumps(r["default_generation_settings"]) and "modalities" in r),
    ("llama", ("/slots",), lambda r: [x["id"] for x in r] == [0, 1, 2, 3] and not any(
        x["is_processing"] for x in r)),
    ("llama", ("/metrics",), lambda r: all("llamacpp:" + name in r for name in (
        "prompt_tokens_total", "tokens_predicted_total", "requests_processing",
        "requests_deferred"))),
    ("llama", ("/lora-adapters",), lambda r: r == []),
    ("llama", ("/v1/models",), lambda r: r["data"][0]["meta"]["n_ctx_train"] == 2048),
    ("llama", post("/v1/chat/completions", {"model": "gpt-3.5-turbo", **TALK}, *BEARER),
     lambda r: r["choices"][0]["message"]["role"] == "assistant"
     and r["usage"]["completion_tokens"] == 8 and r["timings"]["predicted_n"] == 8),
    ("llama", post("/v1/chat/completions", {**TALK, "max_tokens": 60, "response_format": {
        "type": "json_object", "schema": {"enum": ["rhyme", "verse"]}}}, *BEARER),
     lambda r: json.loads(r["choices"][0]["message"]["content"]) in ("rhyme", "verse")),
    ("llama", post("/v1/chat/completions", {**TALK, "max_tokens": 60, "response_format": {
        "type": "json_schema", "schema": {"enum": ["rhyme", "verse"]}}}, *BEARER),
     lambda r: json.loads(r["choices"][0]["message"]["content"]) in ("rhyme", "verse")),
    ("llama", post("/v1/chat/completions", {**TALK, "max_tokens": 200, "tools": [TOOL],
                                            "tool_choice": "required",
                                            "parallel_tool_calls": False}, *BEARER),
     lambda r: r["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "python"),
    ("llama", post("/v1/completions", {"prompt": "I believe the meaning of life is",
                                       "max_tokens": 8}),
     lambda r: r["choices"][0]["text"] and r["object"] == "text_completion"),
    ("llama", post("/v1/responses", {"model": "x", "instructions": "Be brief.", "input": "Hello",
                                     "max_output_tokens": 8}, *BEARER),
     lambda r: r["object"] == "response" and r["output"][0]["content"][0]["text"]),
    ("llama", post("/v1/messages", {"model": "x", "max_tokens": 8, "system": "Be brief.",
                                    "messages": [{"role": "user", "content": "Hello"}]},
                   "-H", "x-api-key: key"),
     lambda r: r["type"] == "message" and r["content"][0]["text"]),
    ("llama", post("/v1/messages/count_tokens", {"model": "x", "messages": [
        {"role": "user", "content": "Hello"}]}), lambda r: r["input_tokens"] > 0),
    ("bert", post("/v1/embeddings", {"input": "hello", "model": "GPT-4",
                                     "encoding_format": "float"}, *BEARER),
     lambda r: unit(r["data"][0]["embedding"])),
    ("bert", post("/v1/embeddings", {"input": ["hello", "world"], "model": "GPT-4"}, *BEARER),
     lambda r: [d["index"] for d in r["data"]] == [0, 1]),
    ("bert", post("/embedding", {"content": "hello", "embd_normalize": 2}),
     lambda r: r[0]["index"] == 0 and len(r[0]["embedding"]) == 1),
    ("shapes", post("/v1/chat/completions", {"temperature": 0, "messages": [{
        "role": "user", "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture()}}]}]}),
     lambda r: "circle" in r["choices"][0]["message"]["content"]),
]
# What it says of errors: the status and a part of the message.
ERRORS = [
    ("llama", post("/completion", {"prompt": "x", "grammar": "root ::= ("}), 400, "grammar"),
    ("llama", post("/v1/embeddings", {"input": "x"}), 400, "--embeddings"),
    ("llama", post("/infill", {"input_prefix": "a", "input_suffix": "b"}), 400, "infill"),
    ("llama", ("/nothing",), 404, "/nothing"),
]


def curl(server, words):
    """(status, the body as JSON, or as text)"""
    path, *rest = words
    done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "60", "--write-out",
                           "\n%{http_code}", "--url", server.url + path, *rest],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (words, done.stderr)
    body, status = done.stdout.rsplit("\n", 1)
    try:
        return int(status), json.loads(body)
    except ValueError:
        return int(status), body


def run_calls(name, server):
    count = 0
    for model, words, right in CALLS:
        if model == name:
            status, reply = curl(server, words)
            assert status == 200 and right(reply), (words, status, reply)
            count += 1
    for model, words, wanted, text in ERRORS:
        if model == name:
            status, reply = curl(server, words)
            assert status == wanted and text in reply["error"]["message"], (words, status, reply)
            assert reply["error"]["code"] == status and reply["error"]["type"], reply
    return count


def test_text():
    with Server() as s:
        assert run_calls("llama", s) > 20


def test_embeddings():
    with Server(model=os.path.join(harness.DATA, "golden", "bert")) as s:
        assert run_calls("bert", s) == 3


def test_pictures():
    with Server(model=harness.SHAPES) as s:
        assert run_calls("shapes", s) == 1


def test_key():
    with Server("--api-key", "secret") as s:
        status, reply = curl(s, ("/v1/models",))
        assert status == 401 and reply["error"]["type"] == "authentication_error", reply
        assert curl(s, ("/v1/models", "-H", "Authorization: Bearer secret"))[0] == 200
        assert curl(s, ("/health",))[0] == 200


if __name__ == "__main__":
    harness.run(globals())

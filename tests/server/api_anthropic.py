"""Anthropic's routes of the real program: whole answers, streams, tools, thoughts, refusals."""
import base64
import json
import os
import shutil
import tempfile

import harness
from harness import Server

SEER = os.path.join(os.environ["MXC_SOURCE"], "models", "shapes-vl")

TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}


def body(content="Hello", **fields):
    return {"model": "any", "max_tokens": 16, "temperature": 0,
            "messages": [{"role": "user", "content": content}], **fields}


def stream(server, fields):
    """The events of a stream, whose names are those of their data."""
    status, headers, text = server.request("POST", "/v1/messages", {**fields, "stream": True},
                                           {"anthropic-version": "2023-06-01"})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text[:300]
    out = []
    for block in text.decode("utf-8").split("\n\n"):
        lines = [x for x in block.split("\n") if x and not x.startswith(":")]
        if lines:
            name, data = lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))
            assert data["type"] == name, block
            out.append(data)
    return out


def collect(events):
    """The message that a client puts together, with checks of the order of events."""
    assert [e["type"] for e in events[:2]] == ["message_start", "ping"], events[:2]
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"], events[-2:]
    message, block, text = dict(events[0]["message"]), None, ""
    for e in events[2:-2]:
        if e["type"] == "content_block_start":
            assert block is None and e["index"] == len(message["content"]), e
            block, text = dict(e["content_block"]), ""
        elif e["type"] == "content_block_delta":
            assert e["index"] == len(message["content"]), e
            d = e["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking",
                   "signature_delta": "signature", "input_json_delta": "partial_json"}[d["type"]]
            if key == "partial_json":
                text += d[key]
            else:
                block[key] += d[key]
        else:
            assert e["type"] == "content_block_stop" and e["index"] == len(message["content"]), e
            if block["type"] == "tool_use":
                block["input"] = json.loads(text) if text else {}
            message["content"].append(block)
            block = None
    assert block is None
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def same(a, b):
    """Equal but for ids, which are new every time, and what the cache did. A stream that was ended
    after its one call may have come some tokens further than another."""
    def bare(m):
        m = json.loads(json.dumps(m))
        m.pop("id"), m.pop("usage")
        for block in m["content"]:
            block.pop("id", None)
        return m
    assert bare(a) == bare(b), (a, b)
    for m in (a, b):
        m["sum"] = m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"]
    assert a["sum"] == b["sum"]
    assert (a["stop_reason"] == "tool_use"
            or a["usage"]["output_tokens"] == b["usage"]["output_tokens"]), (a, b)


def test_messages():
    with Server() as s:
        status, headers, text = s.request("POST", "/v1/messages", body(system="Be brief"),
                                          {"X-Request-Id": "abc"})
        whole = json.loads(text)
        assert status == 200 and headers["request-id"] == "abc", headers
        assert whole["type"] == "message" and whole["role"] == "assistant"
        assert whole["id"].startswith("msg_") and whole["content"][0]["type"] == "text"
        assert whole["stop_reason"] == "max_tokens" and whole["usage"]["output_tokens"] == 16
        same(whole, collect(stream(s, body(system=[{"type": "text", "text": "Be brief"}]))))
        # the same as by the chat route
        chat = s.post("/v1/chat/completions", {"temperature": 0, "max_tokens": 16, "messages": [
            {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]})[1]
        assert chat["choices"][0]["message"]["content"] == whole["content"][0]["text"]
        assert chat["usage"]["prompt_tokens"] == whole["sum"]
        # stop sequences
        stop = whole["content"][0]["text"][3:6]
        _, cut = s.post("/v1/messages", body(system="Be brief", stop_sequences=["@@", stop]))
        assert cut["stop_reason"] == "stop_sequence" and cut["stop_sequence"] == stop, cut
        # the answer's beginning; a conversation
        _, reply = s.post("/v1/messages", body(messages=[
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": [{"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]))
        assert reply["content"][0]["type"] == "text", reply


def test_count_tokens():
    with Server() as s:
        fields = body(system="Be brief", tools=[TOOL])
        _, message = s.post("/v1/messages", fields)
        fields.pop("max_tokens")
        status, count = s.post("/v1/messages/count_tokens", fields)
        assert status == 200 and set(count) == {"input_tokens"}, count
        usage = message["usage"]
        assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
        status, reply = s.post("/v1/messages/count_tokens", {"messages": []})
        assert status == 400 and reply["error"]["type"] == "invalid_request_error"
        harness.until(s.idle, "nothing goes on")


def test_tools():
    fields = body("Weather?", tools=[TOOL], max_tokens=300, seed=3, temperature=1,
                  tool_choice={"type": "any", "disable_parallel_tool_use": True})
    with Server() as s:
        _, whole = s.post("/v1/messages", fields)
        assert whole["stop_reason"] == "tool_use", whole
        call = whole["content"][-1]
        assert call["type"] == "tool_use" and call["name"] == "get_weather"
        assert call["input"]["city"] in ("Rome", "Oslo")
        same(whole, collect(stream(s, fields)))
        _, named = s.post("/v1/messages", {**fields, "tool_choice": {"type": "tool",
                                                                     "name": "get_weather"}})
        assert named["content"][-1]["name"] == "get_weather", named
        history = [{"role": "user", "content": "Weather?"},
                   {"role": "assistant", "content": whole["content"]},
                   {"role": "user", "content": [
                       {"type": "tool_result", "tool_use_id": call["id"],
                        "content": [{"type": "text", "text": "sunny"}]},
                       {"type": "text", "text": "Well?"}]}]
        status, reply = s.post("/v1/messages", {**fields, "messages": history, "max_tokens": 4,
                                                "tool_choice": {"type": "none"}})
        assert status == 200, reply
        history[2]["content"][0]["tool_use_id"] = "other"
        status, reply = s.post("/v1/messages", {**fields, "messages": history})
        assert status == 400 and "messages[2]" in reply["error"]["message"], reply
        status, reply = s.post("/v1/messages", {**fields, "tool_choice": {"type": "tool",
                                                                          "name": "other"}})
        assert status == 400 and "tool_choice" in reply["error"]["message"], reply


def test_structured_output():
    schema = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}},
              "required": ["c"], "additionalProperties": False}
    with Server() as s:
        for config in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                       {"output_format": {"type": "json_schema", "schema": schema}}):
            _, reply = s.post("/v1/messages", body(max_tokens=200, seed=1, temperature=1, **config))
            if reply["stop_reason"] == "end_turn":
                assert json.loads(reply["content"][0]["text"])["c"] in ("red", "blue"), reply


def test_thinking():
    """A template that opens a thought, which a request can switch off."""
    folder = os.path.join(tempfile.mkdtemp(), "thinker")
    shutil.copytree(harness.MODEL, folder, ignore=shutil.ignore_patterns("golden"))
    with open(os.path.join(folder, "chat_template.jinja"), "a") as f:
        f.write("{%- if add_generation_prompt %}"
                "{%- if enable_thinking is defined and enable_thinking is false %}"
                "{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}"
                "{%- endif %}")
    with Server(model=folder) as s:
        for fields in ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
            _, whole = s.post("/v1/messages", body(**fields))
            assert [b["type"] for b in whole["content"]] == ["thinking"], whole
            assert len(whole["content"][0]["thinking"]) > 5 and "signature" in whole["content"][0]
            same(whole, collect(stream(s, body(**fields))))
        _, reply = s.post("/v1/messages", body(thinking={"type": "disabled"}))
        assert [b["type"] for b in reply["content"]] == ["text"], reply
        # a bound: the thought is closed, and what follows is the answer, also one with a form
        bound = {"thinking": {"type": "enabled", "budget_tokens": 4}}
        _, reply = s.post("/v1/messages", body(**bound))
        assert [b["type"] for b in reply["content"]] == ["thinking", "text"], reply
        same(reply, collect(stream(s, body(**bound))))
        schema = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}},
                  "required": ["c"], "additionalProperties": False}
        _, reply = s.post("/v1/messages", body(max_tokens=200, **bound, output_config={
            "format": {"type": "json_schema", "schema": schema}}))
        assert [b["type"] for b in reply["content"]] == ["thinking", "text"], reply
        assert json.loads(reply["content"][1]["text"])["c"] in ("red", "blue"), reply
        thought = whole["content"][0]
        status, reply = s.post("/v1/messages", body(messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"}]))
        assert status == 200, reply
    shutil.rmtree(os.path.dirname(folder))


def test_pictures():
    """The model that comes with the program says what it sees, wherever the picture stands."""
    with open(os.path.join(SEER, "examples", "01-circle.png"), "rb") as f:
        data = base64.b64encode(f.read()).decode()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                           "data": data}}
    question = {"type": "text", "text": "What is in the picture?"}
    with Server(model=SEER) as s:
        _, reply = s.post("/v1/messages", body([picture, question], max_tokens=40))
        assert "circle" in reply["content"][0]["text"], reply
        _, count = s.post("/v1/messages/count_tokens", body([picture, question]))
        usage = reply["usage"]
        assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
        bad = {**picture, "source": {**picture["source"], "data": "aGk="}}
        status, reply = s.post("/v1/messages", body([bad, question]))
        assert status == 400 and "messages[0].content[0]" in reply["error"]["message"], reply


def test_refusals():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": "aGk="}}
    with Server("--api-key", "k") as s:
        def post(fields, key="k", path="/v1/messages"):
            status, _, text = s.request("POST", path, fields, {"x-api-key": key})
            reply = json.loads(text)
            assert reply["type"] == "error" and reply["request_id"].startswith("req_"), reply
            return status, reply["error"]
        status, error = post(body([image]))
        assert status == 400 and error["type"] == "invalid_request_error", error
        assert "messages[0].content[0]" in error["message"] and "image" in error["message"], error
        status, error = post({k: v for k, v in body().items() if k != "max_tokens"})
        assert status == 400 and error["message"].startswith("max_tokens"), error
        status, error = post(body("word " * 3000))
        assert status == 400 and "2048" in error["message"], error
        status, error = post(body(stop_sequences=[""]))
        assert status == 400 and error["message"].startswith("stop_sequences"), error
        status, error = post(body(tools=[{**TOOL, "name": "a b"}]))
        assert status == 400 and error["message"].startswith("tools[0].name"), error
        status, error = post(body(), key="wrong")
        assert status == 401 and error["type"] == "authentication_error", error
        status, error = post(body(), path="/v1/messages/nope")
        assert status == 404 and error["type"] == "not_found_error", error
        assert s.request("POST", "/v1/messages", body(), {"x-api-key": "k"})[0] == 200


if __name__ == "__main__":
    harness.run(globals())

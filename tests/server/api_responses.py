"""OpenAI's responses of the real program: whole answers, streams, tools, the store and its keys."""
import base64
import json
import os
import signal
import tempfile

import harness
from harness import Server

TOOL = {"type": "function", "name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}


def body(content="Hello", **fields):
    return {"input": content, "max_output_tokens": 12, "temperature": 0, **fields}


def stream(server, fields):
    """The events, whose names and numbers are checked."""
    status, headers, text = server.request("POST", "/v1/responses", {**fields, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text[:300]
    out = []
    for block in text.decode("utf-8").split("\n\n"):
        lines = [x for x in block.split("\n") if x and not x.startswith(":")]
        if lines:
            data = json.loads(lines[1].removeprefix("data: "))
            assert data["type"] == lines[0].removeprefix("event: "), block
            assert data["sequence_number"] == len(out), block
            out.append(data)
    return out


def collect(events):
    """The output that a client puts together; it must be what the last event has."""
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    output = []
    for e in events[2:-1]:
        kind = e["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert e["output_index"] == len(output)
            output.append(json.loads(json.dumps(e["item"])))
            continue
        item = output[e["output_index"]]
        assert e.get("item_id", item["id"]) == item["id"], e
        if kind == "content_part.added":
            item["content"].append(e["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = item["content"][e["content_index"]]
            part["text"] += e["delta"]
            part.get("logprobs", []).extend(e.get("logprobs", []))
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert item["content"][e["content_index"]]["text"] == e["text"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += e["delta"]
        elif kind == "function_call_arguments.done":
            assert item["arguments"] == e["arguments"]
        elif kind == "content_part.done":
            assert item["content"][e["content_index"]] == e["part"]
        else:
            assert kind == "output_item.done", e
            item["status"] = e["item"]["status"]
            assert item == e["item"], (item, e)
    last = events[-1]["response"]
    assert last["output"] == output, (last, output)
    assert events[-1]["type"] == "response." + last["status"]
    return last


def same(a, b):
    """Equal but for ids and what the cache did. A stream that was ended after its one call may have
    come some tokens further than another."""
    def bare(r):
        r = json.loads(json.dumps(r))
        for name in ("id", "created_at"):
            r.pop(name)
        r["usage"].pop("input_tokens_details")
        if any(item["type"] == "function_call" for item in r["output"]):
            r["usage"].pop("output_tokens"), r["usage"].pop("total_tokens")
        for item in r["output"]:
            item.pop("id"), item.pop("call_id", None)
        return r
    assert bare(a) == bare(b), (a, b)


def text_of(response):
    return "".join(p["text"] for item in response["output"] if item["type"] == "message"
                   for p in item["content"])


def test_responses():
    with Server() as s:
        status, whole = s.post("/v1/responses", body(instructions="Be brief", metadata={"a": "b"}))
        assert status == 200 and whole["id"].startswith("resp_"), whole
        assert whole["object"] == "response" and whole["status"] == "incomplete"
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert whole["metadata"] == {"a": "b"} and whole["store"] is True
        assert whole["usage"]["output_tokens"] == 12
        same(whole, collect(stream(s, body(instructions="Be brief", metadata={"a": "b"}))))
        chat = s.post("/v1/chat/completions", {"temperature": 0, "max_tokens": 12, "messages": [
            {"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]})[1]
        assert chat["choices"][0]["message"]["content"] == text_of(whole)
        assert chat["usage"]["prompt_tokens"] == whole["usage"]["input_tokens"]


def test_logprobs():
    fields = body(include=["message.output_text.logprobs"], top_logprobs=2)
    with Server() as s:
        _, whole = s.post("/v1/responses", fields)
        part = whole["output"][0]["content"][0]
        assert len(part["logprobs"]) == 12 and len(part["logprobs"][0]["top_logprobs"]) == 2
        same(whole, collect(stream(s, fields)))


def test_tools():
    fields = body("Weather?", tools=[TOOL], tool_choice="required", seed=3, temperature=1,
                  max_output_tokens=300, parallel_tool_calls=False)
    with Server() as s:
        _, whole = s.post("/v1/responses", fields)
        assert whole["status"] == "completed" and whole["tools"] == [TOOL], whole
        call = whole["output"][-1]
        assert call["type"] == "function_call" and call["name"] == "get_weather"
        assert json.loads(call["arguments"])["city"] in ("Rome", "Oslo")
        same(whole, collect(stream(s, fields)))
        answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        # the whole conversation, or only what is new
        status, sent = s.post("/v1/responses", body(
            [{"role": "user", "content": "Weather?"}, *whole["output"], answer]))
        assert status == 200, sent
        status, chained = s.post("/v1/responses", body([answer], previous_response_id=whole["id"]))
        assert status == 200, chained
        assert text_of(sent) == text_of(chained)
        assert sent["usage"]["input_tokens"] == chained["usage"]["input_tokens"]
        status, reply = s.post("/v1/responses", body("No answer", previous_response_id=whole["id"]))
        assert status == 400 and reply["error"]["param"] == "previous_response_id", reply
        status, reply = s.post("/v1/responses", body([{**answer, "call_id": "other"}],
                                                     previous_response_id=whole["id"]))
        assert status == 400 and reply["error"]["param"].startswith("input[0]"), reply
        status, reply = s.post("/v1/responses", body(tools=[{"type": "web_search"}]))
        assert status == 400 and reply["error"]["param"].startswith("tools[0]"), reply


def test_structured_output():
    schema = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}},
              "required": ["c"], "additionalProperties": False}
    with Server() as s:
        _, reply = s.post("/v1/responses", body(max_output_tokens=200, seed=1, temperature=1, text={
            "format": {"type": "json_schema", "name": "p", "schema": schema, "strict": True}}))
        if reply["status"] == "completed":
            assert json.loads(text_of(reply))["c"] in ("red", "blue"), reply
        status, reply = s.post("/v1/responses", body(text={"format": {
            "type": "json_schema", "name": "p", "schema": {"type": "nothing"}}}))
        assert status == 400 and reply["error"]["param"].startswith("text.format"), reply


def test_pictures():
    model = os.path.join(os.environ["MXC_SOURCE"], "models", "shapes-vl")
    with open(os.path.join(model, "examples", "01-circle.png"), "rb") as f:
        url = "data:image/png;base64," + base64.b64encode(f.read()).decode()
    question = {"type": "input_text", "text": "What is in the picture?"}
    picture = {"type": "input_image", "image_url": url}
    with Server(model=model) as s:
        _, reply = s.post("/v1/responses", body([{"role": "user", "content": [picture, question]}]))
        assert "circle" in text_of(reply), reply
        # it is still there when the conversation goes on
        _, more = s.post("/v1/responses", body("And now?", previous_response_id=reply["id"]))
        assert more["usage"]["input_tokens"] > reply["usage"]["input_tokens"], more
    with Server() as s:
        status, reply = s.post("/v1/responses", body([{"role": "user", "content": [picture]}]))
        assert status == 400 and reply["error"]["param"] == "input[0].content[0]", reply


def test_store():
    with Server() as s:
        _, first = s.post("/v1/responses", body("One"))
        _, second = s.post("/v1/responses", body("Two", previous_response_id=first["id"]))
        assert second["previous_response_id"] == first["id"]
        third = collect(stream(s, body("Three", previous_response_id=second["id"])))
        # the same as the whole conversation at once
        _, sent = s.post("/v1/responses", body([
            {"role": "user", "content": "One"}, *first["output"],
            {"role": "user", "content": "Two"}, *second["output"],
            {"role": "user", "content": "Three"}], store=False))
        assert text_of(sent) == text_of(third) and sent["store"] is False
        for made in (first, second, third):
            status, _, text = s.get("/v1/responses/" + made["id"])
            assert status == 200 and json.loads(text) == made
        assert s.get("/v1/responses/" + sent["id"])[0] == 404
        status, reply = s.post("/v1/responses", body(previous_response_id=sent["id"]))
        assert status == 400 and reply["error"]["param"] == "previous_response_id", reply

        path = "/v1/responses/" + second["id"]
        assert s.request("POST", path + "/cancel")[0] == 400
        assert s.get(path + "?stream=true")[0] == 400
        status, _, text = s.request("DELETE", path)
        assert status == 200 and json.loads(text) == {"id": second["id"], "object": "response",
                                                      "deleted": True}
        for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"),
                             ("POST", "/cancel")):
            status, _, text = s.request(method, path + rest)
            assert status == 404 and second["id"] in json.loads(text)["error"]["message"], text
        # the chain is broken there
        status, reply = s.post("/v1/responses", body(previous_response_id=third["id"]))
        assert status == 400 and second["id"] in reply["error"]["message"], reply
        for id in ("nope", "x" * 200, "%27%20OR%201"):
            assert s.get("/v1/responses/" + id)[0] == 404


def test_input_items():
    items = [{"role": "user", "content": f"{i}"} for i in range(5)]
    with Server() as s:
        _, made = s.post("/v1/responses", body(items))
        def page(query=""):
            status, _, text = s.get(f"/v1/responses/{made['id']}/input_items{query}")
            return status, json.loads(text)
        status, newest = page()
        assert status == 200 and newest["object"] == "list" and newest["has_more"] is False
        assert [x["content"][0]["text"] for x in newest["data"]] == list("43210")
        assert all(x["type"] == "message" and x["id"] for x in newest["data"])
        ids = [x["id"] for x in reversed(newest["data"])]
        seen, after = [], ""
        for _ in range(3):
            _, part = page(f"?order=asc&limit=2{after}")
            seen += [x["id"] for x in part["data"]]
            after = "&after=" + part["last_id"]
        assert seen == ids and part["has_more"] is False and part["first_id"] == ids[4]
        for bad in ("?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=nope"):
            status, reply = page(bad)
            assert status == 400 and reply["error"]["param"] in bad, (bad, reply)


def test_no_store():
    long = " ".join(str(i) for i in range(100))
    for flags in (("--no-store",), ("--state-dir", "/dev/null/x")):
        with Server(*flags) as s:
            status, reply = s.post("/v1/responses", body(long, store=True))
            assert status == 200 and reply["store"] is False, reply
            assert s.post("/v1/responses", body(long))[0] == 200
            assert s.get("/v1/responses/" + reply["id"])[0] == 404
            status, reply = s.post("/v1/responses", body(previous_response_id=reply["id"]))
            assert status == 400 and reply["error"]["param"] == "previous_response_id", reply
            assert "--no-store" in reply["error"]["message"], reply
            assert ("not stored" in "\n".join(s.errors)) == (flags[0] == "--state-dir"), s.errors
            assert s.stop() == 0 and not os.listdir(s.state) # no prompts either
    with Server("--no-store", "--prompt-cache-bytes", "1M") as s: # unless they are asked for
        assert s.post("/v1/responses", body(long))[1]["store"] is False
        assert s.stop() == 0 and os.listdir(s.state) == ["prompts"]


def test_keys():
    with Server("--api-key", "one,two") as s:
        def ask(method, path, key, fields=None):
            status, _, text = s.request(method, path, fields, {"Authorization": "Bearer " + key})
            return status, json.loads(text)
        _, made = ask("POST", "/v1/responses", "one", body())
        path = "/v1/responses/" + made["id"]
        assert ask("GET", path, "one")[0] == 200
        assert s.get(path, {"X-Api-Key": "one"})[0] == 200
        for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"),
                             ("POST", "/cancel")):
            assert ask(method, path + rest, "two")[0] == 404
            assert s.request(method, path + rest)[0] == 401
        status, reply = ask("POST", "/v1/responses", "two", body(previous_response_id=made["id"]))
        assert status == 400 and reply["error"]["param"] == "previous_response_id", reply
        assert ask("GET", path, "one")[0] == 200


def test_restart_and_damage():
    folder = tempfile.mkdtemp()
    state = os.path.join(folder, "made", "here")
    flags = ("--state-dir", state, "--store-bytes", "16k")
    with Server(*flags, expect_exit=-signal.SIGKILL) as s:
        made = [s.post("/v1/responses", body(f"{i}"))[1] for i in range(3)]
        s.stop(signal.SIGKILL)
    with Server(*flags) as s:
        for r in made:
            assert json.loads(s.get("/v1/responses/" + r["id"])[2]) == r
        # the limit holds: the oldest ones go
        for i in range(20):
            _, last = s.post("/v1/responses", body(f"{i}"))
        assert s.get("/v1/responses/" + made[0]["id"])[0] == 404
        assert s.get("/v1/responses/" + last["id"])[0] == 200
        # one that does not fit is answered, and not stored
        _, big = s.post("/v1/responses", body("x", metadata={str(i): "y" * 2000 for i in range(16)}))
        assert big["store"] is False and s.get("/v1/responses/" + big["id"])[0] == 404
        assert s.get("/v1/responses/" + last["id"])[0] == 200
    assert "responses.db" in os.listdir(state)
    for name in os.listdir(state):
        if not name.startswith("responses.db"):
            continue # the prompt cache's: test_prompt_cache.sh
        with open(os.path.join(state, name), "r+b") as f:
            f.write(b"x" * 5000)
    with Server(*flags) as s:
        assert len([x for x in s.errors if "damaged" in x]) == 1, s.errors
        assert s.get("/v1/responses/" + last["id"])[0] == 404
        _, made = s.post("/v1/responses", body())
        assert s.get("/v1/responses/" + made["id"])[0] == 200
    assert os.path.exists(os.path.join(state, "responses.db.damaged"))


def test_cancel():
    with Server("-c", "2048") as s:
        with s.raw() as sock:
            harness.send(sock, "/v1/responses", {"input": "Go on", "stream": True, "seed": 1,
                                                 "temperature": 1})
            sock.settimeout(harness.PATIENCE)
            got = b""
            while b"response.output_text.delta" not in got:
                got += sock.recv(4096)
            id = got.split(b'"id":"')[1].split(b'"')[0].decode()
            status, _, text = s.request("POST", f"/v1/responses/{id}/cancel")
            if status == 400:  # it ended by itself before
                assert "complete" in json.loads(text)["error"]["message"], text
                return
            assert status == 200 and json.loads(text)["status"] == "cancelled", text
            while b"event: response.incomplete" not in got and b"response.completed" not in got:
                piece = sock.recv(65536)
                assert piece, got[-500:]
                got += piece
        harness.until(s.idle, "the generation has ended")
        stored = json.loads(s.get(f"/v1/responses/{id}")[2])
        assert stored["status"] in ("cancelled", "completed"), stored


if __name__ == "__main__":
    harness.run(globals())

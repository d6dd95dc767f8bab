"""What the routes answer: streams, choices, logprobs, prompts, llama-server's shapes, and that the
same request gives the same bytes alone and among others."""
import json
import math
import os
import re
import shutil
import threading

import harness
from harness import Server


def joined(chunks, name="content"):
    return "".join(c["choices"][0]["delta"].get(name) or "" for c in chunks
                   if c != "[DONE]" and c["choices"])


def test_stream_equals_whole():
    with Server() as s:
        for fields in ({}, {"temperature": 1, "seed": 7}, {"stop": ["e", "qq"]},
                       {"stop_token_ids": list(range(0, 700, 9)), "temperature": 1, "seed": 3}):
            status, whole = s.chat("Tell me", max_tokens=40, **fields)
            assert status == 200, whole
            body = {"messages": [{"role": "user", "content": "Tell me"}], "temperature": 0,
                    "max_tokens": 40, "stream_options": {"include_usage": True}, **fields}
            chunks = s.stream("/v1/chat/completions", body)
            choice = whole["choices"][0]
            assert chunks[-1] == "[DONE]"
            assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert joined(chunks) == choice["message"]["content"]
            ends = [c["choices"][0]["finish_reason"] for c in chunks[:-1] if c["choices"]]
            assert ends[-1] == choice["finish_reason"] and not any(ends[:-1])
            usage = dict(chunks[-2]["usage"])
            assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
            assert all(not c.get("usage") for c in chunks[:-2])
            for stop in fields.get("stop", []):
                assert stop not in choice["message"]["content"]


def test_choices_and_seeds():
    with Server() as s:
        _, two = s.chat("Say", n=2, seed=5, temperature=1, max_tokens=12)
        _, one = s.chat("Say", seed=5, temperature=1, max_tokens=12)
        _, next_one = s.chat("Say", seed=6, temperature=1, max_tokens=12)
        texts = [c["message"]["content"] for c in two["choices"]]
        assert [c["index"] for c in two["choices"]] == [0, 1]
        assert texts[0] == one["choices"][0]["message"]["content"]
        assert texts[1] == next_one["choices"][0]["message"]["content"]
        assert two["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert two["usage"]["completion_tokens"] == 24
        chunks = s.stream("/v1/chat/completions",
                          {"messages": [{"role": "user", "content": "Say"}], "n": 2, "seed": 5,
                           "temperature": 1, "max_tokens": 12})
        for i in range(2):
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]
                           if c["choices"][0]["index"] == i)
            assert text == texts[i], i


def test_logprobs():
    with Server() as s:
        _, reply = s.chat("Words", max_tokens=10, logprobs=True, top_logprobs=3)
        content = reply["choices"][0]["logprobs"]["content"]
        assert len(content) == 10
        for token in content:
            assert token["logprob"] <= 0 and math.isfinite(token["logprob"])
            assert len(token["top_logprobs"]) == 3
            assert token["top_logprobs"][0]["logprob"] == token["logprob"]  # greedy
            assert all(0 <= b < 256 for b in token["bytes"])
        raw = b"".join(bytes(t["bytes"]) for t in content)
        assert raw.decode("utf-8", "replace") == reply["choices"][0]["message"]["content"]
        _, old = s.post("/v1/completions", {"prompt": "Words", "max_tokens": 6, "temperature": 0,
                                            "logprobs": 2, "return_tokens": True})
        lists = old["choices"][0]["logprobs"]
        assert {len(v) for v in lists.values()} == {6}, lists
        assert len(old["choices"][0]["tokens"]) == 6
        _, native = s.post("/completion", {"prompt": "Words", "n_predict": 6, "temperature": 0,
                                           "n_probs": 2, "return_tokens": True})
        assert native["content"] == old["choices"][0]["text"]
        assert native["tokens"] == old["choices"][0]["tokens"]
        assert [p["id"] for p in native["completion_probabilities"]] == native["tokens"]


def test_bias_and_length():
    with Server() as s:
        _, tokens = s.post("/tokenize", {"content": "z"})
        token = tokens["tokens"][0]
        for bias in ({str(token): 100}, [[token, 100]], [["z", 100]]):
            _, reply = s.chat("Hi", max_tokens=4, logit_bias=bias)
            assert reply["choices"][0]["message"]["content"] == "zzzz", bias
        _, free = s.chat("Hi", max_tokens=3, return_tokens=True)
        first = free["choices"][0]["tokens"][0]
        _, banned = s.chat("Hi", max_tokens=3, return_tokens=True, logit_bias=[[first, False]])
        assert first not in banned["choices"][0]["tokens"]
        for fields in ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}):
            _, reply = s.chat("Hi", ignore_eos=True, **fields)
            assert reply["usage"]["completion_tokens"] == 5
            assert reply["choices"][0]["finish_reason"] == "length"
        _, none = s.post("/v1/completions", {"prompt": "Hi", "max_tokens": 0, "echo": True})
        assert none["choices"][0]["text"] == "Hi" and none["usage"]["completion_tokens"] == 0


def test_breakers():
    """A repetition is not punished across a breaker."""
    with Server() as s:
        token = s.post("/tokenize", {"content": "z"})[1]["tokens"][0]

        def answer(**fields):
            status, reply = s.chat("Hi", max_tokens=12, logit_bias={str(token): 50}, **fields)
            assert status == 200, reply
            return reply["choices"][0]["message"]["content"]
        dry = {"dry_multiplier": 100, "dry_allowed_length": 1}
        assert answer() == "z" * 12
        assert answer(**dry) == answer(**dry, dry_sequence_breakers=["\n", ":", "\"", "*"]) \
            != "z" * 12
        assert answer(**dry, dry_sequence_breakers=["z"]) == "z" * 12
        assert answer(dry_sequence_breakers=["x"]) == "z" * 12
        for bad in ([], [""], [1], ["x"] * 65):
            status, reply = s.chat("Hi", dry_sequence_breakers=bad)
            assert status == 400 and reply["error"]["param"] == "dry_sequence_breakers", reply


def test_context_is_a_bound():
    with Server("-c", "256") as s:
        status, reply = s.chat("word " * 2000)
        assert status == 400 and reply["error"]["type"] == "exceed_context_size_error", reply
        assert "256" in reply["error"]["message"], reply
        status, reply = s.post("/v1/completions", {"prompt": "x" * (1 << 24)})
        assert status == 400 and "context of 256" in reply["error"]["message"], reply
        _, full = s.chat("Hi", ignore_eos=True)
        assert full["choices"][0]["finish_reason"] == "length"
        assert full["usage"]["total_tokens"] <= 256


def test_prompt_forms():
    with Server() as s:
        _, ids = s.post("/tokenize", {"content": "Once upon", "add_special": True})
        def texts(prompt, **more):
            status, reply = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 6,
                                                       "temperature": 0, **more})
            assert status == 200, reply
            return [c["text"] for c in reply["choices"]]
        one = texts("Once upon")
        assert texts(ids["tokens"]) == one
        assert texts(["Once upon", "Once upon"]) == one * 2
        assert texts([ids["tokens"], ids["tokens"]]) == one * 2
        assert texts("Once upon", echo=True) == ["Once upon" + one[0]]
        status, reply = s.post("/v1/completions", {"prompt": ["x"] * 40, "n": 2})
        assert status == 400 and "80 answers" in reply["error"]["message"], reply
        _, mixed = s.post("/completion", {"prompt": [ids["tokens"][0], "x"], "n_predict": 2})
        assert mixed["tokens_evaluated"] >= 2
        _, batch = s.post("/completion", {"prompt": ["a", "b"], "n_predict": 2})
        assert [r["index"] for r in batch] == [0, 1]


def test_assistant_prefill():
    with Server() as s:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
        _, begun = s.post("/apply-template", {"messages": messages[:1]})
        _, prefilled = s.post("/v1/completions", {"prompt": begun["prompt"] + "Well,",
                                                  "max_tokens": 5, "temperature": 0})
        _, reply = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 5,
                                                   "temperature": 0})
        assert reply["choices"][0]["message"]["content"] == prefilled["choices"][0]["text"]
        _, applied = s.post("/apply-template", {"messages": messages})
        assert applied["prompt"] == begun["prompt"] + "Well,"
        _, whole = s.post("/apply-template", {"messages": messages,
                                              "continue_final_message": False})
        assert whole["prompt"].startswith(applied["prompt"]) and whole != applied


def test_cache():
    with Server() as s:
        text = "A long text that fills some blocks of the cache. " * 8
        _, cold = s.chat(text, max_tokens=8, logprobs=True)
        _, hit = s.chat(text, max_tokens=8, logprobs=True)
        _, off = s.chat(text, max_tokens=8, logprobs=True, cache_prompt=False)
        cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (cold, hit, off)]
        assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0, cached
        assert cold["choices"] == hit["choices"] == off["choices"]


def test_same_bytes_among_others():
    """The same request alone and while 16 others run, streamed and whole, cached and not."""
    def ask(s, out, stream, **fields):
        body = {"messages": [{"role": "user", "content": "Tell me a story"}], "seed": 11,
                "temperature": 0.9, "max_tokens": 48, "logprobs": True, "top_logprobs": 2,
                **fields}
        if stream:
            chunks = s.stream("/v1/chat/completions", body)
            tokens = [t for c in chunks[:-1] if c["choices"] and c["choices"][0]["logprobs"]
                      for t in c["choices"][0]["logprobs"]["content"]]
            out.append((joined(chunks), tokens))
        else:
            choice = s.post("/v1/chat/completions", body)[1]["choices"][0]
            out.append((choice["message"]["content"], choice["logprobs"]["content"]))

    with Server("-np", "8") as s:
        alone, crowd = [], []
        ask(s, alone, False)
        others = [threading.Thread(target=s.post, args=("/v1/chat/completions", {
            "messages": [{"role": "user", "content": f"Other {i} " * (i + 1)}], "seed": i,
            "max_tokens": 60 + i})) for i in range(16)]
        mine = [threading.Thread(target=ask, args=(s, crowd, i % 2 == 0),
                                 kwargs={"cache_prompt": i < 2}) for i in range(4)]
        for t in others[:8] + mine + others[8:]:
            t.start()
        for t in others + mine:
            t.join()
        assert len(crowd) == 4
        for answer in crowd:
            assert answer == alone[0]


def test_llama_routes():
    with Server() as s:
        _, plain = s.post("/tokenize", {"content": "na\u00efve \U0001F916"})
        _, pieces = s.post("/tokenize", {"content": "na\u00efve \U0001F916", "with_pieces": True})
        assert [p["id"] for p in pieces["tokens"]] == plain["tokens"]
        raw = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list)
                       else p["piece"].encode() for p in pieces["tokens"])
        assert raw.decode() == "na\u00efve \U0001F916"
        _, text = s.post("/detokenize", {"tokens": plain["tokens"]})
        assert text == {"content": "na\u00efve \U0001F916"}
        status, reply = s.post("/detokenize", {"tokens": [1 << 30]})
        assert status == 400 and "vocabulary" in reply["error"]["message"]
        _, props = [None, json.loads(s.get("/props")[2])]
        assert props["total_slots"] == 4 and "chat_template" in props
        slots = json.loads(s.get("/slots")[2])
        assert len(slots) == 4 and not any(x["is_processing"] for x in slots)
        assert json.loads(s.get("/lora-adapters")[2]) == []
        status, reply = s.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
        assert status == 400 and "infill" in reply["error"]["message"]
        chunks = s.stream("/completion", {"prompt": "Hi", "n_predict": 4, "temperature": 0,
                                          "return_progress": True})
        assert chunks[0]["prompt_progress"]["processed"] == chunks[0]["prompt_progress"]["total"]
        assert chunks[-1]["stop"] is True and chunks[-1]["stop_type"] == "limit"
        assert chunks[-1]["tokens_predicted"] == 4 and "timings" in chunks[-1]


def test_text_that_is_too_long_is_not_tokenised():
    with Server() as s:
        status, reply = s.post("/tokenize", {"content": "a" * ((8 << 20) + 1)})
        assert status == 400 and reply["error"]["param"] == "content", reply
        status, reply = s.chat("x", logit_bias=[["ab" * (4 << 20), 1]])
        assert status == 400 and "more than 65536" in reply["error"]["message"], reply


def test_infill():
    """A model that has the three tokens: three others of the golden one take their names."""
    names = {"<|finetune_right_pad_id|>": "<|fim_prefix|>", "<|eom_id|>": "<|fim_suffix|>",
             "<|python_tag|>": "<|fim_middle|>"}
    with harness.tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(harness.MODEL):
            if name not in ("golden", "tokenizer.json"):
                os.symlink(os.path.join(harness.MODEL, name), os.path.join(folder, name))
        with open(os.path.join(harness.MODEL, "tokenizer.json"), encoding="utf-8") as f:
            tokenizer = json.load(f)
        for token in tokenizer["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tokenizer, f)
        with Server(model=folder) as s:
            ids = [s.post("/tokenize", {"content": x, "parse_special": False})[1]["tokens"]
                   for x in ("def f(", ") -> <|eot_id|>", "x")]
            marks = [s.post("/tokenize", {"content": x})[1]["tokens"]
                     for x in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")]
            bos = s.post("/tokenize", {"content": "", "add_special": True})[1]["tokens"]
            asked = {"n_predict": 4, "temperature": 0, "return_tokens": True}
            status, reply = s.post("/infill", {
                "input_prefix": "def f(", "input_suffix": ") -> <|eot_id|>", "prompt": "x", **asked})
            assert status == 200, reply
            prompt = bos + marks[0] + ids[0] + marks[1] + ids[1] + marks[2] + ids[2]
            assert reply["tokens_evaluated"] == len(prompt), (reply, prompt)
            assert reply["tokens"] == s.post("/completion", {"prompt": prompt, **asked})[1]["tokens"]
            status, reply = s.post("/infill", {"input_prefix": "a" * (1 << 20)})
            assert status == 400, reply
            assert reply["error"]["type"] == "exceed_context_size_error", reply
            assert "1048576 bytes" in reply["error"]["message"], reply


def test_models_and_refusals():
    with Server("--alias", "tiny") as s:
        models = json.loads(s.get("/v1/models")[2])
        model = models["data"][0]
        assert model["id"] == "tiny" and model["status"] == "ready" and model["vision"] == "none"
        assert model["meta"]["n_ctx"] == 2048 and model["backend"] == "cpu"
        assert json.loads(s.get("/v1/models/tiny")[2])["id"] == "tiny"
        assert s.get("/v1/models/other")[0] == 404
        for field, value in (("min_tokens", 3), ("suffix", "x"), ("best_of", 2), ("lora", [1]),
                             ("samplers", ["top_k"]), ("t_max_predict_ms", 5)):
            status, reply = s.post("/v1/completions", {"prompt": "x", field: value})
            assert status == 400 and reply["error"]["param"] == field, (field, reply)
            assert reply["error"]["message"].startswith(field)
        for field, value in (("min_tokens", 0), ("suffix", ""), ("best_of", 1), ("lora", []),
                             ("t_max_predict_ms", -1), ("n_keep", -1), ("nobody_knows", {})):
            status, reply = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1,
                                                       field: value})
            assert status == 200, (field, reply)


def test_several_models():
    broken = harness.tempfile.mkdtemp()
    with Server("-a", "good", "-a", "bad", model=[harness.MODEL, broken], wait=False) as s:
        harness.until(lambda: s.get("/health")[0] == 200, "one model is ready")
        harness.until(lambda: json.loads(s.get("/v1/models")[2])["data"][1]["status"]
                      == "unavailable", "the other one is unavailable")
        listed = json.loads(s.get("/v1/models")[2])["data"]
        assert listed[0]["status"] == "ready" and listed[1]["error"], listed
        assert s.chat("x", model="good", max_tokens=1)[0] == 200
        status, reply = s.chat("x", model="bad", max_tokens=1)
        assert status == 503 and listed[1]["error"] in reply["error"]["message"], reply
        status, reply = s.chat("x", model="none", max_tokens=1)
        assert status == 404, reply


def test_structured_output():
    schema = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]},
                                               "n": {"type": "integer"}},
              "required": ["c", "n"], "additionalProperties": False}
    with Server() as s:
        for seed in range(4):
            _, reply = s.chat("x", max_tokens=200, temperature=1, seed=seed, response_format={
                "type": "json_schema", "json_schema": {"name": "p", "schema": schema}})
            choice = reply["choices"][0]
            if choice["finish_reason"] == "stop":
                value = json.loads(choice["message"]["content"])
                assert value["c"] in ("red", "blue") and isinstance(value["n"], int), value
        _, reply = s.chat("x", max_tokens=20, guided_choice=["yes", "no"])
        assert reply["choices"][0]["message"]["content"] in ("yes", "no")
        _, reply = s.chat("x", max_tokens=40, temperature=1, grammar='root ::= "a" [b-d]+ "."')
        assert reply["choices"][0]["message"]["content"][:2] in ("ab", "ac", "ad")
        _, reply = s.chat("x", max_tokens=40, temperature=1, seed=4, guided_regex="(ab){2,3}[0-9]")
        assert re.fullmatch("(ab){2,3}[0-9]", reply["choices"][0]["message"]["content"]), reply
        _, reply = s.chat("x", max_tokens=300, temperature=1, seed=4,
                          response_format={"type": "json_object"}, logit_bias=[["}", 30]])
        assert isinstance(json.loads(reply["choices"][0]["message"]["content"]), dict), reply
        _, reply = s.chat("x", max_tokens=40, temperature=1, json_schema={"enum": ["red", "blue"]})
        assert json.loads(reply["choices"][0]["message"]["content"]) in ("red", "blue"), reply
        # what cannot be honoured is refused by its name
        status, reply = s.chat("x", json_schema={"type": "array", "uniqueItems": True})
        assert status == 400 and "uniqueItems" in reply["error"]["message"], reply
        for alias in ({"guided_json": schema}, {"guided_grammar": 'root ::= "a"'}):
            _, reply = s.chat("x", max_tokens=200, temperature=1, seed=1, **alias)
            assert reply["choices"][0]["message"]["content"][0] in "{a", (alias, reply)
        for bad in ({"grammar": "root ::= ("}, {"guided_regex": "("}, {"guided_choice": []},
                    {"grammar": 'root ::= "a"', "guided_regex": "a"}):
            status, reply = s.chat("x", **bad)
            assert status == 400 and reply["error"]["param"], (bad, reply)
        status, reply = s.chat("x", response_format={"type": {}})
        assert status == 400 and reply["error"]["param"] == "response_format.type", reply


def test_tool_calls():
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": False}}}
    body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": [tool], "seed": 3,
            "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    with Server() as s:
        _, whole = s.post("/v1/chat/completions", body)
        choice = whole["choices"][0]
        assert choice["finish_reason"] == "tool_calls", choice
        call = choice["message"]["tool_calls"][0]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
        chunks = s.stream("/v1/chat/completions", body)
        deltas = [d for c in chunks[:-1] if c["choices"]
                  for d in c["choices"][0]["delta"].get("tool_calls", [])]
        assert deltas[0]["function"] == {"name": "get_weather", "arguments": ""}
        text = "".join(d["function"]["arguments"] for d in deltas)
        assert text == call["function"]["arguments"]
        history = [{"role": "user", "content": "x"},
                   {"role": "assistant", "content": None, "tool_calls": [call]},
                   {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
        status, reply = s.post("/v1/chat/completions", {**body, "messages": history,
                                                        "tool_choice": "none"})
        assert status == 200, reply


def with_template(name, text):
    """A copy of the model with more at the end of its template."""
    folder = os.path.join(harness.tempfile.mkdtemp(), name)
    shutil.copytree(harness.MODEL, folder, ignore=shutil.ignore_patterns("golden"))
    with open(os.path.join(folder, "chat_template.jinja"), "a") as f:
        f.write(text)
    return folder


def test_parallel_calls():
    """Several calls in one answer, in the shape of Hermes and Qwen: whole and streamed."""
    folder = with_template("caller", "{%- if tools %}{{ tools | tojson }}\n<tool_call>\n{%- endif %}")
    tools = [{"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
        "additionalProperties": False}}} for name in ("weather", "time")]
    with Server(model=folder) as s:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "seed": 2,
                "tool_choice": "required", "max_tokens": 600, "temperature": 1,
                "logit_bias": {"705": -8, "709": -8, "710": -8}}  # the end comes later
        choice = s.post("/v1/chat/completions", body)[1]["choices"][0]
        calls = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and len(calls) > 1, choice
        assert len({c["id"] for c in calls}) == len(calls), calls
        got = {}
        for chunk in s.stream("/v1/chat/completions", body)[:-1]:
            for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
                call = got.setdefault(delta["index"], {"name": "", "arguments": ""})
                for name, text in delta["function"].items():
                    call[name] += text
        assert [got[i] for i in range(len(got))] == [c["function"] for c in calls], (got, calls)
        assert all(json.loads(c["arguments"])["city"] in ("Rome", "Oslo") for c in got.values())
        _, one = s.post("/v1/chat/completions", {**body, "parallel_tool_calls": False})
        assert len(one["choices"][0]["message"]["tool_calls"]) == 1, one
        _, named = s.post("/v1/chat/completions", {**body, "tool_choice": {
            "type": "function", "function": {"name": "time"}}})
        assert [c["function"]["name"] for c in named["choices"][0]["message"]["tool_calls"]] \
            == ["time"], named
        # history: arguments as text and as an object are the same prompt
        prompts = []
        for arguments in ('{"city": "Rome"}', {"city": "Rome"}):
            history = [*body["messages"], {"role": "assistant", "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "time", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "c", "content": "noon"}]
            status, reply = s.post("/v1/chat/completions", {
                "messages": history, "tools": tools, "tool_choice": "none", "max_tokens": 2})
            assert status == 200, reply
            prompts.append(reply["usage"]["prompt_tokens"])
        assert prompts[0] == prompts[1], prompts
        for wrong in ({"role": "tool", "content": "noon"}, {"role": "assistant", "tool_calls": [{}]},
                      {"role": "assistant", "tool_calls": [{"type": "function", "function": {
                          "name": "time", "arguments": "{"}}]}):
            status, reply = s.post("/v1/chat/completions", {
                "messages": [*body["messages"], wrong], "tools": tools, "max_tokens": 2})
            assert status == 400 and reply["error"]["message"].startswith("messages[1]"), reply
    shutil.rmtree(os.path.dirname(folder))


def test_reasoning():
    """A template that opens a thought: what comes is reasoning_content until it is closed."""
    folder = with_template(
        "thinker", "{%- if add_generation_prompt %}"
        "{%- if enable_thinking is defined and enable_thinking is false %}"
        "{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}"
        "{%- endif %}")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 16, "temperature": 0}
    with Server(model=folder) as s:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["reasoning"] is True
        _, whole = s.post("/v1/chat/completions", body)
        message = whole["choices"][0]["message"]
        assert message["content"] == "" and len(message["reasoning_content"]) > 5, message
        details = whole["usage"]["completion_tokens_details"]
        assert 0 < details["reasoning_tokens"] <= 16
        chunks = s.stream("/v1/chat/completions", body)
        assert joined(chunks, "reasoning_content") == message["reasoning_content"]
        assert joined(chunks) == ""
        _, inline = s.post("/v1/chat/completions", {**body, "reasoning_format": "none"})
        assert inline["choices"][0]["message"]["content"].strip() == message["reasoning_content"]
        for off in ({"reasoning_effort": "none"},
                    {"chat_template_kwargs": {"enable_thinking": False}}):
            _, reply = s.post("/v1/chat/completions", {**body, **off})
            message = reply["choices"][0]["message"]
            assert message["content"] and "reasoning_content" not in message, message
        # a thought that has used its tokens is closed
        for bound in ({"thinking_budget": 4},
                      {"thinking": {"type": "enabled", "budget_tokens": 4}}):
            _, reply = s.post("/v1/chat/completions", {**body, **bound})
            message = reply["choices"][0]["message"]
            assert message["content"] and message["reasoning_content"], message
            assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] < 10, reply
        # the schema holds behind the thought only: none of it is spelled before
        _, reply = s.post("/v1/chat/completions", {**body, "guided_choice": ["yes"]})
        assert reply["choices"][0]["message"]["content"] == "", reply
        _, reply = s.post("/v1/chat/completions", {**body, "guided_choice": ["yes"],
                                                   "reasoning_effort": "none"})
        assert reply["choices"][0]["message"]["content"] == "yes", reply
    shutil.rmtree(os.path.dirname(folder))


def check_named(reply, field, where):
    """Anthropic's errors have no param: their message begins with the field."""
    named = reply["error"]["message" if reply.get("type") == "error" else "param"]
    assert named.startswith(field), (where, reply)


def test_surface_is_true():
    """Every field of the list does what its state says; flags of the list are those of --help."""
    done = harness.subprocess.run([harness.PROGRAM, "serve", "--surface"], capture_output=True,
                                  text=True, timeout=60)
    surface = json.loads(done.stdout)
    paths = {"chat": "/v1/chat/completions", "completions": "/v1/completions",
             "completion": "/completion", "messages": "/v1/messages",
             "responses": "/v1/responses", "tokenize": "/tokenize", "detokenize": "/detokenize",
             "apply-template": "/apply-template"}
    base = {"chat": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
            "completions": {"prompt": "x", "max_tokens": 1},
            "completion": {"prompt": "x", "n_predict": 1},
            "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
            "responses": {"input": "x", "max_output_tokens": 1},
            "tokenize": {"content": "x"}, "detokenize": {"tokens": [1]},
            "apply-template": {"messages": [{"role": "user", "content": "x"}]}}
    wrong = {"number": "x", "integer": 1.5, "boolean": 1, "string": 5, "list": 5, "object": 5,
             "string or list": 5, "object or list": 5, "string or object": 5}
    with Server() as s:
        for field in surface["fields"]:
            for route in field["routes"]:
                where = (route, field["name"])

                def send(value):
                    return s.post(paths[route], {**base[route], field["name"]: value})

                if route == "embeddings":
                    continue  # a server of its own: embeddings.py
                if field["state"] == "label":
                    assert send("anything")[0] == 200, where
                elif field["state"] == "only":
                    status, reply = send({"something": "else"})
                    assert status == 400, where
                    check_named(reply, field["name"], where)
                    assert send(json.loads(field["type"]))[0] == 200, where
                elif not field["help"].startswith("/infill"):
                    status, reply = send(wrong[field["type"]])
                    assert status == 400, (where, status, reply)
                    check_named(reply, field["name"].split(".")[0], where)
        for route in surface["routes"]:
            path = route["path"].replace("*", "llama")
            status, headers, _ = s.request("OPTIONS", path)
            assert status == 204 and route["method"] in headers["allow"], route
    shown = harness.subprocess.run([harness.PROGRAM, "serve", "--help"], capture_output=True,
                                   text=True, timeout=60).stdout
    for flag in surface["flags"]:
        assert flag["names"] in shown, flag
    for i, flag in enumerate(surface["refused_flags"]):
        names = [n for n in flag["names"].split(", ") if n]
        calls = [([n, "1"], {}) for n in names[-1:]]
        if flag["environment"] and (not names or i % 4 == 0):  # processes take their time
            calls.append(([], {flag["environment"]: "1"}))
        assert calls, flag
        for words, variables in calls:
            done = harness.subprocess.run([harness.PROGRAM, "serve", "m", *words],
                                          capture_output=True, text=True, timeout=60,
                                          env={**os.environ, **variables})
            assert done.returncode == 2 and flag["instead"] in done.stderr, (flag, done.stderr)
    flags = [n for f in surface["flags"] + surface["refused_flags"]
             for n in f["names"].split(", ") if n]
    variables = [f["environment"] for f in surface["flags"] + surface["refused_flags"]
                 if f["environment"]]
    for names in (flags, variables):
        assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]


def serve_ends(variables):
    """What `serve` says when it ends at once with 2."""
    done = harness.subprocess.run([harness.PROGRAM, "serve", "/no/model"], capture_output=True,
                                  text=True, timeout=60, env={**os.environ, **variables})
    assert done.returncode == 2, (variables, done.returncode, done.stderr)
    return done.stderr


def test_flags_do_something():
    """The value of every flag is used; every variable is read; what is always so cannot be
    switched off in silence."""
    with open(os.path.join(harness.SOURCE, "src", "server", "surface.def"), encoding="utf-8") as f:
        listed = re.findall(r'^MXC_FLAG\(\s*(\w+),\s*((?:"[^"]*"\s*)+),\s*("[^"]*"|NULL),\s*'
                            r'("[^"]*"|NULL),\s*(\w+),', f.read(), flags=re.M)
    with open(os.path.join(harness.SOURCE, "src", "cli", "serve.c"), encoding="utf-8") as f:
        code = f.read().split("struct serve {")[1]
    assert len(listed) > 70
    off = {"always": None, "metrics": "--no-metrics", "slots": "--no-slots"}
    for kind, names, _, environment, member in listed:
        if kind != "HEADING" and member not in off:
            assert re.search(r"(->|\.)" + member + r"\b", code), (names, member)
        if environment == "NULL":
            continue
        name = environment.strip('"')
        if kind in ("INT", "REAL", "FLAG"):
            shown = serve_ends({name: "nonsense"})
            assert name in shown or re.search(r"--[\w-]+", names).group() in shown, shown
        if member == "always":
            assert name in serve_ends({name: "0"}), name
    with Server(env={"LLAMA_ARG_ENDPOINT_METRICS": "0", "LLAMA_ARG_ENDPOINT_SLOTS": "off"}) as s:
        assert [s.get(path)[0] for path in ("/metrics", "/slots", "/props")] == [501, 501, 200]
    with Server("--cors-origins", "https://a.org,https://b.org", "--sse-ping-interval", "0") as s:
        for origin in ("https://a.org", "https://b.org"):
            allowed = s.get("/health", {"Origin": origin})[1]["access-control-allow-origin"]
            assert allowed == origin, allowed


def test_openapi():
    with Server("--api-prefix", "/p") as s:
        api = json.loads(s.get("/p/openapi.json")[2])
        assert api["openapi"] == "3.1.0" and api["servers"] == [{"url": "/p"}]
        surface = json.loads(harness.subprocess.run(
            [harness.PROGRAM, "serve", "--surface"], capture_output=True, text=True).stdout)
        for route in surface["routes"]:
            item = api["paths"][route["path"].replace("*", "{name}")][route["method"].lower()]
            assert ("requestBody" in item) == route["json"], route
        body = api["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"][
            "application/json"]["schema"]
        assert body["required"] == ["messages"]
        assert body["properties"]["top_p"]["maximum"] == 1
        assert body["properties"]["stop"]["type"] == ["string", "array", "null"]
        assert body["properties"]["functions"]["enum"] == [[], None]


if __name__ == "__main__":
    harness.run(globals())

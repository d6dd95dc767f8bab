"""Anthropic's own Python client against the real program: messages, streams, tools, structured
output, pictures, thinking off, token counts, errors."""
import base64
import json
import os
from typing import Literal

import anthropic
import pydantic

import harness
from harness import Server

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "get_weather", "description": "of a city", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"], "additionalProperties": False}}


class Colour(pydantic.BaseModel):
    name: Literal["red", "blue"]
    bright: bool


def client(server, key="unused"):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0,
                               timeout=harness.PATIENCE)


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


def refused(kind, call, **fields):
    try:
        call(**fields)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}: {fields}")


def test_messages():
    fields = {"model": "llama", "max_tokens": 12, "extra_body": {"temperature": 0},
              "messages": HELLO, "system": "Be brief"}
    with Server() as s, client(s) as c:
        whole = c.messages.create(**fields)
        assert whole.type == "message" and whole.role == "assistant" and text_of(whole)
        assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12
        kinds = [e.type for e in c.messages.create(**fields, stream=True)]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
        with c.messages.stream(**fields) as helper:
            text = "".join(helper.text_stream)
            final = helper.get_final_message()
        assert text == text_of(whole) == text_of(final)
        assert final.usage.output_tokens == 12 and final.stop_reason == "max_tokens"
        stop = text[3:6]
        cut = c.messages.create(**fields, stop_sequences=[stop])
        assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop, cut
        talk = [*HELLO, {"role": "assistant", "content": text},
                {"role": "user", "content": [{"type": "text", "text": "Go on"}]}]
        longer = c.messages.create(**{**fields, "messages": talk}, metadata={"user_id": "u"},
                                   thinking={"type": "disabled"})
        assert text_of(longer)
        count = c.messages.count_tokens(model="llama", messages=HELLO, system="Be brief")
        usage = whole.usage
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stream_that_is_closed():
    with Server() as s, client(s) as c:
        with c.messages.stream(model="llama", max_tokens=2000, messages=HELLO,
                               extra_body={"seed": 1}) as helper:
            next(iter(helper.text_stream))
        harness.until(s.idle, "the generation has ended")


def test_tools():
    fields = {"model": "llama", "max_tokens": 300, "tools": [TOOL],
              "messages": [{"role": "user", "content": "Weather?"}],
              "extra_body": {"seed": 3, "temperature": 1},
              "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with Server() as s, client(s) as c:
        whole = c.messages.create(**fields)
        call = whole.content[-1]
        assert whole.stop_reason == "tool_use" and call.type == "tool_use"
        assert call.name == "get_weather" and call.input["city"] in ("Rome", "Oslo"), call
        with c.messages.stream(**fields) as helper:
            pieces = [e.partial_json for e in helper if e.type == "input_json"]
            final = helper.get_final_message()
        assert json.loads("".join(pieces)) == call.input == final.content[-1].input
        history = [*fields["messages"],
                   {"role": "assistant", "content": [b.model_dump(exclude_none=True)
                                                     for b in whole.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                 "content": "sunny"}]}]
        reply = c.messages.create(**{**fields, "messages": history, "max_tokens": 4,
                                     "tool_choice": {"type": "none"}})
        assert reply.content[0].type == "text", reply
        with_tools = c.messages.count_tokens(model="llama", messages=fields["messages"],
                                             tools=[TOOL])
        assert with_tools.input_tokens > 0
        e = refused(anthropic.BadRequestError, c.messages.create,
                    **{**fields, "tool_choice": {"type": "tool", "name": "other"}})
        assert "tool_choice" in e.message, e
        e = refused(anthropic.BadRequestError, c.messages.create,
                    **{**fields, "tools": [{"type": "web_search_20250305", "name": "web_search"}]})
        assert "web_search" in e.message, e


def test_structured_output():
    with Server() as s, client(s) as c:
        parsed = c.messages.parse(model="llama", max_tokens=200, messages=HELLO,
                                  output_format=Colour, extra_body={"seed": 2, "temperature": 1})
        assert isinstance(parsed.parsed_output, Colour), parsed


def test_pictures():
    folder = os.path.join(harness.SHAPES, "examples")
    with open(os.path.join(folder, "examples.json"), encoding="utf-8") as f:
        cases = json.load(f)
    kinds = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
    with Server(model=harness.SHAPES) as s, client(s) as c:
        for case in cases[::3]:
            blocks = []
            for name in case["images"]:
                with open(os.path.join(folder, name), "rb") as f:
                    data = base64.b64encode(f.read()).decode()
                blocks.append({"type": "image", "source": {
                    "type": "base64", "media_type": kinds[name.rsplit(".", 1)[1]], "data": data}})
            messages = [{"role": "user", "content": [*blocks, {"type": "text",
                                                               "text": case["question"]}]}]
            whole = c.messages.create(model="shapes-vl", max_tokens=64, messages=messages,
                                      extra_body={"temperature": 0})
            assert text_of(whole).strip() == case["answer"], (case["question"], whole)
            count = c.messages.count_tokens(model="shapes-vl", messages=messages)
            assert count.input_tokens == case["prompt_tokens"], count


def test_models_and_errors():
    with Server("--api-key", "secret") as s:
        with client(s, "secret") as c:
            e = refused(anthropic.BadRequestError, c.messages.create, model="llama", max_tokens=4,
                        messages=[{"role": "user", "content": "word " * 4000}])
            assert "2048" in e.message and e.request_id, e
            e = refused(anthropic.BadRequestError, c.messages.create, model="llama", max_tokens=0,
                        messages=HELLO)
            assert "max_tokens" in e.message, e
        with client(s, "wrong") as c:
            refused(anthropic.AuthenticationError, c.messages.create, model="llama", max_tokens=4,
                    messages=HELLO)


if __name__ == "__main__":
    harness.run(globals())

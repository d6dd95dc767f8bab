"""OpenAI's own Python client against the real program: chat, streams, tools, structured output,
log probabilities, pictures, completions, responses, embeddings, models, errors.

The 28 questions of models/shapes-vl stand in its examples/examples.json with the answers of the
reference implementation.
"""
import asyncio
import base64
import json
import os
import struct
import threading
from typing import Literal

import openai
import pydantic

import harness
from harness import Server

BERT = os.path.join(harness.DATA, "golden", "bert")
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
           "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "of a city",
                                         "parameters": WEATHER, "strict": True}}


class Colour(pydantic.BaseModel):
    name: Literal["red", "blue"]
    bright: bool


class WeatherArgs(pydantic.BaseModel):
    city: Literal["Rome", "Oslo"]


def client(server, key="unused", **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0,
                         timeout=harness.PATIENCE, **options)


def examples():
    """[(data URIs, question, answer, prompt tokens)]"""
    folder = os.path.join(harness.SHAPES, "examples")
    with open(os.path.join(folder, "examples.json"), encoding="utf-8") as f:
        listed = json.load(f)

    def uri(name):
        with open(os.path.join(folder, name), "rb") as f:
            kind = {"png": "png", "jpg": "jpeg", "webp": "webp"}[name.rsplit(".", 1)[1]]
            return f"data:image/{kind};base64,{base64.b64encode(f.read()).decode()}"
    return [([uri(n) for n in e["images"]], e["question"], e["answer"], e["prompt_tokens"])
            for e in listed]


def seen(uris, question):
    parts = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    return [{"role": "user", "content": parts + [{"type": "text", "text": question}]}]


def refused(kind, call, **fields):
    try:
        call(**fields)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}: {fields}")


# ---- chat

def test_chat():
    with Server() as s, client(s) as c:
        whole = c.chat.completions.create(model="llama", messages=HELLO, max_tokens=12,
                                          temperature=0, seed=1)
        choice = whole.choices[0]
        assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-")
        assert choice.message.role == "assistant" and choice.message.content
        assert choice.finish_reason == "length" and whole.usage.completion_tokens == 12
        assert whole.usage.total_tokens == 12 + whole.usage.prompt_tokens
        stream = c.chat.completions.create(
            model="llama", messages=HELLO, max_tokens=12, temperature=0, seed=1, stream=True,
            stream_options={"include_usage": True})
        chunks = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) \
            == choice.message.content
        assert chunks[-1].usage.completion_tokens == 12 and not chunks[-1].choices
        assert [x.choices[0].finish_reason for x in chunks if x.choices][-1] == "length"
        # the helper that collects a stream refuses what was cut off, so this one ends by itself
        with c.chat.completions.stream(model="llama", messages=HELLO,
                                       extra_body={"guided_choice": ["well, yes"]}) as helper:
            kinds = [event.type for event in helper]
            final = helper.get_final_completion()
        assert kinds.count("content.delta") > 1 and kinds.count("content.done") == 1, kinds
        assert final.choices[0].message.content == "well, yes"
        two = c.chat.completions.create(model="llama", messages=HELLO, max_tokens=4, n=2, seed=1,
                                        temperature=1, stop=["zzz"], logit_bias={"5": -100},
                                        frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9,
                                        user="somebody")
        assert [x.index for x in two.choices] == [0, 1]


def test_chat_asynchronous():
    async def ask(c, i):
        stream = await c.chat.completions.create(model="llama", messages=HELLO, max_tokens=8,
                                                 temperature=1, seed=i, stream=True)
        return "".join([x.choices[0].delta.content or "" async for x in stream])

    async def all_of_them(url):
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0) as c:
            alone = [await ask(c, i) for i in range(4)]
            assert await asyncio.gather(*[ask(c, i) for i in range(4)]) == alone
    with Server() as s:
        asyncio.run(all_of_them(s.url))


def test_a_stream_that_is_closed():
    with Server() as s, client(s) as c:
        stream = c.chat.completions.create(model="llama", messages=HELLO, stream=True,
                                           extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        harness.until(s.idle, "the generation has ended")


def test_logprobs():
    with Server() as s, client(s) as c:
        whole = c.chat.completions.create(model="llama", messages=HELLO, max_tokens=6,
                                          temperature=0, logprobs=True, top_logprobs=3)
        tokens = whole.choices[0].logprobs.content
        assert len(tokens) == 6 and all(len(t.top_logprobs) == 3 for t in tokens)
        assert all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in tokens)
        assert b"".join(bytes(t.bytes) for t in tokens).decode("utf-8", "replace") \
            == whole.choices[0].message.content
        chunks = c.chat.completions.create(model="llama", messages=HELLO, max_tokens=6, stream=True,
                                           temperature=0, logprobs=True, top_logprobs=3)
        streamed = [t for x in chunks if x.choices and x.choices[0].logprobs
                    for t in x.choices[0].logprobs.content]
        assert streamed == tokens


# ---- tools and structured output

def test_tools():
    fields = {"model": "llama", "messages": [{"role": "user", "content": "Weather?"}], "seed": 3,
              "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False,
              "max_tokens": 300, "temperature": 1}
    with Server() as s, client(s) as c:
        choice = c.chat.completions.create(**fields).choices[0]
        call = choice.message.tool_calls[0]
        assert choice.finish_reason == "tool_calls" and call.type == "function"
        assert call.function.name == "get_weather" and len(choice.message.tool_calls) == 1
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        name, arguments, ids = "", "", []
        for x in c.chat.completions.create(**fields, stream=True):
            for delta in x.choices[0].delta.tool_calls or []:
                assert delta.index == 0
                ids += [delta.id] if delta.id else []
                name += delta.function.name or ""
                arguments += delta.function.arguments or ""
        assert (name, arguments) == ("get_weather", call.function.arguments) and len(ids) == 1
        with c.chat.completions.stream(**fields) as helper:
            events = list(helper)
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        assert [d.arguments for d in done] == [call.function.arguments], done
        deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
        assert "".join(d.arguments_delta for d in deltas) == call.function.arguments
        # a tool made from a model of pydantic; arguments come back as one
        parsed = c.chat.completions.parse(**{**fields, "tools": [
            openai.pydantic_function_tool(WeatherArgs, name="get_weather")]})
        got = parsed.choices[0].message.tool_calls[0].function.parsed_arguments
        assert isinstance(got, WeatherArgs), parsed
        # the result goes back
        history = [*fields["messages"], choice.message.model_dump(exclude_none=True),
                   {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        reply = c.chat.completions.create(**{**fields, "messages": history, "max_tokens": 4,
                                             "tool_choice": "none"})
        assert reply.choices[0].message.content and not reply.choices[0].message.tool_calls
        named = c.chat.completions.create(**{**fields, "tool_choice": {
            "type": "function", "function": {"name": "get_weather"}}})
        assert named.choices[0].message.tool_calls[0].function.name == "get_weather"
        e = refused(openai.BadRequestError, c.chat.completions.create,
                    **{**fields, "messages": [history[0], history[2]]})
        assert e.body["message"].startswith("messages[1]"), e


def test_structured_output():
    fields = {"model": "llama", "messages": HELLO, "max_tokens": 200, "temperature": 1, "seed": 2}
    with Server() as s, client(s) as c:
        parsed = c.chat.completions.parse(**fields, response_format=Colour)
        assert isinstance(parsed.choices[0].message.parsed, Colour), parsed
        with c.chat.completions.stream(**fields, response_format=Colour) as helper:
            for _ in helper:
                pass
            final = helper.get_final_completion()
        assert final.choices[0].message.parsed == parsed.choices[0].message.parsed
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9,
                                                         "minimum": 0}},
                  "required": ["n"], "additionalProperties": False}
        reply = c.chat.completions.create(**fields, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}})
        assert 0 <= json.loads(reply.choices[0].message.content)["n"] <= 9
        response = c.responses.parse(model="llama", input="Hello", text_format=Colour,
                                     temperature=1, max_output_tokens=200,
                                     extra_body={"seed": 2})
        assert isinstance(response.output_parsed, Colour), response
        with c.responses.stream(model="llama", input="Hello", text_format=Colour, temperature=1,
                                max_output_tokens=200, extra_body={"seed": 2}) as helper:
            for _ in helper:
                pass
            assert helper.get_final_response().output_parsed == response.output_parsed


# ---- pictures

def test_the_28_questions():
    cases = examples()
    assert len(cases) == 28
    with Server(model=harness.SHAPES) as s, client(s) as c:
        for uris, question, answer, prompt_tokens in cases:
            whole = c.chat.completions.create(model="shapes-vl", messages=seen(uris, question),
                                              temperature=0, max_tokens=64)
            choice = whole.choices[0]
            assert choice.message.content.strip() == answer, (question, choice, answer)
            assert choice.finish_reason == "stop"
            assert whole.usage.prompt_tokens == prompt_tokens, (question, whole.usage)
        # streamed, four at a time, the answers are the same
        wrong = []

        def ask(mine):
            for uris, question, answer, _ in mine:
                chunks = c.chat.completions.create(model="shapes-vl", temperature=0, max_tokens=64,
                                                   messages=seen(uris, question), stream=True)
                text = "".join(x.choices[0].delta.content or "" for x in chunks)
                if text.strip() != answer:
                    wrong.append((question, text, answer))
        threads = [threading.Thread(target=ask, args=(cases[i::4],)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong, wrong
        # by responses, whose picture is a part of another name
        uris, question, answer, _ = cases[0]
        response = c.responses.create(model="shapes-vl", temperature=0, max_output_tokens=64, input=[
            {"role": "user", "content": [{"type": "input_image", "image_url": uris[0]},
                                         {"type": "input_text", "text": question}]}])
        assert response.output_text.strip() == answer, response
        e = refused(openai.BadRequestError, c.chat.completions.create, model="shapes-vl",
                    messages=seen(["http://127.0.0.1:9/x.png"], "What?"))
        assert "messages[0].content[0]" in e.message, e


# ---- completions, embeddings, models, errors

def test_completions():
    with Server() as s, client(s) as c:
        whole = c.completions.create(model="llama", prompt=["Once", "Twice"], max_tokens=5,
                                     temperature=0, logprobs=2, echo=False)
        assert [x.index for x in whole.choices] == [0, 1] and whole.object == "text_completion"
        assert len(whole.choices[0].logprobs.tokens) == 5
        chunks = c.completions.create(model="llama", prompt="Once", max_tokens=5, temperature=0,
                                      stream=True)
        assert "".join(x.choices[0].text for x in chunks if x.choices) == whole.choices[0].text
        echo = c.completions.create(model="llama", prompt="Once", max_tokens=5, temperature=0,
                                    echo=True)
        assert echo.choices[0].text == "Once" + whole.choices[0].text


def test_embeddings():
    with Server("--precision", "exact", model=BERT) as s, client(s) as c:
        # without a format the client asks for base64 and reads it
        both = c.embeddings.create(model="bert", input=["one", "two words"])
        plain = c.embeddings.create(model="bert", input="two words", encoding_format="float")
        assert both.data[1].embedding == [struct.unpack("<f", struct.pack("<f", x))[0]
                                          for x in plain.data[0].embedding]
        assert both.usage.prompt_tokens == both.usage.total_tokens > 0
        short = c.embeddings.create(model="bert", input="two words", dimensions=8)
        assert len(short.data[0].embedding) == 8
        e = refused(openai.BadRequestError, c.chat.completions.create, model="bert", messages=HELLO)
        assert e.status_code == 400, e


def test_models_and_errors():
    with Server("--api-key", "secret", "-a", "tiny") as s:
        with client(s, "secret") as c:
            assert [m.id for m in c.models.list()] == ["tiny"]
            assert c.models.retrieve("tiny").object == "model"
            refused(openai.NotFoundError, c.models.retrieve, model="other")
            e = refused(openai.BadRequestError, c.chat.completions.create, model="tiny",
                        messages=HELLO, temperature=-1)
            assert e.param == "temperature" and e.type == "invalid_request_error", e
            e = refused(openai.BadRequestError, c.chat.completions.create, model="tiny",
                        messages=[{"role": "user", "content": "word " * 4000}])
            assert "2048" in e.message, e
            e = refused(openai.BadRequestError, c.completions.create, model="tiny", prompt="x",
                        best_of=3)
            assert e.param == "best_of", e
        with client(s, "wrong") as c:
            refused(openai.AuthenticationError, c.models.list)


# ---- responses

def test_responses():
    fields = {"model": "llama", "max_output_tokens": 12, "temperature": 0}
    with Server() as s, client(s) as c:
        first = c.responses.create(input="Hello", instructions="Be brief", metadata={"a": "b"},
                                   **fields)
        assert first.object == "response" and first.status == "incomplete" and first.output_text
        assert first.incomplete_details.reason == "max_output_tokens"
        again = c.responses.retrieve(first.id)
        assert again.output_text == first.output_text and again.metadata == {"a": "b"}
        items = list(c.responses.input_items.list(first.id))
        assert [i.content[0].text for i in items] == ["Hello"], items
        second = c.responses.create(input="And then?", previous_response_id=first.id, **fields)
        assert second.previous_response_id == first.id
        assert second.usage.input_tokens > first.usage.input_tokens
        count = c.responses.input_tokens.count(model="llama", input="And then?",
                                               previous_response_id=first.id)
        assert count.input_tokens == second.usage.input_tokens, count
        c.responses.delete(first.id)
        refused(openai.NotFoundError, c.responses.retrieve, response_id=first.id)
        kinds, text = [], ""
        for event in c.responses.create(input="Hello", instructions="Be brief", stream=True,
                                        **fields):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete", kinds
        assert text == first.output_text
        logged = c.responses.create(input="Hello", include=["message.output_text.logprobs"],
                                    top_logprobs=2, **fields)
        assert len(logged.output[0].content[0].logprobs) == 12
        unstored = c.responses.create(input="Hello", store=False, **fields)
        refused(openai.NotFoundError, c.responses.retrieve, response_id=unstored.id)
        e = refused(openai.BadRequestError, c.responses.create, model="llama", input="x",
                    background=True)
        assert e.param == "background", e


def test_responses_tools():
    fields = {"model": "llama", "temperature": 1, "max_output_tokens": 300,
              "tools": [{"type": "function", "name": "get_weather", "parameters": WEATHER,
                         "strict": True}],
              "tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"seed": 3}}
    with Server() as s, client(s) as c:
        whole = c.responses.create(input="Weather?", **fields)
        call = [i for i in whole.output if i.type == "function_call"][0]
        assert json.loads(call.arguments)["city"] in ("Rome", "Oslo") and call.call_id
        arguments = "".join(e.delta for e in c.responses.create(input="Weather?", stream=True,
                                                                **fields)
                            if e.type == "response.function_call_arguments.delta")
        assert arguments == call.arguments
        answer = c.responses.create(
            previous_response_id=whole.id, **{**fields, "tool_choice": "none",
                                              "max_output_tokens": 4},
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}])
        assert answer.output[0].type == "message", answer


def test_responses_cancel():
    with Server() as s, client(s) as c:
        stream = c.responses.create(model="llama", input="Go on", stream=True,
                                    extra_body={"seed": 1, "ignore_eos": True})
        events = iter(stream)
        started = next(events).response
        cancelled = c.responses.cancel(started.id)
        assert cancelled.id == started.id and cancelled.status == "cancelled", cancelled
        for _ in events:
            pass
        harness.until(s.idle, "the generation has ended")
        assert c.responses.retrieve(started.id).status == "cancelled"


if __name__ == "__main__":
    harness.run(globals())

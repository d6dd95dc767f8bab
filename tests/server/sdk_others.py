"""Programs that are built upon OpenAI's API against the real program: the command `llm` with its
list of extra models, and LangChain."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Literal

import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

import harness
import sdk_openai
from harness import Server


class Llm:
    """The command with a home of its own."""

    def __init__(self, server):
        self.home = tempfile.mkdtemp()
        common = {"api_base": server.url + "/v1", "supports_schema": True}
        models = [{"model_id": "tiny", "model_name": "llama", **common},
                  {"model_id": "seer", "model_name": "shapes-vl", "vision": True, **common},
                  {"model_id": "raw", "model_name": "llama", "completion": True, **common},
                  {"model_id": "stored", "model_name": "llama", "responses": True, **common}]
        # JSON is YAML
        with open(os.path.join(self.home, "extra-openai-models.yaml"), "w") as f:
            json.dump(models, f)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home)

    def __call__(self, *words):
        env = {**os.environ, "LLM_USER_PATH": self.home, "OPENAI_API_KEY": "unused"}
        done = subprocess.run([sys.executable, "-B", "-m", "llm", *words], env=env, timeout=120,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()


def test_llm():
    with Server(model=[harness.MODEL, harness.SHAPES]) as s:
        harness.until(lambda: sum(": ready in" in x for x in s.lines) == 2, "both are loaded")
        with Llm(s) as llm:
            fields = ("-o", "temperature", "0", "-o", "max_tokens", "12")
            streamed = llm("-m", "tiny", "-s", "Be brief", *fields, "Hello")
            whole = llm("-m", "tiny", "-s", "Be brief", "--no-stream", *fields, "Hello")
            assert streamed == whole and whole, (streamed, whole)
            assert llm("-c", "-m", "tiny", *fields, "Go on")
            assert llm("-m", "raw", *fields, "Once")
            picture = os.path.join(harness.SHAPES, "examples", "01-circle.png")
            answer = llm("-m", "seer", "-o", "temperature", "0", "-a", picture, "What is this?")
            assert answer == "A red circle.", answer
            value = json.loads(llm("-m", "tiny", "-o", "seed", "2", "-o", "max_tokens", "200",
                                   "--schema", json.dumps(
                                       {"type": "object", "required": ["c"],
                                        "properties": {"c": {"enum": ["red", "blue"]}},
                                        "additionalProperties": False}), "Hello"))
            assert value["c"] in ("red", "blue"), value


@tool
def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """Weather of a city."""
    return "sunny in " + city


class Colour(pydantic.BaseModel):
    """A colour."""
    name: Literal["red", "blue"]
    bright: bool


def chat(server, model="llama", **fields):
    return ChatOpenAI(base_url=server.url + "/v1", api_key="unused", model=model, max_retries=0,
                      **fields)


def test_langchain():
    with Server() as s:
        llm = chat(s, temperature=0, max_tokens=12)
        messages = [SystemMessage("Be brief"), HumanMessage("Hello")]
        whole = llm.invoke(messages)
        assert isinstance(whole, AIMessage) and whole.content
        assert whole.usage_metadata["output_tokens"] == 12
        assert "".join(x.content for x in llm.stream(messages)) == whole.content
        assert [m.content for m in llm.batch([messages, messages])] == [whole.content] * 2
        assert llm.invoke([*messages, whole, HumanMessage("Go on")]).content
        # tools, forced and with the result handed back
        bound = chat(s, temperature=1, seed=3, max_tokens=300).bind_tools(
            [get_weather], tool_choice="any", parallel_tool_calls=False)
        asked = bound.invoke("Weather?")
        call = asked.tool_calls[0]
        assert call["name"] == "get_weather" and call["args"]["city"] in ("Rome", "Oslo"), asked
        gathered = None
        for chunk in bound.stream("Weather?"):
            gathered = chunk if gathered is None else gathered + chunk
        assert gathered.tool_calls[0]["args"] == call["args"], gathered
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage)
        assert llm.invoke([HumanMessage("Weather?"), asked, result]).content
        for method in ("json_schema", "function_calling"):
            made = chat(s, temperature=1, seed=2, max_tokens=300).with_structured_output(
                Colour, method=method).invoke("Hello")
            assert isinstance(made, Colour), (method, made)
        # the same by responses
        assert chat(s, temperature=0, use_responses_api=True).invoke("Hello", max_tokens=12).content


def test_langchain_pictures():
    uris, question, answer, _ = sdk_openai.examples()[0]
    with Server(model=harness.SHAPES) as s:
        reply = chat(s, model="shapes-vl", temperature=0).invoke([HumanMessage([
            {"type": "text", "text": question},
            {"type": "image_url", "image_url": {"url": uris[0]}}])])
        assert reply.content.strip() == answer, reply


def test_langchain_embeddings():
    with Server("--precision", "exact", model=sdk_openai.BERT) as s:
        e = OpenAIEmbeddings(base_url=s.url + "/v1", api_key="unused", model="bert",
                             check_embedding_ctx_length=False)
        vectors = e.embed_documents(["one", "two"])
        assert len(vectors) == 2 and e.embed_query("one") == vectors[0]


if __name__ == "__main__":
    harness.run(globals())

"""SmolLM2 and shapes-vl end to end on the OpenXLA backend: the command line, the server, one request
and several at once, with pictures. What the CPU backend says in its exact precision is the measure;
its most likely tokens stand clear of the next ones for these prompts, so the texts are equal.
"""
import base64
import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.environ["MXC_SOURCE"], "tests", "server"))
from harness import DATA, PROGRAM, SHAPES, Server, run, until  # noqa: E402

STORE = os.environ.get("MLXCEL_MODELS_DIR") or os.path.join(
    os.environ.get("MLXCEL_CACHE_DIR") or os.path.expanduser("~/.cache/mlxcel"), "models")
SMOL = os.path.join(STORE, "HuggingFaceTB", "SmolLM2-135M-Instruct",
                    "SmolLM2-135M-Instruct.Q4_1.gguf")
LLAMA = os.path.join(DATA, "golden", "llama")
QUESTION = "Why is the sky blue?"
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith("MLXCEL_XLA_") or k == "MLXCEL_XLA_PLUGIN"}


def generate(model, *options, status=0):
    done = subprocess.run([PROGRAM, "generate", model, "--temp", "0", *options], env=CLEAN,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == status, (options, done.returncode, done.stderr[-800:])
    return done.stdout if not status else done.stderr


def examples():
    with open(os.path.join(SHAPES, "examples", "examples.json"), encoding="utf-8") as f:
        return [e for e in json.load(f) if len(e["images"]) == 1]


def picture(name):
    return os.path.join(SHAPES, "examples", os.path.basename(name))


def text_model():
    return SMOL if os.path.exists(SMOL) else LLAMA


def test_text_on_the_command_line():
    model = text_model()
    options = ("-p", QUESTION, "-n", "16")
    cpu = generate(model, *options, "--precision", "exact")
    assert generate(model, *options, "--backend", "xla") == cpu


def test_text_on_two_devices():
    model = text_model()
    options = ("-p", QUESTION, "-n", "16")
    cpu = generate(model, *options, "--precision", "exact")
    assert generate(model, *options, "--backend", "xla", "--tp-size", "2") == cpu


def test_bench_shows_both_backends():
    done = subprocess.run([PROGRAM, "bench", text_model(), "--backend", "cpu,xla", "-p", "16", "-n",
                           "4", "-r", "1", "--json"], env=CLEAN, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    rows = json.loads(done.stdout)
    assert [r["backend"] for r in rows] == ["cpu", "cpu", "xla", "xla"]
    assert all(r["avg_ts"] > 0 for r in rows)


def test_a_picture_on_the_command_line_under_every_policy():
    name = examples()[0]["images"][0]
    options = ("-p", "Describe the image.", "-n", "24", "--image", picture(name))
    cpu = generate(SHAPES, *options, "--precision", "exact")
    for policy in ("auto", "host", "device", "iree"):
        assert generate(SHAPES, *options, "--backend", "xla",
                        "--xla-vision-backend", policy) == cpu, policy


def test_admission_on_the_command_line():
    model = text_model()
    ids = subprocess.run([PROGRAM, "tokenize", model, "--add-special", "-p", QUESTION], env=CLEAN,
                         capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    options = ("-p", QUESTION, "--no-chat-template", "--backend", "xla",
               "--xla-context-capacity", "24")
    generate(model, *options, "-n", "4")
    error = generate(model, *options, "-n", "24", status=1)
    assert "24 new tokens" in error and "the capacity of 24" in error, (error, ids)


# ---- the server


def uri(name):
    with open(picture(name), "rb") as f:
        kind = os.path.splitext(name)[1][1:].replace("jpg", "jpeg")
        return f"data:image/{kind};base64," + base64.b64encode(f.read()).decode()


def ask(server, model, question, name=None, **fields):
    content = [{"type": "text", "text": question}]
    if name:
        content.insert(0, {"type": "image_url", "image_url": {"url": uri(name)}})
    status, body = server.post("/v1/chat/completions", {
        "model": model, "messages": [{"role": "user", "content": content}], "temperature": 0,
        "max_tokens": 16, **fields})
    assert status == 200, (status, body)
    return body["choices"][0]["message"]["content"]


def answers(server, questions):
    """All at once; in the order of the questions."""
    out = [None] * len(questions)

    def one(i):
        out[i] = ask(server, *questions[i])
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(questions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def test_the_server_batched_with_pictures():
    smol = text_model()
    questions = [("text", QUESTION), ("text", "Name three colours."), ("text", "What is rain?")]
    questions += [("shapes", "Describe the image.", e["images"][0]) for e in examples()[:3]]
    flags = ("--alias", "text", "--alias", "shapes", "--parallel", "4")
    both = [smol, SHAPES]
    with Server(*flags, "--precision", "exact", model=both, env=CLEAN, wait=False) as s:
        ready(s)
        cpu = answers(s, questions)
    with Server(*flags, "--backend", "xla", model=both, env=CLEAN, wait=False) as s:
        found = ready(s)
        assert found["text"]["vision"] == "none", found
        assert found["shapes"]["vision"] == "supported", found
        for model in found.values():
            assert model["backend"] == "xla" and model["batch_invariant"] is False, model
        one_by_one = [ask(s, *q) for q in questions]
        together = answers(s, questions)
        # logprobs and a grammar work on the logits that came back
        status, body = s.post("/v1/chat/completions", {
            "model": "text", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4,
            "logprobs": True, "top_logprobs": 3, "temperature": 0})
        assert status == 200 and len(body["choices"][0]["logprobs"]["content"]) == 4, body
        # the end of the capacity, with all three numbers
        status, body = s.post("/v1/chat/completions", {
            "model": "text", "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 2147483647})
        assert status == 400 and "2147483647 new tokens" in body["error"]["message"], body
        assert body["error"]["type"] == "exceed_context_size_error", body
        until(s.idle, "nothing is left running")
    assert one_by_one == cpu, (one_by_one, cpu)
    assert together == cpu, (together, cpu)


def ready(server):
    def states():
        return {m["id"]: m for m in json.loads(server.get("/v1/models")[2])["data"]}
    until(lambda: all(m["status"] != "loading" for m in states().values()), "models are loaded")
    found = states()
    assert all(m["status"] == "ready" for m in found.values()), found
    return found


run(globals())

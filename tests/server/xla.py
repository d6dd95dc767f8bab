"""What a server tells about models on the OpenXLA backend: which of them see, and why not, where
nothing can run on a device; and what becomes of it when the device is lost. MXC_XLA is the build:
none, seam (no device runtime) or device.
"""
import base64
import json
import os
import subprocess
import tempfile
import threading

from harness import (DATA, PATIENCE, PROGRAM, SHAPES, Server, events, long_request, run, temporary,
                     until)

BUILD = os.environ["MXC_XLA"]
GOLDEN = os.path.join(DATA, "golden")
REBUILD = "rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"
CLEAN = {"MLXCEL_CACHE_DIR": tempfile.gettempdir() + "/mlxcel-no-such-cache",
         **{f"MLXCEL_{name}": "" for name in
            ("BACKEND", "XLA_PLUGIN", "XLA_PRECISION", "XLA_CONTEXT_CAPACITY",
             "XLA_VISION_BACKEND")}}


def paths(*names):
    return [os.path.join(GOLDEN, name) for name in names]


def models(server):
    until(lambda: all(m["status"] != "loading" for m in json.loads(
        server.get("/v1/models")[2])["data"]), "nothing is being loaded")
    return {m["id"]: m for m in json.loads(server.get("/v1/models")[2])["data"]}


def test_cpu_sees_in_every_build():
    with Server(model=paths("qwen2_vl", "llama"), wait=False, env=CLEAN) as s:
        found = models(s)
        assert found["qwen2_vl"]["vision"] == "supported", found
        assert found["qwen2_vl"]["modalities"]["input"] == ["text", "image"], found
        assert found["llama"]["vision"] == "none" and "vision_reason" not in found["llama"], found


def test_without_the_runtime_text_only_and_cannot_are_two_things():
    if BUILD != "seam":
        return
    with Server("--backend", "xla", model=paths("llama", "llava_clip_llama", "qwen2_vl"),
                wait=False, env=CLEAN) as s:
        found = models(s)
        llama, llava, qwen = (found[k] for k in ("llama", "llava_clip_llama", "qwen2_vl"))
        # the checkpoint has no eye
        assert llama["status"] == "ready" and llama["vision"] == "none", llama
        assert "vision_reason" not in llama and llama["backend"] == "xla", llama
        # it has one, the session was made, this binary cannot run it
        assert llava["status"] == "ready" and llava["vision"] == "unavailable", llava
        assert llava["vision_reason"] == ("this build lacks the device runtime (feature "
                                          "xla-device): " + REBUILD), llava
        assert llava["modalities"]["input"] == ["text"], llava
        # the session was refused at the start
        assert qwen["status"] == "unavailable" and qwen["vision"] == "unavailable", qwen
        assert qwen["vision_reason"] == qwen["error"] == (
            "OpenXLA image preprocessor load failed: qwen2_vl: the image path needs the device "
            "runtime (feature xla-device), which this build lacks: " + REBUILD), qwen
        # what is ready is there to be looked at; running it is a typed error
        status, body = s.chat(model="llama", max_tokens=2)
        assert status == 501 and body["error"]["type"] == "not_supported_error", (status, body)
        assert body["error"]["message"] == (
            "XLA: this build has no device runtime: rebuild with -DMLXCEL_XLA_DEVICE_RUNTIME=ON"), body


def test_a_policy_that_is_none_ends_it_before_it_is_ready():
    if BUILD == "none":
        return
    done = subprocess.run(
        [PROGRAM, "serve", *paths("llama"), "--port", "0", "--backend", "xla",
         "--xla-vision-backend", "tpu"], env={**os.environ, **CLEAN}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done
    assert ("OpenXLA image preprocessor load failed: MLXCEL_XLA_VISION_BACKEND: \"tpu\" must be auto, "
            "host, device or iree") in done.stderr, done.stderr
    assert ": ready" not in done.stdout, done.stdout


# ---- on the plugin of the tests, which computes nothing and can lose its device


def report(path):
    with open(path, encoding="utf-8") as f:
        words = f.read().split()
    return {words[i]: int(words[i + 1]) for i in range(0, 8, 2)}


def test_a_device_that_is_lost_in_the_middle_of_a_batch():
    if BUILD != "device":
        return
    ends, path = {}, temporary()
    env = {**CLEAN, "MXC_FAKE_LOSE_AFTER": "80", "MXC_FAKE_REPORT": path}
    with Server("--backend", "xla", "--xla-plugin", os.environ["MXC_FAKE_PLUGIN"], "-np", "3",
                model=paths("llama"), env=env) as s:
        assert s.get("/health")[0] == 200

        def one(i):
            body = long_request(messages=[{"role": "user", "content": f"{i} go on"}],
                                temperature=0, stream=i % 2 == 0)
            ends[i] = s.request("POST", "/v1/chat/completions", body)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        # a terminal error for every one of them: of three that ran and three that waited
        said = "the device was lost: UNAVAILABLE: the fake device was lost"
        for i, (status, _, text) in ends.items():
            if i % 2 == 0 and status == 200:
                last = [e for e in events(text) if e != "[DONE]"][-1]
                assert said in last["error"]["message"], (i, last)
                assert last["error"]["type"] == "server_error", last
            else:
                body = json.loads(text)
                assert status in (500, 503) and said in body["error"]["message"], (i, status, body)
        assert any(status == 500 for status, _, _ in ends.values()), ends
        # the server says so
        status, _, text = s.get("/health")
        body = json.loads(text)
        assert status == 503, (status, body)
        assert body["error"]["message"].startswith(
            '"llama" cannot be served any more: XLA: running '), body
        assert said in body["error"]["message"], body
        model = models(s)["llama"]
        assert model["status"] == "unavailable" and said in model["error"], model
        status, body = s.chat(max_tokens=2)
        assert status == 503 and said in body["error"]["message"], (status, body)
        until(lambda: any("model llama: lost, it cannot be served any more: XLA: " in x
                          for x in s.errors), "it is said on the terminal")
        until(s.idle, "nothing is left running")
    found = report(path)
    os.unlink(path)
    assert found == {"executions": 80, "calls_when_lost": 0, "live": 0, "bad": 0}, found


def test_a_picture_runs_on_the_device_that_counts():
    if BUILD != "device":
        return
    runs = {}
    picture = os.path.join(SHAPES, "examples", "05-four.webp")
    with open(picture, "rb") as f:
        uri = "data:image/webp;base64," + base64.b64encode(f.read()).decode()
    for policy in ("host", "device"):
        path = temporary()
        with Server("--backend", "xla", "--xla-plugin", os.environ["MXC_FAKE_PLUGIN"],
                    "--xla-vision-backend", policy, "--alias", "shapes", model=SHAPES,
                    env={**CLEAN, "MXC_FAKE_REPORT": path}) as s:
            assert models(s)["shapes"]["vision"] == "supported"
            content = [{"type": "image_url", "image_url": {"url": uri}},
                       {"type": "text", "text": "What is this?"}]
            status, body = s.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": content}], "temperature": 0,
                "ignore_eos": True, "max_tokens": 3})
            assert status == 200 and body["usage"]["completion_tokens"] == 3, (status, body)
        runs[policy] = report(path)
        os.unlink(path)
    for found in runs.values():
        assert (found["live"], found["bad"]) == (0, 0), runs
    # what the tower adds, on the device only
    assert runs["device"]["executions"] > runs["host"]["executions"] >= 3, runs


run(globals())

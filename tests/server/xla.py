"""What a server tells about models on the OpenXLA backend where nothing can run on a device: which
of them see, and why not. MXC_XLA is the build: none, seam (no device runtime) or device.
"""
import json
import os
import tempfile

from harness import DATA, Server, run, until

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
    with Server("--backend", "xla", "--xla-vision-backend", "tpu", model=paths("llama"),
                wait=False, env=CLEAN, expect_exit=1) as s:
        until(lambda: s.process.poll() is not None, "the server ends")
        assert any("OpenXLA image preprocessor load failed: MLXCEL_XLA_VISION_BACKEND: \"tpu\" "
                   "must be auto, host, device or iree" in line for line in s.errors), s.errors
        assert not any(": ready" in line for line in s.lines), s.lines


run(globals())

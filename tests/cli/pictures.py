"""pictures.py PROGRAM MODELS_DIR GOLDEN_DIR: pictures on the command line: sizes, budgets, colours,
what is refused, and what inspect says of every family.

Prints each failure and `N passed, N failed`; exit status 1 when there is any.
"""
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

PROGRAM, MODEL, GOLDEN = sys.argv[1], os.path.join(sys.argv[2], "shapes-vl"), sys.argv[3]
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_clip_llama", "llava_siglip_qwen2", "mllama",
            "gemma3", "idefics3")
failed, passed = 0, 0


def check(name, ok, what=""):
    global failed, passed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAILED:", name, what)


def png(path, width, height, row, bits=8, colour=2):
    """row(y): the bytes of a row."""
    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(b"\x00" + row(y)) for y in range(height)) + packer.flush()
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n"
                + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
                + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path


def ask(picture, *options, n=4):
    """(status, answer or error text, peak bytes of the process)"""
    command = [PROGRAM, "generate", MODEL, "-p", "What is this?", "--temp", "0", "-n", str(n),
               "--json", "--image", picture, *options]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        out.seek(0)
        errors.seek(0)
        code = os.waitstatus_to_exitcode(status)
        # on a slow machine it tells how far it is
        said = "".join(x for x in errors if not x.startswith("loading "))
        return code, out.read() if not code else said, usage.ru_maxrss * 1024


def tokens(picture, *options):
    code, text, _ = ask(picture, *options)
    if code:
        return text
    return json.loads(text)["usage"]["prompt_tokens"]


def check_sizes(work):
    def gradient(y):
        return bytes(v for x in range(0, 4000, 8) for _ in range(8)
                     for v in (x >> 4 & 255, y >> 4 & 255, (x + y) >> 5 & 255))
    rows = [gradient(y) for y in range(0, 3000, 100)]
    photo = png(os.path.join(work, "photo.png"), 4000, 3000, lambda y: rows[y // 100])
    code, text, peak = ask(photo)
    few = text if code else json.loads(text)["usage"]["prompt_tokens"]
    check("a photo of 4000 x 3000", isinstance(few, int) and few < 100, few)
    check("within 300 MB", peak < 300e6, peak)
    many = tokens(photo, "--image-max-pixels", str(1 << 18))
    # squares of 28 pixels: 21 x 15, and 6 x 5 as the file of the model says
    check("of more", isinstance(many, int) and many == few + 21 * 15 - 6 * 5, many)
    more = ask(photo, "--image-max-pixels", "4194304")
    check("more than the context", more[0] and "context holds" in more[1], more)
    small = png(os.path.join(work, "small.png"), 28, 28, lambda y: bytes(84))
    least = tokens(small)
    other = shutil.copy(small, os.path.join(work, "small.jpg"))
    check("by content, not by name", tokens(other) == least, least)
    large = tokens(small, "--image-min-pixels", "12544", "--image-max-pixels", "12544")
    check("at least so many pixels", large == least + 16 - 4, (least, large))
    few = ask(photo, "--image-max-megapixels", "4")
    check("more than so many megapixels", few[0] and "the limit of 4194304" in few[1], few)
    bad = ask(small, "--image-background", "white")
    check("no colour", bad[0] and "RRGGBB" in bad[1], bad)


def model_without_limit(work):
    """A checkpoint whose files allow pictures of 12.8 megapixels, as Qwen2-VL's do."""
    folder = os.path.join(work, "large")
    shutil.copytree(os.path.join(GOLDEN, "qwen2_vl"), folder,
                    ignore=shutil.ignore_patterns("golden"))
    name = os.path.join(folder, "preprocessor_config.json")
    with open(name, encoding="utf-8") as f:
        settings = json.load(f)
    settings.pop("size", None)
    settings["max_pixels"] = 12845056
    os.chmod(name, 0o644)
    with open(name, "w", encoding="utf-8") as f:
        json.dump(settings, f)
    return folder


def check_default_budget(work):
    model = model_without_limit(work)
    photo = os.path.join(work, "photo.png")
    whole = json.loads(inspect(model, "--image-max-pixels", "12845056"))["vision"]
    check("the file's limit", whole["tokens"] >= 106 * 142, whole)
    plain = json.loads(inspect(model))["vision"]
    check("one megapixel by default", plain["max_pixels"] == 1 << 20
          and 42 * 31 <= plain["tokens"] <= 42 * 31 + 2, plain)
    # no part of it grows with the square of the patches: 15,052 x 15,052 numbers are 906 MB
    check("memory grows with the patches",
          whole["bytes"] < 1.1 * whole["patches"] / plain["patches"] * plain["bytes"]
          and whole["bytes"] < 300e6, (whole, plain))
    command = [PROGRAM, "generate", model, "-p", "What?", "--temp", "0", "-n", "2", "--json",
               "--image", photo]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    n = result.returncode or json.loads(result.stdout)["usage"]["prompt_tokens"]
    check("a photo at the default", 42 * 31 < n < 42 * 31 + 64, (n, result.stderr))
    check("the default is told", "at most 1048576 pixels" in result.stderr, result.stderr)
    command[-1] = os.path.join(work, "small.png")
    result = subprocess.run(command + ["--image-max-pixels", "100000"], capture_output=True,
                            text=True, check=False)
    check("but not when it was given", not result.returncode and "pixels" not in result.stderr,
          result.stderr)


def inspect(model, *options):
    return subprocess.run([PROGRAM, "inspect", model, "--image-size", "4000x3000", "--json",
                           *options], capture_output=True, text=True, check=True).stdout


def check_background(work):
    clear = png(os.path.join(work, "clear.png"), 56, 56, lambda y: b"\x10\x00" * 56, colour=4)
    def grey(v):
        return png(os.path.join(work, f"grey{v}.png"), 56, 56, lambda y: bytes([v]) * 56, colour=0)
    def answer(*args):
        code, text, _ = ask(*args, n=12)
        return text if code else json.loads(text)["text"]
    check("transparency is white", answer(clear) == answer(grey(255)))
    check("or what was asked", answer(clear, "--image-background", "404040") == answer(grey(64)))


def check_conversation(work):
    """The picture stands in the first message, and stays."""
    folder = os.path.join(MODEL, "examples")
    with open(os.path.join(folder, "examples.json"), encoding="utf-8") as f:
        first, second = json.load(f)[:2]  # of the same picture
    command = [PROGRAM, "run", MODEL, "--temp", "0", "--image",
               os.path.join(folder, first["images"][0])]
    result = subprocess.run(command + ["-p", first["question"]], capture_output=True, text=True,
                            check=False)
    check("run", result.stdout.strip() == first["answer"], result)
    terminal, end = pty.openpty()
    environment = {**os.environ, "MLXCEL_CACHE_DIR": work, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        os.write(terminal, "\n".join([first["question"], second["question"], "/exit", ""]).encode())
        shown = b""
        try:
            while data := os.read(terminal, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
        os.close(terminal)
    text = shown.decode(errors="replace")
    check("a conversation", process.returncode == 0
          and 0 < text.find(first["answer"]) < text.find(second["answer"]), text)


def check_refusals(work):
    line = bytes(30000 // 8)
    huge = png(os.path.join(work, "huge.png"), 30000, 30000, lambda y: line, bits=1, colour=0)
    code, text, peak = ask(huge)
    check("30000 x 30000 pixels are refused",
          code and text.count("\n") == 1 and "30000 x 30000 pixels" in text, text)
    check("within 200 MB", peak < 200e6, peak)
    for name, head, word in (("a.mp4", b"\x00\x00\x00\x18ftypmp42" + bytes(64), "video"),
                             ("a.mkv", b"\x1a\x45\xdf\xa3" + bytes(64), "video"),
                             ("a.tiff", b"II*\x00" + bytes(64), "TIFF"),
                             ("a.ppm", b"P6\n2 2\n255\n" + bytes(12), "PPM"),
                             ("empty.png", b"", "empty.png")):
        path = os.path.join(work, name)
        with open(path, "wb") as f:
            f.write(head)
        code, text, _ = ask(path)
        check(name, code and text.count("\n") == 1 and word in text, text)


def check_inspect():
    for name in FAMILIES:
        command = [PROGRAM, "inspect", os.path.join(GOLDEN, name), "--image-size", "4000x3000"]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        check(f"inspect {name}", "4000x3000 is seen as" in text and " tokens, " in text, text)
        found = json.loads(subprocess.run(command + ["--json"], capture_output=True, text=True,
                                          check=True).stdout)["vision"]
        check(f"inspect {name} as JSON", found["tokens"] > 0 and found["patches"] > 0
              and found["bytes"] > 0, found)
    command = [PROGRAM, "inspect", MODEL, "--image-size", "4000x3000", "--image-max-pixels",
               "1048576", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    check("inspect with a budget", found["vision"]["tokens"] == 42 * 31 + 2
          or found["vision"]["tokens"] == 42 * 31, found["vision"])
    check("the budget is told", found["vision"]["max_pixels"] == 1048576, found["vision"])
    for size, why in (("999999x999999", "at most 67108864"), ("4294967300x10", "WIDTHxHEIGHT")):
        text = subprocess.run([PROGRAM, "inspect", MODEL, "--image-size", size],
                              capture_output=True, text=True, check=False)
        check(f"inspect of {size}", text.returncode == 2 and why in text.stderr, text.stderr)
    text = subprocess.run([PROGRAM, "inspect", os.path.join(GOLDEN, "llama"), "--image-size",
                           "64x64"], capture_output=True, text=True, check=False)
    check("inspect of a model that does not see", text.returncode and "see" in text.stderr,
          text.stderr)


def main():
    with tempfile.TemporaryDirectory() as work:
        check_sizes(work)
        check_default_budget(work)
        check_background(work)
        check_refusals(work)
        check_conversation(work)
    check_inspect()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks of the source tree that need no build. Usage: check_tree.py [--root DIR] [CHECK...]

  layers  a file includes its own folder and lower layers only (the table is LAYERS below)
  sizes   files <= 1,500 lines, functions <= 200 lines, lines <= 100 columns; gen/ folders apart
  calls   banned functions, allocation outside base/mem.c, output or exit in library modules,
          intrinsics outside backend/cpu/kernels/<isa>/ and base/cpu.c
  words   leftovers (unfinished marks, paths of a machine, hosts of package registries)
  data    what is kept for tests takes at most 64 MB
  heads   every source file opens with a comment that says what it owns

Prints one line per breach, "file:line: what", and a summary; exit status 1 when there is any.
"""
import os
import re
import subprocess
import sys

# Folder of src -> level. A file may include folders of lower levels, and its own.
LAYERS = {
    "base": 0,
    "quant": 1, "comm": 1,
    "format": 2, "text": 2, "image": 2, "graph": 2,
    "surgery": 3, "models": 3, "backend": 3,
    "engine": 4,
    "gen": 5, "store": 5,
    "server": 6, "api": 6,
    "cli": 7,
}
# Extra denials: (included path, who may include it all the same, why).
DENIALS = [
    (r"backend/cpu/", r"src/backend/cpu/", "only backend.h is seen from outside"),
    (r"backend/xla/", r"src/backend/xla/", "only backend.h is seen from outside"),
    (r"models/(?!vision\.h)", r"src/(models/|engine/(load|xla_image)\.c)",
     "only engine/load.c knows families"),
    (r"models/vision\.h", r"src/(models|engine|gen)/", "the eye is used by engine/ and gen/"),
    (r"engine/", r"src/(engine|gen|api)/", "the engine is reached through gen/ and the public API"),
    (r"backend/", r"src/(backend|engine|gen|api)/", "backends are the engine's"),
    (r".*pjrt", r"src/backend/xla/", "PJRT belongs to backend/xla/"),
]
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_COLUMNS = 1500, 200, 100
MAX_DATA_BYTES = 64_000_000
SOURCE_FOLDERS = ("src", "include", "tests", "bench", "tools", "examples")

ALLOCATION = r"malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf"
BANNED_EVERYWHERE = r"strcpy|strcat|stpcpy|sprintf|vsprintf|gets|alloca|strtok|mktemp|tmpnam"
LIBRARY_BANNED = r"printf|vprintf|puts|putchar|perror|exit|_exit|abort|system|popen"
INTRINSICS = r"(immintrin|x86intrin|emmintrin|xmmintrin|smmintrin|avx\w*intrin)\.h"


def files_of(root):
    """Relative paths of what is, or would be, committed."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"],
                             check=True, capture_output=True).stdout
        names = [n for n in out.decode("utf-8", "surrogateescape").split("\0") if n]
        top = subprocess.run(["git", "-C", root, "rev-parse", "--show-prefix"], check=True,
                             capture_output=True, text=True).stdout.strip()
        if not top and names:
            return sorted(n for n in names if os.path.isfile(os.path.join(root, n)))
    except (OSError, subprocess.CalledProcessError):
        pass
    names = []
    for folder, folders, inside in os.walk(root):
        folders[:] = [f for f in folders if f not in (".git", "build", "__pycache__")]
        names += [os.path.relpath(os.path.join(folder, n), root) for n in inside]
    return sorted(names)


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def is_source(name):
    return name.startswith(SOURCE_FOLDERS) and name.endswith((".c", ".h", ".def")) \
        and not name.startswith("tests/data/")


def is_generated(name):
    """Tables written by a tool lie in a folder gen/ of a module (src/gen/ itself is a module)."""
    return "/gen/" in name.removeprefix("src/gen/")


def blank(text):
    """The C text with comments and literals blanked out, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def check_layers(root, names):
    for name in names:
        match = re.match(r"src/([^/]+)/", name)
        if not match or not is_source(name):
            continue
        folder = match.group(1)
        if folder not in LAYERS:
            yield name, 1, f"folder src/{folder} has no layer"
            continue
        for number, line in enumerate(read(root, name).split("\n"), 1):
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not include:
                continue
            path = include.group(1)
            target = path.split("/")[0] if "/" in path else folder
            if path == "mlxcel.h":
                if LAYERS[folder] < LAYERS["api"]:
                    yield name, number, "the public header is above this layer"
                continue
            if ".." in path.split("/"):
                yield name, number, f'"{path}": a path of its own, from src/'
            elif "/" in path and target not in LAYERS:
                if not os.path.exists(os.path.join(root, os.path.dirname(name), path)):
                    yield name, number, f'"{path}": no such layer'
            elif target != folder and LAYERS[target] >= LAYERS[folder]:
                yield name, number, (f'"{path}": {folder} (L{LAYERS[folder]}) may not include '
                                     f"{target} (L{LAYERS[target]})")
            else:
                for pattern, allowed, why in DENIALS:
                    if re.match(pattern, path) and not re.match(allowed, name):
                        yield name, number, f'"{path}": {why}'
                        break


def check_sizes(root, names):
    for name in names:
        if not is_source(name) or is_generated(name):
            continue
        lines = read(root, name).split("\n")
        if lines and not lines[-1]:
            lines.pop()
        if len(lines) > MAX_FILE_LINES:
            yield name, len(lines), f"{len(lines)} lines, more than {MAX_FILE_LINES}"
        start, head = None, ""
        for number, line in enumerate(lines, 1):
            width = len(re.sub(r"\s*\\$", "", line))  # clang-format pads macros as it likes
            if width > MAX_COLUMNS:
                yield name, number, f"{width} columns, more than {MAX_COLUMNS}"
            # A body opens on the line of its parameters' end and closes in the first column.
            if start is None and re.match(r"[A-Za-z_].*\)\s*(\w+\s*)*\{$|^\s+.*\)\s*\{$", line):
                if not line.startswith((" ", "\t")) or re.match(r"[A-Za-z_].*\($|[A-Za-z_].*,$",
                                                                head):
                    start = number
            if line.startswith("}") and start is not None:
                if number - start + 1 > MAX_FUNCTION_LINES:
                    yield name, start, (f"a function of {number - start + 1} lines, more than "
                                        f"{MAX_FUNCTION_LINES}")
                start = None
            if line and not line.startswith((" ", "\t", "#", "/", "*")):
                head = line


def calls_in(code, names):
    return re.finditer(rf"(?<![\w.>])({names})\s*\(", code)


def check_calls(root, names):
    for name in names:
        if not is_source(name):
            continue
        text = read(root, name)
        code = blank(text)
        for match in calls_in(code, BANNED_EVERYWHERE):
            yield name, line_at(code, match.start()), f"{match.group(1)}() is banned"
        if not name.startswith("src/"):
            continue
        if name != "src/base/mem.c":
            for match in calls_in(code, ALLOCATION):
                if match.group(1) == "free" and name.startswith("src/cli/"):
                    continue  # libedit gives lines away
                yield name, line_at(code, match.start()), \
                    f"{match.group(1)}() outside base/mem.c (mxc_mem_*)"
        if not name.startswith("src/cli/"):
            for match in calls_in(code, LIBRARY_BANNED):
                yield name, line_at(code, match.start()), f"{match.group(1)}() in the library"
            for match in re.finditer(r"\b(stdout|stderr)\b", code):
                yield name, line_at(code, match.start()), f"{match.group(1)} in the library"
        isa = re.match(r"src/backend/cpu/kernels/[^/]+/", name)
        for match in re.finditer(rf"#\s*include\s*<{INTRINSICS}>", text):
            if not isa and name != "src/base/cpu.c":
                yield name, line_at(text, match.start()), \
                    "intrinsics belong to backend/cpu/kernels/<isa>/"


def word_rules():
    # Written in pieces so that this file passes its own check.
    hosts = ["py" + "pi.org", "python" + "hosted.org", "debian" + ".org/debian", "npm" + "js.org",
             "crates" + ".io", "proxy.go" + "lang.org", "rubygems" + ".org"]
    return [
        (re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b"),
         "an unfinished mark"),
        (re.compile(r"(?<![\w.$}])/(" + "|".join(["wor" + "k", "roo" + "t", "hom" + "e"]) + r")/\w"),
         "a path of one machine"),
        (re.compile(re.escape("../" + "shared")), "a path outside the project"),
        (re.compile("|".join(re.escape(h) for h in hosts)), "the host of a package registry"),
    ]


def check_words(root, names):
    rules = word_rules()
    for name in names:
        if name.startswith(("tests/data/", "tests/fuzz/corpus/")) or is_generated(name):
            continue
        path = os.path.join(root, name)
        if os.path.getsize(path) > 4 << 20:
            continue
        with open(path, "rb") as f:
            if b"\0" in f.read(4096):
                continue
        for number, line in enumerate(read(root, name).split("\n"), 1):
            for rule, what in rules:
                match = rule.search(line)
                if match:
                    yield name, number, f"{what}: {match.group(0)}"
    hub = [n for n in names if n.endswith((".c", ".h", ".sh")) or n == "dev"]
    place = "src/store/download.c"
    for name in hub:
        if name != place and not name.startswith("tests/"):
            for number, line in enumerate(read(root, name).split("\n"), 1):
                if '"https://hugging' + 'face.co"' in line:
                    yield name, number, f"the hub's address stands in {place} only"


def check_data(root, names):
    total = 0
    for name in names:
        if not name.startswith(("tests/data/", "tests/fuzz/corpus/")):
            continue
        total += os.path.getsize(os.path.join(root, name))
    if total > MAX_DATA_BYTES:
        yield "tests/data", 1, f"{total / 1e6:.1f} MB in all, more than {MAX_DATA_BYTES / 1e6:.1f}"


def check_heads(root, names):
    for name in names:
        if name.startswith(("src/", "include/", "bench/", "examples/")) and \
                name.endswith((".c", ".h")) and not read(root, name).startswith("/*"):
            yield name, 1, "does not open with a comment that says what it owns"


CHECKS = {"layers": check_layers, "sizes": check_sizes, "calls": check_calls,
          "words": check_words, "data": check_data, "heads": check_heads}


def main(arguments):
    root = "."
    if arguments[:1] == ["--root"] and len(arguments) > 1:
        root, arguments = arguments[1], arguments[2:]
    unknown = [a for a in arguments if a not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    names = files_of(root)
    breaches = 0
    for check in arguments or CHECKS:
        for name, line, what in CHECKS[check](root, names):
            print(f"{name}:{line}: {what}")
            breaches += 1
    print(f"{len(names)} files, {breaches} breach{'' if breaches == 1 else 'es'} "
          f"({' '.join(arguments or CHECKS)})")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

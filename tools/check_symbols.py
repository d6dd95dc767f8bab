#!/usr/bin/env python3
"""Checks what a build exports. Usage: check_symbols.py BUILD_DIR [HEADER]

Every global symbol of the module libraries (libmxc_*.a) is mxc_* or mlxcel_*; the shared library
exports mlxcel_* only, and exactly the functions that the public header declares. A library that the
build does not have is passed over, an empty build is an error. Exit status 1 on a breach.
"""
import glob
import os
import re
import subprocess
import sys


def symbols(path, *options):
    out = subprocess.run(["nm", "--defined-only", "-g", *options, path], check=True,
                         capture_output=True, text=True).stdout
    for line in out.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] != "A":
            yield parts[2].split("@")[0]


def main(arguments):
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = arguments[0]
    header = arguments[1] if len(arguments) > 1 else "include/mlxcel.h"
    breaches = 0
    archives = sorted(glob.glob(os.path.join(build, "libmxc_*.a")))
    if not archives:
        print(f"{build}: no module library")
        return 1
    for path in archives:
        for name in symbols(path):
            if not re.match(r"(mxc|mlxcel)_[a-z0-9]", name):
                print(f"{os.path.basename(path)}: {name}: not mxc_*; static, or renamed")
                breaches += 1
            if name.startswith("mlxcel_") and os.path.basename(path) != "libmxc_api.a":
                print(f"{os.path.basename(path)}: {name}: public names belong to src/api/")
                breaches += 1
    shared = os.path.join(build, "libmlxcel.so")
    if os.path.exists(shared):
        exported = set(symbols(shared, "-D"))
        with open(header, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", "", f.read(), flags=re.S)
        typedefs = re.compile(r"typedef[^;]*;", re.S)
        declared = set(re.findall(r"\b(mlxcel_\w+)\s*\(", typedefs.sub("", text)))
        for name in sorted(exported - declared):
            print(f"libmlxcel.so: {name}: exported but not in {header}")
            breaches += 1
        for name in sorted(declared - exported):
            print(f"libmlxcel.so: {name}: in {header} but not exported")
            breaches += 1
    print(f"{len(archives)} module libraries, {breaches} breach{'' if breaches == 1 else 'es'}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

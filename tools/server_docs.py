#!/usr/bin/env python3
"""Writes the tables of docs/server.md from `mlxcel serve --surface` (src/server/surface.def).

Usage: server_docs.py PROGRAM [--check]

The file's own text stays; what stands between <!-- begin NAME --> and <!-- end NAME --> is replaced.
--check changes nothing and exits with 1 when the file is not up to date.
"""
import json
import os
import re
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "server.md")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines)


def code(text):
    return f"`{text}`" if text else ""


def names(text):
    return ", ".join(code(n) for n in text.split(", "))


def tables(surface):
    routes = [(code(r["method"]), code(r["path"]), "no" if r["public"] else "yes", r["summary"])
              for r in surface["routes"]]
    flags = [(names(f["names"]) + (" " + f["value"] if f["value"] else ""),
              code(f["environment"]), f["help"]) for f in surface["flags"]]
    refused = [(names(f["names"]), code(f["environment"]), f["instead"])
               for f in surface["refused_flags"]]
    def fields(state):
        return [f for f in surface["fields"] if f["state"] == state]
    return {
        "routes": table(("method", "path", "needs a key", "what it does"), routes),
        "flags": table(("flag", "variable", "meaning (default)"), flags),
        "refused flags": table(("flag", "variable", "instead"), refused),
        "fields": table(("field", "type", "routes", "meaning"),
                        [(code(f["name"]), f["type"], ", ".join(f["routes"]), f["help"])
                         for f in fields("honoured")]),
        "labels": table(("field", "why it changes nothing"),
                        [(code(f["name"]), f["help"]) for f in fields("label")]),
        "refused fields": table(("field", "only", "instead"),
                                [(code(f["name"]), code(f["type"]), f["help"])
                                 for f in fields("only")]),
    }


def main(program, check):
    surface = json.loads(subprocess.run([program, "serve", "--surface"], check=True,
                                        capture_output=True).stdout)
    with open(PAGE, encoding="utf-8") as f:
        before = f.read()
    page = before
    for name, text in tables(surface).items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        page, n = re.subn(re.escape(begin) + ".*?" + re.escape(end),
                          lambda _: f"{begin}\n{text}\n{end}", page, flags=re.S)
        if n != 1:
            sys.exit(f"{PAGE}: {n} places for the table of {name}")
    if check:
        if page != before:
            sys.exit(f"{PAGE}: not up to date; run tools/server_docs.py {program}")
    elif page != before:
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(page)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], "--check" in sys.argv[2:])

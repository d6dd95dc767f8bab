#!/usr/bin/env python3
"""Generates src/text/gen/unicode_tables.{c,h} from Unicode 16 data.

    pip install unicodedata2==16.0.0 regex==2024.11.6
    python tools/gen_unicode.py src/text/gen

unicodedata2 16.0.0 carries the character database (categories, combining classes, decompositions);
regex 2024.11.6 (Unicode 16) the properties that module lacks (scripts, Alphabetic, White_Space).
Case mappings come from Python's own str methods; the pairs that Unicode 15 and 16 added stand in
NEW_CASE below, as older Pythons do not know them.
"""
import sys

import regex
import unicodedata2 as ucd

assert ucd.unidata_version == "16.0.0"
MAX = 0x110000
SCRIPTS = ["Han", "Hiragana", "Katakana", "Hangul", "Thai", "Latin", "Cyrillic", "Greek", "Arabic",
           "Hebrew", "Devanagari", "Bengali", "Tamil", "Lao", "Khmer", "Myanmar", "Tibetan"]
CATEGORIES = ("Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl "
              "No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs").split()
# Grapheme_Cluster_Break, with Extended_Pictographic beside it; Hangul syllables are computed.
BREAKS = ["CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark",
          "L", "V", "T"]
# upper -> lower, added by Unicode 15 and 16
NEW_CASE = {0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7DA: 0xA7DB, 0xA7DC: 0x19B, 0x1C89: 0x1C8A}
NEW_CASE.update({0x10D50 + i: 0x10D70 + i for i in range(22)})


def is_char(c):
    return not 0xD800 <= c < 0xE000


def ranges(pattern):
    match = regex.compile(pattern).match
    out, start = [], None
    for c in range(MAX + 1):
        inside = c < MAX and is_char(c) and match(chr(c)) is not None
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def lower(c):
    if c in NEW_CASE:
        return [NEW_CASE[c]]
    return [ord(x) for x in chr(c).lower()] if is_char(c) else [c]


def fold(c):
    if c in NEW_CASE:
        return NEW_CASE[c]
    if not is_char(c):
        return c
    f = chr(c).casefold()
    if len(f) == 1:
        return ord(f)
    low = chr(c).lower()
    return ord(low) if len(low) == 1 else c


def classes(patterns):
    """Class of every code point: 1 + the index of the first pattern it matches, 0: none."""
    out = [0] * MAX
    for i, pattern in reversed(list(enumerate(patterns))):
        for a, b in ranges(pattern):
            out[a:b + 1] = [i + 1] * (b + 1 - a)
    return out


def class_runs(of):
    return [c << 8 | of[c] for c in range(MAX) if not c or of[c] != of[c - 1]]


def script_names():
    """All scripts of the data, those of Japanese as one, as the reference has them."""
    found, left = [], set(range(MAX)) - set(range(0xD800, 0xE000))
    from regex import _regex_core
    names = {n for n in _regex_core.PROPERTIES["SCRIPT"][1]}
    for name in sorted(names):
        pattern = r"\p{Script=%s}" % name
        members = {c for a, b in ranges(pattern) for c in range(a, b + 1)}
        if members and members <= left and ucd.category(chr(min(members))) != "Cn":
            found.append(pattern)
            left -= members
    return found


def scripts():
    names = [n for n in script_names() if not any(x in n.lower() for x in ("=hani}", "=han}"))]
    of = classes(names)
    japanese = {c for k in ("Han", "Hiragana", "Katakana")
                for a, b in ranges(r"\p{Script=%s}" % k) for c in range(a, b + 1)} | {0x30FC}
    for c in japanese:
        of[c] = len(names) + 1
    of[32] = 0
    return of


class Table:
    def __init__(self):
        self.c, self.h = [], []

    def array(self, ctype, name, values, per_line=10, fmt="0x%X"):
        self.h.append(f"extern const {ctype} {name}[];")
        self.h.append(f"enum {{ {name.upper()}_COUNT = {len(values)} }};")
        lines = [f"const {ctype} {name}[] = {{"]
        for i in range(0, len(values), per_line):
            lines.append("    " + ", ".join(fmt % v for v in values[i:i + per_line]) + ",")
        self.c.append("\n".join(lines) + "\n};")


def main(folder):
    t = Table()
    runs, last = [], None
    for c in range(MAX):
        k = CATEGORIES.index(ucd.category(chr(c)))
        if k != last:
            runs.append(c << 8 | k)
            last = k
    t.array("uint32_t", "mxc_unicode_category_runs", runs)
    sets = [("space", r"\p{White_Space}"), ("alphabetic", r"\p{Alphabetic}")]
    sets += [(s.lower(), r"\p{Script=%s}" % s) for s in SCRIPTS]
    flat, index = [], []
    for _, pattern in sets:
        index.append(len(flat))
        for a, b in ranges(pattern):
            flat += [a, b]
    index.append(len(flat))
    t.array("uint32_t", "mxc_unicode_set_ranges", flat)
    t.array("uint16_t", "mxc_unicode_set_index", index, fmt="%d")
    folds = [(c, fold(c)) for c in range(MAX) if fold(c) != c]
    t.array("uint32_t", "mxc_unicode_folds", [x for p in folds for x in p])
    lowers = [(c, lower(c)) for c in range(MAX) if lower(c) != [c]]
    t.array("uint32_t", "mxc_unicode_lowers",
            [x for c, l in lowers for x in (c, l[0], l[1] if len(l) > 1 else 0)], per_line=9)
    ccc, last = [], 0
    for c in range(MAX):
        k = ucd.combining(chr(c))
        if k != last:
            ccc.append(c << 8 | k)
            last = k
    t.array("uint32_t", "mxc_unicode_ccc_runs", ccc)
    pool, entries = [], []  # entry: cp, then offset << 8 | length, canonical and compatibility
    where = {}

    def put(s):
        s = tuple(ord(x) for x in s)
        if s not in where:
            where[s] = len(pool)
            pool.extend(s)
        return where[s], len(s)

    for c in range(MAX):
        if not is_char(c) or 0xAC00 <= c < 0xAC00 + 11172:
            continue
        d, kd = ucd.normalize("NFD", chr(c)), ucd.normalize("NFKD", chr(c))
        if kd == chr(c):
            continue
        do, dn = put(d) if d != chr(c) else (0, 0)
        ko, kn = put(kd)
        entries += [c, do << 8 | dn, ko << 8 | kn]
    t.array("uint32_t", "mxc_unicode_decompositions", entries, per_line=9)
    t.array("uint32_t", "mxc_unicode_decomposition_pool", pool)
    comp = []
    for c in range(MAX):
        d = ucd.decomposition(chr(c)) if is_char(c) else ""
        if d and not d.startswith("<") and " " in d:
            a, b = (int(x, 16) for x in d.split())
            if ucd.normalize("NFC", chr(a) + chr(b)) == chr(c):
                comp.append((a, b, c))
    comp.sort()
    t.array("uint32_t", "mxc_unicode_compositions", [x for p in comp for x in p], per_line=9)

    pict = [r"\p{GCB=%s}" % b for b in BREAKS] + [r"\p{Extended_Pictographic}"]
    t.array("uint32_t", "mxc_unicode_break_runs", class_runs(classes(pict)))
    t.array("uint32_t", "mxc_unicode_script_runs", class_runs(scripts()))

    head = "/* Generated by tools/gen_unicode.py from Unicode 16.0. Do not edit. */\n"
    names = ", ".join("MXC_UNICODE_SET_" + n.upper() for n, _ in sets)
    with open(folder + "/unicode_tables.h", "w") as f:
        f.write(head + "#ifndef MXC_TEXT_GEN_UNICODE_TABLES_H\n"
                "#define MXC_TEXT_GEN_UNICODE_TABLES_H\n\n"
                "#include <stdint.h>\n\n"
                "/* Order of the categories in the low byte of mxc_unicode_category_runs. */\n"
                "enum mxc_unicode_category {\n    "
                + ",\n    ".join("MXC_UNICODE_" + k.upper() for k in CATEGORIES)
                + ",\n    MXC_N_UNICODE_CATEGORIES\n};\n"
                "enum mxc_unicode_set {\n    " + names.replace(", ", ",\n    ")
                + ",\n    MXC_N_UNICODE_SETS\n};\n"
                "/* Low byte of mxc_unicode_break_runs; that of mxc_unicode_script_runs is a number per\n"
                " * script, 0: none or a space. */\n"
                "enum mxc_unicode_break {\n    MXC_BREAK_OTHER,\n    MXC_BREAK_"
                + ",\n    MXC_BREAK_".join(b.upper() for b in BREAKS)
                + ",\n    MXC_BREAK_PICTURE\n};\n\n" + "\n".join(t.h) + "\n\n#endif\n")
    with open(folder + "/unicode_tables.c", "w") as f:
        f.write(head + '#include "text/gen/unicode_tables.h"\n\n/* clang-format off */\n\n'
                + "\n\n".join(t.c) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

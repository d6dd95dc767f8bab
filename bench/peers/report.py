"""Tables and a plot of what run.py measured: results (its JSON) in, Markdown and SVG out."""
import re
import statistics

PEERS = ["llama.cpp", "ik_llama.cpp", "openvino", "torch", "mlx-lm"]
PROGRAMS = ["mlxcel", *PEERS]
NAMES = {"openvino": "OpenVINO"}
KINDS = {"mlx4": "MLX 4-bit", "mlx8": "MLX 8-bit", "bf16": "bf16", "BF16": "bf16"}
SIZES = {"big": "1B shape", "smol": "SmolLM2-135M"}
MARKS = ("<!-- begin bench peers -->", "<!-- end bench peers -->")
COLOURS = {"mlxcel": "#0b6e4f", "llama.cpp": "#c1440e", "ik_llama.cpp": "#3d5a98"}


def median(values):
    return statistics.median(values) if values else 0.0


class Results:
    def __init__(self, results):
        self.by = {}
        for cell in results["cells"].values():
            model = cell["model"].replace("BF16", "bf16")
            self.by[(cell["part"], model, cell["threads"], cell["program"])] = cell

    def models(self, part):
        seen = {}
        for p, model, threads, _ in self.by:
            if p == part:
                seen[(model, threads)] = True
        return list(seen)

    def rounds(self, part, model, threads, program, test):
        """Median of each round in which it ran."""
        cell = self.by.get((part, model, threads, program))
        return [median(r["tests"].get(test, [])) for r in cell["rounds"]] if cell else []

    def value(self, *where):
        return median([v for v in self.rounds(*where) if v])

    def failed(self, part, model, threads, program):
        cell = self.by.get((part, model, threads, program))
        return next((r["failed"] for r in cell["rounds"] if "failed" in r), "") if cell else ""

    def tests(self, part, model, threads, program="mlxcel"):
        cell = self.by.get((part, model, threads, program))
        return list(cell["rounds"][0]["tests"]) if cell else []

    def ratio(self, part, model, threads, test, peer, peer_test=None):
        """Median of the ratios of the rounds that have both, so of runs next to each other."""
        ours = self.rounds(part, model, threads, "mlxcel", test)
        theirs = self.rounds(part, model, threads, peer, peer_test or test)
        return median([a / b for a, b in zip(ours, theirs) if a and b])


def number(v):
    return "" if not v else f"{v:,.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def counted(n, noun):
    return f"{n} {noun}" + ("s" if n != 1 else "")


def name_of(model):
    size, kind = model.split(" ")
    return f"{SIZES.get(size, size)} {KINDS.get(kind, kind)}"


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def head(cells):
    return row(cells) + row(["---"] + ["---:"] * (len(cells) - 1))


def pick(tests, start):
    return next((t for t in tests if t.startswith(start) and " " not in t), "")


def speeds(r, part, title, start, notes):
    """One table: models down, programs across; of prompts ("pp") or of generation ("tg")."""
    shown = [p for p in PROGRAMS if any(k[0] == part and k[3] == p for k in r.by)]
    text = ""
    for model, threads in r.models(part):
        test = pick(r.tests(part, model, threads), start)
        if not test:
            continue
        cells, ratios = [name_of(model)], {}
        for p in shown:
            their = test if p == "mlxcel" else pick(r.tests(part, model, threads, p), start)
            v = r.value(part, model, threads, p, their)
            why = r.failed(part, model, threads, p)
            text_of = number(v)
            if not v and why:
                notes.append(f"{NAMES.get(p, p)} on {name_of(model)}: {why}")
                text_of = "failed"
            elif v and their != test:
                notes.append(f"{NAMES.get(p, p)} on {name_of(model)}: {their} instead of {test}")
                text_of += "*"
            cells.append(text_of)
            if p != "mlxcel" and v:
                ratios[p] = (v, r.ratio(part, model, threads, test, p, their))
            if p == "mlxcel":
                share = r.value(part, model, threads, p, test + " share")
                cells.append(f"{100 * share:.0f} %" if share else "")
        best = max(ratios, key=lambda p: ratios[p][0]) if ratios else None
        cells.append(f"{ratios[best][1]:.2f} x {NAMES.get(best, best)}" if best else "")
        text += row(cells)
    if not text:
        return ""
    columns = [title]
    for p in shown:
        columns += [NAMES.get(p, p)] + (["of limit"] if p == "mlxcel" else [])
    return head(columns + ["best peer"]) + text + "\n"


def series(r, part, model, threads, program, pattern):
    """[(x, tokens/s)] of tests named by a pattern with one number in it."""
    found = []
    for test in r.tests(part, model, threads, program):
        m = re.fullmatch(pattern, test)
        if m:
            found.append((int(m.group(1) or m.group(2) or 0),
                          r.value(part, model, threads, program, test)))
    return sorted(found)


def lines(r, part, pattern, smallest):
    """{(model, program): [(x, y)]}; a test without a number stands for the smallest x."""
    found = {}
    for model, threads in r.models(part):
        for p in PROGRAMS:
            points = series(r, part, model, threads, p, pattern)
            if points:
                found[(model, p)] = [(x or smallest, y) for x, y in points]
    return found


def across(title, found, form):
    """Lines as a table: x across, one row a model and program."""
    if not found:
        return ""
    xs = sorted({x for points in found.values() for x, _ in points})
    text = head([title] + [form(x) for x in xs])
    for (model, program), points in found.items():
        by = dict(points)
        text += row([f"{name_of(model)}, {program}"] +
                    [number(by[x]) + (f" ({by[x] / by[xs[0]]:.1f} x)" if x != xs[0] and by.get(
                        xs[0]) else "") if by.get(x) else "" for x in xs])
    return text + "\n"


def long_prompts(r):
    text = ""
    for model, threads in r.models("long"):
        cells = [name_of(model)]
        ours = [r.value("long", model, threads, "mlxcel", t) for t in ("pp512", "pp8000")]
        cells += [number(ours[0]), number(ours[1])]
        for p in PEERS[:2]:
            cells.append(number(r.value("long", model, threads, p, "pp8000")))
        text += row(cells)
    if not text:
        return ""
    return head(["prompt, tokens/s", "mlxcel, 512", "mlxcel, 8000", "llama.cpp, 8000",
                 "ik_llama.cpp, 8000"]) + text + "\n"


def starts(r):
    text = ""
    for model, threads in r.models("start"):
        cells = [name_of(model)]
        for p in ("mlxcel", "llama.cpp"):
            seconds = r.value("start", model, threads, p, "seconds")
            mb = r.value("start", model, threads, p, "mb")
            cells.append(f"{1000 * seconds:,.0f} ms, {mb:,.0f} MB" if seconds else "")
        text += row(cells)
    return head(["start to first token, whole process", "mlxcel", "llama.cpp"]) + text + "\n" if (
        text) else ""


def accuracy(r):
    text, tokens = "", ""
    for model, threads in r.models("accuracy"):
        command = r.by[("accuracy", model, threads, "mlxcel")]["command"]
        tokens = f"{int(command.split()[-1]):,}"
        kl, top = (r.value("accuracy", model, threads, "mlxcel", k) for k in ("kl", "top1"))
        if top:
            text += row([name_of(model), f"{kl:.5f}", f"{top:.1f} %"])
    return head([f"`fast` against `exact`, {tokens} tokens of the GPL 3", "KL per token",
                 "same most likely token"]) + text + "\n" if text else ""


def limits(r):
    found = {k: [v for cell in r.by.values() for one in cell["rounds"]
                 for v in one["tests"].get(k, []) if cell["threads"] != 1]
             for k in ("read", "int8", "bf16")}
    if not found["read"]:
        return ""
    return (f"Limits measured beside the runs, medians (and range): read "
            f"{median(found['read']):.0f} GB/s ({min(found['read']):.0f} to "
            f"{max(found['read']):.0f}), int8 {median(found['int8']):.2f} TOP/s, bf16 "
            f"{median(found['bf16']):.2f} TFLOP/s.\n\n")


def table(results):
    r, notes = Results(results), []
    m = results["machine"]
    text = (f"{m['cpu']}, {m['cores']} cores ({', '.join(m['flags'])}), {results['threads']} "
            f"threads; {counted(results.get('rounds', 1), 'round')} in "
            f"{results.get('minutes', 0):.0f} minutes, tokens/s, medians.")
    if results.get("kept"):
        text += f" From an earlier run: {', '.join(results['kept'])}."
    text += "\n\n"
    text += limits(r)
    for part in ("big", "smol"):
        text += speeds(r, part, "prompt of 512", "pp", notes)
        text += speeds(r, part, "one sequence generating", "tg", notes)
    text += speeds(r, "one", "one thread, prompt of 512", "pp", notes)
    text += speeds(r, "one", "one thread, generating", "tg", notes)
    text += across("sequences generating together", lines(r, "batch", r"tg\d+(?: x(\d+))?()", 1),
                   str)
    text += across("generating at a depth of", lines(r, "context", r"tg\d+(?: @(\d+))?()", 0), str)
    text += long_prompts(r) + starts(r) + accuracy(r)
    notes += [f"{NAMES.get(p, p)}: {why}" for p, why in results["missing"].items()]
    if notes:
        text += "".join(f"- {n}\n" for n in dict.fromkeys(notes)) + "\n"
    return text


# ---- the plot


def panel(found, left, title, label):
    width, height, top = 400, 260, 60
    if not found:
        return ""
    xs = sorted({x for points in found.values() for x, _ in points})
    most = max(y for points in found.values() for _, y in points) * 1.08
    at_x = {x: left + 10 + i * (width - 20) / max(len(xs) - 1, 1) for i, x in enumerate(xs)}

    def at_y(y):
        return top + height - y / most * height
    out = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{title}</text>',
           f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="#666"/>']
    for x in xs:
        out.append(f'<text x="{at_x[x]:.1f}" y="{top + height + 16}" text-anchor="middle">{x}'
                   '</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{label}'
               '</text>')
    for i in range(1, 5):
        y = most * i / 4.32
        out.append(f'<path d="M{left} {at_y(y):.1f}h{width}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:,.0f}</text>')
    for (model, program), points in found.items():
        colour = COLOURS.get(program, "#777")
        dash = "" if model.startswith("smol") else ' stroke-dasharray="5 3"'
        d = "L".join(f"{at_x[x]:.1f} {at_y(y):.1f}" for x, y in points)
        out.append(f'<path d="M{d}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{at_x[x]:.1f}" cy="{at_y(y):.1f}" r="3" fill="{colour}">'
                f'<title>{program}, {name_of(model)}: {y:,.1f} tokens/s at {x}</title></circle>'
                for x, y in points]
    return "\n".join(out)


def plot(results):
    """Decode against context and against batch, side by side."""
    r = Results(results)
    context = lines(r, "context", r"tg\d+(?: @(\d+))?()", 0)
    batch = lines(r, "batch", r"tg\d+(?: x(\d+))?()", 1)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="420" '
           'viewBox="0 0 1000 420" font-family="sans-serif" font-size="12">',
           '<rect width="1000" height="420" fill="#fff"/>',
           panel(context, 60, "one sequence generating, tokens/s", "tokens in the cache before"),
           panel(batch, 560, "all sequences together, tokens/s", "sequences")]
    x = 60
    for program in dict.fromkeys(p for _, p in list(context) + list(batch)):
        out.append(f'<rect x="{x}" y="384" width="22" height="4" fill="'
                   f'{COLOURS.get(program, "#777")}"/><text x="{x + 28}" y="391">{program}</text>')
        x += 40 + 8 * len(program)
    kinds = sorted({name_of(m) for m, _ in list(context) + list(batch)}, reverse=True)
    out.append(f'<text x="{x + 20}" y="391">solid: {" and ".join(kinds[:1])}'
               f'{"; dashed: " + kinds[1] if len(kinds) > 1 else ""}</text></svg>\n')
    return "\n".join(out)


def put_into(path, text):
    with open(path, encoding="utf-8") as f:
        old = f.read()
    begin, end = (old.find(mark) for mark in MARKS)
    if begin < 0 or end < begin:
        raise SystemExit(f"error: {path} has no {MARKS[0]} and {MARKS[1]}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(old[:begin] + MARKS[0] + "\n" + text + old[end:])

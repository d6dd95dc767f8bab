"""Drives the chat page in headless Chromium: against a server that says what each check wants
(stub.py), and against the real program with a tiny model.

Environment: MXC_SOURCE, MXC_TEST_DATA, MXC_PROGRAM (without it the real server is left out);
MXC_SCREENSHOTS: a folder that keeps the screenshots (page-desktop.png, page-phone.png, with answers
of MXC_SCREENSHOT_MODEL when that is set, and page-picture.png).
Arguments: the names of checks; none: all of them.
"""
import json
import os
import struct
import sys
import tempfile
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import probes
import stub
from browser import SHIFT, Browser
from stub import Refusal, Stub, chunk, end, say, slowly

BROWSER = Browser()
DONE = "!document.querySelector('#stop:not([hidden])') && document.querySelector('article')"
ANSWER = "article[data-role=assistant]"
LAST = "#messages li:last-child article"
SHAPES = os.path.join(os.environ["MXC_SOURCE"], "models", "shapes-vl")


def opened(server, **options):
    return BROWSER.page(server.url, **options)


def send(page, text, wait=True):
    page.js("document.getElementById('input').focus()")
    page.type(text)
    page.key("Enter")
    page.wait("document.querySelector('article')")
    if wait:
        page.wait(DONE, "the answer is complete")


def module(name):
    return f"import(new URL('{name}', document.querySelector('script').src))"


def stored(page):
    """Waits until what was saved before is in the browser's storage: transactions keep their order."""
    return page.js(f"{module('store.js')}.then((m) => m.Store.open(() => {{}})).then((s) => s.heads.size)")


def action(name, where=LAST):
    return f"{where} [data-action={name}]"


def png(width=4, height=4):
    def part(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))
    rows = b"".join(b"\0" + b"\x20\x60\xc0" * width for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))


# ---- one piece at a time

def test_loads():
    with Stub(say("x")) as s, opened(s) as page:
        assert page.js("document.activeElement.id") == "input"
        names = page.js("[...document.querySelectorAll('#model option')].map((o) => o.textContent)")
        assert names == ["small", "large", "broken (unavailable)"], names
        assert "2048" in page.text("#model-about")
        assert page.js("breaches") == []
        # the policy is in force: what it forbids is refused
        page.js("""(() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png';
            const s = document.createElement('style'); s.textContent = 'body{color:red}';
            document.head.append(s); })()""")
        page.wait("breaches.length >= 2")
        page.expect("Content Security Policy")
        refused = page.js("(() => { try { document.body.innerHTML = 'x'; return ''; }"
                          " catch (e) { return e.name; } })()")
        assert refused == "TypeError", refused
        page.complaints.clear()


def test_events():
    """The parser of server-sent events, with the same bytes cut everywhere."""
    text = ("\ufeff: ping\r\n\r\ndata: one\n\ndata:two\rdata: \u00e4\U0001F600\r\r"
            "event: e\r\ndata: {\"a\":1}\r\n\r\nid: 3\nretry: x\ndata\n\ndata: cut")
    with Stub(say("x")) as s, opened(s) as page:
        got = page.js(f"""(async () => {{
            const {{ SseParser }} = await {module('sse.js')};
            const bytes = new TextEncoder().encode({json.dumps(text)}), all = [];
            for (let size = 1; size < bytes.length + 1; size++) {{
              const events = [];
              const parser = new SseParser((e) => events.push([e.event, e.data]));
              for (let i = 0; i < bytes.length; i += size) parser.push(bytes.subarray(i, i + size));
              all.push(JSON.stringify(events));
            }}
            return [...new Set(all)]; }})()""")
        assert [json.loads(g) for g in got] == [[["message", "one"], ["message", "two\n\u00e4\U0001F600"],
                                                 ["e", '{"a":1}'], ["message", ""]]], got


MARKDOWN = [
    ("# a #\n## b", "<h3>a</h3><h4>b</h4>"),
    ("a *b* **c** ***d*** ~~e~~ `f*g*`", "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> "
     "<del>e</del> <code>f*g*</code></p>"),
    ("snake_case_name 2*3*4 \\*x\\*", "<p>snake_case_name 2<em>3</em>4 *x*</p>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("*a **b*", "<p>*a *<em>b</em></p>"),
    ("[a](https://x.org/b_(c)) <https://y.org> https://z.org/a_b_c.", "<p><a>a</a> <a>https://y.org</a> "
     "<a>https://z.org/a_b_c</a>.</p>"),
    ("[a](javascript:alert(1)) ![p](https://x.org/p.png)", "<p>[a](javascript:alert(1)) <a> p</a></p>"),
    ("- a\n- b\n  - c\n\n    d\n- e", "<ul><li>a</li><li>b<ul><li><p>c</p><p>d</p></li></ul></li><li>e</li></ul>"),
    ("3. x\n4. y\n\ntext", "<ol><li>x</li><li>y</li></ol><p>text</p>"),
    ("- [x] a\n- [ ] b", "<ul><li>\u2611 a</li><li>\u2610 b</li></ul>"),
    ("> a\n> > b\nc", "<blockquote><p>a</p><blockquote><p>b c</p></blockquote></blockquote>"),
    ("|a|b|\n|-|:-:|\n|1|`x|y`|\n|2|", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>"
     "<td><code>x|y</code></td></tr><tr><td>2</td><td></td></tr></tbody></table>"),
    ("```py\nif x < 1: # c\n```\nb", "<pre><code>if x < 1: # c</code></pre><p>b</p>"),
    ("~~~\nopen\n\n# no", "<pre><code>open # no</code></pre>"),
    ("a\n===\nb\n---\n***", "<h3>a</h3><h4>b</h4><hr>"),
    ("$$\na_1 * b * c\n$$ and \\(x_*y*\\) $a*b*c$", "<p>$$ a_1 * b * c $$ and \\(x_*y*\\) $a*b*c$</p>"),
    ("<b>x</b> &amp; <script>1</script>", "<p><b>x</b> &amp; <script>1</script></p>"),
    ("``a ` b`` `open", "<p><code>a ` b</code> `open</p>"),
    ("1. a\n   ```\n   x\n   - y\n   ```\n2. b", "<ol><li>a<pre><code>x - y</code></pre></li><li>b</li></ol>"),
]


def test_markdown():
    shape = """(e) => { const f = (n) => n.nodeType === 3 ? n.data.replace(/\\s+/g, ' ')
        : n.localName === 'svg' || n.localName === 'figcaption' ? ''
        : ['hr'].includes(n.localName) ? '<hr>'
        : (['div', 'figure', 'span'].includes(n.localName) ? (c) => c : (c) => `<${n.localName}>${c}</${n.localName}>`)(
            [...n.childNodes].map(f).join('')); return [...e.childNodes].map(f).join(''); }"""
    with Stub(say("x")) as s, opened(s) as page:
        got = page.js(f"""(async () => {{
            const {{ renderMarkdown }} = await {module('markdown.js')};
            const shape = {shape};
            return {json.dumps([m[0] for m in MARKDOWN])}.map((text) => {{
              const whole = document.createElement('div'), grown = document.createElement('div');
              renderMarkdown(whole, text);
              for (let i = 1; i <= text.length; i++) renderMarkdown(grown, text.slice(0, i));
              return [shape(whole), shape(grown)]; }}); }})()""")
        for (text, wanted), (whole, grown) in zip(MARKDOWN, got):
            assert whole == wanted, (text, whole, wanted)
            assert grown == whole, (text, grown)


# Each is read as markdown within the time of SLOW; none of it may become anything but text.
HOSTILE = [
    "<script>window.pwned = 1</script><img src=x onerror=window.pwned=1>",
    "<svg/onload=window.pwned=1><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "[a](javascript:window.pwned=1) [b](JaVaScRiPt:window.pwned=1) [c](data:text/html,x) [d](vbscript:x)",
    "[a](java\tscript:window.pwned=1) <javascript:window.pwned=1> [e](https://x.org\" onclick=\"window.pwned=1)",
    "![x](javascript:window.pwned=1) ![x](x\" onerror=\"window.pwned=1) ![x](https://127.0.0.1:9/track.png)",
    "```html\n<script>window.pwned=1</script>\n```\n`<img src=x onerror=window.pwned=1>`",
    "|<script>window.pwned=1</script>|b|\n|-|-|\n|<img src=x onerror=window.pwned=1>|[x](javascript:1)|",
    "# <img src=x onerror=window.pwned=1>\n- <style>*{display:none}</style>\n> <base href=//evil>",
    "[x][y]\n\n[y]: javascript:window.pwned=1\n\n<a href=\"javascript:window.pwned=1\">k</a>",
    "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u2066abc\u2069 \U0001F468\u200d\U0001F469\u200d\U0001F467 "
    "Z\u0351\u036b\u0343 \u0000 \ud83d end",
    "**a *b ~~c `d [e](f\n```\nnever closed",
]
SLOW = [
    ("a line of a megabyte", "x" * (1 << 20)),
    ("words of a megabyte", "word *a* " * (1 << 17)),
    ("brackets", "[" * 90000), ("pictures", "![" * 45000), ("links", "[a](" * 22000),
    ("ticks", "`a``b```" * 12000), ("stars", "*a **b " * 14000), ("closers", "a* b** " * 14000),
    ("dollars", "$a" * 45000), ("escapes", "\\(" * 45000), ("angles", "<http://" * 11000),
    ("addresses", "http://" * 12000), ("quotes", "> " * 50000), ("deep quotes", "\n".join("> " * i + "a" for i in range(300))),
    ("deep lists", "\n".join("  " * i + "- a" for i in range(300))), ("one deep list", "- " * 50000),
    ("fences", "```\n" * 20000), ("pipes", "|" * 90000 + "\n|-|"), ("tables", "|a|\n|-|\n" * 8000),
    ("empty lines", "\n" * 100000), ("spaces", " " * 200000 + "x"), ("hashes", "# " + " #" * 40000 + "x"),
    ("rules", "- " * 100 + "x\n" * 1000), ("maths", "$$\n" * 8000 + "x"), ("code", "```js\n" + "/*" * 25000),
]


def test_hostile():
    # one lone surrogate goes as the escape that JSON has for it
    answers = [json.dumps({"choices": [{"index": 0, "delta": {"content": t}}]}) for t in HOSTILE]
    turn = iter(answers)

    def answer(body):
        yield next(turn)
        yield from end()
    with Stub(answer) as s, opened(s) as page:
        page.js("document.body.dataset.before = 'x'")
        for text in HOSTILE:
            send(page, "<b>go</b> on [x](javascript:1)")
            shown = page.js(f"document.querySelector('{LAST} .markdown:not(.reasoning *)').textContent")
            for word in ("script", "onerror", "javascript:", "never closed"):
                if word in text and "[y]:" not in text:
                    assert word in shown, (text, shown)
        assert page.js(probes.FOREIGN) == []
        assert page.js("window.pwned") is None and page.js("breaches") == []
        assert page.count(".markdown script, .markdown img, .markdown iframe, .as-text *") == 0
        assert page.text("article[data-role=user] .as-text") == "<b>go</b> on [x](javascript:1)"
        assert page.js("document.querySelectorAll('base, style').length") == 0
        assert page.js(probes.WIDE) == []


def test_random_text():
    """Random markdown: nothing foreign, no exception, and grown by pieces it is what it is at once."""
    pieces = ["*", "**", "_", "~~", "`", "``", "```", "\n", "\n\n", "    ", "  ", "- ", "1. ", "> ", "#", "# ",
              "|", "|-|", "[", "](", ")", "![", "<", ">", "<b>", "https://x.y/z", "javascript:", "$", "$$",
              "\\\\(", "\\\\)", "\\\\", "a", "word ", "\u05d0", "\U0001F600", "---", "===", "[x] ", "\t", "&lt;"]
    with Stub(say("x")) as s, opened(s) as page:
        found = page.js(f"""(async () => {{
            const {{ renderMarkdown }} = await {module('markdown.js')};
            const pieces = {json.dumps(pieces)}, bad = [];
            const host = document.createElement('div');
            host.className = 'markdown';
            document.body.append(host);
            let seed = 1;
            const random = (n) => {{ seed = (seed * 48271) % 2147483647; return seed % n; }};
            for (let i = 0; i < 250; i++) {{
              const whole = document.createElement('div'), grown = document.createElement('div');
              let text = '';
              for (let k = random(60); k >= 0; k--) {{
                text += pieces[random(pieces.length)];
                renderMarkdown(grown, text);
              }}
              renderMarkdown(whole, text);
              if (whole.innerHTML !== grown.innerHTML) bad.push(text);
              host.append(whole);
            }}
            return bad; }})()""")
        assert not found, found[:3]
        assert page.count(".markdown p") > 100 and page.js(probes.FOREIGN) == []


def test_slow_text():
    def times(page, texts):
        return page.js(f"""(async () => {{
            const {{ renderMarkdown }} = await {module('markdown.js')};
            return {json.dumps(texts)}.map((text) => {{
              const start = performance.now(), box = document.createElement('div');
              renderMarkdown(box, text);
              return performance.now() - start; }}); }})()""")
    with Stub(say("x")) as s, opened(s) as page:
        for (name, text), ms in zip(SLOW, times(page, [t for _, t in SLOW])):
            if ms > 3000:  # on a busy machine, once more
                ms = times(page, [text])[0]
            assert ms < 3000, (name, ms)


def test_megabyte_arrives():
    line = "0123456789abcdef" * (1 << 12)  # 16 times this is a megabyte without a space

    def answer(body):
        for _ in range(16):
            yield chunk(content=line)
        yield from end()
    with Stub(answer) as s, opened(s) as page:
        send(page, "go")
        assert page.js(f"document.querySelector('{ANSWER} .markdown p').textContent.length") == 1 << 20
        assert page.js(probes.WIDE) == []


# ---- conversations

def test_stream_and_branch():
    story = "Gr\u00fc\u00dfe \U0001F600 **bold**\r\nline"

    def answer(body):
        yield b": ping\n\n"
        whole = b"".join(sse_of(item) for item in
                         [chunk(role="assistant", content=""), *(chunk(content=c) for c in story),
                          *end()])
        for i in range(0, len(whole), 7):
            yield whole[i:i + 7]

    def sse_of(item):
        return stub.sse(item).replace(b"\n", b"\r\n")
    with Stub(answer) as s, opened(s) as page:
        send(page, "First")
        assert page.js(f"document.querySelector('{ANSWER} strong').textContent") == "bold"
        assert page.text(f"{ANSWER} .markdown:not(.reasoning *)") == story.replace("**", "").replace("\r\n", "\n")
        assert page.text(f"{LAST} .speed") == "12.5 tokens/s, 7 tokens"
        body = s.bodies[0]
        assert body["messages"] == [{"role": "user", "content": "First"}], body
        assert body["model"] == "small" and body["stream"] is True
        assert body["stream_options"] == {"include_usage": True} and body["return_progress"] is True
        page.wait("document.getElementById('announcer').textContent.startsWith('Answer: Gr')")
        send(page, "Second")
        assert [m["role"] for m in s.bodies[1]["messages"]] == ["user", "assistant", "user"]
        assert s.bodies[1]["messages"][1]["content"] == story
        page.click(action("regenerate"))
        page.wait(f"{DONE} && document.querySelectorAll('.branch').length === 1")
        assert s.bodies[2]["messages"] == s.bodies[1]["messages"]
        assert page.text(f"{LAST} .branch .offscreen") == "Version 2 of 2"
        page.click(action("previous"))
        assert page.text(f"{LAST} .branch .offscreen") == "Version 1 of 2"
        assert page.js("document.activeElement.dataset.action") == "previous"
        # editing the first message makes another branch; the old one is found again as it was
        first = "#messages li:first-child article"
        page.click(action("edit", first))
        page.js("document.activeElement.value = ''")
        page.type("Changed")
        page.key("Enter")
        page.wait(f"{DONE} && document.querySelectorAll('article').length === 2")
        assert s.bodies[3]["messages"] == [{"role": "user", "content": "Changed"}]
        page.click(action("previous", first))
        page.wait("document.querySelectorAll('article').length === 4")
        assert page.text(f"{LAST} .branch .offscreen") == "Version 1 of 2"
        # an edited answer is a version that the next request holds
        page.click(action("edit"))
        page.type("!")
        page.click(action("save"))
        page.wait("document.querySelector('#messages li:last-child .branch .offscreen')?.textContent === 'Version 3 of 3'")
        send(page, "Third")
        assert s.bodies[4]["messages"][3]["content"] == story.replace("\r", "") + "!"


def test_stop_and_continue():
    parts = iter([slowly("word ", 0.02), say("and the rest")])
    with Stub(lambda body: next(parts)(body)) as s, opened(s) as page:
        send(page, "Go", wait=False)
        page.wait(f"document.querySelector('{ANSWER} .markdown:not(.reasoning *)').textContent.length > 60")
        assert page.js("!document.getElementById('stop').hidden")
        page.key("Escape")
        page.wait(DONE)
        page.wait("true")
        kept = page.text(f"{ANSWER} .markdown:not(.reasoning *)")
        assert page.text(f"{LAST} .problem") == "Stopped." and "about" in page.text(f"{LAST} .speed"), page.text(LAST)
        deadline = time.monotonic() + 10
        while not s.n_gone:
            assert time.monotonic() < deadline, "the server does not notice"
            time.sleep(0.02)
        page.click(action("continue"))
        page.wait(f"document.querySelector('{ANSWER}').textContent.includes('and the rest')")
        page.wait(DONE)
        body = s.bodies[1]
        assert body["continue_final_message"] is True
        assert body["messages"][-1]["role"] == "assistant"
        assert body["messages"][-1]["content"].startswith("word word")
        text = page.text(f"{ANSWER} .markdown:not(.reasoning *)")
        assert text.startswith(kept.strip()) and text.endswith("and the rest")
        assert page.js(f"document.querySelector('{LAST} .problem').hidden")


def test_stop_button():
    with Stub(slowly("word ", 0.02)) as s, opened(s) as page:
        send(page, "Go", wait=False)
        page.wait(f"document.querySelector('{ANSWER} .markdown:not(.reasoning *)').textContent.length > 20")
        assert page.js("document.getElementById('send').hidden")
        page.click("#stop")
        page.wait(DONE)
        page.wait(f"document.querySelector('{LAST} .problem').textContent === 'Stopped.'")
        assert page.js("document.getElementById('stop').hidden && !document.getElementById('send').hidden")
        assert page.js("document.activeElement.id") == "input"
        # what was written is kept and is a part of the next request
        s.answer = say("more")
        send(page, "And?")
        assert s.bodies[1]["messages"][1]["content"].startswith("word word")


def test_lost():
    def cut(body):
        yield chunk(content="Half an ans")
        time.sleep(0.2)  # what a reader has not taken when the connection breaks is gone
        raise ConnectionAbortedError

    def quiet_end(body):  # a proper end of the body, without [DONE]
        yield chunk(content="wer")
    turn = iter([cut, quiet_end, say(" complete")])
    with Stub(lambda body: next(turn)(body)) as s, opened(s) as page:
        send(page, "Go")
        assert "connection was lost" in page.text(f"{LAST} .problem")
        page.expect("ERR_INCOMPLETE_CHUNKED_ENCODING")
        page.click(action("continue"))
        page.wait(f"{DONE} && document.querySelector('{ANSWER}').textContent.includes('answer')")
        assert "before the answer was complete" in page.text(f"{LAST} .problem")
        page.click(action("continue"))
        page.wait(f"{DONE} && document.querySelector('{ANSWER}').textContent.includes('complete')")
        assert page.text(f"{LAST} .markdown:not(.reasoning *)") == "Half an answer complete"
        assert page.js(f"document.querySelector('{LAST} .problem').hidden")


def test_errors_and_key():
    def refuse(body):
        raise Refusal(400, "top_k: <b>not</b> so", {"Retry-After": "3"})
        yield

    def fail(body):
        yield chunk(content="Some")
        yield {"error": {"message": "the step failed", "code": 500}}
    turn = iter([refuse, fail, say("fine")])
    with Stub(lambda body: next(turn)(body), key="s3cret") as s, opened(s) as page:
        page.wait("document.getElementById('settings').open", "the key is asked for")
        page.expect("401")
        assert page.js("document.activeElement.id") == "key"
        page.type("s3cret")
        page.key("Enter")
        page.wait("document.querySelectorAll('#model option').length === 3")
        assert s.keys[-1] == "Bearer s3cret"
        assert page.js("[sessionStorage.getItem('mlxcel.key'), localStorage.getItem('mlxcel.key')]") == ["s3cret", None]
        send(page, "One")
        assert page.text(f"{LAST} .problem") == "top_k: <b>not</b> so (HTTP 400). Try again in 3 s."
        page.expect("400")
        send(page, "Two")
        assert page.text(f"{LAST} .problem") == "the step failed"
        assert page.text(f"{LAST} .markdown:not(.reasoning *)") == "Some"
        # the answer that said nothing is no part of what is sent
        assert [m["role"] for m in s.bodies[1]["messages"]] == ["user", "user"]
        page.click(action("regenerate"))
        page.wait(f"{DONE} && document.querySelector('{LAST}').textContent.includes('fine')")


def test_reasoning_tools_progress():
    go = []

    def answer(body):
        if body["messages"][-1]["role"] == "tool":
            yield from say("It is 7 degrees.")(body)
            return
        yield {**chunk(), "prompt_progress": {"total": 2048, "processed": 512, "cache": 0}}
        while not go:
            time.sleep(0.01)
        for text in ("Let me ", "*think*"):
            yield chunk(reasoning_content=text)
        for i, name in enumerate(("weather", "time")):
            yield chunk(tool_calls=[{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": ""}}])
            for part in ('{"city"', ':"<b>Bern</b>"}'):
                yield chunk(tool_calls=[{"index": i, "function": {"arguments": part}}])
        yield from end("tool_calls")
    with Stub(answer) as s, opened(s) as page:
        send(page, "Weather?", wait=False)
        page.wait("document.querySelector('progress')?.value === 512")
        assert "512 of 2048" in page.text(".progress")
        go.append(1)
        page.wait(DONE)
        # folded until it is asked for
        assert page.js("!document.querySelector('.reasoning').hidden && !document.querySelector('.reasoning').open")
        assert not page.js("document.querySelector('.reasoning em').checkVisibility()")
        page.click(".reasoning summary")
        page.wait("document.querySelector('.reasoning em').checkVisibility()")
        assert page.js("document.querySelector('.progress').hidden")
        assert page.text(".reasoning em") == "think"
        assert page.text(".call summary") == "Tool call: weather"
        assert page.text(".call pre") == '{\n  "city": "<b>Bern</b>"\n}'
        assert page.js("document.getElementById('input').placeholder") == "Result of weather"
        page.click("#input")
        page.type("7 C")
        page.key("Enter")
        page.wait("document.getElementById('input').placeholder === 'Result of time'")
        assert len(s.bodies) == 1
        page.type("noon")
        page.key("Enter")
        page.wait(f"document.querySelector('{LAST}').textContent.includes('7 degrees')")
        page.wait(DONE)
        sent = s.bodies[1]["messages"]
        assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool"]
        assert sent[1]["tool_calls"][1] == {"id": "c1", "type": "function", "function": {
            "name": "time", "arguments": '{"city":"<b>Bern</b>"}'}}
        assert sent[2] == {"role": "tool", "tool_call_id": "c0", "content": "7 C"}
        assert "reasoning_content" not in sent[1]


def test_images():
    picture = png()
    with tempfile.TemporaryDirectory() as folder, Stub(say("a blue square")) as s, opened(s) as page:
        path = os.path.join(folder, "blue.png")
        with open(path, "wb") as f:
            f.write(picture)
        with open(os.path.join(folder, "note.txt"), "w") as f:
            f.write("text")
        page.choose_files("#attach-file", path, f.name)
        page.wait("document.querySelectorAll('#attached img').length === 1")
        assert "not a PNG" in page.text("#note")
        data = ", ".join(str(b) for b in picture)
        transfer = f"""const d = new DataTransfer();
            d.items.add(new File([new Uint8Array([{data}])], 'p.png', {{ type: 'image/png' }}));"""
        page.js(f"""(() => {{ {transfer} document.getElementById('input').dispatchEvent(
            new ClipboardEvent('paste', {{ clipboardData: d, bubbles: true, cancelable: true }})); }})()""")
        page.wait("document.querySelectorAll('#attached img').length === 2")
        page.js("addEventListener('drop', (e) => { window.isOurs = e.defaultPrevented; })")
        page.drop(300, 300, path)  # as a hand does it; the file must not replace the page
        page.wait("document.querySelectorAll('#attached img').length === 3")
        assert page.js("window.isOurs") is True
        page.click("#attached li:last-child button")
        assert page.count("#attached img") == 2
        page.wait("[...document.querySelectorAll('#attached img')].every((i) => i.naturalWidth === 4)")
        send(page, "What is it?")
        content = s.bodies[0]["messages"][0]["content"]
        assert [p["type"] for p in content] == ["image_url", "image_url", "text"], content
        import base64
        url = "data:image/png;base64," + base64.b64encode(picture).decode()
        assert content[0] == {"type": "image_url", "image_url": {"url": url}}
        assert content[2]["text"] == "What is it?"
        assert page.count("article[data-role=user] img[alt]") == 2 and page.count("#attached img") == 0
        # a model that sees nothing says why
        page.js("(() => { const m = document.getElementById('model'); m.value = 'large';"
                " m.dispatchEvent(new Event('change')); })()")
        assert "no device runtime" in page.js("document.getElementById('attach').ariaLabel")
        page.choose_files("#attach-file", path)
        page.wait("document.getElementById('note').textContent.includes('no device runtime')")
        assert page.count("#attached img") == 0
    with Stub(say("x"), vision="none") as s, opened(s) as page:
        page.click("#attach")
        assert page.text("#note") == "small reads text only"


def test_keeping():
    with tempfile.TemporaryDirectory() as folder, Stub(say("kept")) as s, opened(s) as page:
        page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder,
                          browserContextId=page.context)
        send(page, "Remember this")
        page.click("#new")
        send(page, "And <i>that</i>")
        s.answer = slowly("word ", 0.02)
        send(page, "A third", wait=False)
        page.wait(f"document.querySelector('{LAST} .markdown:not(.reasoning *)').textContent.length > 20")
        page.js("window.dispatchEvent(new Event('pagehide'))")
        assert stored(page) == 2
        page.reload()
        titles = "[...document.querySelectorAll('.conversation')].map((b) => b.textContent)"
        assert page.js(titles) == ["And <i>that</i>", "Remember this"]
        page.click(".conversation")
        page.wait("document.querySelectorAll('article').length === 4")
        assert "closed before" in page.text(f"{LAST} .problem")
        assert page.text(f"{LAST} .markdown:not(.reasoning *)").startswith("word")
        page.click("#export-all")
        path = os.path.join(folder, "mlxcel-conversations.json")
        deadline = time.monotonic() + 10
        while not os.path.exists(path):
            assert time.monotonic() < deadline, "no export"
            page.browser.pump(0.05)
        with open(path) as f:
            kept = json.load(f)
        assert kept["format"] == "mlxcel-conversations" and len(kept["conversations"]) == 2
        # what is imported is checked: a loop, a strange role and a foreign picture are left out
        loop = {"title": "Loop", "nodes": {
            "a": {"id": "a", "parent": "b", "role": "user", "content": "x"},
            "b": {"id": "b", "parent": "a", "role": "user", "content": "x"},
            "c": {"id": "c", "parent": None, "role": "system", "content": "x"},
            "d": {"id": "d", "parent": None, "role": "user", "content": "in",
                  "images": [{"url": "https://127.0.0.1:9/x.png"}]}}}
        left = page.js(f"{module('tree.js')}.then((t) => Object.keys(t.importText(JSON.stringify("
                       f"{{format: t.FORMAT, version: 1, conversations: [{json.dumps(loop)}]}}))[0].nodes))")
        assert left == ["d"], left
        kept["conversations"].append(loop)
        with open(path, "w") as f:
            json.dump(kept, f)
        page.choose_files("#import-file", path)
        page.wait(f"({titles}).length === 5")
        page.js("[...document.querySelectorAll('.conversation')].find((b) => b.textContent === 'Loop').click()")
        page.wait("document.querySelectorAll('article').length === 1")
        assert page.count("article img") == 0 and page.text("article .as-text") == "in"
        # the bound of the storage holds
        refused = page.js(f"""(async () => {{
            const {{ Store, MAX_BYTES }} = await {module('store.js')};
            const {{ newConversation }} = await {module('tree.js')};
            const store = await Store.open(() => {{}});
            store.heads.set('big', {{ id: 'big', bytes: MAX_BYTES - store.bytes - 100 }});
            const c = newConversation();
            try {{ await store.save(c); return ''; }} catch (e) {{ return e.message; }} }})()""")
        assert "is full" in refused, refused
        with open(path, "w") as f:
            f.write('{"format": "other"}')
        page.choose_files("#import-file", path)
        page.wait("document.getElementById('note').textContent.startsWith('Not imported')")


def test_models_and_defaults():
    """The model of a conversation is its own; the last one chosen, and settings that are kept for
    new chats, are those of the next."""
    speeds = iter([(12.5, 7), (3.25, 9), (80, 5)])

    def answer(body):
        yield chunk(content="of " + body["model"])
        rate, n = next(speeds)
        yield from end("stop", n, rate)
    with Stub(answer) as s, opened(s) as page:
        def choose(name):
            page.js(f"(() => {{ const m = document.getElementById('model'); m.value = '{name}';"
                    " m.dispatchEvent(new Event('change')); })()")
        assert page.js("document.querySelector('#model option[value=broken]').disabled")
        send(page, "One")
        page.click("#new")
        choose("large")
        page.click("#settings-open")
        page.js("document.getElementById('set-temperature').value = '0.5'")
        page.click("#settings-default")
        if page.js("document.getElementById('settings').open"):
            page.click("#settings-form button[type=submit]")
        send(page, "Two")
        assert [b["model"] for b in s.bodies] == ["small", "large"]
        assert stored(page) == 2
        page.reload()
        assert page.js("document.getElementById('model').value") == "large"
        send(page, "Three")
        assert s.bodies[2]["model"] == "large" and s.bodies[2]["temperature"] == 0.5, s.bodies[2]
        # the first one again: its model, its settings, its speed
        page.js("[...document.querySelectorAll('.conversation')].find((b) => b.textContent === 'One').click()")
        page.wait(f"document.querySelector('{ANSWER}')?.textContent.includes('of small')")
        assert page.js("document.getElementById('model').value") == "small"
        assert page.text(f"{LAST} .speed") == "12.5 tokens/s, 7 tokens"
        page.js("[...document.querySelectorAll('.conversation')].find((b) => b.textContent === 'Two').click()")
        page.wait(f"document.querySelector('{ANSWER}')?.textContent.includes('of large')")
        assert page.text(f"{LAST} .speed").endswith(" 9 tokens"), page.text(f"{LAST} .speed")


def test_code():
    code = 'def f(x):  # <b>\n    return "a\\"b" + x * 12'
    with Stub(say(f"Look:\n```python\n{code}\n```\nand `g`")) as s, opened(s) as page:
        page.browser.call("Browser.grantPermissions", browserContextId=page.context,
                          permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        send(page, "Go")
        parts = page.js("[...document.querySelectorAll('figure.code code span')]"
                        ".map((e) => [e.className, e.textContent])")
        assert parts == [["code-word", "def"], ["code-comment", "# <b>"], ["code-word", "return"],
                         ["code-string", '"a\\"b"'], ["code-number", "12"]], parts
        assert page.text("figure.code code") == code and page.text("figcaption span") == "python"
        colours = page.js("[...document.querySelectorAll('figure.code code, figure.code code span')]"
                          ".map((e) => getComputedStyle(e).color)")
        assert len(set(colours)) >= 4, colours
        page.click("figure.code button")
        page.wait("document.querySelector('.code-copied').textContent === 'Copied'")
        assert page.js("navigator.clipboard.readText()") == code
        page.click(action("copy"))
        page.wait("document.getElementById('note').textContent === 'Copied'")
        assert page.js("navigator.clipboard.readText()") == f"Look:\n```python\n{code}\n```\nand `g`"


# ---- people

def test_keyboard():
    with Stub(say("one", "two")) as s, opened(s) as page:
        def focus():
            return page.js("document.activeElement.id || document.activeElement.className")
        page.type("Line 1")
        page.key("Enter", SHIFT)
        page.type("Line 2")
        page.key("Enter")
        page.wait(DONE)
        assert s.bodies[0]["messages"][0]["content"] == "Line 1\nLine 2" and focus() == "input"
        # every control is reached, and the focus is seen on each
        seen, hidden = [], []
        for _ in range(40):
            page.key("Tab")
            seen.append(focus())
            if page.js("document.activeElement === document.body"):
                continue
            if not page.js("""(() => { const e = document.activeElement, s = getComputedStyle(e);
                return e.id === 'input' || (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2); })()"""):
                hidden.append(seen[-1])
        for name in ("new", "conversation", "import", "model", "settings-open", "theme", "attach", "send", "message"):
            assert name in seen, (name, seen)
        assert not hidden, hidden
        # settings: opened, changed, refused, saved by keys
        page.js("document.getElementById('settings-open').focus()")
        page.key("Enter")
        page.wait("document.getElementById('settings').open")
        for _ in range(10):
            if focus() == "set-system":
                break
            page.key("Tab")
        page.type("Be brief.")
        page.key("Tab")
        assert focus() == "set-temperature"
        assert page.js("document.activeElement.placeholder") == "0.8"
        page.type("hot")
        page.key("Enter")
        assert focus() == "set-temperature" and page.text("#about-temperature") == "Not a number."
        page.js("document.activeElement.select()")
        page.type("0.25")
        page.js("""Object.entries({ top_p: '0.9', top_k: '20', min_p: '0.05', repeat_penalty: '1.1', max_tokens: '64',
            seed: '7', stop: 'END\\n\\\\n\\\\n', reasoning_effort: 'low', extra: '{"logit_bias": {"5": -1}}' }).forEach(
            ([name, value]) => { document.getElementById(`set-${name}`).value = value; })""")
        page.key("Enter")
        page.wait("!document.getElementById('settings').open")
        assert focus() == "input"
        send(page, "Next")
        body = s.bodies[1]
        wanted = {"temperature": 0.25, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repeat_penalty": 1.1,
                  "max_tokens": 64, "seed": 7, "stop": ["END", "\n\n"], "reasoning_effort": "low",
                  "logit_bias": {"5": -1}}
        assert {k: body.get(k) for k in wanted} == wanted, body
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        # they belong to this conversation
        page.click("#new")
        send(page, "Other")
        assert "temperature" not in s.bodies[2]
        # the list: arrows, rename, delete
        page.js("document.querySelector('.conversation').focus()")
        page.key("ArrowDown")
        assert page.js("document.activeElement.textContent").startswith("Line 1")
        page.key("ArrowUp")
        page.key("End")
        page.key("F2")
        page.wait("document.activeElement.tagName === 'INPUT'")
        page.type("Renamed")
        page.key("Enter")
        page.wait("document.activeElement.textContent === 'Renamed'")
        page.key("Enter")
        page.wait("document.querySelectorAll('article').length === 4")
        page.wait("document.activeElement.id === 'input'")
        page.js("document.querySelector('[aria-current] ').focus()")
        page.key("Delete")
        page.wait("document.getElementById('confirm').open")
        page.key("Escape")
        page.wait("!document.getElementById('confirm').open")
        assert page.count(".conversation") == 2
        page.key("Delete")
        page.wait("document.getElementById('confirm').open")
        assert page.js("document.activeElement.id") == "confirm-no"
        page.key("Tab")
        page.key("Enter")
        page.wait("document.querySelectorAll('.conversation').length === 1")
        # messages: arrows move between them
        page.click(".conversation")
        page.wait("document.querySelectorAll('article').length === 2")
        page.js(f"document.querySelector('{LAST}').focus()")
        page.key("ArrowUp")
        assert page.js("document.activeElement.dataset.role") == "user"


RICH = """### Sorting, briefly

A *stable* sort keeps **equal** keys in order; see [the article](https://example.org/sort).

1. Split the list
2. Sort both halves
   - again by the same rule
3. Merge them

```python
def merge(a, b):
    # take the smaller head, "a" first
    out = []
    while a and b:
        out.append((a if a[0] <= b[0] else b).pop(0))
    return out + a + b  # 1 is left
```

| sort | stable | worst case |
|---|:-:|--:|
| merge | yes | `n log n` |
| quick | no | `n * n` |

> Measure before you choose.
"""


QUESTION = "Write a Python function that reverses a string. Then list three facts about strings."


def rich(body):
    yield chunk(role="assistant", content="")
    yield chunk(reasoning_content="The user wants a short comparison. Merge sort is the usual example.")
    for i in range(0, len(RICH), 9):
        yield chunk(content=RICH[i:i + 9])
    yield chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "note", "arguments": "{}"}}])
    yield from end("length", 143, 41.26)


def test_accessible():
    with Stub(rich) as s, opened(s) as page:
        send(page, "Compare sorting algorithms")
        page.click(action("regenerate"))
        page.wait(f"{DONE} && document.querySelector('.branch')")
        page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.js("document.getElementById('note').hidden = false")
        for theme in ("light", "dark"):
            page.media(theme == "dark")
            back = page.js("getComputedStyle(document.body).backgroundColor")
            assert (back == "rgb(255, 255, 255)") == (theme == "light"), back
            found = page.js(probes.CONTRAST)
            assert found["n"] > 30 and not found["bad"], (theme, found)
        assert probes.nameless(page) == [], page.html_of(probes.nameless(page))
        roles = probes.roles(page)
        assert {"banner", "main", "complementary", "navigation", "contentinfo", "article",
                "form", "status"} <= roles, roles
        assert page.js("document.documentElement.lang") == "en"
        assert page.js("""[...document.querySelectorAll('[id]')].length
            === new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size""")
        # tokens are not read out one by one: no live region holds the messages
        assert page.js("document.getElementById('messages').closest('[aria-live],[role=log],[role=status]')") is None
        page.click("#settings-open")
        page.wait("document.getElementById('settings').open")
        for theme in ("light", "dark"):
            page.media(theme == "dark")
            found = page.js(probes.CONTRAST)
            assert not found["bad"], (theme, found)
        assert probes.nameless(page) == [], page.html_of(probes.nameless(page))
        page.click("#settings-close")
        # the page's own choice wins over the system's, and is kept
        page.media(True)
        page.click("#theme")
        assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.reload()
        assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_phone():
    with Stub(rich, prefix="/a/b") as s, opened(s, width=360, height=640) as page:
        assert page.js(probes.WIDE) == []
        s.answer = say("x" * 300 + " `" + "y" * 200 + "` https://example.org/" + "z" * 300 + "\n```\n"
                       + "code " * 100 + "\n```\n|a|b|\n|-|-|\n|" + "cell " * 60 + "|" + "w" * 200 + "|")
        send(page, "long" * 100)
        page.wait(f"document.querySelector('{LAST} .speed')")
        s.answer = rich
        send(page, "Compare sorting algorithms")
        assert page.js(probes.WIDE) == []
        assert page.js("!document.querySelector('#side').checkVisibility({ visibilityProperty: true })")
        page.click("#side-open")
        page.wait("document.getElementById('side').getBoundingClientRect().left === 0")
        assert page.js(probes.WIDE) == [] and page.js("document.activeElement.id") == "new"
        page.key("Escape")
        page.wait("!document.querySelector('#side').checkVisibility({ visibilityProperty: true })")
        assert page.js("document.activeElement.id") == "side-open"
        page.click("#settings-open")
        page.wait("document.getElementById('settings').open")
        assert page.js("document.getElementById('settings').scrollWidth <= document.getElementById('settings').clientWidth")
        assert page.js("document.getElementById('settings').getBoundingClientRect().right <= 360")
        page.key("Escape")
        small = page.js("""[...document.querySelectorAll('header button, form#composer button')].filter((b) =>
            b.checkVisibility() && (b.offsetWidth < 36 || b.offsetHeight < 36)).map((b) => b.id)""")
        assert not small, small


# ---- the real server

def test_real_server():
    if not os.environ.get("MXC_PROGRAM"):
        print("     left out: no program")
        return
    from harness import Server
    with Server("--api-prefix", "/p") as s:
        status, headers, body = s.get("/p/")
        assert status == 200 and headers["content-type"] == "text/html; charset=utf-8", headers
        assert headers["content-security-policy"] == stub.POLICY
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-cache"
        mark = stub.page_hash()
        with open(os.path.join(stub.FOLDER, "index.html"), "rb") as f:
            assert body == f.read().replace(b"@HASH@", mark.encode())
        status, again, body = s.get("/p/", {"If-None-Match": headers["etag"]})
        assert status == 304 and body == b"" and again["etag"] == headers["etag"]
        status, again, body = s.request("HEAD", "/p/")
        assert status == 200 and body == b""
        for name in os.listdir(stub.FOLDER):
            status, headers, body = s.get(f"/p/page/{mark}/{name}")
            if name.endswith((".c", ".h", ".html")):
                assert status == 404, name
                continue
            with open(os.path.join(stub.FOLDER, name), "rb") as f:
                assert status == 200 and body == f.read(), name
            assert headers["content-type"] == stub.TYPES[name.rsplit(".", 1)[1]], (name, headers)
            assert "immutable" in headers["cache-control"] and headers["x-content-type-options"] == "nosniff"
        for path in ("/p/page/x/app.js", f"/p/page/{mark}/../app.js", f"/p/page/{mark}/nothing", "/page/x"):
            assert s.get(path)[0] == 404, path
        status, headers, _ = s.get("/p")
        assert status == 308 and headers["location"] == "./p/", headers
        with BROWSER.page(s.url) as page:
            assert page.js("location.pathname") == "/p/"
            assert page.js("document.getElementById('model').value") == "llama"
            assert "reads text only" in page.js("document.getElementById('attach').ariaLabel")
            page.click("#settings-open")
            page.js("document.getElementById('set-max_tokens').value = '24'")
            page.js("document.getElementById('set-extra').value = '{\"ignore_eos\": true}'")
            page.click("#settings-form button[type=submit]")
            send(page, "Hello")
            text = page.text(f"{LAST} .markdown:not(.reasoning *)")
            assert text and page.text(f"{LAST} .speed").endswith("24 tokens"), page.text(f"{LAST} .speed")
            assert "limit of tokens" in page.text(f"{LAST} .problem")
            page.click(action("continue"))
            page.wait(f"{DONE} && document.querySelector('{LAST} .markdown:not(.reasoning *)').textContent.length > {len(text)}")
            page.click(action("regenerate"))
            page.wait(f"{DONE} && document.querySelector('.branch')")
            page.click("#settings-open")
            page.js("document.getElementById('set-max_tokens').value = ''")
            page.click("#settings-form button[type=submit]")
            send(page, "Go on", wait=False)
            page.wait(f"document.querySelector('{LAST} .markdown:not(.reasoning *)')?.textContent.length > 20")
            page.key("Escape")
            page.wait(DONE)
            assert page.text(f"{LAST} .problem") == "Stopped.", page.text(LAST)
            assert page.js("breaches") == []


def ask_about(page, names, question):
    """Attaches pictures of the model that sees and asks; returns the answer."""
    page.choose_files("#attach-file", *[os.path.join(SHAPES, "examples", n) for n in names])
    page.wait(f"document.querySelectorAll('#attached img').length === {len(names)}")
    before = page.count(ANSWER)
    send(page, question, wait=False)
    page.wait(f"document.querySelectorAll('{ANSWER}').length === {before + 1}")
    page.wait(f"{DONE} && document.querySelector('{LAST} .speed')", "the answer is complete")
    return page.text(f"{LAST} .markdown:not(.reasoning *)").strip()


def test_real_pictures():
    """Picture chat with the model that comes along: the answers are those of its examples."""
    if not os.environ.get("MXC_PROGRAM"):
        print("     left out: no program")
        return
    from harness import Server
    with open(os.path.join(SHAPES, "examples", "examples.json"), encoding="utf-8") as f:
        examples = json.load(f)
    two = next(e for e in examples if len(e["images"]) == 2)
    chosen = [e for e in examples if e["question"] == "Describe the image."][:3] + [two]
    with Server(model=SHAPES) as s, opened(s) as page:
        assert page.js("document.getElementById('model').value") == "shapes-vl"
        page.click("#settings-open")
        page.js("document.getElementById('set-temperature').value = '0'")
        page.click("#settings-form button[type=submit]")
        for example in chosen:
            page.js("document.getElementById('new').click()")
            assert ask_about(page, example["images"], example["question"]) == example["answer"]
            shown = page.js("[...document.querySelectorAll('article[data-role=user] img')]"
                            ".map((i) => i.complete && i.naturalWidth > 0)")
            assert shown == [True] * len(example["images"]), shown
        # what was sent is still there after a reload, and a second question sees the picture
        stored(page)
        page.reload()
        page.wait("document.querySelector('.conversation')")
        page.click(".conversation")
        page.wait(f"document.querySelectorAll('{ANSWER}').length === 1")
        send(page, "What is this?", wait=False)
        page.wait(f"document.querySelectorAll('{ANSWER}').length === 2")
        page.wait(f"{DONE} && document.querySelector('{LAST} .speed')")
        assert page.text(f"{LAST} .markdown:not(.reasoning *)").strip()
        # a file that is no picture of the name it has: the server's word is shown
        with tempfile.NamedTemporaryFile(suffix=".png") as f:
            f.write(b"no picture at all")
            f.flush()
            page.choose_files("#attach-file", f.name)
            page.wait("document.querySelector('#attached img')")
            send(page, "And this?", wait=False)
            page.wait(f"document.querySelector('{LAST} .problem')?.textContent", "the refusal shows")
            problem = page.text(f"{LAST} .problem")
            assert problem.startswith("messages[4].content[0]: no picture"), problem
        assert page.js("breaches") == []
        page.complaints.clear()


SCREENS = {"page-desktop.png": (1200, 800), "page-phone.png": (360, 720), "page-picture.png": (900, 860)}


def screenshots(folder, model):
    """With a model the real server's answer, else the stub's; picture chat by the model that comes
    along."""
    def answer(body):
        yield chunk(content=RICH)
        yield from end("stop", 143, 41.26)

    def settle(page, name):
        page.wait("new Promise((r) => setTimeout(() => r(1), 300))")
        page.picture(os.path.join(folder, name))

    def set_up(page):
        page.js("document.getElementById('settings-open').click()")
        page.js("document.getElementById('set-temperature').value = '0'")
        page.js("document.getElementById('set-max_tokens').value = '400'")
        page.click("#settings-form button[type=submit]")

    def pictures(url):
        for name, dark in (("page-desktop.png", False), ("page-phone.png", True)):
            width, height = SCREENS[name]
            with BROWSER.page(url, width=width, height=height, dark=dark) as page:
                set_up(page)
                send(page, QUESTION)
                page.js("document.getElementById('scroll').scrollTop = 0")
                settle(page, name)
    if model:
        from harness import Server
        with Server("--alias", "SmolLM2-135M-Instruct", model=model) as s:
            pictures(s.url)
    else:
        with Stub(answer) as s:
            pictures(s.url)
    if os.environ.get("MXC_PROGRAM"):
        from harness import Server
        width, height = SCREENS["page-picture.png"]
        with Server(model=SHAPES) as s, BROWSER.page(s.url, width=width, height=height) as page:
            set_up(page)
            ask_about(page, ["05-four.webp"], "Describe the image.")
            ask_about(page, [], "How many shapes are there?")
            settle(page, "page-picture.png")


def size_of(path):
    with open(path, "rb") as f:
        head = f.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n", path
    return struct.unpack(">II", head[16:])


def test_screenshots():
    """The pictures of docs/ can be taken at any time, and the ones there are such."""
    folder = os.environ.get("MXC_SCREENSHOTS")
    with tempfile.TemporaryDirectory() as place:
        screenshots(folder or place, os.environ.get("MXC_SCREENSHOT_MODEL"))
        for name in os.listdir(folder or place):
            if name in SCREENS:
                path = os.path.join(folder or place, name)
                assert size_of(path) == SCREENS[name] and 8_000 < os.path.getsize(path) < 200_000, name
    docs = os.path.join(os.environ["MXC_SOURCE"], "docs")
    with open(os.path.join(docs, "server.md"), encoding="utf-8") as f:
        text = f.read()
    for name, size in SCREENS.items():
        assert size_of(os.path.join(docs, name)) == size and name in text, name


def main():
    import traceback
    wanted, failed, count = sys.argv[1:], 0, 0
    with BROWSER:
        for name, check in list(globals().items()):
            if not name.startswith("test_") or (wanted and name not in wanted):
                continue
            start, count = time.monotonic(), count + 1
            try:
                check()
                print(f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {name} ({time.monotonic() - start:.1f} s)", flush=True)
                traceback.print_exc()
    print(f"{count - failed} passed, {failed} failed")
    sys.exit(failed != 0 or not count)


if __name__ == "__main__":
    main()

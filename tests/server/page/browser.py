"""Headless Chromium over the DevTools protocol, through its pipe (NUL between JSON messages), with
the standard library only. A Browser has Pages; a Page has a profile of its own, and keeps every
console error, exception and breach of the Content-Security-Policy that it sees."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = float(os.environ.get("MXC_TEST_PATIENCE", "30"))
FLAGS = ("--headless=new", "--disable-gpu", "--no-first-run", "--disable-extensions",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-default-apps", "--disable-dev-shm-usage", "--mute-audio", "--lang=en",
         "--remote-debugging-pipe", "--force-color-profile=srgb", "--no-default-browser-check",
         "--disable-features=Translate,MediaRouter,OptimizationHints")
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""),
        "ArrowUp": (38, ""), "Home": (36, ""), "End": (35, ""), "F2": (113, ""),
        "Delete": (46, ""), " ": (32, " ")}
SHIFT = 8


class Browser:
    def __enter__(self):
        # where the system lets no sandbox be made (a container, or root), without one: the pages
        # are the test's own
        for more in (["--no-sandbox"],) if os.geteuid() == 0 else ([], ["--no-sandbox"]):
            self.start(more)
            try:
                self.call("Browser.getVersion")
                return self
            except (AssertionError, OSError):
                self.__exit__()
        raise AssertionError("chromium does not start")

    def start(self, more):
        self.profile = tempfile.mkdtemp(prefix="mxc-page-")
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        # from fd 10 on, so that 3 and 4 are free for the shell to point at them
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write)]
        os.close(to_read)
        os.close(to_write)
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "-", "chromium", *FLAGS,
             *more, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        for fd in theirs:
            os.close(fd)
        self.number, self.pages, self.rest, self.replies = 0, {}, b"", {}

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        end = time.monotonic() + PATIENCE
        while number not in self.replies:
            assert time.monotonic() < end, f"no answer to {method} within {PATIENCE} s"
            self.pump(end - time.monotonic())
        reply = self.replies.pop(number)
        assert "error" not in reply, (method, reply["error"])
        return reply["result"]

    def pump(self, seconds):
        """Takes what has come, waiting for it at most so long."""
        if not select.select([self.back], [], [], max(0, seconds))[0]:
            return
        data = os.read(self.back, 1 << 20)
        assert data, "the browser has ended"
        *messages, self.rest = (self.rest + data).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self.replies[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].event(message["method"], message["params"])

    def page(self, url, width=1100, height=800, dark=False):
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"],
                            flatten=True)["sessionId"]
        page = Page(self, session, context)
        self.pages[session] = page
        page.set_up(width, height, dark)
        page.go(url)
        return page


class Page:
    """What a person does with a page."""

    def __init__(self, browser, session, context):
        self.browser, self.session, self.context = browser, session, context
        self.complaints = []

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.browser.pump(0.05)
            complaints = self.complaints
            assert not complaints, complaints
        del self.browser.pages[self.session]
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def set_up(self, width, height, dark):
        for domain in ("Page", "Runtime", "Log", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source="""
            window.breaches = [];
            document.addEventListener('securitypolicyviolation',
                (e) => window.breaches.push(`${e.violatedDirective} ${e.blockedURI}`));""")
        self.size(width, height)
        self.media(dark)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def media(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready !== undefined", "the page is set up")

    def reload(self):
        self.js("delete document.documentElement.dataset.ready")
        self.call("Page.reload")
        self.wait("document.documentElement?.dataset.ready !== undefined", "the page is set up")

    def event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description")
                                   or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])

    def expect(self, word):
        """Complaints with this word are part of the test."""
        self.browser.pump(0.05)
        assert any(word in c for c in self.complaints), (word, self.complaints)
        self.complaints = [c for c in self.complaints if word not in c]

    # ---- script

    def js(self, expression):
        reply = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                          returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in reply, (expression[:200], reply["exceptionDetails"].get(
            "exception", {}).get("description"))
        return reply["result"].get("value")

    def wait(self, expression, what=None, seconds=None):
        end = time.monotonic() + (seconds or PATIENCE)
        while True:
            try:
                value = self.js(expression)
                if value or value == {}:  # an element comes as {}
                    return value
            except AssertionError as error:  # the document changes under it
                if "context" not in str(error) and "Cannot read" not in str(error):
                    raise
            assert time.monotonic() < end, f"not in time: {what or expression}"
            self.browser.pump(0.02)

    def text(self, selector):
        return self.js(f"document.querySelector({json.dumps(selector)})?.textContent")

    def count(self, selector):
        return self.js(f"document.querySelectorAll({json.dumps(selector)}).length")

    # ---- hands

    def key(self, name, modifiers=0):
        code, text = KEYS[name]
        common = {"key": name, "code": "Space" if name == " " else name,
                  "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common,
                  **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        box = self.wait(f"""(() => {{
            const e = document.querySelector({json.dumps(selector)});
            if (!e) return null;
            e.scrollIntoView({{block: 'nearest'}});
            const r = e.getBoundingClientRect();
            return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null; }})()""",
                        f"{selector} is there")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)

    def choose_files(self, selector, *paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=list(paths))

    def drop(self, x, y, *paths):
        """Files from outside, let go over the page."""
        data = {"items": [], "files": list(paths), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def html_of(self, nodes):
        """Of accessibility nodes (role, DOM node)."""
        return [(role, self.call("DOM.getOuterHTML", backendNodeId=n)["outerHTML"][:200])
                for role, n in nodes]

    def picture(self, path):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        with open(path, "wb") as f:
            f.write(data)
        return len(data)

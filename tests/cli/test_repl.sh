#!/usr/bin/env bash
# The conversation of mlxcel run on a pseudo terminal: editing, history, Ctrl-C, Ctrl-D, commands.
# MXC_PROGRAM is the binary, MXC_TEST_DATA tests/data.
set -u
command -v python3 >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
MLXCEL_CACHE_DIR=$work TERM=xterm NO_COLOR=1 python3 - "$MXC_PROGRAM" "$MXC_TEST_DATA/golden/llama" <<'EOF'
import os, pty, select, sys, time

PROGRAM, MODEL = sys.argv[1:]
failed = 0


class Talk:
    def __init__(self, *options, locale="C.UTF-8"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["LC_ALL"] = locale
            os.execv(PROGRAM, [PROGRAM, "run", MODEL, "--temp", "0", *options])
        self.rest = b""
        self.until(b">>> ")

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return b""
        try:
            return os.read(self.fd, 65536)
        except OSError:  # the other side is closed
            return None

    # Everything up to and with the mark; what was there when nothing more came.
    def until(self, mark, seconds=60):
        text, end = self.rest, time.time() + seconds
        while mark not in text and time.time() < end:
            more = self.read(0.2)
            if more is None:
                break
            text += more
        cut = text.find(mark)
        cut = len(text) if cut < 0 else cut + len(mark)
        self.rest = text[cut:]
        return text[:cut]

    # Nothing is typed before the program waits for it: what was printed so far is left behind.
    def settle(self):
        self.rest = b""
        while self.read(0.3):
            pass

    def say(self, text, mark=b"\n>>> "):
        self.settle()
        os.write(self.fd, text)
        return self.until(mark)

    # Exit status after the keys, -1 when it does not end.
    def leave(self, keys):
        self.settle()
        os.write(self.fd, keys)
        end = time.time() + 30
        while time.time() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        return -1


def check(name, ok, seen=""):
    global failed
    if not ok:
        failed += 1
        print("FAILED:", name, seen)


t = Talk("-n", "8")
first = t.say(b"hello\n")
check("an answer", len(first) > 10, first)
check("more lines", t.say(b"one\\\n", b"... ").endswith(b"... "))
check("the entry ends", b">>> " in t.say(b"two\n"))
umlauts = "gr\u00fc\u00df \u65e5\u672c".encode()
check("UTF-8 is typed", umlauts in t.say(umlauts + b"\n"))
check("the line before", umlauts in t.say(b"\x1b[A", umlauts))
t.say(b"\x15/stats\n")
check("figures", b"tokens/s" in t.say(b"x\n"))
check("unknown command", b"unknown command /nope" in t.say(b"/nope\n"))
check("the conversation is forgotten", b"empty" in t.say(b"/clear\n"))
again = t.say(b"hello\n")
check("and begins anew", first.split(b"\r\n")[1] == again.split(b"\r\n")[1], (first, again))
check("bytes that are no UTF-8", b">>> " in t.say(b"a\xffb\n"))
check("Ctrl-D leaves with 0", t.leave(b"\x04") == 0)
history = open(os.environ["MLXCEL_CACHE_DIR"] + "/history", "rb").read()
check("history is kept", b"hello" in history and umlauts[:4] in history, history)

t = Talk("--ignore-eos", "-c", "2048")
os.write(t.fd, b"go\n")
t.until(b"go\r\n")
t.until(b" ")
os.write(t.fd, b"\x03")
stopped = t.until(b"\n>>> ")
check("Ctrl-C stops an answer", b">>> " in stopped, stopped[-100:])
status = t.leave(b"\x03")
check("Ctrl-C at the prompt leaves with 130", status == 130, status)
check("Ctrl-C in a line leaves", Talk().leave(b"abc\x03") == 130)
check("/exit leaves", Talk().leave(b"/exit\n") == 0)

t = Talk("-n", "2", "-c", "256")
check("too long a line is refused", b"context holds 256" in t.say(b"x y " * 400 + b"\n"))
check("and the conversation goes on", b"error" not in t.say(b"hi\n"))
t.leave(b"\x04")
t = Talk("-n", "2", locale="C")
check("UTF-8 in the C locale", umlauts in t.say(umlauts + b"\n"))
t.leave(b"\x04")
print(failed, "failed")
sys.exit(1 if failed else 0)
EOF

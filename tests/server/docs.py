"""The examples of docs/server.md, run as they stand there: blocks of ```console, where a line that
begins with "$ " is a command (with the lines that it goes on over) and the others are what it
prints, "..." for anything; and blocks of ```python, whose output is what stands behind "# -> ".
"$ mlxcel serve ..." starts the server that the commands behind it talk to.

Environment: MXC_CLIENTS (build/clients), where the Python clients are; without them the blocks of
Python are left out.
"""
import os
import re
import subprocess

import harness
from harness import Server

PAGE = os.path.join(harness.SOURCE, "docs", "server.md")
ADDRESS = "http://127.0.0.1:8080"
PYTHON = os.path.join(os.environ.get("MXC_CLIENTS") or os.path.join(harness.SOURCE, "build",
                                                                   "clients"), "bin", "python3")


def blocks():
    with open(PAGE, encoding="utf-8") as f:
        found = re.findall(r"^```(\w*)\n(.*?)^```$", f.read(), flags=re.S | re.M)
    assert {kind for kind, _ in found} == {"console", "python"}, "an example that is not run"
    return found


def is_open(command):
    """Whether a quote is: the command goes on in the next line."""
    return re.sub(r"\\.|'[^']*'", "", command, flags=re.S).count("'") % 2 == 1


def steps(text):
    """[(command, what it prints)]"""
    out = []
    for line in text.splitlines():
        if line.startswith("$ "):
            out.append([line[2:], []])
        elif out and is_open(out[-1][0]):
            out[-1][0] += "\n" + line
        else:
            out[-1][1].append(line)
    return [(command, "\n".join(printed)) for command, printed in out]


def same(printed, wanted):
    parts = [re.escape(part) for part in wanted.split("...")]
    return re.fullmatch(".*?".join(parts) + r"\n*", printed, flags=re.S)


def check_start(server, wanted):
    harness.until(lambda: any(": ready in" in x for x in server.lines), "the model is loaded")
    printed = "\n".join(server.lines).replace(server.url, ADDRESS)
    assert same(printed, wanted), (printed, wanted)


def run_console(server, text):
    """One shell for all commands of a block, so that variables stay."""
    script, expected = "", []
    for command, wanted in steps(text):
        script += f"{command.replace(ADDRESS, server.url)}\necho\necho '<<end>>'\n"
        expected.append((command, wanted))
    done = subprocess.run(["bash", "-c", script], cwd=harness.SOURCE, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
    printed = done.stdout.split("\n<<end>>\n")[:-1]
    assert len(printed) == len(expected), done.stdout
    for (command, wanted), got in zip(expected, printed):
        assert same(got, wanted), f"\n{command}\nprinted\n{got}\nand not\n{wanted}"
    return len(expected)


def run_python(server, text):
    done = subprocess.run([PYTHON, "-B", "-c", text.replace(ADDRESS, server.url)],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"# -> (.*)", text), done.stdout


def test_examples():
    server, count = None, 0
    try:
        for kind, text in blocks():
            listed = steps(text) if kind == "console" else []
            if listed and listed[0][0].startswith("mlxcel serve "):
                if server:
                    server.__exit__(None)
                model = listed[0][0].split()[2]
                known = [os.path.join(harness.SOURCE, d, model) for d in ("", "models")]
                model = next((path for path in known if os.path.exists(path)), model)
                server = Server(model=model).__enter__()
                check_start(server, listed[0][1])
                text = text[len("$ " + listed[0][0] + "\n" + listed[0][1] + "\n"):]
                count += 1
            if kind == "python" and os.path.exists(PYTHON):
                run_python(server, text)
                count += 1
            elif kind == "python":
                print("     left out: the example in Python; ./dev setup installs the clients")
            elif kind == "console" and text:
                count += run_console(server, text)
    except BaseException:
        if server:
            server.process.kill()
        raise
    server.__exit__(None)
    assert count > 20, count


if __name__ == "__main__":
    harness.run(globals())

"""The prompt cache on disk: found after a restart, never wrong after damage or a kill; saved slots."""
import glob
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time

import harness
from harness import Server

WORDS = "time year people way day man thing woman life child world school state family".split()
OTHER = os.path.join(harness.DATA, "golden", "qwen2")


def text(seed, n=120):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


class Folder:
    def __enter__(self):
        self.path = tempfile.mkdtemp()
        return self

    def __exit__(self, *rest):
        shutil.rmtree(self.path, ignore_errors=True)

    def server(self, *flags, **more):
        return Server("--state-dir", self.path, "-c", "2048", *flags, **more)

    def records(self):
        return glob.glob(self.path + "/prompts/*.kv")  # names depend on the program

    def bytes(self):
        total = 0
        for path in self.records():
            try:
                total += os.path.getsize(path)
            except OSError:
                pass # evicted just now
        return total


def ready(s):
    harness.until(lambda: s.metrics()["mlxcel_prompt_cache_ready"] == 1, "the prompt cache is ready")


def ask(s, prompt, n=12, **fields):
    """(answer, cached tokens)"""
    status, reply = s.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0,
                                               "ignore_eos": True, "logprobs": 1, **fields})
    assert status == 200, reply
    choice = reply["choices"][0]
    return ((choice["text"], choice["logprobs"]),
            reply["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0))


def cold(s, prompt, **fields):
    answer, cached = ask(s, prompt, cache_prompt=False, **fields)
    assert cached == 0
    return answer


def test_found_after_a_restart():
    prompts = [text(i) for i in range(3)]
    with Folder() as f:
        with f.server() as s:
            ready(s)
            first = [cold(s, p) for p in prompts]
            for p, answer in zip(prompts, first):
                assert ask(s, p)[0] == answer
            assert ask(s, prompts[0])[1] > 0
        assert f.records(), "nothing was written"
        assert all(os.stat(p).st_mode & 0o777 == 0o600 for p in f.records())
        assert os.stat(f.path + "/prompts").st_mode & 0o777 == 0o700
        with f.server() as s:
            ready(s)
            for p, answer in zip(prompts, first):
                got, cached = ask(s, p)
                assert got == answer and cached >= 96, (cached, got, answer)
            m = s.metrics()
            assert m["mlxcel_prompt_cache_found_total"] >= 9, m
            # a prompt that goes on elsewhere, and one that has nothing in common
            longer = prompts[1] + " and then"
            assert ask(s, longer) [0] == cold(s, longer)
            assert ask(s, text(77))[1] == 0
        with f.server("--prompt-cache-bytes", "none") as s:
            assert ask(s, prompts[0]) == (first[0], 0)


def test_written_while_idle_and_while_busy():
    with Folder() as f, f.server() as s:
        ready(s)
        ask(s, text(1))
        harness.until(lambda: f.records(), "what was used once is written when all is quiet")


def test_of_another_model_or_setting():
    with Folder() as f:
        prompt = text(5)
        with f.server() as s:
            ready(s)
            ask(s, prompt)
        for flags, model in ((("--precision", "fast"), harness.MODEL), (("--cpu", "scalar"),
                             harness.MODEL), ((), OTHER)):
            with f.server(*flags, model=model) as s:
                ready(s)
                got, cached = ask(s, prompt)
                assert cached == 0 and got == cold(s, prompt), flags
        with f.server() as s: # and they are there side by side
            ready(s)
            assert ask(s, prompt)[1] > 0


def damage(path, rng):
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        kind = rng.randrange(4)
        if kind == 0:
            file.truncate(rng.randrange(size))
        elif kind == 1:
            file.seek(rng.randrange(size))
            file.write(b"\x5a\xa5\x77")
        elif kind == 2:
            file.truncate(size + 10)
        else:
            file.write(b"\0" * size)


def test_damage_is_ignored():
    rng = random.Random(3)
    prompts = [text(i) for i in range(4)]
    with Folder() as f:
        with f.server() as s:
            ready(s)
            answers = [cold(s, p) for p in prompts]
            for p in prompts:
                ask(s, p)
        for path in f.records():
            # what has another size than the index says is seen at the start, the others when read
            if rng.random() < 0.7:
                damage(path, rng)
        with f.server() as s:
            ready(s)
            for p, answer in zip(prompts, answers):
                assert ask(s, p)[0] == answer
            warnings = [line for line in s.errors if "prompt cache" in line]
            assert len(warnings) == 1, s.errors
            assert s.metrics()["mlxcel_prompt_cache_damaged_total"] > 0
        with f.server() as s: # written anew
            ready(s)
            for p, answer in zip(prompts, answers):
                got, cached = ask(s, p)
                assert got == answer and cached >= 96, cached
            assert not [line for line in s.errors if "prompt cache" in line]


def test_damaged_index():
    prompt = text(9)
    with Folder() as f:
        with f.server() as s:
            ready(s)
            answer = cold(s, prompt)
            ask(s, prompt)
        for content in (b"not a database, but long enough to be one" * 200, b"SQLite format 3\0" * 300):
            with open(f.path + "/prompts/index.db", "wb") as file:
                file.write(content)
            with f.server() as s:
                ready(s)
                assert ask(s, prompt) == (answer, 0)
                assert len([x for x in s.errors if "index" in x]) == 1, s.errors
        with f.server() as s:
            ready(s)
            got, cached = ask(s, prompt)
            assert got == answer and cached > 0
        shutil.rmtree(f.path + "/prompts") # and where there can be no folder
        with open(f.path + "/prompts", "w") as file:
            file.write("x")
        with f.server() as s:
            assert ask(s, prompt) == (answer, 0)
            harness.until(lambda: any("prompt cache" in x for x in s.errors), "a warning")


def test_bounded():
    with Folder() as f:
        limit = 100000
        with f.server("--prompt-cache-bytes", str(limit)) as s:
            ready(s)
            most = 0
            for i in range(12):
                for _ in range(2):
                    ask(s, text(i, 200), n=2)
                most = max(most, f.bytes())
            harness.until(lambda: f.records(), "something is written")
        assert 0 < f.bytes() <= limit and most <= limit, (f.bytes(), most)
        kept = len(f.records())
        with f.server("--prompt-cache-bytes", str(limit // 2)) as s: # a lower limit later
            ready(s)
            assert f.bytes() <= limit // 2 and 0 < len(f.records()) < kept
            # what is left are beginnings of prompts, so some are found
            assert any(ask(s, text(i, 200), n=2)[1] for i in range(12))


def test_one_server_at_a_time():
    with Folder() as f, f.server() as s:
        ready(s)
        ask(s, text(1))
        with f.server() as other:
            harness.until(lambda: any("another server" in x for x in other.errors), "a warning")
            assert ask(other, text(1))[0] == ask(s, text(1))[0]


def load(s, prompts, answers, stop):
    """Clients that ask for the prompts until the server is gone; wrong answers are kept."""
    def client(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            i = rng.randrange(len(prompts))
            try:
                got = ask(s, prompts[i])[0]
            except (OSError, harness.http.client.HTTPException, ValueError):
                return
            if got != answers[i]:
                answers.append((i, got))
    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    return threads


def test_killed_under_load():
    """kill -9 in the middle of load, again and again: what the next server finds is right."""
    rng = random.Random(1)
    prompts = [text(i // 2, 90) + " " + text(100 + i, 60) for i in range(24)] # pairs share a half
    with Folder() as f:
        with Server("-c", "2048", "--prompt-cache-bytes", "none") as s:
            answers = [cold(s, p) for p in prompts]
        found = 0
        for round_ in range(5):
            s = f.server("--prompt-cache-bytes", "400000")
            s.__enter__()
            try:
                ready(s)
                stop = threading.Event()
                threads = load(s, prompts, answers, stop)
                time.sleep(0.5 + rng.random())
                found += s.metrics()["mlxcel_prompt_cache_found_total"]
                assert s.metrics()["mlxcel_prompt_cache_damaged_total"] == 0
            finally:
                stop.set()
                s.process.send_signal(signal.SIGKILL)
                s.process.wait()
                for t in threads:
                    t.join()
            assert f.bytes() <= 400000
        with f.server() as s:
            ready(s)
            cached = 0
            for p, answer in zip(prompts, answers):
                got, n = ask(s, p)
                cached += n
                assert got == answer
            assert cached > 0 and found > 0, (cached, found)
        assert len(answers) == len(prompts), answers[len(prompts):]


def test_slots():
    prompt = text(11)
    with Folder() as f:
        slots = os.path.join(f.path, "slots")
        def act(s, action, body=None, slot=0):
            return s.post(f"/slots/{slot}?action={action}", body or {})
        with f.server("--slot-save-path", slots, "--prompt-cache-bytes", "none") as s:
            assert act(s, "save", {"filename": "a.bin"})[0] == 400 # nothing ran yet
            answer, _ = ask(s, prompt)
            status, saved = act(s, "save", {"filename": "a.bin"})
            assert status == 200 and saved["n_saved"] >= 96, saved
            assert saved["n_written"] == os.path.getsize(slots + "/a.bin")
            assert saved["id_slot"] == 0 and saved["timings"]["save_ms"] > 0
            status, erased = act(s, "erase")
            assert status == 200 and erased == {"id_slot": 0, "n_erased": saved["n_saved"]}, erased
            assert ask(s, prompt) == (answer, 0)
            act(s, "erase")
            status, restored = act(s, "restore", {"filename": "a.bin"})
            assert status == 200 and restored["n_restored"] == saved["n_saved"], restored
            assert restored["n_read"] == saved["n_written"]
            got, cached = ask(s, prompt)
            assert got == answer and cached >= 96
            for name in ("", ".", "..", "../a", "/etc/passwd", ".a", "a/b", "x" * 200, 5, None):
                for action in ("save", "restore"):
                    status, reply = act(s, action, {"filename": name})
                    assert status == 400, (name, reply)
            assert act(s, "restore", {"filename": "b"})[0] == 400
            assert act(s, "eat", {"filename": "b"})[0] == 400
            for slot in (-1, 4, "x", 1 << 40):
                assert act(s, "erase", slot=slot)[0] == 400
            os.symlink("/etc/hostname", slots + "/link")
            assert act(s, "restore", {"filename": "link"})[0] == 400
            assert s.request("POST", "/slots/0?action=save", b"[" * 1000)[0] == 400
        with f.server("--slot-save-path", slots, "--prompt-cache-bytes", "none") as s:
            assert act(s, "restore", {"filename": "a.bin"})[0] == 200 # after a restart
            got, cached = ask(s, prompt)
            assert got == answer and cached >= 96
            rng = random.Random(2)
            for i in range(12):
                shutil.copy(slots + "/a.bin", slots + "/bad")
                damage(slots + "/bad", rng)
                status, reply = act(s, "restore", {"filename": "bad"})
                assert status == 400 or reply["n_restored"] < saved["n_saved"], reply
            assert ask(s, prompt)[0] == answer == cold(s, prompt)
        with f.server("--slot-save-path", slots, model=OTHER) as s:
            status, reply = act(s, "restore", {"filename": "a.bin"})
            assert status == 400 and "another model" in reply["error"]["message"], reply
        with f.server("--slot-save-path", slots, "--slot-save-bytes", "1000") as s:
            ask(s, prompt)
            assert act(s, "save", {"filename": "c"})[0] == 413
            assert not os.path.exists(slots + "/c") and not glob.glob(slots + "/*.part")
        with f.server() as s: # without the flag there are no files, but there is erase
            ask(s, prompt)
            assert act(s, "save", {"filename": "c"})[0] == 501
            status, erased = act(s, "erase")
            assert status == 200 and erased["n_erased"] > 0


if __name__ == "__main__":
    harness.run(globals())

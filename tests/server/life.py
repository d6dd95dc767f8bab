"""Clients that go away, send slowly, read slowly; the server that is told to end."""
import json
import os
import signal
import socket
import threading
import time

import harness
from harness import Server

# Generates for many seconds on the tiny model: every sequence has the whole context to fill, and
# there are far more of them than places.
CROWD = 24


def begin(s, body, path="/v1/chat/completions", receive=0):
    """Sends a request; reads some bytes of the answer."""
    sock = socket.socket()
    if receive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.settimeout(harness.PATIENCE)
    sock.connect((s.host, s.port))
    harness.send(sock, path, body)
    return sock


def fill(s, n=CROWD, **fields):
    """Requests that keep the engine busy and others in its queue."""
    return [begin(s, harness.long_request(seed=i, n=8, **fields)) for i in range(n)]


def test_gone_while_queued_in_prefill_and_decode():
    with Server("-np", "2", "--max-queue", "1000") as s:
        for stream in (True, False):
            busy = fill(s, stream=stream)
            harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] > 50, "a queue")
            assert s.metrics()["mlxcel_kv_blocks_used"] > 0
            slots = json.loads(s.get("/slots")[2])
            assert any(x["is_processing"] for x in slots), slots
            start = time.monotonic()
            for sock in busy:
                sock.close()
            harness.until(s.idle, "everything is cancelled")
            taken = time.monotonic() - start
            assert taken < harness.PATIENCE / 4, taken
            assert not any(x["is_processing"] for x in json.loads(s.get("/slots")[2]))
        m = s.metrics()
        assert m["mlxcel_requests_unfinished_total"] >= 2 * CROWD, m
        # far less was generated than was asked for
        assert m["llamacpp:tokens_predicted_total"] < 2 * CROWD * 8 * 1900 / 2, m
        assert s.chat("still there?", max_tokens=2)[0] == 200


def test_gone_in_a_long_prompt():
    with Server("-np", "1", "--max-queue", "1000", "-b", "32") as s:
        text = "many words " * 150
        busy = [begin(s, {"messages": [{"role": "user", "content": f"{i} {text}"}],
                          "cache_prompt": False, "n": 4}) for i in range(40)]
        harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] > 20, "a queue")
        before = s.metrics()["llamacpp:n_decode_total"]
        for sock in busy:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        harness.until(s.idle, "everything is cancelled")
        # each of them would have taken more than 1,000 steps to its end
        assert s.metrics()["llamacpp:n_decode_total"] - before < 2000


def test_gone_in_the_middle_of_a_prompt():
    """Its memory is free before the prompt is done: no token is ever made."""
    with Server("-np", "1", "-b", "32", "-c", "2048") as s:
        for stream in (True, False):
            kept = 0
            for i in range(20):
                before = s.metrics()
                sock = begin(s, {"messages": [{"role": "user", "content": f"{i} " + "many words " * 320}],
                                 "cache_prompt": False, "stream": stream, "max_tokens": 1})
                harness.until(lambda: s.metrics()["mlxcel_kv_blocks_used"] > 0 or
                              s.metrics()["llamacpp:prompt_tokens_total"] >
                              before["llamacpp:prompt_tokens_total"], "it is in its prompt")
                sock.close()
                harness.until(s.idle, "its memory is free")
                after = s.metrics()
                steps = after["llamacpp:n_decode_total"] - before["llamacpp:n_decode_total"]
                made = "llamacpp:tokens_predicted_total"
                kept += after[made] == before[made] and steps > 0
                if kept > 2:
                    break
            assert kept > 2, (stream, kept)


def test_half_closed_get_is_answered():
    with Server() as s, s.raw() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " in sock.recv(100)


def closed_after(sock):
    """Seconds until the server ends the connection."""
    start = time.monotonic()
    sock.settimeout(harness.PATIENCE)
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start


def trickle(sock, data, pause):
    """Sends byte by byte until the other side closes; seconds that took."""
    start = time.monotonic()
    sock.settimeout(0.01)
    for byte in data:
        try:
            sock.sendall(bytes([byte]))
            time.sleep(pause)
            if not sock.recv(100):
                break
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    return time.monotonic() - start


def test_slow_senders():
    with Server("--header-timeout", "0.6", "--timeout", "0.8", "--idle-timeout", "0.7") as s:
        with s.raw() as sock: # says nothing
            assert 0.4 < closed_after(sock) < 20
        with s.raw() as sock: # a header of a thousand bytes, 50 a second
            head = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 1000
            assert trickle(sock, head, 0.01) < 8
        with s.raw() as sock: # and a body
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
                         b"Content-Type: application/json\r\n\r\n")
            assert trickle(sock, b"{" + b" " * 999, 0.01) < 8
        with s.raw() as sock: # an idle connection after an answer
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in sock.recv(1000)
            assert 0.4 < closed_after(sock) < 20
        assert s.metrics()["mlxcel_timeouts_total"] >= 4
        harness.until(lambda: s.metrics()["mlxcel_connections"] == 1, "connections are closed")
        assert s.chat("x", max_tokens=1)[0] == 200


def test_slow_readers():
    """A reader that reads nothing is cut off; one beside it is not slowed down."""
    body = harness.long_request(stream=True, n=8, logprobs=True, top_logprobs=20)
    with Server("-np", "8", "--timeout", "2", "--max-stream-kb", "64") as s:
        slow = begin(s, body, receive=4096)
        fast = s.stream("/v1/chat/completions", {"messages": body["messages"], "max_tokens": 50})
        assert fast[-1] == "[DONE]"
        harness.until(s.idle, "the slow one is cut off")
        m = s.metrics()
        assert m["mlxcel_slow_readers_total"] + m["mlxcel_timeouts_total"] >= 1, m
        harness.until(lambda: s.metrics()["mlxcel_connections"] == 1, "its connection is closed")
        # what was sent is in the socket's buffers; then comes the end, and no [DONE]
        data = b""
        try:
            while True:
                piece = slow.recv(65536)
                if not piece:
                    break
                data += piece
        except ConnectionResetError:
            pass
        assert b"[DONE]" not in data
        slow.close()


def test_slow_readers_delay_only_themselves():
    """One that reads nothing, and is not cut off yet, has a place; others come and go beside it."""
    body = harness.long_request(stream=True, n=2, logprobs=True, top_logprobs=20)
    with Server("-np", "4", "--timeout", "600", "--max-stream-kb", "262144") as s:
        slow = begin(s, body, receive=4096)
        for i in range(5):
            events = s.stream("/v1/chat/completions", {"messages": body["messages"], "seed": i,
                                                       "max_tokens": 50})
            assert events[-1] == "[DONE]"
        m = s.metrics()
        assert m["mlxcel_slow_readers_total"] == m["mlxcel_timeouts_total"] == 0, m
        assert m["mlxcel_connections"] >= 2, m # it is still there
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        slow.close()


def test_pings():
    with Server("--sse-ping", "0.1", "-np", "1") as s:
        busy = [begin(s, harness.long_request(seed=i, n=8)) for i in range(4)]
        harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] > 3, "a queue")
        sock = begin(s, {"messages": [{"role": "user", "content": "x"}], "stream": True,
                         "max_tokens": 2})
        data = b""
        while b"[DONE]" not in data:
            piece = sock.recv(65536)
            assert piece, data
            data += piece
            if b": ping" in data:
                for other in busy:
                    other.close()
        assert b": ping\n\n" in data
        sock.close()


def test_drain():
    with Server("-np", "4", "--max-queue", "1000", "--drain-timeout", "60") as s:
        running = [begin(s, harness.long_request(stream=True, seed=i, max_tokens=1500))
                   for i in range(4)]
        heads = [sock.recv(100) for sock in running]
        assert all(b" 200 " in h for h in heads)
        kept = s.connect()
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        s.process.send_signal(signal.SIGTERM)
        harness.until(lambda: any("draining" in x for x in s.errors), "a message")
        try: # the connection that is open already learns of it
            kept.request("POST", "/v1/completions", b'{"prompt": "x"}',
                         {"Content-Type": "application/json"})
            reply = kept.getresponse()
            text = reply.read()
            assert reply.status == 503 and reply.getheader("Retry-After"), (reply.status, text)
        except (ConnectionError, harness.http.client.HTTPException):
            pass # all had ended before
        for sock in running:
            data = b""
            while True:
                piece = sock.recv(65536)
                if not piece:
                    break
                data += piece
            assert b"data: [DONE]" in data
            sock.close()
        assert s.process.wait(timeout=harness.PATIENCE) == 0


def test_drain_has_an_end():
    with Server("-np", "1", "--max-queue", "1000", "--drain-timeout", "0.3") as s:
        busy = fill(s, stream=True)
        harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] > 50, "a queue")
        start = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - start < harness.PATIENCE / 2
        for sock in busy:
            sock.close()


def test_second_signal_ends_at_once():
    with Server("-np", "1", "--max-queue", "1000", "--drain-timeout", "600") as s:
        busy = fill(s, stream=False)
        harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] > 50, "a queue")
        s.process.send_signal(signal.SIGINT)
        harness.until(lambda: any("draining" in x for x in s.errors), "a message")
        assert s.stop(signal.SIGINT) == 0
        for sock in busy:
            sock.close()


def test_queue_is_bounded():
    with Server("-np", "1", "--max-queue", "4") as s:
        results = []
        def ask(i):
            status, headers, text = s.request("POST", "/v1/chat/completions",
                                              harness.long_request(seed=i, max_tokens=200))
            results.append((status, headers, json.loads(text)))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(30)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert {r[0] for r in results} <= {200, 503}, results[0]
        assert [r for r in results if r[0] == 200] and [r for r in results if r[0] == 503]
        for status, headers, reply in results:
            if status == 503:
                assert reply["error"]["type"] == "unavailable_error", reply
                assert int(headers["retry-after"]) > 0, headers
        harness.until(s.idle, "everything has ended")


def test_priorities():
    """With one place, who is more urgent goes before who came earlier."""
    with Server("-np", "1", "--max-queue", "1000") as s:
        order = []
        def ask(name, **fields):
            assert s.post("/v1/chat/completions", harness.long_request(**fields))[0] == 200
            order.append(name)
        threads = [threading.Thread(target=ask, args=("first",), kwargs={"max_tokens": 1500})]
        threads[0].start()
        harness.until(lambda: s.metrics()["llamacpp:requests_processing"] == 1, "the first one runs")
        for i in range(6): # priority: 0 is the most urgent
            threads.append(threading.Thread(target=ask, args=(f"late {i}",), kwargs={
                "priority": 10, "max_tokens": 300, "seed": i}))
            threads[-1].start()
        harness.until(lambda: s.metrics()["llamacpp:requests_deferred"] >= 6 or "first" in order,
                      "a queue")
        ask("urgent", priority=0, max_tokens=1)
        at = len(order)
        for t in threads:
            t.join()
        assert at <= 4, order


def test_ready_only_when_loaded():
    golden = os.path.join(harness.DATA, "golden")
    models = [os.path.join(golden, x) for x in sorted(os.listdir(golden))
              if x.startswith(("llama", "qwen2", "gemma", "phi3"))]
    with Server(model=models[:30], wait=False) as s:
        seen = []
        def ready():
            status, headers, _ = s.get("/health")
            seen.append(status)
            assert status == 200 or int(headers["retry-after"]) > 0, headers
            return status == 200
        last = os.path.basename(models[:30][-1])
        status, reply = s.chat("x", model=last, max_tokens=1)
        assert status == 503, reply
        harness.until(ready, "all are loaded")
        assert seen[0] == 503, seen
        assert s.chat("x", model=last, max_tokens=1)[0] == 200


def test_keys_share_fairly():
    """One key fills the queue; another one's request does not wait for all of it."""
    with Server("-np", "1", "--max-queue", "1000", "--api-key", "greedy,modest") as s:
        order = []
        def ask(key, i, length):
            body = harness.long_request(seed=i, max_tokens=length)
            status, _ = s.post("/v1/chat/completions", body, {"Authorization": "Bearer " + key})
            order.append((key, i, status))
        greedy = [threading.Thread(target=ask, args=("greedy", i, 1200)) for i in range(16)]
        for t in greedy:
            t.start()
        harness.until(lambda: s.metrics({"Authorization": "Bearer modest"})[
            "llamacpp:requests_deferred"] >= 10, "a queue")
        ask("modest", 0, 1)
        at = len(order)
        for t in greedy:
            t.join()
        assert all(status == 200 for _, _, status in order)
        assert at <= 8, order # it came up next but for what ran or had its turn before


def test_many_connections():
    """More clients than places; all are answered, none is forgotten."""
    with Server("--max-connections", "16", "-np", "4", "--max-queue", "1000") as s:
        answers = []
        def ask(i):
            answers.append(s.chat(f"number {i}", max_tokens=5)[0])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert answers == [200] * 64, answers


def test_random_disconnects():
    import random
    rng = random.Random(4)
    with Server("-np", "4", "--max-queue", "1000") as s:
        def client(seed):
            mine = random.Random(seed)
            for _ in range(12):
                sock = begin(s, harness.long_request(
                    seed=seed, stream=mine.random() < 0.5, n=mine.choice([1, 3]),
                    max_tokens=mine.choice([1, 20, 400])))
                if mine.random() < 0.5:
                    sock.settimeout(mine.random() * 0.2)
                    try:
                        sock.recv(mine.choice([1, 100, 10000]))
                    except (TimeoutError, OSError):
                        pass
                if mine.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                    b"\x01\0\0\0\0\0\0\0") # a reset
                sock.close()
        threads = [threading.Thread(target=client, args=(rng.random(),)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        harness.until(s.idle, "everything has ended")
        harness.until(lambda: s.metrics()["mlxcel_connections"] == 1, "connections are closed")
        assert s.chat("still there?", max_tokens=2)[0] == 200


if __name__ == "__main__":
    harness.run(globals())

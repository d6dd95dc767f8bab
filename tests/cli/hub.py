"""A hub on loopback that serves one folder as own/tiny and misbehaves on demand: hub.py FOLDER.

Prints its port. The file FOLDER.control holds words, read again for every file request of
model.safetensors: "slow N" sends N bytes and then little by little, "close N" closes the connection
after N bytes, "long" sends more than there is, "lie" changes one byte. Ends with its parent.
"""
import hashlib, http.server, json, os, sys, threading, time

folder = sys.argv[1]
big = "model.safetensors"


def control():
    try:
        with open(folder + ".control") as f:
            return f.read().split() or [""]
    except FileNotFoundError:
        return [""]


def listed(name):
    with open(os.path.join(folder, name), "rb") as f:
        data = f.read()
    item = {"type": "file", "path": name, "size": len(data)}
    if name == big:
        item["oid"] = "0" * 40
        item["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    else:
        item["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return item


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, data, length=None, more=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = self.path.split("?")[0]
        if "/tree/" in path:
            files = [listed(name) for name in sorted(os.listdir(folder))]
            self.reply(200, json.dumps(files).encode())
        elif "/api/models/" in path:
            self.reply(200, json.dumps({"id": "own/tiny", "sha": "1" * 40}).encode())
        else:
            self.send_file(path.split("/")[-1])

    def send_file(self, name):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        size, start, status, more = len(data), 0, 200, []
        wanted = self.headers.get("Range")
        if wanted:
            start = int(wanted.split("=")[1].split("-")[0])
            status, more = 206, [("Content-Range", f"bytes {start}-{size - 1}/{size}")]
            data = data[start:]
        how = control() if name == big else [""]
        if how[0] == "long":
            data = data + b"more"
        if how[0] == "lie":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if how[0] not in ("slow", "close"):
            return self.reply(status, data, None, more)
        n = int(how[1])
        self.reply(status, data[:n], len(data), more)
        self.wfile.flush()
        self.close_connection = True
        for i in range(n, len(data) if how[0] == "slow" else n, 512):
            self.wfile.write(data[i : i + 512])
            self.wfile.flush()
            time.sleep(0.02)


def end_with_parent(parent):
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args):  # the other side is gone
        pass


server = Server(("127.0.0.1", 0), Hub)
threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
print(server.server_address[1], flush=True)
server.serve_forever()

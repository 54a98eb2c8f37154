"""A place that `audit.ship` sends to over HTTP, which goes wrong on demand: each
request does what the file `mode` says. Takes PUT alone, as a plain server does.
Standard library only.

    sink.py DIR TOKEN    serves DIR/store, prints its port, tells in DIR/log
"""

import glob
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BASE, TOKEN = sys.argv[1:]
STORE = os.path.join(BASE, "store")
LOG = threading.Lock()


def mode():
    with open(os.path.join(BASE, "mode")) as file:
        return file.read()


def tell(**what):
    with LOG, open(os.path.join(BASE, "log"), "a") as file:
        file.write(json.dumps({"at": time.monotonic(), **what}) + "\n")


def lines(copy):
    """Records of a copy that are here, as far as they are here without a gap."""
    whole = len(glob.glob(os.path.join(STORE, copy, "seg-*.zst")))
    folder = os.path.join(STORE, copy, "tail", f"seg-{whole:06}.jsonl")
    count, end = whole * 65536, 0
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), "rb") as file:
            piece = file.read()
        if int(name) != end:
            return count
        end += len(piece)
        count += piece.count(b"\n")
    return count


class Sink(BaseHTTPRequestHandler):
    def do_PUT(self):
        copy, name = self.path.removeprefix("/log/").split("/", 1)
        how = mode()
        tell(began=name, mode=how)
        if self.headers["authorization"] != TOKEN:
            return self.answer(401)
        length = int(self.headers["content-length"])
        if how == "short":
            self.rfile.read(length // 2)
            self.connection.close()
            return tell(failed=name, mode=how)
        body = self.rfile.read(length)
        while mode() == "hold":
            time.sleep(0.02)
        if mode() == "fail":
            tell(failed=name, mode="fail")
            return self.answer(500)
        if how == "slow":
            time.sleep(0.3)
        path = os.path.join(STORE, copy, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.path.join(BASE, "incoming"), "wb") as file:
            file.write(body)
        os.rename(file.name, path)
        covered = lines(copy) >= int(body.split(b"\n")[1]) if name == "checkpoint" else None
        tell(stored=name, mode=how, bytes=length, covered=covered)
        if how == "drop":
            return self.connection.close()
        self.answer(204)

    def answer(self, code):
        self.send_response(code)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()

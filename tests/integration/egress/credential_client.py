"""What programs in the sandbox do with a credential; prints one JSON object."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import socket
import sys
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ.get("MODEL_URL", ""))
PHANTOM = os.environ.get("MODEL_API_KEY", "")
MINE = {"x-api-key": PHANTOM}


def read_all(stream):
    data = b""
    try:
        while more := stream.recv(65536):
            data += more
    except OSError:
        data += b"<reset>"
    return data


def exchange(text, port=None):
    """Sends the text, with `PHANTOM` in its places, and gives what comes until the end."""
    stream = socket.create_connection((URL.hostname, port or URL.port), 30)
    stream.sendall(text.replace("PHANTOM", PHANTOM).encode("latin1"))
    return read_all(stream).decode("latin1")


def status(text):
    """The status of the one reply to the text."""
    stream = socket.create_connection((URL.hostname, URL.port), 30)
    stream.sendall(text.replace("PHANTOM", PHANTOM).encode("latin1"))
    reply = http.client.HTTPResponse(stream)
    try:
        reply.begin()
    except http.client.RemoteDisconnected:
        return 0
    return reply.status


def statuses(replies):
    return [int(status) for status in re.findall("HTTP/1.1 ([0-9]+) ", replies)]


def ask(path, method="POST", headers=MINE, body=b"{}", connection=None):
    connection = connection or http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    connection.request(method, path, body, headers)
    try:
        reply = connection.getresponse()
    except http.client.RemoteDisconnected:
        return {"status": 0, "body": "<cut off>"}
    try:
        text = reply.read().decode("latin1")
    except (http.client.HTTPException, OSError) as error:
        text = getattr(error, "partial", b"").decode("latin1") + "<cut off>"
    return {"status": reply.status, "headers": dict(reply.getheaders()), "body": text}


def basics():
    headers = {
        **MINE, "authorization": "Bearer mine", "cookie": "mine=1", "x-goog-api-key": "mine",
        "accept-encoding": "gzip, br", "range": "bytes=0-3", "content-type": "application/json",
    }
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    first = ask("/v1/messages?beta=true", headers=headers, body=PHANTOM.encode(), connection=connection)
    second = ask("/v1/models", method="GET", body=None, connection=connection)
    environment = pathlib.Path("/proc/self/environ").read_text()
    return {"url": URL.geturl(), "first": first, "second": second, "environment": environment}


REFUSED = {
    "no phantom": "POST /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n",
    "another phantom": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOMx\r\n\r\n",
    "in another header": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer PHANTOM\r\n\r\n",
    "in the query": "POST /v1/messages?x-api-key=PHANTOM HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "a key of its own in the query":
        "POST /v1/messages?%4bey=mine HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "twice": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\nX-API-Key: mine\r\n\r\n",
    "nominated": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: x-api-key\r\nx-api-key: PHANTOM\r\n\r\n",
    "folded": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n mine\r\n\r\n",
    "upgrade": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nx-api-key: PHANTOM\r\n\r\n",
    "trace": "TRACE /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "connect": "CONNECT site.example:443 HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "absolute": "POST http://other.example/v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "another method": "DELETE /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "another path": "POST /v2/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "dots": "POST /v1/leak/../../v2 HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "escaped dots": "POST /v1/%2e%2e/v2 HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "an escaped slash": "POST /v1%2fmessages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "two slashes": "POST //v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n\r\n",
    "two lengths":
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\nContent-Length: 1\r\n"
        "Content-Length: 2\r\n\r\nab",
    "another protocol": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a coding that is none":
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\nTransfer-Encoding: gzip\r\n\r\n",
}


def wait_for_records(count):
    """Waits until the test has seen as many records. What cannot be parsed is recorded after the reply."""
    pathlib.Path("refused.new").write_text(str(count))
    pathlib.Path("refused.new").rename("refused")
    while not pathlib.Path("go").exists():
        time.sleep(0.02)


def refused():
    found = {name: status(text) for name, text in REFUSED.items()}
    wait_for_records(len(found))
    return found


def unlisted():
    return [ask("/v2/hidden?secret=1")["body"], ask("/v1/messages", method="DELETE")["body"]]


SECOND = "POST /v2/hidden HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\nContent-Length: 0\r\n\r\n"
SMUGGLED = {
    "a second request": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n"
        "Content-Length: 2\r\n\r\nab" + SECOND,
    "length and chunks": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n"
        f"Content-Length: {5 + len(SECOND)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks and length": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n"
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + SECOND,
    "bare line feeds": "POST /v1/messages HTTP/1.1\nHost: x\nx-api-key: PHANTOM\n"
        "Content-Length: 0\n\n" + SECOND,
    "a trailer": "POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: PHANTOM\r\n"
        "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nauthorization: mine\r\n\r\n",
}


def smuggled():
    closing = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    return {name: statuses(exchange(text + closing)) for name, text in SMUGGLED.items()}


def proxy(port):
    proxy = ("127.0.0.1", 3128)
    found = {}
    for name, text in {
        "connect": f"CONNECT site.example:{port} HTTP/1.1\r\n\r\n",
        "upper case": f"CONNECT SITE.example:{port} HTTP/1.1\r\n\r\n",
        "another port": "CONNECT site.example:80 HTTP/1.1\r\n\r\n",
        "plain": f"GET http://site.example:{port}/v1/messages HTTP/1.1\r\nx-api-key: mine\r\n\r\n",
    }.items():
        found[name] = exchange(text, port=proxy[1])
    return found


def leaks():
    paths = ["leak/header", "leak/body", "leak/base64", "leak/split", "encoded", "redirect", "cookie"]
    return {path: ask(f"/v1/{path}") for path in paths}


def flow(megabytes):
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    connection.request("POST", "/v1/stream", b"", MINE)
    stream = connection.getresponse()
    first = stream.read1(65536).decode()
    ask("/v1/go")
    second = stream.read().decode()
    # With a length, and in chunks.
    piece = b"x" * (1 << 20)
    length = {**MINE, "content-length": str(megabytes << 20)}
    sent = ask("/v1/messages", headers=length, body=(piece for _ in range(megabytes)))
    chunked = ask("/v1/messages", body=(piece for _ in range(3)))
    large = ask("/v1/large")
    given_up = socket.create_connection((URL.hostname, URL.port), 30)
    given_up.sendall(
        f"POST /v1/slow HTTP/1.1\r\nHost: x\r\nx-api-key: {PHANTOM}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    pathlib.Path("given-up").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    given_up.close()
    while not pathlib.Path("end").exists():
        time.sleep(0.02)
    return {
        "stream": [first, second], "sent": json.loads(sent["body"])["bytes"],
        "chunked": json.loads(chunked["body"])["bytes"], "large": len(large["body"]),
    }


def reset():
    return ask("/v1/reset")


def give_up_upload():
    """Sends a part of a request's body, and closes the connection before there is a reply."""
    stream = socket.create_connection((URL.hostname, URL.port), 30)
    head = ["POST /v1/messages HTTP/1.1", "Host: x", f"x-api-key: {PHANTOM}", "Content-Length: 1000"]
    stream.sendall("\r\n".join([*head, "", ""]).encode() + b"x" * 500)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    stream.close()
    while not pathlib.Path("end").exists():
        time.sleep(0.02)


def two():
    """Statuses of requests with two credentials: at once, and then one after the other."""
    def request(name):
        url = urllib.parse.urlsplit(os.environ[f"{name}_URL"])
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        headers = {"x-api-key": os.environ[f"{name}_API_KEY"]}
        return ask("/v1/cookie", headers=headers, connection=connection)["status"]

    with concurrent.futures.ThreadPoolExecutor() as pool:
        at_once = list(pool.map(request, ["MODEL", "OTHER"]))
    return at_once + [request(name) for name in ["MODEL", "MODEL", "OTHER"]]


def wait():
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    first = ask("/v1/messages", connection=connection)["status"]
    pathlib.Path("ready").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    try:
        then = ask("/v1/messages")["status"]
    except OSError as error:
        then = type(error).__name__
    return {"first": first, "then": then}


def slow():
    """A head that does not end: whether the connection does, and when."""
    begun = time.monotonic()
    stream = socket.create_connection((URL.hostname, URL.port), 30)
    stream.sendall(f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {PHANTOM}\r\nx-more: ".encode())
    stream.settimeout(0.2)
    ended = False
    while not ended and time.monotonic() - begun < 90:
        try:
            stream.sendall(b"x")
            # What comes is a reply or the end.
            stream.recv(4096)
            ended = True
        except TimeoutError:
            continue
        except OSError:
            ended = True
    return {"ended": ended, "seconds": time.monotonic() - begun}


def phantoms():
    """Statuses by phantom, those of an earlier session among them if there was one."""
    others = urllib.parse.urlsplit(os.environ["OTHER_URL"])
    other, notes = os.environ["OTHER_API_KEY"], pathlib.Path("earlier")
    earlier = notes.read_text().split() if notes.exists() else []
    notes.write_text(f"{PHANTOM} {other}")

    def status_of(url, phantom):
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        # A reply that has nothing of the request: that with a key would be cut off.
        return ask("/v1/cookie", headers={"x-api-key": phantom}, connection=connection)["status"]

    return {
        "own": [status_of(URL, PHANTOM), status_of(others, other)],
        "the other's": [status_of(URL, other), status_of(others, PHANTOM)],
        "an earlier one": [status_of(url, phantom) for url in (URL, others) for phantom in earlier],
    }


def labelled():
    """A stream and an upload that run while a file is read, and a request after that."""
    def begun(path, *headers):
        connection = socket.create_connection((URL.hostname, URL.port), 60)
        head = [f"POST {path} HTTP/1.1", "Host: x", f"x-api-key: {PHANTOM}", *headers, "", ""]
        connection.sendall("\r\n".join(head).encode())
        return connection

    stream = begun("/v1/stream", "Content-Length: 0")
    came = b""
    while b"data: one" not in came:
        came += stream.recv(65536)
    upload = begun("/v1/upload", "Content-Length: 1000000")
    upload.sendall(b"harmless" * 100)
    pathlib.Path("ready").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    content = pathlib.Path("data/a.csv").read_text()
    try:
        upload.sendall(b"stolen" * 100)
    except OSError:
        pass
    then = ask("/v1/messages")["status"]
    return {
        "content": content, "then": then,
        "stream": (came + read_all(stream)).decode("latin1").split("\r\n\r\n", 1)[1],
        "upload": statuses(read_all(upload).decode("latin1")),
    }


def once():
    return ask("/v1/messages")


def spent():
    """A request that is answered, and one on the same connection with more than may be sent."""
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=60)
    first = ask("/v1/messages", connection=connection)["status"]
    try:
        then = ask("/v1/upload?part=1", body=b"x" * (1 << 20), connection=connection)["status"]
    except OSError as error:
        then = type(error).__name__
    return {"first": first, "then": then}


def long_paths():
    """Statuses of requests to paths that are too long for a record, with a key across its end."""
    key = "AKIA" + "Q3EGRIBNBTZ5X7LT"  # This file has no secret, to be read.
    return [ask("/v2/" + "x" * number + "/" + key)["status"] for number in (180, 190, 230, 240)]


def hopeless():
    """Requests that no setting of the operator's lets pass; the last one cannot be parsed."""
    names = ["another phantom", "trace", "two slashes", "folded"]
    found = [status(REFUSED[name]) for name in names]
    wait_for_records(len(found))
    return found


print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))

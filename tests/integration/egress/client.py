"""What programs in the sandbox try at its proxy, and around it; prints one JSON object."""

import concurrent.futures
import ctypes
import json
import os
import resource
import socket
import ssl
import sys
import threading
import time

PROXY = ("127.0.0.1", 3128)


def connect():
    return socket.create_connection(PROXY, 30)


def read_all(stream):
    data = b""
    try:
        while more := stream.recv(65536):
            data += more
    except OSError:
        data += b"<reset>"
    return data


def exchange(*parts):
    """Sends the parts one by one, and gives what comes to the end."""
    stream = connect()
    for part in parts:
        try:
            stream.sendall(part)
        except OSError:
            break
    return read_all(stream)


def status(reply):
    return int(reply.split(b" ")[1]) if reply.startswith(b"HTTP/1.1 ") else None


def tunnel(host, port):
    """An open tunnel, or the status of the refusal."""
    stream = connect()
    stream.sendall(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (host.encode(), port))
    head = b""
    while b"\r\n\r\n" not in head:
        more = stream.recv(1)
        if not more:
            break
        head += more
    return stream if status(head) == 200 else status(head)


def hello(name):
    """The first message of a TLS client."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def number(data):
    return int.from_bytes(data, "big")


def extended(message, kind, data):
    """The message with one extension more."""
    body = bytearray(message[9:])
    at = 34
    at += 1 + body[at]
    at += 2 + number(body[at:at + 2])
    at += 1 + body[at]
    length = number(body[at:at + 2]) + 4 + len(data)
    body[at:at + 2] = length.to_bytes(2, "big")
    body += kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data
    return records(b"\x01" + len(body).to_bytes(3, "big") + bytes(body))


def records(message, size=16384):
    parts = [message[at:at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def in_tunnel(host, port, *parts):
    """What comes back from a tunnel to the end, after these parts."""
    stream = tunnel(host, port)
    if isinstance(stream, int) or stream is None:
        return "refused %s" % stream
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in parts:
        try:
            stream.sendall(part)
        except OSError:
            break
    try:
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    got = read_all(stream)
    if got.startswith(b"\x15\x03"):
        return "alert %d" % got[6]
    if got.startswith(b"HTTP/1.1 "):
        return "status %d" % status(got)
    return "echo" if got == b"".join(parts) else "got %r" % got[:60]


def targets(port):
    """Statuses by target, of tunnels and of requests."""
    hosts = {
        "the host": "site.example",
        "in capitals": "SITE.Example",
        "the address": "127.0.0.1",
        "a dot at the end": "site.example.",
        "userinfo": "user@site.example",
        "a password with a slash": "user:se/cret@site.example",
        "another host behind an at": "site.example:%d@other.example" % port,
        "an at behind it": "other.example@site.example",
        "percent": "site%2eexample",
        "a zone": "[fe80::1%25lo]",
        "octal": "0177.0.0.1",
        "hexadecimal": "0x7f.0.0.1",
        "one number": "2130706433",
        "short": "127.1",
        "zeros": "127.000.000.001",
        "mapped": "[::ffff:127.0.0.1]",
        "no brackets": "::1",
        "other loopback": "[::1]",
        "unicode": "s\u00edte.example",
        "a wide dot": "site\u3002example",
        "a space": "site.example ",
        "a tab": "site.example\t",
        "a null": "site.example\0.other.example",
        "empty": "",
        "a path": "site.example/x",
        "a fragment": "site.example#other.example",
        "a backslash": "site.example\\other.example",
        "a question": "site.example?",
    }
    found = {}
    for name, host in hosts.items():
        text = host.encode()
        found[name] = [
            status(exchange(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (text, port), b"\x00")),
            status(exchange(b"GET http://%s:%d/ HTTP/1.1\r\n\r\n" % (text, port))),
        ]
    target = b"site.example:%d" % port
    for name, fields in {
        "Host: as it is": b"Host: " + target,
        "Host: without the port": b"Host: site.example",
        "Host: another one": b"Host: other.example:%d" % port,
        "Host: another port": b"Host: site.example:1",
        "Host: empty": b"Host: ",
        "Host: twice": b"Host: %s\r\nHost: %s" % (target, target),
    }.items():
        found[name] = [
            status(exchange(b"CONNECT %s HTTP/1.1\r\n%s\r\n\r\n" % (target, fields), b"\x00")),
            status(exchange(b"GET http://%s/ HTTP/1.1\r\n%s\r\n\r\n" % (target, fields))),
        ]
    found["port 0"] = [
        status(exchange(b"CONNECT site.example:0 HTTP/1.1\r\n\r\n")),
        status(exchange(b"GET http://site.example:0/ HTTP/1.1\r\n\r\n")),
    ]
    return found


def leads(port):
    """Statuses of names that lead where no name may."""
    names = ["metadata.example", "private.example", "nat64.example", "nowhere.example"]
    return {name: status(exchange(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (name.encode(), port))) for name in names}


def tunnels(port):
    """What becomes of tunnels to the host by what is sent in them."""
    good = hello("site.example")
    message = good[5:]
    request = b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n"
    host = b"site.example:%d" % port
    # For an address there is no name.
    nameless = hello("127.0.0.1")
    many = [good[at:at + 1] for at in range(len(good))]
    return {
        "its name": in_tunnel("site.example", port, good),
        "its name in capitals": in_tunnel("site.example", port, hello("SITE.example")),
        "byte by byte": in_tunnel("site.example", port, *many),
        "in small records": in_tunnel("site.example", port, records(message, 7), b"more"),
        "more behind it": in_tunnel("site.example", port, good + b"early"),
        "another name": in_tunnel("site.example", port, hello("other.example")),
        "a name beneath it": in_tunnel("site.example", port, hello("sub.site.example")),
        "no name": in_tunnel("site.example", port, nameless),
        "an address without a name": in_tunnel("127.0.0.1", port, nameless),
        "an address with a name": in_tunnel("127.0.0.1", port, good),
        "encrypted": in_tunnel("site.example", port, extended(good, 0xFE0D, b"\0" * 40)),
        "two names": in_tunnel("site.example", port, extended(good, 0, b"\0\x0f\0\0\x0cother.exampl")),
        "half a hello": in_tunnel("site.example", port, good[:50]),
        "ssh": in_tunnel("site.example", port, b"SSH-2.0-client\r\n"),
        "something": in_tunnel("site.example", port, b"\0\1\2\3"),
        "http/2": in_tunnel("site.example", port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        "http": in_tunnel("site.example", port, request % host),
        "http to another host": in_tunnel("site.example", port, request % b"other.example"),
        "http without a host": in_tunnel("site.example", port, b"GET / HTTP/1.1\r\n\r\n"),
        "http with a whole URL": in_tunnel(
            "site.example", port, b"GET http://other.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
        ),
    }


def fronting(port, more):
    """What becomes of tunnels to the host in which other names are tried, one after the other, until one is
    refused, and of so many more."""
    found = []
    while len(found) < 1000 and not (found and found[-1].startswith("refused")):
        found.append(in_tunnel("site.example", port, hello("exfil%d.example" % len(found))))
    return found + [in_tunnel("site.example", port, hello("exfil%d.example" % n)) for n in range(more)]


def requests(port):
    """Statuses of requests whose end proxy and server could see in different places."""
    start = b"POST http://site.example:%d/ HTTP/1.1\r\n" % port
    second = b"GET /second HTTP/1.1\r\nHost: other.example\r\n\r\n"
    found = {}
    for name, fields in {
        "another host": b"Host: other.example",
        "two hosts": b"Host: site.example:%d\r\nHost: site.example:%d" % (port, port),
        "two lengths": b"Content-Length: 0\r\nContent-Length: 5",
        "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        "chunks of a kind": b"Transfer-Encoding: x, chunked",
        "folded": b"X: 1\r\n Host: other.example",
        "a space before the colon": b"Host : other.example",
        "nominated": b"Connection: content-length\r\nContent-Length: 3",
    }.items():
        found[name] = status(exchange(start + fields + b"\r\n\r\n" + second))
    found["a second one"] = status(exchange(start + b"Content-Length: 3\r\n\r\nabc" + second))
    chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    found["a second one behind chunks"] = status(exchange(start + chunks + second))
    return found


def again(port):
    """A second request on a connection that the server keeps open: the status of the first, and what follows."""
    stream = connect()
    request = b"GET http://site.example:%d/ HTTP/1.1\r\n\r\n" % port
    stream.sendall(request)
    first = stream.recv(65536)
    stream.sendall(request)
    return {"first": status(first), "then": len(read_all(stream))}


def attempt(function):
    try:
        function()
        return "ok"
    except Exception as error:
        return type(error).__name__


def around(tcp, udp):
    """Ways past the proxy."""
    def stream(family, kind, protocol, address):
        def go():
            with socket.socket(family, kind, protocol) as made:
                made.settimeout(2)
                made.connect(address)
                made.send(b"x")
        return attempt(go)

    def named(what):
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(what)

    def inherited():
        """Something that the process that started the gateway had open."""
        for number in range(3, 64):
            try:
                os.write(number, b"x")
                return
            except OSError:
                continue
        raise OSError

    def io_uring():
        parameters = ctypes.create_string_buffer(120)
        if ctypes.CDLL(None, use_errno=True).syscall(425, 8, parameters) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")

    inet, inet6 = socket.AF_INET, socket.AF_INET6
    return {
        "tcp": stream(inet, socket.SOCK_STREAM, 0, ("127.0.0.1", tcp)),
        "tcp to another machine": stream(inet, socket.SOCK_STREAM, 0, ("192.0.2.1", 443)),
        "tcp over IPv6": stream(inet6, socket.SOCK_STREAM, 0, ("::1", tcp)),
        "udp": stream(inet, socket.SOCK_DGRAM, 0, ("127.0.0.1", udp)),
        "mptcp": stream(inet, socket.SOCK_STREAM, 262, ("127.0.0.1", tcp)),
        "sctp": stream(inet, socket.SOCK_STREAM, 132, ("127.0.0.1", tcp)),
        "raw": stream(inet, socket.SOCK_RAW, 1, ("127.0.0.1", 0)),
        "packet": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "vsock": stream(socket.AF_VSOCK, socket.SOCK_STREAM, 0, (1, tcp)),
        "an abstract socket": attempt(lambda: named("\0portcullis-egress-%d" % tcp)),
        "an inherited descriptor": attempt(inherited),
        "io_uring": attempt(io_uring),
        "quic": stream(inet, socket.SOCK_DGRAM, 0, ("192.0.2.1", 443)),
        "a name server": stream(inet, socket.SOCK_DGRAM, 0, ("127.0.0.53", 53)),
        "a name": attempt(lambda: socket.getaddrinfo("www.example.org", 443)),
        "the proxy's port": attempt(lambda: socket.create_server(("127.0.0.1", PROXY[1]), reuse_port=True)),
    }


def idle(port, count):
    """Opens many tunnels, uses the last, and says how many there are."""
    good = hello("site.example")
    streams = [tunnel("site.example", port) for _ in range(count)]
    streams = [made for made in streams if not isinstance(made, int)]
    last = streams[-1]
    last.sendall(good)
    last.shutdown(socket.SHUT_WR)
    return {"open": len(streams), "echo": read_all(last) == good}


def many(port, count):
    """Opens and uses so many tunnels, some at once, then so many connections that say nothing: what became of them."""
    good = hello("site.example")

    def use(_):
        # A program that is told to come again does so.
        while isinstance(stream := tunnel("site.example", port), int):
            if stream != 503:
                return stream
        stream.sendall(good)
        stream.shutdown(socket.SHUT_WR)
        return read_all(stream) == good

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        used = sum(pool.map(use, range(count)))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    silent = [connect() for _ in range(min(count, most - 100))]
    refused = sum(status(stream.recv(16)) == 503 for stream in silent[4200:])
    for stream in silent:
        stream.close()
    return {"used": used, "refused": refused, "then": use(0)}


def half(port):
    """Goes on to send to a server that has said all, and then says so itself."""
    stream = tunnel("site.example", port)
    stream.sendall(hello("site.example"))
    got = read_all(stream)
    stream.sendall(b"late")
    stream.shutdown(socket.SHUT_WR)
    return {"got": got.decode()}


def slowly(start, data):
    """Sends one byte after the other until a reply comes: its status, and how long it took from before the start."""
    begun = time.monotonic()
    stream = start()
    stream.settimeout(0.2)
    reply = b""
    for byte in data:
        try:
            stream.sendall(bytes([byte]))
            reply = stream.recv(4096)
            break
        except TimeoutError:
            continue
        except OSError:
            break
    return {"status": status(reply), "seconds": time.monotonic() - begun}


def slow():
    """A head that does not end."""
    return slowly(connect, b"GET" * 50)


def slow_hello(port):
    """A client's first message in a tunnel that does not end."""
    return slowly(lambda: tunnel("site.example", port), hello("site.example"))


def long_head():
    return {"status": status(exchange(b"GET http://site.example/ HTTP/1.1\r\n", *[b"X: %s\r\n" % (b"y" * 1000)] * 40))}


def upload(port, size):
    """Sends so many bytes, and says how many came back."""
    stream = tunnel("site.example", port)
    good = hello("site.example")
    try:
        stream.sendall(good + b"x" * size)
        stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    return {"echoed": len(read_all(stream)) - len(good)}


def share(port, size):
    """What comes back of so many bytes over several connections of a session, or the status of a refusal."""
    def send(host, name):
        stream = tunnel(host, port)
        if isinstance(stream, int):
            return stream
        good = hello(name)
        try:
            stream.sendall(good)
            rest = size - len(good)
            while rest > 0:
                rest -= stream.send(b"x" * min(rest, 1000))
            stream.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return len(read_all(stream))

    return {
        "first": send("site.example", "site.example"),
        "second": send("site.example", "site.example"),
        "to an address": send("127.0.0.1", "127.0.0.1"),
    }


def wait(port):
    """Holds a tunnel open until somebody says to go on, and says whether it has ended, which takes a while if there
    is a file `ends`; then tries another one."""
    stream = tunnel("site.example", port)
    stream.sendall(hello("site.example"))
    open("ready", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    stream.settimeout(60 if os.path.exists("ends") else 0.2)
    try:
        ended = not stream.recv(1)
    except TimeoutError:
        ended = False
    except OSError:
        ended = True
    reply = fill_log(port)
    found = {"ended": ended, "then": reply}
    if reply == 503:
        stream.settimeout(60)
        found["at last"] = not stream.recv(1)
    return found


def fill_log(port):
    """Connects until that is refused, since a full disk may have room for a few records: the last reply."""
    reply = 200
    for _ in range(50):
        try:
            reply = status(exchange(b"CONNECT site.example:%d HTTP/1.1\r\n\r\n\0" % port))
        except OSError as error:
            reply = type(error).__name__
        if reply != 200:
            break
    return reply


def sends(stream, data):
    """Whether somebody takes what is sent, as far as a program can tell."""
    try:
        stream.sendall(data)
        return True
    except OSError:
        return False


def has_ended(stream):
    stream.settimeout(60)
    try:
        return not stream.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def labels(port):
    """Tunnels that are open while a file is read, as `order.json` says, and others afterwards."""
    with open("order.json") as file:
        order = json.load(file)
    held = {}
    for host in order["hosts"]:
        held[host] = tunnel(host, port)
        held[host].sendall(hello(host))
    more, stop = [], []

    def race():
        while not stop:
            made = tunnel("site.example", port)
            if not isinstance(made, socket.socket):
                return
            more.append(made)
            sends(made, hello("site.example"))

    racing = [threading.Thread(target=race) for _ in range(order.get("races", 0))]
    for one in racing:
        one.start()
    while len(more) < 4 * len(racing):
        time.sleep(0.01)
    if "wait" in order:
        open("ready", "w").close()
        while not os.path.exists(order["wait"]):
            time.sleep(0.02)
    filled = fill_log(port) if order.get("full") else None
    try:
        if order.get("link"):
            content = os.readlink(order["path"])
        else:
            with open(order["path"]) as file:
                content = file.read()
    except OSError as error:
        content = type(error).__name__
    # What is sent now was read before.
    for stream in [*held.values(), *more]:
        sends(stream, b"stolen")
    stop.append(True)
    for one in racing:
        one.join()
    for stream in more:
        sends(stream, b"stolen")
    try:
        with open("out", "w") as file:
            file.write("derived")
    except OSError:
        # A test of the write looks for its record.
        pass
    return {
        "filled": filled,
        "content": content,
        "ended": {host: has_ended(stream) for host, stream in held.items() if host != order.get("open")},
        "raced": len(more),
        "then": {host: status_of(tunnel(host, port)) for host in order["hosts"]},
    }


def status_of(made):
    return made if made is None or isinstance(made, int) else 200


def reach(port):
    """The status of a tunnel to the host."""
    return status_of(tunnel("site.example", port))


TOPICS = {f.__name__: f for f in [targets, leads, tunnels, fronting, requests, again, around, idle, many, half, slow, slow_hello, long_head, upload, share, wait, labels, reach]}
if __name__ == "__main__" and len(sys.argv) > 1:
    print(json.dumps(TOPICS[sys.argv[1]](*map(int, sys.argv[2:]))))

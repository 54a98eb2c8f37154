"""Runs a command on a network of its own, where a name server changes its answers, and a server replies
with the address at which it was reached. usage: names.py PORT LOG COMMAND...

LOG gets a line for each address that was looked up (`asked NAME`) and each connection (`reached ADDRESS`).
"""

import fcntl
import socket
import struct
import subprocess
import sys
import threading

ALLOWED, REFUSED = "127.0.0.2", "127.0.0.1"
# The answers to the look-ups of a name, one after the other, and again from the first.
ANSWERS = {
    "rebind.example": [[ALLOWED], [REFUSED]],
    "two.example": [[REFUSED, ALLOWED]],
    "denied.example": [[ALLOWED]],
}
ADDRESS_RECORD = 1


def bring_up():
    """The loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh14x", b"lo", 0x41)
        fcntl.ioctl(any_socket, 0x8914, up)


def resolve(server, note):
    counts = dict.fromkeys(ANSWERS, 0)
    while True:
        query, client = server.recvfrom(4096)
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode("latin1"))
            at += 1 + query[at]
        name, (kind,) = ".".join(labels).lower(), struct.unpack(">H", query[at + 1:at + 3])
        addresses = []
        if kind == ADDRESS_RECORD:
            note(f"asked {name}")
            if name in ANSWERS:
                addresses = ANSWERS[name][counts[name] % len(ANSWERS[name])]
                counts[name] += 1
        head = query[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, len(addresses), 0, 0)
        answers = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, 4) + socket.inet_aton(address)
            for address in addresses
        )
        server.sendto(head + query[12:at + 5] + answers, client)


def serve(listener, note):
    while True:
        stream, _ = listener.accept()
        with stream:
            note(f"reached {stream.getsockname()[0]}")
            stream.recv(65536)
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def main():
    log = open(sys.argv[2], "a", buffering=1)
    note = lambda line: log.write(line + "\n")
    bring_up()
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    listener = socket.create_server(("", int(sys.argv[1])))
    for run, made in ((resolve, names), (serve, listener)):
        threading.Thread(target=run, args=(made, note), daemon=True).start()
    sys.exit(subprocess.run(sys.argv[3:]).returncode)


main()

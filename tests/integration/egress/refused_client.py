"""Tunnels that a program asks for and does not get; prints one JSON object."""

import concurrent.futures
import json
import socket
import sys
import time


def refused(host):
    """The status with which the proxy refuses a tunnel."""
    with socket.create_connection(("127.0.0.1", 3128), 60) as stream:
        stream.sendall(b"CONNECT %s:443 HTTP/1.1\r\n\r\n" % host.encode())
        return int(stream.recv(12)[9:])


def long(*lengths):
    return [refused("x" * length) for length in lengths]


def flood(count):
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(lambda number: refused("no_host_%d" % number), range(count)))
    return {"statuses": list(statuses), "seconds": time.monotonic() - begun}


print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))

"""Tunnels that a program asks for and does not get; prints one JSON object."""

import json
import socket
import sys


def refused(host):
    """The status with which the proxy refuses a tunnel."""
    with socket.create_connection(("127.0.0.1", 3128), 60) as stream:
        stream.sendall(b"CONNECT %s:443 HTTP/1.1\r\n\r\n" % host.encode())
        return int(stream.recv(12)[9:])


def long(*lengths):
    return [refused("x" * length) for length in lengths]


print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))

"""An ACP agent that keeps in the gateway's memory what it can: lines that it does not
finish, and replies that it does not read. Then another client of it reads a file."""

import json
import socket
import sys
import threading
import time


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def line(message):
    return (json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode()


def begin(word, path):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    client.sendall((word + "\n").encode())
    client.sendall(line({"id": 1, "method": "initialize", "params": who}))
    client.sendall(line({"method": "notifications/initialized"}))
    return client


def read(number, path):
    call = {"name": "workspace__ws__read_file", "arguments": {"path": path}}
    return line({"id": number, "method": "tools/call", "params": call})


def send(client, pieces):
    try:
        for piece in pieces:
            client.sendall(piece)
    except OSError:
        pass


def unfinished():
    yield b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"'
    for _ in range(40):
        yield b"x" * (1 << 20)


def unread(cwd):
    for number in range(10):
        params = {"uri": f"file://{cwd}/big"}
        yield line({"id": number + 2, "method": "resources/read", "params": params})


def answer(client, number):
    for text in client.makefile():
        message = json.loads(text)
        if message.get("id") == number:
            return message


def flood(word, path, cwd):
    clients = []
    for pieces in [unfinished] * 6 + [lambda: unread(cwd)] * 3:
        client = begin(word, path)
        clients.append(client)
        threading.Thread(target=send, args=(client, pieces()), daemon=True).start()
    time.sleep(2)
    honest = begin(word, path)
    honest.sendall(read(2, "a.txt"))
    return answer(honest, 2)


server = None
for text in sys.stdin:
    message = json.loads(text)
    method = message.get("method")
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif method == "session/new":
        cwd = message["params"]["cwd"]
        (server,) = [one for one in message["params"]["mcpServers"] if one["name"] == "portcullis"]
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        word, path = server["env"][0]["value"], server["args"][2]
        content = {"type": "text", "text": json.dumps(flood(word, path, cwd))}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        say({"method": "session/update", "params": {"sessionId": "s", "update": update}})
        result = {"stopReason": "end_turn"}
    else:
        continue
    say({"id": message["id"], "result": result})

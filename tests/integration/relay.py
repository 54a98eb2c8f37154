"""An ACP agent that does what the test tells it, batch by batch.

The test plays the editor. Its notification `test/say` carries lines that the
agent says; what comes back is handed to the test in one `session/update`.
`test/time` says them one after the other and measures how long each answer
takes, as an agent could.
"""

import json
import os
import time

buffer = b""


def line():
    global buffer
    while b"\n" not in buffer:
        piece = os.read(0, 1 << 20)
        if not piece:
            raise SystemExit
        buffer += piece
    first, buffer = buffer.split(b"\n", 1)
    return first


def lines(count):
    """So many lines, without searching what was searched before."""
    global buffer
    pieces = [buffer]
    seen = buffer.count(b"\n")
    while seen < count:
        piece = os.read(0, 1 << 20)
        if not piece:
            raise SystemExit
        pieces.append(piece)
        seen += piece.count(b"\n")
    found = b"".join(pieces).split(b"\n", count)
    buffer = found.pop()
    return found


def say(data):
    while data:
        data = data[os.write(1, data):]


def send(message):
    say(json.dumps(message).encode() + b"\n")


def update(value):
    send({"jsonrpc": "2.0", "method": "session/update",
          "params": {"sessionId": "s1", "value": value}})


while True:
    message = json.loads(line())
    method = message.get("method")
    if method == "initialize":
        send({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}})
    elif method == "session/new":
        send({"jsonrpc": "2.0", "id": message["id"], "result": {"sessionId": message["params"]["_meta"]["name"]}})
    elif method == "test/say":
        said = message["params"]["lines"]
        # A pipe that is full both ways would end the conversation.
        answers = []
        for start in range(0, len(said), 100):
            batch = said[start:start + 100]
            say("".join(one + "\n" for one in batch).encode())
            answers += [answer.decode() for answer in lines(len(batch))]
        update(answers)
    elif method == "test/time":
        times, answers = [], []
        for one in message["params"]["lines"]:
            data = one.encode() + b"\n"
            start = time.perf_counter_ns()
            say(data)
            answer = line()
            times.append(time.perf_counter_ns() - start)
            answers.append(answer.decode())
        update({"times": times, "answers": answers})

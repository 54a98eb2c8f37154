"""An ACP agent that uses the MCP servers of its sessions as it is told: a prompt is an
order, a JSON object, and the answer says what came of it. Standard library only."""

import json
import os
import random
import subprocess
import sys
import time

sessions = {}
clients = []
tunnels = []


class Server:
    """An MCP server that was started, and its client."""

    def __init__(self, server):
        self.process = subprocess.Popen(
            [server["command"], *server["args"]],
            env={**os.environ, **{one["name"]: one["value"] for one in server["env"]}},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.number = random.randrange(1 << 40)

    def send(self, method, params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self.number

    def answer(self):
        """The next line, which has to answer what was sent last."""
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(self.process.stderr.read().decode())
        answer = json.loads(line)
        if answer.get("id") != self.number:
            raise ValueError(f"not the answer to {self.number}: {line[:200]}")
        return answer.get("result", answer.get("error"))

    def call(self, method, params):
        self.send(method, params)
        return self.answer()

    def begin(self):
        client = {"name": "t", "version": "0"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        self.info = self.call("initialize", params)["serverInfo"]["name"]
        self.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        self.process.stdin.flush()
        return self

    def tool(self, name, arguments):
        return self.call("tools/call", {"name": f"workspace__ws__{name}", "arguments": arguments})

    def end(self):
        self.process.stdin.close()
        rest = self.process.stdout.read().decode()
        return {"exit": self.process.wait(), "rest": rest, "said": self.process.stderr.read().decode()}

    def kill(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


def own(session):
    return sessions[session][-1]


def servers(session, order):
    return sessions[session]


def calls(session, order):
    server = Server(own(session)).begin()
    results = [server.tool(name, arguments) for name, arguments in order["calls"]]
    return {"results": results, "end": server.end()}


def beside(session, order):
    """Each session has a client, and they take turns."""
    all = [Server(servers[-1]).begin() for servers in sessions.values()]
    for turn in range(20):
        for server in all:
            server.send("tools/call", {"name": "workspace__ws__read_file",
                                       "arguments": {"path": "file.txt"}})
        for server in reversed(all):
            assert "secret" in json.dumps(server.answer())
    return [server.end()["exit"] for server in all]


def killed(session, order):
    """Clients are killed in the middle of what they say and hear, over and over; each next
    one has the same place and must find nothing of it."""
    random.seed(order["seed"])
    for turn in range(order["times"]):
        server = Server(own(session))
        if turn % 3:
            server.begin()
            read = {"name": "workspace__ws__read_file", "arguments": {"path": "large.txt"}}
            server.send("tools/call", read)
            server.process.stdin.write(b'{"jsonrpc":"2.0","id":7,"method":"pi')
            server.process.stdin.flush()
            if turn % 2:
                server.process.stdout.read1(random.randrange(1, 90_000))
        time.sleep(random.random() / 100)
        server.kill()
    return calls(session, order)


def garbage(session, order):
    directory = own(session)["args"][2]
    nonce = "0" * 32

    def put(name, words):
        pipe = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, words)
        except BlockingIOError:
            pass
        os.close(pipe)

    for words in (b"\0" * 4096, b"\n" * 4096, b"99999999999999999999 x\n", b"-1 " + nonce.encode(),
                  f"16 {nonce}\n".encode(), f"0 {nonce}".encode(), b"\xff\n", os.urandom(4000)):
        put("announcements", words)
    # More at once than the gateway has places for.
    for turn in range(3):
        for slot in range(16):
            put("announcements", f"\n{slot} {nonce}\n".encode() * 20)
            put(f"{slot}.in", os.urandom(60_000))
    return calls(session, order)


def full(session, order):
    """As many clients as there is room for, one more, and again one when one is gone."""
    all = [Server(own(session)).begin() for _ in range(order["room"])]
    late = Server(own(session))
    late.process.stdin.close()
    refused = {"exit": late.process.wait(), "said": late.process.stderr.read().decode()}
    ended = all.pop(3).end()["exit"]
    again = Server(own(session)).begin().end()["exit"]
    for server in all:
        server.kill()
    return {"refused": refused, "ended": ended, "again": again}


def keep(session, order):
    """A client that stays, and does not read what it asked for."""
    server = Server(own(session)).begin()
    for _ in range(60):
        server.send("tools/call", {"name": "workspace__ws__read_file",
                                   "arguments": {"path": "large.txt"}})
    clients.append(server)
    return server.process.pid


def file(session, order):
    """A request of the agent for a file, over ACP."""
    params = {"sessionId": session, **order["params"]}
    message = {"jsonrpc": "2.0", "id": 900, "method": order["method"], "params": params}
    print(json.dumps(message), flush=True)
    answer = json.loads(sys.stdin.readline())
    assert answer["id"] == 900, answer
    return answer


number = 1000


def ask(method, params):
    """A request to the client, and its answer."""
    global number
    number += 1
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    print(json.dumps(message), flush=True)
    answer = json.loads(sys.stdin.readline())
    assert answer["id"] == number, answer
    return {key: answer[key] for key in ("result", "error") if key in answer}


def terminals(session, order):
    """Requests about terminals, and what is shown of them; `$` stands for the last that was made."""
    answers, last = [], None
    for method, params in order["calls"]:
        text = json.dumps({"sessionId": session, **params})
        params = json.loads(text if last is None else text.replace('"$"', json.dumps(last)))
        if method == "session/update":
            print(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}), flush=True)
            continue
        answers.append(ask(method, params))
        last = answers[-1].get("result", {}).get("terminalId", last)
    return answers


def until(session, order):
    """Asks for the output of a terminal until it contains a text."""
    params = {"sessionId": session, "terminalId": order["terminal"]}
    while True:
        answer = ask("terminal/output", params)
        if "error" in answer or order["text"] in answer["result"]["output"]:
            return answer
        time.sleep(0.01)


def capabilities(session, order):
    return offered


def own_read(session, order):
    with open(order["path"]) as file:
        return file.read()


def own_write(session, order):
    with open(order["path"], "w") as file:
        file.write(order["text"])


def several(session, order):
    """Orders that are carried out in one prompt turn."""
    return [ORDERS[one["order"]](session, one) for one in order["orders"]]


def hold(session, order):
    """Opens a tunnel at the proxy, and keeps it."""
    tunnels.append(client.tunnel(order["host"], order["port"]))
    tunnels[-1].sendall(client.hello(order["host"]))


def held(session, order):
    """What becomes of the tunnel that is kept, and of another one."""
    client.sends(tunnels[-1], b"stolen")
    another = client.status_of(client.tunnel(order["host"], order["port"]))
    return [client.has_ended(tunnels[-1]), another]


def leave(session, order):
    os._exit(0)


ORDERS = {order.__name__: order
          for order in (servers, calls, beside, killed, garbage, full, keep, file, terminals, until,
                        capabilities, own_read, own_write, several, hold, held, leave)}


def reply(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params", {})
    if message.get("method") == "initialize":
        offered = params["clientCapabilities"]
        reply(message, {"protocolVersion": 1, "agentCapabilities": {}})
    elif message.get("method") == "session/new":
        session = f"s{len(sessions)}"
        sessions[session] = params["mcpServers"]
        reply(message, {"sessionId": session})
    elif message.get("method") == "session/prompt":
        order = json.loads(params["prompt"][0]["text"])
        try:
            answer = {"ok": ORDERS[order["order"]](params["sessionId"], order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        text = {"type": "text", "text": json.dumps(answer)}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        params = {"sessionId": params["sessionId"], "update": update}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}))
        reply(message, {"stopReason": "end_turn"})

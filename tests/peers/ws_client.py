"""A client of the `files` channel on the Python library `websockets`.

    ws_client.py URL TOKEN HOW

HOW says how the token is shown: `protocol` or `query`. The plan comes on stdin:
a JSON list of messages, each sent once the one before was answered; a string is
sent as it is. Prints one JSON object: the answers, the changes that came between,
the subprotocol, and how the connection was closed if it was.
"""

import asyncio
import json
import sys

import websockets


async def main(url, token, how):
    options = {"max_size": None, "proxy": None, "open_timeout": 60, "close_timeout": 20}
    if how == "protocol":
        options["subprotocols"] = ["Bearer", token]
    else:
        url = f"{url}?token={token}"
    report = {"answers": [], "changes": [], "subprotocol": None, "closed": None}
    plan = json.load(sys.stdin)
    try:
        async with websockets.connect(url, **options) as socket:
            report["subprotocol"] = socket.subprotocol
            for message in plan:
                await socket.send(message if isinstance(message, str) else json.dumps(message))
                while True:
                    answer = json.loads(await socket.recv())
                    if answer.get("type") != "change":
                        break
                    report["changes"].append(answer)
                report["answers"].append(answer)
            await socket.ping()
    except websockets.ConnectionClosed as closed:
        received = closed.rcvd
        report["closed"] = received and {"code": received.code, "reason": received.reason}
    except websockets.InvalidStatus as refused:
        report["status"] = refused.response.status_code
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:]))

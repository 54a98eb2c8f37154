"""An agent that passes on what its editor asks for: the text of a prompt is a
JSON array of messages, which go to the gateway all at once; when the last of them
is answered, the answers are the prompt's. Standard library only."""

import json
import sys

waiting = {}


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def prompt(message):
    number = message["id"]
    requests = json.loads(message["params"]["prompt"][0]["text"])
    answers = waiting[number] = [None] * len(requests)
    for place, request in enumerate(requests):
        say({"id": f"{number}/{place}", **request})
    if not answers:
        finish(number)


def finish(number):
    result = {"stopReason": "end_turn", "_meta": {"answers": waiting.pop(number)}}
    say({"id": number, "result": result})


def answer(message):
    number, place = message.pop("id").split("/")
    answers = waiting[int(number)]
    answers[int(place)] = message
    # One at a time too, so that the editor knows what was answered before a kill.
    update = {"number": int(number), "place": int(place), "answer": message}
    say({"method": "session/update", "params": update})
    if None not in answers:
        finish(int(number))


for line in sys.stdin:
    heard = json.loads(line)
    method = heard.get("method")
    if method == "initialize":
        say({"id": heard["id"], "result": {"protocolVersion": 1}})
    elif method == "session/new":
        say({"id": heard["id"], "result": {"sessionId": "s1"}})
    elif method == "session/prompt":
        prompt(heard)
    elif method is None:
        answer(heard)

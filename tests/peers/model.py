#!/usr/bin/env python3
"""A language model on loopback that follows a plan: step N is answered with a call of the tool
that the agent offers for it, and what comes behind the last step with a closing word.

usage: model.py PLAN LOG [CERTIFICATE KEY], over TLS with these

PLAN is a JSON array of steps:
  {"do": "read", "path": P}, {"do": "edit", "path": P, "old": A, "new": B},
  {"do": "write", "path": P, "content": C}, {"do": "shell", "command": C}
  {"do": "say", "text": T, "asked": A}, for an agent without tools whose instructions have A
LOG gets a JSON object a line: {"request": BODY} for the first that offers tools, and
{"step": N, "result": TEXT} for what each tool returned. Over TLS it gets {"key": KEY} for each
key that came with a request, too. The port is printed.

Nothing is kept between requests: the step is the number of tool calls that the conversation has.
Spoken: Anthropic's messages, Gemini's generateContent, OpenAI's chat completions and responses.
"""

import json
import ssl
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = {
    "read": {"read", "read_file", "read_text_file"},
    "edit": {"edit", "replace", "edit_file"},
    "write": {"write", "write_file", "write_text_file"},
    "shell": {"bash", "run_shell_command", "execute", "shell", "shell_command", "exec_command"},
}
# What agents call the members of a step.
ARGUMENTS = {
    "path": ("file_path", "path", "absolute_path", "filePath"),
    "old": ("old_string", "oldString"),
    "new": ("new_string", "newString"),
    "content": ("content",),
    "command": ("command", "cmd"),
}
CLOSING = "the plan is done"


def call_for(step, tools):
    """The tool for a step and its arguments, or None where the agent has none."""
    for name, schema in tools:
        if name.lower() not in TOOLS[step["do"]]:
            continue
        known = schema.get("properties") or {}
        arguments = {}
        for member, names in ARGUMENTS.items():
            for argument in names:
                if member in step and argument in known:
                    arguments[argument] = step[member]
                    break
        for needed in schema.get("required") or []:
            kind = known.get(needed, {}).get("type")
            arguments.setdefault(needed, {"boolean": False, "integer": 60}.get(kind, "scripted"))
        return name, arguments
    return None


def text_of(content):
    """The text in the forms that contents take."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("output") or json.dumps(content))
    return json.dumps(content)


def identifier(prefix):
    return prefix + uuid.uuid4().hex[:12]


# Each API: what the conversation has (number of calls, results, tools), and the reply.

def read_anthropic(body):
    calls, results = 0, []
    for message in body.get("messages", []):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for part in parts:
            if part.get("type") == "tool_use":
                calls += 1
            elif part.get("type") == "tool_result":
                results.append(text_of(part.get("content") or ""))
    tools = [(tool["name"], tool.get("input_schema") or {}) for tool in body.get("tools") or []]
    return calls, results, tools


def anthropic(body, call, text):
    if call:
        block = {"type": "tool_use", "id": identifier("toolu_"), "name": call[0], "input": call[1]}
        empty, reason = {**block, "input": {}}, "tool_use"
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    else:
        block, reason = {"type": "text", "text": text}, "end_turn"
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": text}
    usage = {"input_tokens": 9, "output_tokens": 9}
    message = {
        "id": identifier("msg_"), "type": "message", "role": "assistant", "content": [block],
        "model": body.get("model"), "stop_reason": reason, "stop_sequence": None, "usage": usage,
    }
    if not body.get("stream"):
        return message
    end = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]


def read_gemini(body):
    calls, results = 0, []
    for content in body.get("contents", []):
        for part in content.get("parts") or []:
            if "functionCall" in part:
                calls += 1
            elif "functionResponse" in part:
                results.append(text_of(part["functionResponse"].get("response")))
    declared = [one for tool in body.get("tools") or [] for one in tool.get("functionDeclarations", [])]
    schema = lambda one: one.get("parametersJsonSchema") or one.get("parameters") or {}
    return calls, results, [(one["name"], schema(one)) for one in declared]


def gemini(body, call, text):
    wants_json = (body.get("generationConfig") or {}).get("responseMimeType") == "application/json"
    part = {"text": "{}" if wants_json else text}
    if call:
        part = {"functionCall": {"id": identifier(""), "name": call[0], "args": call[1]}}
    content = {"role": "model", "parts": [part]}
    reply = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18},
        "modelVersion": "scripted", "responseId": identifier(""),
    }
    return [reply] if body["stream"] else reply


def read_chat(body):
    calls, results = 0, []
    for message in body.get("messages", []):
        if message["role"] == "assistant":
            calls += len(message.get("tool_calls") or [])
        elif message["role"] == "tool":
            results.append(text_of(message.get("content") or ""))
    functions = [tool["function"] for tool in body.get("tools") or [] if "function" in tool]
    return calls, results, [(one["name"], one.get("parameters") or {}) for one in functions]


def chat(body, call, text):
    message, reason = {"role": "assistant", "content": text}, "stop"
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        one = {"index": 0, "id": identifier("call_"), "type": "function", "function": function}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [one]}, "tool_calls"
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    common = {"id": identifier("chat-"), "created": 0, "model": body.get("model")}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunk = {**common, "object": "chat.completion.chunk"}
    piece = lambda delta, reason: {"index": 0, "delta": delta, "finish_reason": reason}
    return [
        {**chunk, "choices": [piece(message, None)]},
        {**chunk, "choices": [piece({}, reason)]},
        {**chunk, "choices": [], "usage": usage},
        "[DONE]",
    ]


def read_responses(body):
    calls, results = 0, []
    items = body.get("input")
    for item in items if isinstance(items, list) else [{"role": "user", "content": items}]:
        kind = item.get("type", "message")
        if kind.endswith("_call"):
            calls += 1
        elif kind.endswith("_output"):
            results.append(text_of(item.get("output") or ""))
    tools = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
    return calls, results, [(tool["name"], tool.get("parameters") or {}) for tool in tools]


def responses(body, call, text):
    if call:
        item = {
            "type": "function_call", "id": identifier("fc_"), "call_id": identifier("call_"),
            "name": call[0], "arguments": json.dumps(call[1]),
        }
    else:
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": identifier("msg_"), "role": "assistant", "content": [part]}
        item["status"] = "completed"
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    usage["input_tokens_details"], usage["output_tokens_details"] = {"cached_tokens": 0}, {"reasoning_tokens": 0}
    whole = {
        "id": identifier("resp_"), "object": "response", "created_at": 0, "model": body.get("model"),
        "status": "completed", "output": [item], "usage": usage, "error": None, "tools": [],
    }
    if not body.get("stream"):
        return whole
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


APIS = {
    "/messages": (read_anthropic, anthropic),
    "enerateContent": (read_gemini, gemini),
    "/chat/completions": (read_chat, chat),
    "/responses": (read_responses, responses),
}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plan, log, logged = [], None, set()

    def log_message(self, *_):
        pass

    def answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # A connection over TLS that is just closed may have been cut off.
        is_chunked = isinstance(self.connection, ssl.SSLSocket)
        self.send_header(*(("Transfer-Encoding", "chunked") if is_chunked else ("Connection", "close")))
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            data = event if isinstance(event, str) else json.dumps(event)
            text = f"{name}data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text) if is_chunked else text)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        read = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return read

    def do_GET(self):
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}
        self.answer({"object": "list", "data": [model], "models": []})

    do_HEAD = do_GET

    def do_POST(self):
        path = self.path.split("?")[0]
        body = json.loads(self.body() or b"{}")
        if isinstance(self.connection, ssl.SSLSocket):
            key = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
            self.note(("key", key), {"key": key or self.headers.get("authorization")})
        if path.endswith("count_tokens") or ":countTokens" in path:
            return self.answer({"input_tokens": 9, "totalTokens": 9})
        for end, (read, reply) in APIS.items():
            if path.endswith(end) or end in path and ":" in path:
                body.setdefault("stream", ":stream" in path)
                return self.reply(body, read(body), reply)
        self.answer({"error": {"message": f"{path} is not spoken here"}}, 404)

    def say(self, step, body, reply):
        messages = [text_of(message.get("content") or "").strip() for message in body["messages"]]
        # It asks for a commit message, too.
        if step["asked"] not in messages[0]:
            return reply(body, None, CLOSING)
        self.note("request", {"request": body})
        if step["text"].strip() not in messages:
            return reply(body, None, step["text"])
        rest = messages[messages.index(step["text"].strip()) + 1:]
        self.note(0, {"step": 0, "result": "\n".join(rest)})
        return reply(body, None, CLOSING)

    def reply(self, body, conversation, reply):
        calls, results, tools = conversation
        if self.plan[0]["do"] == "say":
            answer = self.say(self.plan[0], body, reply)
            return self.stream(answer) if isinstance(answer, list) else self.answer(answer)
        steps = [call_for(step, tools) for step in self.plan]
        call = None
        # For a title or a summary no tools are offered.
        if None not in steps:
            self.note("request", {"request": body})
            for number, result in enumerate(results):
                self.note(number, {"step": number, "result": result})
            call = steps[calls] if calls < len(steps) else None
        answer = reply(body, call, CLOSING)
        self.stream(answer) if isinstance(answer, list) else self.answer(answer)

    def note(self, key, line):
        if key not in self.logged:
            self.logged.add(key)
            self.log.write(json.dumps(line) + "\n")
            self.log.flush()


def main():
    with open(sys.argv[1]) as plan:
        Model.plan = json.load(plan)
    Model.log = open(sys.argv[2], "w")
    # Programs connect to 127.0.0.1 without a proxy; a credential's process connects for them.
    server = ThreadingHTTPServer(("127.0.0.1" if len(sys.argv) > 3 else "127.0.0.2", 0), Model)
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[3:5])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()

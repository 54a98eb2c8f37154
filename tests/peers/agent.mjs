// An ACP agent on the TypeScript SDK that does what the prompt orders.
//
// The prompt is one JSON object, `{"order": NAME, …}`; the answer is one
// message of JSON, `{"ok": …}` or `{"error": {code, message, data}}`.

import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { inside } from "./sandbox_socket.mjs";
import { runtime } from "./runtime.mjs";

const EDITOR = acp.methods.client;

class Turn {
  #editor;
  #abort = new AbortController();
  #calls = 0;

  constructor(editor, sessionId) {
    this.#editor = editor;
    this.sessionId = sessionId;
  }

  get cancelled() {
    return this.#abort.signal.aborted;
  }

  cancel() {
    this.#abort.abort();
    return this.say("cancelled");
  }

  untilCancelled() {
    const { signal } = this.#abort;
    if (signal.aborted) return Promise.resolve();
    return new Promise((done) => signal.addEventListener("abort", done, { once: true }));
  }

  update(update) {
    return this.#editor.notify(EDITOR.session.update, { sessionId: this.sessionId, update });
  }

  say(text) {
    const content = { type: "text", text };
    return this.update({ sessionUpdate: "agent_message_chunk", content });
  }

  ask(method, params, cancellationSignal) {
    const options = cancellationSignal && { cancellationSignal };
    return this.#editor.request(method, { sessionId: this.sessionId, ...params }, options);
  }

  /** Tells of the work as a tool call while it lasts. */
  async toolCall(title, kind, path, work) {
    this.#calls += 1;
    const toolCallId = `${this.sessionId}/${this.#calls}`;
    const locations = [{ path }];
    await this.update({
      sessionUpdate: "tool_call", toolCallId, title, kind, locations, status: "in_progress",
    });
    const end = (status) => this.update({ sessionUpdate: "tool_call_update", toolCallId, status });
    try {
      const result = await work();
      await end("completed");
      return result;
    } catch (error) {
      await end("failed");
      throw error;
    }
  }

  permission(cancellationSignal) {
    const option = (kind) => ({ optionId: kind, name: kind, kind });
    const params = {
      toolCall: { toolCallId: "asked", title: "a question" },
      options: [option("allow_once"), option("reject_once")],
    };
    return this.ask(EDITOR.session.requestPermission, params, cancellationSignal);
  }
}

/** What came of it, as a value. */
function settled(promise) {
  return promise.then(
    (ok) => ({ ok }),
    ({ code, message, data }) => ({ error: { code, message, data } }),
  );
}

const ORDERS = {
  read(turn, { path, line, limit }) {
    const read = () => turn.ask(EDITOR.fs.readTextFile, { path, line, limit });
    return turn.toolCall("read", "read", path, read);
  },

  write(turn, { path, content }) {
    const write = () => turn.ask(EDITOR.fs.writeTextFile, { path, content });
    return turn.toolCall("write", "edit", path, write);
  },

  /** All at once. */
  many(turn, { orders }) {
    return Promise.all(orders.map((order) => settled(follow(turn, order))));
  },

  /** A request of any name. */
  call(turn, { method, params }) {
    return turn.ask(method, params);
  },

  permission(turn) {
    return turn.permission();
  },

  /** Asks for permission and takes the question back. */
  async withdraw(turn) {
    const abort = new AbortController();
    const answer = turn.permission(abort.signal);
    abort.abort();
    return answer;
  },

  /** Reads a file twice and gives up on the second before the first is there. */
  async giveUp(turn, { path }) {
    const first = settled(turn.ask(EDITOR.fs.readTextFile, { path }));
    const abort = new AbortController();
    const second = settled(turn.ask(EDITOR.fs.readTextFile, { path }, abort.signal));
    abort.abort();
    const given = await second;
    await turn.say("given up");
    return { first: await first, second: given };
  },

  /** Reads a file twice and expects the turn to be cancelled meanwhile. */
  async linger(turn, { path }) {
    const first = settled(turn.ask(EDITOR.fs.readTextFile, { path }));
    const second = settled(turn.ask(EDITOR.fs.readTextFile, { path }));
    await turn.say("asked");
    await turn.untilCancelled();
    return { first: await first, second: await second };
  },

  /** The MCP servers of the session. */
  async servers(turn) {
    return servers.get(turn.sessionId);
  },

  /** Calls tools of the gateway's own server; `word` instead of its own. */
  async inside(turn, { calls, word }) {
    const own = servers.get(turn.sessionId).find(({ name }) => name === "portcullis");
    const env = own.env.map((one) => (word === undefined ? one : { ...one, value: word }));
    return inside({ ...own, env }, calls);
  },

  runtime(_turn, { path, port }) {
    return runtime(path, port);
  },
};

async function follow(turn, order) {
  const does = ORDERS[order.order];
  if (!does) throw acp.RequestError.invalidParams({ order: order.order });
  return does(turn, order);
}

const turns = new Map();
const servers = new Map();
let sessions = 0;
let offered;

acp
  .agent({ name: "portcullis-test-agent" })
  .onRequest(acp.methods.agent.initialize, ({ params }) => {
    offered = params.clientCapabilities;
    return {
      protocolVersion: acp.PROTOCOL_VERSION,
      agentInfo: { name: "portcullis-test-agent", version: "0" },
      agentCapabilities: {},
    };
  })
  .onRequest(acp.methods.agent.session.new, ({ params }) => {
    sessions += 1;
    servers.set(`ts-${sessions}`, params.mcpServers);
    return { sessionId: `ts-${sessions}` };
  })
  .onRequest(acp.methods.agent.session.prompt, async ({ params, client }) => {
    const turn = new Turn(client, params.sessionId);
    turns.set(params.sessionId, turn);
    const order = JSON.parse(params.prompt[0].text);
    const answer =
      order.order === "offered" ? { ok: offered } : await settled(follow(turn, order));
    turns.delete(params.sessionId);
    await turn.say(JSON.stringify(answer));
    return { stopReason: turn.cancelled ? "cancelled" : "end_turn" };
  })
  .onNotification(acp.methods.agent.session.cancel, ({ params }) =>
    turns.get(params.sessionId)?.cancel(),
  )
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));

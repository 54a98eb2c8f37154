// An editor on the ACP TypeScript SDK: `node client.mjs PLAN COMMAND…` starts
// the command as its agent, has it do the turns of the plan, and prints what
// happened as one JSON object.
//
// PLAN: {cwd, fs: {readTextFile, writeTextFile}, buffers: {PATH: TEXT},
//   turns: [{prompt, hold?: {path, until}, cancelAt?}]}
// `hold` answers for that path only once the agent has said `until`;
// `cancelAt` cancels the turn when the agent has said that and, with `hold`, was
//   asked for that path: before, nothing may have begun.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const plan = JSON.parse(process.argv[2]);
const [command, ...args] = process.argv.slice(3);
const EDITOR = acp.methods.client;

const buffers = new Map(Object.entries(plan.buffers ?? {}));
const report = { turns: [], asked: [], buffers: {} };
/** What is heard when somebody asks for what is held. */
const HELD = Symbol("held");
let hold;
let said = new Map();

/** Resolves when the agent says `text` in this turn. */
function hears(text) {
  if (!said.has(text)) {
    let heard;
    const promise = new Promise((done) => (heard = done));
    said.set(text, { promise, heard });
  }
  return said.get(text);
}

function asked(method, params) {
  const { sessionId: _, ...rest } = params;
  report.asked.push({ method, ...rest });
}

const editor = acp
  .client({ name: "portcullis-test-editor" })
  .onRequest(EDITOR.fs.readTextFile, async ({ params }) => {
    asked(EDITOR.fs.readTextFile, params);
    if (hold?.path === params.path) {
      hears(HELD).heard();
      await hears(hold.until).promise;
    }
    const content = buffers.get(params.path);
    if (content === undefined) throw acp.RequestError.resourceNotFound(params.path);
    return { content };
  })
  .onRequest(EDITOR.fs.writeTextFile, ({ params }) => {
    asked(EDITOR.fs.writeTextFile, params);
    buffers.set(params.path, params.content);
    return {};
  })
  .onRequest(EDITOR.terminal.create, ({ params }) => {
    asked(EDITOR.terminal.create, params);
    return { terminalId: "a terminal that must not be" };
  })
  .onRequest(EDITOR.session.requestPermission, async ({ params, signal }) => {
    asked(EDITOR.session.requestPermission, {});
    if (plan.leavesOpen) {
      if (!signal.aborted) await once(signal, "abort");
      return { outcome: { outcome: "cancelled" } };
    }
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  });

async function turn(session, context, { prompt, hold: held, cancelAt }) {
  said = new Map();
  hold = held;
  const text = typeof prompt === "string" ? prompt : JSON.stringify(prompt);
  // Also queued as the `stop` below.
  const reply = session.prompt(text);
  const updates = [];
  for (;;) {
    const message = await session.nextUpdate();
    if (message.kind === "stop") break;
    updates.push(message.update);
    const words = message.update.content?.text;
    if (words === undefined) continue;
    hears(words).heard();
    if (words === cancelAt) {
      if (held) await hears(HELD).promise;
      const { sessionId } = session;
      await context.notify(acp.methods.agent.session.cancel, { sessionId });
    }
  }
  const { stopReason } = await reply;
  report.turns.push({ stopReason, updates });
}

const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const ended = once(agent, "exit");
await editor.connectWith(stream, async (context) => {
  report.agent = await context.request(acp.methods.agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: plan.fs, terminal: true },
  });
  await context.buildSession(plan.cwd).withSession(async (session) => {
    for (const next of plan.turns) await turn(session, context, next);
  });
});
agent.stdin.end();
[report.exit] = await ended;
report.buffers = Object.fromEntries(buffers);
console.log(JSON.stringify(report));

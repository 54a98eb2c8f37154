// An MCP client, as small as it can be: starts a server over stdio, does the
// calls of a plan, and hangs up. What has a `/` in its name is a method, no tool.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export async function inside({ command, args, env }, calls) {
  const own = Object.fromEntries(env.map(({ name, value }) => [name, value]));
  const options = { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, ...own } };
  const server = spawn(command, args, options);
  const waiting = new Map();
  const lines = createInterface({ input: server.stdout });
  lines.on("line", (line) => {
    const message = JSON.parse(line);
    waiting.get(message.id)?.(message);
  });
  const ended = new Promise((end) => server.on("exit", (code) => end({ exit: code })));
  let last = 0;
  const send = (message) => server.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
  const ask = (method, params) => {
    last += 1;
    const id = last;
    const answer = new Promise((done) => waiting.set(id, done));
    send({ id, method, params });
    return Promise.race([answer, ended]);
  };
  const hello = await ask("initialize", {
    protocolVersion: "2025-06-18",
    capabilities: {},
    clientInfo: { name: "portcullis-test-agent", version: "0" },
  });
  if (!hello.result) return { hello };
  send({ method: "notifications/initialized" });
  const tools = (await ask("tools/list", {})).result.tools.map((tool) => tool.name);
  const results = [];
  for (const [name, params] of calls) {
    const call = name.includes("/") ? [name, params] : ["tools/call", { name, arguments: params }];
    const { result, error } = await ask(...call);
    results.push(error ? { error } : result);
  }
  server.stdin.end();
  return { tools, instructions: hello.result.instructions, results, ...(await ended) };
}

// A client of the `files` channel on Node's own WebSocket (Node 22 or newer).
//
//   ws_client.mjs URL TOKEN protocol|query
//
// The plan comes on stdin: a JSON list of messages, each sent once the one
// before was answered. Prints one JSON object: the answers, the changes that
// came between, and the subprotocol.

import { readFileSync } from "node:fs";

const [url, token, how] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(0, "utf8"));
const report = { answers: [], changes: [], protocol: null, closed: null };
const socket =
  how === "protocol"
    ? new WebSocket(url, ["Bearer", token])
    : new WebSocket(`${url}?token=${token}`);
let next = 0;
const send = () => {
  if (next === plan.length) return socket.close(1000, "done");
  socket.send(JSON.stringify(plan[next]));
  next += 1;
};
socket.onopen = () => {
  report.protocol = socket.protocol;
  send();
};
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  if (message.type === "change") return report.changes.push(message);
  report.answers.push(message);
  send();
};
socket.onerror = ({ message }) => {
  report.error = message ?? "error";
};
socket.onclose = ({ code, reason, wasClean }) => {
  report.closed = { code, reason, wasClean };
  console.log(JSON.stringify(report));
};

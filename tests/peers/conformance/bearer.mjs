// Passes requests on with a token, since the conformance scenarios have none,
// and runs the command with the address in place of URL.
//
//   bearer.mjs HOST:PORT TOKEN PATH COMMAND… URL

import { spawn } from "node:child_process";
import http from "node:http";

const [target, token, path, command, ...args] = process.argv.slice(2);
const [host, port] = target.split(":");
const proxy = http.createServer((request, response) => {
  const { method, headers, url } = request;
  const onward = http.request({
    host, port, method, path: url,
    headers: { ...headers, authorization: `Bearer ${token}` },
    setHost: false,
  });
  onward.on("response", (reply) => {
    response.writeHead(reply.statusCode, reply.headers);
    reply.pipe(response);
  });
  onward.on("error", () => response.destroy());
  response.on("close", () => onward.destroy());
  request.pipe(onward);
});
proxy.listen(0, "127.0.0.1", () => {
  const url = `http://127.0.0.1:${proxy.address().port}${path}`;
  const given = args.map((arg) => (arg === "URL" ? url : arg));
  const child = spawn(command, given, { stdio: "inherit" });
  child.on("exit", (code) => process.exit(code ?? 1));
});

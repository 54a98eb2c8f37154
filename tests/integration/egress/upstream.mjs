// A model's server: what it saw goes to a log, a JSON object a line, with `KEY` for the key.
// usage: node upstream.mjs h1|h2 CERTIFICATE KEY-OF-IT LOG KEY
import fs from "node:fs";
import http2 from "node:http2";
import https from "node:https";
import zlib from "node:zlib";

const [protocol, certificate, privateKey, log, key] = process.argv.slice(2);
const note = (line) => fs.appendFileSync(log, JSON.stringify(line).replaceAll(key, "KEY") + "\n");
const later = (run) => setTimeout(run, 50);
let go = () => {};

const paths = {
  "/v1/leak/header": (reply) => reply.writeHead(200, { "x-echo": `it is ${key}` }).end("body"),
  "/v1/leak/body": (reply) => reply.end(`before ${key} after`),
  "/v1/leak/base64": (reply) => reply.end(Buffer.from(`x-api-key: ${key}\n`).toString("base64")),
  "/v1/leak/split": (reply) => {
    reply.write("before " + key.slice(0, 9));
    later(() => reply.end(key.slice(9) + " after"));
  },
  "/v1/encoded": (reply) => {
    reply.writeHead(200, { "content-encoding": "gzip" }).end(zlib.gzipSync(key));
  },
  "/v1/redirect": (reply) => reply.writeHead(302, { location: "https://other.example/" }).end(),
  "/v1/cookie": (reply) => reply.writeHead(200, { "set-cookie": "session=1" }).end("body"),
  "/v1/stream": (reply) => {
    reply.writeHead(200, { "content-type": "text/event-stream" });
    reply.write("data: one\n\n");
    go = () => reply.end("data: two\n\n");
  },
  "/v1/reset": (reply) => {
    reply.write("part");
    later(() => reply.stream.close(http2.constants.NGHTTP2_NO_ERROR));
  },
  "/v1/go": (reply) => { go(); reply.end("went"); },
  "/v1/slow": (reply) => reply.on("close", () => note({ closed: "/v1/slow" })),
  "/v1/large": (reply) => reply.end(Buffer.alloc(1 << 20, "x")),
};

async function answer(request, reply) {
  let bytes = 0, last = "";
  if (request.url === "/v1/upload") note({ began: request.url });
  try {
    for await (const part of request) {
      bytes += part.length;
      last = part.toString("latin1").slice(-100);
    }
  } catch (error) {
    return note({ url: request.url, broken: String(error), last });
  }
  const { method, url, headers, httpVersion } = request;
  note({ method, url, headers, httpVersion, bytes, last });
  const special = paths[url.split("?")[0]];
  if (special) return special(reply);
  const seen = JSON.stringify({ method, url, headers, httpVersion, bytes }).replaceAll(key, "KEY");
  reply.writeHead(200, { "content-type": "application/json" }).end(seen);
}

const options = { cert: fs.readFileSync(certificate), key: fs.readFileSync(privateKey) };
const server = protocol === "h2"
  ? http2.createSecureServer(options, answer)
  : https.createServer({ ...options, keepAliveTimeout: 60_000 }, answer);
server.listen(0, "127.0.0.1", () => console.log(server.address().port));

// What a JavaScript runtime needs of the system it runs on, and what this one
// can reach of the workspace by itself.

import { execFile } from "node:child_process";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

const run = promisify(execFile);

/** Hot enough for the optimising compiler. */
function compiled() {
  let state = 1;
  for (let round = 0; round < 20_000_000; round += 1) state = (state * 31 + round) | 0;
  return state;
}

/** `(func (export "add") (param i32 i32) (result i32))`, assembled by hand. */
const ADDER = Uint8Array.of(
  0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, // magic, version
  0x01, 0x07, 0x01, 0x60, 0x02, 0x7f, 0x7f, 0x01, 0x7f, // the type
  0x03, 0x02, 0x01, 0x00, // one function of it
  0x07, 0x07, 0x01, 0x03, 0x61, 0x64, 0x64, 0x00, 0x00, // exported as `add`
  0x0a, 0x09, 0x01, 0x07, 0x00, 0x20, 0x00, 0x20, 0x01, 0x6a, 0x0b, // its body
);

async function wasm() {
  const { instance } = await WebAssembly.instantiate(ADDER);
  return instance.exports.add(40, 2);
}

/** Four threads that count in the same memory. */
async function threads() {
  const memory = new SharedArrayBuffer(4);
  const body = `const { workerData } = require("node:worker_threads");
    for (let n = 0; n < 1000; n += 1) Atomics.add(new Int32Array(workerData), 0, 1);`;
  const ends = [1, 2, 3, 4].map(
    () =>
      new Promise((done, failed) => {
        const worker = new Worker(body, { eval: true, workerData: memory });
        worker.once("error", failed);
        worker.once("exit", done);
      }),
  );
  await Promise.all(ends);
  return new Int32Array(memory)[0];
}

function network(port) {
  return new Promise((done) => {
    const socket = connect({ host: "127.0.0.1", port });
    socket.once("connect", () => done("connected"));
    socket.once("error", (error) => done(error.code));
  });
}

/** `path` is a file of the workspace, `port` one where the machine listens. */
export async function runtime(path, port) {
  const code = (promise) => promise.then(() => "reached", (error) => error.code);
  const node = await run(process.execPath, ["-e", "console.log(6 * 7)"]);
  const shell = await run("/bin/sh", ["-c", `echo $((6 * 7)); cat '${path}' 2>&1; true`]);
  return {
    compiled: compiled(),
    wasm: await wasm(),
    threads: await threads(),
    child: node.stdout.trim(),
    shell: shell.stdout,
    workspace: await readdir(dirname(path)),
    read: await code(readFile(path)),
    write: await code(writeFile(path, "by myself")),
    network: await network(port),
  };
}

// Uploads of a file with tus-js-client. The scenario decides what happens meanwhile; the lines of output are what the
// client has seen.

import { createHash } from "node:crypto";
import { createReadStream, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";

const require = createRequire(process.env.TIDEGATE_TEST_TUS + "/");
const tus = require("tus-js-client");

const [scenario, endpoint, token, path, storage] = process.argv.slice(2);
const sha256 = createHash("sha256").update(readFileSync(path)).digest("hex");

// Runs an upload until it ends, or the node has acknowledged `abortAt` bytes. Returns how it ended, and the offsets of its
// requests.
function run(options, { resume = false, abortAt = Infinity } = {}) {
  return new Promise((resolve) => {
    const offsets = [];
    const upload = new tus.Upload(createReadStream(path), {
      endpoint,
      headers: { Authorization: `Bearer ${token}` },
      metadata: { filename: "tus.bin", filetype: "application/x-test", sha256 },
      retryDelays: [50, 100, 200, 400, 800, 1600, 3200],
      urlStorage: new tus.FileUrlStorage(storage),
      onBeforeRequest: (request) => {
        if (request.getMethod() === "PATCH") {
          offsets.push(Number(request.getHeader("Upload-Offset")));
        }
      },
      onChunkComplete: (_, accepted) => {
        if (accepted >= abortAt) {
          upload.abort().then(() => resolve({ outcome: "aborted", offsets }));
        }
      },
      onSuccess: () => resolve({ outcome: "complete", offsets }),
      onError: (error) => {
        const status = error.originalResponse?.getStatus();
        resolve({ outcome: `error ${status ?? error}`, offsets });
      },
      ...options,
    });
    const previous = resume ? upload.findPreviousUploads() : Promise.resolve([]);
    previous.then((uploads) => {
      if (resume) upload.resumeFromPreviousUpload(uploads[0]);
      upload.start();
    });
  });
}

// A proxy that breaks a connection once, after this number of bytes from the client. Returns its address.
function breakOnceAfter(bytes) {
  const { hostname, port } = new URL(endpoint);
  let left = bytes;
  const proxy = createServer((client) => {
    const node = connect(Number(port), hostname);
    node.on("error", () => client.destroy());
    client.on("error", () => node.destroy());
    node.on("close", () => client.destroy());
    client.on("close", () => node.end());
    node.pipe(client);
    client.on("data", (data) => {
      const passed = data.subarray(0, left);
      left -= passed.length;
      node.write(passed);
      if (left === 0) {
        left = Infinity;
        client.destroy();
      }
    });
  });
  proxy.unref();
  return new Promise((resolve) => {
    proxy.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${proxy.address().port}/api/v1/tus`));
  });
}

const chunkSize = 1_000_003;
const scenarios = {
  async chunks() {
    const { outcome, offsets } = await run({ chunkSize });
    console.log(`${outcome} from ${offsets}`);
  },
  // Another client object continues what the first one has aborted.
  async resume() {
    const first = await run({ chunkSize }, { abortAt: 2 * chunkSize });
    console.log(`${first.outcome} from ${first.offsets}`);
    const second = await run({ chunkSize }, { resume: true });
    console.log(`${second.outcome} from ${second.offsets}`);
  },
  // The connection breaks in the middle of a body.
  async interruption() {
    const { outcome, offsets } = await run({ endpoint: await breakOnceAfter(2_000_000) });
    const [first, second, ...more] = offsets;
    const continued = second > 0 && second <= 2_000_000 && more.length === 0;
    console.log(`${outcome} from ${first}, then ${continued ? "from what was received" : offsets}`);
  },
  // Several uploads at once that become one file.
  async parallel() {
    const { outcome, offsets } = await run({ parallelUploads: 3 });
    console.log(`${outcome} from ${offsets}`);
  },
  async wrong_digest() {
    const metadata = { filename: "wrong.bin", sha256: "0".repeat(64) };
    const { outcome } = await run({ metadata, retryDelays: null });
    console.log(outcome);
  },
};

await scenarios[scenario]();

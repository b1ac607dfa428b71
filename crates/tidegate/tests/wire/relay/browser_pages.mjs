// Two pages of a browser at a relay endpoint, and pages that are not permitted to use it.

import { readInput, run } from "../interop/browser.mjs";

// Runs in a page: connects, and collects what happens.
function connect({ url, protocols }) {
  const seen = { events: [], waiting: null };
  const add = (event) => {
    seen.events.push(event);
    seen.waiting?.();
  };
  globalThis.seen = seen;
  const socket = new WebSocket(url, protocols);
  globalThis.socket = socket;
  socket.binaryType = "arraybuffer";
  socket.onopen = () => add(`open ${socket.protocol} ${socket.extensions !== ""}`);
  socket.onmessage = ({ data }) =>
    add(typeof data === "string" ? `text ${data}` : `binary ${new Uint8Array(data)}`);
  socket.onclose = ({ code, reason }) => add(`close ${code} ${reason}`);
}

// Runs in a page: the next thing that happened.
async function next() {
  const { seen } = globalThis;
  while (seen.events.length === 0) {
    await new Promise((resolve) => (seen.waiting = resolve));
  }
  return seen.events.shift();
}

await run(async (browser, port) => {
  console.log(port);
  const { ws, strict, id, key } = await readInput();
  const open = async (host, url, protocols) => {
    const page = await browser.newPage();
    await page.goto(`http://${host}:${port}/`);
    await page.evaluate(connect, { url, protocols });
    return page;
  };
  const url = `ws://${ws}/ws/${id}`;
  const withKey = ["tidegate-relay", `key.${key}`];
  const first = await open("127.0.0.1", url, withKey);
  const second = await open("127.0.0.1", url, withKey);
  console.log(await first.evaluate(next));
  console.log(await second.evaluate(next));
  await first.evaluate(() => socket.send("grüße"));
  console.log(await second.evaluate(next));
  await second.evaluate(() => socket.send(new Uint8Array([0, 255, 7])));
  console.log(await first.evaluate(next));
  await first.evaluate(() => socket.send("long ".repeat(1000)));
  console.log((await second.evaluate(next)).length);
  await first.evaluate(() => socket.close(1000));
  console.log(await first.evaluate(next));

  const wrongKey = await open("127.0.0.1", url, ["tidegate-relay", "key.another-key-of-mine"]);
  const otherOrigin = await open("localhost", url, withKey);
  for (const page of [wrongKey, otherOrigin]) {
    await page.evaluate(next);
    const { code } = JSON.parse((await page.evaluate(next)).slice(5));
    console.log(`${code}, ${await page.evaluate(next)}`);
  }
  // The listener refuses the handshake.
  const refused = await open("localhost", `ws://${strict}/ws/${id}`, withKey);
  console.log(await refused.evaluate(next));
});

// A client of a relay endpoint with the package `ws`: sends a text, answers a text with a text and a binary message
// with its reverse, then closes.

import { createRequire } from "node:module";

const require = createRequire(process.env.TIDEGATE_TEST_NODE_MODULES + "/");
const { WebSocket } = require("ws");

const socket = new WebSocket(process.argv[2]);
let extensions = "";
socket.on("open", () => {
  extensions = Object.keys(socket._extensions).join(" ");
  socket.send("hello");
});
socket.on("message", (data, isBinary) => {
  if (isBinary) {
    socket.send(Buffer.from([...data].reverse()), () => socket.close(1000));
  } else {
    socket.send(`text ${data}`);
  }
});
socket.on("close", (code) => console.log(`closed ${code} ${extensions}`.trim()));
socket.on("error", (error) => {
  console.log(`error ${error.message}`);
  process.exit(1);
});

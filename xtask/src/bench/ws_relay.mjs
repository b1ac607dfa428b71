// A relay with the package `ws`: a room for each path. Arguments: port, and the folder `node_modules`.
import { createRequire } from "node:module";

const [port, modules] = process.argv.slice(2);
const { WebSocketServer } = createRequire(`${modules}/`)("ws");
const rooms = new Map();
const server = new WebSocketServer({ port: Number(port), host: "127.0.0.1", perMessageDeflate: false });
server.on("connection", (socket, request) => {
  const room = rooms.get(request.url) ?? new Set();
  rooms.set(request.url, room.add(socket));
  socket.on("message", (data, isBinary) => {
    for (const other of room) {
      if (other !== socket && other.readyState === 1) other.send(data, { binary: isBinary });
    }
  });
  socket.on("close", () => {
    room.delete(socket);
    if (room.size === 0) rooms.delete(request.url);
  });
});

// Chromium for tests of web pages, and a server of empty pages, which gives them an origin.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.env.TIDEGATE_TEST_PLAYWRIGHT + "/");
const { chromium } = require("playwright-core");

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// The next line that the test writes, as JSON.
export async function readInput() {
  const { value } = await input.next();
  return JSON.parse(value);
}

// Runs `test(browser, port)`: a started browser, and a port at which any host name of this machine has an empty page. A
// failure ends the script with an error.
export async function run(test) {
  const server = createServer((_request, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end("<!doctype html><title>test</title>");
  });
  await new Promise((resolve) => server.listen(0, resolve));
  const executablePath = process.env.TIDEGATE_TEST_CHROMIUM;
  const browser = await chromium.launch({ executablePath });
  try {
    await test(browser, server.address().port);
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
    process.stdin.destroy();
  }
}

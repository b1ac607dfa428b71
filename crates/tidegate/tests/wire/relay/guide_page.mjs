// Shows a page, and writes what it logs, until the test ends.

import { readInput, run } from "../interop/browser.mjs";

await run(async (browser, port) => {
  const html = await readInput();
  const page = await browser.newPage();
  page.on("console", (message) => console.log(message.text()));
  page.on("pageerror", (error) => console.log(`error: ${error.message}`));
  await page.goto(`http://127.0.0.1:${port}/`);
  await page.setContent(html);
  await new Promise(() => {});
});

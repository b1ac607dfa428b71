// Writes the pictures of the documentation: pages of a node that runs the demo fleet (`tidegate demo`).
// Usage: node scripts/pictures.mjs URL USER PASSWORD, with the path of Chromium in TIDEGATE_TEST_CHROMIUM.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [url, username, password] = process.argv.slice(2);
if (!password) throw new Error('usage: node scripts/pictures.mjs URL USER PASSWORD');
const folder = join(import.meta.dirname, '../../docs/images');
const quality = 0.85;

/** Name, address, and what is done before the picture is taken. */
const pictures = [
  ['console-home', '/'],
  ['console-dashboard', '/dashboards/demo-site?range=24h'],
  ['console-device', '/devices/demo-pump-03'],
  ['console-rule', '/rules/demo-hot-pumps', tested],
  ['console-trace', '/live?tab=trace', traced],
];

async function tested(page) {
  await page.getByLabel('Client id').fill('demo-pump-03');
  await page.getByLabel('Payload', { exact: true }).last().fill('{"temperature": 87.2, "pressure": 3.4}');
}

async function traced(page) {
  await page.getByRole('button', { name: /^Record/ }).click();
  await page.waitForTimeout(6_000);
  const list = page.getByRole('region', { name: 'Messages' });
  await list
    .getByRole('button', { name: /demo-pump-03.*rule/ })
    .first()
    .click();
}

const browser = await chromium.launch({ executablePath: process.env.TIDEGATE_TEST_CHROMIUM });
const options = { baseURL: url, locale: 'en-GB', colorScheme: 'light', viewport: { width: 1280, height: 800 } };
const profile = await browser.newContext({ ...options, reducedMotion: 'reduce' });
const answer = await profile.request.post('/api/v1/console-session', { data: { username, password } });
if (!answer.ok()) throw new Error(await answer.text());
for (const [name, path, act] of pictures) {
  const page = await profile.newPage();
  await page.goto(path);
  await page.locator('main h1').first().waitFor();
  await page.waitForTimeout(4_000);
  await act?.(page);
  await page.waitForTimeout(2_000);
  const png = await page.screenshot();
  // Chromium writes PNG only; its canvas writes WebP, which is a third of the size.
  const blank = await browser.newPage();
  const webp = await blank.evaluate(
    async ([data, quality]) => {
      const image = new Image();
      image.src = `data:image/png;base64,${data}`;
      await image.decode();
      const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
      canvas.getContext('2d').drawImage(image, 0, 0);
      return canvas.toDataURL('image/webp', quality).split(',')[1];
    },
    [png.toString('base64'), quality],
  );
  writeFileSync(join(folder, `${name}.webp`), Buffer.from(webp, 'base64'));
  await blank.close();
  await page.close();
}
await browser.close();

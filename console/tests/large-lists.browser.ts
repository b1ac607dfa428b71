/** A list of 100,000 devices: it scrolls and is searched, and the page stays small. */

import type { Browser, CDPSession } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open } from './support/browser';
import { eventually, TestNode } from './support/node';

const count = 100_000;
const linesPerRequest = 10_000;
const screens = 40;
/** Elements of the page, whatever the length of the list. */
const maxElements = 3_000;
/** For some thousand loaded rows. */
const maxGrowthBytes = 40 * 1024 * 1024;

let node: TestNode;
let browser: Browser;

const idOf = (number: number) => `valve-${String(number).padStart(6, '0')}`;

beforeAll(async () => {
  node = await TestNode.start();
  await node.expect('POST', '/api/v1/products', { id: 'valve' });
  for (let first = 0; first < count; first += linesPerRequest) {
    const lines = Array.from({ length: linesPerRequest }, (_, line) =>
      JSON.stringify({ id: idOf(first + line), product: 'valve', name: `Valve ${first + line}` }),
    );
    await node.sendLines('/api/v1/device-import', lines);
  }
  browser = await launch();
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

async function usedHeap(session: CDPSession): Promise<number> {
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  return usedSize;
}

test('large lists: 100,000 devices are scrolled, searched and sorted', async () => {
  const { body } = await node.call('GET', '/api/v1/device-counts');
  expect(body.devices).toBe(count);
  const profile = await loggedIn(browser, node);
  const page = await open(profile, '/devices');
  const session = await profile.newCDPSession(page);
  await session.send('HeapProfiler.enable');
  const before = await usedHeap(session);
  const table = page.getByRole('region', { name: 'Devices' });
  const shown = () => table.locator('tbody tr:not([aria-hidden])').count();
  for (let screen = 0; screen < screens; screen += 1) {
    // The end of what is loaded; the next page follows.
    const height = await table.evaluate((element) => {
      element.scrollTop = element.scrollHeight;
      return element.scrollHeight;
    });
    await eventually('more rows are loaded', () =>
      table.evaluate((element, old) => element.scrollHeight > old, height),
    );
  }
  expect(await shown()).toBeGreaterThan(0);
  expect(await page.evaluate(() => document.querySelectorAll('*').length)).toBeLessThan(maxElements);
  expect((await usedHeap(session)) - before).toBeLessThan(maxGrowthBytes);

  // The node sorts, so that also rows are first that were not loaded.
  const firstRow = () => table.locator('tbody tr:not([aria-hidden])').first().innerText();
  await page.getByRole('button', { name: 'Id', exact: true }).click();
  await page.getByRole('button', { name: 'Id', exact: true }).click();
  await eventually('the list is sorted by the node', async () => (await firstRow()).includes(idOf(99_999)));
  await page.getByRole('button', { name: 'Id', exact: true }).click();
  await eventually('the list is as it was', async () => (await firstRow()).includes(idOf(0)));

  // The node searches, so that also rows are found that are not loaded.
  await page.getByLabel('Part of an id or name').fill('valve-09999');
  await page.getByText('10 rows', { exact: true }).waitFor();
  await page.getByRole('link', { name: 'Valve 99990' }).waitFor();
  await page.getByRole('button', { name: 'Id', exact: true }).click();
  await page.getByRole('button', { name: 'Id', exact: true }).click();
  await eventually('the list is sorted', async () => (await firstRow()).includes(idOf(99_999)));
  await profile.close();
});

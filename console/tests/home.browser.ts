/** An open home page: it needs no more memory with time, and costs the node almost nothing. */

import { readFileSync } from 'node:fs';
import type { Browser, CDPSession } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { eventually, TestNode } from './support/node';

/** An hour of the stream of statistics, one event per second. */
const eventsPerHour = 3_600;
const hours = 4;
/** What the heap may differ after hours: compiled code and caches. */
const maxGrowthBytes = 3 * 1024 * 1024;
const measuredMs = 10_000;
/** The budget is 0.5 % of a core. Programs of tests are not optimised, which makes them several times slower. */
const maxShareOfCore = 0.005 * 8;
/** `sysconf(_SC_CLK_TCK)` of Linux. */
const ticksPerSecond = 100;

let node: TestNode;
let browser: Browser;

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

test('home: an empty node shows the first steps', async () => {
  const profile = await loggedIn(browser, node);
  const page = await open(profile, '/');
  await page.getByText('tidegate demo', { exact: true }).waitFor();
  await page.getByRole('img', { name: `QR code with the address mqtt://127.0.0.1:${node.mqttPort}` }).waitFor();
  await page.getByText(`mosquitto_sub -h 127.0.0.1 -p ${node.mqttPort}`).waitFor();
  await saveScreenshot(page, '/', 'empty-light-1280');
  expectNone(await accessibilityProblems(page));
  await page.setViewportSize({ width: 390, height: 900 });
  await page.reload();
  await page.getByText('tidegate demo', { exact: true }).waitFor();
  await saveScreenshot(page, '/', 'empty-light-390');
  expectNone(await overflowing(page));
  await profile.close();
});

/** An hour of events, with 1,000 messages per second. */
function hourOfEvents(hour: number): string {
  const startMs = Date.now() + hour * eventsPerHour * 1000;
  const events = Array.from({ length: eventsPerHour }, (_, second) => {
    const messages = (hour * eventsPerHour + second) * 1000;
    const metrics = {
      clients_connected: 1000,
      connections: 1000,
      connects_total: 1000,
      messages_received_total: messages,
      messages_sent_total: messages + second,
      bytes_received_total: messages * 64,
      bytes_sent_total: messages * 64,
      messages_dropped_total: 0,
      session_queue_messages: second % 7,
    };
    return `event: stats\ndata: ${JSON.stringify({ at_ms: startMs + second * 1000, metrics })}\n\n`;
  });
  return events.join('');
}

async function usedHeap(session: CDPSession): Promise<number> {
  await session.send('HeapProfiler.enable');
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  return usedSize;
}

test('home: hours of events at 1,000 messages per second do not fill the memory', async () => {
  const profile = await loggedIn(browser, node);
  const page = await profile.newPage();
  let hour = 0;
  await page.route('**/api/v1/events?*', async (route) => {
    if (hour >= hours) return;
    await route.fulfill({ contentType: 'text/event-stream', body: hourOfEvents(hour) });
    hour += 1;
  });
  await page.goto('/');
  const session = await profile.newCDPSession(page);
  const elements = () => page.evaluate(() => document.querySelectorAll('*').length);
  await page
    .locator('.tile')
    .filter({ hasText: 'Messages in' })
    .getByText(/^1\D?(000|k)/i)
    .first()
    .waitFor();
  await eventually('the first hours have passed', async () => hour >= 2);
  const [heapBefore, elementsBefore] = [await usedHeap(session), await elements()];
  await eventually('all hours have passed', async () => hour >= hours);
  await page.waitForTimeout(1_000);
  expect((await usedHeap(session)) - heapBefore).toBeLessThan(maxGrowthBytes);
  expect(await elements()).toBeLessThanOrEqual(elementsBefore + 10);
  await profile.close();
});

/** CPU time of the node in seconds. */
function cpuSeconds(): number {
  const fields = readFileSync(`/proc/${node.pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / ticksPerSecond;
}

test('home: an open page costs the node almost nothing', async () => {
  const profile = await loggedIn(browser, node);
  const share = async (): Promise<number> => {
    const [cpu, start] = [cpuSeconds(), Date.now()];
    await new Promise((resolve) => setTimeout(resolve, measuredMs));
    return (cpuSeconds() - cpu) / ((Date.now() - start) / 1000);
  };
  const idle = await share();
  const page = await open(profile, '/');
  await page.waitForTimeout(1_000);
  const used = (await share()) - idle;
  console.log(`an open home page costs the node ${(used * 100).toFixed(2)} % of a core`);
  expect(used).toBeLessThan(maxShareOfCore);
  await profile.close();
});

test('home: nothing is called well before it is known', async () => {
  const profile = await loggedIn(browser, node);
  const page = await profile.newPage();
  const well = page.getByText('No alarms to acknowledge');
  await node.expect('POST', '/api/v1/products', { id: 'pump' });
  await node.expect('POST', '/api/v1/devices', { id: 'pump-1', product: 'pump' });
  const held: (() => Promise<void>)[] = [];
  await page.route(
    (url) => url.pathname === '/api/v1/sink-status',
    (route) => void held.push(() => route.continue()),
  );
  await page.goto('/');
  await page.getByRole('heading', { name: 'Needs attention' }).waitFor();
  await page.getByText('Most used limits').waitFor();
  await eventually('the states of sinks are asked for', async () => held.length > 0);
  expect(await well.count()).toBe(0);
  for (const answer of held) await answer();
  await well.waitFor();
  await profile.close();
});

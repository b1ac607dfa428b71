/**
 * Pages with 100,000 rows or points: all rows are scrolled through, in frames that a person sees as smooth; the document stays small,
 * and a row costs little memory. The rows are made by the test, so that neither node nor network limits the page.
 */

import type { Browser, BrowserContext, CDPSession, Page, Route } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { launch, loggedIn, settled } from './support/browser';
import { eventually, TestNode } from './support/node';

const count = 100_000;
/** More than the node sends at once, so that the test does not wait for hundreds of answers. */
const rowsPerAnswer = 5_000;
/** Elements of the page, whatever the length of the list. */
const maxElements = 3_000;
/** Of the row as the node sends it, and what the page keeps beside it. */
const maxBytesPerRow = 1_500;
/**
 * 95 of 100 frames while the list is scrolled, compared with those of a page of as many plain rows that is scrolled in the same way just
 * before: a slow or shared machine slows both down.
 */
const maxFrameFactor = 6;
/** Slower is not smooth on any machine. */
const maxFrameMs = 1_000;
/** A screen shows no more frames, however little a page costs. */
const minFrameMs = 1_000 / 60;
const rounds = 3;
const scrolledFrames = 120;
/** As with a fast turn of the wheel: 10 rows in a frame. */
const scrolledPixels = 360;
/** The budget is 100 ms, without other tests on the machine. */
const maxDrawMs = 100 * 4;

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
let plainPage: Page;

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  profile = await loggedIn(browser, node, { viewport: { width: 1280, height: 900 } });
  plainPage = await profile.newPage();
  const rows = Array.from({ length: count }, (_, index) => `<div style="height: 36px">row ${index}</div>`);
  await plainPage.setContent(
    `<div role="region" aria-label="Plain" style="height: 600px; overflow: auto">${rows.join('')}</div>`,
  );
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

const startMs = Date.UTC(2026, 0, 1);
const padded = (index: number) => String(index).padStart(6, '0');

const client = (index: number) => ({
  client_id: `client-${padded(index)}`,
  username: `user-${index % 100}`,
  connected: index % 3 !== 0,
  protocol_version: '5.0',
  listener: 'mqtt',
  peer_address: `10.0.0.1:${index % 65_536}`,
  shard: 0,
  clean_start: true,
  keep_alive_s: 60,
  connected_at_ms: startMs,
  disconnected_at_ms: startMs,
  disconnect_reason: null,
  device: null,
  product: null,
  session_created_at_ms: startMs,
  session_expiry_s: 0,
  subscriptions: 3,
  inflight: 0,
  queued_messages: index % 7,
  queued_bytes: 0,
  queue_age_ms: 0,
  outbox_bytes: 0,
  messages_received: index,
  messages_sent: index,
  messages_dropped: 0,
});

const retained = (index: number) => ({
  topic: `plant/${padded(index)}/state`,
  payload_bytes: 20,
  qos: 1,
  published_at_ms: startMs,
  expires_at_ms: null,
  publisher: `client-${padded(index)}`,
});

const filter = (index: number) => ({ topic_filter: `plant/${padded(index)}/#`, subscribers: 1, shards: [0] });

const auditEntry = (index: number) => ({
  number: count - index,
  at_ms: startMs + index,
  actor: 'ann',
  authentication: 'token',
  role: 'admin',
  address: '127.0.0.1',
  action: 'user.put',
  subject: `user-${padded(index)}`,
  before: { description: 'old' },
  after: { description: 'new' },
  version_before: 1,
  version_after: 2,
});

const alarm = (index: number) => ({
  id: index + 1,
  type: 'overheated',
  severity: 'MAJOR',
  state: 'ACTIVE_UNACK',
  rule: 'overheated',
  deviceId: `device-${padded(index)}`,
  productId: 'pump',
  namespace: 'default',
  details: '88 °C',
  notify: [],
  values: { temperature: 88 },
  raised_at_ms: startMs + index,
  changed_at_ms: startMs + index,
  acknowledged_at_ms: null,
  acknowledged_by: null,
  cleared_at_ms: null,
  cleared_by: null,
});

const device = (index: number) => ({
  id: `device-${padded(index)}`,
  name: `Device ${index}`,
  product: 'pump',
  namespace: 'default',
  group: null,
  parent: null,
  gateway: false,
  enabled: true,
  state: 'online',
  tags: { floor: String(index % 9) },
  created_at_ms: startMs,
  last_seen_at_ms: startMs,
  credentials: [],
  version: 1,
});

/** The page, the name of its table, the path of the list, and its rows. */
const lists: [string, string, string, (index: number) => object][] = [
  ['/clients', 'Clients', '/api/v1/sessions', client],
  ['/devices', 'Devices', '/api/v1/devices', device],
  ['/live?tab=retained', 'Retained messages', '/api/v1/retained-messages', retained],
  ['/live?tab=filters', 'Subscribed filters', '/api/v1/topics', filter],
  ['/access/audit', 'Audit log', '/api/v1/audit-log', auditEntry],
  ['/alarms', 'Alarms', '/api/v1/alarms', alarm],
];

/** Answers with the rows after the cursor, which is the number of rows before. */
async function answerPage(route: Route, row: (index: number) => object): Promise<void> {
  const query = new URL(route.request().url()).searchParams;
  const first = Number(query.get('after') ?? 0);
  const end = Math.min(count, first + rowsPerAnswer);
  const data = Array.from({ length: end - first }, (_, index) => row(first + index));
  await route.fulfill({ json: { data, next: end < count ? String(end) : null } });
}

async function usedHeap(session: CDPSession): Promise<number> {
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  return usedSize;
}

/** Milliseconds that 95 of 100 frames take at most while the table is scrolled from its middle. */
async function frameMs(page: Page, label: string): Promise<number> {
  await page.bringToFront();
  const times = await page.getByRole('region', { name: label, exact: true }).evaluate(
    (table, [frames, pixels]) =>
      new Promise<number[]>((resolve) => {
        const times: number[] = [];
        table.scrollTop = table.scrollHeight / 2;
        const frame = (at: number) => {
          times.push(at);
          table.scrollTop += pixels;
          if (times.length <= frames) requestAnimationFrame(frame);
          else resolve(times.slice(1).map((time, index) => time - (times[index] ?? time)));
        };
        requestAnimationFrame(frame);
      }),
    [scrolledFrames, scrolledPixels] as const,
  );
  times.sort((a, b) => a - b);
  return Math.max(minFrameMs, times[Math.floor(times.length * 0.95)] ?? 0);
}

describe.each(lists)('large pages: 100,000 rows of %s', (path, label, list, row) => {
  test('are scrolled through', async () => {
    const page = await profile.newPage();
    await page.route(
      (url) => url.pathname === list,
      (route) => answerPage(route, row),
    );
    await page.goto(path);
    await settled(page);
    const table = page.getByRole('region', { name: label, exact: true });
    await table.waitFor();
    const session = await profile.newCDPSession(page);
    await session.send('HeapProfiler.enable');
    const before = await usedHeap(session);
    await eventually(
      'all rows are loaded',
      async () => {
        await table.evaluate((element) => (element.scrollTop = element.scrollHeight));
        return page.getByText(`${count.toLocaleString('en')} rows`, { exact: true }).isVisible();
      },
      110_000,
    );
    const perRow = ((await usedHeap(session)) - before) / count;
    // The best round, since other tests take the processor from some of them.
    let best = { factor: Infinity, ms: Infinity, plainMs: 0 };
    for (let round = 0; round < rounds && (best.factor >= maxFrameFactor || best.ms >= maxFrameMs); round += 1) {
      const plainMs = await frameMs(plainPage, 'Plain');
      const ms = await frameMs(page, label);
      if (ms / plainMs < best.factor) best = { factor: ms / plainMs, ms, plainMs };
    }
    const elements = await page.evaluate(() => document.querySelectorAll('*').length);
    console.log(
      `${label}: ${perRow.toFixed(0)} bytes a row, ${elements} elements, ` +
        `${best.ms.toFixed(0)} ms a frame (95 of 100), ${best.plainMs.toFixed(0)} ms on a page of plain rows`,
    );
    expect(elements).toBeLessThan(maxElements);
    expect(perRow).toBeLessThan(maxBytesPerRow);
    expect(best.factor).toBeLessThan(maxFrameFactor);
    expect(best.ms).toBeLessThan(maxFrameMs);
    await page.close();
  });
});

test('large pages: a chart of 100,000 points is drawn fast', async () => {
  await node.expect('POST', '/api/v1/products', { id: 'pump' });
  await node.expect('POST', '/api/v1/devices', { id: 'pump-1', product: 'pump' });
  const page = await profile.newPage();
  // From the moment the canvas is cleared until the last line is drawn.
  await page.addInitScript(() => {
    const canvas = CanvasRenderingContext2D.prototype;
    const { clearRect, stroke } = canvas;
    let began = 0;
    const drawn = { ms: 0 };
    Object.assign(globalThis, { drawn });
    canvas.clearRect = function (...area) {
      began = performance.now();
      clearRect.apply(this, area);
    };
    canvas.stroke = function (...path: unknown[]) {
      Reflect.apply(stroke, this, path);
      drawn.ms = Math.max(drawn.ms, performance.now() - began);
    };
  });
  const now = Date.now();
  const values = Array.from({ length: count }, (_, index) => ({
    device: 'pump-1',
    key: 'pressure',
    ts_ms: now - (count - index) * 600,
    values: { avg: Math.sin(index / 1000) + (index % 17) / 50 },
  }));
  await page.route('**/api/v1/telemetry/query', (route) => route.fulfill({ json: { data: values } }));
  await page.goto('/telemetry?devices=pump-1&keys=pressure');
  await page.getByRole('img', { name: 'pressure over time' }).waitFor();
  const drawnMs = await eventually('the chart is drawn', async () => {
    const ms = await page.evaluate(() => (globalThis as unknown as { drawn: { ms: number } }).drawn.ms);
    return ms > 0 && ms;
  });
  console.log(`a chart of ${count} points is drawn in ${drawnMs.toFixed(0)} ms`);
  expect(drawnMs).toBeLessThan(maxDrawMs);
  await page.close();
});

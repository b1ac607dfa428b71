/** What pages show when nodes of a cluster do not answer. The answers of a node without a cluster are changed on their way. */

import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { changeTheme, launch, loggedIn, newProfile, open } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { TestNode } from './support/node';

const missing = 'node-3';
const text = `No answer of ${missing}`;

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  profile = await loggedIn(browser, node);
  await node.expect('POST', '/api/v1/products', { id: 'pump' });
  await node.expect('POST', '/api/v1/devices', { id: 'pump-1', product: 'pump' });
  for (const name of ['picture-1.jpg', 'picture-2.jpg']) await node.expect('PUT', `/api/v1/uploads/${name}`, 'content');
  await node.expect('POST', '/api/v1/endpoints', { id: 'hall', name: 'Hall' });
  await node.expect('PUT', '/api/v1/dashboards/plant', {
    name: 'Plant',
    description: 'Pumps of the plant',
    cards: [
      {
        id: 'states',
        kind: 'status',
        title: 'Pumps',
        x: 0,
        y: 0,
        w: 8,
        h: 5,
        sources: [{ type: 'devices', device: 'pump-1' }],
      },
      {
        id: 'alarms',
        kind: 'table',
        title: 'Alarms',
        x: 8,
        y: 0,
        w: 10,
        h: 5,
        sources: [{ type: 'alarms', product: 'pump' }],
      },
    ],
  });
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

/** A page whose answers at these paths are those of a cluster with a node that does not answer. */
async function clusterPage(of: BrowserContext, paths: RegExp, names = [missing]): Promise<Page> {
  const page = await of.newPage();
  await page.route(paths, async (route) => {
    const answer = await route.fetch();
    const body = await answer.json();
    if (Array.isArray(body)) return route.fulfill({ response: answer });
    const rows = (body.data ?? []).map((row: object, index: number) => ({ ...row, node: `node-${1 + (index % 2)}` }));
    return route.fulfill({
      response: answer,
      json: { ...body, ...(body.data ? { data: rows } : { node: 'node-1' }), missing_nodes: names },
    });
  });
  return page;
}

/** Requests that are under way must not fail the run when the page discards their answers. */
async function closePage(page: Page): Promise<void> {
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await page.close();
}

async function check(page: Page, name: string): Promise<void> {
  for (const theme of ['light', 'dark'] as const) {
    await changeTheme(page, theme);
    await saveScreenshot(page, `/missing-nodes-${name}`, theme);
    expectNone(await accessibilityProblems(page));
    expectNone(await overflowing(page));
  }
}

test('lists of files have the column Node and name the nodes that do not answer', async () => {
  const page = await clusterPage(profile, /\/api\/v1\/files(\?|\/)/);
  await page.goto(`${node.origin}/files`);
  await page.getByText(text).waitFor();
  await page.getByRole('columnheader', { name: 'Node' }).waitFor();
  await page.getByRole('cell', { name: 'node-2', exact: true }).waitFor();
  await check(page, 'files');
  await page.getByRole('link', { name: 'picture-2.jpg' }).click();
  const drawer = page.getByRole('dialog');
  await drawer.getByText('node-1', { exact: true }).waitFor();
  await check(page, 'file');
  await closePage(page);
});

test('cards of dashboards name the nodes whose values are missing', async () => {
  const page = await clusterPage(profile, /\/dashboards\/plant\/cards\//);
  await page.goto(`${node.origin}/dashboards/plant`);
  for (const title of ['Pumps', 'Alarms']) {
    await page.getByRole('region', { name: title, exact: true }).getByText(text).waitFor();
  }
  await check(page, 'dashboard');
  await closePage(page);
});

test('share links say that values are missing, and name no node', async () => {
  const share = await node.expect('POST', '/api/v1/dashboards/plant/shares', {});
  const reader = await newProfile(browser, node);
  const page = await clusterPage(reader, /\/api\/v1\/kiosk\/cards\//, ['another node']);
  await page.goto(`${node.origin}/kiosk#${share.token}`);
  const card = page.getByRole('region', { name: 'Pumps', exact: true });
  await card.getByText('Some values are missing now').waitFor();
  expect(await page.textContent('main')).not.toContain('another node');
  await check(page, 'share');
  await closePage(page);
  await reader.close();
});

test('pages of relay endpoints name the nodes that do not answer', async () => {
  const page = await clusterPage(profile, /\/api\/v1\/(endpoint-status|endpoints\/hall\/)/);
  await page.goto(`${node.origin}/relay`);
  await page.getByText(text).waitFor();
  await check(page, 'endpoints');
  await page.goto(`${node.origin}/relay/hall`);
  await page.getByText(text).waitFor();
  await check(page, 'endpoint');
  await page.goto(`${node.origin}/relay/hall?tab=messages`);
  await page.getByText(text).waitFor();
  await check(page, 'endpoint-messages');
  await closePage(page);
});

test('a list of a node without a cluster has no column Node', async () => {
  const page = await open(profile, '/files');
  await page.getByRole('link', { name: 'picture-1.jpg' }).waitFor();
  expect(await page.getByRole('columnheader', { name: 'Node' }).count()).toBe(0);
  expect(await page.getByText('No answer of').count()).toBe(0);
  await page.close();
});

/** What an operator does with clients, devices and the node: trace messages, subscribe for a client, import, back up, search. */

import type { ChildProcess } from 'node:child_process';
import type { Browser, BrowserContext, Download, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newChainPath, newRulePath } from '../src/new-paths';
import { launch, loggedIn, newProfile, open, PageProblems, settled } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { eventually, TestNode } from './support/node';
import { publish, subscribe } from './support/program';

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
let panel: ChildProcess;

beforeAll(async () => {
  node = await TestNode.start();
  panel = subscribe(node, 'panel', 'hall/+');
  await node.expect('POST', '/api/v1/products', { id: 'meter' });
  browser = await launch();
  profile = await loggedIn(browser, node);
  await eventually('the client is connected', async () => {
    const { body } = await node.call('GET', '/api/v1/sessions?connected=true');
    return body.data.length === 1;
  });
});

afterAll(async () => {
  await browser?.close();
  panel?.kill();
  await node?.remove();
});

async function textOf(file: Download): Promise<string> {
  const parts = (await file.createReadStream()).setEncoding('utf8');
  let text = '';
  for await (const part of parts) text += String(part);
  return text;
}

const region = (page: Page, name: string) => page.getByRole('region', { name, exact: true });

test('operations: a recording shows what happened to each message, and which were dropped', async () => {
  const page = await open(profile, '/live?tab=trace');
  const problems = new PageProblems(page);
  await page.getByText('Nothing was recorded').waitFor();
  await page.getByRole('textbox', { name: 'Topic filter' }).fill('hall/#');
  await page.getByRole('button', { name: 'Record', exact: true }).click();
  await page.getByText(/recording for/).waitFor();
  await publish(node, 'hall/heat', '21.5');
  await publish(node, 'hall/floor/1', '3');
  await publish(node, 'office/heat', '20');
  const messages = region(page, 'Messages');
  const delivered = messages.getByRole('button', { name: /hall\/heat.*sent to 1 client/ });
  await delivered.click();
  await messages.getByText(/received from/).waitFor();
  await messages.getByRole('link', { name: 'panel' }).first().waitFor();
  await saveScreenshot(page, '/live/trace', 'light-1280');
  expectNone(await accessibilityProblems(page));
  await delivered.click();
  await page.getByRole('switch', { name: 'Only with problems' }).click();
  await messages.getByRole('button', { name: /hall\/floor\/1.*nobody subscribes/ }).waitFor();
  expect(await messages.getByRole('button').count()).toBe(1);
  await page.setViewportSize({ width: 390, height: 900 });
  await page.reload();
  await settled(page);
  expectNone(await overflowing(page));
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText(/Recorded until/).waitFor();
  expectNone(problems.found);
  await page.close();
});

test('operations: an operator subscribes and unsubscribes for a client', async () => {
  const page = await open(profile, '/clients/panel?tab=subscriptions');
  const rows = region(page, 'Subscriptions').getByRole('row');
  await page.getByRole('textbox', { name: 'Topic filter' }).fill('roof/#');
  await page.getByRole('button', { name: 'Subscribe for the client' }).click();
  await rows.filter({ hasText: 'roof/#' }).waitFor();
  const { body } = await node.call('GET', '/api/v1/subscriptions?client_id=panel');
  expect(body.data.map((each: { topic_filter: string }) => each.topic_filter).sort()).toEqual(['hall/+', 'roof/#']);
  await page.getByRole('button', { name: 'Unsubscribe roof/#' }).click();
  await rows.filter({ hasText: 'roof/#' }).waitFor({ state: 'detached' });
  await page.close();
});

test('operations: the page of a client shows why its last connection ended', async () => {
  const away = subscribe(node, 'away', 'roof/1', '-c', '-x', '600');
  await eventually('the client is connected', async () => {
    const { status, body } = await node.call('GET', '/api/v1/sessions/away');
    return status === 200 && body.connected;
  });
  away.kill('SIGKILL');
  const page = await open(profile, '/clients/away');
  await page.getByText(/the client closed the connection without DISCONNECT|the network connection failed/).waitFor();
  await page.close();
});

test('operations: devices are imported from a file, with the lines that were rejected', async () => {
  const page = await open(profile, '/devices?new=import');
  const dialog = page.getByRole('dialog');
  const csv = ['id,product,name', 'meter-1,meter,Meter 1', 'meter-2,meter,Meter 2', 'meter-3,missing,Meter 3'];
  const chosen = page.waitForEvent('filechooser');
  await dialog.getByRole('button', { name: 'File' }).click();
  const file = { name: 'meters.csv', mimeType: 'text/csv', buffer: Buffer.from(csv.join('\n')) };
  await (await chosen).setFiles(file);
  // The file is read first.
  await dialog.getByRole('button', { name: 'Import', exact: true, disabled: false }).waitFor();
  expectNone(await accessibilityProblems(page));
  await dialog.getByRole('button', { name: 'Import', exact: true }).click();
  await dialog.getByText('done, with failures').waitFor();
  await dialog.getByText('line 4').waitFor();
  await dialog.getByRole('button', { name: 'Close' }).last().click();
  await page.getByRole('link', { name: 'Meter 2' }).waitFor();
  expect((await node.call('GET', '/api/v1/device-counts')).body.devices).toBe(2);

  await page.getByRole('button', { name: 'Export' }).click();
  const downloaded = page.waitForEvent('download');
  await page.getByRole('menuitem', { name: 'All devices, CSV' }).click();
  const text = await textOf(await downloaded);
  expect(text.split('\n').filter((line) => line.startsWith('meter-'))).toHaveLength(2);
  await page.close();
});

test('operations: the telemetry of a device group is exported', async () => {
  await node.expect('POST', '/api/v1/products', { id: 'tank' });
  for (const id of ['tank-1', 'tank-2']) await node.expect('POST', '/api/v1/devices', { id, product: 'tank' });
  const now = Date.now();
  const row = (device: string, ago: number) =>
    JSON.stringify({ device, ts_ms: now - ago, values: { level: ago, other: 1 } });
  const lines = [row('tank-1', 2_000), row('tank-1', 1_000), row('tank-2', 3_000)];
  await node.sendLines('/api/v1/imports?kind=telemetry', lines);
  await node.expect('PUT', '/api/v1/device-groups/tanks', { product: 'tank' });
  const page = await open(profile, '/telemetry?group=tanks&keys=level');
  await page.locator('canvas').first().waitFor();
  await page.getByRole('button', { name: 'Export' }).click();
  const downloaded = page.waitForEvent('download');
  await page.getByRole('menuitem', { name: 'tanks, CSV' }).click();
  const file = await downloaded;
  expect(file.suggestedFilename()).toBe('tanks.csv');
  const expected = ['device,ts_ms,level', ...[2_000, 1_000].map((ago) => `tank-1,${now - ago},${ago}`)];
  expect((await textOf(file)).split('\r\n')).toEqual([...expected, `tank-2,${now - 3_000},3000`, '']);
  await page.getByRole('button', { name: 'Export' }).click();
  const parquet = page.waitForEvent('download');
  await page.getByRole('menuitem', { name: 'tanks, Parquet' }).click();
  expect((await parquet).suggestedFilename()).toBe('tanks.parquet');
  await page.close();
});

test('operations: a backup is made, verified, downloaded and deleted', async () => {
  const page = await open(profile, '/settings?tab=backup');
  const table = region(page, 'Backups on the node');
  await page.getByText('No backups on this node').waitFor();
  await page.getByRole('button', { name: 'Back up now' }).click();
  const row = table.getByRole('row').filter({ hasText: 'backup-' });
  await row.getByRole('button', { name: 'Verify' }).click();
  await page.getByText('Verification of a backup').waitFor();
  await eventually('the verification has ended', async () => {
    const { body } = await node.call('GET', '/api/v1/jobs');
    return body.data.some(
      (job: { kind: string; state: string }) => job.kind === 'backup_verification' && job.state === 'done',
    );
  });
  const downloaded = page.waitForEvent('download');
  await row.getByRole('button', { name: 'Download' }).click();
  expect((await downloaded).suggestedFilename()).toMatch(/^backup-\d+\.tgbackup$/);
  await row.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete the backup' }).click();
  await page.getByText('No backups on this node').waitFor();
  expectNone(await accessibilityProblems(page));
  await page.close();
});

test('operations: the search finds actions and published topics', async () => {
  const page = await open(profile, '/');
  const search = page.getByPlaceholder('Find a page');
  await page.keyboard.press('Control+k');
  await search.fill('add a dev');
  await page.getByRole('button', { name: 'Add a device' }).click();
  await page.getByRole('dialog').getByLabel('Id').waitFor();
  await page.goto('/');
  await settled(page);
  await page.keyboard.press('Control+k');
  await search.fill('roof');
  // The node records topics only while somebody asks for them.
  const found = page.getByRole('button', { name: /^plant\/roof\/7/ });
  await eventually('the topic is found', async () => {
    await publish(node, 'plant/roof/7', '1');
    return found.isVisible();
  });
  await found.click();
  await page.getByRole('heading', { level: 1, name: 'Live' }).waitFor();
  expect(await page.getByLabel('Topic filter').inputValue()).toBe('plant/roof/7');
  await page.close();
});

test('operations: pages say what a role does not permit', async () => {
  const password = 'a long password for tests';
  const people = {
    vic: { role: 'viewer' },
    nora: { namespaces: [{ namespace: 'default', role: 'operator' }] },
  };
  for (const [username, roles] of Object.entries(people)) {
    await node.expect('PUT', `/api/v1/operators/${username}`, { ...roles, password, must_change_password: false });
  }
  const as = async (username: string) => {
    const person = await newProfile(browser, node);
    const answer = await person.request.post('/api/v1/console-session', { data: { username, password } });
    expect(answer.ok()).toBe(true);
    return person;
  };
  const viewer = await as('vic');
  for (const path of ['/settings?tab=backup', newRulePath, newChainPath, '/access/people?tab=people']) {
    const page = await open(viewer, path);
    await page.getByRole('heading', { name: 'You may not see this' }).waitFor();
    expectNone(await accessibilityProblems(page));
    await page.close();
  }
  await node.expect('POST', '/api/v1/devices', { id: 'meter-9', name: 'Meter 9', product: 'meter' });
  const devices = await open(viewer, '/devices');
  await devices.getByRole('link', { name: 'Meter 9' }).waitFor();
  expect(await devices.getByRole('button', { name: 'Add a device' }).count()).toBe(0);
  await viewer.close();

  const member = await as('nora');
  const live = await open(member, '/live');
  await live.getByText('your roles are in namespaces').waitFor();
  await live.goto('/devices');
  await live.getByRole('link', { name: 'Meter 9' }).waitFor();
  await live.getByRole('button', { name: 'Add a device' }).first().waitFor();
  await member.close();
});

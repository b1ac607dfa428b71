/** Tabs of a relay endpoint: two pages exchange messages, and one of them is a device that gets a command. */

import type { Browser, BrowserContext, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { launch, loggedIn, open } from './support/browser';
import { eventually, TestNode } from './support/node';

const path = '/api/v1/endpoints/hall';

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  profile = await loggedIn(browser, node);
});

beforeEach(async () => {
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct' });
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

const panel = (page: Page, name: string) => page.locator('section', { has: page.getByRole('heading', { name }) });

/** Messages and events on the page, the newest first. */
const lines = (page: Page): Locator => page.locator('ol.message-list > li');

/** Lists are read again every few seconds. */
const untilCount = (items: Locator, count: number) =>
  eventually(`${count} items are shown`, async () => (await items.count()) === count);

/** Opens the tab for tests, and connects. */
async function connected(): Promise<Page> {
  const page = await open(profile, '/relay/hall?tab=test');
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await page.getByRole('button', { name: 'Disconnect', exact: true }).waitFor();
  await lines(page).first().getByText('connected').waitFor();
  return page;
}

async function send(page: Page, text: string): Promise<void> {
  await page.getByRole('textbox', { name: 'Message' }).fill(text);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
}

/** Chooses one of the examples and sends it. */
async function sendExample(page: Page, name: string): Promise<void> {
  await page.getByRole('button', { name: 'Examples' }).click();
  await page.getByRole('menuitem', { name }).click();
  await page.getByRole('button', { name: 'Send', exact: true }).click();
}

test('relay: what one page sends, the other receives, and the last messages show it', async () => {
  const [sender, receiver] = [await connected(), await connected()];
  await send(sender, 'hello');
  await lines(sender).first().getByText('sent', { exact: true }).waitFor();
  await sender.getByText('1 sent, 0 received').waitFor();
  const line = lines(receiver).first();
  await line.getByText('received', { exact: true }).waitFor();
  expect(await line.locator('pre').textContent()).toBe('hello');
  await receiver.getByText('0 sent, 1 received').waitFor();
  // Ctrl-Enter sends, too, and JSON is shown with indentation.
  const message = receiver.getByRole('textbox', { name: 'Message' });
  await message.fill('{"t":21.5}');
  await message.press('Control+Enter');
  await lines(sender).first().getByText('received', { exact: true }).waitFor();
  expect(await lines(sender).first().locator('pre').textContent()).toBe('{\n  "t": 21.5\n}');

  const messages = await open(profile, '/relay/hall?tab=messages');
  await untilCount(lines(messages), 2);
  expect(await lines(messages).locator('pre').allTextContents()).toEqual(['{\n  "t": 21.5\n}', 'hello']);
  await messages.getByRole('textbox', { name: 'Search' }).fill('hello');
  await untilCount(lines(messages), 1);
  // A message that arrives while the tab is open appears.
  await send(sender, 'hello again');
  await untilCount(lines(messages), 2);
  await Promise.all([sender, receiver, messages].map((page) => page.close()));
});

test('relay: a connection is closed from the list of connections', async () => {
  const page = await connected();
  const list = await open(profile, '/relay/hall?tab=connections');
  const rows = list.getByRole('region', { name: 'Connections' }).getByRole('row');
  // The first row names the columns.
  await untilCount(rows, 2);
  await rows.nth(1).getByRole('button', { name: 'Disconnect' }).click();
  await list.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click();
  await lines(page).getByText('closed: 1008 Disconnected by an operator').waitFor();
  await page.getByRole('button', { name: 'Connect', exact: true }).waitFor();
  await list.getByText('Nobody is connected').waitFor();
  await Promise.all([page, list].map((each) => each.close()));
});

test('relay: a page becomes a device, is listed, and answers a command of the control panel', async () => {
  const page = await connected();
  await sendExample(page, 'Become a device');
  const identified = lines(page).filter({ hasText: '"identified"' });
  await identified.getByText('"hall:test-1"').waitFor();
  await sendExample(page, 'Report values as a device');

  const devices = await open(profile, '/relay/hall?tab=devices');
  const row = devices.getByRole('row').filter({ hasText: 'hall:test-1' });
  await row.getByText('online').waitFor();
  expect(await row.textContent()).toContain('Test');

  const control = { id: 'start', kind: 'button', label: 'Start the pump', command: 'start' };
  await node.expect('PUT', '/api/v1/devices/hall:test-1/attributes/server', { console_controls: [control] });
  const controls = await open(profile, '/relay/hall?tab=controls');
  await panel(controls, 'Controls').getByRole('button', { name: 'Start the pump', exact: true }).click();
  await lines(page).filter({ hasText: '"control"' }).getByText('"start"').waitFor();
  await sendExample(page, 'Answer the last command');
  await controls.getByText(/^done/).waitFor();

  await page.close();
  await row.getByText('offline').waitFor();
  await Promise.all([devices, controls].map((each) => each.close()));
});

test('relay: values of a device are shown with their history, and the device is renamed in the list', async () => {
  const page = await connected();
  await sendExample(page, 'Become a device');
  await lines(page).filter({ hasText: '"identified"' }).first().waitFor();
  await sendExample(page, 'Report values as a device');
  const history = await open(profile, '/relay/hall?tab=history');
  const row = history.getByRole('region', { name: 'Values', exact: true }).getByRole('row').nth(1);
  await eventually('the value is stored', async () => (await row.textContent())?.includes('21.5'));
  await history.locator('canvas').first().waitFor();
  const download = history.waitForEvent('download');
  await history.getByRole('button', { name: 'Export' }).click();
  await history.getByRole('menuitem', { name: 'CSV' }).click();
  expect((await download).suggestedFilename()).toContain('.csv');

  const devices = await open(profile, '/relay/hall?tab=devices');
  await devices.getByRole('button', { name: 'Rename Test' }).click();
  const name = devices.getByRole('textbox', { name: 'Name of hall:test-1' });
  await name.fill('Pump in hall 2');
  await name.press('Enter');
  await devices.getByRole('link', { name: 'Pump in hall 2' }).waitFor();
  const device = await node.expect('GET', '/api/v1/devices/hall:test-1');
  expect([device.name, device.product]).toEqual(['Pump in hall 2', 'relay-hall']);
  await Promise.all([page, history, devices].map((each) => each.close()));
});

test('relay: a page needs the access key, and is told why it is closed', async () => {
  const key = 'an-access-key-of-mine';
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct', access_key: key });
  const page = await open(profile, '/relay/hall?tab=test');
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await lines(page).getByText('closed: 1008 Invalid access key').waitFor();
  await page.getByLabel('Access key').fill(key);
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await page.getByRole('button', { name: 'Disconnect', exact: true }).waitFor();
  await page.getByRole('button', { name: 'Disable', exact: true }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Reason').fill('maintenance');
  await dialog.getByRole('button', { name: 'Disable', exact: true }).click();
  await lines(page).getByText('closed: 1008 Endpoint is disabled').waitFor();
  await page.getByRole('alert').getByText('maintenance').waitFor();
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct', access_key: null });
  await page.close();
});

test('relay: an endpoint is shown as closed while its owner is banned', async () => {
  await node.expect('PUT', '/api/v1/namespaces/acme', {});
  await node.expect('PUT', '/api/v1/endpoints/office', { namespace: 'acme' });
  const namespaces = [{ namespace: 'acme', role: 'owner' }];
  await node.expect('PUT', '/api/v1/operators/owen', { namespaces, password: 'a long password for tests' });
  await node.expect('POST', '/api/v1/operators/owen/ban', { reason: 'spam' });
  const page = await open(profile, '/relay/office?tab=test');
  await page.getByText('closed by the namespace').waitFor();
  await page.getByRole('button', { name: 'Connect', exact: true }).click();
  await lines(page).getByText('closed: 1008 User is banned').waitFor();
  await node.expect('POST', '/api/v1/operators/owen/unban');
  await page.getByText('enabled', { exact: true }).waitFor();
  await page.close();
});

/** Two people change the same object: the second sees what differs, and nothing is lost. */

import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open, settled } from './support/browser';
import { accessibilityProblems, expectNone, saveScreenshot } from './support/checks';
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

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

/** Opens the settings of an endpoint, and types another name; meanwhile somebody else changes the endpoint. */
async function editTogether(): Promise<Page> {
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct' });
  const page = await open(profile, '/relay/hall');
  await page.getByRole('button', { name: 'Settings' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('Hall of Ann');
  await node.expect('PUT', path, { name: 'Hall of Bob', mode: 'direct', history_messages: 7 });
  await page.waitForResponse((answer) => answer.request().method() === 'GET' && answer.url().endsWith(path));
  await settled(page);
  // What was typed is still there, although the page has read the object again.
  expect(await dialog.getByLabel('Name').inputValue()).toBe('Hall of Ann');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await dialog.getByText('Somebody else changed this meanwhile').waitFor();
  const stored = await node.expect('GET', path);
  expect(stored.name).toBe('Hall of Bob');
  return page;
}

test('editing: the second of two people can load the version of the first', async () => {
  const page = await editTogether();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Load their version' }).click();
  await eventually(
    'their version is shown',
    async () => (await dialog.getByLabel('Name').inputValue()) === 'Hall of Bob',
  );
  await dialog.getByLabel('Name').fill('Hall of both');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await dialog.waitFor({ state: 'hidden' });
  const stored = await node.expect('GET', path);
  expect(stored).toMatchObject({ name: 'Hall of both', history_messages: 7 });
  await page.close();
});

test('editing: the second of two people can save over the first', async () => {
  const page = await editTogether();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Save mine over it' }).click();
  await dialog.waitFor({ state: 'hidden' });
  const stored = await node.expect('GET', path);
  expect(stored.name).toBe('Hall of Ann');
  await page.close();
});

test('editing: fields that only one of two people changed are kept, and the second chooses for the others', async () => {
  const page = await editTogether();
  const dialog = page.getByRole('dialog');
  const merge = dialog.getByRole('button', { name: 'Save the changes of both' });
  const field = dialog.getByRole('group', { name: 'Name' });
  await field.getByText('Before Hall', { exact: true }).waitFor();
  await dialog.getByText('1 field is left to choose.').waitFor();
  expect(await merge.isDisabled()).toBe(true);
  expectNone(await accessibilityProblems(page));
  await saveScreenshot(page, '/relay/hall', 'conflict');
  await field.getByRole('radio', { name: 'Yours Hall of Ann' }).check();
  await merge.click();
  await dialog.waitFor({ state: 'hidden' });
  expect(await node.expect('GET', path)).toMatchObject({ name: 'Hall of Ann', history_messages: 7 });
  await page.close();
});

test('editing: changes of different fields are saved together without a choice', async () => {
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct' });
  const page = await open(profile, '/relay/hall');
  await page.getByRole('button', { name: 'Settings' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('Hall of Ann');
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct', history_messages: 7 });
  await dialog.getByRole('button', { name: 'Save', exact: true }).click();
  await dialog.getByText('You changed different fields, so that both changes can be kept.').waitFor();
  // A third person saves while the second looks at the changes.
  await node.expect('PUT', path, { name: 'Hall', mode: 'direct', history_messages: 8 });
  const merge = dialog.getByRole('button', { name: 'Save the changes of both' });
  await merge.click();
  await dialog.getByText('Theirs 8').waitFor();
  await merge.click();
  await dialog.waitFor({ state: 'hidden' });
  expect(await node.expect('GET', path)).toMatchObject({ name: 'Hall of Ann', history_messages: 8 });
  await page.close();
});

test('editing: a setting that somebody else has changed meanwhile is not overwritten', async () => {
  const setting = '/api/v1/settings/limits.max_retained_messages';
  const page = await open(profile, '/settings?tab=settings&setting=limits.max_retained_messages');
  const drawer = page.getByRole('dialog');
  await drawer.getByLabel('New value').fill('10');
  await node.expect('PUT', setting, { value: 20 });
  await drawer.getByRole('button', { name: 'Change', exact: true }).click();
  await drawer.getByRole('radio', { name: 'Yours 10' }).waitFor();
  expect((await node.expect('GET', setting)).value).toBe(20);
  await drawer.getByRole('radio', { name: 'Theirs 20' }).check();
  await drawer.getByRole('button', { name: 'Save the changes of both' }).click();
  await drawer.waitFor({ state: 'hidden' });
  expect((await node.expect('GET', setting)).value).toBe(20);
  await node.expect('DELETE', setting);
  await page.close();
});

test('editing: controls of a device that two people add are both kept', async () => {
  await node.expect('PUT', '/api/v1/products/lamp', {});
  await node.expect('PUT', '/api/v1/devices/lamp-1', { product: 'lamp' });
  const attributes = '/api/v1/devices/lamp-1/attributes/server';
  const control = { id: 'a', kind: 'switch', label: 'Lamp', command: 'set' };
  const controls = async () => {
    const { data } = await node.expect('GET', attributes);
    const found = data.find(({ key }: { key: string }) => key === 'console_controls');
    return found.value as { label: string; icon?: string; defaultValue?: unknown }[];
  };
  await node.expect('PUT', attributes, { console_controls: [control] });
  const page = await open(profile, '/devices/lamp-1?tab=commands');
  const add = async (label: string) => {
    await page.getByRole('button', { name: 'Add a control' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('combobox', { name: 'Kind' }).click();
    await page.getByRole('option', { name: 'slider' }).click();
    await dialog.getByLabel('Label').fill(label);
    await dialog.getByLabel('Command').fill('dim');
    await dialog.getByLabel('Initial value').fill('30');
    await dialog.getByRole('combobox', { name: 'Icon' }).click();
    await page.getByRole('option', { name: 'bulb' }).click();
    return dialog;
  };
  // Another attribute changes the version, but is no conflict.
  const first = await add('Dimmer');
  await node.expect('PUT', attributes, { floor: 2 });
  await first.getByRole('button', { name: 'Save' }).click();
  await first.waitFor({ state: 'hidden' });
  await page.getByRole('region', { name: 'Dimmer' }).getByText('30').waitFor();
  const second = await add('Second');
  await node.expect('PUT', attributes, { console_controls: [control, { ...control, id: 'b', label: 'Theirs' }] });
  await second.getByRole('button', { name: 'Save' }).click();
  await second.getByRole('button', { name: 'Save the changes of both' }).click();
  await second.waitFor({ state: 'hidden' });
  const stored = await controls();
  // They have removed the first one, which nobody else has changed.
  expect(stored.map(({ label }) => label).sort()).toEqual(['Lamp', 'Second', 'Theirs']);
  expect(stored.find(({ label }) => label === 'Second')).toMatchObject({ icon: 'bulb', defaultValue: 30 });
  await page.close();
});

test('editing: rules of node alarms are saved with the version that was opened', async () => {
  const rules = '/api/v1/node-alarm-rules';
  const rule = (id: string, value: number) => ({
    id,
    raise: [{ severity: 'MAJOR', when: { key: 'memory_mb', is: '>', value } }],
  });
  await node.expect('PUT', rules, { rules: [rule('large', 90_000)] });
  const page = await open(profile, '/alarms?tab=node');
  await page.getByRole('button', { name: 'large' }).click();
  const drawer = page.getByRole('dialog');
  await drawer.getByLabel('Text').fill('The node is large.');
  await node.expect('PUT', rules, { rules: [rule('large', 80_000), rule('huge', 99_000)] });
  await drawer.getByRole('button', { name: 'Save', exact: true }).click();
  await drawer.getByRole('button', { name: 'Save the changes of both' }).click();
  await eventually('the drawer is closed', async () => (await drawer.count()) === 0);
  const stored = await node.expect('GET', rules);
  expect(stored.rules).toMatchObject([{ ...rule('large', 80_000), details: 'The node is large.' }, { id: 'huge' }]);
  await node.expect('DELETE', rules);
  await page.close();
});

test('editing: a statement that is not saved stays when somebody else saves the rule', async () => {
  const rule = '/api/v1/rules/hall';
  const actions: unknown[] = [];
  await node.expect('PUT', rule, { sql: 'SELECT topic FROM "hall/a"', actions });
  const page = await open(profile, '/rules/hall');
  const statement = page.getByRole('textbox', { name: 'SQL statement' });
  await statement.fill('SELECT topic FROM "hall/ann"');
  await node.expect('PUT', rule, { sql: 'SELECT topic FROM "hall/bob"', actions });
  // The page is hidden and shown again, and reads the rule.
  await eventually('the page has read the other version', async () => {
    await page.evaluate(() => window.dispatchEvent(new Event('visibilitychange')));
    return page.getByText('Somebody else changed this meanwhile').isVisible();
  });
  expect(await statement.innerText()).toContain('hall/ann');
  // The look at the trace does not discard it either.
  await page.getByRole('tab', { name: 'Live trace' }).click();
  await page.getByRole('tab', { name: 'Definition' }).click();
  expect(await statement.innerText()).toContain('hall/ann');
  await page.getByRole('button', { name: 'Save mine over it' }).click();
  await page.getByText('The rule hall is saved.').waitFor();
  expect((await node.expect('GET', rule)).sql).toBe('SELECT topic FROM "hall/ann"');
  await page.close();
});

test('editing: an alarm rule is saved with the version of the product that was opened', async () => {
  const product = '/api/v1/products/boiler';
  const rule = (id: string) => ({
    id,
    raise: [{ severity: 'MAJOR', when: { key: 'temperature', is: '>', value: 90 } }],
  });
  await node.expect('PUT', product, { alarms: [rule('hot'), rule('dry')] });
  const page = await open(profile, '/products/boiler?tab=alarms');
  await page.getByRole('button', { name: 'dry' }).click();
  const drawer = page.getByRole('dialog');
  await drawer.getByLabel('Text').fill('The boiler is dry.');
  // The rule is the first of the list now.
  await node.expect('PUT', product, { alarms: [rule('dry')] });
  await eventually('the page has read the other version', async () => {
    await page.evaluate(() => window.dispatchEvent(new Event('visibilitychange')));
    return (await page.getByRole('button', { name: 'hot', includeHidden: true }).count()) === 0;
  });
  await drawer.getByRole('button', { name: 'Save', exact: true }).click();
  await drawer.getByText('Somebody else changed this meanwhile').waitFor();
  await drawer.getByRole('button', { name: 'Save mine over it' }).click();
  await eventually('the drawer is closed', async () => (await drawer.count()) === 0);
  const { alarms } = await node.expect('GET', product);
  expect(alarms.map((each: { id: string; details?: string }) => [each.id, each.details])).toEqual([
    ['dry', 'The boiler is dry.'],
  ]);
  await page.close();
});

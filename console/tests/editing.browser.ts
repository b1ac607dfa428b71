/** Two people change the same object: the second is warned, and nothing is lost. */

import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open, settled } from './support/browser';
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

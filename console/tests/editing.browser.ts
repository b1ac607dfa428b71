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

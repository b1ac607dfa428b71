/** Objects that are created through forms, and lists that are searched. */

import { connect, type PeerCertificate } from 'node:tls';
import type { ChildProcess } from 'node:child_process';
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open, PageProblems } from './support/browser';
import { expectNone } from './support/checks';
import { eventually, required, TestNode } from './support/node';
import { subscribe } from './support/program';

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
const clients: ChildProcess[] = [];

beforeAll(async () => {
  node = await TestNode.start();
  for (const id of ['press-1', 'press-2', 'oven-1']) clients.push(subscribe(node, id, 'line/#'));
  const rule = (sql: string, enabled: boolean) => ({ sql, enabled, actions: [] });
  await node.expect('PUT', '/api/v1/rules/oven-temperature', rule('SELECT payload.t FROM "oven/#"', true));
  await node.expect('PUT', '/api/v1/rules/oven-pressure', rule('SELECT payload.p FROM "oven/#"', false));
  await node.expect('PUT', '/api/v1/rules/press-force', rule('SELECT payload.f FROM "press/#"', true));
  await eventually('the clients are connected', async () => {
    const { body } = await node.call('GET', '/api/v1/sessions?connected=true');
    return body.data.length === clients.length;
  });
  browser = await launch();
  profile = await loggedIn(browser, node);
});

afterAll(async () => {
  await browser?.close();
  for (const client of clients) client.kill();
  await node?.remove();
});

/** The certificate that a server on this machine presents. */
function presented(port: number): Promise<PeerCertificate> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port, rejectUnauthorized: false }, () => {
      const certificate = socket.getPeerCertificate();
      socket.destroy();
      resolve(certificate);
    });
    socket.once('error', reject);
  });
}

test('forms: a certificate is uploaded and a listener with it is created, changed and deleted', async () => {
  const page = await open(profile, '/settings?tab=listeners');
  const problems = new PageProblems(page);
  const dialog = page.getByRole('dialog');

  await page.getByRole('button', { name: 'Upload a certificate' }).click();
  await dialog.getByLabel('Id').fill('hall');
  const upload = dialog.getByRole('button', { name: 'Upload', exact: true });
  expect(await upload.isDisabled()).toBe(true);
  await dialog.getByLabel('Certificate and its chain (PEM)').fill('no certificate');
  await upload.click();
  // The node says what is wrong, beside the field, and what was typed stays.
  await eventually('the field is marked', () =>
    dialog
      .getByLabel('Certificate and its chain (PEM)')
      .evaluate((field) => field.getAttribute('aria-invalid') === 'true'),
  );
  expect(problems.found.splice(0).every((problem) => problem.includes('422'))).toBe(true);
  await dialog.getByLabel('Certificate and its chain (PEM)').fill(required('TIDEGATE_TEST_CERTIFICATE'));
  await dialog.getByLabel('Private key (PEM)').fill(required('TIDEGATE_TEST_PRIVATE_KEY'));
  await upload.click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByRole('cell', { name: 'hall', exact: true }).waitFor();

  await page.getByRole('button', { name: 'New listener' }).click();
  await dialog.getByRole('textbox', { name: 'Name' }).fill('line');
  await dialog.getByRole('textbox', { name: 'Address' }).fill('127.0.0.1:0');
  await dialog
    .locator('input')
    .and(dialog.getByLabel('Certificate', { exact: true }))
    .click();
  await page.getByRole('option', { name: 'hall' }).click();
  await dialog.getByRole('button', { name: 'Create' }).click();
  await dialog.waitFor({ state: 'hidden' });
  const table = page.getByRole('region', { name: 'Listeners' });
  const row = table.getByRole('row').filter({ has: page.getByRole('cell', { name: 'line', exact: true }) });
  await row.getByText('listening').waitFor();
  const listed = async () => {
    const { data } = await node.expect('GET', '/api/v1/listeners');
    return data.find(({ name }: { name: string }) => name === 'line');
  };
  const port = Number((await listed()).address.split(':').at(-1));
  expect((await presented(port)).subjectaltname).toContain('localhost');

  await row.getByRole('button', { name: 'Change line' }).click();
  await dialog.getByRole('textbox', { name: 'Most connections' }).fill('7');
  await dialog.getByRole('button', { name: 'Replace' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await row.getByText('0 / 7').waitFor();

  await row.getByRole('button', { name: 'Delete line' }).click();
  await dialog.getByRole('button', { name: 'Delete the listener' }).click();
  await row.waitFor({ state: 'detached' });
  expect(await listed()).toBeUndefined();
  expectNone(problems.found);
  await page.close();
});

/** Waits until a list has exactly these rows. */
async function expectRows(page: Page, label: string, expected: string[]): Promise<void> {
  const links = page.getByRole('region', { name: label }).locator('tbody td:first-child a');
  let last: string[] = [];
  await eventually(`the rows ${expected.join(', ')}`, async () => {
    last = (await links.allTextContents()).sort();
    return last.join() === expected.join();
  }).catch((error: unknown) => {
    throw new Error(`the list has the rows ${last.join(', ')}`, { cause: error });
  });
}

test('forms: clients are searched by a part of their id and by their state', async () => {
  const page = await open(profile, '/clients');
  await expectRows(page, 'Clients', ['oven-1', 'press-1', 'press-2']);
  await page.getByLabel('Part of a client id').fill('ess');
  await expectRows(page, 'Clients', ['press-1', 'press-2']);
  // The address is a link to what is shown.
  await eventually('the search is in the address', async () => page.url().includes('ess'));
  await page.reload();
  await expectRows(page, 'Clients', ['press-1', 'press-2']);
  await page.getByText('Not connected', { exact: true }).click();
  await page.getByText('No client matches').waitFor();
  await page.getByText('Connected', { exact: true }).click();
  await expectRows(page, 'Clients', ['press-1', 'press-2']);
  await page.close();
});

test('forms: rules are searched by a part of their name and by their state', async () => {
  const page = await open(profile, '/rules');
  await expectRows(page, 'Rules', ['oven-pressure', 'oven-temperature', 'press-force']);
  await page.getByLabel('Part of a name').fill('press');
  await expectRows(page, 'Rules', ['oven-pressure', 'press-force']);
  await page.getByText('Disabled', { exact: true }).click();
  await expectRows(page, 'Rules', ['oven-pressure']);
  await page.getByText('With problems', { exact: true }).click();
  await page.getByText('No rule matches').waitFor();
  await page.close();
});

test('forms: the keyboard chooses the columns of a list', async () => {
  const page = await open(profile, '/rules');
  const heads = page.getByRole('columnheader');
  const before = await heads.count();
  await page.getByRole('button', { name: 'Columns', exact: true }).focus();
  await page.keyboard.press('Enter');
  const first = page.getByRole('menuitemcheckbox').first();
  await first.waitFor();
  await first.focus();
  const isShown = (await first.getAttribute('aria-checked')) === 'true';
  for (const [key, expected] of [
    ['Enter', isShown ? before - 1 : before + 1],
    ['Space', before],
  ] as const) {
    await page.keyboard.press(key);
    await eventually(`${key} changes the columns`, async () => (await heads.count()) === expected);
  }
  await page.close();
});

/** Registration with the link of an invitation. */

import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { changeTheme, launch, loggedIn, newProfile, open, PageProblems } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { TestNode } from './support/node';

let node: TestNode;
let browser: Browser;

beforeAll(async () => {
  node = await TestNode.start('http.registration_enabled=true');
  browser = await launch();
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

const enter = async (page: Page, name: string, password: string) => {
  await page.getByLabel('Name').fill(name);
  await page.getByRole('textbox', { name: 'Password', exact: true }).fill(password);
  await page.getByRole('textbox', { name: 'Password again' }).fill(password);
};

test('registration: an owner sends a link, and its reader registers and is logged in', async () => {
  const owner = await loggedIn(browser, node);
  const people = await open(owner, '/access/people?tab=invites&new=1');
  await people.getByRole('dialog').getByRole('button', { name: 'Create' }).click();
  const link = await people.getByText(/\/register#/).textContent();
  expect(link).toContain(`${node.origin}/register#`);
  await owner.close();

  const visitor = await newProfile(browser, node);
  const page = await visitor.newPage();
  const problems = new PageProblems(page);
  await page.goto(link ?? '');
  const register = page.getByRole('button', { name: 'Register' });
  await enter(page, 'bea', 'correct-horse-1');
  expect(await register.isDisabled()).toBe(true);
  for (const width of [1280, 390]) {
    await page.setViewportSize({ width, height: 900 });
    for (const theme of ['light', 'dark'] as const) {
      await changeTheme(page, theme);
      expectNone(await accessibilityProblems(page));
      expectNone(await overflowing(page));
      await saveScreenshot(page, '/register', `${width}-${theme}`);
    }
  }
  await enter(page, 'bea', 'Correct-horse-1');
  await register.click();
  // A person without a role on the node begins with devices.
  await page.getByRole('heading', { name: 'Devices', exact: true }).waitFor();
  expect(new URL(page.url()).hash).toBe('');
  // Before the login there is no session to continue, and no account to read.
  expectNone(problems.found.filter((text) => !/40[13]/.test(text)));
  await visitor.close();
  const operator = await node.expect('GET', '/api/v1/operators/bea');
  expect(operator.namespaces).toEqual([{ namespace: 'bea', role: 'owner' }]);
});

test('registration: a used code is rejected with the reason, and the form for logins leads to the page', async () => {
  const visitor = await newProfile(browser, node);
  const page = await visitor.newPage();
  await page.goto('/');
  await page.getByRole('link', { name: 'Register with an invitation' }).click();
  await page.getByLabel('Code of the invitation').fill('inv-1.wrong');
  await enter(page, 'cid', 'Correct-horse-1');
  await page.getByRole('button', { name: 'Register' }).click();
  await page.getByRole('alert').getByText('used up').waitFor();
  await visitor.close();

  await node.expect('PUT', '/api/v1/settings/http.registration_enabled', { value: false });
  const later = await (await newProfile(browser, node)).newPage();
  await later.goto('/');
  await later.getByRole('button', { name: 'Log in' }).waitFor();
  expect(await later.getByRole('link', { name: 'Register with an invitation' }).count()).toBe(0);
  await later.close();
});

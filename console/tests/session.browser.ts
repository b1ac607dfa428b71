/** Login, log out, and what protects a session. */

import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newRulePath } from '../src/new-paths';
import { launch, loggedIn, newProfile, open, settled } from './support/browser';
import { accessibilityProblems, expectNone, saveScreenshot } from './support/checks';
import { admin, eventually, TestNode } from './support/node';

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

async function submit(page: Page, username: string, password: string): Promise<void> {
  await page.getByLabel('Name').fill(username);
  await page.getByRole('textbox', { name: 'Password' }).fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
}

test('session: a person logs in, stays logged in after a reload, and logs out', async () => {
  const profile = await newProfile(browser, node);
  const page = await profile.newPage();
  await page.goto('/clients');
  await submit(page, admin.username, admin.password);
  await page.getByRole('heading', { level: 1, name: 'Clients' }).waitFor();
  await page.reload();
  await page.getByRole('heading', { level: 1, name: 'Clients' }).waitFor();
  await page.getByRole('button', { name: 'Account' }).click();
  await page.getByRole('menuitem', { name: 'Log out' }).click();
  await page.getByRole('button', { name: 'Log in' }).waitFor();
  expect(await profile.cookies(`${node.origin}/api/v1/console-session`)).toEqual([]);
  await page.reload();
  await page.getByRole('button', { name: 'Log in' }).waitFor();
  await profile.close();
});

test('session: a wrong password is rejected, and the form says so', async () => {
  const profile = await newProfile(browser, node);
  const page = await profile.newPage();
  await page.goto('/');
  await submit(page, admin.username, 'wrong');
  await page.getByRole('alert').getByText('no operator with this name and password').waitFor();
  await saveScreenshot(page, '/login', 'light');
  expectNone(await accessibilityProblems(page));
  expect(await profile.cookies(`${node.origin}/api/v1/console-session`)).toEqual([]);
  await submit(page, admin.username, admin.password);
  await settled(page);
  await profile.close();
});

test('session: scripts cannot read the cookie, and browsers send it from pages of the node only', async () => {
  const profile = await loggedIn(browser, node);
  const [cookie] = await profile.cookies(`${node.origin}/api/v1/console-session`);
  expect(cookie).toMatchObject({ httpOnly: true, sameSite: 'Strict', path: '/api/v1/console-session' });
  const page = await open(profile, '/');
  expect(await page.evaluate(() => document.cookie)).toBe('');
  const stored = await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }));
  expect(stored).not.toMatch(/token/i);
  await profile.close();
});

test('session: a page of another origin cannot get a token', async () => {
  const profile = await loggedIn(browser, node);
  // The same address by another name: another site.
  const foreign = node.origin.replace('127.0.0.1', 'localhost');
  const page = await profile.newPage();
  await page.goto(`${foreign}/favicon.svg`);
  const outcome = await page.evaluate(
    (url) =>
      fetch(url, { method: 'POST', credentials: 'include' })
        .then((answer) => answer.status)
        .catch(() => 'blocked'),
    `${node.origin}/api/v1/console-session/refresh`,
  );
  expect(outcome).toBe('blocked');
  // Nor where a browser sends the cookie all the same.
  const refresh = (origin: string) =>
    profile.request.post('/api/v1/console-session/refresh', { headers: { origin } }).then((answer) => answer.status());
  expect(await refresh('http://elsewhere.example')).toBe(403);
  expect(await refresh(node.origin)).toBe(200);
  await profile.close();
});

test('session: a page that is open while the node restarts says so, and recovers', async () => {
  const profile = await loggedIn(browser, node);
  const page = await open(profile, '/devices');
  await page.getByText('Ready', { exact: true }).waitFor();
  await node.stop();
  await page.getByText('Not reachable').waitFor();
  await node.startAgain();
  await page.getByText('Ready', { exact: true }).waitFor();
  await node.expect('POST', '/api/v1/products', { id: 'valve', name: 'Valve' });
  await node.expect('POST', '/api/v1/devices', { id: 'valve-1', product: 'valve' });
  // The list is read again by itself, with the session of before.
  await page.getByRole('link', { name: 'valve-1' }).waitFor();
  await profile.close();
});

test('session: a ban ends the session of an open page', async () => {
  const name = 'guest';
  const password = 'another long password';
  await node.expect('PUT', `/api/v1/operators/${name}`, { role: 'viewer', password, must_change_password: false });
  const profile = await newProfile(browser, node);
  const answer = await profile.request.post('/api/v1/console-session', { data: { username: name, password } });
  expect(answer.status()).toBe(200);
  const page = await open(profile, '/devices');
  await node.expect('PUT', `/api/v1/operators/${name}`, { role: 'viewer', enabled: false });
  await eventually('the login page is shown', () => page.getByRole('button', { name: 'Log in' }).isVisible());
  await page.getByText('The session has ended').waitFor();
  await profile.close();
});

test('session: what was typed stays when the session ends, for the same operator only', async () => {
  const operators = { first: 'first-writer', second: 'second-writer' };
  const password = 'a password of both';
  for (const name of Object.values(operators)) {
    const body = { role: 'operator', password, must_change_password: false };
    await node.expect('PUT', `/api/v1/operators/${name}`, body);
  }
  const profile = await newProfile(browser, node);
  const page = await profile.newPage();
  await page.goto(newRulePath);
  await submit(page, operators.first, password);
  const payload = page.locator('main').getByLabel('Payload');
  // The page of the rule, not the one of the login, which has a name as well.
  await payload.waitFor();
  const name = page.locator('main').getByLabel('Name');
  await name.fill('unsaved');
  await node.expect('PUT', `/api/v1/operators/${operators.first}`, { role: 'operator', enabled: false });
  // The test of the rule is a request, unless another one of the page has found the end before.
  const ended = page.getByText('The session has ended');
  const noticeEnd = async (value: number) => {
    await payload.fill(`{"value": ${value}}`, { timeout: 1_000 }).catch(() => {});
    await ended.waitFor();
  };
  await noticeEnd(32);
  expectNone(await accessibilityProblems(page));
  await node.expect('PUT', `/api/v1/operators/${operators.first}`, {
    role: 'operator',
    password,
    must_change_password: false,
  });
  const login = page.getByRole('dialog', { name: 'Log in' });
  await login.getByLabel('Name').fill(operators.first);
  await login.getByRole('textbox', { name: 'Password' }).fill(password);
  await login.getByRole('button', { name: 'Log in' }).click();
  await login.waitFor({ state: 'detached' });
  expect(await name.inputValue()).toBe('unsaved');
  // Another operator begins with an empty page.
  await node.expect('PUT', `/api/v1/operators/${operators.first}`, { role: 'operator', enabled: false });
  await noticeEnd(33);
  await login.getByLabel('Name').fill(operators.second);
  await login.getByRole('textbox', { name: 'Password' }).fill(password);
  await login.getByRole('button', { name: 'Log in' }).click();
  await login.waitFor({ state: 'detached' });
  expect(await name.inputValue()).toBe('');
  await profile.close();
});

test('session: a password that somebody else has set must be changed at the first login', async () => {
  const [given, own] = ['a password from the admin', 'a password that nobody knows'];
  await node.expect('PUT', '/api/v1/operators/newcomer', { role: 'viewer', password: given });
  const profile = await newProfile(browser, node);
  const page = await profile.newPage();
  await page.goto('/devices');
  await submit(page, 'newcomer', given);
  await page.getByRole('heading', { level: 1, name: 'Choose a password' }).waitFor();
  const change = async (repeated: string) => {
    await page.getByRole('textbox', { name: 'Current password', exact: true }).fill(given);
    await page.getByRole('textbox', { name: 'New password', exact: true }).fill(own);
    await page.getByRole('textbox', { name: 'New password again', exact: true }).fill(repeated);
    await page.getByRole('button', { name: 'Change the password' }).click();
  };
  await change('something else');
  await page.getByText('The passwords differ').waitFor();
  await saveScreenshot(page, '/change-password', 'light');
  expectNone(await accessibilityProblems(page));
  await change(own);
  await page.getByRole('heading', { level: 1, name: 'Devices' }).waitFor();
  await page.reload();
  await page.getByRole('heading', { level: 1, name: 'Devices' }).waitFor();
  await profile.close();
});

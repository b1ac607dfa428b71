/** Simulations that the node runs against itself: start, watch, stop and clean up. */

import type { ChildProcess } from 'node:child_process';
import type { Browser, BrowserContext } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { changeTheme, launch, loggedIn, newProfile, open, PageProblems, settled } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { TestNode } from './support/node';
import { startProgram } from './support/program';

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  profile = await loggedIn(browser, node, { viewport: { width: 1280, height: 900 } });
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

const deviceCount = async () => (await node.call('GET', '/api/v1/device-counts')).body.devices as number;

test('simulations: one is started with fewer devices, watched and stopped', async () => {
  const page = await open(profile, '/simulations');
  const problems = new PageProblems(page);
  const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'smart-meter', exact: true }) });
  await row.getByRole('button', { name: 'Start' }).click();
  const dialog = page.getByRole('dialog');
  const devices = dialog.getByRole('textbox', { name: 'Devices' });
  await devices.fill('0');
  await dialog.getByText('Expected 1 to').waitFor();
  expect(await dialog.getByRole('button', { name: 'Start', exact: true }).isDisabled()).toBe(true);
  await devices.fill('8');
  expectNone(await accessibilityProblems(page));
  await saveScreenshot(page, '/simulations/start', 'light-1280');
  await dialog.getByRole('button', { name: 'Start', exact: true }).click();
  await row.getByText('running').waitFor();
  expect(await deviceCount()).toBe(8);

  // The node runs one at a time.
  const other = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'weather', exact: true }) });
  await other.getByRole('button', { name: 'Start' }).click();
  expectNone(problems.found);
  await dialog.getByRole('button', { name: 'Start', exact: true }).click();
  await dialog.getByText('simulations.max_running').waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();

  await row.getByRole('link', { name: 'smart-meter' }).click();
  const tile = (label: string) => page.locator('.tile').filter({ hasText: label });
  await tile('Connected').getByText('8 of 8').waitFor();
  await tile('Messages per second')
    .getByText(/[1-9][0-9,]* in total/)
    .waitFor();
  for (const theme of ['light', 'dark'] as const) {
    await changeTheme(page, theme);
    await saveScreenshot(page, '/simulations/running', `${theme}-1280`);
    expectNone(await accessibilityProblems(page));
  }
  await page.setViewportSize({ width: 390, height: 900 });
  await settled(page);
  await saveScreenshot(page, '/simulations/running', 'dark-390');
  expectNone(await overflowing(page));

  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('stopped', { exact: true }).waitFor();
  expect(await deviceCount()).toBe(0);
  await page.close();
});

test('simulations: what `tidegate demo` has left is reported and cleaned up', async () => {
  const demo: ChildProcess = startProgram(['demo', '--data-dir', node.dataDir, '--for', '1']);
  await new Promise((resolve) => demo.once('exit', resolve));
  expect(await deviceCount()).toBe(50);
  const page = await open(profile, '/simulations/demo');
  await page.getByRole('button', { name: 'Start' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Start', exact: true }).click();
  await page.getByRole('alert').getByText('exists').waitFor();
  await saveScreenshot(page, '/simulations/failed', 'light-1280');
  expectNone(await accessibilityProblems(page));
  expect(await deviceCount()).toBe(50);
  await page.getByRole('button', { name: 'Clean up' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
  await page.getByText('cleaned up', { exact: true }).waitFor();
  expect(await deviceCount()).toBe(0);
  await page.close();
});

test('simulations: a viewer watches and cannot start or stop them', async () => {
  const password = 'the password of a viewer';
  await node.expect('PUT', '/api/v1/operators/vic', { role: 'viewer', password, must_change_password: false });
  const viewer = await newProfile(browser, node);
  const answer = await viewer.request.post('/api/v1/console-session', { data: { username: 'vic', password } });
  expect(answer.ok()).toBe(true);
  const page = await open(viewer, '/simulations');
  await page.getByRole('link', { name: 'smart-meter', exact: true }).waitFor();
  expect(await page.getByRole('button', { name: 'Start' }).count()).toBe(0);
  await viewer.close();
});

test('simulations: the pages are in Chinese for a browser in Chinese', async () => {
  const chinese = await loggedIn(browser, node, { locale: 'zh-CN' });
  const page = await open(chinese, '/simulations');
  await page.getByRole('heading', { level: 1, name: '模拟' }).waitFor();
  await saveScreenshot(page, '/simulations/list', 'light-zh');
  await chinese.close();
});

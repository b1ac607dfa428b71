/** Every page of the navigation, and the pages behind the lists: no errors, accessible in both themes, no horizontal overflow. */

import type { ChildProcess } from 'node:child_process';
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { changeTheme, launch, loggedIn, open, PageProblems, settled } from './support/browser';
import { accessibilityProblems, contrastProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { fill } from './support/content';
import { TestNode } from './support/node';
import { detailPatterns, firstLink, navigationPaths } from './support/routes';

const widths = [1280, 390] as const;
const height = 900;

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
let demo: ChildProcess;

beforeAll(async () => {
  node = await TestNode.start();
  demo = await fill(node);
  browser = await launch();
  profile = await loggedIn(browser, node, { viewport: { width: widths[0], height } });
});

afterAll(async () => {
  await browser?.close();
  demo?.kill();
  await node?.remove();
});

/** Lists that are not the first tab of their page. */
const listTabs: Record<string, string> = { '/firmware/campaigns/:id': '/firmware?tab=campaigns' };

/** The list with links to the pages of a pattern: the nearest page of the navigation above. */
function listAbove(pattern: string): string {
  const tab = listTabs[pattern];
  if (tab !== undefined) return tab;
  const above = navigationPaths.filter((path) => pattern.startsWith(`${path}/`));
  return above.sort((one, other) => other.length - one.length)[0] ?? '/';
}

/** Opens a page; for a pattern, the first one that the list above it links to. `null`: the list links to none. */
async function openAny(page: Page, path: string): Promise<string | null> {
  if (!path.includes(':')) {
    await page.goto(path);
    await settled(page);
    return path;
  }
  await page.goto(listAbove(path));
  await settled(page);
  const link = await firstLink(page, path);
  if (link === undefined) return null;
  await page.goto(link);
  await settled(page);
  return link;
}

/** A page of its own for each test, so that a failure does not reach into the next. */
async function withPage(run: (page: Page) => Promise<void>): Promise<void> {
  const page = await profile.newPage();
  try {
    await run(page);
  } finally {
    await page.close();
  }
}

/** What axe finds in the light and then in the dark theme, in which the colours are all that differs. */
async function problemsInThemes(page: Page, path: string): Promise<string[]> {
  await saveScreenshot(page, path, `light-${widths[0]}`);
  const found = await accessibilityProblems(page);
  await changeTheme(page, 'dark');
  await saveScreenshot(page, path, `dark-${widths[0]}`);
  return [...found, ...(await contrastProblems(page)).map((problem) => `dark: ${problem}`)];
}

describe.each([...navigationPaths, ...detailPatterns])('pages: %s', (path) => {
  test('has no errors, no findings of axe in both themes, and no horizontal overflow', ({ skip }) =>
    withPage(async (page) => {
      const problems = new PageProblems(page);
      const opened = await openAny(page, path);
      if (opened === null) skip('nothing leads to it');
      const found = await overflowing(page);
      found.push(...(await problemsInThemes(page, path)));
      await changeTheme(page, 'light');
      await page.setViewportSize({ width: widths[1], height });
      // As on a phone, which does not get narrow afterwards.
      await page.reload();
      await settled(page);
      await saveScreenshot(page, path, `light-${widths[1]}`);
      found.push(...(await overflowing(page)).map((problem) => `${widths[1]} pixels: ${problem}`));
      expectNone([...problems.found, ...found]);
    }));
});

describe.each(navigationPaths)('pages: the tabs of %s', (path) => {
  test('have no findings of axe in both themes, and no horizontal overflow', () =>
    withPage(async (page) => {
      await page.goto(path);
      await settled(page);
      const tabs = page.locator('main').getByRole('tab');
      const problems: string[] = [];
      for (let index = 1; index < (await tabs.count()); index += 1) {
        const name = await tabs.nth(index).innerText();
        await tabs.nth(index).click();
        await settled(page);
        const found = await problemsInThemes(page, `${path}:${name}`);
        await page.setViewportSize({ width: widths[1], height });
        await settled(page);
        await saveScreenshot(page, `${path}:${name}`, `dark-${widths[1]}`);
        found.push(...(await overflowing(page)));
        problems.push(...found.map((problem) => `${name}: ${problem}`));
        await page.setViewportSize({ width: widths[0], height });
        await changeTheme(page, 'light');
      }
      expectNone(problems);
    }));
});

test('pages: the language of the browser is used', async () => {
  const chinese = await loggedIn(browser, node, { locale: 'zh-CN' });
  const page = await open(chinese, '/');
  expect(await page.getAttribute('html', 'lang')).toBe('zh');
  await chinese.close();
});

/** Drawers and dialogs, each with a page and the buttons that open it. */
const overlays: [string, string, string][] = [
  ['of a new device', '/devices', 'Add a device'],
  ['of a new MQTT user', '/access/mqtt?tab=users', 'New user'],
  ['of a new listener', '/settings?tab=listeners', 'New listener'],
  ['of a new certificate', '/settings?tab=listeners', 'Upload a certificate'],
];

describe.each(overlays)('pages: the form %s', (_, path, button) => {
  test('has no findings of axe in both themes', () =>
    withPage(async (page) => {
      await page.goto(path);
      await settled(page);
      await page.getByRole('button', { name: button }).first().click();
      await page.getByRole('dialog').waitFor();
      await settled(page);
      expectNone(await problemsInThemes(page, `${path}:${button}`));
    }));
});

test('pages: an alarm is commented', () =>
  withPage(async (page) => {
    await page.goto('/alarms?tab=alarms');
    await settled(page);
    await page.getByRole('region', { name: 'Alarms' }).getByRole('link').first().click();
    const drawer = page.getByRole('dialog');
    await drawer.getByRole('textbox', { name: 'Comment' }).fill('The valve was stuck.');
    await drawer.getByRole('button', { name: 'Add the comment' }).click();
    await drawer.getByText('The valve was stuck.').waitFor();
    expectNone(await accessibilityProblems(page));
  }));

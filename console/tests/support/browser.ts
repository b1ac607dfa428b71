/** Chromium, and pages of the console in it. */

import { chromium, type Browser, type BrowserContext, type BrowserContextOptions, type Page } from 'playwright-core';
import { admin, required, type TestNode } from './node';

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: required('TIDEGATE_TEST_CHROMIUM') });
}

/** A browser profile without a session. */
export async function newProfile(browser: Browser, node: TestNode, options: BrowserContextOptions = {}) {
  const profile = await browser.newContext({
    baseURL: node.origin,
    locale: 'en-GB',
    reducedMotion: 'reduce',
    ...options,
  });
  profile.setDefaultTimeout(30_000);
  return profile;
}

/** A browser profile in which the operator [`admin`] is logged in. */
export async function loggedIn(browser: Browser, node: TestNode, options: BrowserContextOptions = {}) {
  const profile = await newProfile(browser, node, options);
  const answer = await profile.request.post('/api/v1/console-session', { data: admin });
  if (!answer.ok()) throw new Error(`login: ${answer.status()} ${await answer.text()}`);
  return profile;
}

/** What a page writes to the browser's console as errors, and its requests that fail. */
export class PageProblems {
  readonly found: string[] = [];

  constructor(page: Page) {
    page.on('console', (message) => {
      if (message.type() === 'error') this.found.push(`console: ${message.text()} (${message.location().url})`);
    });
    page.on('pageerror', (error) => this.found.push(`exception: ${error.stack ?? error.message}`));
    page.on('requestfailed', (request) => {
      const why = request.failure()?.errorText ?? '';
      // Streams end when their page is left.
      if (why !== 'net::ERR_ABORTED') this.found.push(`request: ${request.method()} ${request.url()}: ${why}`);
    });
    page.on('response', (response) => {
      if (response.status() >= 400) this.found.push(`response: ${response.status()} ${response.url()}`);
    });
  }
}

/** Waits until a page shows its content instead of placeholders. */
export async function settled(page: Page): Promise<void> {
  await page.locator('main h1').first().waitFor();
  await page.waitForFunction(() => document.querySelector('main [aria-busy="true"]') === null);
  // Two frames: what arrived last is drawn.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
}

/** Changes the theme that the system prefers, and waits until the open page has it. */
export async function changeTheme(page: Page, theme: 'light' | 'dark'): Promise<void> {
  await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' });
  await page.locator(`html[data-mantine-color-scheme="${theme}"]`).waitFor();
  await settled(page);
}

/** Opens a path of the console and waits for its content. */
export async function open(profile: BrowserContext, path: string): Promise<Page> {
  const page = await profile.newPage();
  await page.goto(path);
  await settled(page);
  return page;
}

/** How the node serves the console: policy of the page, sizes, time until it can be used. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, newProfile, open, settled } from './support/browser';
import { TestNode } from './support/node';
import { navigationPaths } from './support/routes';

const maxFirstLoadBytes = 250 * 1024;
/** A second on a machine with nothing else to do; tests share theirs with builds and other tests. */
const maxInteractiveMs = 1_000 * 8;

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

/** The bytes of each file as it was sent, by path. */
async function transferred(paths: readonly string[]): Promise<Map<string, number>> {
  const sizes = new Map<string, number>();
  await Promise.all(
    paths.map(async (path) => {
      const answer = await fetch(`${node.origin}${path}`, { headers: { 'accept-encoding': 'br' } });
      sizes.set(path, Number(answer.headers.get('content-length')));
      await answer.body?.cancel();
    }),
  );
  return sizes;
}

const sum = (sizes: Map<string, number>) => [...sizes.values()].reduce((total, size) => total + size, 0);

test('serving: the policy of the page forbids inline scripts', async () => {
  const profile = await loggedIn(browser, node);
  const page = await profile.newPage();
  const answer = await page.goto('/');
  const policy = answer?.headers()['content-security-policy'] ?? '';
  expect(policy).toContain("script-src 'self'");
  expect(policy).toContain("frame-ancestors 'none'");
  expect(policy).not.toContain('unsafe');
  await settled(page);
  const ran = await page.evaluate(async () => {
    const violation = new Promise((resolve) =>
      document.addEventListener('securitypolicyviolation', (event) => resolve(event.violatedDirective), { once: true }),
    );
    const script = document.createElement('script');
    script.textContent = 'globalThis.hasRun = true';
    document.body.append(script);
    return [await violation, 'hasRun' in globalThis];
  });
  expect(ran).toEqual(['script-src-elem', false]);
  await profile.close();
});

test('serving: no page violates the policy', async () => {
  const profile = await loggedIn(browser, node);
  await profile.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      console.error(`violation of ${event.violatedDirective}: ${event.blockedURI}`);
    });
  });
  const page = await profile.newPage();
  const violations: string[] = [];
  page.on('console', (message) => {
    if (message.text().startsWith('violation')) violations.push(`${page.url()}: ${message.text()}`);
  });
  for (const path of navigationPaths) {
    await page.goto(path);
    await settled(page);
  }
  expect(violations).toEqual([]);
  await profile.close();
});

test('serving: the first load is small', async () => {
  const profile = await newProfile(browser, node);
  const login = await profile.newPage();
  const requested = new Set<string>();
  login.on('request', (request) => {
    const { pathname } = new URL(request.url());
    if (!pathname.startsWith('/api/')) requested.add(pathname);
  });
  await login.goto('/');
  await login.getByRole('button', { name: 'Log in' }).waitFor();
  const sizes = await transferred([...requested]);
  expect(requested.size).toBeGreaterThan(2);
  expect(sum(sizes), [...sizes].join('\n')).toBeLessThanOrEqual(maxFirstLoadBytes);
  await profile.close();
});

test('serving: a page can be used within a second', async () => {
  const profile = await loggedIn(browser, node);
  const started = Date.now();
  const page = await open(profile, '/');
  await page.getByRole('button', { name: 'Search' }).click();
  await page.getByPlaceholder('Find a page').waitFor();
  expect(Date.now() - started).toBeLessThan(maxInteractiveMs);
  await profile.close();
});

/** What is checked on every page. */

import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import type { AxeResults, RunOptions } from 'axe-core';
import type { Page } from 'playwright-core';
import { expect } from 'vitest';

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Saves what the page shows in the folder of `TIDEGATE_TEST_SCREENSHOTS`. */
export async function saveScreenshot(page: Page, path: string, kind: string): Promise<void> {
  const folder = process.env.TIDEGATE_TEST_SCREENSHOTS;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  const name = path === '/' ? 'home' : path.slice(1).replace(/[:/]+/g, '-');
  await page.screenshot({ path: join(folder, `${name}-${kind}.png`), fullPage: true });
}

/** What axe finds, a line for each element. */
export function accessibilityProblems(page: Page): Promise<string[]> {
  return runAxe(page, {});
}

/** What axe finds about colours, which is all that a theme changes. */
export function contrastProblems(page: Page): Promise<string[]> {
  return runAxe(page, { runOnly: ['color-contrast'] });
}

/** Describes and sends only what was violated: a page has thousands of elements that pass. */
async function runAxe(page: Page, options: RunOptions): Promise<string[]> {
  await page.evaluate(axeSource);
  return page.evaluate(
    async (options) => {
      const { axe } = globalThis as unknown as { axe: { run: (options: RunOptions) => Promise<AxeResults> } };
      const { violations } = await axe.run(options);
      return violations.flatMap((violation) =>
        violation.nodes.map((element) => `${violation.id}: ${element.html}\n    ${element.failureSummary ?? ''}`),
      );
    },
    { ...options, resultTypes: ['violations'] } satisfies RunOptions,
  );
}

/** Elements that reach beyond the right edge, except in what scrolls by itself. */
export function overflowing(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    const isClipped = (element: Element): boolean => {
      for (let above = element.parentElement; above !== null; above = above.parentElement) {
        if (getComputedStyle(above).overflowX !== 'visible') return true;
      }
      return false;
    };
    const found = [...document.body.querySelectorAll('*')]
      .filter((element) => {
        const box = element.getBoundingClientRect();
        const isShown = box.width > 0 && box.height > 0 && getComputedStyle(element).visibility !== 'hidden';
        return isShown && box.right > width + 1 && !isClipped(element);
      })
      .map((element) => `${element.tagName} ${element.className}: ${(element.textContent ?? '').slice(0, 40)}`);
    const scrolled = document.documentElement.scrollWidth;
    return scrolled > width + 1 ? [`the page is ${scrolled} px wide`, ...found] : found;
  });
}

export function expectNone(problems: string[]): void {
  expect(problems, problems.join('\n')).toEqual([]);
}

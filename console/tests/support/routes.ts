/** The pages of the console, from its own tables. */

import type { Page } from 'playwright-core';
import { pages } from '../../src/app';
import { navigationFor } from '../../src/navigation';
import { newPart } from '../../src/new-paths';

/** The pages that the navigation shows to an administrator. */
export const navigationPaths: string[] = navigationFor({
  name: '',
  role: 'admin',
  namespaces: [],
  authentication: 'token',
  mustChangePassword: false,
})
  .flatMap((group) => group.entries)
  .map((entry) => entry.path);

/** Patterns of the pages about one object, such as `/devices/:id`. */
export const detailPatterns: string[] = pages.map(([path]) => path).filter((path) => path.includes(':'));

/** The first link of the current page that leads to the page of an object with this pattern. */
export async function firstLink(page: Page, pattern: string): Promise<string | undefined> {
  const expression = new RegExp(`^${pattern.replace(/:\w+\??/g, '[^/?#]+')}$`);
  const links = await page.locator('main a[href]').evaluateAll((all) => all.map((link) => link.getAttribute('href')));
  const isNew = (link: string) => link.endsWith(`/${newPart}`);
  return links.find((link): link is string => link !== null && expression.test(link) && !isNew(link));
}

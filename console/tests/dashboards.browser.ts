/** Dashboards with topics and metrics of the node, in the console and behind a share link. */

import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, newProfile, open, PageProblems } from './support/browser';
import { accessibilityProblems, expectNone, overflowing, saveScreenshot } from './support/checks';
import { eventually, TestNode } from './support/node';
import { publish } from './support/program';

let node: TestNode;
let browser: Browser;

const card = (id: string, kind: string, title: string, place: [number, number, number, number], more: object) => {
  const [x, y, w, h] = place;
  return { id, kind, title, x, y, w, h, ...more };
};

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  const site = (topics: string[]) => ({ sources: [{ type: 'topics', topics }] });
  await node.expect('PUT', '/api/v1/dashboards/hall', {
    name: 'Hall',
    description: 'Topics and metrics of the node',
    cards: [
      card('state', 'statistic', 'State', [0, 0, 6, 4], site(['hall/state'])),
      card('heat', 'gauge', 'Heat', [6, 0, 6, 6], {
        ...site(['hall/heat']),
        config: { unit: '°C', min: 0, max: 50 },
      }),
      card('all', 'table', 'All topics', [12, 0, 12, 6], site(['hall/state', 'hall/heat'])),
      card('clients', 'statistic', 'Connections', [0, 6, 6, 4], {
        sources: [{ type: 'node', metrics: ['connections'] }],
      }),
      card('rates', 'chart', 'Messages', [6, 6, 18, 8], {
        sources: [{ type: 'node', metrics: ['messages_received_per_s'] }],
      }),
    ],
  });
});

afterAll(async () => {
  await browser?.close();
  await node?.remove();
});

/** The card of a dashboard with this title. */
const cardOf = (page: Page, title: string) => page.getByRole('region', { name: title, exact: true });

/** Publishes until the cards show it: topics are recorded only while somebody reads them. */
async function showsMessages(page: Page): Promise<void> {
  await eventually('the cards show the messages', async () => {
    await publish(node, 'hall/state', 'two doors open');
    await publish(node, 'hall/heat', '21.5');
    const [state, heat] = await Promise.all([cardOf(page, 'State').textContent(), cardOf(page, 'Heat').textContent()]);
    return state?.includes('two doors open') && heat?.includes('21.5');
  });
  const table = await cardOf(page, 'All topics').textContent();
  expect(table).toContain('hall/state');
  expect(table).toContain('21.5');
}

/** Metrics are recorded every few seconds. */
async function showsMetrics(page: Page): Promise<void> {
  await eventually('the number of connections', async () => {
    const text = await cardOf(page, 'Connections').textContent();
    return text !== null && /Connections\D*\d/.test(text);
  });
  await cardOf(page, 'Messages').locator('canvas').first().waitFor();
}

for (const scheme of ['light', 'dark'] as const) {
  test(`dashboards: cards show topics and metrics of the node, ${scheme}`, async () => {
    const own = await loggedIn(browser, node, { colorScheme: scheme });
    const page = await open(own, '/dashboards/hall');
    await showsMessages(page);
    await showsMetrics(page);
    expectNone(await accessibilityProblems(page));
    await saveScreenshot(page, '/dashboards/hall', scheme);
    await own.close();
  });
}

test('dashboards: a share link shows them without an account until it is revoked', async () => {
  const share = await node.expect('POST', '/api/v1/dashboards/hall/shares', { description: 'screen' });
  for (const width of [1280, 390]) {
    const visitor = await newProfile(browser, node, { viewport: { width, height: 800 } });
    const page = await visitor.newPage();
    const problems = new PageProblems(page);
    await page.goto(`/kiosk#${share.token}`);
    await page.getByRole('heading', { name: 'Hall', exact: true }).waitFor();
    await showsMessages(page);
    await showsMetrics(page);
    // There is nothing that leads into the console.
    expect(await page.getByRole('navigation').count()).toBe(0);
    expect(await page.locator('a[href]').count()).toBe(0);
    expectNone(await overflowing(page));
    expectNone(await accessibilityProblems(page));
    await saveScreenshot(page, '/kiosk', `${width}`);
    expectNone(problems.found);
    await visitor.close();
  }
  await node.expect('DELETE', `/api/v1/dashboards/hall/shares/${share.id}`);
  const page = await (await newProfile(browser, node)).newPage();
  await page.goto(`/kiosk#${share.token}`);
  await page.getByText('This link does not work any more').waitFor();
  await page.close();
});

test('dashboards: states, a chart of two devices and bars are set in the editor', async () => {
  await node.expect('PUT', '/api/v1/products/press', { name: 'Press' });
  for (const [id, heat] of [
    ['press-1', 85],
    ['press-2', 20],
  ] as const) {
    const device = await node.expect('POST', '/api/v1/devices', { id, product: 'press' });
    await publish(node, 'v1/devices/me/telemetry', JSON.stringify({ heat }), device.issued[0].token);
  }
  await node.expect('PUT', '/api/v1/devices/press-1/attributes/server', { hall: 'seven' });
  const telemetry = (device: string) => ({ type: 'telemetry', device, keys: ['heat'] });
  const states = [
    { from: 0, state: 'good' },
    { from: 80, state: 'critical', text: 'too hot' },
  ];
  await node.expect('PUT', '/api/v1/dashboards/presses', {
    name: 'Presses',
    cards: [
      card('one', 'statistic', 'Heat', [0, 0, 6, 4], { sources: [telemetry('press-1')], config: { states } }),
      card('gauge', 'gauge', 'Gauge', [6, 0, 6, 6], { sources: [telemetry('press-1')], config: { states } }),
      card('both', 'status', 'Both', [12, 0, 8, 6], {
        sources: [telemetry('press-1'), telemetry('press-2')],
        config: { states },
      }),
      card('chart', 'chart', 'Chart', [0, 6, 24, 8], { sources: [telemetry('press-1')] }),
      card('mixed', 'table', 'Mixed', [0, 14, 12, 6], { sources: [telemetry('press-1')] }),
    ],
  });
  const profile = await loggedIn(browser, node, { viewport: { width: 1280, height: 900 } });
  const page = await open(profile, '/dashboards/presses');
  await cardOf(page, 'Heat').getByText('too hot').waitFor();
  await cardOf(page, 'Both').getByText('too hot').waitFor();
  await cardOf(page, 'Both').getByText('20', { exact: true }).waitFor();

  await page.getByRole('button', { name: 'Edit', exact: true }).click();
  await page.getByRole('button', { name: 'Edit Chart', exact: true }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Add a source' }).click();
  await dialog.getByRole('combobox', { name: 'Device', exact: true }).nth(1).click();
  await page.getByRole('option', { name: 'press-2' }).click();
  await dialog.getByText('Bars', { exact: true }).click();
  await dialog.getByRole('textbox', { name: 'Label of press-2 heat' }).fill('The second');
  await dialog.getByRole('combobox', { name: 'Colour of press-2 heat' }).click();
  await page.getByRole('option', { name: 'orange' }).click();
  expectNone(await accessibilityProblems(page));
  await saveScreenshot(page, '/dashboards/editor', 'light');
  await dialog.getByRole('button', { name: 'Apply' }).click();
  await page.getByRole('button', { name: 'Edit Mixed', exact: true }).click();
  for (const type of ['Attributes', 'Metrics of the node']) {
    await dialog.getByRole('button', { name: 'Add a source' }).click();
    await dialog.getByRole('combobox', { name: 'Shows' }).last().click();
    await page.getByRole('option', { name: type }).click();
  }
  const attributes = dialog.getByRole('group', { name: 'Source 2' });
  await attributes.getByRole('combobox', { name: 'Device', exact: true }).click();
  await page.getByRole('option', { name: 'press-1' }).click();
  await attributes.getByRole('combobox', { name: 'Keys' }).fill('hall');
  await dialog.getByRole('combobox', { name: 'Metrics' }).click();
  await page.getByRole('option', { name: 'connections', exact: true }).click();
  await page.keyboard.press('Escape');
  await saveScreenshot(page, '/dashboards/sources', 'light');
  await dialog.getByRole('button', { name: 'Apply' }).click();
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  const mixed = cardOf(page, 'Mixed');
  for (const cell of ['heat', '85', 'hall', 'seven', 'connections'])
    await mixed.getByRole('cell', { name: cell, exact: true }).waitFor();
  await cardOf(page, 'Chart').getByText('The second').waitFor();
  const { cards } = await node.expect('GET', '/api/v1/dashboards/presses');
  const chart = cards.find((each: { id: string }) => each.id === 'chart');
  expect(chart.sources).toEqual([telemetry('press-1'), telemetry('press-2')]);
  expect(chart.config).toEqual({
    chart: 'bar',
    lines: [{ device: 'press-2', key: 'heat', label: 'The second', colour: 3 }],
  });
  for (const scheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      // The navigation takes a moment to give way.
      await eventually('the page fits', async () => (await overflowing(page)).length === 0);
      await saveScreenshot(page, '/dashboards/presses', `${scheme}-${width}`);
    }
    expectNone(await accessibilityProblems(page));
  }
  await profile.close();
});

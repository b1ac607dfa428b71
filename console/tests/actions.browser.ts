/** The key actions: each takes at most three clicks, or Ctrl-K and a choice, from the home page. */

import type { ChildProcess } from 'node:child_process';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser, BrowserContext, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { launch, loggedIn, open } from './support/browser';
import { publish, subscribe } from './support/program';
import { eventually, TestNode } from './support/node';

const maxClicks = 3;

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
let client: ChildProcess;

beforeAll(async () => {
  node = await TestNode.start();
  client = subscribe(node, 'line-7-press', 'line/7/#');
  await node.expect('POST', '/api/v1/products', { id: 'pump', name: 'Pump' });
  await node.expect('POST', '/api/v1/devices', { id: 'pump-7', name: 'Pump 7', product: 'pump' });
  browser = await launch();
  profile = await loggedIn(browser, node);
  await profile.grantPermissions(['clipboard-read', 'clipboard-write']);
});

afterAll(async () => {
  await browser?.close();
  client?.kill();
  await node?.remove();
});

/** Counts what a person does with a mouse, and shortcuts; typing is free. */
class Person {
  private clicks = 0;

  constructor(readonly page: Page) {}

  async click(target: Locator): Promise<void> {
    this.clicks += 1;
    await target.click();
  }

  async press(shortcut: string): Promise<void> {
    this.clicks += 1;
    await this.page.keyboard.press(shortcut);
  }

  /** Finds something with the palette, and opens it. */
  async find(text: string, name: RegExp): Promise<void> {
    await this.press('Control+k');
    await this.page.getByPlaceholder('Find a page').fill(text);
    await this.click(this.page.getByRole('button', { name }));
  }

  finish(): void {
    expect(this.clicks).toBeLessThanOrEqual(maxClicks);
  }
}

/** A person in front of the home page. */
async function atHome(run: (person: Person) => Promise<void>): Promise<void> {
  const page = await open(profile, '/');
  const person = new Person(page);
  try {
    await run(person);
    person.finish();
  } finally {
    await page.close();
  }
}

test('actions: find a client by a part of its name, and see since when it is online', () =>
  atHome(async (person) => {
    await eventually('the client is connected', async () => {
      const { body } = await node.call('GET', '/api/v1/sessions?client_id_contains=7-pre');
      return body.data.length === 1;
    });
    await person.find('7-pre', /line-7-press/);
    await person.page.getByRole('heading', { level: 1, name: 'line-7-press' }).waitFor();
    await person.page.getByText('Connected for').waitFor();
  }));

test('actions: watch the latest values of a device change', () =>
  atHome(async (person) => {
    const changed = await node.expect('POST', '/api/v1/devices', { id: 'pump-8', product: 'pump' });
    const token = changed.issued[0].token as string;
    await publish(node, 'v1/devices/me/telemetry', '{"pressure": 1.25}', token);
    await person.find('pump-8', /pump-8/);
    // The legend of the chart shows values, too.
    const title = person.page.getByRole('heading', { name: 'Latest values' });
    const values = person.page.locator('section', { has: title });
    await values.getByRole('cell', { name: '1.25', exact: true }).waitFor();
    await publish(node, 'v1/devices/me/telemetry', '{"pressure": 2.5}', token);
    await values.getByRole('cell', { name: '2.5', exact: true }).waitFor();
  }));

test('actions: add a device and copy the command that connects it', () =>
  atHome(async (person) => {
    const { page } = person;
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Devices' }));
    await person.click(page.getByRole('button', { name: 'Add a device' }).first());
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Id').fill('pump-9');
    await page.keyboard.press('Enter');
    await person.click(dialog.getByRole('button', { name: 'Copy' }).first());
    const command = await page.evaluate(() => navigator.clipboard.readText());
    expect(command).toMatch(new RegExp(`^mosquitto_pub -h 127.0.0.1 -p ${node.mqttPort} -u \\S+ -t `));
    const token = / -u (\S+) /.exec(command)?.[1] ?? '';
    await publish(node, 'v1/devices/me/telemetry', '{"pressure": 1}', token);
    const read = () => node.call('GET', '/api/v1/devices/pump-9/telemetry/latest');
    await eventually('the value is stored', async () => (await read()).body?.values?.pressure?.value === 1);
  }));

test('actions: acknowledge an alarm', () =>
  atHome(async (person) => {
    const { page } = person;
    const above = { key: 'temperature', is: '>', value: 60 };
    const alarm = { id: 'overheated', raise: [{ severity: 'MAJOR', when: above }] };
    await node.expect('POST', '/api/v1/products', { id: 'oven', alarms: [alarm] });
    const oven = await node.expect('POST', '/api/v1/devices', { id: 'oven-1', product: 'oven' });
    await publish(node, 'v1/devices/me/telemetry', '{"temperature": 75}', oven.issued[0].token);
    const states = async () => {
      const { body } = await node.call('GET', '/api/v1/alarms?device=oven-1');
      return body.data.map((each: { state: string }) => each.state) as string[];
    };
    await eventually('the alarm is raised', async () => (await states())[0] === 'ACTIVE_UNACK');
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Alarms' }));
    const row = page.getByRole('row').filter({ hasText: 'oven-1' });
    await person.click(row.getByRole('button', { name: 'Acknowledge' }));
    await row.getByText('by ann').waitFor();
    expect(await states()).toEqual(['ACTIVE_ACK']);
  }));

test('actions: view the last messages of a topic', () =>
  atHome(async (person) => {
    const { page } = person;
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Live' }));
    await page.getByLabel('Topic filter').fill('line/8/#');
    await person.click(page.getByRole('button', { name: 'Subscribe' }));
    await page.getByText('connected', { exact: true }).waitFor();
    await publish(node, 'line/8/speed', '{"rpm": 1450}');
    await page.getByRole('button', { name: /line\/8\/speed.*1450/ }).waitFor();
  }));

test('actions: publish a test message', () =>
  atHome(async (person) => {
    const { page } = person;
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Live' }));
    await page.getByRole('textbox', { name: 'Topic', exact: true }).fill('line/7/speed');
    await page.getByRole('textbox', { name: 'Payload', exact: true }).fill('{"rpm": 900}');
    await person.click(page.getByRole('button', { name: 'Publish', exact: true }));
    await eventually('the subscriber has it', async () => {
      const { body } = await node.call('GET', '/api/v1/sessions/line-7-press');
      return body.messages_sent > 0;
    });
  }));

test('actions: write a rule, test it on the message that just arrived, save it and see its output', () =>
  atHome(async (person) => {
    const { page } = person;
    await person.press('Control+k');
    await page.getByPlaceholder('Find a page').fill('line/9/speed');
    const choice = page.getByRole('button', { name: 'Write a rule for line/9/speed' });
    await eventually('the topic is found', async () => {
      await publish(node, 'line/9/speed', '{"rpm": 1450}');
      return choice.isVisible();
    });
    await person.click(choice);
    // The message is the sample of the test.
    await page.getByText('"rpm": 1450').first().waitFor();
    await page.getByRole('textbox', { name: 'Name' }).fill('line-9');
    await person.click(page.getByRole('button', { name: 'Save', exact: true }));
    await page.getByRole('tab', { name: 'Live trace', selected: true }).waitFor();
    await eventually('the trace shows the output', async () => {
      await publish(node, 'line/9/speed', '{"rpm": 1451}');
      return page.locator('main').getByText('1451').first().isVisible();
    });
  }));

test('a rule is tested on the next message and the client that published it', async () => {
  await node.expect('POST', '/api/v1/rules', { name: 'line-11', sql: 'SELECT clientid FROM "line/11/+"' });
  const page = await open(profile, '/rules/line-11');
  await page.getByRole('button', { name: 'Take the next message' }).click();
  await eventually('the message is the sample', async () => {
    await publish(node, 'line/11/speed', '{"rpm": 11}');
    return (await page.getByLabel('Payload').inputValue()) === '{"rpm": 11}';
  });
  expect(await page.getByLabel('Topic', { exact: true }).inputValue()).toBe('line/11/speed');
  const publisher = await page.getByLabel('Client id').inputValue();
  expect(publisher).not.toBe('test');
  await page.getByText(`"clientid": "${publisher}"`).first().waitFor();
  await page.close();
});

test('actions: learn why a client was rejected', () =>
  atHome(async (person) => {
    const { page } = person;
    const ban = { client_id: 'press-8', reason: 'sends too much' };
    await node.expect('POST', '/api/v1/bans', ban);
    const rejected = subscribe(node, 'press-8', 'line/8/#');
    await new Promise((resolve) => rejected.once('exit', resolve));
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Clients' }));
    await person.click(page.getByRole('tab', { name: 'Rejected connections' }));
    const row = page.getByRole('row').filter({ hasText: 'press-8' });
    await row.getByText('is banned').waitFor();
  }));

test('actions: chart two keys of two devices over a day', () =>
  atHome(async (person) => {
    const { page } = person;
    for (const [id, pressure] of [
      ['mixer-1', 1.5],
      ['mixer-2', 3.5],
    ] as const) {
      const mixer = await node.expect('POST', '/api/v1/devices', { id, product: 'pump' });
      const hoursAgo = (hours: number) => Date.now() - hours * 3_600_000;
      const rows = [20, 10, 1].map((hours) => ({ ts: hoursAgo(hours), values: { pressure, speed: hours } }));
      await publish(node, 'v1/devices/me/telemetry', JSON.stringify(rows), mixer.issued[0].token);
    }
    await person.click(page.getByRole('navigation').getByRole('link', { name: 'Telemetry' }));
    const choice = page.getByRole('combobox', { name: 'Devices' });
    await person.click(choice);
    for (const id of ['mixer-1', 'mixer-2']) {
      await choice.fill(id);
      await page.getByRole('option', { name: id }).waitFor();
      await page.keyboard.press('ArrowDown');
      await page.keyboard.press('Enter');
    }
    // The devices' first two keys are charted without a further choice, over 24 hours.
    for (const key of ['pressure', 'speed']) await page.getByRole('img', { name: `${key} over time` }).waitFor();
    const summary = page.getByRole('region', { name: 'Summary' }).first();
    await summary.getByRole('row', { name: 'mixer-1 1.5 1.5 1.5 1.5' }).waitFor();
    await summary.getByRole('row', { name: 'mixer-2 3.5 3.5 3.5 3.5' }).waitFor();
  }));

test('actions: inspect the dead letters of a sink, and replay them', async () => {
  let status = 422;
  const received: string[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (part: Buffer) => (body += part.toString()));
    request.on('end', () => {
      if (status === 200) received.push(body);
      response.writeHead(status).end('the cell must be a number');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const connector = { name: 'hall', type: 'http', url: `http://127.0.0.1:${port}` };
  await node.expect('POST', '/api/v1/connectors', connector);
  await node.expect('POST', '/api/v1/sinks', { name: 'cells', connector: 'hall' });
  const rule = { name: 'cells', sql: 'SELECT payload.cell AS cell FROM "line/10/cells"' };
  await node.expect('POST', '/api/v1/rules', { ...rule, actions: [{ kind: 'sink', sink: 'cells' }] });
  await publish(node, 'line/10/cells', '{"cell": "seven"}');
  await eventually('the row is a dead letter', async () => {
    const { body } = await node.call('GET', '/api/v1/sinks/cells/dead-letters');
    return body.data.length === 1;
  });
  try {
    await atHome(async (person) => {
      const { page } = person;
      await person.click(page.getByRole('navigation').getByRole('link', { name: 'Connectors' }));
      const row = page.getByRole('row').filter({ hasText: 'cells' });
      await person.click(row.getByRole('link', { name: '1', exact: true }));
      const letter = page.getByRole('row').filter({ hasText: '"cell":"seven"' });
      await letter.getByText('422').waitFor();
      status = 200;
      await person.click(page.getByRole('button', { name: 'Replay all' }));
      await page.getByText('No dead letters').waitFor();
    });
    await eventually('the row was written', async () => received.some((body) => body.includes('seven')));
  } finally {
    server.close();
  }
});

/** Rebalancing on the page Cluster. A node of this test is not a member of a cluster, so the answers of one are made here. */

import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { Schemas } from '../src/api/client';
import { launch, loggedIn, open } from './support/browser';
import { accessibilityProblems, expectNone, saveScreenshot } from './support/checks';
import { TestNode } from './support/node';

type Rebalance = Schemas['ClusterRebalance'];
type RebalanceNode = Schemas['RebalanceNode'];

let node: TestNode;
let browser: Browser;
let profile: BrowserContext;
let rebalance: Rebalance;
/** The changes that the page has asked for. */
let changes: string[];

function member(name: string, connections: number): Schemas['ClusterMember'] {
  return {
    node: name,
    is_self: name === 'node-1',
    is_reachable: true,
    version: '0.1.0',
    started_ms: 1_790_000_000_000,
    silent_ms: 0,
    round_trip_ms: name === 'node-1' ? null : 1,
    queued_bytes: 0,
    repeated_frames: 0,
    is_draining: false,
    rebalance_target: name === 'node-1' && rebalance.is_running ? 400 : null,
    connections,
    sessions: connections,
    api_url: null,
    server_reference: null,
  };
}

function status(): Schemas['ClusterStatus'] {
  return {
    name: 'tidegate',
    node: 'node-1',
    is_complete: true,
    problem: null,
    nats: {
      state: 'ready',
      since_ms: 1_790_000_000_000,
      server_name: 'node-1',
      server_version: '2.12.15',
      last_error: null,
      round_trip_ms: 0.4,
      reconnects: 0,
      managed: {
        is_running: true,
        pid: 7,
        version: '2.12.15',
        restarts: 0,
        last_error: null,
        resident_bytes: 30 << 20,
        cpu_seconds: 12,
      },
    },
    members: rebalance.nodes.map((one) => member(one.node, one.connections)),
    messages: { sent: 0, received: 0, dropped_behind: 0, dropped_no_member: 0, invalid: 0, lost_frames: 0 },
    objects: { is_synchronized: true, count: 3, conflicts: [], local_only: [], error: null },
    drain: null,
    standby: {
      state: 'no_standby',
      node: null,
      unconfirmed_bytes: 0,
      sent_bytes: 0,
      last_error: null,
      copies: [],
      adoptions: 0,
      adopted_sessions: 0,
    },
    telemetry_copy: {
      state: 'not_wanted',
      node: null,
      queued_bytes: 0,
      lag_ms: 0,
      sent_rows: 0,
      last_error: null,
      copies: [],
    },
  };
}

function server(name: string, others: Partial<Schemas['ClusterNatsServer']>): Schemas['ClusterNatsServer'] {
  return {
    name,
    has_node: true,
    is_leader: false,
    is_connected: true,
    is_current: true,
    missing_changes: 0,
    silent_ms: 0,
    ...others,
  };
}

const servers: Schemas['ClusterServers'] = {
  data: [
    server('node-1', { is_leader: true }),
    server('node-2', { is_current: false, missing_changes: 3 }),
    server('witness-1', { has_node: false, is_connected: false, silent_ms: 42_000 }),
  ],
};

function rebalanceNode(name: string, connections: number, after: number): RebalanceNode {
  return { node: name, connections, bound: 12, target: null, after, exclusion: null, error: null, run: null };
}

function withRun(state: Schemas['RebalanceState'], connections: number, disconnected: number): void {
  const run = { since_ms: 1_790_000_000_000, target: 400, disconnected, state };
  const first = { ...rebalanceNode('node-1', connections, 400), target: state === 'running' ? 400 : null, run };
  rebalance = {
    average: 400,
    is_running: state === 'running',
    obstacle:
      state === 'running'
        ? 'A rebalancing is running at node-1; wait for its end, or cancel it.'
        : 'Nothing is to be done.',
    nodes: [first, rebalanceNode('node-2', 100, 400), rebalanceNode('node-3', 0, 400)],
  };
}

beforeAll(async () => {
  node = await TestNode.start();
  browser = await launch();
  profile = await loggedIn(browser, node);
  await profile.route('**/api/v1/settings*', async (route) => {
    const answer = await route.fetch();
    const settings = (await answer.json()) as { data: { key: string; value: unknown }[] };
    const name = settings.data.find(({ key }) => key === 'cluster.node');
    if (name) name.value = 'node-1';
    await route.fulfill({ response: answer, json: settings });
  });
  await profile.route('**/api/v1/cluster', (route) => route.fulfill({ json: status() }));
  await profile.route('**/api/v1/cluster/rebalance', async (route) => {
    const method = route.request().method();
    if (method === 'GET') return route.fulfill({ json: rebalance });
    changes.push(method);
    if (method === 'POST') {
      withRun('running', 1_000, 100);
      return route.fulfill({ json: rebalance });
    }
    withRun('cancelled', 1_000, 100);
    return route.fulfill({ status: 204 });
  });
});

afterAll(async () => {
  // Requests that are under way must not fail the run.
  await profile?.unrouteAll({ behavior: 'ignoreErrors' });
  await browser?.close();
  await node?.remove();
});

beforeEach(() => {
  changes = [];
  rebalance = {
    average: 400,
    is_running: false,
    obstacle: null,
    nodes: [
      { ...rebalanceNode('node-1', 1_100, 400), target: 400 },
      rebalanceNode('node-2', 100, 400),
      { ...rebalanceNode('node-3', 0, 400), bound: null },
    ],
  };
});

async function inDialog(run: (page: Page, dialog: ReturnType<Page['getByRole']>) => Promise<void>): Promise<void> {
  const page = await open(profile, '/cluster');
  try {
    await page.getByRole('button', { name: 'Rebalance' }).click();
    const dialog = page.getByRole('dialog', { name: 'Rebalance the connections' });
    await dialog.getByRole('table').waitFor();
    await run(page, dialog);
  } finally {
    await page.close();
  }
}

test('cluster: the plan of a rebalancing is shown, started, followed and cancelled', () =>
  inDialog(async (page, dialog) => {
    const first = dialog.getByRole('row').filter({ hasText: 'node-1' });
    await first.getByText('700 too many').waitFor();
    expect(await first.getByRole('cell').allTextContents()).toEqual([
      'node-1',
      '1,100',
      '12',
      '400',
      '–',
      '700 too many',
    ]);
    await dialog.getByRole('button', { name: 'Show the call' }).click();
    await page.getByText('tidegate ctl cluster rebalance', { exact: true }).waitFor();
    await dialog.getByRole('button', { name: 'Show the call' }).click();
    await dialog.getByRole('button', { name: 'Disconnect clients' }).click();
    await first.getByText('rebalancing to 400').waitFor();
    await first.getByRole('cell', { name: '100', exact: true }).waitFor();
    await dialog.getByText('Close', { exact: true }).click();
    await page.getByRole('row').filter({ hasText: 'node-1' }).getByText('rebalancing to 400').waitFor();
    await page.getByRole('button', { name: 'Rebalance' }).click();
    await dialog.getByRole('button', { name: 'Cancel the rebalancing' }).click();
    await first.getByText('cancelled').waitFor();
    expect(changes).toEqual(['POST', 'DELETE']);
  }));

test('cluster: the NATS servers are listed, and why they are not known', async () => {
  await profile.route('**/api/v1/cluster/servers', (route) => route.fulfill({ json: servers }));
  const page = await open(profile, '/cluster');
  const panel = page.locator('.panel').filter({ has: page.getByRole('heading', { name: 'NATS servers' }) });
  await panel.getByText('leader').waitFor();
  await panel.getByText('3 changes behind').waitFor();
  await panel.getByText('silent for 42 s').waitFor();
  expect(await panel.getByText('without a node').count()).toBe(1);
  expectNone(await accessibilityProblems(page));
  await saveScreenshot(page, '/cluster', 'servers');
  await profile.unroute('**/api/v1/cluster/servers');
  const detail = 'The NATS servers cannot be listed: JetStream has no leader now.';
  await profile.route('**/api/v1/cluster/servers', (route) =>
    route.fulfill({
      status: 503,
      contentType: 'application/problem+json',
      json: { title: 'Unavailable', status: 503, detail },
    }),
  );
  await panel.getByText(detail).waitFor();
  await page.close();
});

test('cluster: nothing is started if nothing is to be done', async () => {
  withRun('reached', 400, 700);
  await inDialog(async (_, dialog) => {
    await dialog.getByText('Nothing is to be done.').waitFor();
    expect(await dialog.getByRole('button', { name: 'Disconnect clients' }).isDisabled()).toBe(true);
  });
});

/** What a node contains for the tests: the demo fleet, so that lists have rows and live values change, and what it lacks. */

import type { ChildProcess } from 'node:child_process';
import { startProgram } from './program';
import { eventually, type TestNode } from './node';

/** Starts the demo fleet. It reports until the returned process is killed. */
export async function fill(node: TestNode): Promise<ChildProcess> {
  const demo = startProgram(['demo', '--data-dir', node.dataDir]);
  await eventually(
    'the demo fleet reports, and has an alarm',
    async () => {
      if (demo.exitCode !== null) throw new Error(`tidegate demo ended with ${demo.exitCode}`);
      const { body } = await node.call('GET', '/api/v1/device-counts');
      const alarms = await node.call('GET', '/api/v1/alarm-counts');
      return body.online === 50 && alarms.body.active > 0;
    },
    90_000,
  );
  await addObjects(node);
  return demo;
}

/** One object of each kind with a page that the demo fleet has none of. Their ids come after those of the fleet. */
async function addObjects(node: TestNode): Promise<void> {
  const connector = { name: 'zz-archive', type: 'http', url: 'http://127.0.0.1:9' };
  await node.expect('POST', '/api/v1/connectors', connector);
  await node.expect('POST', '/api/v1/sinks', { name: 'zz-archive', connector: connector.name });
  const nodes = [{ id: 'save', type: 'save_telemetry' }];
  await node.expect('POST', '/api/v1/rule-chains', { id: 'zz-store', nodes, relations: [] });
  await node.expect('POST', '/api/v1/products', { id: 'zz-valve' });
  await node.expect('POST', '/api/v1/devices', { id: 'zz-valve-1', product: 'zz-valve' });
  const image = await node.expect('PUT', '/api/v1/uploads/zz-valve.bin', 'the image');
  const firmware = { id: 'zz-valve-2', title: 'Valve', firmware_version: '2', product: 'zz-valve', file: image.id };
  await node.expect('POST', '/api/v1/firmware', firmware);
  await node.expect('POST', '/api/v1/firmware-campaigns', { package: firmware.id, devices: ['zz-valve-1'] });
}

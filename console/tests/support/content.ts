/** What a node contains for the tests: the demo fleet, so that every list has rows and live values change. */

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
  return demo;
}

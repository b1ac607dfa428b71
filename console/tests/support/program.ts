/** Other commands of the program, such as its MQTT clients. */

import { spawn, type ChildProcess } from 'node:child_process';
import { required, type TestNode } from './node';

/** A subscriber that stays connected until it is killed. */
export function subscribe(node: TestNode, clientId: string, filter: string, ...options: string[]): ChildProcess {
  const words = ['sub', '-h', '127.0.0.1', '-p', String(node.mqttPort), '-i', clientId, '-t', filter];
  return startProgram([...words, ...options]);
}

/** Publishes one message and waits until the node has it. */
export async function publish(node: TestNode, topic: string, message: string, user?: string): Promise<void> {
  const words = ['pub', '-h', '127.0.0.1', '-p', String(node.mqttPort), '-t', topic, '-m', message, '-q', '1'];
  const child = startProgram(user === undefined ? words : [...words, '-u', user]);
  const status = await new Promise((resolve) => child.once('exit', resolve));
  if (status !== 0) throw new Error(`publishing to ${topic} ended with ${String(status)}`);
}

/** Starts the program; it ends with this process at the latest. */
export function startProgram(words: readonly string[]): ChildProcess {
  const program = required('TIDEGATE_TEST_PROGRAM');
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TIDEGATE_')));
  return spawn('setpriv', ['--pdeathsig', 'KILL', program, ...words], { stdio: ['ignore', 'ignore', 'inherit'], env });
}

/** A node with data of its own. */

import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const startLimitMs = 60_000;
const stopLimitMs = 30_000;

export const admin = { username: 'ann', password: 'a long password for tests' };

/** A variable that the test program sets. */
export function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run "cargo test -p tidegate --test console"`);
  return value;
}

/** Asks again and again until `check` returns something. */
export async function eventually<T>(what: string, check: () => Promise<T | undefined | false>, limitMs = 30_000) {
  const deadline = Date.now() + limitMs;
  for (;;) {
    const found = await check();
    if (found !== undefined && found !== false) return found;
    if (Date.now() > deadline) throw new Error(`not within ${limitMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const maxPortAttempts = 5;

/** Ports that are free now; another process may take them before they are used. */
async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer();
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      return server;
    }),
  );
  return Promise.all(
    servers.map(async (server) => {
      const address = server.address();
      await new Promise((resolve) => server.close(resolve));
      if (address === null || typeof address === 'string') throw new Error('a listening socket has a port');
      return address.port;
    }),
  );
}

interface Answer {
  status: number;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  body: any;
}

export class TestNode {
  private child: ChildProcess | undefined;

  private constructor(
    readonly dataDir: string,
    private readonly ports: readonly number[],
    private readonly settings: readonly string[],
  ) {}

  /** Starts a node and creates the operator [`admin`]. Its ports stay the same when it is started again. */
  static async start(...settings: string[]): Promise<TestNode> {
    const dataDir = mkdtempSync(join(tmpdir(), 'tidegate-console-'));
    for (let attempt = 1; ; attempt++) {
      const node = new TestNode(dataDir, await freePorts(3), settings);
      try {
        await node.startAgain();
        return node;
      } catch (error) {
        // Another process may take a port between its choice and the start of the node.
        const isTaken = String(error).includes('in use');
        await node.stop();
        if (!isTaken || attempt === maxPortAttempts) throw error;
        writeFileSync(join(dataDir, 'stderr.log'), '');
      }
    }
  }

  get origin(): string {
    return `http://127.0.0.1:${this.ports[0]}`;
  }

  get mqttPort(): number {
    return this.ports[1] ?? 0;
  }

  get pid(): number {
    return this.child?.pid ?? 0;
  }

  async startAgain(): Promise<void> {
    const [http, mqtt, ws] = this.ports.map((port) => `127.0.0.1:${port}`) as [string, string, string];
    const program = [required('TIDEGATE_TEST_PROGRAM'), 'serve', '--data-dir', this.dataDir];
    const listeners = ['--http', http, '--mqtt', mqtt, '--ws', ws];
    const settings = ['store.segment_bytes=4MiB', ...this.settings].flatMap((setting) => ['--set', setting]);
    // The node must not survive this process, however that ends.
    const words = ['setpriv', '--pdeathsig', 'KILL', ...program, ...listeners, ...settings];
    const log = openSync(join(this.dataDir, 'stderr.log'), 'a');
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TIDEGATE_')));
    const child = spawn(words[0] ?? '', words.slice(1), { stdio: ['ignore', 'ignore', log], env });
    this.child = child;
    await eventually(
      'the node is ready',
      async () => {
        if (child.exitCode !== null) throw new Error(`the node ended (${child.exitCode}):\n${this.log()}`);
        const ready = await fetch(`${this.origin}/readyz`).catch(() => null);
        return ready?.ok;
      },
      startLimitMs,
    );
    await this.createAdmin();
  }

  private async createAdmin(): Promise<void> {
    const { username, password } = admin;
    const path = `/api/v1/operators/${username}`;
    if ((await this.call('GET', path)).status === 200) return;
    await this.expect('PUT', path, { role: 'admin', password, must_change_password: false });
  }

  /** Ends the node as an operator does. */
  async stop(): Promise<void> {
    const child = this.child;
    if (!child || child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    const late = setTimeout(() => child.kill('SIGKILL'), stopLimitMs);
    await ended;
    clearTimeout(late);
  }

  async remove(): Promise<void> {
    await this.stop();
    rmSync(this.dataDir, { recursive: true, force: true });
  }

  log(): string {
    const path = join(this.dataDir, 'stderr.log');
    return existsSync(path) ? readFileSync(path, 'utf8') : '';
  }

  /** Calls the API with the rights of the machine's owner. */
  async call(method: string, path: string, body?: unknown): Promise<Answer> {
    return this.send(method, path, 'application/json', body === undefined ? undefined : JSON.stringify(body));
  }

  /** Sends lines of JSON; the node must accept all of them. */
  async sendLines(path: string, lines: readonly string[]): Promise<void> {
    const answer = await this.send('POST', path, 'application/x-ndjson', lines.join('\n'));
    if (answer.status >= 300) throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
  }

  private async send(method: string, path: string, type: string, body: string | undefined): Promise<Answer> {
    const token = readFileSync(join(this.dataDir, 'api.token'), 'utf8').trim();
    // The node closes idle connections, perhaps at the moment in which one is used again.
    const headers: Record<string, string> = { authorization: `Bearer ${token}`, connection: 'close' };
    if (body !== undefined) headers['content-type'] = type;
    const response = await fetch(`${this.origin}${path}`, { method, headers, body });
    const text = await response.text();
    return { status: response.status, body: text === '' ? undefined : JSON.parse(text) };
  }

  /** As [`call`]; the response must be 2xx. */
  async expect(method: string, path: string, body?: unknown) {
    const answer = await this.call(method, path, body);
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }
}

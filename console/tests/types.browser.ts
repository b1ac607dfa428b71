/** The generated types and schemas are those of the node's OpenAPI document. */

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { TestNode } from './support/node';

const console_ = join(import.meta.dirname, '..');

let node: TestNode;
let folder: string;

beforeAll(async () => {
  node = await TestNode.start();
  folder = mkdtempSync(join(tmpdir(), 'tidegate-types-'));
});

afterAll(async () => {
  if (folder) rmSync(folder, { recursive: true });
  await node?.remove();
});

test('types: those of the console are those of the node; otherwise run `npm run types`', () => {
  const script = join(console_, 'scripts/types.mjs');
  const written = spawnSync(process.execPath, [script, `${node.origin}/api/v1/openapi.json`, folder], {
    encoding: 'utf8',
  });
  expect(written.stderr).toBe('');
  for (const file of ['schema.d.ts', 'input-schemas.json']) {
    const isEqual = readFileSync(join(folder, file), 'utf8') === readFileSync(join(console_, 'src/api', file), 'utf8');
    expect(isEqual, `${file} is outdated: run npm run types with a node of this version`).toBe(true);
  }
});

/** The generated types and schemas are those of the node's OpenAPI document, and the texts that pages read from it are translated. */

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { catalogueKey, type Descriptions } from '../src/api/descriptions';
import type { Schema } from '../src/api/json-schema';
import catalogue from '../src/locales/descriptions.zh.json';
import { descriptionsIn, descriptionsOfForms } from './support/descriptions';
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

test('types: descriptions of connectors, sinks, sources and settings are translated into Chinese', async () => {
  type ConnectorType = Record<'connector_schema' | 'sink_schema' | 'source_schema', Schema | null>;
  const types: ConnectorType[] = (await node.expect('GET', '/api/v1/connector-types')).data;
  const settings: { help: string; expected: string }[] = (await node.expect('GET', '/api/v1/settings')).data;
  const limits: { help: string }[] = (await node.expect('GET', '/api/v1/limits')).data;
  const schemas = types.flatMap((type) => [type.connector_schema, type.sink_schema, type.source_schema]);
  const texts = [
    ...schemas.flatMap((schema) => (schema ? descriptionsIn(schema) : [])),
    ...settings.flatMap(({ help, expected }) => [help, expected]),
    ...limits.map(({ help }) => help),
  ];
  expect(new Set(texts).size).toBeGreaterThan(400);
  const descriptions: Descriptions = catalogue;
  const isKnown = (text: string) => catalogueKey(text, descriptions) !== undefined;
  const missing = [...new Set(texts)].filter((text) => !isKnown(text));
  expect(missing, `add to src/locales/descriptions.zh.json:\n${missing.join('\n')}`).toEqual([]);
  const used = new Set([...texts, ...descriptionsOfForms()].map((text) => catalogueKey(text, descriptions)));
  const unused = Object.keys(descriptions).filter((key) => !used.has(key));
  expect(unused, `remove from src/locales/descriptions.zh.json:\n${unused.join('\n')}`).toEqual([]);
});

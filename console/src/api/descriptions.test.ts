import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import catalogue from '../locales/descriptions.zh.json';
import { normalised, translated, withoutKinds, type Descriptions } from './descriptions';
import inputSchemas from './input-schemas.json';
import type { Schema, SchemaScope, SchemaSet } from './json-schema';
import { plain } from './schema-variants';

const descriptions: Descriptions = catalogue;
const schemas = inputSchemas as unknown as SchemaSet;
const sources = join(import.meta.dirname, '..');

/** The schemas that forms are made from: those that an object kind or a page names. */
function schemasOfForms(): string[] {
  const files = readdirSync(sources, { recursive: true, encoding: 'utf8' }).filter((file) => /\.tsx?$/.test(file));
  const found = files.flatMap((file) => [
    ...readFileSync(join(sources, file), 'utf8').matchAll(/(?:newSchema: |inputSchema: |useSchema\()'(\w+)'/g),
  ]);
  return [...new Set(found.map(([, name]) => name ?? ''))].sort();
}

/** The descriptions of fields, choices and variants; not that of the schema itself, which forms do not show. */
function descriptionsIn(root: Schema, scope: SchemaScope): string[] {
  const found: string[] = [];
  const followed = new Set<string>();
  const visit = (part: Schema, isShown = true) => {
    if (part.$ref !== undefined) {
      const reference = `${part.$ref} ${part.description}`;
      // Conditions contain conditions.
      if (followed.has(reference)) return;
      followed.add(reference);
    }
    const own = plain(part, scope);
    if (isShown && own.description) found.push(withoutKinds(normalised(own.description)));
    for (const each of [...(own.oneOf ?? []), ...(own.anyOf ?? []), ...(own.allOf ?? [])]) visit(each);
    for (const property of Object.values(own.properties ?? {})) if (property.const === undefined) visit(property);
    if (own.items) visit(own.items);
    if (typeof own.additionalProperties === 'object') visit(own.additionalProperties);
  };
  visit(root, false);
  return found;
}

test('every description that forms show is translated into Chinese', () => {
  const names = schemasOfForms();
  expect(names.length).toBeGreaterThan(20);
  expect(names.filter((name) => schemas[name] === undefined)).toEqual([]);
  const shown = names.flatMap((name) => {
    const root = schemas[name] ?? {};
    return descriptionsIn(root, { schemas, root });
  });
  expect(new Set(shown).size).toBeGreaterThan(250);
  const missing = [...new Set(shown)].filter((text) => translated(text, descriptions) === undefined);
  expect(missing, `add to src/locales/descriptions.zh.json:\n${missing.join('\n')}`).toEqual([]);
});

test('keys of the catalogue are normalised and sorted, and code is the same in both languages', () => {
  const keys = Object.keys(descriptions);
  expect(keys).toEqual(keys.map(normalised));
  const order = (a: string, b: string) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1);
  expect(keys).toEqual([...keys].sort(order));
  const code = (text: string) => (text.match(/`[^`]*`/g) ?? []).sort();
  for (const [key, text] of Object.entries(descriptions)) expect(code(text), key).toEqual(code(key));
});

test('a text is found whatever its spaces and values are; one that is not known has no translation', () => {
  const known = { 'From # to #.': '# 至 #。', 'One of #': '可选值:#', 'At most 8 bytes': '最多八字节' };
  expect(translated('From 0\n  to 64KiB.', known)).toBe('0 至 64KiB。');
  expect(translated('One of "a", "b"', known)).toBe('可选值:"a", "b"');
  expect(translated('At most 8 bytes', known)).toBe('最多八字节');
  expect(translated('At most 9 bytes', known)).toBeUndefined();
  expect(translated('constructor', known)).toBeUndefined();
});

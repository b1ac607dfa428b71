import { expect, test } from 'vitest';
import { descriptionsOfForms } from '../../tests/support/descriptions';
import catalogue from '../locales/descriptions.zh.json';
import { normalised, translated, type Descriptions } from './descriptions';

const descriptions: Descriptions = catalogue;

test('every description that forms show is translated into Chinese', () => {
  const shown = descriptionsOfForms();
  expect(shown.length).toBeGreaterThan(250);
  const missing = shown.filter((text) => translated(text, descriptions) === undefined);
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

import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { fieldNames } from './field-names';
import type { Schema, SchemaScope } from './json-schema';
import { choiceList, fieldLabel, isVariant, plain, variantName, variantStart } from './schema-variants';

i18n.loadAndActivate({ locale: 'en', messages: {} });

const scope: SchemaScope = { root: {}, schemas: { Unit: { enum: ['day', 'week'], type: 'string' } } };

test('a reference and a nullable type are resolved', () => {
  expect(plain({ $ref: '#/components/schemas/Unit', description: 'x' }, scope)).toEqual({
    enum: ['day', 'week'],
    type: 'string',
    description: 'x',
  });
  expect(plain({ type: ['string', 'null'] }, scope)).toEqual({ type: 'string' });
  expect(plain({ anyOf: [{ $ref: '#/components/schemas/Unit' }, { type: 'null' }] }, scope).enum).toHaveLength(2);
});

test('constants and enumerations are choices, objects are not', () => {
  const texts = choiceList({ oneOf: [{ const: 'a', description: 'A' }, { enum: ['b', 'c'] }] });
  expect(texts?.map(({ value }) => value)).toEqual(['a', 'b', 'c']);
  expect(choiceList({ oneOf: [{ const: 'a' }, { type: 'object', required: ['by'] }] })).toBeNull();
});

test('a variant is recognised by its constant or its required field', () => {
  const sink: Schema = {
    properties: { type: { const: 'sink' }, sink: { type: 'string' } },
    required: ['type', 'sink'],
  };
  const by: Schema = { properties: { by: { type: 'string' } }, required: ['by'] };
  expect([variantName(sink), variantName(by), variantName({ const: 'none' })]).toEqual(['sink', 'by', 'none']);
  expect(isVariant(sink, { type: 'sink' })).toBe(true);
  expect(isVariant(by, { type: 'sink' })).toBe(false);
  expect(isVariant(by, variantStart(by))).toBe(true);
  expect(variantStart(sink)).toEqual({ type: 'sink', sink: '' });
});

test('labels are words with a unit', () => {
  expect(fieldLabel('max_wait_ms')).toBe('Max wait (ms)');
  expect(fieldLabel('urls')).toBe('URLs');
  expect(fieldLabel('password_file')).toBe('Password file');
});

test('labels of known fields are translated, others are made from their names', () => {
  const id = String(fieldNames.max_wait?.id);
  i18n.loadAndActivate({ locale: 'zh', messages: { [id]: '最长等待时间' } });
  expect(fieldLabel('max_wait_ms')).toBe('最长等待时间 (ms)');
  expect(fieldLabel('lane_limit')).toBe('Lane limit');
  expect(fieldLabel('constructor')).toBe('Constructor');
  i18n.loadAndActivate({ locale: 'en', messages: {} });
});

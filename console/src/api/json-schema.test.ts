import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { choicesOf, problemsOf, type Schema, type SchemaScope } from './json-schema';

i18n.loadAndActivate({ locale: 'en', messages: {} });

function scopeOf(root: Schema, schemas: Record<string, Schema> = {}): SchemaScope {
  return { root, schemas };
}

const paths = (value: unknown, root: Schema, schemas = {}) =>
  problemsOf(value, root, scopeOf(root, schemas)).map(({ path }) => path);

test('missing, unknown and wrong fields are found', () => {
  const schema: Schema = {
    type: 'object',
    required: ['id', 'mode'],
    additionalProperties: false,
    properties: {
      id: { type: 'string', minLength: 1, maxLength: 3, pattern: '^[a-z]+$' },
      mode: { enum: ['direct', 'json'] },
      limit: { type: ['integer', 'null'], minimum: 1, maximum: 10 },
    },
  };
  expect(paths({ id: 'abc', mode: 'json', limit: null }, schema)).toEqual([]);
  expect(paths({ id: 'abcd', mode: 'x', limit: 11, other: 1 }, schema)).toEqual(['id', 'mode', 'limit', 'other']);
  expect(paths({ id: 'A' }, schema)).toEqual(['mode', 'id']);
  expect(paths({ id: '', mode: 'json', limit: 1.5 }, schema)).toEqual(['id', 'limit']);
});

test('one of several forms is enough, and the one that fits best tells what is missing', () => {
  const object = (name: string, inner: Schema): Schema => ({
    type: 'object',
    required: [name],
    additionalProperties: false,
    properties: { [name]: inner },
  });
  const topic: Schema = {
    type: 'object',
    required: ['topic'],
    properties: { topic: { type: 'string', minLength: 1 } },
  };
  const schema: Schema = { oneOf: [object('sink', { type: 'string' }), object('mqtt', topic)] };
  expect(paths({ mqtt: { topic: 'a' } }, schema)).toEqual([]);
  expect(paths({ mqtt: { topic: '' } }, schema)).toEqual(['mqtt.topic']);
});

test('references point into the document or the schema itself', () => {
  const schema: Schema = {
    $defs: { Name: { type: 'string', minLength: 2 } },
    type: 'object',
    properties: { role: { $ref: '#/components/schemas/Role' }, name: { $ref: '#/$defs/Name' } },
  };
  const schemas = { Role: { oneOf: [{ const: 'viewer' }, { enum: ['admin', 'operator'] }] } };
  expect(paths({ role: 'admin', name: 'ab' }, schema, schemas)).toEqual([]);
  expect(paths({ role: 'owner', name: 'a' }, schema, schemas)).toEqual(['role', 'name']);
  expect(choicesOf({ $ref: '#/components/schemas/Role' }, scopeOf(schema, schemas))).toEqual([
    'viewer',
    'admin',
    'operator',
  ]);
});

test('choices of a field that may be empty leave out null', () => {
  const schema: Schema = { anyOf: [{ enum: ['a', 'b'] }, { type: 'null' }] };
  expect(choicesOf(schema, scopeOf(schema))).toEqual(['a', 'b']);
});

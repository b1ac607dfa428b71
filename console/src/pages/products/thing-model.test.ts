import { expect, test } from 'vitest';
import { itemProblem, modelOf, valueTypeText, withType } from './thing-model';

test('a model may be stored as text', () => {
  expect(modelOf('{"properties": [{"id": "t"}]}').properties).toEqual([{ id: 't' }]);
  expect(modelOf(null)).toEqual({});
  expect(modelOf('{')).toEqual({});
});

test('types read as one line', () => {
  expect(valueTypeText({ type: 'float', unit: '°C', min: -40, max: 150 })).toBe('float, °C, -40 … 150');
  expect(valueTypeText({ type: 'array', elementType: { type: 'int' } })).toBe('array, int');
  expect(valueTypeText(undefined)).toBe('–');
});

test('another type keeps only what fits', () => {
  const number = { type: 'float', unit: 'bar', min: 0, scale: 2 };
  expect(withType('int', number)).toEqual({ type: 'int', unit: 'bar', min: 0 });
  expect(withType('string', number)).toEqual({ type: 'string' });
});

test('ids are required and unique', () => {
  expect(itemProblem({ id: ' ' }, [])).toBe('no-id');
  expect(itemProblem({ id: 'a' }, [{ id: 'a' }])).toBe('id-taken');
  expect(itemProblem({ id: 'b' }, [{ id: 'a' }])).toBeUndefined();
});

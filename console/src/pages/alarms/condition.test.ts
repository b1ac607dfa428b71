import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { conditionText, flat, isComplete, nested, operandText, parseOperand, type Condition } from './condition';

i18n.loadAndActivate({ locale: 'en', messages: {} });

const words = { and: 'and', or: 'or' };
const hot: Condition = { key: 'temperature', is: '>', value: 60 };

test('a flat condition survives the form', () => {
  const both: Condition = { all: [hot, { key: 'mode', is: '=', value: 'auto' }] };
  expect(nested(flat(both)!)).toEqual(both);
  expect(nested(flat(hot)!)).toEqual(hot);
});

test('a nested condition is left to JSON', () => {
  expect(flat({ any: [hot, { all: [hot] }] })).toBeUndefined();
});

test('operands have the type that is typed', () => {
  expect(parseOperand('80', '>')).toBe(80);
  expect(parseOperand('true', '=')).toBe(true);
  expect(parseOperand('auto', '=')).toBe('auto');
  expect(parseOperand('10, 20', 'between')).toEqual([10, 20]);
  expect(parseOperand('80', 'contains')).toBe('80');
  expect(operandText([10, 20])).toBe('10, 20');
});

test('a condition reads as one line', () => {
  const condition: Condition = { all: [hot, { any: [{ key: 'x', is: 'silent_for', value: 30 }, hot] }] };
  expect(conditionText(condition, words)).toBe('temperature > 60 and (x silent for 30 s or temperature > 60)');
});

test('a rule without a key or operand is not complete', () => {
  const rule = { id: 'a', raise: [{ severity: 'MAJOR', when: hot }] };
  expect(isComplete(rule)).toBe(true);
  expect(isComplete({ ...rule, id: '' })).toBe(false);
  expect(isComplete({ ...rule, raise: [] })).toBe(false);
  expect(isComplete({ ...rule, clear: { when: { key: '', is: '<', value: 1 } } })).toBe(false);
});

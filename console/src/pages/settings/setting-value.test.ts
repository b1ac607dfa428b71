import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { operandProblem, parseSetting, settingText } from './setting-value';

i18n.loadAndActivate({ locale: 'en', messages: {} });

test('a text becomes a value of the type that the setting has', () => {
  expect(parseSetting('60', 5, 'a whole number from 1 to 100')).toBe(60);
  expect(parseSetting('1MiB', 1048576, 'bytes')).toBe('1MiB');
  expect(parseSetting('false', true, 'true or false')).toBe(false);
  expect(parseSetting('drop_oldest', 'drop_newest', 'one of')).toBe('drop_oldest');
  expect(settingText(null)).toBe('');
});

test('numbers out of range are rejected before they are sent', () => {
  const expected = 'a whole number from 1 to 100';
  expect(operandProblem('50', expected)).toBeUndefined();
  expect(operandProblem('101', expected)).toBeDefined();
  expect(operandProblem('x', expected)).toBeDefined();
  expect(operandProblem('x', 'a text')).toBeUndefined();
});

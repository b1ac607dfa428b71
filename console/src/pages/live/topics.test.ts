import { expect, test } from 'vitest';
import { filterProblem, isTopic } from './topics';

test('wildcards stand for whole levels, # only for the last', () => {
  for (const filter of ['a/b', '#', '+', 'a/+/b', 'a/#', '$share/g/a/+', '/', 'a//b'])
    expect(filterProblem(filter)).toBeNull();
  expect(filterProblem('')).toBe('empty');
  expect(filterProblem('a/#/b')).toBe('hash');
  expect(filterProblem('a#')).toBe('hash');
  expect(filterProblem('a+/b')).toBe('plus');
});

test('a topic has no wildcards', () => {
  expect(isTopic('a/b')).toBe(true);
  expect(isTopic('a/+')).toBe(false);
  expect(isTopic('')).toBe(false);
});

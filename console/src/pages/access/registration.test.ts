import { expect, test } from 'vitest';
import { codeOf, isGoodPassword, isUsername, registerLink } from './registration';

test('a link carries the code in its fragment', () => {
  const link = registerLink('inv-1.a/b c', 'https://node.example');
  expect(new URL(link).pathname).toBe('/register');
  expect(codeOf(new URL(link).hash)).toBe('inv-1.a/b c');
  expect(codeOf('')).toBe('');
  expect(codeOf('#%E0%A4%A')).toBe('');
});

test('names and passwords are checked as the node does', () => {
  expect(['bea', 'Bea_2', 'be', 'bea!', 'a'.repeat(31)].map(isUsername)).toEqual([true, true, false, false, false]);
  expect(
    ['Correct-horse-1', 'correct-horse-1', 'CORRECT-HORSE-1', 'Correct-horse', 'Short1a'].map(isGoodPassword),
  ).toEqual([true, false, false, false, false]);
});

import { expect, test } from 'vitest';
import { namesOf, textOf } from './names';

test('names with commas stay whole', () => {
  const names = ['a,b', '100%', '%2C', 'plain'];
  expect(namesOf(textOf(names))).toEqual(names);
  expect(textOf(['a', 'b'])).toBe('a,b');
  expect(namesOf(textOf([]))).toEqual([]);
});

import { expect, test } from 'vitest';
import { followed } from './edited-object';

test('a newer version replaces the edited one only if nothing was changed', () => {
  const [base, newest] = [
    { version: 1, text: 'a' },
    { version: 2, text: 'b' },
  ];
  expect(followed(base, newest, false)).toBe(newest);
  expect(followed(base, newest, true)).toBe(base);
  // Read again without a change: the editor keeps what it has.
  expect(followed(base, { ...base }, false)).toBe(base);
});

import { expect, test } from 'vitest';
import { changesBetween } from './object-changes';

test('only fields that differ are shown, without those that every change sets', () => {
  const before = { name: 'a', tags: ['x'], version: 1, gone: true };
  const after = { name: 'a', tags: ['x', 'y'], version: 2 };
  expect(changesBetween(before, after)).toEqual([
    { field: 'tags', before: ['x'], after: ['x', 'y'] },
    { field: 'gone', before: true, after: undefined },
  ]);
});

test('a new object has only fields that came', () => {
  expect(changesBetween(null, { id: 'a', version: 1 })).toEqual([{ field: 'id', before: undefined, after: 'a' }]);
});

import { expect, test } from 'vitest';
import { withItem, withoutItem } from './conditional-save';

const [a, b, c] = [
  { id: 'a', text: '' },
  { id: 'b', text: '' },
  { id: 'c', text: '' },
];

test('an item is replaced by its id, wherever it is now', () => {
  const changed = { id: 'b', text: 'changed' };
  expect(withItem([c, a, b], 'b', changed)).toEqual([c, a, changed]);
  const renamed = { id: 'd', text: '' };
  expect(withItem([a, b], 'b', renamed)).toEqual([a, renamed]);
  expect(withoutItem([c, a, b], 'a')).toEqual([c, b]);
});

test('an item that is new or was removed by somebody else is added once', () => {
  expect(withItem([a], undefined, b)).toEqual([a, b]);
  expect(withItem([a, c], 'b', b)).toEqual([a, c, b]);
  const changed = { id: 'a', text: 'changed' };
  expect(withItem([a, c], undefined, changed)).toEqual([c, changed]);
});

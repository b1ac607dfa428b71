import { expect, test } from 'vitest';
import { changeKey, isEqual, merge, valueText, type Choice } from './merge';

test('changes of different fields are both kept', () => {
  const base = { name: 'Hall', limits: { rate: 1, bytes: 2 }, tags: ['a'] };
  const mine = { name: 'Hall', limits: { rate: 5, bytes: 2 }, tags: ['a', 'b'] };
  const theirs = { name: 'Room', limits: { rate: 1, bytes: 7 }, tags: ['c', 'a'] };
  const { value, changes } = merge(base, mine, theirs);
  expect(value).toEqual({ name: 'Room', limits: { rate: 5, bytes: 7 }, tags: ['c', 'a', 'b'] });
  expect(changes.map(({ path, by }) => [path.join('.'), by])).toEqual([
    ['name', 'theirs'],
    ['limits.rate', 'mine'],
    ['limits.bytes', 'theirs'],
    ['tags', 'merged'],
  ]);
});

test('a field that both changed is decided by the choice, and is mine without one', () => {
  const [base, mine, theirs] = [{ sql: 'a' }, { sql: 'b' }, { sql: 'c' }];
  const { value, changes } = merge(base, mine, theirs);
  expect(value).toEqual({ sql: 'b' });
  expect(changes).toEqual([{ path: ['sql'], base: 'a', mine: 'b', theirs: 'c', by: 'both' }]);
  const choices = new Map<string, Choice>(changes.map((change) => [changeKey(change), 'theirs']));
  expect(merge(base, mine, theirs, choices).value).toEqual({ sql: 'c' });
  // The same change of both is none to decide.
  expect(merge(base, mine, mine)).toEqual({ value: mine, changes: [] });
});

test('items of lists are found by their identity, wherever they are', () => {
  const item = (id: string, text = '') => ({ id, text });
  const base = [item('a'), item('b'), item('c')];
  const mine = [item('a', 'mine'), item('b'), item('c'), item('mine')];
  const theirs = [item('theirs'), item('c', 'theirs'), item('a')];
  const { value, changes } = merge(base, mine, theirs);
  expect(value).toEqual([item('theirs'), item('c', 'theirs'), item('a', 'mine'), item('mine')]);
  expect(changes.filter(({ by }) => by === 'both')).toEqual([]);
});

test('an item that one removed and the other changed is a conflict', () => {
  const base = [{ id: 'a', text: '' }];
  const { value, changes } = merge(base, [], [{ id: 'a', text: 'theirs' }]);
  expect(value).toEqual([]);
  expect(changes).toMatchObject([{ path: [{ item: 'a' }], mine: undefined, by: 'both' }]);
});

test('items without identity are merged by position, and only if nothing else moved', () => {
  const base = [{ topic: 'a' }, { topic: 'b' }];
  const mine = [{ topic: 'a', qos: 1 }, { topic: 'b' }];
  const theirs = [{ topic: 'a' }, { topic: 'c' }];
  expect(merge(base, mine, theirs).value).toEqual([{ topic: 'a', qos: 1 }, { topic: 'c' }]);
  // Both changed the first one, and one of them added another.
  const longer = [{ topic: 'a' }, { topic: 'b' }, { topic: 'c' }];
  expect(merge(base, base, longer).changes).toMatchObject([{ path: [], by: 'theirs' }]);
  const added = [{ topic: 'z' }, { topic: 'b' }, { topic: 'd' }];
  expect(merge(base, mine, added).changes).toMatchObject([{ path: [], by: 'both' }]);
  // Numbers of a list belong together.
  expect(merge([0, 1], [0, 2], [1, 1]).changes).toMatchObject([{ path: [], by: 'both' }]);
});

test('objects of another kind are not mixed', () => {
  const base = { type: 'mqtt', server: 'a' };
  const { changes } = merge(base, { type: 'http', url: 'b' }, { type: 'mqtt', server: 'c' });
  expect(changes).toMatchObject([{ path: [], by: 'both' }]);
});

test('null is a field without a value', () => {
  expect(isEqual({ a: null, b: [1] }, { b: [1] })).toBe(true);
  expect(isEqual({ a: 0 }, {})).toBe(false);
  expect(merge({ a: null }, {}, { a: 1 }).value).toEqual({ a: 1 });
});

test('secrets are not shown, and long values are cut', () => {
  expect(valueText('hidden', 'password')).toBe('***');
  expect(valueText({ url: 'a', to: { token: 'hidden', port: 1 } }, 'http')).toBe(
    '{"url":"a","to":{"token":"***","port":1}}',
  );
  expect(valueText(['hidden'], 'secrets')).not.toContain('hidden');
  expect(valueText(0, 'rate')).toBe('0');
  expect(valueText(null, 'rate')).toBe('–');
  expect(valueText(['x'.repeat(1_000)], 'text')).toHaveLength(401);
});

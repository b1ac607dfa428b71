import { expect, test } from 'vitest';
import type { CardData, TopicStatus } from './card-data';
import { gaugeBands, stateOf, storedStates, valuesOf } from './card-values';
import { newCard, rangeOf, type Card, type ValueState } from './dashboard';

const card = (change: Partial<Card>): Card => ({ ...newCard([], 'table'), ...change });
const dataOf = (...sources: CardData['sources']): CardData => ({ at_ms: 7, sources });

test('topics have their last message or their rate, in the order of the card', () => {
  const status = (topic: string, payload: string): TopicStatus => ({
    topic,
    payload,
    payload_encoding: 'text',
    is_truncated: false,
    messages_per_s: 0.5,
    last_at_ms: 3,
  });
  const data = dataOf({
    type: 'topics',
    topics: [status('a', '21.5'), { ...status('b', '{"t":'), is_truncated: true }, status('c', ' ')],
  });
  const sources: Card['sources'] = [{ type: 'topics', topics: ['c', 'b', 'none', 'a'] }];
  const values = valuesOf(card({ sources }), data);
  expect(values.map(({ subject, value }) => [subject, value])).toEqual([
    ['c', ' '],
    ['b', '{"t":…'],
    ['a', 21.5],
  ]);
  expect(valuesOf(card({ sources, config: { shows: 'rate' } }), data).map(({ value }) => value)).toEqual([
    0.5, 0.5, 0.5,
  ]);
});

test('metrics without a sample are left out', () => {
  const metrics = [
    { name: 'connections', value: 0, avg: [] },
    { name: 'sessions', value: null, avg: [] },
  ];
  const values = valuesOf(
    card({ sources: [{ type: 'node', metrics: ['connections', 'sessions'] }] }),
    dataOf({ type: 'node', metrics, ts_ms: [] }),
  );
  expect(values).toEqual([{ subject: '', key: 'connections', id: '0 connections', value: 0, tsMs: 7 }]);
});

test('sources of different kinds are shown together, in their order', () => {
  const latest = (value: number) => [{ device: 'pump', values: { t: { ts_ms: 1, value } } }];
  const sources: Card['sources'] = [
    { type: 'attributes', device: 'pump', scope: 'server', keys: ['t'] },
    { type: 'node', metrics: ['connections'] },
    { type: 'telemetry', device: 'pump', keys: ['t'] },
  ];
  const data = dataOf(
    { type: 'attributes', latest: latest(1), is_truncated: false },
    { type: 'node', metrics: [{ name: 'connections', value: 2, avg: [] }], ts_ms: [] },
    { type: 'telemetry', latest: latest(3), intervals: [], is_truncated: false },
  );
  const values = valuesOf(card({ sources }), data);
  expect(values.map(({ value }) => value)).toEqual([1, 2, 3]);
  expect(new Set(values.map(({ id }) => id)).size).toBe(3);
});

const limits: ValueState[] = [
  { from: 80, state: 'critical', text: 'too hot' },
  { from: 60, state: 'warning' },
  { from: -10, state: 'good' },
];

test('the largest limit that a number reaches decides its state, in any order of the limits', () => {
  const states = [-10.1, -10, 59.9, 60, 80, 500].map((value) => stateOf(value, limits)?.state);
  expect(states).toEqual([undefined, 'good', 'good', 'warning', 'critical', 'critical']);
  expect(stateOf('80', limits)).toBeUndefined();
  expect(stateOf(80)).toBeUndefined();
});

test('an equal text decides before limits, also that of a number or a boolean', () => {
  const states: ValueState[] = [
    { equals: 'run', state: 'good' },
    { equals: 'false', state: 'unknown', text: 'off' },
    { from: 0, state: 'warning' },
    { equals: '7', state: 'critical' },
  ];
  expect(['run', false, 7, 6, 'stop'].map((value) => stateOf(value, states)?.state)).toEqual([
    'good',
    'unknown',
    'critical',
    'warning',
    undefined,
  ]);
});

test('bands of a gauge end where the next begins, within its limits', () => {
  expect(gaugeBands(0, 100, limits)).toEqual([
    { state: 'good', begin: 0, end: 0.6 },
    { state: 'warning', begin: 0.6, end: 0.8 },
    { state: 'critical', begin: 0.8, end: 1 },
  ]);
  expect(gaugeBands(0, 50, limits)).toEqual([{ state: 'good', begin: 0, end: 1 }]);
});

test('entered numbers become limits, and rows without a value are left out', () => {
  expect(
    storedStates([
      { equals: ' 2.5 ', state: 'good' },
      { equals: 'on', state: 'good', text: 'x' },
      { equals: '', state: 'warning' },
      { from: 3, state: 'critical' },
    ]),
  ).toEqual([
    { from: 2.5, state: 'good' },
    { equals: 'on', state: 'good', text: 'x' },
    { from: 3, state: 'critical' },
  ]);
});

test('a chart has its own time range, or that of the page', () => {
  expect(rangeOf({}, 1_000, 5_000)).toEqual([4_000, 5_000]);
  expect(rangeOf({ span_s: 3 }, 1_000, 5_000)).toEqual([2_000, 5_000]);
  expect(rangeOf({ from_ms: 1, to_ms: 2 }, 1_000, 5_000)).toEqual([1, 2]);
  expect(rangeOf({ from_ms: 2, to_ms: 1 }, 1_000, 5_000)).toEqual([4_000, 5_000]);
});

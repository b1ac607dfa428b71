import { expect, test } from 'vitest';
import type { CardData, TopicStatus } from './card-data';
import { valuesOf } from './card-values';
import { newCard, type Card } from './dashboard';

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
  expect(values).toEqual([{ subject: '', key: 'connections', value: 0, tsMs: 7 }]);
});

import { expect, test } from 'vitest';
import { appended, gauges, hasUse, joined, rates, windowSeconds } from './rates';

const sample = (atMs: number, sent: number, connects = 0) => ({
  atMs,
  metrics: { messages_sent_total: sent, connects_total: connects },
});

test('a rate is the increase per second', () => {
  const samples = [sample(0, 10), sample(2000, 30)];
  expect(rates(samples, 'messages_sent_total')).toEqual([null, 10]);
  expect(gauges(samples, 'messages_sent_total')).toEqual([10, 30]);
});

test('samples older than the window are forgotten', () => {
  const samples = appended([sample(0, 1)], sample(windowSeconds * 1000 + 1, 2));
  expect(samples).toHaveLength(1);
});

test('a restart of the node begins anew', () => {
  expect(appended([sample(0, 9, 5)], sample(1000, 0, 0))).toHaveLength(1);
});

test('what arrives continues the history of the node', () => {
  const history = {
    interval_ms: 1000,
    ts_ms: [0, 1000, 2000],
    columns: [
      { name: 'messages_sent_per_s', avg: [1, null, null] },
      { name: 'sessions', avg: [5, 6, null] },
    ],
  };
  const samples = [sample(1500, 10), sample(2500, 20), sample(3500, 50)];
  const chart = joined(history, samples, ['messages_sent_per_s', 'sessions']);
  expect(chart.times).toEqual([0, 1000, 2500, 3500]);
  expect(chart.values['messages_sent_per_s']).toEqual([1, null, 10, 30]);
});

test('without a history the charts begin with the first sample', () => {
  const chart = joined(undefined, [sample(0, 10), sample(1000, 20)], ['messages_sent_per_s']);
  expect(chart).toEqual({ times: [0, 1000], values: { messages_sent_per_s: [null, 10] } });
});

test('a node is unused as long as its history has nothing but zeros and gaps', () => {
  const history = (avg: (number | null)[]) => ({ interval_ms: 1000, ts_ms: [0, 1000], columns: [{ name: 'a', avg }] });
  expect(hasUse(history([null, 0]))).toBe(false);
  expect(hasUse(history([0.01, 0]))).toBe(true);
});

import { expect, test } from 'vitest';
import { appended, gauges, rates, windowSeconds } from './rates';

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

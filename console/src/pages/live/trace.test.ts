import { expect, test } from 'vitest';
import { isProblem, maxSteps, messagesOf, outcomeOf, withSteps, type TraceStep } from './trace';

const step = (number: number, message: string, name: string, more: Partial<TraceStep> = {}): TraceStep => ({
  number,
  at_ms: number,
  message_id: message,
  topic: `plant/${message}`,
  qos: 1,
  publisher: 'pump',
  subscriber: null,
  step: name,
  reason: null,
  rules: [],
  payload_bytes: null,
  packet_id: null,
  acknowledgement: null,
  ...more,
});

test('steps that were read twice count once, and the oldest are removed', () => {
  const first = withSteps([], [step(1, 'a', 'received'), step(2, 'a', 'sent')]);
  const both = withSteps(first, [step(2, 'a', 'sent'), step(3, 'b', 'received')]);
  expect(both.map(({ number }) => number)).toEqual([1, 2, 3]);
  expect(withSteps(both, [step(3, 'b', 'received')])).toBe(both);
  const flood = Array.from({ length: maxSteps }, (_, index) => step(index + 4, 'c', 'received'));
  const bounded = withSteps(both, flood);
  expect([bounded.length, bounded[0]?.number]).toEqual([maxSteps, 4]);
});

test('steps are grouped by message, the newest first, with what became of each', () => {
  const messages = messagesOf([
    step(1, 'a', 'received'),
    step(2, 'b', 'received'),
    step(3, 'a', 'rules', { rules: ['hot'] }),
    step(4, 'a', 'sent', { subscriber: 'panel' }),
    step(5, 'a', 'dropped', { subscriber: 'slow', reason: 'queue_full' }),
    step(6, 'b', 'dropped', { reason: 'no_subscribers' }),
    step(7, 'c', 'denied'),
    step(8, 'd', 'queued', { subscriber: 'away' }),
  ]);
  expect(messages.map(({ id }) => id)).toEqual(['d', 'c', 'b', 'a']);
  const [d, c, b, a] = messages.map(outcomeOf);
  expect(a).toEqual({ isDenied: false, dropped: null, sent: 1, queued: 0, droppedForSome: 1, rules: ['hot'] });
  expect(b?.dropped).toBe('no_subscribers');
  expect([d, c, b, a].map((outcome) => outcome && isProblem(outcome))).toEqual([false, true, true, true]);
});

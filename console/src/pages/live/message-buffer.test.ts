import { expect, test, vi } from 'vitest';
import { payloadText } from '../../api/mqtt';
import { asJsonLines, maxBytes, maxMessages, MessageBuffer } from './message-buffer';

const message = (topic: string, payload = new Uint8Array(1)) => ({ atMs: 0, topic, payload, qos: 0, retain: false });

test('the oldest messages make room for new ones', () => {
  vi.useFakeTimers();
  const buffer = new MessageBuffer();
  for (let at = 0; at < maxMessages + 5; at += 1) buffer.add(message(`t/${at}`));
  vi.runAllTimers();
  const { messages, removed } = buffer.snapshot();
  expect(messages).toHaveLength(maxMessages);
  expect(messages[0]?.topic).toBe(`t/${maxMessages + 4}`);
  expect(removed).toBe(5);
});

test('large payloads are bounded by their bytes', () => {
  vi.useFakeTimers();
  const buffer = new MessageBuffer();
  for (let at = 0; at < 10; at += 1) buffer.add(message('t', new Uint8Array(maxBytes / 4)));
  vi.runAllTimers();
  expect(buffer.snapshot().messages.length).toBeLessThanOrEqual(4);
  expect(buffer.snapshot().messages.length).toBeGreaterThan(0);
});

test('a pause keeps what is shown and counts what arrives', () => {
  vi.useFakeTimers();
  const buffer = new MessageBuffer();
  buffer.add(message('a'));
  vi.runAllTimers();
  buffer.setPaused(true);
  buffer.add(message('b'));
  vi.runAllTimers();
  expect(buffer.snapshot().messages.map(({ topic }) => topic)).toEqual(['a']);
  expect(buffer.snapshot().waiting).toBe(1);
  buffer.setPaused(false);
  expect(buffer.snapshot().messages.map(({ topic }) => topic)).toEqual(['b', 'a']);
});

test('an export has one line for each message, bytes in base64', () => {
  const text = new TextEncoder().encode('{"t":1}');
  const lines = asJsonLines(
    [
      { ...message('b', new Uint8Array([0xff])), id: 2 },
      { ...message('a', text), id: 1 },
    ],
    payloadText,
  );
  expect(
    lines
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line)),
  ).toMatchObject([
    { topic: 'a', payload: '{"t":1}' },
    { topic: 'b', payload_base64: '/w==' },
  ]);
});

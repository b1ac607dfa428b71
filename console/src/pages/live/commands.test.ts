import { expect, test } from 'vitest';
import { publishOptions, subscribeCommand } from './commands';

test('the command subscribes at the address of the page, as its user', () => {
  expect(subscribeCommand({ url: 'ws://10.0.0.1:8083/mqtt' }, 'plant/#', 1)).toBe(
    "tidegate sub --url ws://10.0.0.1:8083/mqtt -t 'plant/#' -q 1 -v",
  );
  expect(subscribeCommand({ url: 'wss://h:1/mqtt', username: 'ann b' }, "it's", 0)).toBe(
    "tidegate sub --url wss://h:1/mqtt -u 'ann b' --password-file FILE -t 'it'\\''s' -q 0 -v",
  );
});

test('the command publishes what the form says', () => {
  const draft = { topic: 'a b', payload: '{"x": 1}', qos: 1, retain: true } as const;
  expect(publishOptions(draft)).toBe(`--topic 'a b' --message '{"x": 1}' --qos 1 --retain`);
  expect(publishOptions({ topic: '', payload: '', qos: 0, retain: false })).toBe("--topic TOPIC --message '' --qos 0");
});

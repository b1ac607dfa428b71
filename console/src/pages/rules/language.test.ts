import { expect, test } from 'vitest';
import { errorPlace, topicFilters } from './language';

test('a message for a test comes from the filters of FROM, or of the condition', () => {
  expect(topicFilters('SELECT * FROM "plant/+/t", a/# WHERE x > 1')).toEqual(['plant/+/t', 'a/#']);
  expect(topicFilters(`SELECT * FROM "$EVENT.PUBLISH" WHERE topic =~ 'sensor/+/data'`)).toEqual(['sensor/+/data']);
  expect(topicFilters('SELECT * FROM "$EVENT.PUBLISH"')).toEqual(['#']);
  expect(topicFilters('SELECT * FROM "$EVENT.CONNECT"')).toEqual([]);
});

test('an error says where it is', () => {
  expect(errorPlace('rule.sql: line 2, column 23: unexpected `FRM`\n  |')).toEqual({
    text: 'line 2, column 23: unexpected `FRM`',
    place: { line: 2, column: 23 },
  });
  expect(errorPlace('too long').place).toBeNull();
});

import { expect, test } from 'vitest';
import type { Schemas } from '../../api/client';
import { linesOfRows, rowsAsCsv, rowsOf } from './history-rows';

const interval = (key: string, ts_ms: number, values: object) => ({ key, ts_ms, values }) as Schemas['KeyInterval'];

test('intervals of several keys become rows in the order of time', () => {
  const rows = rowsOf([
    interval('t', 2_000, { avg: 3, last: 4 }),
    interval('t', 1_000, { avg: 1, last: 1 }),
    interval('mode', 1_000, { avg: null, last: 'auto' }),
    interval('none', 1_000, { avg: null, last: null }),
  ]);
  expect(rows).toEqual([
    { ts_ms: 1_000, values: { t: 1, mode: 'auto' } },
    { ts_ms: 2_000, values: { t: 3 } },
  ]);
  expect(linesOfRows('pump', rows)).toEqual([
    {
      device: 'pump',
      key: 't',
      points: new Map([
        [1_000, 1],
        [2_000, 3],
      ]),
    },
  ]);
});

test('a file has a column for each key, and quotes texts that need it', () => {
  const rows = [
    { ts_ms: 0, values: { a: 'x,"y"', b: true } },
    { ts_ms: 1_000, values: { b: { c: 1 } } },
  ];
  expect(rowsAsCsv(rows)).toBe(
    'time,a,b\n1970-01-01T00:00:00.000Z,"x,""y""",true\n1970-01-01T00:00:01.000Z,,"{""c"":1}"\n',
  );
});

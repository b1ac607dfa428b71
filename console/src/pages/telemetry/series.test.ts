import { expect, test } from 'vitest';
import { aligned, asCsv, linesOf, niceInterval } from './series';

const rows = [
  { device: 'b', key: 't', ts_ms: 1000, values: { avg: 2 } },
  { device: 'a', key: 't', ts_ms: 1000, values: { avg: 1 } },
  { device: 'a', key: 't', ts_ms: 2000, values: { avg: 3 } },
  { device: 'a', key: 'on', ts_ms: 1000, values: { avg: true } },
  { device: 'a', key: 'name', ts_ms: 1000, values: { avg: 'x' } },
  { device: 'a', key: 't', ts_ms: 3000, values: { avg: null } },
];

test('there is a line for each device and key with numbers', () => {
  const lines = linesOf(rows, 'avg');
  expect(lines.map(({ device, key }) => `${device} ${key}`)).toEqual(['a t', 'a on', 'b t']);
});

test('lines share their times, with gaps', () => {
  const lines = linesOf(rows, 'avg').filter(({ key }) => key === 't');
  expect(aligned(lines)).toEqual({
    times: [1000, 2000],
    values: [
      [1, 3],
      [2, null],
    ],
  });
  expect(asCsv(lines)).toBe('time,a t,b t\n1970-01-01T00:00:01.000Z,1,2\n1970-01-01T00:00:02.000Z,3,\n');
});

test('an earlier period is moved to the present one', () => {
  expect([...(linesOf(rows, 'avg', 500)[0]?.points.keys() ?? [])]).toEqual([1500, 2500]);
});

test('intervals have usual lengths', () => {
  expect(niceInterval(3_600_000, 300)).toBe(15_000);
  expect(niceInterval(7 * 86_400_000, 300)).toBe(3_600_000);
  expect(niceInterval(3650 * 86_400_000, 300)).toBe(13 * 86_400_000);
});

/** Stored values of one device as rows of a table, lines of a chart, and files. */

import type { Schemas } from '../../api/client';
import type { Line } from '../telemetry/series';

export interface HistoryRow {
  ts_ms: number;
  values: Record<string, unknown>;
}

/** Rows from intervals: the mean of numbers, the last of other values. */
export function rowsOf(intervals: Schemas['KeyInterval'][]): HistoryRow[] {
  const rows = new Map<number, HistoryRow>();
  for (const { ts_ms, key, values } of intervals) {
    const { avg, last } = values as { avg?: unknown; last?: unknown };
    const value = typeof avg === 'number' ? avg : last;
    if (value === null || value === undefined) continue;
    const row = rows.get(ts_ms) ?? { ts_ms, values: {} };
    row.values[key] = value;
    rows.set(ts_ms, row);
  }
  return [...rows.values()].sort((a, b) => a.ts_ms - b.ts_ms);
}

export const keysOf = (rows: readonly HistoryRow[]) =>
  [...new Set(rows.flatMap(({ values }) => Object.keys(values)))].sort();

/** A line for each key with numbers; booleans count as 0 and 1. */
export function linesOfRows(device: string, rows: readonly HistoryRow[]): Line[] {
  return keysOf(rows).flatMap((key) => {
    const points = new Map<number, number>();
    for (const { ts_ms, values } of rows) {
      const value = values[key];
      if (typeof value === 'number') points.set(ts_ms, value);
      if (typeof value === 'boolean') points.set(ts_ms, Number(value));
    }
    return points.size > 0 ? [{ device, key, points }] : [];
  });
}

const textOf = (value: unknown) =>
  value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value);

export function rowsAsCsv(rows: readonly HistoryRow[]): string {
  const keys = keysOf(rows);
  const field = (text: string) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = rows.map(({ ts_ms, values }) => [
    new Date(ts_ms).toISOString(),
    ...keys.map((key) => textOf(values[key])),
  ]);
  return [['time', ...keys], ...lines].map((line) => `${line.map(field).join(',')}\n`).join('');
}

/** Lines of charts from the intervals of a query. */

import type { Schemas } from '../../api/client';

export type IntervalFunction = NonNullable<Schemas['IntervalsQueryInput']['functions']>[number];

export interface Line {
  /** The device; `null`: all devices of the group together. */
  device: string | null;
  key: string;
  points: Map<number, number>;
}

export interface AlignedLines {
  times: number[];
  /** In the order of the lines. */
  values: (number | null)[][];
}

/** One line for each device and key; values that are no numbers are left out, booleans count as 0 and 1. */
export function linesOf(rows: Schemas['KeyInterval'][], name: IntervalFunction, shiftMs = 0): Line[] {
  const lines = new Map<string, Line>();
  for (const { device = null, key, ts_ms, values } of rows) {
    const raw = (values as Record<string, unknown>)[name];
    const value = typeof raw === 'boolean' ? Number(raw) : raw;
    if (typeof value !== 'number') continue;
    const id = `${key}\n${device}`;
    const line = lines.get(id) ?? { device, key, points: new Map() };
    line.points.set(ts_ms + shiftMs, value);
    lines.set(id, line);
  }
  return [...lines.values()].sort((a, b) => (a.device ?? '').localeCompare(b.device ?? ''));
}

/** The values of all lines at the times that any of them has; a gap is `null`. */
export function aligned(lines: readonly Line[]): AlignedLines {
  const times = [...new Set(lines.flatMap(({ points }) => [...points.keys()]))].sort((a, b) => a - b);
  return { times, values: lines.map(({ points }) => times.map((time) => points.get(time) ?? null)) };
}

/** The length of an interval for about `points` points, rounded up to one that people use. */
export function niceInterval(spanMs: number, points: number): number {
  const s = 1_000;
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map((n) => n * s);
  const wanted = spanMs / points;
  return steps.find((step) => step >= wanted) ?? Math.ceil(wanted / 86_400_000) * 86_400_000;
}

/** A table of the lines for a spreadsheet. */
export function asCsv(lines: readonly Line[]): string {
  const { times, values } = aligned(lines);
  const field = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const header = ['time', ...lines.map(({ device, key }) => (device === null ? key : `${device} ${key}`))];
  const rows = times.map((time, index) => [
    new Date(time).toISOString(),
    ...values.map((column) => String(column[index] ?? '')),
  ]);
  return [header, ...rows].map((row) => `${row.map(field).join(',')}\n`).join('');
}

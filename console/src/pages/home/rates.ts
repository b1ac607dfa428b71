/** Rates from counters that the node reports every second. */

export interface Sample {
  atMs: number;
  metrics: Record<string, number>;
}

/** Seconds of history that the page keeps. */
export const windowSeconds = 300;

/** Adds a sample and forgets those older than the window. A restart of the node begins anew. */
export function appended(samples: readonly Sample[], next: Sample): Sample[] {
  const last = samples[samples.length - 1];
  const restarted = last !== undefined && counter(next, 'connects_total') < counter(last, 'connects_total');
  const kept = restarted ? [] : samples.filter((sample) => sample.atMs > next.atMs - windowSeconds * 1000);
  return [...kept, next];
}

function counter(sample: Sample, name: string): number {
  return sample.metrics[name] ?? 0;
}

/** The gauge at each sample. */
export function gauges(samples: readonly Sample[], name: string): number[] {
  return samples.map((sample) => counter(sample, name));
}

/** Increase per second at each sample after the first. */
export function rates(samples: readonly Sample[], name: string): (number | null)[] {
  return samples.map((sample, index) => {
    const previous = samples[index - 1];
    if (previous === undefined) return null;
    const seconds = (sample.atMs - previous.atMs) / 1000;
    return seconds > 0 ? Math.max(0, counter(sample, name) - counter(previous, name)) / seconds : null;
  });
}

/** What the node has recorded, as it answers. */
export interface NodeHistory {
  interval_ms: number;
  ts_ms: number[];
  columns: { name: string; avg: (number | null)[] }[];
}

/** Whether any value of the history is not 0. */
export function hasUse({ columns }: NodeHistory): boolean {
  return columns.some(({ avg }) => avg.some((value) => value !== null && value > 0));
}

export interface ChartData {
  times: number[];
  /** By the name of the metric in the history, such as `messages_sent_per_s`. */
  values: Record<string, (number | null)[]>;
}

/** The metric at each sample: a gauge, or the rate of a counter. */
function live(samples: readonly Sample[], name: string): (number | null)[] {
  const stem = name.replace(/_per_s$/, '');
  return stem === name ? gauges(samples, name) : rates(samples, `${stem}_total`);
}

/** The history, and after its end what has arrived since. */
export function joined(
  history: NodeHistory | undefined,
  samples: readonly Sample[],
  names: readonly string[],
): ChartData {
  const columns = names.map((name) => history?.columns.find((column) => column.name === name)?.avg ?? []);
  // The node has not recorded a sample for the last intervals yet.
  let past = history?.ts_ms.length ?? 0;
  while (past > 0 && columns.every((column) => column[past - 1] == null)) past -= 1;
  const pastMs = history?.ts_ms.slice(0, past) ?? [];
  const endMs = history && past > 0 ? (pastMs[past - 1] ?? 0) + history.interval_ms : 0;
  const first = samples.findIndex((sample) => sample.atMs >= endMs);
  const begin = first < 0 ? samples.length : first;
  const values = names.map((name, index) => [
    ...(columns[index]?.slice(0, past) ?? []),
    ...live(samples, name).slice(begin),
  ]);
  return {
    times: [...pastMs, ...samples.slice(begin).map((sample) => sample.atMs)],
    values: Object.fromEntries(names.map((name, index) => [name, values[index] ?? []])),
  };
}

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

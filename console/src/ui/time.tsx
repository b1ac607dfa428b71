import { useSyncExternalStore } from 'react';
import { formatAgo, formatDuration, formatTime } from '../format';

const tickMs = 5_000;
let now = Date.now();
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

/** One clock for all relative times of the page. */
function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    now = Date.now();
    listeners.forEach((each) => each());
  }, tickMs);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

/** How long ago, with the exact time on demand: without a component for it, because lists have hundreds. */
export function Ago({ ms }: { ms: number | null | undefined }) {
  const current = useNow();
  if (ms == null || ms === 0) return <span className="dimmed">–</span>;
  return (
    <time dateTime={new Date(ms).toISOString()} title={formatTime(ms)}>
      {formatAgo(ms, Math.max(current, ms))}
    </time>
  );
}

/** How long since, as a duration. */
export function Since({ ms }: { ms: number }) {
  const current = useNow();
  return (
    <time dateTime={new Date(ms).toISOString()} title={formatTime(ms)}>
      {formatDuration((Math.max(current, ms) - ms) / 1000)}
    </time>
  );
}

const clockFormat = new Intl.DateTimeFormat('en', {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  hourCycle: 'h23',
});

/** The time of day to the millisecond, for lists of what just happened. */
export function LiveTime({ ms }: { ms: number }) {
  return (
    <time className="dimmed mono" dateTime={new Date(ms).toISOString()}>
      {clockFormat.format(ms)}
    </time>
  );
}

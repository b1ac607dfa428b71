/** Numbers, sizes, rates and times as the console shows them. */

import { t } from '@lingui/core/macro';

/** The language of the page, in the form of the browser's region if it has one: dates differ between regions. */
function locale(): string {
  const language = document.documentElement.lang || 'en';
  return navigator.languages.find((each) => each.split('-')[0] === language) ?? language;
}

/** Formatters by language and kind: making one takes longer than hundreds of uses, and lists use thousands. */
const formatters = new Map<string, unknown>();

function formatter<T>(kind: string, make: (language: string) => T): T {
  const language = locale();
  const key = `${language} ${kind}`;
  let found = formatters.get(key) as T | undefined;
  if (found === undefined) {
    found = make(language);
    formatters.set(key, found);
  }
  return found;
}

export function formatNumber(value: number, digits = 0): string {
  const make = (language: string) => new Intl.NumberFormat(language, { maximumFractionDigits: digits });
  return formatter(`number ${digits}`, make).format(value);
}

/** A number with at most four characters and a suffix: `1.2 k`. */
export function formatCompact(value: number): string {
  const magnitude = Math.abs(value);
  const steps: [number, string][] = [
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ];
  for (const [step, suffix] of steps) {
    if (magnitude >= step) return `${formatNumber(value / step, magnitude >= 100 * step ? 0 : 1)} ${suffix}`;
  }
  return formatNumber(value, magnitude < 10 && !Number.isInteger(value) ? 1 : 0);
}

const maxTickDigits = 6;

/** A number on an axis, with as many digits as tell it from its neighbours at this distance. */
export function formatTick(value: number, step: number): string {
  if (Math.abs(value) >= 1000 && step >= 100) return formatCompact(value);
  let digits = 0;
  while (digits < maxTickDigits && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  const exactly = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return formatter(`tick ${digits}`, (language) => new Intl.NumberFormat(language, exactly)).format(value);
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${formatNumber(value, unit > 0 && value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function formatDuration(durationS: number): string {
  const whole = Math.max(0, Math.floor(durationS));
  const [days, hours, minutes, seconds] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  if (days > 0) return t`${days} d ${hours} h`;
  if (hours > 0) return t`${hours} h ${minutes} min`;
  if (minutes > 0) return t`${minutes} min ${seconds} s`;
  return t`${whole} s`;
}

/** A day in the browser's zone; its times are in a tooltip. */
export function formatDate(ms: number): string {
  const options = { year: 'numeric', month: '2-digit', day: '2-digit' } as const;
  return formatter('date', (language) => new Intl.DateTimeFormat(language, options)).format(ms);
}

/** Date and time in the zone of the browser, with the zone. */
export function formatTime(ms: number): string {
  const options = {
    year: 'numeric',
    month: '2-digit',
    day: '2-digit',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    timeZoneName: 'short',
    hourCycle: 'h23',
  } as const;
  return formatter('time', (language) => new Intl.DateTimeFormat(language, options)).format(ms);
}

/** How long ago, in the largest fitting unit. */
export function formatAgo(ms: number, now = Date.now()): string {
  const seconds = Math.round((ms - now) / 1000);
  const steps: [number, Intl.RelativeTimeFormatUnit][] = [
    [86400, 'day'],
    [3600, 'hour'],
    [60, 'minute'],
    [1, 'second'],
  ];
  const style = { numeric: 'auto', style: 'short' } as const;
  const relative = formatter('ago', (language) => new Intl.RelativeTimeFormat(language, style));
  for (const [size, unit] of steps) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return relative.format(0, 'second');
}

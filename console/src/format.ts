/** Numbers, sizes, rates and times as the console shows them. */

import { t } from '@lingui/core/macro';

/** The language of the page, in the form of the browser's region if it has one: dates differ between regions. */
function locale(): string {
  const language = document.documentElement.lang || 'en';
  return navigator.languages.find((each) => each.split('-')[0] === language) ?? language;
}

export function formatNumber(value: number, digits = 0): string {
  return new Intl.NumberFormat(locale(), { maximumFractionDigits: digits }).format(value);
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
  return new Intl.NumberFormat(locale(), { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(
    value,
  );
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
  return new Intl.DateTimeFormat(locale(), { year: 'numeric', month: '2-digit', day: '2-digit' }).format(ms);
}

/** Date and time in the zone of the browser, with the zone. */
export function formatTime(ms: number): string {
  return new Intl.DateTimeFormat(locale(), {
    year: 'numeric',
    month: '2-digit',
    day: '2-digit',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    timeZoneName: 'short',
    hourCycle: 'h23',
  }).format(ms);
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
  const relative = new Intl.RelativeTimeFormat(locale(), { numeric: 'auto', style: 'short' });
  for (const [size, unit] of steps) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return relative.format(0, 'second');
}

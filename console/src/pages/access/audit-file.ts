/** The audit log as a file for a spreadsheet, and its days. */

import type { Schemas } from '../../api/client';
import { changesBetween } from './object-changes';

/** The start of a day in the zone of the browser, or of one some days later; `day` is `YYYY-MM-DD`. */
export function dayStartMs(day: string, daysLater = 0): number | undefined {
  const [year, month, date] = day.split('-').map(Number);
  if (!year || !month || !date) return undefined;
  return new Date(year, month - 1, date + daysLater).getTime();
}

export function auditCsv(entries: readonly Schemas['AuditEntry'][]): string {
  const field = (value: unknown) => {
    const text = value === null || value === undefined ? '' : String(value);
    // A spreadsheet would evaluate these as formulas.
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const header = [
    'number',
    'time',
    'actor',
    'authentication',
    'role',
    'address',
    'action',
    'subject',
    'version',
    'changed',
  ];
  const rows = entries.map((entry) => [
    entry.number,
    new Date(entry.at_ms).toISOString(),
    entry.actor,
    entry.authentication,
    entry.role,
    entry.address,
    entry.action,
    entry.subject,
    entry.version_after,
    changesBetween(entry.before, entry.after)
      .map((change) => change.field)
      .join(' '),
  ]);
  return [header, ...rows].map((row) => `${row.map(field).join(',')}\n`).join('');
}

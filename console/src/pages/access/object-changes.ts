/** What differs between two versions of an object. */

export interface FieldChange {
  field: string;
  before: unknown;
  after: unknown;
}

/** Fields that every change sets. */
const frame = ['version', 'updated_at_ms', 'created_at_ms', 'origin'];

const fieldsOf = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};

export function changesBetween(before: unknown, after: unknown): FieldChange[] {
  const [old, now] = [fieldsOf(before), fieldsOf(after)];
  const names = [...new Set([...Object.keys(old), ...Object.keys(now)])].filter((name) => !frame.includes(name));
  return names
    .filter((name) => JSON.stringify(old[name]) !== JSON.stringify(now[name]))
    .map((field) => ({ field, before: old[field], after: now[field] }));
}

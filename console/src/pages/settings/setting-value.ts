/** Values of settings as text, and back. */

import { t } from '@lingui/core/macro';

export function settingText(value: unknown): string {
  if (value == null) return '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** What a typed text means for a setting with this value: a number, a truth value, JSON, or the text itself. */
export function parseSetting(text: string, current: unknown, expected: string): unknown {
  const trimmed = text.trim();
  if (typeof current === 'boolean' && (trimmed === 'true' || trimmed === 'false')) return trimmed === 'true';
  const wantsNumber = typeof current === 'number' || /number/.test(expected);
  if (wantsNumber && trimmed !== '' && Number.isFinite(Number(trimmed))) return Number(trimmed);
  if (Array.isArray(current)) {
    try {
      return JSON.parse(trimmed);
    } catch {
      return trimmed;
    }
  }
  return trimmed;
}

/** What is wrong with a number, as far as the description of the expected values tells. */
export function operandProblem(text: string, expected: string): string | undefined {
  const range = /^a whole number from (\d+) to (\d+)/.exec(expected);
  if (!range) return undefined;
  const [least = '', most = ''] = [range[1], range[2]];
  const value = Number(text.trim());
  if (text.trim() !== '' && Number.isInteger(value) && value >= Number(least) && value <= Number(most))
    return undefined;
  return t`From ${least} to ${most}`;
}

/** Conditions of alarm rules: a test, or tests combined by "all" or "any"; deeper ones are edited as JSON. */

import { choiceName } from '../../api/choice-names';

export interface Test {
  key: string;
  is: string;
  value?: unknown;
  attribute?: string | null;
}

export type Condition = Test | { all: Condition[] } | { any: Condition[] };

export interface Flat {
  mode: 'all' | 'any';
  tests: Test[];
}

export interface Timing {
  for_s?: number | null;
  times?: number | null;
  within_s?: number | null;
  schedule?: unknown[];
}

export interface Clause extends Timing {
  when: Condition;
}

export interface AlarmRule {
  id: string;
  description?: string;
  enabled?: boolean;
  raise: (Clause & { severity: string })[];
  clear?: Clause | null;
  details?: string | null;
  notify?: string[];
  propagate?: boolean;
}

export const comparisons = ['>', '>=', '<', '<=', '=', '!=', 'between', 'contains', 'silent_for'];

const isTest = (condition: Condition): condition is Test => 'key' in condition;

/** The tests of a condition, unless it is nested. */
export function flat(condition: Condition): Flat | undefined {
  if (isTest(condition)) return { mode: 'all', tests: [condition] };
  const mode = 'all' in condition ? 'all' : 'any';
  const parts = 'all' in condition ? condition.all : condition.any;
  return parts.every(isTest) ? { mode, tests: parts as Test[] } : undefined;
}

export function nested({ mode, tests }: Flat): Condition {
  const [first] = tests;
  if (tests.length === 1 && first) return first;
  return mode === 'all' ? { all: tests } : { any: tests };
}

/** A value as it is typed: `80`, `true`, `10, 20` for two values, anything else is a text. */
export function parseOperand(text: string, is: string): unknown {
  const one = (part: string): unknown => {
    const trimmed = part.trim();
    if (trimmed !== '' && Number.isFinite(Number(trimmed))) return Number(trimmed);
    if (trimmed === 'true' || trimmed === 'false') return trimmed === 'true';
    return trimmed;
  };
  if (is === 'between') return text.split(',').map(one);
  return is === 'contains' ? text : one(text);
}

export function operandText(value: unknown): string {
  if (value == null) return '';
  return Array.isArray(value) ? value.join(', ') : String(value);
}

/** A condition in one line: `temperature > 60 and mode = auto`. */
export function conditionText(condition: Condition, words: { and: string; or: string }): string {
  if (isTest(condition)) {
    const operand = condition.attribute
      ? `\${${condition.attribute}}`
      : Array.isArray(condition.value)
        ? condition.value.join(' … ')
        : String(condition.value);
    return `${condition.key} ${choiceName('is', condition.is)} ${operand}${condition.is === 'silent_for' ? ' s' : ''}`;
  }
  const parts = 'all' in condition ? condition.all : condition.any;
  const texts = parts.map((part) => (isTest(part) ? conditionText(part, words) : `(${conditionText(part, words)})`));
  return texts.join(` ${'all' in condition ? words.and : words.or} `);
}

/** What is missing in a rule before it can be sent. */
export function isComplete(rule: AlarmRule): boolean {
  const tested = (condition: Condition): boolean =>
    isTest(condition)
      ? condition.key !== '' && (condition.value !== undefined || Boolean(condition.attribute))
      : ('all' in condition ? condition.all : condition.any).every(tested);
  return (
    rule.id !== '' &&
    rule.raise.length > 0 &&
    rule.raise.every(({ when }) => tested(when)) &&
    (!rule.clear || tested(rule.clear.when))
  );
}

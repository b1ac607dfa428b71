import { expect, test } from 'vitest';
import type { Schemas } from '../../api/client';
import { auditCsv, dayStartMs } from './audit-file';

test('a day begins at midnight of the browser, and the last day ends with it', () => {
  expect(dayStartMs('2026-03-01')).toBe(new Date(2026, 2, 1).getTime());
  expect(dayStartMs('2026-02-28', 1)).toBe(new Date(2026, 2, 1).getTime());
  expect(dayStartMs('')).toBeUndefined();
});

test('texts with commas are quoted, and no text is a formula', () => {
  const entry = {
    number: 7,
    at_ms: 0,
    actor: '=cmd()',
    authentication: null,
    role: 'admin',
    address: '127.0.0.1',
    action: 'rule.change',
    subject: 'a,b',
    version_before: 1,
    version_after: 2,
    before: { sql: 'x', enabled: true },
    after: { sql: 'y', enabled: true },
  } as Schemas['AuditEntry'];
  expect(auditCsv([entry]).split('\n')[1]).toBe(
    '7,1970-01-01T00:00:00.000Z,\'=cmd(),,admin,127.0.0.1,rule.change,"a,b",2,sql',
  );
});

import { expect, test } from 'vitest';
import { keptCredentials, lostCredentials, newCredential } from './credentials';

const present = [
  { type: 'password', name: 'pump-1' },
  { type: 'certificate', name: 'pump.example' },
  { type: 'jwt', name: null },
] as const;

test('a new password keeps the user name, and certificates stay valid', () => {
  expect(newCredential('password', present)).toEqual({ type: 'password', username: 'pump-1' });
  expect(newCredential('token', present)).toEqual({ type: 'token' });
  expect(newCredential('secure', present)).toEqual({ type: 'secure' });
  expect(keptCredentials(present)).toEqual([{ type: 'certificate', common_name: 'pump.example' }]);
  expect(lostCredentials(present)).toBe(1);
});

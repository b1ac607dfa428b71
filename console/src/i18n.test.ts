import { expect, test, vi } from 'vitest';

vi.mock('./locales/en.po', () => ({ messages: {} }));
const { firstKnown } = await import('./i18n');

test('the language is the first of the browser that the console has', () => {
  expect(firstKnown(['en-GB', 'zh-CN'])).toBe('en');
  expect(firstKnown(['de', 'zh-Hans-CN', 'en'])).toBe('zh');
  expect(firstKnown(['de'])).toBe('en');
});

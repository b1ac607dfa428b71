import { i18n } from '@lingui/core';
import { expect, test, vi } from 'vitest';
import { formatDuration, formatTick } from './format';
import { messages as chinese } from './locales/zh.po';

test('a duration has its two largest units', () => {
  i18n.loadAndActivate({ locale: 'en', messages: {} });
  expect([-1, 42.9, 982, 7260, 93_600].map(formatDuration)).toEqual([
    '0 s',
    '42 s',
    '16 min 22 s',
    '2 h 1 min',
    '1 d 2 h',
  ]);
});

test('the units of a duration are translated', () => {
  i18n.loadAndActivate({ locale: 'zh', messages: chinese });
  expect([42, 982, 7260, 93_600].map(formatDuration)).toEqual(['42 秒', '16 分 22 秒', '2 小时 1 分', '1 天 2 小时']);
});

test('ticks of an axis differ from each other', () => {
  vi.stubGlobal('document', { documentElement: { lang: 'en' } });
  vi.stubGlobal('navigator', { languages: ['en'] });
  i18n.loadAndActivate({ locale: 'en', messages: {} });
  const ticks = (values: number[], step: number) => values.map((value) => formatTick(value, step));
  expect(ticks([0, 0.25, 0.5, 0.75, 1], 0.25)).toEqual(['0.00', '0.25', '0.50', '0.75', '1.00']);
  expect(ticks([53.539, 53.5395, 53.54], 0.0005)).toEqual(['53.5390', '53.5395', '53.5400']);
  expect(ticks([0, 500, 1000, 1500], 500)).toEqual(['0', '500', '1 k', '1.5 k']);
  expect(ticks([1000, 1020], 20)).toEqual(['1,000', '1,020']);
});

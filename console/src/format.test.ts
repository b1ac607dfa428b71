import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { formatDuration } from './format';
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

import { readdirSync, readFileSync } from 'node:fs';
import { i18n } from '@lingui/core';
import { expect, test } from 'vitest';
import { messages as chinese } from '../../locales/zh.po';
import { describe } from './descriptions';

const folder = new URL('../../../../crates/simulate/simulations/', import.meta.url);

const simulations = readdirSync(folder).map((file) => {
  const description = /^description = "(.*)"$/m.exec(readFileSync(new URL(file, folder), 'utf8'))?.[1] ?? '';
  return { name: file.replace(/\.toml$/, ''), description };
});

test('the descriptions of all simulations are those of the node, and translated', () => {
  expect(simulations.length).toBeGreaterThan(0);
  i18n.loadAndActivate({ locale: 'other', messages: {} });
  for (const simulation of simulations) expect(describe(i18n, simulation)).toBe(simulation.description);
  i18n.loadAndActivate({ locale: 'zh', messages: chinese });
  for (const simulation of simulations) expect(describe(i18n, simulation)).toMatch(/\p{Script=Han}/u);
});

test('a simulation that the console does not know has the description of the node', () => {
  expect(describe(i18n, { name: 'new', description: 'A new one' })).toBe('A new one');
});

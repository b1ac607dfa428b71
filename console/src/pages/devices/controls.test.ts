import { expect, test } from 'vitest';
import { controlsOf, paramsOf } from './controls';

test('only complete controls are taken from an attribute', () => {
  const lamp = { id: '1', kind: 'switch', label: 'Lamp', command: 'set_lamp' };
  expect(controlsOf([lamp, { kind: 'switch' }, null, { ...lamp, kind: 'lever' }])).toEqual([lamp]);
  expect(controlsOf('[]')).toEqual([]);
});

test('parameters are those that relay devices expect', () => {
  expect(paramsOf('switch', true)).toEqual({ state: 'on' });
  expect(paramsOf('slider', 40)).toEqual({ value: 40 });
  expect(paramsOf('button', undefined)).toEqual({});
});

import { expect, test } from 'vitest';
import { controlsOf, initialValue, paramsOf, withKind, type Control } from './controls';

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

test('icons and default values that do not fit are left out', () => {
  const dimmer = { id: '1', kind: 'slider', label: 'Dimmer', command: 'dim', icon: 'bulb', defaultValue: 30 };
  expect(controlsOf([dimmer])).toEqual([dimmer]);
  const [control] = controlsOf([{ ...dimmer, icon: 'star', defaultValue: true }]);
  expect(control).toEqual({ id: '1', kind: 'slider', label: 'Dimmer', command: 'dim' });
  expect(withKind(dimmer as Control, 'number').defaultValue).toBe(30);
  expect(withKind(dimmer as Control, 'switch')).not.toHaveProperty('defaultValue');
});

test('a control begins with its default value, within its range', () => {
  const slider: Control = { id: '1', kind: 'slider', label: 'Dimmer', command: 'dim', min: 10, max: 50 };
  expect(initialValue(slider)).toBe(10);
  expect(initialValue({ ...slider, defaultValue: 30 })).toBe(30);
  expect(initialValue({ ...slider, defaultValue: 99 })).toBe(50);
  expect(initialValue({ ...slider, kind: 'switch', defaultValue: true })).toBe(true);
  expect(initialValue({ ...slider, kind: 'number', max: undefined, defaultValue: 99 })).toBe(99);
});

import { expect, test } from 'vitest';
import type { CardSource } from './dashboard';
import { draftOf, newSource, sourceOf, sourceTypes, withType } from './source-draft';

test('sources of every kind are the same after they were edited', () => {
  const sources: CardSource[] = [
    { type: 'telemetry', device: 'a', keys: ['t'] },
    { type: 'telemetry', device_group: 'g', keys: ['t', 'p'] },
    { type: 'attributes', device: 'a', scope: 'client', keys: ['model'] },
    { type: 'devices', device_group: 'g' },
    { type: 'alarms', product: 'p' },
    { type: 'alarms' },
    { type: 'topics', topics: ['x'] },
    { type: 'node', metrics: ['connections'] },
  ];
  expect(sources.map(draftOf).map(sourceOf)).toEqual(sources);
});

test('a source without what it needs is incomplete', () => {
  expect(sourceOf(newSource('telemetry', ['t']))).toBeNull();
  expect(sourceOf({ ...newSource('telemetry'), device: 'a' })).toBeNull();
  expect(sourceOf(newSource('topics'))).toBeNull();
  expect(sourceOf(newSource('devices'))).toBeNull();
});

test('another type keeps the device, and no keys', () => {
  const telemetry = draftOf({ type: 'telemetry', device: 'a', keys: ['t'] });
  expect(withType(telemetry, 'attributes')).toMatchObject({
    type: 'attributes',
    device: 'a',
    scope: 'server',
    keys: [],
  });
  const group = draftOf({ type: 'devices', device_group: 'g' });
  expect(sourceOf(withType(group, 'alarms'))).toEqual({ type: 'alarms' });
});

test('topics and metrics are offered only on dashboards of the node', () => {
  expect(sourceTypes('table', false)).toEqual(['telemetry', 'attributes']);
  expect(sourceTypes('chart', true)).toEqual(['telemetry', 'node']);
});

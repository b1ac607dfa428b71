import { expect, test } from 'vitest';
import { closesCycle, levelHeight, freeId, positions, withNode, withoutNode, withRelation, type Chain } from './graph';

const chain: Chain = {
  nodes: [
    { id: 'hot', type: 'filter', condition: 't > 30' },
    { id: 'save', type: 'save_telemetry' },
    { id: 'alarm', type: 'alarm' },
  ],
  relations: [
    { from: 'hot', to: 'save', on: 'false' },
    { from: 'hot', to: 'alarm', on: 'true' },
    { from: 'alarm', to: 'save', on: 'success' },
  ],
  first: 'hot',
};

test('a node is below all nodes that lead to it', () => {
  const places = positions(chain);
  expect(['hot', 'alarm', 'save'].map((id) => (places.get(id)?.y ?? -1) / levelHeight)).toEqual([0, 1, 2]);
});

test('a relation that closes a cycle is not added', () => {
  expect(closesCycle(chain, 'save', 'hot')).toBe(true);
  expect(withRelation(chain, { from: 'save', to: 'hot', on: 'success' })).toBe(chain);
});

test('relations follow a renamed node and lose outcomes that it no longer has', () => {
  expect(withNode(chain, 'hot', { id: 'warm', type: 'filter', condition: '' }).relations[0]?.from).toBe('warm');
  expect(withNode(chain, 'hot', { id: 'hot', type: 'log', message: '' }).relations).toHaveLength(1);
});

test('a deleted node leaves no relation', () => {
  expect(withoutNode(chain, 'hot')).toMatchObject({ relations: [{ from: 'alarm' }], first: null });
});

test('ids of new nodes are free', () => {
  expect(freeId(chain, 'alarm')).toBe('alarm-2');
});

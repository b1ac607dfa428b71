import { expect, test } from 'vitest';
import type { Caller } from '../../api/session';
import { mayChangeAlarm, nodeProduct } from '../alarms/alarm-access';
import { mayChangeProduct } from './products';

/** Operator in one namespace, viewer in another and on the node. */
const caller: Caller = {
  name: 'ann',
  role: 'viewer',
  namespaces: [
    { namespace: 'north', role: 'operator' },
    { namespace: 'south', role: 'viewer' },
  ],
  authentication: 'token',
  mustChangePassword: false,
};
const products = [{ id: 'pump', namespace: 'north' }, { id: 'valve', namespace: 'south' }, { id: 'plain' }];

test('a role in one namespace permits no changes in another', () => {
  const permitted = (who: Caller) =>
    ['pump', 'valve', 'plain', 'new'].filter((id) => mayChangeProduct(who, products, id));
  expect(permitted(caller)).toEqual(['pump']);
  expect(permitted({ ...caller, role: 'operator' })).toEqual(['pump', 'valve', 'plain', 'new']);
});

test('alarms of the node are changed with a role on the node', () => {
  const alarm = (productId: string, namespace: string) => mayChangeAlarm(caller, { productId, namespace });
  expect([alarm('pump', 'north'), alarm('valve', 'south'), alarm(nodeProduct, 'north')]).toEqual([true, false, false]);
});

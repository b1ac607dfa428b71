import type { Schemas } from '../../api/client';
import { mayInNamespace, mayOnNode, type Caller } from '../../api/session';

/** What alarms of the node have in place of a product. */
export const nodeProduct = '$node';

/** Whether the caller may acknowledge, clear and comment an alarm: with a role on the node, or in the namespace of the device. */
export function mayChangeAlarm(
  caller: Caller,
  { productId, namespace }: Pick<Schemas['Alarm'], 'productId' | 'namespace'>,
): boolean {
  return productId === nodeProduct ? mayOnNode(caller, 'operator') : mayInNamespace(caller, 'operator', namespace);
}

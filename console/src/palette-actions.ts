/** What can be begun from the search (Ctrl-K), with the place where it is done. */

import { msg } from '@lingui/core/macro';
import type { MessageDescriptor } from '@lingui/core';
import { mayInNamespace, mayOnNode, type Caller } from './api/session';
import { newRulePath } from './new-paths';

export interface PaletteAction {
  label: MessageDescriptor;
  href: string;
  isPermitted: (caller: Caller) => boolean;
}

const onNode = (role: 'viewer' | 'operator' | 'admin') => (caller: Caller) => mayOnNode(caller, role);
const inNamespace = (caller: Caller) => mayInNamespace(caller, 'operator');

export const paletteActions: PaletteAction[] = [
  { label: msg`Add a device`, href: '/devices?new=1', isPermitted: inNamespace },
  { label: msg`Import devices`, href: '/devices?new=import', isPermitted: inNamespace },
  { label: msg`New product`, href: '/products?new=1', isPermitted: inNamespace },
  { label: msg`New group`, href: '/groups?new=1', isPermitted: inNamespace },
  { label: msg`Write a rule`, href: newRulePath, isPermitted: onNode('operator') },
  { label: msg`Publish a message`, href: '/live', isPermitted: onNode('viewer') },
  { label: msg`Record what happens to messages`, href: '/live?tab=trace', isPermitted: onNode('operator') },
  { label: msg`Show rejected connections`, href: '/clients?tab=rejected', isPermitted: onNode('viewer') },
  { label: msg`Check a permission or a login`, href: '/access/mqtt?tab=check', isPermitted: onNode('operator') },
  { label: msg`New MQTT user`, href: '/access/mqtt?tab=users&new=1', isPermitted: onNode('operator') },
  { label: msg`Back up the node`, href: '/settings?tab=backup', isPermitted: onNode('admin') },
  { label: msg`Show all limits`, href: '/settings?tab=limits', isPermitted: onNode('viewer') },
  { label: msg`Change the password`, href: '/profile', isPermitted: (caller) => caller.authentication === 'token' },
];
